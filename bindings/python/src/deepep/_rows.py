"""Tensors into the structs of the ABI, with the checks that only this side can make: shape, type, strides."""

from __future__ import annotations

import ctypes
from typing import Optional

from . import _dlpack
from ._abi import DType, RowsStruct, ScalesStruct, ScaleType, Status
from ._tensor import Tensor, TensorLike, as_tensor
from .errors import UnsupportedError, invalid

ROW_TYPES = (DType.BF16, DType.FP16, DType.FP32, DType.FP8_E4M3, DType.OPAQUE)
_SCALE_OF = {DType.FP32: ScaleType.FP32, DType.INT32: ScaleType.UE8M0_PACKED, DType.OPAQUE: ScaleType.OPAQUE}

# An address for arrays without elements: null would mean "in place", and an empty array may sit anywhere.
_nothing = (ctypes.c_char * 128)()
_NOWHERE = ctypes.addressof(_nothing) + -ctypes.addressof(_nothing) % 64


def host_tensor(source: TensorLike, what: str, *, output: bool = False) -> Tensor:
    tensor = as_tensor(source, what=what)
    if tensor.device[0] not in _dlpack.HOST_DEVICES:
        kind, number = tensor.device
        raise UnsupportedError(
            Status.UNSUPPORTED, f"{what}: in the memory of device {kind}:{number}, the backend needs host memory"
        )
    if output and tensor.readonly:
        raise invalid(f"{what}: the memory is read-only")
    return tensor


def address(tensor: Tensor) -> int:
    return tensor.data if tensor.size else _NOWHERE


def _dims(tensor: Tensor, what: str, slabs: Optional[int], inner: str) -> None:
    wanted = f"[rows, {inner}]" if slabs is None else f"[{slabs}, rows, {inner}]"
    if len(tensor.shape) != (2 if slabs is None else 3) or (slabs is not None and tensor.shape[0] != slabs):
        raise invalid(f"{what}: shape {list(tensor.shape)}, not {wanted}")


def _outer_strides(tensor: Tensor, what: str, row_bytes: int) -> tuple[int, int]:
    """Row and slab strides; 0 where there is at most one. Refuses what the ABI would read differently."""
    rows, row_stride = tensor.shape[-2], tensor.steps[-2]
    if rows <= 1 or not tensor.size:
        row_stride = 0
    elif row_stride < row_bytes:
        raise invalid(f"{what}: stride {row_stride} from row to row, but a row has {row_bytes} bytes")
    if len(tensor.shape) == 2 or tensor.shape[0] <= 1 or not tensor.size:
        return row_stride, 0
    slot_stride = tensor.steps[0]
    slab = (rows - 1) * (row_stride or row_bytes) + row_bytes
    if slot_stride < slab:
        raise invalid(f"{what}: stride {slot_stride} from slab to slab, but a slab has {slab} bytes")
    return row_stride, slot_stride


def fill_rows(rows: RowsStruct, tensor: Tensor, what: str, slabs: Optional[int] = None) -> None:
    """Describes [rows, hidden], or [slabs, rows, hidden]."""
    _dims(tensor, what, slabs, "hidden")
    if tensor.dtype not in ROW_TYPES:
        known = ", ".join(one.name for one in ROW_TYPES)
        raise invalid(f"{what}: {tensor.dtype.name} is no type of rows: {known}")
    itemsize = tensor.dtype.itemsize
    hidden = tensor.shape[-1]
    if hidden > 1 and tensor.size and tensor.steps[-1] != itemsize:
        raise invalid(
            f"{what}: the elements of a row must follow each other, but have a stride of {tensor.steps[-1]} bytes"
        )
    rows.row_stride, rows.slot_stride = _outer_strides(tensor, what, hidden * itemsize)
    rows.data = address(tensor)
    rows.rows = tensor.shape[-2]
    rows.dtype = tensor.dtype


def fill_scales(
    scales: ScalesStruct, tensor: Tensor, what: str, kind: Optional[ScaleType], slabs: Optional[int] = None
) -> None:
    """Describes [rows, scales] or [slabs, rows, scales], row-major or (outputs) column-major."""
    _dims(tensor, what, slabs, "scales")
    found = _SCALE_OF.get(tensor.dtype)
    if found is None:
        raise invalid(f"{what}: {tensor.dtype.name} is no type of scales (FP32, INT32 for packed UE8M0, bytes)")
    if kind is not None and found != (ScaleType.FP32 if kind == ScaleType.FP32_POW2 else kind):
        raise invalid(f"{what}: {tensor.dtype.name} cannot hold scales of type {ScaleType(kind).name}")
    itemsize = tensor.dtype.itemsize
    count, step = tensor.shape[-1], tensor.steps[-1]
    scales.data = address(tensor)
    scales.dtype = found if kind is None else kind
    scales.block = count if found == ScaleType.OPAQUE else 0
    if count > 1 and tensor.size and step != itemsize:
        if tensor.shape[-2] > 1 and tensor.steps[-2] != itemsize:
            raise invalid(f"{what}: neither the scales of a row nor those of a column follow each other")
        scales.row_stride, scales.col_stride = itemsize, step
        if slabs is not None and slabs > 1:
            scales.slot_stride = tensor.steps[0]
        return
    scales.row_stride, scales.slot_stride = _outer_strides(tensor, what, count * itemsize)


def side(
    source: TensorLike,
    what: str,
    dtypes: tuple[DType, ...],
    shape: tuple[int, ...],
    *,
    output: bool = False,
    more_rows: bool = False,
) -> Tensor:
    """A dense array of a given shape; with `more_rows` the first dimension may be larger."""
    tensor = host_tensor(source, what, output=output)
    if tensor.dtype not in dtypes:
        raise invalid(f"{what}: {tensor.dtype.name}, not {' or '.join(dtype.name for dtype in dtypes)}")
    fits = tensor.shape == shape or (
        more_rows and len(tensor.shape) == len(shape) and tensor.shape[0] >= shape[0] and tensor.shape[1:] == shape[1:]
    )
    if not fits:
        raise invalid(f"{what}: shape {list(tensor.shape)}, not {list(shape)}{' or more rows' if more_rows else ''}")
    if not tensor.is_dense:
        raise invalid(f"{what}: the elements must follow each other without gaps (numpy.ascontiguousarray)")
    return tensor
