//! The C ABI: the only exported symbols. Every function parses its pointers, calls the manager and turns the
//! outcome into a status and a last-error text; nothing unwinds across it.

mod convert;
mod fence;

// In the order in which a reader of the header wants them.
mod enums;

mod types;

mod init;

mod comm;

mod buffer;

mod handle;

mod query;

pub use crate::error::deep_ep_status_t;
pub use buffer::*;
pub use comm::*;
pub use enums::*;
pub use handle::*;
pub use init::*;
pub use query::*;
pub use types::*;
