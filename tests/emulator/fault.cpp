#include "fault.h"
#include "grid.h"
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <unistd.h>

namespace emulator {

namespace {

constexpr int EXIT_STATUS = 99;

[[noreturn]] void end(const Block &block) {
    block.describe();
    fflush(stderr);
    _exit(EXIT_STATUS);
}

void say_where(const Block &block) {
    fprintf(stderr, "\nemulator: %s, block %u", block.grid.launch.name.c_str(), block.index);
}

const int SIGNALS[] = {SIGSEGV, SIGBUS, SIGILL};
struct sigaction before[64];
thread_local bool is_device;

void on_fault(int number, siginfo_t *info, void *) {
    if (is_device && current) {
        const char *what = number == SIGILL ? "an access that is not aligned" : "an access beyond memory";
        violation("%s, at %p", what, info->si_addr);
    }
    sigaction(number, &before[number], nullptr); // not ours: again, to whom it was for
}

} // namespace

const char *name_of(Collective what) {
    static const char *const NAMES[] = {"syncwarp", "shfl", "shfl_up", "shfl_xor", "a vote", "match", "min", "max", "sum"};
    return NAMES[int(what)];
}

void violation(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    if (current) say_where(current->block);
    if (current) fprintf(stderr, ", thread %u", current->index);
    fprintf(stderr, ": ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    if (current) end(current->block);
    _exit(EXIT_STATUS);
}

void stuck(const Block &block) {
    say_where(block);
    fprintf(stderr, ": no thread can go on\n");
    end(block);
}

void catch_faults() {
    is_device = true;
    static char stack[64 << 10];
    stack_t alternate = {};
    alternate.ss_sp = stack;
    alternate.ss_size = sizeof stack;
    sigaltstack(&alternate, nullptr);
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int number : SIGNALS) sigaction(number, &action, &before[number]);
}

} // namespace emulator
