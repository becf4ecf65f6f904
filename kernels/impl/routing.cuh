// From expert ids to row positions: count this block's tokens, then give every row its place.
// A warp takes groups of 32 / topk whole tokens, one lane per (token, k). The groups of a block are split into
// contiguous segments, one per warp, so that the order of rows is the order of tokens.
#pragma once
#include "../comm/operation.cuh"

namespace ep {

struct Tokens {
    u32 begin, end;
};

// Rank and local number of every expert in shared memory, since every row asks. The top bit: its rank was given up.
struct Homes {
    const u32 *entries;
    __device__ __forceinline__ Home operator[](i32 expert) const { return {entries[expert] >> 16 & 0x7fff, entries[expert] & 0xffff}; }
    __device__ __forceinline__ bool is_lost(i32 expert) const { return entries[expert] >> 31; }
};

__device__ __forceinline__ Homes make_homes(char *shared) { return {reinterpret_cast<const u32 *>(shared)}; }

// All threads; the caller adds the barrier.
__device__ inline void load_homes(const DispatchParams &p, char *shared) {
    u32 *entries = reinterpret_cast<u32 *>(shared);
    for (u32 e = threadIdx.x; e < p.num_experts; e += blockDim.x) {
        u32 v = __ldg(at<const u32>(p.expert_home) + e);
        entries[e] = is_alive(p.comm, v >> 16) ? v : v | 1u << 31;
    }
}

// Shared memory of the counting phase: rank_hist[warps][ranks], expert_hist[warps or 1][experts], then bases.
struct Histograms {
    i32 *ranks, *experts;
    i32 *rank_base, *expert_base;
    i32 *expert_start;       // in the order of ranks and their local experts
    u32 warps;               // that count
    bool per_warp_experts;
    Homes homes;
};

__device__ __forceinline__ Histograms make_histograms(const DispatchParams &p, char *shared, u32 warps, bool by_expert, Homes homes) {
    Histograms h;
    h.homes = homes;
    h.warps = warps;
    h.per_warp_experts = by_expert;
    h.ranks = reinterpret_cast<i32 *>(shared);
    h.experts = h.ranks + warps * p.comm.ranks;
    h.rank_base = h.experts + (by_expert ? warps : 1) * p.num_experts;
    h.expert_base = h.rank_base + p.comm.ranks;
    h.expert_start = h.expert_base + p.num_experts;
    return h;
}

// The (token, k) pair of a lane in a group.
struct Pair {
    u32 token, slot;         // slot: token's number in its group
    u64 index;               // token * topk + k
    bool valid;
};

__device__ __forceinline__ Pair pair_of(Tokens tokens, u32 group, u32 topk) {
    u32 per_group = WARP / topk, lane = lane_id();
    Pair r;
    r.slot = lane / topk;
    r.token = tokens.begin + group * per_group + r.slot;
    r.valid = lane < per_group * topk && r.token < tokens.end;
    r.index = (u64)r.token * topk + lane % topk;
    return r;
}

struct Segment {
    u32 begin, end;
};

__device__ __forceinline__ Segment segment_of(Tokens tokens, u32 topk, u32 warp, u32 warps) {
    u32 groups = div_up(tokens.end - tokens.begin, WARP / topk);
    return {(u32)((u64)groups * warp / warps), (u32)((u64)groups * (warp + 1) / warps)};
}

template <class Params> __device__ __forceinline__ i64 load_id(const Params &p, u64 index) {
    return p.given.id_bytes == 8 ? (i64)ptx::load_ahead(at<const u64>(p.given.topk_idx) + index) : (i64)(i32)ptx::load_ahead(at<const u32>(p.given.topk_idx) + index);
}

// -1 for an id that is out of range, occurred earlier in its row, or belongs to a rank that was given up.
__device__ __forceinline__ i32 canonical_id(const DispatchParams &p, const Homes &homes, const Pair &pair, i64 given) {
    i32 id = pair.valid && given >= 0 && given < (i64)p.num_experts ? (i32)given : -1;
    u64 key = id >= 0 ? (u64)pair.slot << 32 | (u32)id : 1ull << 63 | lane_id();
    u32 same = ptx::match_any(key);
    if ((u32)__ffs((i32)same) - 1 != lane_id()) id = -1;
    if (pair.valid && given != -1 && id < 0) // kept inverted, so that zero means none
        atomicMax(&buffer_state(p.comm)->first_bad, ~pair.index);
    if (id >= 0 && homes.is_lost(id)) id = -1;
    return id;
}

// Among the lanes of a token that share a destination one stands for its row: the one with the largest k.
__device__ __forceinline__ u32 leading_lane(const Pair &pair, i32 id, u32 rank) {
    u32 same = ptx::match_any(id >= 0 ? pair.slot << 16 | rank : 0x80000000u | lane_id());
    return 31 - (u32)__clz((i32)same);
}

__device__ __forceinline__ bool leads_destination(const Pair &pair, i32 id, u32 rank) { return leading_lane(pair, id, rank) == lane_id() && id >= 0; }

__device__ __forceinline__ void count_group(const DispatchParams &p, const Histograms &h, const Pair &pair, i64 given, float weight) {
    i32 id = canonical_id(p, h.homes, pair, given);
    u32 rank = id >= 0 ? h.homes[id].rank : 0;
    if (leads_destination(pair, id, rank)) atomicAdd(&h.ranks[warp_id() * p.comm.ranks + rank], 1);
    if (id >= 0) atomicAdd(&h.experts[(h.per_warp_experts ? warp_id() * p.num_experts : 0) + id], 1);
    if (!pair.valid) return;
    at<i32>(p.ids)[pair.index] = id;
    at<float>(p.weights)[pair.index] = id >= 0 ? weight : 0.0f;
}

// All threads; the caller adds the barrier.
__device__ __forceinline__ void clear_histograms(const DispatchParams &p, const Histograms &h) {
    u32 words = h.warps * p.comm.ranks + (h.per_warp_experts ? h.warps : 1) * p.num_experts;
    for (u32 i = threadIdx.x; i < words; i += blockDim.x) h.ranks[i] = 0;
}

// Fills the histograms, which are clear, the handle's ids and its weights. meanwhile(): by every warp, when its first ids are
// on the way. All threads; ends with a block barrier.
template <class Meanwhile> __device__ inline void count_tokens(const DispatchParams &p, const Histograms &h, Tokens tokens, Meanwhile meanwhile) {
    constexpr u32 AHEAD = 4; // groups whose ids are on the way at once
    Segment s = segment_of(tokens, p.num_topk, warp_id(), h.warps);
    for (u32 first = s.begin; first < s.end; first += AHEAD) {
        i64 given[AHEAD];
        float weight[AHEAD];
#pragma unroll
        for (u32 j = 0; j < AHEAD; j++) {
            Pair pair = pair_of(tokens, first + j, p.num_topk);
            bool present = pair.valid && first + j < s.end;
            given[j] = present ? load_id(p, pair.index) : -1;
            weight[j] = present && p.given.topk_weights ? __uint_as_float(ptx::load_ahead(at<const u32>(p.given.topk_weights) + pair.index)) : 1.0f;
        }
        if (first == s.begin) meanwhile();
#pragma unroll
        for (u32 j = 0; j < AHEAD; j++)
            if (first + j < s.end) count_group(p, h, pair_of(tokens, first + j, p.num_topk), given[j], weight[j]);
    }
    if (s.begin == s.end) meanwhile();
    __syncthreads();
}

// A cached dispatch with new weights keeps the ids and replaces the weights.
__device__ inline void replace_weights(const DispatchParams &p, Tokens tokens) {
    u64 begin = (u64)tokens.begin * p.num_topk, end = (u64)tokens.end * p.num_topk;
    for (u64 i = begin + threadIdx.x; i < end; i += blockDim.x)
        at<float>(p.weights)[i] = at<const i32>(p.ids)[i] >= 0 ? __ldg(at<const float>(p.given.topk_weights) + i) : 0.0f;
}

// What the blocks have counted, in the first exchange (round 0) or the second.
__device__ __forceinline__ i32 *block_counts(const DispatchParams &p, u32 round, u32 block) {
    return at<i32>(p.block_counts) + (u64)(round * gridDim.x + block) * (p.comm.ranks + p.num_experts);
}

// Turns the histograms of the warps into exclusive prefixes over warps and hands the block's counts to the others.
__device__ inline void publish_block_counts(const DispatchParams &p, const Histograms &h, u32 round) {
    u32 columns = p.comm.ranks + p.num_experts;
    i32 *mine = block_counts(p, round, blockIdx.x);
    for (u32 c = threadIdx.x; c < columns; c += blockDim.x) {
        bool is_rank = c < p.comm.ranks;
        i32 *h0 = is_rank ? h.ranks + c : h.experts + (c - p.comm.ranks);
        u32 stride = is_rank ? p.comm.ranks : p.num_experts;
        u32 rows = is_rank || h.per_warp_experts ? h.warps : 1;
        i32 sum = 0;
        for (u32 w = 0; w < rows; w++) {
            i32 v = h0[w * stride];
            h0[w * stride] = sum;
            sum += v;
        }
        mine[c] = sum;
        if (sum) ptx::add_relaxed_gpu(at<u32>(p.totals) + c, (u32)sum);
    }
}

// One group's places. Lanes of one destination (or expert) take consecutive rows from the warp's running count.
__device__ __forceinline__ i32 take_place(i32 *running, i32 base, bool wanted, u32 key) {
    u32 same = ptx::match_any(wanted ? key : 0x80000000u | lane_id());
    i32 before = wanted ? running[key] : 0;
    __syncwarp();
    if (wanted && (u32)__ffs((i32)same) - 1 == lane_id()) running[key] = before + __popc(same);
    __syncwarp();
    return base + before + __popc(same & ptx::lanes_below());
}

// Calls each(pair, id, rank of the expert) for the groups of this warp, in order.
template <class Each> __device__ __forceinline__ void each_group(const DispatchParams &p, const Histograms &h, Tokens tokens, Each each) {
    if (warp_id() >= h.warps) return;
    Segment s = segment_of(tokens, p.num_topk, warp_id(), h.warps);
    for (u32 g = s.begin; g < s.end; g++) {
        Pair pair = pair_of(tokens, g, p.num_topk);
        i32 id = pair.valid ? at<const i32>(p.ids)[pair.index] : -1;
        each(pair, id, id >= 0 ? h.homes[id].rank : 0);
    }
}

// The row of a pair at its destination, -1 unless it leads.
__device__ __forceinline__ void assign_row(const DispatchParams &p, const Histograms &h, const Pair &pair, i32 id, u32 rank) {
    bool leads = leads_destination(pair, id, rank);
    i32 row = take_place(h.ranks + warp_id() * p.comm.ranks, leads ? h.rank_base[rank] : 0, leads, rank);
    if (pair.valid) at<i32>(p.positions)[pair.index] = leads && (u64)row < p.max_recv_rows ? row : -1;
}

// Its expert row. `has_row`: not of pairs whose row does not fit.
__device__ __forceinline__ void assign_place(const DispatchParams &p, const Histograms &h, const Pair &pair, i32 id, bool has_row) {
    i32 place = take_place(h.experts + warp_id() * p.num_experts, has_row ? h.expert_base[id] : 0, has_row, (u32)id);
    if (pair.valid) at<i32>(p.expert_positions)[pair.index] = has_row && (u64)place < p.max_expert_rows ? place : -1;
}

// Writes the handle's positions (and expert positions). All threads; the caller adds the barrier.
__device__ inline void assign_positions(const DispatchParams &p, const Histograms &h, Tokens tokens, bool by_expert) {
    each_group(p, h, tokens, [&](const Pair &pair, i32 id, u32 rank) {
        assign_row(p, h, pair, id, rank);
        if (by_expert) assign_place(p, h, pair, id, id >= 0);
    });
}

} // namespace ep
