// Waits. Every one ends: when its word has come, at the deadline, at an abort, or when this rank or a peer has failed.
#pragma once
#include "report.cuh"

namespace ep {

constexpr u32 POISON_POLLS = 16; // polls between two looks at the buffer's own state and the peer's verdict
constexpr u32 ABORT_POLLS = 64;  // polls between two looks at host memory, which cost a trip over the bus

struct WaitResult {
    u32 status;
    u32 adopted;             // 1 + the rank whose verdict ended the wait, or 0
    u64 since;
};

__device__ __forceinline__ u64 timeout_of(const CommParams &c, const OperationState &op) {
    const BufferControl *control = buffer_control(c);
    u64 limit = ptx::load_relaxed_sys(&control->timeout_ns);
    if (op.words.received <= ptx::load_relaxed_sys(&control->first_until)) limit = ptx::load_relaxed_sys(&control->first_timeout_ns);
    return limit;
}

// A peer's verdict about this epoch or a later one. Its mask is visible once its word has been acquired.
__device__ __forceinline__ bool has_verdict(const CommParams &c, u32 peer) {
    return ptx::load_acquire_sys(verdict_word(c, c.rank, peer)) != 0;
}

// One thread waits for one word that only grows. `reached` maps its value to a number to compare with `wanted`.
template <class Reached>
__device__ __forceinline__ WaitResult wait_word(const CommParams &c, const OperationState &op, const u64 *word, u64 wanted, u32 peer, Reached reached, u64 &value) {
    WaitResult r = {SUCCESS, 0, ptx::nanoseconds()};
    for (u32 polls = 1;; polls++) {
        value = ptx::load_acquire_sys(word);
        if (reached(value) >= wanted) return r;
        if (ptx::nanoseconds() - r.since > timeout_of(c, op)) {
            r.status = TIMEOUT;
            return r;
        }
        if (polls % POISON_POLLS == 0) {
            u64 poisoned = ptx::load_relaxed_gpu(&buffer_state(c)->words.poisoned);
            if (poisoned) {
                r.status = (u32)poisoned;
                return r;
            }
            if (peer != c.rank && has_verdict(c, peer)) {
                r.status = (u32)(ptx::load_relaxed_sys(verdict_word(c, c.rank, peer)) & 0xffff);
                r.adopted = peer + 1;
                return r;
            }
        }
        if (polls % ABORT_POLLS == 0 && ptx::load_relaxed_sys(at<const u64>(c.abort_word))) {
            r.status = ABORTED;
            return r;
        }
    }
}

// Thread `index` of `threads` waits for signal `number` of `phase` from its share of the peers. Returns the failure, if
// any, noted in op by one of the threads that failed.
__device__ __forceinline__ WaitResult wait_share(const CommParams &c, OperationState &op, u32 phase, u64 number, u64 epoch, u32 index, u32 threads) {
    WaitResult result = {SUCCESS, 0, 0};
    for (u32 peer = index; peer < c.ranks; peer += threads) {
        if (!is_alive(c, peer)) continue;
        u64 value;
        WaitResult r = wait_word(c, op, signal_word(c, c.rank, phase, peer, number), epoch, peer, [](u64 v) { return v >> 16; }, value);
        if (r.status == SUCCESS && value >> 16 == epoch && (value & 0xffff) != c.fingerprint) r.status = OP_MISMATCH;
        if (r.status != SUCCESS) {
            result = r;
            op.failed_rank = r.status == ABORTED ? (u32)ptx::load_relaxed_sys(at<const u64>(c.abort_word)) - 1 : peer;
            op.failed_phase = phase;
            op.expected = epoch;
            op.waited_since = r.since;
            op.adopted = r.adopted;
            op.status = r.status;
        }
    }
    return result;
}

// One thread waits for a progress word of `peer`. A failure is noted in op; the block takes it up at its next barrier.
__device__ __forceinline__ bool wait_progress(const CommParams &c, OperationState &op, const u64 *word, u32 peer, u32 phase) {
    u64 value;
    WaitResult r = wait_word(c, op, word, op.epoch, peer, [](u64 v) { return v; }, value);
    if (r.status == SUCCESS) return true;
    op.failed_rank = r.status == ABORTED ? (u32)ptx::load_relaxed_sys(at<const u64>(c.abort_word)) - 1 : peer;
    op.failed_phase = phase;
    op.expected = op.epoch;
    op.waited_since = r.since;
    op.adopted = r.adopted;
    op.status = r.status;
    return false;
}

// All threads of the block wait for every peer. On failure the buffer is poisoned and op.status is set.
__device__ __forceinline__ bool wait_peers(const CommParams &c, OperationState &op, u32 phase, u64 number, u64 epoch) {
    WaitResult r = wait_share(c, op, phase, number, epoch, threadIdx.x, blockDim.x);
    if (!__syncthreads_or(r.status != SUCCESS)) return true;
    fail(c, op, number);
    return false;
}

} // namespace ep
