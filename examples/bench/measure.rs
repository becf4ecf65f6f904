//! Results, and the little statistics behind them.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One line of the result.
#[derive(Serialize, Deserialize, Clone, Default)]
pub struct Case {
    pub case: String,
    pub ranks: usize,
    pub shape: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub us_median: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub us_p99: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub gb_per_s: Option<f64>,
    /// What plain memcpy reached between the rounds of this case.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub memcpy_gb_per_s: Option<f64>,
    /// gb_per_s / memcpy_gb_per_s, the median over rounds.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ratio: Option<f64>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub counts: BTreeMap<String, i64>,
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub goal: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub met: Option<bool>,
}

/// The value below which a part of the samples lie.
pub fn quantile(samples: &mut [f64], part: f64) -> f64 {
    samples.sort_unstable_by(f64::total_cmp);
    let last = samples.len().saturating_sub(1);
    samples.get((last as f64 * part).round() as usize).copied().unwrap_or(f64::NAN)
}

pub fn median(samples: &mut [f64]) -> f64 {
    quantile(samples, 0.5)
}

/// Random numbers for routings, the same in every run.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        ((self.0 >> 33) % bound as u64) as usize
    }

    /// `topk` different experts for each token.
    pub fn routing(&mut self, tokens: usize, topk: usize, experts: usize) -> Vec<i32> {
        let mut ids = Vec::with_capacity(tokens * topk);
        for _ in 0..tokens {
            let first = ids.len();
            while ids.len() < first + topk {
                let id = self.below(experts) as i32;
                if !ids[first..].contains(&id) {
                    ids.push(id);
                }
            }
        }
        ids
    }
}
