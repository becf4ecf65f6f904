//! Order of calls, barriers, overlap, determinism. Cases 60 to 68, 70, 75, 84, 85, 115, 117, 120.

use crate::ffi;
use crate::reference::{Layout, LAYOUTS};
use crate::support::payload::Noise;
use crate::support::roundtrip::step;
use crate::support::send::Style;
use crate::support::sum::{Combination, Manner};
use crate::support::*;
use deepep::capi::*;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

fn pair(layout: Layout) -> Case {
    Case::new(layout, &[3, 4], 64, 2, 4, |r, t, k| ((r + t + 2 * k + 1) % 4) as i64)
}

#[test]
fn case_060_no_rank_runs_ahead_of_a_barrier() {
    // The report's 100,000 rounds are 3,000 here: eight ranks share the machine's cores.
    let world = World::new(8, &buffer_config(deep_ep_layout_t::DEEP_EP_PACKED_BY_RANK, 1, 8, 1));
    let rounds: Vec<_> = (0..8).map(|_| AtomicU64::new(0)).collect();
    world.run(|rank| {
        let mut noise = Noise::new(&[60, rank.rank as u64]);
        for round in 1..=3000u64 {
            if noise.chance(10) {
                std::thread::sleep(Duration::from_micros(noise.below(50) as u64));
            }
            rounds[rank.rank].store(round, SeqCst);
            ok(rank.buffer.barrier());
            for other in &rounds {
                let seen = other.load(SeqCst);
                assert!(seen == round || seen == round + 1, "round {round}, another rank is at {seen}");
            }
        }
    });
}

#[test]
fn case_061_a_barrier_waits_for_the_last_rank() {
    let world = World::new(4, &buffer_config(deep_ep_layout_t::DEEP_EP_PACKED_BY_RANK, 1, 4, 1));
    world.run(|rank| {
        ok(rank.buffer.barrier());
        let begin = Instant::now();
        if rank.rank == 0 {
            std::thread::sleep(Duration::from_millis(200));
        }
        ok(rank.buffer.barrier());
        assert!(begin.elapsed() >= Duration::from_millis(190));
    });
}

#[test]
fn case_064_two_combines_in_flight_are_exact() {
    for layout in LAYOUTS {
        let case = pair(layout);
        let mut config = case.config();
        config.max_in_flight = 2;
        let exchange = case.exchange();
        let a = Combination::new(&exchange, Terms::plain(64), 1);
        let b = Combination::new(&exchange, Terms::plain(64), 2);
        World::new(2, &config).run(|rank| {
            let me = rank.rank;
            let (one, two) = (rank.buffer.handle(), rank.buffer.handle());
            one.exchange(me, &exchange, Style::default(), Asked::OWN);
            two.exchange(me, &exchange, Style::default(), Asked::OWN);
            one.combine_send(me, &a, Manner::default());
            two.combine_send(me, &b, Manner::default());
            one.combine_recv(me, &a, Manner::default());
            two.combine_recv(me, &b, Manner::default());
        });
    }
}

#[test]
fn case_064_a_second_combine_beyond_the_limit_is_busy() {
    for layout in LAYOUTS {
        let case = pair(layout);
        let exchange = case.exchange();
        let a = Combination::new(&exchange, Terms::plain(64), 1);
        let b = Combination::new(&exchange, Terms::plain(64), 2);
        case.world().run(|rank| {
            let me = rank.rank;
            let (one, two) = (rank.buffer.handle(), rank.buffer.handle());
            one.exchange(me, &exchange, Style::default(), Asked::OWN);
            two.exchange(me, &exchange, Style::default(), Asked::OWN);
            one.combine_send(me, &a, Manner::default());
            let giving = b.giving(me, &two, Manner::default());
            let status = ffi!(deep_ep_handle_combine_send(two.0, &giving.input, null_mut()));
            refused(status, BUSY, &["max_in_flight"]);
            one.combine_recv(me, &a, Manner::default());
            two.combine(me, &b, Manner::default());
        });
    }
}

#[test]
fn case_066_the_next_batch_is_sent_before_the_first_is_received() {
    for layout in LAYOUTS {
        let case = pair(layout);
        let exchange = case.exchange();
        let combination = Combination::identity(&exchange);
        let mut config = case.config();
        config.max_in_flight = 2;
        World::new(2, &config).run(|rank| {
            let me = rank.rank;
            let (one, two) = (rank.buffer.handle(), rank.buffer.handle());
            for _ in 0..20 {
                one.send(me, &exchange, Style::default());
                two.send(me, &exchange, Style::default());
                one.recv(me, &exchange, Asked::OWN);
                one.combine_send(me, &combination, Manner::default());
                two.recv(me, &exchange, Asked::OWN);
                two.combine_send(me, &combination, Manner::default());
                one.combine_recv(me, &combination, Manner::default());
                two.combine_recv(me, &combination, Manner::default());
            }
        });
    }
}

#[test]
fn case_066_a_send_beyond_the_limit_is_busy_and_nothing_hangs() {
    for layout in LAYOUTS {
        let case = pair(layout);
        let exchange = case.exchange();
        case.world().run(|rank| {
            let me = rank.rank;
            let (one, two) = (rank.buffer.handle(), rank.buffer.handle());
            one.send(me, &exchange, Style::default());
            let sending = exchange.sending(me, Style::default());
            refused(two.dispatch_send(&sending.input), BUSY, &["max_in_flight", "1"]);
            one.recv(me, &exchange, Asked::OWN);
            two.exchange(me, &exchange, Style::default(), Asked::OWN);
        });
    }
}

#[test]
fn case_067_two_buffers_each_with_a_thread_of_its_own_in_any_order() {
    let case = pair(Layout::PackedByRank);
    let exchange = case.exchange();
    let combination = Combination::identity(&exchange);
    let (a, b) = (case.world(), case.world());
    std::thread::scope(|scope| {
        for world in [&a, &b] {
            let (exchange, combination) = (&exchange, &combination);
            scope.spawn(move || {
                world.run(|rank| {
                    let handle = rank.buffer.handle();
                    for _ in 0..50 {
                        step(rank, &handle, exchange, combination);
                    }
                });
            });
        }
    });
}

#[test]
fn case_067_two_buffers_in_one_order_on_one_thread_per_rank() {
    let case = pair(Layout::SlottedByRank);
    let exchange = case.exchange();
    let combination = Combination::identity(&exchange);
    let (a, b) = (case.world(), case.world());
    a.run(|rank| {
        let other = &b.ranks[rank.rank];
        let (one, two) = (rank.buffer.handle(), other.buffer.handle());
        for _ in 0..20 {
            step(rank, &one, &exchange, &combination);
            step(other, &two, &exchange, &combination);
            step(other, &two, &exchange, &combination);
            step(rank, &one, &exchange, &combination);
        }
    });
}

#[test]
fn case_068_different_operations_are_named_on_both_ranks() {
    for (layout, other) in LAYOUTS.into_iter().flat_map(|layout| [(layout, "combine"), (layout, "barrier")]) {
        let case = pair(layout);
        let mut config = case.config();
        config.timeout_ms = 700;
        let exchange = case.exchange();
        let combination = Combination::identity(&exchange);
        let begin = Instant::now();
        World::new(2, &config).run(|rank| {
            let me = rank.rank;
            let handle = rank.buffer.handle();
            step(rank, &handle, &exchange, &combination);
            let status = if me == 0 {
                let sending = exchange.sending(me, Style::default());
                handle.dispatch(&sending.input, &mut exchange.target(me, Asked::OWN).out)
            } else if other == "combine" {
                let giving = combination.giving(me, &handle, Manner::default());
                let summing = combination.summing(me, Manner::default());
                handle.combine_call(&giving.input, &summing.output)
            } else {
                rank.buffer.barrier()
            };
            let text = last_error();
            assert_eq!(status, OP_MISMATCH, "rank {me}: {text}");
            assert!(text.contains(&format!("rank {} runs ", 1 - me)), "rank {me}: {text}");
            assert!(text.contains("dispatch") && text.contains(other), "rank {me}: {text}");
        });
        assert!(begin.elapsed() < Duration::from_secs(10));
    }
}

#[test]
fn case_070_counts_that_are_not_there_yet_are_an_error_and_not_zero() {
    let case = pair(Layout::PackedByRank);
    let exchange = case.exchange();
    case.world().run(|rank| {
        let handle = rank.buffer.handle();
        let mut rows = 77;
        let status = ffi!(deep_ep_handle_wait_counts(handle.0, null_mut(), &mut rows, 10));
        refused(status, INVALID_STATE, &["deep_ep_handle_wait_counts"]);
        handle.send(rank.rank, &exchange, Style::default());
        let status = ffi!(deep_ep_handle_wait_counts(handle.0, null_mut(), &mut rows, 10));
        assert_eq!(status, INVALID_STATE, "before the first receive");
        assert_eq!(rows, 77);
        handle.recv(rank.rank, &exchange, Asked::OWN);
    });
}

#[test]
fn case_075_a_late_rank_within_the_deadline_is_no_error() {
    // The report's 5 seconds are 1 here; the deadline is the report's 30.
    for layout in LAYOUTS {
        let case = pair(layout);
        let exchange = case.exchange();
        let combination = Combination::identity(&exchange);
        case.world().run(|rank| {
            if rank.rank == 1 {
                std::thread::sleep(Duration::from_millis(1000));
            }
            step(rank, &rank.buffer.handle(), &exchange, &combination);
        });
    }
}

#[test]
fn case_075_the_first_operation_has_a_deadline_of_its_own() {
    let case = pair(Layout::PackedByRank);
    let mut config = case.config();
    config.timeout_ms = 50;
    config.first_timeout_ms = 20_000;
    let exchange = case.exchange();
    let combination = Combination::identity(&exchange);
    World::new(2, &config).run(|rank| {
        if rank.rank == 1 {
            std::thread::sleep(Duration::from_millis(400));
        }
        let handle = rank.buffer.handle();
        let _received = handle.exchange(rank.rank, &exchange, Style::default(), Asked::OWN);
        ok(ffi!(deep_ep_buffer_set_timeout(rank.buffer.0, 20_000)));
        handle.combine(rank.rank, &combination, Manner::default());
    });
}

#[test]
fn case_084_rows_are_ordered_by_source_rank_and_token() {
    for layout in LAYOUTS {
        let case = Case::new(layout, &[20; 4], 64, 3, 8, |r, t, k| ((3 * r + 5 * t + k) % 8) as i64);
        for arrival in &case.exchange().arrivals {
            if layout == Layout::PackedByRank {
                assert!(arrival.row_source.is_sorted());
            }
        }
        case.run();
    }
}

#[test]
fn case_085_placement_does_not_depend_on_timing() {
    // Every run is compared with the model, so any two runs agree. Delays are up to 2 ms instead of 5.
    for layout in [Layout::PackedByRank, Layout::SlottedByExpert] {
        let route = |r: usize, t: usize, k: usize| ((7 * r + 11 * t + 8 * k) % 64) as i64;
        let case = Case::new(layout, &[512; 4], 32, 8, 64, route);
        let exchange = case.exchange();
        let combination = Combination::identity(&exchange);
        case.world().run(|rank| {
            let handle = rank.buffer.handle();
            let mut noise = Noise::new(&[85, rank.rank as u64]);
            for _ in 0..20 {
                std::thread::sleep(Duration::from_micros(noise.below(2000) as u64));
                handle.exchange(rank.rank, &exchange, Style::default(), Asked::OWN);
                ok(handle.release());
            }
            handle.exchange(rank.rank, &exchange, Style::default(), Asked::OWN);
            handle.combine(rank.rank, &combination, Manner::default());
        });
    }
}

#[test]
fn case_115_a_late_rank_does_not_delay_the_sends_of_others() {
    // Slotted layouts: no count exchange stands before the rows.
    for layout in [Layout::SlottedByRank, Layout::SlottedByExpert] {
        let case = pair(layout);
        let exchange = case.exchange();
        let combination = Combination::identity(&exchange);
        case.world().run(|rank| {
            let handle = rank.buffer.handle();
            step(rank, &handle, &exchange, &combination);
            if rank.rank == 0 {
                std::thread::sleep(Duration::from_millis(300));
            }
            let begin = Instant::now();
            handle.send(rank.rank, &exchange, Style::default());
            assert!(begin.elapsed() < Duration::from_millis(150), "rank {}", rank.rank);
            handle.recv(rank.rank, &exchange, Asked::OWN);
        });
    }
}

#[test]
fn case_117_rows_in_place_equal_rows_copied_out() {
    for layout in LAYOUTS {
        let case = pair(layout);
        let exchange = case.exchange();
        let combination = Combination::identity(&exchange);
        case.world().run(|rank| {
            let handle = rank.buffer.handle();
            for asked in [Asked::OWN, Asked { own_sides: 0, ..Asked::IN_PLACE }, Asked::OWN] {
                if asked.in_place && layout == Layout::PackedByExpert {
                    // The caller's limit is for its own memory; in place the buffer's capacity holds.
                    let free = case.exchange().limited(vec![None, None]);
                    let received = handle.exchange(rank.rank, &free, Style::default(), asked);
                    free.recheck(rank.rank, &received);
                } else {
                    handle.exchange(rank.rank, &exchange, Style::default(), asked);
                }
                handle.combine(rank.rank, &combination, Manner { in_place: true, ..Manner::default() });
            }
        });
    }
}

#[test]
fn case_120_both_by_expert_layouts_give_the_same_sums() {
    let sums: Vec<_> = [Layout::PackedByExpert, Layout::SlottedByExpert]
        .into_iter()
        .map(|layout| {
            let exchange = pair(layout).exchange();
            let combination = Combination::identity(&exchange);
            pair(layout).world().run(|rank| {
                step(rank, &rank.buffer.handle(), &exchange, &combination);
            });
            combination.expected.into_iter().map(|merged| merged.rows).collect::<Vec<_>>()
        })
        .collect();
    assert!(sums[0] == sums[1]);
}
