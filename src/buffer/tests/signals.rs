//! Signals under loom: every row read is of the right epoch, and every wait ends; and with a mistake in the code, or with weaker
//! orderings, loom finds an execution in which that is not so.

use super::super::state::Buffer;
use super::harness::*;
use crate::mem::word::explored::Weaken;
use crate::plan::config::RawConfig;
use crate::plan::words::Turns;
use std::sync::Arc;

fn in_turn(operations: usize, mistake: Mistake) -> impl Fn(usize, Arc<Buffer>, &World) + Send + Sync {
    move |_, buffer, _| one_by_one(&buffer, operations, mistake)
}

/// Two operations in flight, received the other way round.
fn crosswise(buffer: &Buffer) {
    let mut first = send(buffer, Mistake::None).unwrap();
    for _ in 0..2 {
        let second = send(buffer, Mistake::None).unwrap();
        receive(buffer, second).unwrap();
        receive(buffer, first).unwrap();
        first = send(buffer, Mistake::None).unwrap();
    }
    receive(buffer, first).unwrap();
}

#[test]
fn rows_in_two_windows_in_turn() {
    explore(world(2, PATIENT, |_| {}), Extent::preemptions(3), in_turn(5, Mistake::None));
}

#[test]
fn rows_in_one_window_behind_barriers() {
    let one_window = |raw: &mut RawConfig| raw.dispatch_windows = 1;
    explore(world(2, PATIENT, one_window), Extent::preemptions(3), in_turn(3, Mistake::None));
}

#[test]
fn rows_in_one_window_behind_acknowledgements() {
    let one_window = |raw: &mut RawConfig| (raw.dispatch_windows, raw.sync) = (1, 1);
    explore(world(2, PATIENT, one_window), Extent::preemptions(3), in_turn(4, Mistake::None));
}

#[test]
fn a_barrier_in_front_of_every_operation() {
    let always = |raw: &mut RawConfig| raw.sync = 2;
    explore(world(2, PATIENT, always), Extent::preemptions(3), in_turn(3, Mistake::None));
}

#[test]
fn operations_in_flight_are_received_in_any_order() {
    let two = |raw: &mut RawConfig| raw.max_in_flight = 2;
    explore(world(2, PATIENT, two), Extent::preemptions(3), |_, buffer, _| crosswise(&buffer));
}

#[test]
fn a_barrier_beside_an_operation_in_flight() {
    let two = |raw: &mut RawConfig| raw.max_in_flight = 2;
    explore(world(2, PATIENT, two), Extent::preemptions(3), |_, buffer, _| {
        for _ in 0..2 {
            let sent = send(&buffer, Mistake::None).unwrap();
            buffer.barrier(0).unwrap();
            receive(&buffer, sent).unwrap();
        }
    });
}

/// After a reset, with epochs around 2^32.
#[test]
fn epochs_go_on_beyond_32_bits() {
    explore(world(2, PATIENT, |raw| raw.sync = 1), Extent::preemptions(2), |_, buffer, _| {
        buffer.enter().unwrap().state.restart((1 << 32) - 2);
        one_by_one(&buffer, 4, Mistake::None);
    });
}

#[test]
fn a_missing_release_or_acquire_is_found() {
    for weaken in [Weaken::Releases, Weaken::Acquires] {
        let explored =
            || explore(world(2, PATIENT, |_| {}), Extent::weakened(weaken), in_turn(1, Mistake::None));
        assert!(finds_a_fault(explored), "{weaken:?}");
    }
}

#[test]
fn a_row_behind_its_signal_is_found() {
    let explored =
        || explore(world(2, PATIENT, |_| {}), Extent::preemptions(2), in_turn(1, Mistake::SignalsBeforeRows));
    assert!(finds_a_fault(explored));
}

#[test]
fn a_window_written_without_its_guard_is_found() {
    for sync in [0, 1] {
        let one_window = |raw: &mut RawConfig| (raw.dispatch_windows, raw.sync) = (1, sync);
        let explored = || {
            explore(world(2, PATIENT, one_window), Extent::preemptions(2), in_turn(2, Mistake::DoesNotGuard))
        };
        assert!(finds_a_fault(explored), "sync {sync}");
    }
}

/// The turns of one operation in flight, used for two: a word is overtaken before it was checked.
#[test]
fn words_used_in_too_few_turns_are_found() {
    let two = |raw: &mut RawConfig| raw.max_in_flight = 2;
    let explored = || {
        explore(world(2, PATIENT, two), Extent::preemptions(2), |_, buffer, _| {
            buffer.enter().unwrap().state.turns = Turns::new(0);
            crosswise(&buffer);
        })
    };
    assert!(finds_a_fault(explored));
}
