//! The library as C and C++ programs meet it: compiled with strict warnings, run plain, under address and race
//! detection and under valgrind, and looked at as a shared object.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a test may fail by panicking

#[path = "native/c_header.rs"]
#[allow(dead_code)] // comments are read by tests/header.rs
mod c_header;
#[path = "native/checkers.rs"]
mod checkers;
#[path = "native/header.rs"]
mod header;
#[path = "native/programs.rs"]
mod programs;
#[path = "native/symbols.rs"]
mod symbols;
#[path = "native/tools.rs"]
mod tools;
