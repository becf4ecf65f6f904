// Packed combine by pull: what every variant shares. Each token's rank reads the partial rows where they lie.
#pragma once
#include "../comm/guard.cuh"
#include "sum.cuh"

namespace ep {

enum : u32 { TICKET_READY = 0, TICKET_SUMMED = 1, TICKET_COMBINE_REFUSED = 4 };

struct CombineShared {
    OperationState op;
    u64 tokens, rows, expert_rows;
    u32 taken;               // of this block's tokens: those that a warp has taken on itself (REDUCED)
    bool refused;            // the handle has nothing to combine, or not here
};

__device__ __forceinline__ u32 count_columns(const CombineParams &p) { return p.comm.ranks + p.num_experts; }

// A token's routing, as loaded by the lanes of one warp.
struct Route {
    i32 id, row;             // row: position at the destination, or -1
    float weight;
};

template <bool BY_ROW> __device__ __forceinline__ Route load_route(const CombineParams &p, u64 token) {
    Route r = {-1, -1, 0.0f};
    if (lane_id() >= p.num_topk) return r;
    u64 i = token * p.num_topk + lane_id();
    r.id = at<const i32>(p.ids)[i];
    r.row = at<const i32>(BY_ROW ? p.positions : p.expert_positions)[i];
    if (!BY_ROW && p.topk_weights) r.weight = __ldg(at<const float>(p.topk_weights) + i);
    return r;
}

__device__ __forceinline__ u64 window_row(const CombineParams &p, u32 rank, u32 row) { return peer_base(p.comm, rank) + p.rows + (u64)row * p.row_stride; }

// bias0, bias0 + bias1, or zero.
template <class Row> __device__ __forceinline__ void start_token(const CombineParams &p, u64 token, u32 place, Sum<Row> &sum) {
    sum.clear();
    if (p.bias[0]) {
        float x[Row::COUNT];
        Row::unpack(ptx::load_row16(at<const char>(p.bias[0] + token * p.out_stride + place)), x);
#pragma unroll
        for (u32 i = 0; i < Row::COUNT; i++) sum.f[i] = x[i];
    }
    if (p.bias[1]) sum.add(ptx::load_row16(at<const char>(p.bias[1] + token * p.out_stride + place)));
}

// Carried weights of one token, read beside its rows: summed over ranks in ascending order. One warp.
template <bool BY_ROW> __device__ __forceinline__ void pull_carried(const CombineParams &p, u64 token, const Route &r) {
    u32 rank = r.id >= 0 ? expert_home(p.expert_home, r.id).rank : 0;
    float sum = 0.0f;
    if (!BY_ROW) { // one value per expert row
        if (r.row >= 0) sum = __fadd_rn(sum, at<const float>(peer_base(p.comm, rank) + p.side_carried)[r.row]);
    } else {
        u64 from = r.row >= 0 ? peer_base(p.comm, rank) + p.side_carried + (u64)r.row * p.num_topk * 4 : 0;
        Terms t = make_terms(r.row >= 0, rank << 5 | lane_id(), from, 0.0f);
        for (u32 j = 0; j < t.count; j++) {
            u64 row = term_row(t, j);
            if (lane_id() < p.num_topk) sum = __fadd_rn(sum, at<const float>(row)[lane_id()]);
        }
    }
    if (lane_id() < p.num_topk) at<float>(p.out_carried)[token * p.num_topk + lane_id()] = r.id >= 0 ? sum : 0.0f;
}

// One partial row per destination (BY_ROW; by rank, or REDUCED by its largest k), or every expert row (EXACT).
// Warp `index` of `warps` of the whole operation.
template <class Row, bool BY_ROW> __device__ inline void pull_rows(const CombineParams &p, u64 tokens, u32 index, u32 warps) {
    u32 pieces = div_up(p.row_bytes, PIECE);
    u64 jobs = tokens * pieces;
    bool by_rank = BY_ROW && !(p.flags & ASCENDING_K);
    Route next = index < jobs ? load_route<BY_ROW>(p, index / pieces) : Route{-1, -1, 0.0f};
    for (u64 job = index; job < jobs; job += warps) {
        Route r = next;
        u64 token = job / pieces;
        u32 offset = (u32)(job % pieces) * PIECE;
        if (job + warps < jobs) next = load_route<BY_ROW>(p, (job + warps) / pieces);
        u32 rank = r.row >= 0 ? expert_home(p.expert_home, r.id).rank : 0;
        u64 from = r.row >= 0 ? window_row(p, rank, (u32)r.row) : 0;
        Terms t = make_terms(r.row >= 0, by_rank ? rank << 5 | lane_id() : lane_id(), from, r.weight);
        auto start = [&](u32 place, Sum<Row> &sum) { start_token<Row>(p, token, place, sum); };
        auto finish = [&](u32 place, const Sum<Row> &sum) { ptx::store_row16(at<char>(p.out + token * p.out_stride + place), sum.rounded()); };
        if (!BY_ROW && p.topk_weights)
            sum_piece<Row, true>(t, offset, p.row_bytes, start, finish);
        else
            sum_piece<Row, false>(t, offset, p.row_bytes, start, finish);
        if (offset == 0 && p.out_carried) pull_carried<BY_ROW>(p, token, r);
    }
}

// Rows that do not lie in the window yet, or need a weight, are written to it; carried weights too.
template <class Row> __device__ inline void fill_window(const CombineParams &p, u64 rows, u64 carried_words) {
    u64 base = own_base(p.comm), warps = (u64)gridDim.x * (blockDim.x / WARP);
    u32 pieces = div_up(p.row_bytes, PIECE);
    if (p.flags & COPY_OUT)
        for (u64 job = (u64)blockIdx.x * (blockDim.x / WARP) + warp_id(); job < rows * pieces; job += warps) {
            u64 row = job / pieces;
            u32 offset = (u32)(job % pieces) * PIECE;
            u64 from = p.x + row * p.x_stride, to = base + p.rows + row * p.row_stride;
            float weight = p.row_weights ? __ldg(at<const float>(p.row_weights) + row) : 0.0f;
#pragma unroll
            for (u32 u = 0; u < PIECE / UNIT; u++) {
                u32 place = offset + u * UNIT + lane_id() * 16;
                if (place >= p.row_bytes) continue;
                uint4 v = ptx::load_row16(at<const char>(from + place));
                if (p.row_weights) {
                    Sum<Row> sum;
                    sum.clear();
                    sum.add_weighted(v, weight);
                    v = sum.rounded();
                }
                ptx::store_row16(at<char>(to + place), v);
            }
        }
    if (p.carried)
        for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < carried_words; i += (u64)gridDim.x * blockDim.x)
            at<float>(base + p.side_carried)[i] = __ldg(at<const float>(p.carried) + i);
}

// The end of a combine that did not succeed: outputs stay as they are. All threads of every block. A refused one is still
// where the caller has ended its reads and given its claim back.
__device__ inline void end_combine(const CombineParams &p, CombineShared &s) {
    if (s.op.status == CONCURRENT_USE) fail(p.comm, s.op, 0);
    if (s.op.status != BUSY) return;
    if (!pass_ticket(p.comm, s.op, TICKET_COMBINE_REFUSED) || threadIdx.x != 0) return;
    report_soft(p.comm, s.op, BUSY, -1, -1);
    Outcome o = no_outcome();
    o.reader = o.claimer = at<HandleRecord>(p.record);
    o.reader->combine_refused = 1;
    finish(p.comm, s.op, o);
}

// Whether the window, with the area that goes with it, is this handle's or nobody's.
__device__ __forceinline__ bool may_use_window(const CombineParams &p, const OperationState &op) {
    if (op.held.claim == 1 + p.window) return true;
    return !(p.flags & CLAIMED) && !(op.words.claimed >> p.window & 1);
}

// Reads the buffer and the handle and passes the guard. Whether there is one is the same on all ranks: it does not depend on
// whether this one has rows to write.
__device__ inline bool enter_combine(const CombineParams &p, CombineShared &s, Guard &guard) {
    OperationState &op = s.op;
    begin(p.comm, op, at<const HandleRecord>(p.record));
    if (threadIdx.x == 0) {
        const HandleRecord *record = at<const HandleRecord>(p.record);
        s.tokens = record->num_tokens;
        s.rows = record->rows;
        s.expert_rows = record->expert_rows;
        s.refused = record->dispatch_refused || !may_use_window(p, op);
    }
    __syncthreads();
    guard = WRITE_AT_ONCE;
    if (op.status != SUCCESS) return false;
    if (s.refused || op.words.in_flight > p.comm.in_flight)
        guard = REFUSED;
    else if (!(p.flags & GUARDED))
        guard = guard_of(p.comm, op, COMBINE_WINDOW, p.window, false);
    if (guard == REFUSED) {
        __syncthreads();
        if (threadIdx.x == 0) op.status = BUSY;
        __syncthreads();
        return false;
    }
    return pass_guard(p.comm, op, guard, COMBINE_WINDOW, p.window);
}

__device__ __forceinline__ Outcome combine_outcome(const CombineParams &p, const OperationState &op, Guard guard) {
    Outcome o = no_outcome();
    o.sent = true;
    o.signals[DATA] = 1;
    o.signals[ENTER] = guard == ENTRY_BARRIER;
    o.kind = COMBINE_WINDOW;
    o.window = p.window;
    o.ends = OPEN;
    o.reader = o.claimer = at<HandleRecord>(p.record);
    return o;
}

// For the receive of a combine that was only sent.
__device__ __forceinline__ void keep_combine(const CombineParams &p, const OperationState &op) {
    HandleRecord *record = at<HandleRecord>(p.record);
    record->combine_epoch = op.epoch;
    record->combine_turn = op.words.sent[DATA];
    record->combine_refused = 0;
    record->combining = 1 + p.window;
}

} // namespace ep
