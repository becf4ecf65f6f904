//! Combine of the slotted layouts: one struct of parameters, one kernel; or one for each half.

use super::combine::{CombineCall, CombineInput};
use super::handle::HandleMemory;
use super::memory::Cuda;
use super::params::*;
use crate::driver::Launch;
use crate::error::Result;
use crate::plan::device::{magic, SlotWork, SlottedCombineTuning, COMBINE_THREADS};

impl Cuda {
    pub(super) fn slotted_combine(&self, handle: &HandleMemory, call: &CombineCall) -> Result<()> {
        let mut params = self.slotted_combine_params(handle, call);
        let own_rows = call.receive.is_some() && self.may_leave_own_rows(call);
        if own_rows {
            params.flags |= OWN_ROWS;
        }
        if let Some(input) = &call.send {
            fill_input(&mut params, input, call.shape.exact);
        }
        if let Some(output) = &call.receive {
            params.out = output.sums();
            params.topk_weights = output.weights;
        }
        let work = SlotWork {
            tokens: call.tokens,
            row_bytes: call.shape.row_bytes,
            stashes: own_rows && !call.shape.exact,
        };
        let tuning = SlottedCombineTuning::of(&self.config, &work, call.num_sms, self.site.blocks)?;
        params.pieces = tuning.pieces;
        params.piece_magic = tuning.piece_magic;
        params.slab_magic = magic(params.slab_rows, self.config.experts.count() as u64 * params.slab_rows);
        params.stash = tuning.stash;
        let launch = Launch {
            blocks: tuning.blocks,
            threads: COMBINE_THREADS,
            dynamic_bytes: tuning.shared_bytes,
            stream: call.stream,
        };
        // SAFETY: the struct is this kernel's; the buffer's and the handle's memory outlives what they enqueue, and the
        // caller's is its own care.
        unsafe { self.launch(call.kernel(self.config.layout), launch, &params) }
    }

    /// Whether own rows can be summed where they lie. Not if values besides them cross by way of the slots, and not if
    /// peers may write there once this rank has signalled: then all of them are read before.
    fn may_leave_own_rows(&self, call: &CombineCall) -> bool {
        let Some(input) = &call.send else { return false };
        let request = &input.plan.request;
        let extra = request.carried_weights != 0 || (call.shape.exact && request.row_weights != 0);
        let [windows, _] = self.own_ranges();
        !extra && !windows.contains(&(input.data as usize))
    }

    fn slotted_combine_params(&self, handle: &HandleMemory, call: &CombineCall) -> SlottedCombineParams {
        let (config, layout) = (&self.config, &self.layout);
        let (base, window) = (layout.combine(call.window), &layout.combine_window);
        let mut flags = 0;
        if config.layout.by_expert() {
            flags |= if call.shape.exact { EXACT } else { ASCENDING_K };
        }
        SlottedCombineParams {
            comm: self.comm_params(call.fingerprint),
            record: handle.record(),
            kept: self.slotted_kept(handle),
            rows: base + window.rows,
            side_carried: base + window.carried,
            num_topk: config.topk as u32,
            num_experts: config.experts.count() as u32,
            max_tokens: config.max_tokens as u32,
            row_bytes: call.shape.row_bytes as u32,
            dtype: call.shape.dtype as u32,
            window: call.window as u32,
            flags,
            ..SlottedCombineParams::default()
        }
    }
}

fn fill_input(params: &mut SlottedCombineParams, input: &CombineInput, exact: bool) {
    let request = &input.plan.request;
    params.x = input.data;
    params.x_stride = input.plan.x_stride;
    params.slot_stride = input.plan.slot_stride;
    params.slab_rows = input.slab_rows;
    params.row_weights = request.row_weights as u64;
    params.carried = request.carried_weights as u64;
    if input.claimed {
        params.flags |= CLAIMED;
    }
    if request.weights_of_dispatch && !exact {
        params.flags |= WEIGHTS_OF_DISPATCH;
    }
}
