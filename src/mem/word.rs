//! The words by which ranks speak to each other: atomics in shared memory. The library has plain atomics and nothing else;
//! in its own unit tests a model checker may decide what each access sees (`explored`).

#[cfg(test)]
pub mod explored;

#[cfg(test)]
pub use explored::{spin_loop, Word};
#[cfg(not(test))]
pub use std::{hint::spin_loop, sync::atomic::AtomicU64 as Word};
