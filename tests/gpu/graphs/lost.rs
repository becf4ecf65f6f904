//! Peers that are gone while graphs are replayed.

use super::{reset, CaptureMode, Player, Record};
use crate::cases::{Case, Mode};
use crate::meeting::Meeting;
use crate::memory::{Arena, Where};
use crate::processes::{as_it_is, buffer, child_rank, end, join, start, Environment};
use crate::ranks::{ok, report, World};
use crate::run::Outputs;
use deepep::capi::*;
use std::time::{Duration, Instant};

const TIMEOUT: deep_ep_status_t = deep_ep_status_t::DEEP_EP_TIMEOUT;
pub const VICTIM: usize = 1;

/// A test of several processes, of which one kills itself; `script` is that of each.
pub fn lose_one(
    test: &str,
    case: &Case,
    environment: impl Fn(usize) -> Environment,
    script: impl Fn(&Player) -> Outputs,
) -> Option<(usize, Outputs)> {
    let Some(rank) = child_rank() else {
        let mut children = start(test, case.ranks, environment);
        for (rank, child) in children.iter_mut().enumerate() {
            let well = end(child, Duration::from_secs(if rank == VICTIM { 1 } else { 40 }));
            assert_eq!(well, rank != VICTIM, "rank {rank}");
        }
        return None;
    };
    let comm = join(rank, case.ranks);
    let mut config = case.config(Where::Device);
    // Processes that share a GPU take turns on it.
    (config.timeout_ms, config.first_timeout_ms) = (10_000, 10_000);
    let (buffers, arena, meeting) =
        (vec![buffer(comm, &config)], Arena::new(Where::Device, rank), Meeting::new(1));
    let player = Player { case, rank, buffers, arena: &arena, meeting: &meeting };
    let outputs = script(&player);
    ok(unsafe { deep_ep_buffer_destroy(player.buffers[0].0) });
    ok(unsafe { deep_ep_comm_destroy(comm) });
    Some((rank, outputs))
}

/// Some replays together; then the victim is gone, and the others' next replay finds out.
fn replay_until_lost(player: &Player) {
    let lane = player.lane(0);
    let graph = player.record(CaptureMode::Relaxed, |stream| lane.pair(stream));
    for time in 0..3 {
        lane.load(time);
        player.play(&graph);
        assert!(!lane.is_untouched());
    }
    if player.rank == VICTIM {
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    player.set_timeout(500);
    let begin = Instant::now();
    lane.load(5);
    player.play(&graph);
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    assert!(lane.is_untouched());
    let begin = Instant::now();
    for _ in 0..20 {
        player.play(&graph);
    }
    // No deadline is waited for, which would be ten seconds.
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    assert_eq!(player.call_status(), TIMEOUT);
    assert_eq!((report(player.buffers[0]).first_missing, report(player.buffers[0]).num_missing), (1, 1));
    player.set_timeout(10_000);
}

pub fn kill_in_replay(test: &str) {
    let case = Case { ranks: 2, mode: Mode::InPlace, ..Case::default() };
    lose_one(test, &case, as_it_is, |player| {
        replay_until_lost(player);
        Vec::new()
    });
}

pub fn survivors(test: &str) {
    let case = Case { ranks: 3, mode: Mode::InPlace, experts: 18, ..Case::default() };
    let alive = [1, 0, 1];
    let found = lose_one(test, &case, as_it_is, |player| {
        replay_until_lost(player);
        ok(unsafe { deep_ep_buffer_reset(player.buffers[0].0, alive.as_ptr()) });
        reset::after_reset(player, &player.lane(0), 2)
    });
    if let Some((rank, outputs)) = found {
        crate::compare(&case, &[reset::expected(&case, &alive, 2).swap_remove(rank)], &[outputs]);
    }
}

/// The kernel of a replay waits for a peer that does not come, and its buffer is destroyed.
pub fn destroy_under_replay() {
    let case = Case { ranks: 2, ..Case::default() };
    let world = World::create(Where::Device, 2).unwrap();
    let buffers = world.buffers(&case.config(Where::Device), None);
    let (arena, meeting) = (Arena::new(Where::Device, 0), Meeting::new(1));
    let player = Player { case: &case, rank: 0, buffers: buffers.clone(), arena: &arena, meeting: &meeting };
    let lane = player.lane(0);
    let Record::Graph(graph) = player.record(CaptureMode::Relaxed, |stream| lane.pair(stream)) else {
        unreachable!()
    };
    lane.load(1);
    graph.launch(player.stream());
    std::thread::sleep(Duration::from_millis(50));
    let begin = Instant::now();
    ok(unsafe { deep_ep_buffer_destroy(buffers[0].0) });
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
    arena.wait();
    assert!(lane.is_untouched());
    ok(unsafe { deep_ep_buffer_destroy(buffers[1].0) });
    // The context and the process stay usable.
    super::replays(case.clone(), 1, false, 2);
}
