//! Device memory by virtual memory management. Mapping and unmapping never wait for a kernel that runs, and the memory lives
//! as long as anyone maps it, in whatever order owner and importers let go.

use super::api::{check, Api, Pointer};
use super::device::Device;
use super::sharing::Sharing;
use crate::error::{Error, Result, Status};
use cudarc::driver::sys::{
    CUmemAccessDesc, CUmemAccess_flags, CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationType,
    CUmemLocation, CUmemLocationType,
};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const POSIX_DESCRIPTOR: u32 = 1;
const FABRIC: u32 = 8;

/// What the memory is passed on by where that is the fabric.
pub(super) type FabricHandle = [u8; 64];

/// An allocation, made here or imported, at an address of its own.
pub(super) struct Mapping {
    api: &'static Api,
    pub address: u64,
    pub bytes: usize,
    allocation: u64,
}

fn properties(device: &Device, sharing: Option<Sharing>) -> CUmemAllocationProp {
    use CUmemAllocationHandleType as Type;
    // SAFETY: numbers and pointers, for which zero is a value.
    let mut properties: CUmemAllocationProp = unsafe { std::mem::zeroed() };
    properties.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = match sharing {
        Some(Sharing::Fabric) => Type::CU_MEM_HANDLE_TYPE_FABRIC,
        Some(Sharing::Descriptor) => Type::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        Some(Sharing::Legacy) | None => Type::CU_MEM_HANDLE_TYPE_NONE,
    };
    properties.location = location(device);
    properties
}

fn location(device: &Device) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device.handle }
}

impl Mapping {
    /// What sizes are rounded up to.
    pub fn granularity(device: &Device, sharing: Option<Sharing>) -> Result<u64> {
        let mut bytes = 0;
        // SAFETY: reads the properties, writes one number; 0 asks for the minimum.
        check("cuMemGetAllocationGranularity", unsafe {
            (device.api.mem_granularity)(&mut bytes, &properties(device, sharing), 0)
        })?;
        Ok(bytes as u64)
    }

    /// How an allocation may be exported is decided here.
    pub fn allocate(
        device: &Device,
        sharing: Option<Sharing>,
        bytes: usize,
        users: &[&Device],
    ) -> Result<Mapping> {
        let _guard = device.enter()?;
        let mut allocation = 0;
        // SAFETY: reads the properties, writes one handle.
        check("cuMemCreate", unsafe {
            (device.api.mem_create)(&mut allocation, bytes, &properties(device, sharing), 0)
        })?;
        Mapping::map(device.api, allocation, bytes, users)
    }

    pub fn import_descriptor(device: &Device, fd: BorrowedFd<'_>, bytes: usize) -> Result<Mapping> {
        // The driver takes the descriptor's number in place of a pointer.
        Mapping::import(device, fd.as_raw_fd() as usize as Pointer, POSIX_DESCRIPTOR, bytes)
    }

    pub fn import_fabric(device: &Device, mut handle: FabricHandle, bytes: usize) -> Result<Mapping> {
        Mapping::import(device, handle.as_mut_ptr().cast(), FABRIC, bytes)
    }

    /// `handle` is what that type's handles are passed as.
    fn import(device: &Device, handle: Pointer, handle_type: u32, bytes: usize) -> Result<Mapping> {
        let _guard = device.enter()?;
        let mut allocation = 0;
        // SAFETY: reads the handle, writes another.
        check("cuMemImportFromShareableHandle", unsafe {
            (device.api.mem_import)(&mut allocation, handle, handle_type)
        })?;
        Mapping::map(device.api, allocation, bytes, &[device])
    }

    fn map(api: &'static Api, allocation: u64, bytes: usize, users: &[&Device]) -> Result<Mapping> {
        let mut mapping = Mapping { api, address: 0, bytes, allocation };
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
            mapping.address = address;
            check("cuMemSetAccess", (api.mem_set_access)(address, bytes, access.as_ptr(), access.len()))
                .map_err(|error| Error {
                    status: Status::DEEP_EP_PEER_UNREACHABLE,
                    text: format!("memory of another device cannot be mapped here: {error}"),
                    ..error
                })?;
        }
        Ok(mapping)
    }

    /// A descriptor for another process.
    pub fn export_descriptor(&self) -> Result<OwnedFd> {
        let mut fd: i32 = -1;
        // SAFETY: writes one descriptor, which is ours from then on.
        unsafe {
            self.export(POSIX_DESCRIPTOR, (&raw mut fd).cast())?;
            Ok(OwnedFd::from_raw_fd(fd))
        }
    }

    pub fn export_fabric(&self) -> Result<FabricHandle> {
        let mut handle = [0; size_of::<FabricHandle>()];
        // SAFETY: writes a handle, which has so many bytes.
        unsafe { self.export(FABRIC, handle.as_mut_ptr().cast())? };
        Ok(handle)
    }

    /// # Safety
    /// `handle` has room for a handle of that type.
    unsafe fn export(&self, handle_type: u32, handle: Pointer) -> Result<()> {
        // SAFETY: as the caller promises.
        check("cuMemExportToShareableHandle", unsafe {
            (self.api.mem_export)(handle, self.allocation, handle_type, 0)
        })
    }
}

impl Drop for Mapping {
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
