//! Combine: expert outputs become partial rows, which the token's rank sums.
//!
//! Packed layouts pull: a rank leaves its rows in its own window and the tokens' ranks read them. Slotted layouts push:
//! a rank stores its rows into the slots of the token's rank, slot (token, k) with the largest k of the row. Which slots
//! are filled follows from the ids, so nothing says it twice.

use super::memory::{row_type, CombineView, Host};
use super::routing::Routing;
use super::rows::{copy_fence, copy_row, sum_row, zero_row, Stream, Term};
use super::send::Scratch;
use crate::plan::request::{Address, CombinePlan, CombineShape, CombineTarget};
use crate::plan::routing::{destinations, Destination, NONE};

/// What a combine reads: the caller's rows, as the dispatch left them.
pub struct CombineSource<'a> {
    pub plan: &'a CombinePlan,
    pub window: usize,
    /// Where the rows are: the caller's, or the combine area.
    pub data: Address,
    /// Rows per slab of the dispatch's side outputs.
    pub slab_rows: usize,
    /// Rows in this rank's dispatch window; by rank also how many of a slab were handed out.
    pub link_rows: usize,
    /// Whether the rows already lie in the window.
    pub in_window: bool,
    pub stream: Stream,
}

/// What the token's rank does with the rows.
pub struct CombineSums<'a> {
    pub target: &'a CombineTarget,
    pub shape: &'a CombineShape,
    pub window: usize,
    pub tokens: usize,
    pub stride: u64,
    /// Null, or [tokens][K]; exact mode.
    pub weights: Address,
    pub stream: Stream,
}

/// One received row on its way back.
#[derive(Clone, Copy)]
struct Back {
    /// Row in the dispatch window.
    row: usize,
    /// Row within its slab of the side outputs; past their end if it was dropped.
    within: usize,
    slab: usize,
}

impl Host {
    /// Makes the rows of this rank available to the tokens' ranks, and calls `sent` with each rank and how many rows
    /// cross to it.
    pub fn give_back(
        &self,
        source: &CombineSource,
        routing: &Routing,
        scratch: &mut Scratch,
        sent: &mut dyn FnMut(usize, u64),
    ) {
        let tokens = self.config.max_tokens as i64;
        self.each_row(source, routing, |back| {
            // By rank the caller holds this very array; what it may have written there must not lead anywhere.
            let peer = ((routing.recv_source[back.row] / tokens) as usize).min(self.num_ranks() - 1);
            let rows = if source.plan.shape.exact {
                self.give_exact_row(source, routing, back)
            } else {
                self.give_partial_row(source, routing, scratch, back);
                1
            };
            if source.plan.shape.carried {
                self.give_carried(source, routing, back);
            }
            sent(peer, rows);
        });
        copy_fence();
    }

    fn each_row(&self, source: &CombineSource, routing: &Routing, mut each: impl FnMut(Back)) {
        if self.config.layout.packed() {
            (0..source.link_rows).for_each(|row| each(Back { row, within: row, slab: 0 }));
            return;
        }
        for (slab, &count) in routing.sent_here.iter().enumerate() {
            let first = slab * self.config.max_tokens as usize;
            (0..count as usize).for_each(|within| each(Back { row: first + within, within, slab }));
        }
    }

    /// Where a received row's partial sum goes: its own row in this rank's window (pulled), or a slot of the token's
    /// rank (pushed).
    fn slot(&self, window: usize, routing: &Routing, row: usize, k: Option<usize>) -> (CombineView, usize) {
        if self.config.layout.packed() {
            return (self.combine_window(self.me, window), row);
        }
        let (topk, tokens) = (self.config.topk, self.config.max_tokens as i64);
        let ids = &routing.recv_ids[row * topk..(row + 1) * topk];
        let last = k.or_else(|| ids.iter().rposition(|&id| id != NONE)).unwrap_or(0);
        let (peer, token) = (routing.recv_source[row] / tokens, routing.recv_source[row] % tokens);
        (self.combine_window(peer as usize, window), token as usize * topk + last)
    }

    fn give_partial_row(&self, source: &CombineSource, routing: &Routing, scratch: &mut Scratch, back: Back) {
        if self.config.layout.by_expert() {
            self.give_expert_row(source, routing, scratch, back);
        } else {
            self.give_rank_row(source, routing, scratch, back);
        }
    }

    fn give_rank_row(&self, source: &CombineSource, routing: &Routing, scratch: &mut Scratch, back: Back) {
        let (plan, bytes) = (source.plan, source.plan.shape.row_bytes as usize);
        let (view, slot) = self.slot(source.window, routing, back.row, None);
        let out = view.x.wrapping_add(slot * bytes);
        // SAFETY: the request's rows hold every row handed out; slots lie in windows that the guard has freed; weights
        // have one entry per row handed out.
        unsafe {
            if back.within >= source.slab_rows {
                return zero_row(out, bytes, source.stream);
            }
            let row = self.input_row(source, back.slab, back.within);
            let weight = weight(plan.request.row_weights, back.slab * source.slab_rows + back.within);
            match (weight, source.in_window) {
                (None, true) => {}
                (None, false) => copy_row(row, out, bytes, source.stream),
                (Some(_), _) => {
                    // By way of a scratch row, since the row may lie where its product goes.
                    let term = [Term { row, weight }];
                    let product = scratch.row.as_mut_ptr();
                    self.sum(&plan.shape, &term, [None, None], product, Stream::Cached);
                    copy_row(product, out, bytes, source.stream);
                }
            }
        }
    }

    fn give_expert_row(&self, source: &CombineSource, routing: &Routing, scratch: &mut Scratch, back: Back) {
        let (request, k) = (&source.plan.request, self.config.topk);
        scratch.terms.clear();
        for i in back.row * k..(back.row + 1) * k {
            let position = routing.expert_rows[i];
            if position == NONE {
                continue;
            }
            let row = self.expert_input(source, position as usize);
            // SAFETY: row weights have one entry per row handed out.
            let given = unsafe { weight(request.row_weights, position as usize) };
            let of_dispatch = request.weights_of_dispatch.then(|| routing.recv_weights[i]);
            scratch.terms.push(Term { row, weight: given.or(of_dispatch) });
        }
        let (view, slot) = self.slot(source.window, routing, back.row, None);
        let out = view.x.wrapping_add(slot * source.plan.shape.row_bytes as usize);
        // SAFETY: the request's rows hold every position; the slot lies in a window that the guard has freed.
        unsafe { self.sum(&source.plan.shape, &scratch.terms, [None, None], out, source.stream) };
    }

    /// Every expert row crosses: to its own position, with an index (pulled), or to the slot of its k (pushed). Returns
    /// how many.
    fn give_exact_row(&self, source: &CombineSource, routing: &Routing, back: Back) -> u64 {
        let mut crossed = 0;
        let (k, shape, packed) = (self.config.topk, &source.plan.shape, self.config.layout.packed());
        let bytes = shape.row_bytes as usize;
        for i in 0..k {
            let at = back.row * k + i;
            let position = routing.expert_rows[at];
            if packed {
                // SAFETY: the index has K entries per row of the window.
                unsafe { *self.combine_window(self.me, source.window).index.add(at) = position };
            }
            if position == NONE && (packed || routing.recv_ids[at] == NONE) {
                continue;
            }
            crossed += 1;
            let (view, slot) = self.slot(source.window, routing, back.row, Some(i));
            let slot = if packed { position as usize } else { slot };
            let out = view.x.wrapping_add(slot * bytes);
            // SAFETY: as for partial sums; positions lie below the window's rows.
            unsafe {
                if position == NONE {
                    zero_row(out, bytes, source.stream);
                    continue;
                }
                let row = self.expert_input(source, position as usize);
                match weight(source.plan.request.row_weights, position as usize) {
                    None => copy_row(row, out, bytes, source.stream),
                    weight => self.sum(shape, &[Term { row, weight }], [None, None], out, source.stream),
                }
            }
        }
        crossed
    }

    fn give_carried(&self, source: &CombineSource, routing: &Routing, back: Back) {
        let k = self.config.topk;
        let (view, slot) = self.slot(source.window, routing, back.row, None);
        let carried = source.plan.request.carried_weights as *const f32;
        for i in 0..k {
            let index = if self.config.layout.by_expert() {
                usize::try_from(routing.expert_rows[back.row * k + i]).ok()
            } else {
                (back.within < source.slab_rows)
                    .then_some((back.slab * source.slab_rows + back.within) * k + i)
            };
            // SAFETY: carried weights are shaped like the dispatch's weights; the window has K floats per row or slot.
            unsafe { *view.carried.add(slot * k + i) = index.map_or(0.0, |index| *carried.add(index)) };
        }
    }

    fn input_row(&self, source: &CombineSource, slab: usize, row: usize) -> *const u8 {
        let plan = source.plan;
        (source.data + slab * plan.slot_stride as usize + row * plan.x_stride as usize) as *const u8
    }

    fn expert_input(&self, source: &CombineSource, position: usize) -> *const u8 {
        let place = self.expert_place(position, source.slab_rows);
        place.at(source.data, source.plan.slot_stride, source.plan.x_stride)
    }

    /// # Safety
    /// As `sum_row`, for rows of `shape`.
    unsafe fn sum(
        &self,
        shape: &CombineShape,
        terms: &[Term],
        bias: [Option<*const u8>; 2],
        out: *mut u8,
        stream: Stream,
    ) {
        // SAFETY: as the caller promises.
        unsafe { sum_row(terms, bias, row_type(shape.dtype), shape.hidden as usize, out, stream) };
    }

    /// Sums every token's rows. All data signals have come. Calls `received` for each row and rank.
    pub fn sum_up(
        &self,
        sums: &CombineSums,
        routing: &Routing,
        scratch: &mut Scratch,
        received: &mut dyn FnMut(usize),
    ) {
        let k = self.config.topk;
        let mut list = std::mem::take(&mut scratch.destinations);
        for token in 0..sums.tokens {
            let span = token * k..(token + 1) * k;
            let ids = &routing.ids[span.clone()];
            destinations(ids, &routing.positions[span], &self.config.experts, &mut list);
            if self.config.layout.packed() {
                list.retain(|from| (from.position as u64) < self.layout.window_rows);
            }
            if self.config.layout.by_expert() {
                list.sort_unstable_by_key(|from| from.last_k);
            } else {
                list.sort_unstable_by_key(|from| from.rank);
            }
            self.collect_terms(sums, routing, token, &list, scratch, received);
            self.sum_token(sums, token, scratch);
            if sums.target.carried_weights != 0 {
                list.sort_unstable_by_key(|from| from.rank);
                self.sum_carried(sums, ids, token, &list);
            }
        }
        scratch.destinations = list;
        copy_fence();
    }

    /// Where a partial row of a token lies: in the window of the rank that holds it, or in this rank's slot.
    fn partial(&self, window: usize, token: usize, from: &Destination) -> (CombineView, usize) {
        if self.config.layout.packed() {
            (self.combine_window(from.rank as usize, window), from.position as usize)
        } else {
            (self.combine_window(self.me, window), token * self.config.topk + from.last_k as usize)
        }
    }

    fn collect_terms(
        &self,
        sums: &CombineSums,
        routing: &Routing,
        token: usize,
        list: &[Destination],
        scratch: &mut Scratch,
        received: &mut dyn FnMut(usize),
    ) {
        let bytes = sums.shape.row_bytes as usize;
        scratch.terms.clear();
        if !sums.shape.exact {
            scratch.terms.extend(list.iter().map(|from| {
                received(from.rank as usize);
                let (view, row) = self.partial(sums.window, token, from);
                Term { row: view.x.wrapping_add(row * bytes), weight: None }
            }));
            return;
        }
        let k = self.config.topk;
        for i in token * k..(token + 1) * k {
            let id = routing.ids[i];
            if id == NONE {
                continue;
            }
            let rank = self.config.experts.home(id as usize).rank;
            let Some(from) = list.iter().find(|from| from.rank == rank) else { continue };
            let (view, row) = self.partial(sums.window, token, from);
            let row = if self.config.layout.packed() {
                // SAFETY: the index has K entries for each row of the window, written before the data signal.
                match unsafe { *view.index.add(row * k + i % k) } {
                    NONE => continue,
                    position => position as usize,
                }
            } else {
                i
            };
            received(rank as usize);
            // SAFETY: weights on the token's rank have K entries per token.
            let weight = unsafe { weight(sums.weights, i) };
            scratch.terms.push(Term { row: view.x.wrapping_add(row * bytes), weight });
        }
    }

    fn sum_token(&self, sums: &CombineSums, token: usize, scratch: &Scratch) {
        let offset = token * sums.stride as usize;
        let bias = sums.target.bias.map(|bias| (bias != 0).then_some((bias + offset) as *const u8));
        let out = (sums.target.x.data + offset) as *mut u8;
        // SAFETY: the outputs and biases were checked to hold `tokens` rows; the terms lie in windows whose data signals
        // have come.
        unsafe { self.sum(sums.shape, &scratch.terms, bias, out, sums.stream) };
    }

    fn sum_carried(&self, sums: &CombineSums, ids: &[i32], token: usize, list: &[Destination]) {
        let k = self.config.topk;
        let out = sums.target.carried_weights as *mut f32;
        for (i, &id) in ids.iter().enumerate() {
            let terms = list.iter().map(|from| {
                let (view, row) = self.partial(sums.window, token, from);
                // SAFETY: the window has K floats per row or slot, written before the data signal.
                unsafe { *view.carried.add(row * k + i) }
            });
            let sum = if id == NONE { 0.0 } else { terms.fold(0.0, |sum, term| sum + term) };
            // SAFETY: the output has K floats per token.
            unsafe { *out.add(token * k + i) = sum };
        }
    }
}

/// Element `index` of optional weights.
///
/// # Safety
/// `weights` is null or has that element.
unsafe fn weight(weights: Address, index: usize) -> Option<f32> {
    // SAFETY: as the caller promises.
    (weights != 0).then(|| unsafe { *(weights as *const f32).add(index) })
}
