//! What a call can come back with: a status for programs, a sentence for people.

use std::fmt::Display;

/// Result of every call. 0 is success; the groups say where the cause lies: 1-19 the caller, 20-39 the
/// environment, 40-59 a subsystem, 60-79 peers and time, 90-99 the library itself. Numbers never change.
#[allow(non_camel_case_types)]
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum deep_ep_status_t {
    DEEP_EP_SUCCESS = 0,
    /// An argument is null, out of range, misaligned or contradicts another.
    DEEP_EP_INVALID_ARGUMENT = 1,
    /// The call is not allowed in this state, for instance a receive without its send.
    DEEP_EP_INVALID_STATE = 2,
    /// More rows or bytes than the buffer was created for.
    DEEP_EP_CAPACITY_EXCEEDED = 3,
    /// Legal, but not on this backend or not in this combination.
    DEEP_EP_UNSUPPORTED = 4,
    /// A struct_size that no version of the library had, or unknown fields that are not zero.
    DEEP_EP_ABI_MISMATCH = 5,
    /// Ranks passed different configurations.
    DEEP_EP_CONFIG_MISMATCH = 6,
    /// No window or area is free, or too many operations are in flight: combine, release or receive first.
    DEEP_EP_BUSY = 7,
    /// Two calls ran on one buffer at the same time.
    DEEP_EP_CONCURRENT_USE = 8,
    /// An expert id was out of range or repeated in its row; it was treated as -1.
    DEEP_EP_INVALID_EXPERT_ID = 9,
    /// No CUDA driver on this machine.
    DEEP_EP_NO_DRIVER = 20,
    /// The CUDA driver is older than the library needs.
    DEEP_EP_DRIVER_TOO_OLD = 21,
    /// No such CUDA device.
    DEEP_EP_NO_DEVICE = 22,
    /// The library holds no kernels for this GPU.
    DEEP_EP_NO_KERNEL_IMAGE = 23,
    /// Memory could not be had.
    DEEP_EP_OUT_OF_MEMORY = 24,
    /// A peer is on another host, or its memory cannot be mapped here.
    DEEP_EP_PEER_UNREACHABLE = 25,
    /// A CUDA driver call failed.
    DEEP_EP_CUDA = 40,
    /// A system call failed.
    DEEP_EP_SYSTEM = 42,
    /// A peer did not come within the deadline.
    DEEP_EP_TIMEOUT = 60,
    /// A peer broke the protocol: it came twice, or answered what no rank of this library answers.
    DEEP_EP_PEER_FAILED = 61,
    /// A rank called deep_ep_comm_abort.
    DEEP_EP_ABORTED = 62,
    /// A peer runs another operation than this rank.
    DEEP_EP_OP_MISMATCH = 63,
    /// A defect of the library.
    DEEP_EP_INTERNAL = 90,
    /// A defect of the library that was stopped at its boundary.
    DEEP_EP_PANIC = 91,
}

pub use deep_ep_status_t as Status;

impl Status {
    /// The short name that `deep_ep_status_string` returns, with the C terminator.
    pub fn name(self) -> &'static std::ffi::CStr {
        use deep_ep_status_t::*;
        match self {
            DEEP_EP_SUCCESS => c"success",
            DEEP_EP_INVALID_ARGUMENT => c"invalid argument",
            DEEP_EP_INVALID_STATE => c"invalid state",
            DEEP_EP_CAPACITY_EXCEEDED => c"capacity exceeded",
            DEEP_EP_UNSUPPORTED => c"unsupported",
            DEEP_EP_ABI_MISMATCH => c"ABI mismatch",
            DEEP_EP_CONFIG_MISMATCH => c"configurations differ between ranks",
            DEEP_EP_BUSY => c"busy",
            DEEP_EP_CONCURRENT_USE => c"concurrent use",
            DEEP_EP_INVALID_EXPERT_ID => c"invalid expert id",
            DEEP_EP_NO_DRIVER => c"no CUDA driver",
            DEEP_EP_DRIVER_TOO_OLD => c"CUDA driver too old",
            DEEP_EP_NO_DEVICE => c"no such device",
            DEEP_EP_NO_KERNEL_IMAGE => c"no kernels for this GPU",
            DEEP_EP_OUT_OF_MEMORY => c"out of memory",
            DEEP_EP_PEER_UNREACHABLE => c"peer unreachable",
            DEEP_EP_CUDA => c"CUDA error",
            DEEP_EP_SYSTEM => c"system error",
            DEEP_EP_TIMEOUT => c"timeout",
            DEEP_EP_PEER_FAILED => c"peer failed",
            DEEP_EP_ABORTED => c"aborted",
            DEEP_EP_OP_MISMATCH => c"ranks run different operations",
            DEEP_EP_INTERNAL => c"internal error",
            DEEP_EP_PANIC => c"internal panic",
        }
    }

    /// Every status, in ascending order.
    pub const ALL: [Status; 24] = {
        use deep_ep_status_t::*;
        [
            DEEP_EP_SUCCESS,
            DEEP_EP_INVALID_ARGUMENT,
            DEEP_EP_INVALID_STATE,
            DEEP_EP_CAPACITY_EXCEEDED,
            DEEP_EP_UNSUPPORTED,
            DEEP_EP_ABI_MISMATCH,
            DEEP_EP_CONFIG_MISMATCH,
            DEEP_EP_BUSY,
            DEEP_EP_CONCURRENT_USE,
            DEEP_EP_INVALID_EXPERT_ID,
            DEEP_EP_NO_DRIVER,
            DEEP_EP_DRIVER_TOO_OLD,
            DEEP_EP_NO_DEVICE,
            DEEP_EP_NO_KERNEL_IMAGE,
            DEEP_EP_OUT_OF_MEMORY,
            DEEP_EP_PEER_UNREACHABLE,
            DEEP_EP_CUDA,
            DEEP_EP_SYSTEM,
            DEEP_EP_TIMEOUT,
            DEEP_EP_PEER_FAILED,
            DEEP_EP_ABORTED,
            DEEP_EP_OP_MISMATCH,
            DEEP_EP_INTERNAL,
            DEEP_EP_PANIC,
        ]
    };
}

/// A failed call: its status and the sentence that `deep_ep_last_error` shows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Error {
    pub status: Status,
    pub text: String,
    /// The ranks this error is about, ascending: those that never came, or the one that aborted.
    pub ranks: Vec<u32>,
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub fn new(status: Status, text: impl Display) -> Self {
        Error { status, text: text.to_string(), ranks: Vec::new() }
    }

    pub fn about(status: Status, ranks: Vec<u32>, text: impl Display) -> Self {
        Error { status, text: text.to_string(), ranks }
    }

    pub fn invalid_argument(text: impl Display) -> Self {
        Self::new(Status::DEEP_EP_INVALID_ARGUMENT, text)
    }

    pub fn invalid_state(text: impl Display) -> Self {
        Self::new(Status::DEEP_EP_INVALID_STATE, text)
    }

    pub fn unsupported(text: impl Display) -> Self {
        Self::new(Status::DEEP_EP_UNSUPPORTED, text)
    }

    /// The failure of the system call `what`, with the reason the system gave.
    pub fn system(what: impl Display) -> Self {
        let reason = std::io::Error::last_os_error();
        let status = match reason.raw_os_error() {
            Some(libc::ENOMEM) => Status::DEEP_EP_OUT_OF_MEMORY,
            _ => Status::DEEP_EP_SYSTEM,
        };
        Self::new(status, format_args!("{what}: {reason}"))
    }
}

/// "rank 3", "ranks 1, 2 and 5"; a long list is cut.
pub fn rank_list(ranks: &[u32]) -> String {
    const SHOWN: usize = 16;
    match ranks {
        [] => "no rank".to_owned(),
        [one] => format!("rank {one}"),
        [first @ .., last] if ranks.len() <= SHOWN => {
            let first: Vec<String> = first.iter().map(u32::to_string).collect();
            format!("ranks {} and {last}", first.join(", "))
        }
        _ => {
            let first: Vec<String> = ranks[..SHOWN].iter().map(u32::to_string).collect();
            format!("ranks {} and {} more", first.join(", "), ranks.len() - SHOWN)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_read_as_sentences() {
        assert_eq!(rank_list(&[3]), "rank 3");
        assert_eq!(rank_list(&[1, 2, 5]), "ranks 1, 2 and 5");
        let many: Vec<u32> = (0..20).collect();
        assert_eq!(rank_list(&many), "ranks 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 and 4 more");
    }
}
