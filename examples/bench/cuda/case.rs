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

/// How tokens choose their experts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spread {
    Uniform,
    /// The experts of rank 0 draw one and a half times their share.
    Unbalanced,
    /// Uniform, but the last rank has no tokens.
    OneEmpty,
    /// All experts are rank 0's.
    ToOne,
}

/// What limits the rows that cross.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    Push,
    Pull,
}

#[derive(Clone, Debug)]
pub struct Case {
    pub id: String,
    pub group: Group,
    pub work: Work,
    pub layout: deep_ep_layout_t,
    pub rows: Rows,
    pub tokens: usize,
    /// 0: the library's choice.
    pub sms: u32,
    pub stages: i32,
    pub sync: deep_ep_sync_t,
    pub spread: Spread,
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
            work,
            layout,
            rows,
            tokens,
            sms: 0,
            stages: 0,
            sync: deep_ep_sync_t::DEEP_EP_SYNC_AUTO,
            spread: Spread::Uniform,
            weighted: false,
            late_us: 0,
        }
    }

    /// The same with something else, and that in its name.
    pub fn with_suffix(&self, suffix: &str, change: impl Fn(&mut Case)) -> Case {
        let mut case = Case { id: format!("{}_{suffix}", self.id), ..self.clone() };
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

    /// Operations that are timed alone begin on all ranks at once, behind a barrier; pairs follow each other.
    pub fn is_alone(&self) -> bool {
        self.work != Work::Pair
    }

    /// With cold caches: what moves many bytes.
    pub fn flushed(&self) -> bool {
        self.is_alone() && self.packed()
    }

    /// So large that launches do not matter.
    pub fn is_large(&self) -> bool {
        self.packed() && self.tokens >= 2048
    }

    /// Packed combines read their rows from the other ranks; all else is written to them. Pairs do both.
    pub fn way(&self) -> Option<Way> {
        match self.work {
            Work::Pair => None,
            Work::Combine if self.packed() => Some(Way::Pull),
            _ => Some(Way::Push),
        }
    }

    pub fn tokens_of(&self, rank: usize, ranks: usize) -> usize {
        if self.spread == Spread::OneEmpty && rank + 1 == ranks {
            0
        } else {
            self.tokens
        }
    }

    /// Expert ids of one rank's tokens, all of a token different.
    pub fn routing(&self, rank: usize, ranks: usize) -> Vec<i32> {
        let (mut random, tokens) = (Random(rank as u64 + 1), self.tokens_of(rank, ranks));
        let first = EXPERTS.div_ceil(ranks); // of rank 0
        match self.spread {
            Spread::Uniform | Spread::OneEmpty => return random.routing(tokens, TOPK, EXPERTS),
            Spread::ToOne => return random.routing(tokens, TOPK, first),
            Spread::Unbalanced => {}
        }
        let mut ids = Vec::with_capacity(tokens * TOPK);
        for _ in 0..tokens {
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

    /// Bytes of a row that crosses, both ways for a pair.
    pub fn row_bytes(&self) -> usize {
        let (there, back) = (self.rows.sent_bytes() + self.rows.scale_bytes() + SIDE_BYTES, 2 * HIDDEN);
        match self.work {
            Work::Dispatch => there,
            Work::Combine => back,
            Work::Pair => there + back,
        }
    }
}

/// Of a routing, the rows to each rank: one for each token with an expert there.
pub fn rows_to(ids: &[i32], ranks: usize) -> Vec<u64> {
    let mut rows = vec![0; ranks];
    for ids in ids.chunks_exact(TOPK) {
        let homes: Vec<usize> = ids.iter().map(|&id| owner(id as usize, ranks)).collect();
        rows.iter_mut().enumerate().for_each(|(rank, rows)| *rows += u64::from(homes.contains(&rank)));
    }
    rows
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
