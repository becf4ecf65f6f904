// Slotted dispatch: what crosses beside the rows: local ids, weights, slots, positions, scales that were given, counts.
#pragma once
#include "side_data.cuh"
#include "slotted_rows.cuh"

namespace ep {

// The routing of one group of own tokens: a lane for each (token, k).
struct SideGroup {
    u32 slot, k, token;      // slot: which token of the group
    u64 index;
    bool valid;
    i64 given;
    float weight;
};

__device__ __forceinline__ u32 tokens_of_group(const SlottedDispatchParams &p) { return token_of_pair(p, WARP); }

// That of the `first`-th own token and those that follow.
__device__ __forceinline__ SideGroup load_side_group(const SlottedDispatchParams &p, const GivenRouting &given, const OwnTokens &own, u32 first) {
    SideGroup g;
    g.slot = token_of_pair(p, lane_id());
    g.k = lane_id() - g.slot * p.num_topk;
    g.token = own.token(first + g.slot);
    g.valid = g.slot < tokens_of_group(p) && g.token < own.end;
    g.index = (u64)g.token * p.num_topk + g.k;
    g.given = g.valid ? given.id(g.index) : -1;
    g.weight = g.valid ? given.weight(g.index) : 0.0f;
    return g;
}

// The home of a lane's expert, or rank FULL: out of range, repeated in its row, or of a rank that was given up.
__device__ __forceinline__ Home canonical_home(const SlottedDispatchParams &p, const Routing &r, const SideGroup &g) {
    bool in_range = (u64)g.given < p.num_experts;
    // Experts are fewer than 2^20, tokens of a group at most 2^5.
    u32 same = ptx::match_any(in_range ? g.slot << 20 | (u32)g.given : 1u << 31 | lane_id());
    bool first = (u32)__ffs((i32)same) - 1 == lane_id();
    if (g.valid && g.given != -1 && !(in_range && first)) atomicMax(&buffer_state(p.comm)->first_bad, ~g.index); // kept inverted, so that zero means none
    return first ? home_of(r, expert_of(p, g.given)) : Home{FULL, 0};
}

// Sends a group's routing; the handle keeps it. One warp; the tokens lie in the chunk that begins at `chunk`.
template <bool BY_EXPERT> __device__ inline void send_side_group(const SlottedDispatchParams &p, const Routing &r, const SideGroup &g, u32 chunk) {
    Home home = canonical_home(p, r, g);
    bool has = home.rank != FULL;
    u32 token = g.valid ? g.token - chunk : 0, first_lane = g.slot * p.num_topk;
    if (g.valid) {
        if (!(p.flags & CACHED)) at<i32>(p.kept.ids)[g.index] = has ? (i32)g.given : -1;
        if (!(p.flags & CACHED) || p.given.topk_weights) at<float>(p.kept.weights)[g.index] = has ? g.weight : 0.0f;
    }
    if (g.valid && g.k == 0) at<i32>(p.kept.own_rows)[g.token] = goes_to(r, p.comm.rank, token) ? (i32)tokens_below(r, p.comm.rank, token) : -1;
    i32 position = BY_EXPERT && has ? (i32)tokens_below(r, p.comm.ranks + (u32)g.given, token) : -1;
    u32 row_lanes = p.num_topk == WARP ? FULL : (1u << p.num_topk) - 1;
    for (u32 todo = __ballot_sync(FULL, has); todo;) {
        u32 rank = __shfl_sync(FULL, home.rank, __ffs((i32)todo) - 1);
        u32 here = __ballot_sync(FULL, home.rank == rank);
        todo &= ~here;
        u32 of_row = g.valid ? here >> first_lane & row_lanes : 0;
        if (!of_row) continue;
        u64 row = window_row(p, r, rank, token), base = r.bases[rank], at_k = row * p.num_topk + g.k;
        bool mine = home.rank == rank;
        at<i32>(base + p.side_ids)[at_k] = mine ? (i32)home.local : -1;
        at<float>(base + p.side_weights)[at_k] = mine ? g.weight : 0.0f;
        if (BY_EXPERT) at<i32>(base + p.side_positions)[at_k] = mine ? position : -1;
        if (g.k == 0) at<i32>(base + p.side_slots)[row] = (i32)(g.token * p.num_topk + 31 - __clz((i32)of_row));
    }
}

// The given scales of the chunk's `token`-th token, row-major and padded with zeros. One warp.
EP_SELDOM void send_given_scales(const SlottedDispatchParams &p, Routing r, u32 chunk, u32 token) {
    u32 parts = p.scale_stride / 16;
    for (u32 first = 0; first < parts; first += WARP) {
        u32 part = first + lane_id();
        if (part >= parts) continue;
        uint4 v = load_scales(p, chunk + token, part);
        for (u32 rank = 0; rank < p.comm.ranks; rank++)
            if (goes_to(r, rank, token))
                ptx::store_row16(at<char>(r.bases[rank] + p.scales + window_row(p, r, rank, token) * p.scale_stride + part * 16), v);
    }
}

// When the last chunk is marked: how many rows each rank gets from here, and how many each of its experts. Block `block`
// of `blocks`, all threads.
__device__ __forceinline__ void send_counts(const SlottedDispatchParams &p, const Routing &r, u32 block, u32 blocks) {
    u32 thread = blockDim.x - 1 - threadIdx.x; // the last warps have the least to do
    for (u32 column = block + thread * blocks; column < r.columns; column += blockDim.x * blocks) {
        u32 home = column < p.comm.ranks ? column << 16 : r.homes[column - p.comm.ranks];
        u32 rank = home >> 16, number = column < p.comm.ranks ? 0 : 1 + (home & 0xffff);
        u32 count = r.alive[rank] ? tokens_of(r, column) : 0;
        at<u32>(p.kept.sent_counts)[column] = count;
        if (!r.alive[rank]) continue;
        at<u32>(r.bases[rank] + p.side_counts)[p.comm.rank * p.count_stride + number] = count;
        if (column == rank) count_sent(p.comm, rank, count, p.wire_bytes);
    }
}

} // namespace ep
