//! The rule of `deepep::plan::windows`: what it lets through is safe, what it asks for is needed, what it refuses
//! no barrier would mend, and slips in it are found.

use super::claims_pushed::nets;
use crate::model::decide::{op, Call, How, Mistake, Op, Rule, AUTO};
use crate::model::net::Kind;
use crate::model::programs::{bounded, frozen, kinds, patterns, replays, sequences, steady};
use crate::model::protocol::Setup;
use crate::model::{each_harmed, harmed, safe};
use deepep::plan::windows::SyncMode;

/// Each list of operations under each program, where the rule refuses nothing.
pub fn accepted<'a>(
    rule: Rule,
    depth: usize,
    ranks: &'a [usize],
    lists: &'a [Vec<Op>],
    programs: &'a [Vec<Call>],
) -> impl Iterator<Item = Setup> + 'a {
    every(rule, depth, ranks, lists, programs).filter(|setup| !setup.plan().refused)
}

fn every<'a>(
    rule: Rule,
    depth: usize,
    ranks: &'a [usize],
    lists: &'a [Vec<Op>],
    programs: &'a [Vec<Call>],
) -> impl Iterator<Item = Setup> + 'a {
    lists.iter().flat_map(move |ops| {
        programs.iter().flat_map(move |calls| {
            ranks.iter().map(move |&r| Setup { rule, ..Setup::new(r, ops.clone(), calls.clone(), depth) })
        })
    })
}

/// The same with any one barrier left out.
pub fn weakened(setups: impl Iterator<Item = Setup>) -> impl Iterator<Item = Setup> {
    setups.flat_map(|setup| {
        let barriers = setup.plan().barriers();
        barriers.into_iter().map(move |at| Setup { left_out: Some(at), ..setup.clone() })
    })
}

pub fn frozen_lists(n: usize, windows: usize, how: How) -> Vec<Vec<Op>> {
    sequences(n, windows).map(|list| frozen(list, how)).collect()
}

#[test]
fn frozen_windows() {
    let (runs, once) = (replays(6), [steady(6, 0)]);
    let one = |ops: &Vec<Op>| vec![steady(ops.len(), 0)];
    let under = |rule, ranks: &'static [usize]| {
        runs.iter().flat_map(move |ops| {
            accepted(rule, 0, ranks, std::slice::from_ref(ops), &one(ops)).collect::<Vec<_>>()
        })
    };
    let text = "replays of two graphs and eager calls in any order, 2 windows per kind";
    harmed("B1", &format!("{text}, no guard"), (8, Kind::Write, 2), nets(under(Rule::None, &[2])));
    safe(
        "B2",
        &format!("{text}, a barrier iff the last use is later than e-2"),
        nets(under(Rule::LastUse, &[2, 3])),
    );
    safe("B2", &format!("{text}, by the rule"), nets(under(AUTO, &[2, 3])));
    let any3 = frozen_lists(6, 3, How::Push);
    safe(
        "B3",
        "every sequence of 6 over 3 windows, by last use",
        nets(accepted(Rule::LastUse, 0, &[2, 3, 4], &any3, &once)),
    );
    let per_peer = |setup| Setup { per_peer: true, ..setup };
    let pairs = accepted(Rule::LastUse, 0, &[2, 3], &any3, &once).map(per_peer);
    safe("B4", "the same, entry signals per peer instead of a barrier", nets(pairs));
    let deep = [steady(6, 1)];
    // Only what the rule would not refuse: the rest is wrong behind a barrier too.
    let by_last_use = |setup| Setup { rule: Rule::LastUse, ..setup };
    let shallow_rule = accepted(AUTO, 1, &[2], &any3, &deep).map(by_last_use);
    harmed("B5", "the guard of D = 0 used at D = 1", (11, Kind::Write, 3), nets(shallow_rule));
    let keep = |setup| Setup { kept: 1, ..setup };
    let kept =
        every(AUTO, 0, &[2], &any3, &once).map(keep).filter(|setup| !setup.plan().refused).map(by_last_use);
    harmed("B6", "the guard of D = 0 with rows kept one send longer", (16, Kind::Write, 3), nets(kept));
}

#[test]
fn the_rule_is_safe_and_exact() {
    for (depth, n) in [(0, 6), (1, 5), (2, 5)] {
        rule_at(depth, n, &[2, 3]);
    }
}

#[test]
#[ignore = "hundreds of thousands of programs: minutes"]
fn the_rule_with_more_ranks_and_operations() {
    for (depth, n) in [(0, 7), (1, 6)] {
        rule_at(depth, n, &[2, 3, 4]);
    }
}

fn rule_at(depth: usize, n: usize, ranks: &[usize]) {
    let (lists, programs) = (frozen_lists(n, 3, How::Push), bounded(n, depth, true));
    let all = || accepted(AUTO, depth, ranks, &lists, &programs);
    safe("B7", &format!("the rule, D = {depth}: every program, every sequence it accepts"), nets(all()));
    each_harmed("B8", &format!("the rule less any one barrier, D = {depth}"), nets(weakened(all())));
    let any_order = bounded(n, depth, false);
    let late = accepted(AUTO, depth, &[2], &lists, &any_order);
    safe("B7", &format!("the rule, D = {depth}: the same, received in any order"), nets(late));
    let by_epoch = || accepted(Rule::ByEpoch, depth, &[2], &lists, &any_order);
    safe("B8", &format!("e-1-D in place of what was received, D = {depth}, any order"), nets(by_epoch()));
    let count =
        |setups: &mut dyn Iterator<Item = Setup>| setups.map(|s| s.plan().barriers().len()).sum::<usize>();
    let exact = count(&mut accepted(AUTO, depth, &[2], &lists, &any_order));
    let coarse = count(&mut by_epoch());
    println!("          barriers: {exact} by what was received, {coarse} by e-1-D");
    assert_eq!(coarse > exact, depth > 0, "e-1-D asks for barriers that are not needed, but at D = 0");
    let refused = every(AUTO, depth, ranks, &lists, &programs).filter(|setup| setup.plan().refused);
    let forced: Vec<_> = refused.map(|setup| Setup { rule: Rule::Forced, ..setup }).collect();
    if depth > 0 {
        each_harmed("B9", &format!("what it refuses, behind a barrier, D = {depth}"), nets(forced));
    } else {
        assert!(forced.is_empty(), "nothing is refused where reads end before the next send");
    }
    for mode in [SyncMode::Ack, SyncMode::Barrier] {
        let text = format!("mode {mode:?}, D = {depth}: every sequence it accepts");
        safe("B12", &text, nets(accepted(Rule::Mode(mode), depth, ranks, &lists, &programs)));
    }
}

/// Random programs: pushed, counted and pulled operations share 5 windows, windows to be pulled are taken up to
/// three calls ahead, receives come in any order.
fn mixtures(runs: usize, rule: Rule) -> Vec<Setup> {
    let programs: Vec<Vec<Vec<Call>>> = (0..3).map(|depth| bounded(8, depth, false)).collect();
    let mut seed = 1u64;
    let mut below = |n: usize| {
        seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (seed >> 33) as usize % n
    };
    let mut all = Vec::new();
    for _ in 0..runs {
        let depth = below(3);
        let mut calls = programs[depth][below(programs[depth].len())].clone();
        let hows = [How::Push, How::Counted, How::Pull, How::Pull];
        let ops: Vec<Op> = (0..8).map(|_| op(hows[below(4)], 0, below(5))).collect();
        for x in (0..8).filter(|&x| ops[x].how == How::Pull) {
            let Some(at) = calls.iter().position(|&call| call == Call::Send(x)) else { continue };
            calls.insert(at.saturating_sub(below(4)), Call::Take(x));
        }
        let setup = Setup { rule, ..Setup::new(2 + below(3), ops, calls, depth) };
        all.extend((!setup.plan().refused).then_some(setup));
    }
    all
}

#[test]
fn mixtures_of_all_kinds() {
    safe(
        "B10",
        "the rule, random mixtures of push, counts and pull, any order of receives",
        nets(mixtures(20_000, AUTO)),
    );
    each_harmed(
        "B11",
        "the same, any one barrier left out",
        nets(weakened(mixtures(20_000, AUTO).into_iter())),
    );
}

#[test]
fn slips_in_the_rule() {
    let (push, pull) = (frozen_lists(5, 3, How::Push), frozen_lists(5, 3, How::Pull));
    let programs = bounded(5, 1, true);
    let under = |lists, slip| accepted(Rule::Wrong(slip), 1, &[2], lists, &programs);
    harmed(
        "B13",
        "what is received taken for one more",
        (8, Kind::Write, 2),
        nets(under(&push, Mistake::NewestOneTooHigh)),
    );
    harmed(
        "B13",
        "the end of reads taken for one epoch earlier",
        (8, Kind::Write, 2),
        nets(under(&push, Mistake::EndsOneTooLow)),
    );
    harmed("B13", "BUSY one too late", (10, Kind::Write, 2), nets(under(&push, Mistake::BusyOneTooLate)));
    harmed(
        "B13",
        "reads of a pulled window taken as over at its send",
        (8, Kind::Fill, 2),
        nets(under(&pull, Mistake::EndsAtSend)),
    );
    let reading = |rule| {
        let mut all = Vec::new();
        for windows in sequences(3, 2) {
            for calls in bounded(5, 1, true) {
                let mut ops = kinds("ddccd", (1, How::Push), (1, How::Push));
                [0, 1, 4].iter().zip(&windows).for_each(|(&d, &w)| ops[d] = op(How::Push, 0, w));
                (ops[2].reads, ops[3].reads) = (Some(0), Some(1));
                let at = |call| calls.iter().position(|&c| c == call);
                let received = at(Call::Recv(0)) < at(Call::Send(2)) && at(Call::Recv(1)) < at(Call::Send(3));
                all.extend(
                    [2, 3]
                        .into_iter()
                        .filter(|_| received)
                        .map(|r| Setup { rule, ..Setup::new(r, ops.clone(), calls.clone(), 1) }),
                );
            }
        }
        all.into_iter().filter(|setup: &Setup| !setup.plan().refused)
    };
    safe(
        "B14",
        "d d c c d, combines read in place behind entry barriers, D = 1, every program",
        nets(reading(AUTO)),
    );
    let slip = reading(Rule::Wrong(Mistake::MeetingOfReader));
    harmed(
        "B14",
        "the entry barrier of a combine counts for the rows it still reads",
        (39, Kind::Write, 5),
        nets(slip),
    );
}

fn pulled(patterns: impl IntoIterator<Item = String>, windows: usize, rule: Rule) -> Vec<Setup> {
    let mut all = Vec::new();
    for pattern in patterns {
        let ops = kinds(&pattern, (2, How::Push), (windows, How::Pull));
        all.extend([2, 3, 4].map(|r| Setup { rule, ..Setup::new(r, ops.clone(), steady(ops.len(), 0), 0) }));
    }
    all
}

#[test]
fn pulled_windows() {
    let alternating = kinds("dcdcdc", (1, How::Push), (1, How::Pull));
    let alone = [2, 3, 4].map(|r| Setup::new(r, alternating.clone(), steady(6, 0), 0));
    safe("D1", "one pulled window, alternating with dispatch", nets(alone));
    harmed(
        "D2",
        "one pulled window, two combines in a row",
        (8, Kind::Fill, 2),
        nets(pulled(["cc".into()], 1, Rule::None)),
    );
    let at_entry = |setup| Setup { guard_at_entry: true, ..setup };
    let entry = pulled(["cc".into()], 1, Rule::Mode(SyncMode::Barrier)).into_iter().map(at_entry);
    harmed("D3", "the same with a barrier at the entry of every operation", (12, Kind::Fill, 2), nets(entry));
    for mode in [SyncMode::Ack, SyncMode::Auto, SyncMode::Barrier] {
        let all = pulled(patterns(6), 1, Rule::Mode(mode))
            .into_iter()
            .inspect(|setup| assert!(!setup.plan().refused));
        safe(
            ["D5", "D4", "D5"][mode as usize],
            &format!("mode {mode:?} where the caller takes the window, every order of 6"),
            nets(all),
        );
    }
    safe(
        "D6",
        "two pulled windows in turn, no guard, every order of 6",
        nets(pulled(patterns(6), 2, Rule::None)),
    );
    let (any3, once) = (frozen_lists(6, 3, How::Pull), [steady(6, 0)]);
    let late = accepted(AUTO, 0, &[2], &any3, &once).map(at_entry);
    harmed("D7", "frozen windows, guarded at the entry of the operation", (8, Kind::Fill, 2), nets(late));
    let all = || accepted(AUTO, 0, &[2, 3, 4], &any3, &once);
    safe("D8", "frozen windows, guarded where the caller takes them (graphs)", nets(all()));
    each_harmed("D8", "the same, any one barrier left out", nets(weakened(all())));
}

#[test]
fn pushed_and_pulled_share() {
    let shared = |pattern: &str, windows: usize| -> Vec<Op> {
        let how = |kind| if kind == 'd' { How::Push } else { How::Pull };
        pattern.chars().enumerate().map(|(x, kind)| op(how(kind), 0, x % windows)).collect()
    };
    let two = patterns(6).flat_map(|p| [2, 3].map(|r| Setup::new(r, shared(&p, 2), steady(6, 0), 0)));
    safe("D9", "pushed dispatch and pulled combine share two windows in turn", nets(two));
    let one = |r, per_peer| Setup { per_peer, ..Setup::auto(r, shared("cd", 1), steady(2, 0), 0) };
    safe("D10", "they share one, two ranks, entry signals per peer", nets([one(2, true)]));
    harmed(
        "D10",
        "they share one, three ranks, entry signals per peer",
        (22, Kind::Write, 2),
        nets([one(3, true)]),
    );
    let all = patterns(6).flat_map(|p| [2, 3].map(|r| Setup::auto(r, shared(&p, 1), steady(6, 0), 0)));
    safe("D11", "they share one, behind a barrier", nets(all.filter(|setup| !setup.plan().refused)));
}

#[test]
fn taken_while_an_operation_is_in_flight() {
    let mut calls = vec![Call::Take(0)];
    for x in 0..6 {
        calls.push(Call::Send(x));
        calls.extend((x < 5).then_some(Call::Take(x + 1)));
        calls.push(Call::Recv(x));
    }
    let (any3, programs) = (frozen_lists(6, 3, How::Pull), [calls]);
    let under = |rule| accepted(rule, 0, &[2, 3], &any3, &programs);
    let text = "windows taken while the operation before is in flight, the rule with";
    harmed("D12", &format!("{text} e-1-D"), (10, Kind::Fill, 3), nets(under(Rule::ByEpoch)));
    safe("D12", &format!("{text} what was received"), nets(under(AUTO)));
    each_harmed("D12", "the same, any one barrier left out", nets(weakened(under(AUTO))));
}
