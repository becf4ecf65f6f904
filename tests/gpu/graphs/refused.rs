//! What only the device can refuse, and captures that are not whole.

use super::{play, CaptureMode, Player};
use crate::cases::Case;
use crate::memory::Where;
use crate::ranks::{last_error, ok};
use crate::run::Outputs;
use deepep::capi::*;

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
    crate::compare(&case, &host, &play(&case, Where::Device, 1, &script));
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
