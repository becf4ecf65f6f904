//! Operations on a CUDA device: checked and given their windows as on the host, then enqueued on the caller's stream. What
//! the books of the host say here holds in the order of the stream; the kernels keep their own and have the last word.

use super::arrival::Arrival;
use super::books::EAGER;
use super::combine::Ready as ReadyCombine;
use super::dispatch::Ready as ReadyDispatch;
use super::handle::{Arrived, Combined, Counts, Dispatched, Progress};
use super::state::{Buffer, Entered};
use crate::backend::cuda::{
    CombineCall, CombineInput, CombineOutput, Cuda, DispatchCall, DispatchOutput, HandleMemory,
};
use crate::driver::StreamPointer;
use crate::error::{Error, Result, Status};
use crate::mem::{deadline_after, Backoff};
use crate::plan::report::Report;
use crate::plan::request::{plan_sums, Address, Arrangement, CombineTarget, DispatchShape, DispatchTarget};
use std::sync::Arc;
use std::time::Duration;

/// Where a dispatch arrives.
pub(super) struct Landing {
    pub target: DispatchTarget,
    pub arrangement: Arrangement,
    /// By expert, rows in place.
    pub area: Option<usize>,
}

impl Buffer {
    pub(super) fn device(&self) -> Option<Arc<Cuda>> {
        self.device.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }

    pub(super) fn replace_device(&self, device: Arc<Cuda>) {
        *self.device.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(device);
    }

    /// Takes up a failure that the device has reported.
    pub(super) fn look_at_device(&self) {
        let Some(report) = self.device().and_then(|device| device.failure()) else { return };
        let report = match self.comm.group.aborted() {
            Some((rank, reason)) if report.status == Status::DEEP_EP_ABORTED => {
                Report { detail: format!("rank {rank} aborted: {reason}"), missing: vec![rank], ..report }
            }
            _ => report,
        };
        self.failures.poison(report);
    }

    /// What the device has to report beside failures.
    pub(super) fn take_device_report(&self) -> Option<Report> {
        self.device().and_then(|device| device.take_soft().ok().flatten())
    }
}

pub(super) fn nowhere() -> Error {
    Error::new(Status::DEEP_EP_INTERNAL, "the handle has no device memory")
}

/// The device and a handle's memory on it.
fn parts<'a>(
    device: &'a Option<Arc<Cuda>>,
    memory: &'a mut Option<HandleMemory>,
) -> Result<(&'a Cuda, &'a mut HandleMemory)> {
    match (device, memory) {
        (Some(device), Some(memory)) => Ok((device, memory)),
        _ => Err(nowhere()),
    }
}

impl Entered<'_> {
    /// Tells the device which handles are gone; a replay must not say it again.
    fn enqueue_ends(&mut self, stream: StreamPointer) -> Result<()> {
        let Some(device) = &self.state.device else { return Ok(()) };
        if self.state.books.stretch() != EAGER {
            return Ok(());
        }
        while let Some(memory) = self.state.pending_ends.pop() {
            if let Err(error) = device.release(&memory, true, stream) {
                self.state.pending_ends.push(memory);
                return Err(error);
            }
            self.state.unused.push(memory);
        }
        Ok(())
    }

    /// The end of a handle's reads, if any may be open.
    pub fn release_on_device(
        &mut self,
        progress: &mut Progress,
        open: bool,
        stream: StreamPointer,
    ) -> Result<()> {
        if self.state.device.is_none() {
            return Ok(());
        }
        self.enqueue_ends(stream)?;
        let (device, memory) = parts(&self.state.device, &mut progress.memory)?;
        if open {
            device.release(memory, false, stream)?;
        }
        Ok(())
    }

    /// Before a combine window is handed out: the device notes whose it is and waits for what must be awaited.
    pub fn claim_on_device(
        &mut self,
        progress: &mut Progress,
        window: usize,
        pulled: bool,
        stream: StreamPointer,
    ) -> Result<()> {
        self.enqueue_ends(stream)?;
        let (device, memory) = parts(&self.state.device, &mut progress.memory)?;
        device.claim(memory, window, pulled, stream)
    }

    pub fn barrier_on_device(&mut self, asked_for: bool, stream: StreamPointer) -> Result<()> {
        self.enqueue_ends(stream)?;
        let Some(device) = &self.state.device else { return Err(nowhere()) };
        device.barrier(asked_for, stream)?;
        self.state.books.epochs.barrier();
        Ok(())
    }

    pub fn dispatch_on_device(
        &mut self,
        ready: &ReadyDispatch,
        place: &Landing,
        progress: &mut Progress,
        stream: StreamPointer,
    ) -> Result<Arrival> {
        self.enqueue_ends(stream)?;
        let (device, memory) = parts(&self.state.device, &mut progress.memory)?;
        let shape = &ready.plan.shape;
        let outputs = device.output_addresses(
            memory,
            &place.target,
            &place.arrangement,
            shape,
            ready.window,
            place.area,
        );
        let call = DispatchCall {
            shape,
            window: ready.window,
            fingerprint: ready.op.fingerprint,
            num_sms: ready.plan.request.num_sms,
            send: Some(&ready.plan),
            receive: Some(self.output(&outputs, place)),
            stream,
        };
        device.dispatch(memory, &call)?;
        self.note_dispatch(ready, progress)?;
        self.note_arrival(place, progress);
        Ok(Arrival { outputs })
    }

    pub fn send_on_device(
        &mut self,
        ready: &ReadyDispatch,
        progress: &mut Progress,
        stream: StreamPointer,
    ) -> Result<()> {
        self.enqueue_ends(stream)?;
        let (device, memory) = parts(&self.state.device, &mut progress.memory)?;
        let call = DispatchCall {
            shape: &ready.plan.shape,
            window: ready.window,
            fingerprint: ready.op.fingerprint,
            num_sms: ready.plan.request.num_sms,
            send: Some(&ready.plan),
            receive: None,
            stream,
        };
        device.dispatch(memory, &call)?;
        self.note_dispatch(ready, progress)
    }

    pub fn receive_on_device(
        &mut self,
        target: &DispatchTarget,
        progress: &mut Progress,
        stream: StreamPointer,
    ) -> Result<Arrival> {
        let Some(sent) = progress.dispatch else { return Err(nowhere()) };
        let arrangement = self.arrange(target, &sent.shape)?;
        let place = Landing { target: *target, arrangement, area: self.free_area(&arrangement)? };
        self.enqueue_ends(stream)?;
        let (device, memory) = parts(&self.state.device, &mut progress.memory)?;
        let outputs =
            device.output_addresses(memory, target, &place.arrangement, &sent.shape, sent.window, place.area);
        let call = DispatchCall {
            shape: &sent.shape,
            window: sent.window,
            fingerprint: sent.fingerprint,
            num_sms: 0,
            send: None,
            receive: Some(self.output(&outputs, &place)),
            stream,
        };
        device.dispatch(memory, &call)?;
        self.note_arrival(&place, progress);
        Ok(Arrival { outputs })
    }

    fn output<'a>(&self, outputs: &'a DispatchTarget, place: &'a Landing) -> DispatchOutput<'a> {
        let keep_open = self.stays_open(&place.arrangement);
        DispatchOutput { outputs, arrangement: &place.arrangement, keep_open, area: place.area }
    }

    /// Whether the window is read in place after the receive.
    fn stays_open(&self, arrangement: &Arrangement) -> bool {
        (arrangement.x_in_place || arrangement.scales_in_place) && !self.buffer.config.layout.by_expert()
    }

    /// A dispatch is on its way.
    fn note_dispatch(&mut self, ready: &ReadyDispatch, progress: &mut Progress) -> Result<()> {
        let (op, shape): (_, DispatchShape) = (ready.op, ready.plan.shape);
        self.take_epoch(op.epoch)?;
        progress.dispatch = Some(Dispatched {
            epoch: op.epoch,
            window: ready.window,
            data_turn: 0,
            fingerprint: op.fingerprint,
            shape,
            tokens: ready.tokens,
            promised: 0,
        });
        progress.dispatch_in_flight = true;
        progress.fresh = true;
        progress.arrived = None;
        if let Some(input) = progress.input.take() {
            // It was for rows of the dispatch before.
            self.state.books.combine.windows.let_go(input.window);
        }
        self.state.books.dispatch.begin(ready.window, progress.number);
        Ok(())
    }

    /// Its receive is enqueued: rows in place stay in use until combine or release.
    fn note_arrival(&mut self, place: &Landing, progress: &mut Progress) {
        let Some(sent) = progress.dispatch else { return };
        self.state.books.epochs.receive(sent.epoch);
        progress.dispatch_in_flight = false;
        if self.stays_open(&place.arrangement) {
            progress.open_window = Some(sent.window);
        } else {
            let next = self.state.books.epochs.next();
            self.state.books.dispatch.windows.end_reads(sent.window, next);
        }
        if let Some(area) = place.area {
            self.state.books.areas_taken[area] = true;
            progress.open_area = Some(area);
        }
        // How many rows there are only the device knows.
        progress.arrived =
            Some(Arrived { link_rows: 0, rows: 0, slab_rows: place.arrangement.capacity, present: 0 });
    }

    /// `sums`: where they go and their stride, or none for the first half.
    pub fn combine_on_device(
        &mut self,
        ready: &ReadyCombine,
        sums: Option<(&CombineTarget, u64)>,
        progress: &mut Progress,
        stream: StreamPointer,
    ) -> Result<()> {
        self.enqueue_ends(stream)?;
        let (shape, request) = (&ready.plan.shape, &ready.plan.request);
        let tokens = progress.dispatch.map_or(0, |dispatch| dispatch.tokens);
        let pulls = self.state.host.pulls_from_caller();
        let (device, memory) = parts(&self.state.device, &mut progress.memory)?;
        let weights = match request.topk_weights as u64 {
            _ if shape.exact && request.weights_of_dispatch => device.dispatch_weights(memory),
            0 => 0,
            given if sums.is_some() => given,
            given => device.keep_weights(memory, given, tokens * self.buffer.config.topk, stream)?,
        };
        let call = CombineCall {
            shape,
            window: ready.window,
            fingerprint: ready.op.fingerprint,
            num_sms: request.num_sms,
            tokens: tokens as u64,
            send: Some(CombineInput {
                plan: &ready.plan,
                data: ready.data as u64,
                slab_rows: ready.arrived.slab_rows,
                in_window: ready.in_place && pulls,
                claimed: ready.in_place && progress.input.is_some_and(|input| input.claimed),
                guarded: ready.guarded,
            }),
            receive: sums.map(|(target, stride)| CombineOutput { target, stride, weights }),
            stream,
        };
        device.combine(memory, &call)?;
        let (op, window) = (ready.op, ready.window);
        self.take_epoch(op.epoch)?;
        self.state.books.combine.begin(window, progress.number);
        progress.input = None;
        // The kernel itself ends the reads of the dispatch.
        self.end_open_reads(progress, op.epoch);
        let (epoch, fingerprint, shape) = (op.epoch, op.fingerprint, *shape);
        match sums {
            Some(_) => self.note_sums(epoch, window),
            None => {
                let weights = weights as Address;
                progress.combine =
                    Some(Combined { epoch, window, data_turn: 0, fingerprint, shape, weights });
            }
        }
        Ok(())
    }

    pub fn receive_combine_on_device(
        &mut self,
        target: &CombineTarget,
        progress: &mut Progress,
        stream: StreamPointer,
    ) -> Result<()> {
        let (Some(sent), Some(dispatch)) = (progress.combine, progress.dispatch) else {
            return Err(Error::invalid_state(
                "no combine of this handle is in flight; call combine_send first",
            ));
        };
        let stride = plan_sums(target, &sent.shape, dispatch.tokens as u64)?;
        self.enqueue_ends(stream)?;
        let (device, memory) = parts(&self.state.device, &mut progress.memory)?;
        let call = CombineCall {
            shape: &sent.shape,
            window: sent.window,
            fingerprint: sent.fingerprint,
            num_sms: 0,
            tokens: dispatch.tokens as u64,
            send: None,
            receive: Some(CombineOutput { target, stride, weights: sent.weights as u64 }),
            stream,
        };
        device.combine(memory, &call)?;
        self.note_sums(sent.epoch, sent.window);
        progress.combine = None;
        Ok(())
    }

    fn note_sums(&mut self, epoch: u64, window: usize) {
        self.state.books.epochs.receive(epoch);
        let next = self.state.books.epochs.next();
        self.state.books.combine.windows.end_reads(window, next);
    }

    /// Where a combine's rows are written in place.
    pub fn combine_area(&self, window: usize) -> Address {
        match &self.state.device {
            Some(device) => device.combine_area(window) as Address,
            None => self.state.host.combine_area(window) as Address,
        }
    }

    /// On a device: whether the handle's dispatch may have left rows here, as far as the host knows by now. Of replays it
    /// knows nothing.
    pub fn may_have_rows(&self, progress: &Progress) -> bool {
        let (Some(_), Some(memory)) = (&self.state.device, &progress.memory) else { return false };
        if self.state.shelf.has_captures {
            return true;
        }
        memory.counts(self.buffer.config.layout.by_expert(), 0).is_none_or(|(rows, _)| rows > 0)
    }

    /// Waits until the receive of the handle's dispatch has told its numbers.
    pub fn wait_for_counts(&self, progress: &Progress, timeout_ms: u32) -> Result<Counts> {
        let (Some(device), Some(memory)) = (&self.state.device, &progress.memory) else {
            return Err(nowhere());
        };
        let (config, me) = (&self.buffer.config, self.state.host.me);
        let local_experts = config.experts.of_rank(me).len();
        let counts = || device.counts(memory, local_experts);
        if memory.is_replayed() && counts()?.is_none() {
            return Err(Error::invalid_state(
                "the handle's last dispatch was captured, and no replay of it has run; launch the graph and synchronise first",
            ));
        }
        let timeout = match timeout_ms {
            0 => self.buffer.operation_timeout(),
            given => Duration::from_millis(given.into()),
        };
        let mut backoff = Backoff::new(deadline_after(timeout));
        loop {
            if let Some((rows, experts)) = counts()? {
                self.buffer.look_at_device();
                self.buffer.failures.check()?;
                return Ok(Counts { experts, rows });
            }
            if device.failure().is_some() {
                self.buffer.look_at_device();
                self.buffer.failures.check()?;
            }
            self.buffer.comm.group.check_abort()?;
            if !backoff.pause() {
                return Err(Error::new(
                    Status::DEEP_EP_TIMEOUT,
                    format_args!(
                        "the receive of the handle's dispatch has not run within {} ms",
                        timeout.as_millis()
                    ),
                ));
            }
        }
    }
}
