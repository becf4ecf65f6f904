// The receiving side of the expert layout: each row that arrived is written to its expert rows, pads become zero.
#pragma once
#include "outputs.cuh"
#include "ring.cuh"

namespace ep {

// One row's scales to one expert row, at any strides; 16 bytes at a time where columns are adjacent.
__device__ __forceinline__ void store_scales(const DispatchParams &p, const char *from, u64 place, u32 lane, u32 lanes) {
    u64 to = p.out_scales + place * p.out_scale_row_stride;
    if (p.out_scale_col_stride == 4 && p.scale_bytes % 16 == 0 && p.out_scale_row_stride % 16 == 0) {
        for (u32 i = lane; i < p.scale_bytes / 16; i += lanes) at<uint4>(to)[i] = reinterpret_cast<const uint4 *>(from)[i];
    } else if (p.scale_bytes % 4 == 0) {
        for (u32 i = lane; i < p.scale_bytes / 4; i += lanes) *at<u32>(to + i * p.out_scale_col_stride) = reinterpret_cast<const u32 *>(from)[i];
    } else {
        for (u32 i = lane; i < p.scale_bytes; i += lanes) at<u8>(to)[i] = reinterpret_cast<const u8 *>(from)[i];
    }
}

// Side data of received rows [begin, end) for the team's block: a warp per row.
__device__ inline void expand_side(const DispatchParams &p, u64 begin, u64 end, const Team &t, bool with_scales) {
    u64 base = own_base(p.comm);
    for (u64 row = begin + t.warp(); row < end; row += t.warps()) {
        u64 index = row * p.num_topk + lane_id();
        bool has = lane_id() < p.num_topk;
        i32 place = has ? at<const i32>(base + p.side_positions)[index] : -1;
        float weight = has ? at<const float>(base + p.side_weights)[index] : 0.0f;
        if (has) {
            at<i32>(p.recv_positions)[index] = place;
            at<float>(p.recv_weights)[index] = weight;
        }
        if (place >= 0 && (u64)place < p.out_rows) {
            at<i32>(p.out_ids)[place] = at<const i32>(base + p.side_ids)[index];
            at<float>(p.out_weights)[place] = weight;
            at<i64>(p.out_source)[place] = at<const i64>(base + p.side_source)[row];
        } else {
            place = -1;
        }
        if (!with_scales || !p.scale_bytes) continue;
        const char *scales = at<const char>(base + p.scales + row * p.scale_stride);
        for (u32 mask = __ballot_sync(FULL, place >= 0); mask; mask &= mask - 1)
            store_scales(p, scales, (u64)__shfl_sync(FULL, place, __ffs((i32)mask) - 1), lane_id(), WARP);
    }
}

// Rows between an expert's last row and its aligned end, for the team's share of experts. `zeros`: row_bytes or at
// least 16 bytes of zeroed shared memory, `zero_bytes` long.
__device__ inline void fill_pads(const DispatchParams &p, const i32 *matrix, const char *zeros, u32 zero_bytes, const Team &t) {
    u32 columns = count_columns(p), first = __ldg(at<const u32>(p.rank_first) + p.comm.rank);
    u32 warp = t.block * t.warps() + t.warp(), warps = t.blocks * t.warps();
    u64 start = 0;
    for (u32 base = 0; base < p.local_experts; base += WARP) {
        u32 l = base + lane_id();
        i32 count = 0;
        if (l < p.local_experts) {
            u32 expert = __ldg(at<const u32>(p.expert_order) + first + l);
            for (u32 s = 0; s < p.comm.ranks; s++) count += is_alive(p.comm, s) ? matrix[(u64)s * columns + p.comm.ranks + expert] : 0;
        }
        for (u32 j = 0; j < min(WARP, p.local_experts - base); j++) {
            u32 n = (u32)__shfl_sync(FULL, count, j);
            u64 end = start + round_up(n, p.alignment);
            for (u64 row = start + n + (warp + warps - (base + j) % warps) % warps; row < end && row < p.out_rows; row += warps) {
                u64 to = p.out_x + row * p.out_x_stride;
                for (u32 at_byte = lane_id() * zero_bytes; at_byte < p.row_bytes; at_byte += WARP * zero_bytes)
                    ptx::bulk_store(at<char>(to + at_byte), zeros, min(zero_bytes, p.row_bytes - at_byte));
                if (p.scale_bytes) {
                    for (u32 i = lane_id(); i < p.scale_bytes / 4; i += WARP) *at<u32>(p.out_scales + row * p.out_scale_row_stride + i * p.out_scale_col_stride) = 0;
                    for (u32 i = p.scale_bytes / 4 * 4 + lane_id(); i < p.scale_bytes; i += WARP) at<u8>(p.out_scales + row * p.out_scale_row_stride)[i] = 0;
                }
                if (lane_id() == 0) {
                    at<i32>(p.out_ids)[row] = -1;
                    at<float>(p.out_weights)[row] = 0.0f;
                    at<i64>(p.out_source)[row] = -1;
                }
            }
            start = end;
        }
    }
    ptx::bulk_commit();
    ptx::bulk_wait<0>();
}

// Received rows [begin, end) of one source go to their expert rows, warp `index` of `warps`. ready(row) is called by
// all lanes before a row is read, arrived(row, place) when it has come. `done`: pieces that this ring has moved before. Returns how many it moved now.
template <class Ready, class Arrived>
__device__ inline u32 expand_rows(const DispatchParams &p, const Ring &ring, u32 done, u64 begin, u64 end, u32 index, u32 warps, Ready ready, Arrived arrived) {
    u64 base = own_base(p.comm);
    u32 count = begin + index < end ? (u32)((end - begin - index + warps - 1) / warps) : 0;
    u32 pieces = div_up(p.row_bytes, p.piece_bytes);
    auto row_of = [&](u32 item) { return begin + index + (u64)(item / pieces) * warps; };
    auto offset_of = [&](u32 item) { return (item % pieces) * p.piece_bytes; };
    auto bytes_of = [&](u32 item) { return min(p.piece_bytes, p.row_bytes - offset_of(item)); };
    auto place_of = [&](u32 item) {
        i32 place = lane_id() < p.num_topk ? at<const i32>(base + p.side_positions)[row_of(item) * p.num_topk + lane_id()] : -1;
        return (u64)place < p.out_rows ? place : -1;
    };
    u32 ahead = ring.count > 1 ? ring.count - 1 : 1, items = count * pieces;
    i32 place = -1, next = count ? place_of(0) : -1;
    auto load = [&](u32 item) {
        if (item >= items) return;
        if (item % pieces == 0) ready(row_of(item));
        if (lane_id() != 0) return;
        u64 *full = ring.full + (done + item) % ring.count;
        ptx::barrier_expect(full, bytes_of(item));
        ptx::bulk_load(ring.stage(done + item), at<const char>(base + p.rows + row_of(item) * p.row_stride) + offset_of(item), bytes_of(item), full);
    };
    for (u32 i = 0; i < ahead; i++) load(i);
    for (u32 i = 0; i < items; i++) {
        if (i % pieces == 0) {
            place = next;
            if (i + pieces < items) next = place_of(i + pieces);
        }
        wait_full(ring, done + i);
        if (place >= 0) ptx::bulk_store(at<char>(p.out_x + (u64)place * p.out_x_stride) + offset_of(i), ring.stage(done + i), bytes_of(i));
        ptx::bulk_commit();
        if (i % pieces == 0) arrived(row_of(i), place);
        if (ring.count > 1)
            ptx::bulk_wait_read<1>();
        else
            ptx::bulk_wait_read<0>();
        __syncwarp();
        load(i + ahead);
    }
    ptx::bulk_wait<0>();
    __syncwarp();
    return items;
}

} // namespace ep
