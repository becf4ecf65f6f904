//! Results as a table, as JSON, and between markers of a Markdown file.

use super::list::Group;
use super::record::Record;
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
    let unit = if record.case.contains("_mib_") { "MiB" } else { "us" };
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
        record.reach.map_or("-".into(), |reach| format!("<= {reach} {unit}")),
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

/// The files of a run, by group: `throughput_SETUP.json`, `latency_SETUP.json`, `sweeps_SETUP.json`. Cases that failed have
/// no place in them.
pub fn write_results(dir: &Path, setup: &str, records: &[Record]) -> Outcome<()> {
    std::fs::create_dir_all(dir).map_err(|error| format!("cannot make {}: {error}", dir.display()))?;
    let is_sweep = |group: Option<Group>| !matches!(group, Some(Group::Throughput | Group::Latency));
    let of = |wanted: &dyn Fn(Option<Group>) -> bool| -> Vec<Record> {
        records.iter().filter(|record| record.failed.is_none() && wanted(record.group)).cloned().collect()
    };
    for (name, some) in [
        ("throughput", of(&|group| group == Some(Group::Throughput))),
        ("latency", of(&|group| group == Some(Group::Latency))),
        ("sweeps", of(&is_sweep)),
    ] {
        if !some.is_empty() {
            write(&dir.join(format!("{name}_{setup}.json")), &to_json(&some)?)?;
        }
    }
    Ok(())
}

const HEADING: &str = "## CUDA backend";

fn section(setup: &str, records: &[&Record]) -> String {
    let mut text = String::new();
    if let Some(first) = records.first() {
        let push = records.iter().find_map(|record| record.link_push_gbps).unwrap_or(0.0);
        let link = if setup.ends_with("_shared") {
            "no link: the stores of both ranks to the device's memory"
        } else {
            "the link"
        };
        text += &format!(
            "{}, {}, method: {}. Push rate of {link}: {push:.0} GB/s per rank.\n\n",
            first.machine, first.date, first.method
        );
    }
    text += &format!("| {} |\n|{}\n", TITLES.join(" | "), "---|".repeat(TITLES.len()));
    for record in records {
        match &record.failed {
            Some(error) => {
                text += &format!("| {} | {error} |{}\n", record.case, " - |".repeat(TITLES.len() - 2))
            }
            None => text += &format!("| {} |\n", cells(record).join(" | ")),
        }
    }
    text
}

/// Replaces what stands between the markers of each setup; new markers go to the end of the file.
pub fn into_markdown(file: &Path, records: &[Record]) -> Outcome<()> {
    let mut text = std::fs::read_to_string(file).unwrap_or_else(|_| "# Benchmarks\n".into());
    let mut setups: Vec<&str> = records.iter().map(|record| record.setup.as_str()).collect();
    setups.sort_unstable();
    setups.dedup();
    for setup in setups {
        let some: Vec<&Record> = records.iter().filter(|record| record.setup == setup).collect();
        let (begin, end) = (format!("<!-- measured: {setup} -->\n"), format!("<!-- end: {setup} -->\n"));
        let new = format!("{begin}\n{}\n{end}", section(setup, &some));
        let place =
            text.find(&begin).and_then(|from| Some((from, text[from..].find(&end)? + from + end.len())));
        match place {
            Some((from, to)) => text.replace_range(from..to, &new),
            None => {
                if !text.contains(HEADING) {
                    text += &format!("\n{HEADING}\n");
                }
                text += &format!("\n{new}");
            }
        }
    }
    write(file, &text)
}
