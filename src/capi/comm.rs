//! deep_ep_comm_*: joining and leaving a group of ranks.

use super::convert::{self, optional_text, out_pointer};
use super::deep_ep_status_t;
use super::fence::fence;
use super::types::*;
use crate::buffer::Comm;
use std::ffi::c_char;

/// Draws a unique id: an address to meet at and a 128-bit secret. Binds nothing and starts nothing; rank 0 listens in
/// deep_ep_comm_create. Carry the bytes to the other ranks by any means.
///
/// `address`: null or "" for a meeting point on this machine that needs no name; "HOST:PORT" for TCP;
/// "unix:/PATH" or "unix:@NAME" for a Unix socket. `out`: written only on success.
///
/// Collective: no. Blocks the host: no. Capture: allowed. Threads: any.
///
/// Returns: DEEP_EP_SUCCESS; DEEP_EP_INVALID_ARGUMENT for an address that is none of these or is too long.
#[no_mangle]
pub unsafe extern "C" fn deep_ep_unique_id_create(
    address: *const c_char,
    out: *mut deep_ep_unique_id_t,
) -> deep_ep_status_t {
    fence("deep_ep_unique_id_create", || {
        // SAFETY: the caller passes null or a terminated string, and a writable id.
        let (address, out) = unsafe { (optional_text(address, "address")?, out_pointer(out, "out")?) };
        let id = crate::boot::UniqueId::create(address.filter(|text| !text.is_empty()))?;
        *out = deep_ep_unique_id_t { bytes: *id.as_bytes() };
        Ok(())
    })
}

/// Joins a group as one rank, meeting the others by `unique_id` or by the caller's `allgather`.
///
/// `config`: read before the call returns. `out`: written only on success; give it back with deep_ep_comm_destroy.
///
/// Collective: yes, every rank of the group calls it, each from its own thread or process. Blocks the host: until all
/// ranks have come, at most timeout_ms. Capture: not allowed. Threads: any.
///
/// Returns: DEEP_EP_SUCCESS; DEEP_EP_TIMEOUT naming the ranks that did not come; DEEP_EP_PEER_FAILED when a rank came
/// twice or died; DEEP_EP_CONFIG_MISMATCH when ranks disagree about num_ranks or the backend;
/// DEEP_EP_PEER_UNREACHABLE when a rank is on another host, or a device cannot use the memory of another's (no peer
/// access, no NVLink); DEEP_EP_INVALID_ARGUMENT; DEEP_EP_UNSUPPORTED for a backend this library lacks, or device memory
/// that cannot be shared; DEEP_EP_SYSTEM.
#[no_mangle]
pub unsafe extern "C" fn deep_ep_comm_create(
    config: *const deep_ep_comm_config_t,
    out: *mut *mut deep_ep_comm_t,
) -> deep_ep_status_t {
    fence("deep_ep_comm_create", || {
        // SAFETY: the caller passes a configuration and a writable pointer.
        let (config, out) = unsafe { (convert::comm_config(config)?, out_pointer(out, "out")?) };
        let inner = config.create()?;
        *out = Box::into_raw(Box::new(deep_ep_comm_t { inner }));
        Ok(())
    })
}

/// Makes all ranks of a group in this process at once, from one thread.
///
/// `config`: rank, unique_id and allgather are ignored. `devices`: CUDA: the device ordinal of each rank, or null: all
/// ranks on config.device. `out`: an
/// array of num_ranks pointers, written only on success; give each back with deep_ep_comm_destroy.
///
/// Collective: no. Blocks the host: no. Capture: not allowed. Threads: any.
///
/// Returns: DEEP_EP_SUCCESS; DEEP_EP_INVALID_ARGUMENT; DEEP_EP_UNSUPPORTED; DEEP_EP_PEER_UNREACHABLE for devices without
/// peer access; DEEP_EP_CONFIG_MISMATCH for devices that differ; DEEP_EP_SYSTEM; DEEP_EP_OUT_OF_MEMORY.
#[no_mangle]
pub unsafe extern "C" fn deep_ep_comm_create_local(
    config: *const deep_ep_comm_config_t,
    devices: *const i32,
    out: *mut *mut deep_ep_comm_t,
) -> deep_ep_status_t {
    fence("deep_ep_comm_create_local", || {
        // SAFETY: the caller passes a configuration, null or num_ranks ordinals, and room for num_ranks pointers.
        unsafe {
            let (num_ranks, backend, device) = convert::local_comm_config(config)?;
            out_pointer(out, "out")?;
            let each = |rank| if devices.is_null() { device } else { *devices.add(rank) };
            let devices: Vec<i32> = (0..num_ranks as usize).map(each).collect();
            for (rank, inner) in Comm::create_local(num_ranks, backend, &devices)?.into_iter().enumerate() {
                *out.add(rank) = Box::into_raw(Box::new(deep_ep_comm_t { inner }));
            }
        }
        Ok(())
    })
}

/// Ends the group's work on every rank: waits everywhere end with DEEP_EP_ABORTED naming this rank, buffers are
/// poisoned and cannot be reset. Only stores words, and returns at once.
///
/// `reason`: null or a text, cut at 128 bytes (what is not UTF-8 is replaced), that the other ranks' last error shows.
///
/// Collective: no. Blocks the host: no. Capture: allowed. Threads: beside any other call on any thread.
///
/// Returns: DEEP_EP_SUCCESS; DEEP_EP_INVALID_ARGUMENT.
#[no_mangle]
pub unsafe extern "C" fn deep_ep_comm_abort(
    comm: *const deep_ep_comm_t,
    reason: *const c_char,
) -> deep_ep_status_t {
    fence("deep_ep_comm_abort", || {
        // SAFETY: the caller passes a live comm and null or a terminated string.
        let (comm, reason) = unsafe { (convert::object(comm, "comm")?, convert::lossy_text(reason)) };
        comm.inner.abort(reason.as_deref().unwrap_or("no reason given"));
        Ok(())
    })
}

/// Tells what a comm is. Each pointer may be null.
///
/// `rank`, `num_ranks`: this rank and the size of its group. `backend`: the deep_ep_backend_t it works with, never AUTO.
///
/// Collective: no. Blocks the host: no. Capture: allowed. Threads: beside any other call on any thread.
///
/// Returns: DEEP_EP_SUCCESS; DEEP_EP_INVALID_ARGUMENT.
#[no_mangle]
pub unsafe extern "C" fn deep_ep_comm_info(
    comm: *const deep_ep_comm_t,
    rank: *mut i32,
    num_ranks: *mut i32,
    backend: *mut u32,
) -> deep_ep_status_t {
    fence("deep_ep_comm_info", || {
        // SAFETY: the caller passes a live comm, and pointers that are null or writable.
        unsafe {
            let comm = &convert::object(comm, "comm")?.inner;
            let put = |out: *mut i32, value: usize| (!out.is_null()).then(|| *out = value as i32);
            put(rank, comm.rank());
            put(num_ranks, comm.num_ranks());
            if !backend.is_null() {
                *backend = convert::backend_number(comm.backend());
            }
        }
        Ok(())
    })
}

/// Leaves the group. Buffers of the comm stay usable until they are destroyed.
///
/// `comm`: null is allowed and does nothing. Invalid after the call.
///
/// Collective: no, and never waits for peers. Blocks the host: no. Capture: not allowed. Threads: exclusive use of
/// `comm`.
///
/// Returns: DEEP_EP_SUCCESS.
#[no_mangle]
pub unsafe extern "C" fn deep_ep_comm_destroy(comm: *mut deep_ep_comm_t) -> deep_ep_status_t {
    fence("deep_ep_comm_destroy", || {
        // SAFETY: the caller gives back what a create returned, once.
        drop(unsafe { convert::take(comm) });
        Ok(())
    })
}
