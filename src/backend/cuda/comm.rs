//! A rank's device: what all its buffers share.

use super::kernels::Kernels;
use crate::boot::Group;
use crate::driver::{register_host, Device, Memory};
use crate::error::{Error, Result, Status};
use std::sync::Arc;
use std::time::Duration;

/// A device that is ready for use by a rank.
pub struct Place {
    pub device: Arc<Device>,
    pub(super) kernels: Arc<Kernels>,
    pub(super) granularity: u64,
}

/// Where a rank is in its group.
pub struct Site {
    pub place: Place,
    /// Where kernels see an abort.
    pub(super) abort_word: u64,
    /// SMs for one rank of those on the device.
    pub(super) blocks: u32,
}

impl Place {
    /// Everything that can be missing is found out here: driver, device, kernels.
    pub fn open(ordinal: i32) -> Result<Place> {
        if !super::are_embedded() {
            return Err(Error::unsupported(
                "backend is CUDA, but this library was built without the feature `cuda`; use DEEP_EP_BACKEND_HOST",
            ));
        }
        let device = Device::open(ordinal)?;
        let (kernels, granularity) = (Kernels::of(&device)?, Memory::granularity(&device)?);
        Ok(Place { device, kernels, granularity })
    }
}

impl Site {
    /// All ranks of a local group.
    pub fn local(groups: &[Group], places: Vec<Place>) -> Result<Vec<Site>> {
        for (rank, place) in places.iter().enumerate() {
            if let Some(peer) = unreachable(place, &places)? {
                return Err(no_access(rank, peer));
            }
        }
        let uuids: Vec<[u8; 16]> = places.iter().map(|place| place.device.uuid).collect();
        places.into_iter().zip(groups).map(|(place, group)| Site::new(group, place, &uuids)).collect()
    }

    /// One rank; collective.
    pub fn join(group: &Group, place: Result<Place>, timeout: Duration) -> Result<Site> {
        let place = group.agree(place, None, timeout)?;
        let all = group.all_gather(&place.device.uuid, None, timeout)?;
        let uuids: Vec<[u8; 16]> = all.iter().map(|bytes| bytes[..].try_into().unwrap_or_default()).collect();
        Site::new(group, place, &uuids)
    }

    fn new(group: &Group, place: Place, uuids: &[[u8; 16]]) -> Result<Site> {
        let neighbours = uuids.iter().filter(|uuid| **uuid == place.device.uuid).count() as u32;
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
        Ok(Site { place, abort_word, blocks })
    }
}

/// The first rank whose memory a device cannot reach.
fn unreachable(place: &Place, places: &[Place]) -> Result<Option<usize>> {
    for (rank, peer) in places.iter().enumerate() {
        if !place.device.reaches(&peer.device)? {
            return Ok(Some(rank));
        }
    }
    Ok(None)
}

fn no_access(rank: usize, peer: usize) -> Error {
    Error::about(
        Status::DEEP_EP_PEER_UNREACHABLE,
        vec![peer as u32],
        format_args!(
            "the device of rank {rank} has no access to that of rank {peer} (no NVLink or peer access)"
        ),
    )
}
