//! How the combine kernels of the slotted layouts are launched. Results do not depend on any of it.
//!
//! Latency is all: every piece of every row should be on its way at once, so there are as many warps as pieces, up to the
//! SMs of the rank. A rank pushes about as many rows as it has tokens to each of the peers that its tokens go to.

use super::division::magic;
use super::tuning::{Tuning, COMBINE_THREADS};
use crate::error::Result;
use crate::plan::config::Config;

/// Bytes of a row that a warp moves at once, as the kernels are written.
const PIECE_BYTES: u64 = 1024;
/// Warps of a block that move rows: all but the last.
const WORKERS: u64 = COMBINE_THREADS as u64 / 32 - 1;
/// Pieces for each block while there are SMs: one for each of an SM's schedulers, whose instructions are the time that it takes.
const PIECES_PER_BLOCK: u64 = 4;
/// Most pieces of own rows that a warp sums ahead, while it waits for the peers.
const MOST_STASH: u64 = 8;

/// What a combine has to do, as far as the host knows it.
#[derive(Debug, Clone, Copy)]
pub struct SlotWork {
    /// The most tokens of this rank.
    pub tokens: u64,
    pub row_bytes: u64,
    /// Whether own rows are summed ahead.
    pub stashes: bool,
}

/// The launch of a slotted combine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlottedCombineTuning {
    pub blocks: u32,
    /// Pieces of a row, and what divides a job's number by them.
    pub pieces: u32,
    pub piece_magic: u32,
    /// Pieces of own rows per warp that wait in shared memory, at least 1.
    pub stash: u32,
    pub shared_bytes: u32,
}

impl SlottedCombineTuning {
    /// `asked`: SMs for this call, 0 if that is open. `limit`: of the rank.
    pub fn of(config: &Config, work: &SlotWork, asked: i32, limit: u32) -> Result<SlottedCombineTuning> {
        let pieces = work.row_bytes.div_ceil(PIECE_BYTES);
        let jobs = work.tokens.max(1) * pieces;
        let spread = config.topk.min(config.num_ranks - 1).max(1) as u64;
        let blocks = match if asked == 0 { config.num_sms } else { asked } {
            0 => (jobs * spread).div_ceil(PIECES_PER_BLOCK).clamp(1, limit.max(1).into()) as u32,
            _ => Tuning::blocks(config, asked, limit)?,
        };
        let stash = jobs.div_ceil(u64::from(blocks) * WORKERS).clamp(1, MOST_STASH);
        let shared = if work.stashes { stash * WORKERS * PIECE_BYTES } else { 0 };
        let stash = if work.stashes { stash } else { 1 };
        let most = config.num_ranks as u64 * config.max_tokens * pieces + u64::from(blocks) * WORKERS;
        Ok(SlottedCombineTuning {
            blocks,
            pieces: pieces as u32,
            piece_magic: magic(pieces, most),
            stash: stash as u32,
            shared_bytes: shared as u32,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::config::RawConfig;

    fn launch(num_ranks: usize, tokens: u64, asked: i32) -> Result<SlottedCombineTuning> {
        let raw = RawConfig {
            layout: 2,
            max_tokens: 512,
            max_row_bytes: 14336,
            num_experts: 256,
            num_topk: 8,
            cuda: true,
            ..RawConfig::default()
        };
        let work = SlotWork { tokens, row_bytes: 14336, stashes: true };
        SlottedCombineTuning::of(&Config::parse(raw, None, num_ranks)?, &work, asked, 132)
    }

    #[test]
    fn few_pieces_for_each_block_up_to_the_device() {
        assert_eq!(launch(2, 0, 0).unwrap().blocks, 4);
        assert_eq!(launch(2, 1, 0).unwrap().blocks, 4);
        assert_eq!(launch(2, 32, 0).unwrap().blocks, 112);
        assert_eq!(launch(8, 2, 0).unwrap().blocks, 49);
        let all = launch(2, 128, 0).unwrap();
        assert_eq!((all.blocks, all.stash, all.shared_bytes), (132, 1, 15 << 10));
        let many = launch(2, 512, 0).unwrap();
        assert_eq!((many.blocks, many.stash, many.shared_bytes), (132, 4, 60 << 10));
    }

    #[test]
    fn what_is_asked_for_holds() {
        let few = launch(2, 128, 4).unwrap();
        assert_eq!((few.blocks, few.stash), (4, 8));
        assert!(launch(2, 128, 133).is_err());
    }
}
