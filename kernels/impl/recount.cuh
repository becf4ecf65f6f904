// By expert, where more rows may be sent to a rank than fit: the places of expert rows follow from the rows that do fit, and
// how many of those go to each expert only their source can tell. It tells in a second exchange, made only where some
// rank overflows, which all ranks see alike.
#pragma once
#include "outputs.cuh"

namespace ep {

// All threads.
__device__ inline bool link_overflows(const DispatchParams &p, const i32 *matrix) {
    u32 columns = count_columns(p);
    bool over = false;
    for (u32 d = warp_id(); d < p.comm.ranks; d += blockDim.x / WARP) {
        i32 rows = 0;
        for (u32 s = lane_id(); s < p.comm.ranks; s += WARP) rows += is_alive(p.comm, s) ? matrix[(u64)s * columns + d] : 0;
        over = over || (u32)ptx::warp_sum(rows) > p.max_recv_rows;
    }
    return __syncthreads_or(over) != 0;
}

// Whether the row that a pair shares has found room. All lanes.
__device__ __forceinline__ bool survives(const DispatchParams &p, const Pair &pair, i32 id, u32 rank) {
    i32 row = pair.valid ? at<const i32>(p.positions)[pair.index] : -1;
    return __shfl_sync(FULL, row, leading_lane(pair, id, rank)) >= 0 && id >= 0;
}

// Gives rows their positions and counts again, now only what fits. Keeps what was sent here, of which `matrix`, the first
// exchange's, tells. All threads; ends with a barrier.
__device__ inline void recount(const DispatchParams &p, const i32 *matrix, const Histograms &h, Tokens tokens) {
    if (blockIdx.x == 0 && warp_id() == 0) {
        Received r = sum_received(p, matrix);
        sum_experts(p, matrix, r, true, false);
        if (lane_id() == 0) {
            at<HandleRecord>(p.record)->sent_rows = r.true_rows;
            at<HandleRecord>(p.record)->sent_expert_rows = r.true_expert_rows;
        }
    }
    each_group(p, h, tokens, [&](const Pair &pair, i32 id, u32 rank) { assign_row(p, h, pair, id, rank); });
    __syncthreads();
    clear_histograms(p, h);
    __syncthreads();
    each_group(p, h, tokens, [&](const Pair &pair, i32 id, u32 rank) {
        bool here = survives(p, pair, id, rank), leads = leads_destination(pair, id, rank);
        if (here && leads) atomicAdd(&h.ranks[warp_id() * p.comm.ranks + rank], 1);
        if (here) atomicAdd(&h.experts[warp_id() * p.num_experts + id], 1);
    });
    __syncthreads();
}

__device__ inline void place_survivors(const DispatchParams &p, const Histograms &h, Tokens tokens) {
    each_group(p, h, tokens, [&](const Pair &pair, i32 id, u32 rank) { assign_place(p, h, pair, id, survives(p, pair, id, rank)); });
}

} // namespace ep
