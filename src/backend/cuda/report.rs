//! What kernels tell the host: two reports in pinned memory, one that poisons and one that does not.

use crate::driver::Pinned;
use crate::error::{rank_list, Status};
use crate::plan::report::Report;
use crate::plan::words::{mismatch_text, Operation, Phase};
use std::sync::atomic::{AtomicU64, Ordering};

/// Where the report that does not poison lies.
pub const SOFT_BYTES: u64 = 512;
pub const REPORT_BYTES: u64 = 1024;

/// Words of a report, as the struct HostReport lays them out.
const READY: usize = 0;
const MISSING: usize = 11;

/// Reads a report. The number it returns is the report's own, 0 if there is none.
pub fn read(reports: &Pinned, soft: bool, num_ranks: usize) -> (u64, Option<Report>) {
    let words = &reports.words()[if soft { SOFT_BYTES as usize / 8 } else { 0 }..];
    let number = words[READY].load(Ordering::Acquire);
    if number == 0 {
        return (0, None);
    }
    (number, Some(parse(words, num_ranks)))
}

fn parse(words: &[AtomicU64], num_ranks: usize) -> Report {
    let word = |at: usize| words[at].load(Ordering::Relaxed);
    let halves = |at: usize| (word(at) as u32, (word(at) >> 32) as u32);
    let ((status, operation), (phase, rank), (num_missing, _)) = (halves(7), halves(8), halves(9));
    let status = Status::ALL.into_iter().find(|s| *s as u32 == status).unwrap_or(Status::DEEP_EP_INTERNAL);
    let missing: Vec<u32> = match num_missing {
        0 => Vec::new(),
        _ => (0..num_ranks as u32)
            .filter(|&rank| word(MISSING + rank as usize / 64) >> (rank % 64) & 1 == 1)
            .collect(),
    };
    // Slices and side data are parts of the data.
    let phase = Phase::ALL.into_iter().find(|p| *p as u32 == phase).unwrap_or(Phase::Data);
    let waited =
        matches!(status, Status::DEEP_EP_TIMEOUT | Status::DEEP_EP_OP_MISMATCH | Status::DEEP_EP_ABORTED);
    let mut report = Report {
        status,
        operation: Operation::of((operation << 12) as u16),
        phase: waited.then_some(phase),
        missing,
        epoch: word(1),
        expected: word(2),
        seen: word(3),
        row: word(4) as i64,
        value: word(5) as i64,
        waited_ms: (word(6) / 1_000_000) as u32,
        ..Report::nothing(rank)
    };
    report.detail = detail(&report, phase, word(10) as u16);
    report
}

/// `theirs`: the fingerprint of what a peer runs instead.
fn detail(report: &Report, phase: Phase, theirs: u16) -> String {
    let Report { row, value, missing, .. } = report;
    match report.status {
        Status::DEEP_EP_TIMEOUT => format!(
            "{} did not come within {} ms ({} signal {}, seen {})",
            rank_list(missing),
            report.waited_ms,
            phase.name(),
            report.expected,
            report.seen
        ),
        Status::DEEP_EP_ABORTED => format!("{} aborted", rank_list(missing)),
        Status::DEEP_EP_OP_MISMATCH => match (report.operation, &missing[..]) {
            (Some(mine), &[peer]) if theirs != 0 => {
                mismatch_text(peer, (mine, report.epoch), (theirs, report.seen))
            }
            _ => format!("{} runs another operation in its place", rank_list(missing)),
        },
        Status::DEEP_EP_CONCURRENT_USE => {
            "it found another operation of this buffer running on the device; order them by one stream or by events"
                .into()
        }
        Status::DEEP_EP_BUSY => {
            "the device found its window still in use and did nothing; combine or release before".into()
        }
        Status::DEEP_EP_INVALID_EXPERT_ID => {
            format!("topk_idx row {row} has value {value}, which is out of range or repeated in its row; it counts as -1")
        }
        Status::DEEP_EP_CAPACITY_EXCEEDED => {
            format!("{row} rows fit and {value} were sent; the rows of highest position were dropped")
        }
        _ => "an unknown failure on the device".into(),
    }
}
