// Shared memory of a block.
#pragma once
#include <cstddef>

namespace emulator {

// Memory full of garbage that ends where a page begins that is not there.
class GuardedMemory {
public:
    explicit GuardedMemory(size_t bytes);
    ~GuardedMemory();
    GuardedMemory(const GuardedMemory &) = delete;
    GuardedMemory &operator=(const GuardedMemory &) = delete;

    char *end() const { return start + bytes; }

private:
    char *start;
    size_t bytes;
};

} // namespace emulator
