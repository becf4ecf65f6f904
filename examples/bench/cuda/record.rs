//! What is known of a case when all ranks have told what they saw.

use super::case::{Case, Work};
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
    /// Bytes that a rank sends to others (combine: that cross to it), over the median.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gbps_off_rank: Option<f64>,
    /// As if every expert's row crossed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gbps_logical: Option<f64>,
    /// gbps_off_rank over what the SMs' stores reach on the link in the same run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_push_gbps: Option<f64>,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reach: Option<f64>,
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
    pub link: Link,
}

impl Setup {
    pub fn find(devices: usize, shared: bool, graphs: bool, link: Link) -> Setup {
        let device = gpu::name();
        let short = device.split_whitespace().last().unwrap_or("gpu").to_lowercase();
        let (count, ending) = if shared { (1, "_shared") } else { (devices, "") };
        Setup {
            name: format!("{count}x{short}{ending}"),
            machine: format!("{count}x {device}, {}", gpu::driver()),
            method: if graphs { "graph" } else { "eager" },
            link,
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

    pub fn record(&self, case: &Case, seen: Result<Vec<Seen>, String>) -> Record {
        let record = Record {
            group: Some(case.group),
            sms: Some(case.sms),
            tokens: Some(case.tokens),
            stages: (case.stages != 0).then_some(case.stages),
            late_us: (case.late_us != 0).then_some(case.late_us),
            reach: case.reach,
            ..self.blank(&case.id)
        };
        let seen = match seen {
            Ok(seen) => seen,
            Err(error) => return Record { failed: Some(error), ..record },
        };
        let mut us = slowest(&seen, |seen| &seen.us);
        let mut single = slowest(&seen, |seen| &seen.single_us);
        let middle = median(&mut us);
        let p99 = if case.group.is_large() { quantile(&mut us, 0.99) } else { quantile(&mut single, 0.99) };
        let rate = |bytes: fn(&Seen) -> u64| seen.iter().map(bytes).max().unwrap_or(0) as f64 / middle / 1e3;
        let off_rank = rate(|seen| seen.off_rank);
        Record {
            us_median: Some(rounded(middle)),
            us_p99: Some(rounded(p99)),
            gbps_off_rank: Some(rounded(off_rank)),
            gbps_logical: Some(rounded(rate(|seen| seen.logical))),
            link_ratio: (case.work != Work::Pair).then_some(rounded(off_rank / self.link.push)),
            link_push_gbps: Some(rounded(self.link.push)),
            ..record
        }
    }

    pub fn memory(&self, case: &str, bytes: Result<i64, String>, reach: f64) -> Record {
        let record = Record { group: Some(Group::Latency), reach: Some(reach), ..self.blank(case) };
        match bytes {
            Ok(bytes) => Record { mib: Some(rounded(bytes as f64 / f64::from(1 << 20))), ..record },
            Err(error) => Record { failed: Some(error), ..record },
        }
    }
}

impl Record {
    /// Whether a goal was reached; goals are for real links.
    pub fn met(&self) -> Option<bool> {
        let value = self.us_median.or(self.mib)?;
        let comparable = self.mib.is_some() || !self.setup.ends_with("_shared");
        self.reach.filter(|_| comparable).map(|reach| value <= reach)
    }
}

/// The largest of all ranks, sample by sample.
fn slowest(seen: &[Seen], samples: fn(&Seen) -> &Vec<f64>) -> Vec<f64> {
    let count = seen.iter().map(|seen| samples(seen).len()).min().unwrap_or(0);
    (0..count).map(|i| seen.iter().map(|seen| samples(seen)[i]).fold(f64::MIN, f64::max)).collect()
}

fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}
