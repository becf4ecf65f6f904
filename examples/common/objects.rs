//! Owners of comm, buffer and handle.

use super::{check, Outcome};
use crate::filled;
use deepep::capi::*;
use std::ffi::CString;
use std::ptr::{null, null_mut};

/// A unique id; an empty address needs no name on this machine.
pub fn unique_id(address: &str) -> Outcome<deep_ep_unique_id_t> {
    let address = CString::new(address).map_err(|_| "an address holds no zero byte".to_string())?;
    let mut id = std::mem::MaybeUninit::uninit();
    // SAFETY: the id is written when the call succeeds.
    unsafe {
        check(deep_ep_unique_id_create(address.as_ptr(), id.as_mut_ptr()))?;
        Ok(id.assume_init())
    }
}

pub struct Comm(*mut deep_ep_comm_t);

// SAFETY: a comm may be used from any thread, one at a time.
unsafe impl Send for Comm {}

/// All ranks of a group in this process, on the host.
pub fn local_group(num_ranks: usize) -> Outcome<Vec<Comm>> {
    local_group_on(num_ranks, deep_ep_backend_t::DEEP_EP_BACKEND_HOST)
}

/// The same on a backend; CUDA: on the first device.
pub fn local_group_on(num_ranks: usize, backend: deep_ep_backend_t) -> Outcome<Vec<Comm>> {
    let mut config = filled!(deep_ep_comm_config_t, deep_ep_comm_config_init);
    config.num_ranks = num_ranks as i32;
    config.backend = backend as u32;
    let mut comms = vec![null_mut(); num_ranks];
    // SAFETY: `comms` has room for every rank.
    check(unsafe { deep_ep_comm_create_local(&config, null(), comms.as_mut_ptr()) })?;
    Ok(comms.into_iter().map(Comm).collect())
}

impl Comm {
    /// Joins ranks of other processes, which have the same id.
    pub fn join(rank: usize, num_ranks: usize, id: deep_ep_unique_id_t, timeout_ms: u32) -> Outcome<Comm> {
        Comm::join_on(deep_ep_backend_t::DEEP_EP_BACKEND_HOST, 0, rank, num_ranks, id, timeout_ms)
    }

    /// The same on a backend; CUDA: with a device.
    pub fn join_on(
        backend: deep_ep_backend_t,
        device: usize,
        rank: usize,
        num_ranks: usize,
        id: deep_ep_unique_id_t,
        timeout_ms: u32,
    ) -> Outcome<Comm> {
        let mut config = filled!(deep_ep_comm_config_t, deep_ep_comm_config_init);
        config.backend = backend as u32;
        config.device = device as i32;
        config.rank = rank as i32;
        config.num_ranks = num_ranks as i32;
        config.unique_id = id;
        config.timeout_ms = timeout_ms;
        let mut comm = null_mut();
        // SAFETY: the configuration holds for the call.
        check(unsafe { deep_ep_comm_create(&config, &mut comm) })?;
        Ok(Comm(comm))
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        // SAFETY: made by a create and given back once.
        unsafe { deep_ep_comm_destroy(self.0) };
    }
}

/// The bytes a buffer would take.
pub fn sizes(comm: &Comm, config: &deep_ep_buffer_config_t) -> Outcome<deep_ep_buffer_sizes_t> {
    let mut sizes = filled!(deep_ep_buffer_sizes_t, deep_ep_buffer_sizes_init);
    // SAFETY: the comm lives, the structs hold for the call.
    check(unsafe { deep_ep_buffer_size(comm.0, config, null(), &mut sizes) })?;
    Ok(sizes)
}

pub struct Buffer(*mut deep_ep_buffer_t);

// SAFETY: a buffer may be used from any thread, one at a time.
unsafe impl Send for Buffer {}

impl Buffer {
    /// Collective: every rank's process calls it.
    pub fn create(comm: &mut Comm, config: &deep_ep_buffer_config_t) -> Outcome<Buffer> {
        let mut buffer = null_mut();
        // SAFETY: the comm lives and is used by nobody else.
        check(unsafe { deep_ep_buffer_create(comm.0, config, null(), &mut buffer) })?;
        Ok(Buffer(buffer))
    }

    /// The buffers of a local group, in rank order.
    pub fn create_local(comms: &mut [Comm], config: &deep_ep_buffer_config_t) -> Outcome<Vec<Buffer>> {
        let raw: Vec<_> = comms.iter().map(|comm| comm.0).collect();
        let mut buffers = vec![null_mut(); raw.len()];
        // SAFETY: `buffers` has room for every rank, and the comms are borrowed exclusively.
        check(unsafe { deep_ep_buffer_create_local(raw.as_ptr(), config, null(), buffers.as_mut_ptr()) })?;
        Ok(buffers.into_iter().map(Buffer).collect())
    }

    /// A handle, which must not outlive the buffer.
    pub fn handle(&self) -> Outcome<Handle> {
        let mut handle = null_mut();
        // SAFETY: the buffer lives.
        check(unsafe { deep_ep_handle_create(self.0, &mut handle) })?;
        Ok(Handle(handle))
    }

    /// For calls that have no method here.
    pub fn raw(&self) -> *mut deep_ep_buffer_t {
        self.0
    }

    pub fn statistics(&self) -> Outcome<deep_ep_statistics_t> {
        let mut totals = filled!(deep_ep_statistics_t, deep_ep_statistics_init);
        // SAFETY: the buffer lives.
        check(unsafe { deep_ep_buffer_statistics(self.0, &mut totals) })?;
        Ok(totals)
    }

    /// Global ids of this rank's experts.
    pub fn local_experts(&self) -> Outcome<Vec<i32>> {
        let mut count = 0;
        // SAFETY: null asks for the number only.
        check(unsafe { deep_ep_buffer_local_experts(self.0, null_mut(), 0, &mut count) })?;
        let mut experts = vec![0; count];
        // SAFETY: there is room for all of them.
        check(unsafe { deep_ep_buffer_local_experts(self.0, experts.as_mut_ptr(), count, &mut count) })?;
        Ok(experts)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: made by a create and given back once.
        unsafe { deep_ep_buffer_destroy(self.0) };
    }
}

pub struct Handle(*mut deep_ep_handle_t);

// SAFETY: as for the buffer.
unsafe impl Send for Handle {}

/// The operations pass structs full of pointers: each pointer must hold for its call, as the header says.
impl Handle {
    /// # Safety
    /// The pointers in `input` and `output` are valid for the shapes they describe.
    pub unsafe fn dispatch(
        &self,
        input: &deep_ep_dispatch_in_t,
        output: &mut deep_ep_dispatch_out_t,
    ) -> Outcome<()> {
        // SAFETY: as the caller promises.
        check(unsafe { deep_ep_handle_dispatch(self.0, input, output, null_mut()) })
    }

    /// # Safety
    /// As [`Handle::dispatch`].
    pub unsafe fn dispatch_send(&self, input: &deep_ep_dispatch_in_t) -> Outcome<()> {
        // SAFETY: as the caller promises.
        check(unsafe { deep_ep_handle_dispatch_send(self.0, input, null_mut()) })
    }

    /// # Safety
    /// As [`Handle::dispatch`].
    pub unsafe fn dispatch_recv(&self, output: &mut deep_ep_dispatch_out_t) -> Outcome<()> {
        // SAFETY: as the caller promises.
        check(unsafe { deep_ep_handle_dispatch_recv(self.0, output, null_mut()) })
    }

    /// Where the rows of the next combine may be written in place.
    pub fn combine_input(&self, dtype: deep_ep_dtype_t) -> Outcome<deep_ep_rows_t> {
        // SAFETY: all-zero is a valid value of this struct of numbers and a pointer.
        let mut rows: deep_ep_rows_t = unsafe { std::mem::zeroed() };
        rows.dtype = dtype as u32;
        // SAFETY: the handle lives and the struct is writable.
        check(unsafe { deep_ep_handle_combine_input(self.0, &mut rows, null_mut()) })?;
        Ok(rows)
    }

    /// # Safety
    /// As [`Handle::dispatch`].
    pub unsafe fn combine(
        &self,
        input: &deep_ep_combine_in_t,
        output: &deep_ep_combine_out_t,
    ) -> Outcome<()> {
        // SAFETY: as the caller promises.
        check(unsafe { deep_ep_handle_combine(self.0, input, output, null_mut()) })
    }

    /// # Safety
    /// As [`Handle::dispatch`].
    pub unsafe fn combine_send(&self, input: &deep_ep_combine_in_t) -> Outcome<()> {
        // SAFETY: as the caller promises.
        check(unsafe { deep_ep_handle_combine_send(self.0, input, null_mut()) })
    }

    /// # Safety
    /// As [`Handle::dispatch`].
    pub unsafe fn combine_recv(&self, output: &deep_ep_combine_out_t) -> Outcome<()> {
        // SAFETY: as the caller promises.
        check(unsafe { deep_ep_handle_combine_recv(self.0, output, null_mut()) })
    }

    /// For calls on a stream.
    pub fn raw(&self) -> *mut deep_ep_handle_t {
        self.0
    }

    /// Says that the received rows are no longer read.
    pub fn release(&self) -> Outcome<()> {
        // SAFETY: the handle lives.
        check(unsafe { deep_ep_handle_release(self.0, null_mut()) })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: made by a create and given back once.
        unsafe { deep_ep_handle_destroy(self.0) };
    }
}
