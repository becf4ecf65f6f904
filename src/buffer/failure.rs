//! What went wrong on a buffer, for later calls and for `deep_ep_buffer_report`.

use super::state::Buffer;
use crate::error::{Error, Result, Status};
use crate::plan::report::Report;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

pub(super) struct Failures {
    rank: u32,
    poisoned: AtomicBool,
    reports: Mutex<Reports>,
}

#[derive(Default)]
struct Reports {
    /// Ends the buffer's work until reset.
    poison: Option<Report>,
    /// The first thing that went wrong without doing so.
    pending: Option<Report>,
}

impl Failures {
    pub fn new(rank: u32) -> Failures {
        Failures { rank, poisoned: AtomicBool::new(false), reports: Mutex::default() }
    }

    fn reports(&self) -> MutexGuard<'_, Reports> {
        self.reports.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Refuses work on a poisoned buffer with the error that poisoned it.
    pub fn check(&self) -> Result<()> {
        if !self.poisoned.load(Ordering::Acquire) {
            return Ok(());
        }
        match &self.reports().poison {
            Some(report) => Err(Error {
                text: format!("{} (the buffer is unusable until deep_ep_buffer_reset)", report.error()),
                ..report.error()
            }),
            None => Ok(()),
        }
    }

    /// Keeps the first failure, and returns it as an error.
    pub fn poison(&self, report: Report) -> Error {
        let error = report.error();
        self.reports().poison.get_or_insert(report);
        self.poisoned.store(true, Ordering::Release);
        error
    }

    /// Keeps the first impairment.
    pub fn note(&self, report: Report) {
        self.reports().pending.get_or_insert(report);
    }

    pub fn was_aborted(&self) -> Option<Error> {
        let reports = self.reports();
        reports.poison.as_ref().filter(|report| report.status == Status::DEEP_EP_ABORTED).map(Report::error)
    }

    pub fn clear(&self) {
        *self.reports() = Reports::default();
        self.poisoned.store(false, Ordering::Release);
    }
}

impl Buffer {
    /// The oldest report. A poisoning one stays.
    pub fn take_report(&self) -> Report {
        self.look_at_device();
        if let Some(report) = self.take_device_report() {
            self.failures.note(report);
        }
        let mut reports = self.failures.reports();
        let pending = reports.pending.take();
        pending.or_else(|| reports.poison.clone()).unwrap_or_else(|| Report::nothing(self.failures.rank))
    }
}
