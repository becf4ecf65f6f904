//! One buffer: what may be read at any time, and what only the running operation touches.

use super::books::{Books, Kind, Shelf, Stretch, EAGER};
use super::comm::Comm;
use super::failure::Failures;
use super::owned::Owned;
use super::statistics::Statistics;
use super::trace::Trace;
use crate::backend::cuda::{Cuda, HandleMemory};
use crate::backend::host::{Host, Routing, Scratch, Watch};
use crate::error::{Error, Result, Status};
use crate::plan::config::{within, Config};
use crate::plan::report::Report;
use crate::plan::request::Address;
use crate::plan::windows::{count_regions, SyncMode};
use crate::plan::words::{Operation, Phase, Turns};
use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

pub struct Buffer {
    pub(super) comm: Arc<Comm>,
    pub(super) config: Arc<Config>,
    pub(super) failures: Failures,
    pub(super) statistics: Statistics,
    pub(super) trace: Option<Trace>,
    pub(super) alive: RwLock<Vec<bool>>,
    /// What any thread may ask of the device; empty on the host backend and after destroy.
    pub(super) device: Mutex<Option<Arc<Cuda>>>,
    timeout_ms: AtomicU32,
    first_timeout_ms: AtomicU32,
    busy: AtomicBool,
    state: UnsafeCell<Option<State>>,
}

// SAFETY: `state` is touched only by the thread that has set `busy`; everything else is shared by its own means.
unsafe impl Sync for Buffer {}
// SAFETY: as above; nothing in it is tied to a thread.
unsafe impl Send for Buffer {}

/// What only the running operation touches.
pub(super) struct State {
    /// Without memory where the buffer is on a device.
    pub host: Host,
    pub scratch: Scratch,
    pub device: Option<Arc<Cuda>>,
    /// CUDA: memory of destroyed handles that may have rows open or a send unreceived; the next eager operation enqueues
    /// the end.
    pub pending_ends: Vec<HandleMemory>,
    /// CUDA: memory of destroyed handles, which kernels may still use; kept for the next ones.
    pub unused: Vec<HandleMemory>,
    /// CUDA: where kernels keep what they know of each handle there ever was.
    pub records: Vec<u64>,
    /// Of the stretch that the running call belongs to.
    pub books: Books,
    pub shelf: Shelf,
    pub turns: Turns,
    /// Count exchanges made.
    pub exchanges: u64,
    /// Ends of reads told to peers (ACK).
    pub acks: u64,
    /// The epoch that create or the last reset agreed on.
    pub settled: u64,
    /// Resets; routings of an earlier generation are void.
    pub generation: u64,
    pub alive: Vec<bool>,
    /// Library memory that callers may hand back.
    own: Owned,
    /// Memory of destroyed handles. It stays mapped, so that a pointer left in a caller's struct is still known as the
    /// library's.
    #[allow(clippy::vec_box)] // handles keep the boxes, and outputs may point into them
    spare: Vec<Box<Routing>>,
    handles: u64,
}

/// Exclusive use of a buffer's state, for one call.
pub(super) struct Entered<'a> {
    pub buffer: &'a Buffer,
    pub state: &'a mut State,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.buffer.busy.store(false, Ordering::Release);
    }
}

impl Buffer {
    pub(super) fn new(
        comm: &Arc<Comm>,
        config: Arc<Config>,
        host: Host,
        device: Option<Arc<Cuda>>,
    ) -> Buffer {
        let depth = config.depth();
        let state = State {
            scratch: Scratch::new(&host),
            books: Books::new(&config, EAGER),
            shelf: Shelf::default(),
            turns: Turns::new(depth),
            exchanges: 0,
            acks: 0,
            settled: 0,
            generation: 0,
            alive: vec![true; config.num_ranks],
            own: Owned::new(device.as_ref().map_or_else(|| host.own_ranges(), |device| device.own_ranges())),
            spare: Vec::new(),
            handles: 0,
            device: device.clone(),
            pending_ends: Vec::new(),
            unused: Vec::new(),
            records: Vec::new(),
            host,
        };
        Buffer {
            comm: comm.clone(),
            failures: Failures::new(comm.rank() as u32),
            statistics: Statistics::new(&config, comm.rank()),
            trace: (config.trace && device.is_none()).then(Trace::new),
            alive: RwLock::new(state.alive.clone()),
            device: Mutex::new(device),
            timeout_ms: AtomicU32::new(config.timeout_ms),
            first_timeout_ms: AtomicU32::new(config.first_timeout_ms),
            busy: AtomicBool::new(false),
            state: UnsafeCell::new(Some(state)),
            config,
        }
    }

    pub fn num_ranks(&self) -> usize {
        self.config.num_ranks
    }

    pub fn local_experts(&self) -> &[i32] {
        self.config.experts.of_rank(self.comm.rank())
    }

    pub fn alive(&self) -> Vec<u8> {
        let alive = self.alive.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        alive.iter().map(|&alive| u8::from(alive)).collect()
    }

    pub fn set_timeout(&self, timeout_ms: u32) -> Result<()> {
        within("timeout_ms", timeout_ms.into(), 1, u32::MAX.into())?;
        self.timeout_ms.store(timeout_ms, Ordering::Relaxed);
        self.first_timeout_ms.store(timeout_ms, Ordering::Relaxed);
        match self.device() {
            Some(device) => device.set_timeouts(timeout_ms, timeout_ms),
            None => Ok(()),
        }
    }

    /// Milliseconds that a wait may last, and one of the first operation.
    pub(super) fn timeouts_ms(&self) -> [u32; 2] {
        [&self.timeout_ms, &self.first_timeout_ms].map(|limit| limit.load(Ordering::Relaxed))
    }

    /// The longest that a wait of the next operation may last.
    pub(super) fn operation_timeout(&self) -> Duration {
        let [timeout, first] = self.timeouts_ms();
        Duration::from_millis(timeout.max(first).into())
    }

    /// How long agreements of all ranks may take; set_timeout is for operations.
    pub(super) fn agreement_timeout(&self) -> Duration {
        Duration::from_millis(self.config.first_timeout_ms.into())
    }

    /// Takes the buffer for one call of any kind.
    pub(super) fn enter(&self) -> Result<Entered<'_>> {
        if self.comm.group.in_forked_child() {
            return Err(Error::invalid_state(
                "this process was forked after the buffer was made and is no rank of it; create a comm here",
            ));
        }
        self.seize()
    }

    fn seize(&self) -> Result<Entered<'_>> {
        if self.busy.swap(true, Ordering::Acquire) {
            return Err(Error::new(
                Status::DEEP_EP_CONCURRENT_USE,
                "another thread is inside a call on this buffer; its operations come one after the other",
            ));
        }
        // SAFETY: `busy` was free and is now ours until `Entered` is dropped.
        match unsafe { &mut *self.state.get() } {
            Some(state) => Ok(Entered { buffer: self, state }),
            None => {
                self.busy.store(false, Ordering::Release);
                Err(Error::invalid_state("the buffer was destroyed"))
            }
        }
    }

    /// Takes the buffer for an operation: not while it is poisoned or the group aborted.
    pub(super) fn operate(&self) -> Result<Entered<'_>> {
        let entered = self.enter()?;
        self.look_at_device();
        self.failures.check()?;
        if let Some((rank, reason)) = self.comm.group.aborted() {
            let report = Report {
                status: Status::DEEP_EP_ABORTED,
                missing: vec![rank],
                detail: format!("rank {rank} aborted: {reason}"),
                epoch: entered.state.books.epochs.next(),
                ..Report::nothing(self.comm.rank() as u32)
            };
            return Err(self.failures.poison(report));
        }
        Ok(entered)
    }

    /// Gives the memory back; handles find the buffer gone.
    pub fn destroy(&self) -> Result<()> {
        let entered = match self.seize() {
            Ok(entered) => entered,
            Err(error) if error.status == Status::DEEP_EP_CONCURRENT_USE => return Err(error),
            Err(_) => return Ok(()),
        };
        if let Some(device) = &entered.state.device {
            let _ = device.drain(); // a device that is lost has no kernels either
        }
        // SAFETY: `busy` is ours; the reference in `entered` is not used any more.
        drop(unsafe { (*self.state.get()).take() });
        drop(self.device.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take());
        drop(entered);
        Ok(())
    }
}

impl State {
    /// Takes in memory that callers may be handed.
    pub fn own_more(&mut self, range: Range<Address>) {
        self.own.add([range]);
    }

    /// Whether an address lies in library memory of this buffer.
    pub fn owns(&self, address: Address) -> bool {
        self.own.contains(address)
    }

    /// The number of a new handle.
    pub fn new_handle(&mut self) -> u64 {
        self.handles += 1;
        self.handles
    }

    /// Memory for a new handle.
    pub fn new_routing(&mut self) -> Box<Routing> {
        self.spare.pop().unwrap_or_else(|| {
            let routing = Box::new(Routing::new(&self.host.config, self.host.me));
            self.own.add(routing.own_ranges());
            routing
        })
    }

    pub fn keep_routing(&mut self, routing: Box<Routing>) {
        self.spare.push(routing);
    }

    /// The count region of the next exchange, which is hereby taken.
    pub fn take_count_region(&mut self) -> usize {
        let regions = count_regions(self.host.config.depth()) as u64;
        self.exchanges += 1;
        (self.exchanges % regions) as usize
    }

    pub fn watch<'a>(&'a self, buffer: &'a Buffer, op: Op, waited: &'a dyn Fn(usize, u64)) -> Watch<'a> {
        let first = op.epoch == self.settled + 1;
        let timeout = if first { &buffer.first_timeout_ms } else { &buffer.timeout_ms };
        Watch {
            group: &buffer.comm.group,
            alive: &self.alive,
            operation: op.operation,
            epoch: op.epoch,
            fingerprint: op.fingerprint,
            timeout: Duration::from_millis(timeout.load(Ordering::Relaxed).into()),
            settled: self.settled,
            waited,
        }
    }

    /// Ends the reads of a window and, where peers wait for that, tells them; on a device kernels do.
    pub fn end_reads(&mut self, kind: Kind, window: usize, next_epoch: u64) {
        let acks = (self.device.is_none() && self.host.config.sync == SyncMode::Ack).then(|| {
            self.acks += 1;
            self.host.signal(Phase::Read, 0, self.acks, 0, &self.alive);
            self.acks
        });
        let set = self.books.set(kind);
        set.windows.end_reads(window, next_epoch);
        set.acks[window] = acks.unwrap_or(0);
    }

    /// Opens the books of a stretch.
    pub fn turn_to(&mut self, stretch: Stretch) {
        self.shelf.turn_to(stretch, &mut self.books, &self.host.config);
    }

    /// All windows and areas free, nothing in flight, the next epoch behind all that began.
    pub fn restart(&mut self, next_epoch: u64) {
        self.turn_to(EAGER);
        self.shelf.clear();
        self.unused.append(&mut self.pending_ends);
        self.books.restart(next_epoch, true);
        self.turns.reset();
        self.exchanges = 0;
        // Ranks may have told different numbers of reads; each epoch has at most one, so this is beyond all of them.
        self.acks = next_epoch;
        self.settled = next_epoch - 1;
        self.generation += 1;
    }

    /// Takes in the region that replaced this rank's; the old one's addresses stay the library's.
    pub fn own_new_region(&mut self) {
        let [region, _] =
            self.device.as_ref().map_or_else(|| self.host.own_ranges(), |device| device.own_ranges());
        self.own.add([region]);
    }
}

/// What an operation tells its peers that it is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Op {
    pub operation: Operation,
    pub epoch: u64,
    pub fingerprint: u16,
}
