//! The numbers callers pass for choices. Structs carry them as `uint32_t`, so that an unknown number is an
//! error of the call and never an invalid value of a type.

#![allow(non_camel_case_types)]

/// Where the ranks of a group exchange their rows.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum deep_ep_backend_t {
    /// CUDA where the library supports it and the machine has it, else the host. This version: the host.
    DEEP_EP_BACKEND_AUTO = 0,
    /// Shared memory of one machine; ranks are threads or processes. Needs no GPU.
    DEEP_EP_BACKEND_HOST = 1,
    /// GPUs of one NVLink domain: packed layouts, in libraries built with CUDA; DEEP_EP_UNSUPPORTED in others.
    DEEP_EP_BACKEND_CUDA = 2,
}

/// How dispatch arranges the received rows. R ranks, T = max_tokens, H elements per row.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum deep_ep_layout_t {
    /// [N, H] ordered by (source rank, token): one row for each token that has an expert on this rank.
    DEEP_EP_PACKED_BY_RANK = 0,
    /// [M, H] grouped by local expert at aligned offsets, inside by (source rank, token).
    DEEP_EP_PACKED_BY_EXPERT = 1,
    /// [R, T, H]: slab s holds the rows of source s from its front.
    DEEP_EP_SLOTTED_BY_RANK = 2,
    /// [local experts, R * T, H]: slab l holds the rows of local expert l from its front, by (source, token).
    DEEP_EP_SLOTTED_BY_EXPERT = 3,
}

/// How a rank makes sure that a window it writes into is no longer read. Same results, other waits.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum deep_ep_sync_t {
    /// Write at once where the signals already received prove it safe, else behind an entry barrier.
    DEEP_EP_SYNC_AUTO = 0,
    /// Readers send a signal back when they have read; writers wait for it.
    DEEP_EP_SYNC_ACK = 1,
    /// Every operation begins with a barrier of all ranks.
    DEEP_EP_SYNC_BARRIER = 2,
}

/// Element types. Rows: BF16, FP16, FP32, FP8_E4M3, OPAQUE. Expert ids: INT32, INT64.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum deep_ep_dtype_t {
    /// Not said: the field's documentation tells what it then is.
    DEEP_EP_DTYPE_NONE = 0,
    DEEP_EP_BF16 = 1,
    DEEP_EP_FP16 = 2,
    DEEP_EP_FP32 = 3,
    /// 1 sign, 4 exponent and 3 mantissa bits, no infinity, largest value 448. Rows of it need scales.
    DEEP_EP_FP8_E4M3 = 4,
    /// Bytes that are moved and never looked at; hidden counts bytes.
    DEEP_EP_OPAQUE = 5,
    DEEP_EP_INT32 = 6,
    DEEP_EP_INT64 = 7,
}

/// Kinds of scales beside FP8 or opaque rows.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum deep_ep_scale_dtype_t {
    DEEP_EP_SCALE_NONE = 0,
    /// One float per block, to multiply its FP8 values by. A cast makes it amax / 448, amax being the largest finite
    /// magnitude of the block, at least 1e-4.
    DEEP_EP_SCALE_FP32 = 1,
    /// The same, rounded up to a power of two.
    DEEP_EP_SCALE_FP32_POW2 = 2,
    /// Powers of two as exponents: a byte e means 2^(e - 127). Four blocks in one int32, the first in the lowest byte;
    /// unused bytes are 0.
    DEEP_EP_SCALE_UE8M0_PACKED = 3,
    /// `block` bytes per row that are moved and never looked at.
    DEEP_EP_SCALE_OPAQUE = 4,
}

/// What a report's operation field names.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum deep_ep_operation_t {
    DEEP_EP_OPERATION_NONE = 0,
    DEEP_EP_OPERATION_DISPATCH = 1,
    DEEP_EP_OPERATION_COMBINE = 2,
    DEEP_EP_OPERATION_BARRIER = 3,
    DEEP_EP_OPERATION_RESET = 4,
}

/// What a report's phase field names: the signal that was waited for.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum deep_ep_phase_t {
    DEEP_EP_PHASE_NONE = 0,
    /// Entry barrier: the peer has begun the operation.
    DEEP_EP_PHASE_ENTER = 1,
    /// Packed dispatch: the peer's counts.
    DEEP_EP_PHASE_COUNTS = 2,
    /// The peer's rows, or its arrival at a barrier.
    DEEP_EP_PHASE_DATA = 3,
    /// The peer has read (DEEP_EP_SYNC_ACK).
    DEEP_EP_PHASE_READ = 4,
}

/// buffer_config.flags: refuse a dispatch with an out-of-range or repeated expert id before any peer is
/// signalled, instead of treating the id as -1 and reporting it. Host backend only.
pub const DEEP_EP_BUFFER_REFUSE_BAD_IDS: u32 = 1;
/// buffer_config.flags: record the times of the phases for deep_ep_buffer_trace.
pub const DEEP_EP_BUFFER_TRACE: u32 = 2;

/// dispatch_in.flags: reuse the routing of the handle's last dispatch; topk_idx must be null.
pub const DEEP_EP_DISPATCH_CACHED: u32 = 1;

/// combine_in.flags: every expert row crosses to the token's rank, which makes one FP32 sum in ascending k:
/// the same bits for every number of ranks. By-expert layouts only.
pub const DEEP_EP_COMBINE_EXACT: u32 = 1;
/// combine_in.flags: multiply by the weights of the handle's last dispatch: in the reduced mode on the
/// expert's rank, with DEEP_EP_COMBINE_EXACT on the token's rank. By-expert layouts only.
pub const DEEP_EP_COMBINE_WEIGHTS_OF_DISPATCH: u32 = 2;
