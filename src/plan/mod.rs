//! What an operation will do, as pure integers: no memory, no threads, no I/O.

pub mod config;
pub mod device;
pub mod dtype;
pub mod experts;
pub mod layout;
pub mod report;
pub mod request;
pub mod routing;
pub mod windows;
pub mod words;

/// `value` rounded up to a multiple of `to`.
pub const fn round_up(value: u64, to: u64) -> u64 {
    value.div_ceil(to) * to
}
