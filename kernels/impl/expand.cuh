// The receiving side of the expert layout: each row that arrived is written to its expert rows.
#pragma once
#include "outputs.cuh"
#include "ring.cuh"

namespace ep {

// One row's scales to one place, at any column stride; 16 bytes at a time where columns are adjacent.
template <class Params> __device__ __forceinline__ void store_scales_at(const Params &p, const char *from, u64 to, u32 lane, u32 lanes) {
    if (p.out.scale_col_stride == 4 && p.scale_bytes % 16 == 0 && to % 16 == 0) {
        for (u32 i = lane; i < p.scale_bytes / 16; i += lanes) at<uint4>(to)[i] = reinterpret_cast<const uint4 *>(from)[i];
    } else if (p.scale_bytes % 4 == 0) {
        for (u32 i = lane; i < p.scale_bytes / 4; i += lanes) *at<u32>(to + i * p.out.scale_col_stride) = reinterpret_cast<const u32 *>(from)[i];
    } else {
        for (u32 i = lane; i < p.scale_bytes; i += lanes) at<u8>(to)[i] = reinterpret_cast<const u8 *>(from)[i];
    }
}

__device__ __forceinline__ void store_scales(const DispatchParams &p, const char *from, u64 place, u32 lane, u32 lanes) {
    store_scales_at(p, from, p.out.scales + place * p.out.scale_row_stride, lane, lanes);
}

// Scales of the pairs of one group, `pairs` of them: lane i holds the i-th pair's expert row and where its scales lie.
__device__ __forceinline__ void expand_scales(const DispatchParams &p, u32 pairs, i32 place, u64 from) {
    if (p.out.scale_col_stride != 4 || p.scale_bytes % 16 != 0 || p.out.scale_row_stride % 16 != 0 || p.out.scales % 16 != 0) {
        for (u32 j = 0; j < pairs; j++)
            store_scales(p, at<const char>(__shfl_sync(FULL, from, j)), (u64)__shfl_sync(FULL, place, j), lane_id(), WARP);
        return;
    }
    constexpr u32 BATCH = 4;
    u32 chunks = p.scale_bytes / 16, total = pairs * chunks;
    for (u32 first = 0; first < total; first += BATCH * WARP) {
        uint4 v[BATCH];
        u64 to[BATCH];
#pragma unroll
        for (u32 b = 0; b < BATCH; b++) {
            u32 j = first + b * WARP + lane_id(), pair = min(j / chunks, WARP - 1), part = j % chunks;
            u64 row = __shfl_sync(FULL, from, pair);
            i32 target = __shfl_sync(FULL, place, pair);
            to[b] = p.out.scales + (u64)target * p.out.scale_row_stride + part * 16;
            if (j < total) v[b] = ptx::load_row16(at<const uint4>(row) + part);
        }
#pragma unroll
        for (u32 b = 0; b < BATCH; b++)
            if (first + b * WARP + lane_id() < total) ptx::store_row16(at<char>(to[b]), v[b]);
    }
}

// Side data of received rows [begin, end) for the team's block. A warp takes as many whole rows as it has lanes for
// their pairs, so that many loads are on the way at once.
__device__ inline void expand_side(const DispatchParams &p, u64 begin, u64 end, const Team &t, bool with_scales) {
    u64 base = own_base(p.comm);
    u32 per_group = WARP / p.num_topk;
    for (u64 first = begin + (u64)t.warp() * per_group; first < end; first += (u64)t.warps() * per_group) {
        u64 row = first + lane_id() / p.num_topk, index = row * p.num_topk + lane_id() % p.num_topk;
        bool has = lane_id() < per_group * p.num_topk && row < end;
        i32 place = has ? at<const i32>(base + p.side_positions)[index] : -1;
        float weight = has ? at<const float>(base + p.side_weights)[index] : 0.0f;
        i32 id = has ? at<const i32>(base + p.side_ids)[index] : -1;
        i64 source = has ? at<const i64>(base + p.side_source)[row] : -1;
        if (has) {
            at<i32>(p.recv_positions)[index] = (u64)place < p.out.rows ? place : -1;
            at<float>(p.recv_weights)[index] = weight;
        }
        bool wanted = (u64)place < p.out.rows; // -1 is not
        if (wanted) {
            at<i32>(p.out.ids)[place] = id;
            at<float>(p.out.weights)[place] = weight;
            at<i64>(p.out.source)[place] = source;
        }
        u32 mask = __ballot_sync(FULL, wanted);
        if (!with_scales || !p.scale_bytes || !mask) continue;
        u32 pairs = __popc(mask), from = lane_id() < pairs ? __fns(mask, 0, (i32)lane_id() + 1) : 0;
        u64 scales = base + p.scales + row * p.scale_stride;
        expand_scales(p, pairs, __shfl_sync(FULL, place, from), __shfl_sync(FULL, scales, from));
    }
}

// The rows that a block expands: a range per source, taken in turn from all of them, since all arrive at once.
// In shared memory, `sources` entries each; `front` is 0 before a source's side data are here, then 1 + the number of
// its slices, in order, that are.
struct Arrivals {
    u32 *source, *begin, *count, *front;
    u32 sources, longest;
};

struct ArrivedRow {
    u32 slot;                // index in Arrivals
    u64 row;
};

// The next row in that order that no warp of the block has taken. `taken`: in shared memory, how many are. One warp.
__device__ __forceinline__ bool take_row(const Arrivals &a, u32 *taken, ArrivedRow &r) {
    for (;;) {
        u32 at = lane_id() == 0 ? atomicAdd(taken, 1) : 0;
        at = __shfl_sync(FULL, at, 0);
        if (at >= a.longest * a.sources) return false;
        u32 slot = at % a.sources, k = at / a.sources;
        if (k >= a.count[slot]) continue;
        r = {slot, (u64)a.begin[slot] + k};
        return true;
    }
}

// Expands rows as long as there are any. ready(row) is called by all lanes before a row is read, arrived(row, place) once it is in
// shared memory.
template <class Ready, class Arrived>
__device__ inline void expand_rows(const DispatchParams &p, const Ring &ring, const Arrivals &a, u32 *taken, Ready ready, Arrived arrived) {
    u64 base = own_base(p.comm);
    u32 pieces = div_up(p.row_bytes, p.piece_bytes), ahead = ring_ahead(ring), loaded = 0, moved = 0;
    ArrivedRow loading = {0, 0}, moving[MAX_STAGES] = {};
    i32 places[MAX_STAGES];
    bool more = true;
    // Loads the next piece, if there is one, and queues its row behind those that wait to be moved.
    auto load = [&]() {
        if (loaded % pieces == 0) {
            if (!more || !(more = take_row(a, taken, loading))) return;
            ready(loading);
            i32 place = lane_id() < p.num_topk ? at<const i32>(base + p.side_positions)[loading.row * p.num_topk + lane_id()] : -1;
#pragma unroll
            for (u32 i = 0; i < MAX_STAGES; i++)
                if (i == (loaded / pieces) % MAX_STAGES) {
                    places[i] = (u64)place < p.out.rows ? place : -1;
                    moving[i] = loading;
                }
        }
        u32 offset = loaded % pieces * p.piece_bytes;
        load_item(ring, loaded, {at<const char>(base + p.rows + loading.row * p.row_stride) + offset, min(p.piece_bytes, p.row_bytes - offset)});
        loaded++;
    };
    for (u32 i = 0; i < ahead; i++) load();
    for (; moved < loaded; moved++) {
        u32 offset = moved % pieces * p.piece_bytes;
        i32 place = -1;
        ArrivedRow row = {0, 0};
#pragma unroll
        for (u32 i = 0; i < MAX_STAGES; i++)
            if (i == (moved / pieces) % MAX_STAGES) {
                place = places[i];
                row = moving[i];
            }
        wait_full(ring, moved);
        if (place >= 0) ptx::bulk_store(at<char>(p.out.x + (u64)place * p.out.x_stride) + offset, ring.stage(moved), min(p.piece_bytes, p.row_bytes - offset));
        ptx::bulk_commit();
        if (offset == 0) arrived(row, place);
        if (ring.count > 1)
            ptx::bulk_wait_read<1>();
        else
            ptx::bulk_wait_read<0>();
        __syncwarp();
        load();
    }
    ptx::bulk_wait<0>();
}

} // namespace ep
