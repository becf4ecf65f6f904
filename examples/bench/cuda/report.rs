//! Results as a table, as JSON, and between markers of a Markdown file.

use super::record::Record;
use super::{predicted, tables};
use crate::common::Outcome;
use std::path::Path;

const TITLES: [&str; 9] =
    ["case", "median us", "p99 us", "off-rank GB/s", "logical GB/s", "link ratio", "SMs", "goal", "met"];

fn cells(record: &Record) -> [String; 9] {
    let number = |value: Option<f64>, digits: usize| value.map_or("-".into(), |v| format!("{v:.digits$}"));
    let sms = match record.sms {
        Some(0) => "auto".into(),
        Some(sms) => sms.to_string(),
        None => "-".into(),
    };
    let met = match record.met() {
        Some(true) => "yes",
        Some(false) => "NO",
        None => "-",
    };
    let median = match record.mib {
        Some(mib) => format!("{mib:.1} MiB"),
        None => number(record.us_median, 2),
    };
    [
        record.case.clone(),
        median,
        number(record.us_p99, 2),
        number(record.gbps_off_rank, 1),
        number(record.gbps_logical, 1),
        number(record.link_ratio, 2),
        sms,
        record.goal().text(),
        met.into(),
    ]
}

pub fn heading() -> String {
    line(&TITLES.map(String::from))
}

/// A line of the table on a terminal: cases that failed say why.
pub fn row(record: &Record) -> String {
    match &record.failed {
        Some(error) => format!("{:<44} {error}", record.case),
        None => line(&cells(record)),
    }
}

fn line(cells: &[String; 9]) -> String {
    let mut text = format!("{:<44}", cells[0]);
    cells[1..].iter().for_each(|cell| text += &format!(" {cell:>13}"));
    text.trim_end().to_string()
}

pub fn to_json(records: &[Record]) -> Outcome<String> {
    serde_json::to_string_pretty(records).map(|text| text + "\n").map_err(|error| error.to_string())
}

pub fn from_json(file: &Path) -> Outcome<Vec<Record>> {
    let text =
        std::fs::read_to_string(file).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    serde_json::from_str(&text).map_err(|error| format!("{} is not of this program: {error}", file.display()))
}

pub fn write(file: &Path, text: &str) -> Outcome<()> {
    std::fs::write(file, text).map_err(|error| format!("cannot write {}: {error}", file.display()))
}

const HEADING: &str = "## CUDA backend";

const PREDICTIONS: &str = "predictions";
const SYNC: &str = "sync";

/// Who measured where and when.
fn origin(records: &[&Record]) -> String {
    let Some(first) = records.first() else { return String::new() };
    let rate = |of: fn(&Record) -> Option<f64>| {
        records.iter().find_map(|record| of(record)).map_or("-".into(), |rate| format!("{rate:.0}"))
    };
    let link = if first.setup.contains("_shared") {
        "In place of links, all ranks at once in the device's memory"
    } else {
        "Links with all pairs busy, each GPU"
    };
    format!(
        "{}, {}, method: {}. {link}: push {}, pull {}, copy engines {} GB/s.\n",
        first.machine,
        first.date,
        first.method,
        rate(|record| record.link_push_gbps),
        rate(|record| record.link_pull_gbps),
        rate(|record| record.link_copy_gbps)
    )
}

/// Single cases and what failed one by one, sweeps as tables of their own.
fn section(records: &[&Record]) -> String {
    let mut text = origin(records);
    let single: Vec<&&Record> =
        records.iter().filter(|record| record.failed.is_some() || !record.in_sweep()).collect();
    if !single.is_empty() {
        text += &format!("\n| {} |\n|{}\n", TITLES.join(" | "), "---|".repeat(TITLES.len()));
    }
    for record in single {
        match &record.failed {
            Some(error) => {
                text += &format!("| {} | {error} |{}\n", record.case, " - |".repeat(TITLES.len() - 2))
            }
            None => text += &format!("| {} |\n", cells(record).join(" | ")),
        }
    }
    text + &tables::sweeps(records)
}

fn by_setup(records: &[Record]) -> Vec<(&str, Vec<&Record>)> {
    let mut setups: Vec<&str> = records.iter().map(|record| record.setup.as_str()).collect();
    setups.sort_unstable();
    setups.dedup();
    setups
        .into_iter()
        .map(|setup| (setup, records.iter().filter(|record| record.setup == setup).collect()))
        .collect()
}

/// Replaces what stands between the markers of a name, if they are there.
fn replaced(text: &mut String, name: &str, new: &str) -> bool {
    let (begin, end) = (format!("<!-- measured: {name} -->\n"), format!("<!-- end: {name} -->\n"));
    let place = text.find(&begin).and_then(|from| Some((from, text[from..].find(&end)? + from + end.len())));
    if let Some((from, to)) = place {
        text.replace_range(from..to, &format!("{begin}\n{new}\n{end}"));
    }
    place.is_some()
}

/// Into the markers of each setup; new ones go to the end of the file. And beside the predictions.
pub fn into_markdown(file: &Path, records: &[Record]) -> Outcome<()> {
    let mut text = std::fs::read_to_string(file).unwrap_or_else(|_| "# Benchmarks\n".into());
    for (setup, some) in by_setup(records) {
        let new = section(&some);
        if replaced(&mut text, setup, &new) {
            continue;
        }
        if !text.contains(HEADING) {
            text += &format!("\n{HEADING}\n");
        }
        text += &format!("\n<!-- measured: {setup} -->\n<!-- end: {setup} -->\n");
        replaced(&mut text, setup, &new);
    }
    replaced(&mut text, PREDICTIONS, &predicted::text(records));
    write(file, &text)
}

/// The ways to synchronise, of each setup that measured them.
pub fn into_sync_markdown(file: &Path, records: &[Record]) -> Outcome<()> {
    let mut new = String::new();
    for (setup, some) in by_setup(records) {
        let table = tables::sync(&some);
        if !table.is_empty() {
            new += &format!("{}{setup}. {}{table}", if new.is_empty() { "" } else { "\n" }, origin(&some));
        }
    }
    if new.is_empty() {
        return Ok(());
    }
    let mut text =
        std::fs::read_to_string(file).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    if !replaced(&mut text, SYNC, &new) {
        return Err(format!("{} has no markers <!-- measured: {SYNC} -->", file.display()));
    }
    write(file, &text)
}
