"""Symmetric memory for the operations of one rank."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, fields
from types import TracebackType
from typing import Any, Optional, TypeVar

from ._abi import (
    BufferConfigStruct,
    BufferFlags,
    BufferSizesStruct,
    Layout,
    Operation,
    PeerStatisticsStruct,
    Phase,
    ReportStruct,
    StatisticsStruct,
    Status,
    Sync,
)
from ._lib import check, last_error, lib, new
from ._native import BufferCore
from .comm import Comm, store
from .errors import Report, error_of, invalid, invalid_state
from .handle import Handle
from .results import Geometry

_Row = TypeVar("_Row")


@dataclass(frozen=True)
class BufferConfig:
    """Capacities, in rows and bytes; types and hidden belong to each operation. Equal on all ranks. 0: chosen for you.

    What each field means is in the comments of deep_ep_buffer_config_t.
    """

    num_experts: int
    num_topk: int
    max_tokens: int
    max_row_bytes: int
    layout: Layout = Layout.PACKED_BY_RANK
    sync: Sync = Sync.AUTO
    max_recv_rows: int = 0
    max_expert_rows: int = 0
    max_scale_bytes: int = 0
    max_combine_row_bytes: int = 0
    expert_alignment: int = 0
    dispatch_windows: int = 0
    combine_windows: int = 0
    max_in_flight: int = 0
    num_sms: int = 0
    num_stages: int = 0
    timeout_ms: int = 0
    first_timeout_ms: int = 0
    refuse_bad_ids: bool = False
    """Refuse a dispatch with a bad expert id before anything is sent, instead of treating the id as -1."""
    trace: bool = False
    """Record the times of the phases for `Buffer.trace`."""

    def struct(self) -> BufferConfigStruct:
        """The C struct."""
        config = new(BufferConfigStruct)
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("refuse_bad_ids", "trace")}
        flags = BufferFlags.REFUSE_BAD_IDS * self.refuse_bad_ids | BufferFlags.TRACE * self.trace
        store(config, "BufferConfig", flags=flags, **plain)
        return config


@dataclass(frozen=True)
class BufferSizes:
    """The exact bytes a buffer takes on one rank, part by part."""

    dispatch_window: int
    combine_window: int
    signals: int
    local_outputs: int
    handle: int
    pinned_host: int
    total_symmetric: int
    total_device: int
    #: Slabs of received rows, and how many rows the library's own memory holds in each.
    slabs: int
    slab_rows: int


@dataclass(frozen=True)
class Statistics:
    """Totals of a buffer since it was created."""

    epoch: int
    dispatches: int
    combines: int
    barriers: int
    entry_barriers: int
    rows_sent: int
    rows_received: int
    bytes_sent: int
    bytes_received: int
    wait_ns_last: int
    wait_ns_total: int


@dataclass(frozen=True)
class PeerStatistics:
    """The part of the totals that one peer accounts for."""

    rows_sent: int
    rows_received: int
    bytes_sent: int
    bytes_received: int
    wait_ns_last: int
    wait_ns_total: int


def _read(row: type[_Row], struct: Any) -> _Row:
    return row(**{f.name: getattr(struct, f.name) for f in fields(row)})  # type: ignore[arg-type]


def buffer_sizes(comm: Comm, config: BufferConfig, expert_rank: Optional[Sequence[int]] = None) -> BufferSizes:
    """What a buffer would take on this rank, without allocating it."""
    sizes = new(BufferSizesStruct)
    owners = _owners(config, expert_rank)
    check(lib().deep_ep_buffer_size(comm.pointer, ctypes.byref(config.struct()), owners, ctypes.byref(sizes)))
    return _read(BufferSizes, sizes)


def _owners(config: BufferConfig, expert_rank: Optional[Sequence[int]]) -> Any:
    if expert_rank is None:
        return None
    if len(expert_rank) != config.num_experts:
        raise invalid(f"expert_rank: {len(expert_rank)} entries for {config.num_experts} experts")
    return (ctypes.c_int32 * len(expert_rank))(*expert_rank)


class Buffer:
    """Memory that all ranks of a group share, and the place of its operations in one common order.

    The constructor blocks until every rank of the comm has come. `expert_rank` says which rank owns each expert; None:
    an even split, ascending. One thread at a time uses a buffer and its handles; `abort`, `report`, `statistics` and
    `set_timeout` may run beside it. A buffer that is only forgotten is destroyed without talking to anybody.
    """

    def __init__(self, comm: Comm, config: BufferConfig, expert_rank: Optional[Sequence[int]] = None) -> None:
        pointer = ctypes.c_void_p()
        owners = _owners(config, expert_rank)
        struct = config.struct()
        check(lib().deep_ep_buffer_create(comm.pointer, ctypes.byref(struct), owners, ctypes.byref(pointer)))
        self._adopt(pointer.value or 0, comm, config)

    @classmethod
    def local(
        cls, comms: Sequence[Comm], config: BufferConfig, expert_rank: Optional[Sequence[int]] = None
    ) -> list[Buffer]:
        """The buffers of all ranks of one `Comm.local`, made from one thread."""
        count = len(comms)
        given = (ctypes.c_void_p * max(count, 1))(*(comm.pointer for comm in comms))
        pointers = (ctypes.c_void_p * max(count, 1))()
        owners = _owners(config, expert_rank)
        if not count or count != comms[0].num_ranks:  # the library reads and writes num_ranks pointers
            raise invalid(f"Buffer.local: {count} comms; it needs all comms of one Comm.local")
        check(lib().deep_ep_buffer_create_local(given, ctypes.byref(config.struct()), owners, pointers))
        buffers = []
        for comm, pointer in zip(comms, pointers):
            buffer = cls.__new__(cls)
            buffer._adopt(pointer, comm, config)
            buffers.append(buffer)
        return buffers

    def _adopt(self, pointer: int, comm: Comm, config: BufferConfig) -> None:
        self._core: Optional[BufferCore] = BufferCore(pointer)
        self._unread: deque[Report] = deque()
        self.comm = comm
        self.config = config
        self.rank = comm.rank
        self.num_ranks = comm.num_ranks
        count = ctypes.c_size_t()
        check(lib().deep_ep_buffer_local_experts(pointer, None, 0, ctypes.byref(count)))
        experts = (ctypes.c_int32 * max(count.value, 1))()
        check(lib().deep_ep_buffer_local_experts(pointer, experts, count.value, ctypes.byref(count)))
        self.local_experts: tuple[int, ...] = tuple(experts[: count.value])
        """Global ids of this rank's experts; position is the local id."""

    @property
    def pointer(self) -> int:
        """The library's object, for calls through ctypes."""
        return self._live.pointer

    @property
    def _live(self) -> BufferCore:
        if self._core is None:
            raise invalid_state("the buffer is closed")
        return self._core

    @property
    def closed(self) -> bool:
        return self._core is None

    def handle(self) -> Handle:
        """A handle for the routing of one dispatch at a time."""
        pointer = ctypes.c_void_p()
        self._live.record.drain()
        self._check(lib().deep_ep_handle_create(self.pointer, ctypes.byref(pointer)))
        geometry = Geometry(
            layout=Layout(self.config.layout),
            num_ranks=self.num_ranks,
            max_tokens=self.config.max_tokens,
            num_topk=self.config.num_topk,
            local_experts=len(self.local_experts),
            capacity=self._capacity(),
        )
        return Handle(self._live, pointer.value or 0, geometry, self._check)

    def _capacity(self) -> Optional[int]:
        """Rows that a receive in place has room for, in all or per slab; None: only the library knows."""
        everything = self.num_ranks * self.config.max_tokens
        if self.config.layout == Layout.PACKED_BY_RANK:
            return self.config.max_recv_rows or everything
        if self.config.layout == Layout.PACKED_BY_EXPERT:
            return self.config.max_expert_rows or None
        return self.config.max_tokens if self.config.layout == Layout.SLOTTED_BY_RANK else everything

    def barrier(self, stream: int = 0) -> None:
        """Waits until every rank has called it. Collective."""
        self._check(lib().deep_ep_buffer_barrier(self.pointer, stream))

    def report(self) -> Optional[Report]:
        """The oldest thing the buffer has to report, or None.

        What poisoned the buffer (timeout, mismatch, abort) stays until `reset`; a bad expert id or an overflow is told
        once.
        """
        if self._unread:
            return self._unread.popleft()
        return self._read_report()

    def _read_report(self) -> Optional[Report]:
        struct = new(ReportStruct)
        missing = (ctypes.c_int32 * self.num_ranks)()
        check(lib().deep_ep_buffer_report(self.pointer, ctypes.byref(struct), missing, self.num_ranks))
        if not struct.status:
            return None
        ranks = tuple(rank for rank in missing if rank >= 0)
        if not ranks and struct.first_missing >= 0:
            ranks = (struct.first_missing,)
        return Report(
            status=Status(struct.status),
            operation=Operation(struct.operation),
            phase=Phase(struct.phase),
            rank=struct.rank,
            missing=ranks,
            epoch=struct.epoch,
            expected=struct.expected,
            seen=struct.seen,
            row=struct.row,
            value=struct.value,
            waited_ms=struct.waited_ms,
        )

    def _check(self, status: int) -> None:
        """Raises for a status, with the report that explains it."""
        if not status:
            return
        detail = last_error()
        report = None
        if 60 <= status < 80:
            report = self._read_report()
            if report and report.status != status:  # an older one came first; `report` still owes it to the caller
                self._unread.append(report)
                report = self._read_report()
        raise error_of(status, detail, report)

    def set_timeout(self, timeout_ms: int) -> None:
        """Changes the deadline of every later wait."""
        check(lib().deep_ep_buffer_set_timeout(self.pointer, timeout_ms))

    def reset(self, alive: Optional[Sequence[bool]] = None) -> None:
        """Ends a failure: the ranks that go on agree on who they are. Collective over them; blocks.

        `alive`: None for all ranks, or one truth value for each. Routings of handles are void afterwards.
        """
        mask = None
        if alive is not None:
            if len(alive) != self.num_ranks:
                raise invalid(f"reset: alive has {len(alive)} entries for {self.num_ranks} ranks")
            mask = (ctypes.c_uint8 * self.num_ranks)(*(1 if one else 0 for one in alive))
        self._check(lib().deep_ep_buffer_reset(self.pointer, mask))
        for handle in list(self._live.handles):
            handle.void("reset")
        for orphan in self._live.record.orphans:
            orphan.ordered = False

    def statistics(self) -> Statistics:
        """Totals since the buffer was created."""
        struct = new(StatisticsStruct)
        check(lib().deep_ep_buffer_statistics(self.pointer, ctypes.byref(struct)))
        return _read(Statistics, struct)

    def peer_statistics(self, peer: int) -> PeerStatistics:
        """What one peer accounts for; this rank's own number gives its local traffic."""
        struct = new(PeerStatisticsStruct)
        check(lib().deep_ep_buffer_peer_statistics(self.pointer, peer, ctypes.byref(struct)))
        return _read(PeerStatistics, struct)

    def expert_statistics(self) -> tuple[int, ...]:
        """Rows that each local expert has received since the buffer was created."""
        count = len(self.local_experts)
        rows = (ctypes.c_uint64 * max(count, 1))()
        check(lib().deep_ep_buffer_expert_statistics(self.pointer, rows, count))
        return tuple(rows[:count])

    def alive(self) -> tuple[bool, ...]:
        """Which ranks take part: all of them until a reset leaves some out."""
        flags = (ctypes.c_uint8 * self.num_ranks)()
        check(lib().deep_ep_buffer_alive(self.pointer, flags, self.num_ranks))
        return tuple(bool(flag) for flag in flags)

    def trace(self) -> str:
        """The newest recorded phases as a Chrome trace (JSON). The buffer needs `BufferConfig(trace=True)`."""
        needed = ctypes.c_size_t()
        check(lib().deep_ep_buffer_trace(self.pointer, None, 0, ctypes.byref(needed)))
        while True:
            room = needed.value + 4096  # the trace may grow meanwhile
            text = ctypes.create_string_buffer(room)
            status = lib().deep_ep_buffer_trace(self.pointer, text, room, ctypes.byref(needed))
            if status == 0 or needed.value <= room:
                check(status)
                return text.value.decode()

    def close(self) -> None:
        """Gives the memory back; while views of it exist, as soon as they and the handles are gone.

        Never waits for peers, and may be called again. Handles of the buffer become unusable. CallerError
        (CONCURRENT_USE) when another thread is inside a call; the buffer is then still open.
        """
        core = self._core
        if core is None:
            return
        if not core.has_views():
            check(core.record.destroy())
        core.record.closed = True
        self._core = None

    def __enter__(self) -> Buffer:
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else Layout(self.config.layout).name
        return f"Buffer(rank {self.rank} of {self.num_ranks}, {state})"
