//! Ranks that do not come or die. Cases 86 to 90.

use crate::reference::LAYOUTS;
use crate::support::process::{listen, part, say, Group};
use crate::support::roundtrip::step;
use crate::support::send::Style;
use crate::support::sum::Combination;
use crate::support::world::{meeting, unique_id};
use crate::support::*;
use crate::{ffi, reference::Layout};
use deepep::capi::*;
use std::time::{Duration, Instant};

fn four(layout: Layout) -> Case {
    Case::new(layout, &[3, 2, 4, 1], 64, 2, 8, |r, t, k| ((r + 3 * t + 4 * k + 1) % 8) as i64)
}

#[test]
fn case_086_the_deadline_is_the_callers_and_can_be_changed_at_run_time() {
    let case = four(Layout::PackedByRank);
    let exchange = case.exchange();
    let combination = Combination::identity(&exchange);
    let world = case.world();
    world.run(|rank| {
        let handle = rank.buffer.handle();
        step(rank, &handle, &exchange, &combination);
        ok(ffi!(deep_ep_buffer_set_timeout(rank.buffer.0, 300)));
        if rank.rank == 2 {
            return;
        }
        let begin = Instant::now();
        let sending = exchange.sending(rank.rank, Style::default());
        let status = handle.dispatch(&sending.input, &mut dispatch_out());
        refused(status, TIMEOUT, &["2"]);
        let waited = begin.elapsed();
        assert!(waited >= Duration::from_millis(100), "{waited:?}: ended before the deadline of any rank");
        assert!(waited < Duration::from_millis(1500), "{waited:?}");
    });
}

#[test]
fn case_087_the_report_lists_exactly_the_missing_rank_and_the_phase() {
    for layout in LAYOUTS {
        let case = four(layout);
        let exchange = case.exchange();
        let combination = Combination::identity(&exchange);
        case.world().run(|rank| {
            let handle = rank.buffer.handle();
            step(rank, &handle, &exchange, &combination);
            ok(ffi!(deep_ep_buffer_set_timeout(rank.buffer.0, 400)));
            if rank.rank == 2 {
                return;
            }
            let sending = exchange.sending(rank.rank, Style::default());
            let status = handle.dispatch(&sending.input, &mut dispatch_out());
            let text = refused(status, TIMEOUT, &["deep_ep_handle_dispatch", "2"]);
            let (report, missing) = rank.buffer.report();
            assert_eq!(missing, [2], "{text}");
            assert_eq!(report.status, TIMEOUT);
            assert_eq!((report.rank, report.num_missing, report.first_missing), (rank.rank as i32, 1, 2));
            assert_eq!(report.operation, deep_ep_operation_t::DEEP_EP_OPERATION_DISPATCH as u32);
            assert_eq!(report.epoch, 3);
            assert_ne!(report.phase, deep_ep_phase_t::DEEP_EP_PHASE_NONE as u32);
            assert!(report.seen < report.expected, "seen {}, expected {}", report.seen, report.expected);
            assert!(report.waited_ms <= 5000);
            // It stays until reset, and every call says the same.
            assert_eq!(rank.buffer.report().1, [2]);
            refused(rank.buffer.barrier(), TIMEOUT, &["2"]);
        });
    }
}

#[test]
fn case_088_after_a_timeout_destroy_is_prompt_and_the_process_ends_as_it_likes() {
    const NAME: &str = "faults::case_088_after_a_timeout_destroy_is_prompt_and_the_process_ends_as_it_likes";
    let Some(part) = part() else {
        let mut group = Group::start(NAME, 2);
        assert_eq!(group.children[0].hear(), "destroyed");
        assert_eq!(group.children[0].wait(Duration::from_secs(5)).code(), Some(23));
        group.children[1].tell("end");
        return group.succeed_but(&[0]);
    };
    let case = Case::new(Layout::PackedByRank, &[1, 1], 64, 1, 2, |_, _, _| 1);
    let mut config = case.config();
    config.timeout_ms = 200;
    config.first_timeout_ms = 3000;
    let rank = Rank::join(part.rank, 2, part.id, &config);
    let exchange = case.exchange();
    let combination = Combination::identity(&exchange);
    let handle = rank.buffer.handle();
    step(&rank, &handle, &exchange, &combination);
    if part.rank == 1 {
        listen();
        return;
    }
    let sending = exchange.sending(0, Style::default());
    refused(handle.dispatch(&sending.input, &mut dispatch_out()), TIMEOUT, &["1"]);
    let begin = Instant::now();
    ok(handle.destroy());
    ok(rank.buffer.destroy());
    ok(rank.comm.destroy());
    assert!(begin.elapsed() < Duration::from_secs(2));
    say("destroyed");
    std::process::exit(23);
}

#[test]
fn case_089_survivors_of_a_killed_rank_go_on_without_it() {
    const NAME: &str = "faults::case_089_survivors_of_a_killed_rank_go_on_without_it";
    let Some(part) = part() else {
        let mut group = Group::start(NAME, 4);
        assert_eq!(group.children[3].hear(), "five steps");
        group.children[3].kill();
        group.children[..3].iter_mut().for_each(|member| member.tell("go on"));
        for rank in 0..3 {
            assert_eq!(group.children[rank].hear(), "exact without rank 3");
        }
        return group.succeed_but(&[3]);
    };
    survive(&part, Layout::PackedByRank);
}

fn survive(part: &crate::support::process::Part, layout: Layout) {
    let mut case = four(layout);
    let mut config = case.config();
    config.timeout_ms = 500;
    config.first_timeout_ms = 10_000;
    let rank = Rank::join(part.rank, 4, part.id, &config);
    let exchange = case.exchange();
    let combination = Combination::identity(&exchange);
    let handle = rank.buffer.handle();
    ok(ffi!(deep_ep_buffer_set_timeout(rank.buffer.0, 10_000)));
    for _ in 0..5 {
        step(&rank, &handle, &exchange, &combination);
    }
    ok(ffi!(deep_ep_buffer_set_timeout(rank.buffer.0, 500)));
    if part.rank == 3 {
        say("five steps");
    }
    listen();
    let sending = exchange.sending(part.rank, Style::default());
    refused(handle.dispatch(&sending.input, &mut dispatch_out()), TIMEOUT, &["3"]);
    assert_eq!(rank.buffer.report().1, [3]);
    ok(rank.buffer.reset(Some(&[1, 1, 1, 0])));
    let mut alive = [9; 4];
    ok(ffi!(deep_ep_buffer_alive(rank.buffer.0, alive.as_mut_ptr(), 4)));
    assert_eq!(alive, [1, 1, 1, 0]);
    rank.buffer.expect_no_report();
    ok(ffi!(deep_ep_buffer_set_timeout(rank.buffer.0, 10_000)));
    case.setup.alive = vec![true, true, true, false];
    case.tokens[3] = 0;
    case.ids[3].clear();
    let exchange = case.exchange();
    let combination = Combination::identity(&exchange);
    let handle = rank.buffer.handle();
    for _ in 0..3 {
        step(&rank, &handle, &exchange, &combination);
    }
    say("exact without rank 3");
}

#[test]
fn case_090_a_rank_that_never_joins_is_named_at_the_rendezvous() {
    let id = unique_id(None);
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for rank in [0, 1, 3] {
            scope.spawn(move || {
                let mut config = meeting(rank, 4, id);
                config.timeout_ms = 500;
                let status = Comm::create(&config).err().unwrap();
                refused(status, TIMEOUT, &["deep_ep_comm_create", "2"]);
            });
        }
    });
    assert!(begin.elapsed() < Duration::from_secs(5));
}

#[test]
fn case_090_a_rank_that_never_creates_its_buffer_is_named() {
    let id = unique_id(None);
    let config = {
        let mut config = buffer_config(deep_ep_layout_t::DEEP_EP_PACKED_BY_RANK, 1, 4, 1);
        config.first_timeout_ms = 500;
        config
    };
    let comms: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..3).map(|rank| scope.spawn(move || Comm::create(&meeting(rank, 3, id)).unwrap())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for comm in [&comms[0], &comms[2]] {
            let config = &config;
            scope.spawn(move || {
                let status = Buffer::create(comm, config, None).err().unwrap();
                refused(status, TIMEOUT, &["deep_ep_buffer_create", "1"]);
            });
        }
    });
    assert!(begin.elapsed() < Duration::from_secs(5));
}
