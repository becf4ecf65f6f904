//! How the kernels of the slotted layouts are launched. Results do not depend on any of it.
//!
//! A few tokens have to be on their way as soon as possible, so everything is spread as thinly as it goes: a warp takes
//! one piece of one row at a time, a block as many warps as make whole rows, and the grid as many blocks as there is work
//! for, sending or receiving, up to the SMs of the rank.

use super::tuning::Tuning;
use crate::error::{Error, Result};
use crate::plan::config::Config;
use crate::plan::request::DispatchShape;

/// Bytes of a row's input that a warp takes at once: 2 loads of 16 bytes per lane.
const PIECE_BYTES: u64 = 1024;
/// What the kernels are compiled for; at least one warp is for what crosses beside the rows.
const WARPS: u64 = 16;
const MOST_ROW_WARPS: u64 = WARPS - 1;
/// By expert the copies of a single row are the work of several blocks.
const FEWEST_EXPERT_BLOCKS: u64 = 4;
/// Pairs of token and expert that a thread looks at together, as the kernels are written.
const PAIRS_AHEAD: u64 = 2;
/// Tokens counted at once, in words of 32, and the most shared memory for their masks.
const MOST_CHUNK_WORDS: u64 = 16;
const MASK_BYTES: u64 = 32 << 10;

/// The launch of a slotted dispatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlottedTuning {
    pub blocks: u32,
    pub threads: u32,
    pub row_warps: u32,
    /// Of a row, one for each turn of a warp.
    pub pieces: u32,
    pub shared_bytes: u32,
    pub chunk_words: u32,
}

/// What a launch does.
#[derive(Debug, Clone, Copy)]
pub struct SlottedWork<'a> {
    pub shape: &'a DispatchShape,
    /// The most tokens it sends, if it sends.
    pub sends: Option<u64>,
    pub receives: bool,
    /// By rank: rows are copied to caller memory.
    pub copies: bool,
}

/// What a device leaves to one rank: blocks, and shared memory for each.
#[derive(Debug, Clone, Copy)]
pub struct SlottedLimit {
    pub blocks: u32,
    pub shared_bytes: u64,
}

impl SlottedTuning {
    /// `asked`: SMs for this call, 0 if that is open.
    pub fn dispatch(
        config: &Config,
        work: SlottedWork,
        asked: i32,
        limit: SlottedLimit,
    ) -> Result<SlottedTuning> {
        let pieces = pieces(work.shape);
        let tokens = work.sends.unwrap_or(config.max_tokens).max(1);
        let row_warps = match MOST_ROW_WARPS / pieces {
            0 => pieces.div_ceil(pieces.div_ceil(MOST_ROW_WARPS)),
            rows => rows.min(tokens) * pieces,
        };
        let asked = if asked == 0 { config.num_sms } else { asked };
        let blocks = match asked {
            0 => most_work(config, &work, row_warps).clamp(1, limit.blocks.max(1).into()) as u32,
            asked => Tuning::blocks(config, asked, limit.blocks)?,
        };
        let (chunk_words, shared) = counting_memory(config);
        if shared > limit.shared_bytes {
            return Err(Error::unsupported(format_args!(
                "num_experts = {} and {} ranks need {shared} bytes of shared memory with layout {}, more than the {} \
                 of this GPU",
                config.experts.count(),
                config.num_ranks,
                config.layout.name(),
                limit.shared_bytes
            )));
        }
        Ok(SlottedTuning {
            blocks,
            threads: WARPS as u32 * 32,
            row_warps: row_warps as u32,
            pieces: pieces as u32,
            shared_bytes: shared as u32,
            chunk_words: chunk_words as u32,
        })
    }
}

impl SlottedTuning {
    /// What warps take of a received row: its pieces, and what lies beside it.
    pub fn received_units(shape: &DispatchShape) -> u64 {
        shape.row_bytes.div_ceil(PIECE_BYTES) + 1
    }

    /// How far behind the last of them warps may look for the next.
    pub fn units_ahead(&self) -> u64 {
        3 * WARPS * u64::from(self.blocks)
    }

    /// Pairs of token and expert have smaller numbers while they are counted, also those that threads look for behind the last.
    pub fn most_pairs(&self, config: &Config) -> u64 {
        u64::from(self.chunk_words) * 32 * config.topk as u64 + PAIRS_AHEAD * u64::from(self.threads)
    }
}

/// Of the row that a token is given as.
fn pieces(shape: &DispatchShape) -> u64 {
    (shape.cast_from.unwrap_or(shape.dtype).bytes() * shape.hidden).div_ceil(PIECE_BYTES)
}

/// Blocks for the part that wants most of them.
fn most_work(config: &Config, work: &SlottedWork, row_warps: u64) -> u64 {
    let (ranks, threads) = (config.num_ranks as u64, WARPS * 32);
    let send = work.sends.map_or(0, |tokens| (tokens * pieces(work.shape)).div_ceil(row_warps));
    // Others send about as many tokens as this rank.
    let rows = ranks * work.sends.unwrap_or(config.max_tokens);
    let row_units = rows * SlottedTuning::received_units(work.shape);
    let receive = if !work.receives {
        0
    } else if config.layout.by_expert() {
        // A thread blanks four entries of the side outputs at once (one, where slabs are no multiple of four), and may do so twice.
        let blanks = config.max_recv_rows * config.experts.most_local() as u64 / 8;
        (row_units * 32).div_ceil(threads).max(blanks.div_ceil(threads)).max(FEWEST_EXPERT_BLOCKS)
    } else if work.copies {
        (row_units * 32).div_ceil(threads)
    } else {
        // Two side arrays by 16 bytes, slots by rows: one for each thread.
        (config.max_recv_rows * (config.topk as u64 / 2 + 2)).div_ceil(threads)
    };
    send.max(receive)
}

/// Words of tokens counted at once, and shared memory: addresses of the ranks, homes of the experts, ranks alive, running
/// counts, then either masks of tokens or what was received of each expert from each source.
fn counting_memory(config: &Config) -> (u64, u64) {
    let (ranks, experts) = (config.num_ranks as u64, config.experts.count() as u64);
    let columns = ranks + experts;
    let words = config.max_tokens.div_ceil(32).min(MOST_CHUNK_WORDS).min(MASK_BYTES / (columns * 4)).max(1);
    let received = (config.experts.most_local() as u64 + 1) * (ranks + 1);
    (words, 8 * ranks + 4 * (columns + columns + (words * columns).max(received)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::config::RawConfig;
    use crate::plan::dtype::{Dtype, ScaleKind};

    fn launch(layout: u32, num_experts: i32, tokens: u64) -> Result<SlottedTuning> {
        let raw = RawConfig { max_row_bytes: 7168, num_experts, cuda: true, ..RawConfig::example(layout) };
        let shape = DispatchShape {
            hidden: 7168,
            dtype: Dtype::Fp8,
            row_bytes: 7168,
            scale: Some(ScaleKind::Fp32),
            block: 128,
            scale_bytes: 224,
            cast_from: Some(Dtype::Bf16),
        };
        let work = SlottedWork { shape: &shape, sends: Some(tokens), receives: true, copies: false };
        let limit = SlottedLimit { blocks: 132, shared_bytes: 200 << 10 };
        SlottedTuning::dispatch(&Config::parse(raw, None, 2)?, work, 0, limit)
    }

    #[test]
    fn blocks_follow_the_work() {
        let one = launch(2, 256, 1).unwrap();
        assert!(one.blocks <= 4 && one.row_warps == 14, "{one:?}");
        assert_eq!(launch(2, 256, 32).unwrap().blocks, 32);
        assert_eq!(launch(2, 256, 128).unwrap().blocks, 128);
        assert_eq!(launch(3, 256, 128).unwrap().blocks, 128);
    }

    #[test]
    fn more_experts_than_fit_are_refused() {
        assert!(launch(3, 1 << 12, 1).is_ok());
        assert!(launch(3, 1 << 16, 1).unwrap_err().text.contains("num_experts = 65536"));
    }
}
