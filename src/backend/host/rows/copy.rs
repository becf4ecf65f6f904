//! Moving rows. Large operations write past the caches, so that a row costs one read and one write of memory, and
//! not the read of the destination that an ordinary store begins with.

use std::ptr;

/// How an operation writes its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// By ordinary stores: what is written is likely to be read from a cache soon.
    Cached,
    /// By non-temporal stores, where the processor has them; to be followed by [`copy_fence`].
    Past,
}

impl Stream {
    /// Operations that write at least this much are taken not to fit in a cache until they are read.
    pub const PAST_FROM: usize = 4 << 20;

    /// The choice for an operation that writes `bytes` in all.
    pub const fn for_bytes(bytes: usize) -> Stream {
        if bytes >= Stream::PAST_FROM {
            Stream::Past
        } else {
            Stream::Cached
        }
    }
}

/// Bytes of the source that [`copy_row_to_many`] keeps in the first-level cache while all destinations get them.
const PIECE: usize = 4096;

/// Copies one row.
///
/// # Safety
/// `src` is valid for reads and `dst` for writes of `bytes`, without overlap.
#[inline]
pub unsafe fn copy_row(src: *const u8, dst: *mut u8, bytes: usize, stream: Stream) {
    // SAFETY: as the caller promises, and the processor has been asked.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if stream == Stream::Past && super::has_avx2() {
            return vector::copy(src, dst, bytes);
        }
        let _ = stream;
        ptr::copy_nonoverlapping(src, dst, bytes);
    }
}

/// Copies one row to several places, reading it from memory once.
///
/// # Safety
/// As [`copy_row`], for each of `dsts`; they do not overlap one another.
pub unsafe fn copy_row_to_many(src: *const u8, dsts: &[*mut u8], bytes: usize, stream: Stream) {
    for first in (0..bytes).step_by(PIECE) {
        let piece = PIECE.min(bytes - first);
        for dst in dsts {
            // SAFETY: the piece lies in the row.
            unsafe { copy_row(src.add(first), dst.add(first), piece, stream) };
        }
    }
}

/// Writes zeros over one row.
///
/// # Safety
/// `dst` is valid for writes of `bytes`.
#[inline]
pub unsafe fn zero_row(dst: *mut u8, bytes: usize, stream: Stream) {
    // SAFETY: as the caller promises, and the processor has been asked.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if stream == Stream::Past && super::has_avx2() {
            return vector::zero(dst, bytes);
        }
        let _ = stream;
        ptr::write_bytes(dst, 0, bytes);
    }
}

/// Orders everything this thread wrote with [`Stream::Past`] before its later stores. A release store alone does
/// not: non-temporal stores may overtake it.
#[inline]
pub fn copy_fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of every x86-64 processor.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(target_arch = "x86_64")]
mod vector {
    use std::arch::x86_64::*;
    use std::ptr;

    /// Two cache lines a round: enough loads in flight, and lines are always written whole.
    const ROUND: usize = 128;
    const LINE: usize = 64;

    #[target_feature(enable = "avx2")]
    pub unsafe fn copy(src: *const u8, dst: *mut u8, bytes: usize) {
        // SAFETY: head, rounds and rest cover `bytes` without passing its end; the stores are aligned behind the
        // head. A prefetch may name any address.
        unsafe {
            // Part of a line at either end by ordinary stores: a non-temporal one would write less than a line.
            let head = dst.align_offset(LINE).min(bytes);
            ptr::copy_nonoverlapping(src, dst, head);
            let mut at = head;
            while at + ROUND <= bytes {
                let from = src.add(at);
                let to = dst.add(at);
                let a = _mm256_loadu_si256(from.cast());
                let b = _mm256_loadu_si256(from.add(32).cast());
                let c = _mm256_loadu_si256(from.add(64).cast());
                let d = _mm256_loadu_si256(from.add(96).cast());
                _mm256_stream_si256(to.cast(), a);
                _mm256_stream_si256(to.add(32).cast(), b);
                _mm256_stream_si256(to.add(64).cast(), c);
                _mm256_stream_si256(to.add(96).cast(), d);
                at += ROUND;
            }
            ptr::copy_nonoverlapping(src.add(at), dst.add(at), bytes - at);
        }
    }

    #[target_feature(enable = "avx2")]
    pub unsafe fn zero(dst: *mut u8, bytes: usize) {
        // SAFETY: as for `copy`.
        unsafe {
            let head = dst.align_offset(LINE).min(bytes);
            ptr::write_bytes(dst, 0, head);
            let mut at = head;
            while at + LINE <= bytes {
                _mm256_stream_si256(dst.add(at).cast(), _mm256_setzero_si256());
                _mm256_stream_si256(dst.add(at + 32).cast(), _mm256_setzero_si256());
                at += LINE;
            }
            ptr::write_bytes(dst.add(at), 0, bytes - at);
        }
    }
}
