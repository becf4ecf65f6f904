//! Pushed windows and one-way signals, without a guard: how many windows are enough, and what a word holds.

use crate::model::decide::{Call, How};
use crate::model::net::{Kind, Net};
use crate::model::programs::{bounded, frozen, handles, in_turn, kinds, patterns, steady};
use crate::model::protocol::{Regions, Setup};
use crate::model::words::{Slot, Test, Words};
use crate::model::{hangs, harmed, safe};

pub fn ring(count: usize, n: usize, depth: usize, ranks: &[usize]) -> Vec<Setup> {
    ranks.iter().map(|&r| Setup::new(r, in_turn(count, n, How::Push), steady(n, depth), depth)).collect()
}

pub fn nets(setups: impl IntoIterator<Item = Setup>) -> impl Iterator<Item = Net> {
    setups.into_iter().map(|setup| setup.net())
}

fn by_kind(patterns: impl IntoIterator<Item = String>, windows: usize, ranks: &[usize]) -> Vec<Setup> {
    let mut all = Vec::new();
    for pattern in patterns {
        for &r in ranks {
            let ops = kinds(&pattern, (windows, How::Push), (windows, How::Push));
            all.push(Setup::new(r, ops, steady(pattern.len(), 0), 0));
        }
    }
    all
}

#[test]
fn windows_in_turn() {
    harmed("A1", "one window for all calls", (8, Kind::Write, 2), nets(ring(1, 4, 0, &[2, 3])));
    safe("A2", "two windows in turn for all calls", nets(ring(2, 6, 0, &[2, 3, 4])));
    safe(
        "A3",
        "two windows per kind in turn, every order of 6 calls",
        nets(by_kind(patterns(6), 2, &[2, 3, 4])),
    );
    safe("A4", "one window per kind, d c d c d c", nets(by_kind(["dcdcdc".into()], 1, &[2, 3, 4])));
    harmed(
        "A5",
        "one window per kind, d d c c",
        (8, Kind::Write, 2),
        nets(by_kind(["ddcc".into()], 1, &[2, 3, 4])),
    );
    for depth in 0..3 {
        let windows = 2 + 2 * depth;
        let all = bounded(7, depth, true).into_iter().flat_map(|calls| {
            [2, 3].map(|r| Setup::new(r, in_turn(windows, 7, How::Push), calls.clone(), depth))
        });
        safe("A6", &format!("{windows} windows in turn, every program with D = {depth}"), nets(all));
    }
    harmed("A6", "1 + 2D windows, D = 1", (19, Kind::Write, 4), nets(ring(3, 7, 1, &[2, 3])));
    harmed("A6", "1 + 2D windows, D = 2", (30, Kind::Write, 6), nets(ring(5, 10, 2, &[2, 3])));
    let any_order = bounded(6, 1, false).into_iter();
    let out_of_order = any_order.map(|calls| Setup::new(2, in_turn(4, 6, How::Push), calls, 1));
    harmed(
        "A7",
        "2 + 2D windows in turn, received out of order, D = 1",
        (29, Kind::Write, 5),
        nets(out_of_order),
    );
}

#[test]
fn rows_held_by_handles() {
    let held = |r, signals_early| {
        let mut ops = kinds("dddccc", (2, How::Push), (2, How::Push));
        (3..6).for_each(|c| ops[c].reads = Some(c - 3));
        Setup { signals_early, ..Setup::new(r, ops, steady(6, 0), 0) }
    };
    harmed(
        "A8",
        "rows read until the handle's combine, d d d c c c, 2 windows in turn",
        (15, Kind::Write, 3),
        nets([held(2, false)]),
    );
    for (depth, open) in [(0, 2), (0, 3), (1, 3), (2, 4_usize)] {
        let windows = open + usize::div_ceil(depth, 2);
        let n = 7 + depth;
        let all = |chosen: usize| {
            let programs = handles(n, depth, open, How::Push, false).into_iter();
            programs.flat_map(move |(ops, calls)| {
                [2, 3].map(|r| Setup { chosen, ..Setup::new(r, ops.clone(), calls.clone(), depth) })
            })
        };
        let text =
            format!("D = {depth}, at most {open} handles open, H + ceil(D/2) = {windows}, freed longest ago");
        safe("A8", &text, nets(all(windows)));
        if depth > 0 {
            let shape = if depth == 1 { (26, Kind::Write, 5) } else { (28, Kind::Write, 6) };
            harmed("A8", &format!("{text}, one window fewer"), shape, nets(all(windows - 1)));
        } else {
            assert!(
                all(windows - 1).any(|setup| setup.plan().refused),
                "with fewer than H a dispatch finds none free"
            );
        }
    }
    let reading = |r, signals_early| {
        let mut ops = kinds("dcd", (1, How::Push), (1, How::Push));
        ops[1].reads = Some(0);
        Setup { signals_early, ..Setup::new(r, ops, steady(3, 0), 0) }
    };
    safe(
        "A15",
        "a combine that reads in place, all of it before its first signal",
        nets([reading(2, false), reading(3, false)]),
    );
    harmed(
        "A15",
        "it signals a rank as soon as it has read that one's rows",
        (39, Kind::Write, 3),
        nets([reading(3, true)]),
    );
}

#[test]
fn everybody_signals() {
    let ring =
        |mute| [2, 3].map(|r| Setup { mute, ..Setup::new(r, in_turn(2, 6, How::Push), steady(6, 0), 0) });
    safe("A9", "every rank signals every peer, with rows or without", nets(ring(None)));
    let shape = (12, Kind::Write, 3);
    harmed(
        "A9",
        "rank 0 has no rows for rank 1 in operation 2 and does not signal it",
        shape,
        nets(ring(Some((0, 1, 1)))),
    );
}

fn worded(depth: usize, words: Option<Words>) -> impl Iterator<Item = Net> {
    nets([Setup { words, ..Setup::new(2, in_turn(2 + 2 * depth, 6, How::Push), steady(6, depth), depth) }])
}

#[test]
fn what_a_wait_compares() {
    let words = |test, slot| Words::new(test, slot);
    hangs("A10", "wait for == on one word per source", 11, worded(0, words(Test::Equal, Slot::One)));
    for depth in 0..2 {
        safe(
            "A11",
            &format!("wait for >= on one word, D = {depth}"),
            worded(depth, words(Test::AtLeast, Slot::One)),
        );
        let turns = deepep::plan::words::turns(depth);
        for test in [Test::Equal, Test::Checked, Test::Library] {
            let text = format!("{test:?} on 2 + 2D = {turns} words in turn, D = {depth}");
            safe("A12", &text, worded(depth, words(test, Slot::ByNumber(turns))));
        }
        let fewer = || worded(depth, words(Test::Equal, Slot::ByNumber(turns - 1)));
        hangs("A12", &format!("== on {} words, D = {depth}", turns - 1), [11, 22][depth], fewer());
        let checked = worded(depth, words(Test::Checked, Slot::ByNumber(turns - 1)));
        let shape = [(11, Kind::See, 1), (22, Kind::See, 1)][depth];
        harmed("A12", &format!("a checked word of {} is overtaken, D = {depth}", turns - 1), shape, checked);
    }
    let any_order = |test| {
        let words = words(test, Slot::ByNumber(4));
        let late = bounded(5, 1, false).into_iter().filter(|calls| calls.last() == Some(&Call::Recv(0)));
        nets(late.map(move |calls| Setup {
            words: words.clone(),
            ..Setup::new(2, in_turn(8, 5, How::Push), calls, 1)
        }))
    };
    let text = "2 + 2D words in turn, received out of order, D = 1";
    harmed(
        "A17",
        &format!("{text}: a word must be the signal awaited"),
        (43, Kind::See, 1),
        any_order(Test::Checked),
    );
    safe("A17", &format!("{text}: a later one of the same turn will do"), any_order(Test::Library));
    let wrapped = worded(0, words(Test::Wrapped, Slot::One));
    harmed("A13", "numbers that wrap, compared as they are", (32, Kind::Read, 4), wrapped);
    safe(
        "A14",
        "numbers that wrap, compared by signed difference",
        worded(0, words(Test::Serial, Slot::One)),
    );
}

#[test]
fn counts_are_a_barrier() {
    let counted = |windows, n, depth, regions, late| {
        [2, 3].map(|r| Setup {
            regions: Regions::ByNumber(regions),
            counts_read_late: late,
            ..Setup::new(r, in_turn(windows, n, How::Counted), steady(n, depth), depth)
        })
    };
    safe(
        "C1",
        "one data window, D = 0: the exchange of counts is a barrier",
        nets(counted(1, 7, 0, 1, false)),
    );
    harmed("C2", "counts in one region, D = 1", (8, Kind::Counts, 2), nets(counted(4, 6, 1, 1, false)));
    harmed(
        "C3",
        "counts in one region, D = 0, still read in the receive",
        (13, Kind::Counts, 2),
        nets(counted(4, 6, 0, 1, true)),
    );
    let mut mixes = Vec::new();
    for depth in 1..3 {
        for pattern in patterns(5) {
            for calls in bounded(5, depth, true) {
                let ops = kinds(&pattern, (6, How::Counted), (6, How::Push));
                let regions = Regions::ByNumber(deepep::plan::windows::count_regions(depth));
                mixes.extend(
                    [2, 3].map(|r| Setup { regions, ..Setup::new(r, ops.clone(), calls.clone(), depth) }),
                );
            }
        }
    }
    safe(
        "C4",
        "counts in two regions in turn, D = 1, 2, every mix with operations without counts",
        nets(mixes.clone()),
    );
    let by_epoch = |n: usize| {
        mixes.clone().into_iter().map(move |setup| Setup { regions: Regions::ByEpoch(n), ..setup })
    };
    safe(
        "C4",
        "regions by epoch, 1 + D of them",
        nets(by_epoch(2).filter(|s| s.depth == 1).chain(by_epoch(3).filter(|s| s.depth == 2))),
    );
    harmed(
        "C4",
        "regions by epoch, one fewer, D = 2",
        (11, Kind::Counts, 3),
        nets(by_epoch(2).filter(|s| s.depth == 2)),
    );
    let alone = patterns(6).flat_map(|p| {
        [2, 3, 4].map(|r| Setup::auto(r, kinds(&p, (1, How::Counted), (1, How::Push)), steady(6, 0), 0))
    });
    safe(
        "C5",
        "packed dispatch and pushed combine, one window each, by the rule, every order of 6",
        nets(alone),
    );
}

#[test]
fn order_of_buffers() {
    let swapped = |depth: usize, swap: bool| {
        let swapped = steady(2, depth).into_iter().map(|call| match call {
            Call::Send(x) => Call::Send(1 - x),
            Call::Recv(x) => Call::Recv(1 - x),
            other => other,
        });
        let others = if swap { vec![(1, swapped.collect())] } else { Vec::new() };
        [Setup { others, ..Setup::new(2, frozen([0, 1], How::Push), steady(2, depth), depth) }]
    };
    safe("G3", "two buffers on one stream in one order", nets(swapped(0, false)));
    hangs("G4", "in another order on rank 1", 6, nets(swapped(0, true)));
    safe("G5", "in another order, both sent before either is received", nets(swapped(1, true)));
}
