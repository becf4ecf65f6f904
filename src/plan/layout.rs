//! Where everything lies: offsets in the symmetric region, in local areas and in a handle's memory. The same numbers on
//! every rank and for every backend, and the exact sizes that `deep_ep_buffer_size` tells.

use super::config::{Config, Layout};
use super::round_up;
use super::windows::count_regions;
use super::words::{turns, PHASES};
use crate::error::{Error, Result, Status};

/// Sections of a region begin at multiples of this, so that no two share a page.
pub const PAGE: u64 = 4096;

/// One signal word per cache line: a word is polled by one rank and stored by another.
pub const WORD_BYTES: u64 = 64;

/// Arrays inside a window begin at multiples of this.
const ARRAY_ALIGN: u64 = 256;

/// A rank's verdict on a failed operation: its epoch, then a bit for each missing rank.
pub const VERDICT_BYTES: u64 = 192;

/// What a rank tells the others in a reset: generation, epoch, digest of the mask.
pub const RESET_BYTES: u64 = 64;

/// Hands out consecutive, aligned pieces and adds up their size; an overflow sticks.
pub(super) struct Pieces {
    align: u64,
    end: Option<u64>,
}

impl Pieces {
    pub(super) fn new(align: u64) -> Self {
        Pieces { align, end: Some(0) }
    }

    /// The offset of a piece of `count * bytes`.
    pub(super) fn take(&mut self, count: u64, bytes: u64) -> u64 {
        let at = self.end.unwrap_or(0);
        self.end = count
            .checked_mul(bytes)
            .and_then(|size| self.end?.checked_add(size)?.checked_next_multiple_of(self.align));
        at
    }

    pub(super) fn total(&self) -> Result<u64> {
        self.end.filter(|&end| end <= i64::MAX as u64).ok_or_else(|| {
            Error::new(
                Status::DEEP_EP_CAPACITY_EXCEEDED,
                "the buffer's size does not fit in 63 bits; lower max_tokens, max_row_bytes or the windows",
            )
        })
    }
}

/// Arrays of a dispatch window, as offsets from its begin. Rows are by source rank.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DispatchWindow {
    pub x: u64,
    pub scales: u64,
    /// int32 [rows][K] local expert ids.
    pub ids: u64,
    /// float [rows][K].
    pub weights: u64,
    /// int64 [rows] source rank * max_tokens + token.
    pub source: u64,
    /// int64 [R] rows of each source; slotted layouts.
    pub counts: u64,
    pub bytes: u64,
}

/// Arrays of a combine window. Packed layouts are pulled from: the expert's rank holds partial rows by source rank, or
/// expert rows and an index. Slotted layouts are pushed into: the token's rank has K slots per token.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CombineWindow {
    pub x: u64,
    /// float [rows][K] carried weights.
    pub carried: u64,
    /// int32 [rows][K] position of each expert row, -1 if there is none; packed by expert.
    pub index: u64,
    pub bytes: u64,
}

/// The symmetric region of one rank.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Region {
    num_ranks: u64,
    turns: u64,
    count_bytes: u64,
    words: u64,
    verdicts: u64,
    pub reset: u64,
    counts: u64,
    dispatch: u64,
    combine: u64,
    pub dispatch_window: DispatchWindow,
    pub combine_window: CombineWindow,
    /// Rows a dispatch window has room for.
    pub window_rows: u64,
    pub bytes: u64,
}

impl Region {
    pub fn of(config: &Config) -> Result<Region> {
        let num_ranks = config.num_ranks as u64;
        let turns = turns(config.depth()) as u64;
        let count_bytes = round_up((num_ranks + config.experts.count() as u64) * 4, WORD_BYTES);
        let dispatch_window = dispatch_window(config)?;
        let combine_window = combine_window(config)?;
        let mut pieces = Pieces::new(PAGE);
        let region = Region {
            num_ranks,
            turns,
            count_bytes,
            words: pieces.take(PHASES as u64 * num_ranks * turns, WORD_BYTES),
            verdicts: pieces.take(num_ranks, VERDICT_BYTES),
            reset: pieces.take(1, RESET_BYTES),
            counts: pieces.take(count_regions(config.depth()) as u64 * num_ranks, count_bytes),
            dispatch: pieces.take(config.dispatch_windows as u64, dispatch_window.bytes),
            combine: pieces.take(config.combine_windows as u64, combine_window.bytes),
            dispatch_window,
            combine_window,
            window_rows: config.max_recv_rows,
            bytes: 0,
        };
        Ok(Region { bytes: pieces.total()?, ..region })
    }

    pub const fn word(&self, phase: usize, source: usize, turn: usize) -> u64 {
        self.words + ((phase as u64 * self.num_ranks + source as u64) * self.turns + turn as u64) * WORD_BYTES
    }

    pub const fn verdict(&self, source: usize) -> u64 {
        self.verdicts + source as u64 * VERDICT_BYTES
    }

    /// int32 [R] row counts, then int32 [E] expert counts, from one source.
    pub const fn counts(&self, region: usize, source: usize) -> u64 {
        self.counts + (region as u64 * self.num_ranks + source as u64) * self.count_bytes
    }

    pub const fn dispatch(&self, window: usize) -> u64 {
        self.dispatch + window as u64 * self.dispatch_window.bytes
    }

    pub const fn combine(&self, window: usize) -> u64 {
        self.combine + window as u64 * self.combine_window.bytes
    }

    pub const fn signal_bytes(&self) -> u64 {
        self.dispatch
    }
}

fn dispatch_window(config: &Config) -> Result<DispatchWindow> {
    let (rows, k) = (config.max_recv_rows, config.topk as u64);
    let mut pieces = Pieces::new(ARRAY_ALIGN);
    let window = DispatchWindow {
        x: pieces.take(rows, config.max_row_bytes),
        scales: pieces.take(rows, config.max_scale_bytes),
        ids: pieces.take(rows * k, 4),
        weights: pieces.take(rows * k, 4),
        source: pieces.take(rows, 8),
        counts: pieces.take(if config.layout.packed() { 0 } else { config.num_ranks as u64 }, 8),
        bytes: 0,
    };
    Ok(DispatchWindow { bytes: pages(pieces.total()?)?, ..window })
}

fn combine_window(config: &Config) -> Result<CombineWindow> {
    let k = config.topk as u64;
    let packed = config.layout.packed();
    let slots = if packed { config.max_recv_rows } else { config.max_tokens * k };
    // Of slotted layouts max_expert_rows are rows of local slabs, which never lie in a window.
    let rows = if packed { slots.max(config.max_expert_rows) } else { slots };
    let index = if packed && config.layout.by_expert() { slots * k } else { 0 };
    let mut pieces = Pieces::new(ARRAY_ALIGN);
    let window = CombineWindow {
        x: pieces.take(rows, config.max_combine_row_bytes),
        carried: pieces.take(slots * k, 4),
        index: pieces.take(index, 4),
        bytes: 0,
    };
    Ok(CombineWindow { bytes: pages(pieces.total()?)?, ..window })
}

fn pages(bytes: u64) -> Result<u64> {
    let mut pieces = Pieces::new(PAGE);
    pieces.take(1, bytes);
    pieces.total()
}

/// Local areas: by expert one for received rows per dispatch window; one for combine inputs per combine window, except
/// packed by rank, where the caller writes into the window that peers pull from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Areas {
    pub received: u64,
    /// Offset of the scales in an area of received rows.
    pub scales: u64,
    pub combine: u64,
    pub bytes: u64,
    dispatch_windows: u64,
}

impl Areas {
    pub fn of(config: &Config, rank: usize) -> Result<Areas> {
        let (rows, combine_rows) = match config.layout {
            Layout::PackedByRank => return Ok(Areas::default()),
            Layout::SlottedByRank => (0, config.max_recv_rows),
            _ => (expert_rows_of(config, rank), expert_rows_of(config, rank)),
        };
        let mut area = Pieces::new(PAGE);
        area.take(rows, config.max_row_bytes);
        let scales = area.total()?;
        // Column-major scales have columns of rows rounded up to 4, in every slab.
        let slack = if rows == 0 { 0 } else { 4 * config.experts.of_rank(rank).len() as u64 + 4 };
        area.take(rows + slack, config.max_scale_bytes);
        let mut inputs = Pieces::new(PAGE);
        inputs.take(combine_rows, config.max_combine_row_bytes);
        let (received, combine) = (area.total()?, inputs.total()?);
        let dispatch_windows = config.dispatch_windows as u64;
        let mut all = Pieces::new(PAGE);
        all.take(dispatch_windows, received);
        all.take(config.combine_windows as u64, combine);
        Ok(Areas { received, scales, combine, bytes: all.total()?, dispatch_windows })
    }

    pub const fn received(&self, area: usize) -> u64 {
        area as u64 * self.received
    }

    pub const fn combine(&self, area: usize) -> u64 {
        self.dispatch_windows * self.received + area as u64 * self.combine
    }
}

/// Rows after expansion on one rank: its own slabs (slotted), the common capacity (packed).
pub fn expert_rows_of(config: &Config, rank: usize) -> u64 {
    match config.layout {
        Layout::SlottedByExpert => config.max_recv_rows * config.experts.of_rank(rank).len() as u64,
        _ => config.max_expert_rows,
    }
}

/// Slabs of received rows on one rank, and the rows that each has room for.
pub fn slabs(config: &Config, rank: usize) -> (u64, u64) {
    match config.layout {
        Layout::PackedByRank => (1, config.max_recv_rows),
        Layout::PackedByExpert => (1, config.max_expert_rows),
        Layout::SlottedByRank => (config.num_ranks as u64, config.max_tokens),
        Layout::SlottedByExpert => (config.experts.of_rank(rank).len() as u64, config.max_recv_rows),
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::RawConfig;
    use super::*;

    fn config(layout: u32, num_ranks: usize) -> Config {
        Config::parse(RawConfig::example(layout), None, num_ranks).unwrap()
    }

    #[test]
    fn low_latency_memory_is_small() {
        for layout in [2, 3] {
            let region = Region::of(&config(layout, 8)).unwrap();
            assert!(region.bytes <= 64 << 20, "{} bytes", region.bytes);
        }
    }

    #[test]
    fn sections_do_not_overlap() {
        for layout in 0..4 {
            let region = Region::of(&config(layout, 3)).unwrap();
            assert!(region.word(3, 2, 1) + WORD_BYTES <= region.verdict(0));
            assert!(region.verdict(2) + VERDICT_BYTES <= region.reset);
            assert!(region.counts(0, 2) + region.count_bytes <= region.dispatch(0));
            assert_eq!(region.signal_bytes(), region.dispatch(0));
            let windows = if layout < 2 { 1 } else { 2 };
            assert_eq!(region.dispatch(windows), region.combine(0));
            assert_eq!(region.combine(windows), region.bytes);
        }
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        let mut pieces = Pieces::new(PAGE);
        pieces.take(1 << 40, 1 << 30);
        assert_eq!(pieces.total().unwrap_err().status, Status::DEEP_EP_CAPACITY_EXCEEDED);
        // Element offsets of rows 524287 and 524288 of 4096 elements straddle 2^31.
        let mut pieces = Pieces::new(1);
        assert_eq!((pieces.take(524_288, 4096), pieces.take(1, 1)), (0, 2_147_483_648));
    }
}
