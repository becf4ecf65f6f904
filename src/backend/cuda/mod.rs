//! The CUDA backend: rows in device memory, moved and added by kernels that the calls enqueue.
//!
//! `comm` is a rank's device, `memory` what a buffer has there, `handle` what a routing has, `kernels` the embedded
//! images, `params` the structs they take; `dispatch` and `combine` fill and launch, `slotted` for the slotted layouts;
//! `report` is what kernels tell.

mod combine;
mod comm;
mod dispatch;
mod handle;
mod kernels;
mod memory;
mod params;
mod report;
mod slotted;
mod slotted_combine;

pub use combine::{CombineCall, CombineInput, CombineOutput};
pub use comm::{Place, Site};
pub use dispatch::{DispatchCall, DispatchOutput};
pub use handle::HandleMemory;
pub use kernels::are_embedded;
pub use memory::{region_bytes, sizes, Cuda};
