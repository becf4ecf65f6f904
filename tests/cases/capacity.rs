//! Rows that fit and rows that do not, and ranks with different numbers of them. Cases 34, 35, 40 to 46.

use crate::reference::{Layout, LAYOUTS};
use crate::support::memory::Mem;
use crate::support::roundtrip::step;
use crate::support::send::Style;
use crate::support::sum::Combination;
use crate::support::world::{meeting, unique_id};
use crate::support::*;
use deepep::capi::*;
use std::time::{Duration, Instant};

#[test]
fn case_034_real_and_aligned_counts_are_two_outputs() {
    let mut case = Case::new(Layout::PackedByExpert, &[5, 5], 128, 1, 4, |_, _, _| 1);
    case.setup.alignment = 16;
    let exchange = case.exchange();
    let arrival = &exchange.arrivals[0];
    assert_eq!(arrival.expert_counts, [0, 10]);
    assert_eq!(arrival.expert_offsets, [0, 0, 16]);
    assert_eq!(arrival.row_source[10..], [-1; 6]);
    let combination = Combination::identity(&exchange);
    case.world().run(|rank| roundtrip::once(rank, &exchange, &combination));
}

#[test]
fn case_035_the_columns_of_ids_follow_the_layout() {
    // The helpers give the lists exactly the room that the layout documents, between guard zones.
    for layout in LAYOUTS {
        Case::new(layout, &[4, 4], 64, 6, 8, |r, t, k| ((r + t + k) % 8) as i64).run();
    }
}

#[test]
fn case_040_a_token_too_many_is_refused_and_its_peer_times_out_naming_it() {
    for layout in LAYOUTS {
        let route = |_: usize, t: usize, k: usize| ((t + k) % 4) as i64;
        let good = Case::new(layout, &[128, 128], 64, 2, 4, route);
        let mut bad = Case::new(layout, &[129, 128], 64, 2, 4, route);
        bad.setup.max_tokens = 128;
        let mut config = good.config();
        config.timeout_ms = 300;
        config.first_timeout_ms = 5000;
        let world = World::new(2, &config);
        let exchange = good.exchange();
        let combination = Combination::identity(&exchange);
        let too_many = {
            let mut big = Case::new(layout, &[129, 128], 64, 2, 4, route);
            big.setup.max_tokens = 129;
            big.exchange()
        };
        world.run(|rank| {
            let handle = rank.buffer.handle();
            step(rank, &handle, &exchange, &combination);
            let sending = too_many.sending(rank.rank, Style::default());
            let status = handle.dispatch(&sending.input, &mut dispatch_out());
            if rank.rank == 0 {
                refused(status, CAPACITY_EXCEEDED, &["num_tokens", "129", "128"]);
            } else {
                refused(status, TIMEOUT, &["0"]);
                assert_eq!(rank.buffer.report().1, [0]);
            }
            ok(rank.buffer.reset(None));
            let handle = rank.buffer.handle();
            step(rank, &handle, &exchange, &combination);
        });
    }
}

#[test]
fn case_041_a_call_can_ask_for_fewer_rows_than_the_buffer_has() {
    let mut case = Case::new(Layout::PackedByRank, &[4, 4], 64, 2, 4, |r, t, k| ((r + t + 2 * k) % 4) as i64);
    case.setup.max_tokens = 4096;
    let exchange = case.exchange().limited(vec![Some(8), Some(8)]);
    let combination = Combination::identity(&exchange);
    case.world().run(|rank| {
        let handle = rank.buffer.handle();
        let received = handle.exchange(rank.rank, &exchange, Style::default(), Asked::OWN);
        assert_eq!(received.out.x.rows, 8);
        handle.combine(rank.rank, &combination, Default::default());
        rank.buffer.expect_no_report();
    });
}

#[test]
fn case_042_every_optional_number_at_zero_is_chosen_by_the_library() {
    for layout in LAYOUTS {
        let case = Case::new(layout, &[4, 4], 64, 2, 4, |r, t, k| ((r + t + k) % 4) as i64);
        let mut config = plain_buffer_config();
        config.layout = case.config().layout;
        config.max_tokens = 4;
        config.max_row_bytes = 128;
        config.num_experts = 4;
        config.num_topk = 2;
        case.run_on(&World::new(2, &config));
    }
}

/// Both ranks of a group create with their own configuration; returns both statuses and texts.
fn create_apart(configs: [deep_ep_buffer_config_t; 2]) -> Vec<(deep_ep_status_t, String)> {
    let id = unique_id(None);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2)
            .map(|rank| {
                let config = configs[rank];
                scope.spawn(move || {
                    let comm = Comm::create(&meeting(rank, 2, id)).unwrap();
                    match Buffer::create(&comm, &config, None) {
                        Ok(_) => (SUCCESS, String::new()),
                        Err(status) => (status, last_error()),
                    }
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn case_043_capacities_that_differ_between_ranks_are_refused_on_both_with_field_and_values() {
    type Change = fn(&mut deep_ep_buffer_config_t);
    let changes: [(Change, &str, [&str; 2]); 6] = [
        (|c| c.max_tokens = 128, "max_tokens", ["64", "128"]),
        (|c| c.num_experts = 12, "num_experts", ["8", "12"]),
        (|c| c.num_topk = 3, "num_topk", ["2", "3"]),
        (|c| c.max_row_bytes = 1024, "max_row_bytes", ["512", "1024"]),
        (|c| c.sync = 2, "sync", ["0", "2"]),
        (|c| c.layout = 2, "layout", ["0", "2"]),
    ];
    for (change, field, values) in changes {
        let config = buffer_config(deep_ep_layout_t::DEEP_EP_PACKED_BY_RANK, 64, 8, 2);
        let mut other = config;
        change(&mut other);
        let results = create_apart([config, other]);
        for (rank, (status, text)) in results.iter().enumerate() {
            assert_eq!(*status, CONFIG_MISMATCH, "rank {rank}, {field}: {text}");
            for word in [field, values[0], values[1]] {
                assert!(text.contains(word), "rank {rank}: {text:?} lacks {word:?}");
            }
        }
    }
}

#[test]
fn case_043_expert_maps_that_differ_between_ranks_are_refused() {
    let id = unique_id(None);
    let config = buffer_config(deep_ep_layout_t::DEEP_EP_PACKED_BY_RANK, 64, 2, 1);
    let statuses: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = [[0, 1], [1, 0]]
            .into_iter()
            .enumerate()
            .map(|(rank, map)| {
                let config = &config;
                scope.spawn(move || {
                    let comm = Comm::create(&meeting(rank, 2, id)).unwrap();
                    Buffer::create(&comm, config, Some(&map)).err()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(statuses, [Some(CONFIG_MISMATCH); 2]);
}

#[test]
fn case_044_different_numbers_of_tokens_that_change_every_step() {
    for layout in LAYOUTS {
        let case = |tokens: [usize; 4], step| {
            let mut case = Case::new(layout, &tokens, 256, 2, 8, |r, t, k| ((r + t + 3 * k) % 8) as i64);
            case.setup.max_tokens = 64;
            case.step = step;
            case
        };
        let mut tokens = [5, 17, 1, 64];
        let world = case(tokens, 0).world();
        for step in 0..8 {
            case(tokens, step).run_on(&world);
            tokens.rotate_left(1);
        }
    }
}

#[test]
fn case_045_capacities_that_are_no_multiple_of_anything() {
    for layout in LAYOUTS {
        for (capacity, tokens) in [(672, 671), (672, 672), (1, 1)] {
            let route = |r: usize, t: usize, k: usize| ((r + t + k) % 4) as i64;
            let mut case = Case::new(layout, &[tokens, tokens], 64, 2, 4, route);
            case.setup.max_tokens = capacity;
            case.run();
        }
    }
}

#[test]
fn case_046_a_sweep_of_token_counts_on_one_buffer() {
    let sweep = [1, 2, 3, 4, 8, 12, 16, 24, 31, 32, 33, 48, 63, 64, 65, 96, 127, 128, 129, 160, 256, 512];
    for layout in [Layout::PackedByRank, Layout::SlottedByExpert] {
        let case = |tokens: usize| {
            let mut case =
                Case::new(layout, &[tokens; 2], 64, 2, 8, |r, t, k| ((5 * r + t + 3 * k) % 8) as i64);
            case.setup.max_tokens = 512;
            case
        };
        let world = case(1).world();
        for tokens in sweep {
            case(tokens).run_on(&world);
        }
    }
}

#[test]
fn case_041_room_beyond_the_capacity_is_left_alone() {
    let case = Case::new(Layout::PackedByRank, &[2, 2], 64, 1, 2, |_, t, _| (t % 2) as i64);
    let exchange = case.exchange();
    case.world().run(|rank| {
        let handle = rank.buffer.handle();
        let sending = exchange.sending(rank.rank, Style::default());
        // Four rows can arrive. The caller has room for six, and lists for four.
        let (rows, ids) = (Mem::poisoned(6 * 128), Mem::poisoned(4 * 4));
        let mut out = dispatch_out();
        out.x.data = rows.ptr();
        out.x.rows = 6;
        out.topk_idx = ids.ptr();
        ok(handle.dispatch(&sending.input, &mut out));
        ids.check_guards("topk_idx");
        let mut image = exchange.sources[0].rows[rank.rank].clone();
        image.extend(&exchange.sources[1].rows[rank.rank]);
        image.resize(6 * 128, crate::support::memory::POISON);
        rows.expect(&image, "x");
    });
}

#[test]
fn case_040_a_short_deadline_ends_no_earlier_and_not_much_later() {
    let case = Case::new(Layout::SlottedByRank, &[1, 1], 64, 1, 2, |_, _, _| 0);
    let mut config = case.config();
    config.timeout_ms = 200;
    config.first_timeout_ms = 200;
    let world = World::new(2, &config);
    let exchange = case.exchange();
    let handle = world.ranks[1].buffer.handle();
    let begin = Instant::now();
    let sending = exchange.sending(1, Style::default());
    refused(handle.dispatch(&sending.input, &mut dispatch_out()), TIMEOUT, &["0"]);
    let waited = begin.elapsed();
    assert!(waited >= Duration::from_millis(195) && waited < Duration::from_millis(1500), "{waited:?}");
}
