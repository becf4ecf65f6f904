//! Any number of ranks. Cases 49 to 54.

use crate::reference::numbers::BF16;
use crate::reference::{Layout, LAYOUTS};
use crate::support::exchange::{Exchange, Input, Wire};
use crate::support::payload::Payload;
use crate::support::roundtrip::{once, step};
use crate::support::sum::Combination;
use crate::support::*;
use deepep::capi::*;

#[test]
fn case_049_rank_counts_between_the_powers_of_two() {
    for ranks in [1, 2, 3, 5, 6, 7, 12, 16, 24] {
        let experts = 4 * ranks;
        for layout in [Layout::PackedByRank, Layout::SlottedByExpert] {
            let route = |r: usize, t: usize, k: usize| ((3 * r + 5 * t + 7 * k) % experts) as i64;
            Case::new(layout, &vec![4; ranks], 64, 2, experts, route).run();
        }
    }
}

#[test]
fn case_050_two_ranks_a_thousand_times_with_and_without_tokens() {
    for layout in LAYOUTS {
        let case = |tokens: usize| {
            let mut case = Case::new(layout, &[tokens; 2], 64, 2, 4, |r, t, k| ((r + t + k) % 4) as i64);
            case.setup.max_tokens = 3;
            let exchange = case.exchange();
            let combination = Combination::identity(&exchange);
            (case, exchange, combination)
        };
        let steps = [case(0), case(3)];
        steps[1].0.world().run(|rank| {
            let handle = rank.buffer.handle();
            for i in 0..1000 {
                let (_, exchange, combination) = &steps[i % 2];
                step(rank, &handle, exchange, combination);
            }
        });
    }
}

/// 64 tokens split over `ranks`; returns the combined rows in the order of the tokens.
fn split(layout: Layout, ranks: usize) -> Vec<Vec<u8>> {
    let tokens = 64 / ranks;
    let global = |r: usize, t: usize| r * tokens + t;
    let route = |r: usize, t: usize, k: usize| ((5 * global(r, t) + 9 * k + k * k) % 32) as i64;
    let case = Case::new(layout, &vec![tokens; ranks], 64, 4, 32, route);
    let inputs = (0..ranks)
        .map(|rank| Input {
            ids: case.ids[rank].clone(),
            weights: Some((0..4 * tokens).map(|i| 1.0 / (3 + i % 4 + global(rank, i / 4)) as f32).collect()),
            rows: (0..tokens)
                .map(|token| Payload::Wild { seed: 51 }.row(BF16, 0, global(rank, token), 64))
                .collect(),
            scales: vec![Vec::new(); tokens],
        })
        .collect();
    let exchange = Exchange::from_inputs(&case.setup, Wire::plain(BF16, 64), inputs).with_room(2);
    let terms = Terms { exact: true, weights_of_dispatch: true, identity: true, ..Terms::plain(64) };
    let combination = Combination::new(&exchange, terms, 0);
    case.world().run(|rank| once(rank, &exchange, &combination));
    combination.expected.into_iter().flat_map(|merged| merged.rows).collect()
}

#[test]
fn case_051_the_number_of_ranks_does_not_change_an_exact_sum() {
    for layout in [Layout::PackedByExpert, Layout::SlottedByExpert] {
        let one = split(layout, 1);
        for ranks in [2, 4, 8, 16] {
            assert!(split(layout, ranks) == one, "{layout:?}, {ranks} ranks");
        }
    }
}

#[test]
fn case_052_every_number_of_ranks_up_to_16() {
    for ranks in 1..=16 {
        for layout in LAYOUTS {
            let route = |r: usize, t: usize, k: usize| ((r + 3 * t + k) % (ranks + 3)) as i64;
            Case::new(layout, &vec![3; ranks], 32, 2, ranks + 3, route).run();
        }
    }
}

#[test]
fn case_053_a_group_of_one() {
    for layout in LAYOUTS {
        let case = Case::new(layout, &[4], 64, 2, 4, |_, t, k| ((t + k) % 4) as i64);
        let exchange = case.exchange();
        let rows = if layout.by_expert() { 8 } else { 4 };
        assert_eq!(exchange.arrivals[0].true_rows, [4, rows]);
        let combination = Combination::identity(&exchange);
        if !layout.by_expert() {
            assert!(combination.expected[0].rows == exchange.sources[0].rows, "identity returns the rows");
        }
        case.world().run(|rank| once(rank, &exchange, &combination));
    }
}

#[test]
fn case_054_seventy_two_ranks_in_one_domain() {
    for layout in [Layout::PackedByRank, Layout::SlottedByRank] {
        let route = |r: usize, t: usize, k: usize| ((4 * r + 37 * t + 41 * k) % 288) as i64;
        Case::new(layout, &[2; 72], 64, 8, 288, route).run();
    }
}

#[test]
fn case_052_too_many_or_no_ranks_are_refused_with_the_limit() {
    for ranks in [0, -3, 1025] {
        let mut config = comm_config();
        config.num_ranks = ranks;
        let mut out = vec![std::ptr::null_mut(); 1];
        let status = crate::ffi!(deep_ep_comm_create_local(&config, std::ptr::null(), out.as_mut_ptr()));
        refused(status, INVALID_ARGUMENT, &["num_ranks", &ranks.to_string(), "1024"]);
    }
}
