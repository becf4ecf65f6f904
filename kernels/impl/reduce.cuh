// Combine by expert, REDUCED: some warps sum this rank's expert rows for the other ranks and announce them by slices,
// the others pull what the peers have announced and add this rank's own rows on the way.
#pragma once
#include "combine_body.cuh"
#include "row_sums.cuh"

namespace ep {

__device__ __forceinline__ u64 *slice_word(const CombineParams &p, u32 holder, u32 source, u32 slice) {
    return at<u64>(peer_base(p.comm, holder) + p.progress) + (u64)source * p.slices + slice;
}

// Where rows lie, for each rank; in shared memory.
struct RowRange {
    u32 there;               // this rank's first in the rank's window
    u32 here, count;         // the rank's first in this rank's window, and how many
};

// All threads; the caller adds the barrier.
__device__ inline const RowRange *find_ranges(const CombineParams &p, char *shared) {
    const i32 *matrix = at<const i32>(p.counts);
    u32 columns = count_columns(p), ranks = p.comm.ranks, me = p.comm.rank;
    RowRange *ranges = reinterpret_cast<RowRange *>(shared);
    for (u32 r = warp_id(); r < ranks; r += blockDim.x / WARP) {
        i32 there = 0, here = 0;
        for (u32 source = lane_id(); source < max(me, r); source += WARP) {
            if (source < me) there += matrix[(u64)source * columns + r];
            if (source < r) here += matrix[(u64)source * columns + me];
        }
        there = ptx::warp_sum(there);
        here = ptx::warp_sum(here);
        if (lane_id() == 0) ranges[r] = {(u32)there, (u32)here, is_alive(p.comm, r) ? (u32)matrix[(u64)r * columns + me] : 0};
    }
    return ranges;
}

// Rows that this warp sums for others: slice after slice, in the order in which peers want them.
template <class Row> struct PartialRows {
    const CombineParams &p;
    const CombineShared &s;
    const RowRange *ranges;
    u32 warps, sources;
    u64 unit;                // of slices and sources: where `row` is
    u32 row, end, told;      // the next row, the end of its slice and that slice's word, counted from 1
    i32 place;
    float weight;            // of `row`, asked for

    // Rows from slice `unit` on.
    __device__ __forceinline__ void find_slice() {
        for (; unit < (u64)p.slices * sources; unit += warps) {
            u32 source = (p.comm.rank + 1 + (u32)(unit % sources)) % p.comm.ranks, slice = (u32)(unit / sources); // so that ranks do not crowd on one
            u32 n = ranges[source].count, begin = slice << p.slice_shift;
            if (begin >= n) continue;
            row = ranges[source].here + begin;
            end = (u32)min((u64)row + min(1u << p.slice_shift, n - begin), s.rows);
            told = 1 + source * p.slices + slice;
            if (row < end) return ask();
        }
        row = end = 0;
    }

    __device__ __forceinline__ void ask() {
        bool has = lane_id() < p.num_topk;
        u64 i = (u64)row * p.num_topk + lane_id();
        place = has ? at<const i32>(p.recv_positions)[i] : -1;
        weight = has && p.flags & WEIGHTS_OF_DISPATCH ? at<const float>(p.recv_weights)[i] : 0.0f;
    }

    // The number holds the row, and above it the word of a slice that ends with it.
    __device__ __forceinline__ bool take(Gather &g) {
        if (row == end) return false;
        g.number = row | (row + 1 == end ? (u64)told << 32 : 0);
        g.rows = expert_terms(p, place, p.x + (u64)(u32)place * p.x_stride, weight);
        g.inner = 0;
        g.inner_at = FULL;
        if (++row < end) {
            ask();
        } else {
            unit += warps;
            find_slice();
        }
        return true;
    }

    __device__ __forceinline__ bool is_here() const { return true; }
    __device__ __forceinline__ bool wait() const { return true; }
    __device__ __forceinline__ void start(u64, u32, Sum<Row> &) const {}
    __device__ __forceinline__ void finish(u64 number, u32 at_byte, uint4 v) const {
        ptx::store_row16(at<char>(own_base(p.comm) + p.rows + (u64)(u32)number * p.row_stride + at_byte), v);
    }

    __device__ __forceinline__ void end_row(u64 number) const {
        u64 i = (u64)(u32)number * p.num_topk + lane_id();
        if (p.carried && lane_id() < p.num_topk) {
            i32 from = at<const i32>(p.recv_positions)[i];
            at<float>(own_base(p.comm) + p.side_carried)[i] = from >= 0 ? __ldg(at<const float>(p.carried) + from) : 0.0f;
        }
        u32 word = (u32)(number >> 32);
        if (!word) return;
        __syncwarp();
        if (lane_id() == 0) ptx::store_release_sys(slice_word(p, (word - 1) / p.slices, p.comm.rank, (word - 1) % p.slices), s.op.epoch);
    }
};

// Warp `index` of `warps` of the whole operation. skip_own: own rows are summed where they are pulled.
template <class Row> __device__ inline void reduce_role(const CombineParams &p, const CombineShared &s, Slots &slots, const RowRange *ranges, u32 index, u32 warps, bool skip_own) {
    PartialRows<Row> rows = {p, s, ranges, warps, skip_own ? p.comm.ranks - 1 : p.comm.ranks, index, 0, 0, 0, -1, 0.0f};
    rows.find_slice();
    sum_rows<Row>(slots, rows, p.row_bytes);
}

// Carried weights of a token: from the peers' windows, and from the caller's array for this rank's experts.
__device__ __forceinline__ void pull_carried_reduced(const CombineParams &p, u64 token, const Route &r, i32 place) {
    u32 rank = r.id >= 0 ? expert_home(p.expert_home, r.id).rank : FULL;
    bool mine = rank == p.comm.rank;
    // Every pair reads the row of its rank: the leader's position, found among the lanes of the token.
    i32 row = -1;
    for (u32 j = 0; j < p.num_topk; j++) {
        u32 other = __shfl_sync(FULL, rank, j);
        i32 position = __shfl_sync(FULL, r.row, j);
        if (other == rank && position >= 0) row = position;
    }
    float v = 0.0f;
    if (mine) {
        if (place >= 0 && p.carried) v = __ldg(at<const float>(p.carried) + place);
    } else if (row >= 0) {
        v = at<const float>(peer_base(p.comm, rank) + p.side_carried)[(u64)row * p.num_topk + lane_id()];
    }
    if (lane_id() < p.num_topk) at<float>(p.out.carried)[token * p.num_topk + lane_id()] = __fadd_rn(0.0f, v);
}

// The next of this block's tokens that none of its warps has taken; all blocks go through the tokens side by side. One warp.
__device__ __forceinline__ u64 take_token(CombineShared &s) {
    u32 k = lane_id() == 0 ? atomicAdd(&s.taken, 1) : 0;
    return (u64)__shfl_sync(FULL, k, 0) * gridDim.x + blockIdx.x;
}

// Tokens of this rank: the peers' rows in order, this rank's own sum among them.
template <class Row> struct PulledTokens {
    const CombineParams &p;
    CombineShared &s;
    const RowRange *ranges;
    bool counts;             // this warp's waits stand for all in the statistics
    u64 token;               // the next, and what was asked for it
    Route route;
    i32 place;               // of this rank's rows; the peers look after theirs
    float weight;
    const u64 *word;         // that a lane waits for, for the token last taken, or null
    u32 peer;

    __device__ __forceinline__ i32 place_of(u64 of_token) const {
        i32 at_row = lane_id() < p.num_topk ? at<const i32>(p.expert_positions)[of_token * p.num_topk + lane_id()] : -1;
        return (u64)at_row < s.capacity ? at_row : -1;
    }

    __device__ __forceinline__ void ask() {
        token = take_token(s);
        if (token >= s.tokens) return;
        route = load_route<true>(p, token);
        place = place_of(token);
        weight = p.flags & WEIGHTS_OF_DISPATCH && lane_id() < p.num_topk ? at<const float>(p.weights)[token * p.num_topk + lane_id()] : 0.0f;
    }

    __device__ __forceinline__ bool take(Gather &g) {
        if (token >= s.tokens) return false;
        u32 rank = route.id >= 0 ? expert_home(p.expert_home, route.id).rank : FULL;
        bool mine = rank == p.comm.rank, leads = route.row >= 0, remote = leads && !mine;
        u32 own = __ballot_sync(FULL, leads && mine), others = __ballot_sync(FULL, remote);
        bool local = own && mine && place >= 0;
        u64 row = local ? p.x + (u64)(u32)place * p.x_stride : remote ? window_row(p, rank, (u32)route.row) : 0;
        g.number = token;
        g.rows = make_terms(local || remote, (local ? 0 : WARP) | lane_id(), row, local ? place_weight(p, place, weight) : 1.0f);
        g.inner = __popc(__ballot_sync(FULL, local));
        g.inner_at = own ? g.inner + __popc(others & (own - 1)) : FULL;
        word = remote ? slice_word(p, p.comm.rank, rank, ((u32)route.row - ranges[rank].there) >> p.slice_shift) : nullptr;
        peer = rank;
        ask();
        return true;
    }

    // Bulk loads follow, by lane 0.
    __device__ __forceinline__ bool is_here() const {
        if (!__all_sync(FULL, !word || ptx::load_relaxed_sys(word) >= s.op.epoch)) return false;
        if (word) ptx::load_acquire_sys(word);
        __syncwarp();
        if (lane_id() == 0) ptx::fence_proxy_async();
        return true;
    }

    __device__ __forceinline__ bool wait() const {
        u64 begun = counts ? ptx::nanoseconds() : 0;
        bool failed = word && !wait_progress(p.comm, s.op, word, peer, SLICE, 300, counts);
        if (__any_sync(FULL, failed)) return false;
        if (lane_id() == 0) ptx::fence_proxy_async();
        if (counts && lane_id() == 0) count_waits(p.comm, begun);
        return true;
    }

    __device__ __forceinline__ void start(u64 number, u32 at_byte, Sum<Row> &sum) const { start_token<Row>(p, number, at_byte, sum); }
    __device__ __forceinline__ void finish(u64 number, u32 at_byte, uint4 v) const { ptx::store_row16(at<char>(p.out.x + number * p.out.stride + at_byte), v); }
    __device__ __forceinline__ void end_row(u64 number) const {
        if (p.out.carried) pull_carried_reduced(p, number, load_route<true>(p, number), place_of(number));
    }
};

// Pulls tokens as long as there are any, whose rows the peers announce by slices.
template <class Row> __device__ inline void pull_role(const CombineParams &p, CombineShared &s, Slots &slots, const RowRange *ranges) {
    bool counts = blockIdx.x == 0 && is_last_warp();
    PulledTokens<Row> tokens = {p, s, ranges, counts, 0, {-1, -1, 0.0f}, -1, 0.0f, nullptr, 0};
    tokens.ask();
    sum_rows<Row>(slots, tokens, p.row_bytes);
}

template <class Row> __device__ __forceinline__ void reduced_whole(const CombineParams &p, CombineShared &s, char *dynamic) {
    OperationState &op = s.op;
    Guard guard;
    if (!enter_combine(p, s, guard)) return end_combine(p, s);
    u32 warps = blockDim.x / WARP;
    Slots slots = make_slots(dynamic, p.stages, warp_id(), warps);
    const RowRange *ranges = find_ranges(p, dynamic + slots_bytes(p.stages, warps));
    if (threadIdx.x == 0) s.taken = 0;
    __syncthreads();
    // Warps of both kinds in every block; which warp does what does not change any result.
    if (warp_id() < p.reduce_warps) reduce_role<Row>(p, s, slots, ranges, warp_id() * gridDim.x + blockIdx.x, gridDim.x * p.reduce_warps, true);
    pull_role<Row>(p, s, slots, ranges);
    __syncthreads();
    if (op.failed != SUCCESS) return fail(p.comm, op, 0);
    if (!pass_ticket(p.comm, op, TICKET_READY)) return;
    u64 number = op.words.sent[DATA];
    signal_peers(p.comm, DATA, number, signal_value(p.comm, op.epoch));
    if (is_last_warp()) count_combine<true>(p, s, true, true);
    if (!wait_peers(p.comm, op, DATA, number, op.epoch, true)) return;
    Outcome o = combine_outcome(p, op, guard);
    o.received = true;
    o.ends = op.epoch + 1;
    o.acknowledged = acknowledge(p.comm, op);
    if (threadIdx.x == 0) finish(p.comm, op, o);
}

template <class Row> __device__ __forceinline__ void reduced_send(const CombineParams &p, CombineShared &s, char *dynamic) {
    OperationState &op = s.op;
    Guard guard;
    if (!enter_combine(p, s, guard)) return end_combine(p, s);
    u32 warps = blockDim.x / WARP;
    Slots slots = make_slots(dynamic, p.stages, warp_id(), warps);
    const RowRange *ranges = find_ranges(p, dynamic + slots_bytes(p.stages, warps));
    __syncthreads();
    reduce_role<Row>(p, s, slots, ranges, warp_id() * gridDim.x + blockIdx.x, gridDim.x * warps, false);
    if (!pass_ticket(p.comm, op, TICKET_READY)) return;
    signal_peers(p.comm, DATA, op.words.sent[DATA], signal_value(p.comm, op.epoch));
    if (is_last_warp()) count_combine<true>(p, s, true, false);
    if (threadIdx.x != 0) return;
    keep_combine(p, op);
    finish(p.comm, op, combine_outcome(p, op, guard));
}

} // namespace ep
