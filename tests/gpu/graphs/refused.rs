//! What only the device can refuse, and captures that are not whole.

use super::lane::Lane;
use super::{play, CaptureMode, Player};
use crate::cases::{patience, Case};
use crate::cuda;
use crate::memory::{Arena, Where};
use crate::ranks::{last_error, ok, World};
use crate::run::Outputs;
use deepep::capi::*;
use std::time::Duration;

const BUSY: deep_ep_status_t = deep_ep_status_t::DEEP_EP_BUSY;
const SUCCESS: deep_ep_status_t = deep_ep_status_t::DEEP_EP_SUCCESS;

fn script(player: &Player) -> Outputs {
    let (lane, other) = (player.lane(0), player.lane(0));
    let dispatch = player.record(CaptureMode::Relaxed, |stream| lane.dispatch(stream));
    let combine = player.record(CaptureMode::Relaxed, |stream| lane.combine(stream));
    let expect = |status, line| assert_eq!(player.status(), status, "rank {}: {line}", player.rank);
    let rows = |lane: &super::Lane| {
        let outputs = lane.look("");
        outputs[0].1[outputs[0].1.len() - 8..].to_vec() != [0; 8]
    };
    let mut outputs = Vec::new();
    for time in 0..6 {
        lane.load(3 + time);
        other.load(50 + time);
        player.play(&dispatch);
        expect(SUCCESS, "dispatch");
        // The window is taken: for another handle, and for this one.
        ok(other.dispatch_whole(player.stream()));
        player.arena.wait();
        expect(BUSY, "another dispatch");
        assert!(!rows(&other));
        ok(other.combine_status(player.stream()));
        player.arena.wait();
        expect(BUSY, "combine of what was refused");
        if time % 2 == 0 {
            player.play(&dispatch);
            expect(BUSY, "dispatch again");
            assert!(!rows(&lane));
            player.play(&combine);
            expect(BUSY, "combine of a dispatch that was refused");
        } else {
            player.play(&combine);
            expect(SUCCESS, "combine");
            outputs.extend(lane.look(&format!("{time}")));
        }
        other.load(100 + time);
        other.pair(player.stream());
        player.arena.wait();
        expect(SUCCESS, "pair");
        outputs.extend(other.look(&format!("{time} other")));
    }
    player.meeting.wait();
    outputs
}

/// The same calls as far as they were not refused.
fn script_on_host(player: &Player) -> Outputs {
    let (lane, other) = (player.lane(0), player.lane(0));
    let mut outputs = Vec::new();
    for time in 0..6 {
        if time % 2 == 1 {
            lane.load(3 + time);
            lane.pair(player.stream());
            outputs.extend(lane.look(&format!("{time}")));
        }
        other.load(100 + time);
        other.pair(player.stream());
        outputs.extend(other.look(&format!("{time} other")));
    }
    outputs
}

pub fn busy_everywhere() {
    let case = Case { ranks: 3, experts: 12, windows: 1, ..Case::default() };
    let host = play(&case, Where::Host, 1, &script_on_host);
    let device = play(&case, Where::Device, 1, &script);
    crate::compare(&case, &without_counts(host), &without_counts(device));
}

/// What was refused on the device is counted there, and was not called on the host.
fn without_counts(mut ranks: Vec<Outputs>) -> Vec<Outputs> {
    for outputs in &mut ranks {
        outputs.retain(|(name, _)| name != "statistics");
    }
    ranks
}

pub fn send_without_receive() {
    let case = Case { ranks: 1, ..Case::default() };
    play(&case, Where::Device, 1, &|player| {
        let (lane, other) = (player.lane(0), player.lane(0));
        lane.load(1);
        other.load(2);
        let _graph = player.record(CaptureMode::Relaxed, |stream| lane.dispatch_send(stream));
        assert_eq!(lane.dispatch_recv(player.stream()), deep_ep_status_t::DEEP_EP_INVALID_STATE);
        assert!(last_error().contains("capture"), "{}", last_error());
        assert_eq!(lane.dispatch_whole(player.stream()), deep_ep_status_t::DEEP_EP_INVALID_STATE);
        // Sent eagerly, received in a capture.
        other.dispatch_send(player.stream());
        let graph = player.record(CaptureMode::Relaxed, |stream| {
            assert_eq!(other.dispatch_recv(stream), deep_ep_status_t::DEEP_EP_INVALID_STATE);
            player.barrier(0, stream);
        });
        ok(other.dispatch_recv(player.stream()));
        other.combine(player.stream());
        player.play(&graph);
        Vec::new()
    });
}

/// Rows in local areas and claimed windows that a replay would overwrite.
pub fn areas_and_claims() {
    let mode = crate::cases::Mode::InPlace;
    for by_expert in [true, false] {
        let case = Case { ranks: 2, by_expert, windows: 1, mode, ..Case::default() };
        let host = play(&case, Where::Host, 1, &|player| {
            let lane = player.lane(0);
            lane.load(1);
            lane.pair(player.stream());
            lane.look("pair")
        });
        let device = play(&case, Where::Device, 1, &|player| {
            let (lane, other) = (player.lane(0), player.lane(0));
            let graph = player.record(CaptureMode::Relaxed, |stream| other.pair(stream));
            for _ in 0..2 {
                lane.load(1);
                lane.dispatch(player.stream());
                other.load(2);
                player.play(&graph);
                assert_eq!(player.status(), BUSY);
                assert!(other.is_untouched());
                lane.combine(player.stream());
                player.arena.wait();
                assert_eq!(player.status(), SUCCESS);
                player.play(&graph);
                assert_eq!(player.status(), SUCCESS);
                assert!(!other.is_untouched());
            }
            // A claim keeps others out too: here the other's copy has spoilt the rows, and the report says so.
            lane.dispatch(player.stream());
            lane.claim(player.stream());
            other.load(3);
            player.play(&graph);
            assert_eq!(player.status(), BUSY);
            assert!(other.is_untouched());
            lane.load(1);
            lane.combine(player.stream());
            player.arena.wait();
            assert_eq!(player.status(), SUCCESS);
            player.play(&graph);
            assert_eq!(player.status(), SUCCESS);
            lane.load(1);
            lane.pair(player.stream());
            player.arena.wait();
            lane.look("pair")
        });
        crate::compare(&case, &without_counts(host), &without_counts(device));
    }
}

/// What is made, asked and refused while a stream captures leaves the capture as it is.
pub fn beside_a_capture() {
    let case = Case { ranks: 1, ..Case::default() };
    let script = |player: &Player| {
        let (lane, eager) = (player.lane(0), player.lane(0));
        eager.load(1);
        let graph = player.record(CaptureMode::Global, |stream| {
            lane.dispatch(stream);
            if !stream.is_null() {
                assert_eq!(lane.counts(), Err(deep_ep_status_t::DEEP_EP_INVALID_STATE));
                assert!(last_error().contains("captured"), "{}", last_error());
                assert_ne!(lane.dispatch_whole(stream), SUCCESS);
                player.set_timeout(3000);
                assert_eq!(player.status(), SUCCESS);
                let made = World::create(Where::Device, 1).unwrap();
                let buffer = made.buffers(&case.config(Where::Device), None)[0];
                let other = crate::memory::Arena::new(Where::Device, 0);
                ok(unsafe { deep_ep_buffer_barrier(buffer.0, other.stream()) });
                other.wait();
                ok(unsafe { deep_ep_buffer_destroy(buffer.0) });
            }
            lane.combine(stream);
        });
        lane.load(2);
        player.play(&graph);
        eager.pair(player.stream());
        player.arena.wait();
        [lane.look("lane"), eager.look("eager")].concat()
    };
    crate::compare(&case, &play(&case, Where::Host, 1, &script), &play(&case, Where::Device, 1, &script));
}

/// A second launch begins while the first waits for a rank that does not come: of another capture, or of the same.
pub fn two_at_once(case: Case) {
    for same in [false, true] {
        play(&case, Where::Device, 1, &|player| {
            if player.rank == 0 {
                launch_two(player, same);
            }
            player.meeting.wait();
            Outputs::new()
        });
    }
}

fn launch_two(player: &Player, same: bool) {
    let (stream, beside) = (player.stream(), Arena::new(Where::Device, player.rank));
    let lanes = [player.lane(0), player.lane(0)];
    lanes.iter().for_each(|lane| lane.load(1));
    player.arena.wait();
    let of = |lane: &Lane| cuda::captured(stream, CaptureMode::Relaxed, || ok(lane.dispatch_whole(stream)));
    let [first, second] = of(&lanes[0]);
    let [other, _] = of(&lanes[1]);
    first.launch(stream);
    std::thread::sleep(Duration::from_millis(50) * patience());
    (if same { second } else { other }).launch(beside.stream());
    beside.wait();
    player.arena.wait();
    assert_eq!(player.status(), deep_ep_status_t::DEEP_EP_CONCURRENT_USE);
    assert!(lanes[1].has_no_sums());
}
