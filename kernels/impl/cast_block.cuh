// The FP8 cast of one block of 128 elements, in registers: 16 lanes of a warp, 8 elements each.
#pragma once
#include "../layout/names.cuh"
#include "../ptx/convert.cuh"

namespace ep {

constexpr u32 CAST_BLOCK = 128;
constexpr u32 CAST_LANES = 16;

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

// Eight BF16 elements as they lie in memory.
__device__ __forceinline__ void unpack_bf16(uint4 raw, float (&x)[8]) {
    u32 words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        x[2 * i] = __uint_as_float(words[i] << 16);
        x[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
}

// The scale of the block whose elements these 16 lanes hold, the same in each. All lanes of the warp.
__device__ __forceinline__ BlockScale scale_of_lanes(const float (&x)[8], u32 type) {
    u32 largest = 0; // magnitude bits of finite values order like the values
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        u32 magnitude = __float_as_uint(x[i]) & 0x7fffffff;
        largest = max(largest, magnitude < 0x7f800000 ? magnitude : 0);
    }
    for (u32 d = CAST_LANES / 2; d; d /= 2) largest = max(largest, __shfl_xor_sync(FULL, largest, d));
    return block_scale(__uint_as_float(largest), type);
}

// Eight E4M3 codes.
__device__ __forceinline__ uint2 cast_eight(const float (&x)[8], const BlockScale &b) {
    u32 out[2] = {0, 0};
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        u32 two = ptx::e4m3x2_from_f32(__fmul_rn(x[2 * i], b.inverse), __fmul_rn(x[2 * i + 1], b.inverse));
        two = (two & 0x7f) == 0x7f ? (two & ~0x80u) : two;                 // one NaN, whatever its sign
        two = (two & 0x7f00) == 0x7f00 ? (two & ~0x8000u) : two;
        out[i / 2] |= two << (i % 2 * 16);
    }
    return make_uint2(out[0], out[1]);
}

} // namespace ep
