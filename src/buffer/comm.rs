//! Joining a group of ranks.

use crate::backend::cuda::{are_embedded, Place, Site};
use crate::boot::{Group, UniqueId};
use crate::error::{Error, Result, Status};
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    Host,
    Cuda,
}

/// How a rank finds the others.
pub enum Meeting<'a> {
    Id(UniqueId),
    Allgather(&'a mut dyn FnMut(&[u8]) -> Result<Vec<u8>>),
    /// Only a group of one rank needs nothing.
    Alone,
}

pub struct CommConfig<'a> {
    pub rank: u32,
    pub num_ranks: u32,
    pub backend: Backend,
    /// CUDA: the device's ordinal.
    pub device: i32,
    pub meeting: Meeting<'a>,
    pub timeout: Duration,
}

/// One rank's membership.
pub struct Comm {
    pub(super) group: Group,
    backend: Backend,
    /// CUDA: the device of this rank.
    pub(super) site: Option<Arc<Site>>,
}

impl Comm {
    pub fn create(config: CommConfig) -> Result<Arc<Comm>> {
        let CommConfig { rank, num_ranks, timeout, backend, device, .. } = config;
        if backend == Backend::Cuda && !are_embedded() {
            Place::open(device)?; // says why not, before anyone is met
        }
        let group = match config.meeting {
            Meeting::Id(id) => Group::join(rank, num_ranks, &id, timeout)?,
            Meeting::Allgather(gather) => Group::join_with(rank, num_ranks, gather, timeout)?,
            Meeting::Alone => Group::local(1)?.remove(0),
        };
        same_backend(&group, backend, timeout)?;
        let site = match backend {
            Backend::Host => None,
            Backend::Cuda => Some(Arc::new(Site::join(&group, Place::open(device), timeout)?)),
        };
        Ok(Arc::new(Comm { group, backend, site }))
    }

    /// `devices`: CUDA, the ordinal of each rank's device.
    pub fn create_local(num_ranks: u32, backend: Backend, devices: &[i32]) -> Result<Vec<Arc<Comm>>> {
        let places = match backend {
            Backend::Host => Vec::new(),
            Backend::Cuda => devices.iter().map(|&device| Place::open(device)).collect::<Result<_>>()?,
        };
        let groups = Group::local(num_ranks)?;
        let sites = Site::local(&groups, places)?.into_iter().map(|site| Some(Arc::new(site)));
        let all = groups.into_iter().zip(sites.chain(std::iter::repeat(None)));
        Ok(all.map(|(group, site)| Arc::new(Comm { group, backend, site })).collect())
    }

    pub fn abort(&self, reason: &str) {
        self.group.abort(reason);
    }

    pub fn rank(&self) -> usize {
        self.group.rank() as usize
    }

    pub fn backend(&self) -> Backend {
        self.backend
    }

    pub fn num_ranks(&self) -> usize {
        self.group.num_ranks() as usize
    }
}

fn same_backend(group: &Group, backend: Backend, timeout: Duration) -> Result<()> {
    let all = group.all_gather(&[backend as u8], None, timeout)?;
    match all.iter().position(|other| other[..] != [backend as u8]) {
        None => Ok(()),
        Some(rank) => Err(Error::about(
            Status::DEEP_EP_CONFIG_MISMATCH,
            vec![rank as u32],
            format_args!("backend is {backend:?} on rank {}, but another one on rank {rank}", group.rank()),
        )),
    }
}
