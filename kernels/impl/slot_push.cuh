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

__device__ __forceinline__ u64 slot_row(const SlottedCombineParams &p, u32 rank, u32 slot) { return peer_base(p.comm, rank) + p.rows + (u64)slot * p.row_bytes; }

// K floats for each slot.
__device__ __forceinline__ u64 slot_carried(const SlottedCombineParams &p, u32 rank, u32 slot) { return peer_base(p.comm, rank) + p.side_carried + (u64)slot * p.num_topk * 4; }

// Pieces of rows are the jobs of warps: of which row, and where in it.
struct SlotJob {
    u32 row, offset;
};

__device__ __forceinline__ SlotJob slot_job(const SlottedCombineParams &p, u32 job) {
    u32 row = divide(job, p.pieces, p.piece_magic);
    return {row, (job - row * p.pieces) * SLOT_PIECE};
}

// The last warp of a block keeps the books; the others are its workers.
__device__ __forceinline__ u32 worker_threads() { return blockDim.x - WARP; }
__device__ __forceinline__ bool is_worker() { return threadIdx.x < worker_threads(); }

// Workers take jobs in this order, so that neighbours in a row go to different SMs.
__device__ __forceinline__ u32 first_job() { return warp_id() * gridDim.x + blockIdx.x; }
__device__ __forceinline__ u32 job_step() { return gridDim.x * (worker_threads() / WARP); }

// A row of a slab of received rows.
struct SlabRow {
    u32 source, within;
};

__device__ __forceinline__ u32 side_index(const SlottedCombineParams &p, const SlabRow &r) { return r.source * p.max_tokens + r.within; }

// The most rows that a rank has sent here, as asked for by the lanes of a warp.
__device__ __forceinline__ u32 ask_for_count(const SlottedCombineParams &p) { return lane_id() < p.comm.ranks ? ptx::load_ahead(at<const u32>(p.kept.recv_counts) + lane_id()) : 0; }
EP_SELDOM u32 most_of_many(const SlottedCombineParams &p, u32 most) {
    for (u32 rank = WARP + lane_id(); rank < p.comm.ranks; rank += WARP) most = max(most, at<const u32>(p.kept.recv_counts)[rank]);
    return most;
}
__device__ __forceinline__ u32 most_rows(const SlottedCombineParams &p, u32 asked) { return ptx::warp_max(p.comm.ranks > WARP ? most_of_many(p, asked) : asked); }

// Where an expert row lies, by its position after expansion.
__device__ __forceinline__ u64 expert_row(const SlottedCombineParams &p, i32 position) {
    u32 slab = divide((u32)position, (u32)p.slab_rows, p.slab_magic);
    return p.x + slab * p.slot_stride + ((u32)position - slab * (u32)p.slab_rows) * p.x_stride;
}

// Per lane k: position of a received row's k-th expert row, or a negative Place; the weight that its dispatch gave it.
struct LaneExpert {
    i32 position;
    float weight;
};

__device__ __forceinline__ LaneExpert ask_for_expert(const SlottedCombineParams &p, const SlabRow &r) {
    LaneExpert e = {NO_EXPERT, 1.0f};
    if (lane_id() >= p.num_topk) return e;
    u64 index = (u64)side_index(p, r) * p.num_topk + lane_id();
    e.position = (i32)ptx::load_ahead(at<const u32>(p.kept.recv_positions) + index);
    if (p.flags & WEIGHTS_OF_DISPATCH) e.weight = __uint_as_float(ptx::load_ahead(at<const u32>(p.kept.recv_weights) + index));
    return e;
}

// Weight of the caller's row, if it has given any.
__device__ __forceinline__ float given_weight(const SlottedCombineParams &p, bool here, u32 row, float otherwise) {
    return p.row_weights && here ? __ldg(at<const float>(p.row_weights) + row) : otherwise;
}

// The bytes of a row that a lane has in a piece; where the row ends before, its last ones again.
__device__ __forceinline__ void load_piece(const SlottedCombineParams &p, u64 row, u32 offset, uint4 (&v)[SLOT_UNITS]) {
#pragma unroll
    for (u32 u = 0; u < SLOT_UNITS; u++) v[u] = ptx::load_row16(at<const char>(row + min(offset + u * UNIT + lane_id() * 16, p.row_bytes - 16)));
}

__device__ __forceinline__ void store_piece(const SlottedCombineParams &p, u64 row, u32 offset, const uint4 (&v)[SLOT_UNITS]) {
#pragma unroll
    for (u32 u = 0; u < SLOT_UNITS; u++) {
        u32 place = offset + u * UNIT + lane_id() * 16;
        if (place < p.row_bytes) ptx::store_row16(at<char>(row + place), v[u]);
    }
}

__device__ __forceinline__ void clear_piece(uint4 (&v)[SLOT_UNITS]) {
#pragma unroll
    for (u32 u = 0; u < SLOT_UNITS; u++) v[u] = make_uint4(0, 0, 0, 0);
}

// A piece of a sum. Rows without weights have weight 1, which changes nothing.
template <class Row> struct PieceSum {
    Sum<Row> sum[SLOT_UNITS];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (u32 u = 0; u < SLOT_UNITS; u++) sum[u].clear();
    }
    __device__ __forceinline__ void add(const uint4 (&v)[SLOT_UNITS], float weight) {
#pragma unroll
        for (u32 u = 0; u < SLOT_UNITS; u++) sum[u].add_weighted(v[u], weight);
    }
    __device__ __forceinline__ void round(uint4 (&out)[SLOT_UNITS]) const {
#pragma unroll
        for (u32 u = 0; u < SLOT_UNITS; u++) out[u] = sum[u].rounded();
    }
};

// A piece of a partial sum: by expert of the rows that `lanes` hold, in their order, the first six on their way (eight do not fit in the registers).
template <class Row, Kind KIND> struct Partial {
    static constexpr u32 TERMS = KIND == Kind::BY_RANK ? 1 : 6;
    u32 lanes, offset;
    u64 row;                 // per lane (by expert)
    float weight;            // per lane (by expert)
    uint4 v[TERMS][SLOT_UNITS];

    __device__ __forceinline__ void fetch(const SlottedCombineParams &p, const SlabRow &r, const LaneExpert &e, u32 at_offset) {
        bool has;
        if constexpr (KIND == Kind::BY_RANK) {
            has = r.within < p.slab_rows;
            row = p.x + r.source * p.slot_stride + r.within * p.x_stride;
            weight = given_weight(p, has, r.source * (u32)p.slab_rows + r.within, 1.0f);
            lanes = has;
        } else {
            has = e.position >= 0;
            row = expert_row(p, has ? e.position : 0);
            weight = given_weight(p, has, (u32)e.position, e.weight);
            lanes = __ballot_sync(FULL, has);
        }
        offset = at_offset;
        load(p, lanes);
    }
    __device__ __forceinline__ void load(const SlottedCombineParams &p, u32 left) {
#pragma unroll
        for (u32 j = 0; j < TERMS; j++) {
            if (!left) break;
            load_piece(p, TERMS == 1 ? row : __shfl_sync(FULL, row, __ffs((i32)left) - 1), offset, v[j]);
            left &= left - 1;
        }
    }
    // By rank without weights the bytes of the row, whatever they are; zero for a row that was not handed out.
    __device__ __forceinline__ void take(const SlottedCombineParams &p, uint4 (&out)[SLOT_UNITS]) {
        if (KIND == Kind::BY_RANK && !p.row_weights) {
#pragma unroll
            for (u32 u = 0; u < SLOT_UNITS; u++) out[u] = lanes ? v[0][u] : make_uint4(0, 0, 0, 0);
            return;
        }
        PieceSum<Row> sum;
        sum.clear();
        for (u32 left = lanes; left;) {
            if (left != lanes) load(p, left);
#pragma unroll
            for (u32 j = 0; j < TERMS; j++) {
                if (!left) break;
                sum.add(v[j], TERMS == 1 ? weight : __shfl_sync(FULL, weight, __ffs((i32)left) - 1));
                left &= left - 1;
            }
        }
        sum.round(out);
    }
};

// Every expert row of a received row to the slot of its k, four in flight; zeros for a row that was dropped.
template <class Row> __device__ __forceinline__ void push_exact(const SlottedCombineParams &p, u32 rank, u32 first_slot, i32 position, u32 offset) {
    u64 row = position >= 0 ? expert_row(p, position) : 0;
    float weight = given_weight(p, position >= 0, (u32)position, 1.0f);
    for (u32 left = __ballot_sync(FULL, position != NO_EXPERT); left;) {
        uint4 v[4][SLOT_UNITS];
        u32 batch = left;
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            if (!left) break;
            u64 from = __shfl_sync(FULL, row, __ffs((i32)left) - 1);
            left &= left - 1;
            if (from)
                load_piece(p, from, offset, v[j]);
            else
                clear_piece(v[j]);
        }
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            if (!batch) break;
            u32 k = __ffs((i32)batch) - 1;
            batch &= batch - 1;
            if (p.row_weights && __shfl_sync(FULL, row, k)) {
                PieceSum<Row> sum;
                sum.clear();
                sum.add(v[j], __shfl_sync(FULL, weight, k));
                sum.round(v[j]);
            }
            store_piece(p, slot_row(p, rank, first_slot + k), offset, v[j]);
        }
    }
}

// The carried weights of a received row to its slot. One warp.
template <Kind KIND> EP_SELDOM void push_carried(const SlottedCombineParams &p, SlabRow row, u32 slot, i32 position) {
    if (lane_id() >= p.num_topk) return;
    const float *values = at<const float>(p.carried);
    float v = 0.0f;
    if (KIND != Kind::BY_RANK && position >= 0) v = __ldg(values + position);
    if (KIND == Kind::BY_RANK && row.within < p.slab_rows) v = __ldg(values + (row.source * p.slab_rows + row.within) * p.num_topk + lane_id());
    at<float>(slot_carried(p, row.source, slot))[lane_id()] = v;
}

// One warp's piece of one received row.
template <class Row, Kind KIND> struct Push {
    SlabRow row;
    u32 slot, offset;
    bool exists;
    LaneExpert expert;
    Partial<Row, KIND> partial;
    uint4 sum[SLOT_UNITS];

    // Reads what there is to push; nothing is written yet. Row by row the ranks take turns, this one last: so it is known which
    // row it is, if it exists, before it is known how many there are.
    __device__ __forceinline__ void fetch(const SlottedCombineParams &p, u32 job, u32 sources) {
        SlotJob piece = slot_job(p, job);
        offset = piece.offset;
        row.within = sources > 1 ? piece.row / sources : piece.row;
        row.source = p.comm.rank + 1 + piece.row - row.within * sources;
        if (row.source >= p.comm.ranks) row.source -= p.comm.ranks;
        exists = sources && row.within < p.max_tokens;
        if (!exists) return;
        u32 count = ptx::load_ahead(at<const u32>(p.kept.recv_counts) + row.source);
        slot = ptx::load_ahead(at<const u32>(p.kept.recv_slots) + side_index(p, row));
        if (KIND != Kind::BY_RANK) expert = ask_for_expert(p, row);
        exists = row.within < count;
        if (KIND != Kind::EXACT && exists) partial.fetch(p, row, expert, offset);
    }

    __device__ __forceinline__ void make(const SlottedCombineParams &p) {
        if (KIND != Kind::EXACT && exists) partial.take(p, sum);
    }

    __device__ __forceinline__ void send(const SlottedCombineParams &p) {
        if (!exists) return;
        if constexpr (KIND == Kind::EXACT)
            push_exact<Row>(p, row.source, slot - slot % p.num_topk, expert.position, offset);
        else
            store_piece(p, slot_row(p, row.source, slot), offset, sum);
        if (p.carried && offset == 0) push_carried<KIND>(p, row, slot, expert.position);
    }
};

// From `job` on, where there is more than one job for each worker.
template <class Row, Kind KIND> EP_SELDOM void push_more(const SlottedCombineParams &p, u32 job, u32 jobs, u32 sources) {
    for (; job < jobs; job += job_step()) {
        Push<Row, KIND> push;
        push.fetch(p, job, sources);
        push.make(p);
        push.send(p);
    }
}

} // namespace ep
