//! What was sent and received, per rank and per expert.

use crate::message::{Report, Traffic};
use crate::rank::ROW_BYTES;

pub fn per_rank(reports: &[Report]) {
    println!();
    println!(
        "{:>4} {:>7} {:>7}  {:<40} {:<40} {:>24}",
        "rank",
        "tokens",
        "batches",
        "dispatch sent / received",
        "combine sent / received",
        "ms dispatch/experts/comb."
    );
    for report in reports {
        println!(
            "{:>4} {:>7} {:>7}  {:<40} {:<40} {:>24}",
            report.rank,
            report.tokens,
            report.batches,
            traffic(&report.dispatch),
            traffic(&report.combine),
            format!(
                "{} / {} / {}",
                millis(report.dispatch_us),
                millis(report.experts_us),
                millis(report.combine_us)
            )
        );
    }
}

fn traffic(traffic: &Traffic) -> String {
    format!(
        "{} rows {} / {} rows {}",
        traffic.rows_sent,
        bytes(traffic.bytes_sent),
        traffic.rows_received,
        bytes(traffic.bytes_received)
    )
}

fn bytes(count: u64) -> String {
    match count {
        0..=9_999 => format!("{count} B"),
        10_000..=9_999_999 => format!("{:.1} kB", count as f64 / 1e3),
        _ => format!("{:.1} MB", count as f64 / 1e6),
    }
}

fn millis(micros: u64) -> String {
    format!("{:.1}", micros as f64 / 1e3)
}

pub fn per_expert(reports: &[Report]) {
    println!();
    println!("{:>6} {:>4} {:>9} {:>10}  rows from rank 0, 1, ...", "expert", "rank", "rows", "bytes");
    for (report, expert) in experts(reports) {
        let rows: u64 = expert.from.iter().sum();
        let from: Vec<String> = expert.from.iter().map(u64::to_string).collect();
        let size = bytes(rows * ROW_BYTES as u64);
        println!("{:>6} {:>4} {:>9} {:>10}  {}", expert.id, report.rank, rows, size, from.join(", "));
    }
    println!();
}

fn experts(reports: &[Report]) -> impl Iterator<Item = (&Report, &crate::message::ExpertReport)> {
    reports.iter().flat_map(|report| report.experts.iter().map(move |expert| (report, expert)))
}

/// A row that a gate chose an expert for and that did not arrive there, or the other way round; or another number of
/// rows on the way back.
pub fn lost_rows(reports: &[Report]) -> Option<String> {
    let to_experts: u64 = experts(reports).flat_map(|(_, expert)| &expert.from).sum();
    let back: u64 = reports.iter().map(|report| report.combine.rows_received).sum();
    if back != to_experts {
        return Some(format!("{to_experts} rows went to experts, and {back} came back"));
    }
    experts(reports).find_map(|(_, expert)| {
        expert.from.iter().zip(reports).find_map(|(&arrived, source)| {
            let chosen = source.chosen[expert.id];
            (arrived != chosen).then(|| {
                format!(
                    "rank {} sent {chosen} rows to expert {}, and {arrived} arrived",
                    source.rank, expert.id
                )
            })
        })
    })
}
