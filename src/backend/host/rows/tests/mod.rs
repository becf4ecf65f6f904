//! Every expected value comes from arithmetic written here, in integers or `f64`, not from the code under test.

mod cast;
mod convert;
mod copy;
mod speed;
mod sum;

/// Bytes aligned to 64, plus a chosen offset.
pub struct Row {
    lines: Vec<Line>,
    offset: usize,
    bytes: usize,
}

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line {
    _bytes: [u8; 64],
}

impl Row {
    pub fn new(bytes: usize, offset: usize) -> Row {
        Row { lines: vec![Line { _bytes: [0xA5; 64] }; (offset + bytes).div_ceil(64) + 1], offset, bytes }
    }

    pub fn of(content: &[u8], offset: usize) -> Row {
        let mut row = Row::new(content.len(), offset);
        row.bytes_mut().copy_from_slice(content);
        row
    }

    pub fn ptr(&self) -> *const u8 {
        self.lines.as_ptr().cast::<u8>().wrapping_add(self.offset)
    }

    pub fn ptr_mut(&mut self) -> *mut u8 {
        self.lines.as_mut_ptr().cast::<u8>().wrapping_add(self.offset)
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `new` allocated offset + bytes.
        unsafe { std::slice::from_raw_parts(self.ptr(), self.bytes) }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: `new` allocated offset + bytes.
        unsafe { std::slice::from_raw_parts_mut(self.ptr_mut(), self.bytes) }
    }

    /// Whether all bytes of the allocation outside the row still have their first value.
    pub fn surroundings_untouched(&self) -> bool {
        let total = self.lines.len() * 64;
        // SAFETY: the whole allocation.
        let all = unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast::<u8>(), total) };
        all[..self.offset].iter().chain(&all[self.offset + self.bytes..]).all(|&byte| byte == 0xA5)
    }
}

/// A small generator of reproducible numbers (xorshift64*).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 16) % limit
    }

    /// Any bits at all, so also subnormals, infinities and NaN.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| (self.next() >> 32) as u8).collect()
    }
}

/// A binary format with `exponent` and `mantissa` bits below the sign.
#[derive(Clone, Copy)]
pub struct Format {
    pub exponent: u32,
    pub mantissa: u32,
}

pub const BF16: Format = Format { exponent: 8, mantissa: 7 };
pub const FP16: Format = Format { exponent: 5, mantissa: 10 };
pub const E4M3: Format = Format { exponent: 4, mantissa: 3 };

impl Format {
    /// The value of a magnitude by the textbook formula; codes past the finite ones continue the pattern.
    pub fn value(self, magnitude: u32) -> f64 {
        let bias = (1i32 << (self.exponent - 1)) - 1;
        let exponent = (magnitude >> self.mantissa) as i32;
        let fraction = f64::from(magnitude & ((1 << self.mantissa) - 1)) / f64::from(1u32 << self.mantissa);
        if exponent == 0 {
            fraction * 2f64.powi(1 - bias)
        } else {
            (1.0 + fraction) * 2f64.powi(exponent - bias)
        }
    }

    /// The magnitude nearest to `x >= 0`, ties to even, by bisection over all values; at most `last`.
    pub fn nearest(self, x: f64, last: u32) -> u32 {
        let (mut low, mut high) = (0, last + 1);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.value(middle) <= x {
                low = middle;
            } else {
                high = middle;
            }
        }
        let (below, above) = (x - self.value(low), self.value(low + 1) - x);
        let up = above < below || (above == below && low % 2 == 1);
        (low + u32::from(up)).min(last)
    }
}
