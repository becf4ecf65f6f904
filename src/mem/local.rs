//! Memory of one process: anonymous pages, zero-filled, taken when first touched.

use crate::error::{Error, Result};

#[derive(Debug)]
pub struct LocalMemory {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: the pages belong to this object alone; how they are shared is up to whoever uses the pointer.
unsafe impl Send for LocalMemory {}
// SAFETY: as above.
unsafe impl Sync for LocalMemory {}

impl LocalMemory {
    /// `bytes` may be 0; then the pointer is null.
    pub fn new(bytes: usize) -> Result<LocalMemory> {
        if bytes == 0 {
            return Ok(LocalMemory { start: std::ptr::null_mut(), bytes });
        }
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address the system chooses touches nothing that exists.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(Error::system(format_args!("mapping {bytes} bytes of local memory")));
        }
        Ok(LocalMemory { start: start.cast(), bytes })
    }

    pub fn as_ptr(&self) -> *mut u8 {
        self.start
    }
}

impl Drop for LocalMemory {
    fn drop(&mut self) {
        if self.bytes != 0 {
            // SAFETY: the mapping was made with this size and is not used any more.
            unsafe { libc::munmap(self.start.cast(), self.bytes) };
        }
    }
}
