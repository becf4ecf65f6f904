//! Shared memory with no name in any file system: it lives as long as someone maps it.

use crate::error::{Error, Result, Status};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Mutex;

/// A mapping of shared memory, made here (`create`) or received from a peer as a descriptor (`map`).
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    len: usize,
    fd: Mutex<Option<OwnedFd>>,
}

// SAFETY: the mapping stays at its address until drop, and whoever touches the bytes does so through raw
// pointers or atomics under rules of their own, since other processes write there as well.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// New zeroed memory of `bytes` rounded up to whole pages, all of it present. Memory that cannot be had is
    /// an error here; a page found missing at first touch would be a SIGBUS.
    pub fn create(bytes: usize) -> Result<Self> {
        let len = whole_pages(bytes)?;
        if let Some(limit) = memory_limit().filter(|limit| len as u64 > *limit) {
            let text = format!("{len} bytes of shared memory: only {limit} can be had");
            return Err(Error::new(Status::DEEP_EP_OUT_OF_MEMORY, text));
        }
        // SAFETY: the name is a C string; the call has no other memory effect.
        let fd =
            unsafe { libc::memfd_create(c"deepep".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
        if fd < 0 {
            return Err(Error::system("memfd_create"));
        }
        // SAFETY: just opened, owned by nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: plain system calls on a descriptor we own.
        unsafe {
            if libc::ftruncate(fd.as_raw_fd(), len as libc::off_t) != 0 {
                return Err(Error::system(format_args!("ftruncate of shared memory to {len} bytes")));
            }
            let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
            if libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) != 0 {
                return Err(Error::system("fcntl(F_ADD_SEALS) on shared memory"));
            }
        }
        reserve(&fd, len)?;
        let base = map_shared(fd.as_fd(), len, libc::MAP_POPULATE)?;
        Ok(Region { base, len, fd: Mutex::new(Some(fd)) })
    }

    /// Maps `bytes` (rounded up to whole pages) of a peer's region. A file that is smaller, or that its owner
    /// could still shrink, is refused: touching a page past its end would be a SIGBUS.
    pub fn map(fd: BorrowedFd<'_>, bytes: usize) -> Result<Self> {
        let len = whole_pages(bytes)?;
        // SAFETY: stat is plain data, filled in by the call.
        let size = unsafe {
            let mut stat: libc::stat = std::mem::zeroed();
            if libc::fstat(fd.as_raw_fd(), &mut stat) != 0 {
                return Err(Error::system("fstat on a peer's shared memory"));
            }
            stat.st_size
        };
        if (size as u64) < len as u64 {
            let text = format!("a peer's shared memory has {size} bytes instead of {len}");
            return Err(Error::new(Status::DEEP_EP_PEER_FAILED, text));
        }
        // SAFETY: a query on a live descriptor.
        let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
            let text = "a peer's shared memory is not sealed against shrinking";
            return Err(Error::new(Status::DEEP_EP_PEER_FAILED, text));
        }
        let base = map_shared(fd, len, 0)?;
        Ok(Region { base, len, fd: Mutex::new(None) })
    }

    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// The mapped bytes: a multiple of the page size, never 0.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// A duplicate of the descriptor, to hand to a peer. INVALID_STATE when it is closed, as it is for a
    /// peer's region from the start.
    pub fn fd(&self) -> Result<OwnedFd> {
        let fd = self.fd.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let fd = fd.as_ref().ok_or_else(|| Error::invalid_state("the region's descriptor is closed"))?;
        fd.try_clone().map_err(|_| Error::system("dup of a shared memory descriptor"))
    }

    /// Closes the descriptor, when every peer has it; the mapping stays.
    pub fn close_fd(&self) {
        self.fd.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: mapped with this size when the region was made; nobody may use it after its last owner.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

fn whole_pages(bytes: usize) -> Result<usize> {
    // SAFETY: a query without memory effects.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(1) as usize;
    match bytes.checked_next_multiple_of(page) {
        Some(0) => Err(Error::invalid_argument("0 bytes of shared memory")),
        Some(len) if len <= isize::MAX as usize => Ok(len),
        _ => {
            let text = format!("{bytes} bytes of shared memory: more than an address space holds");
            Err(Error::new(Status::DEEP_EP_OUT_OF_MEMORY, text))
        }
    }
}

/// Allocates every page, so that no later touch of one can fail.
fn reserve(fd: &OwnedFd, len: usize) -> Result<()> {
    loop {
        // SAFETY: a system call on a descriptor we own.
        if unsafe { libc::fallocate(fd.as_raw_fd(), 0, 0, len as libc::off_t) } == 0 {
            return Ok(());
        }
        let reason = std::io::Error::last_os_error();
        let status = match reason.raw_os_error() {
            Some(libc::EINTR) => continue,
            Some(libc::ENOSPC | libc::ENOMEM | libc::EFBIG) => Status::DEEP_EP_OUT_OF_MEMORY,
            _ => Status::DEEP_EP_SYSTEM,
        };
        return Err(Error::new(status, format_args!("{len} bytes of shared memory: {reason}")));
    }
}

fn map_shared(fd: BorrowedFd<'_>, len: usize, flags: libc::c_int) -> Result<NonNull<u8>> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the kernel chooses the address, so no existing mapping is replaced.
    let base =
        unsafe { libc::mmap(std::ptr::null_mut(), len, access, libc::MAP_SHARED | flags, fd.as_raw_fd(), 0) };
    match NonNull::new(base.cast::<u8>()) {
        Some(base) if base.as_ptr().cast() != libc::MAP_FAILED => Ok(base),
        _ => Err(Error::system(format_args!("mmap of {len} bytes of shared memory"))),
    }
}

/// The most that can be had now as far as the system tells. Without this check an absurd size would be
/// allocated page by page until the kernel kills somebody.
fn memory_limit() -> Option<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kib = |name: &str| -> Option<u64> {
        let line = meminfo.lines().find(|line| line.starts_with(name))?;
        line.split_ascii_whitespace().nth(1)?.parse().ok()
    };
    let system = kib("MemAvailable:")?.saturating_add(kib("SwapFree:").unwrap_or(0)).saturating_mul(1024);
    let group = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"]
        .iter()
        .filter_map(|path| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok())
        .min();
    Some(system.min(group.unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

    fn bytes(region: &Region) -> &[AtomicU8] {
        // SAFETY: mapped as long as the region lives, and used as atomic bytes only.
        unsafe { std::slice::from_raw_parts(region.as_ptr().cast(), region.len()) }
    }

    #[test]
    fn two_mappings_show_the_same_zeroed_bytes() {
        let mine = Region::create(5000).unwrap();
        assert_eq!(mine.len(), 8192);
        assert!(bytes(&mine).iter().all(|byte| byte.load(Relaxed) == 0));
        let fd = mine.fd().unwrap();
        mine.close_fd();
        assert_eq!(mine.fd().unwrap_err().status, Status::DEEP_EP_INVALID_STATE);
        let theirs = Region::map(fd.as_fd(), 5000).unwrap();
        drop(fd);
        bytes(&mine)[8191].store(7, Relaxed);
        assert_eq!(bytes(&theirs)[8191].load(Relaxed), 7);
        drop(mine);
        assert_eq!(bytes(&theirs)[8191].load(Relaxed), 7);
    }

    #[test]
    fn a_file_smaller_than_promised_is_refused() {
        let small = Region::create(4096).unwrap();
        let error = Region::map(small.fd().unwrap().as_fd(), 4097).unwrap_err();
        assert_eq!(error.status, Status::DEEP_EP_PEER_FAILED);
        assert!(error.text.contains("4096") && error.text.contains("8192"), "{error}");
    }

    #[test]
    fn a_file_that_could_shrink_is_refused() {
        // SAFETY: a fresh descriptor, owned from here on.
        let fd = unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"x".as_ptr(), libc::MFD_CLOEXEC)) };
        // SAFETY: a system call on our descriptor.
        assert_eq!(unsafe { libc::ftruncate(fd.as_raw_fd(), 4096) }, 0);
        assert_eq!(Region::map(fd.as_fd(), 4096).unwrap_err().status, Status::DEEP_EP_PEER_FAILED);
        let created = Region::create(4096).unwrap().fd().unwrap();
        // SAFETY: a system call on our descriptor.
        assert_ne!(unsafe { libc::ftruncate(created.as_raw_fd(), 0) }, 0, "a created region can shrink");
    }

    #[test]
    fn too_much_is_an_error_that_names_the_bytes() {
        for bytes in [1usize << 45, isize::MAX as usize - 5000, usize::MAX] {
            let error = Region::create(bytes).unwrap_err();
            assert_eq!(error.status, Status::DEEP_EP_OUT_OF_MEMORY, "{error}");
            assert!(error.text.contains(" bytes of shared memory"), "{error}");
        }
        assert_eq!(Region::create(0).unwrap_err().status, Status::DEEP_EP_INVALID_ARGUMENT);
    }
}
