//! Ranks that are late, dead, twice there or somewhere else, and what a process keeps of a buffer that is gone.

#![allow(clippy::unwrap_used, clippy::expect_used)]
#![allow(clippy::macro_metavars_in_unsafe)] // ffi! is short for an unsafe call, nothing else

#[path = "../reference/mod.rs"]
mod reference;
#[path = "../support/mod.rs"]
mod support;

mod abort;
mod joining;
mod killed;
mod late;
mod resources;
mod threads;
