//! What is measured: shapes, layouts, and how the tokens choose their experts.

use super::list::Group;
use crate::measure::Random;
use deepep::capi::{deep_ep_layout_t, deep_ep_sync_t};

pub const HIDDEN: usize = 7168;
pub const EXPERTS: usize = 256;
pub const TOPK: usize = 8;
/// Rows of an expert begin at multiples of this in the packed layout.
pub const ALIGNMENT: usize = 128;
/// Elements of a row that share a scale.
const SCALE_BLOCK: usize = 128;
const SCALE_BYTES: usize = HIDDEN / SCALE_BLOCK * 4;
/// Id and weight of every pair, and where the row comes from.
const SIDE_BYTES: usize = TOPK * 8 + 8;

/// The rows of a dispatch; those of a combine are BF16.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rows {
    Bf16,
    /// FP8 with a scale for 128 elements.
    Fp8,
    /// BF16 that is cast to FP8 on the way.
    Cast,
}

impl Rows {
    pub fn given_bytes(self) -> usize {
        if self == Rows::Fp8 {
            HIDDEN
        } else {
            2 * HIDDEN
        }
    }

    /// As it crosses.
    pub fn sent_bytes(self) -> usize {
        if self == Rows::Bf16 {
            2 * HIDDEN
        } else {
            HIDDEN
        }
    }

    pub fn scale_bytes(self) -> usize {
        if self == Rows::Bf16 {
            0
        } else {
            SCALE_BYTES
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    Dispatch,
    Combine,
    /// A dispatch and its combine, one after the other without anything between.
    Pair,
}

#[derive(Clone, Debug)]
pub struct Case {
    pub id: String,
    pub group: Group,
    /// Microseconds to reach on two GPUs.
    pub reach: Option<f64>,
    pub work: Work,
    pub layout: deep_ep_layout_t,
    pub rows: Rows,
    pub tokens: usize,
    /// 0: the library's choice.
    pub sms: u32,
    pub stages: i32,
    pub sync: deep_ep_sync_t,
    /// The experts of rank 0 draw one and a half times their share.
    pub unbalanced: bool,
    /// The combine multiplies by the weights of the dispatch.
    pub weighted: bool,
    /// Microseconds by which the last rank comes late to every operation.
    pub late_us: u32,
}

impl Case {
    pub fn new(id: &str, work: Work, layout: deep_ep_layout_t, rows: Rows, tokens: usize) -> Case {
        Case {
            id: id.into(),
            group: Group::Throughput,
            reach: None,
            work,
            layout,
            rows,
            tokens,
            sms: 0,
            stages: 0,
            sync: deep_ep_sync_t::DEEP_EP_SYNC_AUTO,
            unbalanced: false,
            weighted: false,
            late_us: 0,
        }
    }

    /// The same with something else, and that in its name.
    pub fn with_suffix(&self, name: &str, number: u32, change: impl Fn(&mut Case)) -> Case {
        let mut case = Case { id: format!("{}_{name}{number}", self.id), ..self.clone() };
        change(&mut case);
        case
    }

    pub fn by_expert(&self) -> bool {
        matches!(
            self.layout,
            deep_ep_layout_t::DEEP_EP_PACKED_BY_EXPERT | deep_ep_layout_t::DEEP_EP_SLOTTED_BY_EXPERT
        )
    }

    pub fn packed(&self) -> bool {
        matches!(
            self.layout,
            deep_ep_layout_t::DEEP_EP_PACKED_BY_RANK | deep_ep_layout_t::DEEP_EP_PACKED_BY_EXPERT
        )
    }

    /// Operations that are timed alone begin with cold caches on all ranks at once; pairs follow each other.
    pub fn flushed(&self) -> bool {
        self.work != Work::Pair
    }

    /// Expert ids of one rank's tokens, all of a token different.
    pub fn routing(&self, rank: usize, ranks: usize) -> Vec<i32> {
        let mut random = Random(rank as u64 + 1);
        if !self.unbalanced {
            return random.routing(self.tokens, TOPK, EXPERTS);
        }
        let first = EXPERTS.div_ceil(ranks); // of rank 0
        let mut ids = Vec::with_capacity(self.tokens * TOPK);
        for _ in 0..self.tokens {
            let begin = ids.len();
            while ids.len() < begin + TOPK {
                let id = match random.below(2 * ranks) {
                    0..3 => random.below(first),
                    _ => first + random.below(EXPERTS - first),
                } as i32;
                if !ids[begin..].contains(&id) {
                    ids.push(id);
                }
            }
        }
        ids
    }

    /// Bytes that cross to other ranks, from a rank with this routing; and those that a rank would send if it sent every
    /// expert's row.
    pub fn bytes(&self, ids: &[i32], rank: usize, ranks: usize) -> Bytes {
        let home = |id: i32| owner(id as usize, ranks);
        let rows: usize = ids
            .chunks_exact(TOPK)
            .map(|ids| (0..ranks).filter(|&r| r != rank && ids.iter().any(|&id| home(id) == r)).count())
            .sum();
        let row = |work| match work {
            Work::Combine => 2 * HIDDEN,
            _ => self.rows.sent_bytes() + self.rows.scale_bytes() + SIDE_BYTES,
        };
        let row =
            if self.work == Work::Pair { row(Work::Dispatch) + row(Work::Combine) } else { row(self.work) };
        Bytes { off_rank: (rows * row) as u64, logical: (ids.len() * row) as u64 }
    }
}

pub struct Bytes {
    pub off_rank: u64,
    pub logical: u64,
}

/// The rank of an expert: split evenly, the first ranks own one more.
fn owner(expert: usize, ranks: usize) -> usize {
    let (each, more) = (EXPERTS / ranks, EXPERTS % ranks);
    let large = more * (each + 1);
    if expert < large {
        expert / (each + 1)
    } else {
        more + (expert - large) / each
    }
}
