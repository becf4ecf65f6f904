//! Two threads in one buffer, and the child of a fork.

use crate::ffi;
use crate::reference::{Layout, LAYOUTS};
use crate::support::process::{part, Group};
use crate::support::roundtrip::step;
use crate::support::send::Style;
use crate::support::sum::Combination;
use crate::support::*;
use deepep::capi::*;
use std::time::Duration;

fn case(layout: Layout, ranks: usize) -> Case {
    Case::new(layout, &vec![2; ranks], 64, 1, ranks, |r, t, _| ((r + t) % ranks) as i64)
}

#[test]
fn a_second_thread_in_a_buffer_is_concurrent_use() {
    for layout in LAYOUTS {
        let case = case(layout, 2);
        let exchange = case.exchange();
        let combination = Combination::identity(&exchange);
        let world = case.world();
        world.run(|rank| {
            let handle = rank.buffer.handle();
            step(rank, &handle, &exchange, &combination);
        });
        let rank = &world.ranks[0];
        let (one, two) = (rank.buffer.handle(), rank.buffer.handle());
        std::thread::scope(|scope| {
            let (one, exchange) = (&one, &exchange);
            ok(ffi!(deep_ep_buffer_set_timeout(rank.buffer.0, 1500)));
            scope.spawn(move || {
                let sending = exchange.sending(0, Style::default());
                let status = one.dispatch(&sending.input, &mut dispatch_out());
                assert!([TIMEOUT, CONCURRENT_USE].contains(&status), "{status:?}: {}", last_error());
            });
            std::thread::sleep(Duration::from_millis(200));
            let sending = exchange.sending(0, Style::default());
            let status = two.dispatch(&sending.input, &mut dispatch_out());
            refused(status, CONCURRENT_USE, &["deep_ep_handle_dispatch"]);
            refused(rank.buffer.barrier(), CONCURRENT_USE, &["deep_ep_buffer_barrier"]);
            // Nothing is destroyed under a running call.
            assert_eq!(ffi!(deep_ep_buffer_destroy(rank.buffer.0)), CONCURRENT_USE);
            assert_eq!(ffi!(deep_ep_handle_destroy(two.0)), CONCURRENT_USE);
        });
        // It poisons; a reset of both ranks ends that.
        world.run(|rank| {
            ok(ffi!(deep_ep_buffer_set_timeout(rank.buffer.0, 20_000)));
            ok(rank.buffer.reset(None));
            let handle = rank.buffer.handle();
            step(rank, &handle, &exchange, &combination);
        });
    }
}

#[test]
fn questions_run_beside_an_operation() {
    let case = case(Layout::PackedByRank, 2);
    let exchange = case.exchange();
    let combination = Combination::identity(&exchange);
    let world = case.world();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for rank in &world.ranks {
            let stop = &stop;
            scope.spawn(move || {
                let mut alive = [0u8; 2];
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    rank.buffer.statistics();
                    rank.buffer.peer_statistics(1);
                    rank.buffer.local_experts();
                    rank.buffer.expect_no_report();
                    ok(ffi!(deep_ep_buffer_alive(rank.buffer.0, alive.as_mut_ptr(), 2)));
                    ok(ffi!(deep_ep_buffer_set_timeout(rank.buffer.0, 20_000)));
                    std::thread::yield_now();
                }
            });
        }
        world.run(|rank| {
            let handle = rank.buffer.handle();
            for _ in 0..200 {
                step(rank, &handle, &exchange, &combination);
            }
        });
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn the_child_of_a_fork_gets_an_error_and_the_parent_does_not_notice() {
    const NAME: &str = "threads::the_child_of_a_fork_gets_an_error_and_the_parent_does_not_notice";
    // In a process of its own, so that only threads of this test exist when it forks.
    if part().is_none() {
        return Group::start(NAME, 1).succeed();
    }
    let case = case(Layout::PackedByRank, 1);
    let world = case.world();
    let rank = &world.ranks[0];
    let exchange = case.exchange();
    let combination = Combination::identity(&exchange);
    let handle = rank.buffer.handle();
    step(rank, &handle, &exchange, &combination);
    let sending = exchange.sending(0, Style::default());
    let mut out = dispatch_out();
    // SAFETY: the child only calls the library, which this test is about, and leaves at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut code = 0;
        code |= i32::from(handle.dispatch(&sending.input, &mut out) != INVALID_STATE);
        code |= i32::from(!last_error().contains("fork")) << 1;
        code |= i32::from(rank.buffer.barrier() != INVALID_STATE) << 2;
        code |= i32::from(rank.buffer.reset(None) != INVALID_STATE) << 3;
        let mut out = std::ptr::null_mut();
        code |= i32::from(ffi!(deep_ep_handle_create(rank.buffer.0, &mut out)) != INVALID_STATE) << 4;
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { libc::_exit(code) };
    }
    let mut state = 0;
    // SAFETY: waits for the child that was just made.
    assert_eq!(unsafe { libc::waitpid(child, &mut state, 0) }, child);
    assert!(libc::WIFEXITED(state), "the child died: {state:#x}");
    assert_eq!(libc::WEXITSTATUS(state), 0, "bits of what the child found wrong");
    step(rank, &handle, &exchange, &combination);
    rank.buffer.expect_no_report();
}

#[test]
fn destroying_in_the_child_of_a_fork_leaves_the_parent_alone() {
    const NAME: &str = "threads::destroying_in_the_child_of_a_fork_leaves_the_parent_alone";
    if part().is_none() {
        return Group::start(NAME, 1).succeed();
    }
    let case = case(Layout::SlottedByExpert, 2);
    let world = case.world();
    let exchange = case.exchange();
    let combination = Combination::identity(&exchange);
    let handles: Vec<_> = world.ranks.iter().map(|rank| rank.buffer.handle()).collect();
    world.run(|rank| step(rank, &handles[rank.rank], &exchange, &combination));
    // SAFETY: the child only gives its copies back and leaves at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        for (rank, handle) in world.ranks.iter().zip(&handles) {
            ffi!(deep_ep_handle_destroy(handle.0));
            ffi!(deep_ep_buffer_destroy(rank.buffer.0));
            ffi!(deep_ep_comm_destroy(rank.comm.0));
        }
        // SAFETY: as above.
        unsafe { libc::_exit(0) };
    }
    let mut state = 0;
    // SAFETY: waits for the child that was just made.
    assert_eq!(unsafe { libc::waitpid(child, &mut state, 0) }, child);
    assert!(libc::WIFEXITED(state), "the child died: {state:#x}");
    for _ in 0..5 {
        world.run(|rank| step(rank, &handles[rank.rank], &exchange, &combination));
    }
}
