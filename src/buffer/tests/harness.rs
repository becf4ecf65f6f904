//! Ranks for explorations.

use super::super::books::Kind;
use super::super::comm::{Backend, Comm};
use super::super::state::{Buffer, Op};
use crate::backend::host::{Host, Wanted};
use crate::error::Result;
use crate::mem::word::explored::{alone, Exploration, Weaken, PAUSE};
use crate::mem::word::Word;
use crate::mem::Region;
use crate::plan::config::{Config, RawConfig};
use crate::plan::windows::{guard_at_send, Guard};
use crate::plan::words::{fingerprint, turns, Operation, Phase};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// Memory and group, which outlast executions: the words' values lie in the checker.
pub struct World {
    comms: Vec<Arc<Comm>>,
    config: Arc<Config>,
    regions: Vec<Option<Arc<Region>>>,
}

/// A buffer of slotted rows, one word each, whose waits last `pauses` pauses.
pub fn world(ranks: usize, pauses: u32, change: impl FnOnce(&mut RawConfig)) -> World {
    let timeout_ms = PAUSE.as_millis() as u32 * pauses;
    let mut raw = RawConfig {
        layout: 2,
        max_tokens: 1,
        max_row_bytes: 16,
        num_experts: ranks as i32,
        num_topk: 1,
        timeout_ms,
        first_timeout_ms: timeout_ms,
        ..Default::default()
    };
    change(&mut raw);
    let config = Arc::new(Config::parse(raw, None, ranks).unwrap());
    let comms = Comm::create_local(ranks as u32, Backend::Host, &[]).unwrap();
    let regions = (0..ranks).map(|_| Some(Host::allocate(&config).unwrap())).collect();
    World { comms, config, regions }
}

/// As long as loom lets a rank wait: until the others cannot go on.
pub const PATIENT: u32 = 10_000;

impl World {
    pub fn comm(&self, rank: usize) -> &Arc<Comm> {
        &self.comms[rank]
    }

    /// Buffers at the begin of an execution.
    fn buffers(&self) -> Vec<Arc<Buffer>> {
        let buffer = |comm: &Arc<Comm>| {
            let host = Host::new(comm.rank(), self.config.clone(), self.regions.clone()).unwrap();
            Arc::new(Buffer::new(comm, self.config.clone(), host, None))
        };
        self.comms.iter().map(buffer).collect()
    }

    /// Lets loom know the words before threads begin.
    fn touch(&self, buffer: &Buffer) {
        let entered = buffer.enter().unwrap();
        let (host, ranks) = (&entered.state.host, self.comms.len());
        let base = host.own_ranges()[0].start as u64;
        let word = |offset: u64| {
            // SAFETY: an aligned word of the region, which nobody accesses but as a word.
            unsafe { Word::from_ptr((base + offset) as *mut u64) }.load(Ordering::Relaxed);
        };
        for source in 0..ranks {
            for (phase, turn) in
                (0..4).flat_map(|phase| (0..turns(self.config.depth())).map(move |t| (phase, t)))
            {
                word(host.layout.word(phase, source, turn));
            }
            word(host.layout.verdict(source));
            word(host.layout.verdict(source) + 8);
            for window in 0..self.config.dispatch_windows {
                row(host, host.me, window, source).load(Ordering::Relaxed);
            }
        }
        assert_eq!(self.comm(host.me).group.aborted(), None);
    }
}

/// Where a source leaves its row.
fn row(host: &Host, rank: usize, window: usize, source: usize) -> &Word {
    let slot = host.dispatch_window(rank, window).x.wrapping_add(16 * source);
    // SAFETY: one token per source and 16 bytes per row; here nobody accesses rows but as words.
    unsafe { Word::from_ptr(slot.cast()) }
}

/// How far loom goes.
#[derive(Clone, Copy)]
pub struct Extent {
    pub preemptions: usize,
    pub weaken: Weaken,
}

impl Extent {
    pub const fn preemptions(preemptions: usize) -> Extent {
        Extent { preemptions, weaken: Weaken::Nothing }
    }

    pub const fn weakened(weaken: Weaken) -> Extent {
        Extent { preemptions: 2, weaken }
    }
}

/// Runs each rank's program in every order, and with every outcome of its loads, that loom finds within the extent.
/// Returns the number of executions.
pub fn explore(
    world: World,
    extent: Extent,
    program: impl Fn(usize, Arc<Buffer>, &World) + Send + Sync + 'static,
) -> usize {
    let _alone = alone();
    let (world, program) = (Arc::new(world), Arc::new(program));
    let executions = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = executions.clone();
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(extent.preemptions);
    builder.max_branches = 10_000;
    builder.check(move || {
        count.fetch_add(1, Ordering::Relaxed);
        let _exploration = Exploration::of_loom(extent.weaken);
        let buffers = world.buffers();
        buffers.iter().for_each(|buffer| world.touch(buffer));
        let mut ranks = buffers.into_iter().enumerate().map(|(rank, buffer)| {
            let (program, world) = (program.clone(), world.clone());
            move || program(rank, buffer, &world)
        });
        let first = ranks.next().unwrap();
        let stack = 1 << 20;
        let others: Vec<_> =
            ranks.map(|rank| loom::thread::Builder::new().stack_size(stack).spawn(rank).unwrap()).collect();
        first();
        for other in others {
            other.join().unwrap();
        }
    });
    executions.load(Ordering::Relaxed)
}

/// Whether an exploration finds a fault; what it panics with is not printed.
pub fn finds_a_fault(exploration: impl FnOnce() -> usize) -> bool {
    let found = catch_unwind(AssertUnwindSafe(exploration));
    drop(Exploration); // what a thread that panicked could not do
    found.is_err()
}

/// A dispatch on its way.
#[derive(Clone, Copy)]
pub struct Sent {
    pub op: Op,
    pub window: usize,
    pub turn: usize,
}

/// What a rank's row of an epoch holds.
fn value(epoch: u64, rank: usize) -> u64 {
    epoch * 100 + rank as u64
}

/// What a rank may do wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mistake {
    None,
    SignalsBeforeRows,
    /// Writes a window at once, whatever the rule says.
    DoesNotGuard,
}

/// A dispatch of one word per peer.
pub fn send(buffer: &Buffer, mistake: Mistake) -> Result<Sent> {
    let mut entered = buffer.operate()?;
    entered.may_send()?;
    let (epoch, newest) = (entered.state.books.epochs.next(), entered.state.books.epochs.newest_received());
    let guard = |ends| guard_at_send(buffer.config.sync, false, ends, newest, epoch);
    let (window, guard) = entered.state.books.dispatch.take("dispatch", guard)?;
    let fingerprint = fingerprint(Operation::Dispatch, &[window as u32]);
    let op = Op { operation: Operation::Dispatch, epoch, fingerprint };
    let guard = if mistake == Mistake::DoesNotGuard { Guard::Nothing } else { guard };
    entered.guard(op, Kind::Dispatch, window, guard, false)?;
    entered.take_epoch(epoch)?;
    entered.state.books.dispatch.begin(window, 0);
    let turn = entered.state.turns.take(Phase::Data);
    let (host, alive) = (&entered.state.host, &entered.state.alive);
    let rows = || {
        for peer in host.others(alive) {
            row(host, peer, window, host.me).store(value(epoch, host.me), Ordering::Relaxed);
        }
    };
    if mistake != Mistake::SignalsBeforeRows {
        rows();
    }
    entered.signal(op, Phase::Data, turn);
    if mistake == Mistake::SignalsBeforeRows {
        rows();
    }
    Ok(Sent { op, window, turn })
}

/// Awaits the rows of a dispatch and looks at them.
pub fn receive(buffer: &Buffer, sent: Sent) -> Result<()> {
    let entered = buffer.operate()?;
    let Sent { op, window, turn } = sent;
    entered.wait(op, Wanted { phase: Phase::Data, turn, number: op.epoch })?;
    let (host, alive) = (&entered.state.host, &entered.state.alive);
    for peer in host.others(alive) {
        let found = row(host, host.me, window, peer).load(Ordering::Relaxed);
        assert_eq!(found, value(op.epoch, peer), "the row of rank {peer} in epoch {}", op.epoch);
    }
    assert!(entered.state.books.epochs.receive(op.epoch));
    let next = entered.state.books.epochs.next();
    entered.state.end_reads(Kind::Dispatch, window, next);
    Ok(())
}

/// Sends and receives in turn.
pub fn one_by_one(buffer: &Buffer, operations: usize, mistake: Mistake) {
    for _ in 0..operations {
        receive(buffer, send(buffer, mistake).unwrap()).unwrap();
    }
}
