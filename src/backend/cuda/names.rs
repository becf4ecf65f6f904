//! Which kernel does what.

use crate::plan::config::Layout;
use crate::plan::dtype::Dtype;
use std::collections::BTreeSet;

/// An operation, or half of one.
#[derive(Clone, Copy)]
pub enum Part {
    Whole,
    Send,
    Receive,
}

impl Part {
    pub fn of(sends: bool, receives: bool) -> Part {
        match (sends, receives) {
            (true, true) => Part::Whole,
            (true, false) => Part::Send,
            (false, _) => Part::Receive,
        }
    }
}

pub const BARRIER: &str = "deepep_barrier";
pub const CLAIM: &str = "deepep_claim";
pub const CLOCK: &str = "deepep_clock";
pub const RELEASE: &str = "deepep_release";

/// Without and with a cast, each by `Part`: to receive is the same for both.
macro_rules! dispatch {
    ($name:literal) => {
        [
            [
                concat!("deepep_", $name),
                concat!("deepep_", $name, "_send"),
                concat!("deepep_", $name, "_recv"),
            ],
            [
                concat!("deepep_", $name, "_cast"),
                concat!("deepep_", $name, "_cast_send"),
                concat!("deepep_", $name, "_recv"),
            ],
        ]
    };
}

/// By `Layout`.
const DISPATCH: [[[&str; 3]; 2]; 4] = [
    dispatch!("dispatch_by_rank"),
    dispatch!("dispatch_by_expert"),
    dispatch!("slotted_dispatch_by_rank"),
    dispatch!("slotted_dispatch_by_expert"),
];

/// BF16, FP16 and FP32, each by `Part`.
macro_rules! combine {
    ($name:literal, $receive:literal) => {
        [
            combine!($name, $receive, "_bf16"),
            combine!($name, $receive, "_fp16"),
            combine!($name, $receive, "_fp32"),
        ]
    };
    ($name:literal, $receive:literal, $dtype:literal) => {
        [
            concat!("deepep_", $name, $dtype),
            concat!("deepep_", $name, $dtype, "_send"),
            concat!("deepep_", $receive, $dtype, "_recv"),
        ]
    };
}

/// Packed and slotted: by rank, EXACT, REDUCED. The receiving half of the last is that of the first.
const COMBINE: [[[[&str; 3]; 3]; 3]; 2] = [
    [
        combine!("combine_by_rank", "combine_by_rank"),
        combine!("combine_exact", "combine_exact"),
        combine!("combine_reduced", "combine_by_rank"),
    ],
    [
        combine!("slotted_combine_by_rank", "slotted_combine_by_rank"),
        combine!("slotted_combine_exact", "slotted_combine_exact"),
        combine!("slotted_combine_reduced", "slotted_combine_by_rank"),
    ],
];

pub fn dispatch(layout: Layout, cast: bool, part: Part) -> &'static str {
    DISPATCH[layout as usize][usize::from(cast)][part as usize]
}

pub fn combine(layout: Layout, exact: bool, dtype: Dtype, part: Part) -> &'static str {
    let sums = match (layout.by_expert(), exact) {
        (false, _) => 0,
        (true, true) => 1,
        (true, false) => 2,
    };
    let row = match dtype {
        Dtype::Fp16 => 1,
        Dtype::Fp32 => 2,
        _ => 0,
    };
    COMBINE[usize::from(!layout.packed())][sums][row][part as usize]
}

pub fn all() -> BTreeSet<&'static str> {
    let dispatches = DISPATCH.into_iter().flatten().flatten();
    let combines = COMBINE.into_iter().flatten().flatten().flatten();
    [BARRIER, CLAIM, CLOCK, RELEASE].into_iter().chain(dispatches).chain(combines).collect()
}
