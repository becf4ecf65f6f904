//! The files of a run. They are written after every case, so a run that is ended keeps what it measured, and what other
//! runs of the same setup measured stays in them.

use super::list::Group;
use super::record::Record;
use super::report;
use crate::common::Outcome;
use std::path::{Path, PathBuf};

/// The name of a file, and which records it holds.
type Part = (&'static str, fn(&Record) -> bool);

const FILES: [Part; 4] = [
    ("throughput", |record| record.failed.is_none() && record.group == Some(Group::Throughput)),
    ("latency", |record| record.failed.is_none() && record.group == Some(Group::Latency)),
    ("sweeps", |record| record.failed.is_none() && !record.group.is_some_and(Group::is_numbered)),
    ("not_measured", |record| record.failed.is_some()),
];

/// The results of one setup, old and new.
pub struct Results {
    dir: PathBuf,
    setup: String,
    records: Vec<Record>,
}

impl Results {
    pub fn open(dir: &Path, setup: &str) -> Outcome<Results> {
        std::fs::create_dir_all(dir).map_err(|error| format!("cannot make {}: {error}", dir.display()))?;
        let mut results = Results { dir: dir.into(), setup: setup.into(), records: Vec::new() };
        for (name, _) in FILES {
            let file = results.file(name);
            if file.exists() {
                results.records.extend(report::from_json(&file)?);
            }
        }
        Ok(results)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}_{}.json", self.setup))
    }

    /// In place of what was known of the case; a case that was not begun takes nothing's place.
    pub fn add(&mut self, record: &Record, begun: bool) -> Outcome<()> {
        let same = |old: &&mut Record| old.case == record.case && old.group == record.group;
        match self.records.iter_mut().find(same) {
            Some(old) if begun => *old = record.clone(),
            Some(_) => {}
            None => self.records.push(record.clone()),
        }
        for (name, belongs) in FILES {
            let some: Vec<Record> = self.records.iter().filter(|record| belongs(record)).cloned().collect();
            let file = self.file(name);
            if some.is_empty() {
                let _ = std::fs::remove_file(&file); // most often there is none
                continue;
            }
            let part = file.with_extension("json.part");
            report::write(&part, &report::to_json(&some)?)?;
            std::fs::rename(&part, &file)
                .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
        }
        Ok(())
    }
}
