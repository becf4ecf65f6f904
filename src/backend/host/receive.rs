//! The receiving half of a dispatch: from the window to the caller's arrangement.

use super::memory::{DispatchView, Host};
use super::routing::Routing;
use super::rows::{copy_fence, copy_row, Stream};
use super::send::Scratch;
use crate::plan::request::{Address, Arrangement, DispatchShape, DispatchTarget};
use crate::plan::routing::NONE;

/// Addresses of every output, all of them set.
pub type Outputs = DispatchTarget;

/// What a receive found.
#[derive(Debug, Clone, Copy, Default)]
pub struct Received {
    /// Rows in this rank's window, in all.
    pub link_rows: usize,
    /// Rows handed out: by rank in all, by expert up to the end of the last expert.
    pub rows: i64,
    /// Rows that were sent here, and after expansion.
    pub true_rows: [i64; 2],
    /// Whether rows were dropped, here or on their way.
    pub overflow: bool,
}

/// One receive: the window, what its rows are and where they go.
pub struct Receive<'a> {
    pub window: usize,
    pub shape: DispatchShape,
    pub arrangement: Arrangement,
    pub outputs: Outputs,
    /// Packed: rows after expansion as the counts promise.
    pub promised: i64,
    pub alive: &'a [bool],
}

impl Host {
    /// Hands out the rows of a window. All data signals have come.
    pub fn receive(&self, receive: &Receive, routing: &mut Routing, scratch: &mut Scratch) -> Received {
        let view = self.dispatch_window(self.me, receive.window);
        if !self.config.layout.packed() {
            for source in 0..self.num_ranks() {
                // SAFETY: every source that takes part has written its number before its data signal.
                let count = if receive.alive[source] { unsafe { *view.counts.add(source) } } else { 0 };
                routing.sent_here[source] = count as i32;
            }
        }
        let sent: i64 = routing.sent_here.iter().map(|&n| i64::from(n)).sum();
        let mut slabs = std::mem::take(&mut scratch.slabs);
        self.find_slabs(routing, &mut slabs);
        let link_rows: usize = slabs.iter().map(|slab| slab.rows).sum();
        self.take_side(&view, &slabs, routing);
        let mut received = if self.config.layout.by_expert() {
            self.expand(receive, &view, &slabs, routing, scratch)
        } else {
            self.by_rank(receive, &view, &slabs, routing)
        };
        scratch.slabs = slabs;
        received.link_rows = link_rows;
        received.true_rows[0] = sent;
        received.overflow |= sent > link_rows as i64;
        // SAFETY: the caller or the handle has room for two numbers.
        unsafe { store(receive.outputs.true_rows, 0, received.true_rows) };
        copy_fence();
        received
    }

    /// The runs of rows in a window: one (packed), or one per source.
    fn find_slabs(&self, routing: &Routing, slabs: &mut Vec<Slab>) {
        slabs.clear();
        if self.config.layout.packed() {
            let all: i64 = routing.sent_here.iter().map(|&n| i64::from(n)).sum();
            slabs.push(Slab { first: 0, rows: all.min(self.layout.window_rows as i64) as usize });
        } else {
            let tokens = self.config.max_tokens as usize;
            let slab = |(source, &rows): (usize, &i32)| Slab { first: source * tokens, rows: rows as usize };
            slabs.extend(routing.sent_here.iter().enumerate().map(slab));
        }
    }

    /// Keeps ids, weights and sources in the handle, since the combine needs them after the window is gone.
    fn take_side(&self, view: &DispatchView, slabs: &[Slab], routing: &mut Routing) {
        let k = self.config.topk;
        for &Slab { first, rows } in slabs {
            let span = first * k..(first + rows) * k;
            // SAFETY: the window and the handle have room for N rows, and the slab lies in them.
            unsafe {
                let ids = std::slice::from_raw_parts(view.ids.add(span.start), span.len());
                let weights = std::slice::from_raw_parts(view.weights.add(span.start), span.len());
                let sources = std::slice::from_raw_parts(view.source.add(first), rows);
                routing.recv_ids[span.clone()].copy_from_slice(ids);
                routing.recv_weights[span].copy_from_slice(weights);
                routing.recv_source[first..first + rows].copy_from_slice(sources);
            }
        }
    }

    fn by_rank(
        &self,
        receive: &Receive,
        view: &DispatchView,
        slabs: &[Slab],
        routing: &mut Routing,
    ) -> Received {
        let (to, shape, k) = (&receive.arrangement, &receive.shape, self.config.topk);
        let outputs = &receive.outputs;
        let capacity = to.capacity as usize;
        let bytes = slabs.iter().map(|slab| slab.rows).sum::<usize>() * shape.row_bytes as usize;
        let stream = Stream::for_bytes(bytes);
        let mut received = Received::default();
        for (number, slab) in slabs.iter().enumerate() {
            let present = slab.rows.min(capacity);
            received.rows += present as i64;
            received.overflow |= present < slab.rows;
            for i in 0..present {
                // SAFETY: the arrangement was checked to hold `capacity` rows per slab.
                unsafe {
                    self.copy_out(view, slab.first + i, Place { slab: number, row: i }, receive, stream)
                };
            }
            // Slab `number` of the side outputs begins at row `number * capacity`.
            let start = number * capacity;
            // SAFETY: side outputs have room for as many rows as x, in every slab.
            unsafe {
                let (first, start_k, present_k) = (slab.first * k, start * k, present * k);
                spread(&routing.recv_ids[first..], outputs.ids, start_k, present_k, capacity * k, NONE);
                spread(
                    &routing.recv_weights[first..],
                    outputs.weights,
                    start_k,
                    present_k,
                    capacity * k,
                    0.0,
                );
                spread(&routing.recv_source[slab.first..], outputs.source, start, present, capacity, -1);
            }
        }
        self.count_by_rank(receive, routing);
        received.true_rows[1] = routing.sent_here.iter().map(|&n| i64::from(n)).sum();
        received
    }

    /// Rows present from each rank and for each local expert.
    fn count_by_rank(&self, receive: &Receive, routing: &mut Routing) {
        let (k, capacity) = (self.config.topk, receive.arrangement.capacity as usize);
        let outputs = &receive.outputs;
        let packed = self.config.layout.packed();
        let mut left = capacity.min(self.layout.window_rows as usize);
        routing.expert_counts.fill(0);
        let mut first = 0;
        for (source, &sent) in routing.sent_here.iter().enumerate() {
            let present = (sent as usize).min(left);
            // SAFETY: the output has room for R numbers.
            unsafe { store(outputs.rank_counts, source, present as i32) };
            let ids = &routing.recv_ids[first * k..(first + present) * k];
            for &id in ids.iter().filter(|id| **id != NONE) {
                routing.expert_counts[id as usize] += 1;
            }
            left -= if packed { present } else { 0 };
            first += if packed { present } else { self.config.max_tokens as usize };
        }
        // SAFETY: the output has room for L numbers.
        unsafe { copy_small(outputs.expert_counts, &routing.expert_counts) };
    }

    /// Copies one row and its scales from the window to the caller, unless they stay in place.
    ///
    /// # Safety
    /// `from` lies in the window and `place` in the arrangement.
    unsafe fn copy_out(
        &self,
        view: &DispatchView,
        from: usize,
        place: Place,
        receive: &Receive,
        stream: Stream,
    ) {
        let (to, shape) = (&receive.arrangement, &receive.shape);
        let row_bytes = shape.row_bytes as usize;
        if !to.x_in_place {
            let out = place.at(receive.outputs.x.data, to.slot_stride, to.x_stride);
            // SAFETY: as the caller of this function promises.
            unsafe { copy_row(view.x.add(from * row_bytes), out, row_bytes, stream) };
        }
        if shape.scale.is_some() && !to.scales_in_place {
            // SAFETY: likewise.
            unsafe { self.copy_scales(view, from, place, receive) };
        }
    }

    /// # Safety
    /// As [`Host::copy_out`].
    pub(super) unsafe fn copy_scales(
        &self,
        view: &DispatchView,
        from: usize,
        place: Place,
        receive: &Receive,
    ) {
        let (to, shape) = (&receive.arrangement, &receive.shape);
        let source = view.scales.wrapping_add(from * shape.scale_stride() as usize);
        let out = place.at(receive.outputs.scales.data, to.scale_slot, to.scale_row);
        let bytes = shape.scale_bytes as usize;
        for column in 0..bytes.div_ceil(4) {
            let piece = (bytes - column * 4).min(4);
            // SAFETY: the window has the row's scales, and the arrangement a place for each.
            unsafe {
                let out = out.wrapping_add(column * to.scale_col as usize);
                source.add(column * 4).copy_to_nonoverlapping(out, piece);
            }
        }
    }
}

/// Consecutive rows of a window.
#[derive(Debug, Clone, Copy)]
pub struct Slab {
    pub first: usize,
    pub rows: usize,
}

/// Where a row lies in an arrangement.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub slab: usize,
    pub row: usize,
}

impl Place {
    pub(super) fn at(self, data: Address, slot_stride: u64, row_stride: u64) -> *mut u8 {
        (data + self.slab * slot_stride as usize + self.row * row_stride as usize) as *mut u8
    }
}

/// # Safety
/// `base` has room for element `index` of this type.
pub(super) unsafe fn store<T>(base: Address, index: usize, value: T) {
    // SAFETY: as the caller promises; alignment was checked with the request.
    unsafe { (base as *mut T).add(index).write(value) };
}

/// Copies numbers to an output, which may be the very array they come from.
///
/// # Safety
/// `base` has room for all of `values`.
pub(super) unsafe fn copy_small<T: Copy>(base: Address, values: &[T]) {
    // SAFETY: as the caller promises.
    unsafe { values.as_ptr().copy_to(base as *mut T, values.len()) };
}

/// Copies `present` elements to the output's slab at `start` and fills the rest of it. The output may be the very array
/// they come from.
///
/// # Safety
/// The output has room for `start + capacity` elements.
unsafe fn spread<T: Copy>(
    from: &[T],
    base: Address,
    start: usize,
    present: usize,
    capacity: usize,
    blank: T,
) {
    let out = (base as *mut T).wrapping_add(start);
    // SAFETY: as the caller promises.
    unsafe {
        from.as_ptr().copy_to(out, present);
        for i in present..capacity {
            out.add(i).write(blank);
        }
    }
}
