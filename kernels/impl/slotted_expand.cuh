// Slotted dispatch by expert, receiving: each row goes from the window to the slab of each of its experts. The first
// row of every warp is on its way while the block adds up who sent how many to which expert.
#pragma once
#include "slotted_receive.cuh"
#include "slotted_rows.cuh"

namespace ep {

// In shared memory, once all rows have come.
struct SlabStarts {
    u32 *rows;               // [source]: how many it has sent
    u32 *begin;              // [source][local expert]: where the source's rows begin in the slab
    u32 *end;                // [local expert]

    // Of one source's rows.
    __device__ __forceinline__ u32 end_of(const SlottedDispatchParams &p, u32 source, u32 local) const {
        return source + 1 < p.comm.ranks ? begin[(source + 1) * p.local_experts + local] : end[local];
    }
};

__device__ __forceinline__ SlabStarts make_starts(const SlottedDispatchParams &p, u32 *shared) {
    return {shared, shared + p.comm.ranks, shared + p.comm.ranks * (1 + p.local_experts)};
}

// The caller adds the barrier.
__device__ __forceinline__ void find_starts(const SlottedDispatchParams &p, const Routing &r, const SlabStarts &starts, const Team &t) {
    for (u32 i = t.index; i < p.local_experts + p.comm.ranks; i += t.threads) {
        u32 sum = 0;
        if (i >= p.local_experts) {
            u32 source = i - p.local_experts;
            starts.rows[source] = received_count(p, r, source, 0);
            continue;
        }
#pragma unroll 8
        for (u32 source = 0; source < p.comm.ranks; source++) {
            u32 n = received_count(p, r, source, 1 + i);
            starts.begin[source * p.local_experts + i] = sum;
            sum += n;
        }
        starts.end[i] = sum;
    }
}

// A piece of a received row, or (number `pieces`) all that lies beside it.
struct ReceivedPiece {
    u32 source, within, number;
    u64 row;                 // in the window
    i32 id, position;        // of lane k
    uint4 v[PIECE_LOADS];    // beside the row: the first 512 bytes of its scales
    float weight;            // beside the row
    u32 slot;
};

// Unit `unit` of all that may have come: low positions of all sources first, a piece at a time.
__device__ __forceinline__ ReceivedPiece load_received(const SlottedDispatchParams &p, u32 unit, u32 pieces) {
    ReceivedPiece r;
    u64 base = own_base(p.comm);
    u32 row = divide(unit, pieces + 1, p.unit_magic);
    r.number = unit - row * (pieces + 1);
    r.within = divide(row, p.comm.ranks, p.ranks_magic);
    r.source = row - r.within * p.comm.ranks;
    r.row = (u64)r.source * p.max_tokens + r.within;
    bool mine = r.within < p.max_tokens && lane_id() < p.num_topk;
    u64 at_k = r.row * p.num_topk + lane_id();
    r.id = mine ? at<const i32>(base + p.side_ids)[at_k] : -1;
    r.position = mine ? at<const i32>(base + p.side_positions)[at_k] : -1;
    if (r.number == pieces) {
        r.weight = mine ? at<const float>(base + p.side_weights)[at_k] : 0.0f;
        r.slot = r.within < p.max_tokens ? at<const u32>(base + p.side_slots)[r.row] : 0;
        if (r.within < p.max_tokens && lane_id() * 16 < p.scale_stride) r.v[0] = ptx::load_row16(at<const char>(base + p.scales + r.row * p.scale_stride + lane_id() * 16));
        return r;
    }
#pragma unroll
    for (u32 j = 0; j < PIECE_LOADS; j++) {
        u32 at_byte = r.number * PIECE_BYTES + (j * WARP + lane_id()) * 16;
        if (r.within < p.max_tokens && at_byte < p.row_bytes) r.v[j] = ptx::load_row16(at<const char>(base + p.rows + r.row * p.row_bytes + at_byte));
    }
    return r;
}

// Where a lane's pair goes: the row within its expert's slab, or a Place.
__device__ __forceinline__ i32 place_within(const SlottedDispatchParams &p, const SlabStarts &starts, const ReceivedPiece &r) {
    if ((u32)r.id >= p.local_experts) return NO_EXPERT;
    u64 within = (u64)starts.begin[r.source * p.local_experts + r.id] + (u32)r.position;
    return within < p.out.rows ? (i32)within : DROPPED;
}

// Ids, weights, sources and scales of a row. One warp.
__device__ inline void expand_beside(const SlottedDispatchParams &p, const ReceivedPiece &r, i32 within) {
    u64 flat = (u64)r.id * p.out.rows + (u32)within, from = own_base(p.comm) + p.scales + r.row * p.scale_stride;
    if (within >= 0) {
        at<i32>(p.out.ids)[flat] = r.id;
        at<float>(p.out.weights)[flat] = r.weight;
        at<i64>(p.out.source)[flat] = source_of(p, r.source, r.slot);
    }
    if (lane_id() < p.num_topk) {
        at<i32>(p.kept.recv_positions)[r.row * p.num_topk + lane_id()] = within >= 0 ? (i32)flat : within;
        at<float>(p.kept.recv_weights)[r.row * p.num_topk + lane_id()] = r.weight;
    }
    if (lane_id() == 0) at<u32>(p.kept.recv_slots)[r.row] = r.slot;
    if (!p.scale_bytes) return;
    bool wide = p.out.scale_col_stride == 4 && p.scale_bytes % 16 == 0 && p.scale_bytes <= WARP * 16 &&
                (p.out.scales | p.out.scale_slot_stride | p.out.scale_row_stride) % 16 == 0;
    u64 to = p.out.scales + (u64)(u32)r.id * p.out.scale_slot_stride + (u64)(u32)within * p.out.scale_row_stride;
    for (u32 mask = __ballot_sync(FULL, within >= 0); mask; mask &= mask - 1) {
        u64 row = __shfl_sync(FULL, to, __ffs((i32)mask) - 1);
        if (!wide)
            store_scales_at(p, at<const char>(from), row, lane_id(), WARP);
        else if (lane_id() * 16 < p.scale_bytes)
            ptx::store_row16(at<char>(row + lane_id() * 16), r.v[0]);
    }
}

__device__ __forceinline__ void expand_piece(const SlottedDispatchParams &p, const ReceivedPiece &r, i32 within) {
    u64 to = p.out.x + (u64)(u32)r.id * p.out.slot_stride + (u64)(u32)within * p.out.x_stride;
    for (u32 mask = __ballot_sync(FULL, within >= 0); mask; mask &= mask - 1) {
        u64 row = __shfl_sync(FULL, to, __ffs((i32)mask) - 1);
#pragma unroll
        for (u32 j = 0; j < PIECE_LOADS; j++) {
            u32 at_byte = r.number * PIECE_BYTES + (j * WARP + lane_id()) * 16;
            if (at_byte < p.row_bytes) ptx::store_row16(at<char>(row + at_byte), r.v[j]);
        }
    }
}

// Which units a warp takes: every `step`-th from `first`.
struct Units {
    u32 first, step, pieces;
};

// Two of them have been loaded.
__device__ __forceinline__ void expand_units(const SlottedDispatchParams &p, const SlabStarts &starts, ReceivedPiece piece, ReceivedPiece next, Units units) {
    u32 most = 0; // rows of the fullest source
    for (u32 source = lane_id(); source < p.comm.ranks; source += WARP) most = max(most, starts.rows[source]);
    u32 end = ptx::warp_max(most) * p.comm.ranks * (units.pieces + 1);
    for (u32 unit = units.first; unit < end; unit += units.step) {
        if (piece.within < starts.rows[piece.source]) {
            i32 within = place_within(p, starts, piece);
            if (piece.number == units.pieces)
                expand_beside(p, piece, within);
            else
                expand_piece(p, piece, within);
        }
        piece = next;
        next = load_received(p, unit + 2 * units.step, units.pieces);
    }
}

// Side outputs of slab rows that nobody has filled.
__device__ __forceinline__ void blank_slabs(const SlottedDispatchParams &p, const SlabStarts &starts, const Team &t) {
    u32 capacity = (u32)p.out.rows, rows = p.local_experts * capacity;
    u32 step = capacity % 4 == 0 && (p.out.ids | p.out.weights | p.out.source) % 16 == 0 ? 4 : 1; // rows of one slab
    for (u32 first = (t.block * t.threads + t.index) * step; first < rows; first += t.blocks * t.threads * step) {
        u32 local = divide(first, capacity, p.slab_magic), within = first - local * capacity, end = starts.end[local];
        if (step == 4 && within >= end) {
            ptx::store_row16(at<char>(p.out.ids + (u64)first * 4), make_uint4(FULL, FULL, FULL, FULL));
            ptx::store_row16(at<char>(p.out.weights + (u64)first * 4), make_uint4(0, 0, 0, 0));
            ptx::store_row16(at<char>(p.out.source + (u64)first * 8), make_uint4(FULL, FULL, FULL, FULL));
            ptx::store_row16(at<char>(p.out.source + (u64)first * 8 + 16), make_uint4(FULL, FULL, FULL, FULL));
            continue;
        }
        for (u32 i = 0; i < step; i++) {
            if (within + i < end) continue;
            at<i32>(p.out.ids)[first + i] = -1;
            at<float>(p.out.weights)[first + i] = 0.0f;
            at<i64>(p.out.source)[first + i] = -1;
        }
    }
}

// Where the rows of each source lie in each slab.
__device__ __forceinline__ void write_source_ranges(const SlottedDispatchParams &p, const SlabStarts &starts, const Team &t) {
    u32 capacity = (u32)p.out.rows;
    for (u32 local = t.index * t.blocks + t.block; local < p.local_experts; local += t.threads * t.blocks) {
        u32 begin = 0; // the first source's
        for (u32 source = 0; source < p.comm.ranks; source++) {
            u32 end = min(starts.end_of(p, source, local), capacity);
            u32 *range = at<u32>(p.out.source_ranges) + 2 * (local * p.comm.ranks + source);
            range[0] = begin;
            range[1] = end - begin;
            begin = end;
        }
    }
}

// Rows of each expert and of each source, and totals. One warp of all blocks, which has no rows to write.
__device__ inline void write_slab_counts(const SlottedDispatchParams &p, const Routing &r, const OperationState &op, const SlabStarts &starts) {
    u32 capacity = (u32)p.out.rows;
    i32 sent = 0, needed = 0, present = 0;
    for (u32 local = lane_id(); local < p.local_experts; local += WARP) {
        u32 end = starts.end[local], fits = min(end, capacity);
        write_expert_count(p, r.stamp, local, fits);
        needed += end;
        present += fits;
    }
    for (u32 source = lane_id(); source < p.comm.ranks; source += WARP) {
        u32 rows = starts.rows[source];
        at<u32>(p.kept.recv_counts)[source] = at<u32>(p.out.rank_counts)[source] = rows;
        count_received(p.comm, source, rows, p.wire_bytes);
        sent += rows;
    }
    sent = ptx::warp_sum(sent);
    needed = ptx::warp_sum(needed);
    present = ptx::warp_sum(present);
    if (lane_id() == 0) write_totals(p, r, op, sent, present, needed);
    for (u32 source = 0; source < p.comm.ranks; source++) {
        i32 pairs = 0;
        for (u32 local = lane_id(); local < p.local_experts; local += WARP) pairs += starts.end_of(p, source, local) - starts.begin[source * p.local_experts + local];
        pairs = ptx::warp_sum(pairs);
        if (lane_id() == 0) at<u32>(p.kept.recv_counts)[p.comm.ranks + source] = pairs;
    }
}

// All outputs by expert. `shared` holds (local_experts + 1) * (ranks + 1) words.
__device__ inline void receive_by_expert(const SlottedDispatchParams &p, const Routing &r, const OperationState &op, const Team &t, u32 *shared) {
    SlabStarts starts = make_starts(p, shared);
    u32 pieces = div_up(p.row_bytes, PIECE_BYTES), all = t.warps() * t.blocks - 1, me = t.warp() * t.blocks + t.block;
    if (t.warp() == t.warps() - 1) me = t.block ? me - 1 : ~0u; // the last warp of the first block keeps the books
    bool counts = me == ~0u;
    ReceivedPiece piece, next;
    if (!counts) {
        piece = load_received(p, me, pieces);
        next = load_received(p, me + all, pieces);
    }
    find_starts(p, r, starts, t);
    t.sync();
    if (counts)
        write_slab_counts(p, r, op, starts);
    else
        expand_units(p, starts, piece, next, {me, all, pieces});
    blank_slabs(p, starts, t);
    write_source_ranges(p, starts, t);
}

} // namespace ep
