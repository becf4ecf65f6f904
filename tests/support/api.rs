//! Owners of the library's objects, and checks of what a call returned.

use deepep::capi::deep_ep_status_t::{self, DEEP_EP_SUCCESS};
use deepep::capi::*;
use std::ffi::CStr;
use std::ptr::{null, null_mut};

/// Calls into the library.
#[macro_export]
macro_rules! ffi {
    ($call:expr) => {{
        // SAFETY: the pointers come from owners that outlive the call, or are what a contract test is about.
        unsafe { $call }
    }};
}

/// The statuses by short names.
pub use deep_ep_status_t::{
    DEEP_EP_ABI_MISMATCH as ABI_MISMATCH, DEEP_EP_ABORTED as ABORTED, DEEP_EP_BUSY as BUSY,
    DEEP_EP_CAPACITY_EXCEEDED as CAPACITY_EXCEEDED, DEEP_EP_CONCURRENT_USE as CONCURRENT_USE,
    DEEP_EP_CONFIG_MISMATCH as CONFIG_MISMATCH, DEEP_EP_INVALID_ARGUMENT as INVALID_ARGUMENT,
    DEEP_EP_INVALID_EXPERT_ID as INVALID_EXPERT_ID, DEEP_EP_INVALID_STATE as INVALID_STATE,
    DEEP_EP_OP_MISMATCH as OP_MISMATCH, DEEP_EP_PEER_FAILED as PEER_FAILED, DEEP_EP_SUCCESS as SUCCESS,
    DEEP_EP_TIMEOUT as TIMEOUT, DEEP_EP_UNSUPPORTED as UNSUPPORTED,
};

/// What the last failing call on this thread said.
pub fn last_error() -> String {
    let text = deep_ep_last_error();
    assert!(!text.is_null(), "deep_ep_last_error is never null");
    // SAFETY: the text is terminated and lives as long as the thread.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[track_caller]
pub fn ok(status: deep_ep_status_t) {
    assert_eq!(status, DEEP_EP_SUCCESS, "{}", last_error());
}

/// The call failed with `expected`, and its text has every one of `words`. Returns the text.
#[track_caller]
pub fn refused(status: deep_ep_status_t, expected: deep_ep_status_t, words: &[&str]) -> String {
    let text = last_error();
    assert_eq!(status, expected, "last error: {text}");
    for word in words {
        assert!(text.contains(word), "the error text lacks {word:?}: {text}");
    }
    text
}

macro_rules! init {
    ($name:ident, $type:ident, $init:ident) => {
        pub fn $name() -> $type {
            let mut value = std::mem::MaybeUninit::<$type>::uninit();
            ok(ffi!($init(value.as_mut_ptr(), std::mem::size_of::<$type>())));
            // SAFETY: the library has written all of it.
            unsafe { value.assume_init() }
        }
    };
}

init!(comm_config, deep_ep_comm_config_t, deep_ep_comm_config_init);
init!(plain_buffer_config, deep_ep_buffer_config_t, deep_ep_buffer_config_init);
init!(buffer_sizes, deep_ep_buffer_sizes_t, deep_ep_buffer_sizes_init);
init!(dispatch_in, deep_ep_dispatch_in_t, deep_ep_dispatch_in_init);
init!(dispatch_out, deep_ep_dispatch_out_t, deep_ep_dispatch_out_init);
init!(combine_in, deep_ep_combine_in_t, deep_ep_combine_in_init);
init!(combine_out, deep_ep_combine_out_t, deep_ep_combine_out_init);
init!(empty_report, deep_ep_report_t, deep_ep_report_init);
init!(empty_statistics, deep_ep_statistics_t, deep_ep_statistics_init);
init!(empty_peer_statistics, deep_ep_peer_statistics_t, deep_ep_peer_statistics_init);

/// A configuration for tests: deadlines short enough to see a hang, long enough for a busy machine.
pub fn buffer_config(
    layout: deep_ep_layout_t,
    tokens: usize,
    experts: usize,
    topk: usize,
) -> deep_ep_buffer_config_t {
    let mut config = plain_buffer_config();
    config.layout = layout as u32;
    config.max_tokens = tokens as i64;
    config.num_experts = experts as i32;
    config.num_topk = topk as i32;
    config.max_row_bytes = 512;
    config.timeout_ms = 30_000;
    config.first_timeout_ms = 30_000;
    config
}

macro_rules! owner {
    ($owner:ident, $type:ident, $destroy:ident) => {
        /// Destroyed when dropped.
        pub struct $owner(pub *mut $type);

        // SAFETY: the library lets any thread use an object, one at a time; the tests see to that.
        unsafe impl Send for $owner {}
        // SAFETY: as above; tests that share one object on purpose call the library at the same time on purpose.
        unsafe impl Sync for $owner {}

        impl $owner {
            pub fn destroy(mut self) -> deep_ep_status_t {
                let pointer = std::mem::replace(&mut self.0, null_mut());
                ffi!($destroy(pointer))
            }

            /// Gives the object up without destroying it.
            pub fn leak(mut self) -> *mut $type {
                std::mem::replace(&mut self.0, null_mut())
            }
        }

        impl Drop for $owner {
            fn drop(&mut self) {
                let _ = ffi!($destroy(self.0));
            }
        }
    };
}

owner!(Comm, deep_ep_comm_t, deep_ep_comm_destroy);
owner!(Buffer, deep_ep_buffer_t, deep_ep_buffer_destroy);
owner!(Handle, deep_ep_handle_t, deep_ep_handle_destroy);

impl Comm {
    pub fn create(config: &deep_ep_comm_config_t) -> Result<Comm, deep_ep_status_t> {
        let mut out = null_mut();
        match ffi!(deep_ep_comm_create(config, &mut out)) {
            DEEP_EP_SUCCESS => Ok(Comm(out)),
            status => {
                assert!(out.is_null(), "out is written only on success");
                Err(status)
            }
        }
    }

    pub fn local(num_ranks: usize) -> Vec<Comm> {
        let mut config = comm_config();
        config.num_ranks = num_ranks as i32;
        config.backend = deep_ep_backend_t::DEEP_EP_BACKEND_HOST as u32;
        let mut out = vec![null_mut(); num_ranks];
        ok(ffi!(deep_ep_comm_create_local(&config, null(), out.as_mut_ptr())));
        out.into_iter().map(Comm).collect()
    }

    pub fn sizes(
        &self,
        config: &deep_ep_buffer_config_t,
        experts: Option<&[i32]>,
    ) -> Result<deep_ep_buffer_sizes_t, deep_ep_status_t> {
        let mut sizes = buffer_sizes();
        let experts = experts.map_or(null(), <[i32]>::as_ptr);
        match ffi!(deep_ep_buffer_size(self.0, config, experts, &mut sizes)) {
            DEEP_EP_SUCCESS => Ok(sizes),
            status => Err(status),
        }
    }
}

impl Buffer {
    pub fn create(
        comm: &Comm,
        config: &deep_ep_buffer_config_t,
        experts: Option<&[i32]>,
    ) -> Result<Buffer, deep_ep_status_t> {
        let mut out = null_mut();
        let experts = experts.map_or(null(), <[i32]>::as_ptr);
        match ffi!(deep_ep_buffer_create(comm.0, config, experts, &mut out)) {
            DEEP_EP_SUCCESS => Ok(Buffer(out)),
            status => {
                assert!(out.is_null(), "out is written only on success");
                Err(status)
            }
        }
    }

    pub fn local(
        comms: &[Comm],
        config: &deep_ep_buffer_config_t,
        experts: Option<&[i32]>,
    ) -> Result<Vec<Buffer>, deep_ep_status_t> {
        let pointers: Vec<_> = comms.iter().map(|comm| comm.0).collect();
        let mut out = vec![null_mut(); comms.len()];
        let experts = experts.map_or(null(), <[i32]>::as_ptr);
        match ffi!(deep_ep_buffer_create_local(pointers.as_ptr(), config, experts, out.as_mut_ptr())) {
            DEEP_EP_SUCCESS => Ok(out.into_iter().map(Buffer).collect()),
            status => {
                assert!(out.iter().all(|p| p.is_null()), "out is written only on success");
                Err(status)
            }
        }
    }

    pub fn barrier(&self) -> deep_ep_status_t {
        ffi!(deep_ep_buffer_barrier(self.0, null_mut()))
    }

    pub fn reset(&self, alive: Option<&[u8]>) -> deep_ep_status_t {
        ffi!(deep_ep_buffer_reset(self.0, alive.map_or(null(), <[u8]>::as_ptr)))
    }

    /// The report and the missing ranks it names.
    pub fn report(&self) -> (deep_ep_report_t, Vec<i32>) {
        let mut report = empty_report();
        let mut missing = vec![-7; 128];
        ok(ffi!(deep_ep_buffer_report(self.0, &mut report, missing.as_mut_ptr(), missing.len())));
        let end = missing.iter().position(|&rank| rank == -1);
        missing.truncate(end.expect("-1 follows the missing ranks"));
        (report, missing)
    }

    #[track_caller]
    pub fn expect_no_report(&self) {
        let (report, _) = self.report();
        assert_eq!(report.status, DEEP_EP_SUCCESS, "row {} value {}", report.row, report.value);
    }

    pub fn statistics(&self) -> deep_ep_statistics_t {
        let mut out = empty_statistics();
        ok(ffi!(deep_ep_buffer_statistics(self.0, &mut out)));
        out
    }

    pub fn peer_statistics(&self, peer: usize) -> deep_ep_peer_statistics_t {
        let mut out = empty_peer_statistics();
        ok(ffi!(deep_ep_buffer_peer_statistics(self.0, peer as i32, &mut out)));
        out
    }

    pub fn local_experts(&self) -> Vec<i32> {
        let mut count = 0;
        ok(ffi!(deep_ep_buffer_local_experts(self.0, null_mut(), 0, &mut count)));
        let mut experts = vec![-1; count];
        ok(ffi!(deep_ep_buffer_local_experts(self.0, experts.as_mut_ptr(), count, &mut count)));
        experts
    }

    pub fn handle(&self) -> Handle {
        let mut out = null_mut();
        ok(ffi!(deep_ep_handle_create(self.0, &mut out)));
        Handle(out)
    }
}

impl Handle {
    pub fn release(&self) -> deep_ep_status_t {
        ffi!(deep_ep_handle_release(self.0, null_mut()))
    }
}
