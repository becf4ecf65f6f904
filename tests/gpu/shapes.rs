//! Random shapes, types and options, each compared with the host backend. DEEPEP_GPU_SHAPES is how many are tried (24),
//! DEEPEP_GPU_SHAPES_SEED where they begin: a failure prints its case.

use crate::cases::{setting, Case, Mode, Rows, Scales};
use crate::rng::Rng;

fn one_of<T: Copy>(dice: &mut Rng, all: &[T]) -> T {
    all[dice.below(all.len())]
}

/// Now and then a number up to `most`, mostly 0, which leaves it to the library.
fn seldom(dice: &mut Rng, most: usize) -> usize {
    match dice.below(3) {
        0 => 1 + dice.below(most),
        _ => 0,
    }
}

fn scales_for(rows: Rows, dice: &mut Rng) -> Scales {
    match rows {
        rows if rows.is_cast() => one_of(dice, &[Scales::Fp32, Scales::Pow2, Scales::Ue8m0]),
        Rows::Fp8 => one_of(dice, &[Scales::Fp32, Scales::Pow2, Scales::Ue8m0]),
        Rows::Opaque => {
            one_of(dice, &[Scales::None, Scales::Opaque(4), Scales::Opaque(12), Scales::Opaque(36)])
        }
        _ => Scales::None,
    }
}

fn case(seed: u64) -> Case {
    let dice = &mut Rng::new(seed);
    for _ in 0..8 {
        dice.next(); // neighbouring seeds begin alike
    }
    let ranks = 1 + dice.below(10);
    let (by_expert, slotted) = (dice.below(2) == 1, dice.below(2) == 1);
    let experts = 1 + dice.below(1 + 5 * ranks);
    let rows = one_of(
        dice,
        &[
            Rows::Bf16,
            Rows::Fp16,
            Rows::Fp32,
            Rows::Fp8,
            Rows::Opaque,
            Rows::Cast,
            Rows::CastFp16,
            Rows::CastFp32,
        ],
    );
    let tokens = 1 + one_of(dice, &[0, 2, 30, 70]) + dice.below(30);
    let mode = one_of(dice, &[Mode::Mixed, Mode::Caller, Mode::InPlace]);
    let caller = mode == Mode::Caller;
    let scales = scales_for(rows, dice);
    let received = ranks * tokens;
    Case {
        ranks,
        by_expert,
        slotted,
        tokens,
        hidden: 16 * (1 + one_of(dice, &[0, 7, 55]) + dice.below(20)),
        topk: 1 + dice.below(experts.min(32)),
        experts,
        rows,
        scales,
        combine: one_of(dice, &[Rows::Bf16, Rows::Fp16, Rows::Fp32]),
        mode,
        split: dice.below(2) == 1,
        int64: dice.below(2) == 1,
        sync: dice.below(3) as u32,
        align: if by_expert && !slotted { one_of(dice, &[1, 4, 16, 128]) } else { 1 },
        mapped: dice.below(3) == 0,
        bad_ids: dice.below(3) == 0,
        column_major: by_expert && scales != Scales::None && dice.below(2) == 1,
        max_recv_rows: if slotted { 0 } else { seldom(dice, received) as i64 },
        max_expert_rows: if by_expert && !slotted { seldom(dice, received) as i64 } else { 0 },
        out_rows: if caller { seldom(dice, tokens) } else { 0 },
        stages: dice.below(4) as i32,
        sms: seldom(dice, 6) as i32,
        windows: seldom(dice, 3) as i32,
        skewed: caller && dice.below(2) == 1,
        rounds: 5,
        ..Case::default()
    }
}

#[test]
fn random_shapes() {
    let first = setting("DEEPEP_GPU_SHAPES_SEED", 1);
    for seed in first..first + setting("DEEPEP_GPU_SHAPES", 24) {
        let case = case(seed);
        eprintln!("seed {seed}: {case:?}");
        crate::same(case);
    }
}
