//! The symmetric memory of eight ranks in the slotted layouts: what the size function says, which is what is allocated.

use super::case::{Case, Rows, Work};
use super::goals::Goal;
use super::job;
use crate::common::{local_group_on, sizes, Outcome};
use deepep::capi::deep_ep_backend_t::DEEP_EP_BACKEND_CUDA;
use deepep::capi::deep_ep_layout_t::{DEEP_EP_SLOTTED_BY_EXPERT, DEEP_EP_SLOTTED_BY_RANK};

pub const CASE: &str = "ll_memory_mib_t128_r8";
pub const GOAL: Goal = Goal { us: None, link_ratio: None, mib: Some(64.0), p99_ratio: None };
const RANKS: usize = 8;
const TOKENS: usize = 128;
const PATIENCE_MS: u32 = 10_000;

/// The most that either layout takes, with FP8 or BF16 rows, and one operation in flight.
pub fn symmetric_bytes() -> Outcome<i64> {
    let comms = local_group_on(RANKS, DEEP_EP_BACKEND_CUDA)?;
    let mut most = 0;
    for layout in [DEEP_EP_SLOTTED_BY_RANK, DEEP_EP_SLOTTED_BY_EXPERT] {
        for rows in [Rows::Fp8, Rows::Bf16] {
            let config = job::config(&Case::new(CASE, Work::Pair, layout, rows, TOKENS), PATIENCE_MS)?;
            most = most.max(sizes(&comms[0], &config)?.total_symmetric);
        }
    }
    Ok(most)
}
