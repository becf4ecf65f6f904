//! Checks that every operation makes: rows, strides, alignment.

use super::{Address, Rows};
use crate::error::{Error, Result, Status};
use crate::plan::config::{multiple_of_16, within};
use crate::plan::dtype::ROW_ALIGN;
use std::fmt::Display;

/// Refuses rows that are no multiple of 16 bytes or larger than the buffer's.
pub(super) fn row_fits(what: &str, field: &str, bytes: u64, limit_name: &str, limit: u64) -> Result<()> {
    if !bytes.is_multiple_of(ROW_ALIGN) {
        return Err(Error::invalid_argument(format_args!(
            "{what} takes {bytes} bytes, which is not a multiple of 16; change {field}"
        )));
    }
    if bytes > limit {
        return Err(Error::new(
            Status::DEEP_EP_CAPACITY_EXCEEDED,
            format_args!(
                "{what} takes {bytes} bytes, more than {limit_name} = {limit}; create the buffer with that many bytes"
            ),
        ));
    }
    Ok(())
}

/// Checks rows that are read and returns their stride.
pub(super) fn input_rows(name: &str, rows: &Rows, row_bytes: u64, needed: i64) -> Result<u64> {
    let stride = row_stride(name, rows, row_bytes)?;
    if needed == 0 {
        return Ok(stride);
    }
    non_null(format_args!("{name}.data"), rows.data)?;
    if rows.rows != 0 && rows.rows < needed {
        return Err(Error::invalid_argument(format_args!(
            "{name}.rows is {}, fewer than the {needed} rows that are read",
            rows.rows
        )));
    }
    Ok(stride)
}

/// Checks the stride and alignment of rows, and returns the stride with 0 filled in.
pub(super) fn row_stride(name: &str, rows: &Rows, row_bytes: u64) -> Result<u64> {
    within(format_args!("{name}.rows"), rows.rows, 0, i64::MAX)?;
    if !row_bytes.is_multiple_of(ROW_ALIGN) {
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

pub(super) fn non_null(name: impl Display, address: Address) -> Result<()> {
    if address == 0 {
        return Err(Error::invalid_argument(format_args!("{name} is null")));
    }
    Ok(())
}

/// Refuses a misaligned pointer.
pub(super) fn aligned(name: impl Display, address: Address, to: usize) -> Result<()> {
    if address.is_multiple_of(to) {
        return Ok(());
    }
    Err(Error::invalid_argument(format_args!("{name} is {address:#x}, which is not a multiple of {to}")))
}
