//! Cleared flags, lost ranks, epochs after a reset, and what competes for them.

use super::claims_pushed::{nets, ring};
use crate::model::decide::{Call, How, Resume, Rule, AUTO};
use crate::model::net::Kind;
use crate::model::programs::{frozen, in_turn, steady};
use crate::model::protocol::{Fix, Lost, Setup};
use crate::model::streams::Streams;
use crate::model::words::{BarrierIn, Number, Slot, Test, Words};
use crate::model::{hangs, harmed, safe};

/// DeepEP V1: two sets of windows and flags; each operation clears the flags of the other set.
#[test]
fn flags_that_are_cleared() {
    let sets = |set: Vec<usize>, clears_first| Words::new(Test::AtLeast, Slot::Sets { set, clears_first });
    let by_turn = |n: usize, clears_first| sets((0..n).map(|x| x % 2).collect(), clears_first);
    let run = |ranks, n, depth, words| Setup {
        words,
        ..Setup::new(ranks, in_turn(2, n, How::Push), steady(n, depth), depth)
    };
    let both = [run(2, 6, 0, by_turn(6, true)), run(3, 4, 0, by_turn(4, true))];
    safe("E1", "two sets, each operation clears the other's flags", nets(both));
    hangs(
        "E2",
        "the same, clearing not ordered before the own signals",
        26,
        nets([run(2, 4, 0, by_turn(4, false))]),
    );
    hangs(
        "E3",
        "two phases in flight: a second send before the first receive",
        16,
        nets([run(2, 2, 1, by_turn(2, true))]),
    );
    let odd = [0, 1, 0, 0, 1, 0];
    let replayed =
        Setup { words: sets(odd.to_vec(), true), ..Setup::new(2, frozen(odd, How::Push), steady(6, 0), 0) };
    harmed(
        "E4",
        "a graph of three operations replayed: sets 0 1 0, 0 1 0",
        (34, Kind::Write, 4),
        nets([replayed]),
    );
}

/// Rank 2 of 3 is given up in operation 1 or 2; the others agree and go on. It may only be slow.
#[test]
fn lost_ranks() {
    let lost = |how, fix| {
        nets([0, 1].map(|op| {
            let n = op + 3;
            let lost = Some(Lost { rank: 2, op, fix });
            Setup { lost, ..Setup::new(3, in_turn(2, n, how), steady(n, 0), 0) }
        }))
    };
    harmed(
        "F1",
        "packed rows of all sources share a window",
        (27, Kind::Write, 1),
        lost(How::Push, Fix::Nothing),
    );
    harmed("F2", "the same with counts", (50, Kind::Write, 1), lost(How::Counted, Fix::Nothing));
    safe("F3", "slots per source, those of a masked rank are never read", lost(How::Push, Fix::Slots));
    safe(
        "F4",
        "packed, the agreement has proof that the rank stores nothing more",
        lost(How::Push, Fix::Proof),
    );
    safe(
        "F5",
        "packed, after the agreement windows that the rank never mapped",
        lost(How::Push, Fix::NewWindows),
    );
    harmed(
        "F6",
        "pulled: the slow rank takes later rows for its own",
        (29, Kind::Pull, 1),
        lost(How::Pull, Fix::Nothing),
    );
    safe("F7", "pulled: it learns of its mask before it trusts what it pulled", lost(How::Pull, Fix::Told));
}

#[test]
fn epochs_after_a_reset() {
    let words = || Words::new(Test::AtLeast, Slot::One);
    let resume = |how| {
        let (go_on, reset) = ([Call::Send(2), Call::Recv(2)], Call::Reset(200, how));
        let one = [&[Call::Send(0), reset], &go_on[..]].concat();
        let zero = [&[Call::Send(0), Call::Recv(0), Call::Send(1), reset], &go_on[..]].concat();
        nets([Setup {
            words: words(),
            others: vec![(1, one)],
            ..Setup::new(2, in_turn(2, 3, How::Push), zero, 0)
        }])
    };
    let text = "rank 0 gave up in operation 2, rank 1 in 1; they go on";
    harmed("F8", &format!("{text} each at its own next epoch"), (19, Kind::Read, 3), resume(Resume::Own));
    safe("F9", &format!("{text} beyond the newest that any began"), resume(Resume::At(3)));
    let again = |epoch| {
        let later = steady(2, 0).into_iter().map(|call| match call {
            Call::Send(x) => Call::Send(x + 2),
            Call::Recv(x) => Call::Recv(x + 2),
            other => other,
        });
        let calls =
            steady(2, 0).into_iter().chain([Call::Reset(200, Resume::At(epoch))]).chain(later).collect();
        nets([Setup { words: words(), ..Setup::new(2, in_turn(2, 4, How::Push), calls, 0) }])
    };
    harmed("F10", "epochs restart at 1 after a reset", (27, Kind::Read, 3), again(1));
    safe("F10", "epochs go on after a reset", again(3));
}

#[test]
fn handles_and_streams() {
    let counted = |number| {
        let words = Words::new(Test::AtLeast, Slot::One).map(|words| Words { number, ..words });
        nets(ring(2, 6, 0, &[2]).into_iter().map(move |setup| Setup { words: words.clone(), ..setup }))
    };
    safe("G1", "two handles, one count of epochs", counted(Number::Epoch));
    harmed(
        "G2",
        "two handles that each count, one set of words",
        (12, Kind::Read, 2),
        counted(Number::PerHandle),
    );
    let streams = |one_buffer, chained, crowded| [Streams { one_buffer, chained, crowded }.net(2)];
    safe("G6", "two buffers on two streams, both kernels fit on the device", streams(false, false, false));
    hangs(
        "G7",
        "two buffers on two streams, waiting kernels that do not fit together",
        6,
        streams(false, false, true),
    );
    safe("G8", "the same in one order on every rank", streams(false, true, true));
    harmed(
        "G9",
        "two operations of one buffer at once: the epoch goes to whoever starts",
        (8, Kind::Read, 1),
        streams(true, false, false),
    );
    safe("G10", "the same chained in one order on every rank", streams(true, true, false));
    // Rows of one stream are read until that stream's next operation, while the other stream's runs.
    let mut calls = Vec::new();
    for x in 0..6 {
        calls.extend((x >= 2).then(|| Call::End(x - 2)));
        calls.extend([Call::Send(x), Call::Recv(x)]);
    }
    let kept = |rule| {
        nets([2, 3].map(|r| Setup { rule, ..Setup::new(r, in_turn(2, 6, How::Push), calls.clone(), 0) }))
    };
    harmed(
        "G11",
        "chained, but the other stream still reads: the guard of D = 0",
        (16, Kind::Write, 3),
        kept(Rule::LastUse),
    );
    safe("G11", "the same by the rule", kept(AUTO));
}

/// A barrier that a window needs takes an epoch while an operation is in flight. Signals in the data phase
/// must not take that into account.
#[test]
fn barriers_beside_operations() {
    let worded = |slot, barrier| {
        let mut calls = vec![Call::Take(0)];
        for x in 0..3 {
            calls.push(Call::Send(x));
            calls.extend((x < 2).then_some(Call::Take(x + 1)));
            calls.push(Call::Recv(x));
        }
        let words = Words::new(Test::Checked, slot).map(|words| Words { barrier, ..words });
        let setup = Setup { words, ..Setup::auto(2, in_turn(2, 3, How::Pull), calls, 0) };
        assert!(!setup.plan().refused && !setup.plan().barriers().is_empty());
        nets([setup])
    };
    let turns = deepep::plan::words::turns(0);
    let text = "checked words, a window taken in flight";
    safe(
        "A16",
        &format!("{text}: words by number of the signal in its phase"),
        worded(Slot::ByNumber(turns), BarrierIn::Enter),
    );
    harmed(
        "A16",
        &format!("{text}: words by epoch"),
        (24, Kind::See, 2),
        worded(Slot::ByEpoch(turns), BarrierIn::Enter),
    );
    harmed(
        "A16",
        &format!("{text}: the barrier signals in the data phase"),
        (11, Kind::See, 1),
        worded(Slot::ByNumber(turns), BarrierIn::Data),
    );
}
