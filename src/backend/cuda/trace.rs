//! The phases of operations as kernels note them: a ring of events in pinned memory, on the clock of the device.

use super::clock::Clock;
use super::memory::Cuda;
use super::params::{TraceEvent, TRACE_EVENTS};
use crate::driver::{pinned_bytes, Device, Pinned};
use crate::error::Result;
use crate::plan::words::Operation;
use std::sync::atomic::{fence, AtomicU64, Ordering};
use std::sync::Arc;

const TRACE_BYTES: u64 = (TRACE_EVENTS * size_of::<TraceEvent>()) as u64;

/// Events that a kernel may be writing while the ring is read: those of a few operations.
const BEING_WRITTEN: u64 = 64;

/// One phase, in nanoseconds of the monotonic clock.
pub struct Phase {
    pub name: &'static str,
    pub operation: &'static str,
    pub epoch: u64,
    pub begin_ns: u64,
    pub end_ns: u64,
}

/// The newest phases, and how many older ones the ring has no room for.
pub struct Phases {
    pub phases: Vec<Phase>,
    pub lost: u64,
}

pub struct Trace {
    events: Pinned,
    pub(super) clock: Clock,
}

impl Trace {
    pub fn new(device: &Arc<Device>) -> Result<Trace> {
        Ok(Trace { events: Pinned::new(device, TRACE_BYTES)?, clock: Clock::new(device)? })
    }

    /// Of pinned memory.
    pub fn bytes() -> u64 {
        pinned_bytes(TRACE_BYTES) + Clock::bytes()
    }

    /// Where kernels leave their events.
    pub fn address(&self) -> u64 {
        self.events.address()
    }

    /// Event `number`, if it is there.
    fn event(&self, number: u64) -> Option<TraceEvent> {
        const WORDS: usize = size_of::<TraceEvent>() / 8;
        let start = (number - 1) as usize % TRACE_EVENTS * WORDS;
        let [begin, end, what, newest] = self.events.words().get(start..start + WORDS)? else { return None };
        let here = newest.load(Ordering::Acquire) == number;
        let word = |word: &AtomicU64| word.load(Ordering::Relaxed);
        here.then(|| TraceEvent { begin: word(begin), end: word(end), what: word(what), number })
    }
}

impl Cuda {
    /// What the kernels have noted; None where the buffer is not traced.
    pub fn trace(&self) -> Result<Option<Phases>> {
        let Some(trace) = &self.trace else { return Ok(None) };
        self.read_clock(&trace.clock);
        let newest = self.statistics()?.totals().events;
        let first = newest.saturating_sub(TRACE_EVENTS as u64) + 1;
        let events: Vec<TraceEvent> = (first..=newest).filter_map(|number| trace.event(number)).collect();
        fence(Ordering::SeqCst);
        let overwritten =
            (self.statistics()?.totals().events + BEING_WRITTEN).saturating_sub(TRACE_EVENTS as u64);
        let whole = events.iter().filter(|event| event.number > overwritten);
        let phases: Option<Vec<Phase>> = whole.map(|event| trace.clock.phase(event)).collect();
        // Without a common clock the times say nothing beside those of other ranks.
        let phases = phases.ok_or_else(super::clock::unread)?;
        Ok(Some(Phases { lost: newest - phases.len() as u64, phases }))
    }
}

impl Clock {
    fn phase(&self, event: &TraceEvent) -> Option<Phase> {
        let number = (event.what >> 8 & 0xff) as u16;
        let operation = Operation::of(number << 12).map_or("operation", Operation::name);
        let begin_ns = self.on_host(event.begin)?;
        Some(Phase {
            name: name(operation, event.what & 0xff),
            operation,
            epoch: event.what >> 16,
            begin_ns,
            end_ns: self.on_host(event.end)?.max(begin_ns),
        })
    }
}

/// The phase that ends with a stamp; the names are those of the host backend where the two do the same.
fn name(operation: &str, stamp: u64) -> &'static str {
    match (stamp, operation) {
        (1, _) => "entry",
        (2, _) => "counts",
        (3, _) => "rows",
        (4, _) => "data",
        (_, "combine") => "sums",
        (_, "dispatch") => "receive",
        _ => "end",
    }
}
