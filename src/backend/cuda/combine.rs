//! Combine: one struct of parameters, one kernel; or one for each half.

use super::handle::HandleMemory;
use super::memory::Cuda;
use super::names::{self, Part};
use super::params::*;
use crate::driver::{copy_on_device, Launch, StreamPointer};
use crate::error::Result;
use crate::plan::config::Layout;
use crate::plan::device::{combine_slice_shift, SumStages, Tuning, COMBINE_THREADS};
use crate::plan::dtype::Dtype;
use crate::plan::request::{CombinePlan, CombineShape, CombineTarget};

/// Warps of a block that sum this rank's rows for the others, while the rest pull.
const REDUCE_WARPS: u32 = 8;

/// The rows that a combine gives back.
pub struct CombineInput<'a> {
    pub plan: &'a CombinePlan,
    pub data: u64,
    /// Rows of a slab that the dispatch has handed out.
    pub slab_rows: u64,
    /// They were written to the window itself.
    pub in_window: bool,
    /// The device has given the window, or its area, to the handle.
    pub claimed: bool,
    /// The window's guard was at combine_input, on every rank, wherever the rows of this one come from.
    pub guarded: bool,
}

/// Where its sums go.
pub struct CombineOutput<'a> {
    pub target: &'a CombineTarget,
    pub stride: u64,
    /// Null, or the weights that multiply at the token's rank.
    pub weights: u64,
}

/// A combine, or half of one.
pub struct CombineCall<'a> {
    pub shape: &'a CombineShape,
    pub window: usize,
    pub fingerprint: u16,
    pub num_sms: i32,
    /// The most tokens of this rank.
    pub tokens: u64,
    pub send: Option<CombineInput<'a>>,
    pub receive: Option<CombineOutput<'a>>,
    pub stream: StreamPointer,
}

impl CombineOutput<'_> {
    pub(super) fn sums(&self) -> TokenSums {
        TokenSums {
            x: self.target.x.data as u64,
            stride: self.stride,
            bias: self.target.bias.map(|bias| bias as u64),
            carried: self.target.carried_weights as u64,
        }
    }
}

impl CombineCall<'_> {
    pub(super) fn kernel(&self, layout: Layout) -> &'static str {
        let part = Part::of(self.send.is_some(), self.receive.is_some());
        names::combine(layout, self.shape.exact, self.shape.dtype, part)
    }

    /// Whether it makes partial sums of expert rows.
    fn reduces(&self, layout: Layout) -> bool {
        self.send.is_some() && layout.by_expert() && !self.shape.exact
    }
}

impl Cuda {
    pub fn check_combine(&self, plan: &CombinePlan) -> Result<()> {
        if self.config.layout.packed() {
            self.pulled_stages()?;
        }
        Tuning::blocks(&self.config, plan.request.num_sms, self.site.blocks).map(drop)
    }

    /// The kernels that pull rows are alike in what shared memory they leave.
    fn pulled_stages(&self) -> Result<SumStages> {
        let kernel = names::combine(Layout::PackedByRank, false, Dtype::Bf16, Part::Receive);
        SumStages::pulled(self.config.num_ranks, self.site.place.kernels.get(kernel)?.dynamic_bytes)
    }

    /// None for a kernel that sums nothing.
    fn sum_stages(&self, call: &CombineCall) -> Result<SumStages> {
        if call.reduces(self.config.layout) {
            let kernel = self.site.place.kernels.get(call.kernel(self.config.layout))?;
            return SumStages::reduced(self.config.num_ranks, kernel.dynamic_bytes);
        }
        match call.receive {
            Some(_) => self.pulled_stages(),
            None => Ok(SumStages { stages: 0, shared_bytes: 0 }),
        }
    }

    pub fn combine(&self, handle: &HandleMemory, call: &CombineCall) -> Result<()> {
        if !self.config.layout.packed() {
            return self.slotted_combine(handle, call);
        }
        let sums = self.sum_stages(call)?;
        let mut params = self.combine_params(handle, call);
        params.stages = sums.stages;
        let by_expert = self.config.layout.by_expert();
        if by_expert && !call.shape.exact {
            params.flags |= ASCENDING_K;
        }
        if call.shape.exact {
            params.flags |= EXACT;
        }
        if let Some(input) = &call.send {
            fill_input(&mut params, input, by_expert, call.shape.exact);
        }
        if let Some(output) = &call.receive {
            params.out = output.sums();
            params.topk_weights = output.weights;
        }
        let launch = Launch {
            blocks: Tuning::blocks(&self.config, call.num_sms, self.site.blocks)?,
            threads: COMBINE_THREADS,
            dynamic_bytes: sums.shared_bytes,
            stream: call.stream,
        };
        // SAFETY: the struct is this kernel's; the buffer's and the handle's memory outlives what they enqueue, and the
        // caller's is its own care.
        unsafe { self.launch(call.kernel(self.config.layout), launch, &params) }
    }

    fn combine_params(&self, handle: &HandleMemory, call: &CombineCall) -> CombineParams {
        let (config, layout, arrays) = (&self.config, &self.layout, &handle.arrays);
        let (base, window) = (layout.combine(call.window), &layout.combine_window);
        let slice_shift = combine_slice_shift(config.max_tokens);
        CombineParams {
            comm: self.comm_params(call.fingerprint),
            record: handle.record(),
            ids: handle.at(arrays.ids),
            weights: handle.at(arrays.weights),
            positions: handle.at(arrays.positions),
            expert_positions: handle.at(arrays.expert_positions),
            recv_positions: handle.at(arrays.recv_positions),
            recv_weights: handle.at(arrays.recv_weights),
            counts: handle.at(arrays.counts),
            expert_home: self.own(layout.expert_home),
            expert_order: self.own(layout.expert_order),
            rank_first: self.own(layout.rank_first),
            rows: base + window.rows,
            row_stride: call.shape.row_bytes,
            side_carried: base + window.carried,
            progress: layout.combine_progress,
            limits: layout.combine_limits(call.window, config.num_ranks),
            max_recv_rows: config.max_recv_rows,
            max_expert_rows: config.max_expert_rows,
            num_topk: config.topk as u32,
            num_experts: config.experts.count() as u32,
            local_experts: config.experts.of_rank(self.me).len() as u32,
            alignment: config.alignment as u32,
            row_bytes: call.shape.row_bytes as u32,
            dtype: call.shape.dtype as u32,
            window: call.window as u32,
            reduce_warps: REDUCE_WARPS,
            slices: config.max_tokens.div_ceil(1 << slice_shift) as u32,
            slice_shift,
            ..CombineParams::default()
        }
    }

    /// The weights of the handle's dispatch.
    pub fn dispatch_weights(&self, handle: &HandleMemory) -> u64 {
        handle.at(handle.arrays.weights)
    }

    /// Copies the caller's weights into the handle, for the receive of an exact combine: no pointer outlives a send.
    pub fn keep_weights(
        &self,
        handle: &HandleMemory,
        given: u64,
        entries: usize,
        stream: StreamPointer,
    ) -> Result<u64> {
        let to = handle.at(handle.arrays.combine_weights);
        let _guard = self.device().enter()?;
        if entries > 0 {
            // SAFETY: the caller passes [num_tokens, K] weights, and the handle has room for them.
            unsafe { copy_on_device(self.device(), to, given, entries as u64 * 4, stream)? };
        }
        Ok(to)
    }
}

fn fill_input(params: &mut CombineParams, input: &CombineInput, by_expert: bool, exact: bool) {
    let request = &input.plan.request;
    params.x = input.data;
    params.x_stride = input.plan.x_stride;
    params.row_weights = request.row_weights as u64;
    params.carried = request.carried_weights as u64;
    // Rows in the window are weighted where they lie.
    let copies = if by_expert { exact } else { !input.in_window || request.row_weights != 0 };
    if copies {
        params.flags |= COPY_OUT;
    }
    if input.claimed {
        params.flags |= CLAIMED;
    }
    if input.guarded {
        params.flags |= GUARDED;
    }
    if request.weights_of_dispatch && !exact {
        params.flags |= WEIGHTS_OF_DISPATCH;
    }
}
