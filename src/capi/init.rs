//! The `_init` functions: each writes the defaults of one struct.

use super::fence::fence;
use super::types::*;
use super::{convert, deep_ep_status_t};

macro_rules! init_functions {
    ($($(#[$doc:meta])* $name:ident($type:ty);)*) => {$(
        $(#[$doc])*
        ///
        /// Writes at most `struct_size` bytes at `s`, which must be sizeof of the caller's struct.
        ///
        /// Collective: no. Blocks the host: no. Capture: allowed. Threads: any.
        ///
        /// Returns: DEEP_EP_SUCCESS; DEEP_EP_INVALID_ARGUMENT when `s` is null; DEEP_EP_ABI_MISMATCH when no version
        /// of the library had a struct of that size.
        #[no_mangle]
        pub unsafe extern "C" fn $name(s: *mut $type, struct_size: usize) -> deep_ep_status_t {
            // SAFETY: the caller passes a writable struct of `struct_size` bytes.
            fence(stringify!($name), || unsafe { convert::init_struct(s, struct_size) })
        }
    )*};
}

init_functions! {
    /// Fills a comm configuration with defaults: rank 0 of 1, backend chosen by the library, null unique id.
    deep_ep_comm_config_init(deep_ep_comm_config_t);
    /// Fills a buffer configuration with defaults; max_tokens, max_row_bytes, num_experts and num_topk remain to be
    /// set.
    deep_ep_buffer_config_init(deep_ep_buffer_config_t);
    /// Empties a sizes struct.
    deep_ep_buffer_sizes_init(deep_ep_buffer_sizes_t);
    /// Empties the input of a dispatch.
    deep_ep_dispatch_in_init(deep_ep_dispatch_in_t);
    /// Empties the output of a dispatch: everything in place.
    deep_ep_dispatch_out_init(deep_ep_dispatch_out_t);
    /// Empties the input of a combine.
    deep_ep_combine_in_init(deep_ep_combine_in_t);
    /// Empties the output of a combine.
    deep_ep_combine_out_init(deep_ep_combine_out_t);
    /// Empties a report.
    deep_ep_report_init(deep_ep_report_t);
    /// Empties a statistics struct.
    deep_ep_statistics_init(deep_ep_statistics_t);
    /// Empties a peer statistics struct.
    deep_ep_peer_statistics_init(deep_ep_peer_statistics_t);
}
