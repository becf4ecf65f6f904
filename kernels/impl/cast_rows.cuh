// Dispatch with an FP8 cast: rows are read, cast in shared memory and sent with their scales.
#pragma once
#include "cast.cuh"
#include "expand.cuh"
#include "send_rows.cuh"

namespace ep {

// The window row to which a lane sends a token's scales, or null.
__device__ __forceinline__ char *cast_scale_target(const DispatchParams &p, u32 token, bool expand_own) {
    if (lane_id() >= p.num_topk) return nullptr;
    u64 index = (u64)token * p.num_topk + lane_id();
    i32 row = at<const i32>(p.positions)[index];
    if (row < 0) return nullptr;
    u32 rank = expert_home(p.expert_home, at<const i32>(p.ids)[index]).rank;
    if (expand_own && rank == p.comm.rank) return nullptr;
    return at<char>(peer_base(p.comm, rank) + p.scales + (u64)row * p.scale_stride);
}

// The expert row of a lane's pair on this rank, or -1.
__device__ __forceinline__ i32 own_place(const DispatchParams &p, u32 token) {
    if (lane_id() >= p.num_topk) return -1;
    u64 index = (u64)token * p.num_topk + lane_id();
    i32 id = at<const i32>(p.ids)[index], place = at<const i32>(p.expert_positions)[index];
    return id >= 0 && expert_home(p.expert_home, id).rank == p.comm.rank && (u64)place < p.out_rows ? place : -1;
}

// Like send_rows for whole rows. A stage holds the row as it was given, then the FP8 row, then its scales.
__device__ inline void send_cast_rows(const DispatchParams &p, const Ring &ring, const RowPieces &rows, bool expand_own, u32 *progress) {
    const Cast kind = {p.hidden, p.x_dtype, p.wire_scale_type, (u32)p.scale_stride};
    char *next = rows.count ? row_target(p, rows.first, expand_own) : nullptr;
    char *target = nullptr;
    char *scale_target = nullptr;
    run_ring(
        ring, rows.count, rows,
        [&](u32 item) {
            target = next;
            scale_target = cast_scale_target(p, rows.token(item), expand_own);
            if (item + 1 < rows.count) next = row_target(p, rows.token(item + 1), expand_own);
        },
        [&](u32 item, char *stage) {
            char *cast = stage + rows.row_bytes, *scales = cast + p.row_bytes;
            cast_row(kind, stage, cast, scales);
            ptx::fence_proxy_async_shared();
            __syncwarp();
            if (target) ptx::bulk_store(target, cast, p.row_bytes);
            if (scale_target) ptx::bulk_store(scale_target, scales, p.scale_stride);
            if (!expand_own) return;
            i32 place = own_place(p, rows.token(item));
            for (u32 mask = __ballot_sync(FULL, place >= 0); mask; mask &= mask - 1)
                store_scales(p, scales, (u64)__shfl_sync(FULL, place, __ffs((i32)mask) - 1), lane_id(), WARP);
        },
        [&](u32 done) {
            if (progress && lane_id() == 0) ptx::raise_release_shared(progress, done);
        });
}

} // namespace ep
