//! Where a dispatch arrives: strides and capacities of the caller's memory, or of the library's.

use super::checks::{aligned, row_stride};
use super::{DispatchShape, DispatchTarget, Rows, Scales};
use crate::error::{Error, Result};
use crate::plan::config::{multiple_of_16, within, Layout};
use crate::plan::dtype::Dtype;
use crate::plan::round_up;

/// Where received rows go, with strides and capacity filled in; data 0 still means in place.
#[derive(Debug, Clone, Copy)]
pub struct Arrangement {
    pub x_in_place: bool,
    pub scales_in_place: bool,
    pub x_stride: u64,
    pub slot_stride: u64,
    /// Rows that fit: in all (packed) or per slab (slotted).
    pub capacity: u64,
    pub scale_row: u64,
    pub scale_col: u64,
    pub scale_slot: u64,
}

/// Checks the outputs of a dispatch. `slab_rows`: what the library's own memory has room for, in all or per slab.
pub fn arrange(
    target: &DispatchTarget,
    shape: &DispatchShape,
    layout: Layout,
    slab_rows: u64,
) -> Result<Arrangement> {
    let x = &target.x;
    if x.dtype.is_some_and(|dtype| dtype != shape.dtype) {
        return Err(Error::invalid_argument(format_args!(
            "out.x.dtype is {}, but {} was sent; 0 takes what comes",
            x.dtype.map_or("0", Dtype::name),
            shape.dtype.name()
        )));
    }
    let x_in_place = x.data == 0;
    let x_stride = if x_in_place { shape.row_bytes } else { row_stride("out.x", x, shape.row_bytes)? };
    let capacity = if x_in_place { slab_rows } else { caller_capacity(x, layout, slab_rows)? };
    let slot_stride = if x_in_place || x.slot_stride == 0 {
        capacity_rows(x_in_place, x, slab_rows).saturating_mul(x_stride)
    } else {
        multiple_of_16("out.x.slot_stride", x.slot_stride)?;
        within(
            "out.x.slot_stride",
            x.slot_stride,
            capacity.saturating_mul(x_stride).min(i64::MAX as u64) as i64,
            i64::MAX,
        )?;
        x.slot_stride as u64
    };
    let scales = arrange_scales(target, shape, layout, slab_rows, capacity_rows(x_in_place, x, slab_rows))?;
    for (name, address, to) in [
        ("out.topk_idx", target.ids, 4),
        ("out.topk_weights", target.weights, 4),
        ("out.row_source", target.source, 8),
        ("out.rank_counts", target.rank_counts, 4),
        ("out.expert_counts", target.expert_counts, 4),
        ("out.expert_offsets", target.expert_offsets, 8),
        ("out.true_rows", target.true_rows, 8),
        ("out.source_ranges", target.source_ranges, 4),
    ] {
        aligned(name, address, to)?;
    }
    Ok(Arrangement { x_in_place, x_stride, slot_stride, capacity, ..scales })
}

/// How many rows of the caller's memory a dispatch may fill, in all or per slab.
fn caller_capacity(x: &Rows, layout: Layout, slab_rows: u64) -> Result<u64> {
    if layout.packed() {
        within("out.x.rows (how many rows fit at out.x.data)", x.rows, 1, i64::MAX)?;
    } else {
        // Side outputs have slabs of as many rows, and the library's own are no larger.
        within("out.x.rows (how many rows fit in each slab)", x.rows, 1, slab_rows.max(1) as i64)?;
    }
    Ok(slab_rows.min(x.rows as u64))
}

fn capacity_rows(in_place: bool, x: &Rows, slab_rows: u64) -> u64 {
    if in_place {
        slab_rows
    } else {
        x.rows as u64
    }
}

/// The scale part of an arrangement; the rest is for the caller to fill in.
fn arrange_scales(
    target: &DispatchTarget,
    shape: &DispatchShape,
    layout: Layout,
    slab_rows: u64,
    rows_of_x: u64,
) -> Result<Arrangement> {
    let scales = &target.scales;
    let in_place = shape.scale.is_some() && scales.data == 0;
    let mut strides = (0, 0, 0);
    if shape.scale.is_some() {
        if scales.kind.is_some() && scales.kind != shape.scale {
            return Err(Error::invalid_argument("out.scales.dtype is not what was sent; 0 takes what comes"));
        }
        for (field, stride) in [
            ("out.scales.row_stride", scales.row_stride),
            ("out.scales.col_stride", scales.col_stride),
            ("out.scales.slot_stride", scales.slot_stride),
        ] {
            within(field, stride, 0, i64::MAX)?;
            if !in_place {
                aligned(field, stride as usize, 4)?; // in place, a number only asks for column-major
            }
        }
        aligned("out.scales.data", scales.data, 4)?;
        let column_major = !matches!(scales.col_stride, 0 | 4);
        if column_major && !layout.by_expert() {
            return Err(Error::unsupported(format_args!(
                "out.scales.col_stride is {} with layout {}: column-major scales need a by-expert layout",
                scales.col_stride,
                layout.name()
            )));
        }
        let rows = if in_place { slab_rows } else { rows_of_x };
        strides = if column_major {
            column_major_strides(scales, in_place, rows, shape)?
        } else {
            row_major_strides(scales, in_place, rows, shape)?
        };
    }
    let (scale_row, scale_col, scale_slot) = strides;
    Ok(Arrangement {
        x_in_place: false,
        scales_in_place: in_place,
        x_stride: 0,
        slot_stride: 0,
        capacity: 0,
        scale_row,
        scale_col,
        scale_slot,
    })
}

fn column_major_strides(
    scales: &Scales,
    in_place: bool,
    rows: u64,
    shape: &DispatchShape,
) -> Result<(u64, u64, u64)> {
    let columns = shape.scale_bytes.div_ceil(4);
    let col = if in_place { 4 * round_up(rows, 4) } else { scales.col_stride as u64 };
    if !in_place && !matches!(scales.row_stride, 0 | 4) {
        return Err(Error::invalid_argument(format_args!(
            "out.scales.row_stride is {}, but column-major scales of neighbouring rows are 4 bytes apart",
            scales.row_stride
        )));
    }
    if col < rows.saturating_mul(4) {
        return Err(Error::invalid_argument(format_args!(
            "out.scales.col_stride is {col}, less than 4 bytes for each of {rows} rows"
        )));
    }
    let slot = if in_place || scales.slot_stride == 0 {
        columns.saturating_mul(col)
    } else {
        scales.slot_stride as u64
    };
    Ok((4, col, slot))
}

fn row_major_strides(
    scales: &Scales,
    in_place: bool,
    rows: u64,
    shape: &DispatchShape,
) -> Result<(u64, u64, u64)> {
    let row = match scales.row_stride {
        _ if in_place => shape.scale_stride(),
        0 => shape.scale_bytes,
        given if (given as u64) < shape.scale_bytes => {
            return Err(Error::invalid_argument(format_args!(
                "out.scales.row_stride is {given}, less than the {} bytes of a row's scales",
                shape.scale_bytes
            )))
        }
        given => given as u64,
    };
    let slot = if in_place || scales.slot_stride == 0 {
        rows.saturating_mul(row)
    } else {
        scales.slot_stride as u64
    };
    Ok((row, 4, slot))
}
