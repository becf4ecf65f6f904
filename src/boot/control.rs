//! The control page: what a rank shows to its peers, and where they leave an abort.

use crate::error::Result;
use crate::mem::word::{spin_loop, Word};
use crate::mem::Region;
use std::sync::atomic::{fence, Ordering};
use std::sync::Arc;

const CHUNK_WORDS: usize = 1016;
/// Bytes of payload that one publication carries.
pub(super) const CHUNK: usize = CHUNK_WORDS * 8;
const TEXT_WORDS: usize = 16;
/// Bytes of an abort's reason that are kept.
pub(super) const REASON_BYTES: usize = TEXT_WORDS * 8;

/// All fields are atomics, for which every bit pattern is a value: what a peer writes, or the zeroes of a new
/// region, can be wrong but not undefined.
#[repr(C, align(4096))]
struct Page {
    abort: AbortSlot,
    slots: [Slot; 2],
}

/// `state` is 0, then CLAIMED | 1 + rank by the first rank that aborts, then SET | 1 + rank when the text is there.
/// Kernels look at it too: what they want is in the low half.
#[repr(C, align(4096))]
struct AbortSlot {
    state: Word,
    len: Word,
    text: [Word; TEXT_WORDS],
}

const CLAIMED: u64 = 1 << 32;
const SET: u64 = 2 << 32;

/// One publication. `number` is stored last; 0 while the rest changes.
#[repr(C, align(64))]
struct Slot {
    number: Word,
    total: Word,
    members: Word,
    _line: [u64; 5],
    data: [Word; CHUNK_WORDS],
}

/// What a rank publishes in one round of an all-gather.
pub(super) struct Publication<'a> {
    /// Grows with every publication of a rank; 0 is none.
    pub number: u64,
    /// Bytes of the whole payload, of which `chunk` is a part.
    pub total: u64,
    /// Fingerprint of the set of ranks that take part.
    pub members: u64,
    pub chunk: &'a [u8],
}

pub(super) enum Look {
    /// Not published yet.
    Early,
    /// Total and fingerprint; the chunk has been appended.
    Taken { total: u64, members: u64 },
    /// The peer has published beyond it: it had given up on the call this belongs to.
    Gone,
}

/// One rank's control page, own or mapped.
#[derive(Clone)]
pub(super) struct Control {
    region: Arc<Region>,
}

impl Control {
    pub const BYTES: usize = size_of::<Page>();

    pub fn create() -> Result<Self> {
        Ok(Control { region: Arc::new(Region::create(Self::BYTES)?) })
    }

    /// Takes a region of at least `BYTES`, as `create` makes and `Region::map` checks.
    pub fn over(region: Region) -> Self {
        assert!(region.len() >= Self::BYTES);
        Control { region: Arc::new(region) }
    }

    pub fn region(&self) -> &Region {
        &self.region
    }

    fn page(&self) -> &Page {
        // SAFETY: both constructors saw that the region holds a Page; it is page aligned, mapped as long as
        // `self` lives, and made of atomics only.
        unsafe { &*self.region.as_ptr().cast::<Page>() }
    }

    /// Publishes in one of the two slots, `turn` by turn. Only the owner of the page calls this, and only
    /// from one thread at a time.
    pub fn publish(&self, turn: u64, publication: &Publication<'_>) {
        let slot = &self.page().slots[(turn & 1) as usize];
        slot.number.store(0, Ordering::Relaxed);
        fence(Ordering::Release); // whoever sees a new word below also sees that the number is gone
        slot.total.store(publication.total, Ordering::Relaxed);
        slot.members.store(publication.members, Ordering::Relaxed);
        store_bytes(&slot.data, publication.chunk);
        slot.number.store(publication.number, Ordering::Release);
    }

    /// Looks for publication `number` and appends its chunk to `into`; `taken` bytes of the payload are there
    /// already.
    pub fn look(&self, number: u64, taken: u64, into: &mut Vec<u8>) -> Look {
        let mut look = self.scan(number, taken, into);
        if matches!(look, Look::Gone) {
            // Both may have been published while the scan went from one slot to the other. Having seen the
            // newer one, a second scan sees the older too, unless it is really gone.
            look = self.scan(number, taken, into);
        }
        look
    }

    fn scan(&self, number: u64, taken: u64, into: &mut Vec<u8>) -> Look {
        let mut newest = 0;
        for slot in &self.page().slots {
            let found = slot.number.load(Ordering::Acquire);
            newest = newest.max(found);
            if found != number {
                continue;
            }
            let total = slot.total.load(Ordering::Relaxed);
            let members = slot.members.load(Ordering::Relaxed);
            let before = into.len();
            load_bytes(&slot.data, total.saturating_sub(taken).min(CHUNK as u64) as usize, into);
            fence(Ordering::Acquire);
            if slot.number.load(Ordering::Relaxed) == number {
                return Look::Taken { total, members };
            }
            into.truncate(before); // overwritten meanwhile
            return Look::Gone;
        }
        if newest > number {
            Look::Gone
        } else {
            Look::Early
        }
    }

    /// Leaves an abort, unless there is one: stores only.
    pub fn abort(&self, rank: u32, reason: &str) {
        let slot = &self.page().abort;
        let rank = u64::from(rank) + 1;
        if slot.state.compare_exchange(0, CLAIMED | rank, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return;
        }
        let reason = super::cut(reason, REASON_BYTES).as_bytes();
        store_bytes(&slot.text, reason);
        slot.len.store(reason.len() as u64, Ordering::Relaxed);
        slot.state.store(SET | rank, Ordering::Release);
    }

    /// The page whose first word kernels look at.
    pub fn abort_page(&self) -> (*const u8, usize) {
        (self.region.as_ptr(), size_of::<AbortSlot>())
    }

    /// The abort left here: one load when there is none.
    #[inline]
    pub fn aborted(&self) -> Option<(u32, String)> {
        match self.page().abort.state.load(Ordering::Acquire) {
            0 => None,
            state => Some(self.read_abort(state)),
        }
    }

    #[cold]
    fn read_abort(&self, mut state: u64) -> (u32, String) {
        let slot = &self.page().abort;
        // The text follows the claim within nanoseconds; if its writer dies in between, the rank must do.
        for _ in 0..10_000 {
            if state & SET != 0 {
                break;
            }
            spin_loop();
            state = slot.state.load(Ordering::Acquire);
        }
        let mut text = Vec::new();
        if state & SET != 0 {
            let len = slot.len.load(Ordering::Relaxed).min(REASON_BYTES as u64);
            load_bytes(&slot.text, len as usize, &mut text);
        }
        ((state as u32).saturating_sub(1), String::from_utf8_lossy(&text).into_owned())
    }
}

fn store_bytes(words: &[Word], bytes: &[u8]) {
    for (word, part) in words.iter().zip(bytes.chunks(8)) {
        let mut value = [0u8; 8];
        value[..part.len()].copy_from_slice(part);
        word.store(u64::from_ne_bytes(value), Ordering::Relaxed);
    }
}

/// Appends the first `len` bytes of `words`.
fn load_bytes(words: &[Word], len: usize, into: &mut Vec<u8>) {
    let end = into.len() + len;
    for word in &words[..len.div_ceil(8)] {
        into.extend_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
    }
    into.truncate(end);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn publish(control: &Control, turn: u64, number: u64, chunk: &[u8]) {
        let publication = Publication { number, total: chunk.len() as u64, members: 3, chunk };
        control.publish(turn, &publication);
    }

    #[test]
    fn a_publication_is_found_until_the_next_but_one() {
        let control = Control::create().unwrap();
        let mut into = Vec::new();
        assert!(matches!(control.look(1, 0, &mut into), Look::Early));
        publish(&control, 1, 1, b"first");
        publish(&control, 2, 2, b"second, longer");
        assert!(matches!(control.look(1, 0, &mut into), Look::Taken { total: 5, members: 3 }));
        assert!(matches!(control.look(2, 7, &mut into), Look::Taken { total: 14, .. }));
        assert!(matches!(control.look(3, 0, &mut into), Look::Early));
        assert_eq!(into, b"firstsecond,");
        publish(&control, 3, 3, b"");
        assert!(matches!(control.look(1, 0, &mut into), Look::Gone));
        assert_eq!(into, b"firstsecond,");
    }

    #[test]
    fn the_first_abort_stays() {
        let control = Control::create().unwrap();
        assert_eq!(control.aborted(), None);
        let long = format!("{}é", "x".repeat(REASON_BYTES - 1));
        control.abort(7, &long);
        control.abort(8, "too late");
        assert_eq!(control.aborted(), Some((7, "x".repeat(REASON_BYTES - 1))));
    }

    #[test]
    fn an_abort_whose_writer_died_still_names_the_rank() {
        let control = Control::create().unwrap();
        control.page().abort.state.store(CLAIMED | 6, Ordering::Relaxed);
        assert_eq!(control.aborted(), Some((5, String::new())));
    }
}
