//! Numbers to reach, by case and number of ranks, each rank on a GPU of its own.

use super::case::Case;

/// What a result must not exceed, or not fall below.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Goal {
    pub us: Option<f64>,
    /// Of what the links take in the same run.
    pub link_ratio: Option<f64>,
    pub mib: Option<f64>,
    /// Of the 99th percentile of single operations over their median.
    pub p99_ratio: Option<f64>,
}

impl Goal {
    /// "-" if nothing is asked.
    pub fn text(&self) -> String {
        let parts = [
            self.us.map(|us| format!("<= {us} us")),
            self.mib.map(|mib| format!("<= {mib} MiB")),
            self.link_ratio.map(|ratio| format!("ratio >= {ratio}")),
            self.p99_ratio.map(|ratio| format!("p99 <= {ratio} medians")),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        match parts.is_empty() {
            true => "-".into(),
            false => parts.join(", "),
        }
    }
}

const SPREAD_OF_LATENCY: f64 = 1.3;

/// Case, microseconds.
const TWO: [(&str, f64); 20] = [
    ("dispatch_fp8_t8192_by_rank_sm64", 191.0),
    ("dispatch_fp8_t8192_by_rank_sm16", 198.0),
    ("dispatch_bf16_t4096_by_rank_sm64", 185.0),
    ("dispatch_bf16_t4096_by_rank_sm16", 198.0),
    ("dispatch_fp8_t8192_by_expert_sm64", 265.0),
    ("combine_bf16_t8192_by_rank_sm64", 366.0),
    ("combine_bf16_t8192_by_rank_sm16", 375.0),
    ("combine_bf16_t8192_by_expert_sm64", 430.0),
    ("dispatch_fp8_t8192_by_rank_unbalanced15", 191.0),
    ("pair_graph_t8192_by_rank_sm16", 570.0),
    ("ll_dispatch_cast_t128_by_rank", 9.5),
    ("ll_dispatch_cast_t1_by_rank", 5.5),
    ("ll_dispatch_cast_t32_by_rank", 6.5),
    ("ll_dispatch_cast_t128_by_expert", 14.0),
    ("ll_combine_t128_by_rank", 12.5),
    ("ll_combine_weighted_t128_by_expert", 18.0),
    ("ll_pair_t128_by_expert", 31.0),
    ("ll_pair_t128_by_rank", 22.0),
    ("ll_pair_t1_by_expert", 13.0),
    ("ll_pair_t1_by_rank", 11.0),
];

/// Case, microseconds, and what part of the links' limit.
const EIGHT: [(&str, f64, Option<f64>); 4] = [
    ("dispatch_fp8_t8192_by_rank_sm64", 840.0, Some(0.93)),
    ("combine_bf16_t8192_by_rank_sm64", 1740.0, Some(0.93)),
    ("ll_dispatch_cast_t128_by_rank", 22.0, None),
    ("ll_combine_t128_by_rank", 34.0, None),
];

/// What is asked of a case; `own_gpus`: every rank has one. Points of sweeps may have the names of cases with goals, but have
/// none themselves.
pub fn of(case: &Case, ranks: usize, own_gpus: bool) -> Goal {
    if !own_gpus || !case.group.is_numbered() {
        return Goal::default();
    }
    let goal = match ranks {
        2 => TWO.iter().find(|(name, _)| *name == case.id).map(|&(_, us)| Goal {
            us: Some(us),
            p99_ratio: (!case.is_large()).then_some(SPREAD_OF_LATENCY),
            ..Goal::default()
        }),
        8 => EIGHT.iter().find(|(name, _, _)| *name == case.id).map(|&(_, us, link_ratio)| Goal {
            us: Some(us),
            link_ratio,
            ..Goal::default()
        }),
        _ => None,
    };
    goal.unwrap_or_default()
}
