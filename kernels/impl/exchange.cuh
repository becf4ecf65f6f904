// The count exchange and the prefix sums over ranks and blocks that follow from it.
#pragma once
#include "../comm/signal.cuh"
#include "../comm/wait.cuh"
#include "routing.cuh"
#include "warp_scan.cuh"

namespace ep {

__device__ __forceinline__ u32 count_columns(const DispatchParams &p) { return p.comm.ranks + p.num_experts; }

// The region in `holder`'s memory that takes the counts of exchange `number`.
__device__ __forceinline__ i32 *count_row(const DispatchParams &p, u32 holder, u64 number, u32 source) {
    u64 region = p.count_regions + (number & p.count_region_mask) * p.count_region_bytes;
    return at<i32>(peer_base(p.comm, holder) + region) + (u64)source * count_columns(p);
}

// The last block to count: this rank's row goes to every peer, then the signal.
__device__ inline void publish_counts(const DispatchParams &p, const OperationState &op, u64 number) {
    u32 columns = count_columns(p);
    for (u32 c = threadIdx.x; c < columns; c += blockDim.x) {
        i32 total = (i32)ptx::load_relaxed_gpu(at<const u32>(p.totals) + c);
        ptx::store_relaxed_gpu(at<u32>(p.totals) + c, 0); // for the next operation
        for (u32 peer = 0; peer < p.comm.ranks; peer++)
            if (is_alive(p.comm, peer)) count_row(p, peer, number, p.comm.rank)[c] = total;
    }
    __syncthreads();
    signal_peers(p.comm, COUNTS, number, signal_value(p.comm, op.epoch));
}

__device__ __forceinline__ u32 round_up(u32 v, u32 to) { return to > 1 ? (v + to - 1) / to * to : v; }

// Where the experts of one rank begin among each other: sizes [first, end) become what lies before them. One warp.
__device__ inline void scan_sizes(i32 *sizes, u32 first, u32 end) {
    i32 carried = 0;
    for (u32 base = first; base < end; base += WARP) {
        u32 i = base + lane_id();
        i32 size = i < end ? sizes[i] : 0, sum = sum_to_lane(size);
        if (i < end) sizes[i] = carried + sum - size;
        carried += __shfl_sync(FULL, sum, WARP - 1);
    }
}

// Bases of this block's rows at every destination: earlier ranks, then earlier blocks. All threads; the caller adds the
// barrier.
__device__ inline void compute_rank_bases(const DispatchParams &p, const i32 *matrix, const Histograms &h) {
    u32 columns = count_columns(p), me = p.comm.rank, warps = blockDim.x / WARP;
    for (u32 d = warp_id(); d < p.comm.ranks; d += warps) {
        i32 sum = 0;
        for (u32 s = lane_id(); s < me; s += WARP) sum += is_alive(p.comm, s) ? matrix[(u64)s * columns + d] : 0;
        for (u32 b = lane_id(); b < blockIdx.x; b += WARP) sum += block_counts(p, 0, b)[d];
        sum = ptx::warp_sum(sum);
        if (lane_id() == 0) h.rank_base[d] = sum;
    }
}

// Bases of its expert rows: earlier experts of the destination, earlier ranks, earlier blocks. As above, with barriers
// inside.
__device__ inline void compute_expert_bases(const DispatchParams &p, const i32 *matrix, const Histograms &h, u32 round) {
    u32 columns = count_columns(p), me = p.comm.rank, warps = blockDim.x / WARP;
    const u32 *order = at<const u32>(p.expert_order), *rank_first = at<const u32>(p.rank_first);
    for (u32 i = threadIdx.x; i < p.num_experts; i += blockDim.x) {
        u32 e = __ldg(order + i);
        i32 before = 0, total = 0;
        for (u32 s = 0; s < p.comm.ranks; s++) {
            i32 n = is_alive(p.comm, s) ? matrix[(u64)s * columns + p.comm.ranks + e] : 0;
            if (s < me) before += n;
            total += n;
        }
        h.expert_base[e] = before;
        h.expert_start[i] = (i32)round_up((u32)total, p.alignment);
    }
    __syncthreads();
    // A warp adds whole rows of earlier blocks, all their words at once. The last warps have the fewest.
    for (u32 d = warps - 1 - warp_id(); d < p.comm.ranks; d += warps) scan_sizes(h.expert_start, __ldg(rank_first + d), __ldg(rank_first + d + 1));
    for (u32 b = warp_id(); b < blockIdx.x; b += warps)
#pragma unroll 8
        for (u32 e = lane_id(); e < p.num_experts; e += WARP) {
            i32 n = block_counts(p, round, b)[p.comm.ranks + e];
            if (n) atomicAdd(&h.expert_base[e], n);
        }
    __syncthreads();
    for (u32 i = threadIdx.x; i < p.num_experts; i += blockDim.x) h.expert_base[__ldg(order + i)] += h.expert_start[i];
}

} // namespace ep
