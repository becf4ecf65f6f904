//! Questions that change nothing: version, texts, statistics, trace.

use super::convert::{self, check_out, object};
use super::deep_ep_status_t;
use super::fence::{fence, last_error};
use super::types::*;
use crate::error::{Error, Status};
use std::ffi::c_char;

/// Version of this header: major, minor, patch.
pub const DEEP_EP_VERSION_MAJOR: u32 = 0;
pub const DEEP_EP_VERSION_MINOR: u32 = 1;
pub const DEEP_EP_VERSION_PATCH: u32 = 0;

/// The version of the loaded library: major * 10000 + minor * 100 + patch.
///
/// Collective: no. Blocks the host: no. Capture: allowed. Threads: any.
///
/// Returns: the number.
#[no_mangle]
pub extern "C" fn deep_ep_version() -> u32 {
    DEEP_EP_VERSION_MAJOR * 10_000 + DEEP_EP_VERSION_MINOR * 100 + DEEP_EP_VERSION_PATCH
}

/// The name of a status.
///
/// `status`: any number; unknown ones have a name that says so.
///
/// Collective: no. Blocks the host: no. Capture: allowed. Threads: any.
///
/// Returns: a static string.
#[no_mangle]
pub extern "C" fn deep_ep_status_string(status: i32) -> *const c_char {
    let known = Status::ALL.iter().find(|known| **known as i32 == status);
    known.map_or(c"unknown status", |known| known.name()).as_ptr()
}

/// What the last failing call on this thread had to say: function, argument, value, limit, remedy.
///
/// Collective: no. Blocks the host: no. Capture: allowed. Threads: any; each has its own text.
///
/// Returns: a string that is never null, lives as long as the thread, and is overwritten by the thread's next failing
/// call. A success leaves it as it is.
#[no_mangle]
pub extern "C" fn deep_ep_last_error() -> *const c_char {
    last_error()
}

/// Reads the totals of a buffer since create.
///
/// Collective: no. Blocks the host: no. Capture: allowed. Threads: beside any other call on the buffer; the numbers may
/// then be of two moments. CUDA: read by a copy beside whatever runs.
///
/// Returns: DEEP_EP_SUCCESS; DEEP_EP_INVALID_ARGUMENT; DEEP_EP_CUDA.
#[no_mangle]
pub unsafe extern "C" fn deep_ep_buffer_statistics(
    buffer: *const deep_ep_buffer_t,
    out: *mut deep_ep_statistics_t,
) -> deep_ep_status_t {
    fence("deep_ep_buffer_statistics", || {
        // SAFETY: the caller passes a live buffer and a writable struct.
        unsafe {
            let totals = object(buffer, "buffer")?.inner.statistics()?;
            convert::write_struct(out, "out", convert::statistics(&totals))
        }
    })
}

/// Reads what one peer accounts for in the totals.
///
/// `peer`: 0 to num_ranks - 1; this rank's own number gives its local traffic.
///
/// Collective: no. Blocks the host: no. Capture: allowed. Threads: as deep_ep_buffer_statistics.
///
/// Returns: DEEP_EP_SUCCESS; DEEP_EP_INVALID_ARGUMENT; DEEP_EP_CUDA.
#[no_mangle]
pub unsafe extern "C" fn deep_ep_buffer_peer_statistics(
    buffer: *const deep_ep_buffer_t,
    peer: i32,
    out: *mut deep_ep_peer_statistics_t,
) -> deep_ep_status_t {
    fence("deep_ep_buffer_peer_statistics", || {
        // SAFETY: the caller passes a live buffer and a writable struct.
        unsafe {
            let part = object(buffer, "buffer")?.inner.peer_statistics(peer)?;
            convert::write_struct(out, "out", convert::peer_statistics(&part))
        }
    })
}

/// Reads how many rows each local expert has received since create.
///
/// `rows`: room for `count` numbers, which must be the number of local experts.
///
/// Collective: no. Blocks the host: no. Capture: allowed. Threads: as deep_ep_buffer_statistics.
///
/// Returns: DEEP_EP_SUCCESS; DEEP_EP_INVALID_ARGUMENT naming the number of local experts; DEEP_EP_CUDA.
#[no_mangle]
pub unsafe extern "C" fn deep_ep_buffer_expert_statistics(
    buffer: *const deep_ep_buffer_t,
    rows: *mut u64,
    count: usize,
) -> deep_ep_status_t {
    fence("deep_ep_buffer_expert_statistics", || {
        // SAFETY: the caller passes a live buffer and room for `count` numbers.
        unsafe {
            let totals = object(buffer, "buffer")?.inner.expert_statistics()?;
            convert::write_array(rows, count, &totals, "rows", "local experts")
        }
    })
}

/// Lists the global ids of this rank's experts; position is the local id.
///
/// `experts`: null to ask only for the number, or room for `capacity` ids. `count`: receives the number of local
/// experts.
///
/// Collective: no. Blocks the host: no. Capture: allowed. Threads: beside any other call on the buffer.
///
/// Returns: DEEP_EP_SUCCESS; DEEP_EP_INVALID_ARGUMENT when `capacity` is too small.
#[no_mangle]
pub unsafe extern "C" fn deep_ep_buffer_local_experts(
    buffer: *const deep_ep_buffer_t,
    experts: *mut i32,
    capacity: usize,
    count: *mut usize,
) -> deep_ep_status_t {
    fence("deep_ep_buffer_local_experts", || {
        // SAFETY: the caller passes a live buffer, null or room for `capacity` ids, and a writable number.
        unsafe {
            let ids = object(buffer, "buffer")?.inner.local_experts();
            convert::write_list(experts, capacity, count, ids, "experts")
        }
    })
}

/// Reads which ranks take part: all of them until a reset leaves some out.
///
/// `alive`: room for `count` bytes, which must be num_ranks; 1 or 0 for each rank.
///
/// Collective: no. Blocks the host: no. Capture: allowed. Threads: beside any other call but reset.
///
/// Returns: DEEP_EP_SUCCESS; DEEP_EP_INVALID_ARGUMENT.
#[no_mangle]
pub unsafe extern "C" fn deep_ep_buffer_alive(
    buffer: *const deep_ep_buffer_t,
    alive: *mut u8,
    count: usize,
) -> deep_ep_status_t {
    fence("deep_ep_buffer_alive", || {
        // SAFETY: the caller passes a live buffer and room for `count` bytes.
        unsafe {
            let mask = object(buffer, "buffer")?.inner.alive();
            convert::write_array(alive, count, &mask, "alive", "ranks")
        }
    })
}

/// Writes the newest recorded phases as a Chrome trace (JSON), one process per rank, microseconds of the monotonic
/// clock, so that the files of several ranks line up when their events are put together. The first entry's
/// args.lost_events counts older phases that had to make room. The buffer needs DEEP_EP_BUFFER_TRACE. CUDA: phases as
/// the kernels note them, replays of graphs included, by the device's clock, which is compared with the host's at create
/// and here, to a few microseconds.
///
/// `json`: null to ask only for the size, or room for `capacity` bytes, the terminator included. `needed`: receives the
/// bytes the text takes with its terminator; it grows while operations run.
///
/// Collective: no. Blocks the host: no. Capture: allowed. Threads: beside any other call on the buffer.
///
/// Returns: DEEP_EP_SUCCESS; DEEP_EP_INVALID_ARGUMENT when `capacity` is too small; DEEP_EP_INVALID_STATE without
/// DEEP_EP_BUFFER_TRACE; DEEP_EP_TIMEOUT while the device has been too busy to tell its time (CUDA); DEEP_EP_CUDA.
#[no_mangle]
pub unsafe extern "C" fn deep_ep_buffer_trace(
    buffer: *const deep_ep_buffer_t,
    json: *mut c_char,
    capacity: usize,
    needed: *mut usize,
) -> deep_ep_status_t {
    fence("deep_ep_buffer_trace", || {
        // SAFETY: the caller passes a live buffer, null or room for `capacity` bytes, and a writable number.
        unsafe {
            check_out(needed, "needed")?;
            let mut text = object(buffer, "buffer")?.inner.trace()?.into_bytes();
            if text.contains(&0) {
                return Err(Error::new(Status::DEEP_EP_INTERNAL, "the trace holds a zero byte"));
            }
            text.push(0);
            convert::write_list(json.cast(), capacity, needed, &text, "json")
        }
    })
}
