// Reports to the host, and the verdicts by which ranks name the same culprit.
#pragma once
#include "order.cuh"

namespace ep {

// Fills `report` and makes it visible to the host. One thread.
__device__ inline void publish(HostReport *report, u64 number, const CommParams &c, u32 status, u32 phase, u64 epoch) {
    report->status = status;
    report->operation = c.fingerprint >> 12;
    report->phase = phase;
    report->rank = (i32)c.rank;
    report->epoch = epoch;
    ptx::store_release_sys(&report->ready, number);
}

// A report that does not poison: the first since the host last took one.
EP_SELDOM void report_soft(const CommParams &c, const OperationState &op, u32 status, i64 row, i64 value) {
    BufferState *state = buffer_state(c);
    u64 cleared = ptx::load_relaxed_sys(&buffer_control(c)->soft_cleared);
    if (ptx::swap_if_equal_gpu(&state->soft_claim, cleared, cleared + 1) != cleared) return;
    HostReport *report = at<HostReport>(c.soft_report);
    report->row = row;
    report->value = value;
    report->num_missing = 0;
    report->first_missing = -1;
    report->expected = report->seen = report->waited_ns = 0;
    publish(report, cleared + 1, c, status, 0, op.epoch);
}

// The set of ranks that this failure is about: one word per 64 ranks, by one warp.
__device__ inline u64 missing_word(const CommParams &c, const OperationState &op, u64 number, u32 index) {
    u64 bits = 0;
    for (u32 half = 0; half < 2; half++) {
        u32 rank = index * 64 + half * WARP + lane_id();
        bool missing = false;
        if (rank < c.ranks && is_alive(c, rank)) {
            if (op.status == TIMEOUT && op.failed_phase < PHASES)
                missing = (ptx::load_acquire_sys(signal_word(c, c.rank, op.failed_phase, rank, number)) >> 16) < op.expected;
            if (rank == op.failed_rank) missing = true;
        }
        bits |= (u64)__ballot_sync(FULL, missing) << (half * WARP);
    }
    return bits;
}

// Whether the culprit is who has left the verdict: it gave this rank up, or runs something else than this rank. One warp.
__device__ inline bool is_culprit(const CommParams &c, const OperationState &op, u32 peer) {
    bool is = ptx::load_relaxed_sys(verdict_mask(c, c.rank, peer) + c.rank / 64) >> (c.rank % 64) & 1;
    if (!is && op.status == OP_MISMATCH)
        is = is_verdict_of_another(c, ptx::load_relaxed_sys(verdict_word(c, c.rank, peer)), op.epoch) || other_operation(c, peer, op.failed_phase, op.epoch);
    return __any_sync(FULL, is);
}

// A word of the set that a peer's verdict names.
__device__ inline u64 adopted_word(const CommParams &c, u32 peer, bool is_culprit, u32 index) {
    if (is_culprit) return peer / 64 == index ? 1ull << (peer % 64) : 0;
    return ptx::load_relaxed_sys(verdict_mask(c, c.rank, peer) + index);
}

// Called by all threads of a block in which a wait has failed, or whose op.status is set. The first block to come writes the
// report, tells the peers its verdict and poisons the buffer. `number` is that of the signal that was waited for.
EP_SELDOM void fail(const CommParams &c, OperationState &op, u64 number) {
    BufferState *state = buffer_state(c);
    u32 adopted = op.adopted;
    __syncthreads();
    if (threadIdx.x == 0) {
        if (op.failed != SUCCESS) op.status = op.failed;
        op.flag = ptx::swap_if_equal_gpu(&state->claim, 0, 1) == 0;
    }
    __syncthreads();
    if (op.flag && warp_id() == 0) {
        HostReport *report = at<HostReport>(c.report);
        u32 words = div_up(c.ranks, 64), count = 0;
        i32 first = -1;
        bool culprit = adopted && is_culprit(c, op, adopted - 1);
        for (u32 i = 0; i < words; i++) {
            u64 bits = adopted ? adopted_word(c, adopted - 1, culprit, i) : missing_word(c, op, number, i);
            count += __popcll(bits);
            if (first < 0 && bits) first = (i32)(i * 64) + __ffsll((i64)bits) - 1;
            if (lane_id() == 0) report->missing[i] = bits;
            for (u32 peer = lane_id(); peer < c.ranks; peer += WARP)
                if (peer != c.rank && is_alive(c, peer)) ptx::store_relaxed_sys(verdict_mask(c, peer, c.rank) + i, bits);
        }
        __syncwarp();
        for (u32 peer = lane_id(); peer < c.ranks; peer += WARP)
            if (peer != c.rank && is_alive(c, peer)) ptx::store_release_sys(verdict_word(c, peer, c.rank), verdict_value(c, op));
        if (lane_id() == 0) {
            u64 seen = op.status == OP_MISMATCH && first >= 0 ? other_operation(c, (u32)first, op.failed_phase, op.epoch) : 0;
            if (!seen && op.failed_phase < PHASES) seen = ptx::load_relaxed_sys(signal_word(c, c.rank, op.failed_phase, op.failed_rank, number));
            report->num_missing = (i32)count;
            report->first_missing = first;
            report->expected = op.expected;
            report->seen = seen >> 16;
            report->theirs = (u32)seen & 0xffff;
            report->row = report->value = -1;
            report->waited_ns = op.waited_since ? ptx::nanoseconds() - op.waited_since : 0;
            publish(report, 1, c, op.status, op.failed_phase, op.epoch);
        }
        __syncwarp();
        if (lane_id() == 0) ptx::store_release_gpu(&state->words.poisoned, op.status);
    }
    __syncthreads();
}

// For kernels of one block: whether the operation may go on.
__device__ __forceinline__ bool begin_alone(const CommParams &c, OperationState &op, const HandleRecord *record) {
    begin(c, op, record);
    if (op.status == CONCURRENT_USE) fail(c, op, 0);
    return op.status == SUCCESS;
}

} // namespace ep
