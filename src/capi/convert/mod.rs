//! From C to values and back: the only place that reads the caller's structs.

mod config;
mod operations;
mod queries;
mod structs;

pub(super) use config::*;
pub(super) use operations::*;
pub(super) use queries::*;
pub(super) use structs::*;
