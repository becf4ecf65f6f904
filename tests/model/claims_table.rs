//! The fewest windows of each scheme, searched for and compared with the formulas; and the defaults.

use crate::model::all_safe;
use crate::model::decide::{Call, How, Op, Place, Rule, AUTO};
use crate::model::programs::{handles, in_turn, kinds, steady, taken_ahead};
use crate::model::protocol::{Regions, Setup};
use deepep::plan::windows::{count_regions, window_counts, Guard, SyncMode};

/// D, and k: how many sends may begin while rows are read, or how many sends ahead a window is taken.
const CASES: [(usize, usize); 5] = [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1)];

/// As many operations as it takes to come back to a window from every position.
fn length(windows: usize, depth: usize) -> usize {
    2 * windows + depth + 2
}

/// Finds the fewest windows with which nothing is refused and nothing does harm or hangs, for each case.
fn row(
    text: &str,
    expected: impl Fn(usize, usize) -> usize,
    setups: impl Fn(usize, usize, usize) -> Vec<Setup>,
) {
    let good = |setup: &Setup| matches!(setup.rule, Rule::None) || !setup.plan().refused;
    let enough = |windows, (depth, kept)| {
        let setups = setups(windows, depth, kept);
        setups.iter().all(good) && all_safe(setups.iter().map(Setup::net))
    };
    let found = CASES.map(|case| (1..12).find(|&windows| enough(windows, case)).unwrap_or(0));
    println!("{text:52} {found:?}");
    assert_eq!(
        found,
        CASES.map(|(depth, kept)| expected(depth, kept)),
        "{text}: fewest windows for {CASES:?}"
    );
    let more = CASES.iter().zip(found).all(|(&case, fewest)| enough(fewest + 1, case));
    assert!(more, "{text}: one window more than the fewest is not enough");
}

fn turn(how: How, rule: Rule, windows: usize, depth: usize, kept: usize) -> Vec<Setup> {
    let n = length(windows, depth);
    [2, 3]
        .map(|r| Setup { rule, kept, ..Setup::new(r, in_turn(windows, n, how), steady(n, depth), depth) })
        .to_vec()
}

fn patterned(pattern: &str, windows: usize, depth: usize, kept: usize) -> Vec<Setup> {
    let ops = kinds(pattern, (windows, How::Push), (windows, How::Push));
    [2, 3].map(|r| Setup { kept, ..Setup::new(r, ops.clone(), steady(ops.len(), depth), depth) }).to_vec()
}

#[test]
fn fewest_pushed() {
    row(
        "one-way signals, any order of calls",
        |d, k| 2 + 2 * d + k,
        |w, d, k| turn(How::Push, Rule::None, w, d, k),
    );
    row(
        "the same per kind, d c d c",
        |d, k| 1 + d + k.div_ceil(2),
        |w, d, k| patterned(&"dc".repeat(length(w, d) / 2 + w), w, d, k),
    );
    row(
        "the same per kind, d d c c",
        |d, k| [[2, 2, 4], [2, 3, 0]][k][d],
        |w, d, k| patterned(&"ddcc".repeat(w + 2), w, d, k),
    );
    row("AUTO", |d, k| 1 + d + k, |w, d, k| turn(How::Push, AUTO, w, d, k));
    row("BARRIER", |d, k| 1 + d + k, |w, d, k| turn(How::Push, Rule::Mode(SyncMode::Barrier), w, d, k));
    row(
        "ACK, rows in place",
        |d, k| 1 + d + k,
        |w, d, k| turn(How::Push, Rule::Mode(SyncMode::Ack), w, d, k),
    );
    row(
        "ACK, copied out by the receive",
        |d, _| 1 + d,
        |w, d, _| {
            let ended = |setup: Setup| {
                let both = |call: &Call| match *call {
                    Call::Recv(x) => vec![Call::Recv(x), Call::End(x)],
                    other => vec![other],
                };
                Setup { calls: setup.calls.iter().flat_map(both).collect(), ..setup }
            };
            turn(How::Push, Rule::Mode(SyncMode::Ack), w, d, 0).into_iter().map(ended).collect()
        },
    );
}

#[test]
fn fewest_counted() {
    let regions = |regions, setup| Setup { regions, ..setup };
    row(
        "packed with counts: data windows, never a barrier",
        |d, k| 1 + d + k,
        |w, d, k| {
            let many = |setup| regions(Regions::ByNumber(99), setup);
            let guarded = turn(How::Counted, AUTO, w, d, k).into_iter();
            guarded.inspect(|s| assert!(s.plan().barriers().is_empty())).map(many).collect()
        },
    );
    let counts = |w, d, late| {
        let n = length(w, d) + 2;
        let setup = |r| Setup::new(r, in_turn(8, n, How::Counted), steady(n, d), d);
        [2, 3].map(|r| Setup { regions: Regions::ByNumber(w), counts_read_late: late, ..setup(r) }).to_vec()
    };
    row(
        "regions for counts, read before the data signal",
        |d, _| count_regions(d),
        |w, d, _| counts(w, d, false),
    );
    row("the same, still read in the receive", |d, _| 2 + d, |w, d, _| counts(w, d, true));
    row(
        "regions for counts by epoch, beside calls without",
        |d, _| 1 + d,
        |w, d, _| {
            let mut all = Vec::new();
            for pattern in crate::model::programs::patterns(6) {
                let ops = kinds(&pattern, (8, How::Counted), (8, How::Push));
                all.push(Setup { regions: Regions::ByEpoch(w), ..Setup::new(2, ops, steady(6, d), d) });
            }
            all
        },
    );
}

#[test]
fn fewest_pulled() {
    row(
        "pulled, no guard, taken h sends ahead",
        |d, h| 2 + 2 * d + h,
        |w, d, h| {
            let ahead =
                |setup: Setup| Setup { calls: taken_ahead(&setup.calls, setup.ops.len(), h), ..setup };
            turn(How::Pull, Rule::None, w, d, 0).into_iter().map(ahead).collect()
        },
    );
    row("pulled, AUTO where the window is taken", |d, _| 1 + d, |w, d, _| turn(How::Pull, AUTO, w, d, 0));
    row(
        "pulled, ACK: every pull acknowledged",
        |d, _| 1 + d,
        |w, d, _| turn(How::Pull, Rule::Mode(SyncMode::Ack), w, d, 0),
    );
    row(
        "pulled, BARRIER where the window is taken",
        |d, _| 1 + d,
        |w, d, _| turn(How::Pull, Rule::Mode(SyncMode::Barrier), w, d, 0),
    );
    row(
        "pulled, a barrier at the operation's entry",
        |d, _| 2 + d,
        |w, d, _| {
            let entry = |setup| Setup { guard_at_entry: true, ..setup };
            turn(How::Pull, Rule::Forced, w, d, 0).into_iter().map(entry).collect()
        },
    );
}

/// H handles open at once, whose rows are read until their combine.
#[test]
fn fewest_held() {
    let modes = [SyncMode::Auto, SyncMode::Barrier, SyncMode::Ack].map(Rule::Mode);
    for (open, depth) in [(2, 0), (3, 0), (2, 1), (3, 1), (3, 2), (4, 2)] {
        let fewest = |how, rule| {
            let programs = handles(6 + depth + open / 3, depth, open, how, false);
            (1..12).find(|&chosen| {
                programs.iter().all(|(ops, calls)| {
                    [2, 3].iter().all(|&r| {
                        let setup =
                            Setup { rule, chosen, ..Setup::new(r, ops.clone(), calls.clone(), depth) };
                        !setup.plan().refused && all_safe([setup.net()])
                    })
                })
            })
        };
        println!("{open} handles open, D = {depth}");
        let never = fewest(How::Push, Rule::None);
        assert_eq!(
            never,
            Some(open + usize::div_ceil(depth, 2)),
            "without a guard, {open} handles, D = {depth}"
        );
        for rule in modes {
            assert_eq!(fewest(How::Push, rule), Some(open), "{rule:?}, {open} handles, D = {depth}");
        }
        assert_eq!(fewest(How::Counted, AUTO), Some(open), "with counts, {open} handles, D = {depth}");
    }
}

/// Dispatches and combines in the windows of a buffer with default counts. `held`: rows of a dispatch are read
/// until its combine; otherwise they end before the next send.
fn default_buffer(pattern: &str, packed: bool, m: usize, held: bool) -> Setup {
    let (dispatch, combine) = window_counts(packed, m, 0, 0);
    assert_eq!(dispatch, combine);
    let chosen = |how, pool| Op { how, pool, place: Place::Chosen, reads: None };
    let (give, take) = if packed { (How::Counted, How::Pull) } else { (How::Push, How::Push) };
    let mut dispatched = Vec::new();
    let mut ops = Vec::new();
    for (x, kind) in pattern.chars().enumerate() {
        if kind == 'd' {
            dispatched.push(x);
            ops.push(chosen(give, 0));
        } else {
            let reads = if held { Some(dispatched.remove(0)) } else { None };
            ops.push(Op { reads, ..chosen(take, 1) });
        }
    }
    Setup { chosen: dispatch, ..Setup::auto(2, ops, steady(pattern.len(), m - 1), m - 1) }
}

#[test]
fn default_windows() {
    for m in 1..=3 {
        let slotted = default_buffer(&"dc".repeat(8), false, m, false);
        assert!(slotted.plan().guard.iter().all(|&guard| guard == Guard::Nothing), "m = {m}");
        assert!(all_safe([slotted.net()]));
        let packed = default_buffer(&"dc".repeat(8), true, m, false);
        assert!(!packed.plan().refused, "m = {m}");
        assert!(all_safe([packed.net()]));
    }
    let overlap = "ddccddccddcc";
    for (m, held) in [(1, false), (1, true), (2, false)] {
        let slotted = default_buffer(overlap, false, m, held);
        assert!(!slotted.plan().refused && all_safe([slotted.net()]), "slotted, m = {m}, held {held}");
    }
    let packed = default_buffer(overlap, true, 1, true);
    assert!(packed.plan().refused, "packed rows in place need a window per open handle");
    let two = Setup { chosen: 2, ..packed };
    assert!(!two.plan().refused && all_safe([two.net()]));
}
