//! Totals of a buffer. One thread counts, any thread reads; on a device the kernels count.

use super::state::Buffer;
use crate::backend::cuda::{PeerCounters, Snapshot};
use crate::error::Result;
use crate::plan::config::{within, Config};
use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only the thread inside an operation changes.
#[derive(Default)]
struct Counter(AtomicU64);

impl Counter {
    fn add(&self, more: u64) {
        self.0.store(self.get() + more, Ordering::Relaxed);
    }

    fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Default)]
struct Peer {
    rows_sent: Counter,
    rows_received: Counter,
    bytes_sent: Counter,
    bytes_received: Counter,
    wait_last: Counter,
    wait_total: Counter,
}

pub(super) struct Statistics {
    peers: Vec<Peer>,
    experts: Vec<Counter>,
    epoch: Counter,
    dispatches: Counter,
    combines: Counter,
    barriers: Counter,
    entry_barriers: Counter,
    wait_last: Counter,
    wait_total: Counter,
}

#[derive(Debug, Clone, Copy, Default)]
pub struct Totals {
    pub epoch: u64,
    pub dispatches: u64,
    pub combines: u64,
    pub barriers: u64,
    pub entry_barriers: u64,
    pub traffic: Traffic,
}

/// What crossed and how long this rank waited: with one peer or with all.
#[derive(Debug, Clone, Copy, Default)]
pub struct Traffic {
    pub rows_sent: u64,
    pub rows_received: u64,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    pub wait_ns_last: u64,
    pub wait_ns_total: u64,
}

impl Statistics {
    pub fn new(config: &Config, rank: usize) -> Statistics {
        Statistics {
            peers: (0..config.num_ranks).map(|_| Peer::default()).collect(),
            experts: config.experts.of_rank(rank).iter().map(|_| Counter::default()).collect(),
            epoch: Counter::default(),
            dispatches: Counter::default(),
            combines: Counter::default(),
            barriers: Counter::default(),
            entry_barriers: Counter::default(),
            wait_last: Counter::default(),
            wait_total: Counter::default(),
        }
    }

    /// An operation begins; its waits add up from 0.
    pub fn begin(&self, epoch: u64) {
        self.epoch.set(epoch);
        self.wait_last.set(0);
        self.peers.iter().for_each(|peer| peer.wait_last.set(0));
    }

    pub fn count_dispatch(&self) {
        self.dispatches.add(1);
    }

    pub fn count_combine(&self) {
        self.combines.add(1);
    }

    pub fn count_barrier(&self) {
        self.barriers.add(1);
    }

    pub fn count_entry_barrier(&self) {
        self.entry_barriers.add(1);
    }

    pub fn sent(&self, peer: usize, rows: u64, bytes: u64) {
        self.peers[peer].rows_sent.add(rows);
        self.peers[peer].bytes_sent.add(bytes);
    }

    pub fn received(&self, peer: usize, rows: u64, bytes: u64) {
        self.peers[peer].rows_received.add(rows);
        self.peers[peer].bytes_received.add(bytes);
    }

    pub fn expert_rows(&self, expert: usize, rows: u64) {
        self.experts[expert].add(rows);
    }

    /// A wait's peers come in turn: `peer` was there `ns` after its begin.
    pub fn waited_for(&self, peer: usize, ns: u64) {
        self.peers[peer].wait_last.add(ns);
        self.peers[peer].wait_total.add(ns);
    }

    /// A whole wait took `ns`.
    pub fn waited(&self, ns: u64) {
        self.wait_last.add(ns);
        self.wait_total.add(ns);
    }
}

impl Buffer {
    pub fn statistics(&self) -> Result<Totals> {
        if let Some(device) = self.device() {
            return Ok(totals_of(&device.statistics()?));
        }
        let s = &self.statistics;
        let sum = |part: fn(&Peer) -> &Counter| s.peers.iter().map(|peer| part(peer).get()).sum();
        Ok(Totals {
            epoch: s.epoch.get(),
            dispatches: s.dispatches.get(),
            combines: s.combines.get(),
            barriers: s.barriers.get(),
            entry_barriers: s.entry_barriers.get(),
            traffic: Traffic {
                rows_sent: sum(|peer| &peer.rows_sent),
                rows_received: sum(|peer| &peer.rows_received),
                bytes_sent: sum(|peer| &peer.bytes_sent),
                bytes_received: sum(|peer| &peer.bytes_received),
                wait_ns_last: s.wait_last.get(),
                wait_ns_total: s.wait_total.get(),
            },
        })
    }

    pub fn peer_statistics(&self, peer: i32) -> Result<Traffic> {
        within("peer", peer.into(), 0, self.num_ranks() as i64 - 1)?;
        if let Some(device) = self.device() {
            return Ok(traffic_of(&device.statistics()?.peer(peer as usize)));
        }
        let peer = &self.statistics.peers[peer as usize];
        Ok(Traffic {
            rows_sent: peer.rows_sent.get(),
            rows_received: peer.rows_received.get(),
            bytes_sent: peer.bytes_sent.get(),
            bytes_received: peer.bytes_received.get(),
            wait_ns_last: peer.wait_last.get(),
            wait_ns_total: peer.wait_total.get(),
        })
    }

    pub fn expert_statistics(&self) -> Result<Vec<u64>> {
        match self.device() {
            Some(device) => Ok(device.statistics()?.experts().to_vec()),
            None => Ok(self.statistics.experts.iter().map(Counter::get).collect()),
        }
    }
}

/// What the kernels have counted.
fn totals_of(snapshot: &Snapshot) -> Totals {
    let totals = snapshot.totals();
    let sum = |part: fn(&PeerCounters) -> u64| snapshot.peers().map(|peer| part(&peer)).sum();
    Totals {
        epoch: totals.epoch,
        dispatches: totals.dispatches,
        combines: totals.combines,
        barriers: totals.barriers,
        entry_barriers: totals.entry_barriers,
        traffic: Traffic {
            rows_sent: sum(|peer| peer.rows_sent),
            rows_received: sum(|peer| peer.rows_received),
            bytes_sent: sum(|peer| peer.bytes_sent),
            bytes_received: sum(|peer| peer.bytes_received),
            wait_ns_last: totals.wait_last,
            wait_ns_total: totals.wait_total,
        },
    }
}

fn traffic_of(peer: &PeerCounters) -> Traffic {
    Traffic {
        rows_sent: peer.rows_sent,
        rows_received: peer.rows_received,
        bytes_sent: peer.bytes_sent,
        bytes_received: peer.bytes_received,
        wait_ns_last: peer.wait_last,
        wait_ns_total: peer.wait_total,
    }
}
