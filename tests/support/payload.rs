//! Rows whose content tells where they come from.

use crate::reference::numbers::{self, element_bytes, encode_row};

/// What rows are filled with. `step` changes the content from one operation to the next.
#[derive(Clone, Copy, Debug)]
pub enum Payload {
    /// Small integers, exact in every type; the first elements name rank and token.
    Plain { step: usize },
    /// Finite numbers of many sizes.
    Wild { seed: u64 },
    /// Also zeros of both signs, infinities, NaNs and subnormals.
    Special { seed: u64 },
}

/// A small generator of our own, so that a seed means the same rows for ever.
pub struct Noise(pub u64);

impl Noise {
    pub fn new(parts: &[u64]) -> Noise {
        let mut noise = Noise(0x9E37_79B9_7F4A_7C15);
        for &part in parts {
            noise.0 = noise.0.wrapping_add(part).wrapping_mul(0xD129_0B3A_5C8E_3F75);
            noise.next();
        }
        noise
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    /// A finite number between about 2^-12 and 2^12, of either sign.
    pub fn number(&mut self) -> f32 {
        let bits = self.next();
        let mantissa = 1.0 + (bits & 0xFFFF) as f32 / 65536.0;
        let size = mantissa * 2f32.powi((bits >> 16 & 15) as i32 - 8);
        if bits >> 32 & 1 == 1 {
            -size
        } else {
            size
        }
    }

    pub fn special(&mut self) -> f32 {
        match self.below(24) {
            0 => 0.0,
            1 => -0.0,
            2 => f32::INFINITY,
            3 => f32::NEG_INFINITY,
            4 => f32::NAN,
            5 => f32::from_bits(self.next() as u32 & 0x807F_FFFF),
            6 => f32::from_bits(0xFF80_0001 | self.next() as u32),
            7 => self.number() * 1e30,
            8 => self.number() * 1e-30,
            9 => self.number() * 1e-6,
            _ => self.number(),
        }
    }
}

impl Payload {
    /// One row of `hidden` elements of `dtype`, as bytes.
    pub fn row(self, dtype: u32, rank: usize, token: usize, hidden: usize) -> Vec<u8> {
        if dtype == numbers::OPAQUE || dtype == numbers::FP8 {
            let salt = match self {
                Payload::Plain { step } => step as u64,
                Payload::Wild { seed } | Payload::Special { seed } => seed,
            };
            let mut noise = Noise::new(&[salt, rank as u64, token as u64]);
            return (0..hidden * element_bytes(dtype)).map(|_| noise.next() as u8).collect();
        }
        encode_raw(dtype, &self.values(rank, token, hidden))
    }

    pub fn values(self, rank: usize, token: usize, hidden: usize) -> Vec<f32> {
        match self {
            Payload::Plain { step } => (0..hidden)
                .map(|h| match h {
                    0 => rank as f32,
                    1 => (token % 128) as f32,
                    2 => (token / 128 % 128) as f32,
                    3 => ((token / 16384 + step) % 128) as f32,
                    _ => ((31 * rank + 7 * token + h + 5 * step) % 32) as f32 - 16.0,
                })
                .collect(),
            Payload::Wild { seed } => {
                let mut noise = Noise::new(&[seed, rank as u64, token as u64]);
                (0..hidden).map(|_| noise.number()).collect()
            }
            Payload::Special { seed } => {
                let mut noise = Noise::new(&[seed, rank as u64, token as u64]);
                (0..hidden).map(|_| noise.special()).collect()
            }
        }
    }
}

/// As `encode_row`, but a NaN keeps a payload of its own, so that a result that copies it is seen.
pub fn encode_raw(dtype: u32, values: &[f32]) -> Vec<u8> {
    let mut bytes = encode_row(dtype, values);
    let size = element_bytes(dtype);
    for (element, value) in bytes.chunks_mut(size).zip(values) {
        if value.is_nan() && size > 1 {
            let odd: u32 = match dtype {
                numbers::BF16 => 0xFFC3,
                numbers::FP16 => 0xFE05,
                _ => 0xFFC0_1234,
            };
            element.copy_from_slice(&odd.to_le_bytes()[..size]);
        }
    }
    bytes
}
