//! The results as a table for people, as JSON, and as a section of a Markdown file.

use crate::common::Outcome;
use crate::machine::Machine;
use crate::measure::Case;
use std::path::Path;

const HEADING: &str = "## Host backend";

pub fn to_json(machine: &Machine, cases: &[Case]) -> Outcome<String> {
    let mut objects = vec![serde_json::to_value(machine).map_err(|error| error.to_string())?];
    for case in cases {
        objects.push(serde_json::to_value(case).map_err(|error| error.to_string())?);
    }
    serde_json::to_string_pretty(&objects).map_err(|error| error.to_string())
}

pub fn from_json(text: &str) -> Outcome<(Machine, Vec<Case>)> {
    let mut objects: Vec<serde_json::Value> =
        serde_json::from_str(text).map_err(|error| format!("not the JSON of this program: {error}"))?;
    if objects.is_empty() {
        return Err("not the JSON of this program: an empty array".into());
    }
    let machine = serde_json::from_value(objects.remove(0)).map_err(|error| error.to_string())?;
    let cases = objects.into_iter().map(serde_json::from_value).collect::<Result<_, _>>();
    Ok((machine, cases.map_err(|error| error.to_string())?))
}

/// The cells of one line; every table shows the same ones.
fn cells(case: &Case) -> [String; 9] {
    let number = |value: Option<f64>, digits: usize| value.map_or("-".into(), |v| format!("{v:.digits$}"));
    let met = match case.met {
        Some(true) => "yes",
        Some(false) => "NO",
        None => "-",
    };
    let counts: Vec<String> = case.counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
    [
        format!("{}, R={}", case.case, case.ranks),
        number(case.us_median, 1),
        number(case.us_p99, 1),
        number(case.gb_per_s, 2),
        number(case.memcpy_gb_per_s, 2),
        number(case.ratio, 2),
        case.goal.clone(),
        met.into(),
        format!("{}; {}", case.shape, counts.join(", ")),
    ]
}

const TITLES: [&str; 9] =
    ["case", "median us", "p99 us", "GB/s", "memcpy GB/s", "ratio", "goal", "met", "shape and counts"];

pub fn table(machine: &Machine, cases: &[Case]) -> String {
    let rows: Vec<[String; 9]> = cases.iter().map(cells).collect();
    let width = |column: usize| {
        let widest = rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
        widest.max(TITLES[column].len())
    };
    let line = |row: &[String; 9]| -> String {
        let cells = (0..9).map(|i| match i {
            0 | 6.. => format!("{:<1$}", row[i], width(i)),
            _ => format!("{:>1$}", row[i], width(i)),
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_string()
    };
    let mut text = format!("{}\n\n{}\n", machine.line(), line(&TITLES.map(String::from)));
    for row in &rows {
        text += &line(row);
        text.push('\n');
    }
    text
}

fn section(machine: &Machine, cases: &[Case]) -> String {
    let mut text = format!(
        "{HEADING}\n\nWritten by `cargo run --release --example bench -- --markdown BENCHMARKS.md`.\n\n{}.\n\n",
        machine.line()
    );
    text += "GB/s: bytes read plus written. memcpy: as many threads, in the same run, round about. Ratio: GB/s over \
             memcpy's, the median over rounds.\n\n";
    text += &format!("| {} |\n|{}\n", TITLES.join(" | "), "---|".repeat(TITLES.len()));
    for case in cases {
        text += &format!("| {} |\n", cells(case).join(" | "));
    }
    text
}

/// Puts the results into a file in place of those that are there, or behind all else.
pub fn into_markdown(file: &Path, machine: &Machine, cases: &[Case]) -> Outcome<()> {
    let old = std::fs::read_to_string(file).ok().filter(|text| !text.trim().is_empty());
    let old = old.unwrap_or_else(|| "# Benchmarks\n".into());
    let start = old.find(HEADING).unwrap_or(old.len());
    let rest = old[start..].get(HEADING.len()..).unwrap_or_default();
    let end = rest.find("\n## ").map_or("", |at| &rest[at..]);
    let new = format!("{}\n\n{}{end}", old[..start].trim_end(), section(machine, cases));
    std::fs::write(file, new).map_err(|error| format!("cannot write {}: {error}", file.display()))
}
