// Combine: what the packed and the slotted kernels share. P: the parameters of either.
#pragma once
#include "../comm/check_in.cuh"
#include "../comm/guard.cuh"
#include "sum.cuh"

namespace ep {

enum : u32 { TICKET_READY = 0, TICKET_SUMMED = 1, TICKET_COMBINE_REFUSED = 4 };

struct CombineShared {
    OperationState op;
    u64 tokens, rows, expert_rows, link_rows, capacity;
    bool no_dispatch;        // the handle's last dispatch was refused
    Guard guard;             // as the last thread has found it (slotted)
    u32 taken;               // of this block's tokens: those that a warp has taken on itself (REDUCED)
};

// bias0, bias0 + bias1, or zero.
template <class Row, class P> __device__ __forceinline__ void start_token(const P &p, u64 token, u32 place, Sum<Row> &sum) {
    sum.clear();
    if (p.out.bias[0]) {
        float x[Row::COUNT];
        Row::unpack(ptx::load_row16(at<const char>(p.out.bias[0] + token * p.out.stride + place)), x);
#pragma unroll
        for (u32 i = 0; i < Row::COUNT; i++) sum.f[i] = x[i];
    }
    if (p.out.bias[1]) sum.add(ptx::load_row16(at<const char>(p.out.bias[1] + token * p.out.stride + place)));
}

// By expert: whether rows are weighted on the expert's rank.
template <class P> __device__ __forceinline__ bool is_weighted(const P &p) { return p.row_weights || (p.flags & WEIGHTS_OF_DISPATCH); }

// The weight of an expert row: the caller's, or the dispatch's.
template <class P> __device__ __forceinline__ float place_weight(const P &p, i32 place, float dispatch_weight) {
    if (p.row_weights && place >= 0) return __ldg(at<const float>(p.row_weights) + place);
    return p.flags & WEIGHTS_OF_DISPATCH ? dispatch_weight : 1.0f;
}

// The expert rows of one partial sum, ascending k. `place` per lane: expert row, or none if negative; `row`: where it lies.
template <class P> __device__ __forceinline__ Terms expert_terms(const P &p, i32 place, u64 row, float weight) {
    return make_terms(place >= 0, lane_id(), row, place_weight(p, place, weight));
}

// Carried weights of one token, summed over ranks in ascending order: lanes `has` lead a rank each, `from` is where its
// values lie. One warp.
template <class P> __device__ __forceinline__ void sum_carried(const P &p, u64 token, i32 id, bool has, u32 rank, u64 from) {
    Terms t = make_terms(has, rank << 5 | lane_id(), from, 0.0f);
    float sum = 0.0f;
    for (u32 j = 0; j < t.count; j++) {
        u64 row = term_row(t, j);
        if (lane_id() < p.num_topk) sum = __fadd_rn(sum, at<const float>(row)[lane_id()]);
    }
    if (lane_id() < p.num_topk) at<float>(p.out.carried)[token * p.num_topk + lane_id()] = id >= 0 ? sum : 0.0f;
}

// A warp that waits least.
__device__ __forceinline__ bool is_last_warp() { return warp_id() == blockDim.x / WARP - 1; }

// The end of a combine that did not succeed: outputs stay as they are. All threads of every block. A refused one is still
// where the caller has ended its reads and given its claim back.
template <class P> EP_SELDOM void end_combine(const P &p, CombineShared &s) {
    if (s.op.status == CONCURRENT_USE) fail(p.comm, s.op, 0);
    if (s.op.status != BUSY) return;
    if (!pass_ticket(p.comm, s.op, TICKET_COMBINE_REFUSED) || threadIdx.x != 0) return;
    forget_check_in(p.comm);
    report_soft(p.comm, s.op, BUSY, -1, -1);
    Outcome o = no_outcome();
    o.reader = o.claimer = at<HandleRecord>(p.record);
    o.reader->combine_refused = 1;
    finish(p.comm, s.op, o);
}

// What a combine's guard is found from.
struct CombineGuard {
    GuardWords words;
    u64 claimed, claim;      // of the buffer; of the handle
    bool no_dispatch;        // the handle's last dispatch was refused
};

// Whether the window, with the area that goes with it, is this handle's or nobody's.
template <class P> __device__ __forceinline__ bool may_use_window(const P &p, const CombineGuard &g) {
    if (g.claim == 1 + p.window) return true;
    return !(p.flags & CLAIMED) && !(g.claimed >> p.window & 1);
}

// None, where the window was guarded when it was claimed.
template <class P> __device__ __forceinline__ Guard find_guard(const P &p, const CombineGuard &g) {
    if (g.no_dispatch || !may_use_window(p, g) || g.words.in_flight > p.comm.in_flight) return REFUSED;
    return p.flags & GUARDED ? WRITE_AT_ONCE : guard_of(p.comm, g.words, false);
}

// After begin: passes the guard. All threads of every block.
template <class P> __device__ __forceinline__ bool guard_combine(const P &p, CombineShared &s, Guard &guard) {
    guard = WRITE_AT_ONCE;
    if (s.op.status != SUCCESS) return false;
    guard = find_guard(p, CombineGuard{guard_words(s.op, COMBINE_WINDOW, p.window), s.op.words.claimed, s.op.held.claim, s.no_dispatch});
    return enter_window(p.comm, s.op, guard, COMBINE_WINDOW, p.window);
}

template <class P> __device__ __forceinline__ Outcome combine_outcome(const P &p, const OperationState &op, Guard guard) {
    Outcome o = sent_outcome(guard, COMBINE_WINDOW, p.window);
    o.reader = o.claimer = at<HandleRecord>(p.record);
    return o;
}

// For the receive of a combine that was only sent.
template <class P> __device__ __forceinline__ void keep_combine(const P &p, const OperationState &op) {
    HandleRecord *record = at<HandleRecord>(p.record);
    record->combine_epoch = op.epoch;
    record->combine_turn = op.words.sent[DATA];
    record->combine_refused = 0;
    record->combining = 1 + p.window;
}

// Puts the epoch of the operation that was sent in place of the next one's. False: nothing is to be received.
template <class P> __device__ __forceinline__ bool resume_combine(const P &p, CombineShared &s, u64 &turn, u64 &next) {
    OperationState &op = s.op;
    const HandleRecord *record = at<const HandleRecord>(p.record);
    Started started = start(p.comm, record);
    u64 epoch = record->combine_epoch, tokens = record->num_tokens, refused = record->combine_refused;
    turn = record->combine_turn;
    begin(p.comm, op, started);
    next = op.epoch;
    __syncthreads();
    if (threadIdx.x == 0) {
        op.epoch = epoch;
        s.tokens = tokens;
        if (op.status == SUCCESS && refused) op.status = BUSY;
    }
    __syncthreads();
    return op.status == SUCCESS;
}

} // namespace ep
