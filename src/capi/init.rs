//! The `_init` functions: each writes the defaults of one struct. Written out, because the header generator does not
//! look into macros.

use super::convert::init_struct;
use super::deep_ep_status_t;
use super::fence::fence;
use super::types::*;

/// Fills a comm configuration with defaults: rank 0 of 1, backend chosen by the library, null unique id.
///
/// Writes at most `struct_size` bytes at `s`, which must be sizeof of the caller's struct.
///
/// Collective: no. Blocks the host: no. Capture: allowed. Threads: any.
///
/// Returns: DEEP_EP_SUCCESS; DEEP_EP_INVALID_ARGUMENT when `s` is null; DEEP_EP_ABI_MISMATCH when no version of the
/// library had a struct of that size.
#[no_mangle]
pub unsafe extern "C" fn deep_ep_comm_config_init(
    s: *mut deep_ep_comm_config_t,
    struct_size: usize,
) -> deep_ep_status_t {
    // SAFETY: the caller passes a writable struct of `struct_size` bytes.
    fence("deep_ep_comm_config_init", || unsafe { init_struct(s, struct_size) })
}

/// Fills a buffer configuration with defaults; max_tokens, max_row_bytes, num_experts and num_topk remain to be
/// set.
///
/// Writes at most `struct_size` bytes at `s`, which must be sizeof of the caller's struct.
///
/// Collective: no. Blocks the host: no. Capture: allowed. Threads: any.
///
/// Returns: DEEP_EP_SUCCESS; DEEP_EP_INVALID_ARGUMENT when `s` is null; DEEP_EP_ABI_MISMATCH when no version of the
/// library had a struct of that size.
#[no_mangle]
pub unsafe extern "C" fn deep_ep_buffer_config_init(
    s: *mut deep_ep_buffer_config_t,
    struct_size: usize,
) -> deep_ep_status_t {
    // SAFETY: the caller passes a writable struct of `struct_size` bytes.
    fence("deep_ep_buffer_config_init", || unsafe { init_struct(s, struct_size) })
}

/// Empties a sizes struct.
///
/// Writes at most `struct_size` bytes at `s`, which must be sizeof of the caller's struct.
///
/// Collective: no. Blocks the host: no. Capture: allowed. Threads: any.
///
/// Returns: DEEP_EP_SUCCESS; DEEP_EP_INVALID_ARGUMENT when `s` is null; DEEP_EP_ABI_MISMATCH when no version of the
/// library had a struct of that size.
#[no_mangle]
pub unsafe extern "C" fn deep_ep_buffer_sizes_init(
    s: *mut deep_ep_buffer_sizes_t,
    struct_size: usize,
) -> deep_ep_status_t {
    // SAFETY: the caller passes a writable struct of `struct_size` bytes.
    fence("deep_ep_buffer_sizes_init", || unsafe { init_struct(s, struct_size) })
}

/// Empties the input of a dispatch.
///
/// Writes at most `struct_size` bytes at `s`, which must be sizeof of the caller's struct.
///
/// Collective: no. Blocks the host: no. Capture: allowed. Threads: any.
///
/// Returns: DEEP_EP_SUCCESS; DEEP_EP_INVALID_ARGUMENT when `s` is null; DEEP_EP_ABI_MISMATCH when no version of the
/// library had a struct of that size.
#[no_mangle]
pub unsafe extern "C" fn deep_ep_dispatch_in_init(
    s: *mut deep_ep_dispatch_in_t,
    struct_size: usize,
) -> deep_ep_status_t {
    // SAFETY: the caller passes a writable struct of `struct_size` bytes.
    fence("deep_ep_dispatch_in_init", || unsafe { init_struct(s, struct_size) })
}

/// Empties the output of a dispatch: everything in place.
///
/// Writes at most `struct_size` bytes at `s`, which must be sizeof of the caller's struct.
///
/// Collective: no. Blocks the host: no. Capture: allowed. Threads: any.
///
/// Returns: DEEP_EP_SUCCESS; DEEP_EP_INVALID_ARGUMENT when `s` is null; DEEP_EP_ABI_MISMATCH when no version of the
/// library had a struct of that size.
#[no_mangle]
pub unsafe extern "C" fn deep_ep_dispatch_out_init(
    s: *mut deep_ep_dispatch_out_t,
    struct_size: usize,
) -> deep_ep_status_t {
    // SAFETY: the caller passes a writable struct of `struct_size` bytes.
    fence("deep_ep_dispatch_out_init", || unsafe { init_struct(s, struct_size) })
}

/// Empties the input of a combine.
///
/// Writes at most `struct_size` bytes at `s`, which must be sizeof of the caller's struct.
///
/// Collective: no. Blocks the host: no. Capture: allowed. Threads: any.
///
/// Returns: DEEP_EP_SUCCESS; DEEP_EP_INVALID_ARGUMENT when `s` is null; DEEP_EP_ABI_MISMATCH when no version of the
/// library had a struct of that size.
#[no_mangle]
pub unsafe extern "C" fn deep_ep_combine_in_init(
    s: *mut deep_ep_combine_in_t,
    struct_size: usize,
) -> deep_ep_status_t {
    // SAFETY: the caller passes a writable struct of `struct_size` bytes.
    fence("deep_ep_combine_in_init", || unsafe { init_struct(s, struct_size) })
}

/// Empties the output of a combine.
///
/// Writes at most `struct_size` bytes at `s`, which must be sizeof of the caller's struct.
///
/// Collective: no. Blocks the host: no. Capture: allowed. Threads: any.
///
/// Returns: DEEP_EP_SUCCESS; DEEP_EP_INVALID_ARGUMENT when `s` is null; DEEP_EP_ABI_MISMATCH when no version of the
/// library had a struct of that size.
#[no_mangle]
pub unsafe extern "C" fn deep_ep_combine_out_init(
    s: *mut deep_ep_combine_out_t,
    struct_size: usize,
) -> deep_ep_status_t {
    // SAFETY: the caller passes a writable struct of `struct_size` bytes.
    fence("deep_ep_combine_out_init", || unsafe { init_struct(s, struct_size) })
}

/// Empties a report.
///
/// Writes at most `struct_size` bytes at `s`, which must be sizeof of the caller's struct.
///
/// Collective: no. Blocks the host: no. Capture: allowed. Threads: any.
///
/// Returns: DEEP_EP_SUCCESS; DEEP_EP_INVALID_ARGUMENT when `s` is null; DEEP_EP_ABI_MISMATCH when no version of the
/// library had a struct of that size.
#[no_mangle]
pub unsafe extern "C" fn deep_ep_report_init(
    s: *mut deep_ep_report_t,
    struct_size: usize,
) -> deep_ep_status_t {
    // SAFETY: the caller passes a writable struct of `struct_size` bytes.
    fence("deep_ep_report_init", || unsafe { init_struct(s, struct_size) })
}

/// Empties a statistics struct.
///
/// Writes at most `struct_size` bytes at `s`, which must be sizeof of the caller's struct.
///
/// Collective: no. Blocks the host: no. Capture: allowed. Threads: any.
///
/// Returns: DEEP_EP_SUCCESS; DEEP_EP_INVALID_ARGUMENT when `s` is null; DEEP_EP_ABI_MISMATCH when no version of the
/// library had a struct of that size.
#[no_mangle]
pub unsafe extern "C" fn deep_ep_statistics_init(
    s: *mut deep_ep_statistics_t,
    struct_size: usize,
) -> deep_ep_status_t {
    // SAFETY: the caller passes a writable struct of `struct_size` bytes.
    fence("deep_ep_statistics_init", || unsafe { init_struct(s, struct_size) })
}

/// Empties a peer statistics struct.
///
/// Writes at most `struct_size` bytes at `s`, which must be sizeof of the caller's struct.
///
/// Collective: no. Blocks the host: no. Capture: allowed. Threads: any.
///
/// Returns: DEEP_EP_SUCCESS; DEEP_EP_INVALID_ARGUMENT when `s` is null; DEEP_EP_ABI_MISMATCH when no version of the
/// library had a struct of that size.
#[no_mangle]
pub unsafe extern "C" fn deep_ep_peer_statistics_init(
    s: *mut deep_ep_peer_statistics_t,
    struct_size: usize,
) -> deep_ep_status_t {
    // SAFETY: the caller passes a writable struct of `struct_size` bytes.
    fence("deep_ep_peer_statistics_init", || unsafe { init_struct(s, struct_size) })
}
