//! Words whose accesses a model checker may take over. Outside an exploration they are plain atomics.
//!
//! `loom` keeps every value a word has had and lets a load see any that its ordering allows, so it finds a missing
//! release or acquire. It runs a few threads exhaustively. `shuttle` runs whole buffers on real memory under
//! random schedules, switching threads at accesses of words. Both run all threads of an exploration on one thread
//! of the system, so what they know lies in a thread-local variable.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// How much time a thread passes in one pause. Far more than an exploration takes, so that a wait ends
/// after the same number of pauses each time.
pub const PAUSE: Duration = Duration::from_secs(100);

/// What an exploration takes away from the code, to show that it would notice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Weaken {
    Nothing,
    /// Stores that release become relaxed.
    Releases,
    /// Loads that acquire become relaxed.
    Acquires,
}

enum Explorer {
    Nobody,
    Loom {
        twins: HashMap<usize, Rc<loom::sync::atomic::AtomicU64>>,
        weaken: Weaken,
    },
    /// The word that it believes to be accessed.
    Shuttle(Rc<shuttle::sync::atomic::AtomicU64>),
}

thread_local! {
    static EXPLORER: RefCell<Explorer> = const { RefCell::new(Explorer::Nobody) };
}

/// Held through all executions of an exploration: one at a time, so that tests beside them that watch the clock get to run.
pub fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Lets the checker have its way until dropped.
pub struct Exploration;

impl Exploration {
    /// To be called at the begin of every execution, on its first thread.
    pub fn of_loom(weaken: Weaken) -> Exploration {
        EXPLORER.set(Explorer::Loom { twins: HashMap::new(), weaken });
        Exploration
    }

    pub fn of_shuttle() -> Exploration {
        EXPLORER.set(Explorer::Shuttle(Rc::new(shuttle::sync::atomic::AtomicU64::new(0))));
        Exploration
    }
}

impl Drop for Exploration {
    fn drop(&mut self) {
        EXPLORER.set(Explorer::Nobody);
    }
}

/// A word in shared memory.
#[repr(transparent)]
pub struct Word(AtomicU64);

impl Word {
    /// # Safety
    /// As [`AtomicU64::from_ptr`].
    pub unsafe fn from_ptr<'a>(ptr: *mut u64) -> &'a Word {
        // SAFETY: as the caller promises; a Word is an AtomicU64.
        unsafe { &*ptr.cast::<Word>() }
    }

    pub fn load(&self, order: Ordering) -> u64 {
        match self.twin() {
            Some((twin, Weaken::Acquires)) if order == Ordering::Acquire => twin.load(Ordering::Relaxed),
            Some((twin, _)) => twin.load(order),
            None => self.0.load(order),
        }
    }

    pub fn store(&self, value: u64, order: Ordering) {
        match self.twin() {
            Some((twin, Weaken::Releases)) if order == Ordering::Release => {
                twin.store(value, Ordering::Relaxed);
            }
            Some((twin, _)) => twin.store(value, order),
            None => self.0.store(value, order),
        }
    }

    pub fn fetch_or(&self, bits: u64, order: Ordering) -> u64 {
        match self.twin() {
            Some((twin, _)) => twin.fetch_or(bits, order),
            None => self.0.fetch_or(bits, order),
        }
    }

    pub fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        match self.twin() {
            Some((twin, _)) => twin.compare_exchange(current, new, success, failure),
            None => self.0.compare_exchange(current, new, success, failure),
        }
    }

    /// What stands for this word in loom; under shuttle, first lets others run.
    fn twin(&self) -> Option<(Rc<loom::sync::atomic::AtomicU64>, Weaken)> {
        let twin = EXPLORER.with_borrow_mut(|explorer| match explorer {
            Explorer::Nobody => Ok(None),
            Explorer::Shuttle(word) => Err(word.clone()),
            Explorer::Loom { twins, weaken } => {
                let new = || Rc::new(loom::sync::atomic::AtomicU64::new(self.0.load(Ordering::Relaxed)));
                Ok(Some((
                    twins.entry(std::ptr::from_ref(self) as usize).or_insert_with(new).clone(),
                    *weaken,
                )))
            }
        });
        twin.unwrap_or_else(|word| {
            word.load(Ordering::SeqCst);
            None
        })
    }
}

/// A step of a spinning thread.
pub fn spin_loop() {
    if !let_others_run() {
        std::hint::spin_loop();
    }
}

/// In an exploration: lets others run, and whether `pauses` pauses leave `deadline` in the future.
pub fn pause(pauses: &mut u32, deadline: Instant) -> Option<bool> {
    let left = deadline.saturating_duration_since(Instant::now());
    let_others_run().then(|| {
        *pauses += 1;
        PAUSE * *pauses <= left + PAUSE / 2
    })
}

fn let_others_run() -> bool {
    let checker = EXPLORER.with_borrow(|explorer| match explorer {
        Explorer::Nobody => None,
        Explorer::Loom { .. } => Some(loom::thread::yield_now as fn()),
        Explorer::Shuttle(_) => Some(shuttle::thread::yield_now as fn()),
    });
    checker.map(|run_others| run_others()).is_some()
}
