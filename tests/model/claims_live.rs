//! Every program up to a length, with the library deciding on every rank as it goes.

use crate::model::live::{explore, Live, Slip};

fn live(ranks: usize, windows: usize, length: usize, depth: usize, pull: bool) -> Live {
    Live { ranks, windows, length, depth, pull, slip: Slip::None }
}

#[test]
fn pushed() {
    for (ranks, windows, length, depth) in [(2, 2, 4, 0), (2, 2, 3, 1), (2, 2, 3, 2), (3, 2, 2, 0)] {
        assert_eq!(explore(live(ranks, windows, length, depth, false)).0, None);
    }
    let unguarded = explore(Live { slip: Slip::Unguarded, ..live(2, 2, 3, 0, false) });
    assert_eq!(unguarded.0.map(|found| found.0), Some("a rank reads rows of another operation"));
}

#[test]
fn pulled() {
    for (ranks, windows, length, depth) in [(2, 2, 5, 0), (2, 2, 4, 1), (2, 2, 4, 2), (3, 2, 2, 0)] {
        assert_eq!(explore(live(ranks, windows, length, depth, true)).0, None);
    }
    let by_epoch = explore(Live { slip: Slip::TakenByEpoch, ..live(2, 2, 3, 0, true) });
    assert_eq!(by_epoch.0.map(|found| found.0), Some("a rank pulls rows of another operation"));
    let fewer = explore(Live { slip: Slip::FewerWords, ..live(2, 2, 3, 0, true) });
    assert_eq!(fewer.0.map(|found| found.0), Some("a receive finds another signal"));
}

#[test]
#[ignore = "millions of states: minutes"]
fn larger() {
    for (ranks, windows, length, depth) in [(2, 2, 5, 0), (2, 3, 4, 1), (3, 1, 3, 0)] {
        assert_eq!(explore(live(ranks, windows, length, depth, false)).0, None);
    }
    assert_eq!(explore(live(2, 3, 4, 2, true)).0, None);
}
