//! Times of the phases, for people: the newest ones, as a Chrome trace.

use super::state::{Buffer, Op};
use crate::error::{Error, Result};
use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard};

/// How many phases are kept.
const CAPACITY: usize = 1 << 16;

pub(super) struct Trace {
    rank: usize,
    events: Mutex<VecDeque<Event>>,
}

struct Event {
    phase: &'static str,
    operation: &'static str,
    epoch: u64,
    begin_ns: u64,
    end_ns: u64,
}

/// A phase that runs until this is dropped.
pub(super) struct Span<'a> {
    trace: Option<&'a Trace>,
    phase: &'static str,
    op: Op,
    begin_ns: u64,
}

impl Trace {
    pub fn new(rank: usize) -> Trace {
        Trace { rank, events: Mutex::new(VecDeque::with_capacity(CAPACITY)) }
    }

    fn events(&self) -> MutexGuard<'_, VecDeque<Event>> {
        self.events.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for Span<'_> {
    fn drop(&mut self) {
        let Some(trace) = self.trace else { return };
        let mut events = trace.events();
        if events.len() == CAPACITY {
            events.pop_front();
        }
        events.push_back(Event {
            phase: self.phase,
            operation: self.op.operation.name(),
            epoch: self.op.epoch,
            begin_ns: self.begin_ns,
            end_ns: monotonic_ns(),
        });
    }
}

/// Nanoseconds of the clock that all processes of a machine share.
fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

impl Buffer {
    pub(super) fn span(&self, phase: &'static str, op: Op) -> Span<'_> {
        let trace = self.trace.as_ref();
        Span { trace, phase, op, begin_ns: if trace.is_some() { monotonic_ns() } else { 0 } }
    }

    pub fn trace(&self) -> Result<String> {
        let Some(trace) = &self.trace else {
            return Err(Error::invalid_state(
                "the buffer records no phases; create it with DEEP_EP_BUFFER_TRACE in config.flags",
            ));
        };
        let mut text = String::from("[");
        let rank = trace.rank;
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "{{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":{rank},\"args\":{{\"name\":\"rank {rank}\"}}}}"
        );
        for event in trace.events().iter() {
            let (begin, length) = (event.begin_ns as f64 / 1e3, (event.end_ns - event.begin_ns) as f64 / 1e3);
            let _ = write!(
                text,
                ",\n{{\"name\":\"{} {}\",\"cat\":\"{}\",\"ph\":\"X\",\"pid\":{rank},\"tid\":0,\"ts\":{begin:.3},\
                 \"dur\":{length:.3},\"args\":{{\"epoch\":{}}}}}",
                event.operation, event.phase, event.operation, event.epoch
            );
        }
        text.push_str("]\n");
        Ok(text)
    }
}
