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
    bool contains(const void *memory, size_t size) const {
        const char *first = static_cast<const char *>(memory);
        return first >= start && first + size <= end();
    }

private:
    char *start;
    size_t bytes;
};

} // namespace emulator
