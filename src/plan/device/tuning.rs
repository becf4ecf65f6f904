//! How kernels are launched: warps for each role, stages, pieces, blocks. Results do not depend on any of it.

use crate::error::{Error, Result};
use crate::plan::config::Config;
use crate::plan::request::DispatchShape;
use crate::plan::round_up;

/// Threads of every combine kernel.
pub const COMBINE_THREADS: u32 = 512;
/// Warps that write side data.
const SIDE_WARPS: u32 = 4;
/// By expert: one tells the peers of slices, one watches for theirs.
const WATCH_WARPS: u32 = 2;
/// One writes the counts that callers see.
const COUNT_WARPS: u32 = 1;
/// By rank; with the others at most the 24 that the kernels are compiled for.
const MOST_RING_WARPS: u32 = 16;
/// By expert, of which two thirds send first: more of them only keep more bytes under way than memory takes.
const MOST_EXPERT_RING_WARPS: u32 = 6;
const DEFAULT_STAGES: u32 = 3;
/// Rows are cut in pieces of at most this, so that more warps find room for their stages.
const PIECE_BYTES: u64 = 8192;
/// Blocks where nothing else is said: more gain little over one link.
const DEFAULT_BLOCKS: u32 = 64;
const STAGE_ALIGN: u64 = 128;
/// The barrier of a stage.
const BARRIER_BYTES: u64 = 8;

/// What passes through a stage of a packed combine, as the kernels are written.
struct SumShape {
    what: &'static str,
    /// Bytes of a row that a warp sums at once.
    piece_bytes: u64,
    most_stages: u64,
    /// Behind the stages, for each rank.
    rank_bytes: u64,
}

/// On local rows a third stage gains 3 % over two, a fourth nothing. A count of each rank's rows.
const PULLED: SumShape = SumShape { what: "a combine", piece_bytes: 3584, most_stages: 3, rank_bytes: 4 };
/// There are two sums, and therefore smaller pieces. Where the rows of each rank lie.
const REDUCED: SumShape =
    SumShape { what: "a REDUCED combine", piece_bytes: 2048, most_stages: 6, rank_bytes: 12 };

/// Tokens per announced slice, as a power of two.
pub const fn dispatch_slice_shift(max_tokens: u64) -> u32 {
    match max_tokens {
        4096.. => 5,
        1024.. => 4,
        _ => 3,
    }
}

/// Rows per announced slice of partial sums, as a power of two. A slice is one warp's work, so until the first are done
/// there is nothing to pull.
pub const fn combine_slice_shift(max_tokens: u64) -> u32 {
    match max_tokens {
        1024.. => 1,
        _ => 0,
    }
}

/// What a device leaves to one block.
#[derive(Debug, Clone, Copy)]
pub struct DispatchShared {
    /// Shared memory for rings, zeros and counts.
    pub bytes: u64,
    /// Of it, for zeros.
    pub zero_bytes: u64,
}

/// The launch of a dispatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuning {
    pub piece_bytes: u32,
    pub stages: u32,
    pub row_warps: u32,
    pub side_warps: u32,
    pub expand_warps: u32,
    pub threads: u32,
    pub shared_bytes: u32,
}

impl Tuning {
    /// As many ring warps as find room.
    pub fn of(config: &Config, shape: &DispatchShape, shared: DispatchShared) -> Result<Tuning> {
        let by_expert = config.layout.by_expert();
        let piece = piece_bytes(shape);
        let most = if config.num_stages == 0 { DEFAULT_STAGES } else { config.num_stages };
        let least = if config.num_stages == 0 { 1 } else { config.num_stages };
        for stages in (least..=most).rev() {
            let fewest = if by_expert { 2 } else { 1 };
            // A deeper ring is worth less than a few warps.
            let enough = if stages > least { 4 } else { fewest };
            let most_warps = if by_expert { MOST_EXPERT_RING_WARPS } else { MOST_RING_WARPS };
            for ring_warps in (enough..=most_warps).rev() {
                let row_warps = if by_expert { ring_warps * 2 / 3 } else { ring_warps };
                let warps = ring_warps + SIDE_WARPS + COUNT_WARPS + if by_expert { WATCH_WARPS } else { 0 };
                let bytes = u64::from(ring_warps * stages) * piece
                    + shared.zero_bytes
                    + routing_bytes(config, u64::from(warps));
                if bytes <= shared.bytes {
                    return Ok(Tuning {
                        piece_bytes: piece as u32,
                        stages,
                        row_warps,
                        side_warps: SIDE_WARPS,
                        expand_warps: ring_warps - row_warps,
                        threads: warps * 32,
                        shared_bytes: bytes as u32,
                    });
                }
            }
        }
        Err(Error::unsupported(format_args!(
            "num_experts = {}, rows of {} bytes{} and {most} stages need more shared memory than the {} bytes of this \
             GPU",
            config.experts.count(),
            shape.row_bytes,
            if shape.cast_from.is_some() { " that are cast" } else { "" },
            shared.bytes
        )))
    }

    /// Blocks for a call that asks for `asked` (0: the buffer's choice), where at most `limit` may run.
    pub fn blocks(config: &Config, asked: i32, limit: u32) -> Result<u32> {
        let asked = if asked == 0 { config.num_sms } else { asked };
        if asked == 0 {
            return Ok(limit.clamp(1, DEFAULT_BLOCKS));
        }
        if asked < 0 || asked as u32 > limit {
            return Err(Error::invalid_argument(format_args!(
                "num_sms is {asked}; between 1 and {limit} can be used: the SMs of the device over its ranks"
            )));
        }
        Ok(asked as u32)
    }
}

/// The stages of shared memory through which rows pass on their way to the sums of a packed combine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SumStages {
    /// Of each warp.
    pub stages: u32,
    /// With what lies behind them.
    pub shared_bytes: u32,
}

impl SumStages {
    /// Of rows that are summed as they lie in the windows, in `available` bytes of shared memory.
    pub fn pulled(num_ranks: usize, available: u32) -> Result<SumStages> {
        SumStages::of(&PULLED, num_ranks, available)
    }

    /// The same of a REDUCED combine.
    pub fn reduced(num_ranks: usize, available: u32) -> Result<SumStages> {
        SumStages::of(&REDUCED, num_ranks, available)
    }

    /// As many as there is room for.
    fn of(shape: &SumShape, num_ranks: usize, available: u32) -> Result<SumStages> {
        let stage = u64::from(COMBINE_THREADS / 32) * (shape.piece_bytes + BARRIER_BYTES);
        let behind = num_ranks as u64 * shape.rank_bytes;
        match (u64::from(available).saturating_sub(behind) / stage).min(shape.most_stages) {
            0 => Err(Error::unsupported(format_args!(
                "{} of {num_ranks} ranks needs {} bytes of shared memory; this GPU has {available}",
                shape.what,
                stage + behind
            ))),
            stages => Ok(SumStages { stages: stages as u32, shared_bytes: (stages * stage + behind) as u32 }),
        }
    }
}

/// A cast keeps the whole row, before and after, and its scales in one stage.
fn piece_bytes(shape: &DispatchShape) -> u64 {
    if let Some(from) = shape.cast_from {
        return round_up(shape.hidden * from.bytes() + shape.row_bytes + shape.scale_stride(), STAGE_ALIGN);
    }
    let pieces = shape.row_bytes.div_ceil(PIECE_BYTES);
    round_up(shape.row_bytes.div_ceil(pieces), STAGE_ALIGN)
}

/// Where experts live, and what counting needs.
fn routing_bytes(config: &Config, warps: u64) -> u64 {
    let (ranks, experts) = (config.num_ranks as u64, config.experts.count() as u64);
    let expert_rows = if config.layout.by_expert() { warps } else { 1 };
    round_up(4 * experts, 16) + 4 * (warps * ranks + expert_rows * experts + ranks + 2 * experts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::config::RawConfig;
    use crate::plan::dtype::{Dtype, ScaleKind};

    fn tuning(layout: u32, hidden: u64, from: Dtype) -> Result<Tuning> {
        let raw = RawConfig {
            max_tokens: 4096,
            max_row_bytes: 16384,
            max_scale_bytes: 512,
            cuda: true,
            ..RawConfig::example(layout)
        };
        let shape = DispatchShape {
            hidden,
            dtype: Dtype::Fp8,
            row_bytes: hidden,
            scale: Some(ScaleKind::Fp32),
            block: 128,
            scale_bytes: hidden.div_ceil(128) * 4,
            cast_from: Some(from),
        };
        let shared = DispatchShared { bytes: 225 << 10, zero_bytes: 1024 };
        Tuning::of(&Config::parse(raw, None, 8)?, &shape, shared)
    }

    #[test]
    fn sums_have_the_stages_that_there_is_room_for() {
        let rings = |bytes| SumStages::pulled(8, bytes).map(|rings| (rings.stages, rings.shared_bytes));
        let stage = 16 * (3584 + 8);
        assert_eq!(rings(227 << 10).unwrap(), (3, 3 * stage + 32));
        assert_eq!(rings(3 * stage + 31).unwrap(), (2, 2 * stage + 32));
        assert_eq!(rings(stage + 32).unwrap(), (1, stage + 32));
        let error = rings(stage + 31).unwrap_err();
        assert!(error.text.contains("shared memory"), "{}", error.text);
    }

    #[test]
    fn rows_that_are_cast_find_room() {
        for (layout, from) in
            [0, 1].into_iter().flat_map(|layout| [Dtype::Bf16, Dtype::Fp32].map(|from| (layout, from)))
        {
            let tuning = tuning(layout, 7168, from).unwrap();
            assert!(
                tuning.row_warps >= 2 && tuning.shared_bytes <= 225 << 10,
                "{layout} {from:?} {tuning:?}"
            );
        }
        let error = tuning(0, 1 << 16, Dtype::Fp32).unwrap_err();
        assert!(error.text.contains("more shared memory"), "{}", error.text);
    }

    #[test]
    fn slots_of_a_combine_fit() {
        for (ranks, bytes) in [(1, 227 << 10), (1024, 227 << 10), (8, 99 << 10), (8, 48 << 10)] {
            let SumStages { stages: slots, shared_bytes: used } = SumStages::reduced(ranks, bytes).unwrap();
            assert!((1..=6).contains(&slots) && used <= bytes, "{slots} slots in {used} of {bytes} bytes");
        }
        let error = SumStages::reduced(8, 32 << 10).unwrap_err();
        assert!(error.text.contains("REDUCED combine of 8 ranks"), "{}", error.text);
    }
}
