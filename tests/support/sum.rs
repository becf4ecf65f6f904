//! One combine of all ranks: inputs, the sums that must come out, and their check.

use super::api::*;
use super::exchange::Exchange;
use super::memory::*;
use super::payload::{Noise, Payload};
use crate::ffi;
use crate::reference::numbers::{element_bytes, BF16};
use crate::reference::{combine, Merge, MergeInput, Merged, Slot};
use deepep::capi::*;
use std::ptr::null_mut;

/// What a combine multiplies and adds, on all ranks alike.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    pub dtype: u32,
    pub hidden: usize,
    pub exact: bool,
    pub weights_of_dispatch: bool,
    pub row_weights: bool,
    pub topk_weights: bool,
    pub carried: bool,
    /// Which of the two biases there are: a bit each.
    pub bias: u8,
    /// Rows are the received ones instead of fresh ones.
    pub identity: bool,
    /// Rows and biases may be infinite, NaN and the like.
    pub special: bool,
}

impl Terms {
    pub fn plain(hidden: usize) -> Terms {
        Terms {
            dtype: BF16,
            hidden,
            exact: false,
            weights_of_dispatch: false,
            row_weights: false,
            topk_weights: false,
            carried: false,
            bias: 0,
            identity: false,
            special: false,
        }
    }
}

/// How a rank passes its rows and takes its sums.
#[derive(Clone, Copy, Debug, Default)]
pub struct Manner {
    /// Through deep_ep_handle_combine_input.
    pub in_place: bool,
    pub row_gap: usize,
    pub slot_gap: usize,
    pub out_gap: usize,
}

pub struct Combination {
    pub terms: Terms,
    pub inputs: Vec<MergeInput>,
    pub expected: Vec<Merged>,
    /// Rows of each slab of the input, and how many slabs, by rank.
    shapes: Vec<(usize, usize)>,
}

impl Combination {
    pub fn new(exchange: &Exchange, terms: Terms, seed: u64) -> Combination {
        let setup = &exchange.setup;
        let payload = if terms.special { Payload::Special { seed } } else { Payload::Wild { seed } };
        let mut inputs = Vec::new();
        let mut shapes = Vec::new();
        for rank in 0..setup.ranks {
            let mut noise = Noise::new(&[seed, 3, rank as u64]);
            let slots = &exchange.arrivals[rank].slots;
            let columns = combine::columns(setup);
            let mut input = MergeInput::default();
            for (position, &slot) in slots.iter().enumerate() {
                input.rows.push(match slot {
                    Slot::Row { source, token, .. } if terms.identity => {
                        exchange.sources[source].rows[token].clone()
                    }
                    Slot::Row { .. } => payload.row(terms.dtype, rank, position, terms.hidden),
                    _ => vec![0xFF; terms.hidden * element_bytes(terms.dtype)],
                });
            }
            let mut weights = |rows: usize, columns: usize| -> Vec<f32> {
                let row_is_there = |i: usize| matches!(slots.get(i / columns), Some(Slot::Row { .. }));
                (0..rows * columns).map(|i| if row_is_there(i) { noise.number() } else { f32::NAN }).collect()
            };
            input.row_weights = terms.row_weights.then(|| weights(slots.len(), 1));
            input.carried_weights = terms.carried.then(|| weights(slots.len(), columns));
            let tokens = exchange.sources[rank].tokens();
            let ids = &exchange.sources[rank].ids;
            input.topk_weights = terms.topk_weights.then(|| {
                let one = |&id: &i64| if id == -1 { f32::NAN } else { noise.number() };
                ids.iter().map(one).collect()
            });
            for i in 0..2 {
                let salt = if terms.special {
                    Payload::Special { seed: seed + 11 + i as u64 }
                } else {
                    Payload::Wild { seed: seed + 11 + i as u64 }
                };
                if terms.bias >> i & 1 == 1 {
                    let row = |token| salt.row(terms.dtype, rank, token, terms.hidden);
                    input.bias[i] = Some((0..tokens).map(row).collect());
                }
            }
            inputs.push(input);
            shapes.push(if setup.layout.slotted() {
                setup.slabs(rank, exchange.limits[rank])
            } else {
                (1, slots.len())
            });
        }
        Combination::from_inputs(exchange, terms, inputs, shapes)
    }

    /// Experts that return what they got: bytes of the type that crossed.
    pub fn identity(exchange: &Exchange) -> Combination {
        let by_expert = exchange.setup.layout.by_expert();
        let terms = Terms {
            dtype: exchange.wire.wire_dtype(),
            identity: true,
            weights_of_dispatch: by_expert,
            ..Terms::plain(exchange.wire.hidden)
        };
        Combination::new(exchange, terms, 0)
    }

    fn from_inputs(
        exchange: &Exchange,
        terms: Terms,
        inputs: Vec<MergeInput>,
        shapes: Vec<(usize, usize)>,
    ) -> Combination {
        let merge = Merge {
            dtype: terms.dtype,
            hidden: terms.hidden,
            exact: terms.exact,
            weights_of_dispatch: terms.weights_of_dispatch,
        };
        let (sources, arrivals) = (&exchange.sources, &exchange.arrivals);
        let expected = combine::combine(&exchange.setup, sources, arrivals, &inputs, &merge);
        Combination { terms, inputs, expected, shapes }
    }

    pub fn row_bytes(&self) -> usize {
        self.terms.hidden * element_bytes(self.terms.dtype)
    }

    /// The input struct of `rank`. In place, the rows are written where the library says.
    pub fn giving(&self, rank: usize, handle: &Handle, manner: Manner) -> Giving {
        let terms = &self.terms;
        let given = &self.inputs[rank];
        let (slabs, rows) = self.shapes[rank];
        let mut input = combine_in();
        let mut memory = Vec::new();
        input.flags = if terms.exact { DEEP_EP_COMBINE_EXACT } else { 0 };
        input.flags |= if terms.weights_of_dispatch { DEEP_EP_COMBINE_WEIGHTS_OF_DISPATCH } else { 0 };
        input.hidden = terms.hidden as i64;
        input.x.dtype = terms.dtype;
        if manner.in_place {
            input.x = handle.combine_input(terms.dtype);
            write_in_place(&input.x, &given.rows, rows);
        } else {
            let stride = self.row_bytes() + manner.row_gap;
            let slot = rows * stride + manner.slot_gap;
            let mut mem = Mem::poisoned(slabs * slot);
            for (position, row) in given.rows.iter().enumerate() {
                let at = position / rows * slot + position % rows * stride;
                mem.bytes_mut()[at..at + row.len()].copy_from_slice(row);
            }
            input.x.data = mem.ptr();
            input.x.rows = rows as i64;
            input.x.row_stride = if manner.row_gap > 0 { stride as i64 } else { 0 };
            input.x.slot_stride = if manner.slot_gap > 0 { slot as i64 } else { 0 };
            memory.push(mem);
        }
        let mut list = |values: &Option<Vec<f32>>| {
            values.as_ref().map_or(std::ptr::null(), |values| {
                memory.push(Mem::of_f32(values));
                memory[memory.len() - 1].ptr::<f32>().cast_const()
            })
        };
        input.row_weights = list(&given.row_weights);
        input.topk_weights = list(&given.topk_weights);
        input.carried_weights = list(&given.carried_weights);
        Giving { input, memory }
    }

    pub fn summing(&self, rank: usize, manner: Manner) -> Summing {
        let expected = &self.expected[rank];
        let tokens = expected.rows.len();
        let stride = self.row_bytes() + manner.out_gap;
        let rows = Mem::poisoned(tokens * stride);
        let mut output = combine_out();
        output.x.dtype = self.terms.dtype;
        output.x.rows = tokens as i64;
        output.x.row_stride = if manner.out_gap > 0 { stride as i64 } else { 0 };
        output.x.data = if tokens > 0 { rows.ptr() } else { null_mut() };
        let mut biases = Vec::new();
        for (i, bias) in self.inputs[rank].bias.iter().enumerate() {
            let Some(bias) = bias else { continue };
            let mut mem = Mem::poisoned(tokens * stride);
            for (token, row) in bias.iter().enumerate() {
                mem.bytes_mut()[token * stride..token * stride + row.len()].copy_from_slice(row);
            }
            output.bias[i] = mem.ptr();
            biases.push(mem);
        }
        let carried = self.terms.carried.then(|| Mem::poisoned(4 * expected.carried_weights.len()));
        output.carried_weights = carried.as_ref().map_or(null_mut(), Mem::ptr);
        Summing { output, stride, rows, carried, _biases: biases }
    }

    #[track_caller]
    pub fn check(&self, rank: usize, summing: &Summing) {
        let expected = &self.expected[rank];
        let mut image = vec![POISON; summing.rows.len()];
        for (token, row) in expected.rows.iter().enumerate() {
            let at = token * summing.stride;
            image[at..at + row.len()].copy_from_slice(row);
        }
        summing.rows.expect(&image, &format!("rank {rank}: sums"));
        if let Some(mem) = &summing.carried {
            let image = le_bytes_f32(&expected.carried_weights);
            mem.expect(&image, &format!("rank {rank}: carried weights"));
        }
    }
}

fn write_in_place(x: &deep_ep_rows_t, rows: &[Vec<u8>], per_slab: usize) {
    for (position, row) in rows.iter().enumerate() {
        let at = position / per_slab * x.slot_stride as usize + position % per_slab * x.row_stride as usize;
        let to = x.data.cast::<u8>().wrapping_add(at);
        // SAFETY: the library said that so many rows have room there.
        unsafe { std::ptr::copy_nonoverlapping(row.as_ptr(), to, row.len()) };
    }
}

pub struct Giving {
    pub input: deep_ep_combine_in_t,
    memory: Vec<Mem>,
}

impl Giving {
    pub fn spoil(&mut self) {
        for mem in &mut self.memory {
            mem.check_guards("an input");
            mem.bytes_mut().fill(0x5A);
        }
    }
}

pub struct Summing {
    pub output: deep_ep_combine_out_t,
    stride: usize,
    pub rows: Mem,
    carried: Option<Mem>,
    _biases: Vec<Mem>,
}

impl Handle {
    pub fn combine_call(
        &self,
        input: &deep_ep_combine_in_t,
        output: &deep_ep_combine_out_t,
    ) -> deep_ep_status_t {
        ffi!(deep_ep_handle_combine(self.0, input, output, null_mut()))
    }

    pub fn combine_input(&self, dtype: u32) -> deep_ep_rows_t {
        let mut x = combine_in().x;
        x.dtype = dtype;
        ok(ffi!(deep_ep_handle_combine_input(self.0, &mut x, null_mut())));
        assert_eq!(x.dtype, dtype);
        x
    }

    #[track_caller]
    pub fn combine(&self, rank: usize, combination: &Combination, manner: Manner) -> Summing {
        let mut giving = combination.giving(rank, self, manner);
        let summing = combination.summing(rank, manner);
        ok(self.combine_call(&giving.input, &summing.output));
        giving.spoil();
        combination.check(rank, &summing);
        summing
    }

    #[track_caller]
    pub fn combine_send(&self, rank: usize, combination: &Combination, manner: Manner) {
        let mut giving = combination.giving(rank, self, manner);
        ok(ffi!(deep_ep_handle_combine_send(self.0, &giving.input, null_mut())));
        giving.spoil();
    }

    #[track_caller]
    pub fn combine_recv(&self, rank: usize, combination: &Combination, manner: Manner) {
        let summing = combination.summing(rank, manner);
        ok(ffi!(deep_ep_handle_combine_recv(self.0, &summing.output, null_mut())));
        combination.check(rank, &summing);
    }
}
