//! Element types of rows, ids and scales.

use super::round_up;
use crate::error::{Error, Result};
use std::fmt::Display;

/// Rows, strides and row pointers are multiples of this many bytes.
pub const ROW_ALIGN: u64 = 16;

/// Elements that share one scale in a cast.
pub const SCALE_BLOCK: u64 = 128;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dtype {
    Bf16 = 1,
    Fp16 = 2,
    Fp32 = 3,
    Fp8 = 4,
    Opaque = 5,
}

impl Dtype {
    /// `field` names the number's place in the caller's struct. 0 is "not said".
    pub fn parse(number: u32, field: impl Display) -> Result<Option<Dtype>> {
        Ok(Some(match number {
            0 => return Ok(None),
            1 => Dtype::Bf16,
            2 => Dtype::Fp16,
            3 => Dtype::Fp32,
            4 => Dtype::Fp8,
            5 => Dtype::Opaque,
            _ => {
                return Err(Error::invalid_argument(format_args!(
                "{field} is {number}, which is no type of rows: BF16 1, FP16 2, FP32 3, FP8_E4M3 4, OPAQUE 5"
            )))
            }
        }))
    }

    pub const fn bytes(self) -> u64 {
        match self {
            Dtype::Bf16 | Dtype::Fp16 => 2,
            Dtype::Fp32 => 4,
            Dtype::Fp8 | Dtype::Opaque => 1,
        }
    }

    /// Types that can be summed, and cast to FP8.
    pub const fn is_float(self) -> bool {
        matches!(self, Dtype::Bf16 | Dtype::Fp16 | Dtype::Fp32)
    }

    pub const fn name(self) -> &'static str {
        match self {
            Dtype::Bf16 => "BF16",
            Dtype::Fp16 => "FP16",
            Dtype::Fp32 => "FP32",
            Dtype::Fp8 => "FP8_E4M3",
            Dtype::Opaque => "OPAQUE",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IdType {
    Int32,
    Int64,
}

impl IdType {
    pub fn parse(number: u32, field: &str) -> Result<IdType> {
        match number {
            6 => Ok(IdType::Int32),
            7 => Ok(IdType::Int64),
            _ => Err(Error::invalid_argument(format_args!(
                "{field} is {number}, which is no type of expert ids: INT32 6, INT64 7"
            ))),
        }
    }

    pub const fn bytes(self) -> u64 {
        match self {
            IdType::Int32 => 4,
            IdType::Int64 => 8,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ScaleKind {
    Fp32 = 1,
    Fp32Pow2 = 2,
    Ue8m0Packed = 3,
    Opaque = 4,
}

impl ScaleKind {
    pub fn parse(number: u32, field: impl Display) -> Result<Option<ScaleKind>> {
        Ok(Some(match number {
            0 => return Ok(None),
            1 => ScaleKind::Fp32,
            2 => ScaleKind::Fp32Pow2,
            3 => ScaleKind::Ue8m0Packed,
            4 => ScaleKind::Opaque,
            _ => {
                return Err(Error::invalid_argument(format_args!(
                    "{field} is {number}, which is no type of scales: NONE 0, FP32 1, FP32_POW2 2, UE8M0_PACKED 3, \
                     OPAQUE 4"
                )))
            }
        }))
    }

    /// Bytes of one row's scales. `block`: elements per scale, or bytes per row of opaque scales.
    pub const fn row_bytes(self, hidden: u64, block: u64) -> u64 {
        match self {
            ScaleKind::Fp32 | ScaleKind::Fp32Pow2 => hidden.div_ceil(block) * 4,
            ScaleKind::Ue8m0Packed => round_up(hidden.div_ceil(block), 4),
            ScaleKind::Opaque => block,
        }
    }
}
