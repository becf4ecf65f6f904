//! Kernels that were enqueued on streams of callers: whether they have run, and a way to keep new ones back.

use super::device::Device;
use super::stream::{Mark, StreamPointer};
use crate::error::Result;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Behind the newest kernel of each stream.
pub(super) type Marks = BTreeMap<StreamPointer, Mark>;

/// Kernels of one buffer on one device, which may wait for peers.
pub struct Work {
    device: Arc<Device>,
    ledger: Arc<Ledger>,
}

#[derive(Default)]
pub(super) struct Ledger {
    marks: Mutex<Marks>,
    /// Whether any kernel was captured: nobody says when it runs.
    is_replayed: AtomicBool,
}

impl Work {
    pub fn new(device: &Arc<Device>) -> Work {
        let work = Work { device: device.clone(), ledger: Arc::default() };
        device.yard.begin(work.ledger.clone());
        work
    }

    /// Makes a call that enqueues on the stream. The device's context is current.
    pub fn enqueue(&self, stream: StreamPointer, call: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut marks = self.ledger.marks();
        call()?;
        match marks.get(&stream) {
            Some(mark) => mark.set(stream),
            None => {
                let mark = Mark::new(&self.device)?;
                mark.set(stream)?;
                marks.insert(stream, mark);
                Ok(())
            }
        }
    }

    /// What is enqueued next is captured.
    pub fn will_be_replayed(&self) {
        if !self.is_replayed() {
            let _marks = self.ledger.marks(); // nobody is told meanwhile that it has all ended
            self.ledger.is_replayed.store(true, Ordering::Relaxed);
        }
    }

    pub fn is_replayed(&self) -> bool {
        self.ledger.is_replayed.load(Ordering::Relaxed)
    }

    /// Until everything has run that was enqueued, but for replays.
    pub fn wait(&self) -> Result<()> {
        self.ledger.marks().values().try_for_each(Mark::wait)
    }
}

/// None of its kernels runs any more.
impl Drop for Work {
    fn drop(&mut self) {
        self.device.yard.end(&self.ledger, &self.device);
    }
}

impl Ledger {
    fn marks(&self) -> MutexGuard<'_, Marks> {
        self.marks.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Keeps new kernels back as long as the guard lives; None if any runs, or may run.
    pub fn hold(&self) -> Option<MutexGuard<'_, Marks>> {
        let marks = self.marks.try_lock().ok()?;
        let is_idle = !self.is_replayed.load(Ordering::Relaxed) && marks.values().all(Mark::has_passed);
        is_idle.then_some(marks)
    }
}
