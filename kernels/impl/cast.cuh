// The FP8 cast of one row. Blocks of 128 elements share a scale.
#pragma once
#include "../layout/names.cuh"
#include "sum.cuh"

namespace ep {

constexpr u32 CAST_BLOCK = 128;

// What is cast: rows of `hidden` elements of type `from`; scales of type `scale_type`, scale_stride bytes a row.
struct Cast {
    u32 hidden, from, scale_type, scale_stride;
};

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
    r.exponent = (bits >> 23) + ((bits & 0x7fffff) != 0); // 105 to 247: neither scale nor inverse leaves the normal numbers
    r.scale = __uint_as_float(r.exponent << 23);
    r.inverse = __uint_as_float((254 - r.exponent) << 23);
    return r;
}

// One element times `inverse`, two at a time, as E4M3 codes: NaN is 0x7f, whatever its sign.
__device__ __forceinline__ u32 encode_two(float low, float high, float inverse) {
    u32 two = ptx::e4m3x2_from_f32(__fmul_rn(low, inverse), __fmul_rn(high, inverse));
    two = (two & 0x7f) == 0x7f ? (two & ~0x80u) : two;
    return (two & 0x7f00) == 0x7f00 ? (two & ~0x8000u) : two;
}

constexpr u32 BLOCK_LANES = 16;  // a block lies in 16 lanes, eight elements each

// Eight elements that follow each other in memory.
template <class Row> struct Eight {
    static constexpr u32 LOADS = 8 / Row::COUNT;
    float f[LOADS][Row::COUNT];

    __device__ __forceinline__ void unpack(u32 load, uint4 raw) { Row::unpack(raw, f[load]); }

    // Of the block whose other elements the 15 lanes beside hold. All lanes of the warp.
    __device__ __forceinline__ BlockScale scale(u32 type) const {
        u32 largest = 0; // magnitude bits of finite values order like the values
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            u32 bits = __float_as_uint(f[i / Row::COUNT][i % Row::COUNT]) & 0x7fffffff;
            largest = max(largest, bits < 0x7f800000 ? bits : 0);
        }
        for (u32 d = BLOCK_LANES / 2; d; d /= 2) largest = max(largest, __shfl_xor_sync(FULL, largest, d));
        return block_scale(__uint_as_float(largest), type);
    }

    __device__ __forceinline__ uint2 codes(float inverse) const {
        u32 out[2] = {0, 0};
#pragma unroll
        for (u32 i = 0; i < 8; i += 2) {
            const float *two = &f[i / Row::COUNT][i % Row::COUNT];
            out[i / 4] |= encode_two(two[0], two[1], inverse) << (i % 4 * 8);
        }
        return make_uint2(out[0], out[1]);
    }
};

// One warp; a block per 16 lanes.
template <class Row> __device__ __forceinline__ void cast_row_of(const Cast &c, const char *from, char *to, char *scales) {
    u32 blocks = div_up(c.hidden, CAST_BLOCK);
    for (u32 pair = 0; pair < blocks; pair += 2) {
        u32 block = pair + lane_id() / BLOCK_LANES, element = block * CAST_BLOCK + lane_id() % BLOCK_LANES * 8;
        bool present = element < c.hidden;
        Eight<Row> x;
#pragma unroll
        for (u32 l = 0; l < x.LOADS; l++) x.unpack(l, present ? reinterpret_cast<const uint4 *>(from)[element / Row::COUNT + l] : make_uint4(0, 0, 0, 0));
        BlockScale b = x.scale(c.scale_type);
        if (present) *reinterpret_cast<uint2 *>(to + element) = x.codes(b.inverse);
        if (lane_id() % BLOCK_LANES != 0 || block >= blocks) continue;
        if (c.scale_type == SCALE_UE8M0)
            reinterpret_cast<u8 *>(scales)[block] = (u8)b.exponent;
        else
            reinterpret_cast<float *>(scales)[block] = b.scale;
    }
}

// Casts the row at `from` to `to` and writes its scales, padded with zeros. One warp; all in shared memory, at multiples
// of 16.
__device__ inline void cast_row(const Cast &c, const char *from, char *to, char *scales) {
    for (u32 i = lane_id(); i < c.scale_stride / 4; i += WARP) reinterpret_cast<u32 *>(scales)[i] = 0;
    __syncwarp();
    if (c.from == FP32)
        cast_row_of<RowFp32>(c, from, to, scales);
    else if (c.from == FP16)
        cast_row_of<RowFp16>(c, from, to, scales);
    else
        cast_row_of<RowBf16>(c, from, to, scales);
}

} // namespace ep
