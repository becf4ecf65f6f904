//! The two ways to move and add rows: by the calling threads in host memory, by kernels in device memory.

pub mod cuda;
pub mod host;
