"""What dispatch and combine hand out, and where a caller may want it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Optional

from ._abi import DispatchOutStruct, DType, Layout, ScaleType
from ._native import Lease
from ._rows import fill_rows, fill_scales, host_tensor, side
from ._tensor import Tensor, TensorLike
from .errors import invalid

SCALE_DTYPES = {
    ScaleType.FP32: DType.FP32,
    ScaleType.FP32_POW2: DType.FP32,
    ScaleType.UE8M0_PACKED: DType.INT32,
    ScaleType.OPAQUE: DType.OPAQUE,
}


@dataclass(frozen=True)
class Geometry:
    """The numbers of a buffer that shapes depend on."""

    layout: Layout
    num_ranks: int
    max_tokens: int
    num_topk: int
    local_experts: int
    capacity: Optional[int]
    """Rows that a receive in place has room for, in all or per slab; None: only the library knows."""

    @property
    def by_expert(self) -> bool:
        return self.layout in (Layout.PACKED_BY_EXPERT, Layout.SLOTTED_BY_EXPERT)

    @property
    def slabs(self) -> Optional[int]:
        """None for packed layouts."""
        return {
            Layout.SLOTTED_BY_RANK: self.num_ranks,
            Layout.SLOTTED_BY_EXPERT: self.local_experts,
        }.get(self.layout)

    def rows_shape(self, rows: int) -> tuple[int, ...]:
        return (rows,) if self.slabs is None else (self.slabs, rows)

    def ids_shape(self, rows: int) -> tuple[int, ...]:
        return self.rows_shape(rows) if self.by_expert else (*self.rows_shape(rows), self.num_topk)

    def sides(self, rows: int) -> dict[str, tuple[DType, tuple[int, ...]]]:
        """Type and shape of every side output that this layout has."""
        experts = self.local_experts
        found = {
            "topk_idx": (DType.INT32, self.ids_shape(rows)),
            "topk_weights": (DType.FP32, self.ids_shape(rows)),
            "row_source": (DType.INT64, self.rows_shape(rows)),
            "rank_counts": (DType.INT32, (self.num_ranks,)),
            "expert_counts": (DType.INT32, (experts,)),
            "true_rows": (DType.INT64, (2,)),
        }
        if self.layout == Layout.PACKED_BY_EXPERT:
            found["expert_offsets"] = (DType.INT64, (experts + 1,))
        if self.layout == Layout.SLOTTED_BY_EXPERT:
            found["source_ranges"] = (DType.INT32, (experts, self.num_ranks, 2))
        return found


_PER_ROW = ("topk_idx", "topk_weights", "row_source")


@dataclass(frozen=True)
class DispatchOut:
    """Where a dispatch arrives. What is left None is handed out in library memory."""

    x: Optional[TensorLike] = None
    """[rows, hidden], slotted [slabs, rows, hidden]; fewer rows than the buffer's capacity lower it."""
    scales: Optional[TensorLike] = None
    column_major_scales: bool = False
    """By-expert layouts: scales in place are column-major."""
    topk_idx: Optional[TensorLike] = None
    topk_weights: Optional[TensorLike] = None
    row_source: Optional[TensorLike] = None
    rank_counts: Optional[TensorLike] = None
    expert_counts: Optional[TensorLike] = None
    expert_offsets: Optional[TensorLike] = None
    true_rows: Optional[TensorLike] = None
    source_ranges: Optional[TensorLike] = None


class Placed(NamedTuple):
    """A DispatchOut as the library wants it."""

    struct: DispatchOutStruct
    given: dict[str, Tensor]

    @property
    def in_place(self) -> bool:
        """Whether rows or scales stay in library memory, so that the handle is open until its combine."""
        return "x" not in self.given or ("scales" not in self.given and bool(self.struct.scales.data))


def place(out: Optional[DispatchOut], struct: DispatchOutStruct, geometry: Geometry) -> Placed:
    """Fills the struct of a dispatch's output from what the caller gave."""
    given: dict[str, Tensor] = {}
    if out is None:
        return Placed(struct, given)
    capacity = geometry.capacity
    if out.x is not None:
        given["x"] = host_tensor(out.x, "out.x", output=True)
        fill_rows(struct.x, given["x"], "out.x", geometry.slabs)
        rows = int(struct.x.rows)
        capacity = rows if capacity is None else min(rows, capacity)
    if out.scales is not None:
        given["scales"] = host_tensor(out.scales, "out.scales", output=True)
        fill_scales(struct.scales, given["scales"], "out.scales", None, geometry.slabs)
        struct.scales.dtype = ScaleType.NONE  # whatever was sent
    elif out.column_major_scales:
        struct.scales.col_stride = 1  # any number but 0 and 4 asks for it
    sides = geometry.sides(capacity or 0)
    for name in (*_PER_ROW, "rank_counts", "expert_counts", "true_rows", "expert_offsets", "source_ranges"):
        source = getattr(out, name)
        if source is None:
            continue
        if name not in sides:
            raise invalid(f"out.{name}: the layout {geometry.layout.name} has none")
        if name in _PER_ROW and capacity is None:
            raise invalid(f"out.{name}: its size is only known with out.x or BufferConfig.max_expert_rows")
        dtype, shape = sides[name]
        packed_rows = name in _PER_ROW and geometry.slabs is None
        given[name] = side(source, f"out.{name}", (dtype,), shape, output=True, more_rows=packed_rows)
        setattr(struct, name, given[name].data if given[name].size else None)
    return Placed(struct, given)


class Dispatched:
    """What a dispatch received.

    Packed layouts: the arrays have `num_rows` rows, those that are present. Slotted layouts: all slots, of which the
    counts tell the ones in use. Arrays that the caller did not provide are views of library memory: `x` and `scales`
    hold until the handle's combine or release, all others until its next dispatch; after `close` none of them.
    """

    def __init__(
        self,
        placed: Placed,
        geometry: Geometry,
        hidden: int,
        num_rows: Optional[int],
        leases: tuple[Lease, Lease],
    ) -> None:
        self._out = placed.struct
        self._given = placed.given
        self._geometry = geometry
        self._rows_lease, self._side_lease = leases
        self.hidden = hidden
        self.num_rows = num_rows
        """Packed layouts: rows present, pads included. Slotted layouts: None."""
        self.dtype = DType(self._out.x.dtype)
        """The type of the rows that arrived."""
        self.scale_type = ScaleType(self._out.scales.dtype)

    @cached_property
    def x(self) -> Tensor:
        """[num_rows, hidden], slotted [slabs, rows per slab, hidden]."""
        if "x" in self._given:
            return self._present(self._given["x"])
        x, item = self._out.x, self.dtype.itemsize
        rows = x.rows if self.num_rows is None else self.num_rows
        shape = (*self._geometry.rows_shape(rows), self.hidden)
        row_stride = x.row_stride or self.hidden * item
        strides = (row_stride, item) if self.num_rows is not None else (x.slot_stride, row_stride, item)
        return Tensor(x.data, shape, self.dtype, strides, owner=self._rows_lease)

    @cached_property
    def scales(self) -> Optional[Tensor]:
        """The scales of the rows, shaped like x but for the last dimension; None when none were sent."""
        if self.scale_type == ScaleType.NONE:
            return None
        if "scales" in self._given:
            return self._present(self._given["scales"])
        scales, dtype = self._out.scales, SCALE_DTYPES[self.scale_type]
        item = dtype.itemsize
        count = self._scales_per_row()
        rows = self._out.x.rows if self.num_rows is None else self.num_rows
        shape = (*self._geometry.rows_shape(rows), count)
        if scales.col_stride in (0, item):
            inner = (scales.row_stride or count * item, item)
        else:
            inner = (scales.row_stride or item, scales.col_stride)
        strides = inner if self.num_rows is not None else (scales.slot_stride, *inner)
        return Tensor(scales.data, shape, dtype, strides, owner=self._rows_lease)

    def _scales_per_row(self) -> int:
        block = self._out.scales.block or 128
        if self.scale_type == ScaleType.OPAQUE:
            return int(block)
        blocks = -(-self.hidden // block)
        return -(-blocks // 4) if self.scale_type == ScaleType.UE8M0_PACKED else blocks

    @cached_property
    def topk_idx(self) -> Tensor:
        """By rank: [..., num_topk] local expert ids. By expert: the row's local expert. -1: none, a pad, unused."""
        return self._side("topk_idx")

    @cached_property
    def topk_weights(self) -> Tensor:
        """Shaped like topk_idx; 0 where the id is -1."""
        return self._side("topk_weights")

    @cached_property
    def row_source(self) -> Tensor:
        """Source rank * max_tokens + token of each row; -1 in pads and unused slots."""
        return self._side("row_source")

    @cached_property
    def rank_counts(self) -> Tensor:
        """[num_ranks] rows present from each source."""
        return self._side("rank_counts")

    @cached_property
    def expert_counts(self) -> Tensor:
        """[local experts] rows present for each, pads not counted."""
        return self._side("expert_counts")

    @cached_property
    def true_rows(self) -> Tensor:
        """[2]: rows that were sent to this rank, and rows after expansion; more than are present on overflow."""
        return self._side("true_rows")

    @cached_property
    def expert_offsets(self) -> Optional[Tensor]:
        """PACKED_BY_EXPERT: [local experts + 1] aligned start of each expert's rows, then the end of the last."""
        return self._side("expert_offsets") if self._geometry.layout == Layout.PACKED_BY_EXPERT else None

    @cached_property
    def source_ranges(self) -> Optional[Tensor]:
        """SLOTTED_BY_EXPERT: [local experts, num_ranks, 2] begin and count of each source's rows in a slab."""
        return self._side("source_ranges") if self._geometry.layout == Layout.SLOTTED_BY_EXPERT else None

    def _side(self, name: str) -> Tensor:
        if name in self._given:
            given = self._given[name]
            return self._present(given) if name in _PER_ROW else given
        rows = int(self._out.x.rows) if self.num_rows is None else self.num_rows
        dtype, shape = self._geometry.sides(rows)[name]
        return Tensor(getattr(self._out, name) or 0, shape, dtype, owner=self._side_lease)

    def _present(self, tensor: Tensor) -> Tensor:
        """Packed layouts: the rows that are present of what the caller gave."""
        if self.num_rows is None:
            return tensor
        return replace(tensor, shape=(self.num_rows, *tensor.shape[1:]), owner=tensor)


class Combined(NamedTuple):
    """What a combine brought back."""

    x: Tensor
    """[num_tokens, hidden] sums."""
    carried_weights: Optional[Tensor]
    """[num_tokens, num_topk], when weights were carried."""


class Counts(NamedTuple):
    """Numbers of a dispatch, as the host knows them."""

    expert_counts: tuple[int, ...]
    rows: int
    """Rows present (by rank), or the end of the last expert (PACKED_BY_EXPERT)."""
