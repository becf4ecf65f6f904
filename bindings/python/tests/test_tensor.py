"""Arguments and results as tensors of other libraries."""

from __future__ import annotations

import array
import gc
import sys
import weakref

import numpy as np
import pytest

import deepep
from deepep import DType, Tensor, _dlpack, _rows, as_tensor
from deepep._abi import RowsStruct, ScalesStruct


versioned = pytest.mark.skipif(
    np.lib.NumpyVersion(np.__version__) < "2.1.0", reason="numpy before 2.1 has no DLPack versions"
)


class Producer:
    """Has DLPack and nothing else; with `old` as a library from before versions has it."""

    def __init__(self, wrapped: np.ndarray | Tensor, old: bool = False) -> None:
        self.wrapped = wrapped
        self.old = old

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.wrapped.__dlpack_device__()

    def __dlpack__(self, **options: object) -> object:
        if self.old and "max_version" in options:
            raise TypeError("unexpected argument max_version")
        return self.wrapped.__dlpack__(**options)


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "float32", "int32", "int64", "uint8"])
def test_dlpack_in(dtype: str, old: bool) -> None:
    source = np.arange(24, dtype=dtype).reshape(4, 6)[1:3]
    before = sys.getrefcount(source)
    found = as_tensor(Producer(source, old))
    assert (found.data, found.shape, found.strides) == (source.ctypes.data, source.shape, source.strides)
    assert found.tobytes() == source.tobytes()
    assert sys.getrefcount(source) > before
    del found
    assert sys.getrefcount(source) == before  # the deleter was called


@versioned
def test_dlpack_in_reads_the_read_only_flag() -> None:
    source = np.zeros((2, 4), np.float32)
    source.flags.writeable = False
    assert as_tensor(Producer(source)).readonly
    with pytest.raises(deepep.CallerError, match="x: Producer cannot be read"):
        as_tensor(Producer(source, old=True), what="x")


@versioned
@pytest.mark.parametrize("dtype", [DType.FP16, DType.FP32, DType.INT32, DType.INT64, DType.OPAQUE])
def test_dlpack_round_trip_with_numpy(dtype: DType) -> None:
    memory = np.arange(96, dtype=np.uint8)
    view = Tensor(memory.ctypes.data, (2, 3), dtype, strides=(32, dtype.itemsize), owner=memory)
    alive = weakref.ref(view)
    array_ = np.from_dlpack(view)
    assert array_.ctypes.data == memory.ctypes.data
    assert array_.shape == (2, 3) and array_.strides == view.strides
    again = as_tensor(Producer(array_))
    assert (again.data, again.shape, again.strides, again.dtype) == (view.data, view.shape, view.strides, view.dtype)
    del view, again
    assert alive() is not None  # the consumer holds it
    del array_
    gc.collect()
    assert alive() is None
    assert not _dlpack._exports


def test_dlpack_carries_bf16_and_fp8() -> None:
    for dtype in (DType.BF16, DType.FP8_E4M3):
        view = Tensor(deepep._tensor.allocate((2, 8), dtype).data, (2, 8), dtype)
        assert as_tensor(Producer(view)).dtype == dtype
        assert view.numpy().dtype == (np.uint16 if dtype == DType.BF16 else np.uint8)
    _dlpack.sweep()
    assert not _dlpack._exports


def test_a_capsule_nobody_took_is_forgotten() -> None:
    view = deepep._tensor.allocate((2, 8), DType.BF16)
    alive = weakref.ref(view)
    with pytest.raises((BufferError, RuntimeError)):
        np.from_dlpack(view)  # numpy has no bf16
    capsule = view.__dlpack__(max_version=(1, 0))
    del view
    _dlpack.sweep()
    assert alive() is not None
    del capsule
    _dlpack.sweep()
    assert alive() is None


def test_an_array_may_die_while_an_exception_is_on_its_way() -> None:
    def fail() -> None:
        view = deepep._tensor.allocate((2, 8), DType.FP32)
        held = np.from_dlpack(view)
        del view
        raise KeyError(held.shape)

    for _ in range(3):
        with pytest.raises(KeyError):
            fail()
    gc.collect()
    assert not _dlpack._exports


@versioned
def test_export_options() -> None:
    view = deepep._tensor.allocate((2, 8), DType.FP32)
    with pytest.raises(BufferError):
        view.__dlpack__(copy=True)
    with pytest.raises(BufferError):
        view.__dlpack__(dl_device=(2, 0))
    fixed = Tensor(view.data, (2, 8), DType.FP32, readonly=True, owner=view)
    with pytest.raises(BufferError, match="read-only"):
        fixed.__dlpack__()
    assert not np.from_dlpack(fixed).flags.writeable
    assert not np.asarray(fixed).flags.writeable


def test_array_interface_and_buffers_in() -> None:
    source = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert as_tensor(source).data == source.ctypes.data
    assert as_tensor(source[:, ::2]).strides == (16, 8)
    assert as_tensor(array.array("i", [1, 2, 3])).dtype == DType.INT32
    assert as_tensor(array.array("q", [1, 2, 3])).tobytes() == array.array("q", [1, 2, 3]).tobytes()
    fixed = as_tensor(b"0123456789abcdef")
    assert (fixed.dtype, fixed.readonly, fixed.tobytes()) == (DType.OPAQUE, True, b"0123456789abcdef")
    room = bytearray(16)
    held = as_tensor(memoryview(room).cast("f", (2, 2)))
    assert held.shape == (2, 2) and not held.readonly
    with pytest.raises(BufferError):
        room.append(1)  # it is pinned
    del held
    room.append(1)


def test_ml_dtypes() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    assert as_tensor(np.zeros((2, 8), ml_dtypes.bfloat16)).dtype == DType.BF16
    assert as_tensor(np.zeros((2, 8), ml_dtypes.float8_e4m3fn)).dtype == DType.FP8_E4M3
    with pytest.raises(deepep.CallerError, match="float8_e5m2"):
        as_tensor(np.zeros((2, 8), ml_dtypes.float8_e5m2))


def test_cuda_arrays_are_refused_on_the_host() -> None:
    class Device:
        __cuda_array_interface__ = {"shape": (2, 8), "typestr": "<f4", "data": (0, False), "version": 3}

    found = as_tensor(Device())
    assert found.device[0] == _dlpack.CUDA and found.shape == (2, 8)
    with pytest.raises(deepep.UnsupportedError, match="x: in the memory of device 2:0"):
        _rows.host_tensor(Device(), "x")
    with pytest.raises(AttributeError):
        _ = found.__array_interface__
    assert found.__cuda_array_interface__["shape"] == (2, 8)


def test_bits_need_a_type() -> None:
    bits = np.zeros((2, 8), np.uint16)
    with pytest.raises(deepep.CallerError, match="x: uint16 is no type"):
        as_tensor(bits, what="x")
    assert as_tensor(bits, DType.BF16).dtype == DType.BF16
    assert as_tensor(bits, DType.FP16).dtype == DType.FP16
    assert as_tensor(np.zeros((2, 8), np.float64), DType.OPAQUE).shape == (2, 64)
    for source, dtype in ((bits, DType.FP32), (np.zeros(2, np.float16), DType.BF16), (bits, DType.FP8_E4M3)):
        with pytest.raises(deepep.CallerError, match="cannot be read as"):
            as_tensor(source, dtype)
    for source, text in (
        (np.zeros(2, np.complex64), "no type"),
        (np.zeros(2, ">f4"), "byte order"),
        ([1.0, 2.0], "list is no tensor"),
        (3, "int is no tensor"),
    ):
        with pytest.raises(deepep.CallerError, match=text):
            as_tensor(source)


def rows(source: object, slabs: int | None = None) -> RowsStruct:
    struct = RowsStruct()
    _rows.fill_rows(struct, as_tensor(source), "x", slabs)  # type: ignore[arg-type]
    return struct


def test_rows_and_strides() -> None:
    source = np.zeros((6, 16), np.float32)
    found = rows(source)
    assert (found.data, found.rows, found.row_stride, found.dtype) == (source.ctypes.data, 6, 64, DType.FP32)
    assert rows(source[::2]).row_stride == 128
    assert rows(source[:, :8]).row_stride == 64
    assert rows(source[:1]).row_stride == 0
    empty = rows(source[:0])
    assert empty.rows == 0 and empty.data and empty.data % 16 == 0
    cube = np.zeros((3, 5, 16), np.float32)
    found = rows(cube[:, :4], 3)
    assert (found.rows, found.row_stride, found.slot_stride) == (4, 64, 320)


@pytest.mark.parametrize(
    ("source", "slabs", "text"),
    [
        (np.zeros(16, np.float32), None, r"shape \[16\], not \[rows, hidden\]"),
        (np.zeros((2, 3, 16), np.float32), None, "shape"),
        (np.zeros((2, 3, 16), np.float32), 4, r"not \[4, rows, hidden\]"),
        (np.zeros((4, 16), np.float32).T, None, "must follow each other"),
        (np.zeros((4, 16), np.float32)[:, ::2], None, "must follow each other"),
        (np.zeros((4, 16), np.float32)[::-1], None, "stride -64 from row to row"),
        (np.broadcast_to(np.zeros(16, np.float32), (4, 16)), None, "stride 0 from row to row"),
        (np.broadcast_to(np.zeros((3, 16), np.float32), (4, 3, 16)), 4, "stride 0 from slab to slab"),
        (np.zeros((4, 16), np.int64), None, "INT64 is no type of rows"),
    ],
)
def test_rows_refused(source: np.ndarray, slabs: int | None, text: str) -> None:
    with pytest.raises(deepep.CallerError, match=text) as caught:
        rows(source, slabs)
    assert caught.value.status == deepep.Status.INVALID_ARGUMENT


def test_scales() -> None:
    struct = ScalesStruct()
    _rows.fill_scales(struct, as_tensor(np.zeros((4, 3), np.float32)), "s", None)
    assert (struct.row_stride, struct.col_stride, struct.dtype) == (12, 0, deepep.ScaleType.FP32)
    struct = ScalesStruct()
    _rows.fill_scales(struct, as_tensor(np.zeros((3, 8), np.int32).T), "s", None)
    assert (struct.row_stride, struct.col_stride, struct.dtype) == (4, 32, deepep.ScaleType.UE8M0_PACKED)
    struct = ScalesStruct()
    _rows.fill_scales(struct, as_tensor(np.zeros((4, 8), np.uint8)), "s", None)
    assert (struct.block, struct.dtype) == (8, deepep.ScaleType.OPAQUE)
    with pytest.raises(deepep.CallerError, match="cannot hold"):
        _rows.fill_scales(struct, as_tensor(np.zeros((4, 8), np.int32)), "s", deepep.ScaleType.FP32_POW2)


def test_tensor_tobytes_follows_strides() -> None:
    source = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    for part in (source, source[:, 1:], source[:, :, ::2], source.transpose(2, 0, 1)):
        assert as_tensor(part).tobytes() == part.tobytes()
    assert as_tensor(source).is_dense and not as_tensor(source[:, 1:]).is_dense
