//! What an operation will do, as pure integers: no memory, no threads, no I/O.

pub mod windows;
pub mod words;
