// A stack of its own for each thread of a kernel, and the switch between them. All run on one thread of the system.
#pragma once
#include <cstddef>
#include <cstdint>

namespace emulator {

class Fiber {
public:
    // `run` is called at the first switch, and does not return.
    explicit Fiber(void (*run)());
    ~Fiber();
    Fiber(const Fiber &) = delete;
    Fiber &operator=(const Fiber &) = delete;

    // From the scheduler to this fiber, until it comes back.
    void enter();
    // From this fiber to the scheduler.
    void leave();
    // Whether it has never used more stack than there is.
    bool is_whole() const { return *reinterpret_cast<const uint64_t *>(stack) == CANARY; }

private:
    static constexpr uint64_t CANARY = 0x7fb5d329728ea185;

    char *stack;
    void *position;
};

} // namespace emulator
