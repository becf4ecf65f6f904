//! From C to values and back: the only place that reads the caller's structs.

use super::types::*;
use super::{deep_ep_operation_t, deep_ep_phase_t};
use crate::boot::UniqueId;
use crate::buffer::{Arrival, Backend, Comm, CommConfig, Meeting, PeerTotals, Sizes, Totals};
use crate::error::{Error, Result, Status};
use crate::plan::config::{within, Config, RawConfig, MAX_RANKS};
use crate::plan::dtype::{Dtype, IdType, ScaleKind};
use crate::plan::report::Report;
use crate::plan::request::{
    self, CombineRequest, CombineTarget, DispatchRequest, DispatchTarget, Rows, Scales,
};
use crate::plan::words::{Operation, Phase};
use std::ffi::{c_char, c_void, CStr};
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

const DEFAULT_RENDEZVOUS_MS: u32 = 60_000;

/// Larger than any struct will be: a bigger struct_size is not one, and must not be followed.
const LARGEST_STRUCT: usize = 1 << 16;

/// A C struct that starts with its size.
///
/// # Safety
/// `repr(C)`, the first field is `usize`, and all zeroes are a valid value.
pub(super) unsafe trait Sized: Copy {
    const NAME: &'static str;

    /// What `_init` writes beside zeroes and the size.
    fn defaults(&mut self) {}
}

macro_rules! sized {
    ($($type:ty $(=> $defaults:expr)?;)*) => {$(
        // SAFETY: these structs are repr(C), start with struct_size, and hold only numbers and pointers.
        unsafe impl Sized for $type {
            const NAME: &'static str = stringify!($type);
            $(fn defaults(&mut self) {
                let set: fn(&mut $type) = $defaults;
                set(self);
            })?
        }
    )*};
}

sized! {
    deep_ep_comm_config_t => |s| s.num_ranks = 1;
    deep_ep_buffer_config_t;
    deep_ep_buffer_sizes_t;
    deep_ep_dispatch_in_t;
    deep_ep_dispatch_out_t;
    deep_ep_combine_in_t;
    deep_ep_combine_out_t;
    deep_ep_report_t => |s| {
        s.first_missing = -1;
        s.row = -1;
        s.value = -1;
    };
    deep_ep_statistics_t;
    deep_ep_peer_statistics_t;
}

fn abi_mismatch<T: Sized>(size: usize, what: &str) -> Error {
    Error::new(
        Status::DEEP_EP_ABI_MISMATCH,
        format_args!(
            "{}.struct_size is {size}, {what} ({} bytes in this library); fill the struct with its _init function",
            T::NAME,
            size_of::<T>()
        ),
    )
}

fn check_size<T: Sized>(size: usize) -> Result<()> {
    // This is the first version, so no shorter struct ever existed.
    if size < size_of::<T>() {
        return Err(abi_mismatch::<T>(size, "less than any version of it has"));
    }
    if size > LARGEST_STRUCT {
        return Err(abi_mismatch::<T>(size, "more than any struct has"));
    }
    Ok(())
}

fn is_null(name: &str) -> Error {
    Error::invalid_argument(format_args!("{name} is null"))
}

fn zeroed<T: Sized>() -> T {
    // SAFETY: `Sized` promises that zeroes are a value.
    unsafe { std::mem::zeroed() }
}

/// # Safety
/// `s` is null or writable for `size` bytes.
pub(super) unsafe fn init_struct<T: Sized>(s: *mut T, size: usize) -> Result<()> {
    if s.is_null() {
        return Err(is_null("s"));
    }
    check_size::<T>(size)?;
    let mut value: T = zeroed();
    value.defaults();
    // SAFETY: as the caller promises; the struct lies at the begin of its `size` bytes.
    unsafe {
        s.cast::<u8>().write_bytes(0, size);
        s.write_unaligned(value);
        s.cast::<usize>().write_unaligned(size);
    }
    Ok(())
}

/// Reads a struct of any accepted size: what it has beyond ours must be zero.
///
/// # Safety
/// `s` is null or readable for as many bytes as it says.
unsafe fn read_struct<T: Sized>(s: *const T, name: &str) -> Result<(usize, T)> {
    if s.is_null() {
        return Err(is_null(name));
    }
    if !s.is_aligned() {
        return Err(Error::invalid_argument(format_args!(
            "{name} is {s:p}, which is not aligned for a struct"
        )));
    }
    // SAFETY: as the caller promises.
    unsafe {
        let size = s.cast::<usize>().read();
        check_size::<T>(size)?;
        let tail = std::slice::from_raw_parts(s.cast::<u8>().add(size_of::<T>()), size - size_of::<T>());
        if tail.iter().any(|&byte| byte != 0) {
            return Err(abi_mismatch::<T>(
                size,
                "larger than ours with fields that are set and unknown here",
            ));
        }
        Ok((size, s.read()))
    }
}

/// Checks an output pointer before anything is done.
pub(super) fn check_out<T>(s: *mut T, name: &str) -> Result<()> {
    if s.is_null() {
        return Err(is_null(name));
    }
    if !s.is_aligned() {
        return Err(Error::invalid_argument(format_args!("{name} is {s:p}, which is not aligned")));
    }
    Ok(())
}

/// Writes an output struct, keeping the caller's struct_size.
///
/// # Safety
/// `s` is null or a struct that its `_init` has filled.
pub(super) unsafe fn write_struct<T: Sized>(s: *mut T, name: &str, value: T) -> Result<()> {
    // SAFETY: as the caller promises.
    let (size, _) = unsafe { read_struct(s.cast_const(), name)? };
    // SAFETY: as above.
    unsafe { write_sized(s, &value, size) };
    Ok(())
}

/// # Safety
/// `s` is a struct that was read before.
pub(super) unsafe fn write_sized<T: Sized>(s: *mut T, value: &T, size: usize) {
    // SAFETY: as the caller promises.
    unsafe {
        s.write(*value);
        s.cast::<usize>().write(size);
    }
}

/// # Safety
/// `p` is null or a live object.
pub(super) unsafe fn object<'a, T>(p: *const T, name: &str) -> Result<&'a T> {
    // SAFETY: as the caller promises.
    unsafe { p.as_ref() }.ok_or_else(|| is_null(name))
}

/// # Safety
/// `p` is null or writable.
pub(super) unsafe fn out_pointer<'a, T>(p: *mut T, name: &str) -> Result<&'a mut T> {
    check_out(p, name)?;
    // SAFETY: as the caller promises; it is not null.
    Ok(unsafe { &mut *p })
}

/// Takes an object back; null gives none.
///
/// # Safety
/// `p` is null or what a create returned, not yet given back.
pub(super) unsafe fn take<T>(p: *mut T) -> Option<Box<T>> {
    // SAFETY: as the caller promises.
    (!p.is_null()).then(|| unsafe { Box::from_raw(p) })
}

/// # Safety
/// `text` is null or a terminated string that lives as long as the call.
pub(super) unsafe fn optional_text<'a>(text: *const c_char, name: &str) -> Result<Option<&'a str>> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: as the caller promises.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(Some).map_err(|_| Error::invalid_argument(format_args!("{name} is not UTF-8")))
}

/// # Safety
/// `out` is null or has room for `count` values.
pub(super) unsafe fn write_array<T: Copy>(
    out: *mut T,
    count: usize,
    values: &[T],
    name: &str,
    unit: &str,
) -> Result<()> {
    if count != values.len() {
        return Err(Error::invalid_argument(format_args!(
            "count is {count}, but there are {} {unit}",
            values.len()
        )));
    }
    if count > 0 {
        check_out(out, name)?;
        // SAFETY: as the caller promises.
        unsafe { out.copy_from_nonoverlapping(values.as_ptr(), count) };
    }
    Ok(())
}

/// Writes a list of any length, or tells only how long it is.
///
/// # Safety
/// `out` is null or has room for `capacity` values; `count` is null or writable.
pub(super) unsafe fn write_list<T: Copy>(
    out: *mut T,
    capacity: usize,
    count: *mut usize,
    values: &[T],
    name: &str,
) -> Result<()> {
    check_out(count, "count")?;
    // SAFETY: as the caller promises.
    unsafe {
        *count = values.len();
        if out.is_null() {
            return Ok(());
        }
        if capacity < values.len() {
            return Err(Error::invalid_argument(format_args!(
                "capacity is {capacity}, but {name} needs room for {}",
                values.len()
            )));
        }
        out.copy_from_nonoverlapping(values.as_ptr(), values.len());
    }
    Ok(())
}

/// # Safety
/// `alive` is null or has `num_ranks` bytes.
pub(super) unsafe fn mask(alive: *const u8, num_ranks: usize) -> Option<Vec<bool>> {
    if alive.is_null() {
        return None;
    }
    // SAFETY: as the caller promises.
    let bytes = unsafe { std::slice::from_raw_parts(alive, num_ranks) };
    Some(bytes.iter().map(|&byte| byte != 0).collect())
}

// ---------------------------------------------------------------------------------------------- comm and buffer

/// A comm configuration together with what the caller's all-gather needs.
pub(super) struct ParsedComm {
    config: deep_ep_comm_config_t,
    backend: Backend,
}

/// # Safety
/// `config` is null or a configuration; its callback follows its contract.
pub(super) unsafe fn comm_config(config: *const deep_ep_comm_config_t) -> Result<ParsedComm> {
    // SAFETY: as the caller promises.
    let (_, config) = unsafe { read_struct(config, "config")? };
    within("num_ranks", config.num_ranks.into(), 1, MAX_RANKS as i64)?;
    within("rank", config.rank.into(), 0, i64::from(config.num_ranks) - 1)?;
    reserved("config.reserved", config.reserved)?;
    Ok(ParsedComm { backend: backend(config.backend)?, config })
}

/// # Safety
/// As [`comm_config`].
pub(super) unsafe fn local_comm_config(config: *const deep_ep_comm_config_t) -> Result<u32> {
    // SAFETY: as the caller promises.
    let (_, config) = unsafe { read_struct(config, "config")? };
    within("num_ranks", config.num_ranks.into(), 1, MAX_RANKS as i64)?;
    reserved("config.reserved", config.reserved)?;
    backend(config.backend)?;
    Ok(config.num_ranks as u32)
}

fn reserved(field: impl Display, value: u32) -> Result<()> {
    if value == 0 {
        return Ok(());
    }
    Err(Error::invalid_argument(format_args!("{field} is {value}; set 0")))
}

fn backend(number: u32) -> Result<Backend> {
    match number {
        0 | 1 => Ok(Backend::Host),
        2 => Err(Error::unsupported(
            "backend is CUDA, which this version does not have; use DEEP_EP_BACKEND_HOST",
        )),
        _ => Err(Error::invalid_argument(format_args!("backend is {number}, which is not in 0 .. 2"))),
    }
}

impl ParsedComm {
    pub(super) fn create(self) -> Result<Arc<Comm>> {
        let config = self.config;
        let timeout_ms = if config.timeout_ms == 0 { DEFAULT_RENDEZVOUS_MS } else { config.timeout_ms };
        let mut gather = |mine: &[u8]| call_allgather(&config, mine);
        let meeting = match (config.unique_id.bytes == [0; 128], config.allgather) {
            (false, _) => Meeting::Id(UniqueId::from_bytes(&config.unique_id.bytes)?),
            (true, Some(_)) => Meeting::Allgather(&mut gather),
            (true, None) if config.num_ranks == 1 => Meeting::Alone,
            (true, None) => {
                return Err(Error::invalid_argument(
                    "config.unique_id is all zero and config.allgather is null; set one of them",
                ))
            }
        };
        Comm::create(CommConfig {
            rank: config.rank as u32,
            num_ranks: config.num_ranks as u32,
            backend: self.backend,
            meeting,
            timeout: Duration::from_millis(timeout_ms.into()),
        })
    }
}

fn call_allgather(config: &deep_ep_comm_config_t, mine: &[u8]) -> Result<Vec<u8>> {
    let Some(gather) = config.allgather else { return Err(is_null("config.allgather")) };
    let mut all = vec![0; mine.len() * config.num_ranks as usize];
    let context = config.allgather_context;
    // SAFETY: the callback is the caller's, called as documented, with room for every rank's bytes.
    let code = unsafe { gather(context, mine.as_ptr().cast(), all.as_mut_ptr().cast(), mine.len()) };
    if code != 0 {
        return Err(Error::new(Status::DEEP_EP_SYSTEM, format_args!("config.allgather returned {code}")));
    }
    Ok(all)
}

/// # Safety
/// `config` is null or a configuration; `expert_rank` is null or has num_experts numbers.
pub(super) unsafe fn buffer_config(
    config: *const deep_ep_buffer_config_t,
    expert_rank: *const i32,
    num_ranks: usize,
) -> Result<Config> {
    // SAFETY: as the caller promises.
    let (_, c) = unsafe { read_struct(config, "config")? };
    reserved("config.reserved", c.reserved)?;
    let map = if expert_rank.is_null() {
        None
    } else {
        within("num_experts", c.num_experts.into(), 1, 1 << 20)?;
        // SAFETY: as the caller promises.
        Some(unsafe { std::slice::from_raw_parts(expert_rank, c.num_experts as usize) })
    };
    let raw = RawConfig {
        layout: c.layout,
        sync: c.sync,
        max_tokens: c.max_tokens,
        max_recv_rows: c.max_recv_rows,
        max_expert_rows: c.max_expert_rows,
        max_row_bytes: c.max_row_bytes,
        max_scale_bytes: c.max_scale_bytes,
        max_combine_row_bytes: c.max_combine_row_bytes,
        num_experts: c.num_experts,
        num_topk: c.num_topk,
        expert_alignment: c.expert_alignment,
        dispatch_windows: c.dispatch_windows,
        combine_windows: c.combine_windows,
        max_in_flight: c.max_in_flight,
        num_sms: c.num_sms,
        num_stages: c.num_stages,
        timeout_ms: c.timeout_ms,
        first_timeout_ms: c.first_timeout_ms,
        flags: c.flags,
    };
    Config::parse(raw, map, num_ranks)
}

/// # Safety
/// `comms` is null or points to as many live comms as the first one has ranks.
pub(super) unsafe fn local_comms(comms: *const *mut deep_ep_comm_t) -> Result<Vec<Arc<Comm>>> {
    // SAFETY: as the caller promises.
    unsafe {
        let first = object(comms, "comms")?;
        let count = object(first.cast_const(), "comms[0]")?.inner.num_ranks();
        let each = |rank| Ok(object((*comms.add(rank)).cast_const(), "a comm")?.inner.clone());
        (0..count).map(each).collect()
    }
}

pub(super) fn sizes(s: Sizes) -> deep_ep_buffer_sizes_t {
    deep_ep_buffer_sizes_t {
        dispatch_window: s.dispatch_windows as i64,
        combine_window: s.combine_windows as i64,
        signals: s.signals as i64,
        local_outputs: s.local_outputs as i64,
        handle: s.handle as i64,
        pinned_host: 0,
        total_symmetric: s.symmetric as i64,
        total_device: (s.symmetric + s.local_outputs) as i64,
        ..Default::default()
    }
}

// ------------------------------------------------------------------------------------------------ operations

fn parse_rows(rows: &deep_ep_rows_t, name: &str) -> Result<Rows> {
    reserved(format_args!("{name}.reserved"), rows.reserved)?;
    Ok(Rows {
        data: rows.data as usize,
        rows: rows.rows,
        row_stride: rows.row_stride,
        slot_stride: rows.slot_stride,
        dtype: Dtype::parse(rows.dtype, format_args!("{name}.dtype"))?,
    })
}

fn parse_scales(scales: &deep_ep_scales_t, name: &str) -> Result<Scales> {
    Ok(Scales {
        data: scales.data as usize,
        row_stride: scales.row_stride,
        col_stride: scales.col_stride,
        slot_stride: scales.slot_stride,
        kind: ScaleKind::parse(scales.dtype, format_args!("{name}.dtype"))?,
        block: scales.block,
    })
}

/// Refuses flags this version does not know.
fn flags(value: u32, known: u32) -> Result<()> {
    if value & !known == 0 {
        return Ok(());
    }
    Err(Error::invalid_argument(format_args!("flags is {value:#x}; known are {known:#x}")))
}

/// # Safety
/// `input` is null or the input of a dispatch.
pub(super) unsafe fn dispatch_in(input: *const deep_ep_dispatch_in_t) -> Result<DispatchRequest> {
    // SAFETY: as the caller promises.
    let (_, i) = unsafe { read_struct(input, "input")? };
    flags(i.flags, super::DEEP_EP_DISPATCH_CACHED)?;
    let cached = i.flags & super::DEEP_EP_DISPATCH_CACHED != 0;
    let typed = !cached && (!i.topk_idx.is_null() || i.topk_idx_dtype != 0);
    Ok(DispatchRequest {
        cached,
        num_sms: i.num_sms,
        num_tokens: i.num_tokens,
        num_tokens_device: i.num_tokens_device as usize,
        hidden: i.hidden,
        x: parse_rows(&i.x, "x")?,
        x_scales: parse_scales(&i.x_scales, "x_scales")?,
        ids: i.topk_idx as usize,
        id_type: if typed { Some(IdType::parse(i.topk_idx_dtype, "topk_idx_dtype")?) } else { None },
        weights: i.topk_weights as usize,
        wire_dtype: Dtype::parse(i.wire_dtype, "wire_dtype")?,
        wire_scale: ScaleKind::parse(i.wire_scale_dtype, "wire_scale_dtype")?,
        wire_scale_block: i.wire_scale_block,
    })
}

/// Reads the output struct of a dispatch, with the caller's struct_size.
///
/// # Safety
/// `output` is null or the output of a dispatch.
pub(super) unsafe fn dispatch_out(
    output: *const deep_ep_dispatch_out_t,
) -> Result<(usize, deep_ep_dispatch_out_t)> {
    // SAFETY: as the caller promises.
    unsafe { read_struct(output, "output") }
}

pub(super) fn dispatch_target(out: &deep_ep_dispatch_out_t) -> Result<DispatchTarget> {
    Ok(DispatchTarget {
        x: parse_rows(&out.x, "out.x")?,
        scales: parse_scales(&out.scales, "out.scales")?,
        ids: out.topk_idx as usize,
        weights: out.topk_weights as usize,
        source: out.row_source as usize,
        rank_counts: out.rank_counts as usize,
        expert_counts: out.expert_counts as usize,
        expert_offsets: out.expert_offsets as usize,
        true_rows: out.true_rows as usize,
        source_ranges: out.source_ranges as usize,
    })
}

pub(super) fn rows(rows: &Rows) -> deep_ep_rows_t {
    deep_ep_rows_t {
        data: rows.data as *mut c_void,
        rows: rows.rows,
        row_stride: rows.row_stride,
        slot_stride: rows.slot_stride,
        dtype: rows.dtype.map_or(0, |dtype| dtype as u32),
        reserved: 0,
    }
}

pub(super) fn fill_dispatch_out(out: &mut deep_ep_dispatch_out_t, arrival: &Arrival) {
    let o = &arrival.outputs;
    out.x = rows(&o.x);
    out.scales = deep_ep_scales_t {
        data: o.scales.data as *mut c_void,
        row_stride: o.scales.row_stride,
        col_stride: o.scales.col_stride,
        slot_stride: o.scales.slot_stride,
        dtype: o.scales.kind.map_or(0, |kind| kind as u32),
        block: o.scales.block,
    };
    out.topk_idx = o.ids as *mut i32;
    out.topk_weights = o.weights as *mut f32;
    out.row_source = o.source as *mut i64;
    out.rank_counts = o.rank_counts as *mut i32;
    out.expert_counts = o.expert_counts as *mut i32;
    out.expert_offsets = o.expert_offsets as *mut i64;
    out.true_rows = o.true_rows as *mut i64;
    out.source_ranges = o.source_ranges as *mut i32;
}

/// The type that a combine input is asked for.
pub(super) fn combine_dtype(number: u32, field: &str) -> Result<Dtype> {
    request::combine_dtype(Dtype::parse(number, field)?)
}

/// # Safety
/// `input` is null or the input of a combine.
pub(super) unsafe fn combine_in(input: *const deep_ep_combine_in_t) -> Result<CombineRequest> {
    // SAFETY: as the caller promises.
    let (_, i) = unsafe { read_struct(input, "input")? };
    flags(i.flags, super::DEEP_EP_COMBINE_EXACT | super::DEEP_EP_COMBINE_WEIGHTS_OF_DISPATCH)?;
    Ok(CombineRequest {
        exact: i.flags & super::DEEP_EP_COMBINE_EXACT != 0,
        weights_of_dispatch: i.flags & super::DEEP_EP_COMBINE_WEIGHTS_OF_DISPATCH != 0,
        num_sms: i.num_sms,
        hidden: i.hidden,
        x: parse_rows(&i.x, "x")?,
        row_weights: i.row_weights as usize,
        topk_weights: i.topk_weights as usize,
        carried_weights: i.carried_weights as usize,
    })
}

/// # Safety
/// `output` is null or the output of a combine.
pub(super) unsafe fn combine_out(output: *const deep_ep_combine_out_t) -> Result<CombineTarget> {
    // SAFETY: as the caller promises.
    let (_, o) = unsafe { read_struct(output, "output")? };
    Ok(CombineTarget {
        x: parse_rows(&o.x, "out.x")?,
        bias: o.bias.map(|bias| bias as usize),
        carried_weights: o.carried_weights as usize,
    })
}

// ----------------------------------------------------------------------------------------------------- queries

pub(super) fn report(r: &Report) -> deep_ep_report_t {
    deep_ep_report_t {
        struct_size: 0,
        status: r.status,
        operation: operation(r.operation) as u32,
        phase: phase(r.phase) as u32,
        rank: r.rank as i32,
        num_missing: r.missing.len() as i32,
        first_missing: r.missing.first().map_or(-1, |&rank| rank as i32),
        epoch: r.epoch,
        expected: r.expected,
        seen: r.seen,
        row: r.row,
        value: r.value,
        waited_ms: r.waited_ms,
        reserved: 0,
    }
}

fn operation(operation: Option<Operation>) -> deep_ep_operation_t {
    use deep_ep_operation_t::*;
    match operation {
        None => DEEP_EP_OPERATION_NONE,
        Some(Operation::Dispatch) => DEEP_EP_OPERATION_DISPATCH,
        Some(Operation::Combine) => DEEP_EP_OPERATION_COMBINE,
        Some(Operation::Barrier) => DEEP_EP_OPERATION_BARRIER,
    }
}

fn phase(phase: Option<Phase>) -> deep_ep_phase_t {
    use deep_ep_phase_t::*;
    match phase {
        None => DEEP_EP_PHASE_NONE,
        Some(Phase::Enter) => DEEP_EP_PHASE_ENTER,
        Some(Phase::Counts) => DEEP_EP_PHASE_COUNTS,
        Some(Phase::Data) => DEEP_EP_PHASE_DATA,
        Some(Phase::Read) => DEEP_EP_PHASE_READ,
    }
}

pub(super) fn statistics(t: &Totals) -> deep_ep_statistics_t {
    deep_ep_statistics_t {
        struct_size: 0,
        epoch: t.epoch,
        dispatches: t.dispatches,
        combines: t.combines,
        barriers: t.barriers,
        entry_barriers: t.entry_barriers,
        rows_sent: t.rows_sent,
        rows_received: t.rows_received,
        bytes_sent: t.bytes_sent,
        bytes_received: t.bytes_received,
        wait_ns_last: t.wait_ns_last,
        wait_ns_total: t.wait_ns_total,
    }
}

pub(super) fn peer_statistics(t: &PeerTotals) -> deep_ep_peer_statistics_t {
    deep_ep_peer_statistics_t {
        struct_size: 0,
        rows_sent: t.rows_sent,
        rows_received: t.rows_received,
        bytes_sent: t.bytes_sent,
        bytes_received: t.bytes_received,
        wait_ns_last: t.wait_ns_last,
        wait_ns_total: t.wait_ns_total,
    }
}
