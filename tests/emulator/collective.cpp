// Warp collectives and barriers: who comes waits until the last one has come.
#include "block.h"
#include "fault.h"

namespace emulator {

namespace {

// Until another thread makes this one ready.
void wait_as(State state) {
    current->state = state;
    current->block.ready--;
    while (current->state == state) yield();
}

} // namespace

const uint64_t *collect(Collective what, unsigned mask, uint64_t value) {
    Block &block = current->block;
    Warp &warp = block.warps[current->index / WARP];
    if (mask != ~0u) violation("%s of the lanes %08x: only collectives of whole warps are emulated", name_of(what), mask);
    if (warp.arrived && warp.what != what)
        violation("%s, while other lanes of the warp are at %s", name_of(what), name_of(warp.what));
    if (warp.at_barriers || warp.ended)
        violation("%s of all lanes, while %u of the warp are at a barrier and %u have ended", name_of(what), warp.at_barriers,
                  warp.ended);
    warp.what = what;
    uint64_t *values = warp.values[warp.generation & 1];
    values[current->index % WARP] = value;
    progress++;
    if (++warp.arrived < WARP) {
        wait_as(State::AT_COLLECTIVE);
        return values;
    }
    warp.arrived = 0;
    warp.generation++;
    unsigned first = current->index / WARP * WARP;
    for (unsigned lane = 0; lane < WARP; lane++) block.threads[first + lane]->state = State::READY;
    block.ready += WARP - 1;
    return values;
}

namespace {

bool meet(unsigned number, unsigned threads, bool vote, bool votes) {
    Block &block = current->block;
    Barrier &barrier = block.barriers[number];
    Warp &warp = block.warps[current->index / WARP];
    if (barrier.arrived && (barrier.threads != threads || barrier.votes != votes))
        violation("barrier %u of %u threads%s, while others are there for %u%s", number, threads, votes ? " with a vote" : "",
                  barrier.threads, barrier.votes ? " with a vote" : "");
    if (threads == block.threads.size() && block.ended)
        violation("barrier %u of the whole block, of which %u threads have ended", number, block.ended);
    if (warp.arrived) violation("barrier %u, while other lanes of the warp are at %s of all", number, name_of(warp.what));
    barrier.threads = threads;
    barrier.votes = votes;
    barrier.vote |= vote;
    progress++;
    if (++barrier.arrived < threads) {
        current->barrier = number;
        warp.at_barriers++;
        wait_as(State::AT_BARRIER);
        return barrier.result;
    }
    barrier.result = barrier.vote;
    barrier.arrived = 0;
    barrier.vote = false;
    block.wake(number);
    return barrier.result;
}

} // namespace

bool block_barrier(bool vote, bool has_vote) { return meet(0, unsigned(current->block.threads.size()), vote, has_vote); }

void named_barrier(unsigned number, unsigned threads) {
    if (number >= BARRIERS || threads == 0 || threads % WARP || threads > current->block.threads.size())
        violation("barrier %u of %u threads", number, threads);
    meet(number, threads, false, false);
}

} // namespace emulator
