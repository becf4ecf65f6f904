#include "guarded.h"
#include "device.h"
#include <cstring>
#include <map>
#include <sys/mman.h>
#include <vector>

namespace emulator {

namespace {

constexpr int GARBAGE = 0xcd;
constexpr size_t PAGE = 4096;

// By size: kernels come and go by the thousand.
std::map<size_t, std::vector<char *>> &spare = *new std::map<size_t, std::vector<char *>>;

char *new_memory(size_t bytes) {
    std::vector<char *> &kept = spare[bytes];
    if (!kept.empty()) {
        char *memory = kept.back();
        kept.pop_back();
        return memory;
    }
    void *memory = mmap(nullptr, bytes + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) violation("no memory for a block");
    mprotect(static_cast<char *>(memory) + bytes, PAGE, PROT_NONE);
    return static_cast<char *>(memory);
}

} // namespace

GuardedMemory::GuardedMemory(size_t wanted) : bytes((wanted + PAGE - 1) / PAGE * PAGE) {
    start = new_memory(bytes);
    memset(start, GARBAGE, bytes);
}

GuardedMemory::~GuardedMemory() { spare[bytes].push_back(start); }

} // namespace emulator
