//! Number formats, slowly: every conversion goes through f64, where each step of it is exact or a single rounding.

/// Element formats by their number in the ABI.
pub const BF16: u32 = 1;
pub const FP16: u32 = 2;
pub const FP32: u32 = 3;
pub const FP8: u32 = 4;
pub const OPAQUE: u32 = 5;

/// Scale formats by their number in the ABI.
pub const SCALE_NONE: u32 = 0;
pub const SCALE_FP32: u32 = 1;
pub const SCALE_POW2: u32 = 2;
pub const SCALE_UE8M0: u32 = 3;
pub const SCALE_OPAQUE: u32 = 4;

pub fn element_bytes(dtype: u32) -> usize {
    match dtype {
        BF16 | FP16 => 2,
        FP32 => 4,
        FP8 | OPAQUE => 1,
        _ => panic!("no element type {dtype}"),
    }
}

/// Exponent bits, mantissa bits.
fn fields(dtype: u32) -> (i32, i32) {
    match dtype {
        BF16 => (8, 7),
        FP16 => (5, 10),
        FP8 => (4, 3),
        _ => panic!("no short float {dtype}"),
    }
}

/// The value of an element. Any NaN becomes Rust's NaN.
pub fn decode(dtype: u32, bits: u32) -> f32 {
    if dtype == FP32 {
        return f32::from_bits(bits);
    }
    let (e_bits, m_bits) = fields(dtype);
    let bias = (1 << (e_bits - 1)) - 1;
    let sign = if bits >> (e_bits + m_bits) & 1 == 1 { -1.0 } else { 1.0 };
    let e = (bits >> m_bits) as i32 & ((1 << e_bits) - 1);
    let m = bits & ((1 << m_bits) - 1);
    let top = (1 << e_bits) - 1;
    if dtype == FP8 {
        if e == top && m == 7 {
            return f32::NAN;
        }
    } else if e == top {
        return if m == 0 { sign as f32 * f32::INFINITY } else { f32::NAN };
    }
    let unit = 2f64.powi(-m_bits);
    let value = if e == 0 {
        f64::from(m) * unit * 2f64.powi(1 - bias)
    } else {
        (1.0 + f64::from(m) * unit) * 2f64.powi(e - bias)
    };
    (sign * value) as f32
}

/// The exponent of the leading bit. Every nonzero f32 is a normal f64.
fn exponent(x: f64) -> i32 {
    ((x.to_bits() >> 52 & 2047) as i32) - 1023
}

/// The element nearest to `x`, ties to even. Too large is infinity (FP8: the largest value); NaN is canonical.
pub fn encode(dtype: u32, x: f32) -> u32 {
    if dtype == FP32 {
        return if x.is_nan() { 0x7FFF_FFFF } else { x.to_bits() };
    }
    let (e_bits, m_bits) = fields(dtype);
    let all = (1u32 << (e_bits + m_bits)) - 1;
    if x.is_nan() {
        return all;
    }
    let sign = u32::from(x.is_sign_negative()) << (e_bits + m_bits);
    let bias = (1 << (e_bits - 1)) - 1;
    let smallest = 1 - bias;
    let size = f64::from(x.abs());
    if size == 0.0 {
        return sign;
    }
    let infinity = ((1u32 << e_bits) - 1) << m_bits;
    let too_large = if dtype == FP8 { 0x7E } else { infinity };
    if size.is_infinite() {
        return sign | too_large;
    }
    let e = exponent(size).max(smallest);
    let quantum = 2f64.powi(e - m_bits);
    let rounded = (size / quantum).round_ties_even() * quantum;
    let largest = if dtype == FP8 { 448.0 } else { (2.0 - 2f64.powi(-m_bits)) * 2f64.powi(bias) };
    if rounded > largest {
        return sign | too_large;
    }
    if rounded < 2f64.powi(smallest) {
        return sign | (rounded / 2f64.powi(smallest - m_bits)) as u32;
    }
    let e = exponent(rounded);
    let m = ((rounded / 2f64.powi(e) - 1.0) * 2f64.powi(m_bits)) as u32;
    sign | ((e + bias) as u32) << m_bits | m
}

pub fn decode_row(dtype: u32, bytes: &[u8]) -> Vec<f32> {
    let size = element_bytes(dtype);
    bytes
        .chunks(size)
        .map(|element| {
            let mut bits = [0u8; 4];
            bits[..size].copy_from_slice(element);
            decode(dtype, u32::from_le_bytes(bits))
        })
        .collect()
}

pub fn encode_row(dtype: u32, values: &[f32]) -> Vec<u8> {
    let size = element_bytes(dtype);
    values.iter().flat_map(|&value| encode(dtype, value).to_le_bytes()[..size].to_vec()).collect()
}

/// Bytes of one row's scales, without padding.
pub fn scale_bytes(scale: u32, hidden: usize, block: usize) -> usize {
    let blocks = hidden.div_ceil(128);
    match scale {
        SCALE_NONE => 0,
        SCALE_FP32 | SCALE_POW2 => blocks * 4,
        SCALE_UE8M0 => blocks.div_ceil(4) * 4,
        SCALE_OPAQUE => block,
        _ => panic!("no scale type {scale}"),
    }
}

/// One row cast to FP8: its bytes and its scales.
pub fn cast_row(values: &[f32], scale: u32) -> (Vec<u8>, Vec<u8>) {
    let mut row = Vec::new();
    let mut scales = Vec::new();
    for block in values.chunks(128) {
        let mut amax = 0f32;
        for value in block {
            if value.is_finite() && value.abs() > amax {
                amax = value.abs();
            }
        }
        let a = if amax > 1e-4 { amax } else { 1e-4 };
        let by_448 = a * (1.0f32 / 448.0f32);
        let factor = if scale == SCALE_FP32 {
            scales.extend(by_448.to_le_bytes());
            f64::from(448.0f32 / a)
        } else {
            let bits = by_448.to_bits();
            let mut e = (bits >> 23) & 255;
            if bits & 0x7F_FFFF != 0 {
                e += 1;
            }
            let e = e.clamp(1, 254);
            if scale == SCALE_POW2 {
                scales.extend((2f64.powi(e as i32 - 127) as f32).to_le_bytes());
            } else {
                scales.push(e as u8);
            }
            2f64.powi(127 - e as i32)
        };
        for &value in block {
            // The f64 product of two floats is exact, so this is the product rounded once to f32.
            row.push(encode(FP8, (f64::from(value) * factor) as f32) as u8);
        }
    }
    while scales.len() % 4 != 0 {
        scales.push(0);
    }
    (row, scales)
}
