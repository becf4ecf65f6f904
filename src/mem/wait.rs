//! Waiting for a word that another thread or process stores.

use std::time::{Duration, Instant};

/// Polls before the first look at the clock: some tens of microseconds, longer than a prompt peer needs.
const SPINS: u32 = 2000;
/// How long the core is only yielded. A peer that shares this core gets to run, and no timer is involved.
const YIELD: Duration = Duration::from_micros(200);
const FIRST_NAP: Duration = Duration::from_micros(50);
const LONGEST_NAP: Duration = Duration::from_millis(1);

/// Decides what a waiting thread does between two polls: spin, then yield, then sleep ever longer.
///
/// ```
/// # use deepep::mem::Backoff;
/// # use std::time::{Duration, Instant};
/// # let ready = || true;
/// let mut backoff = Backoff::new(Instant::now() + Duration::from_secs(1));
/// while !ready() {
///     if !backoff.pause() {
///         return; // the deadline has passed
///     }
/// }
/// ```
#[derive(Debug)]
pub struct Backoff {
    deadline: Instant,
    spins: u32,
    yielding_since: Option<Instant>,
    nap: Duration,
}

impl Backoff {
    pub fn new(deadline: Instant) -> Self {
        Backoff { deadline, spins: 0, yielding_since: None, nap: FIRST_NAP }
    }

    /// Passes some time. False once the deadline is over; the spin phase comes first and asks no clock, so
    /// even a deadline in the past leaves that much patience.
    #[inline]
    pub fn pause(&mut self) -> bool {
        #[cfg(test)]
        if let Some(time_left) = super::word::explored::pause(&mut self.spins, self.deadline) {
            return time_left;
        }
        if self.spins < SPINS {
            self.spins += 1;
            std::hint::spin_loop();
            return true;
        }
        self.pause_longer()
    }

    /// Starts over with spinning, after progress that makes more of it likely soon.
    pub fn reset(&mut self) {
        *self = Backoff::new(self.deadline);
    }

    #[cold]
    fn pause_longer(&mut self) -> bool {
        let now = Instant::now();
        let Some(left) = self.deadline.checked_duration_since(now).filter(|left| !left.is_zero()) else {
            return false;
        };
        let since = *self.yielding_since.get_or_insert(now);
        if now.duration_since(since) < YIELD {
            std::thread::yield_now();
        } else {
            std::thread::sleep(self.nap.min(left));
            self.nap = (self.nap * 2).min(LONGEST_NAP);
        }
        true
    }
}

/// The instant `timeout` from now; a timeout too long to add is a year.
pub fn deadline_after(timeout: Duration) -> Instant {
    Instant::now() + timeout.min(Duration::from_secs(365 * 24 * 3600))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_at_the_deadline_and_not_before() {
        let start = Instant::now();
        let mut backoff = Backoff::new(start + Duration::from_millis(30));
        let mut pauses = 0u64;
        while backoff.pause() {
            pauses += 1;
        }
        assert!(start.elapsed() >= Duration::from_millis(30));
        assert!(pauses > u64::from(SPINS));
        assert!(pauses < 100_000, "{pauses} polls in 30 ms: it never slept");
    }

    #[test]
    fn spins_first_even_past_the_deadline() {
        let mut backoff = Backoff::new(Instant::now());
        for _ in 0..SPINS {
            assert!(backoff.pause());
        }
        assert!(!backoff.pause());
        backoff.reset();
        assert!(backoff.pause());
    }

    #[test]
    fn endless_timeouts_are_legal() {
        assert!(deadline_after(Duration::MAX) > Instant::now() + Duration::from_secs(1000));
    }
}
