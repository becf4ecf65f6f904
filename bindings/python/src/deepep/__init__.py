"""Expert-parallel dispatch and combine: the Python side of libdeepep.

    uid = deepep.UniqueId.create()                       # on one rank, carried to the others
    comm = deepep.Comm(rank, num_ranks, uid)
    buffer = deepep.Buffer(comm, deepep.BufferConfig(num_experts=8, num_topk=2, max_tokens=64, max_row_bytes=2048))
    handle = buffer.handle()
    received = handle.dispatch(x, topk_idx, topk_weights)
    y = experts(received.x.numpy(), received.topk_idx.numpy(), ...)
    combined = handle.combine(y).x.numpy()

Tensors are anything with DLPack, the array interfaces or a buffer; see `as_tensor`. Nothing is needed at run time but
libdeepep itself, which $DEEPEP_LIBRARY, the package, or the system's loader provides.
"""

from ._abi import Backend, DType, Layout, Operation, Phase, ScaleType, Status, Sync
from ._lib import LoadError, status_string, version
from ._tensor import Tensor, TensorLike, as_tensor
from .buffer import Buffer, BufferConfig, BufferSizes, PeerStatistics, Statistics, buffer_sizes
from .comm import Comm, UniqueId
from .errors import (
    AbortedError,
    BusyError,
    CallerError,
    DeepEPError,
    InternalError,
    PeerError,
    PeerTimeoutError,
    PlatformError,
    Report,
    SubsystemError,
    UnsupportedError,
)
from .handle import Handle
from .results import Combined, Counts, Dispatched, DispatchOut

__version__ = "0.1.0"

__all__ = [
    "AbortedError",
    "Backend",
    "Buffer",
    "BufferConfig",
    "BufferSizes",
    "BusyError",
    "CallerError",
    "Combined",
    "Comm",
    "Counts",
    "DType",
    "DeepEPError",
    "DispatchOut",
    "Dispatched",
    "Handle",
    "InternalError",
    "Layout",
    "LoadError",
    "Operation",
    "PeerError",
    "PeerStatistics",
    "PeerTimeoutError",
    "Phase",
    "PlatformError",
    "Report",
    "ScaleType",
    "Statistics",
    "Status",
    "SubsystemError",
    "Sync",
    "Tensor",
    "TensorLike",
    "UniqueId",
    "UnsupportedError",
    "as_tensor",
    "buffer_sizes",
    "status_string",
    "version",
]
