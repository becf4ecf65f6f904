// Who may overwrite what: decided alike on every rank from words that all of them share.
#pragma once
#include "signal.cuh"
#include "wait.cuh"

namespace ep {

enum Guard : u32 { WRITE_AT_ONCE = 0, ENTRY_BARRIER = 1, REFUSED = 2, WAIT_READ = 3 };

// The buffer's words that a guard is found from.
struct GuardWords {
    u64 epoch;               // of the operation, the next one
    u64 in_flight, received;
    u64 ends;                // of the window
};

__device__ __forceinline__ GuardWords guard_words(const OperationState &op, u32 kind, u32 window) {
    return {op.epoch, op.words.in_flight, op.words.received, op.words.ends[kind][window]};
}

// The same for a thread that decides before `begin`.
__device__ __forceinline__ GuardWords ask_for_guard(const CommParams &c, u32 kind, u32 window) {
    const BufferWords &w = buffer_state(c)->words;
    return {ptx::load_relaxed_gpu(&w.epoch) + 1, ptx::load_relaxed_gpu(&w.in_flight), ptx::load_relaxed_gpu(&w.received), ptx::load_relaxed_gpu(&w.ends[kind][window])};
}

// For who will write a window, whose last reads ended at w.ends, at or before the next epoch.
__device__ __forceinline__ Guard guard_of_window(const CommParams &c, const GuardWords &w) {
    if (w.ends > w.epoch) return REFUSED;
    if (c.sync == SYNC_BARRIER) return ENTRY_BARRIER;
    if (c.sync == SYNC_ACK && w.ends != 0) return WAIT_READ;
    return w.ends <= w.received ? WRITE_AT_ONCE : ENTRY_BARRIER;
}

// For an operation that will write it itself. `counted`: a count exchange comes before the first row and is the barrier.
__device__ __forceinline__ Guard guard_of(const CommParams &c, const GuardWords &w, bool counted) {
    if (w.in_flight > c.in_flight) return REFUSED;
    Guard guard = guard_of_window(c, w);
    return counted && guard != REFUSED ? WRITE_AT_ONCE : guard;
}

// All threads of every block. Block 0 announces; everyone waits. False: the operation has failed.
EP_SELDOM bool pass_guard_that_waits(const CommParams &c, OperationState &op, Guard guard, u32 kind, u32 window) {
    if (guard == ENTRY_BARRIER) {
        u64 number = op.words.sent[ENTER];
        if (blockIdx.x == 0) signal_peers(c, ENTER, number, signal_value(c, op.epoch));
        return wait_peers(c, op, ENTER, number, op.epoch, blockIdx.x == 0);
    }
    if (guard == WAIT_READ) {
        u64 needed = op.words.acks[kind][window];
        bool bad = false, counts = blockIdx.x == 0;
        u64 begun = ptx::nanoseconds();
        for (u32 peer = threadIdx.x; peer < c.ranks; peer += blockDim.x) {
            if (!is_alive(c, peer)) continue;
            u64 value;
            WaitResult r = wait_word(c, op, {signal_word(c, c.rank, READ, peer, 0), needed, peer, READ, 0}, [](u64 v) { return v >> 16; }, value);
            if (r.status == SUCCESS && counts && r.since) count_wait(c, peer, ptx::nanoseconds() - r.since);
            if (r.status == SUCCESS) continue;
            note_failure(c, op, r, peer, READ, needed);
            bad = true;
        }
        if (!__syncthreads_or(bad)) {
            if (counts && threadIdx.x == 0) {
                count_waits(c, begun);
                stamp(c, ENTERED);
            }
            return true;
        }
        fail(c, op, 0);
        return false;
    }
    return true;
}

__device__ __forceinline__ bool pass_guard(const CommParams &c, OperationState &op, Guard guard, u32 kind, u32 window) {
    return guard == WRITE_AT_ONCE || pass_guard_that_waits(c, op, guard, kind, window);
}

// The operation may not run now. All threads of every block.
EP_SELDOM void refuse(OperationState &op) {
    __syncthreads(); // all have read the status
    if (threadIdx.x == 0) op.status = BUSY;
    __syncthreads();
}

// The start of an operation whose guard is known. All threads of every block. False: it is refused (then op.status is BUSY)
// or has failed.
__device__ __forceinline__ bool enter_window(const CommParams &c, OperationState &op, Guard guard, u32 kind, u32 window) {
    if (guard == REFUSED) {
        refuse(op);
        return false;
    }
    if (blockIdx.x == 0 && warp_id() == 0) begin_counting(c, op.epoch);
    return pass_guard(c, op, guard, kind, window);
}

// What an operation changes that sends rows to a window.
__device__ __forceinline__ Outcome sent_outcome(Guard guard, u32 kind, u32 window) {
    Outcome o = no_outcome();
    o.sent = true;
    o.signals[DATA] = 1;
    o.signals[ENTER] = guard == ENTRY_BARRIER;
    o.kind = kind;
    o.window = window;
    o.ends = OPEN;
    return o;
}

// A barrier with an epoch of its own. One block; true in one thread, if all have come.
__device__ __forceinline__ bool meet(const CommParams &c, OperationState &op) {
    if (warp_id() == 0) begin_counting(c, op.epoch);
    if (!pass_guard(c, op, ENTRY_BARRIER, DISPATCH_WINDOW, NO_WINDOW) || threadIdx.x != 0) return false;
    ptx::let_next_kernel_come();
    Outcome o = no_outcome();
    o.sent = o.received = true;
    o.signals[ENTER] = 1;
    finish(c, op, o);
    return true;
}

} // namespace ep
