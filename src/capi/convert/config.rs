//! Configurations of comms and buffers.

use super::structs::{is_null, object, read_struct, reserved};
use crate::boot::UniqueId;
use crate::buffer::{Backend, Comm, CommConfig, Meeting, Sizes};
use crate::capi::deep_ep_backend_t;
use crate::capi::types::*;
use crate::error::{Error, Result, Status};
use crate::plan::config::{within, Config, RawConfig, MAX_RANKS};
use std::sync::Arc;
use std::time::Duration;

const DEFAULT_RENDEZVOUS_MS: u32 = 60_000;

/// A comm configuration together with what the caller's all-gather needs.
pub(in crate::capi) struct ParsedComm {
    config: deep_ep_comm_config_t,
    backend: Backend,
}

/// # Safety
/// `config` is null or a configuration; its callback follows its contract.
pub(in crate::capi) unsafe fn comm_config(config: *const deep_ep_comm_config_t) -> Result<ParsedComm> {
    // SAFETY: as the caller promises.
    let (_, config) = unsafe { read_struct(config, "config")? };
    within("num_ranks", config.num_ranks.into(), 1, MAX_RANKS as i64)?;
    within("rank", config.rank.into(), 0, i64::from(config.num_ranks) - 1)?;
    reserved("config.reserved", config.reserved)?;
    Ok(ParsedComm { backend: backend(config.backend)?, config })
}

/// # Safety
/// As [`comm_config`].
pub(in crate::capi) unsafe fn local_comm_config(
    config: *const deep_ep_comm_config_t,
) -> Result<(u32, Backend, i32)> {
    // SAFETY: as the caller promises.
    let (_, config) = unsafe { read_struct(config, "config")? };
    within("num_ranks", config.num_ranks.into(), 1, MAX_RANKS as i64)?;
    reserved("config.reserved", config.reserved)?;
    Ok((config.num_ranks as u32, backend(config.backend)?, config.device))
}

fn backend(number: u32) -> Result<Backend> {
    match number {
        0 | 1 => Ok(Backend::Host),
        2 => Ok(Backend::Cuda),
        _ => Err(Error::invalid_argument(format_args!("backend is {number}, which is not in 0 .. 2"))),
    }
}

impl ParsedComm {
    pub(in crate::capi) fn create(self) -> Result<Arc<Comm>> {
        let config = self.config;
        let timeout_ms = if config.timeout_ms == 0 { DEFAULT_RENDEZVOUS_MS } else { config.timeout_ms };
        let mut gather = |mine: &[u8]| call_allgather(&config, mine);
        let meeting = match (config.unique_id.bytes == [0; 128], config.allgather) {
            (false, _) => Meeting::Id(UniqueId::from_bytes(&config.unique_id.bytes)?),
            (true, Some(_)) => Meeting::Allgather(&mut gather),
            (true, None) if config.num_ranks == 1 => Meeting::Alone,
            (true, None) => {
                return Err(Error::invalid_argument(
                    "config.unique_id is all zero and config.allgather is null; set one of them",
                ))
            }
        };
        Comm::create(CommConfig {
            rank: config.rank as u32,
            num_ranks: config.num_ranks as u32,
            backend: self.backend,
            device: config.device,
            meeting,
            timeout: Duration::from_millis(timeout_ms.into()),
        })
    }
}

fn call_allgather(config: &deep_ep_comm_config_t, mine: &[u8]) -> Result<Vec<u8>> {
    let Some(gather) = config.allgather else { return Err(is_null("config.allgather")) };
    let mut all = vec![0; mine.len() * config.num_ranks as usize];
    let context = config.allgather_context;
    // SAFETY: the callback is the caller's, called as documented, with room for every rank's bytes.
    let code = unsafe { gather(context, mine.as_ptr().cast(), all.as_mut_ptr().cast(), mine.len()) };
    if code != 0 {
        return Err(Error::new(Status::DEEP_EP_SYSTEM, format_args!("config.allgather returned {code}")));
    }
    Ok(all)
}

/// # Safety
/// `config` is null or a configuration; `expert_rank` is null or has num_experts numbers.
pub(in crate::capi) unsafe fn buffer_config(
    config: *const deep_ep_buffer_config_t,
    expert_rank: *const i32,
    comm: &Comm,
) -> Result<Config> {
    // SAFETY: as the caller promises.
    let (_, c) = unsafe { read_struct(config, "config")? };
    reserved("config.reserved", c.reserved)?;
    let map = if expert_rank.is_null() {
        None
    } else {
        within("num_experts", c.num_experts.into(), 1, 1 << 20)?;
        // SAFETY: as the caller promises.
        Some(unsafe { std::slice::from_raw_parts(expert_rank, c.num_experts as usize) })
    };
    let raw = RawConfig {
        layout: c.layout,
        sync: c.sync,
        max_tokens: c.max_tokens,
        max_recv_rows: c.max_recv_rows,
        max_expert_rows: c.max_expert_rows,
        max_row_bytes: c.max_row_bytes,
        max_scale_bytes: c.max_scale_bytes,
        max_combine_row_bytes: c.max_combine_row_bytes,
        num_experts: c.num_experts,
        num_topk: c.num_topk,
        expert_alignment: c.expert_alignment,
        dispatch_windows: c.dispatch_windows,
        combine_windows: c.combine_windows,
        max_in_flight: c.max_in_flight,
        num_sms: c.num_sms,
        num_stages: c.num_stages,
        timeout_ms: c.timeout_ms,
        first_timeout_ms: c.first_timeout_ms,
        flags: c.flags,
        cuda: comm.backend() == Backend::Cuda,
    };
    Config::parse(raw, map, comm.num_ranks())
}

/// # Safety
/// `comms` is null or points to as many live comms as the first one has ranks.
pub(in crate::capi) unsafe fn local_comms(comms: *const *mut deep_ep_comm_t) -> Result<Vec<Arc<Comm>>> {
    // SAFETY: as the caller promises.
    unsafe {
        let first = object(comms, "comms")?;
        let count = object(first.cast_const(), "comms[0]")?.inner.num_ranks();
        let each = |rank| {
            let name = format_args!("comms[{rank}]").to_string();
            Ok(object((*comms.add(rank)).cast_const(), &name)?.inner.clone())
        };
        (0..count).map(each).collect()
    }
}

/// The number of the backend that a comm works with.
pub(in crate::capi) fn backend_number(backend: Backend) -> u32 {
    match backend {
        Backend::Host => deep_ep_backend_t::DEEP_EP_BACKEND_HOST as u32,
        Backend::Cuda => deep_ep_backend_t::DEEP_EP_BACKEND_CUDA as u32,
    }
}

pub(in crate::capi) fn sizes(s: Sizes) -> deep_ep_buffer_sizes_t {
    deep_ep_buffer_sizes_t {
        dispatch_window: s.dispatch_windows as i64,
        combine_window: s.combine_windows as i64,
        signals: s.signals as i64,
        local_outputs: s.local_outputs as i64,
        handle: s.handle as i64,
        pinned_host: s.pinned as i64,
        total_symmetric: s.symmetric as i64,
        total_device: (s.symmetric + s.local_outputs) as i64,
        slabs: s.slabs.0 as i64,
        slab_rows: s.slabs.1 as i64,
        ..Default::default()
    }
}
