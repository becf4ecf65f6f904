//! FP8 rows and their scales. Cases 76 to 80.

use crate::reference::numbers::*;
use crate::reference::{Layout, LAYOUTS};
use crate::support::exchange::{Exchange, Input, Wire};
use crate::support::send::Style;
use crate::support::*;
use std::ptr::null_mut;

const KINDS: [u32; 3] = [SCALE_FP32, SCALE_POW2, SCALE_UE8M0];

/// One rank sends `rows` to itself, cast to FP8.
fn cast(rows: &[Vec<f32>], scale: u32) -> Exchange {
    let hidden = rows[0].len();
    let case = Case::new(Layout::PackedByRank, &[rows.len()], hidden, 1, 1, |_, _, _| 0);
    let input = Input {
        ids: vec![0; rows.len()],
        weights: None,
        rows: rows.iter().map(|row| encode_row(FP32, row)).collect(),
        scales: vec![Vec::new(); rows.len()],
    };
    let wire = Wire::cast(FP32, hidden, scale);
    let exchange = Exchange::from_inputs(&case.setup, wire, vec![input]);
    let mut config = case.config();
    config.max_scale_bytes = 64;
    let world = World::new(1, &config);
    world.ranks[0].buffer.handle().exchange(0, &exchange, Style::default(), Asked::OWN);
    exchange
}

#[test]
fn case_076_a_block_of_zeros_has_a_finite_scale_and_no_nan() {
    for scale in KINDS {
        let mut row = vec![0.0; 128];
        row.extend([1.0; 128]);
        let exchange = cast(&[row], scale);
        let source = &exchange.sources[0];
        assert!(source.rows[0][..128].iter().all(|&byte| byte == 0));
        if scale != SCALE_UE8M0 {
            let first = f32::from_le_bytes(source.scales[0][..4].try_into().unwrap());
            assert!(first.is_finite() && first > 0.0);
        } else {
            assert!((1..255).contains(&source.scales[0][0]));
        }
    }
}

#[test]
fn case_077_the_largest_element_becomes_448_and_nothing_becomes_nan() {
    for amax in [1e-3, 1.0, 448.0, 3.3e38] {
        let row: Vec<f32> = (0..128).map(|i| amax * (i as f32 / 127.0)).collect();
        let negative: Vec<f32> = row.iter().map(|x| -x).collect();
        for scale in KINDS {
            let exchange = cast(&[row.clone(), negative.clone()], scale);
            let rows = &exchange.sources[0].rows;
            if scale == SCALE_FP32 {
                assert_eq!(rows[0][127], 0x7E);
            }
            for (positive, negative) in rows[0].iter().zip(&rows[1]) {
                assert_eq!(*negative, positive | 0x80);
                assert!(*positive < 0x7F);
            }
        }
    }
}

#[test]
fn case_078_the_output_says_which_scales_arrived() {
    for layout in LAYOUTS {
        for scale in KINDS {
            let mut case = Case::new(layout, &[2, 2], 256, 1, 2, |_, t, _| (t % 2) as i64);
            case.wire = Wire::cast(BF16, 256, scale);
            let exchange = case.exchange();
            case.world().run(|rank| {
                let handle = rank.buffer.handle();
                let sending = exchange.sending(rank.rank, Style::default());
                let mut out = dispatch_out();
                ok(handle.dispatch(&sending.input, &mut out));
                assert_eq!((out.x.dtype, out.scales.dtype, out.scales.block), (FP8, scale, 128));
                assert!(!out.scales.data.is_null());
                ok(handle.release());
            });
        }
    }
}

#[test]
fn case_078_scales_other_than_what_is_sent_are_refused() {
    let mut case = Case::new(Layout::PackedByRank, &[1], 256, 1, 1, |_, _, _| 0);
    case.wire = Wire::cast(BF16, 256, SCALE_FP32);
    let exchange = case.exchange();
    let world = case.world();
    let handle = world.ranks[0].buffer.handle();
    let mut sending = exchange.sending(0, Style::default());
    let mut out = dispatch_out();
    out.scales.dtype = SCALE_UE8M0;
    refused(handle.dispatch(&sending.input, &mut out), INVALID_ARGUMENT, &["scales.dtype"]);
    sending.input.wire_scale_block = 64;
    let status = handle.dispatch(&sending.input, &mut dispatch_out());
    refused(status, UNSUPPORTED, &["wire_scale_block", "64", "128"]);
    sending.input.wire_scale_block = 128;
    sending.input.wire_scale_dtype = 9;
    let status = handle.dispatch(&sending.input, &mut dispatch_out());
    refused(status, INVALID_ARGUMENT, &["wire_scale_dtype", "9"]);
    handle.exchange(0, &exchange, Style::default(), Asked::OWN);
}

#[test]
fn case_080_bf16_rows_need_no_scales_and_fp8_rows_do() {
    for layout in LAYOUTS {
        let mut case = Case::new(layout, &[2, 2], 256, 1, 2, |_, t, _| (t % 2) as i64);
        case.wire = Wire::scaled(FP8, 256, SCALE_FP32, 0);
        let exchange = case.exchange();
        case.world().run(|rank| {
            let handle = rank.buffer.handle();
            let mut sending = exchange.sending(rank.rank, Style::default());
            sending.input.x_scales.data = null_mut();
            let status = handle.dispatch(&sending.input, &mut dispatch_out());
            refused(status, INVALID_ARGUMENT, &["x_scales.data", "null"]);
            let mut sending = exchange.sending(rank.rank, Style::default());
            sending.input.x_scales.dtype = 0;
            let status = handle.dispatch(&sending.input, &mut dispatch_out());
            refused(status, INVALID_ARGUMENT, &["x_scales"]);
            handle.exchange(rank.rank, &exchange, Style::default(), Asked::OWN);
        });
    }
}
