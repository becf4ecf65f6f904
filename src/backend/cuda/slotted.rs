//! Dispatch of the slotted layouts: one struct of parameters, one kernel; or one for each half.

use super::dispatch::{DispatchCall, DispatchOutput};
use super::handle::HandleMemory;
use super::memory::Cuda;
use super::names::{self, Part};
use super::params::*;
use crate::driver::Launch;
use crate::error::Result;
use crate::plan::config::Layout;
use crate::plan::device::{magic, slot_counts, SlottedLimit, SlottedTuning, SlottedWork};
use crate::plan::request::{DispatchPlan, DispatchShape};

impl Cuda {
    pub(super) fn check_slotted_dispatch(&self, plan: &DispatchPlan) -> Result<()> {
        let sends = Some(plan.request.num_tokens as u64);
        let work = SlottedWork { shape: &plan.shape, sends, receives: true, copies: false };
        self.slotted_tuning(work, plan.request.num_sms).map(drop)
    }

    pub(super) fn slotted_dispatch(&self, handle: &mut HandleMemory, call: &DispatchCall) -> Result<()> {
        let work = SlottedWork {
            shape: call.shape,
            sends: call.send.map(|plan| plan.request.num_tokens as u64),
            receives: call.receive.is_some(),
            copies: call.receive.as_ref().is_some_and(|output| !output.arrangement.x_in_place),
        };
        let tuning = self.slotted_tuning(work, call.num_sms)?;
        let params = self.slotted_params(handle, call, &tuning);
        let launch = Launch {
            blocks: tuning.blocks,
            threads: tuning.threads,
            dynamic_bytes: tuning.shared_bytes,
            stream: call.stream,
        };
        // SAFETY: the struct is this kernel's.
        unsafe { self.enqueue_dispatch(handle, call, launch, &params, params.comm.launch) }
    }

    fn slotted_tuning(&self, work: SlottedWork, asked: i32) -> Result<SlottedTuning> {
        let function =
            self.site.place.kernels.get(names::dispatch(Layout::SlottedByExpert, true, Part::Whole))?;
        let limit = SlottedLimit { blocks: self.site.blocks, shared_bytes: function.dynamic_bytes.into() };
        SlottedTuning::dispatch(&self.config, work, asked, limit)
    }

    pub(super) fn slotted_kept(&self, handle: &HandleMemory) -> SlottedKept {
        let arrays = &handle.arrays;
        SlottedKept {
            ids: handle.at(arrays.ids),
            weights: handle.at(arrays.weights),
            sent_counts: handle.at(arrays.sent_counts),
            recv_counts: handle.at(arrays.counts),
            recv_slots: handle.at(arrays.recv_slots),
            recv_positions: handle.at(arrays.recv_positions),
            recv_weights: handle.at(arrays.recv_weights),
            own_rows: handle.at(arrays.own_rows),
            expert_home: self.own(self.layout.expert_home),
        }
    }

    fn slotted_params(
        &self,
        handle: &HandleMemory,
        call: &DispatchCall,
        tuning: &SlottedTuning,
    ) -> SlottedDispatchParams {
        let (config, layout, arrays) = (&self.config, &self.layout, &handle.arrays);
        let (base, window) = (layout.dispatch(call.window), &layout.dispatch_window);
        let copies = call.receive.as_ref().map_or(0, |output| self.slot_copy_flags(output, call.shape));
        let out = call.received();
        let slab = if config.layout.by_expert() { out.rows } else { out.rows * config.topk as u64 };
        // What warps of all blocks look at, also behind the last of what has been received.
        let (rows, units) =
            (config.max_tokens * config.num_ranks as u64, SlottedTuning::received_units(call.shape));
        let ahead = tuning.units_ahead();
        SlottedDispatchParams {
            comm: self.comm_params(call.fingerprint),
            given: call.given(),
            out,
            record: handle.record(),
            kept: self.slotted_kept(handle),
            told: handle.at(arrays.told),
            rows: base + window.rows,
            scales: base + window.scales,
            side_ids: base + window.ids,
            side_weights: base + window.weights,
            side_positions: base + window.positions,
            side_slots: base + window.slots,
            side_counts: base + window.counts,
            max_tokens: config.max_tokens as u32,
            num_topk: config.topk as u32,
            num_experts: config.experts.count() as u32,
            local_experts: config.experts.of_rank(self.me).len() as u32,
            count_stride: slot_counts(config) as u32,
            row_bytes: call.shape.row_bytes as u32,
            scale_bytes: call.shape.scale_bytes as u32,
            scale_stride: call.shape.scale_stride() as u32,
            hidden: call.shape.hidden as u32,
            x_dtype: call.shape.cast_from.unwrap_or(call.shape.dtype) as u32,
            wire_scale_type: call.shape.scale.map_or(0, |kind| kind as u32),
            chunk_words: tuning.chunk_words,
            row_warps: tuning.row_warps,
            deal_tokens: tuning.row_warps / tuning.pieces,
            deal_pieces: tuning.row_warps % tuning.pieces,
            topk_magic: magic(config.topk as u64, tuning.most_pairs(config)),
            unit_magic: magic(units, rows * units + ahead),
            ranks_magic: magic(config.num_ranks as u64, rows + ahead),
            slab_magic: magic(slab, slab * config.num_ranks.max(config.experts.most_local()) as u64),
            wire_bytes: call.shape.wire_bytes(config.topk) as u32,
            window: call.window as u32,
            area: call.area(),
            flags: call.flags() | copies,
        }
    }

    fn slot_copy_flags(&self, output: &DispatchOutput, shape: &DispatchShape) -> u32 {
        let to = output.arrangement;
        if self.config.layout.by_expert() {
            return 0;
        }
        let rows = if to.x_in_place { 0 } else { COPY_OUT };
        let scales = if shape.scale_bytes == 0 || to.scales_in_place { 0 } else { COPY_SCALES };
        rows | scales
    }

    /// What the handle's last receive left, if it has run: rows handed out (packed by expert: the end of the last
    /// expert's), and a count for each local expert.
    pub fn counts(&self, handle: &HandleMemory, local_experts: usize) -> Result<Option<(i64, Vec<i32>)>> {
        if self.config.layout.packed() {
            return Ok(handle.counts(self.config.layout.by_expert(), local_experts));
        }
        if handle.awaited == 0 {
            return Ok(None);
        }
        let mut bytes = vec![0; (1 + local_experts) * 8];
        // SAFETY: the handle's array of these words. A copy to the host costs a decode step nothing, a kernel that writes
        // host memory each time more than a microsecond.
        unsafe { self.read(&mut bytes, handle.at(handle.arrays.told))? };
        let words =
            bytes.chunks_exact(8).map(|word| word.iter().rev().fold(0, |n, &byte| n << 8 | u64::from(byte)));
        // As for a packed layout's word: a launch of the host's own, or any of a graph.
        let by_graph = 1 << 31;
        let known = |stamp: u64| match handle.awaited & CAPTURED {
            0 => stamp & !by_graph == handle.awaited & (by_graph - 1),
            _ => stamp & by_graph != 0,
        };
        let number = |word: u64| known(word >> 32).then_some(word as i32);
        let Some(numbers) = words.map(number).collect::<Option<Vec<i32>>>() else { return Ok(None) };
        Ok(Some((numbers[0].into(), numbers[1..].to_vec())))
    }
}
