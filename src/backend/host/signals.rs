//! Signal words: stores that release rows, loads that acquire them.
//!
//! | phase | written by | read by | what it covers |
//! |---|---|---|---|
//! | entry | a rank that has come to an operation, into every peer | the peers, before they write into its windows | its reads that ended before |
//! | counts | the source, into every peer | the peers, before they place rows | the count words, and its reads |
//! | data | the source, into every peer | the peers, before they read | all rows it stored (pushed) or holds (pulled) |
//! | read | a rank that has ended reads (ACK) | the peers, before they write | those reads |
//!
//! One thread stores a rank's rows and then its signal, so a release store covers them all; the awaiting thread's
//! acquire load makes them visible to it. Rows written past the caches are fenced before the signal.

use super::memory::Host;
use super::rows::copy_fence;
use crate::error::Status;
use crate::mem::Word;
use crate::plan::report::Report;
use crate::plan::words::{pack, unpack, Phase};
use std::sync::atomic::Ordering;

/// Why a peer gave up.
pub(super) struct Verdict {
    pub epoch: u64,
    /// Those that it names run something else, and are not late.
    pub out_of_step: bool,
    pub missing: Vec<u32>,
}

impl Host {
    /// Tells every peer that this rank's part of `phase` is there.
    pub fn signal(&self, phase: Phase, turn: usize, number: u64, fingerprint: u16, alive: &[bool]) {
        copy_fence();
        for rank in self.others(alive) {
            self.word(rank, phase, self.me, turn).store(pack(number, fingerprint), Ordering::Release);
        }
    }

    /// The peers that take part, this rank's right neighbour first, so that not all ranks start with the same one.
    pub fn others<'a>(&self, alive: &'a [bool]) -> impl Iterator<Item = usize> + 'a {
        let (me, all) = (self.me, self.num_ranks());
        (1..all).map(move |step| (me + step) % all).filter(move |&rank| alive[rank])
    }

    pub(super) fn word(&self, rank: usize, phase: Phase, source: usize, turn: usize) -> &Word {
        self.atomic(rank, self.layout.word(phase as usize, source, turn))
    }

    /// What `source` has signalled to this rank.
    pub(super) fn seen(&self, phase: Phase, source: usize, turn: usize) -> u64 {
        self.word(self.me, phase, source, turn).load(Ordering::Acquire)
    }

    /// Tells every peer, before this rank gives up, which ranks it missed in which epoch, or found in another operation.
    pub fn leave_verdict(&self, report: &Report, alive: &[bool]) {
        for rank in self.others(alive) {
            let at = self.layout.verdict(self.me);
            for &absent in &report.missing {
                let word = self.atomic(rank, at + 8 + u64::from(absent) / 64 * 8);
                word.fetch_or(1 << (absent % 64), Ordering::Relaxed);
            }
            self.atomic(rank, at).store(pack(report.epoch, report.status as u16), Ordering::Release);
        }
    }

    /// The verdict of `source`, if it gave up in an epoch after `since`.
    pub(super) fn verdict(&self, source: usize, since: u64) -> Option<Verdict> {
        let at = self.layout.verdict(source);
        let (epoch, status) = unpack(self.atomic(self.me, at).load(Ordering::Acquire));
        if epoch <= since {
            return None;
        }
        let missing = (0..self.num_ranks() as u32).filter(|&rank| {
            let word = self.atomic(self.me, at + 8 + u64::from(rank) / 64 * 8);
            word.load(Ordering::Relaxed) >> (rank % 64) & 1 == 1
        });
        let out_of_step = status == Status::DEEP_EP_OP_MISMATCH as u16;
        Some(Verdict { epoch, out_of_step, missing: missing.collect() })
    }

    /// Forgets the verdicts of peers; only in a reset, when no peer is inside an operation.
    pub fn clear_verdicts(&self) {
        for source in 0..self.num_ranks() {
            for word in 0..crate::plan::layout::VERDICT_BYTES / 8 {
                self.atomic(self.me, self.layout.verdict(source) + word * 8).store(0, Ordering::Relaxed);
            }
        }
    }
}
