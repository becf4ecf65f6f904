// How many rows cross, for the statistics: worked out from the counts that all ranks have exchanged. Each function is
// called by one warp.
#pragma once
#include "../comm/statistics.cuh"
#include "warp_scan.cuh"

namespace ep {

// Rows of `source` that find room at `dest`: its rows lie behind those of earlier ranks. `matrix`: of the handle, or, where
// is_alive has a say, of the exchange.
template <class Params> __device__ __forceinline__ u64 rows_between(const Params &p, const i32 *matrix, u32 source, u32 dest) {
    u32 columns = p.comm.ranks + p.num_experts;
    u64 before = 0;
    for (u32 s = 0; s < source; s++) before += is_alive(p.comm, s) ? (u32)matrix[(u64)s * columns + dest] : 0;
    u64 mine = is_alive(p.comm, source) ? (u32)matrix[(u64)source * columns + dest] : 0;
    return before >= p.max_recv_rows ? 0 : min(mine, p.max_recv_rows - before);
}

// What a dispatch sends.
__device__ inline void count_dispatch(const DispatchParams &p, const i32 *matrix) {
    for (u32 peer = lane_id(); peer < p.comm.ranks; peer += WARP) count_sent(p.comm, peer, rows_between(p, matrix, p.comm.rank, peer), p.wire_bytes);
    if (lane_id() == 0) counters(p.comm)->dispatches++;
}

// Partial rows that a combine gives back: one for each row of the dispatch that arrived.
__device__ inline void count_partials_sent(const CombineParams &p) {
    const i32 *matrix = at<const i32>(p.counts);
    for (u32 peer = lane_id(); peer < p.comm.ranks; peer += WARP) count_sent(p.comm, peer, rows_between(p, matrix, peer, p.comm.rank), p.row_bytes);
}

// ... and gets back.
__device__ inline void count_partials_received(const CombineParams &p) {
    const i32 *matrix = at<const i32>(p.counts);
    for (u32 peer = lane_id(); peer < p.comm.ranks; peer += WARP) count_received(p.comm, peer, rows_between(p, matrix, p.comm.rank, peer), p.row_bytes);
}

// Expert rows that an exact combine gives back: those below the capacity of the dispatch's outputs.
__device__ inline void count_expert_rows_sent(const CombineParams &p, u64 capacity) {
    const i32 *matrix = at<const i32>(p.counts);
    u32 columns = p.comm.ranks + p.num_experts, first = __ldg(at<const u32>(p.rank_first) + p.comm.rank);
    u64 start = 0;
    for (u32 base = 0; base < p.local_experts; base += WARP) {
        u32 l = base + lane_id();
        bool present = l < p.local_experts;
        const i32 *column = matrix + p.comm.ranks + (present ? __ldg(at<const u32>(p.expert_order) + first + l) : 0);
        u64 total = 0;
        for (u32 s = 0; s < p.comm.ranks; s++) total += present ? (u32)column[(u64)s * columns] : 0;
        u64 size = (total + p.alignment - 1) / p.alignment * p.alignment, end = sum_to_lane(size);
        u64 at_row = start + end - size;
        for (u32 s = 0; s < p.comm.ranks; s++) {
            u64 n = present ? (u32)column[(u64)s * columns] : 0;
            u64 fit = at_row >= capacity ? 0 : min(n, capacity - at_row);
            at_row += n;
            i32 rows = ptx::warp_sum((i32)fit);
            if (lane_id() == 0) count_sent(p.comm, s, (u32)rows, p.row_bytes);
        }
        start += __shfl_sync(FULL, end, WARP - 1);
    }
}

} // namespace ep
