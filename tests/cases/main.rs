//! Public reports about expert-parallel libraries as tests, one or more per report: the number in a test's name is
//! the one in tests/README.md, which names the reports.

#![allow(clippy::unwrap_used, clippy::expect_used)]
#![allow(clippy::macro_metavars_in_unsafe)] // ffi! is short for an unsafe call, nothing else

#[path = "../reference/mod.rs"]
mod reference;
#[path = "../support/mod.rs"]
mod support;

mod capacity;
mod empty_ranks;
mod faults;
mod lifetime;
mod order;
mod rank_counts;
mod readme;
mod routing;
mod scales;
mod shapes;
mod sizes;
mod weights;
