//! The receiving half of a dispatch: from the window to the caller's arrangement.

use super::memory::{DispatchView, Host};
use super::routing::Routing;
use super::rows::{copy_fence, copy_row, copy_row_to_many, zero_row, Stream};
use super::send::Scratch;
use crate::plan::request::{Address, Arrangement, DispatchShape, DispatchTarget};
use crate::plan::routing::{aligned_offsets, NONE};

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
    unsafe fn copy_scales(&self, view: &DispatchView, from: usize, place: Place, receive: &Receive) {
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

    fn expand(
        &self,
        receive: &Receive,
        view: &DispatchView,
        slabs: &[Slab],
        routing: &mut Routing,
        scratch: &mut Scratch,
    ) -> Received {
        self.place_experts(receive, slabs, routing, scratch);
        let received = self.count_experts(receive, routing);
        let bytes = received.rows as usize * receive.shape.row_bytes as usize;
        let stream = Stream::for_bytes(bytes);
        self.blank_side(receive);
        for slab in slabs {
            for from in slab.first..slab.first + slab.rows {
                // SAFETY: positions were clamped to the capacity that the arrangement was checked to have.
                unsafe { self.expand_row(receive, view, from, routing, scratch, stream) };
            }
        }
        if self.config.layout.packed() {
            self.zero_pads(receive, routing, stream);
        }
        received
    }

    /// Gives every (received row, k) its position after expansion, and counts rows per expert and source.
    fn place_experts(&self, receive: &Receive, slabs: &[Slab], routing: &mut Routing, scratch: &mut Scratch) {
        let (k, capacity, packed) =
            (self.config.topk, receive.arrangement.capacity as i64, self.config.layout.packed());
        routing.expert_counts.fill(0);
        for slab in slabs {
            for &id in routing.recv_ids[slab.first * k..(slab.first + slab.rows) * k]
                .iter()
                .filter(|id| **id != NONE)
            {
                routing.expert_counts[id as usize] += 1;
            }
        }
        aligned_offsets(&routing.expert_counts, self.config.alignment, &mut routing.expert_offsets);
        routing.source_ranges.fill(0);
        let cursors = &mut scratch.cursors;
        cursors.clear();
        cursors.resize(routing.expert_counts.len(), 0);
        for slab in slabs {
            for row in slab.first..slab.first + slab.rows {
                let source = (routing.recv_source[row] / self.config.max_tokens as i64) as usize;
                for i in row * k..(row + 1) * k {
                    let id = routing.recv_ids[i];
                    routing.expert_rows[i] = NONE;
                    if id == NONE {
                        continue;
                    }
                    let local = id as usize;
                    let within = cursors[local];
                    cursors[local] += 1;
                    let begin = if packed { routing.expert_offsets[local] } else { 0 };
                    if begin + within >= capacity {
                        continue;
                    }
                    let slab_start = if packed { 0 } else { local as i64 * capacity };
                    routing.expert_rows[i] = (slab_start + begin + within) as i32;
                    let range = &mut routing.source_ranges[(local * self.num_ranks() + source) * 2..][..2];
                    if range[1] == 0 {
                        range[0] = within as i32;
                    }
                    range[1] += 1;
                }
            }
        }
    }

    /// Clamps counts and offsets to what fits, and stores them.
    fn count_experts(&self, receive: &Receive, routing: &mut Routing) -> Received {
        let packed = self.config.layout.packed();
        let capacity = receive.arrangement.capacity as i64;
        let outputs = &receive.outputs;
        let all: i64 = routing.expert_counts.iter().map(|&n| i64::from(n)).sum();
        let mut received = Received::default();
        let mut present = 0;
        for (local, count) in routing.expert_counts.iter_mut().enumerate() {
            let begin = if packed { routing.expert_offsets[local] } else { 0 };
            let fits = i64::from(*count).min((capacity - begin).max(0));
            received.overflow |= fits < i64::from(*count);
            *count = fits as i32;
            present += fits;
        }
        let end = routing.expert_offsets.last().copied().unwrap_or(0);
        received.true_rows[1] = if packed { receive.promised } else { all };
        received.rows = if packed { end.min(capacity) } else { present };
        routing.expert_offsets.iter_mut().for_each(|offset| *offset = (*offset).min(capacity));
        let mut left = self.layout.window_rows as i64;
        // SAFETY: the outputs have room for R, L, L + 1 and L * R * 2 numbers.
        unsafe {
            for (source, &sent) in routing.sent_here.iter().enumerate() {
                let rows = if packed { i64::from(sent).min(left) } else { i64::from(sent) };
                left -= if packed { rows } else { 0 };
                store(outputs.rank_counts, source, rows as i32);
            }
            copy_small(outputs.expert_counts, &routing.expert_counts);
            if packed {
                copy_small(outputs.expert_offsets, &routing.expert_offsets);
            } else {
                copy_small(outputs.source_ranges, &routing.source_ranges);
            }
        }
        received
    }

    /// Writes "nothing here" to the side outputs of all rows that fit; rows that are there overwrite it.
    fn blank_side(&self, receive: &Receive) {
        let slabs = if self.config.layout.packed() { 1 } else { self.config.experts.of_rank(self.me).len() };
        let rows = slabs * receive.arrangement.capacity as usize;
        let outputs = &receive.outputs;
        // SAFETY: side outputs have room for as many rows as x.
        unsafe {
            std::slice::from_raw_parts_mut(outputs.ids as *mut i32, rows).fill(NONE);
            std::slice::from_raw_parts_mut(outputs.weights as *mut f32, rows).fill(0.0);
            std::slice::from_raw_parts_mut(outputs.source as *mut i64, rows).fill(-1);
        }
    }

    /// Copies one received row to all its places.
    ///
    /// # Safety
    /// `from` lies in the window, and the positions of its experts in the arrangement.
    unsafe fn expand_row(
        &self,
        receive: &Receive,
        view: &DispatchView,
        from: usize,
        routing: &Routing,
        scratch: &mut Scratch,
        stream: Stream,
    ) {
        let (k, to, outputs) = (self.config.topk, &receive.arrangement, &receive.outputs);
        let row_bytes = receive.shape.row_bytes as usize;
        scratch.targets.clear();
        for i in from * k..(from + 1) * k {
            let position = routing.expert_rows[i];
            if position == NONE {
                continue;
            }
            let place = self.expert_place(position as usize, to.capacity as usize);
            scratch.targets.push(place.at(outputs.x.data, to.slot_stride, to.x_stride));
            // SAFETY: as the caller of this function promises.
            unsafe {
                store(outputs.ids, position as usize, routing.recv_ids[i]);
                store(outputs.weights, position as usize, routing.recv_weights[i]);
                store(outputs.source, position as usize, routing.recv_source[from]);
                if receive.shape.scale.is_some() {
                    self.copy_scales(view, from, place, receive);
                }
            }
        }
        // SAFETY: likewise.
        unsafe { copy_row_to_many(view.x.add(from * row_bytes), &scratch.targets, row_bytes, stream) };
    }

    /// Slab and row of a position after expansion.
    pub(super) fn expert_place(&self, position: usize, slab_rows: usize) -> Place {
        if self.config.layout.packed() {
            Place { slab: 0, row: position }
        } else {
            Place { slab: position / slab_rows, row: position % slab_rows }
        }
    }

    /// Zeros the rows and scales between the end of an expert's rows and the next aligned start.
    fn zero_pads(&self, receive: &Receive, routing: &Routing, stream: Stream) {
        let (to, shape, outputs) = (&receive.arrangement, &receive.shape, &receive.outputs);
        for (local, &count) in routing.expert_counts.iter().enumerate() {
            let begin = routing.expert_offsets[local] + i64::from(count);
            for row in begin..routing.expert_offsets[local + 1] {
                let place = Place { slab: 0, row: row as usize };
                // SAFETY: offsets were clamped to the capacity of the arrangement.
                unsafe {
                    let x = place.at(outputs.x.data, to.slot_stride, to.x_stride);
                    zero_row(x, shape.row_bytes as usize, stream);
                    let scales = place.at(outputs.scales.data, to.scale_slot, to.scale_row);
                    for column in 0..(shape.scale_bytes as usize).div_ceil(4) {
                        let bytes = (shape.scale_bytes as usize - column * 4).min(4);
                        scales.wrapping_add(column * to.scale_col as usize).write_bytes(0, bytes);
                    }
                }
            }
        }
    }
}

/// Consecutive rows of a window.
#[derive(Debug, Clone, Copy)]
pub struct Slab {
    first: usize,
    rows: usize,
}

/// Where a row lies in an arrangement.
#[derive(Clone, Copy)]
pub(super) struct Place {
    slab: usize,
    row: usize,
}

impl Place {
    pub(super) fn at(self, data: Address, slot_stride: u64, row_stride: u64) -> *mut u8 {
        (data + self.slab * slot_stride as usize + self.row * row_stride as usize) as *mut u8
    }
}

/// # Safety
/// `base` has room for element `index` of this type.
unsafe fn store<T>(base: Address, index: usize, value: T) {
    // SAFETY: as the caller promises; alignment was checked with the request.
    unsafe { (base as *mut T).add(index).write(value) };
}

/// Copies numbers to an output, which may be the very array they come from.
///
/// # Safety
/// `base` has room for all of `values`.
unsafe fn copy_small<T: Copy>(base: Address, values: &[T]) {
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
