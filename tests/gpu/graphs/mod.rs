//! CUDA graphs: what a graph's replays give, with other inputs each time, is what the host backend gives for the same calls.

mod killed;
mod lane;
mod lost;
mod mismatch;
mod overlap;
mod refused;
mod reset;

use crate::cases::Case;
use crate::cuda::{self, CaptureMode, Graph};
use crate::meeting::Meeting;
use crate::memory::{Arena, Where};
use crate::observe;
use crate::ranks::{ok, report, Buffer, Seat, World};
use crate::rng::Rng;
use crate::run::Outputs;
use deepep::capi::*;
use lane::Lane;
use std::ffi::c_void;

pub use killed::{go_on_alone, kill_in_the_middle, Middle};
pub use lost::{destroy_under_replay, kill_in_replay, survivors};
pub use refused::{areas_and_claims, beside_a_capture, busy_everywhere, send_without_receive, two_at_once};
pub use reset::{all_alive, one_left_out};

type Stream = *mut c_void;

/// One rank of a script.
pub struct Player<'a> {
    case: &'a Case,
    rank: usize,
    buffers: Vec<Buffer>,
    arena: &'a Arena,
    /// All ranks have come to the same line of the script.
    meeting: &'a Meeting,
}

/// Calls that are made anew each time, or a graph of them.
enum Record<'a> {
    Calls(Box<dyn Fn() + 'a>),
    Graph(Graph),
}

impl<'a> Player<'a> {
    fn lane(&self, buffer: usize) -> Lane<'a> {
        Lane::new(self.case, self.rank, self.buffers[buffer], self.arena)
    }

    fn stream(&self) -> Stream {
        self.arena.stream()
    }

    fn record<'b>(&self, mode: CaptureMode, work: impl Fn(Stream) + 'b) -> Record<'b> {
        let stream = self.stream();
        match stream.is_null() {
            true => Record::Calls(Box::new(move || work(stream))),
            false if mode == CaptureMode::Global => {
                Record::Graph(self.in_turn(|| cuda::capture(stream, mode, || work(stream))))
            }
            false => Record::Graph(cuda::capture(stream, mode, || work(stream))),
        }
    }

    /// One rank after the other: a global capture forbids all threads what might disturb it, such as to make a graph.
    fn in_turn<R>(&self, work: impl Fn() -> R) -> R {
        let mut result = None;
        for rank in 0..self.case.ranks {
            self.meeting.wait();
            if rank == self.rank {
                result = Some(work());
            }
        }
        self.meeting.wait();
        result.unwrap()
    }

    fn play(&self, record: &Record) {
        match record {
            Record::Calls(work) => work(),
            Record::Graph(graph) => graph.launch(self.stream()),
        }
        self.arena.wait();
    }

    /// Several times, with other inputs each time.
    fn replay(&self, record: &Record, lanes: &[Lane], times: usize) -> Outputs {
        let mut outputs = Vec::new();
        for time in 0..times {
            lanes.iter().enumerate().for_each(|(i, lane)| lane.load(time * lanes.len() + i));
            self.play(record);
            lanes.iter().enumerate().for_each(|(i, lane)| outputs.extend(lane.look(&format!("{time}.{i}"))));
        }
        outputs
    }

    fn barrier(&self, buffer: usize, stream: Stream) {
        ok(unsafe { deep_ep_buffer_barrier(self.buffers[buffer].0, stream) });
    }

    fn status(&self) -> deep_ep_status_t {
        report(self.buffers[0]).status
    }

    /// The status of a call that comes after a failure on the device.
    fn call_status(&self) -> deep_ep_status_t {
        let status = unsafe { deep_ep_buffer_barrier(self.buffers[0].0, self.stream()) };
        self.arena.wait();
        status
    }

    fn set_timeout(&self, ms: u32) {
        ok(unsafe { deep_ep_buffer_set_timeout(self.buffers[0].0, ms) });
    }
}

/// Plays a script on every rank.
fn play(
    case: &Case,
    place: Where,
    buffers: usize,
    script: &(dyn Fn(&Player) -> Outputs + Sync),
) -> Vec<Outputs> {
    let world = World::create(place, case.ranks).unwrap_or_else(|(_, text)| panic!("{text}"));
    let sets: Vec<Vec<Buffer>> =
        (0..buffers).map(|_| world.buffers(&case.config(place), case.map().as_deref())).collect();
    let meeting = Meeting::new(case.ranks);
    std::thread::scope(|scope| {
        let start = |rank: usize| {
            let buffers: Vec<Buffer> = sets.iter().map(|set| set[rank]).collect();
            let (meeting, seat) = (&meeting, Seat { comm: world.comms[rank], buffer: buffers[0] });
            scope.spawn(move || {
                let _abort = seat.abort_at_panic();
                let arena = Arena::new(place, rank);
                let player = Player { case, rank, buffers, arena: &arena, meeting };
                let outputs = script(&player);
                for buffer in &player.buffers {
                    ok(unsafe { deep_ep_buffer_destroy(buffer.0) });
                }
                outputs
            })
        };
        let ranks: Vec<_> = (0..case.ranks).map(start).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// The same script on both backends; the buffers must have nothing to report afterwards.
fn same(case: &Case, buffers: usize, script: &(dyn Fn(&Player) -> Outputs + Sync)) {
    let place = if crate::against_itself() { Where::Host } else { Where::Device };
    let script = &|player: &Player| {
        let outputs = script(player);
        assert_eq!(player.status(), deep_ep_status_t::DEEP_EP_SUCCESS, "after the script");
        outputs
    };
    crate::compare(case, &play(case, Where::Host, buffers, script), &play(case, place, buffers, script));
}

/// A graph of several pairs, and a barrier where that makes the number of operations odd.
pub fn replays(case: Case, pairs: usize, odd: bool, times: usize) {
    same(&case, 1, &|player| {
        let lanes: Vec<Lane> = (0..pairs).map(|_| player.lane(0)).collect();
        let graph = player.record(CaptureMode::Relaxed, |stream| {
            lanes.iter().for_each(|lane| lane.pair(stream));
            if odd {
                player.barrier(0, stream);
            }
        });
        let mut outputs = Vec::new();
        for time in 0..times {
            lanes.iter().enumerate().for_each(|(i, lane)| lane.load(time * pairs + i));
            player.play(&graph);
            lanes.iter().enumerate().for_each(|(i, lane)| outputs.extend(lane.look(&format!("{time}.{i}"))));
            // Bad ids and overflows.
            let found = report(player.buffers[0]);
            let numbers = [found.status as i64, found.operation.into(), found.row, found.value];
            outputs.push((format!("{time} report"), numbers.iter().flat_map(|n| n.to_le_bytes()).collect()));
        }
        outputs.push(observe::counted(player.buffers[0], case.ranks)); // replays count too
        outputs
    });
}

/// One rank is done with its sums long before the other, and writes the next rows into the window that the other still pulls
/// from, unless it is held back.
pub fn overwriting(case: Case, times: usize) {
    same(&case, 1, &|player| {
        let lane = player.lane(0);
        let graph = player.record(CaptureMode::Relaxed, |stream| {
            lane.dispatch(stream);
            lane.combine_and_overwrite(stream);
        });
        let mut outputs = Vec::new();
        for time in 0..times {
            lane.load(time);
            if player.rank == 0 {
                lane.limit(time, 1);
            }
            player.play(&graph);
            outputs.extend(lane.written(&format!("{time}")));
        }
        outputs
    });
}

/// Whether `combine_input` runs its barrier exactly where the rule asks for it, which the epochs tell.
pub fn claims(case: Case) {
    same(&case, 1, &|player| {
        let lane = player.lane(0);
        let pair = |stream: Stream| lane.pair(stream);
        let twice = |stream: Stream| {
            lane.pair(stream);
            lane.combine(stream);
        };
        let mut outputs = Vec::new();
        let mut note = |name: &str| {
            lane.load(1);
            lane.spoil();
            ok(lane.dispatch_whole(player.stream()));
            player.arena.wait();
            let found = report(player.buffers[0]);
            assert_eq!(found.status, deep_ep_status_t::DEEP_EP_INVALID_EXPERT_ID);
            outputs.push((name.to_string(), found.epoch.to_le_bytes().to_vec()));
            ok(unsafe { deep_ep_handle_release(lane.handle, player.stream()) });
        };
        lane.load(2);
        pair(player.stream());
        note("pair");
        twice(player.stream());
        twice(player.stream());
        note("twice");
        let graphs = [player.record(CaptureMode::Relaxed, pair), player.record(CaptureMode::Relaxed, twice)];
        for (time, kinds) in [&[0, 1][..], &[1, 1, 0], &[0, 0, 1, 0]].iter().enumerate() {
            kinds.iter().for_each(|&kind| player.play(&graphs[kind]));
            note(&format!("replays {time}"));
            twice(player.stream());
            player.play(&graphs[1]);
            pair(player.stream());
            note(&format!("mixed {time}"));
        }
        outputs
    });
}

/// Replays in which more rows may come than fit: that is reported each time, and taken.
pub fn overflowing(case: Case, times: usize) {
    same(&case, 1, &|player| {
        let lane = player.lane(0);
        let graph = player.record(CaptureMode::Relaxed, |stream| lane.pair(stream));
        let mut outputs = Vec::new();
        for time in 0..times {
            lane.load(time);
            player.play(&graph);
            outputs.extend(lane.look(&format!("{time}")));
            let status = player.status() as u32;
            outputs.push((format!("{time} report"), status.to_le_bytes().to_vec()));
        }
        outputs
    });
}

/// Two graphs in any order, mixed with eager calls on the same buffer.
pub fn mixed(case: Case, steps: usize) {
    same(&case, 1, &|player| {
        let lanes: Vec<Lane> = (0..5).map(|_| player.lane(0)).collect();
        let eager = &lanes[4];
        eager.load(1000);
        eager.pair(player.stream());
        player.arena.wait();
        let odd = player.record(CaptureMode::Relaxed, |stream| {
            lanes[0].pair(stream);
            player.barrier(0, stream);
        });
        let even = player.record(CaptureMode::Relaxed, |stream| {
            lanes[1..4].iter().for_each(|lane| lane.pair(stream));
        });
        let mut rng = Rng::new(17); // the same on every rank
        let mut outputs = Vec::new();
        for step in 0..steps {
            lanes.iter().enumerate().for_each(|(i, lane)| lane.load(step * 5 + i));
            let seen = match rng.below(3) {
                0 => {
                    player.play(&odd);
                    0..1
                }
                1 => {
                    player.play(&even);
                    1..4
                }
                _ => {
                    eager.pair(player.stream());
                    player.arena.wait();
                    4..5
                }
            };
            for i in seen {
                outputs.extend(lanes[i].look(&format!("{step}.{i}")));
            }
        }
        outputs
    });
}

/// Dispatch in one graph, combine in another or eagerly; and a dispatch that is eager, with a captured combine.
pub fn apart(case: Case, times: usize) {
    same(&case, 1, &|player| {
        let lane = player.lane(0);
        let dispatch = player.record(CaptureMode::Global, |stream| lane.dispatch(stream));
        let combine = player.record(CaptureMode::Global, |stream| lane.combine(stream));
        let mut outputs = Vec::new();
        for time in 0..times {
            lane.load(time);
            match time % 3 {
                0 | 1 => player.play(&dispatch),
                _ => lane.dispatch(player.stream()),
            }
            match time % 3 {
                0 | 2 => player.play(&combine),
                _ => lane.combine(player.stream()),
            }
            player.arena.wait();
            outputs.extend(lane.look(&format!("{time}")));
        }
        outputs
    });
}

/// A capture that forks into a second stream and comes back.
pub fn forked(case: Case, times: usize) {
    same(&case, 1, &|player| {
        let lanes = [player.lane(0), player.lane(0)];
        let place = if player.stream().is_null() { Where::Host } else { Where::Device };
        let beside = Arena::new(place, player.rank);
        let join = |first: Stream, second: Stream| {
            if !first.is_null() {
                cuda::join(first, second);
            }
        };
        let graph = player.record(CaptureMode::Relaxed, |stream| {
            let other = beside.stream();
            join(stream, other);
            lanes[0].dispatch(other);
            join(other, stream);
            lanes[0].combine(stream);
            join(stream, other);
            lanes[1].pair(other);
            join(other, stream);
        });
        player.replay(&graph, &lanes, times)
    });
}

/// Several buffers of one comm in one graph.
pub fn two_buffers(case: Case, times: usize) {
    same(&case, 2, &|player| {
        let lanes = [player.lane(0), player.lane(1)];
        let graph = player.record(CaptureMode::Relaxed, |stream| {
            lanes.iter().for_each(|lane| lane.pair(stream));
            player.barrier(1, stream);
        });
        player.replay(&graph, &lanes, times)
    });
}
