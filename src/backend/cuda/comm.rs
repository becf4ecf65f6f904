//! A rank's device: what all its buffers share.

use super::kernels::Kernels;
use super::share::{check_local, choose, Regions, Terms};
use crate::boot::Group;
use crate::driver::{register_host, Device, Memory, Sharing};
use crate::error::{Error, Result, Status};
use std::sync::Arc;
use std::time::Duration;

/// A device that is ready for use by a rank.
pub struct Place {
    pub device: Arc<Device>,
    pub(super) kernels: Arc<Kernels>,
    /// How the environment wants memory to be shared.
    asked: Option<Sharing>,
}

/// Where a rank is in its group.
pub struct Site {
    pub place: Place,
    /// Where kernels see an abort.
    pub(super) abort_word: u64,
    /// SMs for one rank of those on the device.
    pub(super) blocks: u32,
    /// None where all ranks are in this process, unless it was asked for.
    sharing: Option<Sharing>,
    pub(super) granularity: u64,
    /// Devices of this process whose kernels use this rank's memory.
    users: Vec<Arc<Device>>,
    /// What sharing was tried with. Closing a block waits for every kernel on the device, so it is left to the end.
    _tried: Regions,
}

/// What ranks know of each other's devices.
struct Introduction {
    uuid: [u8; 16],
    sms: u32,
    asked: Option<Sharing>,
}

impl Introduction {
    fn of(place: &Place) -> Introduction {
        Introduction { uuid: place.device.uuid, sms: place.device.sms, asked: place.asked }
    }

    fn encode(&self) -> Vec<u8> {
        let asked = Sharing::ALL.iter().position(|sharing| Some(*sharing) == self.asked);
        [&self.uuid[..], &self.sms.to_le_bytes(), &[asked.map_or(u8::MAX, |at| at as u8)]].concat()
    }

    fn decode(bytes: &[u8]) -> Option<Introduction> {
        let (uuid, rest) = bytes.split_first_chunk()?;
        let (sms, asked) = rest.split_first_chunk()?;
        let asked = Sharing::ALL.get(usize::from(*asked.first()?)).copied();
        Some(Introduction { uuid: *uuid, sms: u32::from_le_bytes(*sms), asked })
    }
}

impl Place {
    /// Everything that can be missing is found out here: driver, device, kernels.
    pub fn open(ordinal: i32) -> Result<Place> {
        if !super::are_embedded() {
            return Err(Error::unsupported(
                "backend is CUDA, but this library was built without the feature `cuda`; use DEEP_EP_BACKEND_HOST",
            ));
        }
        let (device, asked) = (Device::open(ordinal)?, Sharing::asked_for()?);
        let kernels = Kernels::of(&device)?;
        Ok(Place { device, kernels, asked })
    }
}

impl Site {
    /// All ranks of a local group.
    pub fn local(groups: &[Group], places: Vec<Place>) -> Result<Vec<Site>> {
        let Some(asked) = places.first().map(|place| place.asked) else { return Ok(Vec::new()) };
        let all: Vec<Introduction> = places.iter().map(Introduction::of).collect();
        for (rank, place) in places.iter().enumerate() {
            check_peers(rank, &place.device, &all)?;
        }
        let mut devices: Vec<Arc<Device>> = places.iter().map(|place| place.device.clone()).collect();
        devices.sort_by_key(|device| device.ordinal);
        devices.dedup_by_key(|device| device.ordinal);
        check_local(&devices, asked)?;
        let each = places.into_iter().zip(groups);
        let site = |(place, group)| Site::new(group, place, &all, (asked, Vec::new()), devices.clone());
        each.map(site).collect()
    }

    /// One rank; collective.
    pub fn join(group: &Group, place: Result<Place>, timeout: Duration) -> Result<Site> {
        let place = group.agree(place, None, timeout)?;
        let all = group.all_gather(&Introduction::of(&place).encode(), None, timeout)?;
        let all: Option<Vec<_>> = all.iter().map(|bytes| Introduction::decode(bytes)).collect();
        let all =
            all.ok_or_else(|| Error::new(Status::DEEP_EP_INTERNAL, "a rank did not tell its device"))?;
        let checked = check_peers(group.rank() as usize, &place.device, &all);
        group.agree(checked, None, timeout)?;
        let (sharing, mut tried) = choose(group, &place.device, place.asked, timeout)?;
        if sharing != Some(Sharing::Legacy) {
            tried.clear();
        }
        let users = vec![place.device.clone()];
        Site::new(group, place, &all, (sharing, tried), users)
    }

    fn new(
        group: &Group,
        place: Place,
        all: &[Introduction],
        (sharing, _tried): (Option<Sharing>, Regions),
        users: Vec<Arc<Device>>,
    ) -> Result<Site> {
        let neighbours = all.iter().filter(|other| other.uuid == place.device.uuid).count() as u32;
        let blocks = place.device.sms / neighbours;
        if blocks == 0 {
            return Err(Error::unsupported(format_args!(
                "{neighbours} ranks on device {}, which has {} SMs; each needs one",
                place.device.ordinal, place.device.sms
            )));
        }
        let (page, bytes) = group.abort_page();
        // SAFETY: the page is mapped for good.
        let abort_word = unsafe { register_host(&place.device, page, bytes)? };
        // Memory that stays on the device is rounded up alike.
        let granularity =
            Memory::granularity(&place.device, sharing)?.max(Memory::granularity(&place.device, None)?);
        Ok(Site { place, abort_word, blocks, sharing, granularity, users, _tried })
    }

    /// Memory that only this rank uses.
    pub(super) fn allocate(&self, bytes: u64) -> Result<Memory> {
        let bytes = bytes.next_multiple_of(self.granularity);
        Memory::allocate(&self.place.device, None, bytes, &[&self.place.device])
    }

    /// Memory for all ranks.
    pub(super) fn allocate_shared(&self, bytes: u64) -> Result<Memory> {
        let users: Vec<&Device> = self.users.iter().map(|user| &**user).collect();
        Memory::allocate(&self.place.device, self.sharing, bytes.next_multiple_of(self.granularity), &users)
    }

    /// Gives it to all ranks that are alive, and takes theirs. Fails on all ranks if it fails on one.
    pub fn share(
        &self,
        group: &Group,
        mine: Result<Memory>,
        alive: Option<&[bool]>,
        timeout: Duration,
    ) -> Result<Regions> {
        Terms { group, device: &self.place.device, sharing: self.sharing, alive, timeout }.share(mine)
    }
}

/// What is wrong between this rank and the first with which anything is. The same memory layout is for one number of SMs.
fn check_peers(me: usize, device: &Device, all: &[Introduction]) -> Result<()> {
    for (rank, peer) in all.iter().enumerate() {
        if let Some(obstacle) = device.obstacle_to(&peer.uuid)? {
            return Err(Error::about(
                Status::DEEP_EP_PEER_UNREACHABLE,
                vec![rank as u32],
                format_args!(
                    "the device of rank {me} cannot use the memory of that of rank {rank}: {obstacle}; use DEEP_EP_BACKEND_HOST"
                ),
            ));
        }
        let asked = |asked: Option<Sharing>| asked.map_or("not set".to_string(), Sharing::as_asked_for);
        let difference = match (all[0].sms == peer.sms, all[0].asked == peer.asked) {
            (false, _) => {
                format!("the device of rank 0 has {} SMs, that of rank {rank} {}", all[0].sms, peer.sms)
            }
            (_, false) => format!(
                "how memory is shared is set differently: rank 0, {}; rank {rank}, {}",
                asked(all[0].asked),
                asked(peer.asked)
            ),
            _ => continue,
        };
        return Err(Error::about(Status::DEEP_EP_CONFIG_MISMATCH, vec![rank as u32], difference));
    }
    Ok(())
}
