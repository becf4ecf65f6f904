//! libdeepep: expert-parallel dispatch and combine behind a C ABI. ARCHITECTURE.md has the map.

pub mod backend;
pub mod boot;
pub mod buffer;
pub mod capi;
pub mod driver;
pub mod error;
pub mod mem;
pub mod plan;
