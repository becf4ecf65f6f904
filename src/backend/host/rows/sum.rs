//! Sums of rows: FP32 inside, rounded once at the end, in the order given.

use super::convert::RowType;
use super::copy::Stream;

/// One row to be added, unweighted or multiplied by a weight in the same rounding as the addition.
#[derive(Clone, Copy, Debug)]
pub struct Term {
    pub row: *const u8,
    pub weight: Option<f32>,
}

/// Writes to `out` the sum of `terms`, all rows being of type `ty` with `hidden` elements.
///
/// Each element starts as +0, as that of the one bias given, or as the FP32 sum of both; every term is then added
/// in order, `acc + x` or `fma(weight, x, acc)`; the result is rounded once. So a single -0 comes out as +0, and
/// no terms without bias give zeros. With [`Stream::Past`] call [`copy_fence`](super::copy_fence) before telling
/// anyone that the row is there.
///
/// # Safety
/// Every row and bias is valid for reads of `hidden` elements, `out` for writes of as many and 16-byte aligned;
/// `hidden` elements are a multiple of 16 bytes; `out` overlaps none of the others.
pub unsafe fn sum_row(
    terms: &[Term],
    bias: [Option<*const u8>; 2],
    ty: RowType,
    hidden: usize,
    out: *mut u8,
    stream: Stream,
) {
    // SAFETY: the caller's promises are those of both versions, and the processor has been asked.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if super::has_avx2() {
            use super::avx2::{Bf16, Fp16, Fp32};
            return match ty {
                RowType::Bf16 => vector::sum_row::<Bf16>(terms, bias, ty, hidden, out, stream),
                RowType::Fp16 => vector::sum_row::<Fp16>(terms, bias, ty, hidden, out, stream),
                RowType::Fp32 => vector::sum_row::<Fp32>(terms, bias, ty, hidden, out, stream),
            };
        }
        let _ = stream;
        sum_range_scalar(terms, bias, ty, 0..hidden, out);
    }
}

/// The statement of the sum, for some of the elements; as [`sum_row`].
///
/// # Safety
/// As [`sum_row`]; `range` ends at or before `hidden`.
pub unsafe fn sum_range_scalar(
    terms: &[Term],
    bias: [Option<*const u8>; 2],
    ty: RowType,
    range: std::ops::Range<usize>,
    out: *mut u8,
) {
    for index in range {
        // SAFETY: the index lies in every row.
        unsafe {
            let mut sum = match bias {
                [None, None] => 0.0,
                [Some(one), None] | [None, Some(one)] => ty.load(one, index),
                [Some(first), Some(second)] => ty.load(first, index) + ty.load(second, index),
            };
            for term in terms {
                let x = ty.load(term.row, index);
                sum = match term.weight {
                    None => sum + x,
                    Some(weight) => weight.mul_add(x, sum),
                };
            }
            ty.store(out, index, sum);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod vector {
    use super::super::avx2::Lanes;
    use super::super::copy::Stream;
    use super::{sum_range_scalar, RowType, Term};
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx2,fma,f16c")]
    pub unsafe fn sum_row<T: Lanes>(
        terms: &[Term],
        bias: [Option<*const u8>; 2],
        ty: RowType,
        hidden: usize,
        out: *mut u8,
        stream: Stream,
    ) {
        debug_assert!(out.addr().is_multiple_of(16) && (hidden * T::BYTES).is_multiple_of(16));
        // SAFETY: the ranges lie in the row. Streaming stores need 32-byte alignment: rows are 16-byte aligned, so
        // at most one 16-byte piece lies before it, and all steps are multiples of 32 bytes.
        unsafe {
            let first = match stream {
                Stream::Past => (out.align_offset(32) / T::BYTES).min(hidden),
                Stream::Cached => 0,
            };
            sum_range_scalar(terms, bias, ty, 0..first, out);
            let end = match stream {
                Stream::Past => steps::<T, true>(terms, bias, first, hidden, out),
                Stream::Cached => steps::<T, false>(terms, bias, first, hidden, out),
            };
            sum_range_scalar(terms, bias, ty, end..hidden, out);
        }
    }

    /// Sums from `first` on in steps of 64, then of 16 elements, and returns where those end.
    #[inline(always)]
    unsafe fn steps<T: Lanes, const STREAM: bool>(
        terms: &[Term],
        bias: [Option<*const u8>; 2],
        first: usize,
        hidden: usize,
        out: *mut u8,
    ) -> usize {
        let mut index = first;
        // SAFETY: every step ends within the row.
        unsafe {
            // With few rows the two halves go in step: the more places there are to read ahead of, the more the
            // prefetchers get from memory.
            if terms.len() <= 2 && hidden >= 1024 {
                let half = (hidden - first) / 128 * 64;
                while index < first + half {
                    step::<T, 4, STREAM>(terms, bias, index * T::BYTES, out);
                    step::<T, 4, STREAM>(terms, bias, (index + half) * T::BYTES, out);
                    index += 64;
                }
                index += half;
            }
            while index + 64 <= hidden {
                step::<T, 4, STREAM>(terms, bias, index * T::BYTES, out);
                index += 64;
            }
            while index + 16 <= hidden {
                step::<T, 1, STREAM>(terms, bias, index * T::BYTES, out);
                index += 16;
            }
        }
        index
    }

    /// `N` times 16 elements, held in registers over all terms.
    #[inline(always)]
    unsafe fn step<T: Lanes, const N: usize, const STREAM: bool>(
        terms: &[Term],
        bias: [Option<*const u8>; 2],
        at: usize,
        out: *mut u8,
    ) {
        // SAFETY: `at` and the `N` pieces behind it lie in every row.
        unsafe {
            let mut sums = [[_mm256_setzero_ps(); 2]; N];
            match bias {
                [None, None] => {}
                [Some(row), None] | [None, Some(row)] => {
                    for (n, sum) in sums.iter_mut().enumerate() {
                        *sum = T::load(row.add(at + n * 16 * T::BYTES));
                    }
                }
                [Some(first), Some(second)] => {
                    for (n, sum) in sums.iter_mut().enumerate() {
                        *sum = T::load(first.add(at + n * 16 * T::BYTES));
                    }
                    add::<T, N>(&mut sums, second.add(at));
                }
            }
            for term in terms {
                match term.weight {
                    None => add::<T, N>(&mut sums, term.row.add(at)),
                    Some(weight) => {
                        let w = _mm256_set1_ps(weight);
                        for (n, sum) in sums.iter_mut().enumerate() {
                            let x = T::load(term.row.add(at + n * 16 * T::BYTES));
                            sum[0] = _mm256_fmadd_ps(w, x[0], sum[0]);
                            sum[1] = _mm256_fmadd_ps(w, x[1], sum[1]);
                        }
                    }
                }
            }
            for (n, sum) in sums.iter().enumerate() {
                T::store::<STREAM>(out.add(at + n * 16 * T::BYTES), *sum);
            }
        }
    }

    #[inline(always)]
    unsafe fn add<T: Lanes, const N: usize>(sums: &mut [[__m256; 2]; N], row: *const u8) {
        // SAFETY: `N` pieces from `row` on lie in the row.
        unsafe {
            for (n, sum) in sums.iter_mut().enumerate() {
                let x = T::load(row.add(n * 16 * T::BYTES));
                sum[0] = _mm256_add_ps(sum[0], x[0]);
                sum[1] = _mm256_add_ps(sum[1], x[1]);
            }
        }
    }
}
