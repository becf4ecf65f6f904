//! Waits that end without the signal, under loom: by an abort, a verdict, another operation, the deadline.

use super::super::state::Buffer;
use super::harness::*;
use crate::error::{Error, Status};
use crate::mem::word::explored::{Weaken, PAUSE};
use std::sync::Arc;

fn barrier_fails(buffer: &Buffer) -> Error {
    buffer.barrier(0).expect_err("a barrier without all ranks")
}

fn one_aborts(rank: usize, buffer: Arc<Buffer>, world: &World) {
    if rank == 0 {
        let error = barrier_fails(&buffer);
        assert_eq!(error.status, Status::DEEP_EP_ABORTED, "{error}");
        let of = |rank: u32| {
            error.ranks == [rank] && error.text.ends_with(&format!("rank {rank} aborted: because {rank}"))
        };
        assert!(of(1) || of(2), "{error}");
        // It stays so.
        assert_eq!(barrier_fails(&buffer).status, Status::DEEP_EP_ABORTED);
    } else {
        world.comm(rank).abort(&format!("because {rank}"));
    }
}

#[test]
fn an_abort_ends_a_wait_and_is_read_whole() {
    explore(world(2, PATIENT, |_| {}), Extent::preemptions(3), one_aborts);
    explore(world(3, PATIENT, |_| {}), Extent::preemptions(1), one_aborts);
}

/// Rank 2 never comes, and rank 0 is the first to give up.
fn one_gives_up(rank: usize, buffer: Arc<Buffer>, _: &World) {
    if rank == 2 {
        return;
    }
    if rank == 0 {
        buffer.set_timeout(3 * PAUSE.as_millis() as u32).unwrap();
    }
    let error = barrier_fails(&buffer);
    assert_eq!(error.status, Status::DEEP_EP_TIMEOUT, "{error}");
    let expected: &[&[u32]] = match rank {
        // Rank 1 may have come, or not yet.
        0 => &[&[2], &[1, 2]],
        // Told by rank 0 that it is rank 2 that is missing; or rank 0 missed rank 1 as well.
        _ => &[&[2], &[0]],
    };
    assert!(expected.contains(&&error.ranks[..]), "rank {rank}: {:?} {error}", error.ranks);
}

#[test]
fn a_verdict_ends_the_waits_of_others() {
    explore(world(3, PATIENT, |_| {}), Extent::preemptions(2), one_gives_up);
}

#[test]
fn a_verdict_or_an_abort_before_its_words_is_found() {
    let weakened = Extent::weakened(Weaken::Releases);
    assert!(finds_a_fault(|| explore(world(3, PATIENT, |_| {}), weakened, one_gives_up)));
    assert!(finds_a_fault(|| explore(world(2, PATIENT, |_| {}), weakened, one_aborts)));
}

#[test]
fn a_barrier_against_a_dispatch_is_named_on_both_ranks() {
    explore(world(2, PATIENT, |_| {}), Extent::preemptions(3), |rank, buffer, _| {
        let error = match rank {
            0 => barrier_fails(&buffer),
            _ => send(&buffer, Mistake::None).and_then(|sent| receive(&buffer, sent)).unwrap_err(),
        };
        assert_eq!(error.status, Status::DEEP_EP_OP_MISMATCH, "rank {rank}: {error}");
        assert_eq!(error.ranks, [1 - rank as u32]);
    });
}

#[test]
fn a_rank_alone_waits_until_its_deadline_and_no_longer() {
    explore(world(2, 5, |_| {}), Extent::preemptions(3), |rank, buffer, _| {
        if rank == 0 {
            let error = barrier_fails(&buffer);
            assert_eq!((error.status, &error.ranks[..]), (Status::DEEP_EP_TIMEOUT, &[1][..]), "{error}");
        }
    });
}
