//! Who multiplies by which weight, and with how much precision. Cases 15, 16, 83.

use crate::reference::numbers::{decode_row, encode_row, BF16};
use crate::reference::{Layout, LAYOUTS};
use crate::support::exchange::Input;
use crate::support::send::Style;
use crate::support::sum::{Combination, Manner};
use crate::support::*;
use crate::support::{exchange::Exchange, memory::Mem};

/// One token on each rank, x everywhere `value`, to experts 0 and 2.
fn two_experts(layout: Layout, value: f32) -> (Case, Exchange) {
    let mut case = Case::new(layout, &[1, 1], 128, 2, 4, |_, _, k| 2 * k as i64);
    case.weights = vec![0.5, 0.25];
    let input = Input {
        ids: vec![0, 2],
        weights: Some(vec![0.5, 0.25]),
        rows: vec![encode_row(BF16, &[value; 128])],
        scales: vec![Vec::new()],
    };
    let exchange = Exchange::from_inputs(&case.setup, case.wire, vec![input.clone(), input]).with_room(2);
    (case, exchange)
}

#[test]
fn case_015_by_rank_sums_rows_and_brings_the_weights_back() {
    for layout in [Layout::PackedByRank, Layout::SlottedByRank] {
        let (case, exchange) = two_experts(layout, 8.0);
        let combination = Combination::identity(&exchange);
        case.world().run(|rank| {
            let handle = rank.buffer.handle();
            let received = handle.exchange(rank.rank, &exchange, Style::default(), Asked::OWN);
            let mut giving = combination.giving(rank.rank, &handle, Manner::default());
            giving.input.carried_weights = received.out.topk_weights;
            let mut summing = combination.summing(rank.rank, Manner::default());
            let carried = Mem::poisoned(8);
            summing.output.carried_weights = carried.ptr();
            ok(handle.combine_call(&giving.input, &summing.output));
            assert!(decode_row(BF16, summing.rows.bytes()).iter().all(|&x| x == 16.0));
            carried.expect(Mem::of_f32(&[0.5, 0.25]).bytes(), "carried weights");
        });
    }
}

#[test]
fn case_015_by_expert_multiplies_the_weights_of_the_dispatch() {
    for layout in [Layout::PackedByExpert, Layout::SlottedByExpert] {
        let (case, exchange) = two_experts(layout, 8.0);
        let combination = Combination::identity(&exchange);
        let row = &combination.expected[0].rows[0];
        assert!(decode_row(BF16, row).iter().all(|&x| x == 6.0));
        case.world().run(|rank| roundtrip::once(rank, &exchange, &combination));
    }
}

#[test]
fn case_016_the_weight_of_a_masked_slot_is_never_read() {
    // The helpers put NaN into the weight of every -1.
    for layout in LAYOUTS {
        let route = |r: usize, t: usize, k: usize| {
            if (r + t + k).is_multiple_of(3) {
                -1
            } else {
                ((t + k) % 4) as i64
            }
        };
        let mut case = Case::new(layout, &[2, 2], 128, 3, 4, route);
        case.weights = vec![0.5; 3];
        let exchange = case.exchange();
        let combination = Combination::identity(&exchange);
        if layout.by_expert() {
            for (rank, merged) in combination.expected.iter().enumerate() {
                for (token, row) in merged.rows.iter().enumerate() {
                    let valid = (0..3).filter(|k| route(rank, token, *k) >= 0).count();
                    let x = decode_row(BF16, &exchange.inputs[rank].rows[token]);
                    let expected: Vec<f32> = x.iter().map(|x| 0.5 * valid as f32 * x).collect();
                    assert_eq!(*row, encode_row(BF16, &expected));
                }
            }
        }
        case.run();
    }
}

#[test]
fn case_083_weights_are_not_rounded_before_the_multiply() {
    for layout in [Layout::PackedByExpert, Layout::SlottedByExpert] {
        let mut case = Case::new(layout, &[1; 4], 64, 3, 4, |_, _, k| k as i64 + 1);
        case.weights = vec![1.0 + 1.0 / 256.0; 3];
        let input = Input {
            ids: vec![1, 2, 3],
            weights: Some(case.weights.clone()),
            rows: vec![encode_row(BF16, &[66.0; 64])],
            scales: vec![Vec::new()],
        };
        let exchange = Exchange::from_inputs(&case.setup, case.wire, vec![input; 4]).with_room(1);
        let terms = Terms { exact: true, weights_of_dispatch: true, identity: true, ..Terms::plain(64) };
        let combination = Combination::new(&exchange, terms, 1);
        assert!(decode_row(BF16, &combination.expected[2].rows[0]).iter().all(|&x| x == 199.0));
        case.world().run(|rank| roundtrip::once(rank, &exchange, &combination));
    }
}
