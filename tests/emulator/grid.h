// A kernel that runs.
#pragma once
#include "block.h"
#include <string>

namespace emulator {

// As an H200 has them.
constexpr size_t MAX_SHARED_BYTES = 227 << 10, MAX_STATIC_BYTES = 16 << 10;
constexpr size_t SHARED_ALIGNMENT = 128;

struct Launch {
    std::string name;
    const Kernel *kernel;
    unsigned blocks, threads;
    size_t dynamic_bytes;
    std::vector<uint64_t> parameters;
    int device;
    bool may_be_early; // begins once the kernel before lets it
};

struct Grid {
    // `before`: whether the kernel before has ended, or null.
    Grid(const Launch &launch, std::shared_ptr<const bool> before);

    // A while of some of its blocks.
    void step();
    bool is_done() const { return threads_left == 0 && copies_done(); }
    // Whether all its blocks have said so, or have ended.
    bool lets_next_come() const;
    bool has_predecessor() const { return before && !*before; }
    // The kernel's code, in one thread.
    void run() const { launch.kernel->body(launch.parameters.data()); }

    const Launch launch;
    std::vector<std::unique_ptr<Block>> blocks;
    size_t threads_left;
    const std::shared_ptr<bool> ended = std::make_shared<bool>(false);

private:
    const std::shared_ptr<const bool> before;

    bool copies_done() const;
};

} // namespace emulator
