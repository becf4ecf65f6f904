//! The receiving half of a dispatch: wait, find a place for everything, hand it out.

use super::books::Kind;
use super::dispatch::no_routing;
use super::handle::{Arrived, Dispatched, Progress};
use super::state::{Entered, Op};
use crate::backend::host::{Receive, Received, Routing, Wanted};
use crate::error::{Error, Result, Status};
use crate::plan::config::Layout;
use crate::plan::layout::slabs;
use crate::plan::report::Report;
use crate::plan::request::{arrange, Arrangement, DispatchShape, DispatchTarget, Rows, Scales};
use crate::plan::words::{Operation, Phase};

/// A received dispatch: every output with its address.
pub struct Arrival {
    pub outputs: DispatchTarget,
}

impl Entered<'_> {
    /// The caller's outputs; those that are library memory count as null.
    pub(super) fn claim(&self, target: &DispatchTarget) -> DispatchTarget {
        let mut target = *target;
        let in_place = |address: &mut usize| {
            let owned = self.state.owns(*address);
            if owned {
                *address = 0;
            }
            owned
        };
        if in_place(&mut target.x.data) {
            target.x = Rows { dtype: target.x.dtype, ..Rows::default() };
        }
        if in_place(&mut target.scales.data) {
            let Scales { col_stride, kind, .. } = target.scales;
            target.scales = Scales { col_stride, kind, ..Scales::default() };
        }
        for address in [
            &mut target.ids,
            &mut target.weights,
            &mut target.source,
            &mut target.rank_counts,
            &mut target.expert_counts,
            &mut target.expert_offsets,
            &mut target.true_rows,
            &mut target.source_ranges,
        ] {
            in_place(address);
        }
        target
    }

    pub(super) fn arrange(&self, target: &DispatchTarget, shape: &DispatchShape) -> Result<Arrangement> {
        let (_, slab_rows) = slabs(&self.buffer.config, self.state.host.me);
        arrange(target, shape, self.buffer.config.layout, slab_rows)
    }

    /// By expert, rows in place: an area that nobody reads.
    pub(super) fn free_area(&self, arrangement: &Arrangement) -> Result<Option<usize>> {
        let wanted = arrangement.x_in_place || arrangement.scales_in_place;
        if !self.buffer.config.layout.by_expert() || !wanted {
            return Ok(None);
        }
        let area = self.state.books.areas_taken.iter().position(|taken| !taken).ok_or_else(|| {
            Error::new(
                Status::DEEP_EP_BUSY,
                format_args!(
                    "the rows of {} earlier dispatches are in use in place; combine or release one of their handles, \
                     give out.x.data, or create the buffer with more dispatch_windows",
                    self.state.books.areas_taken.len()
                ),
            )
        })?;
        Ok(Some(area))
    }

    pub(super) fn receive(&mut self, target: &DispatchTarget, progress: &mut Progress) -> Result<Arrival> {
        let Some(sent) = progress.dispatch else { return Err(no_routing()) };
        let arrangement = self.arrange(target, &sent.shape)?;
        let area = self.free_area(&arrangement)?;
        let Some(mut routing) = progress.routing.take() else { return Err(no_routing()) };
        let op = Op { operation: Operation::Dispatch, epoch: sent.epoch, fingerprint: sent.fingerprint };
        let wanted = Wanted { phase: Phase::Data, turn: sent.data_turn, number: sent.epoch };
        if let Err(error) = self.wait(op, wanted) {
            progress.routing = Some(routing);
            return Err(error);
        }
        let outputs = self.addresses(target, &arrangement, &sent, area, &mut routing);
        let span = self.buffer.span("receive", op);
        let state = &mut *self.state;
        let receive = Receive {
            window: sent.window,
            shape: sent.shape,
            arrangement,
            outputs,
            promised: sent.promised,
            alive: &state.alive,
        };
        let received = state.host.receive(&receive, &mut routing, &mut state.scratch);
        drop(span);
        state.books.epochs.receive(sent.epoch);
        progress.dispatch_in_flight = false;
        self.hold_or_end(progress, &sent, &arrangement, area);
        self.count_received(&sent, &routing);
        progress.arrived = Some(self.arrived(&received, &arrangement, &routing));
        progress.routing = Some(routing);
        if received.overflow {
            self.buffer.failures.note(self.overflow(op, &received, &arrangement));
        }
        Ok(Arrival { outputs })
    }

    /// Every output's address: the caller's, or library memory.
    fn addresses(
        &self,
        target: &DispatchTarget,
        arrangement: &Arrangement,
        sent: &Dispatched,
        area: Option<usize>,
        routing: &mut Routing,
    ) -> DispatchTarget {
        let (host, layout) = (&self.state.host, self.buffer.config.layout);
        let view = host.dispatch_window(host.me, sent.window);
        let (x, scales) = area.map_or((view.x, view.scales), |area| host.received_area(area));
        let or = |given: usize, own: *mut u8| if given == 0 { own as usize } else { given };
        let packed_by_rank = layout == Layout::PackedByRank;
        let side = |recv: *mut u8, out: *mut u8| if packed_by_rank { recv } else { out };
        let has_scales = sent.shape.scale.is_some();
        DispatchTarget {
            x: Rows {
                data: or(target.x.data, x),
                rows: arrangement.capacity as i64,
                row_stride: arrangement.x_stride as i64,
                slot_stride: arrangement.slot_stride as i64,
                dtype: Some(sent.shape.dtype),
            },
            scales: Scales {
                data: if has_scales { or(target.scales.data, scales) } else { 0 },
                row_stride: arrangement.scale_row as i64,
                col_stride: arrangement.scale_col as i64,
                slot_stride: arrangement.scale_slot as i64,
                kind: sent.shape.scale,
                block: sent.shape.block as i32,
            },
            ids: or(
                target.ids,
                side(routing.recv_ids.as_mut_ptr().cast(), routing.out_ids.as_mut_ptr().cast()),
            ),
            weights: or(
                target.weights,
                side(routing.recv_weights.as_mut_ptr().cast(), routing.out_weights.as_mut_ptr().cast()),
            ),
            source: or(
                target.source,
                side(routing.recv_source.as_mut_ptr().cast(), routing.out_source.as_mut_ptr().cast()),
            ),
            rank_counts: or(target.rank_counts, routing.rank_counts.as_mut_ptr().cast()),
            expert_counts: or(target.expert_counts, routing.expert_counts.as_mut_ptr().cast()),
            expert_offsets: match layout {
                Layout::PackedByExpert => {
                    or(target.expert_offsets, routing.expert_offsets.as_mut_ptr().cast())
                }
                _ => target.expert_offsets,
            },
            true_rows: or(target.true_rows, routing.true_rows.as_mut_ptr().cast()),
            source_ranges: match layout {
                Layout::SlottedByExpert => {
                    or(target.source_ranges, routing.source_ranges.as_mut_ptr().cast())
                }
                _ => target.source_ranges,
            },
        }
    }

    /// Rows in place stay in use until combine or release; everything else is read by now.
    fn hold_or_end(
        &mut self,
        progress: &mut Progress,
        sent: &Dispatched,
        arrangement: &Arrangement,
        area: Option<usize>,
    ) {
        let in_place = arrangement.x_in_place || arrangement.scales_in_place;
        if in_place && !self.buffer.config.layout.by_expert() {
            progress.open_window = Some(sent.window);
        } else {
            let next = self.state.books.epochs.next();
            self.state.end_reads(Kind::Dispatch, sent.window, next);
        }
        if let Some(area) = area {
            self.state.books.areas_taken[area] = true;
            progress.open_area = Some(area);
        }
    }

    fn arrived(&self, received: &Received, arrangement: &Arrangement, routing: &Routing) -> Arrived {
        let fullest = |counts: &[i32]| counts.iter().max().map_or(0, |&most| most as u64);
        let rows = match self.buffer.config.layout {
            Layout::PackedByRank | Layout::PackedByExpert => received.rows as u64,
            Layout::SlottedByRank => fullest(&routing.sent_here).min(arrangement.capacity),
            Layout::SlottedByExpert => fullest(&routing.expert_counts),
        };
        Arrived {
            link_rows: received.link_rows,
            rows,
            slab_rows: arrangement.capacity,
            present: received.rows,
        }
    }

    fn count_received(&self, sent: &Dispatched, routing: &Routing) {
        let statistics = &self.buffer.statistics;
        let bytes = sent.shape.wire_bytes(self.buffer.config.topk);
        let mut left =
            if self.buffer.config.layout.packed() { self.buffer.config.max_recv_rows } else { u64::MAX };
        for (source, &rows) in routing.sent_here.iter().enumerate() {
            let rows = (rows as u64).min(left);
            left -= rows;
            statistics.received(source, rows, rows * bytes);
        }
        for (expert, &rows) in routing.expert_counts.iter().enumerate() {
            statistics.expert_rows(expert, rows as u64);
        }
    }

    fn overflow(&self, op: Op, received: &Received, arrangement: &Arrangement) -> Report {
        let config = &self.buffer.config;
        let dropped_on_link = received.true_rows[0] > received.link_rows as i64;
        let (what, fit, sent) = if dropped_on_link {
            ("received rows (max_recv_rows)", config.max_recv_rows as i64, received.true_rows[0])
        } else {
            (
                "rows handed out (max_expert_rows or out.x.rows)",
                arrangement.capacity as i64,
                received.true_rows[1],
            )
        };
        Report {
            status: Status::DEEP_EP_CAPACITY_EXCEEDED,
            operation: Some(Operation::Dispatch),
            epoch: op.epoch,
            row: fit,
            value: sent,
            detail: format!(
                "{what}: {fit} fit and {sent} were sent; the rows of highest position were dropped"
            ),
            ..Report::nothing(self.state.host.me as u32)
        }
    }
}
