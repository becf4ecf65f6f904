//! All-gather over the control pages: stores and loads only.
//!
//! **Numbers.** Every rank counts its all-gathers; the n-th of one rank meets the n-th of every other. A round
//! carries one chunk and publishes under (call, round), which only grows on a rank.
//!
//! **Two slots are enough.** A rank that publishes round g has taken round g-1 of every peer. So when a rank
//! has taken round g of every peer, all of them are done with its round g-1, and it may store round g+1 over
//! that one. It is thus at most one round ahead of a peer, which still finds round g in the other slot.
//!
//! **After a failure** that order is gone: a rank that gave up and went on may store over what a slower peer
//! still reads. The reader then finds another number behind the copy than before it, or finds only greater
//! ones, and reports that the peer has given up. The next call begins with a new call number on every rank, so
//! ranks that failed alike are in step again; so is a rank that came too late, once it has made the call it
//! missed (which fails, or succeeds on it alone if its peers made no call since).
//!
//! **Procedures** of several all-gathers begin with [`Group::begin`], which goes on to the next round number. A rank
//! that came too late may find the first all-gather complete and fail in the second, while its peers failed in the
//! first; all of them are in step again when they repeat the procedure.
//!
//! **Subsets.** Ranks that are not alive are neither awaited nor read, and make no call. A rank left out of one
//! call is thus out of step and can never be alive again in this group.

use super::control::{Control, Look, Publication, CHUNK};
use super::group::{Alive, Group, Sequence};
use super::wire::{self, Reader};
use crate::error::{rank_list, Error, Result, Status};
use crate::mem::{deadline_after, Backoff};
use std::time::{Duration, Instant};

/// The most that one rank can contribute: a bound on what a confused peer can make this rank allocate.
pub const MAX_GATHER_BYTES: usize = 1 << 30;

/// Call numbers of one procedure: more than any makes all-gathers.
const PROCEDURE: u64 = 64;

/// What has come from one peer in this call.
#[derive(Default)]
struct Incoming {
    total: u64,
    bytes: Vec<u8>,
}

impl Group {
    /// Begins a procedure of several all-gathers that is repeated as a whole when one of them fails.
    pub fn begin(&self) {
        let mut sequence = self.sequence();
        sequence.call = (sequence.call / PROCEDURE + 1) * PROCEDURE;
    }

    /// Every alive rank passes `mine`, of any size; the result has one entry per rank, empty for ranks that
    /// are not alive. `alive` (null: all) must be equal on the ranks it names, this one among them.
    ///
    /// Ends with TIMEOUT naming the ranks that did not come, with CONFIG_MISMATCH if a peer passed another
    /// `alive`, or with ABORTED. Ranks may end differently: one that had everything in time succeeds. After a
    /// failure the next call works again if every alive rank makes it.
    pub fn all_gather(&self, mine: &[u8], alive: Option<&[bool]>, timeout: Duration) -> Result<Vec<Vec<u8>>> {
        let alive = self.alive(alive)?;
        self.gather(&mut self.sequence(), mine, &alive, deadline_after(timeout))
    }

    /// Tells the alive ranks how a step went here: succeeds where it went well on all of them, and otherwise
    /// fails on all, with the own error or that of the lowest rank that has one.
    pub fn agree<T>(&self, mine: Result<T>, alive: Option<&[bool]>, timeout: Duration) -> Result<T> {
        let alive = self.alive(alive)?;
        self.agree_by(&mut self.sequence(), mine, &alive, deadline_after(timeout))
    }

    pub(super) fn agree_by<T>(
        &self,
        sequence: &mut Sequence,
        mine: Result<T>,
        alive: &Alive,
        deadline: Instant,
    ) -> Result<T> {
        let outcomes = self.gather(sequence, &wire::encode_outcome(&mine), alive, deadline);
        let (value, outcomes) = (mine?, outcomes?);
        for peer in alive.peers(self.rank()) {
            let rank = peer as u32;
            match wire::decode_outcome(&mut Reader(&outcomes[peer])) {
                Some(Ok(())) => {}
                Some(Err(error)) => {
                    let ranks = if error.ranks.is_empty() { vec![rank] } else { error.ranks };
                    return Err(Error::about(
                        error.status,
                        ranks,
                        format_args!("rank {rank}: {}", error.text),
                    ));
                }
                None => return Err(out_of_step(rank)),
            }
        }
        Ok(value)
    }

    pub(super) fn gather(
        &self,
        sequence: &mut Sequence,
        mine: &[u8],
        alive: &Alive,
        deadline: Instant,
    ) -> Result<Vec<Vec<u8>>> {
        if mine.len() > MAX_GATHER_BYTES {
            let text = format!("all-gather of {} bytes: the limit is {MAX_GATHER_BYTES}", mine.len());
            return Err(Error::invalid_argument(text));
        }
        if self.in_forked_child() {
            return Err(Error::invalid_state(
                "a forked child is no rank of the group: create one after the fork",
            ));
        }
        sequence.call += 1;
        let peers: Vec<usize> = alive.peers(self.rank()).collect();
        let mut incoming: Vec<Incoming> = (0..self.num_ranks()).map(|_| Incoming::default()).collect();
        let mut longest = mine.len();
        let mut round = 0;
        while round == 0 || round * CHUNK < longest {
            sequence.turn += 1;
            let start = mine.len().min(round * CHUNK);
            let publication = Publication {
                number: sequence.call << 32 | (round as u64 + 1),
                total: mine.len() as u64,
                members: alive.fingerprint,
                chunk: &mine[start..mine.len().min(start + CHUNK)],
            };
            self.control(self.rank()).publish(sequence.turn, &publication);
            self.collect(&publication, &peers, &mut incoming, deadline)?;
            longest = incoming.iter().map(|from| from.total as usize).fold(longest, usize::max);
            round += 1;
        }
        incoming[self.rank() as usize].bytes = mine.to_vec();
        Ok(incoming.into_iter().map(|from| from.bytes).collect())
    }

    /// Takes what every peer publishes in the round of `own`.
    fn collect(
        &self,
        own: &Publication<'_>,
        peers: &[usize],
        incoming: &mut [Incoming],
        deadline: Instant,
    ) -> Result<()> {
        let mut pending = peers.to_vec();
        let mut gone = Vec::new();
        let mut backoff = Backoff::new(deadline);
        loop {
            let before = pending.len();
            let mut outcome = Ok(());
            pending.retain(|peer| match take(self.control(*peer as u32), own, &mut incoming[*peer]) {
                Ok(Look::Early) => true,
                Ok(Look::Taken { .. }) => false,
                Ok(Look::Gone) => {
                    gone.push(*peer as u32);
                    false
                }
                Err((status, text)) => {
                    outcome =
                        Err(Error::about(status, vec![*peer as u32], format_args!("rank {peer} {text}")));
                    false
                }
            });
            self.check_abort()?;
            outcome?;
            if pending.is_empty() {
                break;
            }
            if pending.len() < before {
                backoff.reset();
            }
            if !backoff.pause() {
                let missing: Vec<u32> = pending.iter().map(|peer| *peer as u32).collect();
                let text = format!(
                    "{} of {} did not come before the deadline",
                    rank_list(&missing),
                    self.num_ranks()
                );
                return Err(Error::about(Status::DEEP_EP_TIMEOUT, missing, text));
            }
        }
        if gone.is_empty() {
            return Ok(());
        }
        gone.sort_unstable();
        let text = format!("{} had given up when this rank came", rank_list(&gone));
        Err(Error::about(Status::DEEP_EP_TIMEOUT, gone, text))
    }
}

/// Looks for the peer's part of the round in which this rank published `own`.
fn take(
    peer: &Control,
    own: &Publication<'_>,
    from: &mut Incoming,
) -> std::result::Result<Look, (Status, String)> {
    let first = own.number as u32 == 1;
    let look = peer.look(own.number, from.bytes.len() as u64, &mut from.bytes);
    if let Look::Taken { total, members } = look {
        if members != own.members {
            let text = "passed another set of alive ranks than this one".to_owned();
            return Err((Status::DEEP_EP_CONFIG_MISMATCH, text));
        }
        if total > MAX_GATHER_BYTES as u64 || !first && total != from.total {
            let text = format!("announces {total} bytes, first {}", from.total);
            return Err((Status::DEEP_EP_PEER_FAILED, text));
        }
        from.total = total;
    }
    Ok(look)
}

/// What a rank says that is in another call than this one.
pub(super) fn out_of_step(rank: u32) -> Error {
    let text =
        format!("rank {rank} makes another call than this rank, or runs another version of the library");
    Error::about(Status::DEEP_EP_PEER_FAILED, vec![rank], text)
}
