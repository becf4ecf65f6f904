//! Numbers that nobody else has.

use crate::error::{Error, Result};

/// Fresh random bytes from the kernel.
pub fn random() -> Result<[u8; 16]> {
    let mut bytes = [0u8; 16];
    loop {
        // SAFETY: the buffer is ours and as long as stated.
        let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        if got == bytes.len() as isize {
            return Ok(bytes);
        }
        if got < 0 && std::io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            return Err(Error::system("getrandom"));
        }
    }
}
