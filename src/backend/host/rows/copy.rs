//! Moving rows. Large operations write past the caches, so that a row costs one read and one write of memory, and
//! not the read of the destination that an ordinary store begins with.

use std::ptr;
use std::sync::OnceLock;

/// How an operation writes its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// By ordinary stores: what is written is likely to be read from a cache soon.
    Cached,
    /// By non-temporal stores, where the processor has them; to be followed by [`copy_fence`].
    Past,
}

impl Stream {
    /// The choice for an operation that writes `bytes` in all; where ranks share a host, count those of all of them.
    pub fn for_bytes(bytes: usize) -> Stream {
        if bytes >= past_from() {
            Stream::Past
        } else {
            Stream::Cached
        }
    }
}

/// The size from which an operation's rows are taken to be gone from the caches before they are read: an eighth of
/// the last-level cache, which others use too, and in which source and destination both take room. Measured from
/// the writer's start to the reader's end, the two ways break even at 16 to 32 MB beside a cache of 260 MB.
pub(super) fn past_from() -> usize {
    static PAST_FROM: OnceLock<usize> = OnceLock::new();
    *PAST_FROM.get_or_init(|| (last_level_cache() / 8).max(4 << 20))
}

/// Its size in bytes, 0 if unknown.
fn last_level_cache() -> usize {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: sysconf has no preconditions.
    return usize::try_from(unsafe { libc::sysconf(libc::_SC_LEVEL3_CACHE_SIZE) }).unwrap_or(0);
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    0
}

/// Bytes of the source that [`copy_row_to_many`] keeps in the first-level cache while all destinations get them.
const PIECE: usize = 8192;

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

    const LINE: usize = 64;
    /// Bytes copied at a time: whole lines, so that no non-temporal store leaves one half written.
    const ROUND: usize = 2 * LINE;
    /// From this size on the two halves of a row are copied in step: with two places to read ahead of, the
    /// prefetchers get more from memory.
    const HALVES_FROM: usize = 2048;

    #[target_feature(enable = "avx2")]
    pub unsafe fn copy(src: *const u8, dst: *mut u8, bytes: usize) {
        // SAFETY: head, rounds and rest cover `bytes` without passing its end; behind the head all rounds begin at
        // a line.
        unsafe {
            // Part of a line at either end by ordinary stores: a non-temporal one would write less than a line.
            let head = dst.align_offset(LINE).min(bytes);
            ptr::copy_nonoverlapping(src, dst, head);
            let mut at = head;
            if bytes >= HALVES_FROM {
                let half = (bytes - head) / (2 * ROUND) * ROUND;
                while at < head + half {
                    round(src.add(at), dst.add(at));
                    round(src.add(at + half), dst.add(at + half));
                    at += ROUND;
                }
                at += half;
            }
            while at + ROUND <= bytes {
                round(src.add(at), dst.add(at));
                at += ROUND;
            }
            ptr::copy_nonoverlapping(src.add(at), dst.add(at), bytes - at);
        }
    }

    /// Copies `ROUND` bytes; inlined where AVX2 is enabled.
    #[inline(always)]
    unsafe fn round(src: *const u8, dst: *mut u8) {
        // SAFETY: the caller has checked the size and aligned `dst`.
        unsafe {
            let a = _mm256_loadu_si256(src.cast());
            let b = _mm256_loadu_si256(src.add(32).cast());
            let c = _mm256_loadu_si256(src.add(64).cast());
            let d = _mm256_loadu_si256(src.add(96).cast());
            _mm256_stream_si256(dst.cast(), a);
            _mm256_stream_si256(dst.add(32).cast(), b);
            _mm256_stream_si256(dst.add(64).cast(), c);
            _mm256_stream_si256(dst.add(96).cast(), d);
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
