//! libdeepep: expert-parallel dispatch and combine behind a C ABI. ARCHITECTURE.md has the map.

pub mod boot;
pub mod error;
pub mod mem;
