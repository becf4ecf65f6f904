// Slotted combine, on the expert's rank: the partial sum of every received row (by rank the caller's row, by expert the
// sum of its experts' rows, or each of them when EXACT) goes to a slot of the token's rank.
#pragma once
#include "../comm/arrival.cuh"
#include "../layout/slotted.cuh"
#include "combine_parts.cuh"

namespace ep {

// What one warp moves of a row at once: little, so that a few rows occupy every warp of the device.
constexpr u32 SLOT_UNITS = 2, SLOT_PIECE = SLOT_UNITS * UNIT;

enum class Kind { BY_RANK, REDUCED, EXACT };

__device__ __forceinline__ u32 slot_pieces(const SlottedCombineParams &p) { return div_up(p.row_bytes, SLOT_PIECE); }

__device__ __forceinline__ u64 slot_row(const SlottedCombineParams &p, u32 rank, u32 slot) { return peer_base(p.comm, rank) + p.rows + (u64)slot * p.row_bytes; }

// K floats for each slot.
__device__ __forceinline__ u64 slot_carried(const SlottedCombineParams &p, u32 rank, u32 slot) { return peer_base(p.comm, rank) + p.side_carried + (u64)slot * p.num_topk * 4; }

// Warps take jobs in this order, so that neighbours in a row go to different SMs.
__device__ __forceinline__ u32 slot_warp() { return warp_id() * gridDim.x + blockIdx.x; }
__device__ __forceinline__ u32 slot_warps() { return gridDim.x * (blockDim.x / WARP); }

// A row of a slab of received rows.
struct SlabRow {
    u32 source, within;
    bool exists;
};

__device__ __forceinline__ u64 side_index(const SlottedCombineParams &p, const SlabRow &r) { return (u64)r.source * p.max_tokens + r.within; }

// The row `number` of those that `sources` ranks have sent here, beginning with the next rank, this one last.
__device__ __forceinline__ SlabRow find_row(const SlottedCombineParams &p, u32 number, u32 sources) {
    for (u32 base = 0; base < sources; base += WARP) {
        u32 source = p.comm.rank + 1 + base + lane_id();
        if (source >= p.comm.ranks) source -= p.comm.ranks;
        u32 count = base + lane_id() < sources ? (u32)at<const i32>(p.kept.recv_counts)[source] : 0, sum = count;
        for (u32 d = 1; d < min(sources - base, WARP); d *= 2) {
            u32 below = __shfl_up_sync(FULL, sum, d);
            if (lane_id() >= d) sum += below;
        }
        u32 holders = __ballot_sync(FULL, number < sum);
        if (holders) {
            u32 lane = __ffs((i32)holders) - 1;
            return {__shfl_sync(FULL, source, lane), number - __shfl_sync(FULL, sum - count, lane), true};
        }
        number -= __shfl_sync(FULL, sum, WARP - 1);
    }
    return {0, 0, false};
}

// Where an expert row lies, by its position after expansion.
__device__ __forceinline__ u64 expert_row(const SlottedCombineParams &p, i32 position) {
    u32 slab = (u32)position / (u32)p.slab_rows;
    return p.x + slab * p.slot_stride + ((u32)position - slab * p.slab_rows) * p.x_stride;
}

// Per lane k: position of the row's k-th expert row, or a negative Place.
__device__ __forceinline__ i32 expert_position(const SlottedCombineParams &p, const SlabRow &r) {
    return lane_id() < p.num_topk ? at<const i32>(p.kept.recv_positions)[side_index(p, r) * p.num_topk + lane_id()] : (i32)NO_EXPERT;
}

// The rows that make one partial sum: by rank the caller's own, if it was handed out.
template <Kind KIND> __device__ __forceinline__ Terms partial_terms(const SlottedCombineParams &p, const SlabRow &r, i32 position) {
    if constexpr (KIND == Kind::BY_RANK) {
        bool here = r.within < p.slab_rows;
        float weight = p.row_weights && here ? __ldg(at<const float>(p.row_weights) + r.source * p.slab_rows + r.within) : 0.0f;
        return {here, p.x + r.source * p.slot_stride + r.within * p.x_stride, weight};
    } else {
        bool of_dispatch = p.flags & WEIGHTS_OF_DISPATCH && lane_id() < p.num_topk;
        float weight = of_dispatch ? at<const float>(p.kept.recv_weights)[side_index(p, r) * p.num_topk + lane_id()] : 0.0f;
        return expert_terms(p, position, expert_row(p, position), weight);
    }
}

// A piece of a partial sum, its first rows on their way.
template <class Row, Kind KIND> struct Partial {
    Terms terms;
    uint4 v[KIND == Kind::BY_RANK ? 1 : 4][SLOT_UNITS];

    __device__ __forceinline__ void fetch(const SlottedCombineParams &p, const SlabRow &r, i32 position, u32 offset) {
        terms = partial_terms<KIND>(p, r, position);
        fetch_terms<Row>(terms, 0, offset + lane_id() * 16, p.row_bytes, v);
    }
    // By rank without weights the bytes of the row, whatever they are; zero for a row that was not handed out.
    __device__ __forceinline__ void take(const SlottedCombineParams &p, u32 offset, uint4 (&out)[SLOT_UNITS]) {
        if (KIND != Kind::BY_RANK || p.row_weights) return sum_fetched<Row>(is_weighted(p), terms, v, offset + lane_id() * 16, p.row_bytes, out);
#pragma unroll
        for (u32 u = 0; u < SLOT_UNITS; u++) out[u] = terms.count ? v[0][u] : make_uint4(0, 0, 0, 0);
    }
};

__device__ __forceinline__ void store_piece(const SlottedCombineParams &p, u64 row, u32 offset, const uint4 (&v)[SLOT_UNITS]) {
#pragma unroll
    for (u32 u = 0; u < SLOT_UNITS; u++) {
        u32 place = offset + u * UNIT + lane_id() * 16;
        if (place < p.row_bytes) ptx::store_row16(at<char>(row + place), v[u]);
    }
}

// Every expert row of a received row to the slot of its k, four in flight; zeros for a row that was dropped.
template <class Row> __device__ __forceinline__ void push_exact(const SlottedCombineParams &p, u32 rank, u32 first_slot, i32 position, u32 offset) {
    u64 row = position >= 0 ? expert_row(p, position) : 0;
    float weight = p.row_weights && position >= 0 ? __ldg(at<const float>(p.row_weights) + position) : 0.0f;
    for (u32 left = __ballot_sync(FULL, position != NO_EXPERT); left;) {
        uint4 v[4][SLOT_UNITS];
        u32 k[4];
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            k[j] = left ? __ffs((i32)left) - 1 : WARP;
            left &= left - 1;
            u64 from = __shfl_sync(FULL, row, k[j] & 31);
#pragma unroll
            for (u32 u = 0; u < SLOT_UNITS; u++) {
                u32 place = offset + u * UNIT + lane_id() * 16;
                bool present = k[j] < WARP && from && place < p.row_bytes;
                v[j][u] = present ? ptx::load_row16(at<const char>(from + place)) : make_uint4(0, 0, 0, 0);
            }
        }
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            if (k[j] == WARP) continue;
            float w = __shfl_sync(FULL, weight, k[j]);
            if (p.row_weights && __shfl_sync(FULL, row, k[j])) {
#pragma unroll
                for (u32 u = 0; u < SLOT_UNITS; u++) {
                    Sum<Row> sum;
                    sum.clear();
                    sum.add_weighted(v[j][u], w);
                    v[j][u] = sum.rounded();
                }
            }
            store_piece(p, slot_row(p, rank, first_slot + k[j]), offset, v[j]);
        }
    }
}

// One warp's piece of one received row.
template <class Row, Kind KIND> struct Push {
    SlabRow row;
    u32 offset, slot;
    i32 position;            // per lane (by expert)
    Partial<Row, KIND> partial;

    // Reads what there is to push; nothing is written yet.
    __device__ __forceinline__ void fetch(const SlottedCombineParams &p, u32 job, u32 sources) {
        u32 pieces = slot_pieces(p);
        row = find_row(p, job / pieces, sources);
        if (!row.exists) return;
        offset = job % pieces * SLOT_PIECE;
        slot = (u32)at<const i32>(p.kept.recv_slots)[side_index(p, row)];
        if constexpr (KIND != Kind::BY_RANK) position = expert_position(p, row);
        if constexpr (KIND != Kind::EXACT) partial.fetch(p, row, position, offset);
    }

    __device__ __forceinline__ void send(const SlottedCombineParams &p) {
        if constexpr (KIND == Kind::EXACT) {
            push_exact<Row>(p, row.source, slot - slot % p.num_topk, position, offset);
        } else {
            uint4 v[SLOT_UNITS];
            partial.take(p, offset, v);
            store_piece(p, slot_row(p, row.source, slot), offset, v);
        }
        if (p.carried && offset == 0 && lane_id() < p.num_topk) at<float>(slot_carried(p, row.source, slot))[lane_id()] = carried(p);
    }

    __device__ __forceinline__ float carried(const SlottedCombineParams &p) const {
        const float *values = at<const float>(p.carried);
        if constexpr (KIND != Kind::BY_RANK) return position >= 0 ? __ldg(values + position) : 0.0f;
        return row.within < p.slab_rows ? __ldg(values + (row.source * p.slab_rows + row.within) * p.num_topk + lane_id()) : 0.0f;
    }
};

// All rows of `sources` ranks, this warp's first piece of which was fetched.
template <class Row, Kind KIND> __device__ __forceinline__ void push_rows(const SlottedCombineParams &p, Push<Row, KIND> &push, u32 sources) {
    for (u32 job = slot_warp(); push.row.exists;) {
        push.send(p);
        job += slot_warps();
        push.fetch(p, job, sources);
    }
}

} // namespace ep
