//! Order: streams that are late, events, ranks out of step, deadlines.

use super::objects::on_a_gpu;
use crate::cases::{Case, Mode};
use crate::cuda::join;
use crate::memory::{Arena, Where};
use crate::ranks::{last_error, ok, report, Buffer, World};
use crate::stamped::{Rank, Setup};
use crate::{run, stress};
use deepep::capi::deep_ep_status_t::*;
use deepep::capi::*;
use std::time::{Duration, Instant};

fn barrier(buffer: Buffer, arena: &Arena) -> deep_ep_status_t {
    unsafe { deep_ep_buffer_barrier(buffer.0, arena.stream()) }
}

fn pair() -> Setup {
    Setup {
        seed: 3,
        ranks: 2,
        layout: 0,
        sync: 0,
        tokens: 16,
        max_tokens: 16,
        max_row_bytes: 128,
        topk: 2,
        experts: 8,
        in_flight: 1,
        windows: 0,
        sms: 8,
        stages: 0,
    }
}

/// Two ranks with a stream each, and a buffer.
fn two_ranks(change: impl Fn(&mut deep_ep_buffer_config_t)) -> (World, Vec<Buffer>, [Arena; 2]) {
    let world = World::create(Where::Device, 2).unwrap();
    let mut config = pair().config(Where::Device);
    change(&mut config);
    let buffers = world.buffers(&config, None);
    (world, buffers, [0, 1].map(|rank| Arena::new(Where::Device, rank)))
}

/// No call waits for the device, however many are enqueued.
#[test]
fn report_059_dispatches_back_to_back() {
    if !on_a_gpu() {
        return;
    }
    let setup = Setup { ranks: 4, ..pair() };
    let world = World::create(Where::Device, 4).unwrap();
    let buffers = world.buffers(&setup.config(Where::Device), None);
    std::thread::scope(|scope| {
        for seat in world.seats(buffers) {
            let setup = &setup;
            scope.spawn(move || {
                let mut rank = Rank::new(setup, Where::Device, seat, 1, 200);
                for stretch in 0..5 {
                    for input in rank.prepare(stretch * 200..(stretch + 1) * 200) {
                        rank.dispatch_in_place(&input);
                        rank.keep();
                        rank.end_reads();
                    }
                    rank.check();
                }
                rank.finish();
            });
        }
    });
}

/// A rank whose stream is late holds up everybody's barrier, and nobody is two barriers ahead.
#[test]
fn report_060_and_061_a_barrier_waits_for_the_last_rank() {
    if !on_a_gpu() {
        return;
    }
    let (_world, buffers, arenas) = two_ranks(|_| {});
    arenas[0].close_gate();
    let begin = Instant::now();
    for (buffer, arena) in buffers.iter().zip(&arenas) {
        ok(barrier(*buffer, arena));
    }
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            arenas[1].wait();
            begin.elapsed()
        });
        std::thread::sleep(Duration::from_millis(100));
        arenas[0].open_gate();
        let after = other.join().unwrap();
        assert!((95..1000).contains(&after.as_millis()), "{after:?}");
    });
    let rounds: Vec<_> = (0..2).map(|_| std::sync::atomic::AtomicUsize::new(0)).collect();
    std::thread::scope(|scope| {
        for me in 0..2 {
            let (buffer, arena, rounds) = (buffers[me], &arenas[me], &rounds);
            scope.spawn(move || {
                for round in 1..=500 {
                    rounds[me].store(round, std::sync::atomic::Ordering::SeqCst);
                    ok(barrier(buffer, arena));
                    arena.wait();
                    let other = rounds[1 - me].load(std::sync::atomic::Ordering::SeqCst);
                    assert!((round..=round + 1).contains(&other), "round {round}, the other is in {other}");
                }
            });
        }
    });
    buffers.iter().for_each(|buffer| ok(unsafe { deep_ep_buffer_destroy(buffer.0) }));
}

/// Ids that the stream writes just before: the dispatch reads them when its turn has come.
#[test]
fn report_063_ids_that_are_written_late() {
    if on_a_gpu() {
        let case = Case { late: true, ranks: 3, mode: Mode::Caller, rounds: 6, ..Case::default() };
        crate::same(Case { by_expert: true, align: 4, ..case.clone() });
        crate::same(case);
    }
}

/// What one stream dispatched another reads, after an event and nothing else.
#[test]
fn report_065_a_consumer_on_another_stream() {
    if !on_a_gpu() {
        return;
    }
    let setup = pair();
    let world = World::create(Where::Device, 2).unwrap();
    let buffers = world.buffers(&setup.config(Where::Device), None);
    std::thread::scope(|scope| {
        for seat in world.seats(buffers) {
            let setup = &setup;
            scope.spawn(move || {
                let mut rank = Rank::new(setup, Where::Device, seat, 1, 20);
                let consumer = Arena::new(Where::Device, seat.0);
                for input in rank.prepare(0..20) {
                    rank.dispatch_in_place(&input);
                    join(rank.arena.stream(), consumer.stream());
                    rank.keep_on(&consumer);
                    join(consumer.stream(), rank.arena.stream());
                    rank.end_reads();
                }
                consumer.wait();
                rank.check();
                rank.finish();
            });
        }
    });
}

/// Both say that the other runs something else, and what.
#[test]
fn report_068_different_operations() {
    if !on_a_gpu() {
        return;
    }
    let (_world, buffers, arenas) =
        two_ranks(|config| (config.timeout_ms, config.first_timeout_ms) = (300, 300));
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for me in 0..2 {
            let (buffer, arena) = (buffers[me], &arenas[me]);
            scope.spawn(move || {
                if me == 0 {
                    ok(barrier(buffer, arena));
                } else {
                    let mut handle = std::ptr::null_mut();
                    ok(unsafe { deep_ep_handle_create(buffer.0, &mut handle) });
                    ok(empty_dispatch(handle, arena));
                }
                arena.wait();
                let status = barrier(buffer, arena);
                assert_eq!(status, DEEP_EP_OP_MISMATCH, "{}", last_error());
                let theirs = if me == 0 { "runs dispatch 1" } else { "runs barrier 1" };
                assert!(last_error().contains(theirs), "{}", last_error());
                assert_eq!(report(buffer).first_missing, 1 - me as i32);
            });
        }
    });
    assert!(begin.elapsed() < Duration::from_secs(5));
    buffers.iter().for_each(|buffer| ok(unsafe { deep_ep_buffer_destroy(buffer.0) }));
}

fn empty_dispatch(handle: *mut deep_ep_handle_t, arena: &Arena) -> deep_ep_status_t {
    let mut request: deep_ep_dispatch_in_t = unsafe { std::mem::zeroed() };
    let mut out: deep_ep_dispatch_out_t = unsafe { std::mem::zeroed() };
    unsafe {
        ok(deep_ep_dispatch_in_init(&mut request, size_of::<deep_ep_dispatch_in_t>()));
        ok(deep_ep_dispatch_out_init(&mut out, size_of::<deep_ep_dispatch_out_t>()));
    }
    request.hidden = 64;
    request.x.dtype = deep_ep_dtype_t::DEEP_EP_BF16 as u32;
    unsafe { deep_ep_handle_dispatch(handle, &request, &mut out, arena.stream()) }
}

/// Somebody's kernel, here that of a dispatch whose other rank is late, holds half of the SMs.
#[test]
fn report_069_other_kernels_hold_half_of_the_sms() {
    if !on_a_gpu() {
        return;
    }
    let (_world, buffers, arenas) = two_ranks(|config| config.num_sms = 60);
    let handles = buffers.iter().map(|buffer| {
        let mut handle = std::ptr::null_mut();
        ok(unsafe { deep_ep_handle_create(buffer.0, &mut handle) });
        handle
    });
    arenas[1].close_gate();
    for (handle, arena) in handles.zip(&arenas) {
        ok(empty_dispatch(handle, arena));
    }
    assert!(stress::run(&pair(), Where::Device));
    arenas[1].open_gate();
    for (buffer, arena) in buffers.iter().zip(&arenas) {
        arena.wait();
        assert_eq!(report(*buffer).status, DEEP_EP_SUCCESS);
        ok(unsafe { deep_ep_buffer_destroy(buffer.0) });
    }
}

/// Null pointers are legal without tokens; counts that are not there yet are an error, and so is a receive that does not run.
#[test]
fn report_018_and_070_nothing_to_send_and_nothing_received_yet() {
    if !on_a_gpu() {
        return;
    }
    let (_world, buffers, arenas) = two_ranks(|_| {});
    let handles = buffers.iter().map(|buffer| {
        let mut handle = std::ptr::null_mut();
        ok(unsafe { deep_ep_handle_create(buffer.0, &mut handle) });
        handle
    });
    let handles: Vec<_> = handles.collect();
    let mut rows = 77;
    let wait = |handle, rows: &mut i64, ms| unsafe {
        deep_ep_handle_wait_counts(handle, std::ptr::null_mut(), rows, ms)
    };
    assert_eq!(wait(handles[0], &mut rows, 50), DEEP_EP_INVALID_STATE);
    arenas[1].close_gate();
    for (handle, arena) in handles.iter().zip(&arenas) {
        ok(empty_dispatch(*handle, arena));
    }
    assert_eq!(wait(handles[0], &mut rows, 50), DEEP_EP_TIMEOUT, "the other rank's stream is held up");
    assert_eq!(rows, 77);
    arenas[1].open_gate();
    for handle in &handles {
        ok(wait(*handle, &mut rows, 2000));
        assert_eq!(rows, 0);
    }
    for (buffer, arena) in buffers.iter().zip(&arenas) {
        arena.wait();
        ok(unsafe { deep_ep_buffer_destroy(buffer.0) });
    }
}

/// A rank may be late by less than the deadline; the deadline can be set at run time, and destroying does not wait.
#[test]
fn report_075_and_086_to_088_deadlines() {
    if !on_a_gpu() {
        return;
    }
    let (_world, buffers, arenas) =
        two_ranks(|config| (config.timeout_ms, config.first_timeout_ms) = (20_000, 20_000));
    arenas[1].close_gate();
    for (buffer, arena) in buffers.iter().zip(&arenas) {
        ok(barrier(*buffer, arena));
    }
    std::thread::sleep(Duration::from_millis(500));
    arenas[1].open_gate();
    arenas.iter().for_each(Arena::wait);
    ok(unsafe { deep_ep_buffer_set_timeout(buffers[0].0, 300) });
    let begin = Instant::now();
    ok(barrier(buffers[0], &arenas[0]));
    arenas[0].wait();
    assert!((300..1500).contains(&begin.elapsed().as_millis()), "{:?}", begin.elapsed());
    assert_eq!(barrier(buffers[0], &arenas[0]), DEEP_EP_TIMEOUT);
    let found = report(buffers[0]);
    assert_eq!(
        (found.status, found.num_missing, found.first_missing, found.epoch),
        (DEEP_EP_TIMEOUT, 1, 1, 2)
    );
    let begin = Instant::now();
    buffers.iter().for_each(|buffer| ok(unsafe { deep_ep_buffer_destroy(buffer.0) }));
    assert!(begin.elapsed() < Duration::from_secs(2));
}

/// The same inputs give the same bytes, whoever is late.
#[test]
fn report_085_results_do_not_depend_on_lateness() {
    if !on_a_gpu() {
        return;
    }
    let case = Case { ranks: 4, tokens: 200, topk: 8, experts: 64, rounds: 3, ..Case::default() };
    for case in [Case { by_expert: true, align: 8, ..case.clone() }, case] {
        let first = run::run(&case, Where::Device);
        for _ in 0..3 {
            crate::compare(&case, &first, &run::run(&Case { late: true, ..case.clone() }, Where::Device));
        }
    }
}

/// Hardly any tokens, so that ranks often have no rows to give back, whatever memory they hold for them.
#[test]
fn report_021_ranks_without_rows_in_any_order_of_calls() {
    if !on_a_gpu() {
        return;
    }
    for (seed, sync) in [(21, 0), (22, 1), (23, 2)] {
        let few = Setup { seed, sync, ranks: 3, tokens: 1, topk: 1, windows: 3, ..pair() };
        assert!(stress::run(&few, Where::Device));
    }
}

/// Batches in flight beside each other, received in any order: the stress of a few setups with a depth of their own.
#[test]
fn report_064_and_066_several_batches_in_flight() {
    if !on_a_gpu() {
        return;
    }
    for (seed, layout) in [(11, 0), (12, 1)] {
        let setup = Setup { seed, layout, ranks: 3, in_flight: 3, windows: 4, ..pair() };
        assert!(stress::run(&setup, Where::Device));
    }
}
