// Who may overwrite what: decided alike on every rank from words that all of them share.
#pragma once
#include "signal.cuh"
#include "wait.cuh"

namespace ep {

enum Guard : u32 { WRITE_AT_ONCE = 0, ENTRY_BARRIER = 1, REFUSED = 2, WAIT_READ = 3 };

// For an operation that will write a window whose last reads ended at words.ends. `counted`: a count exchange comes
// before the first row and is the barrier.
__device__ __forceinline__ Guard guard_of(const CommParams &c, const OperationState &op, u32 kind, u32 window, bool counted) {
    u64 ends = op.words.ends[kind][window];
    if (op.epoch - 1 - op.words.received > c.in_flight || ends > op.epoch) return REFUSED;
    if (counted) return WRITE_AT_ONCE;
    if (c.sync == SYNC_BARRIER) return ENTRY_BARRIER;
    if (c.sync == SYNC_ACK && ends != 0) return WAIT_READ;
    return ends <= op.words.received ? WRITE_AT_ONCE : ENTRY_BARRIER;
}

// All threads of every block. Block 0 announces; everyone waits. False: the operation has failed.
EP_SELDOM bool pass_guard_that_waits(const CommParams &c, OperationState &op, Guard guard, u32 kind, u32 window) {
    if (guard == ENTRY_BARRIER) {
        u64 number = op.words.sent[ENTER];
        if (blockIdx.x == 0) signal_peers(c, ENTER, number, signal_value(c, op.epoch));
        return wait_peers(c, op, ENTER, number, op.epoch);
    }
    if (guard == WAIT_READ) {
        u64 needed = op.words.acks[kind][window];
        bool bad = false;
        for (u32 peer = threadIdx.x; peer < c.ranks; peer += blockDim.x) {
            if (!is_alive(c, peer)) continue;
            u64 value;
            WaitResult r = wait_word(c, op, signal_word(c, c.rank, READ, peer, 0), needed, peer, 0, [](u64 v) { return v >> 16; }, value);
            if (r.status == SUCCESS) continue;
            bad = true;
            op.failed_rank = peer;
            op.failed_phase = READ;
            op.expected = needed;
            op.waited_since = r.since;
            op.adopted = r.adopted;
            op.status = r.status;
        }
        if (!__syncthreads_or(bad)) return true;
        fail(c, op, 0);
        return false;
    }
    return true;
}

__device__ __forceinline__ bool pass_guard(const CommParams &c, OperationState &op, Guard guard, u32 kind, u32 window) {
    return guard == WRITE_AT_ONCE || pass_guard_that_waits(c, op, guard, kind, window);
}

} // namespace ep
