//! A sequence of operations on one rank's stream, and how long it takes.

use super::case::Case;
use super::gpu::{Event, Gpu, Graph, Stream};
use super::job::Job;
use super::list::Group;
use super::pool::Pool;
use crate::common::{Comm, Outcome};
use crate::measure::median;
use serde::{Deserialize, Serialize};

/// Operations of one graph.
pub const OPERATIONS: usize = 20;
/// Of the L2 cache: what a flush writes.
const FLUSHES: u64 = 2;
const WARM_UP: usize = 3;
/// Sweeps take so many times fewer replays.
const SWEEP_PART: usize = 4;

/// What one rank saw of a case.
#[derive(Serialize, Deserialize, Clone, Default)]
pub struct Seen {
    /// Microseconds per operation, one number for each replay.
    pub us: Vec<f64>,
    /// Microseconds of single operations by the device's clock.
    pub single_us: Vec<f64>,
    pub off_rank: u64,
    pub logical: u64,
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
    slots: u64,
}

#[derive(Clone, Copy)]
pub struct Effort {
    pub replays: usize,
    /// Captured graphs; otherwise the calls are enqueued each time.
    pub graphs: bool,
    /// Device memory of a rank for inputs and outputs.
    pub pool_bytes: u64,
}

impl Place {
    pub fn new(gpu: Gpu, comm: Comm, rank: usize, ranks: usize, pool_bytes: u64) -> Outcome<Place> {
        gpu.enter()?;
        let stream = gpu.stream()?;
        let flush = gpu.allocate(FLUSHES * gpu.l2_bytes + (1 << 20))?;
        let pool = Pool::new(&gpu, &stream, pool_bytes, 77 + rank as u64)?;
        Ok(Place { rank, ranks, gpu, comm, stream, pool, flush, slots: flush + FLUSHES * gpu.l2_bytes })
    }

    /// Collective: every rank measures the same cases in the same order.
    pub fn measure(&mut self, case: &Case, effort: &Effort) -> Outcome<Seen> {
        let ids = case.routing(self.rank, self.ranks);
        let bytes = case.bytes(&ids, self.rank, self.ranks);
        let late = case.late_us > 0 && self.rank + 1 == self.ranks;
        let side = self.gpu.stream()?;
        let mut job = Job::new(case, &mut self.comm, &self.stream, side, &mut self.pool, &ids, late)?;
        let mut run = Run {
            case,
            job: &mut job,
            stream: &self.stream,
            gpu: &self.gpu,
            flush: self.flush,
            slots: self.slots,
            effort,
        };
        let us = run.per_operation()?;
        let single_us = run.single()?;
        job.look()?;
        Ok(Seen { us, single_us, off_rank: bytes.off_rank, logical: bytes.logical })
    }
}

struct Run<'a, 'b> {
    case: &'a Case,
    job: &'a mut Job<'b>,
    stream: &'a Stream,
    gpu: &'a Gpu,
    flush: u64,
    slots: u64,
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
    fn enqueue(&mut self, kind: Kind) -> Outcome<()> {
        for i in 0..OPERATIONS {
            if kind == Kind::Operations || kind == Kind::Stamped {
                self.job.prepare()?;
            }
            if self.case.flushed() {
                self.stream.set(self.flush, i as u8, FLUSHES * self.gpu.l2_bytes)?;
                self.job.join()?;
                self.job.barrier()?;
            }
            if kind == Kind::Surroundings {
                continue;
            }
            if kind != Kind::Operations {
                self.stream.stamp(self.slots, 2 * i)?;
            }
            if kind != Kind::Stamps {
                self.job.run()?;
            }
            if kind != Kind::Operations {
                self.stream.stamp(self.slots, 2 * i + 1)?;
            }
            if kind != Kind::Stamps {
                self.job.release()?;
            }
        }
        self.job.join()
    }

    /// Microseconds of `replays` sequences, each begun by all ranks together.
    fn replay(
        &mut self,
        kind: Kind,
        replays: usize,
        each: &mut dyn FnMut(&Stream) -> Outcome<()>,
    ) -> Outcome<Vec<f64>> {
        let stream = self.stream;
        let graph: Option<Graph> = match self.effort.graphs {
            true => Some(stream.capture(&mut || self.enqueue(kind))?),
            false => None,
        };
        let (begin, end) = (Event::new()?, Event::new()?);
        let mut us = Vec::with_capacity(replays);
        for _ in 0..replays {
            self.job.barrier()?;
            stream.wait()?;
            stream.record(&begin)?;
            match &graph {
                Some(graph) => stream.start(graph)?,
                None => self.enqueue(kind)?,
            }
            stream.record(&end)?;
            stream.wait()?;
            us.push(begin.until(&end)?);
            each(stream)?;
        }
        Ok(us)
    }

    /// Points of sweeps need less.
    fn replays(&self) -> usize {
        match self.case.group {
            Group::Throughput | Group::Latency => self.effort.replays,
            _ => self.effort.replays / SWEEP_PART + 1,
        }
    }

    fn per_operation(&mut self) -> Outcome<Vec<f64>> {
        let (nothing, replays) = (&mut |_: &Stream| Ok(()), self.replays());
        self.replay(Kind::Operations, WARM_UP.min(replays), nothing)?;
        let alone = match self.case.flushed() {
            true => median(&mut self.replay(Kind::Surroundings, replays / 4 + 1, nothing)?),
            false => 0.0,
        };
        let all = self.replay(Kind::Operations, replays, nothing)?;
        Ok(all.iter().map(|us| (us - alone) / OPERATIONS as f64).collect())
    }

    /// By stamps: every single operation, less what two stamps take.
    fn single(&mut self) -> Outcome<Vec<f64>> {
        let slots = self.slots;
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
        if self.case.group.is_large() {
            return Ok(Vec::new());
        }
        let empty = median(&mut stamps(self, Kind::Stamps, 5)?);
        let us = stamps(self, Kind::Stamped, self.replays())?;
        Ok(us.iter().map(|us| us - empty).collect())
    }
}
