// The rows between an expert's last row and its aligned end, which become zero: one list over all local experts, from which any
// warp of any block takes some when it has nothing better to do.
#pragma once
#include "../ptx/bulk.cuh"
#include "outputs.cuh"

namespace ep {

constexpr u32 PADS_AT_ONCE = 4;         // that a warp takes: little beside a row's copies, but few turns at one counter

// In shared memory: for each local expert how many pads come before its own, and what makes a row of a pad's number.
struct Pads {
    u32 *before, *shift;
};

__device__ __forceinline__ Pads make_pads(const DispatchParams &p, u32 *words) { return {words, words + p.local_experts}; }

// One warp. The number of all pads.
__device__ inline u32 list_pads(const DispatchParams &p, const i32 *matrix, const Pads &pads) {
    u32 rows = 0, count = 0; // of earlier experts, aligned
    for (u32 base = 0; base < p.local_experts; base += WARP) {
        u32 l = base + lane_id(), n = (u32)rows_of_local(p, matrix, l), size = round_up(n, p.alignment), end = size, pads_end = size - n;
        for (u32 d = 1; d < WARP; d *= 2) {
            u32 below = __shfl_up_sync(FULL, end, d), pads_below = __shfl_up_sync(FULL, pads_end, d);
            if (lane_id() < d) continue;
            end += below;
            pads_end += pads_below;
        }
        u32 first = count + pads_end - (size - n);
        if (l < p.local_experts) {
            pads.before[l] = first;
            pads.shift[l] = rows + end - size + n - first;
        }
        rows += __shfl_sync(FULL, end, WARP - 1);
        count += __shfl_sync(FULL, pads_end, WARP - 1);
    }
    return count;
}

// Where a pad lies. One warp.
__device__ __forceinline__ u32 pad_row(const DispatchParams &p, const Pads &pads, u32 number) {
    u32 expert = 0; // the last one whose pads begin at or below the number
    for (u32 base = 0; base < p.local_experts; base += WARP) {
        u32 l = base + lane_id();
        expert += __popc(__ballot_sync(FULL, l < p.local_experts && pads.before[l] <= number));
    }
    return number + pads.shift[expert - 1];
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
__device__ inline void fill_pads(const DispatchParams &p, const Pads &pads, u32 count, u32 *taken, const char *zeros, u32 zero_bytes) {
    while (count) {
        u32 first = lane_id() == 0 ? ptx::take_relaxed_gpu(taken, PADS_AT_ONCE) : 0;
        first = __shfl_sync(FULL, first, 0);
        if (first >= count) break;
        for (u32 i = first; i < min(first + PADS_AT_ONCE, count); i++) {
            u32 row = pad_row(p, pads, i);
            if (row < p.out.rows) fill_pad(p, row, zeros, zero_bytes);
        }
    }
    ptx::bulk_commit();
    ptx::bulk_wait<0>();
}

} // namespace ep
