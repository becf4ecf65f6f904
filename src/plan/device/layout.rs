//! Offsets in a rank's symmetric memory and in a handle's memory.

use super::tuning::{combine_slice_shift, dispatch_slice_shift};
use super::{count_regions, link_may_overflow};
use crate::error::Result;
use crate::plan::config::Config;
use crate::plan::layout::{expert_rows_of, Pieces};
use crate::plan::words::{turns, PHASES};

/// A signal word or a verdict to a line.
pub const WORD_BYTES: u64 = 64;
/// Arrays begin at multiples of this.
const ARRAY_ALIGN: u64 = 256;

/// Arrays of a dispatch window, as offsets from its begin. Slotted layouts: rows are [R sources][max_tokens].
#[derive(Debug, Clone, Copy, Default)]
pub struct DispatchWindow {
    pub rows: u64,
    pub scales: u64,
    /// int32, float and, by expert, int32 [rows][K].
    pub ids: u64,
    pub weights: u64,
    pub positions: u64,
    /// Packed: int64 [rows] source rank * max_tokens + token.
    pub source: u64,
    /// Slotted: int32 [rows] token * K + largest k of the row; int32 [R sources][slot_counts]: rows, then rows of each
    /// local expert.
    pub slots: u64,
    pub counts: u64,
    bytes: u64,
}

/// Numbers that a source writes into a slotted window beside its rows.
pub fn slot_counts(config: &Config) -> u64 {
    1 + config.experts.most_local() as u64
}

/// Arrays of a combine window, as offsets from its begin.
#[derive(Debug, Clone, Copy, Default)]
pub struct CombineWindow {
    pub rows: u64,
    pub carried: u64,
    bytes: u64,
}

/// The symmetric memory of one rank. What peers touch has the same offsets on every rank; the rank's own tables and
/// state, which no peer touches, lie behind it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Region {
    pub signals: u64,
    pub verdicts: u64,
    pub verdict_masks: u64,
    /// Slotted: a word for each source, to a line each.
    pub arrivals: u64,
    pub counts: u64,
    pub count_region_bytes: u64,
    pub dispatch_progress: u64,
    pub combine_progress: u64,
    combine_limits: u64,
    dispatch: u64,
    combine: u64,
    pub dispatch_window: DispatchWindow,
    pub combine_window: CombineWindow,
    windows_end: u64,
    pub state: u64,
    pub control: u64,
    pub peer_bases: u64,
    pub alive: u64,
    pub expert_home: u64,
    pub expert_order: u64,
    pub rank_first: u64,
    pub block_counts: u64,
    pub totals: u64,
    pub counters: u64,
    pub bytes: u64,
}

impl Region {
    /// `blocks`: the most that any kernel is launched with.
    pub fn of(config: &Config, blocks: u64, state_bytes: u64) -> Result<Region> {
        let (ranks, experts) = (config.num_ranks as u64, config.experts.count() as u64);
        let columns = ranks + experts;
        // What only the packed layouts use takes no room in the others.
        let packed = u64::from(config.layout.packed());
        let slices = config.max_tokens.div_ceil(1 << dispatch_slice_shift(config.max_tokens));
        let combine_slices = config.max_tokens.div_ceil(1 << combine_slice_shift(config.max_tokens));
        let (dispatch_window, combine_window) = (dispatch_window(config)?, combine_window(config)?);
        let count_region_bytes = (ranks * columns * 4).next_multiple_of(ARRAY_ALIGN);
        let mut pieces = Pieces::new(ARRAY_ALIGN);
        let mut take = |count, bytes| pieces.take(count, bytes);
        let region = Region {
            signals: take(PHASES as u64 * ranks * turns(config.depth()) as u64, WORD_BYTES),
            verdicts: take(ranks, WORD_BYTES),
            verdict_masks: take(ranks * ranks.div_ceil(64), 8),
            arrivals: take(ranks * (1 - packed), WORD_BYTES),
            counts: take(count_regions(config) as u64 * packed, count_region_bytes),
            count_region_bytes,
            dispatch_progress: take(ranks * (slices + 1) * packed, 8),
            combine_progress: take(ranks * combine_slices * packed, 8),
            combine_limits: take(config.combine_windows as u64 * ranks * packed, 8),
            dispatch: take(config.dispatch_windows as u64, dispatch_window.bytes),
            combine: take(config.combine_windows as u64, combine_window.bytes),
            dispatch_window,
            combine_window,
            windows_end: take(0, 0),
            state: take(1, state_bytes),
            control: take(1, ARRAY_ALIGN),
            peer_bases: take(ranks, 8),
            alive: take(ranks, 1),
            expert_home: take(experts, 4),
            expert_order: take(experts, 4),
            rank_first: take(ranks + 1, 4),
            block_counts: take(blocks * packed * if link_may_overflow(config) { 2 } else { 1 }, columns * 4),
            totals: take(columns * packed, 4),
            counters: take(counter_words(config), 8),
            bytes: 0,
        };
        Ok(Region { bytes: pieces.total()?, ..region })
    }

    pub const fn dispatch(&self, window: usize) -> u64 {
        self.dispatch + window as u64 * self.dispatch_window.bytes
    }

    pub const fn combine(&self, window: usize) -> u64 {
        self.combine + window as u64 * self.combine_window.bytes
    }

    /// A number of each rank for a combine window.
    pub const fn combine_limits(&self, window: usize, num_ranks: usize) -> u64 {
        self.combine_limits + (window * num_ranks * 8) as u64
    }

    /// Bytes of all dispatch windows and of all combine windows.
    pub const fn window_bytes(&self) -> [u64; 2] {
        [self.combine - self.dispatch, self.windows_end - self.combine]
    }
}

/// Words of the statistics: totals, a part for each rank, rows of each local expert.
const COUNTERS: u64 = 13;
const PEER_COUNTERS: u64 = 6;

fn counter_words(config: &Config) -> u64 {
    COUNTERS + PEER_COUNTERS * config.num_ranks as u64 + config.experts.most_local() as u64
}

fn dispatch_window(config: &Config) -> Result<DispatchWindow> {
    let (rows, k) = (config.max_recv_rows, config.topk as u64);
    let by_expert = u64::from(config.layout.by_expert());
    let slotted = u64::from(!config.layout.packed());
    let mut pieces = Pieces::new(ARRAY_ALIGN);
    let window = DispatchWindow {
        rows: pieces.take(rows, config.max_row_bytes),
        scales: pieces.take(rows, config.max_scale_bytes),
        ids: pieces.take(rows * k, 4),
        weights: pieces.take(rows * k, 4),
        positions: pieces.take(rows * k * by_expert, 4),
        source: pieces.take(rows * (1 - slotted), 8),
        slots: pieces.take(rows * slotted, 4),
        counts: pieces.take(config.num_ranks as u64 * slot_counts(config) * slotted, 4),
        bytes: 0,
    };
    Ok(DispatchWindow { bytes: pieces.total()?, ..window })
}

/// Packed: rows that the tokens' ranks pull. Slotted: K slots for each token of this rank, which the experts' ranks push
/// into.
fn combine_window(config: &Config) -> Result<CombineWindow> {
    let k = config.topk as u64;
    let (rows, carried) = if config.layout.packed() {
        let rows = config.max_recv_rows;
        (rows.max(config.max_expert_rows), (rows * k).max(config.max_expert_rows))
    } else {
        (config.max_tokens * k, config.max_tokens * k * k)
    };
    let mut pieces = Pieces::new(ARRAY_ALIGN);
    let window = CombineWindow {
        rows: pieces.take(rows, config.max_combine_row_bytes),
        carried: pieces.take(carried, 4),
        bytes: 0,
    };
    Ok(CombineWindow { bytes: pieces.total()?, ..window })
}

/// A handle's memory: the routing it sent and received, then the outputs that callers may be handed.
#[derive(Debug, Clone, Copy, Default)]
pub struct HandleArrays {
    pub record: u64,
    pub ids: u64,
    pub weights: u64,
    pub combine_weights: u64,
    /// Packed: where the rows went.
    pub positions: u64,
    pub expert_positions: u64,
    /// Packed: the exchanged matrix. Slotted: int32 [2][R] rows of each source, then the experts of all its rows.
    pub counts: u64,
    /// Slotted: int32 [R + experts] tokens sent to each rank, then to each expert.
    pub sent_counts: u64,
    /// Slotted: int32 [rows] the slot in the source's combine window, token * K + largest k of the row here.
    pub recv_slots: u64,
    /// Slotted: int32 [T] row in this rank's own slab, or -1.
    pub own_rows: u64,
    pub recv_positions: u64,
    pub recv_weights: u64,
    pub out_ids: u64,
    pub out_weights: u64,
    pub out_source: u64,
    pub rank_counts: u64,
    pub expert_counts: u64,
    pub expert_offsets: u64,
    pub true_rows: u64,
    pub source_ranges: u64,
    /// Slotted: what a host may ask for, u64 [1 + local experts]: launch in the high half, number in the low.
    pub told: u64,
    pub bytes: u64,
    /// Host-visible: launch, rows, expert rows, then a count per local expert.
    pub pinned_bytes: u64,
}

impl HandleArrays {
    pub fn of(config: &Config, rank: usize, record_bytes: u64) -> Result<HandleArrays> {
        let (ranks, experts) = (config.num_ranks as u64, config.experts.count() as u64);
        let (k, local) = (config.topk as u64, config.experts.of_rank(rank).len() as u64);
        let (tokens_k, rows_k) = (config.max_tokens * k, config.max_recv_rows * k);
        let by_expert = u64::from(config.layout.by_expert());
        let packed = u64::from(config.layout.packed());
        let (out, out_k) = match by_expert {
            0 => (config.max_recv_rows, rows_k),
            _ => (expert_rows_of(config, rank), expert_rows_of(config, rank)),
        };
        let mut pieces = Pieces::new(ARRAY_ALIGN);
        let mut take = |count, bytes| pieces.take(count, bytes);
        let arrays = HandleArrays {
            record: take(1, record_bytes),
            ids: take(tokens_k, 4),
            weights: take(tokens_k, 4),
            combine_weights: take(tokens_k * by_expert, 4),
            positions: take(tokens_k * packed, 4),
            expert_positions: take(tokens_k * by_expert * packed, 4),
            counts: take(if packed == 1 { ranks * (ranks + experts) } else { 2 * ranks }, 4),
            sent_counts: take((ranks + experts) * (1 - packed), 4),
            recv_slots: take(config.max_recv_rows * (1 - packed), 4),
            own_rows: take(config.max_tokens * (1 - packed), 4),
            recv_positions: take(rows_k * by_expert, 4),
            recv_weights: take(rows_k * by_expert, 4),
            out_ids: take(out_k, 4),
            out_weights: take(out_k, 4),
            out_source: take(out, 8),
            rank_counts: take(ranks, 4),
            expert_counts: take(local.max(1), 4),
            expert_offsets: take(local + 1, 8),
            true_rows: take(2, 8),
            source_ranges: take(local * ranks * 2 * by_expert * (1 - packed), 4),
            told: take((1 + local) * (1 - packed), 8),
            bytes: 0,
            pinned_bytes: (3 + local) * 8,
        };
        Ok(HandleArrays { bytes: pieces.total()?, ..arrays })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::config::RawConfig;

    fn config(layout: u32, num_ranks: usize) -> Config {
        let raw = RawConfig { cuda: true, ..RawConfig::example(layout) };
        Config::parse(raw, None, num_ranks).unwrap()
    }

    #[test]
    fn low_latency_memory_is_small() {
        for layout in [2, 3] {
            let region = Region::of(&config(layout, 8), 132, 512).unwrap();
            assert!(region.bytes.next_multiple_of(2 << 20) <= 64 << 20, "{} bytes", region.bytes);
        }
    }

    #[test]
    fn sections_do_not_overlap() {
        for layout in 0..4 {
            let config = config(layout, 3);
            let region = Region::of(&config, 132, 512).unwrap();
            assert!(region.verdict_masks < region.arrivals && region.arrivals <= region.counts);
            assert!(region.combine_progress <= region.dispatch(0));
            assert_eq!(region.dispatch(config.dispatch_windows), region.combine(0));
            assert!(region.combine(config.combine_windows) <= region.state);
        }
    }
}
