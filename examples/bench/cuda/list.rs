//! The cases by name: those with a goal, and sweeps over SMs, pipeline depths, tokens and ways to synchronise.

use super::case::{Case, Rows, Spread, Work};
use super::sequence::Effort;
use deepep::capi::deep_ep_layout_t::{self, *};
use deepep::capi::deep_ep_sync_t::*;
use serde::{Deserialize, Serialize};

const QUICK_TOKENS: usize = 16;

#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Group {
    Throughput,
    Latency,
    Uneven,
    Sync,
    Tokens,
    Stages,
    Sms,
}

impl Group {
    /// In the order of measurement: what has a goal comes first.
    pub const ALL: [Group; 7] = [
        Group::Throughput,
        Group::Latency,
        Group::Uneven,
        Group::Sync,
        Group::Tokens,
        Group::Stages,
        Group::Sms,
    ];

    pub fn cases(self) -> Vec<Case> {
        let mut cases = match self {
            Group::Throughput => throughput(),
            Group::Latency => latency(),
            Group::Uneven => uneven(),
            Group::Sync => sync(),
            Group::Tokens => tokens(),
            Group::Stages => stages(),
            Group::Sms => sms(),
        };
        cases.iter_mut().for_each(|case| case.group = self);
        cases
    }

    /// Its cases have numbers to reach, so they are measured with care.
    pub fn is_numbered(self) -> bool {
        matches!(self, Group::Throughput | Group::Latency)
    }
}

/// Every case, the same list in every process.
pub fn all(effort: &Effort) -> Vec<Case> {
    let mut cases: Vec<Case> = Group::ALL.into_iter().flat_map(Group::cases).collect();
    if effort.quick {
        for case in &mut cases {
            case.tokens = case.tokens.min(QUICK_TOKENS);
            case.sms = case.sms.min(effort.sms);
        }
    }
    cases
}

/// Rows of a layout, by the suffix of names.
fn named(work: Work, layout: deep_ep_layout_t, rows: Rows, tokens: usize) -> Case {
    let work_name = match (work, rows) {
        (Work::Dispatch, Rows::Bf16) => "dispatch_bf16",
        (Work::Dispatch, Rows::Fp8) => "dispatch_fp8",
        (Work::Dispatch, Rows::Cast) => "dispatch_cast",
        (Work::Combine, _) => "combine",
        (Work::Pair, _) => "pair",
    };
    let by = if Case::new("", work, layout, rows, 1).by_expert() { "by_expert" } else { "by_rank" };
    Case::new(&format!("{work_name}_t{tokens}_{by}"), work, layout, rows, tokens)
}

fn throughput() -> Vec<Case> {
    use Work::{Combine, Dispatch, Pair};
    let (by_rank, by_expert) = (DEEP_EP_PACKED_BY_RANK, DEEP_EP_PACKED_BY_EXPERT);
    let case =
        |id: &str, work, layout, rows, tokens, sms| Case { sms, ..Case::new(id, work, layout, rows, tokens) };
    vec![
        case("dispatch_fp8_t8192_by_rank_sm64", Dispatch, by_rank, Rows::Fp8, 8192, 64),
        case("dispatch_fp8_t8192_by_rank_sm16", Dispatch, by_rank, Rows::Fp8, 8192, 16),
        case("dispatch_bf16_t4096_by_rank_sm64", Dispatch, by_rank, Rows::Bf16, 4096, 64),
        case("dispatch_bf16_t4096_by_rank_sm16", Dispatch, by_rank, Rows::Bf16, 4096, 16),
        case("dispatch_fp8_t8192_by_expert_sm64", Dispatch, by_expert, Rows::Fp8, 8192, 64),
        case("combine_bf16_t8192_by_rank_sm64", Combine, by_rank, Rows::Bf16, 8192, 64),
        case("combine_bf16_t8192_by_rank_sm16", Combine, by_rank, Rows::Bf16, 8192, 16),
        case("combine_bf16_t8192_by_expert_sm64", Combine, by_expert, Rows::Bf16, 8192, 64),
        Case {
            spread: Spread::Unbalanced,
            ..case("dispatch_fp8_t8192_by_rank_unbalanced15", Dispatch, by_rank, Rows::Fp8, 8192, 64)
        },
        case("pair_graph_t8192_by_rank_sm16", Pair, by_rank, Rows::Fp8, 8192, 16),
    ]
}

fn latency() -> Vec<Case> {
    use Work::{Combine, Dispatch, Pair};
    let (by_rank, by_expert) = (DEEP_EP_SLOTTED_BY_RANK, DEEP_EP_SLOTTED_BY_EXPERT);
    let case = |id: &str, work, layout, tokens| Case {
        weighted: layout == by_expert,
        ..Case::new(id, work, layout, Rows::Cast, tokens)
    };
    vec![
        case("ll_dispatch_cast_t128_by_rank", Dispatch, by_rank, 128),
        case("ll_dispatch_cast_t1_by_rank", Dispatch, by_rank, 1),
        case("ll_dispatch_cast_t32_by_rank", Dispatch, by_rank, 32),
        case("ll_dispatch_cast_t128_by_expert", Dispatch, by_expert, 128),
        case("ll_combine_t128_by_rank", Combine, by_rank, 128),
        case("ll_combine_weighted_t128_by_expert", Combine, by_expert, 128),
        case("ll_pair_t128_by_expert", Pair, by_expert, 128),
        case("ll_pair_t128_by_rank", Pair, by_rank, 128),
        case("ll_pair_t1_by_expert", Pair, by_expert, 1),
        case("ll_pair_t1_by_rank", Pair, by_rank, 1),
    ]
}

/// Cases of the groups before, with a rank that has no tokens and with all tokens going to one rank.
fn uneven() -> Vec<Case> {
    let even: Vec<Case> = throughput().into_iter().chain(latency()).collect();
    let chosen = [
        "dispatch_fp8_t8192_by_rank_sm64",
        "combine_bf16_t8192_by_rank_sm64",
        "ll_dispatch_cast_t128_by_rank",
        "ll_combine_t128_by_rank",
    ];
    let each = |case: &Case| {
        [("one_empty", Spread::OneEmpty), ("to_one", Spread::ToOne)]
            .map(|(name, spread)| case.with_suffix(name, |c| c.spread = spread))
    };
    even.iter().filter(|case| chosen.contains(&case.id.as_str())).flat_map(each).collect()
}

/// A slotted case; by expert its combine is weighted.
fn slotted(work: Work, layout: deep_ep_layout_t, tokens: usize) -> Case {
    let case = named(work, layout, Rows::Cast, tokens);
    Case { id: format!("ll_{}", case.id), weighted: case.by_expert(), ..case }
}

const SLOTTED: [(Work, deep_ep_layout_t); 4] = [
    (Work::Dispatch, DEEP_EP_SLOTTED_BY_RANK),
    (Work::Dispatch, DEEP_EP_SLOTTED_BY_EXPERT),
    (Work::Combine, DEEP_EP_SLOTTED_BY_RANK),
    (Work::Combine, DEEP_EP_SLOTTED_BY_EXPERT),
];

fn sync() -> Vec<Case> {
    let mut cases = Vec::new();
    for tokens in [1, 8, 32, 128, 256] {
        for (name, sync) in
            [("auto", DEEP_EP_SYNC_AUTO), ("ack", DEEP_EP_SYNC_ACK), ("barrier", DEEP_EP_SYNC_BARRIER)]
        {
            let pair = named(Work::Pair, DEEP_EP_SLOTTED_BY_RANK, Rows::Cast, tokens);
            let prompt = Case { id: format!("sync_{}_{name}", pair.id), sync, ..pair };
            let late = prompt.with_suffix("late20", |c| c.late_us = 20);
            cases.extend([prompt, late]);
        }
    }
    cases
}

fn tokens() -> Vec<Case> {
    let all = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512].into_iter();
    let slotted = all.flat_map(|tokens| SLOTTED.map(|(work, layout)| slotted(work, layout, tokens)));
    let packed = [1, 8, 32, 128, 512].map(|t| named(Work::Dispatch, DEEP_EP_PACKED_BY_RANK, Rows::Fp8, t));
    slotted.chain(packed).collect()
}

fn with_sms(case: &Case, sms: u32) -> Case {
    case.with_suffix(&format!("sm{sms}"), |c| c.sms = sms)
}

/// Depths of the pipeline, which dispatches have.
fn stages() -> Vec<Case> {
    let by_rank = named(Work::Dispatch, DEEP_EP_PACKED_BY_RANK, Rows::Fp8, 8192);
    let by_expert = named(Work::Dispatch, DEEP_EP_PACKED_BY_EXPERT, Rows::Fp8, 8192);
    let sizes = [with_sms(&by_rank, 16), with_sms(&by_rank, 64), with_sms(&by_expert, 64)];
    let each = |case: &Case| [1, 2, 3].map(|n| case.with_suffix(&format!("stages{n}"), |c| c.stages = n));
    sizes.iter().flat_map(each).collect()
}

fn sms() -> Vec<Case> {
    let large = [
        named(Work::Dispatch, DEEP_EP_PACKED_BY_RANK, Rows::Fp8, 8192),
        named(Work::Dispatch, DEEP_EP_PACKED_BY_EXPERT, Rows::Fp8, 8192),
        named(Work::Combine, DEEP_EP_PACKED_BY_RANK, Rows::Bf16, 8192),
        named(Work::Combine, DEEP_EP_PACKED_BY_EXPERT, Rows::Bf16, 8192),
    ];
    let large = large.iter().flat_map(|case| [4, 8, 16, 24, 32, 64, 132].map(|sms| with_sms(case, sms)));
    let small = SLOTTED.map(|(work, layout)| slotted(work, layout, 128));
    let small = small.iter().flat_map(|case| [4, 8, 16, 32, 64, 132].map(|sms| with_sms(case, sms)));
    large.chain(small).collect()
}
