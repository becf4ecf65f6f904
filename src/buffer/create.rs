//! Making a buffer: sizes, memory, and the agreement of all ranks.

use super::comm::Comm;
use super::handle::Handle;
use super::owned::RANGE_BYTES;
use super::state::Buffer;
use crate::backend::cuda::{self, Cuda, Regions, Site};
use crate::backend::host::{Host, Routing};
use crate::error::{Error, Result, Status};
use crate::mem::Region;
use crate::plan::config::Config;
use crate::plan::layout::{self, slabs, Areas};
use std::sync::Arc;
use std::time::Duration;

/// Exact bytes, part by part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    pub dispatch_windows: u64,
    pub combine_windows: u64,
    pub signals: u64,
    pub local_outputs: u64,
    pub handle: u64,
    pub symmetric: u64,
    pub pinned: u64,
    /// Slabs of received rows, and rows in each.
    pub slabs: (u64, u64),
}

/// The routing, what the caller holds of it, and the notes of whose memory it is.
fn handle_bytes(config: &Config, rank: usize) -> u64 {
    let notes = Routing::num_ranges(config, rank) * RANGE_BYTES;
    Routing::bytes(config, rank) + (size_of::<Handle>() + notes) as u64
}

impl Buffer {
    pub fn sizes(comm: &Comm, config: &Config) -> Result<Sizes> {
        if let Some(site) = &comm.site {
            return sizes_on_device(site, config, comm.rank());
        }
        let region = layout::Region::of(config)?;
        Ok(Sizes {
            dispatch_windows: region.combine(0) - region.dispatch(0),
            combine_windows: region.bytes - region.combine(0),
            signals: region.signal_bytes(),
            local_outputs: Areas::of(config, comm.rank())?.bytes,
            handle: handle_bytes(config, comm.rank()),
            symmetric: region.bytes,
            pinned: 0,
            slabs: slabs(config, comm.rank()),
        })
    }

    /// Collective: every rank makes its own buffer.
    pub fn create(comm: &Arc<Comm>, config: Config) -> Result<Arc<Buffer>> {
        let timeout = Duration::from_millis(config.first_timeout_ms.into());
        let group = &comm.group;
        group.begin();
        agree_on_config(comm, &config, timeout)?;
        if let Some(site) = &comm.site {
            return create_on_device(comm, site, config);
        }
        let region = group.agree(Host::allocate(&config), None, timeout)?;
        let regions = group.share_region(region, None, timeout)?;
        let config = Arc::new(config);
        let made =
            Host::new(comm.rank(), config.clone(), regions).map(|host| Buffer::new(comm, config, host, None));
        Ok(Arc::new(group.agree(made, None, timeout)?))
    }

    /// All ranks of a local group, from one thread.
    pub fn create_local(comms: &[Arc<Comm>], config: Config) -> Result<Vec<Arc<Buffer>>> {
        let one_group = comms.iter().enumerate().all(|(rank, comm)| {
            comm.rank() == rank
                && comm.num_ranks() == comms.len()
                && (comms.len() == 1 || comm.group.same_process(&comms[0].group))
        });
        if !one_group {
            return Err(Error::invalid_argument(
                "comms are not all ranks of one deep_ep_comm_create_local, in order of rank",
            ));
        }
        let config = Arc::new(config);
        if let Some(sites) = comms.iter().map(|comm| comm.site.clone()).collect::<Option<Vec<_>>>() {
            return create_local_on_device(comms, &sites, &config);
        }
        let regions: Vec<Option<Arc<Region>>> =
            comms.iter().map(|_| Host::allocate(&config).map(Some)).collect::<Result<_>>()?;
        for region in regions.iter().flatten() {
            region.close_fd();
        }
        let make = |comm: &Arc<Comm>| {
            let host = Host::new(comm.rank(), config.clone(), regions.clone())?;
            Ok(Arc::new(Buffer::new(comm, config.clone(), host, None)))
        };
        comms.iter().map(make).collect()
    }
}

fn sizes_on_device(site: &Site, config: &Config, rank: usize) -> Result<Sizes> {
    let [dispatch_windows, combine_windows, symmetric, local_outputs, handle, pinned] =
        cuda::sizes(site, config, rank)?;
    Ok(Sizes {
        dispatch_windows,
        combine_windows,
        signals: symmetric - dispatch_windows - combine_windows,
        local_outputs,
        handle,
        symmetric,
        pinned,
        slabs: slabs(config, rank),
    })
}

fn create_on_device(comm: &Arc<Comm>, site: &Arc<Site>, config: Config) -> Result<Arc<Buffer>> {
    let timeout = Duration::from_millis(config.first_timeout_ms.into());
    let regions = share_memory(comm, site, &config, None, timeout)?;
    comm.group.agree(on_device(comm, site, &Arc::new(config), regions), None, timeout)
}

/// Every rank that is alive has new memory of all that are; none of the rest.
pub(super) fn share_memory(
    comm: &Comm,
    site: &Site,
    config: &Config,
    alive: Option<&[bool]>,
    timeout: Duration,
) -> Result<Regions> {
    site.share(&comm.group, Cuda::allocate(site, config), alive, timeout)
}

/// All ranks have the same memory, each for the devices of all.
fn create_local_on_device(
    comms: &[Arc<Comm>],
    sites: &[Arc<Site>],
    config: &Arc<Config>,
) -> Result<Vec<Arc<Buffer>>> {
    let allocate = |site: &Arc<Site>| Cuda::allocate(site, config).map(Arc::new);
    let regions: Regions = sites.iter().map(|site| allocate(site).map(Some)).collect::<Result<_>>()?;
    let each = comms.iter().zip(sites);
    each.map(|(comm, site)| on_device(comm, site, config, regions.clone())).collect()
}

fn on_device(
    comm: &Arc<Comm>,
    site: &Arc<Site>,
    config: &Arc<Config>,
    regions: Regions,
) -> Result<Arc<Buffer>> {
    let cuda = Cuda::new(comm.rank(), config.clone(), site.clone(), regions)?;
    let host = Host::without_memory(comm.rank(), config.clone())?;
    Ok(Arc::new(Buffer::new(comm, config.clone(), host, Some(Arc::new(cuda)))))
}

/// Compares the configurations of all ranks; every rank finds the same first difference.
fn agree_on_config(comm: &Comm, config: &Config, timeout: Duration) -> Result<()> {
    let fields = config.fields();
    let mine: Vec<u8> = fields.iter().flat_map(|(_, value)| value.to_le_bytes()).collect();
    let all = comm.group.all_gather(&mine, None, timeout)?;
    for (rank, theirs) in all.iter().enumerate() {
        for ((name, _), (first, other)) in
            fields.iter().zip(all[0].chunks_exact(8).zip(theirs.chunks_exact(8)))
        {
            if first != other {
                return Err(Error::about(
                    Status::DEEP_EP_CONFIG_MISMATCH,
                    vec![rank as u32],
                    format_args!(
                        "{name} is {} on rank 0 but {} on rank {rank}; all ranks must pass the same configuration",
                        number(first),
                        number(other)
                    ),
                ));
            }
        }
    }
    Ok(())
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
}
