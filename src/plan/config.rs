//! A buffer's configuration: parsed, checked, defaults filled in.

use super::dtype::ROW_ALIGN;
use super::experts::Experts;
use super::round_up;
use super::windows::{window_counts, SyncMode};
use crate::error::{Error, Result, Status};
use std::fmt::Display;

pub const MAX_RANKS: usize = 1024;
pub const MAX_TOPK: i32 = 32;
const MAX_WINDOWS: i32 = 64;
const MAX_IN_FLIGHT: i32 = 8;
const MAX_ALIGNMENT: i32 = 65536;
const MAX_STAGES: i64 = 3;
const DEFAULT_TIMEOUT_MS: u32 = 30_000;
const DEFAULT_FIRST_TIMEOUT_MS: u32 = 120_000;
const FLAG_REFUSE_BAD_IDS: u32 = 1;
const FLAG_TRACE: u32 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Layout {
    PackedByRank = 0,
    PackedByExpert = 1,
    SlottedByRank = 2,
    SlottedByExpert = 3,
}

impl Layout {
    pub const fn packed(self) -> bool {
        matches!(self, Layout::PackedByRank | Layout::PackedByExpert)
    }

    pub const fn by_expert(self) -> bool {
        matches!(self, Layout::PackedByExpert | Layout::SlottedByExpert)
    }

    pub const fn name(self) -> &'static str {
        match self {
            Layout::PackedByRank => "PACKED_BY_RANK",
            Layout::PackedByExpert => "PACKED_BY_EXPERT",
            Layout::SlottedByRank => "SLOTTED_BY_RANK",
            Layout::SlottedByExpert => "SLOTTED_BY_EXPERT",
        }
    }
}

/// The configuration as the caller gives it, choices still numbers.
#[derive(Debug, Clone, Copy, Default)]
pub struct RawConfig {
    pub layout: u32,
    pub sync: u32,
    pub max_tokens: i64,
    pub max_recv_rows: i64,
    pub max_expert_rows: i64,
    pub max_row_bytes: i64,
    pub max_scale_bytes: i64,
    pub max_combine_row_bytes: i64,
    pub num_experts: i32,
    pub num_topk: i32,
    pub expert_alignment: i32,
    pub dispatch_windows: i32,
    pub combine_windows: i32,
    pub max_in_flight: i32,
    pub num_sms: i32,
    pub num_stages: i32,
    pub timeout_ms: u32,
    pub first_timeout_ms: u32,
    pub flags: u32,
    /// Not the caller's: whether the comm works on CUDA.
    pub cuda: bool,
}

#[cfg(test)]
impl RawConfig {
    /// Decode steps of a common model, BF16 rows.
    pub fn example(layout: u32) -> RawConfig {
        RawConfig {
            layout,
            max_tokens: 128,
            max_row_bytes: 14336,
            max_scale_bytes: 224,
            num_experts: 256,
            num_topk: 8,
            ..RawConfig::default()
        }
    }
}

#[derive(Debug, Clone)]
pub struct Config {
    pub num_ranks: usize,
    pub layout: Layout,
    pub sync: SyncMode,
    pub max_tokens: u64,
    pub max_recv_rows: u64,
    /// Rows after expansion: packed by expert in all, slotted by expert per slab times slabs; 0 by rank.
    pub max_expert_rows: u64,
    pub max_row_bytes: u64,
    /// Rounded up to what a row of scales takes in a window.
    pub max_scale_bytes: u64,
    pub max_combine_row_bytes: u64,
    pub topk: usize,
    pub alignment: u64,
    pub dispatch_windows: usize,
    pub combine_windows: usize,
    pub max_in_flight: usize,
    pub timeout_ms: u32,
    pub first_timeout_ms: u32,
    pub refuse_bad_ids: bool,
    pub trace: bool,
    /// Whether operations run on a GPU; how many SMs and stages they use, 0 if that is left open.
    pub cuda: bool,
    pub num_sms: i32,
    pub num_stages: u32,
    pub experts: Experts,
    raw: RawConfig,
}

impl Config {
    pub fn parse(raw: RawConfig, expert_rank: Option<&[i32]>, num_ranks: usize) -> Result<Config> {
        let layout = parse_layout(raw.layout)?;
        let sync = parse_sync(raw.sync)?;
        within("max_tokens", raw.max_tokens, 1, i64::from(i32::MAX))?;
        within("num_experts", raw.num_experts.into(), 1, 1 << 20)?;
        let most_topk = i64::from(MAX_TOPK.min(raw.num_experts));
        within("num_topk", raw.num_topk.into(), 1, most_topk).map_err(|e| {
            Error::invalid_argument(format_args!("{e} (at most 32 and num_experts = {})", raw.num_experts))
        })?;
        row_bytes("max_row_bytes", raw.max_row_bytes)?;
        within("max_scale_bytes", raw.max_scale_bytes, 0, 1 << 30)?;
        if raw.max_combine_row_bytes != 0 {
            row_bytes("max_combine_row_bytes", raw.max_combine_row_bytes)?;
        }
        within("dispatch_windows", raw.dispatch_windows.into(), 0, MAX_WINDOWS.into())?;
        within("combine_windows", raw.combine_windows.into(), 0, MAX_WINDOWS.into())?;
        within("max_in_flight", raw.max_in_flight.into(), 0, MAX_IN_FLIGHT.into())?;
        if raw.cuda {
            within("num_sms", raw.num_sms.into(), 0, i32::MAX.into())?;
            within("num_stages", raw.num_stages.into(), 0, MAX_STAGES)?;
        } else {
            host_has_none("num_sms", raw.num_sms)?;
            host_has_none("num_stages", raw.num_stages)?;
        }
        if raw.flags & !(FLAG_REFUSE_BAD_IDS | FLAG_TRACE) != 0 {
            return Err(Error::invalid_argument(format_args!(
                "flags is {:#x}; known are 1 and 2",
                raw.flags
            )));
        }
        let experts = match expert_rank {
            Some(map) => Experts::mapped(map, num_ranks)?,
            None => Experts::even(raw.num_experts as usize, num_ranks),
        };
        let max_recv_rows = recv_rows(&raw, layout, num_ranks)?;
        let alignment = alignment(&raw, layout)?;
        let timeout_ms = if raw.timeout_ms == 0 { DEFAULT_TIMEOUT_MS } else { raw.timeout_ms };
        let (dispatch_windows, combine_windows) = window_counts(
            layout.packed(),
            raw.max_in_flight as usize,
            raw.dispatch_windows as usize,
            raw.combine_windows as usize,
        );
        Ok(Config {
            num_ranks,
            layout,
            sync,
            max_tokens: raw.max_tokens as u64,
            max_recv_rows,
            max_expert_rows: expert_rows(
                &raw,
                layout,
                max_recv_rows,
                alignment,
                experts.most_local() as u64,
            )?,
            max_row_bytes: raw.max_row_bytes as u64,
            max_scale_bytes: round_up(raw.max_scale_bytes as u64, ROW_ALIGN),
            max_combine_row_bytes: if raw.max_combine_row_bytes == 0 {
                raw.max_row_bytes as u64
            } else {
                raw.max_combine_row_bytes as u64
            },
            topk: raw.num_topk as usize,
            alignment,
            dispatch_windows,
            combine_windows,
            max_in_flight: raw.max_in_flight.max(1) as usize,
            timeout_ms,
            first_timeout_ms: match raw.first_timeout_ms {
                0 => timeout_ms.max(DEFAULT_FIRST_TIMEOUT_MS),
                given => given,
            },
            refuse_bad_ids: raw.flags & FLAG_REFUSE_BAD_IDS != 0,
            trace: raw.flags & FLAG_TRACE != 0,
            cuda: raw.cuda,
            num_sms: raw.num_sms,
            num_stages: raw.num_stages as u32,
            experts,
            raw,
        })
    }

    /// D: operations that may still be unreceived when one is sent.
    pub fn depth(&self) -> usize {
        self.max_in_flight - 1
    }

    /// What ranks compare at create, by the names callers know.
    pub fn fields(&self) -> Vec<(&'static str, u64)> {
        let raw = &self.raw;
        vec![
            ("layout", raw.layout.into()),
            ("sync", raw.sync.into()),
            ("max_tokens", raw.max_tokens as u64),
            ("max_recv_rows", raw.max_recv_rows as u64),
            ("max_expert_rows", raw.max_expert_rows as u64),
            ("max_row_bytes", raw.max_row_bytes as u64),
            ("max_scale_bytes", raw.max_scale_bytes as u64),
            ("max_combine_row_bytes", raw.max_combine_row_bytes as u64),
            ("num_experts", raw.num_experts as u64),
            ("num_topk", raw.num_topk as u64),
            ("expert_alignment", raw.expert_alignment as u64),
            ("dispatch_windows", raw.dispatch_windows as u64),
            ("combine_windows", raw.combine_windows as u64),
            ("max_in_flight", raw.max_in_flight as u64),
            ("timeout_ms", raw.timeout_ms.into()),
            ("first_timeout_ms", raw.first_timeout_ms.into()),
            ("flags", raw.flags.into()),
            ("expert_rank (digest of the map)", self.experts.digest()),
        ]
    }
}

fn parse_layout(number: u32) -> Result<Layout> {
    use Layout::*;
    [PackedByRank, PackedByExpert, SlottedByRank, SlottedByExpert]
        .into_iter()
        .find(|layout| *layout as u32 == number)
        .ok_or_else(|| Error::invalid_argument(format_args!("layout is {number}, which is not in 0 .. 3")))
}

fn parse_sync(number: u32) -> Result<SyncMode> {
    use SyncMode::*;
    [Auto, Ack, Barrier]
        .into_iter()
        .find(|mode| *mode as u32 == number)
        .ok_or_else(|| Error::invalid_argument(format_args!("sync is {number}, which is not in 0 .. 2")))
}

/// Refuses a number outside `low ..= high`, naming all three. Names are put together only for an error: operations
/// check their requests too, and allocate nothing.
pub fn within(field: impl Display, value: i64, low: i64, high: i64) -> Result<()> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err(Error::invalid_argument(format_args!("{field} is {value}, which is not in {low} .. {high}")))
}

fn row_bytes(field: &str, value: i64) -> Result<()> {
    within(field, value, ROW_ALIGN as i64, 1 << 30)?;
    multiple_of_16(field, value)
}

/// Refuses a byte count that is no multiple of 16.
pub fn multiple_of_16(field: impl Display, value: i64) -> Result<()> {
    if value % ROW_ALIGN as i64 == 0 {
        return Ok(());
    }
    Err(Error::invalid_argument(format_args!("{field} is {value}, which is not a multiple of 16")))
}

/// Refuses what only the CUDA backend has.
pub fn host_has_none(field: &str, value: i32) -> Result<()> {
    if value == 0 {
        return Ok(());
    }
    Err(Error::unsupported(format_args!("{field} is {value}: the host backend has none; set 0")))
}

fn recv_rows(raw: &RawConfig, layout: Layout, num_ranks: usize) -> Result<u64> {
    let all = raw.max_tokens * num_ranks as i64;
    if all > i64::from(i32::MAX) {
        return Err(Error::new(
            Status::DEEP_EP_CAPACITY_EXCEEDED,
            format_args!(
                "num_ranks * max_tokens is {all}, more than {} rows; the largest legal max_tokens is {}",
                i32::MAX,
                i32::MAX as usize / num_ranks
            ),
        ));
    }
    if !layout.packed() && raw.max_recv_rows != 0 && raw.max_recv_rows != all {
        return Err(Error::invalid_argument(format_args!(
            "max_recv_rows is {}, but slotted layouts have room for num_ranks * max_tokens = {all} rows; set 0",
            raw.max_recv_rows
        )));
    }
    within("max_recv_rows", raw.max_recv_rows, 0, all)?;
    Ok(if raw.max_recv_rows == 0 { all } else { raw.max_recv_rows } as u64)
}

fn alignment(raw: &RawConfig, layout: Layout) -> Result<u64> {
    let most = if layout == Layout::PackedByExpert { MAX_ALIGNMENT } else { 1 };
    within("expert_alignment", raw.expert_alignment.into(), 0, most.into())
        .map_err(|e| Error::invalid_argument(format_args!("{e} with layout {}", layout.name())))?;
    Ok(raw.expert_alignment.max(1) as u64)
}

fn expert_rows(raw: &RawConfig, layout: Layout, recv_rows: u64, alignment: u64, local: u64) -> Result<u64> {
    if layout != Layout::PackedByExpert && raw.max_expert_rows != 0 {
        return Err(Error::invalid_argument(format_args!(
            "max_expert_rows is {} with layout {}; set 0",
            raw.max_expert_rows,
            layout.name()
        )));
    }
    let rows = match layout {
        Layout::PackedByRank | Layout::SlottedByRank => 0,
        Layout::SlottedByExpert => recv_rows * local,
        Layout::PackedByExpert if raw.max_expert_rows == 0 => {
            // Every expert's end is rounded up, so the total is a multiple of the alignment.
            let pairs = recv_rows * local.min(raw.num_topk as u64);
            (pairs + local * (alignment - 1)) / alignment * alignment
        }
        Layout::PackedByExpert => {
            within("max_expert_rows", raw.max_expert_rows, 1, i32::MAX.into())?;
            raw.max_expert_rows as u64
        }
    };
    if rows > i32::MAX as u64 {
        return Err(Error::new(
            Status::DEEP_EP_CAPACITY_EXCEEDED,
            format_args!(
                "rows after expansion come to {rows}, more than {}; lower max_tokens or set max_expert_rows",
                i32::MAX
            ),
        ));
    }
    Ok(rows)
}
