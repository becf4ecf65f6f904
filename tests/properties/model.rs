//! The model itself, on examples worked out by hand.

use crate::reference::numbers::*;
use crate::reference::*;

fn source(ids: &[i64], topk: usize) -> Source {
    let tokens = ids.len() / topk;
    Source {
        ids: ids.to_vec(),
        weights: None,
        rows: (0..tokens).map(|token| vec![token as u8; 16]).collect(),
        scales: vec![Vec::new(); tokens],
    }
}

#[test]
fn conversions_agree_with_known_bit_patterns() {
    for (dtype, value, bits) in [
        (BF16, 1.0, 0x3F80),
        (BF16, 1.003_906_2, 0x3F80), // halfway: to even
        (BF16, 1.011_718_7, 0x3F82),
        (BF16, f32::MAX, 0x7F80),
        (BF16, f32::NAN, 0x7FFF),
        (BF16, -0.0, 0x8000),
        (BF16, f32::from_bits(1), 0x0000),
        (BF16, f32::from_bits(0x0001_8000), 0x0002), // a tie between subnormals
        (FP16, 65504.0, 0x7BFF),
        (FP16, 65519.9, 0x7BFF),
        (FP16, 65520.0, 0x7C00),
        (FP16, 5.960_464_5e-8, 0x0001),
        (FP16, 2.980_232_2e-8, 0x0000), // half the smallest: to even
        (FP16, f32::NEG_INFINITY, 0xFC00),
        (FP8, 448.0, 0x7E),
        (FP8, 1e9, 0x7E),
        (FP8, -464.0, 0xFE),
        (FP8, 0.015_625, 0x08),
        (FP8, 0.001_953_125, 0x01),
        (FP8, 0.000_976_562_5, 0x00),
        (FP8, f32::NAN, 0x7F),
    ] {
        assert_eq!(encode(dtype, value), bits, "{value} as type {dtype}");
    }
}

#[test]
fn every_short_float_survives_decoding_and_encoding() {
    for (dtype, codes) in [(BF16, 1u32 << 16), (FP16, 1 << 16), (FP8, 256)] {
        for bits in 0..codes {
            let value = decode(dtype, bits);
            if !value.is_nan() {
                assert_eq!(encode(dtype, value), bits, "type {dtype}");
            }
        }
    }
}

#[test]
fn rows_go_once_to_each_rank_that_owns_one_of_their_experts() {
    let setup = Setup::new(Layout::PackedByRank, 2, 2, 4, 2);
    let sources = [source(&[0, 1, 2, -1], 2), source(&[3, 0], 2)];
    let arrivals = dispatch(&setup, &sources, &[None; 2]);
    assert_eq!(arrivals[0].row_source, [0, 2]);
    assert_eq!(arrivals[0].ids, [0, 1, -1, 0]);
    assert_eq!(arrivals[1].row_source, [1, 2]);
    assert_eq!(arrivals[1].ids, [0, -1, 1, -1]);
    assert_eq!(arrivals[1].expert_counts, [1, 1]);
    assert_eq!(arrivals[1].rank_counts, [1, 1]);
}

#[test]
fn experts_start_at_aligned_offsets_and_the_last_row_that_fits_is_kept() {
    let mut setup = Setup::new(Layout::PackedByExpert, 1, 3, 2, 2);
    setup.alignment = 4;
    let sources = [source(&[0, 1, 1, -1, 1, 0], 2)];
    let arrivals = dispatch(&setup, &sources, &[None]);
    assert_eq!(arrivals[0].expert_offsets, [0, 4, 8]);
    assert_eq!(arrivals[0].row_source, [0, 2, -1, -1, 0, 1, 2, -1]);
    assert_eq!(arrivals[0].true_rows, [3, 8]);
    setup.max_expert_rows = Some(6);
    let arrivals = dispatch(&setup, &sources, &[None]);
    assert_eq!(arrivals[0].expert_counts, [2, 2]);
    assert_eq!(arrivals[0].expert_offsets, [0, 4, 6]);
    assert_eq!(arrivals[0].true_rows, [3, 8]);
}

#[test]
fn the_first_of_a_repeated_id_counts() {
    let setup = Setup::new(Layout::PackedByRank, 1, 1, 2, 3);
    assert_eq!(clean(&setup, &source(&[1, 1, 7], 3), 0), [Some(1), None, None]);
    assert_eq!(first_bad_id(&setup, &source(&[1, 1, 7], 3)), Some((0, 1)));
    assert_eq!(first_bad_id(&setup, &source(&[1, -1, -1], 3)), None);
}

#[test]
fn reduced_sums_round_on_the_experts_rank_and_exact_sums_do_not() {
    let setup = Setup::new(Layout::SlottedByExpert, 1, 1, 2, 2);
    let sources = [source(&[0, 1], 2)];
    let arrivals = dispatch(&setup, &sources, &[None]);
    let row = |value: f32| encode_row(BF16, &[value; 8]);
    let input = MergeInput {
        rows: vec![row(256.0), row(1.0)],
        bias: [Some(vec![row(1.0)]), None],
        ..MergeInput::default()
    };
    let merge = |exact| Merge { dtype: BF16, hidden: 8, exact, weights_of_dispatch: false };
    let reduced = combine(&setup, &sources, &arrivals, std::slice::from_ref(&input), &merge(false));
    assert_eq!(decode_row(BF16, &reduced[0].rows[0])[0], 256.0); // 257 rounds to 256, then 1 + 256 again
    let exact = combine(&setup, &sources, &arrivals, &[input], &merge(true));
    assert_eq!(decode_row(BF16, &exact[0].rows[0])[0], 258.0);
}
