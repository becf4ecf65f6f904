//! What the examples share: thin owners of the objects of the C ABI, so that every status is looked at and everything is
//! given back.

// Each example uses a part of it.
#![allow(dead_code, unused_imports)]

mod id;
mod memory;
mod objects;

pub use id::{id_from_text, id_to_text};
pub use memory::Lines;
pub use objects::{local_group, local_group_on, sizes, unique_id, Buffer, Comm, Handle};

use deepep::capi::{deep_ep_last_error, deep_ep_status_t};
use std::ffi::CStr;

/// Errors are texts for a person.
pub type Outcome<T> = Result<T, String>;

/// The status of a call as an outcome, with what the library says about it.
pub fn check(status: deep_ep_status_t) -> Outcome<()> {
    if status == deep_ep_status_t::DEEP_EP_SUCCESS {
        return Ok(());
    }
    // SAFETY: the last error is a terminated string that lives as long as this thread.
    Err(unsafe { CStr::from_ptr(deep_ep_last_error()) }.to_string_lossy().into_owned())
}

/// A struct of the ABI as its `_init` function leaves it.
#[macro_export]
macro_rules! filled {
    ($type:ty, $init:path) => {{
        let mut value = std::mem::MaybeUninit::<$type>::uninit();
        // SAFETY: the function fills the struct when it succeeds, and is told its size.
        unsafe {
            $crate::common::check($init(value.as_mut_ptr(), size_of::<$type>()))?;
            value.assume_init()
        }
    }};
}
