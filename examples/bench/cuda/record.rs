//! What is known of a case when all ranks have told what they saw.

use super::case::{Case, Way};
use super::goals::{self, Goal};
use super::gpu;
use super::link::Link;
use super::list::Group;
use super::sequence::Seen;
use crate::machine;
use crate::measure::{median, quantile};
use serde::{Deserialize, Serialize};

/// One element of a file of results. Fields that do not apply are left out.
#[derive(Serialize, Deserialize, Clone, Default)]
#[serde(default)]
pub struct Record {
    pub case: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<Group>,
    /// Per operation, all included until the output is usable; the slowest rank's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub us_median: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub us_p99: Option<f64>,
    /// Median of each rank alone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub us_median_of_ranks: Vec<f64>,
    /// Median of single operations, as the percentile above is theirs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub us_single_median: Option<f64>,
    /// Bytes that the busiest rank sends to others or gets from them, over the median.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gbps_off_rank: Option<f64>,
    /// As if every expert's row crossed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gbps_logical: Option<f64>,
    /// gbps_off_rank over what stores, or for packed combines loads, of all SMs reach in the same run with all pairs busy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_push_gbps: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_pull_gbps: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_copy_gbps: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ranks: Option<usize>,
    /// 0: the library's choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sms: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stages: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub late_us: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mib: Option<f64>,
    /// Microseconds, or MiB, to reach.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reach: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reach_link_ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reach_p99_ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    pub setup: String,
    pub machine: String,
    pub date: String,
    /// How the operations were enqueued: as a graph, or call by call.
    pub method: String,
}

/// Where and how a run measures.
pub struct Setup {
    /// As in names of files: 2xh200, or 1xh200_shared where ranks share a device.
    pub name: String,
    pub machine: String,
    pub method: &'static str,
    pub ranks: usize,
    /// None if it could not be measured.
    pub link: Option<Link>,
}

const SHARED: &str = "_shared";
const QUICK: &str = "quick_";

impl Setup {
    pub fn find(ranks: usize, shared: bool, quick: bool, graphs: bool) -> Setup {
        let device = gpu::name();
        let short = device.split_whitespace().last().unwrap_or("gpu").to_lowercase();
        let count = if shared { 1 } else { ranks };
        let ending = match (shared, ranks) {
            (false, _) => String::new(),
            (true, 2) => SHARED.into(),
            (true, _) => format!("{SHARED}{ranks}"),
        };
        Setup {
            name: format!("{}{count}x{short}{ending}", if quick { QUICK } else { "" }),
            machine: format!("{count}x {device}, {}", gpu::driver()),
            method: if graphs { "graph" } else { "eager" },
            ranks,
            link: None,
        }
    }

    fn blank(&self, case: &str) -> Record {
        Record {
            case: case.into(),
            setup: self.name.clone(),
            machine: self.machine.clone(),
            date: machine::today(),
            method: self.method.into(),
            ..Record::default()
        }
    }

    /// What is known of a case before it is measured.
    fn described(&self, case: &Case) -> Record {
        let rate = |of: fn(&Link) -> f64| self.link.as_ref().map(|link| rounded(of(link)));
        let record = Record {
            group: Some(case.group),
            ranks: Some(self.ranks),
            sms: Some(case.sms),
            tokens: Some(case.tokens),
            stages: (case.stages != 0).then_some(case.stages),
            late_us: (case.late_us != 0).then_some(case.late_us),
            link_push_gbps: rate(|link| link.push),
            link_pull_gbps: rate(|link| link.pull),
            link_copy_gbps: rate(|link| link.copy),
            ..self.blank(&case.id)
        };
        let own_gpus = record.own_gpus();
        record.with_goal(goals::of(case, self.ranks, own_gpus))
    }

    pub fn record(&self, case: &Case, seen: Vec<Result<Seen, String>>) -> Record {
        let record = self.described(case);
        let errors: Vec<&str> =
            seen.iter().filter_map(|seen| seen.as_ref().err()).map(|e| e.as_str()).collect();
        if !errors.is_empty() {
            return Record { failed: Some(errors.join("; ")), ..record };
        }
        let seen: Vec<Seen> = seen.into_iter().flatten().collect();
        let mut us = slowest(&seen, |seen| &seen.us);
        let mut single = slowest(&seen, |seen| &seen.single_us);
        let middle = median(&mut us);
        let p99 = if single.is_empty() { quantile(&mut us, 0.99) } else { quantile(&mut single, 0.99) };
        let rate = |bytes: u64| bytes as f64 / middle / 1e3;
        let off_rank = rate(busiest_rows(&seen) * case.row_bytes() as u64);
        let pairs = seen.iter().map(|seen| seen.pairs).max().unwrap_or(0);
        let limit = match (case.way(), &self.link) {
            (Some(Way::Push), Some(link)) => Some(link.push),
            (Some(Way::Pull), Some(link)) => Some(link.pull),
            _ => None,
        };
        Record {
            us_median: Some(rounded(middle)),
            us_p99: Some(rounded(p99)),
            us_median_of_ranks: seen.iter().map(|seen| rounded(median(&mut seen.us.clone()))).collect(),
            us_single_median: (!single.is_empty()).then(|| rounded(median(&mut single))),
            gbps_off_rank: Some(rounded(off_rank)),
            gbps_logical: Some(rounded(rate(pairs * case.row_bytes() as u64))),
            link_ratio: limit.map(|limit| rounded(off_rank / limit)),
            ..record
        }
    }

    /// A case that was not begun.
    pub fn not_measured(&self, case: &Case, why: &str) -> Record {
        Record { failed: Some(why.into()), ..self.described(case) }
    }

    pub fn memory(&self, case: &str, bytes: Result<i64, String>, goal: Goal) -> Record {
        let record = Record { group: Some(Group::Latency), ..self.blank(case) }.with_goal(goal);
        match bytes {
            Ok(bytes) => Record { mib: Some(rounded(bytes as f64 / f64::from(1 << 20))), ..record },
            Err(error) => Record { failed: Some(error), ..record },
        }
    }
}

impl Record {
    fn with_goal(self, goal: Goal) -> Record {
        Record {
            reach: goal.us.or(goal.mib),
            reach_link_ratio: goal.link_ratio,
            reach_p99_ratio: goal.p99_ratio,
            ..self
        }
    }

    pub fn goal(&self) -> Goal {
        let (us, mib) = if self.mib.is_some() { (None, self.reach) } else { (self.reach, None) };
        Goal { us, mib, link_ratio: self.reach_link_ratio, p99_ratio: self.reach_p99_ratio }
    }

    /// Measured in earnest, with a GPU for each rank.
    pub fn own_gpus(&self) -> bool {
        !self.setup.contains(SHARED) && !self.setup.starts_with(QUICK)
    }

    /// A point of a line rather than a case of its own.
    pub fn in_sweep(&self) -> bool {
        matches!(self.group, Some(Group::Sms | Group::Stages | Group::Tokens | Group::Sync))
    }

    pub fn p99_ratio(&self) -> Option<f64> {
        Some(self.us_p99? / self.us_single_median?)
    }

    /// Whether all that is asked of it was reached.
    pub fn met(&self) -> Option<bool> {
        if self.failed.is_some() {
            return None;
        }
        let at_most =
            |value: Option<f64>, goal: Option<f64>| goal.map(|goal| value.is_some_and(|value| value <= goal));
        let parts = [
            at_most(self.us_median.or(self.mib), self.reach),
            at_most(self.p99_ratio(), self.reach_p99_ratio),
            self.reach_link_ratio.map(|goal| self.link_ratio.is_some_and(|ratio| ratio >= goal)),
        ];
        parts.into_iter().flatten().reduce(|a, b| a && b)
    }
}

/// Rows that the busiest rank sends to others or gets from them.
fn busiest_rows(seen: &[Seen]) -> u64 {
    let rows = |from: usize, to: usize| {
        if from == to {
            0
        } else {
            seen[from].rows_to.get(to).copied().unwrap_or(0)
        }
    };
    let all = || 0..seen.len();
    let sent = all().map(|rank| all().map(|other| rows(rank, other)).sum());
    let got = all().map(|rank| all().map(|other| rows(other, rank)).sum());
    sent.chain(got).max().unwrap_or(0)
}

/// The largest of all ranks, sample by sample.
fn slowest(seen: &[Seen], samples: fn(&Seen) -> &Vec<f64>) -> Vec<f64> {
    let count = seen.iter().map(|seen| samples(seen).len()).min().unwrap_or(0);
    (0..count).map(|i| seen.iter().map(|seen| samples(seen)[i]).fold(f64::MIN, f64::max)).collect()
}

fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}
