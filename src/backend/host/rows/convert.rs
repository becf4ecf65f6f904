//! Element types and their conversions to and from `f32`.
//!
//! Every conversion to a narrower type rounds to nearest even and keeps subnormals; BF16 and FP16 overflow to
//! infinity, FP8 E4M3 saturates. A NaN becomes the type's canonical quiet NaN, whatever its sign and payload.

pub const BF16_NAN: u16 = 0x7FFF;
pub const FP16_NAN: u16 = 0x7FFF;
pub const FP32_NAN: u32 = 0x7FFF_FFFF;
pub const E4M3_NAN: u8 = 0x7F;
/// The largest finite E4M3 value, code 0x7E.
pub const E4M3_MAX: f32 = 448.0;

const F32_ABS: u32 = 0x7FFF_FFFF;
const F32_INF: u32 = 0x7F80_0000;

/// The element type of a row that takes part in arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowType {
    Bf16,
    Fp16,
    Fp32,
}

impl RowType {
    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            RowType::Bf16 | RowType::Fp16 => 2,
            RowType::Fp32 => 4,
        }
    }

    /// Element `index` of `row`, exactly.
    ///
    /// # Safety
    /// `row` is valid for reads of `index + 1` elements.
    #[inline]
    pub unsafe fn load(self, row: *const u8, index: usize) -> f32 {
        // SAFETY: the caller vouches for the element; the read assumes no alignment.
        unsafe {
            match self {
                RowType::Bf16 => bf16_to_f32(row.cast::<u16>().add(index).read_unaligned()),
                RowType::Fp16 => fp16_to_f32(row.cast::<u16>().add(index).read_unaligned()),
                RowType::Fp32 => row.cast::<f32>().add(index).read_unaligned(),
            }
        }
    }

    /// Rounds `value` once and writes it as element `index` of `row`.
    ///
    /// # Safety
    /// `row` is valid for writes of `index + 1` elements.
    #[inline]
    pub unsafe fn store(self, row: *mut u8, index: usize, value: f32) {
        // SAFETY: the caller vouches for the element; the write assumes no alignment.
        unsafe {
            match self {
                RowType::Bf16 => row.cast::<u16>().add(index).write_unaligned(f32_to_bf16(value)),
                RowType::Fp16 => row.cast::<u16>().add(index).write_unaligned(f32_to_fp16(value)),
                RowType::Fp32 => row.cast::<u32>().add(index).write_unaligned(f32_to_fp32(value)),
            }
        }
    }
}

#[inline]
pub const fn bf16_to_f32(code: u16) -> f32 {
    f32::from_bits((code as u32) << 16)
}

#[inline]
pub const fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    if bits & F32_ABS > F32_INF {
        return BF16_NAN;
    }
    // Adding just under half of the last kept place, plus that place, carries exactly when rounding goes up; out
    // of the largest finite value the carry gives infinity.
    ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) as u16
}

/// The bits of `value`, with NaN made canonical.
#[inline]
pub const fn f32_to_fp32(value: f32) -> u32 {
    let bits = value.to_bits();
    if bits & F32_ABS > F32_INF {
        FP32_NAN
    } else {
        bits
    }
}

#[inline]
pub fn fp16_to_f32(code: u16) -> f32 {
    let sign = u32::from(code & 0x8000) << 16;
    let rest = u32::from(code & 0x7FFF);
    let magnitude = match rest >> 10 {
        0 => (rest as f32 * f32::from_bits((127 - 24) << 23)).to_bits(), // subnormal: multiples of 2^-24
        31 => F32_INF | (rest & 0x3FF) << 13,
        _ => (rest << 13) + ((127 - 15) << 23),
    };
    f32::from_bits(sign | magnitude)
}

#[inline]
pub fn f32_to_fp16(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16) as u16 & 0x8000;
    let abs = bits & F32_ABS;
    if abs > F32_INF {
        return FP16_NAN;
    }
    let magnitude = if abs >= 0x477F_F000 {
        0x7C00 // from 65520, halfway between the largest finite value and the next power of two
    } else if abs >= (127 - 14) << 23 {
        (abs + 0xFFF + ((abs >> 13) & 1) - ((127 - 15) << 23)) >> 13
    } else {
        // Beside 0.5 the last place of an f32 is 2^-24, that of FP16 subnormals: the addition rounds.
        (f32::from_bits(abs) + 0.5).to_bits() - 0.5f32.to_bits()
    };
    sign | magnitude as u16
}

/// FP8 E4M3 (no infinities, maximum 448). Larger values and infinities give the maximum, -0 keeps its sign.
#[inline]
pub fn f32_to_e4m3(value: f32) -> u8 {
    let bits = value.to_bits();
    let sign = (bits >> 24) as u8 & 0x80;
    let abs = bits & F32_ABS;
    if abs > F32_INF {
        return E4M3_NAN;
    }
    let abs = abs.min(E4M3_MAX.to_bits());
    let magnitude = if abs >= (127 - 6) << 23 {
        (abs + 0x7_FFFF + ((abs >> 20) & 1) - ((127 - 7) << 23)) >> 20
    } else {
        // Beside 2^14 the last place of an f32 is 2^-9, that of E4M3 subnormals: the addition rounds.
        (f32::from_bits(abs) + 16384.0).to_bits() - 16384f32.to_bits()
    };
    sign | magnitude as u8
}

#[inline]
pub fn e4m3_to_f32(code: u8) -> f32 {
    let sign = u32::from(code & 0x80) << 24;
    let rest = u32::from(code & 0x7F);
    let magnitude = match rest {
        0x7F => FP32_NAN,
        0..=7 => (rest as f32 * f32::from_bits((127 - 9) << 23)).to_bits(),
        _ => (rest << 20) + ((127 - 7) << 23),
    };
    f32::from_bits(sign | magnitude)
}
