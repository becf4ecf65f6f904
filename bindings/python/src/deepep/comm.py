"""One rank's place in a group of ranks."""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Callable, Optional

from ._abi import UNIQUE_ID_BYTES, AllgatherFn, Backend, CommConfigStruct, UniqueIdStruct
from ._lib import check, last_error, lib, new
from .errors import error_of, invalid, invalid_state

Allgather = Callable[[bytes], Sequence[bytes]]
"""Given the bytes of this rank, returns those of all ranks in rank order, all of the same length."""


def store(struct: ctypes.Structure, what: str, **values: int) -> None:
    """Sets integer fields; ctypes alone would cut a number that does not fit."""
    for name, value in values.items():
        try:
            setattr(struct, name, int(value))
        except (TypeError, ValueError):
            raise invalid(f"{what}.{name}: {value!r} is no integer") from None
        if getattr(struct, name) != value:
            raise invalid(f"{what}.{name}: {value} does not fit in the C field")


@dataclass(frozen=True, repr=False)
class UniqueId:
    """Tells the ranks of one group where to meet and proves that they belong together: keep it secret.

    Made on one rank by `create` and carried to the others as bytes or by pickle.
    """

    value: bytes

    def __post_init__(self) -> None:
        if len(self.value) != UNIQUE_ID_BYTES:
            raise invalid(f"UniqueId: {len(self.value)} bytes, not {UNIQUE_ID_BYTES}")

    @classmethod
    def create(cls, address: Optional[str] = None) -> UniqueId:
        """`address`: None for a meeting point on this machine, "HOST:PORT", "unix:/PATH" or "unix:@NAME"."""
        made = UniqueIdStruct()
        check(lib().deep_ep_unique_id_create(None if address is None else address.encode(), ctypes.byref(made)))
        return cls(bytes(made.bytes))

    def __bytes__(self) -> bytes:
        return self.value

    def __repr__(self) -> str:
        return "UniqueId(...)"


class Comm:
    """One rank's membership of a group.

    The constructor blocks until all ranks have come, at most `timeout_ms` (0: a minute). The ranks meet by
    `unique_id`, or else through `allgather`; an exception in `allgather` becomes the cause of the error raised here.
    """

    def __init__(
        self,
        rank: int,
        num_ranks: int,
        unique_id: Optional[UniqueId] = None,
        *,
        allgather: Optional[Allgather] = None,
        backend: Backend = Backend.AUTO,
        device: int = 0,
        timeout_ms: int = 0,
    ) -> None:
        config = _config(num_ranks, backend, timeout_ms)
        store(config, "Comm", rank=rank, device=device)
        if unique_id is not None:
            ctypes.memmove(ctypes.byref(config.unique_id), bytes(unique_id), UNIQUE_ID_BYTES)
        failures: list[BaseException] = []
        if allgather is not None:
            config.allgather = _callback(allgather, num_ranks, failures)
        pointer = ctypes.c_void_p()
        status = lib().deep_ep_comm_create(ctypes.byref(config), ctypes.byref(pointer))
        if failures and not isinstance(failures[0], Exception):
            raise failures[0]  # KeyboardInterrupt and its like are nobody's error value
        if status:
            cause = failures[0] if failures else None
            detail = f"{last_error()} ({type(cause).__name__}: {cause})" if cause else last_error()
            raise error_of(status, detail) from cause
        self._adopt(pointer.value)

    @classmethod
    def local(
        cls,
        num_ranks: int,
        *,
        backend: Backend = Backend.AUTO,
        devices: Optional[Sequence[int]] = None,
        timeout_ms: int = 0,
    ) -> list[Comm]:
        """All ranks of a group in this process, in rank order. Each is then used by a thread of its own."""
        config = _config(num_ranks, backend, timeout_ms)
        ordinals = None
        if devices is not None:
            if len(devices) != num_ranks:
                raise invalid(f"Comm.local: {len(devices)} devices for {num_ranks} ranks")
            ordinals = (ctypes.c_int32 * num_ranks)(*devices)
        pointers = (ctypes.c_void_p * max(num_ranks, 1))()
        check(lib().deep_ep_comm_create_local(ctypes.byref(config), ordinals, pointers))
        comms = []
        for rank in range(num_ranks):
            comm = cls.__new__(cls)
            comm._adopt(pointers[rank])
            comms.append(comm)
        return comms

    def _adopt(self, pointer: Optional[int]) -> None:
        self._pointer = pointer
        rank, num_ranks, backend = ctypes.c_int32(), ctypes.c_int32(), ctypes.c_uint32()
        check(lib().deep_ep_comm_info(pointer, ctypes.byref(rank), ctypes.byref(num_ranks), ctypes.byref(backend)))
        self._lock = threading.Lock()  # abort may run beside close
        self.rank = rank.value
        self.num_ranks = num_ranks.value
        self.backend = Backend(backend.value)  # what was chosen, never AUTO
        self._finalizer = weakref.finalize(self, _destroy, pointer or 0, os.getpid())
        self._finalizer.atexit = False

    @property
    def pointer(self) -> int:
        """The library's object, for calls through ctypes."""
        if self._pointer is None:
            raise invalid_state("the comm is closed")
        return self._pointer

    def abort(self, reason: str = "") -> None:
        """Ends the group's work: waits end with AbortedError on every rank. May run beside any call on any thread."""
        with self._lock:
            check(lib().deep_ep_comm_abort(self.pointer, reason.encode()))

    def close(self) -> None:
        """Leaves the group; never waits for peers. Buffers of the comm stay usable. May be called again."""
        with self._lock:
            self._pointer = None
            self._finalizer()

    def __enter__(self) -> Comm:
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        closed = ", closed" if self._pointer is None else ""
        return f"Comm(rank {self.rank} of {self.num_ranks}{closed})"


def _destroy(pointer: int, pid: int) -> None:
    if pid == os.getpid():
        lib().deep_ep_comm_destroy(pointer)


def _config(num_ranks: int, backend: Backend, timeout_ms: int) -> CommConfigStruct:
    config = new(CommConfigStruct)
    store(config, "Comm", num_ranks=num_ranks, backend=backend, timeout_ms=timeout_ms)
    return config


def _callback(allgather: Allgather, num_ranks: int, failures: list[BaseException]) -> Any:
    def call(_context: int, mine: int, everything: int, size: int) -> int:
        try:
            parts = [bytes(part) for part in allgather(ctypes.string_at(mine, size))]
            if [len(part) for part in parts] != [size] * num_ranks:
                lengths = [len(part) for part in parts]
                raise ValueError(f"allgather returned parts of {lengths} bytes, not {num_ranks} of {size}")
            ctypes.memmove(everything, b"".join(parts), size * num_ranks)
            return 0
        except BaseException as error:  # nothing may unwind through C; told after the call
            failures.append(error)
            return 1

    return AllgatherFn(call)
