/* libdeepep: expert-parallel dispatch and combine. Generated from src/capi; change it there.
 *
 * A comm is one rank's place in a group of ranks. A buffer is memory that all ranks of the group share. A handle holds
 * the routing of one dispatch. The order of calls:
 *
 *     deep_ep_unique_id_create (one rank), deep_ep_comm_create, deep_ep_buffer_create, deep_ep_handle_create,
 *     then, as often as you like, deep_ep_handle_dispatch, your experts, deep_ep_handle_combine,
 *     and the destroys, each once, in any order.
 *
 * Conventions. A struct that is passed by itself starts with struct_size and is filled by its _init function before
 * use; only deep_ep_rows_t, which combine_input takes, has neither. Where a field may stay 0 or null, its comment says
 * what that stands for; the others must be set. Functions return 0 on success; after any other result
 * deep_ep_last_error() says on the same thread what was wrong. Outputs are written only on success. The operations of
 * one buffer (dispatch, combine, their halves, barrier, and also release, combine_input and handle destroy) come in
 * the same order on all ranks. A const pointer means that the call may run beside any other; a plain pointer needs
 * exclusive use; different buffers are independent. No function changes signal masks, environment, stdout or the
 * current CUDA context of the caller.
 *
 * Words. An operation's number on its buffer is its epoch, 1 for the first one of any kind. A window is shared memory
 * for the rows of one operation, an area is memory of this rank alone for rows that the library expands or combines.
 * Rows in library memory are "in place", and the handle has "rows open" until its combine or release. A slab is the part
 * of the slotted layouts that belongs to one source or one local expert. A local expert id counts the experts of a rank:
 * deep_ep_buffer_local_experts gives their global ids. Under each function, "Collective" says whether all ranks call it,
 * "Blocks the host" what it waits for, "Capture" whether a CUDA graph may record it, "Threads" what may run beside it.
 *
 * CUDA graphs. All ranks capture the same calls and launch their graphs in the same order; eager calls may come in
 * between. A graph keeps pointers, num_tokens (as the most there may be), windows, areas and num_sms. Every replay reads
 * anew rows, ids, weights, the number at num_tokens_device, and the deadlines. A send and its receive belong in one
 * capture, or both outside of captures; otherwise the next call with that handle is INVALID_STATE. Dispatch and combine
 * may be captured apart. What a replay finds in use it does not do: counts 0, ids -1, sums untouched, and
 * DEEP_EP_BUSY in deep_ep_buffer_report, on every rank alike. Buffer, handles and memory of the caller's are to outlive
 * the graph, and replays are to be over before handle or buffer is destroyed.
 *
 * Launches are programmatic (CUDA). An operation may take its place on the GPU ahead of the end of the kernel before it on the
 * stream, if that says griddepcontrol.launch_dependents, and waits for it before it looks at memory that others write. Kernels of
 * the caller's that are launched so may come ahead of the end of an operation, and must execute griddepcontrol.wait: without it
 * what follows them is not ordered behind the operation. In a captured graph such edges have edge data.
 *
 * Expert ids: 0 to num_experts - 1, and -1 for "no expert", the only sentinel. Any other id, and a second occurrence of
 * an id in its row, is treated as -1 and reported by deep_ep_buffer_report with row and value.
 */

#ifndef DEEP_EP_H
#define DEEP_EP_H

#include <stddef.h>
#include <stdint.h>
#if defined(__GNUC__) || defined(__clang__)
#define DEEP_EP_API __attribute__((visibility("default")))
#else
#define DEEP_EP_API
#endif


/**
 * buffer_config.flags: refuse a dispatch with an out-of-range or repeated expert id before any peer is
 * signalled, instead of treating the id as -1 and reporting it. Host backend only.
 */
#define DEEP_EP_BUFFER_REFUSE_BAD_IDS 1

/**
 * buffer_config.flags: record the times of the phases for deep_ep_buffer_trace.
 */
#define DEEP_EP_BUFFER_TRACE 2

/**
 * dispatch_in.flags: reuse the routing of the handle's last dispatch; topk_idx must be null.
 */
#define DEEP_EP_DISPATCH_CACHED 1

/**
 * combine_in.flags: every expert row crosses to the token's rank, which makes one FP32 sum in ascending k:
 * the same bits for every number of ranks. By-expert layouts only.
 */
#define DEEP_EP_COMBINE_EXACT 1

/**
 * combine_in.flags: multiply by the weights of the handle's last dispatch: in the reduced mode on the
 * expert's rank, with DEEP_EP_COMBINE_EXACT on the token's rank. By-expert layouts only.
 */
#define DEEP_EP_COMBINE_WEIGHTS_OF_DISPATCH 2

/**
 * Version of this header: major, minor, patch.
 */
#define DEEP_EP_VERSION_MAJOR 0

#define DEEP_EP_VERSION_MINOR 1

#define DEEP_EP_VERSION_PATCH 0

/**
 * Result of every call. 0 is success; the groups say where the cause lies: 1-19 the caller, 20-39 the
 * environment, 40-59 a subsystem, 60-79 peers and time, 90-99 the library itself. Numbers never change.
 */
enum deep_ep_status_t
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    DEEP_EP_SUCCESS = 0,
    /**
     * An argument is null, out of range, misaligned or contradicts another.
     */
    DEEP_EP_INVALID_ARGUMENT = 1,
    /**
     * The call is not allowed in this state, for instance a receive without its send.
     */
    DEEP_EP_INVALID_STATE = 2,
    /**
     * More rows or bytes than the buffer was created for.
     */
    DEEP_EP_CAPACITY_EXCEEDED = 3,
    /**
     * Legal, but not on this backend or not in this combination.
     */
    DEEP_EP_UNSUPPORTED = 4,
    /**
     * A struct_size that no version of the library had, or unknown fields that are not zero.
     */
    DEEP_EP_ABI_MISMATCH = 5,
    /**
     * Ranks passed different configurations.
     */
    DEEP_EP_CONFIG_MISMATCH = 6,
    /**
     * No window or area is free, or too many operations are in flight: combine, release or receive first.
     */
    DEEP_EP_BUSY = 7,
    /**
     * Two calls ran on one buffer at the same time.
     */
    DEEP_EP_CONCURRENT_USE = 8,
    /**
     * An expert id was out of range or repeated in its row; it was treated as -1.
     */
    DEEP_EP_INVALID_EXPERT_ID = 9,
    /**
     * No CUDA driver on this machine.
     */
    DEEP_EP_NO_DRIVER = 20,
    /**
     * The CUDA driver is older than the library needs.
     */
    DEEP_EP_DRIVER_TOO_OLD = 21,
    /**
     * No such CUDA device.
     */
    DEEP_EP_NO_DEVICE = 22,
    /**
     * The library holds no kernels for this GPU.
     */
    DEEP_EP_NO_KERNEL_IMAGE = 23,
    /**
     * Memory could not be had.
     */
    DEEP_EP_OUT_OF_MEMORY = 24,
    /**
     * A peer is on another host, or its memory cannot be mapped here.
     */
    DEEP_EP_PEER_UNREACHABLE = 25,
    /**
     * A CUDA driver call failed.
     */
    DEEP_EP_CUDA = 40,
    /**
     * A system call failed.
     */
    DEEP_EP_SYSTEM = 42,
    /**
     * A peer did not come within the deadline.
     */
    DEEP_EP_TIMEOUT = 60,
    /**
     * A peer broke the protocol: it came twice, or answered what no rank of this library answers.
     */
    DEEP_EP_PEER_FAILED = 61,
    /**
     * A rank called deep_ep_comm_abort.
     */
    DEEP_EP_ABORTED = 62,
    /**
     * A peer runs another operation than this rank.
     */
    DEEP_EP_OP_MISMATCH = 63,
    /**
     * A defect of the library.
     */
    DEEP_EP_INTERNAL = 90,
    /**
     * A defect of the library that was stopped at its boundary.
     */
    DEEP_EP_PANIC = 91,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum deep_ep_status_t deep_ep_status_t;
#else
typedef int32_t deep_ep_status_t;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Where the ranks of a group exchange their rows.
 */
enum deep_ep_backend_t
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * CUDA where the library supports it and the machine has it, else the host. This version: the host.
     */
    DEEP_EP_BACKEND_AUTO = 0,
    /**
     * Shared memory of one machine; ranks are threads or processes. Needs no GPU.
     */
    DEEP_EP_BACKEND_HOST = 1,
    /**
     * GPUs of one NVLink domain: packed layouts, in libraries built with CUDA; DEEP_EP_UNSUPPORTED in others.
     */
    DEEP_EP_BACKEND_CUDA = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum deep_ep_backend_t deep_ep_backend_t;
#else
typedef uint32_t deep_ep_backend_t;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * How dispatch arranges the received rows. R ranks, T = max_tokens, H elements per row.
 */
enum deep_ep_layout_t
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * [N, H] ordered by (source rank, token): one row for each token that has an expert on this rank.
     */
    DEEP_EP_PACKED_BY_RANK = 0,
    /**
     * [M, H] grouped by local expert at aligned offsets, inside by (source rank, token).
     */
    DEEP_EP_PACKED_BY_EXPERT = 1,
    /**
     * [R, T, H]: slab s holds the rows of source s from its front.
     */
    DEEP_EP_SLOTTED_BY_RANK = 2,
    /**
     * [local experts, R * T, H]: slab l holds the rows of local expert l from its front, by (source, token).
     */
    DEEP_EP_SLOTTED_BY_EXPERT = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum deep_ep_layout_t deep_ep_layout_t;
#else
typedef uint32_t deep_ep_layout_t;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * How a rank makes sure that a window it writes into is no longer read. Same results, other waits.
 */
enum deep_ep_sync_t
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * Write at once where the signals already received prove it safe, else behind an entry barrier.
     */
    DEEP_EP_SYNC_AUTO = 0,
    /**
     * Readers send a signal back when they have read; writers wait for it.
     */
    DEEP_EP_SYNC_ACK = 1,
    /**
     * Every operation begins with a barrier of all ranks.
     */
    DEEP_EP_SYNC_BARRIER = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum deep_ep_sync_t deep_ep_sync_t;
#else
typedef uint32_t deep_ep_sync_t;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Element types. Rows: BF16, FP16, FP32, FP8_E4M3, OPAQUE. Expert ids: INT32, INT64.
 */
enum deep_ep_dtype_t
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * Not said: the field's documentation tells what it then is.
     */
    DEEP_EP_DTYPE_NONE = 0,
    DEEP_EP_BF16 = 1,
    DEEP_EP_FP16 = 2,
    DEEP_EP_FP32 = 3,
    /**
     * 1 sign, 4 exponent and 3 mantissa bits, no infinity, largest value 448. Rows of it need scales.
     */
    DEEP_EP_FP8_E4M3 = 4,
    /**
     * Bytes that are moved and never looked at; hidden counts bytes.
     */
    DEEP_EP_OPAQUE = 5,
    DEEP_EP_INT32 = 6,
    DEEP_EP_INT64 = 7,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum deep_ep_dtype_t deep_ep_dtype_t;
#else
typedef uint32_t deep_ep_dtype_t;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Kinds of scales beside FP8 or opaque rows.
 */
enum deep_ep_scale_dtype_t
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    DEEP_EP_SCALE_NONE = 0,
    /**
     * One float per block, to multiply its FP8 values by. A cast makes it amax / 448, amax being the largest finite
     * magnitude of the block, at least 1e-4.
     */
    DEEP_EP_SCALE_FP32 = 1,
    /**
     * The same, rounded up to a power of two.
     */
    DEEP_EP_SCALE_FP32_POW2 = 2,
    /**
     * Powers of two as exponents: a byte e means 2^(e - 127). Four blocks in one int32, the first in the lowest byte;
     * unused bytes are 0.
     */
    DEEP_EP_SCALE_UE8M0_PACKED = 3,
    /**
     * `block` bytes per row that are moved and never looked at.
     */
    DEEP_EP_SCALE_OPAQUE = 4,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum deep_ep_scale_dtype_t deep_ep_scale_dtype_t;
#else
typedef uint32_t deep_ep_scale_dtype_t;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * What a report's operation field names.
 */
enum deep_ep_operation_t
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    DEEP_EP_OPERATION_NONE = 0,
    DEEP_EP_OPERATION_DISPATCH = 1,
    DEEP_EP_OPERATION_COMBINE = 2,
    DEEP_EP_OPERATION_BARRIER = 3,
    DEEP_EP_OPERATION_RESET = 4,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum deep_ep_operation_t deep_ep_operation_t;
#else
typedef uint32_t deep_ep_operation_t;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * What a report's phase field names: the signal that was waited for.
 */
enum deep_ep_phase_t
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    DEEP_EP_PHASE_NONE = 0,
    /**
     * Entry barrier: the peer has begun the operation.
     */
    DEEP_EP_PHASE_ENTER = 1,
    /**
     * Packed dispatch: the peer's counts.
     */
    DEEP_EP_PHASE_COUNTS = 2,
    /**
     * The peer's rows, or its arrival at a barrier.
     */
    DEEP_EP_PHASE_DATA = 3,
    /**
     * The peer has read (DEEP_EP_SYNC_ACK).
     */
    DEEP_EP_PHASE_READ = 4,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum deep_ep_phase_t deep_ep_phase_t;
#else
typedef uint32_t deep_ep_phase_t;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Symmetric memory for the operations of one rank. Made by deep_ep_buffer_create.
 */
typedef struct deep_ep_buffer_t deep_ep_buffer_t;

/**
 * One rank's membership of a group. Made by deep_ep_comm_create or deep_ep_comm_create_local.
 */
typedef struct deep_ep_comm_t deep_ep_comm_t;

/**
 * The routing of one dispatch: what its combine needs and a cached dispatch reuses.
 */
typedef struct deep_ep_handle_t deep_ep_handle_t;

/**
 * Tells the ranks of one group where to meet and proves that they belong together. Carry all bytes.
 */
typedef struct {
    uint8_t bytes[128];
} deep_ep_unique_id_t;

/**
 * Gathers `bytes_per_rank` bytes of every rank into `all`, in rank order. Called on the thread that is inside
 * deep_ep_comm_create, with the context of the configuration. Returns 0 on success; any other number ends the
 * create with DEEP_EP_SYSTEM.
 */
typedef int32_t (*deep_ep_allgather_fn)(void *context,
                                        const void *mine,
                                        void *all,
                                        size_t bytes_per_rank);

/**
 * Who this rank is and how it finds the others.
 */
typedef struct {
    /**
     * sizeof(deep_ep_comm_config_t); set by deep_ep_comm_config_init.
     */
    size_t struct_size;
    /**
     * This rank, 0 <= rank < num_ranks. Ignored by deep_ep_comm_create_local.
     */
    int32_t rank;
    /**
     * Ranks of the group, 1 to 1024.
     */
    int32_t num_ranks;
    /**
     * deep_ep_backend_t.
     */
    uint32_t backend;
    /**
     * CUDA device ordinal; ignored by the host backend.
     */
    int32_t device;
    /**
     * From deep_ep_unique_id_create on one rank, the same on all. All zero: meet through `allgather`.
     */
    deep_ep_unique_id_t unique_id;
    /**
     * The caller's all-gather, or null.
     */
    deep_ep_allgather_fn allgather;
    /**
     * Passed to `allgather`; may be null.
     */
    void *allgather_context;
    /**
     * Milliseconds until the rendezvous gives up. 0: 60000.
     */
    uint32_t timeout_ms;
    /**
     * 0.
     */
    uint32_t reserved;
} deep_ep_comm_config_t;

/**
 * Capacities of a buffer, in rows and bytes: types and hidden belong to each operation. Equal on all ranks.
 */
typedef struct {
    /**
     * sizeof(deep_ep_buffer_config_t); set by deep_ep_buffer_config_init.
     */
    size_t struct_size;
    /**
     * deep_ep_layout_t.
     */
    uint32_t layout;
    /**
     * deep_ep_sync_t.
     */
    uint32_t sync;
    /**
     * Tokens a rank sends in one operation, at least 1. An operation may send fewer, also none.
     */
    int64_t max_tokens;
    /**
     * Packed layouts: rows a rank receives over the link in one operation, its own included; rows beyond are
     * dropped and reported. 0: num_ranks * max_tokens, which never overflows. Slotted layouts: 0 or exactly that.
     */
    int64_t max_recv_rows;
    /**
     * PACKED_BY_EXPERT: rows after expansion and alignment; rows beyond are dropped and reported. 0: the worst
     * case. Other layouts: 0.
     */
    int64_t max_expert_rows;
    /**
     * Largest row of a dispatch as it crosses (cast to FP8: hidden bytes): a multiple of 16, at least 16.
     */
    int64_t max_row_bytes;
    /**
     * Largest scales of one row as they cross, in bytes: 4 for each 128 elements begun, for packed UE8M0 4 for each
     * 512 begun. 0: no scales.
     */
    int64_t max_scale_bytes;
    /**
     * Largest row of a combine, in bytes: a multiple of 16. 0: max_row_bytes, which is too small where rows cross as
     * FP8 and come back wider.
     */
    int64_t max_combine_row_bytes;
    /**
     * Experts of the whole group, at least 1. Fewer than num_ranks leaves ranks without experts.
     */
    int32_t num_experts;
    /**
     * Experts per token, 1 to 32, at most num_experts.
     */
    int32_t num_topk;
    /**
     * PACKED_BY_EXPERT: every expert's rows start at a multiple of this, 1 to 65536; the gap is filled with zeros.
     * 0: 1. Other layouts: 0 or 1.
     */
    int32_t expert_alignment;
    /**
     * Windows for dispatch, at most 64: dispatches in flight or open in place at a time. 0: max_in_flight (packed),
     * 2 * max_in_flight (slotted).
     */
    int32_t dispatch_windows;
    /**
     * Windows for combine, at most 64: likewise. 0: the same rule.
     */
    int32_t combine_windows;
    /**
     * Operations sent and not yet received, the newest included, at most 8. 0: 1.
     */
    int32_t max_in_flight;
    /**
     * CUDA: SMs an operation may use. 0: chosen from the shape. Host: 0.
     */
    int32_t num_sms;
    /**
     * CUDA: stages of the pipeline, 1 to 3. 0: chosen from the shape. Host: 0.
     */
    int32_t num_stages;
    /**
     * Milliseconds any wait of an operation may last. 0: 30000.
     */
    uint32_t timeout_ms;
    /**
     * The same for create, for the first operation and for the first after a reset. 0: the larger of 120000 and
     * timeout_ms.
     */
    uint32_t first_timeout_ms;
    /**
     * DEEP_EP_BUFFER_REFUSE_BAD_IDS, DEEP_EP_BUFFER_TRACE.
     */
    uint32_t flags;
    /**
     * 0.
     */
    uint32_t reserved;
} deep_ep_buffer_config_t;

/**
 * The exact bytes a buffer takes on one rank, allocator rounding included.
 */
typedef struct {
    /**
     * sizeof(deep_ep_buffer_sizes_t); set by deep_ep_buffer_sizes_init.
     */
    size_t struct_size;
    /**
     * All dispatch windows together.
     */
    int64_t dispatch_window;
    /**
     * All combine windows together.
     */
    int64_t combine_window;
    /**
     * Signal words, counts, verdicts and the reset mailbox, and the rounding of the symmetric region.
     */
    int64_t signals;
    /**
     * Areas that peers do not see: by expert for received rows, in all layouts but PACKED_BY_RANK for combine inputs.
     */
    int64_t local_outputs;
    /**
     * What each deep_ep_handle_create adds. Not part of the totals.
     */
    int64_t handle;
    /**
     * CUDA: pinned host memory. Host: 0.
     */
    int64_t pinned_host;
    /**
     * Memory mapped by all ranks: the two windows and the signals.
     */
    int64_t total_symmetric;
    /**
     * total_symmetric + local_outputs: what deep_ep_buffer_create allocates.
     */
    int64_t total_device;
    /**
     * How many slabs the received rows have, and how many rows the library's own memory holds in each: one slab of all
     * rows (packed), one for each rank or local expert (slotted). Side outputs of a dispatch in place have as many.
     */
    int64_t slabs;
    int64_t slab_rows;
} deep_ep_buffer_sizes_t;

/**
 * A matrix of rows. Pointers and strides are multiples of 16.
 */
typedef struct {
    /**
     * The first row. Outputs of a dispatch and inputs of a combine: null means in place; in outputs the library then
     * fills in all fields.
     */
    void *data;
    /**
     * How many rows fit at data: in slotted layouts per slab for outputs of a dispatch and inputs of a combine, else in
     * all. Outputs of a dispatch must say it unless in place; elsewhere 0 means that the caller vouches for enough.
     */
    int64_t rows;
    /**
     * Bytes from one row to the next. 0: rows follow each other without a gap.
     */
    int64_t row_stride;
    /**
     * Bytes from one slab to the next (slotted layouts). 0: rows * row_stride.
     */
    int64_t slot_stride;
    /**
     * deep_ep_dtype_t.
     */
    uint32_t dtype;
    /**
     * 0.
     */
    uint32_t reserved;
} deep_ep_rows_t;

/**
 * Scales beside rows.
 */
typedef struct {
    /**
     * The first scale; a multiple of 4. Outputs: null means in place.
     */
    void *data;
    /**
     * Bytes from one row's scales to the next row's. 0: no gap (inputs), the padding the library uses (in place).
     */
    int64_t row_stride;
    /**
     * Bytes from one scale of a row to its next. 0 or 4: row-major. Otherwise column-major; by-expert outputs may
     * choose it (in place any other number asks for it and the library sets 4 * rows rounded up to 4 rows).
     */
    int64_t col_stride;
    /**
     * Bytes from one slab to the next (slotted layouts). 0: without a gap.
     */
    int64_t slot_stride;
    /**
     * deep_ep_scale_dtype_t.
     */
    uint32_t dtype;
    /**
     * Elements per scale. 0: 128. DEEP_EP_SCALE_OPAQUE: bytes per row, a multiple of 4.
     */
    int32_t block;
} deep_ep_scales_t;

/**
 * What a rank sends in a dispatch.
 */
typedef struct {
    /**
     * sizeof(deep_ep_dispatch_in_t); set by deep_ep_dispatch_in_init.
     */
    size_t struct_size;
    /**
     * 0 or DEEP_EP_DISPATCH_CACHED.
     */
    uint32_t flags;
    /**
     * CUDA: SMs of this call. 0: the buffer's. Host: 0.
     */
    int32_t num_sms;
    /**
     * Tokens of this rank, 0 to max_tokens. Cached: 0 or as in the dispatch whose routing is reused.
     */
    int64_t num_tokens;
    /**
     * Null, or where the number of tokens is read when the operation runs, clamped to 0 .. num_tokens. Host: host
     * memory; CUDA: device memory.
     */
    const int32_t *num_tokens_device;
    /**
     * Elements per row of x; on one call the same on all ranks.
     */
    int64_t hidden;
    /**
     * [num_tokens, hidden]; data may be null when num_tokens is 0. Read before the call returns (host).
     */
    deep_ep_rows_t x;
    /**
     * Scales of x, required for FP8 rows. dtype DEEP_EP_SCALE_NONE: x has none.
     */
    deep_ep_scales_t x_scales;
    /**
     * [num_tokens, num_topk] global expert ids; -1 is "no expert", the only sentinel. Any other id out of
     * 0 .. num_experts - 1, and a repetition of an id in its row, is treated as -1 and reported. Null only with no
     * tokens or with DEEP_EP_DISPATCH_CACHED.
     */
    const void *topk_idx;
    /**
     * [num_tokens, num_topk], or null: all 1 (cached: the earlier ones are kept). Never read where the id is -1.
     */
    const float *topk_weights;
    /**
     * DEEP_EP_INT32 or DEEP_EP_INT64.
     */
    uint32_t topk_idx_dtype;
    /**
     * What crosses and arrives. 0: as x. DEEP_EP_FP8_E4M3 with BF16, FP16 or FP32 rows: cast on the way.
     */
    uint32_t wire_dtype;
    /**
     * deep_ep_scale_dtype_t of the cast. 0: as x_scales, or DEEP_EP_SCALE_FP32 for a cast.
     */
    uint32_t wire_scale_dtype;
    /**
     * Elements per scale of the cast. 0: 128; nothing else is supported.
     */
    int32_t wire_scale_block;
} deep_ep_dispatch_in_t;

/**
 * Where a dispatch arrives. Side outputs have a row for each row that x holds: row i of slab s is element s * x.rows + i,
 * also of weights given to a combine (in place the library sets x.rows, to sizes.slab_rows in slotted layouts). Every null
 * pointer is filled with the address of library memory, which holds until the handle's combine or release (x, scales) or
 * its next dispatch (all else). A pointer that the library filled in counts as null, so a struct can be reused with the
 * same buffer, by any handle; init it again for another buffer. Ids, weights, sources and counts in library memory are to
 * be read: what a caller writes there may be found again after a later dispatch. No field means "not wanted".
 */
typedef struct {
    /**
     * sizeof(deep_ep_dispatch_out_t); set by deep_ep_dispatch_out_init.
     */
    size_t struct_size;
    /**
     * The received rows. dtype 0 is filled in, any other must be what was sent. rows below the buffer's capacity
     * lowers the capacity of this call.
     */
    deep_ep_rows_t x;
    /**
     * The received scales; as many rows as x.
     */
    deep_ep_scales_t scales;
    /**
     * By rank: [rows, num_topk] local expert ids. By expert: [rows] the row's local expert. -1: none, a pad, or
     * past the end. Written for all rows that fit.
     */
    int32_t *topk_idx;
    /**
     * Shaped like topk_idx; 0 where the id is -1.
     */
    float *topk_weights;
    /**
     * [rows] source rank * max_tokens + token; -1 in pads and past the end.
     */
    int64_t *row_source;
    /**
     * [num_ranks] rows present from each source: as they crossed, not as they were expanded.
     */
    int32_t *rank_counts;
    /**
     * [local experts] rows present for each local expert, pads not counted.
     */
    int32_t *expert_counts;
    /**
     * PACKED_BY_EXPERT: [local experts + 1] aligned start of each expert's rows, then the end of the last.
     * Other layouts: stays null.
     */
    int64_t *expert_offsets;
    /**
     * [2]: rows that were sent to this rank, and rows after expansion, the gaps of alignment counted (by rank: the same
     * as the first). More than are present on overflow.
     */
    int64_t *true_rows;
    /**
     * SLOTTED_BY_EXPERT: [local experts, num_ranks, 2] begin and count of each source's rows in a slab; an empty
     * source begins where the one before it ends.
     * Other layouts: stays null.
     */
    int32_t *source_ranges;
} deep_ep_dispatch_out_t;

/**
 * What a rank gives to a combine: one row for each row it received.
 */
typedef struct {
    /**
     * sizeof(deep_ep_combine_in_t); set by deep_ep_combine_in_init.
     */
    size_t struct_size;
    /**
     * DEEP_EP_COMBINE_EXACT, DEEP_EP_COMBINE_WEIGHTS_OF_DISPATCH.
     */
    uint32_t flags;
    /**
     * CUDA: SMs of this call. 0: the buffer's. Host: 0.
     */
    int32_t num_sms;
    /**
     * Elements per row. 0: that of the handle's last dispatch.
     */
    int64_t hidden;
    /**
     * BF16, FP16 or FP32 rows, laid out as the dispatch was. By rank: the caller's partial sums. By expert: expert
     * outputs. data null, or as deep_ep_handle_combine_input returned it: the combine input area was written. A rank
     * that has received no rows may pass null in any case.
     */
    deep_ep_rows_t x;
    /**
     * Null, or [rows]: multiplied in on the expert's rank.
     */
    const float *row_weights;
    /**
     * Null, or [num_tokens, num_topk]: multiplied in on the token's rank; DEEP_EP_COMBINE_EXACT only.
     */
    const float *topk_weights;
    /**
     * Null, or shaped like dispatch_out.topk_weights: brought back, not multiplied. Null on all ranks or on none. By
     * rank all num_topk numbers of a row are added, so leave 0 where the local id is -1, as dispatch writes them.
     */
    const float *carried_weights;
} deep_ep_combine_in_t;

/**
 * Where a combine's sums go.
 */
typedef struct {
    /**
     * sizeof(deep_ep_combine_out_t); set by deep_ep_combine_out_init.
     */
    size_t struct_size;
    /**
     * [num_tokens, hidden]; data may be null only with no tokens. dtype 0, or that of the combined rows.
     */
    deep_ep_rows_t x;
    /**
     * Null, or rows like x (same stride, same type): the sum starts from bias[0] + bias[1].
     */
    const void *bias[2];
    /**
     * Null, or [num_tokens, num_topk]: sum over ranks of the carried weights, 0 where the id is -1.
     */
    float *carried_weights;
} deep_ep_combine_out_t;

/**
 * What went wrong, as far as programs can use it. Zero or -1 where a field does not apply.
 */
typedef struct {
    /**
     * sizeof(deep_ep_report_t); set by deep_ep_report_init.
     */
    size_t struct_size;
    /**
     * DEEP_EP_SUCCESS: nothing to report.
     */
    deep_ep_status_t status;
    /**
     * deep_ep_operation_t.
     */
    uint32_t operation;
    /**
     * deep_ep_phase_t.
     */
    uint32_t phase;
    /**
     * The rank that writes this report.
     */
    int32_t rank;
    /**
     * How many ranks were missing, and the first of them, or the rank that aborted; -1: none.
     */
    int32_t num_missing;
    int32_t first_missing;
    /**
     * The operation's number on this buffer.
     */
    uint64_t epoch;
    /**
     * The signal that was waited for and the newest that had come, from first_missing.
     */
    uint64_t expected;
    uint64_t seen;
    /**
     * Bad expert id: row and value. Overflow: rows that fit and rows that were sent.
     */
    int64_t row;
    int64_t value;
    /**
     * How long the wait lasted.
     */
    uint32_t waited_ms;
    /**
     * 0.
     */
    uint32_t reserved;
} deep_ep_report_t;

/**
 * Totals of one buffer since create. CUDA: of what has run on the device, replays of graphs included.
 */
typedef struct {
    /**
     * sizeof(deep_ep_statistics_t); set by deep_ep_statistics_init.
     */
    size_t struct_size;
    /**
     * The newest operation begun.
     */
    uint64_t epoch;
    uint64_t dispatches;
    uint64_t combines;
    uint64_t barriers;
    /**
     * Operations that had to wait for an entry barrier before they could write.
     */
    uint64_t entry_barriers;
    /**
     * Rows and bytes (rows, scales, ids, weights) written to peers and received from them, this rank included.
     */
    uint64_t rows_sent;
    uint64_t rows_received;
    uint64_t bytes_sent;
    uint64_t bytes_received;
    /**
     * Nanoseconds spent waiting for peers: in the last operation and in all. CUDA: as one of the waiting blocks saw it.
     */
    uint64_t wait_ns_last;
    uint64_t wait_ns_total;
} deep_ep_statistics_t;

/**
 * The part of the totals that one peer accounts for.
 */
typedef struct {
    /**
     * sizeof(deep_ep_peer_statistics_t); set by deep_ep_peer_statistics_init.
     */
    size_t struct_size;
    uint64_t rows_sent;
    uint64_t rows_received;
    uint64_t bytes_sent;
    uint64_t bytes_received;
    /**
     * Nanoseconds this rank waited until this peer's last signal came, counted from the wait's begin.
     */
    uint64_t wait_ns_last;
    uint64_t wait_ns_total;
} deep_ep_peer_statistics_t;

/**
 * The value of a CUstream or cudaStream_t; ignored by the host backend.
 */
typedef void *deep_ep_stream_t;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Fills a comm configuration with defaults: rank 0 of 1, backend chosen by the library, null unique id.
 *
 * Writes at most `struct_size` bytes at `s`, which must be sizeof of the caller's struct.
 *
 * Collective: no. Blocks the host: no. Capture: allowed. Threads: any.
 *
 * Returns: DEEP_EP_SUCCESS; DEEP_EP_INVALID_ARGUMENT when `s` is null; DEEP_EP_ABI_MISMATCH when no version of the
 * library had a struct of that size.
 */
DEEP_EP_API
deep_ep_status_t deep_ep_comm_config_init(deep_ep_comm_config_t *s,
                                          size_t struct_size);

/**
 * Fills a buffer configuration with defaults; max_tokens, max_row_bytes, num_experts and num_topk remain to be
 * set.
 *
 * Writes at most `struct_size` bytes at `s`, which must be sizeof of the caller's struct.
 *
 * Collective: no. Blocks the host: no. Capture: allowed. Threads: any.
 *
 * Returns: DEEP_EP_SUCCESS; DEEP_EP_INVALID_ARGUMENT when `s` is null; DEEP_EP_ABI_MISMATCH when no version of the
 * library had a struct of that size.
 */
DEEP_EP_API
deep_ep_status_t deep_ep_buffer_config_init(deep_ep_buffer_config_t *s,
                                            size_t struct_size);

/**
 * Empties a sizes struct.
 *
 * Writes at most `struct_size` bytes at `s`, which must be sizeof of the caller's struct.
 *
 * Collective: no. Blocks the host: no. Capture: allowed. Threads: any.
 *
 * Returns: DEEP_EP_SUCCESS; DEEP_EP_INVALID_ARGUMENT when `s` is null; DEEP_EP_ABI_MISMATCH when no version of the
 * library had a struct of that size.
 */
DEEP_EP_API
deep_ep_status_t deep_ep_buffer_sizes_init(deep_ep_buffer_sizes_t *s,
                                           size_t struct_size);

/**
 * Empties the input of a dispatch.
 *
 * Writes at most `struct_size` bytes at `s`, which must be sizeof of the caller's struct.
 *
 * Collective: no. Blocks the host: no. Capture: allowed. Threads: any.
 *
 * Returns: DEEP_EP_SUCCESS; DEEP_EP_INVALID_ARGUMENT when `s` is null; DEEP_EP_ABI_MISMATCH when no version of the
 * library had a struct of that size.
 */
DEEP_EP_API
deep_ep_status_t deep_ep_dispatch_in_init(deep_ep_dispatch_in_t *s,
                                          size_t struct_size);

/**
 * Empties the output of a dispatch: everything in place.
 *
 * Writes at most `struct_size` bytes at `s`, which must be sizeof of the caller's struct.
 *
 * Collective: no. Blocks the host: no. Capture: allowed. Threads: any.
 *
 * Returns: DEEP_EP_SUCCESS; DEEP_EP_INVALID_ARGUMENT when `s` is null; DEEP_EP_ABI_MISMATCH when no version of the
 * library had a struct of that size.
 */
DEEP_EP_API
deep_ep_status_t deep_ep_dispatch_out_init(deep_ep_dispatch_out_t *s,
                                           size_t struct_size);

/**
 * Empties the input of a combine.
 *
 * Writes at most `struct_size` bytes at `s`, which must be sizeof of the caller's struct.
 *
 * Collective: no. Blocks the host: no. Capture: allowed. Threads: any.
 *
 * Returns: DEEP_EP_SUCCESS; DEEP_EP_INVALID_ARGUMENT when `s` is null; DEEP_EP_ABI_MISMATCH when no version of the
 * library had a struct of that size.
 */
DEEP_EP_API
deep_ep_status_t deep_ep_combine_in_init(deep_ep_combine_in_t *s,
                                         size_t struct_size);

/**
 * Empties the output of a combine.
 *
 * Writes at most `struct_size` bytes at `s`, which must be sizeof of the caller's struct.
 *
 * Collective: no. Blocks the host: no. Capture: allowed. Threads: any.
 *
 * Returns: DEEP_EP_SUCCESS; DEEP_EP_INVALID_ARGUMENT when `s` is null; DEEP_EP_ABI_MISMATCH when no version of the
 * library had a struct of that size.
 */
DEEP_EP_API
deep_ep_status_t deep_ep_combine_out_init(deep_ep_combine_out_t *s,
                                          size_t struct_size);

/**
 * Empties a report.
 *
 * Writes at most `struct_size` bytes at `s`, which must be sizeof of the caller's struct.
 *
 * Collective: no. Blocks the host: no. Capture: allowed. Threads: any.
 *
 * Returns: DEEP_EP_SUCCESS; DEEP_EP_INVALID_ARGUMENT when `s` is null; DEEP_EP_ABI_MISMATCH when no version of the
 * library had a struct of that size.
 */
DEEP_EP_API
deep_ep_status_t deep_ep_report_init(deep_ep_report_t *s,
                                     size_t struct_size);

/**
 * Empties a statistics struct.
 *
 * Writes at most `struct_size` bytes at `s`, which must be sizeof of the caller's struct.
 *
 * Collective: no. Blocks the host: no. Capture: allowed. Threads: any.
 *
 * Returns: DEEP_EP_SUCCESS; DEEP_EP_INVALID_ARGUMENT when `s` is null; DEEP_EP_ABI_MISMATCH when no version of the
 * library had a struct of that size.
 */
DEEP_EP_API
deep_ep_status_t deep_ep_statistics_init(deep_ep_statistics_t *s,
                                         size_t struct_size);

/**
 * Empties a peer statistics struct.
 *
 * Writes at most `struct_size` bytes at `s`, which must be sizeof of the caller's struct.
 *
 * Collective: no. Blocks the host: no. Capture: allowed. Threads: any.
 *
 * Returns: DEEP_EP_SUCCESS; DEEP_EP_INVALID_ARGUMENT when `s` is null; DEEP_EP_ABI_MISMATCH when no version of the
 * library had a struct of that size.
 */
DEEP_EP_API
deep_ep_status_t deep_ep_peer_statistics_init(deep_ep_peer_statistics_t *s,
                                              size_t struct_size);

/**
 * Draws a unique id: an address to meet at and a 128-bit secret. Binds nothing and starts nothing; rank 0 listens in
 * deep_ep_comm_create. Carry the bytes to the other ranks by any means.
 *
 * `address`: null or "" for a meeting point on this machine that needs no name; "HOST:PORT" for TCP;
 * "unix:/PATH" or "unix:@NAME" for a Unix socket. `out`: written only on success.
 *
 * Collective: no. Blocks the host: no. Capture: allowed. Threads: any.
 *
 * Returns: DEEP_EP_SUCCESS; DEEP_EP_INVALID_ARGUMENT for an address that is none of these or is too long.
 */
DEEP_EP_API
deep_ep_status_t deep_ep_unique_id_create(const char *address,
                                          deep_ep_unique_id_t *out);

/**
 * Joins a group as one rank, meeting the others by `unique_id` or by the caller's `allgather`.
 *
 * `config`: read before the call returns. `out`: written only on success; give it back with deep_ep_comm_destroy.
 *
 * Collective: yes, every rank of the group calls it, each from its own thread or process. Blocks the host: until all
 * ranks have come, at most timeout_ms. Capture: not allowed. Threads: any.
 *
 * Returns: DEEP_EP_SUCCESS; DEEP_EP_TIMEOUT naming the ranks that did not come; DEEP_EP_PEER_FAILED when a rank came
 * twice or died; DEEP_EP_CONFIG_MISMATCH when ranks disagree about num_ranks or the backend;
 * DEEP_EP_PEER_UNREACHABLE when a rank is on another host, or a device cannot use the memory of another's (no peer
 * access, no NVLink); DEEP_EP_INVALID_ARGUMENT; DEEP_EP_UNSUPPORTED for a backend this library lacks, or device memory
 * that cannot be shared; DEEP_EP_SYSTEM.
 */
DEEP_EP_API
deep_ep_status_t deep_ep_comm_create(const deep_ep_comm_config_t *config,
                                     deep_ep_comm_t **out);

/**
 * Makes all ranks of a group in this process at once, from one thread.
 *
 * `config`: rank, unique_id and allgather are ignored. `devices`: CUDA: the device ordinal of each rank, or null: all
 * ranks on config.device. `out`: an
 * array of num_ranks pointers, written only on success; give each back with deep_ep_comm_destroy.
 *
 * Collective: no. Blocks the host: no. Capture: not allowed. Threads: any.
 *
 * Returns: DEEP_EP_SUCCESS; DEEP_EP_INVALID_ARGUMENT; DEEP_EP_UNSUPPORTED; DEEP_EP_PEER_UNREACHABLE for devices without
 * peer access; DEEP_EP_CONFIG_MISMATCH for devices that differ; DEEP_EP_SYSTEM; DEEP_EP_OUT_OF_MEMORY.
 */
DEEP_EP_API
deep_ep_status_t deep_ep_comm_create_local(const deep_ep_comm_config_t *config,
                                           const int32_t *devices,
                                           deep_ep_comm_t **out);

/**
 * Ends the group's work on every rank: waits everywhere end with DEEP_EP_ABORTED naming this rank, buffers are
 * poisoned and cannot be reset. Only stores words, and returns at once.
 *
 * `reason`: null or a text, cut at 128 bytes (what is not UTF-8 is replaced), that the other ranks' last error shows.
 *
 * Collective: no. Blocks the host: no. Capture: allowed. Threads: beside any other call on any thread.
 *
 * Returns: DEEP_EP_SUCCESS; DEEP_EP_INVALID_ARGUMENT.
 */
DEEP_EP_API
deep_ep_status_t deep_ep_comm_abort(const deep_ep_comm_t *comm,
                                    const char *reason);

/**
 * Tells what a comm is. Each pointer may be null.
 *
 * `rank`, `num_ranks`: this rank and the size of its group. `backend`: the deep_ep_backend_t it works with, never AUTO.
 *
 * Collective: no. Blocks the host: no. Capture: allowed. Threads: beside any other call on any thread.
 *
 * Returns: DEEP_EP_SUCCESS; DEEP_EP_INVALID_ARGUMENT.
 */
DEEP_EP_API
deep_ep_status_t deep_ep_comm_info(const deep_ep_comm_t *comm,
                                   int32_t *rank,
                                   int32_t *num_ranks,
                                   uint32_t *backend);

/**
 * Leaves the group. Buffers of the comm stay usable until they are destroyed.
 *
 * `comm`: null is allowed and does nothing. Invalid after the call.
 *
 * Collective: no, and never waits for peers. Blocks the host: no. Capture: not allowed. Threads: exclusive use of
 * `comm`.
 *
 * Returns: DEEP_EP_SUCCESS.
 */
DEEP_EP_API
deep_ep_status_t deep_ep_comm_destroy(deep_ep_comm_t *comm);

/**
 * Computes the exact bytes a buffer would take on this rank, part by part, without allocating.
 *
 * `expert_rank`: null for an even split (ranks 0 .. num_experts % num_ranks - 1 own one expert more, contiguous and
 * ascending), or [num_experts] the rank that owns each expert. `out`: written only on success.
 *
 * Collective: no. Blocks the host: no. Capture: allowed. Threads: any.
 *
 * Returns: DEEP_EP_SUCCESS; DEEP_EP_INVALID_ARGUMENT naming field, value and limit; DEEP_EP_CAPACITY_EXCEEDED when
 * the sizes do not fit in 63 bits.
 */
DEEP_EP_API
deep_ep_status_t deep_ep_buffer_size(const deep_ep_comm_t *comm,
                                     const deep_ep_buffer_config_t *config,
                                     const int32_t *expert_rank,
                                     deep_ep_buffer_sizes_t *out);

/**
 * Allocates a buffer, maps it on all ranks and compares the configuration across them.
 *
 * `expert_rank`: as for deep_ep_buffer_size. `out`: written only on success; give it back with
 * deep_ep_buffer_destroy.
 *
 * Collective: yes, every rank of the comm calls it, in the same order as its other creates. Blocks the host: until all
 * ranks have come, at most first_timeout_ms. Capture: not allowed. Threads: exclusive use of `comm`.
 *
 * Returns: DEEP_EP_SUCCESS; DEEP_EP_CONFIG_MISMATCH on every rank, naming the field and the values that differ;
 * DEEP_EP_TIMEOUT naming the ranks that did not come; DEEP_EP_INVALID_ARGUMENT; DEEP_EP_OUT_OF_MEMORY;
 * DEEP_EP_ABORTED.
 */
DEEP_EP_API
deep_ep_status_t deep_ep_buffer_create(deep_ep_comm_t *comm,
                                       const deep_ep_buffer_config_t *config,
                                       const int32_t *expert_rank,
                                       deep_ep_buffer_t **out);

/**
 * Allocates the buffers of all ranks of this process at once, from one thread.
 *
 * `comms`: the num_ranks comms of one deep_ep_comm_create_local, in rank order. `out`: an array of num_ranks pointers,
 * written only on success.
 *
 * Collective: no. Blocks the host: no. Capture: not allowed. Threads: exclusive use of all `comms`.
 *
 * Returns: as deep_ep_buffer_create; DEEP_EP_INVALID_ARGUMENT when the comms do not form one local group.
 */
DEEP_EP_API
deep_ep_status_t deep_ep_buffer_create_local(deep_ep_comm_t *const *comms,
                                             const deep_ep_buffer_config_t *config,
                                             const int32_t *expert_rank,
                                             deep_ep_buffer_t **out);

/**
 * Waits until every rank has called it: an operation of its own that moves no rows.
 *
 * `stream`: ignored by the host backend.
 *
 * Collective: yes. Blocks the host: until all ranks have come (host backend); no (CUDA). Capture: allowed. Threads:
 * exclusive use of the buffer and its handles.
 *
 * Returns: DEEP_EP_SUCCESS; DEEP_EP_TIMEOUT, DEEP_EP_OP_MISMATCH, DEEP_EP_ABORTED, after which the buffer returns the
 * same status until deep_ep_buffer_reset; DEEP_EP_CONCURRENT_USE; DEEP_EP_INVALID_STATE. Operations in flight do not
 * stand in its way.
 */
DEEP_EP_API
deep_ep_status_t deep_ep_buffer_barrier(deep_ep_buffer_t *buffer,
                                        deep_ep_stream_t stream);

/**
 * Reads the oldest thing the buffer has to report. A report that poisoned the buffer (timeout, mismatch, abort) stays
 * until reset. Of bad expert ids (DEEP_EP_INVALID_EXPERT_ID) and overflows (DEEP_EP_CAPACITY_EXCEEDED) the first since
 * the last read is kept, and it is cleared by this call.
 *
 * `out`: status DEEP_EP_SUCCESS when there is nothing. `missing`: null, or room for `missing_count` numbers: the ranks
 * that were missing, ascending, then -1.
 *
 * Collective: no. Blocks the host: no. Capture: allowed. Threads: beside any other call on the buffer.
 *
 * Returns: DEEP_EP_SUCCESS when the report was read, whatever it says; DEEP_EP_INVALID_ARGUMENT.
 */
DEEP_EP_API
deep_ep_status_t deep_ep_buffer_report(const deep_ep_buffer_t *buffer,
                                       deep_ep_report_t *out,
                                       int32_t *missing,
                                       size_t missing_count);

/**
 * Changes the deadline of every later operation's waits, the first one's too, also of captured graphs.
 *
 * `timeout_ms`: 1 or more.
 *
 * Collective: no; ranks may differ. Blocks the host: no. Capture: allowed. Threads: beside any other call on the
 * buffer; a wait already running keeps its deadline.
 *
 * Returns: DEEP_EP_SUCCESS; DEEP_EP_INVALID_ARGUMENT.
 */
DEEP_EP_API
deep_ep_status_t deep_ep_buffer_set_timeout(const deep_ep_buffer_t *buffer,
                                            uint32_t timeout_ms);

/**
 * Ends a failure: the surviving ranks agree on who is alive and on the next epoch. Routings of handles are void,
 * windows are free, numbers of epochs go on. Also legal on a healthy buffer.
 *
 * `alive`: null for all ranks, or [num_ranks] nonzero for the ranks that go on, the caller's own included, equal on all
 * of them. Ranks left out stay out; rows for their experts are dropped as if the id were -1.
 *
 * CUDA: replays are to be over. Graphs of before stay good if nobody new is left out; otherwise the survivors go on in
 * new memory, the old is kept until the buffer is destroyed, and replays of those graphs do nothing.
 *
 * Collective: yes, over the ranks that are alive, in the same order as the comm's creates and other resets.
 * Blocks the host: until they have come, at most first_timeout_ms. Capture: not allowed. Threads: exclusive use of the
 * buffer, its handles and the comm.
 *
 * Returns: DEEP_EP_SUCCESS; DEEP_EP_TIMEOUT naming who did not come, DEEP_EP_CONFIG_MISMATCH when the masks differ: all
 * ranks may repeat the reset, and until it succeeds the buffer may be unusable; DEEP_EP_OUT_OF_MEMORY likewise;
 * DEEP_EP_ABORTED after an abort: destroy and create anew; DEEP_EP_INVALID_ARGUMENT.
 */
DEEP_EP_API
deep_ep_status_t deep_ep_buffer_reset(deep_ep_buffer_t *buffer,
                                      const uint8_t *alive);

/**
 * Gives the buffer's memory back. Never waits for peers. Handles of the buffer become unusable and are still to be
 * destroyed.
 *
 * `buffer`: null is allowed and does nothing. Invalid after the call.
 *
 * Collective: no. Blocks the host: no (host backend); until this rank's operations have left the device, which give
 * up on peers at once: wait for the stream first, and for all replays of graphs (CUDA). Capture: not allowed. Threads: exclusive use of the buffer and
 * its handles.
 *
 * Returns: DEEP_EP_SUCCESS; DEEP_EP_CONCURRENT_USE when another thread is inside a call on the buffer; then nothing
 * was destroyed.
 */
DEEP_EP_API
deep_ep_status_t deep_ep_buffer_destroy(deep_ep_buffer_t *buffer);

/**
 * Makes a handle, with memory for the largest routing of its buffer. No pointer of a caller is kept in it after a call.
 *
 * `out`: written only on success; give it back with deep_ep_handle_destroy.
 *
 * Collective: no. Blocks the host: no. Capture: not allowed. Threads: exclusive use of the buffer.
 *
 * Returns: DEEP_EP_SUCCESS; DEEP_EP_INVALID_ARGUMENT; DEEP_EP_OUT_OF_MEMORY; DEEP_EP_INVALID_STATE.
 */
DEEP_EP_API
deep_ep_status_t deep_ep_handle_create(deep_ep_buffer_t *buffer,
                                       deep_ep_handle_t **out);

/**
 * Sends each token's row to the ranks that own its experts, and receives the rows sent here: a send and a receive in
 * one call, one epoch.
 *
 * `input`: what is sent; its pointers are free again when the call returns (host) or when the stream has passed it
 * (CUDA). `output`: filled in; caller memory stays the caller's, library memory holds until the handle's combine or
 * release. Rows: BF16, FP16, FP32, FP8_E4M3 with scales, OPAQUE; hidden * element size a multiple of 16.
 *
 * Collective: yes, with the same hidden, types and in-place choice on all ranks. Blocks the host: until every rank has
 * sent (host backend); no (CUDA). Capture: allowed. Threads: exclusive use of the buffer and its handles.
 *
 * Returns: DEEP_EP_SUCCESS, also when ids were bad or rows overflowed: deep_ep_buffer_report tells;
 * DEEP_EP_INVALID_ARGUMENT or DEEP_EP_CAPACITY_EXCEEDED before any peer is signalled, the call may be repeated;
 * DEEP_EP_INVALID_EXPERT_ID likewise with DEEP_EP_BUFFER_REFUSE_BAD_IDS; DEEP_EP_BUSY when the handle's last
 * dispatch was neither combined nor released, or no window is free; DEEP_EP_TIMEOUT, DEEP_EP_OP_MISMATCH, DEEP_EP_ABORTED, after which the buffer returns the same
 * status until reset; DEEP_EP_CONCURRENT_USE; DEEP_EP_INVALID_STATE; DEEP_EP_UNSUPPORTED.
 *
 * Positions are prefix sums of counts that all ranks exchange: no atomics, no sorting, the same order every time.
 */
DEEP_EP_API
deep_ep_status_t deep_ep_handle_dispatch(deep_ep_handle_t *handle,
                                         const deep_ep_dispatch_in_t *input,
                                         deep_ep_dispatch_out_t *output,
                                         deep_ep_stream_t stream);

/**
 * The first half of a dispatch: returns when the rows are on their way. Up to max_in_flight operations may be sent
 * before one is received.
 *
 * `input`: as for deep_ep_handle_dispatch; no pointer of it is kept.
 *
 * Collective: yes. Blocks the host: packed layouts until all ranks' counts are in, slotted layouts not (host backend);
 * no (CUDA). Capture: allowed together with its receive. Threads: exclusive use of the buffer and its handles.
 *
 * Returns: as deep_ep_handle_dispatch.
 */
DEEP_EP_API
deep_ep_status_t deep_ep_handle_dispatch_send(deep_ep_handle_t *handle,
                                              const deep_ep_dispatch_in_t *input,
                                              deep_ep_stream_t stream);

/**
 * The second half of a dispatch: waits for the rows and hands them out.
 *
 * `output`: as for deep_ep_handle_dispatch.
 *
 * Collective: yes. Blocks the host: until every rank has sent (host backend); no (CUDA). Capture: allowed together
 * with its send. Threads: exclusive use of the buffer and its handles.
 *
 * Returns: as deep_ep_handle_dispatch; DEEP_EP_INVALID_STATE without a send; DEEP_EP_BUSY when rows are wanted in place
 * and no area is free, then the receive may be repeated.
 */
DEEP_EP_API
deep_ep_status_t deep_ep_handle_dispatch_recv(deep_ep_handle_t *handle,
                                              deep_ep_dispatch_out_t *output,
                                              deep_ep_stream_t stream);

/**
 * Waits until the numbers of the handle's last dispatch are known to the host.
 *
 * `expert_counts`: null, or [local experts] rows present for each. `rows`: null, or one number: rows present in all, and
 * for PACKED_BY_EXPERT the end of the last expert's rows. `timeout_ms`: 0 for the buffer's.
 *
 * When the handle's last dispatch was captured: what the newest finished replay has left, without waiting; synchronise
 * with its stream first.
 *
 * Collective: no. Blocks the host: until the receive has run. Capture: not allowed. Threads: exclusive use of the
 * buffer and its handles.
 *
 * Returns: DEEP_EP_SUCCESS; DEEP_EP_INVALID_STATE before the first receive of the handle, and before the first replay
 * of a captured one; DEEP_EP_TIMEOUT when the
 * receive has not run in time, which poisons nothing (CUDA); DEEP_EP_INVALID_ARGUMENT.
 */
DEEP_EP_API
deep_ep_status_t deep_ep_handle_wait_counts(deep_ep_handle_t *handle,
                                            int64_t *expert_counts,
                                            int64_t *rows,
                                            uint32_t timeout_ms);

/**
 * Says where the rows of the handle's next combine may be written in place, and reserves that memory until then.
 *
 * `x`: only dtype is read: BF16, FP16 or FP32. All fields are filled in, for rows of the dispatch's hidden in the
 * arrangement of the received ones. `stream`: where a barrier is enqueued if the memory may still be read.
 *
 * Collective: yes, on every rank or on none, at the same place in the order of calls. Blocks the host: if a barrier is
 * needed (host backend); no (CUDA). Capture: allowed. Threads: exclusive use of the buffer and its handles.
 *
 * Returns: DEEP_EP_SUCCESS; DEEP_EP_INVALID_STATE before the handle's dispatch was received; DEEP_EP_BUSY when no
 * window is free; DEEP_EP_TIMEOUT and what else a barrier may return.
 */
DEEP_EP_API
deep_ep_status_t deep_ep_handle_combine_input(deep_ep_handle_t *handle,
                                              deep_ep_rows_t *x,
                                              deep_ep_stream_t stream);

/**
 * Says that the received rows are no longer read, without a combine.
 *
 * Collective: yes, at the same place in the order of calls. Blocks the host: no. Capture: allowed. Threads: exclusive
 * use of the buffer and its handles.
 *
 * Returns: DEEP_EP_SUCCESS, also when nothing was open; DEEP_EP_INVALID_STATE between a send and its receive.
 */
DEEP_EP_API
deep_ep_status_t deep_ep_handle_release(deep_ep_handle_t *handle,
                                        deep_ep_stream_t stream);

/**
 * Brings the expert outputs back to the tokens' ranks and sums them in a fixed order in FP32. May be called any number
 * of times after a dispatch; the first ends the reads of its rows.
 *
 * `input`: rows in the arrangement of the dispatch. `output`: where the sums go; both are the caller's.
 *
 * Collective: yes, with the same hidden, type and mode on all ranks. Blocks the host: until every rank has sent (host
 * backend); no (CUDA). Capture: allowed. Threads: exclusive use of the buffer and its handles.
 *
 * Returns: DEEP_EP_SUCCESS; DEEP_EP_INVALID_ARGUMENT, DEEP_EP_CAPACITY_EXCEEDED or DEEP_EP_UNSUPPORTED before any peer
 * is signalled, the call may be repeated; DEEP_EP_INVALID_STATE before a dispatch, or in place without its
 * deep_ep_handle_combine_input; DEEP_EP_BUSY; DEEP_EP_TIMEOUT, DEEP_EP_OP_MISMATCH, DEEP_EP_ABORTED, after which the
 * buffer returns the same status until reset; DEEP_EP_CONCURRENT_USE.
 */
DEEP_EP_API
deep_ep_status_t deep_ep_handle_combine(deep_ep_handle_t *handle,
                                        const deep_ep_combine_in_t *input,
                                        const deep_ep_combine_out_t *output,
                                        deep_ep_stream_t stream);

/**
 * The first half of a combine: returns when the rows are on their way.
 *
 * `input`: as for deep_ep_handle_combine; no pointer of it is kept.
 *
 * Collective: yes. Blocks the host: only for an entry barrier (host backend); no (CUDA). Capture: allowed together with
 * its receive. Threads: exclusive use of the buffer and its handles.
 *
 * Returns: as deep_ep_handle_combine.
 */
DEEP_EP_API
deep_ep_status_t deep_ep_handle_combine_send(deep_ep_handle_t *handle,
                                             const deep_ep_combine_in_t *input,
                                             deep_ep_stream_t stream);

/**
 * The second half of a combine: waits for the rows and sums them.
 *
 * `output`: as for deep_ep_handle_combine.
 *
 * Collective: yes. Blocks the host: until every rank has sent (host backend); no (CUDA). Capture: allowed together with
 * its send. Threads: exclusive use of the buffer and its handles.
 *
 * Returns: as deep_ep_handle_combine; DEEP_EP_INVALID_STATE without a send.
 */
DEEP_EP_API
deep_ep_status_t deep_ep_handle_combine_recv(deep_ep_handle_t *handle,
                                             const deep_ep_combine_out_t *output,
                                             deep_ep_stream_t stream);

/**
 * Gives the handle back. Open rows count as released at this point, so it has its place in the order of calls on all
 * ranks: a garbage collector must not be the one to call it.
 *
 * `handle`: null is allowed and does nothing. Invalid after the call.
 *
 * Collective: yes if rows are open or a send is unreceived, no otherwise; never waits for peers. Blocks the host: no.
 * Capture: not allowed. Threads: exclusive use of the buffer and its handles.
 *
 * Returns: DEEP_EP_SUCCESS; DEEP_EP_CONCURRENT_USE when another thread is inside a call on the buffer; then nothing
 * was destroyed.
 */
DEEP_EP_API
deep_ep_status_t deep_ep_handle_destroy(deep_ep_handle_t *handle);

/**
 * The version of the loaded library: major * 10000 + minor * 100 + patch.
 *
 * Collective: no. Blocks the host: no. Capture: allowed. Threads: any.
 *
 * Returns: the number.
 */
DEEP_EP_API
uint32_t deep_ep_version(void);

/**
 * The name of a status.
 *
 * `status`: any number; unknown ones have a name that says so.
 *
 * Collective: no. Blocks the host: no. Capture: allowed. Threads: any.
 *
 * Returns: a static string.
 */
DEEP_EP_API
const char *deep_ep_status_string(int32_t status);

/**
 * What the last failing call on this thread had to say: function, argument, value, limit, remedy.
 *
 * Collective: no. Blocks the host: no. Capture: allowed. Threads: any; each has its own text.
 *
 * Returns: a string that is never null, lives as long as the thread, and is overwritten by the thread's next failing
 * call. A success leaves it as it is.
 */
DEEP_EP_API
const char *deep_ep_last_error(void);

/**
 * Reads the totals of a buffer since create.
 *
 * Collective: no. Blocks the host: no. Capture: allowed. Threads: beside any other call on the buffer; the numbers may
 * then be of two moments. CUDA: read by a copy beside whatever runs.
 *
 * Returns: DEEP_EP_SUCCESS; DEEP_EP_INVALID_ARGUMENT; DEEP_EP_CUDA.
 */
DEEP_EP_API
deep_ep_status_t deep_ep_buffer_statistics(const deep_ep_buffer_t *buffer,
                                           deep_ep_statistics_t *out);

/**
 * Reads what one peer accounts for in the totals.
 *
 * `peer`: 0 to num_ranks - 1; this rank's own number gives its local traffic.
 *
 * Collective: no. Blocks the host: no. Capture: allowed. Threads: as deep_ep_buffer_statistics.
 *
 * Returns: DEEP_EP_SUCCESS; DEEP_EP_INVALID_ARGUMENT; DEEP_EP_CUDA.
 */
DEEP_EP_API
deep_ep_status_t deep_ep_buffer_peer_statistics(const deep_ep_buffer_t *buffer,
                                                int32_t peer,
                                                deep_ep_peer_statistics_t *out);

/**
 * Reads how many rows each local expert has received since create.
 *
 * `rows`: room for `count` numbers, which must be the number of local experts.
 *
 * Collective: no. Blocks the host: no. Capture: allowed. Threads: as deep_ep_buffer_statistics.
 *
 * Returns: DEEP_EP_SUCCESS; DEEP_EP_INVALID_ARGUMENT naming the number of local experts; DEEP_EP_CUDA.
 */
DEEP_EP_API
deep_ep_status_t deep_ep_buffer_expert_statistics(const deep_ep_buffer_t *buffer,
                                                  uint64_t *rows,
                                                  size_t count);

/**
 * Lists the global ids of this rank's experts; position is the local id.
 *
 * `experts`: null to ask only for the number, or room for `capacity` ids. `count`: receives the number of local
 * experts.
 *
 * Collective: no. Blocks the host: no. Capture: allowed. Threads: beside any other call on the buffer.
 *
 * Returns: DEEP_EP_SUCCESS; DEEP_EP_INVALID_ARGUMENT when `capacity` is too small.
 */
DEEP_EP_API
deep_ep_status_t deep_ep_buffer_local_experts(const deep_ep_buffer_t *buffer,
                                              int32_t *experts,
                                              size_t capacity,
                                              size_t *count);

/**
 * Reads which ranks take part: all of them until a reset leaves some out.
 *
 * `alive`: room for `count` bytes, which must be num_ranks; 1 or 0 for each rank.
 *
 * Collective: no. Blocks the host: no. Capture: allowed. Threads: beside any other call but reset.
 *
 * Returns: DEEP_EP_SUCCESS; DEEP_EP_INVALID_ARGUMENT.
 */
DEEP_EP_API
deep_ep_status_t deep_ep_buffer_alive(const deep_ep_buffer_t *buffer,
                                      uint8_t *alive,
                                      size_t count);

/**
 * Writes the newest recorded phases as a Chrome trace (JSON), one process per rank, microseconds of the monotonic
 * clock, so that the files of several ranks line up when their events are put together. The first entry's
 * args.lost_events counts older phases that had to make room. The buffer needs DEEP_EP_BUFFER_TRACE. CUDA: phases as
 * the kernels note them, replays of graphs included, by the device's clock, which is compared with the host's at create
 * and here, to a few microseconds.
 *
 * `json`: null to ask only for the size, or room for `capacity` bytes, the terminator included. `needed`: receives the
 * bytes the text takes with its terminator; it grows while operations run.
 *
 * Collective: no. Blocks the host: no. Capture: allowed. Threads: beside any other call on the buffer.
 *
 * Returns: DEEP_EP_SUCCESS; DEEP_EP_INVALID_ARGUMENT when `capacity` is too small; DEEP_EP_INVALID_STATE without
 * DEEP_EP_BUFFER_TRACE; DEEP_EP_TIMEOUT while the device has been too busy to tell its time (CUDA); DEEP_EP_CUDA.
 */
DEEP_EP_API
deep_ep_status_t deep_ep_buffer_trace(const deep_ep_buffer_t *buffer,
                                      char *json,
                                      size_t capacity,
                                      size_t *needed);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* DEEP_EP_H */
