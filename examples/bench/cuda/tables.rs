//! Tables of sweeps: one number in each place, of a case and what was swept.

use super::list::Group;
use super::record::Record;
use std::collections::{BTreeMap, BTreeSet};

/// What a row or column is called, behind what it is ordered by.
type Key = (u64, String);

/// A name without its parts that are `prefix` and a number.
pub fn without(case: &str, prefix: &str) -> String {
    let is_number = |part: &str| part.strip_prefix(prefix).is_some_and(|rest| rest.parse::<u32>().is_ok());
    case.split('_').filter(|part| !is_number(part)).collect::<Vec<_>>().join("_")
}

fn number(value: u64) -> Key {
    (value, value.to_string())
}

/// Empty where there is nothing to show.
fn table(
    corner: &str,
    records: &[&Record],
    row: &dyn Fn(&Record) -> Option<Key>,
    column: &dyn Fn(&Record) -> Option<Key>,
) -> String {
    let mut cells: BTreeMap<Key, BTreeMap<Key, String>> = BTreeMap::new();
    for record in records {
        let (Some(row), Some(column), Some(us)) = (row(record), column(record), record.us_median) else {
            continue;
        };
        let ratio = record.link_ratio.filter(|_| us >= 100.0).map_or(String::new(), |r| format!(" ({r:.2})"));
        let digits = if us < 100.0 { 1 } else { 0 };
        cells.entry(row).or_default().insert(column, format!("{us:.digits$}{ratio}"));
    }
    if cells.is_empty() {
        return String::new();
    }
    let columns: BTreeSet<&Key> = cells.values().flat_map(BTreeMap::keys).collect();
    let titles: Vec<&str> = columns.iter().map(|(_, name)| name.as_str()).collect();
    let mut text = format!("\n| {corner} | {} |\n|{}\n", titles.join(" | "), "---|".repeat(1 + titles.len()));
    for ((_, name), values) in &cells {
        text += &format!("| {name} |");
        for key in &columns {
            text += &format!(" {} |", values.get(*key).map_or("-", String::as_str));
        }
        text += "\n";
    }
    text
}

/// Time against SMs, depths and tokens; in brackets, of what is large, the part of the links' limit.
pub fn sweeps(records: &[&Record]) -> String {
    let of = |group| -> Vec<&Record> {
        records.iter().copied().filter(|record| record.group == Some(group)).collect()
    };
    let named = |prefix: &'static str| move |record: &Record| Some((0, without(&record.case, prefix)));
    let sms =
        table("us against SMs", &of(Group::Sms), &named("sm"), &|record| Some(number(record.sms?.into())));
    let stages = table("us against stages", &of(Group::Stages), &named("stages"), &|record| {
        Some(number(record.stages? as u64))
    });
    let tokens = table("us against tokens", &of(Group::Tokens), &named("t"), &|record| {
        Some(number(record.tokens? as u64))
    });
    sms + &stages + &tokens
}

const SYNC: [&str; 3] = ["auto", "ack", "barrier"];

/// The three ways to synchronise against tokens, with all ranks prompt and with one late.
pub fn sync(records: &[&Record]) -> String {
    let some: Vec<&Record> =
        records.iter().copied().filter(|record| record.group == Some(Group::Sync)).collect();
    let column = |record: &Record| {
        let way = SYNC.iter().position(|way| record.case.split('_').any(|part| part == *way))?;
        let (late, name) = (record.late_us.unwrap_or(0), SYNC[way].to_uppercase());
        let name = if late == 0 { name } else { format!("{name}, one {late} us late") };
        Some((u64::from(late) * SYNC.len() as u64 + way as u64, name))
    };
    table("tokens per rank", &some, &|record| Some(number(record.tokens? as u64)), &column)
}
