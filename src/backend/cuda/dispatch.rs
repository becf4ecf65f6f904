//! Dispatch: one struct of parameters, one kernel; or one for each half.

use super::handle::HandleMemory;
use super::memory::Cuda;
use super::names::{self, Part};
use super::params::*;
use crate::driver::{Launch, StreamPointer};
use crate::error::Result;
use crate::plan::config::Layout;
use crate::plan::device::{count_regions, dispatch_slice_shift, link_may_overflow, DispatchShared, Tuning};
use crate::plan::dtype::IdType;
use crate::plan::request::{Arrangement, DispatchPlan, DispatchShape, DispatchTarget};

/// Where the rows and all else of a dispatch go: every address is set.
pub struct DispatchOutput<'a> {
    pub outputs: &'a DispatchTarget,
    pub arrangement: &'a Arrangement,
    /// The window's rows are read in place after the receive.
    pub keep_open: bool,
    /// The local area that takes rows in place.
    pub area: Option<usize>,
}

/// A dispatch, or half of one.
pub struct DispatchCall<'a> {
    pub shape: &'a DispatchShape,
    pub window: usize,
    pub fingerprint: u16,
    pub num_sms: i32,
    pub send: Option<&'a DispatchPlan>,
    pub receive: Option<DispatchOutput<'a>>,
    pub stream: StreamPointer,
}

impl DispatchCall<'_> {
    pub(super) fn kernel(&self, layout: Layout) -> &'static str {
        let part = Part::of(self.send.is_some(), self.receive.is_some());
        names::dispatch(layout, self.shape.cast_from.is_some(), part)
    }

    pub(super) fn given(&self) -> GivenTokens {
        self.send.map(given_tokens).unwrap_or_default()
    }

    pub(super) fn received(&self) -> ReceivedRows {
        self.receive.as_ref().map(received_rows).unwrap_or_default()
    }

    /// Of both families of layouts. 0: the receive does not keep rows in the local area.
    pub(super) fn area(&self) -> u32 {
        self.receive.as_ref().and_then(|output| output.area).map_or(0, |area| area as u32 + 1)
    }

    pub(super) fn flags(&self) -> u32 {
        let cached = self.send.is_some_and(|plan| plan.request.cached);
        let keep_open = self.receive.as_ref().is_some_and(|output| output.keep_open);
        (if cached { CACHED } else { 0 }) | if keep_open { KEEP_OPEN } else { 0 }
    }
}

impl Cuda {
    /// Refuses what these kernels do not do, before anything is enqueued.
    pub fn check_dispatch(&self, plan: &DispatchPlan) -> Result<()> {
        if !self.config.layout.packed() {
            return self.check_slotted_dispatch(plan);
        }
        self.tuning(&plan.shape)?;
        Tuning::blocks(&self.config, plan.request.num_sms, self.site.blocks)?;
        Ok(())
    }

    fn tuning(&self, shape: &DispatchShape) -> Result<Tuning> {
        let function =
            self.site.place.kernels.get(names::dispatch(Layout::PackedByExpert, true, Part::Whole))?;
        let shared = DispatchShared { bytes: function.dynamic_bytes.into(), zero_bytes: ZERO_BYTES.into() };
        Tuning::of(&self.config, shape, shared)
    }

    pub fn dispatch(&self, handle: &mut HandleMemory, call: &DispatchCall) -> Result<()> {
        if !self.config.layout.packed() {
            return self.slotted_dispatch(handle, call);
        }
        let tuning = self.tuning(call.shape)?;
        let params = self.dispatch_params(handle, call, &tuning);
        let launch = Launch {
            blocks: Tuning::blocks(&self.config, call.num_sms, self.site.blocks)?,
            threads: tuning.threads,
            dynamic_bytes: tuning.shared_bytes,
            stream: call.stream,
        };
        // SAFETY: the struct is this kernel's.
        unsafe { self.enqueue_dispatch(handle, call, launch, &params, params.comm.launch) }
    }

    /// # Safety
    /// `params` are those of the call's kernel.
    pub(super) unsafe fn enqueue_dispatch<T: Copy>(
        &self,
        handle: &mut HandleMemory,
        call: &DispatchCall,
        launch: Launch,
        params: &T,
        number: u64,
    ) -> Result<()> {
        // SAFETY: as promised; the buffer's and the handle's memory outlives what they enqueue, and the caller's is its own
        // care.
        unsafe { self.launch(call.kernel(self.config.layout), launch, params)? };
        if call.receive.is_some() {
            handle.awaited = number;
        }
        Ok(())
    }

    fn dispatch_params(&self, handle: &HandleMemory, call: &DispatchCall, tuning: &Tuning) -> DispatchParams {
        let (config, layout, arrays) = (&self.config, &self.layout, &handle.arrays);
        let (base, window) = (layout.dispatch(call.window), &layout.dispatch_window);
        let slice_shift = dispatch_slice_shift(config.max_tokens);
        let overflow = if link_may_overflow(config) { LINK_MAY_OVERFLOW } else { 0 };
        let copies = call.receive.as_ref().map_or(0, |output| self.copy_flags(output, call.shape));
        DispatchParams {
            comm: self.comm_params(call.fingerprint),
            given: call.given(),
            out: call.received(),
            record: handle.record(),
            ids: handle.at(arrays.ids),
            weights: handle.at(arrays.weights),
            positions: handle.at(arrays.positions),
            expert_positions: handle.at(arrays.expert_positions),
            counts: handle.at(arrays.counts),
            recv_positions: handle.at(arrays.recv_positions),
            recv_weights: handle.at(arrays.recv_weights),
            expert_home: self.own(layout.expert_home),
            expert_order: self.own(layout.expert_order),
            rank_first: self.own(layout.rank_first),
            block_counts: self.own(layout.block_counts),
            totals: self.own(layout.totals),
            count_regions: layout.counts,
            count_region_bytes: layout.count_region_bytes,
            count_region_mask: count_regions(config) as u32 - 1,
            progress: layout.dispatch_progress,
            rows: base + window.rows,
            row_stride: call.shape.row_bytes,
            scales: base + window.scales,
            scale_stride: call.shape.scale_stride(),
            side_ids: base + window.ids,
            side_weights: base + window.weights,
            side_source: base + window.source,
            side_positions: base + window.positions,
            max_recv_rows: config.max_recv_rows,
            max_expert_rows: config.max_expert_rows,
            max_tokens: config.max_tokens as u32,
            num_topk: config.topk as u32,
            num_experts: config.experts.count() as u32,
            local_experts: config.experts.of_rank(self.me).len() as u32,
            alignment: config.alignment as u32,
            row_bytes: call.shape.row_bytes as u32,
            scale_bytes: call.shape.scale_bytes as u32,
            wire_bytes: call.shape.wire_bytes(config.topk) as u32,
            hidden: call.shape.hidden as u32,
            x_dtype: call.shape.cast_from.unwrap_or(call.shape.dtype) as u32,
            wire_scale_type: call.shape.scale.map_or(0, |kind| kind as u32),
            piece_bytes: tuning.piece_bytes,
            stages: tuning.stages,
            row_warps: tuning.row_warps,
            side_warps: tuning.side_warps,
            expand_warps: tuning.expand_warps,
            slice_shift,
            slices: config.max_tokens.div_ceil(1 << slice_shift) as u32,
            window: call.window as u32,
            area: call.area(),
            flags: call.flags() | overflow | copies,
            host_counts: call.receive.as_ref().map_or(0, |_| handle.counts_address()),
        }
    }

    fn copy_flags(&self, output: &DispatchOutput, shape: &DispatchShape) -> u32 {
        let to = output.arrangement;
        let copies = !to.x_in_place || shape.scale_bytes != 0 && !to.scales_in_place;
        if copies && !self.config.layout.by_expert() {
            COPY_OUT
        } else {
            0
        }
    }

    /// Every output's address: the caller's, or library memory. `area`: of a by-expert dispatch in place.
    pub fn output_addresses(
        &self,
        handle: &HandleMemory,
        target: &DispatchTarget,
        arrangement: &Arrangement,
        shape: &DispatchShape,
        window: usize,
        area: Option<usize>,
    ) -> DispatchTarget {
        let or = |given: usize, own: u64| if given == 0 { own as usize } else { given };
        let (x, scales) = self.received_rows(window, area);
        let arrays = &handle.arrays;
        let mut out = *target;
        out.x.data = or(target.x.data, x);
        out.x.rows = arrangement.capacity as i64;
        out.x.row_stride = arrangement.x_stride as i64;
        out.x.slot_stride = arrangement.slot_stride as i64;
        out.x.dtype = Some(shape.dtype);
        out.scales.data = if shape.scale.is_some() { or(target.scales.data, scales) } else { 0 };
        out.scales.row_stride = arrangement.scale_row as i64;
        out.scales.col_stride = arrangement.scale_col as i64;
        out.scales.slot_stride = arrangement.scale_slot as i64;
        out.scales.kind = shape.scale;
        out.scales.block = shape.block as i32;
        out.ids = or(target.ids, handle.at(arrays.out_ids));
        out.weights = or(target.weights, handle.at(arrays.out_weights));
        out.source = or(target.source, handle.at(arrays.out_source));
        out.rank_counts = or(target.rank_counts, handle.at(arrays.rank_counts));
        out.expert_counts = or(target.expert_counts, handle.at(arrays.expert_counts));
        match self.config.layout {
            Layout::PackedByExpert => {
                out.expert_offsets = or(target.expert_offsets, handle.at(arrays.expert_offsets))
            }
            Layout::SlottedByExpert => {
                out.source_ranges = or(target.source_ranges, handle.at(arrays.source_ranges))
            }
            _ => {}
        }
        out.true_rows = or(target.true_rows, handle.at(arrays.true_rows));
        out
    }
}

fn given_tokens(plan: &DispatchPlan) -> GivenTokens {
    let request = &plan.request;
    GivenTokens {
        x: request.x.data as u64,
        x_stride: plan.x_stride,
        x_scales: request.x_scales.data as u64,
        x_scale_stride: plan.scale_row_stride,
        x_scale_col_stride: plan.scale_col_stride,
        topk_idx: request.ids as u64,
        topk_weights: request.weights as u64,
        num_tokens_device: request.num_tokens_device as u64,
        num_tokens: request.num_tokens as u32,
        id_bytes: request.id_type.map_or(4, IdType::bytes) as u32,
    }
}

fn received_rows(output: &DispatchOutput) -> ReceivedRows {
    let (o, to) = (output.outputs, output.arrangement);
    ReceivedRows {
        x: o.x.data as u64,
        x_stride: to.x_stride,
        slot_stride: to.slot_stride,
        scales: o.scales.data as u64,
        scale_row_stride: to.scale_row,
        scale_col_stride: to.scale_col,
        scale_slot_stride: to.scale_slot,
        ids: o.ids as u64,
        weights: o.weights as u64,
        source: o.source as u64,
        rank_counts: o.rank_counts as u64,
        expert_counts: o.expert_counts as u64,
        expert_offsets: o.expert_offsets as u64,
        source_ranges: o.source_ranges as u64,
        true_rows: o.true_rows as u64,
        rows: to.capacity,
    }
}
