//! Who may overwrite which window, and when.
//!
//! Every operation of a buffer has a number, its epoch: 1, 2, 3 ... the same on every rank. A rank stores
//! its rows into a window of each peer, signals the epoch, awaits the same signal from every peer and reads
//! its own window. A window may be written again once its owner no longer reads it, and the writer learns
//! that from signals the owner sends anyway: a rank that has sent epoch `f` has ended every read it ended
//! before sending `f`. [`entry`] is the whole rule; the rest of this file keeps the two numbers it compares.
//!
//! All ranks make the same calls in the same order, so each applies the rule to its own windows and the
//! others come to the same answer. The kernels hold the same numbers and compare them in the same way;
//! `tests/window_model.rs` explores the rule exhaustively with the functions below.

/// How an operation may enter a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Entry {
    /// The reads are known to be over on every rank.
    AtOnce,
    /// They are over on this rank, and so on every rank that has come as far: wait until all have.
    Barrier,
    /// This rank itself still reads: no wait makes it safe.
    Busy,
}

/// Since when a window is no longer read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ends {
    NeverUsed,
    /// The first epoch this rank sends after the reads have ended. An operation that reads the rows itself,
    /// all of them before its first signal to any rank, is such an epoch too.
    At(u64),
    /// Rows are being written or read.
    Open,
}

impl Ends {
    /// As one number, which is how the kernels keep it: never used is 0, open is beyond every epoch.
    pub const fn number(self) -> u64 {
        match self {
            Ends::NeverUsed => 0,
            Ends::At(epoch) => epoch,
            Ends::Open => u64::MAX,
        }
    }
}

/// The rule. `newest_received` is the newest epoch that every peer is known to have come to
/// ([`Epochs::newest_received`]); `epoch` is the one that writes, or, where the caller takes a window to
/// write it before an operation, the next one to be sent.
pub const fn entry(ends: Ends, newest_received: u64, epoch: u64) -> Entry {
    let ends = ends.number();
    if ends <= newest_received {
        Entry::AtOnce
    } else if ends <= epoch {
        Entry::Barrier
    } else {
        Entry::Busy
    }
}

/// How a buffer makes sure that a window is free to be written.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SyncMode {
    /// As [`entry`] says: mostly nothing.
    Auto = 0,
    /// The owner tells every rank when it has ended its reads.
    Ack = 1,
    /// All ranks meet in front of every operation.
    Barrier = 2,
}

/// What an operation awaits before it writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Guard {
    Nothing,
    /// Every rank has come to the same point.
    Barrier,
    /// Every rank has acknowledged the end of its reads of this window.
    Acks,
    /// Refused: this rank still reads.
    Busy,
}

/// The guard of a window that operation `epoch` writes itself, at its send. `exchange`: this operation
/// publishes counts, in stream order behind the reads, and stores no row before all counts are in; that is
/// as good as a barrier.
pub const fn guard_at_send(
    mode: SyncMode,
    exchange: bool,
    ends: Ends,
    newest_received: u64,
    epoch: u64,
) -> Guard {
    match (entry(ends, newest_received, epoch), mode) {
        (Entry::Busy, _) => Guard::Busy,
        _ if exchange => Guard::Nothing,
        (_, SyncMode::Barrier) => Guard::Barrier,
        (_, SyncMode::Ack) if matches!(ends, Ends::NeverUsed) => Guard::Nothing,
        (_, SyncMode::Ack) => Guard::Acks,
        (Entry::AtOnce, SyncMode::Auto) => Guard::Nothing,
        (Entry::Barrier, SyncMode::Auto) => Guard::Barrier,
    }
}

/// The guard of a window from which the peers will pull, at the call that hands it to its owner. `next_epoch`
/// is the next one to be sent. The barrier is an operation of its own, with the epoch `next_epoch`.
///
/// Only `newest_received` counts here. At a send it is at least `epoch - max_in_flight`, because the send
/// itself was let through; here an operation may be in flight that the next send will find received, and the
/// caller's kernels write before that.
pub const fn guard_at_take(mode: SyncMode, ends: Ends, newest_received: u64, next_epoch: u64) -> Guard {
    guard_at_send(mode, false, ends, newest_received, next_epoch)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Window {
    ends: Ends,
    held: bool,
}

/// The windows of one kind (dispatch or combine) of one buffer, as this rank has used them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Windows {
    all: Vec<Window>,
}

impl Windows {
    pub fn new(count: usize) -> Self {
        Windows { all: vec![Window { ends: Ends::NeverUsed, held: false }; count] }
    }

    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// Of the free windows the one whose reads ended longest ago: never used first, then the lowest number.
    /// The order depends only on calls that all ranks make alike.
    pub fn choose(&self) -> Option<usize> {
        let free = |w: &usize| !self.all[*w].held && self.all[*w].ends != Ends::Open;
        (0..self.all.len()).filter(free).min_by_key(|&w| (self.all[w].ends.number(), w))
    }

    /// Keeps window `w` for one handle, until its operation begins or [`Windows::let_go`].
    pub fn hold(&mut self, w: usize) {
        self.all[w].held = true;
    }

    /// Ends a hold without an operation: nobody pulled, so the window is as free as it was before.
    pub fn let_go(&mut self, w: usize) {
        self.all[w].held = false;
    }

    pub fn is_held(&self, w: usize) -> bool {
        self.all[w].held
    }

    /// An operation writes window `w`; it is open until [`Windows::end_reads`].
    pub fn begin(&mut self, w: usize) {
        self.all[w] = Window { ends: Ends::Open, held: false };
    }

    /// The reads of window `w` are over, before this rank sends epoch `next_epoch`.
    pub fn end_reads(&mut self, w: usize, next_epoch: u64) {
        self.all[w].ends = Ends::At(next_epoch);
    }

    pub fn ends(&self, w: usize) -> Ends {
        self.all[w].ends
    }

    /// All windows free, with nothing known of their past but that every read ends before epoch `next_epoch`
    /// is sent: a reset of the buffer, or the start of a capture, whose replays may follow anything.
    pub fn reset(&mut self, next_epoch: u64) {
        self.all.fill(Window { ends: Ends::At(next_epoch), held: false });
    }
}

/// The epochs of one buffer, as this rank has sent and received them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Epochs {
    sent: u64,
    newest_received: u64,
    in_flight: Vec<u64>,
    max_in_flight: usize,
}

impl Epochs {
    /// `max_in_flight` 0 means 1. `last` is the epoch before the first: 0 but in tests.
    pub fn new(max_in_flight: usize, last: u64) -> Self {
        let max_in_flight = max_in_flight.max(1);
        let in_flight = Vec::with_capacity(max_in_flight);
        Epochs { sent: last, newest_received: last, in_flight, max_in_flight }
    }

    /// The epoch that the next send will take.
    pub fn next(&self) -> u64 {
        self.sent + 1
    }

    /// The newest epoch that every peer is known to have come to: received from all, or met in front of.
    pub fn newest_received(&self) -> u64 {
        self.newest_received
    }

    /// What is sent and not received, in the order of sending.
    pub fn in_flight(&self) -> &[u64] {
        &self.in_flight
    }

    /// Whether one more operation may be unreceived.
    pub fn can_send(&self) -> bool {
        self.in_flight.len() < self.max_in_flight
    }

    /// Takes the next epoch; `None` when [`Epochs::can_send`] is false.
    pub fn send(&mut self) -> Option<u64> {
        if !self.can_send() {
            return None;
        }
        self.sent += 1;
        self.in_flight.push(self.sent);
        Some(self.sent)
    }

    /// Epoch `epoch` has come from every peer; in any order. False if it was not in flight.
    pub fn receive(&mut self, epoch: u64) -> bool {
        let Some(at) = self.in_flight.iter().position(|&e| e == epoch) else { return false };
        self.in_flight.remove(at);
        self.newest_received = self.newest_received.max(epoch);
        true
    }

    /// All ranks have met in front of the next epoch, by its entry barrier or its count exchange.
    /// `still_reads`: the operation read rows in place after it had said that it came; those reads end by its
    /// data signal only, so the meeting proves no more than that the epoch before has begun.
    pub fn meet(&mut self, still_reads: bool) {
        let known = if still_reads { self.sent } else { self.sent + 1 };
        self.newest_received = self.newest_received.max(known);
    }

    /// Epoch `epoch` will not be received: its handle is gone. Nothing is learned from it.
    pub fn abandon(&mut self, epoch: u64) {
        self.in_flight.retain(|&e| e != epoch);
    }

    /// A barrier operation: takes the next epoch and returns with it from every peer. It may run with
    /// `max_in_flight` operations unreceived.
    pub fn barrier(&mut self) -> u64 {
        self.sent += 1;
        self.newest_received = self.sent;
        self.sent
    }

    /// Nothing in flight, the next epoch is `next_epoch`. `agreed`: all ranks have met in front of it, as they
    /// do in a reset of the buffer; at the start of a capture they have not.
    pub fn reset(&mut self, next_epoch: u64, agreed: bool) {
        self.in_flight.clear();
        self.sent = next_epoch - 1;
        self.newest_received = if agreed { next_epoch } else { next_epoch - 1 };
    }
}

/// Regions for the counts of packed dispatches, used in turn by number of the exchange. A rank reads a region
/// before it sends its own data, so two do for any depth. `depth`: operations that may be unreceived when one
/// is sent, `max_in_flight - 1`.
pub const fn count_regions(depth: usize) -> usize {
    if depth == 0 {
        1
    } else {
        2
    }
}

/// How many dispatch and combine windows a buffer has; 0 stands for the default. Packed operations need one
/// per operation in flight. Slotted ones have no count exchange to meet in, and with two per operation in
/// flight loops of dispatch and combine never wait.
pub const fn window_counts(
    packed: bool,
    max_in_flight: usize,
    dispatch: usize,
    combine: usize,
) -> (usize, usize) {
    let m = if max_in_flight == 0 { 1 } else { max_in_flight };
    let default = if packed { m } else { 2 * m };
    (if dispatch == 0 { default } else { dispatch }, if combine == 0 { default } else { combine })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_compares_two_numbers() {
        assert_eq!(entry(Ends::NeverUsed, 0, 1), Entry::AtOnce);
        assert_eq!(entry(Ends::At(2), 2, 3), Entry::AtOnce);
        assert_eq!(entry(Ends::At(3), 2, 3), Entry::Barrier);
        assert_eq!(entry(Ends::At(4), 2, 3), Entry::Busy);
        assert_eq!(entry(Ends::Open, u64::MAX - 1, u64::MAX - 1), Entry::Busy);
    }

    #[test]
    fn without_depth_a_barrier_iff_the_last_use_is_after_e_minus_2() {
        for last_use in 1..=5 {
            let e = 6;
            let (ends, received) = (Ends::At(last_use + 1), e - 1);
            assert_eq!(entry(ends, received, e) == Entry::Barrier, last_use > e - 2);
        }
    }

    #[test]
    fn modes_differ_only_in_what_is_awaited() {
        use SyncMode::*;
        let at = |mode, exchange, ends| guard_at_send(mode, exchange, ends, 4, 6);
        for mode in [Auto, Ack, Barrier] {
            assert_eq!(at(mode, false, Ends::Open), Guard::Busy);
            assert_eq!(at(mode, true, Ends::Open), Guard::Busy, "an exchange does not end this rank's reads");
            assert_eq!(at(mode, false, Ends::At(7)), Guard::Busy);
            assert_eq!(at(mode, true, Ends::At(6)), Guard::Nothing);
            assert_eq!(guard_at_take(mode, Ends::At(5), 4, 6), at(mode, false, Ends::At(5)));
        }
        for (ends, auto, ack) in [
            (Ends::NeverUsed, Guard::Nothing, Guard::Nothing),
            (Ends::At(4), Guard::Nothing, Guard::Acks),
            (Ends::At(5), Guard::Barrier, Guard::Acks),
            (Ends::At(6), Guard::Barrier, Guard::Acks),
        ] {
            assert_eq!(at(Auto, false, ends), auto);
            assert_eq!(at(Ack, false, ends), ack);
            assert_eq!(at(Barrier, false, ends), Guard::Barrier);
        }
    }

    #[test]
    fn the_window_freed_longest_ago_is_chosen() {
        let mut windows = Windows::new(3);
        assert_eq!(windows.choose(), Some(0));
        windows.begin(0);
        assert_eq!(windows.choose(), Some(1), "never used before used");
        windows.end_reads(0, 2);
        windows.begin(1);
        windows.hold(2);
        assert_eq!(windows.choose(), Some(0), "open and held windows are not free");
        windows.begin(0);
        assert_eq!(windows.choose(), None);
        windows.end_reads(1, 5);
        windows.end_reads(0, 4);
        assert_eq!(windows.choose(), Some(0));
        windows.let_go(2);
        assert_eq!((windows.choose(), windows.ends(2)), (Some(2), Ends::NeverUsed));
        windows.begin(2);
        windows.end_reads(2, 4);
        assert_eq!(windows.choose(), Some(0), "lowest number among equals");
        windows.hold(1);
        windows.reset(9);
        assert!(!windows.is_held(1));
        assert!((0..windows.count()).all(|w| windows.ends(w) == Ends::At(9)));
    }

    #[test]
    fn epochs_received_in_any_order() {
        let mut epochs = Epochs::new(2, 0);
        assert_eq!((epochs.send(), epochs.send(), epochs.send()), (Some(1), Some(2), None));
        assert!(!epochs.can_send());
        assert!(!epochs.receive(3));
        assert!(epochs.receive(2));
        assert_eq!((epochs.newest_received(), epochs.in_flight()), (2, &[1][..]));
        assert_eq!(epochs.send(), Some(3));
        assert!(epochs.receive(1));
        assert!(!epochs.receive(1));
        assert_eq!((epochs.newest_received(), epochs.next()), (2, 4), "an older one proves nothing new");
    }

    #[test]
    fn meetings_and_barriers_raise_what_is_known() {
        let mut epochs = Epochs::new(1, (1 << 32) - 3);
        let first = epochs.next();
        epochs.meet(true);
        assert_eq!(epochs.newest_received(), first - 1);
        epochs.meet(false);
        assert_eq!(epochs.newest_received(), first);
        assert_eq!(epochs.send(), Some(first));
        assert_eq!(epochs.barrier(), first + 1, "beside a full flight");
        assert_eq!((epochs.newest_received(), epochs.in_flight()), (first + 1, &[first][..]));
        epochs.reset(100, false);
        assert_eq!(entry(Ends::At(100), epochs.newest_received(), epochs.next()), Entry::Barrier);
        epochs.reset(100, true);
        assert_eq!(entry(Ends::At(100), epochs.newest_received(), epochs.next()), Entry::AtOnce);
        assert_eq!((epochs.next(), Epochs::new(0, 0).can_send()), (100, true));
    }

    #[test]
    fn defaults() {
        assert_eq!(window_counts(true, 0, 0, 0), (1, 1));
        assert_eq!(window_counts(true, 2, 0, 0), (2, 2));
        assert_eq!(window_counts(false, 2, 0, 3), (4, 3));
        assert_eq!([0, 1, 2].map(count_regions), [1, 2, 2]);
    }
}
