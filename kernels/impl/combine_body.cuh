// The bodies of the packed combine kernels whose windows hold finished rows: by rank, and EXACT by expert.
#pragma once
#include "combine.cuh"

namespace ep {

// Rows into the window where needed, then the signal that they may be read. True in the block that signalled.
template <class Row, bool BY_ROW> __device__ inline bool offer_rows(const CombineParams &p, CombineShared &s) {
    OperationState &op = s.op;
    bool drops = BY_ROW && s.link_rows > s.rows;
    if ((p.flags & COPY_OUT) || p.carried || drops) {
        u64 rows = BY_ROW ? s.rows : s.expert_rows;
        fill_window<Row>(p, rows, BY_ROW ? rows * p.num_topk : rows);
        if (drops) zero_rows(p, s.rows, s.link_rows);
        if (!BY_ROW && blockIdx.x == 0) tell_limit(p, s.capacity);
        if (!pass_ticket(p.comm, op, TICKET_READY)) return false;
    } else if (blockIdx.x != 0) {
        return false;
    }
    signal_peers(p.comm, DATA, op.words.sent[DATA], signal_value(p.comm, op.epoch));
    return true;
}

__device__ __forceinline__ void end_receive(const CombineParams &p, CombineShared &s, Outcome o, u64 ends) {
    if (!pass_ticket(p.comm, s.op, TICKET_SUMMED)) return;
    o.received = true;
    o.kind = COMBINE_WINDOW;
    o.window = p.window;
    o.ends = ends;
    o.acknowledged = acknowledge(p.comm, s.op);
    if (threadIdx.x != 0) return;
    at<HandleRecord>(p.record)->combining = 0;
    finish(p.comm, s.op, o);
}

// All threads wait for the peers' rows, sum those of all tokens, and count what came from where.
template <class Row, bool BY_ROW> __device__ __forceinline__ bool sum_tokens(const CombineParams &p, CombineShared &s, char *dynamic, u64 turn, bool counts) {
    Ring ring = sum_ring(dynamic, p.stages);
    i32 *tally = reinterpret_cast<i32 *>(behind_sum_rings(dynamic, p.stages));
    PullJobs<BY_ROW> jobs(p, s.tokens, tally);
    Loads<PullJobs<BY_ROW>> loads(jobs, ring, p.row_bytes);
    pull_ahead(jobs, loads);
    if (!BY_ROW)
        for (u32 r = threadIdx.x; r < p.comm.ranks; r += blockDim.x) tally[r] = 0;
    if (!wait_peers(p.comm, s.op, DATA, turn, s.op.epoch, counts)) return false;
    pull_rows<Row>(jobs, loads);
    if (BY_ROW) return true;
    __syncthreads();
    for (u32 r = threadIdx.x; r < p.comm.ranks; r += blockDim.x) count_received(p.comm, r, (u32)tally[r], p.row_bytes);
    return true;
}

template <class Row, bool BY_ROW> __device__ __forceinline__ void combine_whole(const CombineParams &p, CombineShared &s, char *dynamic) {
    OperationState &op = s.op;
    Guard guard;
    if (!enter_combine(p, s, guard)) return end_combine(p, s);
    bool last = offer_rows<Row, BY_ROW>(p, s);
    if (last && is_last_warp()) count_combine<BY_ROW>(p, s, true, true);
    if (!sum_tokens<Row, BY_ROW>(p, s, dynamic, op.words.sent[DATA], last)) return;
    end_receive(p, s, combine_outcome(p, op, guard), op.epoch + 1);
}

template <class Row, bool BY_ROW> __device__ __forceinline__ void combine_send(const CombineParams &p, CombineShared &s) {
    OperationState &op = s.op;
    Guard guard;
    if (!enter_combine(p, s, guard)) return end_combine(p, s);
    if (offer_rows<Row, BY_ROW>(p, s) && is_last_warp()) count_combine<BY_ROW>(p, s, true, false);
    if (!pass_ticket(p.comm, op, TICKET_SUMMED)) return;
    Outcome o = combine_outcome(p, op, guard);
    if (op.held.open) o.acknowledged = acknowledge(p.comm, op); // the dispatched rows are read; the window's own reads end in the receive
    if (threadIdx.x != 0) return;
    keep_combine(p, op);
    finish(p.comm, op, o);
}

template <class Row, bool BY_ROW> __device__ __forceinline__ void combine_receive(const CombineParams &p, CombineShared &s, char *dynamic) {
    u64 turn, next;
    if (!resume_combine(p, s, turn, next)) return end_combine(p, s);
    bool first = blockIdx.x == 0;
    if (first && is_last_warp()) count_combine<BY_ROW>(p, s, false, true);
    if (!sum_tokens<Row, BY_ROW>(p, s, dynamic, turn, first)) return;
    end_receive(p, s, no_outcome(), next);
}

} // namespace ep
