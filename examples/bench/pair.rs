//! A small slotted dispatch and its combine, ready to be repeated without a call to the allocator.

use crate::common::{Buffer, Handle, Lines, Outcome};
use crate::filled;
use crate::measure::Random;
use deepep::capi::*;

pub const HIDDEN: usize = 7168;
pub const ROW: usize = HIDDEN * 2;
pub const EXPERTS: usize = 256;
pub const TOPK: usize = 8;
/// Routings that take turns.
const ROUTINGS: usize = 64;

pub fn config(layout: deep_ep_layout_t) -> Outcome<deep_ep_buffer_config_t> {
    let mut config = filled!(deep_ep_buffer_config_t, deep_ep_buffer_config_init);
    config.layout = layout as u32;
    config.max_tokens = 1;
    config.max_row_bytes = ROW as i64;
    config.num_experts = EXPERTS as i32;
    config.num_topk = TOPK as i32;
    config.timeout_ms = 20_000;
    config.first_timeout_ms = 20_000;
    Ok(config)
}

/// One rank's side of the pair. The experts return what they got.
pub struct Pair {
    handle: Handle,
    ids: Vec<i32>,
    turn: usize,
    _memory: [Lines; 2],
    input: deep_ep_dispatch_in_t,
    arrived: deep_ep_dispatch_out_t,
    back: deep_ep_combine_in_t,
    sums: deep_ep_combine_out_t,
}

impl Pair {
    pub fn new(buffer: &Buffer, seed: u64) -> Outcome<Pair> {
        let (mut x, mut out) = (Lines::new(ROW), Lines::new(ROW));
        x.fill(0x3F);
        let mut input = filled!(deep_ep_dispatch_in_t, deep_ep_dispatch_in_init);
        input.num_tokens = 1;
        input.hidden = HIDDEN as i64;
        input.x.data = x.as_mut_ptr().cast();
        input.x.dtype = deep_ep_dtype_t::DEEP_EP_BF16 as u32;
        input.topk_idx_dtype = deep_ep_dtype_t::DEEP_EP_INT32 as u32;
        let mut sums = filled!(deep_ep_combine_out_t, deep_ep_combine_out_init);
        sums.x.data = out.as_mut_ptr().cast();
        Ok(Pair {
            handle: buffer.handle()?,
            ids: Random(seed).routing(ROUTINGS, TOPK, EXPERTS),
            turn: 0,
            _memory: [x, out],
            input,
            arrived: filled!(deep_ep_dispatch_out_t, deep_ep_dispatch_out_init),
            back: filled!(deep_ep_combine_in_t, deep_ep_combine_in_init),
            sums,
        })
    }

    fn route(&mut self) {
        self.input.topk_idx = self.ids[self.turn % ROUTINGS * TOPK..].as_ptr().cast();
        self.turn += 1;
    }

    /// Dispatch and combine, waiting for the other ranks.
    pub fn run(&mut self) -> Outcome<()> {
        self.route();
        // SAFETY: the memory of this struct has a row and its ids; received rows hold until the combine.
        unsafe {
            self.handle.dispatch(&self.input, &mut self.arrived)?;
            self.back.x = self.arrived.x;
            self.handle.combine(&self.back, &self.sums)
        }
    }

    pub fn dispatch_send(&mut self) -> Outcome<()> {
        self.route();
        // SAFETY: as in `run`.
        unsafe { self.handle.dispatch_send(&self.input) }
    }

    /// Receives the dispatch and sends its rows back.
    pub fn turn_around(&mut self) -> Outcome<()> {
        // SAFETY: as in `run`.
        unsafe {
            self.handle.dispatch_recv(&mut self.arrived)?;
            self.back.x = self.arrived.x;
            self.handle.combine_send(&self.back)
        }
    }

    pub fn combine_recv(&mut self) -> Outcome<()> {
        // SAFETY: as in `run`.
        unsafe { self.handle.combine_recv(&self.sums) }
    }
}

/// One pair on all ranks of this thread, none of which ever waits.
pub fn run_all(pairs: &mut [Pair]) -> Outcome<()> {
    pairs.iter_mut().try_for_each(Pair::dispatch_send)?;
    pairs.iter_mut().try_for_each(Pair::turn_around)?;
    pairs.iter_mut().try_for_each(Pair::combine_recv)
}
