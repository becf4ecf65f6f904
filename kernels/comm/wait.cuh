// Waits. Every one ends: when its word has come, at the deadline, at an abort, or when this rank or a peer has failed.
#pragma once
#include "report.cuh"

namespace ep {

// Polls between two looks at the deadline in memory, the buffer's own state and the peer's verdict.
constexpr u32 STATE_POLLS = 16;
constexpr u32 ABORT_POLLS = 64;  // polls between two looks at whether the host has aborted
// Polls, and nanoseconds, until a wait is so long that it looks for signs that the peer runs another operation. No wait of
// peers that are in time comes so far.
constexpr u32 SIGN_POLLS = 256;
constexpr u64 SIGN_NS = 200 * 1000;

// A read of host memory holds up the loads of its SM, and many of them those of the whole device (measured: 1000 waiting
// warps that read it every 64th poll made streaming warps 50 times slower). So one thread of the rank reads it, this
// seldom, and leaves what it saw where all can see it.
constexpr u64 HOST_LOOK_NS = 50 * 1000;

struct WaitResult {
    u32 status;
    u32 adopted;             // 1 + the rank whose verdict ended the wait, or 0
    u64 since;
};

// 0, or 1 + the rank that has aborted.
__device__ inline u64 aborted_by(const CommParams &c) {
    BufferState *state = buffer_state(c);
    u64 seen = ptx::load_relaxed_gpu(&state->aborted), due = ptx::load_relaxed_gpu(&state->next_look), now = ptx::nanoseconds();
    if (seen || now < due || ptx::swap_if_equal_gpu(&state->next_look, due, now + HOST_LOOK_NS) != due) return seen;
    seen = ptx::load_relaxed_sys(at<const u64>(c.abort_word));
    if (seen) ptx::store_relaxed_gpu(&state->aborted, seen);
    return seen;
}

// Notes in op that a wait for signal `expected` of `peer` has failed. Several threads may fail at once: the first has the
// say. The block takes it up behind its next barrier, by fail(); who comes to none asks has_failed.
__device__ __forceinline__ void note_failure(const CommParams &c, OperationState &op, const WaitResult &r, u32 peer, u32 phase, u64 expected) {
    if (atomicExch(&op.noted, 1) != 0) return;
    op.failed_rank = r.status == ABORTED ? (u32)aborted_by(c) - 1 : peer;
    op.failed_phase = phase;
    op.expected = expected;
    op.waited_since = r.since;
    op.adopted = r.adopted;
    ptx::raise_release_shared(&op.failed, r.status);
}

// Beside warps that may be failing.
__device__ __forceinline__ bool has_failed(OperationState &op) { return ptx::read_acquire_shared(&op.failed) != SUCCESS; }

__device__ __forceinline__ u64 timeout_of(const CommParams &c, const OperationState &op) {
    const BufferControl *control = buffer_control(c);
    bool first = op.words.received <= ptx::load_relaxed_sys(&control->first_until);
    return ptx::load_relaxed_sys(first ? &control->first_timeout_ns : &control->timeout_ns);
}

// A peer's verdict about this epoch or a later one. Its mask is visible once its word has been acquired.
__device__ __forceinline__ bool has_verdict(const CommParams &c, u32 peer) {
    return ptx::load_acquire_sys(verdict_word(c, c.rank, peer)) != 0;
}

// What one thread waits for: a word of a peer that only grows.
// pause_ns: 0 for the few waits that end an operation, which want the shortest way. Otherwise many warps wait beside
// others that work: an acquire empties the first-level cache of the SM, so they poll without, pause, and acquire once.
struct Awaited {
    const u64 *word;
    u64 wanted;
    u32 peer, phase, pause_ns;
};

// Whether it has come: `reached` maps the word's value to a number to compare with what is wanted.
template <class Reached> __device__ __forceinline__ bool has_come(const Awaited &a, Reached reached, u64 &value) {
    value = a.pause_ns ? ptx::load_relaxed_sys(a.word) : ptx::load_acquire_sys(a.word);
    if (reached(value) < a.wanted) return false;
    if (a.pause_ns) value = ptx::load_acquire_sys(a.word);
    return true;
}

template <class Reached>
__device__ __forceinline__ WaitResult wait_word(const CommParams &c, const OperationState &op, const Awaited &a, Reached reached, u64 &value) {
    bool sign = false;
    WaitResult r = {SUCCESS, 0, 0};
    if (has_come(a, reached, value)) return r;
    r.since = ptx::nanoseconds();
    u64 limit = timeout_of(c, op);
    for (u32 polls = 1;; polls++) {
        if (has_come(a, reached, value)) return r;
        if (ptx::nanoseconds() - r.since > limit) {
            r.status = TIMEOUT;
            return r;
        }
        if (a.pause_ns) ptx::sleep(a.pause_ns);
        if (polls % STATE_POLLS == 0) {
            limit = timeout_of(c, op);
            u64 poisoned = ptx::load_relaxed_gpu(&buffer_state(c)->words.poisoned);
            if (poisoned) {
                r.status = (u32)poisoned;
                return r;
            }
            if (a.peer != c.rank && has_verdict(c, a.peer)) {
                r.status = verdict_status(ptx::load_relaxed_sys(verdict_word(c, c.rank, a.peer)));
                r.adopted = a.peer + 1;
                return r;
            }
        }
        if (polls % ABORT_POLLS == 0 && aborted_by(c)) {
            r.status = ABORTED;
            return r;
        }
        // A peer that was only ahead has sent what is awaited before its sign: many polls later it has been seen.
        if (polls % SIGN_POLLS == 0 && other_operation(c, a.peer, a.phase, op.epoch)) {
            if (sign) {
                r.status = OP_MISMATCH;
                return r;
            }
            sign = true;
        }
    }
}

// One thread waits for signal `number` of `phase` from one peer. False: a failure is noted in op. counts: its waits are this rank's,
// for the statistics.
__device__ __forceinline__ bool wait_signal(const CommParams &c, OperationState &op, u32 phase, u64 number, u64 epoch, u32 peer, bool counts) {
    u64 value;
    WaitResult r = wait_word(c, op, {signal_word(c, c.rank, phase, peer, number), epoch, peer, phase, 0}, [](u64 v) { return v >> 16; }, value);
    if (r.status == SUCCESS && is_another(c, value, epoch)) r.status = OP_MISMATCH;
    if (r.status == SUCCESS) {
        if (counts && r.since) count_wait(c, peer, ptx::nanoseconds() - r.since);
        return true;
    }
    note_failure(c, op, r, peer, phase, epoch);
    return false;
}

// Thread `index` of `threads` waits for signal `number` of `phase` from its share of the peers. False: a failure is noted
// in op. counts: the waits of these threads are this rank's, for the statistics.
__device__ __forceinline__ bool wait_share(const CommParams &c, OperationState &op, u32 phase, u64 number, u64 epoch, u32 index, u32 threads,
                                           bool counts = false) {
    bool well = true;
    for (u32 peer = index; peer < c.ranks; peer += threads)
        if (is_alive(c, peer)) well &= wait_signal(c, op, phase, number, epoch, peer, counts);
    return well;
}

// A warp's own waits, none of which has moved for a while.
struct Standstill {
    u64 since;
    u32 peer;                // one that is waited for
    bool sign;               // it has been seen in another operation
};

// One warp: false when this rank, a peer or the host has ended the operation, it is late, or the peer runs another.
__device__ inline bool look_around(const CommParams &c, OperationState &op, bool late, Standstill &still) {
    WaitResult r = {(u32)ptx::load_relaxed_gpu(&buffer_state(c)->words.poisoned), 0, still.since};
    if (r.status == SUCCESS && aborted_by(c)) r.status = ABORTED;
    if (r.status == SUCCESS && late) r.status = TIMEOUT;
    for (u32 peer = 0; peer < c.ranks && r.status == SUCCESS; peer++)
        if (peer != c.rank && has_verdict(c, peer)) {
            r.status = verdict_status(ptx::load_relaxed_sys(verdict_word(c, c.rank, peer)));
            r.adopted = peer + 1;
        }
    if (r.status == SUCCESS && ptx::nanoseconds() - still.since > SIGN_NS && other_operation(c, still.peer, SLICE, op.epoch)) {
        if (still.sign) r.status = OP_MISMATCH;
        still.sign = true;
    }
    u32 status = __shfl_sync(FULL, r.status, 0);
    if (status == SUCCESS) return true;
    if (lane_id() == 0) note_failure(c, op, r, still.peer, SLICE, op.epoch);
    __syncwarp();
    return false;
}

// One thread waits until a word of `peer` counts to `wanted`. False: a failure is noted in op. counts: as above.
__device__ __forceinline__ bool wait_counter(const CommParams &c, OperationState &op, const u64 *word, u64 wanted, u32 peer, u32 phase, u32 pause_ns,
                                             bool counts = false) {
    u64 value;
    WaitResult r = wait_word(c, op, {word, wanted, peer, phase, pause_ns}, [](u64 v) { return v; }, value);
    if (r.status == SUCCESS) {
        if (counts && r.since) count_wait(c, peer, ptx::nanoseconds() - r.since);
        return true;
    }
    note_failure(c, op, r, peer, phase, op.epoch);
    return false;
}

// The same for a progress word, which holds the epoch whose part has come.
__device__ __forceinline__ bool wait_progress(const CommParams &c, OperationState &op, const u64 *word, u32 peer, u32 phase, u32 pause_ns,
                                              bool counts = false) {
    return wait_counter(c, op, word, op.epoch, peer, phase, pause_ns, counts);
}

// All threads of the block wait for every peer. On failure the buffer is poisoned and op.status is set. counts: in one block
// of an operation, that which has sent last or begins first.
__device__ __forceinline__ bool wait_peers(const CommParams &c, OperationState &op, u32 phase, u64 number, u64 epoch, bool counts) {
    u64 begun = ptx::nanoseconds();
    bool well = wait_share(c, op, phase, number, epoch, threadIdx.x, blockDim.x, counts);
    if (!__syncthreads_or(!well)) {
        if (counts && threadIdx.x == 0) {
            count_waits(c, begun);
            stamp(c, phase == ENTER ? ENTERED : phase == COUNTS ? COUNTED : RECEIVED);
        }
        return true;
    }
    fail(c, op, number);
    return false;
}

} // namespace ep
