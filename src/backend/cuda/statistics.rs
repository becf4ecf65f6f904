//! The totals that kernels keep in device memory, so that replays of graphs count too.

use super::memory::Cuda;
use super::params::{Counters, PeerCounters};
use crate::error::Result;

/// A moment's totals.
pub struct Snapshot {
    words: Vec<u64>,
    num_ranks: usize,
}

const TOTALS: usize = size_of::<Counters>() / 8;
const PEER: usize = size_of::<PeerCounters>() / 8;

impl Cuda {
    /// Copied on a stream of our own, beside whatever runs.
    pub(super) fn counter_bytes(&self) -> Result<Vec<u8>> {
        let local_experts = self.config.experts.of_rank(self.me).len();
        let mut bytes = vec![0; (TOTALS + PEER * self.config.num_ranks + local_experts) * 8];
        // SAFETY: the region has room for as many words there.
        unsafe { self.copies().read(&mut bytes, self.own(self.layout.counters))? };
        Ok(bytes)
    }

    pub fn statistics(&self) -> Result<Snapshot> {
        let (num_ranks, bytes) = (self.config.num_ranks, self.counter_bytes()?);
        let words = bytes.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_le_bytes)).collect();
        Ok(Snapshot { words, num_ranks })
    }
}

impl Snapshot {
    pub fn totals(&self) -> Counters {
        let [epoch, dispatches, combines, barriers, entry_barriers, wait_last, wait_total, events, stamps @ ..] =
            self.part::<TOTALS>(0);
        Counters {
            epoch,
            dispatches,
            combines,
            barriers,
            entry_barriers,
            wait_last,
            wait_total,
            events,
            stamps,
        }
    }

    pub fn peer(&self, peer: usize) -> PeerCounters {
        let [rows_sent, rows_received, bytes_sent, bytes_received, wait_last, wait_total] =
            self.part(TOTALS + peer * PEER);
        PeerCounters { rows_sent, rows_received, bytes_sent, bytes_received, wait_last, wait_total }
    }

    pub fn peers(&self) -> impl Iterator<Item = PeerCounters> + '_ {
        (0..self.num_ranks).map(|peer| self.peer(peer))
    }

    pub fn experts(&self) -> &[u64] {
        self.words.get(TOTALS + self.num_ranks * PEER..).unwrap_or_default()
    }

    fn part<const N: usize>(&self, start: usize) -> [u64; N] {
        self.words.get(start..start + N).and_then(|part| part.try_into().ok()).unwrap_or([0; N])
    }
}
