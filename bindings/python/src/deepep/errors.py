"""One exception class per group of statuses, so that programs can tell whose turn it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

from ._abi import Operation, Phase, Status


@dataclass(frozen=True)
class Report:
    """What went wrong on a buffer, as far as programs can use it. 0 or -1 where a field does not apply."""

    status: Status
    operation: Operation
    phase: Phase
    rank: int
    """The rank that wrote the report."""
    missing: tuple[int, ...]
    """The ranks that did not come, ascending; after an abort the rank that aborted."""
    epoch: int
    expected: int
    seen: int
    row: int
    value: int
    waited_ms: int

    @property
    def ranks(self) -> tuple[int, ...]:
        """The same as `missing`."""
        return self.missing


class DeepEPError(Exception):
    """A call that the library refused or could not finish."""

    def __init__(self, status: int, detail: str, report: Optional[Report] = None) -> None:
        try:
            self.status: int = Status(status)
            name = Status(status).name
        except ValueError:
            self.status = status
            name = f"status {status}"
        self.detail = detail
        """What the library said: function, argument, value, limit, remedy."""
        self.report = report
        """The buffer's report, where an operation failed because of its peers."""
        super().__init__(f"{name}: {detail}" if detail else name)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that the report names; empty without a report."""
        return self.report.missing if self.report else ()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.status, self.detail, self.report)


class CallerError(DeepEPError):
    """Statuses 1 to 19: the arguments or the order of calls.

    An operation refused this way may be repeated, except after CONCURRENT_USE.
    """


class BusyError(CallerError):
    """No window or area is free: combine, release or receive first."""


class UnsupportedError(CallerError):
    """Legal, but not on this backend or not in this combination."""


class PlatformError(DeepEPError):
    """Statuses 20 to 39: the environment (driver, device, memory, a peer out of reach)."""


class SubsystemError(DeepEPError):
    """Statuses 40 to 59: a call into CUDA or the system failed, or the caller's all-gather."""


class PeerError(DeepEPError):
    """Statuses 60 to 79: peers and time. The buffer returns the same status until `Buffer.reset`."""


class PeerTimeoutError(PeerError, TimeoutError):
    """A peer did not come within the deadline. Also a builtin TimeoutError."""


class AbortedError(PeerError):
    """A rank called `Comm.abort`."""


class InternalError(DeepEPError):
    """Statuses 90 to 99, and unknown ones: a defect of the library."""


_BY_STATUS: dict[int, type[DeepEPError]] = {
    Status.BUSY: BusyError,
    Status.UNSUPPORTED: UnsupportedError,
    Status.TIMEOUT: PeerTimeoutError,
    Status.ABORTED: AbortedError,
}
_BY_GROUP = (
    (range(1, 20), CallerError),
    (range(20, 40), PlatformError),
    (range(40, 60), SubsystemError),
    (range(60, 80), PeerError),
)


def error_of(status: int, detail: str, report: Optional[Report] = None) -> DeepEPError:
    """The exception for a status other than 0."""
    group = next((cls for statuses, cls in _BY_GROUP if status in statuses), InternalError)
    return _BY_STATUS.get(status, group)(status, detail, report)


def invalid(detail: str) -> CallerError:
    """An argument that the binding itself refuses."""
    return CallerError(Status.INVALID_ARGUMENT, detail)


def invalid_state(detail: str) -> CallerError:
    """A call that the binding itself refuses in this state."""
    return CallerError(Status.INVALID_STATE, detail)
