//! Vector forms of the element types, with the same results as `convert`.
//!
//! The helpers are `inline(always)` and carry no target feature of their own: each is inlined into a function that
//! does, and is only sound there. No closures around intrinsics: those can end up as calls, a hundred times slower. "With AVX2" below stands for AVX2, FMA and F16C.

use super::convert::FP32_NAN;
use std::arch::x86_64::*;

/// How 16 consecutive elements are held as two vectors of `f32`. The order inside is the type's own, so only
/// operations that treat every lane alike may lie between a load and a store.
pub trait Lanes: Copy {
    const BYTES: usize;

    /// # Safety
    /// With AVX2; `at` is valid for reads of 16 elements.
    unsafe fn load(at: *const u8) -> [__m256; 2];

    /// 8 elements in memory order.
    ///
    /// # Safety
    /// With AVX2; `at` is valid for reads of 8 elements.
    unsafe fn load_ordered(at: *const u8) -> __m256;

    /// Rounds to the type, and writes past the caches if `STREAM`.
    ///
    /// # Safety
    /// With AVX2; `at` is valid for writes of 16 elements, and 32-byte aligned if `STREAM`.
    unsafe fn store<const STREAM: bool>(at: *mut u8, value: [__m256; 2]);
}

#[derive(Clone, Copy)]
pub struct Bf16;
#[derive(Clone, Copy)]
pub struct Fp16;
#[derive(Clone, Copy)]
pub struct Fp32;

impl Lanes for Bf16 {
    const BYTES: usize = 2;

    // Even and odd elements apart: a shift and a mask instead of shuffles.
    #[inline(always)]
    unsafe fn load(at: *const u8) -> [__m256; 2] {
        // SAFETY: readable as the caller promises; the load needs no alignment.
        unsafe {
            let both = _mm256_loadu_si256(at.cast());
            let odd = _mm256_and_si256(both, _mm256_set1_epi32(0xFFFF_0000u32 as i32));
            [_mm256_castsi256_ps(_mm256_slli_epi32::<16>(both)), _mm256_castsi256_ps(odd)]
        }
    }

    #[inline(always)]
    unsafe fn load_ordered(at: *const u8) -> __m256 {
        // SAFETY: readable as the caller promises; the load needs no alignment.
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(at.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    unsafe fn store<const STREAM: bool>(at: *mut u8, value: [__m256; 2]) {
        // SAFETY: writable and aligned as the caller promises.
        unsafe {
            let even = _mm256_srli_epi32::<16>(bf16_high(value[0]));
            write::<STREAM>(at, _mm256_blend_epi16::<0xAA>(even, bf16_high(value[1])));
        }
    }
}

/// The BF16 code of each lane in its upper half; the lower half is left over.
#[inline(always)]
unsafe fn bf16_high(value: __m256) -> __m256i {
    // SAFETY: register arithmetic only, inlined where AVX2 is enabled.
    unsafe {
        let bits = _mm256_castps_si256(value);
        let last = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        let rounded = _mm256_add_epi32(bits, _mm256_add_epi32(last, _mm256_set1_epi32(0x7FFF)));
        canonical(value, rounded)
    }
}

/// `bits`, with every lane in which `value` is NaN replaced by the canonical NaN of FP32, whose upper half is that of
/// BF16.
#[inline(always)]
unsafe fn canonical(value: __m256, bits: __m256i) -> __m256i {
    // SAFETY: register arithmetic only, inlined where AVX2 is enabled.
    unsafe {
        let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(value, value));
        _mm256_blendv_epi8(bits, _mm256_set1_epi32(FP32_NAN as i32), nan)
    }
}

impl Lanes for Fp16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load(at: *const u8) -> [__m256; 2] {
        // SAFETY: readable as the caller promises.
        unsafe { [Self::load_ordered(at), Self::load_ordered(at.add(16))] }
    }

    #[inline(always)]
    unsafe fn load_ordered(at: *const u8) -> __m256 {
        // SAFETY: readable as the caller promises; the load needs no alignment.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(at.cast())) }
    }

    #[inline(always)]
    unsafe fn store<const STREAM: bool>(at: *mut u8, value: [__m256; 2]) {
        // SAFETY: writable and aligned as the caller promises.
        unsafe {
            write::<STREAM>(at, _mm256_set_m128i(fp16_codes(value[1]), fp16_codes(value[0])));
        }
    }
}

#[inline(always)]
unsafe fn fp16_codes(value: __m256) -> __m128i {
    // SAFETY: register arithmetic only, inlined where F16C is enabled.
    unsafe {
        // The conversion keeps the upper bits of a NaN, and those of the canonical one are all set.
        let value = _mm256_castsi256_ps(canonical(value, _mm256_castps_si256(value)));
        _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(value)
    }
}

impl Lanes for Fp32 {
    const BYTES: usize = 4;

    #[inline(always)]
    unsafe fn load(at: *const u8) -> [__m256; 2] {
        // SAFETY: readable as the caller promises.
        unsafe { [Self::load_ordered(at), Self::load_ordered(at.add(32))] }
    }

    #[inline(always)]
    unsafe fn load_ordered(at: *const u8) -> __m256 {
        // SAFETY: readable as the caller promises; the load needs no alignment.
        unsafe { _mm256_loadu_ps(at.cast()) }
    }

    #[inline(always)]
    unsafe fn store<const STREAM: bool>(at: *mut u8, value: [__m256; 2]) {
        // SAFETY: writable and aligned as the caller promises.
        unsafe {
            write::<STREAM>(at, canonical(value[0], _mm256_castps_si256(value[0])));
            write::<STREAM>(at.add(32), canonical(value[1], _mm256_castps_si256(value[1])));
        }
    }
}

#[inline(always)]
unsafe fn write<const STREAM: bool>(at: *mut u8, value: __m256i) {
    // SAFETY: 32 writable bytes, aligned if STREAM, as the callers of `store` promise.
    unsafe {
        if STREAM {
            _mm256_stream_si256(at.cast(), value);
        } else {
            _mm256_storeu_si256(at.cast(), value);
        }
    }
}

/// The E4M3 codes of 8 values without their signs, one in each 32-bit lane. The values must be below 464, where
/// saturation begins, and not NaN.
///
/// # Safety
/// With AVX2.
#[inline(always)]
pub unsafe fn e4m3_magnitudes(value: __m256) -> __m256i {
    // SAFETY: register arithmetic only, inlined where AVX2 is enabled.
    unsafe {
        // With E the exponent of the value, at least that of the smallest normal code: beside 2^(E+20) the last
        // place of an f32 is 2^(E-3), that of the code, so the addition rounds. What it adds to the bits is the
        // code's mantissa with its leading bit, which on a carry moves on to the next exponent by itself.
        let exponent = _mm256_and_si256(_mm256_castps_si256(value), _mm256_set1_epi32(0x7F80_0000));
        let exponent = _mm256_max_epi32(exponent, _mm256_set1_epi32((127 - 6) << 23));
        let beside = _mm256_add_epi32(exponent, _mm256_set1_epi32(20 << 23));
        let abs = _mm256_and_ps(value, _mm256_castsi256_ps(_mm256_set1_epi32(0x7FFF_FFFF)));
        let sum = _mm256_castps_si256(_mm256_add_ps(abs, _mm256_castsi256_ps(beside)));
        let mantissa = _mm256_sub_epi32(sum, beside);
        let exponent = _mm256_sub_epi32(_mm256_srli_epi32::<20>(exponent), _mm256_set1_epi32((127 - 6) << 3));
        _mm256_add_epi32(mantissa, exponent)
    }
}
