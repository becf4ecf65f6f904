"""Who gives the library's objects back, and when.

`close()` gives an object back at once. What is only forgotten is given back by a finaliser, with three limits. It never
runs at the interpreter's exit: the memory is the process's and goes with it. It never destroys a handle itself, because
the garbage collector runs on any thread and at any time, while a handle's destroy needs the exclusive use of its buffer
and, with rows open, has its place in the order of calls of all ranks: such handles wait for the next explicit call on
the buffer, those with open rows for the buffer's end. And memory with views of it in Python is kept for them.
"""

from __future__ import annotations

import os
import warnings
import weakref
from collections import deque
from typing import Any, Optional

from . import _dlpack
from ._lib import lib
from ._tensor import Tensor
from .errors import invalid_state


class HandleRecord:
    """A handle of the library; plain data, so that finalisers can work on it."""

    def __init__(self, pointer: int, buffer: BufferRecord) -> None:
        self.pointer: Optional[int] = pointer
        self.buffer = buffer
        self.ordered = False
        """Whether its destroy has a place in the order of calls: rows are open, or a send is unreceived."""

    def destroy(self) -> int:
        pointer, self.pointer = self.pointer, None
        status = 0
        if pointer is not None and self.buffer.pid == os.getpid():
            status = lib().deep_ep_handle_destroy(pointer)
            if status:  # in use by another thread: still there
                self.pointer = pointer
        return status

    def orphan(self) -> None:
        """What the finaliser of a forgotten handle does."""
        if self.pointer is None:
            return
        if self.buffer.pointer is None:
            self.destroy()
            return
        if self.ordered:
            text = "a deepep handle was dropped with rows open: call combine, release or close on it"
            warnings.warn(text, ResourceWarning, stacklevel=2)
        self.buffer.orphans.append(self)


class BufferRecord:
    """A buffer of the library; plain data, so that finalisers can work on it."""

    def __init__(self, pointer: int) -> None:
        self.pointer: Optional[int] = pointer
        self.closed = False
        self.pid = os.getpid()  # a forked child owns nothing
        self.orphans: deque[HandleRecord] = deque()

    def destroy(self) -> int:
        pointer, self.pointer = self.pointer, None
        if pointer is not None and self.pid == os.getpid():
            status = int(lib().deep_ep_buffer_destroy(pointer))
            if status:
                self.pointer = pointer
                return status
        self.drain()
        return 0

    def drain(self) -> None:
        """Destroys the forgotten handles that may go now."""
        for _ in range(len(self.orphans)):
            handle = self.orphans.popleft()
            if handle.ordered and self.pointer is not None:
                self.orphans.append(handle)
            else:
                handle.destroy()


class _Core:
    """Lives as long as the object in Python and the views of its memory."""

    def __init__(self) -> None:
        self.views: weakref.WeakSet[Tensor] = weakref.WeakSet()

    def has_views(self) -> bool:
        _dlpack.sweep()
        return len(self.views) > 0

    def _finally(self, function: Any) -> None:
        weakref.finalize(self, function).atexit = False


class BufferCore(_Core):
    def __init__(self, pointer: int) -> None:
        super().__init__()
        self.record = BufferRecord(pointer)
        self.handles: weakref.WeakSet[HandleCore] = weakref.WeakSet()
        self._finally(self.record.destroy)

    @property
    def pointer(self) -> int:
        if self.record.closed or self.record.pointer is None:
            raise invalid_state("the buffer is closed")
        return self.record.pointer


class HandleCore(_Core):
    def __init__(self, pointer: int, buffer: BufferCore) -> None:
        super().__init__()
        self.record = HandleRecord(pointer, buffer.record)
        self.buffer = buffer
        self.leases: weakref.WeakSet[Lease] = weakref.WeakSet()
        buffer.handles.add(self)
        self._finally(self.record.orphan)

    @property
    def pointer(self) -> int:
        self.buffer.pointer  # noqa: B018  (raises when the buffer is closed)
        if self.record.pointer is None:
            raise invalid_state("the handle is closed")
        return self.record.pointer

    def void(self, why: str) -> None:
        """After a reset or a close: nothing is open and no result holds."""
        self.record.ordered = False
        for lease in list(self.leases):
            lease.end(why)


class Lease:
    """The time for which library memory holds a result. Tensors of the memory have it as their owner."""

    def __init__(self, handle: HandleCore, core: _Core) -> None:
        self._core = core
        self._handle = handle
        self._ended: Optional[str] = None
        handle.leases.add(self)

    def end(self, why: str) -> None:
        self._ended = self._ended or why

    def require(self) -> None:
        if self._ended:
            raise invalid_state(f"this memory was given back to the library by {self._ended}")
        self._handle.pointer  # noqa: B018  (raises when handle or buffer is closed)

    def track(self, view: Tensor) -> None:
        """The memory stays mapped as long as the view lives. Called by every tensor that has this owner."""
        self._core.views.add(view)
