//! Device memory by virtual memory management: its owner exports it as a descriptor, peers import and map it. Mapping
//! and unmapping never wait for a kernel that runs.

use super::api::{check, Api, Pointer};
use super::device::Device;
use crate::error::{Error, Result, Status};
use cudarc::driver::sys::{
    CUmemAccessDesc, CUmemAccess_flags, CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationType,
    CUmemLocation, CUmemLocationType,
};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const POSIX_DESCRIPTOR: u32 = 1;

/// A mapping of device memory, made here or imported. Unmapped when dropped; the memory lives as long as anyone maps it.
pub struct Memory {
    api: &'static Api,
    address: u64,
    bytes: usize,
    allocation: u64,
}

fn properties(device: &Device) -> CUmemAllocationProp {
    // SAFETY: numbers and pointers, for which zero is a value.
    let mut properties: CUmemAllocationProp = unsafe { std::mem::zeroed() };
    properties.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    properties.location = location(device);
    properties
}

fn location(device: &Device) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device.handle }
}

impl Memory {
    /// What sizes are rounded up to.
    pub fn granularity(device: &Device) -> Result<u64> {
        let mut bytes = 0;
        // SAFETY: reads the properties, writes one number; 0 asks for the minimum.
        check("cuMemGetAllocationGranularity", unsafe {
            (device.api.mem_granularity)(&mut bytes, &properties(device), 0)
        })?;
        Ok(bytes as u64)
    }

    /// New memory of `bytes`, a multiple of the granularity, that kernels of all `users` may read and write. Its content
    /// is undefined.
    pub fn allocate(device: &Device, bytes: u64, users: &[&Device]) -> Result<Memory> {
        let _guard = device.enter()?;
        let mut allocation = 0;
        // SAFETY: reads the properties, writes one handle.
        check("cuMemCreate", unsafe {
            (device.api.mem_create)(&mut allocation, bytes as usize, &properties(device), 0)
        })
        .map_err(|error| Error {
            text: format!("{bytes} bytes on device {}: {error}", device.ordinal),
            ..error
        })?;
        Memory::map(device.api, allocation, bytes as usize, users)
    }

    /// Maps what a peer exported.
    pub fn import(device: &Device, fd: BorrowedFd<'_>, bytes: u64) -> Result<Memory> {
        let _guard = device.enter()?;
        let mut allocation = 0;
        // SAFETY: the driver takes the descriptor's number in place of a pointer.
        check("cuMemImportFromShareableHandle", unsafe {
            (device.api.mem_import)(&mut allocation, fd.as_raw_fd() as usize as Pointer, POSIX_DESCRIPTOR)
        })?;
        Memory::map(device.api, allocation, bytes as usize, &[device])
    }

    fn map(api: &'static Api, allocation: u64, bytes: usize, users: &[&Device]) -> Result<Memory> {
        let mut memory = Memory { api, address: 0, bytes, allocation };
        let mut address = 0;
        let access: Vec<CUmemAccessDesc> = users
            .iter()
            .map(|user| CUmemAccessDesc {
                location: location(user),
                flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
            })
            .collect();
        // SAFETY: a fresh address range takes a mapping of the same size; the calls read and write local variables.
        unsafe {
            check("cuMemAddressReserve", (api.mem_reserve)(&mut address, bytes, 0, 0, 0))?;
            if let Err(error) = check("cuMemMap", (api.mem_map)(address, bytes, 0, allocation, 0)) {
                (api.mem_address_free)(address, bytes);
                return Err(error);
            }
            memory.address = address;
            check("cuMemSetAccess", (api.mem_set_access)(address, bytes, access.as_ptr(), access.len()))
                .map_err(|error| Error {
                    status: Status::DEEP_EP_PEER_UNREACHABLE,
                    text: format!("memory of another device cannot be mapped here: {error}"),
                    ..error
                })?;
        }
        Ok(memory)
    }

    /// A descriptor for another process.
    pub fn export(&self) -> Result<OwnedFd> {
        let mut fd = -1;
        // SAFETY: writes one descriptor, which is ours from then on.
        unsafe {
            check(
                "cuMemExportToShareableHandle",
                (self.api.mem_export)(&mut fd, self.allocation, POSIX_DESCRIPTOR, 0),
            )?;
            Ok(OwnedFd::from_raw_fd(fd))
        }
    }

    pub fn address(&self) -> u64 {
        self.address
    }

    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped and created by us, and whoever used it is done with it.
        unsafe {
            if self.address != 0 {
                (self.api.mem_unmap)(self.address, self.bytes);
                (self.api.mem_address_free)(self.address, self.bytes);
            }
            (self.api.mem_release)(self.allocation);
        }
    }
}
