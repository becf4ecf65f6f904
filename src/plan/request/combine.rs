//! What a combine reads and where its sums go.

use super::checks::{aligned, input_rows, row_fits};
use super::{CombineRequest, CombineTarget};
use crate::error::{Error, Result};
use crate::plan::config::{host_has_none, multiple_of_16, within, Config};
use crate::plan::dtype::Dtype;

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
    if !config.cuda {
        host_has_none("num_sms", request.num_sms)?;
    }
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
        slab.saturating_mul(x_stride)
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
    let (field, other) = match request.exact {
        true => ("topk_weights", request.topk_weights),
        false => ("row_weights", request.row_weights),
    };
    if request.weights_of_dispatch && other != 0 {
        return Err(Error::invalid_argument(format_args!(
            "DEEP_EP_COMBINE_WEIGHTS_OF_DISPATCH and {field} both multiply at the same place; give one of them"
        )));
    }
    Ok(())
}

/// Checks where sums go; returns the row stride.
pub fn plan_sums(target: &CombineTarget, shape: &CombineShape, tokens: u64) -> Result<u64> {
    if target.x.dtype.is_some_and(|dtype| dtype != shape.dtype) {
        return Err(Error::invalid_argument(format_args!(
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
