//! Random programs on 1 to 9 ranks.

use super::generate::*;
use super::templates::TEMPLATES;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};

fn numbers(layout: usize) -> impl Strategy<Value = Numbers> {
    let sizes = (1usize..=9, 1usize..=10, 1usize..=6, 1usize..=24, 1usize..=40);
    let modes = (0u32..3, 1usize..=3, 0..ROUTINGS, 0..COUNTS);
    let flags = (prop::bool::weighted(0.25), any::<bool>());
    let templates = prop::collection::vec(0..TEMPLATES, 1..6);
    (sizes, modes, flags, templates, any::<u64>()).prop_map(move |(sizes, modes, flags, templates, seed)| {
        let (ranks, tokens, topk, experts, units) = sizes;
        let (sync, in_flight, routing, counts) = modes;
        let (overflow, in_place) = flags;
        Numbers {
            ranks,
            layout,
            tokens,
            topk,
            experts,
            units,
            sync,
            in_flight,
            routing,
            counts,
            overflow,
            in_place,
            templates,
            seed,
        }
    })
}

fn check(layout: usize) {
    let mut config = Config::default();
    if std::env::var("PROPTEST_CASES").is_err() {
        config.cases = 150;
    }
    if std::env::var("PROPTEST_RNG_SEED").is_err() {
        config.rng_seed = RngSeed::Fixed(20_260_722 + layout as u64);
    }
    config.failure_persistence = None;
    config.max_shrink_iters = 60;
    TestRunner::new(config)
        .run(&numbers(layout), |numbers| {
            program(&numbers).run();
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn random_programs_packed_by_rank_are_exact() {
    check(0);
}

#[test]
fn random_programs_packed_by_expert_are_exact() {
    check(1);
}

#[test]
fn random_programs_slotted_by_rank_are_exact() {
    check(2);
}

#[test]
fn random_programs_slotted_by_expert_are_exact() {
    check(3);
}
