//! R ranks as threads of this process.

use super::api::*;
use crate::ffi;
use deepep::capi::*;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};

/// One rank. The buffer goes before the comm when dropped.
pub struct Rank {
    pub rank: usize,
    pub ranks: usize,
    pub buffer: Buffer,
    pub comm: Comm,
}

pub struct World {
    pub ranks: Vec<Rank>,
}

impl World {
    pub fn new(num_ranks: usize, config: &deep_ep_buffer_config_t) -> World {
        World::with_experts(num_ranks, config, None)
    }

    pub fn with_experts(
        num_ranks: usize,
        config: &deep_ep_buffer_config_t,
        experts: Option<&[i32]>,
    ) -> World {
        let comms = Comm::local(num_ranks);
        let buffers = Buffer::local(&comms, config, experts)
            .unwrap_or_else(|status| panic!("deep_ep_buffer_create_local: {status:?}: {}", last_error()));
        let ranks = comms
            .into_iter()
            .zip(buffers)
            .enumerate()
            .map(|(rank, (comm, buffer))| Rank { rank, ranks: num_ranks, buffer, comm })
            .collect();
        World { ranks }
    }

    /// Runs `body` on every rank at once, one thread each. A rank that fails aborts the group, so that the others
    /// do not wait for it; the first failure that is not such an echo is raised.
    pub fn run<T: Send>(&self, body: impl Fn(&Rank) -> T + Sync) -> Vec<T> {
        let aborted = std::sync::atomic::AtomicUsize::new(usize::MAX);
        let results: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = self
                .ranks
                .iter()
                .map(|rank| {
                    let (body, aborted) = (&body, &aborted);
                    scope.spawn(move || {
                        catch_unwind(AssertUnwindSafe(|| body(rank))).inspect_err(|_| {
                            use std::sync::atomic::Ordering::SeqCst;
                            let _ = aborted.compare_exchange(usize::MAX, rank.rank, SeqCst, SeqCst);
                            ffi!(deep_ep_comm_abort(rank.comm.0, c"a test failed".as_ptr()));
                        })
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let first = aborted.into_inner();
        let mut values = Vec::new();
        let mut panics = Vec::new();
        for (rank, result) in results.into_iter().enumerate() {
            match result {
                Ok(value) => values.push(value),
                Err(panic) if rank == first => panics.insert(0, panic),
                Err(panic) => panics.push(panic),
            }
        }
        match panics.into_iter().next() {
            Some(panic) => resume_unwind(panic),
            None => values,
        }
    }

    /// Ranks that meet by a unique id, each created on its own thread.
    pub fn meet(num_ranks: usize, config: &deep_ep_buffer_config_t) -> World {
        let id = unique_id(None);
        let ranks = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..num_ranks)
                .map(|rank| scope.spawn(move || Rank::join(rank, num_ranks, id, config)))
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        World { ranks }
    }
}

impl Rank {
    /// Joins a group as one rank and makes a buffer.
    pub fn join(
        rank: usize,
        ranks: usize,
        id: deep_ep_unique_id_t,
        config: &deep_ep_buffer_config_t,
    ) -> Rank {
        let comm = Comm::create(&meeting(rank, ranks, id))
            .unwrap_or_else(|status| panic!("deep_ep_comm_create: {status:?}: {}", last_error()));
        let buffer = Buffer::create(&comm, config, None)
            .unwrap_or_else(|status| panic!("deep_ep_buffer_create: {status:?}: {}", last_error()));
        Rank { rank, ranks, buffer, comm }
    }
}

/// A configuration to meet by `id`, with a deadline for tests.
pub fn meeting(rank: usize, ranks: usize, id: deep_ep_unique_id_t) -> deep_ep_comm_config_t {
    let mut config = comm_config();
    config.rank = rank as i32;
    config.num_ranks = ranks as i32;
    config.backend = deep_ep_backend_t::DEEP_EP_BACKEND_HOST as u32;
    config.unique_id = id;
    config.timeout_ms = 20_000;
    config
}

pub fn unique_id(address: Option<&std::ffi::CStr>) -> deep_ep_unique_id_t {
    let mut id = deep_ep_unique_id_t { bytes: [0; 128] };
    let address = address.map_or(std::ptr::null(), |text| text.as_ptr());
    ok(ffi!(deep_ep_unique_id_create(address, &mut id)));
    id
}
