// Slotted combine, for the statistics: how many rows go to each rank and come from it, as the dispatch has left it. By a warp
// of the last block that would only wait.
#pragma once
#include "slot_push.cuh"

namespace ep {

__device__ __forceinline__ bool is_counting_warp() { return blockIdx.x == gridDim.x - 1 && warp_id() == 1; }

// Partial rows: one for each row that was received. Expert rows: one for each of its experts here, dropped or not.
template <Kind KIND> __device__ __forceinline__ void count_slots_sent(const SlottedCombineParams &p) {
    const u32 *counts = at<const u32>(p.kept.recv_counts) + (KIND == Kind::EXACT ? p.comm.ranks : 0);
    for (u32 source = lane_id(); source < p.comm.ranks; source += WARP) count_sent(p.comm, source, counts[source], p.row_bytes);
}

// Of the tokens of this rank: partial rows, one for each of a token's ranks, or expert rows, one for each of its experts.
template <Kind KIND> __device__ __forceinline__ void count_slots_received(const SlottedCombineParams &p) {
    const u32 *counts = at<const u32>(p.kept.sent_counts);
    bool exact = KIND == Kind::EXACT;
    for (u32 i = lane_id(); i < (exact ? p.num_experts : p.comm.ranks); i += WARP)
        count_received(p.comm, exact ? expert_home(p.kept.expert_home, i).rank : i, counts[exact ? p.comm.ranks + i : i], p.row_bytes);
}

} // namespace ep
