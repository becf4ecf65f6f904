//! What a dispatch sends.

use super::checks::{aligned, input_rows, non_null, row_fits};
use super::DispatchRequest;
use crate::error::{Error, Result, Status};
use crate::plan::config::{host_has_none, within, Config};
use crate::plan::dtype::{Dtype, ScaleKind, ROW_ALIGN, SCALE_BLOCK};
use crate::plan::round_up;

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

    /// Bytes that cross for one row: data, scales, ids, weights, source.
    pub const fn wire_bytes(&self, topk: usize) -> u64 {
        self.row_bytes + self.scale_bytes + 8 * topk as u64 + 8
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
    if !config.cuda {
        host_has_none("num_sms", request.num_sms)?;
    }
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
        if request.num_tokens != 0 {
            non_null("topk_idx", request.ids)?;
        }
        let id_type = request.id_type.ok_or_else(|| {
            Error::invalid_argument("topk_idx_dtype is 0; say DEEP_EP_INT32 or DEEP_EP_INT64")
        });
        match (request.num_tokens, id_type) {
            (0, Err(_)) => {}
            (_, id_type) => aligned("topk_idx", request.ids, id_type?.bytes() as usize)?,
        }
    }
    aligned("topk_weights", request.weights, 4)?;
    aligned("num_tokens_device", request.num_tokens_device, 4)
}
