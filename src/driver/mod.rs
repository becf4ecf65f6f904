//! The CUDA driver, and the only module that names cudarc. Nothing is loaded before the first call, and a machine without
//! a driver is an error value.
//!
//! `api` holds the driver's functions, `device` a device with its primary context and the guard that leaves the caller's
//! context as it was, `memory` device memory, by `sharing` one of `mapping` (virtual memory) and `block` (cuMemAlloc),
//! `pinned` host memory that kernels write, `module` kernels and their launches, `stream` copies and streams, `work` whether kernels have run.

mod api;
mod block;
mod device;
mod mapping;
mod memory;
mod module;
mod pinned;
mod sharing;
mod stream;
mod work;

pub use device::{Device, Guard};
pub use memory::Memory;
pub use module::{Function, Launch, Module};
pub use pinned::{pinned_bytes, register_host, Pinned};
pub use sharing::Sharing;
pub use stream::{capture_of, copy_on_device, Stream, StreamPointer};
pub use work::Work;
