//! How long a case will take, roughly, so that a run can be planned and ended in time.

use super::case::{Case, Work, EXPERTS, HIDDEN, TOPK};
use super::sequence::{Effort, OPERATIONS};

/// Bytes in a microsecond: of the links, of an SM, of the device's memory.
const LINK: f64 = 340e3;
const SM: f64 = 43e3;
const MEMORY: f64 = 2000e3;
/// Before an operation: a flush of the caches and a barrier, or a barrier alone.
const FLUSH_US: f64 = 60.0;
const BARRIER_US: f64 = 10.0;
/// Meeting, enqueueing a sequence and waiting for it.
const REPLAY_US: f64 = 250.0;
/// Creating and giving back a buffer, random inputs, captures.
const SETUP_SECONDS: f64 = 0.5;
/// For each rank, since they meet often.
const MEETING_SECONDS: f64 = 0.05;

/// Ranks other than its own that a token's row goes to, on average.
pub fn rows_per_token(ranks: usize) -> f64 {
    let missed = |experts: usize| {
        (0..TOPK)
            .map(|i| (EXPERTS - experts).saturating_sub(i) as f64 / (EXPERTS - i) as f64)
            .product::<f64>()
    };
    (ranks as f64 - 1.0) * (1.0 - missed(EXPERTS / ranks))
}

/// One operation, in microseconds.
fn operation_us(case: &Case, ranks: usize) -> f64 {
    let tokens = case.tokens as f64;
    let sms = if case.sms == 0 { 64.0 } else { f64::from(case.sms) };
    let crossing = tokens * rows_per_token(ranks) * case.row_bytes() as f64 / LINK.min(SM * sms);
    let expanded = match (case.by_expert(), case.work) {
        (false, _) => 0.0,
        (true, Work::Dispatch) => tokens * (TOPK * case.rows.sent_bytes()) as f64,
        (true, _) => tokens * (TOPK * 2 * HIDDEN) as f64,
    };
    10.0 + crossing + expanded / MEMORY.min(SM * sms) + f64::from(case.late_us)
}

pub fn seconds(case: &Case, ranks: usize, effort: &Effort) -> f64 {
    let surroundings = match (case.flushed(), case.is_alone()) {
        (true, _) => FLUSH_US,
        (false, true) => BARRIER_US,
        (false, false) => 0.0,
    };
    let both = operation_us(case, ranks) + surroundings;
    let replays = effort.sequences(case);
    let us: f64 = [(replays.alone, surroundings), (replays.all, both), (replays.stamped, both)]
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|&(count, operation)| {
            (count + effort.warm_up()) as f64 * (OPERATIONS as f64 * operation + REPLAY_US)
        })
        .sum();
    SETUP_SECONDS + MEETING_SECONDS * ranks as f64 + us / 1e6
}
