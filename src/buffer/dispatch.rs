//! Dispatch: check, choose a window, exchange counts, send rows; wait, hand out.

use super::arrival::Arrival;
use super::books::Kind;
use super::device::Landing;
use super::handle::{Dispatched, Handle, Progress};
use super::state::{Entered, Op};
use crate::backend::host::{Routing, Wanted};
use crate::driver::StreamPointer;
use crate::error::{Error, Result, Status};
use crate::plan::dtype::IdType;
use crate::plan::report::Report;
use crate::plan::request::{plan_dispatch, DispatchPlan, DispatchRequest, DispatchTarget};
use crate::plan::routing::{canonical_ids, count, mask_ids, place, BadId, NONE};
use crate::plan::windows::{guard_at_send, Guard};
use crate::plan::words::{fingerprint, Operation, Phase};

/// A dispatch that may be sent: nothing was written or signalled yet.
pub(super) struct Ready {
    pub plan: DispatchPlan,
    /// How many there are; on a device at most.
    pub tokens: usize,
    pub window: usize,
    guard: Guard,
    pub op: Op,
}

impl Handle {
    pub fn dispatch(
        &self,
        request: &DispatchRequest,
        target: &DispatchTarget,
        stream: StreamPointer,
    ) -> Result<Arrival> {
        let (mut entered, progress) = self.operate(stream)?;
        let ready = entered.ready(request, progress)?;
        // What the receive would refuse is refused before anything is sent.
        let target = entered.claim(target);
        let arrangement = entered.arrange(&target, &ready.plan.shape)?;
        let area = entered.free_area(&arrangement)?;
        if entered.state.device.is_some() {
            let place = Landing { target, arrangement, area };
            return entered.dispatch_on_device(&ready, &place, progress, stream);
        }
        entered.send(ready, progress)?;
        entered.receive(&target, progress)
    }

    pub fn dispatch_send(&self, request: &DispatchRequest, stream: StreamPointer) -> Result<()> {
        let (mut entered, progress) = self.operate(stream)?;
        let ready = entered.ready(request, progress)?;
        if entered.state.device.is_some() {
            return entered.send_on_device(&ready, progress, stream);
        }
        entered.send(ready, progress)
    }

    pub fn dispatch_recv(&self, target: &DispatchTarget, stream: StreamPointer) -> Result<Arrival> {
        let (mut entered, progress) = self.operate(stream)?;
        if !progress.dispatch_in_flight {
            return Err(Error::invalid_state(
                "no dispatch of this handle is in flight; call dispatch_send first",
            ));
        }
        let target = entered.claim(target);
        if entered.state.device.is_some() {
            return entered.receive_on_device(&target, progress, stream);
        }
        entered.receive(&target, progress)
    }
}

impl Entered<'_> {
    /// Everything that can be refused, refused.
    fn ready(&mut self, request: &DispatchRequest, progress: &mut Progress) -> Result<Ready> {
        let config = self.buffer.config.clone();
        if progress.dispatch_in_flight || progress.combine.is_some() {
            return Err(Error::new(
                Status::DEEP_EP_BUSY,
                "the handle has an operation that was sent and not received; receive it first, or use another handle",
            ));
        }
        if progress.fresh {
            return Err(Error::new(
                Status::DEEP_EP_BUSY,
                "the handle's last dispatch was neither combined nor released; do either first, or use another handle",
            ));
        }
        let request = cached_tokens(request, progress)?;
        let plan = plan_dispatch(&request, &config)?;
        let tokens = match &self.state.device {
            None => device_tokens(&request),
            Some(device) => {
                device.check_dispatch(&plan)?;
                request.num_tokens as usize
            }
        };
        self.may_send()?;
        let (epoch, newest) = (self.state.books.epochs.next(), self.state.books.epochs.newest_received());
        let exchanges = config.layout.packed() && !request.cached;
        let guard = |ends| guard_at_send(config.sync, exchanges, ends, newest, epoch);
        let (window, guard) = self.state.books.dispatch.take("dispatch", guard)?;
        if config.refuse_bad_ids && !request.cached {
            refuse_bad_ids(&request, tokens, config.topk, config.experts.count())?;
        }
        let [hidden, dtype, scale, block] = plan.shape.fields();
        let fields = [window as u32, hidden, dtype, scale, block];
        let op = Op {
            operation: Operation::Dispatch,
            epoch,
            fingerprint: fingerprint(Operation::Dispatch, &fields),
        };
        Ok(Ready { plan, tokens, window, guard, op })
    }

    pub(super) fn may_send(&self) -> Result<()> {
        if self.state.books.epochs.can_send() {
            return Ok(());
        }
        Err(Error::new(
            Status::DEEP_EP_BUSY,
            format_args!(
                "{} operations are sent and not received, as many as max_in_flight allows; receive one first",
                self.state.books.epochs.in_flight().len()
            ),
        ))
    }

    /// The epoch that was announced is this operation's.
    pub(super) fn take_epoch(&mut self, epoch: u64) -> Result<()> {
        if self.state.books.epochs.send() != Some(epoch) {
            return Err(Error::new(Status::DEEP_EP_INTERNAL, "the epoch moved during a send"));
        }
        Ok(())
    }

    fn send(&mut self, ready: Ready, progress: &mut Progress) -> Result<()> {
        let Some(mut routing) = progress.routing.take() else { return Err(no_routing()) };
        self.buffer.statistics.begin(ready.op.epoch);
        let bad = self.route(&ready.plan.request, ready.tokens, &mut routing);
        let known = progress.dispatch.filter(|_| ready.plan.request.cached).map(|earlier| earlier.promised);
        let sent = self.send_routed(&ready, &mut routing, known);
        progress.routing = Some(routing);
        let (promised, data_turn) = sent?;
        let Ready { plan, tokens, window, op, .. } = ready;
        let (shape, fingerprint) = (plan.shape, op.fingerprint);
        progress.dispatch =
            Some(Dispatched { epoch: op.epoch, window, data_turn, fingerprint, shape, tokens, promised });
        progress.dispatch_in_flight = true;
        progress.fresh = true;
        progress.arrived = None;
        self.state.books.dispatch.begin(window, progress.number);
        if let Some(input) = progress.input.take() {
            // It was for rows of the dispatch before.
            self.state.books.combine.windows.let_go(input.window);
        }
        self.buffer.statistics.count_dispatch();
        if let Some(bad) = bad {
            self.buffer.failures.note(self.bad_id(op, bad));
        }
        Ok(())
    }

    /// Takes ids and weights into the handle, and counts.
    fn route(&mut self, request: &DispatchRequest, tokens: usize, routing: &mut Routing) -> Option<BadId> {
        let config = self.buffer.config.clone();
        let span = ..tokens * config.topk;
        let ids = &mut routing.ids[span];
        let mut bad = None;
        if !request.cached {
            bad = canonical_ids(given_ids(request), config.topk, config.experts.count(), ids);
            if self.state.alive.contains(&false) {
                mask_ids(ids, &config.experts, &self.state.alive);
            }
        }
        let weights = &mut routing.weights[span];
        for (i, (weight, &id)) in weights.iter_mut().zip(ids.iter()).enumerate() {
            match (id, request.weights, request.cached) {
                (NONE, _, _) => *weight = 0.0,
                (_, 0, true) => {}
                (_, 0, false) => *weight = 1.0,
                // SAFETY: the caller passes [num_tokens, K] weights; those of ids that are -1 are not read.
                (_, given, _) => *weight = unsafe { *(given as *const f32).add(i) },
            }
        }
        let scratch = &mut self.state.scratch;
        count(ids, config.topk, &config.experts, &mut scratch.per_rank, &mut scratch.per_expert);
        bad
    }

    /// `known`: what the counts promised when the routing that is repeated was sent.
    fn send_routed(
        &mut self,
        ready: &Ready,
        routing: &mut Routing,
        known: Option<i64>,
    ) -> Result<(i64, usize)> {
        let Ready { plan, tokens, window, guard, op } = ready;
        let (tokens, window, op) = (*tokens, *window, *op);
        let config = self.buffer.config.clone();
        self.guard(op, Kind::Dispatch, window, *guard, false)?;
        let promised = match known {
            Some(promised) => promised,
            None if config.layout.packed() => self.exchange_counts(op, routing)?,
            None => 0,
        };
        self.take_epoch(op.epoch)?;
        let span = ..tokens * config.topk;
        if !config.layout.packed() {
            self.state.scratch.base.fill(0);
        }
        if known.is_none() {
            let base = &mut self.state.scratch.base;
            place(&routing.ids[span], config.topk, &config.experts, base, &mut routing.positions[span]);
        }
        let bytes = plan.shape.wire_bytes(config.topk);
        let statistics = &self.buffer.statistics;
        let span = self.buffer.span("rows", op);
        if !config.layout.packed() {
            self.state.host.store_slot_counts(window, &self.state.scratch, &self.state.alive);
        }
        let mut sent = |rank| statistics.sent(rank, 1, bytes);
        self.state.host.send_rows(window, plan, tokens, routing, &mut self.state.scratch, &mut sent);
        drop(span);
        let turn = self.state.turns.take(Phase::Data);
        self.signal(op, Phase::Data, turn);
        Ok((promised, turn))
    }

    /// Packed layouts: all ranks learn where their rows begin on every rank. No row leaves before all counts are in, so
    /// this is an entry barrier too.
    fn exchange_counts(&mut self, op: Op, routing: &mut Routing) -> Result<i64> {
        let region = self.state.take_count_region();
        let turn = self.state.turns.take(Phase::Counts);
        self.state.host.publish_counts(region, &self.state.scratch, &self.state.alive);
        self.signal(op, Phase::Counts, turn);
        self.wait(op, Wanted { phase: Phase::Counts, turn, number: op.epoch })?;
        self.state.books.epochs.meet(false);
        let state = &mut *self.state;
        Ok(state.host.read_counts(region, routing, &mut state.scratch, &state.alive).expanded)
    }

    fn bad_id(&self, op: Op, bad: BadId) -> Report {
        Report {
            status: Status::DEEP_EP_INVALID_EXPERT_ID,
            operation: Some(Operation::Dispatch),
            epoch: op.epoch,
            row: bad.row,
            value: bad.value,
            detail: bad_text(&bad, self.buffer.config.experts.count()),
            ..Report::nothing(self.state.host.me as u32)
        }
    }
}

pub(super) fn no_routing() -> Error {
    Error::new(Status::DEEP_EP_INTERNAL, "the handle has lost its memory")
}

/// A cached dispatch sends as many tokens as the dispatch it repeats.
fn cached_tokens(request: &DispatchRequest, progress: &Progress) -> Result<DispatchRequest> {
    if !request.cached {
        return Ok(*request);
    }
    let Some(earlier) = &progress.dispatch else {
        return Err(Error::invalid_state(
            "DEEP_EP_DISPATCH_CACHED, but the handle has no routing yet; dispatch with topk_idx first",
        ));
    };
    if request.num_tokens_device != 0 {
        return Err(Error::invalid_argument(
            "num_tokens_device is set, but DEEP_EP_DISPATCH_CACHED repeats the earlier number of tokens",
        ));
    }
    let tokens = earlier.tokens as i64;
    if request.num_tokens != 0 && request.num_tokens != tokens {
        return Err(Error::invalid_argument(format_args!(
            "num_tokens is {}, but the routing that DEEP_EP_DISPATCH_CACHED reuses has {tokens} tokens",
            request.num_tokens
        )));
    }
    Ok(DispatchRequest { num_tokens: tokens, ..*request })
}

/// The number of tokens, read where the caller says, clamped to what it promised.
fn device_tokens(request: &DispatchRequest) -> usize {
    if request.num_tokens_device == 0 {
        return request.num_tokens as usize;
    }
    // SAFETY: the caller passes a readable, aligned number.
    let given = unsafe { *(request.num_tokens_device as *const i32) };
    i64::from(given).clamp(0, request.num_tokens) as usize
}

fn given_ids(request: &DispatchRequest) -> impl Iterator<Item = i64> {
    let (ids, id_type) = (request.ids, request.id_type.unwrap_or(IdType::Int32));
    // SAFETY: the caller passes [num_tokens, K] ids of this type, and the consumer takes no more.
    (0..).map(move |i: usize| unsafe {
        match id_type {
            IdType::Int32 => i64::from(*(ids as *const i32).add(i)),
            IdType::Int64 => *(ids as *const i64).add(i),
        }
    })
}

fn refuse_bad_ids(request: &DispatchRequest, tokens: usize, topk: usize, num_experts: usize) -> Result<()> {
    let mut given = given_ids(request);
    let mut row_ids = [NONE; crate::plan::config::MAX_TOPK as usize];
    for row in 0..tokens {
        if let Some(bad) = canonical_ids(given.by_ref().take(topk), topk, num_experts, &mut row_ids[..topk]) {
            let bad = BadId { row: row as i64, ..bad };
            return Err(Error::new(Status::DEEP_EP_INVALID_EXPERT_ID, bad_text(&bad, num_experts)));
        }
    }
    Ok(())
}

fn bad_text(bad: &BadId, num_experts: usize) -> String {
    let BadId { row, value, repeated } = bad;
    if *repeated {
        format!("topk_idx row {row} has expert {value} more than once")
    } else {
        format!("topk_idx row {row} has value {value}, which is neither -1 nor in 0 .. {}", num_experts - 1)
    }
}
