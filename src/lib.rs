//! libdeepep: expert-parallel dispatch and combine behind a C ABI. ARCHITECTURE.md has the map.

mod capi;
pub mod error;
pub mod plan;
