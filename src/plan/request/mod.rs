//! One operation as the caller asks for it, checked against the buffer: what a row is, how it crosses, where it goes.
//! Addresses are numbers here; whoever reads or writes through them says why that is sound.

mod arrange;
mod checks;
mod combine;
mod dispatch;

use super::dtype::{Dtype, IdType, ScaleKind};

pub use arrange::{arrange, Arrangement};
pub use combine::{combine_dtype, plan_combine, plan_sums, CombinePlan, CombineShape};
pub use dispatch::{plan_dispatch, DispatchPlan, DispatchShape};

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
