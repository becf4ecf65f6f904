// The rows between an expert's last row and its aligned end, which become zero: one list over all local experts, from which any
// warp of any block takes some when it has nothing better to do.
#pragma once
#include "../ptx/bulk.cuh"
#include "outputs.cuh"

namespace ep {

constexpr u32 PADS_AT_ONCE = 8;         // that a warp takes: little beside a row's copies, but few turns at one counter

// In shared memory, of each local expert.
struct Pads {
    u32 *rows, *pads;
};

__device__ __forceinline__ Pads make_pads(const DispatchParams &p, u32 *words) { return {words, words + p.local_experts}; }

// All threads; the caller adds the barrier.
__device__ __forceinline__ void count_pads(const DispatchParams &p, const i32 *matrix, const Pads &pads) {
    for (u32 l = threadIdx.x; l < p.local_experts; l += blockDim.x) {
        u32 n = (u32)rows_of_local(p, matrix, l);
        pads.rows[l] = n;
        pads.pads[l] = round_up(n, p.alignment) - n;
    }
}

// Pads that follow each other.
struct PadRun {
    u32 row, count;
};

// The pad of this number and those behind it of its expert; none behind the last. One warp.
__device__ inline PadRun find_pads(const DispatchParams &p, const Pads &pads, u32 number) {
    u32 rows = 0, before = 0; // of earlier experts: rows with their pads, pads
    for (u32 base = 0; base < p.local_experts; base += WARP) {
        u32 l = base + lane_id(), here = l < p.local_experts ? pads.pads[l] : 0;
        u32 end = sum_to_lane(here + (l < p.local_experts ? pads.rows[l] : 0)), pads_end = sum_to_lane(here);
        u32 found = __ballot_sync(FULL, number < before + pads_end);
        if (found) {
            u32 count = before + pads_end - number, row = rows + end - count, lane = __ffs((i32)found) - 1;
            return {__shfl_sync(FULL, row, lane), __shfl_sync(FULL, count, lane)};
        }
        rows += __shfl_sync(FULL, end, WARP - 1);
        before += __shfl_sync(FULL, pads_end, WARP - 1);
    }
    return {0, 0};
}

// `zeros`: zeroed shared memory, `zero_bytes` long. One warp.
__device__ __forceinline__ void fill_pad(const DispatchParams &p, u32 row, const char *zeros, u32 zero_bytes) {
    char *to = at<char>(p.out.x + (u64)row * p.out.x_stride);
    for (u32 from = lane_id() * zero_bytes; from < p.row_bytes; from += WARP * zero_bytes) ptx::bulk_store(to + from, zeros, min(zero_bytes, p.row_bytes - from));
    if (p.scale_bytes) {
        u64 scales = p.out.scales + (u64)row * p.out.scale_row_stride;
        for (u32 i = lane_id(); i < p.scale_bytes / 4; i += WARP) *at<u32>(scales + i * p.out.scale_col_stride) = 0;
        for (u32 i = p.scale_bytes / 4 * 4 + lane_id(); i < p.scale_bytes; i += WARP) at<u8>(scales)[i] = 0;
    }
    if (lane_id() != 0) return;
    at<i32>(p.out.ids)[row] = -1;
    at<float>(p.out.weights)[row] = 0.0f;
    at<i64>(p.out.source)[row] = -1;
}

// Takes pads as long as there are any. `taken`: how many the rank has given away.
__device__ inline void fill_pads(const DispatchParams &p, const Pads &pads, u32 *taken, const char *zeros, u32 zero_bytes) {
    for (bool more = p.alignment > 1; more;) {
        u32 number = lane_id() == 0 ? ptx::take_relaxed_gpu(taken, PADS_AT_ONCE) : 0;
        number = __shfl_sync(FULL, number, 0);
        for (u32 left = PADS_AT_ONCE; left;) {
            PadRun run = find_pads(p, pads, number);
            more = run.count != 0;
            if (!more) break;
            u32 n = min(run.count, left);
            for (u32 i = 0; i < n && run.row + i < p.out.rows; i++) fill_pad(p, run.row + i, zeros, zero_bytes);
            number += n;
            left -= n;
        }
    }
    ptx::bulk_commit();
    ptx::bulk_wait<0>();
}

} // namespace ep
