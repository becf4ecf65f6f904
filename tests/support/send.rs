//! The caller's side of a dispatch: its input struct and the memory behind it.

use super::api::*;
use super::exchange::Exchange;
use super::memory::Mem;
use crate::ffi;
use crate::reference::numbers::{element_bytes, scale_bytes};
use deepep::capi::*;
use std::ptr::null_mut;

/// How a rank lays out what it sends.
#[derive(Clone, Copy, Debug, Default)]
pub struct Style {
    /// Bytes between rows: a multiple of 16.
    pub row_gap: usize,
    /// Bytes between the scales of two rows: a multiple of 4.
    pub scale_gap: usize,
    /// One scale of all rows after the other.
    pub scales_column_major: bool,
    /// Pass the number of tokens through num_tokens_device, with a larger num_tokens.
    pub device_count: bool,
}

pub struct Sending {
    pub input: deep_ep_dispatch_in_t,
    memory: Vec<Mem>,
}

impl Exchange {
    pub fn sending(&self, rank: usize, style: Style) -> Sending {
        let wire = &self.wire;
        let given = &self.inputs[rank];
        let tokens = given.rows.len();
        let mut memory = Vec::new();
        let mut input = dispatch_in();
        input.num_tokens = tokens as i64;
        input.hidden = wire.hidden as i64;
        input.topk_idx_dtype = if wire.ids64 { 7 } else { 6 };
        if style.device_count {
            // One token more than there are, as far as the buffer allows: its row, ids and weights are junk.
            input.num_tokens = (tokens + 1).min(self.setup.max_tokens) as i64;
            memory.push(Mem::of_i32(&[tokens as i32]));
            input.num_tokens_device = memory[0].ptr();
        }
        let claimed = input.num_tokens as usize;
        let row_bytes = wire.hidden * element_bytes(wire.dtype);
        input.x.dtype = wire.dtype;
        input.x.rows = claimed as i64;
        if claimed > 0 {
            input.x.row_stride = if style.row_gap > 0 { (row_bytes + style.row_gap) as i64 } else { 0 };
            memory.push(matrix(&given.rows, claimed, row_bytes + style.row_gap));
            input.x.data = memory[memory.len() - 1].ptr();
        }
        if wire.scale != 0 {
            let bytes = scale_bytes(wire.scale, wire.hidden, wire.block);
            input.x_scales.dtype = wire.scale;
            input.x_scales.block = wire.block as i32;
            if claimed > 0 {
                if style.scales_column_major {
                    input.x_scales.row_stride = 4;
                    input.x_scales.col_stride = 4 * (claimed as i64 + 3);
                    memory.push(columns(&given.scales, claimed + 3, bytes / 4));
                } else {
                    input.x_scales.row_stride =
                        if style.scale_gap > 0 { (bytes + style.scale_gap) as i64 } else { 0 };
                    memory.push(matrix(&given.scales, claimed, bytes + style.scale_gap));
                }
                input.x_scales.data = memory[memory.len() - 1].ptr();
            }
        }
        if wire.cast != 0 {
            input.wire_dtype = super::exchange::Wire::wire_dtype(wire);
            input.wire_scale_dtype = wire.cast;
        }
        if self.cached {
            input.flags = DEEP_EP_DISPATCH_CACHED;
        } else if claimed > 0 {
            memory.push(self.ids(rank, claimed));
            input.topk_idx = memory[memory.len() - 1].ptr();
        }
        if let Some(weights) = &given.weights {
            if claimed > 0 {
                memory.push(self.weights(rank, weights, claimed));
                input.topk_weights = memory[memory.len() - 1].ptr();
            }
        }
        Sending { input, memory }
    }

    fn ids(&self, rank: usize, claimed: usize) -> Mem {
        let mut ids = self.inputs[rank].ids.clone();
        ids.resize(claimed * self.setup.topk, 0x7777_7777);
        if self.wire.ids64 {
            Mem::of_i64(&ids)
        } else {
            Mem::of_i32(&ids.iter().map(|&id| id as i32).collect::<Vec<_>>())
        }
    }

    /// NaN where there is no expert: never read there.
    fn weights(&self, rank: usize, weights: &[f32], claimed: usize) -> Mem {
        let ids = &self.inputs[rank].ids;
        let mut given: Vec<f32> =
            weights.iter().zip(ids).map(|(&w, &id)| if id == -1 { f32::NAN } else { w }).collect();
        given.resize(claimed * self.setup.topk, f32::NAN);
        Mem::of_f32(&given)
    }
}

/// Rows at a stride, junk between them and in the rows that nobody gave.
fn matrix(rows: &[Vec<u8>], count: usize, stride: usize) -> Mem {
    let mut mem = Mem::poisoned(count * stride);
    for (i, row) in rows.iter().enumerate() {
        mem.bytes_mut()[i * stride..i * stride + row.len()].copy_from_slice(row);
    }
    mem
}

/// The words of each row's scales, word by word.
fn columns(rows: &[Vec<u8>], stride: usize, words: usize) -> Mem {
    let mut mem = Mem::poisoned(4 * stride * words);
    for (i, row) in rows.iter().enumerate() {
        for (word, scale) in row.chunks(4).enumerate() {
            let at = 4 * (word * stride + i);
            mem.bytes_mut()[at..at + 4].copy_from_slice(scale);
        }
    }
    mem
}

impl Sending {
    /// Overwrites what was passed: a call that kept a pointer into it shows.
    pub fn spoil(&mut self) {
        for mem in &mut self.memory {
            mem.check_guards("an input");
            mem.bytes_mut().fill(0x5A);
        }
    }
}

impl Handle {
    pub fn dispatch(
        &self,
        input: &deep_ep_dispatch_in_t,
        out: &mut deep_ep_dispatch_out_t,
    ) -> deep_ep_status_t {
        ffi!(deep_ep_handle_dispatch(self.0, input, out, null_mut()))
    }

    pub fn dispatch_send(&self, input: &deep_ep_dispatch_in_t) -> deep_ep_status_t {
        ffi!(deep_ep_handle_dispatch_send(self.0, input, null_mut()))
    }

    pub fn dispatch_recv(&self, out: &mut deep_ep_dispatch_out_t) -> deep_ep_status_t {
        ffi!(deep_ep_handle_dispatch_recv(self.0, out, null_mut()))
    }

    /// Sends what `exchange` has for `rank` and spoils the input.
    pub fn send(&self, rank: usize, exchange: &Exchange, style: Style) {
        let mut sending = exchange.sending(rank, style);
        ok(self.dispatch_send(&sending.input));
        sending.spoil();
    }
}
