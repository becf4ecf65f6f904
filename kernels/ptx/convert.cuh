// Number conversions, one instruction each. NaN becomes the canonical quiet NaN of the target.
#pragma once
#include "base.cuh"

namespace ep::ptx {

// Two floats to two BF16 values: `low` in the low half.
__device__ __forceinline__ u32 bf16x2_from_f32(float low, float high) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

__device__ __forceinline__ u32 f16x2_from_f32(float low, float high) {
    u32 r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

__device__ __forceinline__ float f32_from_f16(u16 v) {
    float r;
    asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(v));
    return r;
}

__device__ __forceinline__ float f32_from_bf16(u16 v) { return __uint_as_float((u32)v << 16); }

// Two floats to two E4M3 values, saturating: `low` in the low byte.
__device__ __forceinline__ u16 e4m3x2_from_f32(float low, float high) {
    u16 r;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(high), "f"(low));
    return r;
}

} // namespace ep::ptx
