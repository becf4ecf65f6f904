//! Host memory that kernels write and the host reads while they run. Freeing such memory waits for every kernel that
//! runs, so blocks are kept for the next user instead.

use super::api::{check, Pointer};
use super::device::Device;
use crate::error::Result;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;

const PORTABLE_AND_MAPPED: u32 = 1 | 2;

/// Blocks that nobody uses, with their sizes.
static SPARE: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());

/// A zeroed block, at the same address for the host and for every device.
pub struct Pinned {
    start: NonNull<AtomicU64>,
    bytes: usize,
}

// SAFETY: the block belongs to this object, and its words are only touched as atomics.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

/// What a block of at least so many bytes takes.
pub fn pinned_bytes(bytes: u64) -> u64 {
    bytes.max(4096).next_power_of_two()
}

impl Pinned {
    pub fn new(device: &Device, bytes: u64) -> Result<Pinned> {
        let bytes = pinned_bytes(bytes) as usize;
        let pinned = match Pinned::take_spare(bytes) {
            Some(pinned) => pinned,
            None => Pinned::allocate(device, bytes)?,
        };
        pinned.words().iter().for_each(|word| word.store(0, Ordering::Relaxed));
        Ok(pinned)
    }

    fn take_spare(bytes: usize) -> Option<Pinned> {
        let mut spare = SPARE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let at = spare.iter().position(|&(size, _)| size == bytes)?;
        let (_, start) = spare.swap_remove(at);
        Some(Pinned { start: NonNull::new(start as *mut AtomicU64)?, bytes })
    }

    fn allocate(device: &Device, bytes: usize) -> Result<Pinned> {
        let _guard = device.enter()?;
        let mut start: Pointer = std::ptr::null_mut();
        // SAFETY: writes one pointer.
        check("cuMemHostAlloc", unsafe { (device.api.host_alloc)(&mut start, bytes, PORTABLE_AND_MAPPED) })?;
        let start = NonNull::new(start.cast())
            .ok_or_else(|| crate::error::Error::system("cuMemHostAlloc returned the null page"))?;
        Ok(Pinned { start, bytes })
    }

    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: allocated with this size and alignment, zeroed, and only touched as atomics.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes / 8) }
    }

    /// Where kernels find it.
    pub fn address(&self) -> u64 {
        self.start.as_ptr() as u64
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let mut spare = SPARE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        spare.push((self.bytes, self.start.as_ptr() as usize));
    }
}

/// Makes existing host memory, whole pages that stay mapped for good, visible to kernels; returns where they find it.
///
/// # Safety
/// `start` is mapped for `bytes` bytes and never unmapped.
pub unsafe fn register_host(device: &Device, start: *const u8, bytes: usize) -> Result<u64> {
    let _guard = device.enter()?;
    let start = start as Pointer;
    let mut address = 0;
    // SAFETY: as the caller promises.
    unsafe {
        check("cuMemHostRegister", (device.api.host_register)(start, bytes, PORTABLE_AND_MAPPED))?;
        check("cuMemHostGetDevicePointer", (device.api.host_device_pointer)(&mut address, start, 0))?;
    }
    Ok(address)
}
