//! A handle: one routing, and where it stands between its operations.

use super::books::{Kind, Stretch};
use super::state::{Buffer, Entered, Op};
use crate::backend::cuda::HandleMemory;
use crate::backend::host::Routing;
use crate::driver::StreamPointer;
use crate::error::{Error, Result, Status};
use crate::plan::dtype::Dtype;
use crate::plan::request::{Address, CombineShape, DispatchShape, Rows};
use crate::plan::windows::{guard_at_take, Guard};
use crate::plan::words::Operation;
use std::cell::UnsafeCell;
use std::sync::Arc;

pub struct Handle {
    pub(super) buffer: Arc<Buffer>,
    progress: UnsafeCell<Progress>,
}

// SAFETY: `progress` is touched only inside a call that has exclusive use of the buffer.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

/// What a handle has done, and what it holds.
#[derive(Default)]
pub(super) struct Progress {
    pub number: u64,
    pub routing: Option<Box<Routing>>,
    /// The same on a device.
    pub memory: Option<HandleMemory>,
    /// The buffer's generation when the routing was sent.
    pub generation: u64,
    /// Where the handle was used last; what follows was noted in those books.
    pub stretch: Stretch,
    /// The last dispatch that was sent, and whether its receive is still to come.
    pub dispatch: Option<Dispatched>,
    pub dispatch_in_flight: bool,
    /// Not combined or released since the last dispatch.
    pub fresh: bool,
    /// Rows that callers read in place.
    pub open_window: Option<usize>,
    pub open_area: Option<usize>,
    pub arrived: Option<Arrived>,
    /// Memory promised by combine_input.
    pub input: Option<CombineInput>,
    pub combine: Option<Combined>,
}

impl Progress {
    /// Whether the device waits for a call to end something of the handle.
    fn holds_on_device(&self) -> bool {
        self.dispatch_in_flight
            || self.combine.is_some()
            || self.open_window.is_some()
            || self.open_area.is_some()
            || self.input.is_some_and(|input| input.claimed)
    }
}

/// A dispatch as it was sent.
#[derive(Clone, Copy)]
pub(super) struct Dispatched {
    pub epoch: u64,
    pub window: usize,
    pub data_turn: usize,
    pub fingerprint: u16,
    pub shape: DispatchShape,
    pub tokens: usize,
    /// Rows after expansion that the counts promise (packed).
    pub promised: i64,
}

/// What a receive left for the combine.
#[derive(Clone, Copy)]
pub(super) struct Arrived {
    pub link_rows: usize,
    /// Rows the caller may have to read: in all, or in the fullest slab.
    pub rows: u64,
    /// Rows per slab of the side outputs.
    pub slab_rows: u64,
    /// Rows present, as wait_counts tells.
    pub present: i64,
}

#[derive(Clone, Copy)]
pub(super) struct CombineInput {
    pub window: usize,
    pub address: Address,
    pub dtype: Dtype,
    /// The device knows of it.
    pub claimed: bool,
}

/// A combine that was sent and not received.
#[derive(Clone, Copy)]
pub(super) struct Combined {
    pub epoch: u64,
    pub window: usize,
    pub data_turn: usize,
    pub fingerprint: u16,
    pub shape: CombineShape,
    /// Null, or where the token's rank finds its weights.
    pub weights: Address,
}

/// What wait_counts tells.
pub struct Counts {
    pub experts: Vec<i32>,
    pub rows: i64,
}

impl Handle {
    pub fn create(buffer: &Arc<Buffer>) -> Result<Handle> {
        let entered = buffer.enter()?;
        let mut progress = Progress::default();
        match entered.state.device.clone() {
            None => progress.routing = Some(entered.state.new_routing()),
            Some(device) => {
                progress.memory = match entered.state.unused.pop() {
                    Some(mut memory) => {
                        memory.renew();
                        Some(memory)
                    }
                    None => {
                        let memory = HandleMemory::new(&device)?;
                        entered.state.own_more(memory.own_range());
                        entered.state.records.push(memory.record());
                        Some(memory)
                    }
                };
            }
        }
        progress.number = entered.state.new_handle();
        drop(entered);
        Ok(Handle { buffer: buffer.clone(), progress: UnsafeCell::new(progress) })
    }

    /// Takes the buffer and this handle for one operation on a stream.
    #[allow(clippy::mut_from_ref)] // `Entered` is what makes the reference exclusive
    pub(super) fn operate(&self, stream: StreamPointer) -> Result<(Entered<'_>, &mut Progress)> {
        let (mut entered, progress) = self.enter()?;
        entered.follow(stream)?;
        entered.change_stretch(progress)?;
        Ok((entered, progress))
    }

    #[allow(clippy::mut_from_ref)] // as above
    fn enter(&self) -> Result<(Entered<'_>, &mut Progress)> {
        let entered = self.buffer.operate()?;
        // SAFETY: `entered` is the exclusive use of the buffer and its handles.
        let progress = unsafe { &mut *self.progress.get() };
        if progress.generation != entered.state.generation {
            // A reset made everything void: windows and areas are free again, and nothing is in flight.
            let routing = progress.routing.take();
            let (number, memory) = (progress.number, progress.memory.take());
            *progress = Progress {
                number,
                routing,
                memory,
                generation: entered.state.generation,
                ..Progress::default()
            };
        }
        Ok((entered, progress))
    }

    /// `timeout_ms`: CUDA, how long to wait for the receive; 0 as long as the buffer's waits.
    pub fn counts(&self, timeout_ms: u32) -> Result<Counts> {
        let (entered, progress) = self.enter()?;
        if entered.state.device.is_some() && progress.arrived.is_some() {
            return entered.wait_for_counts(progress, timeout_ms);
        }
        match (&progress.arrived, &progress.routing) {
            (Some(arrived), Some(routing)) => {
                Ok(Counts { experts: routing.expert_counts.clone(), rows: arrived.present })
            }
            _ => Err(Error::invalid_state(
                "no dispatch of this handle has been received yet, so there are no counts; call dispatch, or \
                 dispatch_send and dispatch_recv",
            )),
        }
    }

    pub fn release(&self, stream: StreamPointer) -> Result<()> {
        let (mut entered, progress) = self.operate(stream)?;
        if progress.dispatch_in_flight {
            return Err(Error::invalid_state(
                "the handle's dispatch was sent and not received; call dispatch_recv first",
            ));
        }
        let open = progress.holds_on_device() || entered.state.shelf.has_captures;
        let next = entered.state.books.epochs.next();
        entered.end_open_reads(progress, next);
        entered.release_on_device(progress, open, stream)
    }

    /// Reserves the memory for the rows of the next combine.
    pub fn combine_input(&self, dtype: Dtype, stream: StreamPointer) -> Result<Rows> {
        let (mut entered, progress) = self.operate(stream)?;
        let (Some(arrived), Some(dispatch)) = (progress.arrived, progress.dispatch) else {
            return Err(Error::invalid_state(
                "no dispatch of this handle has been received; call dispatch, or dispatch_recv after a dispatch_send",
            ));
        };
        if progress.combine.is_some() {
            return Err(Error::invalid_state(
                "the handle's combine was sent and not received; call combine_recv first",
            ));
        }
        let config = self.buffer.config.clone();
        let row_bytes = dispatch.shape.hidden * dtype.bytes();
        if !row_bytes.is_multiple_of(16) {
            return Err(Error::invalid_argument(format_args!(
                "a row of x takes {row_bytes} bytes, which is not a multiple of 16"
            )));
        }
        if row_bytes > config.max_combine_row_bytes {
            return Err(Error::new(
                Status::DEEP_EP_CAPACITY_EXCEEDED,
                format_args!(
                    "a row of x takes {row_bytes} bytes, more than max_combine_row_bytes = {}",
                    config.max_combine_row_bytes
                ),
            ));
        }
        let (window, claimed) = match progress.input {
            Some(input) => (input.window, input.claimed),
            None => entered.reserve_input(progress, stream)?,
        };
        let address = entered.combine_area(window);
        progress.input = Some(CombineInput { window, address, dtype, claimed });
        let rows = arrived.slab_rows as i64;
        Ok(Rows {
            data: address,
            rows,
            row_stride: row_bytes as i64,
            slot_stride: rows * row_bytes as i64,
            dtype: Some(dtype),
        })
    }

    /// Frees what the handle holds; its memory is kept for the next one.
    pub fn close(&self) -> Result<()> {
        let mut entered = match self.buffer.enter() {
            Ok(entered) => entered,
            Err(error) if error.status == Status::DEEP_EP_CONCURRENT_USE => return Err(error),
            Err(_) => return Ok(()),
        };
        // SAFETY: `entered` is the exclusive use of the buffer and its handles.
        let progress = unsafe { &mut *self.progress.get() };
        let mut holds = entered.state.shelf.has_captures;
        if progress.generation == entered.state.generation {
            holds |= progress.holds_on_device();
            entered.in_books_of(progress.stretch, |entered| entered.let_go(progress));
        }
        if let Some(routing) = progress.routing.take() {
            entered.state.keep_routing(routing);
        }
        if let Some(memory) = progress.memory.take() {
            let kept = if holds { &mut entered.state.pending_ends } else { &mut entered.state.unused };
            kept.push(memory);
        }
        Ok(())
    }
}

impl Entered<'_> {
    /// Opens the books of the stretch that the stream's calls belong to.
    pub fn follow(&mut self, stream: StreamPointer) -> Result<()> {
        let Some(device) = &self.state.device else { return Ok(()) };
        let stretch = device.follow(stream)?;
        self.state.turn_to(stretch);
        Ok(())
    }

    fn in_books_of(&mut self, stretch: Stretch, work: impl FnOnce(&mut Self)) {
        let open = self.state.books.stretch();
        self.state.turn_to(stretch);
        work(self);
        self.state.turn_to(open);
    }

    /// A handle that was used in another stretch: the books there do not wait for it any longer, since from now on only the
    /// device knows in which order things happen to it.
    fn change_stretch(&mut self, progress: &mut Progress) -> Result<()> {
        let stretch = self.state.books.stretch();
        if progress.stretch == stretch {
            return Ok(());
        }
        if progress.dispatch_in_flight || progress.combine.is_some() {
            return Err(Error::invalid_state(
                "the handle has an operation that was sent and not received in an earlier capture, or outside of this \
                 one; a send and its receive belong in one capture, or both outside of captures; destroy the handle",
            ));
        }
        self.in_books_of(progress.stretch, |entered| entered.let_go(progress));
        progress.stretch = stretch;
        Ok(())
    }

    /// The rows of the handle's dispatch are not read any more, before epoch `next` is sent.
    pub fn end_open_reads(&mut self, progress: &mut Progress, next: u64) {
        progress.fresh = false;
        if let Some(window) = progress.open_window.take() {
            self.state.end_reads(Kind::Dispatch, window, next);
        }
        if let Some(area) = progress.open_area.take() {
            self.state.books.areas_taken[area] = false;
        }
    }

    /// Nothing of the handle is in flight, open or held any more.
    fn let_go(&mut self, progress: &mut Progress) {
        let next = self.state.books.epochs.next();
        if let Some(sent) = progress.dispatch.filter(|_| progress.dispatch_in_flight) {
            self.state.books.epochs.abandon(sent.epoch);
            self.state.end_reads(Kind::Dispatch, sent.window, next);
        }
        if let Some(sent) = progress.combine {
            self.state.books.epochs.abandon(sent.epoch);
            self.state.end_reads(Kind::Combine, sent.window, next);
        }
        if let Some(input) = progress.input.take() {
            self.state.books.combine.windows.let_go(input.window);
        }
        self.end_open_reads(progress, next);
    }

    /// Holds a combine window for a handle. Where peers pull what the caller will write, the guard is here. Returns the
    /// window and whether the device knows of it.
    fn reserve_input(&mut self, progress: &mut Progress, stream: StreamPointer) -> Result<(usize, bool)> {
        let (mode, pulls) = (self.buffer.config.sync, self.state.host.pulls_from_caller());
        let (newest, next) = (self.state.books.epochs.newest_received(), self.state.books.epochs.next());
        let guard = |ends| guard_at_take(mode, ends, newest, next);
        let (window, guard) = self.state.books.combine.take("combine", guard)?;
        // On a device only a kernel can wait for acknowledgements, and where graphs are replayed only a kernel can tell
        // what to wait for.
        let on_device = self.state.device.is_some();
        let claims = self.state.shelf.has_captures || (on_device && pulls && guard == Guard::Acks);
        if claims {
            self.claim_on_device(progress, window, pulls, stream)?;
        } else if pulls {
            match guard {
                Guard::Barrier => self.barrier(false, stream)?,
                Guard::Acks => {
                    let op = Op { operation: Operation::Combine, epoch: next, fingerprint: 0 };
                    self.guard(op, Kind::Combine, window, Guard::Acks, false)?;
                }
                Guard::Nothing | Guard::Busy => {}
            }
        }
        self.state.books.combine.windows.hold(window);
        self.state.books.combine.note_holder(window, progress.number);
        Ok((window, claims))
    }
}
