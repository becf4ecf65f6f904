//! libdeepep: expert-parallel dispatch and combine behind a C ABI. ARCHITECTURE.md has the map.

pub mod backend;
pub mod error;
