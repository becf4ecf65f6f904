//! The device memory of one handle.

use super::memory::Cuda;
use super::params::{CAPTURED, RECORD_BYTES};
use crate::driver::{Memory, Pinned};
use crate::error::Result;
use crate::plan::device::HandleArrays;
use crate::plan::request::Address;
use std::ops::Range;
use std::sync::atomic::Ordering;

pub struct HandleMemory {
    memory: Memory,
    pub(super) arrays: HandleArrays,
    counts: Pinned,
    /// The launch whose counts are the newest to come.
    pub(super) awaited: u64,
}

impl HandleMemory {
    pub fn new(cuda: &Cuda) -> Result<HandleMemory> {
        let arrays = HandleArrays::of(&cuda.config, cuda.me, RECORD_BYTES)?;
        let device = cuda.device();
        let _guard = device.enter()?;
        let memory = cuda.site.allocate(arrays.bytes)?;
        // SAFETY: the memory is new.
        unsafe { cuda.fill(memory.address(), 0, arrays.bytes)? };
        Ok(HandleMemory { memory, arrays, counts: Pinned::new(device, arrays.pinned_bytes)?, awaited: 0 })
    }

    /// For another handle: what the last one left is of no use.
    pub fn renew(&mut self) {
        self.awaited = 0;
        self.counts.words()[0].store(0, Ordering::Relaxed);
    }

    /// The address of one of the arrays.
    pub(super) fn at(&self, offset: u64) -> u64 {
        self.memory.address() + offset
    }

    /// Where kernels keep what they know of the handle.
    pub fn record(&self) -> u64 {
        self.at(self.arrays.record)
    }

    pub(super) fn counts_address(&self) -> u64 {
        self.counts.address()
    }

    /// The outputs that a caller may be handed, as one address range.
    pub fn own_range(&self) -> Range<Address> {
        self.at(self.arrays.out_ids) as usize..self.at(self.arrays.bytes) as usize
    }

    /// Whether the newest dispatch runs when a graph does.
    pub fn is_replayed(&self) -> bool {
        self.awaited & CAPTURED != 0
    }

    /// Packed layouts: what the last dispatch left, if it is known by now: rows (by rank) or the end of the last expert's,
    /// and a count for each local expert. After a captured one, what the newest run of any left.
    pub fn counts(&self, by_expert: bool, local_experts: usize) -> Option<(i64, Vec<i32>)> {
        let words = self.counts.words();
        let told = words[0].load(Ordering::Acquire);
        let known = match self.is_replayed() {
            false => told & !CAPTURED == self.awaited,
            true => told & CAPTURED != 0,
        };
        if self.awaited == 0 || !known {
            return None;
        }
        let word = |at: usize| words[at].load(Ordering::Relaxed) as i64;
        let rows = word(if by_expert { 2 } else { 1 });
        Some((rows, (0..local_experts).map(|expert| word(3 + expert) as i32).collect()))
    }
}
