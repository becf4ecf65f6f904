"""The routing of one dispatch: what its combine needs and a cached dispatch reuses."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import byref
from types import TracebackType
from typing import Callable, NamedTuple, Optional

from ._abi import (
    CombineFlags,
    CombineInStruct,
    CombineOutStruct,
    DispatchFlags,
    DispatchInStruct,
    DispatchOutStruct,
    DType,
    RowsStruct,
    ScaleType,
)
from ._lib import check, lib, new
from ._native import BufferCore, HandleCore, Lease
from ._rows import address, fill_rows, fill_scales, host_tensor, side
from ._tensor import Tensor, TensorLike, allocate
from .errors import invalid, invalid_state
from .results import Combined, Counts, Dispatched, DispatchOut, Geometry, Placed, place


class _Sent(NamedTuple):
    """A dispatch between its send and the end of its receive."""

    num_tokens: int
    hidden: int


class _Combine(NamedTuple):
    """A combine between its send and the end of its receive."""

    hidden: int
    dtype: DType
    carried: bool


class Handle:
    """Dispatches and combines; made by `Buffer.handle`.

    Sources are read during the call and not kept. On the host backend every operation blocks its thread until its peers
    have done their part, with the interpreter lock free; signal handlers (Ctrl-C) run when it returns.
    """

    def __init__(
        self, buffer: BufferCore, pointer: int, geometry: Geometry, check_operation: Callable[[int], None]
    ) -> None:
        self._core: Optional[HandleCore] = HandleCore(pointer, buffer)
        self._geometry = geometry
        self._check = check_operation
        self._sent: Optional[_Sent] = None
        self._combining: Optional[_Combine] = None
        self._last: Optional[_Sent] = None
        self._num_rows: Optional[int] = None
        self._rows_lease: Optional[Lease] = None
        self._side_lease: Optional[Lease] = None
        self._input: Optional[tuple[Lease, Tensor]] = None

    @property
    def pointer(self) -> int:
        """The library's object, for calls through ctypes."""
        return self._live.pointer

    @property
    def _live(self) -> HandleCore:
        if self._core is None:
            raise invalid_state("the handle is closed")
        return self._core

    @property
    def num_tokens(self) -> int:
        """Tokens of the last dispatch, which are the rows of its combine's output."""
        if self._last is None:
            raise invalid_state("the handle has received no dispatch")
        return self._last.num_tokens

    def dispatch(
        self,
        x: TensorLike,
        topk_idx: Optional[TensorLike] = None,
        topk_weights: Optional[TensorLike] = None,
        *,
        x_scales: Optional[TensorLike] = None,
        x_scale_type: Optional[ScaleType] = None,
        wire_dtype: DType = DType.NONE,
        wire_scale_type: ScaleType = ScaleType.NONE,
        cached: bool = False,
        num_tokens_device: Optional[TensorLike] = None,
        out: Optional[DispatchOut] = None,
        stream: int = 0,
    ) -> Dispatched:
        """Sends each token's row to the ranks that own its experts and receives the rows sent here. Collective.

        `x`: [num_tokens, hidden]. `topk_idx`: [num_tokens, num_topk] global expert ids, int32 or int64, -1 for none.
        `topk_weights`: the same shape, float32; None: all 1. `x_scales`: [num_tokens, scales], with FP8 rows required;
        its type says which kind of scales, but for FP32_POW2. `wire_dtype` FP8_E4M3: cast on the way, with scales of
        `wire_scale_type`. `cached`: reuse the routing of the last dispatch, without `topk_idx`. `num_tokens_device`: an
        int32 that lowers the number of tokens when the operation runs. `out`: memory of the caller for the results.
        """
        core = self._live
        request, sent, anchors = self._request(
            x, topk_idx, topk_weights, x_scales, x_scale_type, cached, num_tokens_device
        )
        request.wire_dtype, request.wire_scale_dtype = wire_dtype, wire_scale_type
        placed = place(out, new(DispatchOutStruct), self._geometry)
        self._check(lib().deep_ep_handle_dispatch(core.pointer, byref(request), byref(placed.struct), stream))
        del anchors
        return self._received(sent, placed)

    def dispatch_send(
        self,
        x: TensorLike,
        topk_idx: Optional[TensorLike] = None,
        topk_weights: Optional[TensorLike] = None,
        *,
        x_scales: Optional[TensorLike] = None,
        x_scale_type: Optional[ScaleType] = None,
        wire_dtype: DType = DType.NONE,
        wire_scale_type: ScaleType = ScaleType.NONE,
        cached: bool = False,
        num_tokens_device: Optional[TensorLike] = None,
        stream: int = 0,
    ) -> None:
        """The first half of `dispatch`: returns when the rows are on their way."""
        core = self._live
        request, sent, anchors = self._request(
            x, topk_idx, topk_weights, x_scales, x_scale_type, cached, num_tokens_device
        )
        request.wire_dtype, request.wire_scale_dtype = wire_dtype, wire_scale_type
        self._check(lib().deep_ep_handle_dispatch_send(core.pointer, byref(request), stream))
        del anchors
        self._end_leases("the next dispatch")
        core.record.ordered = True
        self._sent = sent

    def dispatch_recv(self, *, out: Optional[DispatchOut] = None, stream: int = 0) -> Dispatched:
        """The second half of `dispatch`: waits for the rows and hands them out."""
        core = self._live
        placed = place(out, new(DispatchOutStruct), self._geometry)
        self._check(lib().deep_ep_handle_dispatch_recv(core.pointer, byref(placed.struct), stream))
        if self._sent is None:
            raise invalid_state("a dispatch was received that this object did not send")
        return self._received(self._sent, placed)

    def _request(
        self,
        x: TensorLike,
        topk_idx: Optional[TensorLike],
        topk_weights: Optional[TensorLike],
        x_scales: Optional[TensorLike],
        x_scale_type: Optional[ScaleType],
        cached: bool,
        num_tokens_device: Optional[TensorLike],
    ) -> tuple[DispatchInStruct, _Sent, list[Tensor]]:
        request = new(DispatchInStruct)
        rows = host_tensor(x, "x")
        fill_rows(request.x, rows, "x")
        anchors = [rows]  # sources live until the call is over
        tokens, hidden = rows.shape
        request.num_tokens, request.hidden = tokens, hidden
        routing = (tokens, self._geometry.num_topk)
        if x_scales is not None:
            scales = host_tensor(x_scales, "x_scales")
            fill_scales(request.x_scales, scales, "x_scales", x_scale_type)
            if scales.shape[0] != tokens:
                raise invalid(f"x_scales: {scales.shape[0]} rows, x has {tokens}")
            anchors.append(scales)
        if cached:
            request.flags = DispatchFlags.CACHED
        if topk_idx is not None:
            ids = side(topk_idx, "topk_idx", (DType.INT32, DType.INT64), routing)
            request.topk_idx, request.topk_idx_dtype = address(ids), ids.dtype
            anchors.append(ids)
        if topk_weights is not None:
            weights = side(topk_weights, "topk_weights", (DType.FP32,), routing)
            request.topk_weights = address(weights)
            anchors.append(weights)
        if num_tokens_device is not None:
            number = host_tensor(num_tokens_device, "num_tokens_device")
            if number.dtype != DType.INT32 or number.size != 1:
                raise invalid("num_tokens_device: not one int32")
            request.num_tokens_device = number.data
            anchors.append(number)
        return request, _Sent(tokens, hidden), anchors

    def _received(self, sent: _Sent, placed: Placed) -> Dispatched:
        core = self._live
        self._end_leases("the next dispatch")
        self._rows_lease = Lease(core, core.buffer)
        self._side_lease = Lease(core, core)
        self._sent, self._last = None, sent
        core.record.ordered = placed.in_place
        self._num_rows = None
        if self._geometry.slabs is None:
            rows = ctypes.c_int64()
            check(lib().deep_ep_handle_wait_counts(core.pointer, None, byref(rows), 0))
            self._num_rows = rows.value
        leases = (self._rows_lease, self._side_lease)
        return Dispatched(placed, self._geometry, sent.hidden, self._num_rows, leases)

    def _end_leases(self, why: str) -> None:
        for lease in (self._rows_lease, self._side_lease):
            if lease:
                lease.end(why)

    def wait_counts(self, timeout_ms: int = 0) -> Counts:
        """Waits until the numbers of the last dispatch are known to the host."""
        counts = (ctypes.c_int64 * max(self._geometry.local_experts, 1))()
        rows = ctypes.c_int64()
        self._check(lib().deep_ep_handle_wait_counts(self.pointer, counts, byref(rows), timeout_ms))
        return Counts(tuple(counts[: self._geometry.local_experts]), rows.value)

    def combine_input(self, dtype: DType, *, stream: int = 0) -> Tensor:
        """Where the rows of the next combine may be written in place; reserved until then. Collective.

        Shaped like the rows of the dispatch. The next `combine` is then called without `x`, or with this tensor.
        """
        core = self._live
        rows = RowsStruct()
        rows.dtype = dtype
        self._check(lib().deep_ep_handle_combine_input(core.pointer, byref(rows), stream))
        if self._last is None:
            raise invalid_state("a dispatch was received that this object did not send")
        item, hidden = DType(rows.dtype).itemsize, self._last.hidden
        row_stride = rows.row_stride or hidden * item
        if self._num_rows is None:
            shape = (*self._geometry.rows_shape(rows.rows), hidden)
            strides: tuple[int, ...] = (rows.slot_stride or rows.rows * row_stride, row_stride, item)
        else:
            shape, strides = (self._num_rows, hidden), (row_stride, item)
        lease = Lease(core, core.buffer)
        view = Tensor(rows.data, shape, DType(rows.dtype), strides, owner=lease)
        self._input = lease, view
        return view

    def release(self, *, stream: int = 0) -> None:
        """Says that the received rows are no longer read, without a combine. Collective."""
        core = self._live
        self._check(lib().deep_ep_handle_release(core.pointer, stream))
        self._reads_ended("release")

    def combine(
        self,
        x: Optional[TensorLike] = None,
        *,
        out: Optional[TensorLike] = None,
        exact: bool = False,
        weights_of_dispatch: bool = False,
        row_weights: Optional[TensorLike] = None,
        topk_weights: Optional[TensorLike] = None,
        carried_weights: Optional[TensorLike] = None,
        carried_out: Optional[TensorLike] = None,
        bias: Sequence[TensorLike] = (),
        stream: int = 0,
    ) -> Combined:
        """Brings the expert outputs back to the tokens' ranks and sums them in FP32 in a fixed order. Collective.

        `x`: BF16, FP16 or FP32 rows in the arrangement of the dispatch; None: what was written to `combine_input`.
        `out`: [num_tokens, hidden] of the same type; None: new memory. `exact`: every expert row crosses, one sum in
        ascending k, the same bits for any number of ranks (by-expert layouts). Weights, all float32: `row_weights`
        [rows] multiply on the expert's rank, `topk_weights` [num_tokens, num_topk] on the token's rank (exact only),
        `weights_of_dispatch` takes those of the dispatch; `carried_weights`, shaped like `Dispatched.topk_weights`,
        come back unmultiplied in `carried_out` [num_tokens, num_topk] (None: new memory). Up to two arrays in `bias`,
        laid out like `out`, start the sum.
        """
        core = self._live
        given, sending, anchors = self._given(x, exact, weights_of_dispatch, row_weights, topk_weights, carried_weights)
        struct, combined = self._sums(sending, out, bias, carried_out)
        self._check(lib().deep_ep_handle_combine(core.pointer, byref(given), byref(struct), stream))
        del anchors
        self._reads_ended("combine")
        return combined

    def combine_send(
        self,
        x: Optional[TensorLike] = None,
        *,
        exact: bool = False,
        weights_of_dispatch: bool = False,
        row_weights: Optional[TensorLike] = None,
        topk_weights: Optional[TensorLike] = None,
        carried_weights: Optional[TensorLike] = None,
        stream: int = 0,
    ) -> None:
        """The first half of `combine`: returns when the rows are on their way."""
        core = self._live
        given, sending, anchors = self._given(x, exact, weights_of_dispatch, row_weights, topk_weights, carried_weights)
        self._check(lib().deep_ep_handle_combine_send(core.pointer, byref(given), stream))
        del anchors
        self._reads_ended("combine")
        core.record.ordered = True
        self._combining = sending

    def combine_recv(
        self,
        *,
        out: Optional[TensorLike] = None,
        carried_out: Optional[TensorLike] = None,
        bias: Sequence[TensorLike] = (),
        stream: int = 0,
    ) -> Combined:
        """The second half of `combine`: waits for the rows and sums them."""
        core = self._live
        if self._combining is None:
            raise invalid_state("combine_recv without a combine_send")
        struct, combined = self._sums(self._combining, out, bias, carried_out)
        self._check(lib().deep_ep_handle_combine_recv(core.pointer, byref(struct), stream))
        core.record.ordered = False
        self._combining = None
        return combined

    def _given(
        self,
        x: Optional[TensorLike],
        exact: bool,
        weights_of_dispatch: bool,
        row_weights: Optional[TensorLike],
        topk_weights: Optional[TensorLike],
        carried_weights: Optional[TensorLike],
    ) -> tuple[CombineInStruct, _Combine, list[Tensor]]:
        struct = new(CombineInStruct)
        if self._last is None:
            raise invalid_state("combine before a dispatch was received")
        anchors: list[Tensor] = []
        if x is None:
            if self._input is None:
                raise invalid_state("combine without x needs combine_input first")
            rows = self._input[1]
            struct.x.dtype = rows.dtype
        else:
            rows = host_tensor(x, "x")
            fill_rows(struct.x, rows, "x", self._geometry.slabs)
            anchors.append(rows)
            self._check_rows(rows)
        hidden = rows.shape[-1]
        struct.hidden = hidden
        struct.flags = CombineFlags.EXACT * exact | CombineFlags.WEIGHTS_OF_DISPATCH * weights_of_dispatch
        per_slab = rows.shape[-2]
        packed = self._geometry.slabs is None
        weights = {
            "row_weights": (row_weights, self._geometry.rows_shape(per_slab)),
            "topk_weights": (topk_weights, (self.num_tokens, self._geometry.num_topk)),
            "carried_weights": (carried_weights, self._geometry.ids_shape(per_slab)),
        }
        for name, (source, shape) in weights.items():
            if source is not None:
                more = packed and name != "topk_weights"
                tensor = side(source, name, (DType.FP32,), shape, more_rows=more)
                setattr(struct, name, address(tensor))
                anchors.append(tensor)
        return struct, _Combine(hidden, rows.dtype, carried_weights is not None), anchors

    def _check_rows(self, rows: Tensor) -> None:
        if self._num_rows is not None and rows.shape[0] < self._num_rows:
            raise invalid(f"x: {rows.shape[0]} rows, the dispatch received {self._num_rows}")

    def _sums(
        self,
        sent: _Combine,
        out: Optional[TensorLike],
        bias: Sequence[TensorLike],
        carried_out: Optional[TensorLike],
    ) -> tuple[CombineOutStruct, Combined]:
        struct = new(CombineOutStruct)
        tokens = self.num_tokens
        if out is None:
            sums = allocate((tokens, sent.hidden), sent.dtype)
        else:
            sums = host_tensor(out, "out", output=True)
            if len(sums.shape) != 2 or sums.shape[0] < tokens or sums.shape[1] != sent.hidden:
                raise invalid(f"out: shape {list(sums.shape)}, not [{tokens}, {sent.hidden}]")
        fill_rows(struct.x, sums, "out")
        if len(bias) > 2:
            raise invalid(f"bias: {len(bias)} arrays, at most 2")
        for i, source in enumerate(bias):
            start = host_tensor(source, f"bias[{i}]")
            wanted = (sums.shape[1:], sums.dtype, sums.steps if tokens > 1 else sums.steps[1:])
            found = (start.shape[1:], start.dtype, start.steps if tokens > 1 else start.steps[1:])
            if wanted != found or start.shape[0] < tokens:
                raise invalid(f"bias[{i}]: shape, type and strides must be those of out")
            struct.bias[i] = address(start)
        carried = None
        if sent.carried:
            shape = (tokens, self._geometry.num_topk)
            if carried_out is None:
                carried = allocate(shape, DType.FP32)
            else:
                carried = side(carried_out, "carried_out", (DType.FP32,), shape, output=True)
            struct.carried_weights = address(carried)
        elif carried_out is not None:
            raise invalid("carried_out: no weights are carried")
        return struct, Combined(sums, carried)

    def _reads_ended(self, why: str) -> None:
        self._live.record.ordered = False
        if self._rows_lease:
            self._rows_lease.end(why)
        if self._input and why == "combine":
            self._input[0].end(why)
            self._input = None

    def close(self) -> None:
        """Gives the handle back; open rows count as released, so this has its place in the order of calls.

        May be called again. While views of the handle's memory exist, the memory stays until they are gone.
        """
        core = self._core
        if core is None:
            return
        unreceived = core.record.ordered and (self._sent or self._combining)
        if core.has_views() and not unreceived and core.buffer.record.pointer is not None:
            if core.record.ordered:
                lib().deep_ep_handle_release(core.record.pointer, 0)  # its status would be the buffer's, already told
        else:
            check(core.record.destroy())
        core.void("close")
        self._core = None

    def __enter__(self) -> Handle:
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()
