//! Where the threads of ranks wait for each other. Unlike the standard library's barrier it ends: a rank that has failed
//! does not come, and the test is to say so.

use crate::cases::patience;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// Longer than any wait of a kernel in these tests.
const SECONDS: u32 = 10;

pub struct Meeting {
    ranks: usize,
    come: Mutex<usize>,
    all: Condvar,
}

impl Meeting {
    pub fn new(ranks: usize) -> Meeting {
        Meeting { ranks, come: Mutex::new(0), all: Condvar::new() }
    }

    pub fn wait(&self) {
        let limit = Duration::from_secs((SECONDS * patience()).into());
        let mut come = self.come.lock().unwrap();
        let all = (*come / self.ranks + 1) * self.ranks;
        *come += 1;
        self.all.notify_all();
        let (_come, waited) = self.all.wait_timeout_while(come, limit, |come| *come < all).unwrap();
        assert!(!waited.timed_out(), "a rank did not come to the meeting");
    }
}
