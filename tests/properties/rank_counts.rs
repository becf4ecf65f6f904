//! Rank counts of larger machines, once each, as threads.

use super::generate::*;

fn once(ranks: usize, tokens: usize, topk: usize) {
    for layout in 0..4 {
        let numbers = Numbers {
            ranks,
            layout,
            tokens,
            topk,
            experts: 2 * ranks + 3,
            units: 2,
            sync: layout as u32 % 3,
            in_flight: 2,
            routing: 3,
            counts: 1,
            overflow: false,
            in_place: layout % 2 == 1,
            templates: vec![7, 4],
            seed: ranks as u64,
        };
        program(&numbers).run();
    }
}

#[test]
fn twelve_ranks_are_exact() {
    once(12, 5, 4);
}

#[test]
fn sixteen_ranks_are_exact() {
    once(16, 4, 4);
}

#[test]
fn twenty_four_ranks_are_exact() {
    once(24, 3, 4);
}

#[test]
fn seventy_two_ranks_are_exact() {
    once(72, 2, 3);
}
