// Dispatch with an FP8 cast: rows are read, cast in shared memory and sent with their scales.
#pragma once
#include "cast.cuh"
#include "expand.cuh"
#include "send_rows.cuh"

namespace ep {

// The window row to which a lane sends a token's scales, or null.
__device__ __forceinline__ char *cast_scale_target(const DispatchParams &p, const Sending &sending, const Sent &s) {
    if (s.row < 0) return nullptr;
    u32 rank = sending.homes[s.id].rank;
    if (sending.expand_own && rank == p.comm.rank) return nullptr;
    return at<char>(peer_base(p.comm, rank) + p.scales + (u64)s.row * p.scale_stride);
}

// The expert row of a lane's pair on this rank, or -1.
__device__ __forceinline__ i32 own_place(const DispatchParams &p, const Sending &sending, const Sent &s) {
    return s.id >= 0 && sending.homes[s.id].rank == p.comm.rank && (u64)s.place < p.out.rows ? s.place : -1;
}

// Like send_rows for whole rows. A stage holds the row as it was given, then the FP8 row, then its scales.
__device__ inline void send_cast_rows(const DispatchParams &p, const Ring &ring, const RowPieces &rows, const Sending &sending) {
    const Cast kind = {p.hidden, p.x_dtype, p.wire_scale_type, (u32)p.scale_stride};
    Sent next = rows.count ? load_sent(p, rows.first, sending.expand_own) : Sent{-1, -1, -1};
    char *target = nullptr, *scale_target = nullptr;
    i32 place = -1;
    run_ring(
        ring, rows.count, rows,
        [&](u32 item) {
            target = row_target(p, sending, next);
            scale_target = cast_scale_target(p, sending, next);
            place = sending.expand_own ? own_place(p, sending, next) : -1;
            if (item + 1 < rows.count) next = load_sent(p, rows.token(item + 1), sending.expand_own);
        },
        [&](u32 item, char *stage) {
            char *cast = stage + rows.row_bytes, *scales = cast + p.row_bytes;
            cast_row(kind, stage, cast, scales);
            ptx::fence_proxy_async_shared();
            __syncwarp();
            if (target) ptx::bulk_store(target, cast, p.row_bytes);
            if (scale_target) ptx::bulk_store(scale_target, scales, p.scale_stride);
            if (!sending.expand_own) return;
            for (u32 mask = __ballot_sync(FULL, place >= 0); mask; mask &= mask - 1)
                store_scales(p, scales, (u64)__shfl_sync(FULL, place, __ffs((i32)mask) - 1), lane_id(), WARP);
        },
        [&](u32 done) {
            tell_sent(p, sending, rows, warp_id(), done);
        });
}

} // namespace ep
