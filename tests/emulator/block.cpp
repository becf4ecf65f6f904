#include "block.h"
#include "fault.h"
#include "grid.h"
#include "random.h"
#include <cstdio>

namespace emulator {

Index thread_index, block_index, block_size, grid_size;
Thread *current;
uint64_t progress;

namespace {

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

void run_thread() {
    Thread &me = *current;
    me.block.grid.run();
    Block &block = me.block;
    Warp &warp = block.warps[me.index / WARP];
    if (warp.arrived) violation("a lane ends while others of its warp are at a collective of all");
    for (unsigned number = 0; number < BARRIERS; number++) {
        const Barrier &barrier = block.barriers[number];
        if (barrier.arrived && barrier.threads == block.threads.size())
            violation("a thread ends while others are at barrier %u of the whole block", number);
    }
    me.state = State::ENDED;
    warp.ended++;
    block.ready--;
    if (++block.ended == block.threads.size()) block.copies.check_end();
    block.grid.threads_left--;
    progress++;
    me.fiber.leave();
}

} // namespace

Thread::Thread(Block &block, unsigned index) : fiber(run_thread), block(block), index(index) {}

Block::Block(Grid &grid, unsigned index, unsigned size, size_t dynamic_bytes)
    : grid(grid), index(index), warps(size / WARP), ready(size), dynamic(dynamic_bytes), fixed(MAX_STATIC_BYTES),
      dynamic_start(dynamic.end() - round_up(dynamic_bytes, SHARED_ALIGNMENT)) {
    threads.reserve(size);
    for (unsigned thread = 0; thread < size; thread++) threads.push_back(std::make_unique<Thread>(*this, thread));
}

void Block::step() {
    block_index.x = index;
    unsigned first = random_below(unsigned(warps.size()));
    for (unsigned i = 0; i < warps.size(); i++) {
        unsigned warp = (first + i) % unsigned(warps.size());
        if (warps[warp].ended == WARP || random_below(4) == 0) continue;
        unsigned first_lane = random_below(WARP);
        for (unsigned j = 0; j < WARP; j++) {
            Thread &thread = *threads[warp * WARP + (first_lane + j) % WARP];
            if (thread.state != State::READY) continue;
            current = &thread;
            thread_index.x = thread.index;
            thread.fiber.enter();
            if (!thread.fiber.is_whole()) violation("more stack than the emulator has");
        }
    }
    current = nullptr;
    copies.step();
    if (ready == 0 && ended < threads.size()) stuck(*this);
}

void Block::wake(unsigned barrier) {
    for (auto &thread : threads) {
        if (thread->state != State::AT_BARRIER || thread->barrier != barrier) continue;
        thread->state = State::READY;
        warps[thread->index / WARP].at_barriers--;
        ready++;
    }
}

void Block::describe() const {
    for (unsigned warp = 0; warp < warps.size(); warp++) {
        unsigned counts[4] = {};
        for (unsigned lane = 0; lane < WARP; lane++) counts[int(threads[warp * WARP + lane]->state)]++;
        if (counts[int(State::ENDED)] == WARP) continue;
        fprintf(stderr, "  block %u warp %u: %u lanes run, %u at a collective (%s), %u at barriers, %u ended\n", index, warp,
                counts[0], counts[1], name_of(warps[warp].what), counts[2], counts[3]);
    }
}

void yield() {
    if (!current) return; // the image's initialisers
    current->fiber.leave();
}

void perhaps_yield() {
    if (random_below(2)) yield();
}

void *dynamic_shared() { return current->block.dynamic_start; }

void *static_shared(size_t bytes) {
    if (bytes > MAX_STATIC_BYTES) violation("%zu bytes of static shared memory", bytes);
    return current->block.fixed.end() - round_up(bytes, SHARED_ALIGNMENT);
}

} // namespace emulator
