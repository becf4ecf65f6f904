//! The CUDA backend: rows in device memory, moved and added by kernels that the calls enqueue.
//!
//! `comm` is a rank's device, `share` how it comes by the memory of others, `memory` what a buffer has there, `handle` what a
//! routing has, `kernels` the embedded images, `names` which kernel does what, `params` the structs they take; `dispatch` and
//! `combine` fill and launch, `slotted` and `slotted_combine` for the slotted layouts; `report`, `statistics` and `trace` are
//! what kernels tell, `clock` is how their time is read.

mod clock;
mod combine;
mod comm;
mod dispatch;
mod handle;
mod kernels;
mod memory;
mod names;
mod params;
mod report;
mod reset;
mod share;
mod slotted;
mod slotted_combine;
mod statistics;
mod trace;

pub use combine::{CombineCall, CombineInput, CombineOutput};
pub use comm::{Place, Site};
pub use dispatch::{DispatchCall, DispatchOutput};
pub use handle::HandleMemory;
pub use kernels::are_embedded;
pub use memory::{sizes, Cuda};
pub use params::PeerCounters;
pub use share::Regions;
pub use statistics::Snapshot;
pub use trace::{Phase, Phases};
