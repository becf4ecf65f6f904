//! Going on after a failure, eagerly and with graphs.

use super::lane::Lane;
use super::{play, CaptureMode, Player, Record};
use crate::cases::Case;
use crate::memory::Where;
use crate::ranks::ok;
use crate::run::Outputs;
use deepep::capi::*;

const TIMEOUT: deep_ep_status_t = deep_ep_status_t::DEEP_EP_TIMEOUT;
const SUCCESS: deep_ep_status_t = deep_ep_status_t::DEEP_EP_SUCCESS;

impl Player<'_> {
    fn reset(&self, alive: &[u8]) {
        ok(unsafe { deep_ep_buffer_reset(self.buffers[0].0, alive.as_ptr()) });
        assert_eq!(self.status(), SUCCESS);
    }
}

/// Pairs on an old and a new handle, and replays of a new graph.
pub fn after_reset(player: &Player, old: &Lane, times: usize) -> Outputs {
    let new = [player.lane(0), player.lane(0)];
    let graph = player.record(CaptureMode::Relaxed, |stream| new[1].pair(stream));
    let mut outputs = Vec::new();
    for time in 0..times {
        [old, &new[0], &new[1]].iter().enumerate().for_each(|(i, lane)| lane.load(time * 3 + i));
        old.pair(player.stream());
        new[0].pair(player.stream());
        player.play(&graph);
        for (i, lane) in [old, &new[0], &new[1]].iter().enumerate() {
            outputs.extend(lane.look(&format!("{time}.{i}")));
        }
    }
    player.barrier(0, player.stream());
    player.arena.wait();
    assert_eq!(player.status(), SUCCESS, "after the reset");
    outputs
}

/// The same on the host backend, with a reset of a healthy buffer.
pub fn expected(case: &Case, alive: &[u8], times: usize) -> Vec<Outputs> {
    play(case, Where::Host, 1, &|player| match alive[player.rank] {
        0 => Vec::new(),
        _ => {
            player.reset(alive);
            after_reset(player, &player.lane(0), times)
        }
    })
}

/// A pair, and a graph of another that has been played.
fn before<'a>(player: &Player, lane: &Lane, other: &'a Lane) -> Record<'a> {
    lane.load(1);
    lane.pair(player.stream());
    let graph = player.record(CaptureMode::Relaxed, |stream| other.pair(stream));
    other.load(2);
    player.play(&graph);
    graph
}

/// With three rounds after a first reset and one more.
fn compare(case: &Case, alive: &[u8], device: &[Outputs]) {
    let host = expected(case, alive, 3).into_iter().zip(expected(case, alive, 1));
    let host: Vec<_> = host.map(|(first, second)| [first, second].concat()).collect();
    crate::compare(case, &host, device);
}

/// The last rank stays away until the others have given up.
fn time_out(player: &Player, lane: &Lane, late: usize) {
    player.arena.wait();
    player.meeting.wait();
    player.set_timeout(200);
    if player.rank != late {
        lane.load(7);
        ok(lane.dispatch_whole(player.stream()));
        player.arena.wait();
        assert!(lane.is_untouched());
        assert_eq!(player.call_status(), TIMEOUT);
        assert_eq!(crate::ranks::report(player.buffers[0]).first_missing, late as i32);
    }
    player.meeting.wait();
    player.set_timeout(4000);
}

/// The rank that was given up goes on. What the others had sent by then is all that a slotted dispatch waits for: it is
/// the sums that lack.
fn only_slow(player: &Player, lane: &Lane) {
    lane.load(3);
    player.set_timeout(300);
    ok(lane.dispatch_whole(player.stream()));
    if player.case.slotted {
        lane.combine(player.stream());
    }
    player.arena.wait();
    assert!(if player.case.slotted { lane.has_no_sums() } else { lane.is_untouched() });
    assert_ne!(player.call_status(), SUCCESS);
}

pub fn all_alive(case: Case) {
    let alive = vec![1; case.ranks];
    let device = play(&case, Where::Device, 1, &|player| {
        let (lane, other) = (player.lane(0), player.lane(0));
        let old = before(player, &lane, &other);
        let want = other.written("old");
        time_out(player, &lane, case.ranks - 1);
        player.reset(&alive);
        let mut outputs = after_reset(player, &lane, 3);
        // The same memory: graphs of before are still good.
        other.load(2);
        player.play(&old);
        assert!(other.written("old") == want, "a graph of before the reset");
        player.reset(&alive);
        outputs.extend(after_reset(player, &lane, 1));
        outputs
    });
    compare(&case, &alive, &device);
}

pub fn one_left_out(case: Case) {
    let lost = case.ranks - 1;
    let mut alive = vec![1; case.ranks];
    alive[lost] = 0;
    let device = play(&case, Where::Device, 1, &|player| {
        let (lane, other) = (player.lane(0), player.lane(0));
        let old = before(player, &lane, &other);
        time_out(player, &lane, lost);
        let mut outputs = Vec::new();
        if player.rank == lost {
            only_slow(player, &lane);
        } else {
            player.reset(&alive);
            outputs = after_reset(player, &lane, 3);
            // Graphs of the old memory do nothing.
            other.load(4);
            player.play(&old);
            assert!(other.is_untouched());
            outputs.extend(after_reset(player, &lane, 1));
        }
        player.meeting.wait();
        outputs
    });
    compare(&case, &alive, &device);
}
