//! The FP8 cast: a row of BF16, FP16 or FP32 becomes E4M3 codes and one scale per block of 128 elements.
//!
//! With a = max(largest finite magnitude of the block, 1e-4), in FP32 arithmetic:
//! - `Fp32`: scale = a * (1/448), code = e4m3(x * (448 / a));
//! - `Fp32Pow2`: scale = the power of two not below a * (1/448), code = e4m3(x / scale);
//! - `Ue8m0Packed`: as `Fp32Pow2`, with the scale's biased exponent as one byte.
//!
//! NaN stays NaN, infinities saturate, and neither has a say in the scale.

use super::convert::{f32_to_e4m3, RowType, E4M3_MAX};

/// Elements that share a scale; the last block of a row may be shorter.
pub const CAST_BLOCK: usize = 128;

const SMALLEST_AMAX: f32 = 1e-4;
const F32_INF: u32 = 0x7F80_0000;

/// How scales are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleKind {
    /// One `f32` per block.
    Fp32,
    /// One `f32` per block, always a power of two.
    Fp32Pow2,
    /// One exponent byte per block, four to an int32, little-endian; unused bytes are 0.
    Ue8m0Packed,
}

/// Bytes of the scales of one row.
pub const fn scale_row_bytes(kind: ScaleKind, hidden: usize) -> usize {
    let blocks = hidden.div_ceil(CAST_BLOCK);
    match kind {
        ScaleKind::Fp32 | ScaleKind::Fp32Pow2 => blocks * 4,
        ScaleKind::Ue8m0Packed => blocks.div_ceil(4) * 4,
    }
}

/// Casts one row. `codes` gets `hidden` bytes and `scales` gets `scale_row_bytes(kind, hidden)`, row-major.
///
/// # Safety
/// `src` is valid for reads of `hidden` elements of `ty`, the outputs for writes of the sizes above; they do not
/// overlap. No alignment is assumed.
pub unsafe fn cast_row_fp8(
    src: *const u8,
    ty: RowType,
    hidden: usize,
    kind: ScaleKind,
    codes: *mut u8,
    scales: *mut u8,
) {
    // SAFETY: the caller's promises are those of both versions, and the processor has been asked.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if super::has_avx2() {
            return match ty {
                RowType::Bf16 => vector::cast_row::<super::avx2::Bf16>(src, ty, hidden, kind, codes, scales),
                RowType::Fp16 => vector::cast_row::<super::avx2::Fp16>(src, ty, hidden, kind, codes, scales),
                RowType::Fp32 => vector::cast_row::<super::avx2::Fp32>(src, ty, hidden, kind, codes, scales),
            };
        }
        cast_row_scalar(src, ty, hidden, kind, codes, scales);
    }
}

/// The statement of the cast; as [`cast_row_fp8`].
///
/// # Safety
/// As [`cast_row_fp8`].
pub unsafe fn cast_row_scalar(
    src: *const u8,
    ty: RowType,
    hidden: usize,
    kind: ScaleKind,
    codes: *mut u8,
    scales: *mut u8,
) {
    for (block, first) in (0..hidden).step_by(CAST_BLOCK).enumerate() {
        let end = hidden.min(first + CAST_BLOCK);
        // SAFETY: first..end lies in the row, block in the scales.
        unsafe {
            let scale = Scale::new(kind, amax_bits(src, ty, first, end));
            scale.store(scales, block);
            encode(src, ty, first, end, scale.factor, codes);
        }
    }
    // SAFETY: as the caller promises.
    unsafe { clear_unused(kind, hidden, scales) };
}

/// What a block is multiplied by, and what is stored to undo it.
struct Scale {
    factor: f32,
    stored: Stored,
}

enum Stored {
    Float(f32),
    Exponent(u8),
}

impl Scale {
    /// `amax` is given by its bits, which order like the magnitudes they stand for.
    fn new(kind: ScaleKind, amax_bits: u32) -> Scale {
        let amax = f32::from_bits(amax_bits).max(SMALLEST_AMAX);
        let exact = amax * (1.0 / E4M3_MAX);
        if kind == ScaleKind::Fp32 {
            return Scale { factor: E4M3_MAX / amax, stored: Stored::Float(exact) };
        }
        // The smallest power of two not below `exact`. From 1e-4 to the largest f32 its biased exponent lies in
        // 105..=247, so neither it nor the reciprocal leaves the normal numbers.
        let exponent = (exact.to_bits() >> 23) + u32::from(exact.to_bits() & 0x7F_FFFF != 0);
        let stored = match kind {
            ScaleKind::Ue8m0Packed => Stored::Exponent(exponent as u8),
            _ => Stored::Float(f32::from_bits(exponent << 23)),
        };
        Scale { factor: f32::from_bits((254 - exponent) << 23), stored }
    }

    unsafe fn store(&self, scales: *mut u8, block: usize) {
        // SAFETY: the caller's row of scales has room for `block`; no alignment is assumed.
        unsafe {
            match self.stored {
                Stored::Float(scale) => scales.cast::<f32>().add(block).write_unaligned(scale),
                Stored::Exponent(byte) => scales.add(block).write(byte),
            }
        }
    }
}

unsafe fn clear_unused(kind: ScaleKind, hidden: usize, scales: *mut u8) {
    if kind == ScaleKind::Ue8m0Packed {
        for byte in hidden.div_ceil(CAST_BLOCK)..scale_row_bytes(kind, hidden) {
            // SAFETY: below the size of the row of scales.
            unsafe { scales.add(byte).write(0) };
        }
    }
}

/// The largest finite magnitude among the elements `first..end`, 0 if there is none.
unsafe fn amax_bits(src: *const u8, ty: RowType, first: usize, end: usize) -> u32 {
    let mut amax = 0;
    for index in first..end {
        // SAFETY: the caller's row has `end` elements.
        let abs = unsafe { ty.load(src, index) }.to_bits() & 0x7FFF_FFFF;
        if abs < F32_INF {
            amax = amax.max(abs);
        }
    }
    amax
}

unsafe fn encode(src: *const u8, ty: RowType, first: usize, end: usize, factor: f32, codes: *mut u8) {
    for index in first..end {
        // SAFETY: the caller's rows have `end` elements.
        unsafe { codes.add(index).write(f32_to_e4m3(ty.load(src, index) * factor)) };
    }
}

#[cfg(target_arch = "x86_64")]
mod vector {
    use super::super::avx2::{e4m3_magnitudes, Lanes};
    use super::{amax_bits, clear_unused, encode, RowType, Scale, ScaleKind, CAST_BLOCK, F32_INF};
    use std::arch::x86_64::*;

    /// Elements handled together; the rest of a block is left to the scalar version.
    const STEP: usize = 32;

    #[target_feature(enable = "avx2,fma,f16c")]
    pub unsafe fn cast_row<T: Lanes>(
        src: *const u8,
        ty: RowType,
        hidden: usize,
        kind: ScaleKind,
        codes: *mut u8,
        scales: *mut u8,
    ) {
        for (block, first) in (0..hidden).step_by(CAST_BLOCK).enumerate() {
            let end = hidden.min(first + CAST_BLOCK);
            let mut middle = end - (end - first) % STEP;
            // SAFETY: first..end lies in the row, block in the scales.
            unsafe {
                let mut amax = largest_bits::<T>(src, first, middle);
                if amax >= F32_INF {
                    // Infinities and NaN are rare enough for the scalar version.
                    middle = first;
                    amax = 0;
                }
                let scale = Scale::new(kind, amax.max(amax_bits(src, ty, middle, end)));
                scale.store(scales, block);
                encode_finite::<T>(src, first, middle, scale.factor, codes);
                encode(src, ty, middle, end, scale.factor, codes);
            }
        }
        // SAFETY: as the caller promises.
        unsafe { clear_unused(kind, hidden, scales) };
    }

    /// The bits of the largest magnitude, infinities and NaN included.
    #[inline(always)]
    unsafe fn largest_bits<T: Lanes>(src: *const u8, first: usize, middle: usize) -> u32 {
        // SAFETY: steps of 16 elements up to `middle` lie in the row.
        unsafe {
            let no_sign = _mm256_set1_epi32(0x7FFF_FFFF);
            let mut largest = [_mm256_setzero_si256(); 2];
            let mut index = first;
            while index < middle {
                let values = T::load(src.add(index * T::BYTES));
                for (largest, value) in largest.iter_mut().zip(&values) {
                    let abs = _mm256_and_si256(_mm256_castps_si256(*value), no_sign);
                    *largest = _mm256_max_epi32(*largest, abs);
                }
                index += 16;
            }
            let eight = _mm256_max_epi32(largest[0], largest[1]);
            let four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256::<1>(eight));
            let two = _mm_max_epi32(four, _mm_shuffle_epi32::<0b01_00_11_10>(four));
            let one = _mm_max_epi32(two, _mm_shuffle_epi32::<0b10_11_00_01>(two));
            _mm_cvtsi128_si32(one) as u32
        }
    }

    /// Encodes finite values. None comes near saturation: the largest is 448, but for two roundings of the product.
    #[inline(always)]
    unsafe fn encode_finite<T: Lanes>(
        src: *const u8,
        first: usize,
        middle: usize,
        factor: f32,
        codes: *mut u8,
    ) {
        // SAFETY: steps of 32 elements up to `middle` lie in both rows.
        unsafe {
            let factor = _mm256_set1_ps(factor);
            // Packing works inside 128-bit halves; this undoes what it does to the groups of four.
            let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
            let sign = _mm256_set1_epi8(i8::MIN);
            let mut index = first;
            while index < middle {
                let mut signs = [_mm256_setzero_si256(); 4];
                let mut magnitudes = signs;
                for n in 0..4 {
                    let x = T::load_ordered(src.add((index + 8 * n) * T::BYTES));
                    signs[n] = _mm256_castps_si256(x);
                    magnitudes[n] = e4m3_magnitudes(_mm256_mul_ps(x, factor));
                }
                // Saturation keeps the sign, and magnitudes are too small for it.
                let bytes = _mm256_or_si256(_mm256_and_si256(pack(&signs), sign), pack(&magnitudes));
                _mm256_storeu_si256(codes.add(index).cast(), _mm256_permutevar8x32_epi32(bytes, order));
                index += STEP;
            }
        }
    }

    /// Narrows 32 numbers to bytes, saturating; inlined where AVX2 is enabled.
    #[inline(always)]
    unsafe fn pack(words: &[__m256i; 4]) -> __m256i {
        // SAFETY: register arithmetic only.
        unsafe {
            let low = _mm256_packs_epi32(words[0], words[1]);
            _mm256_packs_epi16(low, _mm256_packs_epi32(words[2], words[3]))
        }
    }
}
