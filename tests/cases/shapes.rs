//! Row lengths, types, strides. Cases 24 to 30, 79, 82.

use crate::reference::numbers::*;
use crate::reference::{Layout, LAYOUTS};
use crate::support::exchange::{Exchange, Wire};
use crate::support::roundtrip::step;
use crate::support::send::Style;
use crate::support::sum::{Combination, Manner, Terms};
use crate::support::*;

fn with_wire(layout: Layout, wire: Wire) -> Case {
    let mut case = Case::new(layout, &[3, 3], wire.hidden, 2, 4, |r, t, k| ((r + t + k) % 4) as i64);
    case.wire = wire;
    case
}

/// A dispatch of `case`, and a combine of BF16 rows as long.
fn dispatch_and_sum(case: &Case) {
    let exchange = case.exchange();
    let combination = Combination::new(&exchange, Terms::plain(case.wire.hidden.div_ceil(8) * 8), 5);
    case.world().run(|rank| {
        let handle = rank.buffer.handle();
        step(rank, &handle, &exchange, &combination);
    });
}

#[test]
fn case_024_hidden_need_not_be_a_multiple_of_128() {
    for layout in LAYOUTS {
        for hidden in [136, 2880, 4104] {
            with_wire(layout, Wire::plain(BF16, hidden)).run();
        }
    }
}

#[test]
fn case_025_fp8_rows_of_23_blocks_with_every_kind_of_scale() {
    for layout in LAYOUTS {
        for (scale, bytes) in [(SCALE_FP32, 92), (SCALE_POW2, 92), (SCALE_UE8M0, 24)] {
            let case = with_wire(layout, Wire::cast(BF16, 2944, scale));
            assert_eq!(case.wire.scale_bytes(), bytes);
            dispatch_and_sum(&case);
        }
    }
}

#[test]
fn case_026_rows_of_24_elements() {
    for layout in LAYOUTS {
        with_wire(layout, Wire::plain(BF16, 24)).run();
        // 24 bytes of FP8 are no multiple of 16: a named error before anything is sent.
        let case = with_wire(layout, Wire::cast(BF16, 24, SCALE_FP32));
        let exchange = case.exchange();
        case.world().run(|rank| {
            let handle = rank.buffer.handle();
            let sending = exchange.sending(rank.rank, Style::default());
            let status = handle.dispatch(&sending.input, &mut dispatch_out());
            refused(status, INVALID_ARGUMENT, &["hidden", "24", "16"]);
        });
    }
}

#[test]
fn case_027_every_model_size_on_one_library() {
    for layout in [Layout::PackedByRank, Layout::SlottedByExpert] {
        for hidden in [128, 1536, 2048, 2560, 2880, 3072, 3584, 4096, 5120, 6144, 7168, 8192] {
            with_wire(layout, Wire::plain(BF16, hidden)).run();
            dispatch_and_sum(&with_wire(layout, Wire::cast(BF16, hidden, SCALE_FP32)));
        }
    }
}

#[test]
fn case_028_fp16_rows_are_exact() {
    for layout in LAYOUTS {
        with_wire(layout, Wire::plain(FP16, 64)).run();
    }
}

#[test]
fn case_029_rows_at_a_stride_are_exact() {
    for layout in LAYOUTS {
        let case = with_wire(layout, Wire::plain(BF16, 64));
        let exchange = case.exchange();
        let combination = Combination::identity(&exchange);
        case.world().run(|rank| {
            let handle = rank.buffer.handle();
            let style = Style { row_gap: 128, ..Style::default() };
            let asked = Asked { row_gap: 64, slot_gap: 32 * usize::from(layout.slotted()), ..Asked::OWN };
            handle.exchange(rank.rank, &exchange, style, asked);
            let slot_gap = asked.slot_gap;
            handle.combine(
                rank.rank,
                &combination,
                Manner { row_gap: 128, slot_gap, out_gap: 16, in_place: false },
            );
        });
    }
}

#[test]
fn case_029_a_misaligned_pointer_or_stride_is_refused_by_name() {
    let case = with_wire(Layout::PackedByRank, Wire::plain(BF16, 64));
    let exchange = case.exchange();
    let combination = Combination::identity(&exchange);
    case.world().run(|rank| {
        let handle = rank.buffer.handle();
        let mut out = dispatch_out();
        let mut sending = exchange.sending(rank.rank, Style::default());
        sending.input.x.data = sending.input.x.data.wrapping_byte_add(2);
        refused(handle.dispatch(&sending.input, &mut out), INVALID_ARGUMENT, &["x.data", "16"]);
        let mut sending = exchange.sending(rank.rank, Style::default());
        sending.input.x.row_stride = 136;
        refused(handle.dispatch(&sending.input, &mut out), INVALID_ARGUMENT, &["row_stride", "136", "16"]);
        let mut sending = exchange.sending(rank.rank, Style::default());
        sending.input.x.row_stride = 64;
        refused(handle.dispatch(&sending.input, &mut out), INVALID_ARGUMENT, &["row_stride", "64", "128"]);
        step(rank, &handle, &exchange, &combination);
    });
}

#[test]
fn case_030_a_tiny_shape_with_many_experts() {
    for layout in LAYOUTS {
        let case = Case::new(layout, &[5; 4], 16, 2, 256, |_, _, k| k as i64);
        case.run();
    }
}

#[test]
fn case_079_caller_made_scales_arrive_the_same_row_major_and_column_major() {
    for layout in [Layout::PackedByExpert, Layout::SlottedByExpert] {
        for scale in [SCALE_FP32, SCALE_POW2, SCALE_UE8M0] {
            let case = with_wire(layout, Wire::scaled(FP8, 2944, scale, 0));
            let exchange = case.exchange();
            let in_place = case.exchange().limited(vec![None, None]);
            case.world().run(|rank| {
                let handle = rank.buffer.handle();
                for column_major in [false, true] {
                    for scales_column_major in [false, true] {
                        let style = Style { scales_column_major, ..Style::default() };
                        let asked = Asked { column_major, ..Asked::OWN };
                        handle.exchange(rank.rank, &exchange, style, asked);
                        ok(handle.release());
                        let asked = Asked { column_major, ..Asked::IN_PLACE };
                        handle.exchange(rank.rank, &in_place, style, asked);
                        ok(handle.release());
                    }
                }
            });
        }
    }
}

#[test]
fn case_079_packed_scales_are_moved_untouched() {
    for layout in LAYOUTS {
        let case = with_wire(layout, Wire::scaled(FP8, 512, SCALE_UE8M0, 0));
        let mut inputs = case.exchange().inputs;
        for scales in inputs.iter_mut().flat_map(|input| &mut input.scales) {
            *scales = 0xDEAD_BEEF_u32.to_le_bytes().to_vec();
        }
        let exchange = Exchange::from_inputs(&case.setup, case.wire, inputs).with_room(3);
        case.world().run(|rank| {
            let handle = rank.buffer.handle();
            handle.exchange(rank.rank, &exchange, Style::default(), Asked::OWN);
        });
    }
}

#[test]
fn case_079_column_major_scales_by_rank_are_refused_by_name() {
    for layout in [Layout::PackedByRank, Layout::SlottedByRank] {
        let case = with_wire(layout, Wire::scaled(FP8, 512, SCALE_FP32, 0));
        let exchange = case.exchange();
        case.world().run(|rank| {
            let handle = rank.buffer.handle();
            let sending = exchange.sending(rank.rank, Style::default());
            let mut out = dispatch_out();
            out.scales.col_stride = 1;
            refused(handle.dispatch(&sending.input, &mut out), UNSUPPORTED, &["col_stride"]);
            handle.exchange(rank.rank, &exchange, Style::default(), Asked::OWN);
        });
    }
}

#[test]
fn case_082_opaque_rows_with_their_scales_in_them_or_beside_them() {
    for layout in LAYOUTS {
        dispatch_and_sum(&with_wire(layout, Wire::plain(OPAQUE, 3584 + 448)));
        dispatch_and_sum(&with_wire(layout, Wire::scaled(OPAQUE, 3584, SCALE_OPAQUE, 448)));
    }
}
