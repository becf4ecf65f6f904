//! Two batches in overlap on slotted layouts: the second is on its way before the first has come back. In graphs and in
//! calls, whole and in halves, in every order that the rule of windows lets through, and where it says BUSY.

use super::{play, report, same, CaptureMode, Lane, Player, Stream};
use crate::cases::{Case, Mode};
use crate::memory::Where;
use crate::observe;
use crate::ranks::ok;
use crate::rng::Rng;
use crate::run::Outputs;
use deepep::capi::deep_ep_status_t::{self as Status, DEEP_EP_BUSY as BUSY, DEEP_EP_SUCCESS as SUCCESS};
use std::time::Duration;

type Pair<'a> = [Lane<'a>; 2];

fn pair<'a>(player: &Player<'a>) -> Pair<'a> {
    [player.lane(0), player.lane(0)]
}

/// One order of the calls of two batches.
type Order = fn(&Pair, Stream);

const ORDERS: [(&str, Order); 5] = [
    ("whole", |[a, b], stream| {
        ok(a.dispatch_whole(stream));
        ok(b.dispatch_whole(stream));
        a.combine(stream);
        b.combine(stream);
    }),
    ("claimed", |[a, b], stream| {
        ok(a.dispatch_whole(stream));
        ok(b.dispatch_whole(stream));
        a.claim(stream);
        b.claim(stream);
        b.combine(stream);
        a.combine(stream);
    }),
    ("halves in order", |[a, b], stream| {
        a.dispatch_send(stream);
        b.dispatch_send(stream);
        ok(a.dispatch_recv(stream));
        ok(b.dispatch_recv(stream));
        a.combine_send(stream);
        b.combine_send(stream);
        ok(a.combine_recv(stream));
        ok(b.combine_recv(stream));
    }),
    ("halves out of order", |[a, b], stream| {
        a.dispatch_send(stream);
        b.dispatch_send(stream);
        ok(b.dispatch_recv(stream));
        ok(a.dispatch_recv(stream));
        b.combine_send(stream);
        a.combine_send(stream);
        ok(a.combine_recv(stream));
        ok(b.combine_recv(stream));
    }),
    ("combine beside dispatch", |[a, b], stream| {
        a.dispatch_send(stream);
        ok(a.dispatch_recv(stream));
        b.dispatch_send(stream);
        a.combine_send(stream);
        ok(a.combine_recv(stream));
        ok(b.dispatch_recv(stream));
        b.combine(stream);
    }),
];

/// Every order as a graph and as calls, one after the other, with ranks that are late.
fn overlapping(case: Case, times: usize) {
    same(&case, 1, &|player| {
        let (captured, eager) = (ORDERS.map(|_| pair(player)), pair(player));
        let record = |(lanes, (_, order)): (_, (_, Order))| {
            player.record(CaptureMode::Relaxed, move |stream| order(lanes, stream))
        };
        let graphs: Vec<_> = captured.iter().zip(ORDERS).map(record).collect();
        let mut dice = Rng::new(player.rank as u64 + 1);
        let mut outputs = Vec::new();
        for time in 0..times {
            let at = time % ORDERS.len();
            let (name, order) = ORDERS[at];
            let replays = time / ORDERS.len() % 2 == time % 2;
            let lanes = if replays { &captured[at] } else { &eager };
            lanes.iter().enumerate().for_each(|(i, lane)| lane.load(time * 2 + i));
            std::thread::sleep(Duration::from_micros(dice.below(400) as u64));
            match replays {
                true => player.play(&graphs[at]),
                false => {
                    order(lanes, player.stream());
                    player.arena.wait();
                }
            }
            for (i, lane) in lanes.iter().enumerate() {
                outputs.extend(lane.look(&format!("{time} {name}, batch {i}")));
            }
        }
        outputs.push(observe::counted(player.buffers[0], case.ranks));
        outputs
    });
}

fn note(outputs: &mut Outputs, what: &str, status: Status) {
    outputs.push((what.to_string(), (status as u32).to_le_bytes().to_vec()));
}

/// What the host refuses before anything is enqueued, and that all goes on as if it had not been called. `at_once`: whether
/// a second batch may be open beside the first.
fn refusals(case: Case, at_once: bool) {
    same(&case, 1, &|player| {
        let [a, b, c] = [(); 3].map(|()| player.lane(0));
        let stream = player.stream();
        let mut outputs = Vec::new();
        let mut look = |name: &str, lane: &Lane| {
            player.arena.wait();
            outputs.extend(lane.look(name));
        };
        let expect = |what: &str, status, busy| {
            assert_eq!(status, if busy { BUSY } else { SUCCESS }, "rank {}: {what}", player.rank);
        };
        [&a, &b, &c].iter().enumerate().for_each(|(i, lane)| lane.load(i));
        expect("the first batch", a.dispatch_whole(stream), false);
        expect("again, on the same handle", a.dispatch_whole(stream), true);
        let second = b.dispatch_whole(stream);
        expect("a second batch", second, !at_once);
        look("first", &a);
        a.combine(stream);
        if !at_once {
            expect("the second, later", b.dispatch_whole(stream), false);
        }
        b.combine(stream);
        look("second", &b);
        [&a, &b, &c].iter().enumerate().for_each(|(i, lane)| lane.load(5 + i));
        a.dispatch_send(stream);
        let mut sent = vec![&a];
        if case.windows != 1 {
            b.dispatch_send(stream);
            sent.push(&b);
        }
        expect("one more send", c.send_status(stream), true);
        sent.iter().rev().for_each(|lane| ok(lane.dispatch_recv(stream)));
        sent.iter().for_each(|lane| lane.combine(stream));
        expect("the send, later", c.send_status(stream), false);
        expect("its receive", c.dispatch_recv(stream), false);
        c.release(stream);
        sent.iter().for_each(|lane| look("sent", lane));
        look("last", &c);
        note(&mut outputs, "second", second);
        outputs
    });
}

/// Replays that find the windows of others open, or too much in flight: only the device can refuse them.
fn replays_refused(case: Case) {
    let batches = |player: &Player, [a, b]: &Pair, replay: &dyn Fn()| {
        let stream = player.stream();
        let mut outputs = Vec::new();
        for time in 0..3 {
            let load = || [a, b].iter().enumerate().for_each(|(i, lane)| lane.load(time * 4 + i));
            load();
            ok(a.dispatch_whole(stream));
            ok(b.dispatch_whole(stream));
            replay();
            b.combine(stream);
            a.combine(stream);
            player.arena.wait();
            outputs.extend([a.look("whole a"), b.look("whole b")].concat());
            load();
            a.dispatch_send(stream);
            b.dispatch_send(stream);
            replay();
            ok(b.dispatch_recv(stream));
            ok(a.dispatch_recv(stream));
            a.combine_send(stream);
            b.combine_send(stream);
            replay();
            ok(b.combine_recv(stream));
            ok(a.combine_recv(stream));
            player.arena.wait();
            outputs.extend([a.look("halves a"), b.look("halves b")].concat());
        }
        outputs
    };
    let host = play(&case, Where::Host, 1, &|player| batches(player, &pair(player), &|| {}));
    let device = play(&case, Where::Device, 1, &|player| {
        let (lanes, replayed) = (pair(player), pair(player));
        let graph = player.record(CaptureMode::Relaxed, |stream| ORDERS[0].1(&replayed, stream));
        let outputs = batches(player, &lanes, &|| {
            replayed.iter().for_each(|lane| lane.load(50));
            player.play(&graph);
            assert_eq!(report(player.buffers[0]).status, BUSY, "rank {}", player.rank);
            replayed.iter().for_each(|lane| assert!(lane.is_untouched(), "rank {}", player.rank));
        });
        replayed.iter().for_each(|lane| lane.load(51));
        player.play(&graph);
        assert_eq!(report(player.buffers[0]).status, SUCCESS);
        replayed.iter().for_each(|lane| assert!(!lane.is_untouched()));
        outputs
    });
    crate::compare(&case, &host, &device);
}

macro_rules! overlap {
    ($($name:ident: $run:ident($($argument:expr),*) $($field:ident = $value:expr),*;)*) => {$(
        #[test]
        fn $name() {
            if crate::ready() {
                let case = Case { slotted: true, in_flight: 2, tokens: 40, $($field: $value,)* ..Case::default() };
                $run(case $(, $argument)*);
            }
        }
    )*};
}

overlap! {
    rank_auto: overlapping(20) ranks = 3;
    rank_auto_caller: overlapping(20) ranks = 2, mode = Mode::Caller;
    rank_auto_in_place: overlapping(20) ranks = 2, mode = Mode::InPlace, windows = 2;
    rank_ack: overlapping(20) ranks = 2, sync = 1;
    rank_ack_in_place: overlapping(20) ranks = 3, sync = 1, mode = Mode::InPlace, windows = 2;
    rank_barrier: overlapping(20) ranks = 2, sync = 2, mode = Mode::InPlace;
    rank_barrier_caller: overlapping(20) ranks = 3, sync = 2, mode = Mode::Caller, windows = 2;
    expert_auto: overlapping(20) ranks = 2, by_expert = true;
    expert_auto_caller: overlapping(20) ranks = 3, by_expert = true, mode = Mode::Caller, windows = 2;
    expert_auto_in_place: overlapping(20) ranks = 2, by_expert = true, mode = Mode::InPlace;
    expert_ack: overlapping(20) ranks = 3, by_expert = true, sync = 1, mode = Mode::InPlace, windows = 2;
    expert_ack_caller: overlapping(20) ranks = 2, by_expert = true, sync = 1, mode = Mode::Caller;
    expert_barrier: overlapping(20) ranks = 2, by_expert = true, sync = 2, windows = 2;
    rank_refused: refusals(true) ranks = 3;
    rank_refused_one_window: refusals(false) ranks = 2, windows = 1;
    rank_refused_ack: refusals(false) ranks = 2, windows = 1, sync = 1, mode = Mode::InPlace;
    expert_refused: refusals(true) ranks = 2, by_expert = true, mode = Mode::InPlace, windows = 2;
    expert_refused_one_window: refusals(false) ranks = 2, by_expert = true, windows = 1, sync = 2;
    expert_refused_caller: refusals(true) ranks = 2, by_expert = true, windows = 1, mode = Mode::Caller;
}

#[test]
fn replays_are_refused() {
    if !crate::against_itself() && crate::ready() {
        let case = Case { slotted: true, in_flight: 2, windows: 2, tokens: 40, ..Case::default() };
        replays_refused(case.clone());
        replays_refused(Case { ranks: 3, mode: Mode::InPlace, sync: 1, ..case.clone() });
        replays_refused(Case { by_expert: true, ..case.clone() });
        replays_refused(Case { by_expert: true, sync: 2, ..case });
    }
}
