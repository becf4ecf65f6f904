//! Inputs and outputs of dispatch and combine.

use super::structs::{flags, read_struct, reserved};
use crate::buffer::Arrival;
use crate::capi::types::*;
use crate::capi::{DEEP_EP_COMBINE_EXACT, DEEP_EP_COMBINE_WEIGHTS_OF_DISPATCH, DEEP_EP_DISPATCH_CACHED};
use crate::error::Result;
use crate::plan::dtype::{Dtype, IdType, ScaleKind};
use crate::plan::request::{
    self, CombineRequest, CombineTarget, DispatchRequest, DispatchTarget, Rows, Scales,
};
use std::ffi::c_void;

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

/// # Safety
/// `input` is null or the input of a dispatch.
pub(in crate::capi) unsafe fn dispatch_in(input: *const deep_ep_dispatch_in_t) -> Result<DispatchRequest> {
    // SAFETY: as the caller promises.
    let (_, i) = unsafe { read_struct(input, "input")? };
    flags(i.flags, DEEP_EP_DISPATCH_CACHED)?;
    let cached = i.flags & DEEP_EP_DISPATCH_CACHED != 0;
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
pub(in crate::capi) unsafe fn dispatch_out(
    output: *const deep_ep_dispatch_out_t,
) -> Result<(usize, deep_ep_dispatch_out_t)> {
    // SAFETY: as the caller promises.
    unsafe { read_struct(output, "output") }
}

pub(in crate::capi) fn dispatch_target(out: &deep_ep_dispatch_out_t) -> Result<DispatchTarget> {
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

pub(in crate::capi) fn rows(rows: &Rows) -> deep_ep_rows_t {
    deep_ep_rows_t {
        data: rows.data as *mut c_void,
        rows: rows.rows,
        row_stride: rows.row_stride,
        slot_stride: rows.slot_stride,
        dtype: rows.dtype.map_or(0, |dtype| dtype as u32),
        reserved: 0,
    }
}

pub(in crate::capi) fn fill_dispatch_out(out: &mut deep_ep_dispatch_out_t, arrival: &Arrival) {
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
pub(in crate::capi) fn combine_dtype(number: u32, field: &str) -> Result<Dtype> {
    request::combine_dtype(Dtype::parse(number, field)?)
}

/// # Safety
/// `input` is null or the input of a combine.
pub(in crate::capi) unsafe fn combine_in(input: *const deep_ep_combine_in_t) -> Result<CombineRequest> {
    // SAFETY: as the caller promises.
    let (_, i) = unsafe { read_struct(input, "input")? };
    flags(i.flags, DEEP_EP_COMBINE_EXACT | DEEP_EP_COMBINE_WEIGHTS_OF_DISPATCH)?;
    Ok(CombineRequest {
        exact: i.flags & DEEP_EP_COMBINE_EXACT != 0,
        weights_of_dispatch: i.flags & DEEP_EP_COMBINE_WEIGHTS_OF_DISPATCH != 0,
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
pub(in crate::capi) unsafe fn combine_out(output: *const deep_ep_combine_out_t) -> Result<CombineTarget> {
    // SAFETY: as the caller promises.
    let (_, o) = unsafe { read_struct(output, "output")? };
    Ok(CombineTarget {
        x: parse_rows(&o.x, "out.x")?,
        bias: o.bias.map(|bias| bias as usize),
        carried_weights: o.carried_weights as usize,
    })
}
