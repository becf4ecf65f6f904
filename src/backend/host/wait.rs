//! Bounded waits for the signals of all peers, and what they find out when one does not come.

use super::memory::Host;
use super::signals::Verdict;
use crate::boot::Group;
use crate::error::{rank_list, Status};
use crate::mem::Backoff;
use crate::plan::report::Report;
use crate::plan::words::{check, mismatch_text, reached, turns, unpack, Found, Operation, Phase};
use std::time::{Duration, Instant};

/// How many polls pass between looks at abort words, verdicts and signs of another operation. Explorations have few polls.
const LOOK_EVERY: u32 = if cfg!(test) { 2 } else { 64 };

/// One operation's waits: who takes part, how long they may last, and how they ended.
pub struct Watch<'a> {
    pub group: &'a Group,
    pub alive: &'a [bool],
    pub operation: Operation,
    pub epoch: u64,
    pub fingerprint: u16,
    pub timeout: Duration,
    /// Verdicts up to this epoch are of failures that a reset has ended.
    pub settled: u64,
    /// Called with (peer, nanoseconds waited for it).
    pub waited: &'a dyn Fn(usize, u64),
}

/// What a wait is for.
#[derive(Clone, Copy)]
pub struct Wanted {
    pub phase: Phase,
    pub turn: usize,
    /// The epoch, or the running number of a read signal.
    pub number: u64,
}

impl Host {
    /// Waits until every peer has signalled `wanted`; returns the nanoseconds it took.
    pub fn wait(&self, watch: &Watch, wanted: Wanted) -> Result<u64, Report> {
        let start = Instant::now();
        let mut backoff = Backoff::new(crate::mem::deadline_after(watch.timeout));
        for peer in self.others(watch.alive) {
            self.wait_for(watch, wanted, peer, start, &mut backoff)?;
            (watch.waited)(peer, start.elapsed().as_nanos() as u64);
        }
        Ok(start.elapsed().as_nanos() as u64)
    }

    fn wait_for(
        &self,
        watch: &Watch,
        wanted: Wanted,
        peer: usize,
        start: Instant,
        backoff: &mut Backoff,
    ) -> Result<(), Report> {
        let mut polls = 0;
        loop {
            let word = self.seen(wanted.phase, peer, wanted.turn);
            match self.found(watch, wanted, word) {
                Found::Arrived => return Ok(()),
                Found::Mismatch => return Err(self.mismatch(watch, wanted, peer, word)),
                Found::NotYet => {}
            }
            polls += 1;
            if polls % LOOK_EVERY == 0 {
                self.look_around(watch, wanted, peer, start)?;
            }
            if !backoff.pause() {
                self.look_around(watch, wanted, peer, start)?;
                return Err(self.timed_out(watch, wanted, start));
            }
        }
    }

    /// What a word says: a signal of this very epoch must be of this very operation.
    fn found(&self, watch: &Watch, wanted: Wanted, word: u64) -> Found {
        match wanted.phase {
            Phase::Read if reached(word, wanted.number) => Found::Arrived,
            Phase::Read => Found::NotYet,
            _ => check(word, wanted.number, watch.fingerprint, self.config.depth()),
        }
    }

    /// Reasons to end a wait early.
    fn look_around(&self, watch: &Watch, wanted: Wanted, peer: usize, start: Instant) -> Result<(), Report> {
        if let Some((rank, reason)) = watch.group.aborted() {
            let report = self.report(watch, wanted, Status::DEEP_EP_ABORTED, vec![rank], start);
            return Err(Report { detail: format!("rank {rank} aborted: {reason}"), ..report });
        }
        for source in self.others(watch.alive) {
            if let Some(verdict) = self.verdict(source, watch.settled) {
                if verdict.epoch <= watch.epoch {
                    return Err(self.told_by(watch, wanted, source, verdict, start));
                }
            }
        }
        self.out_of_step(watch, wanted, peer).map_or(Ok(()), Err)
    }

    /// Whether `peer` runs something else in place of this operation.
    fn out_of_step(&self, watch: &Watch, wanted: Wanted, peer: usize) -> Option<Report> {
        let word = self.other_operation(watch, wanted, peer)?;
        // A signal that came since the poll settles it: the peer was only ahead.
        let ahead = reached(self.seen(wanted.phase, peer, wanted.turn), wanted.number);
        (!ahead).then(|| self.mismatch(watch, wanted, peer, word))
    }

    /// A word by which `peer` shows that it runs, or has run, something else in place of this operation.
    fn other_operation(&self, watch: &Watch, wanted: Wanted, peer: usize) -> Option<u64> {
        if wanted.phase == Phase::Read {
            return None;
        }
        let words = [Phase::Enter, Phase::Counts, Phase::Data].into_iter().flat_map(|phase| {
            (0..turns(self.config.depth())).map(move |turn| (phase, self.seen(phase, peer, turn)))
        });
        words
            .filter(|&(phase, word)| {
                let (epoch, fingerprint) = unpack(word);
                let skipped = (phase as u32) > wanted.phase as u32 && epoch >= watch.epoch;
                let other = epoch == watch.epoch && fingerprint != watch.fingerprint;
                skipped || other || epoch > watch.epoch
            })
            .map(|(_, word)| word)
            .next()
    }

    fn mismatch(&self, watch: &Watch, wanted: Wanted, peer: usize, word: u64) -> Report {
        let (epoch, fingerprint) = unpack(word);
        let detail = mismatch_text(peer as u32, (watch.operation, watch.epoch), (fingerprint, epoch));
        let now = Instant::now();
        let report = self.report(watch, wanted, Status::DEEP_EP_OP_MISMATCH, vec![peer as u32], now);
        Report { seen: epoch, detail, ..report }
    }

    fn told_by(
        &self,
        watch: &Watch,
        wanted: Wanted,
        source: usize,
        verdict: Verdict,
        start: Instant,
    ) -> Report {
        let accused = verdict.missing.contains(&(self.me as u32));
        // Whoever finds out first that two ranks are out of step leaves a verdict; the others shall name those that are so
        // with them, too.
        let suspects = std::iter::once(source as u32).chain(verdict.missing.iter().copied());
        for peer in suspects.filter(|&peer| peer != self.me as u32) {
            if let Some(report) = self.out_of_step(watch, wanted, peer as usize) {
                return report;
            }
        }
        let (missing, detail) = match (accused, verdict.out_of_step) {
            (true, false) => (
                vec![source as u32],
                format!("rank {source} gave this operation up: this rank came too late"),
            ),
            (true, true) => (vec![source as u32], format!("rank {source} runs another operation")),
            (false, given_up) => {
                let what =
                    if given_up { "has found another operation in" } else { "has given up waiting for" };
                let text = format!("rank {source} {what} {}", rank_list(&verdict.missing));
                (verdict.missing, text)
            }
        };
        let status = if verdict.out_of_step { Status::DEEP_EP_OP_MISMATCH } else { Status::DEEP_EP_TIMEOUT };
        Report { detail, ..self.report(watch, wanted, status, missing, start) }
    }

    fn timed_out(&self, watch: &Watch, wanted: Wanted, start: Instant) -> Report {
        let late = |peer: &usize| !reached(self.seen(wanted.phase, *peer, wanted.turn), wanted.number);
        let mut missing: Vec<u32> = self.others(watch.alive).filter(late).map(|peer| peer as u32).collect();
        missing.sort_unstable();
        let report = self.report(watch, wanted, Status::DEEP_EP_TIMEOUT, missing, start);
        let detail = format!(
            "waited {} ms for the {} signal of {} (expected {}, seen {})",
            report.waited_ms,
            wanted.phase.name(),
            rank_list(&report.missing),
            report.expected,
            report.seen
        );
        Report { detail, ..report }
    }

    fn report(
        &self,
        watch: &Watch,
        wanted: Wanted,
        status: Status,
        ranks: Vec<u32>,
        start: Instant,
    ) -> Report {
        let seen =
            ranks.first().map_or(0, |&rank| unpack(self.seen(wanted.phase, rank as usize, wanted.turn)).0);
        Report {
            status,
            operation: Some(watch.operation),
            phase: Some(wanted.phase),
            missing: ranks,
            epoch: watch.epoch,
            expected: wanted.number,
            seen,
            waited_ms: start.elapsed().as_millis().min(u128::from(u32::MAX)) as u32,
            ..Report::nothing(self.me as u32)
        }
    }
}
