//! Every exported function with arguments it must refuse: null, wrong struct sizes, bad numbers, wrong states.
//! After each refusal the same objects do their work, byte for byte.

#![allow(clippy::unwrap_used, clippy::expect_used)]
#![allow(clippy::macro_metavars_in_unsafe)] // ffi! is short for an unsafe call, nothing else

#[path = "../reference/mod.rs"]
mod reference;
#[path = "../support/mod.rs"]
mod support;

mod buffer;
mod combine;
mod comm;
mod dispatch;
mod one;
mod queries;
mod states;
mod structs;
