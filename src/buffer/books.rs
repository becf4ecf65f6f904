//! What the host knows of epochs, windows and areas. Replays of graphs pass it by, so every capture has books of its own and
//! the eager calls have theirs: a stretch. Equal stretches choose equally on every rank. On a device the kernels keep the
//! true numbers and have the last word, and the books refuse only what is wrong within their own stretch.

use crate::error::{Error, Result, Status};
use crate::plan::config::Config;
use crate::plan::windows::{Ends, Epochs, Guard, Windows};

/// The number of the capture in which calls are made, or 0 outside of captures.
pub(super) type Stretch = u64;

pub(super) const EAGER: Stretch = 0;

/// Captures whose books are kept while other calls come in between. Those of an older one would begin anew.
const KEPT: usize = 16;

/// The books of one stretch.
pub(super) struct Books {
    stretch: Stretch,
    pub epochs: Epochs,
    pub dispatch: WindowSet,
    pub combine: WindowSet,
    /// Areas for received rows that callers still read.
    pub areas_taken: Vec<bool>,
}

impl Books {
    pub fn new(config: &Config, stretch: Stretch) -> Books {
        let mut books = Books {
            stretch,
            epochs: Epochs::new(config.max_in_flight, 0),
            dispatch: WindowSet::new(config.dispatch_windows),
            combine: WindowSet::new(config.combine_windows),
            areas_taken: vec![false; if config.layout.by_expert() { config.dispatch_windows } else { 0 }],
        };
        if stretch != EAGER {
            books.restart(1, false);
        }
        books
    }

    /// All windows and areas free, nothing in flight. `agreed`: all ranks have met in front of the next epoch.
    pub fn restart(&mut self, next_epoch: u64, agreed: bool) {
        self.epochs.reset(next_epoch, agreed);
        for set in [&mut self.dispatch, &mut self.combine] {
            set.windows.reset(next_epoch);
            set.acks.fill(0);
        }
        self.areas_taken.fill(false);
    }

    pub fn stretch(&self) -> Stretch {
        self.stretch
    }

    pub fn set(&mut self, kind: Kind) -> &mut WindowSet {
        match kind {
            Kind::Dispatch => &mut self.dispatch,
            Kind::Combine => &mut self.combine,
        }
    }
}

/// The books of the other stretches.
#[derive(Default)]
pub(super) struct Shelf {
    others: Vec<Books>,
    /// Whether anything was captured. From then on replays may come between any two calls.
    pub has_captures: bool,
}

impl Shelf {
    /// Puts `books` away and opens those of the stretch in their place.
    pub fn turn_to(&mut self, stretch: Stretch, books: &mut Books, config: &Config) {
        if books.stretch == stretch {
            return;
        }
        self.has_captures = true;
        let next = match self.others.iter().position(|books| books.stretch == stretch) {
            Some(at) => self.others.remove(at),
            None => Books::new(config, stretch),
        };
        self.others.push(std::mem::replace(books, next));
        if self.others.len() > KEPT {
            if let Some(oldest) = self.others.iter().position(|books| books.stretch != EAGER) {
                self.others.remove(oldest);
            }
        }
    }

    /// Only the eager stretch goes on.
    pub fn clear(&mut self) {
        self.others.clear();
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Dispatch,
    Combine,
}

/// The windows of one kind, with what each waits for.
pub(super) struct WindowSet {
    pub windows: Windows,
    /// Number of the read signal that ended each window's last use (ACK).
    pub acks: Vec<u64>,
    /// The handle that used each window last.
    holders: Vec<u64>,
}

impl WindowSet {
    fn new(count: usize) -> WindowSet {
        WindowSet { windows: Windows::new(count), acks: vec![0; count], holders: vec![0; count] }
    }

    /// The window of the next operation of handle `holder`, and what it has to await.
    pub fn take(&self, kind: &str, guard: impl Fn(Ends) -> Guard) -> Result<(usize, Guard)> {
        let busy = |what: &str| {
            let holders: Vec<String> = self.holders.iter().map(u64::to_string).collect();
            Error::new(
                Status::DEEP_EP_BUSY,
                format_args!(
                    "{what} of {} {kind} windows, last used by handles {}; combine or release a handle, receive what \
                     was sent, use caller memory, or create the buffer with more {kind}_windows",
                    self.windows.count(),
                    holders.join(", ")
                ),
            )
        };
        let window = self.windows.choose().ok_or_else(|| busy("none is free"))?;
        match guard(self.windows.ends(window)) {
            Guard::Busy => Err(busy("none can be written yet")),
            guard => Ok((window, guard)),
        }
    }

    pub fn begin(&mut self, window: usize, holder: u64) {
        self.windows.begin(window);
        self.holders[window] = holder;
    }

    /// Names the handle that a window is held for.
    pub fn note_holder(&mut self, window: usize, holder: u64) {
        self.holders[window] = holder;
    }

    pub fn ack(&self, window: usize) -> u64 {
        self.acks[window]
    }
}
