//! The two ways to move and add rows: host memory here, CUDA beside it.

pub mod host;
