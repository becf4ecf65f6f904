// Slotted combine, for the statistics: how many rows go to each rank and come from it. By a warp of the last block that
// would only wait.
#pragma once
#include "slot_push.cuh"

namespace ep {

__device__ __forceinline__ bool is_counting_warp() { return blockIdx.x == gridDim.x - 1 && warp_id() == 1; }

// Partial rows: one for each row that was received. Expert rows: one for each of its experts here, dropped or not.
template <Kind KIND> __device__ inline void count_slots_sent(const SlottedCombineParams &p) {
    for (u32 source = 0; source < p.comm.ranks; source++) {
        u32 rows = (u32)at<const i32>(p.kept.recv_counts)[source];
        if (KIND == Kind::EXACT) {
            const i32 *places = at<const i32>(p.kept.recv_positions) + (u64)source * p.max_tokens * p.num_topk;
            i32 here = 0;
#pragma unroll 4
            for (u32 i = lane_id(); i < rows * p.num_topk; i += WARP) here += places[i] != NO_EXPERT;
            rows = (u32)ptx::warp_sum(here);
        }
        if (lane_id() == 0) count_sent(p.comm, source, rows, p.row_bytes);
    }
}

// Of the tokens of this rank: partial rows, one for each of a token's ranks, or expert rows, one for each of its experts.
template <Kind KIND> __device__ inline void count_slots_received(const SlottedCombineParams &p, u32 tokens) {
    u32 per_group = WARP / p.num_topk, slot = lane_id() / p.num_topk;
    for (u32 base = 0; base < p.comm.ranks; base += WARP) {
        u32 rows = 0; // from rank base + lane
        for (u32 first = 0; first < tokens; first += per_group) {
            bool valid = slot < per_group && first + slot < tokens;
            i32 id = valid ? at<const i32>(p.kept.ids)[(u64)(first + slot) * p.num_topk + lane_id() % p.num_topk] : -1;
            u32 rank = id >= 0 ? expert_home(p.kept.expert_home, id).rank : FULL;
            u32 same = ptx::match_any(id >= 0 ? slot << 16 | rank : 1u << 31 | lane_id());
            bool counts = id >= 0 && (KIND == Kind::EXACT || (u32)__ffs((i32)same) - 1 == lane_id());
            for (u32 todo = __ballot_sync(FULL, counts); todo;) {
                u32 one = __shfl_sync(FULL, rank, __ffs((i32)todo) - 1), here = __ballot_sync(FULL, counts && rank == one);
                if (one == base + lane_id()) rows += __popc(here);
                todo &= ~here;
            }
        }
        if (base + lane_id() < p.comm.ranks) count_received(p.comm, base + lane_id(), rows, p.row_bytes);
    }
}

} // namespace ep
