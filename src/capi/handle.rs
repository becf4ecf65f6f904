//! deep_ep_handle_*: the operations on one routing.

use super::convert::{self, object, out_pointer};
use super::deep_ep_status_t;
use super::fence::fence;
use super::types::*;
use crate::buffer::Handle;

/// Makes a handle, with memory for the largest routing of its buffer. No pointer of a caller is kept in it after a call.
///
/// `out`: written only on success; give it back with deep_ep_handle_destroy.
///
/// Collective: no. Blocks the host: no. Capture: not allowed. Threads: exclusive use of the buffer.
///
/// Returns: DEEP_EP_SUCCESS; DEEP_EP_INVALID_ARGUMENT; DEEP_EP_OUT_OF_MEMORY; DEEP_EP_INVALID_STATE.
#[no_mangle]
pub unsafe extern "C" fn deep_ep_handle_create(
    buffer: *mut deep_ep_buffer_t,
    out: *mut *mut deep_ep_handle_t,
) -> deep_ep_status_t {
    fence("deep_ep_handle_create", || {
        // SAFETY: the caller passes a live buffer and a writable pointer.
        let (buffer, out) = unsafe { (object(buffer, "buffer")?, out_pointer(out, "out")?) };
        let inner = Handle::create(&buffer.inner)?;
        *out = Box::into_raw(Box::new(deep_ep_handle_t { inner }));
        Ok(())
    })
}

/// Sends each token's row to the ranks that own its experts, and receives the rows sent here: a send and a receive in
/// one call, one epoch.
///
/// `input`: what is sent; its pointers are free again when the call returns (host) or when the stream has passed it
/// (CUDA). `output`: filled in; caller memory stays the caller's, library memory holds until the handle's combine or
/// release. Rows: BF16, FP16, FP32, FP8_E4M3 with scales, OPAQUE; hidden * element size a multiple of 16.
///
/// Collective: yes, with the same hidden, types and in-place choice on all ranks. Blocks the host: until every rank has
/// sent (host backend); no (CUDA). Capture: allowed. Threads: exclusive use of the buffer and its handles.
///
/// Returns: DEEP_EP_SUCCESS, also when ids were bad or rows overflowed: deep_ep_buffer_report tells;
/// DEEP_EP_INVALID_ARGUMENT or DEEP_EP_CAPACITY_EXCEEDED before any peer is signalled, the call may be repeated;
/// DEEP_EP_INVALID_EXPERT_ID likewise with DEEP_EP_BUFFER_REFUSE_BAD_IDS; DEEP_EP_BUSY when the handle's last
/// dispatch was neither combined nor released, or no window is free; DEEP_EP_TIMEOUT, DEEP_EP_OP_MISMATCH, DEEP_EP_ABORTED, after which the buffer returns the same
/// status until reset; DEEP_EP_CONCURRENT_USE; DEEP_EP_INVALID_STATE; DEEP_EP_UNSUPPORTED.
///
/// Positions are prefix sums of counts that all ranks exchange: no atomics, no sorting, the same order every time.
#[no_mangle]
pub unsafe extern "C" fn deep_ep_handle_dispatch(
    handle: *mut deep_ep_handle_t,
    input: *const deep_ep_dispatch_in_t,
    output: *mut deep_ep_dispatch_out_t,
    stream: deep_ep_stream_t,
) -> deep_ep_status_t {
    fence("deep_ep_handle_dispatch", || {
        // SAFETY: the caller passes a live handle and structs whose pointers hold for the call.
        unsafe {
            let handle = object(handle, "handle")?;
            let request = convert::dispatch_in(input)?;
            let (size, mut out) = convert::dispatch_out(output)?;
            let arrival =
                handle.inner.dispatch(&request, &convert::dispatch_target(&out)?, stream as usize)?;
            convert::fill_dispatch_out(&mut out, &arrival);
            convert::write_sized(output, &out, size);
            Ok(())
        }
    })
}

/// The first half of a dispatch: returns when the rows are on their way. Up to max_in_flight operations may be sent
/// before one is received.
///
/// `input`: as for deep_ep_handle_dispatch; no pointer of it is kept.
///
/// Collective: yes. Blocks the host: packed layouts until all ranks' counts are in, slotted layouts not (host backend);
/// no (CUDA). Capture: allowed together with its receive. Threads: exclusive use of the buffer and its handles.
///
/// Returns: as deep_ep_handle_dispatch.
#[no_mangle]
pub unsafe extern "C" fn deep_ep_handle_dispatch_send(
    handle: *mut deep_ep_handle_t,
    input: *const deep_ep_dispatch_in_t,
    stream: deep_ep_stream_t,
) -> deep_ep_status_t {
    fence("deep_ep_handle_dispatch_send", || {
        // SAFETY: the caller passes a live handle and a struct whose pointers hold for the call.
        unsafe {
            let handle = object(handle, "handle")?;
            handle.inner.dispatch_send(&convert::dispatch_in(input)?, stream as usize)
        }
    })
}

/// The second half of a dispatch: waits for the rows and hands them out.
///
/// `output`: as for deep_ep_handle_dispatch.
///
/// Collective: yes. Blocks the host: until every rank has sent (host backend); no (CUDA). Capture: allowed together
/// with its send. Threads: exclusive use of the buffer and its handles.
///
/// Returns: as deep_ep_handle_dispatch; DEEP_EP_INVALID_STATE without a send; DEEP_EP_BUSY when rows are wanted in place
/// and no area is free, then the receive may be repeated.
#[no_mangle]
pub unsafe extern "C" fn deep_ep_handle_dispatch_recv(
    handle: *mut deep_ep_handle_t,
    output: *mut deep_ep_dispatch_out_t,
    stream: deep_ep_stream_t,
) -> deep_ep_status_t {
    fence("deep_ep_handle_dispatch_recv", || {
        // SAFETY: the caller passes a live handle and a struct whose pointers hold for the call.
        unsafe {
            let handle = object(handle, "handle")?;
            let (size, mut out) = convert::dispatch_out(output)?;
            let arrival = handle.inner.dispatch_recv(&convert::dispatch_target(&out)?, stream as usize)?;
            convert::fill_dispatch_out(&mut out, &arrival);
            convert::write_sized(output, &out, size);
            Ok(())
        }
    })
}

/// Waits until the numbers of the handle's last dispatch are known to the host.
///
/// `expert_counts`: null, or [local experts] rows present for each. `rows`: null, or one number: rows present in all, and
/// for PACKED_BY_EXPERT the end of the last expert's rows. `timeout_ms`: 0 for the buffer's.
///
/// When the handle's last dispatch was captured: what the newest finished replay has left, without waiting; synchronise
/// with its stream first.
///
/// Collective: no. Blocks the host: until the receive has run. Capture: not allowed. Threads: exclusive use of the
/// buffer and its handles.
///
/// Returns: DEEP_EP_SUCCESS; DEEP_EP_INVALID_STATE before the first receive of the handle, and before the first replay
/// of a captured one; DEEP_EP_TIMEOUT when the
/// receive has not run in time, which poisons nothing (CUDA); DEEP_EP_INVALID_ARGUMENT.
#[no_mangle]
pub unsafe extern "C" fn deep_ep_handle_wait_counts(
    handle: *mut deep_ep_handle_t,
    expert_counts: *mut i64,
    rows: *mut i64,
    timeout_ms: u32,
) -> deep_ep_status_t {
    fence("deep_ep_handle_wait_counts", || {
        // SAFETY: the caller passes a live handle, and null or room for the numbers.
        unsafe {
            let counts = object(handle, "handle")?.inner.counts(timeout_ms)?;
            if !expert_counts.is_null() {
                for (i, &count) in counts.experts.iter().enumerate() {
                    *expert_counts.add(i) = i64::from(count);
                }
            }
            if !rows.is_null() {
                *rows = counts.rows;
            }
        }
        Ok(())
    })
}

/// Says where the rows of the handle's next combine may be written in place, and reserves that memory until then.
///
/// `x`: only dtype is read: BF16, FP16 or FP32. All fields are filled in, for rows of the dispatch's hidden in the
/// arrangement of the received ones. `stream`: where a barrier is enqueued if the memory may still be read.
///
/// Collective: yes, on every rank or on none, at the same place in the order of calls. Blocks the host: if a barrier is
/// needed (host backend); no (CUDA). Capture: allowed. Threads: exclusive use of the buffer and its handles.
///
/// Returns: DEEP_EP_SUCCESS; DEEP_EP_INVALID_STATE before the handle's dispatch was received; DEEP_EP_BUSY when no
/// window is free; DEEP_EP_TIMEOUT and what else a barrier may return.
#[no_mangle]
pub unsafe extern "C" fn deep_ep_handle_combine_input(
    handle: *mut deep_ep_handle_t,
    x: *mut deep_ep_rows_t,
    stream: deep_ep_stream_t,
) -> deep_ep_status_t {
    fence("deep_ep_handle_combine_input", || {
        // SAFETY: the caller passes a live handle and a writable struct.
        unsafe {
            let handle = object(handle, "handle")?;
            let x = out_pointer(x, "x")?;
            let dtype = convert::combine_dtype(x.dtype, "x.dtype")?;
            *x = convert::rows(&handle.inner.combine_input(dtype, stream as usize)?);
        }
        Ok(())
    })
}

/// Says that the received rows are no longer read, without a combine.
///
/// Collective: yes, at the same place in the order of calls. Blocks the host: no. Capture: allowed. Threads: exclusive
/// use of the buffer and its handles.
///
/// Returns: DEEP_EP_SUCCESS, also when nothing was open; DEEP_EP_INVALID_STATE between a send and its receive.
#[no_mangle]
pub unsafe extern "C" fn deep_ep_handle_release(
    handle: *mut deep_ep_handle_t,
    stream: deep_ep_stream_t,
) -> deep_ep_status_t {
    fence("deep_ep_handle_release", || {
        // SAFETY: the caller passes a live handle.
        unsafe { object(handle, "handle") }?.inner.release(stream as usize)
    })
}

/// Brings the expert outputs back to the tokens' ranks and sums them in a fixed order in FP32. May be called any number
/// of times after a dispatch; the first ends the reads of its rows.
///
/// `input`: rows in the arrangement of the dispatch. `output`: where the sums go; both are the caller's.
///
/// Collective: yes, with the same hidden, type and mode on all ranks. Blocks the host: until every rank has sent (host
/// backend); no (CUDA). Capture: allowed. Threads: exclusive use of the buffer and its handles.
///
/// Returns: DEEP_EP_SUCCESS; DEEP_EP_INVALID_ARGUMENT, DEEP_EP_CAPACITY_EXCEEDED or DEEP_EP_UNSUPPORTED before any peer
/// is signalled, the call may be repeated; DEEP_EP_INVALID_STATE before a dispatch, or in place without its
/// deep_ep_handle_combine_input; DEEP_EP_BUSY; DEEP_EP_TIMEOUT, DEEP_EP_OP_MISMATCH, DEEP_EP_ABORTED, after which the
/// buffer returns the same status until reset; DEEP_EP_CONCURRENT_USE.
#[no_mangle]
pub unsafe extern "C" fn deep_ep_handle_combine(
    handle: *mut deep_ep_handle_t,
    input: *const deep_ep_combine_in_t,
    output: *const deep_ep_combine_out_t,
    stream: deep_ep_stream_t,
) -> deep_ep_status_t {
    fence("deep_ep_handle_combine", || {
        // SAFETY: the caller passes a live handle and structs whose pointers hold for the call.
        unsafe {
            let handle = object(handle, "handle")?;
            let (request, target) = (convert::combine_in(input)?, convert::combine_out(output)?);
            handle.inner.combine(&request, &target, stream as usize)
        }
    })
}

/// The first half of a combine: returns when the rows are on their way.
///
/// `input`: as for deep_ep_handle_combine; no pointer of it is kept.
///
/// Collective: yes. Blocks the host: only for an entry barrier (host backend); no (CUDA). Capture: allowed together with
/// its receive. Threads: exclusive use of the buffer and its handles.
///
/// Returns: as deep_ep_handle_combine.
#[no_mangle]
pub unsafe extern "C" fn deep_ep_handle_combine_send(
    handle: *mut deep_ep_handle_t,
    input: *const deep_ep_combine_in_t,
    stream: deep_ep_stream_t,
) -> deep_ep_status_t {
    fence("deep_ep_handle_combine_send", || {
        // SAFETY: the caller passes a live handle and a struct whose pointers hold for the call.
        unsafe { object(handle, "handle")?.inner.combine_send(&convert::combine_in(input)?, stream as usize) }
    })
}

/// The second half of a combine: waits for the rows and sums them.
///
/// `output`: as for deep_ep_handle_combine.
///
/// Collective: yes. Blocks the host: until every rank has sent (host backend); no (CUDA). Capture: allowed together with
/// its send. Threads: exclusive use of the buffer and its handles.
///
/// Returns: as deep_ep_handle_combine; DEEP_EP_INVALID_STATE without a send.
#[no_mangle]
pub unsafe extern "C" fn deep_ep_handle_combine_recv(
    handle: *mut deep_ep_handle_t,
    output: *const deep_ep_combine_out_t,
    stream: deep_ep_stream_t,
) -> deep_ep_status_t {
    fence("deep_ep_handle_combine_recv", || {
        // SAFETY: the caller passes a live handle and a struct whose pointers hold for the call.
        unsafe {
            object(handle, "handle")?.inner.combine_recv(&convert::combine_out(output)?, stream as usize)
        }
    })
}

/// Gives the handle back. Open rows count as released at this point, so it has its place in the order of calls on all
/// ranks: a garbage collector must not be the one to call it.
///
/// `handle`: null is allowed and does nothing. Invalid after the call.
///
/// Collective: yes if rows are open or a send is unreceived, no otherwise; never waits for peers. Blocks the host: no.
/// Capture: not allowed. Threads: exclusive use of the buffer and its handles.
///
/// Returns: DEEP_EP_SUCCESS; DEEP_EP_CONCURRENT_USE when another thread is inside a call on the buffer; then nothing
/// was destroyed.
#[no_mangle]
pub unsafe extern "C" fn deep_ep_handle_destroy(handle: *mut deep_ep_handle_t) -> deep_ep_status_t {
    fence("deep_ep_handle_destroy", || {
        if handle.is_null() {
            return Ok(());
        }
        // SAFETY: the caller gives back what a create returned, once.
        unsafe {
            (*handle).inner.close()?;
            drop(convert::take(handle));
        }
        Ok(())
    })
}
