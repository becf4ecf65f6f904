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

// Scales of a run: 16 bytes a lane, read at once where the caller's rows allow it. Bytes between scale_bytes and
// scale_stride become zero.
__device__ __forceinline__ void send_scales(const DispatchParams &p, const Run &run, u32 token0, u64 base) {
    bool wide = (p.x_scales | p.x_scale_stride) % 16 == 0 && p.x_scale_col_stride == 4;
    char *to = at<char>(base + p.scales + (u64)run.first * p.scale_stride);
    u32 chunks = p.scale_stride / 16;
    for (u32 j = lane_id(); j < div_up(run.count * chunks, WARP) * WARP; j += WARP) {
        u32 i = j / chunks, part = j % chunks;
        u32 member = __shfl_sync(FULL, run.member, min(i, WARP - 1));
        if (i >= run.count) continue;
        u64 from = p.x_scales + (u64)(token0 + member) * p.x_scale_stride;
        uint4 v;
        if (wide && part * 16 + 16 <= p.scale_bytes) {
            v = __ldg(at<const uint4>(from + part * 16));
        } else { // scale_bytes is a multiple of 4
            u32 w[4];
#pragma unroll
            for (u32 b = 0; b < 4; b++) w[b] = part * 16 + b * 4 < p.scale_bytes ? __ldg(at<const u32>(from + (part * 4 + b) * p.x_scale_col_stride)) : 0;
            v = make_uint4(w[0], w[1], w[2], w[3]);
        }
        ptx::store_row16(to + (u64)i * p.scale_stride + part * 16, v);
    }
}

// Ids (local at the destination), weights, expert positions and sources of a run.
__device__ __forceinline__ void send_routing(const DispatchParams &p, const Run &run, u32 token0, u32 dest, u64 base, bool by_expert) {
    i32 *ids = at<i32>(base + p.side_ids) + (u64)run.first * p.num_topk;
    float *weights = at<float>(base + p.side_weights) + (u64)run.first * p.num_topk;
    i32 *places = at<i32>(base + p.side_positions) + (u64)run.first * p.num_topk;
    for (u32 j = lane_id(); j < div_up(run.count * p.num_topk, WARP) * WARP; j += WARP) {
        u32 i = j / p.num_topk;
        u32 member = __shfl_sync(FULL, run.member, min(i, WARP - 1));
        if (i >= run.count) continue;
        u64 from = (u64)(token0 + member) * p.num_topk + j % p.num_topk;
        i32 id = at<const i32>(p.ids)[from];
        Home home = id >= 0 ? expert_home(p.expert_home, id) : Home{FULL, 0};
        bool here = home.rank == dest;
        ids[j] = here ? (i32)home.local : -1;
        weights[j] = here ? at<const float>(p.weights)[from] : 0.0f;
        if (by_expert) places[j] = here ? at<const i32>(p.expert_positions)[from] : -1;
    }
    if (lane_id() < run.count)
        at<i64>(base + p.side_source)[run.first + lane_id()] = (i64)p.comm.rank * p.max_tokens + token0 + run.member;
}

// Side data of this block's tokens; warp `index` of `warps`. with_scales: false where the cast makes them.
__device__ inline void send_side_data(const DispatchParams &p, Tokens tokens, u32 index, u32 warps, bool by_expert, bool with_scales) {
    u32 groups = div_up(tokens.end - tokens.begin, WARP);
    // One unit of work is a group and a destination, so that few tokens still occupy every warp.
    for (u32 unit = index; unit < groups * p.comm.ranks; unit += warps) {
        u32 dest = unit % p.comm.ranks, token0 = tokens.begin + unit / p.comm.ranks * WARP, token = token0 + lane_id();
        i32 row = -1;
        if (token < tokens.end)
            for (u32 k = 0; k < p.num_topk; k++) {
                u64 i = (u64)token * p.num_topk + k;
                i32 position = at<const i32>(p.positions)[i];
                if (position >= 0 && expert_home(p.expert_home, at<const i32>(p.ids)[i]).rank == dest) row = position;
            }
        Run run = make_run(row >= 0, row);
        if (!run.count) continue;
        u64 base = peer_base(p.comm, dest);
        send_routing(p, run, token0, dest, base, by_expert);
        if (with_scales && p.scale_bytes) send_scales(p, run, token0, base);
    }
}

} // namespace ep
