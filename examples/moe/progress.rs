//! Progress on standard error: a bar on a terminal, a line now and then elsewhere.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;

/// Lines in all where there is no terminal.
const LINES: u64 = 5;

pub struct Progress {
    bar: Option<ProgressBar>,
    what: String,
    done: u64,
    total: u64,
}

impl Progress {
    pub fn new(what: &str, total: usize) -> Progress {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{msg} [{bar:40}] {pos}/{len} batches, {elapsed}");
            let bar = ProgressBar::new(total as u64).with_message(what.to_string());
            bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        Progress { bar, what: what.into(), done: 0, total: total as u64 }
    }

    /// One more batch has ended.
    pub fn step(&mut self) {
        let part = |done: u64| done * LINES / self.total.max(1);
        let (before, after) = (part(self.done), part(self.done + 1));
        self.done += 1;
        match &self.bar {
            Some(bar) => bar.inc(1),
            None if after > before => eprintln!("{}: {} of {} batches", self.what, self.done, self.total),
            None => {}
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.abandon();
        }
    }
}
