//! Thousands of operations in random order, with ranks and streams that are late at random. DEEPEP_GPU_STRESS is how many
//! setups are tried (16), DEEPEP_GPU_STRESS_SEED where they begin: a failure prints the seed of its setup.

use crate::cases::setting;
use crate::memory::Where;
use crate::ranks::{Seat, World};
use crate::rng::Rng;
use crate::stamped::{Rank, Setup};
use deepep::capi::deep_ep_status_t;
use std::time::Duration;

/// Calls between two looks at what arrived.
const STRETCH: usize = 24;
const STRETCHES: usize = 6;

fn setup(seed: u64) -> Setup {
    let mut dice = Rng::new(seed);
    let ranks = 2 + dice.below(7);
    let topk = 1 + dice.below(4);
    let tokens = 1 + dice.below(40);
    let in_flight = 1 + dice.below(3) as i32;
    Setup {
        seed,
        ranks,
        layout: dice.below(4) as u32,
        sync: dice.below(3) as u32,
        tokens,
        max_tokens: tokens + dice.below(50),
        max_row_bytes: 128 * (1 + dice.below(3)),
        topk,
        experts: (ranks + dice.below(3 * ranks)).max(2 * topk),
        in_flight,
        windows: dice.below(in_flight as usize + 3) as i32,
        sms: 1 + dice.below(96 / ranks) as i32,
        stages: dice.below(4) as i32,
    }
}

/// Lets a rank be late: before it calls, or its stream some calls later.
fn dawdle(rank: &Rank, lateness: &mut Rng) {
    match lateness.below(24) {
        0 => std::thread::sleep(Duration::from_millis(2)),
        1..=4 => std::thread::sleep(Duration::from_micros(lateness.below(200) as u64)),
        5..=8 => rank.arena.close_gate(),
        9..=16 => rank.arena.open_gate(),
        _ => {}
    }
}

fn run_rank(mut rank: Rank, me: usize, setup: &Setup) -> Vec<deep_ep_status_t> {
    let (mut dice, mut lateness) = (Rng::new(setup.seed + 1), Rng::new(setup.seed * 64 + me as u64));
    for stretch in 0..STRETCHES {
        for input in rank.prepare(stretch * STRETCH..(stretch + 1) * STRETCH) {
            dawdle(&rank, &mut lateness);
            rank.step(&input, &mut dice);
        }
        rank.arena.open_gate();
        rank.check();
    }
    rank.finish();
    std::mem::take(&mut rank.decisions)
}

/// Whether the backend has the layout.
pub fn run(setup: &Setup, place: Where) -> bool {
    let world = World::create(place, setup.ranks).unwrap_or_else(|(_, text)| panic!("{text}"));
    let Some(buffers) = world.buffers_if_supported(&setup.config(place)) else { return false };
    let handles = setup.in_flight as usize + 1;
    let decisions: Vec<_> = std::thread::scope(|scope| {
        let rank = |seat: (usize, Seat)| {
            scope.spawn(move || run_rank(Rank::new(setup, place, seat, handles, STRETCH), seat.0, setup))
        };
        let ranks: Vec<_> = world.seats(buffers).map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    assert!(decisions.iter().all(|mine| *mine == decisions[0]), "the ranks did not decide alike: {setup:?}");
    true
}

/// Two batches in overlap on both slotted layouts, in every way to keep windows.
#[test]
fn slotted_batches_of_late_ranks() {
    if !crate::ready() {
        return;
    }
    let place = if crate::against_itself() { Where::Host } else { Where::Device };
    let seed = setting("DEEPEP_GPU_STRESS_SEED", 1);
    for at in 0..setting("DEEPEP_GPU_STRESS", 16) {
        let drawn = setup(1000 * seed + at);
        let (layout, sync) = (2 + at as u32 % 2, at as u32 / 2 % 3);
        let windows = [2, 1, 0][at as usize / 6 % 3];
        let setup = Setup { layout, sync, in_flight: 2, windows, ..drawn };
        eprintln!("{setup:?}");
        assert!(run(&setup, place), "no slotted layout");
    }
}

#[test]
fn random_operations_of_late_ranks() {
    if !crate::ready() {
        return;
    }
    let place = if crate::against_itself() { Where::Host } else { Where::Device };
    let seed = setting("DEEPEP_GPU_STRESS_SEED", 1);
    let (mut done, mut absent) = (0, 0);
    for seed in seed..seed + setting("DEEPEP_GPU_STRESS", 16) {
        let mut setup = setup(seed);
        eprintln!("{setup:?}");
        if !run(&setup, place) {
            absent += 1;
            setup.layout %= 2;
            assert!(run(&setup, place), "no packed layout");
        }
        done += 1;
    }
    let calls = STRETCH * STRETCHES;
    eprintln!("{done} setups of {calls} calls on every rank, {absent} of them with another layout, as the one drawn is not there");
}
