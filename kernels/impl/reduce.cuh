// Combine by expert, REDUCED: some warps sum this rank's expert rows for the other ranks and announce them by slices,
// the others pull what the peers have announced and add this rank's own rows on the way.
#pragma once
#include "combine_body.cuh"

namespace ep {

__device__ __forceinline__ u64 *slice_word(const CombineParams &p, u32 holder, u32 source, u32 slice) {
    return at<u64>(peer_base(p.comm, holder) + p.progress) + (u64)source * p.slices + slice;
}

__device__ __forceinline__ Terms packed_terms(const CombineParams &p, i32 place, float weight) {
    return expert_terms(p, place, p.x + (u64)(u32)place * p.x_stride, weight);
}

template <class Row, u32 UNITS> __device__ __forceinline__ void reduce_any(const CombineParams &p, const Terms &t, u32 place, u32 end, uint4 (&out)[UNITS]) {
    uint4 v[4][UNITS];
    fetch_terms<Row>(t, 0, place, end, v);
    sum_fetched<Row>(is_weighted(p), t, v, place, end, out);
}

// Transport row `row`: sum, carried weights. One warp.
template <class Row> __device__ __forceinline__ void reduce_row(const CombineParams &p, u64 row, i32 place, float dispatch_weight) {
    u64 base = own_base(p.comm), to = base + p.rows + row * p.row_stride;
    Terms t = packed_terms(p, place, dispatch_weight);
    for (u32 offset = lane_id() * 16; offset - lane_id() * 16 < p.row_bytes; offset += 2 * UNIT) {
        uint4 v[2];
        reduce_any<Row, 2>(p, t, offset, p.row_bytes, v);
#pragma unroll
        for (u32 u = 0; u < 2; u++)
            if (offset + u * UNIT < p.row_bytes) ptx::store_row16(at<char>(to + offset + u * UNIT), v[u]);
    }
    if (p.carried && lane_id() < p.num_topk)
        at<float>(base + p.side_carried)[row * p.num_topk + lane_id()] = place >= 0 ? __ldg(at<const float>(p.carried) + place) : 0.0f;
}

__device__ __forceinline__ i32 received_place(const CombineParams &p, u64 row) {
    return lane_id() < p.num_topk ? at<const i32>(p.recv_positions)[row * p.num_topk + lane_id()] : -1;
}

// Warp `index` of `warps` of the whole operation reduces its share of the slices, in the order in which peers want
// them. skip_own: own rows are summed where they are pulled.
template <class Row> __device__ inline void reduce_role(const CombineParams &p, CombineShared &s, u32 index, u32 warps, bool skip_own) {
    const i32 *matrix = at<const i32>(p.counts);
    u32 columns = count_columns(p), ranks = p.comm.ranks, per_slice = 1u << p.slice_shift;
    u32 sources = skip_own ? ranks - 1 : ranks; // beginning with the next rank, so that ranks do not crowd on one
    for (u64 unit = index; unit < (u64)p.slices * sources; unit += warps) {
        u32 source = (p.comm.rank + 1 + (u32)(unit % sources)) % ranks, slice = (u32)(unit / sources);
        u32 n = (u32)matrix[(u64)source * columns + p.comm.rank], begin = slice << p.slice_shift;
        if (begin >= n || !is_alive(p.comm, source)) continue;
        u64 start = 0;
        for (u32 r = lane_id(); r < source; r += WARP) start += (u32)matrix[(u64)r * columns + p.comm.rank];
        start = (u32)ptx::warp_sum((i32)start) + begin;
        u64 end = min(start + min(per_slice, n - begin), s.rows);
        i32 next = start < end ? received_place(p, start) : -1;
        for (u64 row = start; row < end; row++) {
            i32 place = next;
            float weight = p.flags & WEIGHTS_OF_DISPATCH && lane_id() < p.num_topk ? at<const float>(p.recv_weights)[row * p.num_topk + lane_id()] : 0.0f;
            if (row + 1 < end) next = received_place(p, row + 1);
            reduce_row<Row>(p, row, place, weight);
        }
        __syncwarp();
        if (lane_id() == 0) ptx::store_release_sys(slice_word(p, source, p.comm.rank, slice), s.op.epoch);
    }
}

// The peers' rows of one token, in order; own: where this rank's sum comes among them, or FULL.
struct TokenTerms {
    Terms peers, local;
    u32 own;
};

__device__ __forceinline__ TokenTerms token_terms(const CombineParams &p, const Route &r, i32 place, float weight) {
    TokenTerms t;
    u32 rank = r.id >= 0 ? expert_home(p.expert_home, r.id).rank : FULL;
    bool leads = r.row >= 0, mine = rank == p.comm.rank;
    u32 own = __ballot_sync(FULL, leads && mine), others = __ballot_sync(FULL, leads && !mine);
    t.peers = make_terms(leads && !mine, lane_id(), leads && !mine ? window_row(p, rank, (u32)r.row) : 0, 0.0f);
    t.own = own ? __popc(others & (own - 1)) : FULL;
    t.local = packed_terms(p, mine && own ? place : -1, weight);
    return t;
}

constexpr u32 OWN_PIECE = 2048;

// One piece of a token's sum. At most one peer: its whole piece is on its way while this rank's rows are summed.
template <class Row> __device__ __forceinline__ void pull_piece_of_one(const CombineParams &p, const TokenTerms &t, u64 token, u32 offset) {
    constexpr u32 UNITS = OWN_PIECE / UNIT;
    u32 end = min(offset + OWN_PIECE, p.row_bytes);
    offset += lane_id() * 16;
    uint4 v[UNITS];
    const char *row = at<const char>(term_row(t.peers, 0));
#pragma unroll
    for (u32 u = 0; u < UNITS; u++)
        v[u] = load_term<Row>(t.peers.count && offset + u * UNIT < end, row + offset + u * UNIT);
#pragma unroll
    for (u32 first = 0; first < UNITS; first += 2) {
        uint4 partial[2] = {neutral<Row>(), neutral<Row>()};
        if (t.own != FULL) reduce_any<Row, 2>(p, t.local, offset + first * UNIT, end, partial);
#pragma unroll
        for (u32 u = 0; u < 2; u++) {
            u32 place = offset + (first + u) * UNIT;
            if (place >= end) continue;
            Sum<Row> sum;
            start_token<Row>(p, token, place, sum);
            sum.add(t.own == 0 ? partial[u] : v[first + u]);
            sum.add(t.own == 0 ? v[first + u] : partial[u]);
            ptx::store_row16(at<char>(p.out.x + token * p.out.stride + place), sum.rounded());
        }
    }
}

// Any number of peers, four in flight.
template <class Row> __device__ __forceinline__ void pull_unit_of_many(const CombineParams &p, const TokenTerms &t, u64 token, u32 place) {
    bool here = place < p.row_bytes;
    uint4 partial[1] = {make_uint4(0, 0, 0, 0)};
    Sum<Row> sum;
    if (here) start_token<Row>(p, token, place, sum);
    for (u32 first = 0; first < t.peers.count; first += 4) {
        uint4 v[4];
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            u64 row = term_row(t.peers, (first + j) & 31);
            if (first + j < t.peers.count && here) v[j] = ptx::load_row16(at<const char>(row + place));
        }
        if (first == 0 && t.own != FULL) reduce_any<Row, 1>(p, t.local, place, p.row_bytes, partial);
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            if (first + j >= t.peers.count) continue;
            if (first + j == t.own) sum.add(partial[0]);
            sum.add(v[j]);
        }
    }
    if (t.own != FULL && t.own >= t.peers.count) sum.add(partial[0]);
    if (here) ptx::store_row16(at<char>(p.out.x + token * p.out.stride + place), sum.rounded());
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

// Pulls tokens as long as there are any, whose rows the peers announce by slices.
template <class Row> __device__ inline void pull_role(const CombineParams &p, CombineShared &s, const i32 *first_row) {
    OperationState &op = s.op;
    auto place_of = [&](u64 token) { // of this rank's rows; the peers look after theirs
        i32 place = lane_id() < p.num_topk ? at<const i32>(p.expert_positions)[token * p.num_topk + lane_id()] : -1;
        return (u64)place < s.capacity ? place : -1;
    };
    bool counts = blockIdx.x == 0 && warp_id() == blockDim.x / WARP - 1; // this warp's waits stand for all in the statistics
    u64 token = take_token(s), following;
    Route next = token < s.tokens ? load_route<true>(p, token) : Route{-1, -1, 0.0f};
    i32 next_place = token < s.tokens ? place_of(token) : -1;
    for (; token < s.tokens; token = following) {
        Route r = next;
        i32 place = next_place;
        float weight = p.flags & WEIGHTS_OF_DISPATCH && lane_id() < p.num_topk ? at<const float>(p.weights)[token * p.num_topk + lane_id()] : 0.0f;
        following = take_token(s);
        if (following < s.tokens) {
            next = load_route<true>(p, following);
            next_place = place_of(following);
        }
        u32 rank = r.id >= 0 ? expert_home(p.expert_home, r.id).rank : 0;
        bool failed = false;
        u64 begun = counts ? ptx::nanoseconds() : 0;
        if (r.row >= 0 && rank != p.comm.rank)
            failed = !wait_progress(p.comm, op, slice_word(p, p.comm.rank, rank, (u32)(r.row - first_row[rank]) >> p.slice_shift), rank, SLICE, 300, counts);
        if (__any_sync(FULL, failed)) return;
        if (counts && lane_id() == 0) count_waits(p.comm, begun);
        TokenTerms t = token_terms(p, r, place, weight);
        if (t.peers.count <= 1)
            for (u32 offset = 0; offset < p.row_bytes; offset += OWN_PIECE) pull_piece_of_one<Row>(p, t, token, offset);
        else
            for (u32 offset = 0; offset < p.row_bytes; offset += UNIT) pull_unit_of_many<Row>(p, t, token, offset + lane_id() * 16);
        if (p.out.carried) pull_carried_reduced(p, token, r, place);
    }
}

// first_row[r]: this rank's first row in rank r's window. All threads; the caller adds the barrier.
__device__ inline void find_first_rows(const CombineParams &p, i32 *first_row) {
    const i32 *matrix = at<const i32>(p.counts);
    for (u32 r = warp_id(); r < p.comm.ranks; r += blockDim.x / WARP) {
        i32 sum = 0;
        for (u32 source = lane_id(); source < p.comm.rank; source += WARP) sum += matrix[(u64)source * count_columns(p) + r];
        sum = ptx::warp_sum(sum);
        if (lane_id() == 0) first_row[r] = sum;
    }
}

template <class Row> __device__ __forceinline__ void reduced_whole(const CombineParams &p, CombineShared &s, i32 *first_row) {
    OperationState &op = s.op;
    Guard guard;
    if (!enter_combine(p, s, guard)) return end_combine(p, s);
    find_first_rows(p, first_row);
    if (threadIdx.x == 0) s.taken = 0;
    __syncthreads();
    // Warps of both kinds in every block; which warp does what does not change any result.
    if (warp_id() < p.reduce_warps) reduce_role<Row>(p, s, warp_id() * gridDim.x + blockIdx.x, gridDim.x * p.reduce_warps, true);
    pull_role<Row>(p, s, first_row);
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

template <class Row> __device__ __forceinline__ void reduced_send(const CombineParams &p, CombineShared &s) {
    OperationState &op = s.op;
    Guard guard;
    if (!enter_combine(p, s, guard)) return end_combine(p, s);
    reduce_role<Row>(p, s, warp_id() * gridDim.x + blockIdx.x, gridDim.x * (blockDim.x / WARP), false);
    if (!pass_ticket(p.comm, op, TICKET_READY)) return;
    signal_peers(p.comm, DATA, op.words.sent[DATA], signal_value(p.comm, op.epoch));
    if (is_last_warp()) count_combine<true>(p, s, true, false);
    if (threadIdx.x != 0) return;
    keep_combine(p, op);
    finish(p.comm, op, combine_outcome(p, op, guard));
}

} // namespace ep
