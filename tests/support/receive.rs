//! The receiver's side of a dispatch: where it wants the outputs, and the check of every byte of them.

use super::api::*;
use super::exchange::Exchange;
use super::memory::*;
use super::send::Style;
use crate::ffi;
use crate::reference::numbers::SCALE_UE8M0;
use crate::reference::{combine, Layout, Slot};
use deepep::capi::*;

/// How a rank asks for its outputs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked {
    /// Rows and scales in the library's memory.
    pub in_place: bool,
    /// Which side outputs go to caller memory: one bit each, in the order of the struct.
    pub own_sides: u16,
    /// Bytes between rows, between the scales of rows, and between slabs; multiples of 16, 4 and 16.
    pub row_gap: usize,
    pub scale_gap: usize,
    pub slot_gap: usize,
    pub column_major: bool,
    /// Name the types instead of leaving them 0.
    pub say_types: bool,
}

impl Asked {
    pub const OWN: Asked = Asked {
        in_place: false,
        own_sides: 0xFF,
        row_gap: 0,
        scale_gap: 0,
        slot_gap: 0,
        column_major: false,
        say_types: true,
    };
    pub const IN_PLACE: Asked = Asked { in_place: true, own_sides: 0, say_types: false, ..Asked::OWN };
}

/// An output struct and the caller memory it points to.
pub struct Target {
    pub out: deep_ep_dispatch_out_t,
    asked: Asked,
    rows: Option<Mem>,
    scales: Option<Mem>,
    sides: Vec<Option<Mem>>,
}

/// What arrived and was found right. Caller memory lives as long as this.
pub struct Received {
    pub out: deep_ep_dispatch_out_t,
    target: Target,
}

const SIDES: [&str; 8] = [
    "topk_idx",
    "topk_weights",
    "row_source",
    "rank_counts",
    "expert_counts",
    "expert_offsets",
    "true_rows",
    "source_ranges",
];

impl Exchange {
    /// Slabs, and rows of each.
    fn shape(&self, rank: usize, capacity: usize) -> (usize, usize) {
        if self.setup.layout.slotted() {
            self.setup.slabs(rank, self.limits[rank])
        } else {
            (1, capacity)
        }
    }

    pub fn target(&self, rank: usize, asked: Asked) -> Target {
        let mut out = dispatch_out();
        let wire = &self.wire;
        let sides = self.side_images(rank, self.capacity(rank).unwrap_or(0));
        let mut target = Target { out, asked, rows: None, scales: None, sides: Vec::new() };
        if asked.say_types {
            out.x.dtype = wire.wire_dtype();
            out.scales.dtype = wire.wire_scale();
            out.scales.block = wire.block as i32;
        }
        if asked.in_place {
            out.scales.col_stride = i64::from(asked.column_major);
        } else {
            let capacity = self.capacity(rank).expect("caller memory needs a known size");
            let (slabs, rows) = self.shape(rank, capacity);
            let stride = wire.row_bytes() + asked.row_gap;
            let slot = rows * stride + asked.slot_gap;
            let mem = Mem::poisoned(slabs * slot);
            out.x.data = mem.ptr();
            out.x.rows = rows as i64;
            out.x.row_stride = if asked.row_gap > 0 { stride as i64 } else { 0 };
            out.x.slot_stride = if asked.slot_gap > 0 { slot as i64 } else { 0 };
            target.rows = Some(mem);
            if wire.wire_scale() != 0 {
                let (row, column, slot) = self.scale_strides(asked, rows);
                let mem = Mem::poisoned(slabs * slot);
                out.scales.data = mem.ptr();
                if asked.column_major || asked.scale_gap > 0 {
                    out.scales.row_stride = row as i64;
                    out.scales.col_stride = if asked.column_major { column as i64 } else { 0 };
                    out.scales.slot_stride = slot as i64;
                }
                target.scales = Some(mem);
            }
        }
        for (i, image) in sides.into_iter().enumerate() {
            let own = asked.own_sides >> i & 1 == 1 && image.is_some();
            target.sides.push(image.filter(|_| own).map(|image| Mem::poisoned(image.len())));
        }
        let side = |i: usize| target.sides[i].as_ref();
        out.topk_idx = side(0).map_or(std::ptr::null_mut(), Mem::ptr);
        out.topk_weights = side(1).map_or(std::ptr::null_mut(), Mem::ptr);
        out.row_source = side(2).map_or(std::ptr::null_mut(), Mem::ptr);
        out.rank_counts = side(3).map_or(std::ptr::null_mut(), Mem::ptr);
        out.expert_counts = side(4).map_or(std::ptr::null_mut(), Mem::ptr);
        out.expert_offsets = side(5).map_or(std::ptr::null_mut(), Mem::ptr);
        out.true_rows = side(6).map_or(std::ptr::null_mut(), Mem::ptr);
        out.source_ranges = side(7).map_or(std::ptr::null_mut(), Mem::ptr);
        target.out = out;
        target
    }

    /// Strides of caller-owned scales: row, column, slab.
    fn scale_strides(&self, asked: Asked, rows: usize) -> (usize, usize, usize) {
        let bytes = self.wire.scale_bytes();
        if asked.column_major {
            let column = 4 * rows.div_ceil(4) * 4;
            (4, column, bytes / 4 * column)
        } else {
            let row = bytes + asked.scale_gap;
            (row, 4, rows * row)
        }
    }

    /// What each side output must hold; None: stays null.
    fn side_images(&self, rank: usize, capacity: usize) -> Vec<Option<Vec<u8>>> {
        let arrival = &self.arrivals[rank];
        let columns = combine::columns(&self.setup);
        let mut ids = arrival.ids.clone();
        let mut weights = arrival.weights.clone();
        let mut row_source = arrival.row_source.clone();
        ids.resize(capacity * columns, -1);
        weights.resize(capacity * columns, 0.0);
        row_source.resize(capacity, -1);
        let packed_by_expert = self.setup.layout == Layout::PackedByExpert;
        let slotted_by_expert = self.setup.layout == Layout::SlottedByExpert;
        vec![
            Some(le_bytes_i32(&ids)),
            Some(le_bytes_f32(&weights)),
            Some(le_bytes_i64(&row_source)),
            Some(le_bytes_i32(&arrival.rank_counts)),
            Some(le_bytes_i32(&arrival.expert_counts)),
            packed_by_expert.then(|| le_bytes_i64(&arrival.expert_offsets)),
            Some(le_bytes_i64(&arrival.true_rows)),
            slotted_by_expert.then(|| le_bytes_i32(&arrival.source_ranges)),
        ]
    }

    /// Compares everything that a receive wrote with the model.
    #[track_caller]
    pub fn check(&self, rank: usize, target: Target) -> Received {
        self.verify(rank, &target);
        Received { out: target.out, target }
    }

    /// What was received is still there.
    #[track_caller]
    pub fn recheck(&self, rank: usize, received: &Received) {
        self.verify(rank, &received.target);
    }

    #[track_caller]
    fn verify(&self, rank: usize, target: &Target) {
        let out = &target.out;
        let wire = &self.wire;
        let capacity = self.capacity(rank).unwrap_or(out.x.rows as usize);
        let (slabs, rows) = self.shape(rank, capacity);
        assert!(capacity >= self.arrivals[rank].slots.len(), "rank {rank}: capacity {capacity}");
        assert_eq!(out.x.dtype, wire.wire_dtype(), "rank {rank}: x.dtype");
        assert_eq!(out.scales.dtype, wire.wire_scale(), "rank {rank}: scales.dtype");
        for (i, image) in self.side_images(rank, capacity).into_iter().enumerate() {
            let what = format!("rank {rank}: {}", SIDES[i]);
            let pointer = side_pointer(out, i);
            match (image, &target.sides[i]) {
                (Some(image), Some(mem)) => {
                    assert_eq!(pointer, mem.ptr::<u8>().cast_const(), "{what}: the pointer changed");
                    mem.expect(&image, &what);
                }
                (Some(image), None) => expect_bytes(&copy_out(pointer, image.len()), &image, &what),
                (None, _) => assert!(pointer.is_null(), "{what} stays null in this layout"),
            }
        }
        if let Some(mem) = &target.rows {
            let stride = wire.row_bytes() + target.asked.row_gap;
            let slot = rows * stride + target.asked.slot_gap;
            let image = self.row_image(rank, (slabs, rows), stride, slot);
            mem.expect(&image, &format!("rank {rank}: x"));
        } else {
            assert_eq!(out.x.rows, rows as i64, "rank {rank}: x.rows");
            self.check_rows_in_place(rank, out, rows);
        }
        if wire.wire_scale() != 0 {
            self.check_scales(rank, target, (slabs, rows));
        }
    }

    fn row_image(
        &self,
        rank: usize,
        (slabs, rows): (usize, usize),
        stride: usize,
        slot_stride: usize,
    ) -> Vec<u8> {
        let mut image = vec![POISON; slabs * slot_stride];
        let bytes = self.wire.row_bytes();
        for (position, &slot) in self.arrivals[rank].slots.iter().enumerate() {
            let at = position / rows * slot_stride + position % rows * stride;
            match slot {
                Slot::Row { source, token, .. } => {
                    image[at..at + bytes].copy_from_slice(&self.sources[source].rows[token]);
                }
                Slot::Pad => image[at..at + bytes].fill(0),
                Slot::Past => {}
            }
        }
        image
    }

    fn check_rows_in_place(&self, rank: usize, out: &deep_ep_dispatch_out_t, rows: usize) {
        let bytes = self.wire.row_bytes();
        assert!(out.x.row_stride >= bytes as i64 && out.x.row_stride % 16 == 0, "rank {rank}: row_stride");
        for (position, &slot) in self.arrivals[rank].slots.iter().enumerate() {
            let at =
                position / rows * out.x.slot_stride as usize + position % rows * out.x.row_stride as usize;
            let expected = match slot {
                Slot::Row { source, token, .. } => self.sources[source].rows[token].clone(),
                Slot::Pad => vec![0; bytes],
                Slot::Past => continue,
            };
            let found = copy_out(out.x.data.cast::<u8>().wrapping_add(at), bytes);
            expect_bytes(&found, &expected, &format!("rank {rank}: x, position {position} ({slot:?})"));
        }
    }

    fn check_scales(&self, rank: usize, target: &Target, (slabs, rows): (usize, usize)) {
        let bytes = self.wire.scale_bytes();
        let out = &target.out.scales;
        let (row, column, slot_stride) = match &target.scales {
            Some(_) => self.scale_strides(target.asked, rows),
            None => (out.row_stride as usize, out.col_stride as usize, out.slot_stride as usize),
        };
        if target.scales.is_none() && target.asked.column_major {
            assert_eq!(column, 4 * rows.div_ceil(4) * 4, "rank {rank}: col_stride");
        }
        let column = if column == 0 { 4 } else { column };
        let mut image = vec![POISON; target.scales.as_ref().map_or(0, |_| slabs * slot_stride)];
        for (position, &slot) in self.arrivals[rank].slots.iter().enumerate() {
            let scales = match slot {
                Slot::Row { source, token, .. } => self.sources[source].scales[token].clone(),
                Slot::Pad => vec![0; bytes],
                Slot::Past => continue,
            };
            for (word, scale) in scales.chunks(4).enumerate() {
                let at = position / rows * slot_stride + position % rows * row + word * column;
                if target.scales.is_some() {
                    image[at..at + 4].copy_from_slice(scale);
                } else {
                    let found = copy_out(out.data.cast::<u8>().wrapping_add(at), 4);
                    let what = format!("rank {rank}: scale {word} at position {position} ({slot:?})");
                    expect_bytes(&found, scale, &what);
                }
            }
        }
        if let Some(mem) = &target.scales {
            mem.expect(&image, &format!("rank {rank}: scales"));
        }
    }

    /// The buffer reports what these dispatches did wrong on this rank, once.
    #[track_caller]
    pub fn check_report(rank: &super::Rank, exchanges: &[&Exchange]) {
        let bad = exchanges.iter().any(|e| e.has_bad_ids(rank.rank) && !e.cached);
        let over = exchanges.iter().any(|e| e.overflows(rank.rank));
        let (report, _) = rank.buffer.report();
        let allowed = match (bad, over) {
            (false, false) => vec![SUCCESS],
            (true, false) => vec![INVALID_EXPERT_ID],
            (false, true) => vec![CAPACITY_EXCEEDED],
            (true, true) => vec![INVALID_EXPERT_ID, CAPACITY_EXCEEDED],
        };
        assert!(allowed.contains(&report.status), "report {:?}, allowed {allowed:?}", report.status);
        if report.status == SUCCESS {
            return;
        }
        assert_eq!(report.operation, deep_ep_operation_t::DEEP_EP_OPERATION_DISPATCH as u32);
        assert_eq!(report.rank, rank.rank as i32);
        if report.status == INVALID_EXPERT_ID {
            let first = |e: &&Exchange| crate::reference::first_bad_id(&e.setup, &e.sources[rank.rank]);
            let known: Vec<_> = exchanges.iter().filter_map(first).collect();
            let said = (report.row as usize, report.value);
            assert!(known.contains(&said), "the report says {said:?}, the first bad ids are {known:?}");
        }
        rank.buffer.report(); // a second cause may have been found since
        rank.buffer.expect_no_report();
    }
}

fn side_pointer(out: &deep_ep_dispatch_out_t, i: usize) -> *const u8 {
    match i {
        0 => out.topk_idx.cast(),
        1 => out.topk_weights.cast(),
        2 => out.row_source.cast(),
        3 => out.rank_counts.cast(),
        4 => out.expert_counts.cast(),
        5 => out.expert_offsets.cast(),
        6 => out.true_rows.cast(),
        _ => out.source_ranges.cast(),
    }
}

/// Column-major scales exist by expert only.
pub fn may_be_column_major(exchange: &Exchange) -> bool {
    exchange.setup.layout.by_expert() && (1..=SCALE_UE8M0).contains(&exchange.wire.wire_scale())
}

impl Handle {
    /// Receives and checks.
    #[track_caller]
    pub fn recv(&self, rank: usize, exchange: &Exchange, asked: Asked) -> Received {
        let mut target = exchange.target(rank, asked);
        ok(self.dispatch_recv(&mut target.out));
        self.finish(rank, exchange, target)
    }

    /// Sends, receives and checks in one call.
    #[track_caller]
    pub fn exchange(&self, rank: usize, exchange: &Exchange, style: Style, asked: Asked) -> Received {
        let mut sending = exchange.sending(rank, style);
        let mut target = exchange.target(rank, asked);
        ok(self.dispatch(&sending.input, &mut target.out));
        sending.spoil();
        self.finish(rank, exchange, target)
    }

    #[track_caller]
    fn finish(&self, rank: usize, exchange: &Exchange, target: Target) -> Received {
        let received = exchange.check(rank, target);
        let arrival = &exchange.arrivals[rank];
        let mut counts = vec![-9i64; arrival.expert_counts.len() + 1];
        let mut rows = -9;
        ok(ffi!(deep_ep_handle_wait_counts(self.0, counts.as_mut_ptr(), &mut rows, 0)));
        assert_eq!(counts.pop(), Some(-9), "wait_counts wrote past the local experts");
        let expected: Vec<_> = arrival.expert_counts.iter().map(|&count| i64::from(count)).collect();
        assert_eq!(counts, expected, "wait_counts: expert_counts");
        let end = arrival.expert_offsets.last().copied();
        assert_eq!(rows, end.unwrap_or(arrival.rows), "wait_counts: rows");
        received
    }
}
