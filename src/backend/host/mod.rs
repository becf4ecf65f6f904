//! The host backend: rows in host memory, moved and added by CPU threads. It defines the numbers bit for bit.

pub mod rows;
