//! By-expert layouts: every received row goes to a place for each of its local experts.

use super::memory::{DispatchView, Host};
use super::receive::{copy_small, store, Place, Receive, Received, Slab};
use super::routing::Routing;
use super::rows::{copy_row_to_many, zero_row, Stream};
use super::send::Scratch;
use crate::plan::request::Address;
use crate::plan::routing::{aligned_offsets, NONE};

impl Host {
    pub(super) fn expand(
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
        self.blank_side(receive, routing);
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
                    routing.source_ranges[(local * self.num_ranks() + source) * 2 + 1] += 1;
                }
            }
        }
        for ranges in routing.source_ranges.chunks_exact_mut(self.num_ranks() * 2) {
            let mut begin = 0;
            for range in ranges.chunks_exact_mut(2) {
                range[0] = begin; // also of a source without rows, so that each begins where the one before ends
                begin += range[1];
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

    /// Writes "nothing here" to the side outputs of all rows that fit, as far as it does not stand there already; rows
    /// that are there overwrite it.
    fn blank_side(&self, receive: &Receive, routing: &mut Routing) {
        let capacity = receive.arrangement.capacity as usize;
        let outputs = &receive.outputs;
        let own = [
            outputs.ids == routing.out_ids.as_ptr() as usize,
            outputs.weights == routing.out_weights.as_ptr() as usize,
            outputs.source == routing.out_source.as_ptr() as usize,
        ];
        let packed = self.config.layout.packed();
        let slabs = if packed { 1 } else { self.config.experts.of_rank(self.me).len() };
        let written = |own: bool| routing.written.slabs(capacity).filter(|_| own);
        // SAFETY: side outputs have room for as many rows as x.
        unsafe {
            blank(outputs.ids, [slabs, capacity], written(own[0]), NONE);
            blank(outputs.weights, [slabs, capacity], written(own[1]), 0.0f32);
            blank(outputs.source, [slabs, capacity], written(own[2]), -1i64);
        }
        if own != [true; 3] {
            routing.written.forget();
        } else if packed {
            let end = routing.expert_offsets.last().map_or(0, |&end| end as usize);
            routing.written.note(capacity, std::iter::once(end));
        } else {
            routing.written.note(capacity, routing.expert_counts.iter().map(|&rows| rows as usize));
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

/// Blanks all slabs, or of each as many elements as were written.
///
/// # Safety
/// `base` has room for all slabs.
unsafe fn blank<T: Copy>(base: Address, [slabs, capacity]: [usize; 2], written: Option<&[usize]>, value: T) {
    // SAFETY: as the caller promises.
    let all = unsafe { std::slice::from_raw_parts_mut(base as *mut T, slabs * capacity) };
    match written {
        None => all.fill(value),
        Some(written) => {
            for (slab, &rows) in all.chunks_exact_mut(capacity).zip(written) {
                slab[..rows].fill(value);
            }
        }
    }
}
