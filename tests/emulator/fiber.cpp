#include "fiber.h"
#include <cstdlib>
#include <sys/mman.h>
#include <vector>
#ifndef __x86_64__
#include <ucontext.h>
#endif

namespace emulator {

namespace {

constexpr size_t STACK_BYTES = 64 << 10;

// Kernels come and go by the thousand: their stacks are kept.
std::vector<char *> &spare = *new std::vector<char *>;

char *new_stack() {
    if (!spare.empty()) {
        char *stack = spare.back();
        spare.pop_back();
        return stack;
    }
    void *stack = mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED) abort();
    return static_cast<char *>(stack);
}

void *scheduler;

} // namespace

#ifdef __x86_64__

// Saves what a function must keep, stores the stack pointer in *from and goes on at `to`.
extern "C" void emulator_switch(void **from, void *to);
asm(R"(
.text
.globl emulator_switch
.hidden emulator_switch
.type emulator_switch, @function
emulator_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size emulator_switch, . - emulator_switch
)");

Fiber::Fiber(void (*run)()) : stack(new_stack()) {
    *reinterpret_cast<uint64_t *>(stack) = CANARY;
    constexpr size_t SAVED_REGISTERS = 6;
    void **top = reinterpret_cast<void **>(stack + STACK_BYTES - 64);
    *--top = nullptr; // where `run` would return to
    *--top = reinterpret_cast<void *>(run);
    for (size_t i = 0; i < SAVED_REGISTERS; i++) *--top = nullptr;
    position = top;
}

Fiber::~Fiber() { spare.push_back(stack); }
void Fiber::enter() { emulator_switch(&scheduler, position); }
void Fiber::leave() { emulator_switch(&position, scheduler); }

#else // slower, as each switch is two system calls

Fiber::Fiber(void (*run)()) : stack(new_stack()) {
    *reinterpret_cast<uint64_t *>(stack) = CANARY;
    ucontext_t *context = new ucontext_t;
    getcontext(context);
    context->uc_stack.ss_sp = stack;
    context->uc_stack.ss_size = STACK_BYTES;
    context->uc_link = nullptr;
    makecontext(context, run, 0);
    position = context;
}

Fiber::~Fiber() {
    delete static_cast<ucontext_t *>(position);
    spare.push_back(stack);
}

void Fiber::enter() {
    ucontext_t here;
    scheduler = &here;
    swapcontext(&here, static_cast<ucontext_t *>(position));
}

void Fiber::leave() { swapcontext(static_cast<ucontext_t *>(position), static_cast<ucontext_t *>(scheduler)); }

#endif

} // namespace emulator
