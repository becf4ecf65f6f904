//! The structs of the C ABI. Every one but the unique id and the parts of others starts with `struct_size`;
//! fields are only ever appended, there is no padding, and 0 or null always means "choose for me".

#![allow(non_camel_case_types)]

use std::ffi::c_void;

/// One rank's membership of a group. Made by deep_ep_comm_create or deep_ep_comm_create_local.
pub struct deep_ep_comm_t {
    pub(super) inner: std::sync::Arc<crate::buffer::Comm>,
}

/// Symmetric memory for the operations of one rank. Made by deep_ep_buffer_create.
pub struct deep_ep_buffer_t {
    pub(super) inner: std::sync::Arc<crate::buffer::Buffer>,
}

/// The routing of one dispatch: what its combine needs and a cached dispatch reuses.
pub struct deep_ep_handle_t {
    pub(super) inner: crate::buffer::Handle,
}

/// The value of a CUstream or cudaStream_t; ignored by the host backend.
pub type deep_ep_stream_t = *mut c_void;

/// Tells the ranks of one group where to meet and proves that they belong together. Carry all bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct deep_ep_unique_id_t {
    pub bytes: [u8; 128],
}

/// Gathers `bytes_per_rank` bytes of every rank into `all`, in rank order. Called on the thread that is inside
/// deep_ep_comm_create, with the context of the configuration. Returns 0 on success; any other number ends the
/// create with DEEP_EP_SYSTEM.
pub type deep_ep_allgather_fn = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        mine: *const c_void,
        all: *mut c_void,
        bytes_per_rank: usize,
    ) -> i32,
>;

/// Who this rank is and how it finds the others.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct deep_ep_comm_config_t {
    /// sizeof(deep_ep_comm_config_t); set by deep_ep_comm_config_init.
    pub struct_size: usize,
    /// This rank, 0 <= rank < num_ranks. Ignored by deep_ep_comm_create_local.
    pub rank: i32,
    /// Ranks of the group, 1 to 1024.
    pub num_ranks: i32,
    /// deep_ep_backend_t.
    pub backend: u32,
    /// CUDA device ordinal; ignored by the host backend.
    pub device: i32,
    /// From deep_ep_unique_id_create on one rank, the same on all. All zero: meet through `allgather`.
    pub unique_id: deep_ep_unique_id_t,
    /// The caller's all-gather, or null.
    pub allgather: deep_ep_allgather_fn,
    /// Passed to `allgather`; may be null.
    pub allgather_context: *mut c_void,
    /// Milliseconds until the rendezvous gives up. 0: 60000.
    pub timeout_ms: u32,
    /// 0.
    pub reserved: u32,
}

/// Capacities of a buffer, in rows and bytes: types and hidden belong to each operation. Equal on all ranks.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct deep_ep_buffer_config_t {
    /// sizeof(deep_ep_buffer_config_t); set by deep_ep_buffer_config_init.
    pub struct_size: usize,
    /// deep_ep_layout_t.
    pub layout: u32,
    /// deep_ep_sync_t.
    pub sync: u32,
    /// Tokens a rank sends in one operation, at least 1. An operation may send fewer, also none.
    pub max_tokens: i64,
    /// Packed layouts: rows a rank receives over the link in one operation, its own included; rows beyond are
    /// dropped and reported. 0: num_ranks * max_tokens, which never overflows. Slotted layouts: 0 or exactly that.
    pub max_recv_rows: i64,
    /// PACKED_BY_EXPERT: rows after expansion and alignment; rows beyond are dropped and reported. 0: the worst
    /// case. Other layouts: 0.
    pub max_expert_rows: i64,
    /// Largest row of a dispatch as it crosses (cast to FP8: hidden bytes): a multiple of 16, at least 16.
    pub max_row_bytes: i64,
    /// Largest scales of one row as they cross, in bytes: 4 for each 128 elements begun, for packed UE8M0 4 for each
    /// 512 begun. 0: no scales.
    pub max_scale_bytes: i64,
    /// Largest row of a combine, in bytes: a multiple of 16. 0: max_row_bytes, which is too small where rows cross as
    /// FP8 and come back wider.
    pub max_combine_row_bytes: i64,
    /// Experts of the whole group, at least 1. Fewer than num_ranks leaves ranks without experts.
    pub num_experts: i32,
    /// Experts per token, 1 to 32, at most num_experts.
    pub num_topk: i32,
    /// PACKED_BY_EXPERT: every expert's rows start at a multiple of this, 1 to 65536; the gap is filled with zeros.
    /// 0: 1. Other layouts: 0 or 1.
    pub expert_alignment: i32,
    /// Windows for dispatch, at most 64: dispatches in flight or open in place at a time. 0: max_in_flight (packed),
    /// 2 * max_in_flight (slotted).
    pub dispatch_windows: i32,
    /// Windows for combine, at most 64: likewise. 0: the same rule.
    pub combine_windows: i32,
    /// Operations sent and not yet received, the newest included, at most 8. 0: 1.
    pub max_in_flight: i32,
    /// CUDA: SMs an operation may use. 0: chosen from the shape. Host: 0.
    pub num_sms: i32,
    /// CUDA: stages of the pipeline, 1 to 3. 0: chosen from the shape. Host: 0.
    pub num_stages: i32,
    /// Milliseconds any wait of an operation may last. 0: 30000.
    pub timeout_ms: u32,
    /// The same for create, for the first operation and for the first after a reset. 0: the larger of 120000 and
    /// timeout_ms.
    pub first_timeout_ms: u32,
    /// DEEP_EP_BUFFER_REFUSE_BAD_IDS, DEEP_EP_BUFFER_TRACE.
    pub flags: u32,
    /// 0.
    pub reserved: u32,
}

/// The exact bytes a buffer takes on one rank, allocator rounding included.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct deep_ep_buffer_sizes_t {
    /// sizeof(deep_ep_buffer_sizes_t); set by deep_ep_buffer_sizes_init.
    pub struct_size: usize,
    /// All dispatch windows together.
    pub dispatch_window: i64,
    /// All combine windows together.
    pub combine_window: i64,
    /// Signal words, counts, verdicts and the reset mailbox, and the rounding of the symmetric region.
    pub signals: i64,
    /// Areas that peers do not see: by expert for received rows, in all layouts but PACKED_BY_RANK for combine inputs.
    pub local_outputs: i64,
    /// What each deep_ep_handle_create adds. Not part of the totals.
    pub handle: i64,
    /// CUDA: pinned host memory. Host: 0.
    pub pinned_host: i64,
    /// Memory mapped by all ranks: the two windows and the signals.
    pub total_symmetric: i64,
    /// total_symmetric + local_outputs: what deep_ep_buffer_create allocates.
    pub total_device: i64,
    /// How many slabs the received rows have, and how many rows the library's own memory holds in each: one slab of all
    /// rows (packed), one for each rank or local expert (slotted). Side outputs of a dispatch in place have as many.
    pub slabs: i64,
    pub slab_rows: i64,
}

/// A matrix of rows. Pointers and strides are multiples of 16.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct deep_ep_rows_t {
    /// The first row. Outputs of a dispatch and inputs of a combine: null means in place; in outputs the library then
    /// fills in all fields.
    pub data: *mut c_void,
    /// How many rows fit at data: in slotted layouts per slab for outputs of a dispatch and inputs of a combine, else in
    /// all. Outputs of a dispatch must say it unless in place; elsewhere 0 means that the caller vouches for enough.
    pub rows: i64,
    /// Bytes from one row to the next. 0: rows follow each other without a gap.
    pub row_stride: i64,
    /// Bytes from one slab to the next (slotted layouts). 0: rows * row_stride.
    pub slot_stride: i64,
    /// deep_ep_dtype_t.
    pub dtype: u32,
    /// 0.
    pub reserved: u32,
}

/// Scales beside rows.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct deep_ep_scales_t {
    /// The first scale; a multiple of 4. Outputs: null means in place.
    pub data: *mut c_void,
    /// Bytes from one row's scales to the next row's. 0: no gap (inputs), the padding the library uses (in place).
    pub row_stride: i64,
    /// Bytes from one scale of a row to its next. 0 or 4: row-major. Otherwise column-major; by-expert outputs may
    /// choose it (in place any other number asks for it and the library sets 4 * rows rounded up to 4 rows).
    pub col_stride: i64,
    /// Bytes from one slab to the next (slotted layouts). 0: without a gap.
    pub slot_stride: i64,
    /// deep_ep_scale_dtype_t.
    pub dtype: u32,
    /// Elements per scale. 0: 128. DEEP_EP_SCALE_OPAQUE: bytes per row, a multiple of 4.
    pub block: i32,
}

/// What a rank sends in a dispatch.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct deep_ep_dispatch_in_t {
    /// sizeof(deep_ep_dispatch_in_t); set by deep_ep_dispatch_in_init.
    pub struct_size: usize,
    /// 0 or DEEP_EP_DISPATCH_CACHED.
    pub flags: u32,
    /// CUDA: SMs of this call. 0: the buffer's. Host: 0.
    pub num_sms: i32,
    /// Tokens of this rank, 0 to max_tokens. Cached: 0 or as in the dispatch whose routing is reused.
    pub num_tokens: i64,
    /// Null, or where the number of tokens is read when the operation runs, clamped to 0 .. num_tokens. Host: host
    /// memory; CUDA: device memory.
    pub num_tokens_device: *const i32,
    /// Elements per row of x; on one call the same on all ranks.
    pub hidden: i64,
    /// [num_tokens, hidden]; data may be null when num_tokens is 0. Read before the call returns (host).
    pub x: deep_ep_rows_t,
    /// Scales of x, required for FP8 rows. dtype DEEP_EP_SCALE_NONE: x has none.
    pub x_scales: deep_ep_scales_t,
    /// [num_tokens, num_topk] global expert ids; -1 is "no expert", the only sentinel. Any other id out of
    /// 0 .. num_experts - 1, and a repetition of an id in its row, is treated as -1 and reported. Null only with no
    /// tokens or with DEEP_EP_DISPATCH_CACHED.
    pub topk_idx: *const c_void,
    /// [num_tokens, num_topk], or null: all 1 (cached: the earlier ones are kept). Never read where the id is -1.
    pub topk_weights: *const f32,
    /// DEEP_EP_INT32 or DEEP_EP_INT64.
    pub topk_idx_dtype: u32,
    /// What crosses and arrives. 0: as x. DEEP_EP_FP8_E4M3 with BF16, FP16 or FP32 rows: cast on the way.
    pub wire_dtype: u32,
    /// deep_ep_scale_dtype_t of the cast. 0: as x_scales, or DEEP_EP_SCALE_FP32 for a cast.
    pub wire_scale_dtype: u32,
    /// Elements per scale of the cast. 0: 128; nothing else is supported.
    pub wire_scale_block: i32,
}

/// Where a dispatch arrives. Side outputs have a row for each row that x holds: row i of slab s is element s * x.rows + i,
/// also of weights given to a combine (in place the library sets x.rows, to sizes.slab_rows in slotted layouts). Every null
/// pointer is filled with the address of library memory, which holds until the handle's combine or release (x, scales) or
/// its next dispatch (all else). A pointer that the library filled in counts as null, so a struct can be reused with the
/// same buffer, by any handle; init it again for another buffer. Ids, weights, sources and counts in library memory are to
/// be read: what a caller writes there may be found again after a later dispatch. No field means "not wanted".
#[repr(C)]
#[derive(Clone, Copy)]
pub struct deep_ep_dispatch_out_t {
    /// sizeof(deep_ep_dispatch_out_t); set by deep_ep_dispatch_out_init.
    pub struct_size: usize,
    /// The received rows. dtype 0 is filled in, any other must be what was sent. rows below the buffer's capacity
    /// lowers the capacity of this call.
    pub x: deep_ep_rows_t,
    /// The received scales; as many rows as x.
    pub scales: deep_ep_scales_t,
    /// By rank: [rows, num_topk] local expert ids. By expert: [rows] the row's local expert. -1: none, a pad, or
    /// past the end. Written for all rows that fit.
    pub topk_idx: *mut i32,
    /// Shaped like topk_idx; 0 where the id is -1.
    pub topk_weights: *mut f32,
    /// [rows] source rank * max_tokens + token; -1 in pads and past the end.
    pub row_source: *mut i64,
    /// [num_ranks] rows present from each source: as they crossed, not as they were expanded.
    pub rank_counts: *mut i32,
    /// [local experts] rows present for each local expert, pads not counted.
    pub expert_counts: *mut i32,
    /// PACKED_BY_EXPERT: [local experts + 1] aligned start of each expert's rows, then the end of the last.
    /// Other layouts: stays null.
    pub expert_offsets: *mut i64,
    /// [2]: rows that were sent to this rank, and rows after expansion, the gaps of alignment counted (by rank: the same
    /// as the first). More than are present on overflow.
    pub true_rows: *mut i64,
    /// SLOTTED_BY_EXPERT: [local experts, num_ranks, 2] begin and count of each source's rows in a slab; an empty
    /// source begins where the one before it ends.
    /// Other layouts: stays null.
    pub source_ranges: *mut i32,
}

/// What a rank gives to a combine: one row for each row it received.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct deep_ep_combine_in_t {
    /// sizeof(deep_ep_combine_in_t); set by deep_ep_combine_in_init.
    pub struct_size: usize,
    /// DEEP_EP_COMBINE_EXACT, DEEP_EP_COMBINE_WEIGHTS_OF_DISPATCH.
    pub flags: u32,
    /// CUDA: SMs of this call. 0: the buffer's. Host: 0.
    pub num_sms: i32,
    /// Elements per row. 0: that of the handle's last dispatch.
    pub hidden: i64,
    /// BF16, FP16 or FP32 rows, laid out as the dispatch was. By rank: the caller's partial sums. By expert: expert
    /// outputs. data null, or as deep_ep_handle_combine_input returned it: the combine input area was written. A rank
    /// that has received no rows may pass null in any case.
    pub x: deep_ep_rows_t,
    /// Null, or [rows]: multiplied in on the expert's rank.
    pub row_weights: *const f32,
    /// Null, or [num_tokens, num_topk]: multiplied in on the token's rank; DEEP_EP_COMBINE_EXACT only.
    pub topk_weights: *const f32,
    /// Null, or shaped like dispatch_out.topk_weights: brought back, not multiplied. Null on all ranks or on none. By
    /// rank all num_topk numbers of a row are added, so leave 0 where the local id is -1, as dispatch writes them.
    pub carried_weights: *const f32,
}

/// Where a combine's sums go.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct deep_ep_combine_out_t {
    /// sizeof(deep_ep_combine_out_t); set by deep_ep_combine_out_init.
    pub struct_size: usize,
    /// [num_tokens, hidden]; data may be null only with no tokens. dtype 0, or that of the combined rows.
    pub x: deep_ep_rows_t,
    /// Null, or rows like x (same stride, same type): the sum starts from bias[0] + bias[1].
    pub bias: [*const c_void; 2],
    /// Null, or [num_tokens, num_topk]: sum over ranks of the carried weights, 0 where the id is -1.
    pub carried_weights: *mut f32,
}

/// What went wrong, as far as programs can use it. Zero or -1 where a field does not apply.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct deep_ep_report_t {
    /// sizeof(deep_ep_report_t); set by deep_ep_report_init.
    pub struct_size: usize,
    /// DEEP_EP_SUCCESS: nothing to report.
    pub status: super::deep_ep_status_t,
    /// deep_ep_operation_t.
    pub operation: u32,
    /// deep_ep_phase_t.
    pub phase: u32,
    /// The rank that writes this report.
    pub rank: i32,
    /// How many ranks were missing, and the first of them, or the rank that aborted; -1: none.
    pub num_missing: i32,
    pub first_missing: i32,
    /// The operation's number on this buffer.
    pub epoch: u64,
    /// The signal that was waited for and the newest that had come, from first_missing.
    pub expected: u64,
    pub seen: u64,
    /// Bad expert id: row and value. Overflow: rows that fit and rows that were sent.
    pub row: i64,
    pub value: i64,
    /// How long the wait lasted.
    pub waited_ms: u32,
    /// 0.
    pub reserved: u32,
}

/// Totals of one buffer since create. CUDA: of what has run on the device, replays of graphs included.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct deep_ep_statistics_t {
    /// sizeof(deep_ep_statistics_t); set by deep_ep_statistics_init.
    pub struct_size: usize,
    /// The newest operation begun.
    pub epoch: u64,
    pub dispatches: u64,
    pub combines: u64,
    pub barriers: u64,
    /// Operations that had to wait for an entry barrier before they could write.
    pub entry_barriers: u64,
    /// Rows and bytes (rows, scales, ids, weights) written to peers and received from them, this rank included.
    pub rows_sent: u64,
    pub rows_received: u64,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    /// Nanoseconds spent waiting for peers: in the last operation and in all. CUDA: as one of the waiting blocks saw it.
    pub wait_ns_last: u64,
    pub wait_ns_total: u64,
}

/// The part of the totals that one peer accounts for.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct deep_ep_peer_statistics_t {
    /// sizeof(deep_ep_peer_statistics_t); set by deep_ep_peer_statistics_init.
    pub struct_size: usize,
    pub rows_sent: u64,
    pub rows_received: u64,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    /// Nanoseconds this rank waited until this peer's last signal came, counted from the wait's begin.
    pub wait_ns_last: u64,
    pub wait_ns_total: u64,
}
