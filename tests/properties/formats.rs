//! The cast to FP8 at the edges of its number formats, through a dispatch of one rank to itself.

use crate::reference::numbers::*;
use crate::reference::{Layout, Setup};
use crate::support::exchange::Input;
use crate::support::payload::{encode_raw, Noise, Payload};
use crate::support::send::Style;
use crate::support::*;

/// Dispatches `rows` of one rank to itself; the exchange compares the bytes with the slow cast.
fn cast(rows: &[Vec<f32>], dtype: u32, scale: u32) {
    let hidden = rows[0].len();
    let setup = Setup::new(Layout::PackedByRank, 1, rows.len(), 1, 1);
    let input = Input {
        ids: vec![0; rows.len()],
        weights: None,
        rows: rows.iter().map(|row| encode_raw(dtype, row)).collect(),
        scales: vec![Vec::new(); rows.len()],
    };
    let exchange = Exchange::from_inputs(&setup, Wire::cast(dtype, hidden, scale), vec![input]);
    let layout = deepep::capi::deep_ep_layout_t::DEEP_EP_PACKED_BY_RANK;
    let mut config = buffer_config(layout, rows.len(), 1, 1);
    config.max_row_bytes = hidden as i64;
    config.max_scale_bytes = 4 * hidden.div_ceil(128) as i64;
    let world = World::new(1, &config);
    let handle = world.ranks[0].buffer.handle();
    handle.exchange(0, &exchange, Style::default(), Asked::OWN);
}

fn cast_every_way(rows: &[Vec<f32>]) {
    for dtype in [BF16, FP16, FP32] {
        for scale in [SCALE_FP32, SCALE_POW2, SCALE_UE8M0] {
            cast(rows, dtype, scale);
        }
    }
}

#[test]
fn blocks_of_every_magnitude_are_cast_exactly() {
    let mut noise = Noise::new(&[5]);
    let rows: Vec<Vec<f32>> = (-150..128)
        .map(|e| {
            let scale = 2f64.powi(e);
            (0..128).map(|_| (f64::from(noise.number()) / 256.0 * scale) as f32).collect()
        })
        .collect();
    cast_every_way(&rows);
}

#[test]
fn every_mantissa_of_the_largest_element_gives_the_right_scale() {
    let mut rows = Vec::new();
    for step in 0..512u32 {
        let largest = f32::from_bits(0x3F80_0000 + (step << 14));
        let mut row: Vec<f32> = (0..16).map(|i| largest * i as f32 / 15.0).collect();
        row[0] = -largest;
        rows.push(row);
    }
    cast_every_way(&rows);
}

#[test]
fn powers_of_two_times_448_need_no_rounding_of_the_scale() {
    let rows: Vec<Vec<f32>> = (-20..20)
        .map(|e| {
            let largest = 448.0 * 2f32.powi(e);
            (0..16).map(|i| if i == 3 { largest } else { largest / (i + 2) as f32 }).collect()
        })
        .collect();
    cast_every_way(&rows);
}

#[test]
fn blocks_with_nan_and_infinity_scale_by_their_finite_values() {
    let rows: Vec<Vec<f32>> =
        (0..64).map(|token| Payload::Special { seed: 9 }.values(0, token, 400)).collect();
    cast_every_way(&rows);
    let hopeless = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0].repeat(64);
    cast_every_way(&[hopeless]);
}

#[test]
fn ties_between_fp8_values_go_to_the_even_one() {
    // With 448 as the largest element the scale is 1: each value below is halfway between two codes.
    let mut rows = Vec::new();
    for code in 0..126u32 {
        let (low, high) = (decode(FP8, code), decode(FP8, code + 1));
        let middle = (low + high) / 2.0;
        let near = f32::from_bits(middle.to_bits() + 1);
        let below = f32::from_bits(middle.to_bits() - 1);
        let mut row = vec![448.0, middle, -middle, near, below, low, -high, 0.0];
        row.resize(16, 448.0);
        rows.push(row);
    }
    cast_every_way(&rows);
}
