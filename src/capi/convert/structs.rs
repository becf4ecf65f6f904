//! Structs that start with their size, pointers, texts and lists.

use crate::capi::types::*;
use crate::error::{Error, Result, Status};
use std::borrow::Cow;
use std::ffi::{c_char, CStr};
use std::fmt::Display;

/// Larger than any struct will be: a bigger struct_size is not one, and must not be followed.
const LARGEST_STRUCT: usize = 1 << 16;

/// A C struct that starts with its size.
///
/// # Safety
/// `repr(C)`, the first field is `usize`, and all zeroes are a valid value.
pub(in crate::capi) unsafe trait Sized: Copy {
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

pub(super) fn is_null(name: &str) -> Error {
    Error::invalid_argument(format_args!("{name} is null"))
}

fn zeroed<T: Sized>() -> T {
    // SAFETY: `Sized` promises that zeroes are a value.
    unsafe { std::mem::zeroed() }
}

/// # Safety
/// `s` is null or writable for `size` bytes.
pub(in crate::capi) unsafe fn init_struct<T: Sized>(s: *mut T, size: usize) -> Result<()> {
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
pub(super) unsafe fn read_struct<T: Sized>(s: *const T, name: &str) -> Result<(usize, T)> {
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
pub(in crate::capi) fn check_out<T>(s: *mut T, name: &str) -> Result<()> {
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
pub(in crate::capi) unsafe fn write_struct<T: Sized>(s: *mut T, name: &str, value: T) -> Result<()> {
    // SAFETY: as the caller promises.
    let (size, _) = unsafe { read_struct(s.cast_const(), name)? };
    // SAFETY: as above.
    unsafe { write_sized(s, &value, size) };
    Ok(())
}

/// # Safety
/// `s` is a struct that was read before.
pub(in crate::capi) unsafe fn write_sized<T: Sized>(s: *mut T, value: &T, size: usize) {
    // SAFETY: as the caller promises.
    unsafe {
        s.write(*value);
        s.cast::<usize>().write(size);
    }
}

/// # Safety
/// `p` is null or a live object.
pub(in crate::capi) unsafe fn object<'a, T>(p: *const T, name: &str) -> Result<&'a T> {
    // SAFETY: as the caller promises.
    unsafe { p.as_ref() }.ok_or_else(|| is_null(name))
}

/// # Safety
/// `p` is null or writable.
pub(in crate::capi) unsafe fn out_pointer<'a, T>(p: *mut T, name: &str) -> Result<&'a mut T> {
    check_out(p, name)?;
    // SAFETY: as the caller promises; it is not null.
    Ok(unsafe { &mut *p })
}

/// Takes an object back; null gives none.
///
/// # Safety
/// `p` is null or what a create returned, not yet given back.
pub(in crate::capi) unsafe fn take<T>(p: *mut T) -> Option<Box<T>> {
    // SAFETY: as the caller promises.
    (!p.is_null()).then(|| unsafe { Box::from_raw(p) })
}

/// # Safety
/// `text` is null or a terminated string that lives as long as the call.
pub(in crate::capi) unsafe fn optional_text<'a>(text: *const c_char, name: &str) -> Result<Option<&'a str>> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: as the caller promises.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(Some).map_err(|_| Error::invalid_argument(format_args!("{name} is not UTF-8")))
}

/// A text for people: what is not UTF-8 in it is replaced.
///
/// # Safety
/// As [`optional_text`].
pub(in crate::capi) unsafe fn lossy_text<'a>(text: *const c_char) -> Option<Cow<'a, str>> {
    // SAFETY: as the caller promises.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy())
}

/// # Safety
/// `out` is null or has room for `count` values.
pub(in crate::capi) unsafe fn write_array<T: Copy>(
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
pub(in crate::capi) unsafe fn write_list<T: Copy>(
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
pub(in crate::capi) unsafe fn mask(alive: *const u8, num_ranks: usize) -> Option<Vec<bool>> {
    if alive.is_null() {
        return None;
    }
    // SAFETY: as the caller promises.
    let bytes = unsafe { std::slice::from_raw_parts(alive, num_ranks) };
    Some(bytes.iter().map(|&byte| byte != 0).collect())
}

pub(super) fn reserved(field: impl Display, value: u32) -> Result<()> {
    if value == 0 {
        return Ok(());
    }
    Err(Error::invalid_argument(format_args!("{field} is {value}; set 0")))
}

/// Refuses flags this version does not know.
pub(super) fn flags(value: u32, known: u32) -> Result<()> {
    if value & !known == 0 {
        return Ok(());
    }
    Err(Error::invalid_argument(format_args!("flags is {value:#x}; known are {known:#x}")))
}
