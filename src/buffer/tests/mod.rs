//! The signals of the host backend under model checkers: the code of the library itself, with every access of a word
//! decided by the checker (`crate::mem::word::explored`).
//!
//! `signals` runs under loom. Its ranks choose windows, guard, signal, wait and end reads by the manager's own functions;
//! of the rows one word is left, because loom must know of every access that it is to reorder. `failures` does the same
//! with waits that end otherwise. `schedules` runs whole operations with real rows under shuttle, which knows no
//! reordering but takes any number of steps.

mod failures;
mod harness;
mod operations;
mod schedules;
mod signals;
