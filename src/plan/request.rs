//! One operation as the caller asks for it, checked against the buffer: what a row is, how it crosses, where it goes.
//! Addresses are numbers here; whoever reads or writes through them says why that is sound.

use super::config::{host_has_none, multiple_of_16, within, Config, Layout};
use super::dtype::{Dtype, IdType, ScaleKind, ROW_ALIGN, SCALE_BLOCK};
use super::round_up;
use crate::error::{Error, Result, Status};
use std::fmt::Display;

/// Where something lies; 0 is null.
pub type Address = usize;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rows {
    pub data: Address,
    pub rows: i64,
    pub row_stride: i64,
    pub slot_stride: i64,
    pub dtype: Option<Dtype>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Scales {
    pub data: Address,
    pub row_stride: i64,
    pub col_stride: i64,
    pub slot_stride: i64,
    pub kind: Option<ScaleKind>,
    pub block: i32,
}

#[derive(Debug, Clone, Copy)]
pub struct DispatchRequest {
    pub cached: bool,
    pub num_sms: i32,
    pub num_tokens: i64,
    pub num_tokens_device: Address,
    pub hidden: i64,
    pub x: Rows,
    pub x_scales: Scales,
    pub ids: Address,
    pub id_type: Option<IdType>,
    pub weights: Address,
    pub wire_dtype: Option<Dtype>,
    pub wire_scale: Option<ScaleKind>,
    pub wire_scale_block: i32,
}

/// Where a dispatch is to arrive; null addresses are filled in.
#[derive(Debug, Clone, Copy, Default)]
pub struct DispatchTarget {
    pub x: Rows,
    pub scales: Scales,
    pub ids: Address,
    pub weights: Address,
    pub source: Address,
    pub rank_counts: Address,
    pub expert_counts: Address,
    pub expert_offsets: Address,
    pub true_rows: Address,
    pub source_ranges: Address,
}

#[derive(Debug, Clone, Copy)]
pub struct CombineRequest {
    pub exact: bool,
    pub weights_of_dispatch: bool,
    pub num_sms: i32,
    pub hidden: i64,
    pub x: Rows,
    pub row_weights: Address,
    pub topk_weights: Address,
    pub carried_weights: Address,
}

#[derive(Debug, Clone, Copy)]
pub struct CombineTarget {
    pub x: Rows,
    pub bias: [Address; 2],
    pub carried_weights: Address,
}

/// What the rows of one dispatch are: the same on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DispatchShape {
    pub hidden: u64,
    pub dtype: Dtype,
    pub row_bytes: u64,
    pub scale: Option<ScaleKind>,
    /// Elements per scale, or bytes per row of opaque scales.
    pub block: u64,
    pub scale_bytes: u64,
    /// The type cast from, when rows are cast on the way.
    pub cast_from: Option<Dtype>,
}

impl DispatchShape {
    /// What a row of scales takes in a window.
    pub const fn scale_stride(&self) -> u64 {
        round_up(self.scale_bytes, ROW_ALIGN)
    }

    /// The numbers all ranks must agree on.
    pub fn fields(&self) -> [u32; 4] {
        [self.hidden as u32, self.dtype as u32, self.scale.map_or(0, |kind| kind as u32), self.block as u32]
    }
}

/// A dispatch that passed every check, with strides filled in.
#[derive(Debug, Clone, Copy)]
pub struct DispatchPlan {
    pub request: DispatchRequest,
    pub shape: DispatchShape,
    pub x_stride: u64,
    pub scale_row_stride: u64,
    pub scale_col_stride: u64,
}

pub fn plan_dispatch(request: &DispatchRequest, config: &Config) -> Result<DispatchPlan> {
    host_has_none("num_sms", request.num_sms)?;
    tokens(request.num_tokens, config)?;
    within("hidden", request.hidden, 1, 1 << 30)?;
    let shape = dispatch_shape(request, config)?;
    let from = shape.cast_from.unwrap_or(shape.dtype);
    let hidden_bytes = request.hidden as u64 * from.bytes();
    let x_stride = input_rows("x", &request.x, hidden_bytes, request.num_tokens)?;
    let (scale_row_stride, scale_col_stride) = input_scales(request, &shape)?;
    routing_pointers(request)?;
    Ok(DispatchPlan { request: *request, shape, x_stride, scale_row_stride, scale_col_stride })
}

fn tokens(num_tokens: i64, config: &Config) -> Result<()> {
    if num_tokens > config.max_tokens as i64 {
        return Err(Error::new(
            Status::DEEP_EP_CAPACITY_EXCEEDED,
            format_args!(
                "num_tokens is {num_tokens}, more than max_tokens = {}; create the buffer with a larger max_tokens",
                config.max_tokens
            ),
        ));
    }
    within("num_tokens", num_tokens, 0, config.max_tokens as i64)
}

fn dispatch_shape(request: &DispatchRequest, config: &Config) -> Result<DispatchShape> {
    let source =
        request.x.dtype.ok_or_else(|| Error::invalid_argument("x.dtype is 0; say what the rows are"))?;
    let dtype = request.wire_dtype.unwrap_or(source);
    let cast_from = if dtype == source { None } else { Some(source) };
    if cast_from.is_some() && !(dtype == Dtype::Fp8 && source.is_float()) {
        return Err(Error::unsupported(format_args!(
            "wire_dtype is {} for rows of {}; only BF16, FP16 and FP32 are cast, and only to FP8_E4M3",
            dtype.name(),
            source.name()
        )));
    }
    let (scale, block) =
        if cast_from.is_some() { cast_scales(request)? } else { given_scales(request, dtype)? };
    let hidden = request.hidden as u64;
    let shape = DispatchShape {
        hidden,
        dtype,
        row_bytes: hidden * dtype.bytes(),
        scale,
        block,
        scale_bytes: scale.map_or(0, |kind| kind.row_bytes(hidden, block)),
        cast_from,
    };
    row_fits("a row", "hidden", shape.row_bytes, "max_row_bytes", config.max_row_bytes)?;
    if shape.scale_stride() > config.max_scale_bytes {
        return Err(Error::new(
            Status::DEEP_EP_CAPACITY_EXCEEDED,
            format_args!(
                "the scales of a row take {} bytes, more than max_scale_bytes = {}; create the buffer with that many \
                 scale bytes",
                shape.scale_bytes, config.max_scale_bytes
            ),
        ));
    }
    Ok(shape)
}

/// Refuses rows that are no multiple of 16 bytes or larger than the buffer's.
fn row_fits(what: &str, field: &str, bytes: u64, limit_name: &str, limit: u64) -> Result<()> {
    if bytes % ROW_ALIGN != 0 {
        return Err(Error::invalid_argument(format_args!(
            "{what} takes {bytes} bytes, which is not a multiple of 16; change {field}"
        )));
    }
    if bytes > limit {
        return Err(Error::new(
            Status::DEEP_EP_CAPACITY_EXCEEDED,
            format_args!("{what} takes {bytes} bytes, more than {limit_name} = {limit}"),
        ));
    }
    Ok(())
}

fn cast_scales(request: &DispatchRequest) -> Result<(Option<ScaleKind>, u64)> {
    if request.x_scales.kind.is_some() {
        return Err(Error::invalid_argument(
            "x_scales.dtype is set, but rows that are cast have no scales yet",
        ));
    }
    let kind = request.wire_scale.unwrap_or(ScaleKind::Fp32);
    if kind == ScaleKind::Opaque {
        return Err(Error::unsupported(
            "wire_scale_dtype is OPAQUE; a cast makes FP32, FP32_POW2 or UE8M0_PACKED",
        ));
    }
    Ok((Some(kind), block(request.wire_scale_block, "wire_scale_block")?))
}

fn block(given: i32, field: &str) -> Result<u64> {
    match given {
        0 | 128 => Ok(SCALE_BLOCK),
        other => Err(Error::unsupported(format_args!("{field} is {other}; only 128 (or 0) is supported"))),
    }
}

fn given_scales(request: &DispatchRequest, dtype: Dtype) -> Result<(Option<ScaleKind>, u64)> {
    let scales = &request.x_scales;
    if request.wire_scale.is_some_and(|wire| Some(wire) != scales.kind) || request.wire_scale_block != 0 {
        return Err(Error::invalid_argument(
            "wire_scale_dtype or wire_scale_block is set, but the rows are not cast; set wire_dtype to FP8_E4M3 with \
             BF16, FP16 or FP32 rows, or leave them 0",
        ));
    }
    match scales.kind {
        None if dtype == Dtype::Fp8 => Err(Error::invalid_argument(
            "x.dtype is FP8_E4M3 and x_scales.dtype is 0: FP8 rows need scales (or send them as OPAQUE)",
        )),
        None => Ok((None, 0)),
        Some(ScaleKind::Opaque) => {
            within("x_scales.block", scales.block.into(), 4, 1 << 30)?;
            if scales.block % 4 != 0 {
                return Err(Error::invalid_argument(format_args!(
                    "x_scales.block is {}, which is not a multiple of 4 bytes",
                    scales.block
                )));
            }
            Ok((scales.kind, scales.block as u64))
        }
        Some(_) => {
            within("x_scales.block", scales.block.into(), 0, 1 << 30)?;
            let elements = if scales.block == 0 { SCALE_BLOCK } else { scales.block as u64 };
            Ok((scales.kind, elements))
        }
    }
}

/// Checks rows that are read and returns their stride.
fn input_rows(name: &str, rows: &Rows, row_bytes: u64, needed: i64) -> Result<u64> {
    let stride = row_stride(name, rows, row_bytes)?;
    if needed == 0 {
        return Ok(stride);
    }
    non_null(name, rows.data)?;
    if rows.rows != 0 && rows.rows < needed {
        return Err(Error::invalid_argument(format_args!(
            "{name}.rows is {}, fewer than the {needed} rows that are read",
            rows.rows
        )));
    }
    Ok(stride)
}

/// Checks the stride and alignment of rows, and returns the stride with 0 filled in.
fn row_stride(name: &str, rows: &Rows, row_bytes: u64) -> Result<u64> {
    within(format_args!("{name}.rows"), rows.rows, 0, i64::MAX)?;
    if row_bytes % ROW_ALIGN != 0 {
        return Err(Error::invalid_argument(format_args!(
            "a row of {name} takes {row_bytes} bytes, which is not a multiple of 16; change hidden"
        )));
    }
    if rows.row_stride != 0 && rows.row_stride < row_bytes as i64 {
        return Err(Error::invalid_argument(format_args!(
            "{name}.row_stride is {}, less than a row of {row_bytes} bytes",
            rows.row_stride
        )));
    }
    multiple_of_16(format_args!("{name}.row_stride"), rows.row_stride)?;
    aligned(format_args!("{name}.data"), rows.data, 16)?;
    Ok(if rows.row_stride == 0 { row_bytes } else { rows.row_stride as u64 })
}

fn non_null(name: &str, address: Address) -> Result<()> {
    if address == 0 {
        return Err(Error::invalid_argument(format_args!("{name} is null")));
    }
    Ok(())
}

/// Refuses a misaligned pointer.
pub fn aligned(name: impl Display, address: Address, to: usize) -> Result<()> {
    if address % to == 0 {
        return Ok(());
    }
    Err(Error::invalid_argument(format_args!("{name} is {address:#x}, which is not a multiple of {to}")))
}

fn input_scales(request: &DispatchRequest, shape: &DispatchShape) -> Result<(u64, u64)> {
    let scales = &request.x_scales;
    if scales.kind.is_none() {
        return Ok((0, 0));
    }
    if request.num_tokens != 0 {
        non_null("x_scales.data", scales.data)?;
    }
    aligned("x_scales.data", scales.data, 4)?;
    for (field, stride) in
        [("x_scales.row_stride", scales.row_stride), ("x_scales.col_stride", scales.col_stride)]
    {
        within(field, stride, 0, i64::MAX)?;
        aligned(field, stride as usize, 4)?;
    }
    let column_major = !matches!(scales.col_stride, 0 | 4);
    if column_major && scales.row_stride == 0 {
        return Ok((4, scales.col_stride as u64));
    }
    if !column_major && scales.row_stride != 0 && scales.row_stride < shape.scale_bytes as i64 {
        return Err(Error::invalid_argument(format_args!(
            "x_scales.row_stride is {}, less than the {} bytes of a row's scales",
            scales.row_stride, shape.scale_bytes
        )));
    }
    let row = if scales.row_stride == 0 { shape.scale_bytes } else { scales.row_stride as u64 };
    Ok((row, if scales.col_stride == 0 { 4 } else { scales.col_stride as u64 }))
}

fn routing_pointers(request: &DispatchRequest) -> Result<()> {
    if request.cached {
        if request.ids != 0 {
            return Err(Error::invalid_argument(
                "topk_idx is not null, but DEEP_EP_DISPATCH_CACHED reuses the routing",
            ));
        }
    } else {
        let id_type = request
            .id_type
            .ok_or_else(|| Error::unsupported("topk_idx_dtype is 0; say DEEP_EP_INT32 or DEEP_EP_INT64"));
        match (request.num_tokens, id_type) {
            (0, Err(_)) => {}
            (_, id_type) => aligned("topk_idx", request.ids, id_type?.bytes() as usize)?,
        }
        if request.num_tokens != 0 {
            non_null("topk_idx", request.ids)?;
        }
    }
    aligned("topk_weights", request.weights, 4)?;
    aligned("num_tokens_device", request.num_tokens_device, 4)
}

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
        capacity_rows(x_in_place, x, slab_rows) * x_stride
    } else {
        multiple_of_16("out.x.slot_stride", x.slot_stride)?;
        within("out.x.slot_stride", x.slot_stride, (capacity * x_stride) as i64, i64::MAX)?;
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
            aligned(field, stride as usize, 4)?;
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
    let least = 4 * round_up(rows, 4);
    let col = if in_place { least } else { scales.col_stride as u64 };
    if !in_place && !matches!(scales.row_stride, 0 | 4) {
        return Err(Error::invalid_argument(format_args!(
            "out.scales.row_stride is {}, but column-major scales of neighbouring rows are 4 bytes apart",
            scales.row_stride
        )));
    }
    if col < 4 * rows {
        return Err(Error::invalid_argument(format_args!(
            "out.scales.col_stride is {col}, less than 4 bytes for each of {rows} rows"
        )));
    }
    let slot = if in_place || scales.slot_stride == 0 { columns * col } else { scales.slot_stride as u64 };
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
    let slot = if in_place || scales.slot_stride == 0 { rows * row } else { scales.slot_stride as u64 };
    Ok((row, 4, slot))
}

/// What the rows of one combine are: the same on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CombineShape {
    pub hidden: u64,
    pub dtype: Dtype,
    pub row_bytes: u64,
    pub exact: bool,
    pub carried: bool,
}

impl CombineShape {
    /// The numbers all ranks must agree on.
    pub fn fields(&self) -> [u32; 3] {
        [self.hidden as u32, self.dtype as u32, u32::from(self.exact) | u32::from(self.carried) << 1]
    }
}

#[derive(Debug, Clone, Copy)]
pub struct CombinePlan {
    pub request: CombineRequest,
    pub shape: CombineShape,
    pub x_stride: u64,
    pub slot_stride: u64,
}

/// `hidden`: that of the handle's dispatch. `rows`: rows the dispatch left here, in all or in the fullest slab.
/// `slab_rows`: what a slab of the library's own memory has room for.
pub fn plan_combine(
    request: &CombineRequest,
    config: &Config,
    hidden: u64,
    rows: u64,
    slab_rows: u64,
) -> Result<CombinePlan> {
    host_has_none("num_sms", request.num_sms)?;
    within("hidden", request.hidden, 0, 1 << 30)?;
    let hidden = if request.hidden == 0 { hidden } else { request.hidden as u64 };
    let dtype = combine_dtype(request.x.dtype)?;
    let row_bytes = hidden * dtype.bytes();
    row_fits("a row", "hidden", row_bytes, "max_combine_row_bytes", config.max_combine_row_bytes)?;
    combine_modes(request, config)?;
    let in_place = request.x.data == 0;
    let x_stride = if in_place { row_bytes } else { input_rows("x", &request.x, row_bytes, rows as i64)? };
    let slab = if in_place || request.x.rows == 0 { slab_rows } else { request.x.rows as u64 };
    let slot_stride = if in_place || request.x.slot_stride == 0 {
        slab * x_stride
    } else {
        within("x.slot_stride", request.x.slot_stride, 0, i64::MAX)?;
        multiple_of_16("x.slot_stride", request.x.slot_stride)?;
        request.x.slot_stride as u64
    };
    for (name, address) in [
        ("row_weights", request.row_weights),
        ("topk_weights", request.topk_weights),
        ("carried_weights", request.carried_weights),
    ] {
        aligned(name, address, 4)?;
    }
    let shape = CombineShape {
        hidden,
        dtype,
        row_bytes,
        exact: request.exact,
        carried: request.carried_weights != 0,
    };
    Ok(CombinePlan { request: *request, shape, x_stride, slot_stride })
}

/// The types that can be summed.
pub fn combine_dtype(dtype: Option<Dtype>) -> Result<Dtype> {
    match dtype {
        Some(dtype) if dtype.is_float() => Ok(dtype),
        Some(other) => Err(Error::unsupported(format_args!(
            "x.dtype is {}; combine sums BF16, FP16 and FP32",
            other.name()
        ))),
        None => Err(Error::invalid_argument("x.dtype is 0; say BF16, FP16 or FP32")),
    }
}

fn combine_modes(request: &CombineRequest, config: &Config) -> Result<()> {
    let by_expert = config.layout.by_expert();
    if request.exact && !by_expert {
        return Err(Error::unsupported(format_args!(
            "DEEP_EP_COMBINE_EXACT with layout {}: its rows are the caller's partial sums; use a by-expert layout",
            config.layout.name()
        )));
    }
    if request.weights_of_dispatch && !by_expert {
        return Err(Error::invalid_argument(format_args!(
            "DEEP_EP_COMBINE_WEIGHTS_OF_DISPATCH with layout {}: its rows are the caller's partial sums",
            config.layout.name()
        )));
    }
    if request.topk_weights != 0 && !request.exact {
        return Err(Error::invalid_argument(
            "topk_weights without DEEP_EP_COMBINE_EXACT: rows are summed before they reach the token's rank; use \
             row_weights or DEEP_EP_COMBINE_WEIGHTS_OF_DISPATCH",
        ));
    }
    let other = if request.exact { request.topk_weights } else { request.row_weights };
    if request.weights_of_dispatch && other != 0 {
        return Err(Error::invalid_argument(
            "DEEP_EP_COMBINE_WEIGHTS_OF_DISPATCH beside weights that multiply at the same place; give one of them",
        ));
    }
    Ok(())
}

/// Checks where sums go; returns the row stride.
pub fn plan_sums(target: &CombineTarget, shape: &CombineShape, tokens: u64) -> Result<u64> {
    if target.x.dtype.is_some_and(|dtype| dtype != shape.dtype) {
        return Err(Error::unsupported(format_args!(
            "out.x.dtype is {}, but rows of {} are combined; 0 takes their type",
            target.x.dtype.map_or("0", Dtype::name),
            shape.dtype.name()
        )));
    }
    let stride = input_rows("out.x", &target.x, shape.row_bytes, tokens as i64)?;
    for (name, bias) in [("out.bias[0]", target.bias[0]), ("out.bias[1]", target.bias[1])] {
        aligned(name, bias, 16)?;
    }
    aligned("out.carried_weights", target.carried_weights, 4)?;
    if target.carried_weights != 0 && !shape.carried {
        return Err(Error::invalid_argument("out.carried_weights is set, but the send carried no weights"));
    }
    Ok(stride)
}
