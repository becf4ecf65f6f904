//! The tokens, and which rank has which of them.

use crate::common::Outcome;
use crate::options::Options;
use std::ops::Range;

pub fn read(options: &Options) -> Outcome<Vec<u8>> {
    let name = options.file.display();
    let mut text = std::fs::read(&options.file).map_err(|error| format!("cannot read {name}: {error}"))?;
    text.truncate(options.tokens);
    if text.is_empty() {
        return Err(format!("{name} has no bytes to use as tokens"));
    }
    Ok(text)
}

/// The part of the text that a rank has. Later ranks have more, up to twice as much: real shares are not even either.
pub fn share(tokens: usize, rank: usize, ranks: usize) -> Range<usize> {
    let weight = |rank: usize| (0..rank).map(|r| ranks + r).sum::<usize>();
    let start = |rank: usize| tokens * weight(rank) / weight(ranks);
    start(rank)..start(rank + 1)
}

/// Batches that every rank takes part in: as many as the largest share needs.
pub fn batches(tokens: usize, ranks: usize, batch: usize) -> usize {
    (0..ranks).map(|rank| share(tokens, rank, ranks).len().div_ceil(batch)).max().unwrap_or(0)
}
