//! The host backend: rows in host memory, moved and added by the threads that call. It defines the numbers bit for bit.
//!
//! `memory` says where things lie, `signals` and `wait` how ranks meet, `rows` moves and adds, `send`, `receive` and
//! `combine` are the operations.

mod combine;
mod expand;
pub mod memory;
mod receive;
pub mod routing;
pub mod rows;
mod send;
mod signals;
mod wait;

pub use combine::{CombineSource, CombineSums};
pub use memory::Host;
pub use receive::{Receive, Received};
pub use routing::Routing;
pub use rows::Stream;
pub use send::Scratch;
pub use wait::{Wanted, Watch};
