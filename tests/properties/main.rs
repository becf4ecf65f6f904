//! Random programs of operations on one buffer, on all ranks at once, against the naive model: every output byte.
//!
//! PROPTEST_CASES sets the number of programs per test, PROPTEST_RNG_SEED their seed.

#![allow(clippy::unwrap_used, clippy::expect_used)]
#![allow(clippy::macro_metavars_in_unsafe)] // ffi! is short for an unsafe call, nothing else

#[path = "../reference/mod.rs"]
mod reference;
#[path = "../support/mod.rs"]
mod support;

mod formats;
mod generate;
mod model;
mod program;
mod rank_counts;
mod sequences;
mod templates;
