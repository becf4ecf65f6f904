//! Thin helpers over the C ABI for the test programs.

#![allow(dead_code, unused_imports)] // each test program uses a part

pub mod api;
pub mod exchange;
pub mod memory;
pub mod payload;
pub mod process;
pub mod receive;
pub mod roundtrip;
pub mod send;
pub mod sum;
pub mod world;

pub use api::*;
pub use exchange::{Exchange, Wire};
pub use memory::Mem;
pub use payload::Payload;
pub use receive::{Asked, Received};
pub use roundtrip::Case;
pub use sum::{Combination, Terms};
pub use world::{Rank, World};
