//! What was predicted for more than two GPUs before any were there, beside what was measured since. BENCHMARKS.md says
//! how the predictions came about and what would refute them; the numbers are only here.

use super::record::Record;

/// The cases and their titles.
const CASES: [(&str, &str); 6] = [
    ("dispatch_fp8_t8192_by_rank_sm64", "dispatch FP8 T=8192"),
    ("combine_bf16_t8192_by_rank_sm64", "combine BF16 T=8192"),
    ("ll_dispatch_cast_t128_by_rank", "dispatch + cast T=128"),
    ("ll_combine_t128_by_rank", "combine T=128"),
    ("dispatch_fp8_t8192_by_rank_sm64_to_one", "dispatch T=8192, all to one"),
    ("combine_bf16_t8192_by_rank_sm64_to_one", "combine T=8192, all to one"),
];

/// From, to, in microseconds.
type Span = Option<(f64, f64)>;

/// Number of ranks, rows that a token sends to other ranks, and the time of each case.
const PREDICTED: [(usize, f64, [Span; CASES.len()]); 6] = [
    (3, 1.93, [at(349.0), at(692.0), Some((10.6, 11.2)), at(16.5), None, None]),
    (4, 2.71, [at(486.0), at(972.0), Some((12.6, 13.3)), at(20.9), at(504.0), at(1042.0)]),
    (5, 3.37, [at(601.0), at(1207.0), Some((14.4, 15.0)), at(24.5), None, None]),
    (6, 3.88, [at(690.0), at(1390.0), Some((15.7, 16.3)), at(27.3), None, None]),
    (7, 4.31, [at(766.0), at(1545.0), Some((16.8, 17.5)), at(29.7), None, None]),
    (8, 4.63, [at(823.0), at(1660.0), Some((17.7, 18.3)), at(31.5), at(1176.0), at(2432.0)]),
];

const fn at(us: f64) -> Span {
    Some((us, us))
}

/// Push and pull of the links with all pairs busy, and how far off they may be before the switch is not what was assumed.
const PUSH: f64 = 364.0;
const PULL: f64 = 338.0;
const LINKS_OFF: f64 = 0.03;
/// What is asked at eight ranks of the first two cases, as parts of the links' limit.
const RATIO: f64 = 0.93;
/// Their time at eight ranks over that at four, and how far off it may be.
const GROWTH: f64 = 1.70;
const GROWTH_OFF: f64 = 0.05;
/// Slotted operations may take so many microseconds more.
const LATENCY_OFF: f64 = 3.0;

/// What was measured with a GPU for each rank; not as a point of a sweep.
fn measured<'a>(records: &'a [Record], ranks: usize, case: &str) -> Option<&'a Record> {
    let fits = |record: &&Record| {
        record.case == case && record.ranks == Some(ranks) && record.own_gpus() && !record.in_sweep()
    };
    records.iter().filter(|record| record.us_median.is_some()).find(fits)
}

/// The table, and what the measurements say about each assumption.
pub fn text(records: &[Record]) -> String {
    let titles: Vec<&str> = CASES.iter().map(|(_, title)| *title).collect();
    let mut text =
        format!("us, predicted / measured.\n\n| R | off-rank rows per token | {} |\n", titles.join(" | "));
    text += &format!("|{}\n", "---|".repeat(2 + CASES.len()));
    for (ranks, rows, spans) in &PREDICTED {
        text += &format!("| {ranks} | {rows} |");
        for (span, (case, _)) in spans.iter().zip(CASES) {
            text += &format!(" {} / {} |", span_text(*span), us_text(measured(records, *ranks, case)));
        }
        text += "\n";
    }
    text + "\nIt is refuted unless\n" + &findings(records).concat()
}

fn span_text(span: Span) -> String {
    match span {
        None => "-".into(),
        Some((from, to)) if from == to => format!("{from}"),
        Some((from, to)) => format!("{from} to {to}"),
    }
}

fn us_text(record: Option<&Record>) -> String {
    match record.and_then(|record| record.us_median) {
        Some(us) if us < 100.0 => format!("{us:.1}"),
        Some(us) => format!("{us:.0}"),
        None => "-".into(),
    }
}

/// What was seen of a claim, and whether it holds.
type Seen = (String, bool);

fn line(claim: &str, seen: Vec<Seen>) -> String {
    let say = |(what, holds): Seen| format!("{what}, {}", if holds { "as predicted" } else { "REFUTED" });
    let found = match seen.is_empty() {
        true => "not measured".into(),
        false => seen.into_iter().map(say).collect::<Vec<_>>().join("; "),
    };
    format!("- {claim}: {found}.\n")
}

fn findings(records: &[Record]) -> [String; 4] {
    let find = |ranks, case: usize| measured(records, ranks, CASES[case].0);
    let us = |ranks, case| find(ranks, case).and_then(|record| record.us_median);
    let ranks = || PREDICTED.iter().map(|&(ranks, _, _)| ranks);
    let links = ranks().filter_map(|ranks| {
        let record = find(ranks, 0).or(find(ranks, 1))?;
        let (push, pull) = (record.link_push_gbps?, record.link_pull_gbps?);
        let near = |rate: f64, wanted: f64| (rate / wanted - 1.0).abs() <= LINKS_OFF;
        Some((format!("R={ranks} {push:.0} and {pull:.0}"), near(push, PUSH) && near(pull, PULL)))
    });
    let ratios = [0, 1].into_iter().filter_map(|case| {
        let ratio = find(8, case)?.link_ratio?;
        Some((format!("{} {ratio:.3}", CASES[case].1), ratio >= RATIO))
    });
    let growth = [0, 1].into_iter().filter_map(|case| {
        let growth = us(8, case)? / us(4, case)?;
        Some((format!("{} {growth:.2}", CASES[case].1), (growth - GROWTH).abs() <= GROWTH_OFF))
    });
    let latency = PREDICTED.iter().flat_map(|(ranks, _, spans)| {
        [2, 3].into_iter().filter_map(move |case| {
            let above = us(*ranks, case)? - spans[case]?.1;
            Some((format!("R={ranks} {} {above:+.1}", CASES[case].1), above <= LATENCY_OFF))
        })
    });
    let percent = LINKS_OFF * 100.0;
    [
        line(
            &format!(
                "push and pull limits with all pairs busy are within {percent:.0} % of {PUSH} and {PULL} GB/s; else the \
                 switch is not what was assumed, and only the ratios below can be tested"
            ),
            links.collect(),
        ),
        line(
            &format!(
                "at R=8, T=8192, a dispatch is at least {RATIO} of the push limit and a combine of the pull limit; else a \
                 cost grows with ranks and is not bytes"
            ),
            ratios.collect(),
        ),
        line(
            &format!("R=8 over R=4 is {GROWTH:.2} +- {GROWTH_OFF} for either; else time does not follow off-rank bytes"),
            growth.collect(),
        ),
        line(
            &format!(
                "T=128 is at most {LATENCY_OFF} us above the table; else signals to many peers cost what is said here not \
                 to be added"
            ),
            latency.collect(),
        ),
    ]
}
