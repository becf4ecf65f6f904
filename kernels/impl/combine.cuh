// Packed combine by pull: what every variant shares. Each token's rank reads the partial rows where they lie.
#pragma once
#include "combine_parts.cuh"
#include "sum_ring.cuh"
#include "traffic.cuh"

namespace ep {

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
    if (BY_ROW) return r;
    if (p.topk_weights) r.weight = __ldg(at<const float>(p.topk_weights) + i);
    // Expert rows beyond what its receive was given room for are not there.
    if (r.row >= 0 && (u64)r.row >= at<const u64>(own_base(p.comm) + p.limits)[expert_home(p.expert_home, r.id).rank]) r.row = -1;
    return r;
}

__device__ __forceinline__ u64 window_row(const CombineParams &p, u32 rank, u32 row) { return peer_base(p.comm, rank) + p.rows + (u64)row * p.row_stride; }

// Carried weights of one token, read beside its rows. One warp.
template <bool BY_ROW> EP_SELDOM void pull_carried(const CombineParams &p, u64 token, Route r) {
    u32 rank = r.id >= 0 ? expert_home(p.expert_home, r.id).rank : 0;
    u64 side = peer_base(p.comm, rank) + p.side_carried;
    if (BY_ROW) return sum_carried(p, token, r.id, r.row >= 0, rank, r.row >= 0 ? side + (u64)r.row * p.num_topk * 4 : 0);
    float sum = 0.0f; // one value per expert row
    if (r.row >= 0) sum = __fadd_rn(sum, at<const float>(side)[r.row]);
    if (lane_id() < p.num_topk) at<float>(p.out.carried)[token * p.num_topk + lane_id()] = r.id >= 0 ? sum : 0.0f;
}

// The rows that enter a token's sum, where they lie: one partial row per destination (BY_ROW; by rank, or REDUCED by its
// largest k), or every expert row (EXACT).
template <bool BY_ROW> __device__ __forceinline__ Terms pull_terms(const CombineParams &p, const Route &r, u32 rank) {
    bool by_rank = BY_ROW && !(p.flags & ASCENDING_K);
    u64 from = r.row >= 0 ? window_row(p, rank, (u32)r.row) : 0;
    return make_terms(r.row >= 0, by_rank ? rank << 5 | lane_id() : lane_id(), from, r.weight);
}

// What one warp of an operation sums: as many tokens as every other, and pieces of those that are left. The routing of each is
// on its way while the one before is summed.
template <bool BY_ROW> struct PullJobs {
    const CombineParams &p;
    i32 *tally;              // EXACT: expert rows from each rank that this block has pulled
    u32 pieces;              // of a token
    u32 whole;               // tokens that are one job each; every piece of the others is one
    u32 next, jobs, warps;
    u32 leading;             // biases
    float start;             // what sums begin with: nothing, or a zero that changes no bias, also none of -0
    Route route;             // of `next`

    // Of the calling warp.
    __device__ __forceinline__ PullJobs(const CombineParams &params, u64 tokens, i32 *t) : p(params), tally(t) {
        next = blockIdx.x * (blockDim.x / WARP) + warp_id();
        warps = gridDim.x * (blockDim.x / WARP);
        pieces = div_up(p.row_bytes, PIECE);
        whole = (u32)tokens / warps * warps;
        jobs = whole + ((u32)tokens - whole) * pieces;
        u32 biases = __ballot_sync(FULL, lane_id() < 2 && p.out.bias[lane_id() & 1]);
        leading = __popc(biases);
        start = biases & 1 ? -0.0f : 0.0f;
    }

    __device__ __forceinline__ bool more() const { return next < jobs; }
    __device__ __forceinline__ u32 next_token() const { return next < whole ? next : whole + (next - whole) / pieces; }
    __device__ __forceinline__ void ask() { route = more() ? load_route<BY_ROW>(p, next_token()) : Route{-1, -1, 0.0f}; }

    __device__ __forceinline__ SumJob take() {
        Route r = route;
        u64 token = next_token();
        bool all = next < whole;
        u32 part = all ? 0 : (next - whole) % pieces;
        next += warps;
        ask();
        u32 rank = r.row >= 0 ? expert_home(p.expert_home, r.id).rank : 0;
        if (!BY_ROW && part == 0 && r.row >= 0) atomicAdd(tally + rank, 1);
        if (part == 0 && p.out.carried) pull_carried<BY_ROW>(p, token, r);
        Terms t = pull_terms<BY_ROW>(p, r, rank);
        return {t, leading + t.count, part, all ? pieces : part + 1, token};
    }

    __device__ __forceinline__ u64 leading_row(u64 token, u32 i) const { return p.out.bias[p.out.bias[0] ? i : 1] + token * p.out.stride; }

    __device__ __forceinline__ u64 target(u64 token) const { return p.out.x + token * p.out.stride; }
};

// Which rows a warp sums first is found out while the peers' are waited for, except by what the peers themselves write.
template <bool BY_ROW> __device__ __forceinline__ void pull_ahead(PullJobs<BY_ROW> &jobs, Loads<PullJobs<BY_ROW>> &loads) {
    if (!BY_ROW) return;
    jobs.ask();
    if (!jobs.p.out.carried) loads.advance();
}

// Once they are there. This warp's share of all sums.
template <class Row, bool BY_ROW> __device__ __forceinline__ void pull_rows(PullJobs<BY_ROW> &jobs, Loads<PullJobs<BY_ROW>> &loads) {
    if (!BY_ROW) jobs.ask();
    ptx::fence_proxy_async(); // the rows were seen by ordinary accesses, and are read by bulk loads
    if (!BY_ROW && jobs.p.topk_weights)
        sum_jobs<Row, true>(loads);
    else
        sum_jobs<Row, false>(loads);
}

// Rows that do not lie in the window yet, or need a weight, are written to it; carried weights too.
template <class Row> __device__ inline void fill_window(const CombineParams &p, u64 rows, u64 carried_words) {
    u64 base = own_base(p.comm), warps = (u64)gridDim.x * (blockDim.x / WARP);
    u32 pieces = div_up(p.row_bytes, PIECE);
    if (p.flags & COPY_OUT)
        for (u64 job = (u64)blockIdx.x * (blockDim.x / WARP) + warp_id(); job < rows * pieces; job += warps) {
            u64 row = (u32)job / pieces; // fewer pieces than 32 bits count lie in any memory
            u32 offset = (u32)job % pieces * PIECE;
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

// Rows [begin, end) of the window were not handed out: they count as zero.
__device__ inline void zero_rows(const CombineParams &p, u64 begin, u64 end) {
    u64 base = own_base(p.comm), warps = (u64)gridDim.x * (blockDim.x / WARP);
    for (u64 row = begin + (u64)blockIdx.x * (blockDim.x / WARP) + warp_id(); row < end; row += warps) {
        u64 to = base + p.rows + row * p.row_stride;
        for (u32 place = lane_id() * 16; place < p.row_bytes; place += UNIT) ptx::store_row16(at<char>(to + place), make_uint4(0, 0, 0, 0));
        if (p.carried && lane_id() < p.num_topk) at<float>(base + p.side_carried)[row * p.num_topk + lane_id()] = 0.0f;
    }
}

// EXACT: tells the peers how many of this rank's expert rows there are. All threads of one block.
__device__ __forceinline__ void tell_limit(const CombineParams &p, u64 limit) {
    for (u32 peer = threadIdx.x; peer < p.comm.ranks; peer += blockDim.x)
        if (is_alive(p.comm, peer)) at<u64>(peer_base(p.comm, peer) + p.limits)[p.comm.rank] = limit;
}

// What a combine sends and, by partial rows, receives. One warp, of one block.
template <bool BY_ROW> __device__ inline void count_combine(const CombineParams &p, const CombineShared &s, bool sends, bool receives) {
    if (sends && BY_ROW) count_partials_sent(p);
    if (sends && !BY_ROW) count_expert_rows_sent(p, s.capacity);
    if (receives && BY_ROW) count_partials_received(p);
    if (sends && lane_id() == 0) counters(p.comm)->combines++;
}

// Reads the buffer and the handle and passes the guard. Whether there is one is the same on all ranks: it does not depend on
// whether this one has rows to write.
__device__ inline bool enter_combine(const CombineParams &p, CombineShared &s, Guard &guard) {
    const HandleRecord *record = at<const HandleRecord>(p.record);
    Started started = start(p.comm, record);
    if (threadIdx.x == 0) {
        s.tokens = record->num_tokens;
        s.rows = record->rows;
        s.expert_rows = record->expert_rows;
        s.link_rows = record->link_rows;
        s.capacity = record->capacity;
        s.no_dispatch = record->dispatch_refused;
    }
    begin(p.comm, s.op, started);
    return guard_combine(p, s, guard);
}

} // namespace ep
