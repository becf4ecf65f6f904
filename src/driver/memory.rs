//! Device memory, whatever it is made of: for this process alone, or to be shared with others.

use super::api::IpcHandle;
use super::block::Block;
use super::device::Device;
use super::mapping::Mapping;
use super::sharing::Sharing;
use crate::error::{Error, Result, Status};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

/// What cuMemAlloc hands out is rounded up to this: a block of its own, so that nothing else of the process is opened with it.
const BLOCK_UNIT: u64 = 2 << 20;

/// Made here or imported. Given back when dropped.
pub struct Memory(Part);

enum Part {
    Mapping(Mapping),
    Block(Block),
}

impl Memory {
    /// What sizes are rounded up to. `sharing`: None for memory that stays in this process.
    pub fn granularity(device: &Device, sharing: Option<Sharing>) -> Result<u64> {
        match is_block(device, sharing) {
            true => Ok(BLOCK_UNIT),
            false => Mapping::granularity(device, sharing),
        }
    }

    /// New memory of `bytes`, a multiple of the granularity, that kernels of all `users` may read and write. Its content
    /// is undefined.
    pub fn allocate(
        device: &Arc<Device>,
        sharing: Option<Sharing>,
        bytes: u64,
        users: &[&Device],
    ) -> Result<Memory> {
        let made = match is_block(device, sharing) {
            true => Block::allocate(device, bytes as usize, users).map(Part::Block),
            false => Mapping::allocate(device, sharing, bytes as usize, users).map(Part::Mapping),
        };
        made.map(Memory).map_err(|error| Error {
            text: format!("{bytes} bytes on device {}: {error}", device.ordinal),
            ..error
        })
    }

    /// A descriptor by which another process imports it.
    pub fn export_descriptor(&self) -> Result<OwnedFd> {
        match &self.0 {
            Part::Mapping(mapping) => mapping.export_descriptor(),
            Part::Block(_) => Err(not_so("a descriptor")),
        }
    }

    pub fn import_descriptor(device: &Device, fd: BorrowedFd<'_>, bytes: u64) -> Result<Memory> {
        Mapping::import_descriptor(device, fd, bytes as usize).map(Part::Mapping).map(Memory)
    }

    /// Bytes by which another process imports it.
    pub fn export_bytes(&self) -> Result<[u8; 64]> {
        match &self.0 {
            Part::Mapping(mapping) => mapping.export_fabric(),
            Part::Block(block) => Ok(block.export()?.0),
        }
    }

    /// What another process has exported in this way.
    pub fn import_bytes(
        device: &Arc<Device>,
        sharing: Sharing,
        from: [u8; 64],
        bytes: u64,
    ) -> Result<Memory> {
        let opened = match sharing {
            Sharing::Fabric => Mapping::import_fabric(device, from, bytes as usize).map(Part::Mapping),
            Sharing::Legacy => Block::import(device, IpcHandle(from), bytes as usize).map(Part::Block),
            Sharing::Descriptor => Err(not_so("bytes")),
        };
        opened.map(Memory)
    }

    /// Lets kernels of another device of this process use a block. Mappings have their users from the beginning.
    pub fn open_to(&self, user: &Device) -> Result<()> {
        match &self.0 {
            Part::Mapping(_) => Ok(()),
            Part::Block(block) => user.open_to(&block.device),
        }
    }

    pub fn address(&self) -> u64 {
        match &self.0 {
            Part::Mapping(mapping) => mapping.address,
            Part::Block(block) => block.address,
        }
    }

    pub fn bytes(&self) -> u64 {
        match &self.0 {
            Part::Mapping(mapping) => mapping.bytes as u64,
            Part::Block(block) => block.bytes as u64,
        }
    }
}

fn is_block(device: &Device, sharing: Option<Sharing>) -> bool {
    match sharing {
        Some(sharing) => sharing == Sharing::Legacy,
        None => !device.has_virtual_memory,
    }
}

fn not_so(what: &str) -> Error {
    Error::new(Status::DEEP_EP_INTERNAL, format_args!("this memory is not passed on as {what}"))
}
