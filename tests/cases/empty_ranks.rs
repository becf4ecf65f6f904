//! Ranks that send or receive nothing. Cases 17 to 23.

use crate::reference::numbers::{decode_row, BF16, FP32};
use crate::reference::{Layout, LAYOUTS};
use crate::support::exchange::{Exchange, Wire};
use crate::support::payload::Payload;
use crate::support::receive::Asked;
use crate::support::roundtrip::{once, step};
use crate::support::send::Style;
use crate::support::sum::{Combination, Manner};
use crate::support::*;
use std::ptr::{null, null_mut};

#[test]
fn case_017_zero_tokens_on_every_rank_then_on_one() {
    for layout in LAYOUTS {
        let case = |tokens: &[usize]| {
            let mut case = Case::new(layout, tokens, 128, 2, 4, |r, _, k| ((r + 2 * k) % 4) as i64);
            case.setup.max_tokens = 1;
            case
        };
        let world = case(&[1, 1]).world();
        for tokens in [[0, 0], [1, 0], [0, 1], [0, 0]] {
            case(&tokens).run_on(&world);
        }
    }
}

#[test]
fn case_018_null_pointers_are_fine_without_tokens() {
    let case = Case::new(Layout::PackedByRank, &[1], 64, 1, 1, |_, _, _| 0);
    let world = case.world();
    let handle = world.ranks[0].buffer.handle();
    let mut input = case.exchange().sending(0, Style::default()).input;
    input.num_tokens = 0;
    input.x.data = null_mut();
    input.topk_idx = null();
    input.topk_weights = null();
    let mut out = dispatch_out();
    ok(handle.dispatch(&input, &mut out));
    let mut giving = combine_in();
    giving.x.dtype = BF16;
    giving.x.data = out.x.data;
    let mut output = combine_out();
    output.x.data = null_mut();
    output.x.dtype = BF16;
    ok(handle.combine_call(&giving, &output));
}

#[test]
fn case_018_a_null_pointer_with_tokens_is_refused_by_name() {
    let case = Case::new(Layout::PackedByRank, &[1], 64, 1, 1, |_, _, _| 0);
    let world = case.world();
    let exchange = case.exchange();
    let handle = world.ranks[0].buffer.handle();
    let mut out = dispatch_out();
    let mut sending = exchange.sending(0, Style::default());
    sending.input.x.data = null_mut();
    refused(handle.dispatch(&sending.input, &mut out), INVALID_ARGUMENT, &["x.data", "null"]);
    let mut sending = exchange.sending(0, Style::default());
    sending.input.topk_idx = null();
    refused(handle.dispatch(&sending.input, &mut out), INVALID_ARGUMENT, &["topk_idx", "null"]);
    step(&world.ranks[0], &handle, &exchange, &Combination::identity(&exchange));
}

#[test]
fn case_019_one_token_among_sixteen_ranks() {
    let mut tokens = [0; 16];
    tokens[0] = 1;
    for layout in LAYOUTS {
        let case = Case::new(layout, &tokens, 128, 8, 32, |_, _, k| 4 * k as i64);
        let exchange = case.exchange();
        for (rank, arrival) in exchange.arrivals.iter().enumerate() {
            assert_eq!(arrival.true_rows[0], i64::from(rank % 2 == 0));
        }
        let combination = Combination::identity(&exchange);
        if !layout.by_expert() {
            let x = decode_row(BF16, &exchange.inputs[0].rows[0]);
            let sum = decode_row(BF16, &combination.expected[0].rows[0]);
            assert!(x.iter().zip(sum).all(|(x, sum)| sum == 8.0 * x));
        }
        case.world().run(|rank| once(rank, &exchange, &combination));
    }
}

#[test]
fn case_020_all_tokens_to_one_rank_two_hundred_times() {
    for layout in LAYOUTS {
        let case = Case::new(layout, &[6; 4], 128, 1, 4, |_, _, _| 3);
        let exchange = case.exchange();
        let combination = Combination::identity(&exchange);
        case.world().run(|rank| {
            let handle = rank.buffer.handle();
            for _ in 0..200 {
                step(rank, &handle, &exchange, &combination);
            }
        });
    }
}

#[test]
fn case_021_a_backward_pass_over_a_cached_routing_with_an_empty_rank() {
    for layout in LAYOUTS {
        let case = Case::new(layout, &[5, 3], 128, 2, 4, |_, _, k| k as i64);
        let exchange = case.exchange();
        assert_eq!(exchange.arrivals[1].true_rows[0], 0);
        let forward = Combination::identity(&exchange);
        let gradient = exchange.again(Wire::plain(FP32, 128), vec![None, None], Payload::Wild { seed: 3 });
        let backward = Combination::identity(&gradient);
        let mut config = case.config();
        config.max_row_bytes = 512;
        World::new(2, &config).run(|rank| {
            let handle = rank.buffer.handle();
            step(rank, &handle, &exchange, &forward);
            step(rank, &handle, &gradient, &backward);
        });
    }
}

#[test]
fn case_022_a_result_without_rows_still_has_its_type_and_stride() {
    for layout in LAYOUTS {
        let case = Case::new(layout, &[2, 2], 128, 1, 2, |_, _, _| 0);
        let exchange = case.exchange();
        case.world().run(|rank| {
            let handle = rank.buffer.handle();
            let sending = exchange.sending(rank.rank, Style::default());
            let mut out = dispatch_out();
            ok(handle.dispatch(&sending.input, &mut out));
            assert_eq!(out.x.dtype, BF16);
            assert!(out.x.row_stride >= 256, "row_stride {}", out.x.row_stride);
            assert!(out.x.rows > 0);
            ok(handle.release());
        });
    }
}

#[test]
fn case_023_none_to_three_rows_received() {
    for layout in LAYOUTS {
        for rows in 0..4 {
            let route = |_: usize, t: usize, _: usize| i64::from(t < rows);
            let case = Case::new(layout, &[3, 0], 64, 1, 2, route);
            assert_eq!(case.exchange().arrivals[1].true_rows[0], rows as i64);
            case.run();
        }
    }
}

#[test]
fn case_023_rows_dropped_for_lack_of_room_come_back_as_zero() {
    for layout in [Layout::PackedByRank, Layout::PackedByExpert] {
        for room in 1..5 {
            let mut case = Case::new(layout, &[3, 3], 64, 2, 4, |r, t, k| ((r + t + 2 * k) % 4) as i64);
            case.setup.max_recv_rows = Some(room);
            let exchange: Exchange = case.exchange();
            let combination = Combination::identity(&exchange);
            case.world().run(|rank| {
                let handle = rank.buffer.handle();
                step(rank, &handle, &exchange, &combination);
                let (report, _) = rank.buffer.report();
                assert_eq!(report.status, CAPACITY_EXCEEDED);
                assert_eq!((report.row, report.value), (room as i64, 6));
            });
        }
    }
}

#[test]
fn case_022_a_rank_without_rows_may_pass_null_beside_an_open_combine_input() {
    for layout in LAYOUTS {
        let case = Case::new(layout, &[2, 2], 128, 1, 2, |_, _, _| 0);
        let exchange = case.exchange();
        let combination = Combination::identity(&exchange);
        let mut config = case.config();
        (config.dispatch_windows, config.combine_windows) = (2, 2);
        World::new(2, &config).run(|rank| {
            let handle = rank.buffer.handle();
            for _ in 0..4 {
                handle.exchange(rank.rank, &exchange, Style::default(), Asked::OWN);
                handle.combine_input(BF16);
                let mut giving = combination.giving(rank.rank, &handle, Manner::default());
                if rank.rank == 1 {
                    giving.input.x.data = null_mut();
                }
                let summing = combination.summing(rank.rank, Manner::default());
                ok(handle.combine_call(&giving.input, &summing.output));
                combination.check(rank.rank, &summing);
            }
        });
    }
}
