//! Memory whose every untouched byte can be told: poisoned before a call, with guard zones on both sides.

use std::alloc::{alloc, dealloc, Layout};

const ALIGN: usize = 64;
const GUARD: usize = 192;
const GUARD_BYTE: u8 = 0xA5;
/// What outputs hold before a call.
pub const POISON: u8 = 0xC7;

/// A block of bytes at a multiple of 64.
pub struct Mem {
    base: *mut u8,
    len: usize,
}

// SAFETY: a Mem owns its bytes, as a Vec does.
unsafe impl Send for Mem {}
// SAFETY: shared access only reads.
unsafe impl Sync for Mem {}

impl Mem {
    pub fn poisoned(len: usize) -> Mem {
        // SAFETY: the size is not zero; the block is filled before anything reads it.
        let base = unsafe {
            let base = alloc(Self::layout(len));
            assert!(!base.is_null());
            base.write_bytes(GUARD_BYTE, GUARD + len + GUARD);
            base.add(GUARD).write_bytes(POISON, len);
            base
        };
        Mem { base, len }
    }

    pub fn of(bytes: &[u8]) -> Mem {
        let mut mem = Mem::poisoned(bytes.len());
        mem.bytes_mut().copy_from_slice(bytes);
        mem
    }

    pub fn of_f32(values: &[f32]) -> Mem {
        Mem::of(&values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>())
    }

    pub fn of_i32(values: &[i32]) -> Mem {
        Mem::of(&values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>())
    }

    pub fn of_i64(values: &[i64]) -> Mem {
        Mem::of(&values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>())
    }

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(GUARD + len + GUARD, ALIGN).unwrap()
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn ptr<T>(&self) -> *mut T {
        // SAFETY: the guard zone is inside the block.
        unsafe { self.base.add(GUARD) }.cast()
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the block holds that many bytes after the first guard zone.
        unsafe { std::slice::from_raw_parts(self.ptr::<u8>(), self.len) }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the access is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.ptr::<u8>(), self.len) }
    }

    pub fn poison(&mut self) {
        self.bytes_mut().fill(POISON);
    }

    /// Both guard zones are as they were.
    #[track_caller]
    pub fn check_guards(&self, what: &str) {
        for (side, offset) in [("before", 0), ("after", GUARD + self.len)] {
            // SAFETY: both zones are inside the block.
            let zone = unsafe { std::slice::from_raw_parts(self.base.add(offset), GUARD) };
            let hit = zone.iter().position(|&byte| byte != GUARD_BYTE);
            assert!(
                hit.is_none(),
                "{what}: a byte {side} the memory was written, at {hit:?} of the guard zone"
            );
        }
    }

    /// Every byte is as in `image`, and the guard zones are as they were.
    #[track_caller]
    pub fn expect(&self, image: &[u8], what: &str) {
        self.check_guards(what);
        expect_bytes(self.bytes(), image, what);
    }
}

impl Drop for Mem {
    fn drop(&mut self) {
        // SAFETY: allocated with the same layout.
        unsafe { dealloc(self.base, Self::layout(self.len)) }
    }
}

#[track_caller]
pub fn expect_bytes(found: &[u8], image: &[u8], what: &str) {
    assert_eq!(found.len(), image.len(), "{what}: length");
    if let Some(at) = (0..image.len()).find(|&i| found[i] != image[i]) {
        let end = image.len().min(at + 16);
        panic!(
            "{what}: byte {at} of {} differs: found {:02x?}, expected {:02x?}",
            image.len(),
            &found[at..end],
            &image[at..end]
        );
    }
}

/// A copy of `len` bytes of the library's memory.
pub fn copy_out(pointer: *const u8, len: usize) -> Vec<u8> {
    if len == 0 {
        return Vec::new();
    }
    assert!(!pointer.is_null(), "a pointer to {len} bytes is null");
    // SAFETY: the library says that so many bytes are there.
    unsafe { std::slice::from_raw_parts(pointer, len) }.to_vec()
}

pub fn le_bytes_i32(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

pub fn le_bytes_i64(values: &[i64]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

pub fn le_bytes_f32(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}
