//! The boundary: panics become a status, failures leave their text for deep_ep_last_error.

use crate::error::{Error, Result, Status};
use std::cell::UnsafeCell;
use std::ffi::c_char;
use std::panic::{catch_unwind, AssertUnwindSafe};

/// Longest last-error text, its terminator included.
const TEXT_BYTES: usize = 1024;

thread_local! {
    // A fixed array, so that a pointer handed out stays valid for the life of the thread.
    static LAST_ERROR: UnsafeCell<[u8; TEXT_BYTES]> = const { UnsafeCell::new([0; TEXT_BYTES]) };
}

/// Runs the body of one exported function.
pub(super) fn fence(function: &str, body: impl FnOnce() -> Result<()>) -> Status {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => Status::DEEP_EP_SUCCESS,
        Ok(Err(error)) => {
            remember(function, &error);
            error.status
        }
        Err(panic) => {
            let text = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("panic without a text");
            remember(function, &Error::new(Status::DEEP_EP_PANIC, text));
            Status::DEEP_EP_PANIC
        }
    }
}

fn remember(function: &str, error: &Error) {
    let text = format!("{function}: {error}");
    let mut end = text.len().min(TEXT_BYTES - 1);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    LAST_ERROR.with(|slot| {
        // SAFETY: the array belongs to this thread, and no reference to it outlives this block.
        let bytes = unsafe { &mut *slot.get() };
        bytes[..end].copy_from_slice(&text.as_bytes()[..end]);
        bytes[end] = 0;
    });
}

/// The text of this thread's last failure; empty before the first.
pub(super) fn last_error() -> *const c_char {
    LAST_ERROR.with(|slot| slot.get().cast_const().cast())
}
