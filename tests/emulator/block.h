// A block of a kernel: its threads, warps, barriers, shared memory and bulk copies.
#pragma once
#include "bulk.h"
#include "device.h"
#include "fiber.h"
#include "guarded.h"
#include <memory>
#include <vector>

namespace emulator {

constexpr unsigned WARP = 32;
constexpr unsigned BARRIERS = 16;

struct Grid;
struct Block;

enum class State : unsigned char { READY, AT_COLLECTIVE, AT_BARRIER, ENDED };

struct Thread {
    Thread(Block &block, unsigned index);

    Fiber fiber;
    Block &block;
    unsigned index;
    State state = State::READY;
    unsigned barrier = 0; // at which it waits
    BulkGroups bulk;
};

struct Warp {
    unsigned arrived = 0; // lanes at the collective
    Collective what = Collective::SYNC;
    uint64_t generation = 0;
    uint64_t values[2][WARP]; // by the generation's last bit: a lane may read the last one's while others are at the next
    unsigned at_barriers = 0, ended = 0;
};

struct Barrier {
    unsigned arrived = 0, threads = 0;
    bool votes = false; // whether this is a barrier with a vote
    bool vote = false, result = false;
};

struct Block {
    Block(Grid &grid, unsigned index, unsigned threads, size_t dynamic_bytes);

    // A while of some of its warps, then of some of its copies.
    void step();
    // All threads that wait for the barrier go on.
    void wake(unsigned barrier);
    // Whether all of it is this block's shared memory.
    bool has_shared(const void *memory, size_t bytes) const {
        return dynamic.contains(memory, bytes) || fixed.contains(memory, bytes);
    }
    // Where its threads are, one line for each warp.
    void describe() const;

    Grid &grid;
    unsigned index;
    std::vector<std::unique_ptr<Thread>> threads;
    std::vector<Warp> warps;
    Barrier barriers[BARRIERS];
    unsigned ready, ended = 0;
    bool lets_next_come = false;
    GuardedMemory dynamic, fixed;
    char *dynamic_start;
    BulkCopies copies;
};

// The thread that runs; null while none does.
extern Thread *current;
// Grows whenever anything happens that may let another thread go on.
extern uint64_t progress;

} // namespace emulator
