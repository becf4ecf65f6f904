//! Signal words: what they hold and which one is next.
//!
//! Per phase and source a rank has [`turns`] words. Numbers in them only grow and a wait is for "at least",
//! so one word would do for the numbers; but the wait also compares the fingerprint, to tell the caller when
//! ranks run different operations, and a word that is checked must not be overtaken by the next signal. Words
//! are therefore used in turn, by the number of signals sent in that phase. Epochs would not do: a barrier
//! beside operations in flight takes an epoch but must not take a turn of theirs. For the same reason a barrier
//! operation signals in the ENTER phase, never in DATA.

/// The phases of an operation that signal. Each has its own words.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// "I have come to this operation": the entry barrier, and the barrier operation.
    Enter = 0,
    /// "My counts are there."
    Counts = 1,
    /// "My rows are there."
    Data = 2,
    /// "I have ended my reads", a running number.
    Read = 3,
}

pub const PHASES: usize = 4;

impl Phase {
    pub const ALL: [Phase; PHASES] = [Phase::Enter, Phase::Counts, Phase::Data, Phase::Read];

    pub const fn name(self) -> &'static str {
        match self {
            Phase::Enter => "entry",
            Phase::Counts => "counts",
            Phase::Data => "data",
            Phase::Read => "read",
        }
    }
}

/// The operation part of a fingerprint.
#[repr(u16)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    Dispatch = 1,
    Combine = 2,
    Barrier = 3,
}

impl Operation {
    pub const fn name(self) -> &'static str {
        match self {
            Operation::Dispatch => "dispatch",
            Operation::Combine => "combine",
            Operation::Barrier => "barrier",
        }
    }

    /// The operation of a fingerprint; `None` for a word that no rank of this library writes.
    pub const fn of(fingerprint: u16) -> Option<Operation> {
        match fingerprint >> HASH_BITS {
            1 => Some(Operation::Dispatch),
            2 => Some(Operation::Combine),
            3 => Some(Operation::Barrier),
            _ => None,
        }
    }
}

/// For people: `peer` has announced `theirs` of epoch `seen` where operation `mine` of epoch `epoch` was awaited.
pub fn mismatch_text(peer: u32, (mine, epoch): (Operation, u64), (theirs, seen): (u16, u64)) -> String {
    let other = Operation::of(theirs).map_or("an unknown operation", Operation::name);
    if other == mine.name() && epoch == seen {
        format!("rank {peer} runs the same {other} with another window, shape, type or mode; pass the same hidden, types and in-place choices")
    } else {
        format!("rank {peer} runs {other} {seen} in its place; call the operations in one order on all ranks")
    }
}

const FINGERPRINT_BITS: u32 = 16;
const HASH_BITS: u32 = 12;

/// The last epoch a word can hold: at a million operations a second it is nine years away.
pub const MAX_EPOCH: u64 = (1 << (64 - FINGERPRINT_BITS)) - 1;

/// The epoch in the high 48 bits, so that words compare as epochs do.
pub const fn pack(epoch: u64, fingerprint: u16) -> u64 {
    debug_assert!(epoch <= MAX_EPOCH);
    epoch << FINGERPRINT_BITS | fingerprint as u64
}

pub const fn unpack(word: u64) -> (u64, u16) {
    (word >> FINGERPRINT_BITS, word as u16)
}

/// Whether `word` announces `epoch` or a later one.
pub const fn reached(word: u64, epoch: u64) -> bool {
    word >> FINGERPRINT_BITS >= epoch
}

/// What a wait finds in a word.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Found {
    NotYet,
    /// The signal awaited, or so late a one of the same turn that it must have been there.
    Arrived,
    /// A signal of this epoch for something else, or of an epoch that has no business in this turn: the ranks
    /// run different operations.
    Mismatch,
}

/// Compares `word` with the signal of `epoch` that has this fingerprint. Where receives come in the order of
/// sends a word is never overtaken before it was awaited. In another order it may be, by a signal of the same
/// turn, whose epoch is then later by at least [`turns`]; that is no mismatch.
pub const fn check(word: u64, epoch: u64, fingerprint: u16, depth: usize) -> Found {
    let (seen, print) = unpack(word);
    if seen < epoch {
        Found::NotYet
    } else if seen == epoch && print == fingerprint || seen >= epoch + turns(depth) as u64 {
        Found::Arrived
    } else {
        Found::Mismatch
    }
}

/// The operation in the top 4 bits, below it 12 bits of hash over whatever ranks must agree on: window, types,
/// mode. A kernel computes the same (FNV-1a over the fields, folded).
pub fn fingerprint(operation: Operation, fields: &[u32]) -> u16 {
    let mut hash: u32 = 0x811c_9dc5;
    for byte in fields.iter().flat_map(|field| field.to_le_bytes()) {
        hash = (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    }
    let folded = (hash ^ hash >> HASH_BITS ^ hash >> (2 * HASH_BITS)) & ((1 << HASH_BITS) - 1);
    (operation as u16) << HASH_BITS | folded as u16
}

/// Words per phase and source. `depth`: operations that may be unreceived when one is sent,
/// `max_in_flight - 1`. A peer can be so far ahead and no farther.
pub const fn turns(depth: usize) -> usize {
    2 + 2 * depth
}

/// The word that signal number `number` (0, 1, 2 ...) of a phase uses.
pub const fn turn(number: u64, depth: usize) -> usize {
    (number % turns(depth) as u64) as usize
}

/// How many signals this rank has sent in each phase. All ranks send alike, so the turn of an operation's
/// signal is also the turn in which to await it; keep it with the operation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Turns {
    depth: usize,
    sent: [u64; PHASES],
}

impl Turns {
    pub fn new(depth: usize) -> Self {
        Turns { depth, sent: [0; PHASES] }
    }

    /// The number of the next signal in `phase`, counting from 0.
    pub fn number(&self, phase: Phase) -> u64 {
        self.sent[phase as usize]
    }

    /// The word for the next signal in `phase`, which is hereby sent.
    pub fn take(&mut self, phase: Phase) -> usize {
        let number = self.sent[phase as usize];
        self.sent[phase as usize] = number + 1;
        turn(number, self.depth)
    }

    /// Where the other ranks are after a reset: survivors agree on it as they do on the epoch.
    pub fn reset(&mut self) {
        self.sent = [0; PHASES];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_round_trip_and_order_by_epoch() {
        for epoch in [0, 1, (1 << 32) - 1, 1 << 32, MAX_EPOCH] {
            for fingerprint in [0, 1, u16::MAX] {
                let word = pack(epoch, fingerprint);
                assert_eq!(unpack(word), (epoch, fingerprint));
                assert!(reached(word, epoch) && (epoch == MAX_EPOCH || !reached(word, epoch + 1)));
            }
        }
        assert!(pack(8, 0) > pack(7, u16::MAX));
    }

    #[test]
    fn a_word_is_not_yet_arrived_or_a_mismatch() {
        let at = |epoch, fingerprint| check(pack(epoch, fingerprint), 10, 7, 1);
        assert_eq!(at(9, 7), Found::NotYet);
        assert_eq!(at(10, 7), Found::Arrived);
        assert_eq!(at(10, 8), Found::Mismatch);
        assert_eq!(at(13, 7), Found::Mismatch, "not of this turn");
        assert_eq!(at(14, 8), Found::Arrived, "overtaken after it had come");
    }

    #[test]
    fn fingerprints_tell_operation_and_fields() {
        let combine = fingerprint(Operation::Combine, &[3, 1]);
        assert_eq!(Operation::of(combine), Some(Operation::Combine));
        assert_eq!(Operation::of(0), None);
        assert_ne!(combine, fingerprint(Operation::Dispatch, &[3, 1]));
        assert_ne!(combine, fingerprint(Operation::Combine, &[1, 3]));
        assert_ne!(combine, fingerprint(Operation::Combine, &[2, 1]));
        assert_eq!(fingerprint(Operation::Barrier, &[]), 0x3c8d, "the kernels compute the same");
    }

    #[test]
    fn small_fields_do_not_collide() {
        let mut seen = std::collections::HashSet::new();
        for window in 0..16 {
            for mode in 0..8 {
                seen.insert(fingerprint(Operation::Dispatch, &[window, mode]));
            }
        }
        assert!(seen.len() >= 124, "{} of 128 differ", seen.len());
    }

    #[test]
    fn turns_count_per_phase() {
        let mut turns_ = Turns::new(1);
        let data: Vec<_> = (0..6).map(|_| turns_.take(Phase::Data)).collect();
        assert_eq!(data, [0, 1, 2, 3, 0, 1]);
        assert_eq!((turns_.take(Phase::Enter), turns_.number(Phase::Data)), (0, 6));
        turns_.reset();
        assert_eq!(turns_.number(Phase::Data), 0);
        assert_eq!((turns(0), turn(5, 0)), (2, 1));
    }
}
