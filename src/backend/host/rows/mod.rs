//! Arithmetic and movement of single rows: no ranks, no windows, no signals.
//!
//! These functions are the reference for every number the library produces, so each has a scalar version that
//! states it, and a vector version that must give the same bytes. They assume the default floating-point
//! environment (round to nearest even, no flush to zero).
//!
//! Rows are given by raw pointers because they lie in memory shared between processes. Row sizes are multiples of
//! 16 bytes and rows are 16-byte aligned; nothing here relies on more.

#[cfg(target_arch = "x86_64")]
mod avx2;
pub mod cast;
pub mod convert;
pub mod copy;
pub mod sum;

#[cfg(test)]
mod tests;

pub use cast::{cast_row_fp8, scale_row_bytes, ScaleKind, CAST_BLOCK};
pub use convert::RowType;
pub use copy::{copy_fence, copy_row, copy_row_to_many, zero_row, Stream};
pub use sum::{sum_row, Term};

/// Whether the vector versions may run. The standard library asks the processor once and remembers.
#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
}
