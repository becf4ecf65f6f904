//! tests/README.md lists every case, and every case that it places in a file is there.

use std::collections::BTreeSet;
use std::path::Path;

fn numbers(text: &str) -> BTreeSet<usize> {
    text.split("fn case_").skip(1).filter_map(|rest| rest.get(..3)?.parse().ok()).collect()
}

#[test]
fn every_report_has_a_row_and_every_row_its_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = std::fs::read_to_string(root.join("tests/README.md")).unwrap();
    let mut listed = BTreeSet::new();
    for line in readme.lines() {
        let columns: Vec<_> = line.split('|').map(str::trim).collect();
        let [_, number, reports, what, file, _] = columns[..] else { continue };
        let Ok(number) = number.parse::<usize>() else { continue };
        assert!(reports.contains('#') && !what.is_empty(), "case {number}");
        assert!(listed.insert(number), "case {number} is listed twice");
        for name in file.split(',').map(|name| name.trim().trim_matches('`')).filter(|name| *name != "-") {
            let text = std::fs::read_to_string(root.join(name));
            let text = text.unwrap_or_else(|error| panic!("case {number}: {name}: {error}"));
            if name.starts_with("tests/cases/") {
                assert!(numbers(&text).contains(&number), "case {number} is not in {name}");
            }
        }
        let elsewhere = ["waits: ", "cannot occur", "not a test"].iter().any(|start| what.starts_with(start));
        assert_eq!(file == "-", elsewhere, "case {number}: {what}");
    }
    assert_eq!(listed, (1..=121).collect());
    for entry in std::fs::read_dir(root.join("tests/cases")).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        assert!(numbers(&text).is_subset(&listed));
    }
}
