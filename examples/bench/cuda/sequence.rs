//! A sequence of operations on one rank's stream, and how long it takes.

use super::case::{self, Case};
use super::gpu::{Event, Gpu, Graph, Stream};
use super::job::{self, Job};
use super::pool::Pool;
use crate::common::{Comm, Outcome};
use crate::measure::median;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Operations of one graph.
pub const OPERATIONS: usize = 20;
/// Of the L2 cache: what a flush writes.
const FLUSHES: u64 = 2;
const QUICK_FLUSH_BYTES: u64 = 1 << 20;
/// The first launches of a sequence, which do not count.
const WARM_UP: usize = 3;
/// All ranks begin a sequence so long after they have met: by then its launch is on its way everywhere.
const HEAD_START_NS: u64 = 100_000;
/// After which all ranks have made their graphs: on a device that they share, the driver may hold that back behind kernels, also
/// behind one that waits for the rank that makes its graph.
const OTHERS_CAPTURE: Duration = Duration::from_millis(20);
/// Of the two readings of the clock alone.
const EMPTY_STAMPS: usize = 5;
/// Device memory of a rank for inputs and outputs.
const POOL_BYTES: u64 = 1 << 30;
/// By expert there is room for the rows of all ranks.
const POOL_BYTES_PER_RANK: u64 = 2 << 30;
const QUICK_POOL_BYTES: u64 = 1 << 30;
/// The library's waits end in this part of a case's time, so that the ranks can say what went wrong.
const PATIENCE_PART: u32 = 4;
/// Sweeps take so many times fewer replays.
const SWEEP_PART: usize = 4;

/// What one rank saw of a case.
#[derive(Serialize, Deserialize, Clone, Default)]
pub struct Seen {
    /// Microseconds per operation, one number for each replay.
    pub us: Vec<f64>,
    /// Microseconds of single operations by the device's clock.
    pub single_us: Vec<f64>,
    /// Rows to each rank.
    pub rows_to: Vec<u64>,
    /// Tokens times experts.
    pub pairs: u64,
}

/// One rank's place in the measurement.
pub struct Place {
    pub rank: usize,
    pub ranks: usize,
    pub gpu: Gpu,
    pub comm: Comm,
    pub stream: Stream,
    pub pool: Pool,
    /// What a flush writes; the stamps lie behind it.
    flush: u64,
    flush_bytes: u64,
}

/// What a measurement may take.
#[derive(Serialize, Deserialize, Clone, Copy)]
pub struct Effort {
    pub replays: usize,
    /// Captured graphs; otherwise the calls are enqueued each time.
    pub graphs: bool,
    /// Only to see that it works.
    pub quick: bool,
    /// That a rank may use.
    pub sms: u32,
    /// After which a case is given up.
    pub case_seconds: u32,
}

/// How often a case's sequences are measured.
pub struct Sequences {
    /// What lies between the operations.
    pub alone: usize,
    /// With the operations.
    pub all: usize,
    /// By single operations.
    pub stamped: usize,
}

impl Effort {
    /// Sweeps need fewer.
    fn replays(&self, case: &Case) -> usize {
        match case.group.is_numbered() {
            true => self.replays,
            false => self.replays / SWEEP_PART + 1,
        }
    }

    /// Launches before those that count.
    pub fn warm_up(&self) -> usize {
        if self.quick {
            0
        } else {
            WARM_UP
        }
    }

    pub fn sequences(&self, case: &Case) -> Sequences {
        let replays = self.replays(case);
        Sequences {
            alone: if case.is_alone() { replays / 4 + 1 } else { 0 },
            all: replays,
            stamped: if case.is_large() { 0 } else { replays },
        }
    }

    fn pool_bytes(&self, ranks: usize) -> u64 {
        match self.quick {
            true => QUICK_POOL_BYTES,
            false => POOL_BYTES + ranks as u64 * POOL_BYTES_PER_RANK,
        }
    }

    pub fn patience_ms(&self) -> u32 {
        self.case_seconds * 1000 / PATIENCE_PART
    }
}

impl Place {
    pub fn new(gpu: Gpu, comm: Comm, rank: usize, ranks: usize, effort: &Effort) -> Outcome<Place> {
        gpu.enter()?;
        let stream = gpu.stream()?;
        let flush_bytes = if effort.quick { QUICK_FLUSH_BYTES } else { FLUSHES * gpu.l2_bytes };
        let flush = gpu.allocate(flush_bytes + (1 << 20))?;
        let pool = Pool::new(&gpu, &stream, effort.pool_bytes(ranks), 77 + rank as u64)?;
        Ok(Place { rank, ranks, gpu, comm, stream, pool, flush, flush_bytes })
    }

    /// Collective: every rank measures the same cases in the same order.
    pub fn measure(&mut self, case: &Case, effort: &Effort) -> Outcome<Seen> {
        let ids = case.routing(self.rank, self.ranks);
        let late = case.late_us > 0 && self.rank + 1 == self.ranks;
        let side = self.gpu.stream()?;
        let config = job::config(case, effort.patience_ms())?;
        let mut job = Job::new(case, &config, &mut self.comm, &self.stream, side, &mut self.pool, &ids)?;
        if late {
            job.come_late();
        }
        let mut run = Run {
            case,
            job: &mut job,
            stream: &self.stream,
            flush: self.flush,
            flush_bytes: self.flush_bytes,
            effort,
        };
        let us = run.per_operation()?;
        let single_us = run.single()?;
        job.look()?;
        Ok(Seen { us, single_us, rows_to: case::rows_to(&ids, self.ranks), pairs: ids.len() as u64 })
    }
}

struct Run<'a, 'b> {
    case: &'a Case,
    job: &'a mut Job<'b>,
    stream: &'a Stream,
    flush: u64,
    flush_bytes: u64,
    effort: &'a Effort,
}

/// What a sequence consists of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Flush and barrier alone.
    Surroundings,
    Operations,
    /// Operations between two readings of the clock.
    Stamped,
    /// The two readings alone.
    Stamps,
}

impl Run<'_, '_> {
    fn slots(&self) -> u64 {
        self.flush + self.flush_bytes
    }

    fn enqueue(&mut self, kind: Kind) -> Outcome<()> {
        for i in 0..OPERATIONS {
            if kind == Kind::Operations || kind == Kind::Stamped {
                self.job.prepare()?;
            }
            if self.case.flushed() {
                self.stream.set(self.flush, i as u8, self.flush_bytes)?;
                self.job.join()?;
            }
            if self.case.is_alone() {
                self.job.barrier()?;
            }
            if kind == Kind::Surroundings {
                self.job.release_at_once()?;
                continue;
            }
            if kind != Kind::Operations {
                self.stream.stamp(self.slots(), 2 * i)?;
            }
            if kind != Kind::Stamps {
                self.job.run()?;
            }
            if kind != Kind::Operations {
                self.stream.stamp(self.slots(), 2 * i + 1)?;
            }
            if kind != Kind::Stamps {
                self.job.release()?;
            }
        }
        self.job.join()
    }

    /// Microseconds of `replays` sequences, each begun by all ranks together: late launches of one rank would be counted as
    /// waiting by the others.
    fn replay(
        &mut self,
        kind: Kind,
        replays: usize,
        each: &mut dyn FnMut(&Stream) -> Outcome<()>,
    ) -> Outcome<Vec<f64>> {
        let stream = self.stream;
        let graph: Option<Graph> = match self.effort.graphs {
            true => {
                let graph = stream.capture(&mut || self.enqueue(kind))?;
                std::thread::sleep(OTHERS_CAPTURE);
                Some(graph)
            }
            false => None,
        };
        let (begin, end) = (Event::new()?, Event::new()?);
        let mut us = Vec::with_capacity(replays);
        for number in 0..self.effort.warm_up() + replays {
            self.job.barrier()?;
            stream.wait()?;
            self.job.barrier()?;
            stream.pause(HEAD_START_NS)?;
            stream.record(&begin)?;
            match &graph {
                Some(graph) => stream.start(graph)?,
                None => self.enqueue(kind)?,
            }
            stream.record(&end)?;
            stream.wait()?;
            if number >= self.effort.warm_up() {
                us.push(begin.until(&end)?);
                each(stream)?;
            }
        }
        Ok(us)
    }

    fn per_operation(&mut self) -> Outcome<Vec<f64>> {
        let (nothing, counts) = (&mut |_: &Stream| Ok(()), self.effort.sequences(self.case));
        let alone = match counts.alone {
            0 => 0.0,
            count => median(&mut self.replay(Kind::Surroundings, count, nothing)?),
        };
        let all = self.replay(Kind::Operations, counts.all, nothing)?;
        Ok(all.iter().map(|us| (us - alone) / OPERATIONS as f64).collect())
    }

    /// By stamps: every single operation, less what two stamps take.
    fn single(&mut self) -> Outcome<Vec<f64>> {
        let slots = self.slots();
        let stamps = |run: &mut Self, kind, replays| -> Outcome<Vec<f64>> {
            let mut us = Vec::new();
            run.replay(kind, replays, &mut |stream| {
                let mut words = [0; 16 * OPERATIONS];
                stream.read(slots, &mut words)?;
                let word = |i: usize| {
                    words[8 * i..8 * i + 8].iter().rev().fold(0u64, |w, &byte| w << 8 | u64::from(byte))
                };
                us.extend((0..OPERATIONS).map(|i| word(2 * i + 1).saturating_sub(word(2 * i)) as f64 / 1e3));
                Ok(())
            })?;
            Ok(us)
        };
        let count = match self.effort.sequences(self.case).stamped {
            0 => return Ok(Vec::new()),
            count => count,
        };
        let empty = median(&mut stamps(self, Kind::Stamps, EMPTY_STAMPS)?);
        let us = stamps(self, Kind::Stamped, count)?;
        Ok(us.iter().map(|us| us - empty).collect())
    }
}
