//! Memory for rows.

use std::ops::{Deref, DerefMut};

#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Line([u8; 64]);

/// Zeroed bytes that begin at a cache line, as rows want.
pub struct Lines {
    lines: Vec<Line>,
    bytes: usize,
}

impl Lines {
    pub fn new(bytes: usize) -> Lines {
        Lines { lines: vec![Line([0; 64]); bytes.div_ceil(64)], bytes }
    }
}

impl Deref for Lines {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the lines hold at least `bytes` initialised bytes.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.bytes) }
    }
}

impl DerefMut for Lines {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.bytes) }
    }
}
