// Dispatch with an FP8 cast: BF16 rows are read, cast by 128-element blocks in shared memory and sent with their scales.
#pragma once
#include "../ptx/convert.cuh"
#include "expand.cuh"
#include "send_rows.cuh"

namespace ep {

constexpr u32 CAST_BLOCK = 128;

// Scale of a block from the largest finite magnitude in it, and what the elements are multiplied by.
struct BlockScale {
    float scale, inverse;
    u32 exponent;            // biased, for powers of two
};

__device__ __forceinline__ BlockScale block_scale(float amax, u32 type) {
    float a = fmaxf(amax, 1e-4f);
    BlockScale r;
    r.scale = __fmul_rn(a, 1.0f / 448.0f);
    if (type == SCALE_FP32) {
        r.inverse = __fdiv_rn(448.0f, a);
        r.exponent = 0;
        return r;
    }
    u32 bits = __float_as_uint(r.scale);
    u32 e = (bits >> 23 & 255) + ((bits & 0x7fffff) != 0);
    r.exponent = min(max(e, 1u), 254u);
    r.scale = __uint_as_float(r.exponent << 23);
    r.inverse = __uint_as_float(254 - r.exponent == 0 ? 0x400000u : (254 - r.exponent) << 23);
    return r;
}

// Casts `hidden` BF16 elements at `from` to `to` and writes the scale row (scale_stride bytes, padded with zeros).
// One warp; 16 lanes take a block, 8 elements each.
__device__ inline void cast_row(const DispatchParams &p, const char *from, char *to, char *scales) {
    for (u32 i = lane_id(); i < p.scale_stride / 4; i += WARP) reinterpret_cast<u32 *>(scales)[i] = 0;
    __syncwarp();
    u32 blocks = div_up(p.hidden, CAST_BLOCK);
    for (u32 pair = 0; pair < blocks; pair += 2) {
        u32 block = pair + lane_id() / 16, element = block * CAST_BLOCK + lane_id() % 16 * 8;
        bool present = element < p.hidden;
        uint4 raw = present ? *reinterpret_cast<const uint4 *>(from + element * 2) : make_uint4(0, 0, 0, 0);
        u32 words[4] = {raw.x, raw.y, raw.z, raw.w};
        u32 largest = 0; // magnitude bits of finite values order like the values
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            u32 low = words[i] & 0x7fff, high = words[i] >> 16 & 0x7fff;
            largest = max(largest, low < 0x7f80 ? low : 0);
            largest = max(largest, high < 0x7f80 ? high : 0);
        }
        for (u32 d = 8; d; d /= 2) largest = max(largest, __shfl_xor_sync(FULL, largest, d));
        BlockScale b = block_scale(__uint_as_float(largest << 16), p.wire_scale_type);
        u32 out[2] = {0, 0};
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            float low = __fmul_rn(ptx::f32_from_bf16((u16)words[i]), b.inverse), high = __fmul_rn(ptx::f32_from_bf16((u16)(words[i] >> 16)), b.inverse);
            u32 two = ptx::e4m3x2_from_f32(low, high);
            two = (two & 0x7f) == 0x7f ? (two & ~0x80u) : two;                 // one NaN, whatever its sign
            two = (two & 0x7f00) == 0x7f00 ? (two & ~0x8000u) : two;
            out[i / 2] |= two << (i % 2 * 16);
        }
        if (present) *reinterpret_cast<uint2 *>(to + element) = make_uint2(out[0], out[1]);
        if (lane_id() % 16 == 0 && block < blocks) {
            if (p.wire_scale_type == SCALE_UE8M0)
                reinterpret_cast<u8 *>(scales)[block] = (u8)b.exponent;
            else
                reinterpret_cast<float *>(scales)[block] = b.scale;
        }
    }
}

// The window row to which a lane sends a token's scales, or null.
__device__ __forceinline__ char *cast_scale_target(const DispatchParams &p, u32 token, bool expand_own) {
    if (lane_id() >= p.num_topk) return nullptr;
    u64 index = (u64)token * p.num_topk + lane_id();
    i32 row = at<const i32>(p.positions)[index];
    if (row < 0) return nullptr;
    u32 rank = expert_home(p.expert_home, at<const i32>(p.ids)[index]).rank;
    if (expand_own && rank == p.comm.rank) return nullptr;
    return at<char>(peer_base(p.comm, rank) + p.scales + (u64)row * p.scale_stride);
}

// The expert row of a lane's pair on this rank, or -1.
__device__ __forceinline__ i32 own_place(const DispatchParams &p, u32 token) {
    if (lane_id() >= p.num_topk) return -1;
    u64 index = (u64)token * p.num_topk + lane_id();
    i32 id = at<const i32>(p.ids)[index], place = at<const i32>(p.expert_positions)[index];
    return id >= 0 && expert_home(p.expert_home, id).rank == p.comm.rank && (u64)place < p.out_rows ? place : -1;
}

// Like send_rows for whole rows. A stage holds the BF16 row, then the FP8 row, then its scales.
__device__ inline void send_cast_rows(const DispatchParams &p, const Ring &ring, const RowPieces &rows, bool expand_own, u32 *progress) {
    char *next = rows.count ? row_target(p, rows.first, expand_own) : nullptr;
    char *target = nullptr;
    char *scale_target = nullptr;
    run_ring(
        ring, rows.count, rows,
        [&](u32 item) {
            target = next;
            scale_target = cast_scale_target(p, rows.token(item), expand_own);
            if (item + 1 < rows.count) next = row_target(p, rows.token(item + 1), expand_own);
        },
        [&](u32 item, char *stage) {
            char *cast = stage + rows.row_bytes, *scales = cast + p.row_bytes;
            cast_row(p, stage, cast, scales);
            ptx::fence_proxy_async_shared();
            __syncwarp();
            if (target) ptx::bulk_store(target, cast, p.row_bytes);
            if (scale_target) ptx::bulk_store(scale_target, scales, p.scale_stride);
            if (!expand_own) return;
            i32 place = own_place(p, rows.token(item));
            for (u32 mask = __ballot_sync(FULL, place >= 0); mask; mask &= mask - 1)
                store_scales(p, scales, (u64)__shfl_sync(FULL, place, __ffs((i32)mask) - 1), lane_id(), WARP);
        },
        [&](u32 done) {
            if (progress && lane_id() == 0) ptx::raise_release_shared(progress, done);
        });
}

} // namespace ep
