// Scales, ids, weights and sources of the rows: sent by warps of their own, in runs of consecutive rows per destination.
#pragma once
#include "../ptx/memory.cuh"
#include "routing.cuh"

namespace ep {

// The tokens of a group of 32 that have a row at one destination: consecutive rows there, from `first`.
struct Run {
    u32 count;
    i32 first;
    u32 member;              // lane i < count: the lane of the run's i-th token
    u32 k;                   // of each lane's own leading pair there
};

// `wanted` and `row` per lane; the rows of the wanted lanes are consecutive.
__device__ __forceinline__ Run make_run(bool wanted, i32 row) {
    u32 mask = __ballot_sync(FULL, wanted);
    Run r;
    r.count = __popc(mask);
    r.first = mask ? __shfl_sync(FULL, row, __ffs((i32)mask) - 1) : 0;
    r.member = lane_id() < r.count ? __fns(mask, 0, (i32)lane_id() + 1) : 0;
    r.k = 0;
    return r;
}

// 16 bytes of a token's scales, read at once where the caller's rows allow it; what lies beyond the row is zero.
template <class Params> __device__ __forceinline__ uint4 load_scales(const Params &p, u64 token, u32 part) {
    u64 from = p.given.x_scales + token * p.given.x_scale_stride;
    bool wide = (p.given.x_scales | p.given.x_scale_stride) % 16 == 0 && p.given.x_scale_col_stride == 4;
    if (wide && part * 16 + 16 <= p.scale_bytes) return __ldg(at<const uint4>(from + part * 16));
    u32 w[4]; // scale_bytes is a multiple of 4
#pragma unroll
    for (u32 b = 0; b < 4; b++) w[b] = part * 16 + b * 4 < p.scale_bytes ? __ldg(at<const u32>(from + (part * 4 + b) * p.given.x_scale_col_stride)) : 0;
    return make_uint4(w[0], w[1], w[2], w[3]);
}

// Scales of a run: 16 bytes a lane, several loads on the way at once.
__device__ __forceinline__ void send_scales(const DispatchParams &p, const Run &run, u32 token0, u64 base) {
    constexpr u32 BATCH = 4;
    u64 to = base + p.scales + (u64)run.first * p.scale_stride;
    u32 chunks = p.scale_stride / 16, total = run.count * chunks;
    for (u32 first = 0; first < total; first += BATCH * WARP) {
        uint4 v[BATCH];
#pragma unroll
        for (u32 b = 0; b < BATCH; b++) {
            u32 j = first + b * WARP + lane_id(), i = j / chunks;
            u32 member = __shfl_sync(FULL, run.member, min(i, WARP - 1));
            v[b] = j < total ? load_scales(p, token0 + member, j % chunks) : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (u32 b = 0; b < BATCH; b++) {
            u32 j = first + b * WARP + lane_id();
            if (j < total) ptx::store_row16(at<char>(to + (u64)j * 16), v[b]); // rows are adjacent, without gaps
        }
    }
}

// Ids (local at the destination), weights, expert positions and sources of a run.
__device__ __forceinline__ void send_routing(const DispatchParams &p, const Homes &homes, const Run &run, u32 token0, u32 dest, u64 base, bool by_expert) {
    constexpr u32 BATCH = 4;
    i32 *ids = at<i32>(base + p.side_ids) + (u64)run.first * p.num_topk;
    float *weights = at<float>(base + p.side_weights) + (u64)run.first * p.num_topk;
    i32 *places = at<i32>(base + p.side_positions) + (u64)run.first * p.num_topk;
    u32 total = run.count * p.num_topk;
    for (u32 first = 0; first < total; first += BATCH * WARP) {
        i32 id[BATCH], place[BATCH];
        float weight[BATCH];
#pragma unroll
        for (u32 b = 0; b < BATCH; b++) {
            u32 j = first + b * WARP + lane_id(), i = j / p.num_topk;
            u32 member = __shfl_sync(FULL, run.member, min(i, WARP - 1));
            u64 from = (u64)(token0 + member) * p.num_topk + j % p.num_topk;
            id[b] = j < total ? at<const i32>(p.ids)[from] : -1;
            weight[b] = j < total ? at<const float>(p.weights)[from] : 0.0f;
            place[b] = by_expert && j < total ? at<const i32>(p.expert_positions)[from] : -1;
        }
#pragma unroll
        for (u32 b = 0; b < BATCH; b++) {
            u32 j = first + b * WARP + lane_id();
            if (j >= total) continue;
            Home home = id[b] >= 0 ? homes[id[b]] : Home{FULL, 0};
            bool here = home.rank == dest;
            ids[j] = here ? (i32)home.local : -1;
            weights[j] = here ? weight[b] : 0.0f;
            if (by_expert) places[j] = here ? place[b] : -1;
        }
    }
    if (lane_id() < run.count)
        at<i64>(base + p.side_source)[run.first + lane_id()] = (i64)p.comm.rank * p.max_tokens + token0 + run.member;
}

// Side data of this block's tokens; warp `index` of `warps`. with_scales: false where the cast makes them.
__device__ inline void send_side_data(const DispatchParams &p, const Homes &homes, Tokens tokens, u32 index, u32 warps, bool by_expert, bool with_scales) {
    u32 groups = div_up(tokens.end - tokens.begin, WARP);
    // One unit of work is a group and a destination, so that few tokens still occupy every warp.
    for (u32 unit = index; unit < groups * p.comm.ranks; unit += warps) {
        u32 dest = unit % p.comm.ranks, token0 = tokens.begin + unit / p.comm.ranks * WARP, token = token0 + lane_id();
        i32 row = -1;
#pragma unroll 4
        for (u32 k = 0; k < p.num_topk; k++) {
            u64 i = (u64)min(token, tokens.end - 1) * p.num_topk + k;
            i32 position = at<const i32>(p.positions)[i], id = at<const i32>(p.ids)[i];
            if (position >= 0 && token < tokens.end && homes[max(id, 0)].rank == dest) row = position;
        }
        Run run = make_run(row >= 0, row);
        if (!run.count) continue;
        u64 base = peer_base(p.comm, dest);
        send_routing(p, homes, run, token0, dest, base, by_expert);
        if (with_scales && p.scale_bytes) send_scales(p, run, token0, base);
    }
}

} // namespace ep
