//! deep_ep_buffer_*: symmetric memory and what concerns a whole buffer.

use super::convert::{self, object, out_pointer};
use super::deep_ep_status_t;
use super::fence::fence;
use super::types::*;
use crate::buffer::Buffer;

/// Computes the exact bytes a buffer would take on this rank, part by part, without allocating.
///
/// `expert_rank`: null for an even split (ranks 0 .. num_experts % num_ranks - 1 own one expert more, contiguous and
/// ascending), or [num_experts] the rank that owns each expert. `out`: written only on success.
///
/// Collective: no. Blocks the host: no. Capture: allowed. Threads: any.
///
/// Returns: DEEP_EP_SUCCESS; DEEP_EP_INVALID_ARGUMENT naming field, value and limit; DEEP_EP_CAPACITY_EXCEEDED when
/// the sizes do not fit in 63 bits.
#[no_mangle]
pub unsafe extern "C" fn deep_ep_buffer_size(
    comm: *const deep_ep_comm_t,
    config: *const deep_ep_buffer_config_t,
    expert_rank: *const i32,
    out: *mut deep_ep_buffer_sizes_t,
) -> deep_ep_status_t {
    fence("deep_ep_buffer_size", || {
        // SAFETY: the caller passes live objects, num_experts ranks or null, and a writable struct.
        unsafe {
            let comm = object(comm, "comm")?;
            let config = convert::buffer_config(config, expert_rank, &comm.inner)?;
            let sizes = Buffer::sizes(&comm.inner, &config)?;
            convert::write_struct(out, "out", convert::sizes(sizes))
        }
    })
}

/// Allocates a buffer, maps it on all ranks and compares the configuration across them.
///
/// `expert_rank`: as for deep_ep_buffer_size. `out`: written only on success; give it back with
/// deep_ep_buffer_destroy.
///
/// Collective: yes, every rank of the comm calls it, in the same order as its other creates. Blocks the host: until all
/// ranks have come, at most first_timeout_ms. Capture: not allowed. Threads: exclusive use of `comm`.
///
/// Returns: DEEP_EP_SUCCESS; DEEP_EP_CONFIG_MISMATCH on every rank, naming the field and the values that differ;
/// DEEP_EP_TIMEOUT naming the ranks that did not come; DEEP_EP_INVALID_ARGUMENT; DEEP_EP_OUT_OF_MEMORY;
/// DEEP_EP_ABORTED.
#[no_mangle]
pub unsafe extern "C" fn deep_ep_buffer_create(
    comm: *mut deep_ep_comm_t,
    config: *const deep_ep_buffer_config_t,
    expert_rank: *const i32,
    out: *mut *mut deep_ep_buffer_t,
) -> deep_ep_status_t {
    fence("deep_ep_buffer_create", || {
        // SAFETY: the caller passes live objects, num_experts ranks or null, and a writable pointer.
        unsafe {
            let comm = object(comm, "comm")?;
            let out = out_pointer(out, "out")?;
            let config = convert::buffer_config(config, expert_rank, &comm.inner)?;
            *out = boxed_buffer(Buffer::create(&comm.inner, config)?);
        }
        Ok(())
    })
}

/// Allocates the buffers of all ranks of this process at once, from one thread.
///
/// `comms`: the num_ranks comms of one deep_ep_comm_create_local, in rank order. `out`: an array of num_ranks pointers,
/// written only on success.
///
/// Collective: no. Blocks the host: no. Capture: not allowed. Threads: exclusive use of all `comms`.
///
/// Returns: as deep_ep_buffer_create; DEEP_EP_INVALID_ARGUMENT when the comms do not form one local group.
#[no_mangle]
pub unsafe extern "C" fn deep_ep_buffer_create_local(
    comms: *const *mut deep_ep_comm_t,
    config: *const deep_ep_buffer_config_t,
    expert_rank: *const i32,
    out: *mut *mut deep_ep_buffer_t,
) -> deep_ep_status_t {
    fence("deep_ep_buffer_create_local", || {
        // SAFETY: the caller passes num_ranks live comms, num_experts ranks or null, and room for num_ranks pointers.
        unsafe {
            out_pointer(out, "out")?;
            let comms = convert::local_comms(comms)?;
            let config = convert::buffer_config(config, expert_rank, &comms[0])?;
            for (rank, buffer) in Buffer::create_local(&comms, config)?.into_iter().enumerate() {
                *out.add(rank) = boxed_buffer(buffer);
            }
        }
        Ok(())
    })
}

fn boxed_buffer(inner: std::sync::Arc<Buffer>) -> *mut deep_ep_buffer_t {
    Box::into_raw(Box::new(deep_ep_buffer_t { inner }))
}

/// Waits until every rank has called it: an operation of its own that moves no rows.
///
/// `stream`: ignored by the host backend.
///
/// Collective: yes. Blocks the host: until all ranks have come (host backend); no (CUDA). Capture: allowed. Threads:
/// exclusive use of the buffer and its handles.
///
/// Returns: DEEP_EP_SUCCESS; DEEP_EP_TIMEOUT, DEEP_EP_OP_MISMATCH, DEEP_EP_ABORTED, after which the buffer returns the
/// same status until deep_ep_buffer_reset; DEEP_EP_CONCURRENT_USE; DEEP_EP_INVALID_STATE. Operations in flight do not
/// stand in its way.
#[no_mangle]
pub unsafe extern "C" fn deep_ep_buffer_barrier(
    buffer: *mut deep_ep_buffer_t,
    stream: deep_ep_stream_t,
) -> deep_ep_status_t {
    fence("deep_ep_buffer_barrier", || {
        // SAFETY: the caller passes a live buffer.
        unsafe { object(buffer, "buffer") }?.inner.barrier(stream as usize)
    })
}

/// Reads the oldest thing the buffer has to report. A report that poisoned the buffer (timeout, mismatch, abort) stays
/// until reset. Of bad expert ids (DEEP_EP_INVALID_EXPERT_ID) and overflows (DEEP_EP_CAPACITY_EXCEEDED) the first since
/// the last read is kept, and it is cleared by this call.
///
/// `out`: status DEEP_EP_SUCCESS when there is nothing. `missing`: null, or room for `missing_count` numbers: the ranks
/// that were missing, ascending, then -1.
///
/// Collective: no. Blocks the host: no. Capture: allowed. Threads: beside any other call on the buffer.
///
/// Returns: DEEP_EP_SUCCESS when the report was read, whatever it says; DEEP_EP_INVALID_ARGUMENT.
#[no_mangle]
pub unsafe extern "C" fn deep_ep_buffer_report(
    buffer: *const deep_ep_buffer_t,
    out: *mut deep_ep_report_t,
    missing: *mut i32,
    missing_count: usize,
) -> deep_ep_status_t {
    fence("deep_ep_buffer_report", || {
        // SAFETY: the caller passes a live buffer, a writable struct, and null or room for `missing_count` numbers.
        unsafe {
            let buffer = object(buffer, "buffer")?;
            convert::check_out(out, "out")?;
            let report = buffer.inner.take_report();
            if !missing.is_null() {
                let ranks = report.missing.iter().map(|&rank| rank as i32).chain(std::iter::repeat(-1));
                for (i, rank) in ranks.take(missing_count).enumerate() {
                    *missing.add(i) = rank;
                }
            }
            convert::write_struct(out, "out", convert::report(&report))
        }
    })
}

/// Changes the deadline of every later operation's waits, the first one's too, also of captured graphs.
///
/// `timeout_ms`: 1 or more.
///
/// Collective: no; ranks may differ. Blocks the host: no. Capture: allowed. Threads: beside any other call on the
/// buffer; a wait already running keeps its deadline.
///
/// Returns: DEEP_EP_SUCCESS; DEEP_EP_INVALID_ARGUMENT.
#[no_mangle]
pub unsafe extern "C" fn deep_ep_buffer_set_timeout(
    buffer: *const deep_ep_buffer_t,
    timeout_ms: u32,
) -> deep_ep_status_t {
    fence("deep_ep_buffer_set_timeout", || {
        // SAFETY: the caller passes a live buffer.
        unsafe { object(buffer, "buffer") }?.inner.set_timeout(timeout_ms)
    })
}

/// Ends a failure: the surviving ranks agree on who is alive and on the next epoch. Routings of handles are void,
/// windows are free, numbers of epochs go on. Also legal on a healthy buffer.
///
/// `alive`: null for all ranks, or [num_ranks] nonzero for the ranks that go on, the caller's own included, equal on all
/// of them. Ranks left out stay out; rows for their experts are dropped as if the id were -1.
///
/// CUDA: replays are to be over. Graphs of before stay good if nobody new is left out; otherwise the survivors go on in
/// new memory, the old is kept until the buffer is destroyed, and replays of those graphs do nothing.
///
/// Collective: yes, over the ranks that are alive, in the same order as the comm's creates and other resets.
/// Blocks the host: until they have come, at most first_timeout_ms. Capture: not allowed. Threads: exclusive use of the
/// buffer, its handles and the comm.
///
/// Returns: DEEP_EP_SUCCESS; DEEP_EP_TIMEOUT naming who did not come, DEEP_EP_CONFIG_MISMATCH when the masks differ: all
/// ranks may repeat the reset, and until it succeeds the buffer may be unusable; DEEP_EP_OUT_OF_MEMORY likewise;
/// DEEP_EP_ABORTED after an abort: destroy and create anew; DEEP_EP_INVALID_ARGUMENT.
#[no_mangle]
pub unsafe extern "C" fn deep_ep_buffer_reset(
    buffer: *mut deep_ep_buffer_t,
    alive: *const u8,
) -> deep_ep_status_t {
    fence("deep_ep_buffer_reset", || {
        // SAFETY: the caller passes a live buffer and null or num_ranks bytes.
        unsafe {
            let buffer = object(buffer, "buffer")?;
            let alive = convert::mask(alive, buffer.inner.num_ranks());
            buffer.inner.reset(alive)
        }
    })
}

/// Gives the buffer's memory back. Never waits for peers. Handles of the buffer become unusable and are still to be
/// destroyed.
///
/// `buffer`: null is allowed and does nothing. Invalid after the call.
///
/// Collective: no. Blocks the host: no (host backend); until this rank's operations have left the device, which give
/// up on peers at once: wait for the stream first, and for all replays of graphs (CUDA). Capture: not allowed. Threads: exclusive use of the buffer and
/// its handles.
///
/// Returns: DEEP_EP_SUCCESS; DEEP_EP_CONCURRENT_USE when another thread is inside a call on the buffer; then nothing
/// was destroyed.
#[no_mangle]
pub unsafe extern "C" fn deep_ep_buffer_destroy(buffer: *mut deep_ep_buffer_t) -> deep_ep_status_t {
    fence("deep_ep_buffer_destroy", || {
        if buffer.is_null() {
            return Ok(());
        }
        // SAFETY: the caller gives back what a create returned, once.
        unsafe {
            (*buffer).inner.destroy()?;
            drop(convert::take(buffer));
        }
        Ok(())
    })
}
