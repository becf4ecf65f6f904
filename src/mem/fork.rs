//! Telling a forked child from its parent without a system call.

use crate::error::{Error, Result};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

const PAGE: usize = 4096;

/// A page that the kernel wipes in the child of a fork: the child shares the parent's memory and
/// descriptors, but is no rank of its own and must be told so.
#[derive(Debug)]
pub struct ForkGuard {
    /// Holds the owner's process id; 0 in a child.
    page: NonNull<AtomicU32>,
    /// The kernel (before 4.14) does not wipe pages: compare process ids instead.
    compare_ids: bool,
}

// SAFETY: the page belongs to the guard alone and is only ever used as an atomic.
unsafe impl Send for ForkGuard {}
// SAFETY: as above.
unsafe impl Sync for ForkGuard {}

impl ForkGuard {
    pub fn new() -> Result<Self> {
        // SAFETY: a fresh anonymous mapping touches no memory of anyone else.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                PAGE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if page == libc::MAP_FAILED {
            return Err(Error::system(format_args!("mmap of {PAGE} bytes for the fork guard")));
        }
        // SAFETY: the page was mapped just now and is ours.
        let compare_ids = unsafe { libc::madvise(page, PAGE, libc::MADV_WIPEONFORK) } != 0;
        let Some(page) = NonNull::new(page.cast::<AtomicU32>()) else {
            return Err(Error::system("mmap returned the null page for the fork guard"));
        };
        let guard = ForkGuard { page, compare_ids };
        guard.word().store(std::process::id(), Ordering::Relaxed);
        Ok(guard)
    }

    /// Whether this process is a child, forked after the guard was made.
    pub fn in_child(&self) -> bool {
        match self.word().load(Ordering::Relaxed) {
            0 => true,
            owner => self.compare_ids && owner != std::process::id(),
        }
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: mapped until drop, page aligned, zero-filled or written as an AtomicU32.
        unsafe { self.page.as_ref() }
    }
}

impl Drop for ForkGuard {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this size; nothing refers to it after drop.
        unsafe { libc::munmap(self.page.as_ptr().cast(), PAGE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_told_and_the_parent_is_not() {
        let guard = ForkGuard::new().unwrap();
        assert!(!guard.in_child());
        // SAFETY: the child only reads a word and leaves by _exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let code = i32::from(!guard.in_child());
            // SAFETY: ends the child without running anything of the parent's.
            unsafe { libc::_exit(code) };
        }
        let mut status = -1;
        // SAFETY: waits for our own child.
        unsafe { libc::waitpid(child, &mut status, 0) };
        assert_eq!(status, 0);
        assert!(!guard.in_child());
    }
}
