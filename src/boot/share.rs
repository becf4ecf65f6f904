//! Giving every peer a region, or descriptors.

use super::gather::out_of_step;
use super::group::{Alive, Group, Sequence};
use super::mailbox::{Exchange, Mailbox, MOST_FDS};
use super::wire::{self, Reader};
use crate::error::{Error, Result};
use crate::mem::{deadline_after, Region};
use std::any::Any;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The number of the call and the object that its rank shares in it.
type Shared = (u64, Arc<dyn Any + Send + Sync>);

/// Where the ranks of one process hand objects to each other, a place for each.
pub(super) struct Table {
    places: Vec<Mutex<Option<Shared>>>,
}

impl Table {
    pub fn new(num_ranks: u32) -> Self {
        Table { places: (0..num_ranks).map(|_| Mutex::new(None)).collect() }
    }

    fn put(&self, rank: usize, content: Option<Shared>) {
        let mut place = self.places[rank].lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let old = std::mem::replace(&mut *place, content);
        drop(place);
        drop(old); // outside the lock, since it may unmap memory
    }

    fn get<T: Any + Send + Sync>(&self, rank: usize, call: u64) -> Option<Arc<T>> {
        let place = self.places[rank].lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let (put_in, object) = place.as_ref()?;
        (*put_in == call).then(|| object.clone().downcast().ok()).flatten()
    }
}

/// Takes this rank's object out of the table when the call ends, however it ends.
struct Place<'a>(&'a Table, usize);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.put(self.1, None);
    }
}

/// What one rank announces before descriptors travel.
struct Announcement {
    mailbox: [u8; 16],
    bytes: u64,
}

impl Group {
    /// Gives every alive rank a mapping of every alive rank's region: `mine` itself at this rank's index, None
    /// for ranks that are not alive. Ranks of one process share the regions themselves. Fails on all ranks if
    /// it fails on one. `mine` must still have its descriptor if the group spans processes.
    pub fn share_region(
        &self,
        mine: Arc<Region>,
        alive: Option<&[bool]>,
        timeout: Duration,
    ) -> Result<Vec<Option<Arc<Region>>>> {
        let alive = self.alive(alive)?;
        let deadline = deadline_after(timeout);
        let sequence = &mut *self.sequence();
        if let Some(table) = self.table() {
            return self.share_object(sequence, table, Ok(mine), &alive, deadline);
        }
        let mut regions: Vec<Option<Arc<Region>>> = vec![None; self.num_ranks() as usize];
        regions[self.rank() as usize] = Some(mine.clone());
        let fd = mine.fd();
        let fds = fd.as_ref().map(|fd| vec![fd.as_fd()]).map_err(Error::clone);
        self.pass(sequence, fds, mine.len() as u64, &alive, deadline, |peer, bytes, fds| {
            let [fd] = &fds[..] else { return Err(out_of_step(peer as u32)) };
            regions[peer] = Some(Arc::new(map_peer(fd, bytes, peer)?));
            Ok(())
        })?;
        Ok(regions)
    }

    /// Gives every alive rank the objects of all alive ranks, in a group whose ranks all live in this process. Fails on all
    /// ranks if it fails on one.
    pub fn share_within<T: Any + Send + Sync>(
        &self,
        mine: Result<Arc<T>>,
        alive: Option<&[bool]>,
        timeout: Duration,
    ) -> Result<Vec<Option<Arc<T>>>> {
        let alive = self.alive(alive)?;
        let table =
            self.table().ok_or_else(|| Error::invalid_state("the group has ranks in other processes"))?;
        self.share_object(&mut self.sequence(), table, mine, &alive, deadline_after(timeout))
    }

    /// Gives every alive rank duplicates of every alive rank's descriptors, at most 64 each; entries of this
    /// rank and of ranks that are not alive are empty. Fails on all ranks if it fails on one.
    pub fn exchange_fds(
        &self,
        mine: &[BorrowedFd<'_>],
        alive: Option<&[bool]>,
        timeout: Duration,
    ) -> Result<Vec<Vec<OwnedFd>>> {
        let alive = self.alive(alive)?;
        let deadline = deadline_after(timeout);
        let sequence = &mut *self.sequence();
        let mut received: Vec<Vec<OwnedFd>> = (0..self.num_ranks()).map(|_| Vec::new()).collect();
        let few = if mine.len() <= MOST_FDS {
            Ok(mine.to_vec())
        } else {
            let text = format!("{} descriptors to exchange: the limit is {MOST_FDS}", mine.len());
            Err(Error::invalid_argument(text))
        };
        if let Some(table) = self.table() {
            let copies = few.and_then(|fds| duplicate(&fds)).map(Arc::new);
            let theirs = self.share_object(sequence, table, copies, &alive, deadline)?;
            let copied = alive.peers(self.rank()).try_for_each(|peer| {
                let Some(fds) = &theirs[peer] else { return Ok(()) };
                let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
                received[peer] = duplicate(&fds)?;
                Ok(())
            });
            self.agree_by(sequence, copied, &alive, deadline)?;
        } else {
            self.pass(sequence, few, 0, &alive, deadline, |peer, _, fds| {
                received[peer] = fds;
                Ok(())
            })?;
        }
        Ok(received)
    }

    /// Hands descriptors and a number to every alive peer, in another process or not, and gives `take` theirs.
    fn pass(
        &self,
        sequence: &mut Sequence,
        mine: Result<Vec<BorrowedFd<'_>>>,
        bytes: u64,
        alive: &Alive,
        deadline: Instant,
        mut take: impl FnMut(usize, u64, Vec<OwnedFd>) -> Result<()>,
    ) -> Result<()> {
        if alive.peers(self.rank()).next().is_none() {
            return mine.map(drop);
        }
        let ready = mine.and_then(|fds| Ok((fds, Mailbox::open()?)));
        let mut announced = wire::encode_outcome(&ready);
        if let Ok((_, mailbox)) = &ready {
            announced.extend_from_slice(&mailbox.name);
            announced.extend_from_slice(&bytes.to_le_bytes());
        }
        let all = self.gather(sequence, &announced, alive, deadline);
        let ((fds, mailbox), all) = (ready?, all?);
        let announcements = self.announcements(&all, alive)?;
        let peers: Vec<_> = announcements.iter().map(|peer| peer.as_ref().map(|peer| peer.mailbox)).collect();
        let stop = || self.check_abort().err();
        let terms = Exchange { key: self.key(), rank: self.rank(), peers: &peers, deadline, stop: &stop };
        let taken = mailbox.exchange(&terms, &fds, |peer, fds| {
            take(peer, announcements[peer].as_ref().map_or(0, |peer| peer.bytes), fds)
        });
        self.agree_by(sequence, taken, alive, deadline)
    }

    /// Reads what the peers announced; the same error on every rank if one of them cannot take part.
    fn announcements(&self, all: &[Vec<u8>], alive: &Alive) -> Result<Vec<Option<Announcement>>> {
        let mut announcements: Vec<Option<Announcement>> = all.iter().map(|_| None).collect();
        for peer in alive.peers(self.rank()) {
            let rank = peer as u32;
            let mut from = Reader(&all[peer]);
            wire::decode_outcome(&mut from).ok_or_else(|| out_of_step(rank))?.map_err(|error| {
                Error::about(error.status, vec![rank], format_args!("rank {rank}: {}", error.text))
            })?;
            let announcement = from.array().zip(from.u64()).filter(|_| from.0.is_empty());
            let (mailbox, bytes) = announcement.ok_or_else(|| out_of_step(rank))?;
            announcements[peer] = Some(Announcement { mailbox, bytes });
        }
        Ok(announcements)
    }

    /// Every alive rank's object, by way of the table; `mine` is in it until all have taken it.
    fn share_object<T: Any + Send + Sync>(
        &self,
        sequence: &mut Sequence,
        table: &Table,
        mine: Result<Arc<T>>,
        alive: &Alive,
        deadline: Instant,
    ) -> Result<Vec<Option<Arc<T>>>> {
        let own = self.rank() as usize;
        let call = sequence.call + 1; // of the all-gather below, which is the same on every alive rank
        let _place = Place(table, own);
        let mine = mine.inspect(|mine| table.put(own, Some((call, mine.clone()))));
        let mine = self.agree_by(sequence, mine, alive, deadline)?;
        let mut objects = vec![None; self.num_ranks() as usize];
        let taken = alive.peers(self.rank()).try_for_each(|peer| {
            objects[peer] = Some(table.get::<T>(peer, call).ok_or_else(|| out_of_step(peer as u32))?);
            Ok(())
        });
        objects[own] = Some(mine);
        self.agree_by(sequence, taken, alive, deadline)?;
        Ok(objects)
    }
}

pub(super) fn map_peer(fd: &OwnedFd, bytes: u64, peer: usize) -> Result<Region> {
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    Region::map(fd.as_fd(), bytes)
        .map_err(|error| Error::about(error.status, vec![peer as u32], format_args!("rank {peer}: {error}")))
}

fn duplicate(fds: &[BorrowedFd<'_>]) -> Result<Vec<OwnedFd>> {
    fds.iter().map(|fd| fd.try_clone_to_owned().map_err(|_| Error::system("dup"))).collect()
}
