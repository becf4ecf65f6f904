//! deep_ep_comm_abort.

use crate::ffi;
use crate::reference::{Layout, LAYOUTS};
use crate::support::process::{listen, part, say, Group};
use crate::support::roundtrip::step;
use crate::support::send::Style;
use crate::support::sum::Combination;
use crate::support::*;
use deepep::capi::*;
use std::time::{Duration, Instant};

fn case(layout: Layout) -> Case {
    Case::new(layout, &[2; 3], 64, 1, 3, |r, t, _| ((r + t) % 3) as i64)
}

#[test]
fn waits_end_with_the_name_of_the_rank_that_aborts_and_its_reason() {
    for layout in LAYOUTS {
        let case = case(layout);
        let exchange = case.exchange();
        let combination = Combination::identity(&exchange);
        case.world().run(|rank| {
            let handle = rank.buffer.handle();
            step(rank, &handle, &exchange, &combination);
            if rank.rank == 2 {
                std::thread::sleep(Duration::from_millis(100));
                let begin = Instant::now();
                ok(ffi!(deep_ep_comm_abort(rank.comm.0, c"out of memory at layer 7".as_ptr())));
                assert!(begin.elapsed() < Duration::from_millis(100));
            } else {
                let begin = Instant::now();
                let sending = exchange.sending(rank.rank, Style::default());
                let status = handle.dispatch(&sending.input, &mut dispatch_out());
                refused(status, ABORTED, &["2", "out of memory at layer 7"]);
                assert!(begin.elapsed() < Duration::from_secs(3));
                let (report, _) = rank.buffer.report();
                assert_eq!((report.status, report.first_missing), (ABORTED, 2));
            }
            refused(rank.buffer.barrier(), ABORTED, &["2"]);
            refused(rank.buffer.reset(None), ABORTED, &["destroy"]);
        });
    }
}

#[test]
fn an_abort_from_another_thread_ends_the_wait_of_its_own_rank() {
    let case = case(Layout::PackedByRank);
    let exchange = case.exchange();
    let world = case.world();
    let rank = &world.ranks[0];
    let handle = rank.buffer.handle();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(150));
            ok(ffi!(deep_ep_comm_abort(rank.comm.0, std::ptr::null())));
        });
        let sending = exchange.sending(0, Style::default());
        refused(handle.dispatch(&sending.input, &mut dispatch_out()), ABORTED, &["0"]);
    });
}

#[test]
fn long_reasons_are_cut_and_odd_bytes_are_survived() {
    let case = case(Layout::SlottedByRank);
    for reason in [vec![b'x'; 5000], [0xFF, 0xC3, 0x28].repeat(60), vec![b'%'; 30]] {
        let mut text = reason.clone();
        text.push(0);
        let world = case.world();
        ok(ffi!(deep_ep_comm_abort(world.ranks[1].comm.0, text.as_ptr().cast())));
        let shown = refused(world.ranks[0].buffer.barrier(), ABORTED, &["1"]);
        assert!(shown.len() < 1024);
        if reason[0] == b'x' {
            assert!(shown.contains(&"x".repeat(100)) && !shown.contains(&"x".repeat(129)));
        }
    }
}

#[test]
fn an_abort_reaches_other_processes_and_other_buffers() {
    const NAME: &str = "abort::an_abort_reaches_other_processes_and_other_buffers";
    let Some(part) = part() else {
        let mut group = Group::start(NAME, 3);
        for rank in [0, 1] {
            assert_eq!(group.children[rank].hear(), "waiting");
        }
        group.children[2].tell("abort");
        return group.succeed();
    };
    let case = case(Layout::PackedByRank);
    let rank = Rank::join(part.rank, 3, part.id, &case.config());
    let second = Buffer::create(&rank.comm, &case.config(), None).unwrap();
    ok(rank.buffer.barrier());
    if part.rank == 2 {
        listen();
        ok(ffi!(deep_ep_comm_abort(rank.comm.0, c"told to".as_ptr())));
        return;
    }
    say("waiting");
    let begin = Instant::now();
    refused(rank.buffer.barrier(), ABORTED, &["2", "told to"]);
    refused(second.barrier(), ABORTED, &["2", "told to"]);
    assert!(begin.elapsed() < Duration::from_secs(20));
}
