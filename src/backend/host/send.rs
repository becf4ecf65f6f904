//! The sending half of a dispatch: counts, then rows straight into the peers' windows.

use super::memory::{row_scale, row_type, DispatchView, Host};
use super::receive::Slab;
use super::routing::Routing;
use super::rows::{cast_row_fp8, copy_row, copy_row_to_many, Stream, Term};
use crate::plan::request::DispatchPlan;
use crate::plan::round_up;
use crate::plan::routing::{destinations, Destination, NONE};

/// Working memory of a buffer's operations, so that they allocate nothing.
#[derive(Default)]
pub struct Scratch {
    pub per_rank: Vec<i32>,
    pub per_expert: Vec<i32>,
    pub base: Vec<i64>,
    pub destinations: Vec<Destination>,
    pub(super) targets: Vec<*mut u8>,
    pub(super) terms: Vec<Term>,
    pub(super) row: Vec<u8>,
    pub(super) scales: Vec<u8>,
    pub(super) cursors: Vec<i64>,
    pub(super) slabs: Vec<Slab>,
}

// SAFETY: the pointers in it are leftovers of the last operation; none is followed before it is set anew.
unsafe impl Send for Scratch {}

impl Scratch {
    pub fn new(host: &Host) -> Scratch {
        let config = &host.config;
        Scratch {
            per_rank: vec![0; config.num_ranks],
            per_expert: vec![0; config.experts.count()],
            base: vec![0; config.num_ranks],
            destinations: Vec::with_capacity(config.topk),
            targets: Vec::with_capacity(config.topk),
            terms: Vec::with_capacity(config.topk),
            row: vec![0; config.max_row_bytes.max(config.max_combine_row_bytes) as usize],
            scales: vec![0; config.max_scale_bytes as usize],
            cursors: Vec::with_capacity(config.experts.most_local()),
            slabs: Vec::with_capacity(config.num_ranks),
        }
    }
}

/// What the counts of all ranks say about the rows that come here.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counted {
    /// Rows after expansion, aligned, if nothing were dropped.
    pub expanded: i64,
}

impl Host {
    /// Stores this rank's row and expert counts into every rank's count region; the signal follows.
    pub fn publish_counts(&self, region: usize, scratch: &Scratch, alive: &[bool]) {
        for rank in (0..self.num_ranks()).filter(|&rank| alive[rank]) {
            let out = self.counts(rank, region, self.me);
            // SAFETY: a count region has room for R + E numbers, and only this rank writes its part of it.
            unsafe {
                out.copy_from_nonoverlapping(scratch.per_rank.as_ptr(), scratch.per_rank.len());
                out.add(scratch.per_rank.len())
                    .copy_from_nonoverlapping(scratch.per_expert.as_ptr(), scratch.per_expert.len());
            }
        }
    }

    /// Reads the counts of all ranks: where this rank's rows begin on each rank (`scratch.base`), and how many rows
    /// come here from each (`routing.sent_here`).
    pub fn read_counts(
        &self,
        region: usize,
        routing: &mut Routing,
        scratch: &mut Scratch,
        alive: &[bool],
    ) -> Counted {
        let num_ranks = self.num_ranks();
        let mine = self.config.experts.of_rank(self.me);
        scratch.base.fill(0);
        scratch.cursors.clear();
        scratch.cursors.resize(mine.len(), 0);
        routing.sent_here.fill(0);
        for source in (0..num_ranks).filter(|&source| alive[source]) {
            let counts = self.counts(self.me, region, source);
            // SAFETY: the counts signal of every source has come, so its R + E numbers are written and stay so until
            // this rank has sent its data signal.
            let counts =
                unsafe { std::slice::from_raw_parts(counts, num_ranks + self.config.experts.count()) };
            routing.sent_here[source] = counts[self.me];
            if source < self.me {
                for (base, &count) in scratch.base.iter_mut().zip(counts) {
                    *base += i64::from(count);
                }
            }
            for (total, &expert) in scratch.cursors.iter_mut().zip(mine) {
                *total += i64::from(counts[num_ranks + expert as usize]);
            }
        }
        let aligned = scratch.cursors.iter().map(|&n| round_up(n as u64, self.config.alignment) as i64);
        Counted { expanded: aligned.sum() }
    }

    /// Stores the rows of `tokens` tokens into the windows of their destinations, and calls `sent` for each row.
    pub fn send_rows(
        &self,
        window: usize,
        plan: &DispatchPlan,
        tokens: usize,
        routing: &Routing,
        scratch: &mut Scratch,
        sent: &mut dyn FnMut(usize),
    ) {
        let k = self.config.topk;
        let total: i64 = scratch.per_rank.iter().map(|&n| i64::from(n)).sum();
        let stream = Stream::for_bytes(total as usize * plan.shape.row_bytes as usize);
        let mut list = std::mem::take(&mut scratch.destinations);
        for token in 0..tokens {
            let ids = &routing.ids[token * k..][..k];
            destinations(ids, &routing.positions[token * k..][..k], &self.config.experts, &mut list);
            // Positions past the capacity are dropped here and reported by the receiver.
            list.retain(|to| (to.position as u64) < self.layout.window_rows);
            if list.is_empty() {
                continue;
            }
            self.store_row(window, plan, token, &list, scratch, stream);
            for to in &list {
                self.store_side(window, token, to, routing);
                sent(to.rank as usize);
            }
        }
        scratch.destinations = list;
    }

    /// Slotted layouts: tells every rank how many rows it gets from here.
    pub fn store_slot_counts(&self, window: usize, scratch: &Scratch, alive: &[bool]) {
        for rank in (0..self.num_ranks()).filter(|&rank| alive[rank]) {
            let counts = self.dispatch_window(rank, window).counts;
            // SAFETY: the window has one number per source, and only this rank writes its own.
            unsafe { *counts.add(self.me) = i64::from(scratch.per_rank[rank]) };
        }
    }

    /// The row in the destination's window: by prefix sum (packed), or from the front of this rank's slab.
    fn window_row(&self, to: &Destination) -> usize {
        let slab = if self.config.layout.packed() { 0 } else { self.me * self.config.max_tokens as usize };
        slab + to.position as usize
    }

    fn store_row(
        &self,
        window: usize,
        plan: &DispatchPlan,
        token: usize,
        list: &[Destination],
        scratch: &mut Scratch,
        stream: Stream,
    ) {
        let (shape, request) = (&plan.shape, &plan.request);
        let (row_bytes, scale_stride) = (shape.row_bytes as usize, shape.scale_stride() as usize);
        let source = (request.x.data + token * plan.x_stride as usize) as *const u8;
        let view = |to: &Destination| -> (DispatchView, usize) {
            (self.dispatch_window(to.rank as usize, window), self.window_row(to))
        };
        scratch.targets.clear();
        scratch.targets.extend(list.iter().map(|to| {
            let (view, row) = view(to);
            view.x.wrapping_add(row * row_bytes)
        }));
        // SAFETY: the plan checked that the caller's rows are there; the windows are mapped, positions lie below their
        // capacity, and the guard of this operation made sure that nobody reads them.
        unsafe {
            match shape.cast_from {
                Some(from) => {
                    let kind = row_scale(shape.scale.unwrap_or(crate::plan::dtype::ScaleKind::Fp32));
                    scratch.scales[..scale_stride].fill(0);
                    let (codes, scales) = (scratch.row.as_mut_ptr(), scratch.scales.as_mut_ptr());
                    cast_row_fp8(source, row_type(from), shape.hidden as usize, kind, codes, scales);
                    copy_row_to_many(codes, &scratch.targets, row_bytes, stream);
                }
                None => {
                    copy_row_to_many(source, &scratch.targets, row_bytes, stream);
                    gather_scales(plan, token, &mut scratch.scales[..scale_stride]);
                }
            }
            for to in list.iter().filter(|_| scale_stride > 0) {
                let (view, row) = view(to);
                let out = view.scales.add(row * scale_stride);
                copy_row(scratch.scales.as_ptr(), out, scale_stride, Stream::Cached);
            }
        }
    }

    /// Local ids, weights and the source of one row.
    fn store_side(&self, window: usize, token: usize, to: &Destination, routing: &Routing) {
        let k = self.config.topk;
        let row = self.window_row(to);
        let view = self.dispatch_window(to.rank as usize, window);
        for i in 0..k {
            let id = routing.ids[token * k + i];
            let home = if id == NONE { None } else { Some(self.config.experts.home(id as usize)) };
            let here = home.filter(|home| home.rank == to.rank);
            // SAFETY: as for the row itself; ids and weights have K entries per row.
            unsafe {
                *view.ids.add(row * k + i) = here.map_or(NONE, |home| home.local as i32);
                *view.weights.add(row * k + i) = here.map_or(0.0, |_| routing.weights[token * k + i]);
            }
        }
        let source = (self.me as u64 * self.config.max_tokens) as i64 + token as i64;
        // SAFETY: as above, one source per row.
        unsafe { *view.source.add(row) = source };
    }
}

/// One row's scales, row-major and padded with zeros.
///
/// # Safety
/// The caller's scales hold row `token` with the plan's strides.
unsafe fn gather_scales(plan: &DispatchPlan, token: usize, out: &mut [u8]) {
    if out.is_empty() {
        return;
    }
    let bytes = plan.shape.scale_bytes as usize;
    let start = (plan.request.x_scales.data + token * plan.scale_row_stride as usize) as *const u8;
    out[bytes..].fill(0);
    if plan.scale_col_stride == 4 {
        // SAFETY: a row-major row of scales is contiguous.
        unsafe { start.copy_to_nonoverlapping(out.as_mut_ptr(), bytes) };
        return;
    }
    for (column, scale) in out[..bytes].chunks_mut(4).enumerate() {
        let from = start.wrapping_add(column * plan.scale_col_stride as usize);
        // SAFETY: every column holds this row.
        unsafe { from.copy_to_nonoverlapping(scale.as_mut_ptr(), scale.len()) };
    }
}
