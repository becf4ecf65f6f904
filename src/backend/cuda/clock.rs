//! What time it is on the device, in terms of the clock that all processes of the host share.
//!
//! A kernel answers questions with its time as soon as it sees them. Of several the shortest exchange counts: the answer
//! was given within it, so half of its length bounds the error (a few microseconds over PCIe). This is done at create and
//! again before a trace is written: the two clocks do not run at quite the same speed, and times between two readings are
//! placed between them. Devices have clocks of their own; each is compared with the host's.

use super::memory::Cuda;
use super::names;
use super::params::{ClockParams, ClockWords};
use crate::driver::{pinned_bytes, Device, Launch, Pinned, Stream};
use crate::error::{Error, Result, Status};
use crate::mem::monotonic_ns;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

const QUESTIONS: u64 = 16;
/// How long a device may be too busy to answer.
const PATIENCE_NS: u64 = 200_000_000;
/// A newer reading than this is good enough.
const FRESH_NS: u64 = 1_000_000_000;

/// One moment on both clocks.
#[derive(Debug, Clone, Copy)]
struct Reading {
    device_ns: u64,
    host_ns: u64,
}

pub struct Clock {
    words: Pinned,
    /// Of its own: behind its kernel, which may find no room for a while, nothing else has to wait.
    stream: Stream,
    readings: Mutex<Readings>,
}

#[derive(Default)]
struct Readings {
    asked: u64,
    first: Option<Reading>,
    last: Option<Reading>,
}

pub fn unread() -> Error {
    Error::new(
        Status::DEEP_EP_TIMEOUT,
        format_args!("the device was too busy to tell its time within {} ms", PATIENCE_NS / 1_000_000),
    )
}

impl Clock {
    pub fn new(device: &Arc<Device>) -> Result<Clock> {
        let words = Pinned::new(device, size_of::<ClockWords>() as u64)?;
        Ok(Clock { words, stream: Stream::new(device)?, readings: Mutex::default() })
    }

    /// Of pinned memory.
    pub fn bytes() -> u64 {
        pinned_bytes(size_of::<ClockWords>() as u64)
    }

    fn readings(&self) -> std::sync::MutexGuard<'_, Readings> {
        self.readings.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// A time of the device on the host's clock; None while no reading has succeeded.
    pub fn on_host(&self, device_ns: u64) -> Option<u64> {
        let readings = self.readings();
        let (first, last) = (readings.first?, readings.last?);
        Some(between(first, last, device_ns))
    }

    /// The kernel is enqueued: asks it, and keeps the answer of the shortest exchange.
    fn ask(&self, readings: &mut Readings) {
        let [asked, time, answered] = &self.words.words()[..3] else { return };
        let deadline = monotonic_ns() + PATIENCE_NS;
        let mut best: Option<(u64, Reading)> = None;
        for question in readings.asked + 1..=readings.asked + QUESTIONS {
            let before = monotonic_ns();
            asked.store(question, Ordering::Release);
            if !wait_for(answered, question, deadline) {
                break;
            }
            let (after, device_ns) = (monotonic_ns(), time.load(Ordering::Relaxed));
            let reading = Reading { device_ns, host_ns: before + (after - before) / 2 };
            if best.is_none_or(|(length, _)| after - before < length) {
                best = Some((after - before, reading));
            }
        }
        readings.asked += QUESTIONS;
        if let Some((_, reading)) = best {
            readings.first.get_or_insert(reading);
            readings.last = Some(reading);
        }
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        // The words go to the next user when the last kernel has read them. A device that is lost has no kernels.
        let _ = self.stream.wait();
    }
}

fn wait_for(word: &AtomicU64, value: u64, deadline: u64) -> bool {
    while word.load(Ordering::Acquire) < value {
        if monotonic_ns() > deadline {
            return false;
        }
        std::hint::spin_loop();
    }
    true
}

/// On the line through two readings.
fn between(first: Reading, last: Reading, device_ns: u64) -> u64 {
    let (device, host) =
        (last.device_ns as i128 - first.device_ns as i128, last.host_ns as i128 - first.host_ns as i128);
    let since = device_ns as i128 - first.device_ns as i128;
    let elapsed = if device > 0 { since * host / device } else { since };
    (first.host_ns as i128 + elapsed).max(0) as u64
}

impl Cuda {
    /// Compares the clocks, unless that was just done. A device that is too busy leaves things as they are.
    pub(super) fn read_clock(&self, clock: &Clock) {
        let mut readings = clock.readings();
        if readings.last.is_some_and(|last| monotonic_ns() < last.host_ns + FRESH_NS) {
            return;
        }
        if self.start_clock(clock, readings.asked + 1).is_ok() {
            clock.ask(&mut readings);
        }
    }

    fn start_clock(&self, clock: &Clock, first: u64) -> Result<()> {
        let function = self.site.place.kernels.get(names::CLOCK)?;
        let device = self.device();
        let _guard = device.enter()?;
        let params =
            ClockParams { words: clock.words.address(), first, questions: QUESTIONS, limit_ns: PATIENCE_NS };
        let launch = Launch { blocks: 1, threads: 32, dynamic_bytes: 0, stream: clock.stream.pointer() };
        // SAFETY: the struct is this kernel's, and the words live until it has run.
        unsafe { function.launch(device, &launch, &params) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_lie_on_the_line_through_both_readings() {
        let reading = |device_ns, host_ns| Reading { device_ns, host_ns };
        let (first, last) = (reading(1_000, 500), reading(3_000, 2_504));
        for (device, host) in [(1_000, 500), (3_000, 2_504), (2_000, 1_502), (0, 0), (5_000, 4_508)] {
            assert_eq!(between(first, last, device), host, "{device}");
        }
        // One reading only: the clocks are taken to run alike.
        assert_eq!(between(first, first, 1_700), 1_200);
    }
}
