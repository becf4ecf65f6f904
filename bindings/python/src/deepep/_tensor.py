"""Tensors of other libraries as address, shape, strides and type, without importing those libraries."""

from __future__ import annotations

import ctypes
import math
import sys
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Optional, Protocol, Union

from . import _dlpack, _pybuffer
from ._abi import DType
from .errors import invalid


class SupportsDLPack(Protocol):
    """torch, JAX, CuPy and others."""

    def __dlpack__(self, *, stream: Any = None) -> Any: ...
    def __dlpack_device__(self) -> Any: ...


class SupportsArrayInterface(Protocol):
    """numpy."""

    @property
    def __array_interface__(self) -> dict[str, Any]: ...


class SupportsCudaArrayInterface(Protocol):
    """numba, CuPy and others."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...


_NAMES = {
    "bfloat16": DType.BF16,
    "float16": DType.FP16,
    "float32": DType.FP32,
    "float8_e4m3fn": DType.FP8_E4M3,
    "uint8": DType.OPAQUE,
    "int8": DType.OPAQUE,
    "int32": DType.INT32,
    "int64": DType.INT64,
}
_NAME_OF = {dtype: name for name, dtype in _NAMES.items() if name != "int8"}
# numpy has no name for bf16 and fp8: their bits are shown as unsigned integers.
_TYPESTR = {
    DType.BF16: "<u2",
    DType.FP16: "<f2",
    DType.FP32: "<f4",
    DType.FP8_E4M3: "|u1",
    DType.OPAQUE: "|u1",
    DType.INT32: "<i4",
    DType.INT64: "<i8",
}
_KINDS = {"f": "float", "i": "int", "u": "uint", "V": "void", "b": "bool"}
_FORMATS = {"e": "float16", "f": "float32", "d": "float64", "b": "int8", "B": "uint8", "c": "uint8", "h": "int16"}
_FORMATS.update({"H": "uint16", "i": "int32", "I": "uint32", "q": "int64", "Q": "uint64", "l": "int64", "L": "uint64"})


@dataclass(frozen=True, eq=False)
class Tensor:
    """Memory with a shape and a type: an argument given as a raw address, or a result of the library.

    Results of the library are views, not copies. A result that lives in library memory says until when in the
    documentation of the operation; from then on its content is no longer defined and new exports of it (`numpy()`,
    `__dlpack__`, ...) raise, while arrays exported earlier keep the memory mapped, but not its content.
    """

    data: int
    """Address of the first element."""
    shape: tuple[int, ...]
    dtype: DType
    strides: Optional[tuple[int, ...]] = None
    """Bytes from one index to the next in each dimension; None: C order without gaps."""
    device: tuple[int, int] = (_dlpack.CPU, 0)
    """DLPack device type and number."""
    readonly: bool = False
    owner: Any = None
    """Kept alive as long as the tensor."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(int(n) for n in self.shape))
        if self.strides is None:
            object.__setattr__(self, "strides", dense_strides(self.shape, DType(self.dtype).itemsize))
        if hasattr(self.owner, "track"):
            self.owner.track(self)

    @property
    def steps(self) -> tuple[int, ...]:
        """The strides in bytes, never None."""
        assert self.strides is not None
        return self.strides

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def is_dense(self) -> bool:
        """Whether the elements follow each other in C order without gaps."""
        expected = dense_strides(self.shape, self.dtype.itemsize)
        return not self.size or all(n == 1 or s == e for n, s, e in zip(self.shape, self.steps, expected))

    def require(self) -> None:
        """Raises CallerError when this is library memory that has been given back."""
        if hasattr(self.owner, "require"):
            self.owner.require()

    @property
    def __array_interface__(self) -> dict[str, Any]:
        self.require()
        if self.device[0] not in _dlpack.HOST_DEVICES:
            raise AttributeError("__array_interface__: the tensor is in device memory")
        return self._interface()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.device[0] != _dlpack.CUDA:
            raise AttributeError("__cuda_array_interface__: the tensor is in host memory")
        self.require()
        return self._interface()

    def _interface(self) -> dict[str, Any]:
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": _TYPESTR[self.dtype],
            "data": (self.data, self.readonly),
            "strides": self.strides,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: Optional[tuple[int, int]] = None,
        dl_device: Optional[tuple[int, int]] = None,
        copy: Optional[bool] = None,
    ) -> object:
        self.require()
        if copy or (dl_device is not None and tuple(dl_device) != self.device):
            raise BufferError("this tensor is exported as a view on its own device only")
        versioned = max_version is not None and max_version[0] >= 1
        if self.readonly and not versioned:
            raise BufferError("a read-only tensor needs a consumer of DLPack 1.0 or newer")
        itemsize = self.dtype.itemsize
        if any(stride % itemsize for stride in self.steps):
            raise BufferError("DLPack cannot express a stride that is no multiple of the element size")
        return _dlpack.export_tensor(
            address=self.data,
            shape=self.shape,
            strides=tuple(stride // itemsize for stride in self.steps),
            name=_NAME_OF[self.dtype],
            device=self.device,
            readonly=self.readonly,
            owner=self,
            versioned=versioned,
        )

    def numpy(self) -> Any:
        """A numpy view; bf16 as uint16 and fp8 as uint8, bit for bit. Needs numpy."""
        import numpy

        return numpy.asarray(self)

    def tobytes(self) -> bytes:
        """A copy of the elements in C order. Host memory only."""
        self.require()
        if self.device[0] not in _dlpack.HOST_DEVICES:
            raise invalid("tobytes: the tensor is in device memory")
        return b"".join(_pieces(self.data, self.shape, self.steps, self.dtype.itemsize))


TensorLike = Union[
    Tensor, SupportsDLPack, SupportsArrayInterface, SupportsCudaArrayInterface, bytes, bytearray, memoryview
]


def _pieces(address: int, shape: tuple[int, ...], steps: tuple[int, ...], itemsize: int) -> list[bytes]:
    size = math.prod(shape) * itemsize
    if not size:
        return []
    if steps == dense_strides(shape, itemsize):
        return [ctypes.string_at(address, size)]
    inner = (shape[1:], steps[1:], itemsize)
    return [piece for i in range(shape[0]) for piece in _pieces(address + i * steps[0], *inner)]


def dense_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Strides in bytes of a C-ordered array without gaps."""
    strides = []
    step = itemsize
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


def allocate(shape: tuple[int, ...], dtype: DType, alignment: int = 64) -> Tensor:
    """Zeroed host memory."""
    memory = (ctypes.c_char * (math.prod(shape) * dtype.itemsize + alignment))()
    address = ctypes.addressof(memory)
    return Tensor(address + -address % alignment, shape, dtype, owner=memory)


class _Found(NamedTuple):
    """A tensor whose type is still the name of the library it came from."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    name: str
    itemsize: int
    device: tuple[int, int]
    readonly: bool
    owner: object


def as_tensor(source: TensorLike, dtype: Optional[DType] = None, *, what: str = "tensor") -> Tensor:
    """Describes the memory of an array, without a copy.

    Understood are `Tensor`, numpy arrays, everything with `__dlpack__` or `__cuda_array_interface__`, and objects with
    a buffer. `dtype` says how to read bits that carry no usable type: BF16 or FP16 for 16-bit integers, FP8_E4M3 for
    bytes; with OPAQUE the rows are bytes whatever they were. `what` names the argument in error texts.
    """
    if isinstance(source, Tensor):
        source.require()
        found = _Found(
            address=source.data,
            shape=source.shape,
            strides=source.steps,
            name=_NAME_OF[source.dtype],
            itemsize=source.dtype.itemsize,
            device=source.device,
            readonly=source.readonly,
            owner=source,
        )
        return source if dtype in (None, source.dtype) else _typed(found, dtype, what)
    return _typed(_find(source, what), dtype, what)


def _find(source: Any, what: str) -> _Found:
    kind = type(source)
    if hasattr(source, "__array_interface__"):
        return _from_interface(source, source.__array_interface__, (_dlpack.CPU, 0), what)
    if hasattr(kind, "__dlpack__") and hasattr(kind, "__dlpack_device__"):
        try:
            imported = _dlpack.import_tensor(source)
        except (BufferError, TypeError, RuntimeError) as error:
            raise invalid(f"{what}: {kind.__name__} cannot be read through DLPack: {error}") from error
        strides = imported.strides or dense_strides(imported.shape, imported.itemsize)
        return _Found(**{**imported._asdict(), "strides": strides})
    if hasattr(source, "__cuda_array_interface__"):
        return _from_interface(source, source.__cuda_array_interface__, (_dlpack.CUDA, 0), what)
    buffer = _pybuffer.import_buffer(source)
    if buffer is None:
        raise invalid(
            f"{what}: {kind.__name__} is no tensor; it needs __dlpack__, __array_interface__, "
            "__cuda_array_interface__ or a buffer, or give a deepep.Tensor"
        )
    code = buffer.format.lstrip("@=<")
    name = _FORMATS.get(code, f"buffer format {buffer.format!r}")
    return _Found(
        address=buffer.address,
        shape=buffer.shape,
        strides=buffer.strides,
        name=name,
        itemsize=buffer.itemsize,
        device=(_dlpack.CPU, 0),
        readonly=buffer.readonly,
        owner=buffer.owner,
    )


def _from_interface(source: Any, found: dict[str, Any], device: tuple[int, int], what: str) -> _Found:
    typestr: str = found["typestr"]
    order, kind, itemsize = typestr[0], typestr[1], int(typestr[2:])
    if order == ("<" if sys.byteorder == "big" else ">") and itemsize > 1:
        raise invalid(f"{what}: {typestr} is in foreign byte order")
    if found.get("mask") is not None:
        raise invalid(f"{what}: masked arrays are not supported")
    name = f"{_KINDS.get(kind, kind)}{8 * itemsize}"
    if kind in "Vf":  # bf16 and fp8 arrays say their name in another place
        name = getattr(getattr(source, "dtype", None), "name", name)
    if found.get("data") is None:
        raise invalid(f"{what}: the array interface has no address")
    address, readonly = found["data"]
    shape = tuple(found["shape"])
    strides = found.get("strides") or dense_strides(shape, itemsize)
    return _Found(address or 0, shape, tuple(strides), name, itemsize, device, bool(readonly), source)


def _typed(found: _Found, dtype: Optional[DType], what: str) -> Tensor:
    name, itemsize = found.name, found.itemsize
    tensor = Tensor(
        data=found.address,
        shape=found.shape,
        dtype=_NAMES.get(name, DType.NONE),
        strides=found.strides,
        device=found.device,
        readonly=found.readonly,
        owner=found.owner,
    )
    if dtype is None or dtype == tensor.dtype:
        if tensor.dtype == DType.NONE:
            raise invalid(
                f"{what}: {name} is no type here; convert it, or say with deepep.as_tensor(x, dtype) what its bits are"
            )
        return tensor
    if dtype == DType.OPAQUE:
        if not tensor.shape or (tensor.shape[-1] > 1 and tensor.steps[-1] != itemsize):
            raise invalid(f"{what}: the elements of a row must follow each other to be read as bytes")
        return replace(
            tensor,
            dtype=dtype,
            shape=(*tensor.shape[:-1], tensor.shape[-1] * itemsize),
            strides=(*tensor.steps[:-1], 1),
        )
    bits = name.startswith(("uint", "int", "void"))
    if not bits or itemsize != dtype.itemsize:
        raise invalid(f"{what}: {name} cannot be read as {dtype.name}")
    return replace(tensor, dtype=dtype)
