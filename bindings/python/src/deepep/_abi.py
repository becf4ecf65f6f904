"""The numbers and structs of include/deep_ep.h as ctypes sees them. Names are the header's without their prefix."""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_int64, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p
from enum import IntEnum, IntFlag


class Status(IntEnum):
    """Result of a call: 1-19 the caller, 20-39 the environment, 40-59 a subsystem, 60-79 peers, 90-99 the library."""

    SUCCESS = 0
    INVALID_ARGUMENT = 1
    INVALID_STATE = 2
    CAPACITY_EXCEEDED = 3
    UNSUPPORTED = 4
    ABI_MISMATCH = 5
    CONFIG_MISMATCH = 6
    BUSY = 7
    CONCURRENT_USE = 8
    INVALID_EXPERT_ID = 9
    NO_DRIVER = 20
    DRIVER_TOO_OLD = 21
    NO_DEVICE = 22
    NO_KERNEL_IMAGE = 23
    OUT_OF_MEMORY = 24
    PEER_UNREACHABLE = 25
    CUDA = 40
    SYSTEM = 42
    TIMEOUT = 60
    PEER_FAILED = 61
    ABORTED = 62
    OP_MISMATCH = 63
    INTERNAL = 90
    PANIC = 91


class Backend(IntEnum):
    """Where the ranks exchange their rows."""

    AUTO = 0
    HOST = 1
    CUDA = 2


class Layout(IntEnum):
    """How a dispatch arranges the received rows. R ranks, T = max_tokens, H elements per row."""

    PACKED_BY_RANK = 0
    """[N, H] ordered by (source rank, token)."""
    PACKED_BY_EXPERT = 1
    """[M, H] grouped by local expert at aligned offsets."""
    SLOTTED_BY_RANK = 2
    """[R, T, H]: slab s holds the rows of source s from its front."""
    SLOTTED_BY_EXPERT = 3
    """[local experts, R * T, H]: slab l holds the rows of local expert l from its front."""


class Sync(IntEnum):
    """How a rank makes sure that a window it writes into is no longer read. Same results, other waits."""

    AUTO = 0
    ACK = 1
    BARRIER = 2


class DType(IntEnum):
    """Element types. Rows: BF16, FP16, FP32, FP8_E4M3 (with scales), OPAQUE (bytes). Ids: INT32, INT64."""

    NONE = 0
    BF16 = 1
    FP16 = 2
    FP32 = 3
    FP8_E4M3 = 4
    OPAQUE = 5
    INT32 = 6
    INT64 = 7

    @property
    def itemsize(self) -> int:
        """Bytes per element; 0 for NONE."""
        return (0, 2, 2, 4, 1, 1, 4, 8)[self]


class ScaleType(IntEnum):
    """Kinds of scales beside FP8 or opaque rows."""

    NONE = 0
    FP32 = 1
    FP32_POW2 = 2
    UE8M0_PACKED = 3
    OPAQUE = 4


class Operation(IntEnum):
    """What a report is about."""

    NONE = 0
    DISPATCH = 1
    COMBINE = 2
    BARRIER = 3
    RESET = 4


class Phase(IntEnum):
    """The signal that a report's operation waited for."""

    NONE = 0
    ENTER = 1
    COUNTS = 2
    DATA = 3
    READ = 4


class BufferFlags(IntFlag):
    REFUSE_BAD_IDS = 1
    TRACE = 2


class DispatchFlags(IntFlag):
    CACHED = 1


class CombineFlags(IntFlag):
    EXACT = 1
    WEIGHTS_OF_DISPATCH = 2


VERSION = (0, 1, 0)
UNIQUE_ID_BYTES = 128

AllgatherFn = ctypes.CFUNCTYPE(c_int32, c_void_p, c_void_p, c_void_p, c_size_t)


class UniqueIdStruct(ctypes.Structure):
    _fields_ = [("bytes", c_uint8 * UNIQUE_ID_BYTES)]


class CommConfigStruct(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("rank", c_int32),
        ("num_ranks", c_int32),
        ("backend", c_uint32),
        ("device", c_int32),
        ("unique_id", UniqueIdStruct),
        ("allgather", AllgatherFn),
        ("allgather_context", c_void_p),
        ("timeout_ms", c_uint32),
        ("reserved", c_uint32),
    ]


class BufferConfigStruct(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("layout", c_uint32),
        ("sync", c_uint32),
        ("max_tokens", c_int64),
        ("max_recv_rows", c_int64),
        ("max_expert_rows", c_int64),
        ("max_row_bytes", c_int64),
        ("max_scale_bytes", c_int64),
        ("max_combine_row_bytes", c_int64),
        ("num_experts", c_int32),
        ("num_topk", c_int32),
        ("expert_alignment", c_int32),
        ("dispatch_windows", c_int32),
        ("combine_windows", c_int32),
        ("max_in_flight", c_int32),
        ("num_sms", c_int32),
        ("num_stages", c_int32),
        ("timeout_ms", c_uint32),
        ("first_timeout_ms", c_uint32),
        ("flags", c_uint32),
        ("reserved", c_uint32),
    ]


class BufferSizesStruct(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("dispatch_window", c_int64),
        ("combine_window", c_int64),
        ("signals", c_int64),
        ("local_outputs", c_int64),
        ("handle", c_int64),
        ("pinned_host", c_int64),
        ("total_symmetric", c_int64),
        ("total_device", c_int64),
        ("slabs", c_int64),
        ("slab_rows", c_int64),
    ]


class ReportStruct(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("status", c_int32),
        ("operation", c_uint32),
        ("phase", c_uint32),
        ("rank", c_int32),
        ("num_missing", c_int32),
        ("first_missing", c_int32),
        ("epoch", c_uint64),
        ("expected", c_uint64),
        ("seen", c_uint64),
        ("row", c_int64),
        ("value", c_int64),
        ("waited_ms", c_uint32),
        ("reserved", c_uint32),
    ]


class RowsStruct(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("rows", c_int64),
        ("row_stride", c_int64),
        ("slot_stride", c_int64),
        ("dtype", c_uint32),
        ("reserved", c_uint32),
    ]


class ScalesStruct(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("row_stride", c_int64),
        ("col_stride", c_int64),
        ("slot_stride", c_int64),
        ("dtype", c_uint32),
        ("block", c_int32),
    ]


class DispatchInStruct(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("flags", c_uint32),
        ("num_sms", c_int32),
        ("num_tokens", c_int64),
        ("num_tokens_device", c_void_p),
        ("hidden", c_int64),
        ("x", RowsStruct),
        ("x_scales", ScalesStruct),
        ("topk_idx", c_void_p),
        ("topk_weights", c_void_p),
        ("topk_idx_dtype", c_uint32),
        ("wire_dtype", c_uint32),
        ("wire_scale_dtype", c_uint32),
        ("wire_scale_block", c_int32),
    ]


class DispatchOutStruct(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("x", RowsStruct),
        ("scales", ScalesStruct),
        ("topk_idx", c_void_p),
        ("topk_weights", c_void_p),
        ("row_source", c_void_p),
        ("rank_counts", c_void_p),
        ("expert_counts", c_void_p),
        ("expert_offsets", c_void_p),
        ("true_rows", c_void_p),
        ("source_ranges", c_void_p),
    ]


class CombineInStruct(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("flags", c_uint32),
        ("num_sms", c_int32),
        ("hidden", c_int64),
        ("x", RowsStruct),
        ("row_weights", c_void_p),
        ("topk_weights", c_void_p),
        ("carried_weights", c_void_p),
    ]


class CombineOutStruct(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("x", RowsStruct),
        ("bias", c_void_p * 2),
        ("carried_weights", c_void_p),
    ]


class StatisticsStruct(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("epoch", c_uint64),
        ("dispatches", c_uint64),
        ("combines", c_uint64),
        ("barriers", c_uint64),
        ("entry_barriers", c_uint64),
        ("rows_sent", c_uint64),
        ("rows_received", c_uint64),
        ("bytes_sent", c_uint64),
        ("bytes_received", c_uint64),
        ("wait_ns_last", c_uint64),
        ("wait_ns_total", c_uint64),
    ]


class PeerStatisticsStruct(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("rows_sent", c_uint64),
        ("rows_received", c_uint64),
        ("bytes_sent", c_uint64),
        ("bytes_received", c_uint64),
        ("wait_ns_last", c_uint64),
        ("wait_ns_total", c_uint64),
    ]


# The header's name of each struct, and whether the library has an _init function for it.
STRUCTS: dict[str, tuple[type[ctypes.Structure], bool]] = {
    "deep_ep_unique_id_t": (UniqueIdStruct, False),
    "deep_ep_comm_config_t": (CommConfigStruct, True),
    "deep_ep_buffer_config_t": (BufferConfigStruct, True),
    "deep_ep_buffer_sizes_t": (BufferSizesStruct, True),
    "deep_ep_report_t": (ReportStruct, True),
    "deep_ep_rows_t": (RowsStruct, False),
    "deep_ep_scales_t": (ScalesStruct, False),
    "deep_ep_dispatch_in_t": (DispatchInStruct, True),
    "deep_ep_dispatch_out_t": (DispatchOutStruct, True),
    "deep_ep_combine_in_t": (CombineInStruct, True),
    "deep_ep_combine_out_t": (CombineOutStruct, True),
    "deep_ep_statistics_t": (StatisticsStruct, True),
    "deep_ep_peer_statistics_t": (PeerStatisticsStruct, True),
}

_P = ctypes.POINTER
_PP = ctypes.POINTER(c_void_p)

# name: (result, arguments). Objects and streams are opaque pointers.
FUNCTIONS: dict[str, tuple[object, list[object]]] = {
    "deep_ep_unique_id_create": (c_int32, [ctypes.c_char_p, _P(UniqueIdStruct)]),
    "deep_ep_comm_create": (c_int32, [_P(CommConfigStruct), _PP]),
    "deep_ep_comm_create_local": (c_int32, [_P(CommConfigStruct), _P(c_int32), _PP]),
    "deep_ep_comm_abort": (c_int32, [c_void_p, ctypes.c_char_p]),
    "deep_ep_comm_destroy": (c_int32, [c_void_p]),
    "deep_ep_buffer_size": (c_int32, [c_void_p, _P(BufferConfigStruct), _P(c_int32), _P(BufferSizesStruct)]),
    "deep_ep_buffer_create": (c_int32, [c_void_p, _P(BufferConfigStruct), _P(c_int32), _PP]),
    "deep_ep_buffer_create_local": (c_int32, [_PP, _P(BufferConfigStruct), _P(c_int32), _PP]),
    "deep_ep_buffer_barrier": (c_int32, [c_void_p, c_void_p]),
    "deep_ep_buffer_report": (c_int32, [c_void_p, _P(ReportStruct), _P(c_int32), c_size_t]),
    "deep_ep_buffer_set_timeout": (c_int32, [c_void_p, c_uint32]),
    "deep_ep_buffer_reset": (c_int32, [c_void_p, _P(c_uint8)]),
    "deep_ep_buffer_destroy": (c_int32, [c_void_p]),
    "deep_ep_buffer_statistics": (c_int32, [c_void_p, _P(StatisticsStruct)]),
    "deep_ep_buffer_peer_statistics": (c_int32, [c_void_p, c_int32, _P(PeerStatisticsStruct)]),
    "deep_ep_buffer_expert_statistics": (c_int32, [c_void_p, _P(c_uint64), c_size_t]),
    "deep_ep_buffer_local_experts": (c_int32, [c_void_p, _P(c_int32), c_size_t, _P(c_size_t)]),
    "deep_ep_comm_info": (c_int32, [c_void_p, _P(c_int32), _P(c_int32), _P(c_uint32)]),
    "deep_ep_buffer_alive": (c_int32, [c_void_p, _P(c_uint8), c_size_t]),
    "deep_ep_buffer_trace": (c_int32, [c_void_p, ctypes.c_char_p, c_size_t, _P(c_size_t)]),
    "deep_ep_handle_create": (c_int32, [c_void_p, _PP]),
    "deep_ep_handle_dispatch": (c_int32, [c_void_p, _P(DispatchInStruct), _P(DispatchOutStruct), c_void_p]),
    "deep_ep_handle_dispatch_send": (c_int32, [c_void_p, _P(DispatchInStruct), c_void_p]),
    "deep_ep_handle_dispatch_recv": (c_int32, [c_void_p, _P(DispatchOutStruct), c_void_p]),
    "deep_ep_handle_wait_counts": (c_int32, [c_void_p, _P(c_int64), _P(c_int64), c_uint32]),
    "deep_ep_handle_combine_input": (c_int32, [c_void_p, _P(RowsStruct), c_void_p]),
    "deep_ep_handle_release": (c_int32, [c_void_p, c_void_p]),
    "deep_ep_handle_combine": (c_int32, [c_void_p, _P(CombineInStruct), _P(CombineOutStruct), c_void_p]),
    "deep_ep_handle_combine_send": (c_int32, [c_void_p, _P(CombineInStruct), c_void_p]),
    "deep_ep_handle_combine_recv": (c_int32, [c_void_p, _P(CombineOutStruct), c_void_p]),
    "deep_ep_handle_destroy": (c_int32, [c_void_p]),
    "deep_ep_version": (c_uint32, []),
    "deep_ep_status_string": (ctypes.c_char_p, [c_int32]),
    "deep_ep_last_error": (ctypes.c_char_p, []),
}
for _name, (_struct, _has_init) in STRUCTS.items():
    if _has_init:
        FUNCTIONS[_name[:-2] + "_init"] = (c_int32, [_P(_struct), c_size_t])
