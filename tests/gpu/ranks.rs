//! A group of ranks in this process, and what the library says when it refuses.

use crate::devices;
use crate::memory::Where;
use deepep::capi::*;
use std::ffi::CStr;

pub mod refusal;

pub fn last_error() -> String {
    unsafe { CStr::from_ptr(deep_ep_last_error()) }.to_string_lossy().into_owned()
}

#[track_caller]
pub fn ok(status: deep_ep_status_t) {
    assert_eq!(status, deep_ep_status_t::DEEP_EP_SUCCESS, "{}", last_error());
}

/// All ranks of a local group.
pub struct World {
    pub comms: Vec<*mut deep_ep_comm_t>,
}

/// A buffer that goes to the thread of its rank.
#[derive(Clone, Copy)]
pub struct Buffer(pub *mut deep_ep_buffer_t);

unsafe impl Send for Buffer {}
unsafe impl Sync for Buffer {}

/// A rank's place in a world, for its thread.
#[derive(Clone, Copy)]
pub struct Seat {
    pub comm: *mut deep_ep_comm_t,
    pub buffer: Buffer,
}

unsafe impl Send for Seat {}

/// The others shall not wait for a rank whose thread fails.
pub struct AbortAtPanic(*mut deep_ep_comm_t);

impl Seat {
    pub fn abort_at_panic(self) -> AbortAtPanic {
        AbortAtPanic(self.comm)
    }
}

impl Drop for AbortAtPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            unsafe { deep_ep_comm_abort(self.0, c"a test failed".as_ptr()) };
        }
    }
}

impl World {
    /// The seats of all ranks at a buffer.
    pub fn seats(&self, buffers: Vec<Buffer>) -> impl Iterator<Item = (usize, Seat)> + '_ {
        let seat = |(&comm, buffer)| Seat { comm, buffer };
        self.comms.iter().zip(buffers).map(seat).enumerate()
    }

    pub fn create(place: Where, ranks: usize) -> Result<World, (deep_ep_status_t, String)> {
        let mut config = unsafe { std::mem::zeroed() };
        ok(unsafe { deep_ep_comm_config_init(&mut config, size_of::<deep_ep_comm_config_t>()) });
        config.num_ranks = ranks as i32;
        config.backend = match place {
            Where::Host => deep_ep_backend_t::DEEP_EP_BACKEND_HOST,
            Where::Device => deep_ep_backend_t::DEEP_EP_BACKEND_CUDA,
        } as u32;
        let mut comms = vec![std::ptr::null_mut(); ranks];
        let devices: Vec<i32> = match place {
            Where::Host => Vec::new(),
            Where::Device => (0..ranks).map(devices::of).collect(),
        };
        let on = if devices.is_empty() { std::ptr::null() } else { devices.as_ptr() };
        let status = unsafe { deep_ep_comm_create_local(&config, on, comms.as_mut_ptr()) };
        match status {
            deep_ep_status_t::DEEP_EP_SUCCESS => Ok(World { comms }),
            status => Err((status, last_error())),
        }
    }

    /// Buffers of all ranks.
    pub fn buffers(&self, config: &deep_ep_buffer_config_t, map: Option<&[i32]>) -> Vec<Buffer> {
        let mut buffers = vec![std::ptr::null_mut(); self.comms.len()];
        let map = map.map_or(std::ptr::null(), <[i32]>::as_ptr);
        ok(unsafe { deep_ep_buffer_create_local(self.comms.as_ptr(), config, map, buffers.as_mut_ptr()) });
        buffers.into_iter().map(Buffer).collect()
    }

    /// The same, unless the backend does not have what the configuration asks for.
    pub fn buffers_if_supported(&self, config: &deep_ep_buffer_config_t) -> Option<Vec<Buffer>> {
        let (comms, mut buffers) = (self.comms.as_ptr(), vec![std::ptr::null_mut(); self.comms.len()]);
        match unsafe { deep_ep_buffer_create_local(comms, config, std::ptr::null(), buffers.as_mut_ptr()) } {
            deep_ep_status_t::DEEP_EP_UNSUPPORTED => None,
            status => {
                ok(status);
                Some(buffers.into_iter().map(Buffer).collect())
            }
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for &comm in &self.comms {
            unsafe { deep_ep_comm_destroy(comm) };
        }
    }
}

pub fn report(buffer: Buffer) -> deep_ep_report_t {
    let mut report = unsafe { std::mem::zeroed() };
    ok(unsafe { deep_ep_report_init(&mut report, size_of::<deep_ep_report_t>()) });
    ok(unsafe { deep_ep_buffer_report(buffer.0, &mut report, std::ptr::null_mut(), 0) });
    report
}
