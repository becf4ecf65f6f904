//! Ranks that are late or missing, and resets.

use crate::ffi;
use crate::reference::{Layout, LAYOUTS};
use crate::support::payload::Noise;
use crate::support::roundtrip::step;
use crate::support::send::Style;
use crate::support::sum::{Combination, Manner};
use crate::support::*;
use deepep::capi::*;
use std::time::{Duration, Instant};

fn case(layout: Layout) -> Case {
    Case::new(layout, &[3, 2, 4], 64, 2, 6, |r, t, k| ((r + 2 * t + 3 * k + 1) % 6) as i64)
}

fn set_timeout(rank: &Rank, milliseconds: u32) {
    ok(ffi!(deep_ep_buffer_set_timeout(rank.buffer.0, milliseconds)));
}

#[test]
fn a_missing_rank_is_named_by_every_operation_and_a_reset_ends_it() {
    for layout in LAYOUTS {
        for sync in 0..3 {
            let case = case(layout);
            let mut config = case.config();
            config.sync = sync;
            let exchange = case.exchange();
            let combination = Combination::identity(&exchange);
            World::new(3, &config).run(|rank| {
                let me = rank.rank;
                let handle = rank.buffer.handle();
                step(rank, &handle, &exchange, &combination);
                handle.exchange(me, &exchange, Style::default(), Asked::OWN);
                set_timeout(rank, 200);
                if me != 1 {
                    let giving = combination.giving(me, &handle, Manner::default());
                    let summing = combination.summing(me, Manner::default());
                    let begin = Instant::now();
                    refused(handle.combine_call(&giving.input, &summing.output), TIMEOUT, &["1"]);
                    assert!(begin.elapsed() < Duration::from_millis(2500));
                    assert!(summing.rows.bytes().iter().all(|&b| b == memory::POISON), "outputs untouched");
                    assert_eq!(rank.buffer.report().1, [1]);
                    // The buffer is poisoned: everything says so at once.
                    let begin = Instant::now();
                    refused(rank.buffer.barrier(), TIMEOUT, &["1"]);
                    let sending = exchange.sending(me, Style::default());
                    refused(handle.dispatch(&sending.input, &mut dispatch_out()), TIMEOUT, &["1"]);
                    assert!(begin.elapsed() < Duration::from_millis(150));
                }
                ok(rank.buffer.reset(None));
                rank.buffer.expect_no_report();
                set_timeout(rank, 20_000);
                step(rank, &handle, &exchange, &combination);
            });
        }
    }
}

#[test]
fn all_survivors_report_the_same_culprit() {
    let case = Case::new(Layout::SlottedByRank, &[1; 6], 64, 1, 6, |r, _, _| r as i64);
    let exchange = case.exchange();
    let combination = Combination::identity(&exchange);
    let world = case.world();
    for round in 0..3 {
        let missing = world.run(|rank| {
            let handle = rank.buffer.handle();
            set_timeout(rank, 20_000);
            step(rank, &handle, &exchange, &combination);
            // Deadlines differ, so that one rank finds out first and stops while the others still wait for it.
            set_timeout(rank, 150 + 150 * rank.rank as u32);
            let missing = if rank.rank == 4 {
                vec![4]
            } else {
                let sending = exchange.sending(rank.rank, Style::default());
                let mut target = exchange.target(rank.rank, Asked::OWN);
                let mut status = handle.dispatch(&sending.input, &mut target.out);
                if status == SUCCESS {
                    status = rank.buffer.barrier();
                }
                assert_eq!(status, TIMEOUT, "{}", last_error());
                rank.buffer.report().1
            };
            ok(rank.buffer.reset(None));
            missing
        });
        assert_eq!(missing, vec![vec![4]; 6], "round {round}");
    }
}

#[test]
fn several_missing_ranks_are_all_named() {
    let case = Case::new(Layout::PackedByRank, &[1; 5], 64, 1, 5, |r, _, _| r as i64);
    let exchange = case.exchange();
    let combination = Combination::identity(&exchange);
    case.world().run(|rank| {
        let handle = rank.buffer.handle();
        step(rank, &handle, &exchange, &combination);
        set_timeout(rank, 400);
        if rank.rank == 1 || rank.rank == 3 {
            return;
        }
        refused(rank.buffer.barrier(), TIMEOUT, &["1", "3"]);
        let (report, missing) = rank.buffer.report();
        assert_eq!(missing, [1, 3]);
        assert_eq!((report.num_missing, report.first_missing), (2, 1));
        assert_eq!(report.operation, deep_ep_operation_t::DEEP_EP_OPERATION_BARRIER as u32);
    });
}

#[test]
fn a_late_rank_within_the_deadline_changes_nothing() {
    for layout in LAYOUTS {
        let case = case(layout);
        let exchange = case.exchange();
        let combination = Combination::identity(&exchange);
        case.world().run(|rank| {
            let handle = rank.buffer.handle();
            let mut noise = Noise::new(&[rank.rank as u64]);
            for late in [0, 1, 2, 0] {
                if rank.rank == late {
                    std::thread::sleep(Duration::from_millis(60 + noise.below(30) as u64));
                }
                step(rank, &handle, &exchange, &combination);
            }
        });
    }
}

#[test]
fn a_reset_with_a_mask_leaves_a_living_rank_out() {
    for layout in LAYOUTS {
        let mut case = case(layout);
        let exchange = case.exchange();
        let combination = Combination::identity(&exchange);
        let world = case.world();
        case.setup.alive = vec![true, true, false];
        case.tokens[2] = 0;
        case.ids[2].clear();
        let smaller = case.exchange();
        let sums = Combination::identity(&smaller);
        world.run(|rank| {
            let handle = rank.buffer.handle();
            step(rank, &handle, &exchange, &combination);
            if rank.rank == 2 {
                return;
            }
            ok(rank.buffer.reset(Some(&[1, 1, 0])));
            let mut alive = [7u8; 3];
            ok(ffi!(deep_ep_buffer_alive(rank.buffer.0, alive.as_mut_ptr(), 3)));
            assert_eq!(alive, [1, 1, 0]);
            for _ in 0..5 {
                step(rank, &handle, &smaller, &sums);
            }
            // Who is out stays out.
            ok(rank.buffer.reset(Some(&[1, 1, 0])));
            step(rank, &handle, &smaller, &sums);
        });
    }
}

/// A struct that a dispatch filled in place still means "in place" after survivors went on in other memory.
#[test]
fn outputs_in_place_stay_in_place_after_a_reset_with_a_mask() {
    for layout in LAYOUTS {
        let case = case(layout);
        let exchange = case.exchange();
        case.world().run(|rank| {
            let handle = rank.buffer.handle();
            let sending = exchange.sending(rank.rank, Style::default());
            let mut output = dispatch_out();
            ok(handle.dispatch(&sending.input, &mut output));
            let before = output.x.data;
            ok(ffi!(deep_ep_handle_release(handle.0, std::ptr::null_mut())));
            if rank.rank == 2 {
                return;
            }
            ok(rank.buffer.reset(Some(&[1, 1, 0])));
            ok(handle.dispatch(&sending.input, &mut output));
            let by_rank = matches!(layout, Layout::PackedByRank | Layout::SlottedByRank);
            assert_eq!(output.x.data != before, by_rank, "rows by rank lie in the new region");
        });
    }
}

#[test]
fn a_reset_that_a_rank_does_not_come_to_names_it() {
    let case = case(Layout::PackedByRank);
    let mut config = case.config();
    config.first_timeout_ms = 500;
    let exchange = case.exchange();
    let combination = Combination::identity(&exchange);
    World::new(3, &config).run(|rank| {
        let handle = rank.buffer.handle();
        step(rank, &handle, &exchange, &combination);
        if rank.rank == 2 {
            return;
        }
        let begin = Instant::now();
        refused(rank.buffer.reset(None), TIMEOUT, &["deep_ep_buffer_reset", "2"]);
        assert!(begin.elapsed() < Duration::from_secs(4));
        ok(rank.buffer.reset(Some(&[1, 1, 0])));
        ok(rank.buffer.barrier());
    });
}

#[test]
fn a_reset_frees_windows_and_unreceived_sends() {
    for layout in LAYOUTS {
        let case = case(layout);
        let exchange = case.exchange();
        let combination = Combination::identity(&exchange);
        case.world().run(|rank| {
            let (one, two) = (rank.buffer.handle(), rank.buffer.handle());
            one.send(rank.rank, &exchange, Style::default());
            ok(rank.buffer.reset(None));
            step(rank, &two, &exchange, &combination);
            let sending = exchange.sending(rank.rank, Style::default());
            ok(two.dispatch(&sending.input, &mut dispatch_out()));
            ok(rank.buffer.reset(None));
            for _ in 0..3 {
                step(rank, &one, &exchange, &combination);
                step(rank, &two, &exchange, &combination);
            }
        });
    }
}

#[test]
fn different_operations_are_told_apart_in_every_sync_mode() {
    for sync in 0..3 {
        let case = case(Layout::SlottedByExpert);
        let mut config = case.config();
        config.sync = sync;
        config.timeout_ms = 10_000;
        let exchange = case.exchange();
        let combination = Combination::identity(&exchange);
        World::new(3, &config).run(|rank| {
            let handle = rank.buffer.handle();
            step(rank, &handle, &exchange, &combination);
            let status = if rank.rank == 1 {
                rank.buffer.barrier()
            } else {
                let sending = exchange.sending(rank.rank, Style::default());
                let mut target = exchange.target(rank.rank, Asked::OWN);
                handle.dispatch(&sending.input, &mut target.out)
            };
            assert_eq!(status, OP_MISMATCH, "{}", last_error());
            ok(rank.buffer.reset(None));
            step(rank, &handle, &exchange, &combination);
        });
    }
}

#[test]
fn rows_of_different_types_are_a_mismatch_and_not_garbage() {
    use crate::reference::numbers::{BF16, FP16, FP32};
    for layout in LAYOUTS {
        for (dtype, hidden) in [(FP16, 64), (FP32, 32), (BF16, 32)] {
            let mut case = case(layout);
            let mut config = case.config();
            config.timeout_ms = 10_000;
            let exchange = case.exchange();
            let combination = Combination::identity(&exchange);
            case.wire = exchange::Wire::plain(dtype, hidden);
            let other = case.exchange();
            World::new(3, &config).run(|rank| {
                let handle = rank.buffer.handle();
                step(rank, &handle, &exchange, &combination);
                let mine = if rank.rank == 1 { &other } else { &exchange };
                let sending = mine.sending(rank.rank, Style::default());
                let mut target = mine.target(rank.rank, Asked::OWN);
                let status = handle.dispatch(&sending.input, &mut target.out);
                assert_eq!(status, OP_MISMATCH, "{}", last_error());
                ok(rank.buffer.reset(None));
                step(rank, &handle, &exchange, &combination);
            });
        }
    }
}

/// Rank 1 comes to `call` after the others have given up, which fails on all ranks; then all call again.
fn too_late_and_again(ranks: &[&Rank], call: impl Fn(&Rank) -> deep_ep_status_t + Sync) {
    let meet = std::sync::Barrier::new(ranks.len());
    std::thread::scope(|scope| {
        for rank in ranks {
            let (meet, call) = (&meet, &call);
            scope.spawn(move || {
                if rank.rank == 1 {
                    std::thread::sleep(Duration::from_millis(800));
                }
                let status = call(rank);
                assert_eq!(status, TIMEOUT, "rank {}: {}", rank.rank, last_error());
                for _ in 0..2 {
                    meet.wait();
                    let status = call(rank);
                    assert_eq!(status, SUCCESS, "rank {}: {}", rank.rank, last_error());
                }
            });
        }
    });
}

#[test]
fn a_reset_to_which_a_rank_came_too_late_can_be_repeated() {
    for mask in [None, Some([1, 1, 0])] {
        let mut case = case(Layout::SlottedByRank);
        let mut config = case.config();
        config.first_timeout_ms = 400;
        let exchange = case.exchange();
        let combination = Combination::identity(&exchange);
        let world = World::new(3, &config);
        world.run(|rank| step(rank, &rank.buffer.handle(), &exchange, &combination));
        let mut ranks: Vec<_> = world.ranks.iter().collect();
        if mask.is_some() {
            case.setup.alive = vec![true, true, false];
            case.tokens[2] = 0;
            case.ids[2].clear();
            ranks.pop();
        }
        too_late_and_again(&ranks, |rank| rank.buffer.reset(mask.as_ref().map(|mask| &mask[..])));
        let exchange = case.exchange();
        let combination = Combination::identity(&exchange);
        world.run(|rank| {
            if rank.rank < ranks.len() {
                step(rank, &rank.buffer.handle(), &exchange, &combination);
            }
        });
    }
}

#[test]
fn a_create_to_which_a_rank_came_too_late_can_be_repeated() {
    let mut config = case(Layout::PackedByExpert).config();
    let world = World::meet(3, &config);
    config.first_timeout_ms = 400;
    let ranks: Vec<_> = world.ranks.iter().collect();
    too_late_and_again(&ranks, |rank| match Buffer::create(&rank.comm, &config, None) {
        Ok(_) => SUCCESS,
        Err(status) => status,
    });
}

/// Rank 1 has ended fewer reads than the others when the reset comes; windows are then used again and again.
#[test]
fn ranks_that_failed_at_different_places_agree_after_a_reset_in_every_sync_mode() {
    for layout in LAYOUTS {
        for sync in 0..3 {
            let case = case(layout);
            let mut config = case.config();
            config.sync = sync;
            let exchange = case.exchange().limited(vec![None; 3]);
            let combination = Combination::identity(&exchange);
            World::new(3, &config).run(|rank| {
                let handle = rank.buffer.handle();
                for _ in 0..3 {
                    handle.exchange(rank.rank, &exchange, Style::default(), Asked::IN_PLACE);
                    if rank.rank != 1 {
                        ok(handle.release());
                    }
                    ok(rank.buffer.reset(None));
                }
                for _ in 0..8 {
                    handle.exchange(rank.rank, &exchange, Style::default(), Asked::IN_PLACE);
                    handle.combine(rank.rank, &combination, Manner::default());
                }
            });
        }
    }
}
