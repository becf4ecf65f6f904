//! Combine: check, choose a window, give rows back; wait, sum.

use super::books::Kind;
use super::dispatch::no_routing;
use super::handle::{Arrived, CombineInput, Combined, Dispatched, Handle, Progress};
use super::state::{Entered, Op};
use crate::backend::host::{CombineSource, CombineSums, Routing, Stream, Wanted};
use crate::driver::StreamPointer;
use crate::error::{Error, Result, Status};
use crate::plan::request::{plan_combine, plan_sums, Address, CombinePlan, CombineRequest, CombineTarget};
use crate::plan::windows::{guard_at_send, Guard};
use crate::plan::words::{fingerprint, Operation, Phase};

/// A combine that may be sent: nothing was written or signalled yet.
pub(super) struct Ready {
    pub plan: CombinePlan,
    pub arrived: Arrived,
    pub window: usize,
    pub data: Address,
    pub in_place: bool,
    /// The guard was at combine_input.
    pub guarded: bool,
    guard: Guard,
    pub op: Op,
}

impl Handle {
    pub fn combine(
        &self,
        request: &CombineRequest,
        target: &CombineTarget,
        stream: StreamPointer,
    ) -> Result<()> {
        let (mut entered, progress) = self.operate(stream)?;
        let ready = entered.ready_to_combine(request, progress)?;
        let tokens = progress.dispatch.map_or(0, |dispatch| dispatch.tokens);
        let stride = plan_sums(target, &ready.plan.shape, tokens as u64)?;
        if entered.state.device.is_some() {
            return entered.combine_on_device(&ready, Some((target, stride)), progress, stream);
        }
        entered.send_combine(ready, progress)?;
        entered.receive_combine(target, progress)
    }

    pub fn combine_send(&self, request: &CombineRequest, stream: StreamPointer) -> Result<()> {
        let (mut entered, progress) = self.operate(stream)?;
        let ready = entered.ready_to_combine(request, progress)?;
        if entered.state.device.is_some() {
            return entered.combine_on_device(&ready, None, progress, stream);
        }
        entered.send_combine(ready, progress)
    }

    pub fn combine_recv(&self, target: &CombineTarget, stream: StreamPointer) -> Result<()> {
        let (mut entered, progress) = self.operate(stream)?;
        if entered.state.device.is_some() {
            return entered.receive_combine_on_device(target, progress, stream);
        }
        entered.receive_combine(target, progress)
    }
}

impl Entered<'_> {
    fn ready_to_combine(&mut self, request: &CombineRequest, progress: &Progress) -> Result<Ready> {
        let (arrived, dispatch) = received_dispatch(progress)?;
        let config = self.buffer.config.clone();
        // A rank without rows may pass null whatever the others pass, so its pointer says nothing.
        let has_rows = arrived.rows > 0 || self.may_have_rows(progress);
        let written = |input: &CombineInput| [0, input.address].contains(&request.x.data) && has_rows;
        let reserved = progress.input.filter(written);
        let mut request = *request;
        if let Some(input) = reserved {
            if request.x.dtype.is_some_and(|dtype| dtype != input.dtype) {
                return Err(Error::invalid_argument(format_args!(
                    "x.dtype is not {}, which combine_input was asked for",
                    input.dtype.name()
                )));
            }
            request.x = crate::plan::request::Rows { dtype: Some(input.dtype), ..Default::default() };
        } else if request.x.data == 0 && has_rows {
            return Err(Error::invalid_state(
                "x.data is null, but no combine_input of this handle is open; every combine in place needs its own",
            ));
        } else if !has_rows {
            request.x.dtype = request.x.dtype.or(progress.input.map(|input| input.dtype));
        }
        let plan = plan_combine(&request, &config, dispatch.shape.hidden, arrived.rows, arrived.slab_rows)?;
        if reserved.is_some() && plan.shape.hidden != dispatch.shape.hidden {
            return Err(Error::invalid_argument(format_args!(
                "hidden is {}, but combine_input laid rows of {} out",
                plan.shape.hidden, dispatch.shape.hidden
            )));
        }
        if let Some(device) = &self.state.device {
            device.check_combine(&plan)?;
        }
        self.may_send()?;
        let (epoch, newest) = (self.state.books.epochs.next(), self.state.books.epochs.newest_received());
        let at_send = |ends| guard_at_send(config.sync, false, ends, newest, epoch);
        // The window that is held for this combine, also when the rows come from elsewhere: all ranks take the same.
        let guarded = progress.input.is_some() && self.state.host.pulls_from_caller();
        let (window, guard) = match progress.input {
            Some(input) if guarded => (input.window, Guard::Nothing),
            Some(input) => (input.window, at_send(self.state.books.combine.windows.ends(input.window))),
            None => self.state.books.combine.take("combine", at_send)?,
        };
        let [hidden, dtype, mode] = plan.shape.fields();
        let fields = [window as u32, hidden, dtype, mode];
        let op = Op {
            operation: Operation::Combine,
            epoch,
            fingerprint: fingerprint(Operation::Combine, &fields),
        };
        let data = reserved.map_or(request.x.data, |input| input.address);
        Ok(Ready { plan, arrived, window, data, in_place: reserved.is_some(), guarded, guard, op })
    }

    fn send_combine(&mut self, ready: Ready, progress: &mut Progress) -> Result<()> {
        let Ready { plan, arrived, window, data, in_place, guard, op, .. } = ready;
        self.buffer.statistics.begin(op.epoch);
        let still_reads = progress.open_window.is_some();
        self.guard(op, Kind::Combine, window, guard, still_reads)?;
        self.take_epoch(op.epoch)?;
        self.state.books.combine.begin(window, progress.number);
        progress.input = None;
        let source = CombineSource {
            plan: &plan,
            window,
            data,
            slab_rows: arrived.slab_rows as usize,
            link_rows: arrived.link_rows,
            in_window: in_place && self.state.host.pulls_from_caller(),
            stream: Stream::for_bytes(arrived.link_rows * plan.shape.row_bytes as usize),
        };
        let Some(routing) = &mut progress.routing else { return Err(no_routing()) };
        let tokens = progress.dispatch.map_or(0, |dispatch| dispatch.tokens);
        let span = self.buffer.span("rows", op);
        let (statistics, state) = (&self.buffer.statistics, &mut *self.state);
        let bytes = plan.shape.row_bytes;
        state.host.give_back(&source, routing, &mut state.scratch, &mut |rank, rows| {
            statistics.sent(rank, rows, rows * bytes)
        });
        drop(span);
        let weights = sum_weights(&plan, routing, tokens * self.buffer.config.topk);
        // The rows of the dispatch were read, all of them before the first signal of this epoch.
        self.end_open_reads(progress, op.epoch);
        let data_turn = self.state.turns.take(Phase::Data);
        self.signal(op, Phase::Data, data_turn);
        let (epoch, fingerprint, shape) = (op.epoch, op.fingerprint, plan.shape);
        progress.combine = Some(Combined { epoch, window, data_turn, fingerprint, shape, weights });
        self.buffer.statistics.count_combine();
        Ok(())
    }

    fn receive_combine(&mut self, target: &CombineTarget, progress: &mut Progress) -> Result<()> {
        let (Some(sent), Some(dispatch)) = (progress.combine, progress.dispatch) else {
            return Err(Error::invalid_state(
                "no combine of this handle is in flight; call combine_send first",
            ));
        };
        let tokens = dispatch.tokens;
        let stride = plan_sums(target, &sent.shape, tokens as u64)?;
        let op = Op { operation: Operation::Combine, epoch: sent.epoch, fingerprint: sent.fingerprint };
        self.wait(op, Wanted { phase: Phase::Data, turn: sent.data_turn, number: sent.epoch })?;
        let Some(routing) = &progress.routing else { return Err(no_routing()) };
        let sums = CombineSums {
            target,
            shape: &sent.shape,
            window: sent.window,
            tokens,
            stride,
            weights: sent.weights,
            stream: Stream::for_bytes(tokens * sent.shape.row_bytes as usize),
        };
        let span = self.buffer.span("sums", op);
        let (statistics, state) = (&self.buffer.statistics, &mut *self.state);
        let bytes = sent.shape.row_bytes;
        state
            .host
            .sum_up(&sums, routing, &mut state.scratch, &mut |rank| statistics.received(rank, 1, bytes));
        drop(span);
        state.books.epochs.receive(sent.epoch);
        let next = state.books.epochs.next();
        state.end_reads(Kind::Combine, sent.window, next);
        progress.combine = None;
        Ok(())
    }
}

/// Where the token's rank finds the weights of an exact combine. The caller's are copied: no pointer outlives a send.
fn sum_weights(plan: &CombinePlan, routing: &mut Routing, entries: usize) -> Address {
    let given = plan.request.topk_weights;
    if plan.shape.exact && plan.request.weights_of_dispatch {
        return routing.weights.as_ptr() as Address;
    }
    if given == 0 {
        return 0;
    }
    let values = &mut routing.combine_weights[..entries];
    // SAFETY: the caller passes [num_tokens, K] weights.
    unsafe { (given as *const f32).copy_to(values.as_mut_ptr(), entries) };
    routing.combine_weights.as_ptr() as Address
}

fn received_dispatch(progress: &Progress) -> Result<(Arrived, Dispatched)> {
    if progress.combine.is_some() {
        return Err(Error::new(
            Status::DEEP_EP_BUSY,
            "the handle's combine was sent and not received; call combine_recv first",
        ));
    }
    match (progress.arrived, progress.dispatch) {
        (Some(arrived), Some(dispatch)) => Ok((arrived, dispatch)),
        _ => Err(Error::invalid_state(
            "no dispatch of this handle has been received; call dispatch, or dispatch_recv after a dispatch_send",
        )),
    }
}
