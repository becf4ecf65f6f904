//! The cases by name: those with a goal, and sweeps over SMs, pipeline depths, tokens and ways to synchronise.

use super::case::{Case, Rows, Work};
use deepep::capi::deep_ep_layout_t::{self, *};
use deepep::capi::deep_ep_sync_t::*;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Group {
    Throughput,
    Latency,
    Sms,
    Stages,
    Tokens,
    Sync,
}

impl Group {
    pub const ALL: [Group; 6] =
        [Group::Throughput, Group::Latency, Group::Sms, Group::Stages, Group::Tokens, Group::Sync];

    pub fn cases(self) -> Vec<Case> {
        let mut cases = match self {
            Group::Throughput => throughput(),
            Group::Latency => latency(),
            Group::Sms => sms(),
            Group::Stages => stages(),
            Group::Tokens => tokens(),
            Group::Sync => sync(),
        };
        cases.iter_mut().for_each(|case| case.group = self);
        cases
    }

    /// The others take part in microseconds, where launches matter.
    pub fn is_large(self) -> bool {
        matches!(self, Group::Throughput | Group::Sms | Group::Stages)
    }
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
    let case = |id: &str, work, layout, rows, tokens, sms, reach| Case {
        sms,
        reach: Some(reach),
        ..Case::new(id, work, layout, rows, tokens)
    };
    vec![
        case("dispatch_fp8_t8192_by_rank_sm64", Dispatch, by_rank, Rows::Fp8, 8192, 64, 191.0),
        case("dispatch_fp8_t8192_by_rank_sm16", Dispatch, by_rank, Rows::Fp8, 8192, 16, 198.0),
        case("dispatch_bf16_t4096_by_rank_sm64", Dispatch, by_rank, Rows::Bf16, 4096, 64, 185.0),
        case("dispatch_bf16_t4096_by_rank_sm16", Dispatch, by_rank, Rows::Bf16, 4096, 16, 198.0),
        case("dispatch_fp8_t8192_by_expert_sm64", Dispatch, by_expert, Rows::Fp8, 8192, 64, 265.0),
        case("combine_bf16_t8192_by_rank_sm64", Combine, by_rank, Rows::Bf16, 8192, 64, 366.0),
        case("combine_bf16_t8192_by_rank_sm16", Combine, by_rank, Rows::Bf16, 8192, 16, 375.0),
        case("combine_bf16_t8192_by_expert_sm64", Combine, by_expert, Rows::Bf16, 8192, 64, 430.0),
        Case {
            unbalanced: true,
            ..case("dispatch_fp8_t8192_by_rank_unbalanced15", Dispatch, by_rank, Rows::Fp8, 8192, 64, 191.0)
        },
        case("pair_graph_t8192_by_rank_sm16", Pair, by_rank, Rows::Fp8, 8192, 16, 570.0),
    ]
}

fn latency() -> Vec<Case> {
    use Work::{Combine, Dispatch, Pair};
    let (by_rank, by_expert) = (DEEP_EP_SLOTTED_BY_RANK, DEEP_EP_SLOTTED_BY_EXPERT);
    let case = |id: &str, work, layout, tokens, reach| Case {
        weighted: layout == by_expert,
        reach: Some(reach),
        ..Case::new(id, work, layout, Rows::Cast, tokens)
    };
    vec![
        case("ll_dispatch_cast_t128_by_rank", Dispatch, by_rank, 128, 9.5),
        case("ll_dispatch_cast_t1_by_rank", Dispatch, by_rank, 1, 5.5),
        case("ll_dispatch_cast_t32_by_rank", Dispatch, by_rank, 32, 6.5),
        case("ll_dispatch_cast_t128_by_expert", Dispatch, by_expert, 128, 14.0),
        case("ll_combine_t128_by_rank", Combine, by_rank, 128, 12.5),
        case("ll_combine_weighted_t128_by_expert", Combine, by_expert, 128, 18.0),
        case("ll_pair_t128_by_expert", Pair, by_expert, 128, 31.0),
        case("ll_pair_t128_by_rank", Pair, by_rank, 128, 22.0),
        case("ll_pair_t1_by_expert", Pair, by_expert, 1, 13.0),
        case("ll_pair_t1_by_rank", Pair, by_rank, 1, 11.0),
    ]
}

fn sms() -> Vec<Case> {
    let large = [
        named(Work::Dispatch, DEEP_EP_PACKED_BY_RANK, Rows::Fp8, 8192),
        named(Work::Dispatch, DEEP_EP_PACKED_BY_EXPERT, Rows::Fp8, 8192),
        named(Work::Combine, DEEP_EP_PACKED_BY_RANK, Rows::Bf16, 8192),
        named(Work::Combine, DEEP_EP_PACKED_BY_EXPERT, Rows::Bf16, 8192),
    ];
    let each =
        |case: &Case| [4, 8, 16, 24, 32, 64, 132].map(|sms| case.with_suffix("sm", sms, |c| c.sms = sms));
    large.iter().flat_map(each).collect()
}

fn stages() -> Vec<Case> {
    let case = named(Work::Dispatch, DEEP_EP_PACKED_BY_RANK, Rows::Fp8, 8192);
    let sizes = [16, 64].map(|sms| case.with_suffix("sm", sms, |c| c.sms = sms));
    let each = |case: &Case| [1, 2, 3].map(|n| case.with_suffix("stages", n, |c| c.stages = n as i32));
    sizes.iter().flat_map(each).collect()
}

fn tokens() -> Vec<Case> {
    let mut cases = Vec::new();
    for tokens in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512] {
        cases.push(named(Work::Dispatch, DEEP_EP_SLOTTED_BY_RANK, Rows::Cast, tokens));
        cases.push(named(Work::Dispatch, DEEP_EP_SLOTTED_BY_EXPERT, Rows::Cast, tokens));
        cases.push(named(Work::Combine, DEEP_EP_SLOTTED_BY_RANK, Rows::Cast, tokens));
        cases.push(Case {
            weighted: true,
            ..named(Work::Combine, DEEP_EP_SLOTTED_BY_EXPERT, Rows::Cast, tokens)
        });
    }
    cases.iter_mut().for_each(|case| case.id = format!("ll_{}", case.id));
    let packed = |tokens| named(Work::Dispatch, DEEP_EP_PACKED_BY_RANK, Rows::Fp8, tokens);
    cases.extend([1, 8, 32, 128, 512].map(packed));
    cases
}

fn sync() -> Vec<Case> {
    let mut cases = Vec::new();
    for tokens in [1, 8, 32, 128, 256] {
        for (name, sync) in
            [("auto", DEEP_EP_SYNC_AUTO), ("ack", DEEP_EP_SYNC_ACK), ("barrier", DEEP_EP_SYNC_BARRIER)]
        {
            let pair = named(Work::Pair, DEEP_EP_SLOTTED_BY_RANK, Rows::Cast, tokens);
            let prompt = Case { id: format!("sync_{}_{name}", pair.id), sync, ..pair };
            let late = Case { id: format!("{}_late20", prompt.id), late_us: 20, ..prompt.clone() };
            cases.extend([prompt, late]);
        }
    }
    cases
}
