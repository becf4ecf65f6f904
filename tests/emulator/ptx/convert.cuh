// Number conversions: to the nearest, ties to even. NaN becomes the canonical quiet NaN of the target.
#pragma once
#include "base.cuh"

namespace ep::ptx {

// The code, without its sign, of the number nearest to `v` in a format with so many bits of fraction and no exponent below
// `least`. A number beyond the format's last gets the codes after it, of which the first is infinity's.
inline u32 nearest_code(float v, int fraction, int least) {
    v = std::fabs(v);
    int exponent = v == 0 ? least : std::max(std::ilogb(v), least);
    // Rounded up to the next power of two, the fraction's carry steps the exponent.
    return (u32(exponent - least) << fraction) + u32(std::nearbyintf(std::ldexp(v, fraction - exponent)));
}

inline u32 sign_of(float v, u32 bit) { return std::signbit(v) ? bit : 0; }

inline u32 bf16_from_f32(float v) {
    u32 bits = __float_as_uint(v);
    return v != v ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

inline u32 f16_from_f32(float v) {
    if (v != v) return 0x7fff;
    u32 code = std::fabs(v) < 0x1p16f ? nearest_code(v, 10, -14) : 0x7c00;
    return sign_of(v, 0x8000) | code;
}

inline u32 e4m3_from_f32(float v) {
    constexpr u32 LARGEST = 0x7e; // 448
    u32 code = v != v ? 0x7f : std::fabs(v) < 0x1p9f ? std::min(nearest_code(v, 3, -6), LARGEST) : LARGEST;
    return sign_of(v, 0x80) | code;
}

inline u32 bf16x2_from_f32(float low, float high) { return bf16_from_f32(low) | bf16_from_f32(high) << 16; }
inline u32 f16x2_from_f32(float low, float high) { return f16_from_f32(low) | f16_from_f32(high) << 16; }
inline u16 e4m3x2_from_f32(float low, float high) { return u16(e4m3_from_f32(low) | e4m3_from_f32(high) << 8); }

inline float f32_from_f16(u16 v) {
    int exponent = v >> 10 & 31, fraction = v & 0x3ff;
    if (exponent == 31 && fraction) return __uint_as_float(0x7fffffff);
    float size = exponent == 31 ? INFINITY : std::ldexp(float(exponent ? 0x400 + fraction : fraction), std::max(exponent, 1) - 25);
    return v & 0x8000 ? -size : size;
}

inline float f32_from_bf16(u16 v) { return __uint_as_float(u32(v) << 16); }

} // namespace ep::ptx
