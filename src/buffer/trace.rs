//! Times of the phases, for people: the newest ones, as a Chrome trace. On a device the kernels note them.

use super::state::{Buffer, Op};
use crate::backend::cuda::{Phase, Phases};
use crate::error::{Error, Result};
use crate::mem::monotonic_ns;
use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard};

/// How many phases are kept.
const CAPACITY: usize = 1 << 16;

pub(super) struct Trace {
    events: Mutex<Events>,
}

#[derive(Default)]
struct Events {
    newest: VecDeque<Phase>,
    /// Older ones that had to make room.
    lost: u64,
}

/// A phase that runs until this is dropped.
pub(super) struct Span<'a> {
    trace: Option<&'a Trace>,
    phase: &'static str,
    op: Op,
    begin_ns: u64,
}

impl Trace {
    pub fn new() -> Trace {
        let newest = VecDeque::with_capacity(CAPACITY);
        Trace { events: Mutex::new(Events { newest, lost: 0 }) }
    }

    fn events(&self) -> MutexGuard<'_, Events> {
        self.events.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for Span<'_> {
    fn drop(&mut self) {
        let Some(trace) = self.trace else { return };
        let mut events = trace.events();
        if events.newest.len() == CAPACITY {
            events.newest.pop_front();
            events.lost += 1;
        }
        events.newest.push_back(Phase {
            name: self.phase,
            operation: self.op.operation.name(),
            epoch: self.op.epoch,
            begin_ns: self.begin_ns,
            end_ns: monotonic_ns(),
        });
    }
}

impl Buffer {
    pub(super) fn span(&self, phase: &'static str, op: Op) -> Span<'_> {
        let trace = self.trace.as_ref();
        Span { trace, phase, op, begin_ns: if trace.is_some() { monotonic_ns() } else { 0 } }
    }

    pub fn trace(&self) -> Result<String> {
        let rank = self.comm.rank();
        if let Some(Phases { phases, lost }) = self.device().map_or(Ok(None), |device| device.trace())? {
            return Ok(chrome_trace(rank, lost, &mut phases.iter()));
        }
        let Some(trace) = &self.trace else {
            return Err(Error::invalid_state(
                "the buffer records no phases; create it with DEEP_EP_BUFFER_TRACE in config.flags",
            ));
        };
        let events = trace.events();
        Ok(chrome_trace(rank, events.lost, &mut events.newest.iter()))
    }
}

/// One process per rank, in microseconds.
fn chrome_trace(rank: usize, lost: u64, phases: &mut dyn Iterator<Item = &Phase>) -> String {
    let mut text = String::from("[");
    // Writing to a String cannot fail.
    let _ = write!(
        text,
        "{{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":{rank},\"args\":{{\"name\":\"rank {rank}\",\"lost_events\":{lost}}}}}"
    );
    for phase in phases {
        let (begin, length) = (phase.begin_ns as f64 / 1e3, (phase.end_ns - phase.begin_ns) as f64 / 1e3);
        let _ = write!(
            text,
            ",\n{{\"name\":\"{} {}\",\"cat\":\"{}\",\"ph\":\"X\",\"pid\":{rank},\"tid\":0,\"ts\":{begin:.3},\
             \"dur\":{length:.3},\"args\":{{\"epoch\":{}}}}}",
            phase.operation, phase.name, phase.operation, phase.epoch
        );
    }
    text.push_str("]\n");
    text
}
