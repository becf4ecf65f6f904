//! Ranks that do not run the same: each is told so, and by whom, and after a reset all goes on. On both backends alike.

use super::{play, report, Lane, Player};
use crate::cases::{Case, Rows};
use crate::memory::Where;
use crate::ranks::ok;
use crate::run::Outputs;
use deepep::capi::deep_ep_status_t::{
    self as Status, DEEP_EP_OP_MISMATCH as OP_MISMATCH, DEEP_EP_SUCCESS as SUCCESS,
};
use deepep::capi::{deep_ep_buffer_barrier, deep_ep_buffer_reset};

/// Who does not do what the others do.
const OTHER: usize = 1;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Difference {
    BarrierForDispatch,
    CombineForDispatch,
    BarrierForCombine,
    DispatchHidden,
    DispatchType,
    CombineType,
}

const ALL: [Difference; 6] = [
    Difference::BarrierForDispatch,
    Difference::CombineForDispatch,
    Difference::BarrierForCombine,
    Difference::DispatchHidden,
    Difference::DispatchType,
    Difference::CombineType,
];

fn dispatch(player: &Player, lane: &Lane) -> Status {
    match player.case.split {
        false => lane.dispatch_whole(player.stream()),
        true => match lane.send_status(player.stream()) {
            SUCCESS => lane.dispatch_recv(player.stream()),
            failed => failed,
        },
    }
}

/// The calls of a rank from where the others' differ; `other`: a lane like `lane` but for what differs.
fn differ(player: &Player, difference: Difference, lane: &Lane, other: &Lane) -> Status {
    let stream = player.stream();
    let barrier = || unsafe { deep_ep_buffer_barrier(player.buffers[0].0, stream) };
    let mine = if player.rank == OTHER { other } else { lane };
    match (difference, player.rank == OTHER) {
        (Difference::BarrierForDispatch, true) => barrier(),
        (Difference::CombineForDispatch, true) => lane.combine_status(stream),
        (Difference::BarrierForCombine, differs) => {
            lane.dispatch(stream);
            if differs {
                barrier()
            } else {
                lane.combine_status(stream)
            }
        }
        (Difference::CombineType, _) => {
            mine.dispatch(stream);
            mine.combine_status(stream)
        }
        _ => dispatch(player, mine),
    }
}

/// What differs, one time after the other, with a reset in between.
fn script(player: &Player) -> Outputs {
    let case = player.case;
    let others = [
        Case { hidden: case.hidden / 2, ..case.clone() },
        Case { rows: Rows::Fp16, ..case.clone() },
        Case { combine: Rows::Fp16, ..case.clone() },
    ];
    let lanes = others.each_ref().map(|case| Lane::new(case, player.rank, player.buffers[0], player.arena));
    let lane = player.lane(0);
    let mut outputs = Vec::new();
    for (time, difference) in ALL.into_iter().enumerate() {
        let other = match difference {
            Difference::DispatchHidden => &lanes[0],
            Difference::DispatchType => &lanes[1],
            _ => &lanes[2],
        };
        lane.load(2 * time);
        other.load(2 * time);
        lane.pair(player.stream());
        player.arena.wait();
        player.meeting.wait();
        let status = differ(player, difference, &lane, other);
        player.arena.wait();
        let found = report(player.buffers[0]);
        let context = format!("rank {}, {difference:?}, {case:?}", player.rank);
        assert!([SUCCESS, OP_MISMATCH].contains(&status), "{status:?} {context}");
        assert_eq!((found.status, found.num_missing), (OP_MISMATCH, 1), "{context}");
        let named = found.first_missing as usize;
        assert!(if player.rank == OTHER { named != OTHER } else { named == OTHER }, "{named}, {context}");
        player.meeting.wait();
        ok(unsafe { deep_ep_buffer_reset(player.buffers[0].0, std::ptr::null()) });
        lane.load(2 * time + 1);
        lane.pair(player.stream());
        player.arena.wait();
        outputs.extend(lane.look(&format!("after {difference:?}")));
    }
    outputs
}

fn named_on_both(case: &Case) {
    let place = if crate::against_itself() { Where::Host } else { Where::Device };
    crate::compare(case, &play(case, Where::Host, 1, &script), &play(case, place, 1, &script));
}

fn layouts(ranks: usize, sync: u32, split: bool) {
    if !crate::ready() {
        return;
    }
    for (by_expert, slotted) in [(false, false), (true, false), (false, true), (true, true)] {
        named_on_both(&Case { ranks, sync, split, by_expert, slotted, tokens: 24, ..Case::default() });
    }
}

#[test]
fn two_ranks() {
    layouts(2, 0, false);
}

#[test]
fn two_ranks_in_halves() {
    layouts(2, 0, true);
}

#[test]
fn three_ranks_with_acknowledgements() {
    layouts(3, 1, false);
}

#[test]
fn three_ranks_with_barriers() {
    layouts(3, 2, false);
}
