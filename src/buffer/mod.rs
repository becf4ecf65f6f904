//! The manager: owns a rank's memory, windows and handles, decides what an operation may do, and lets a backend do it.
//!
//! `comm` joins ranks, `create` and `reset` agree among them, `state` is what one buffer knows, `dispatch`, `arrival`,
//! `combine` and `barrier` are the operations, `device` their other half on CUDA: the checks and the choice of windows are
//! the same, and what the host backend does and awaits becomes one kernel. `failure` keeps what went wrong, `statistics`
//! and `trace` what happened.

mod arrival;
mod barrier;
mod books;
mod combine;
mod comm;
mod create;
mod device;
mod dispatch;
mod failure;
mod handle;
mod owned;
mod reset;
mod reset_device;
mod state;
mod statistics;
#[cfg(test)]
mod tests;
mod trace;

pub use arrival::Arrival;
pub use comm::{Backend, Comm, CommConfig, Meeting};
pub use create::Sizes;
pub use handle::{Counts, Handle};
pub use state::Buffer;
pub use statistics::{Totals, Traffic};
