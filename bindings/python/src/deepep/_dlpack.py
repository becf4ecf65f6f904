"""DLPack in both directions through the C API of the interpreter; see dlpack.h, version 1.1."""

from __future__ import annotations

import ctypes
import sys
from ctypes import c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from typing import Any, NamedTuple, Optional

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
HOST_DEVICES = (CPU, CUDA_HOST, CUDA_MANAGED)
MAX_VERSION = (1, 1)
_READ_ONLY = 1

_CODES: dict[tuple[int, int], str] = {
    **{(0, bits): f"int{bits}" for bits in (8, 16, 32, 64)},
    **{(1, bits): f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{(2, bits): f"float{bits}" for bits in (16, 32, 64)},
    (4, 16): "bfloat16",
    (6, 8): "bool",
    (10, 8): "float8_e4m3fn",
    (12, 8): "float8_e5m2",
}
_CODE_OF = {name: pair for pair, name in _CODES.items()}


class Device(ctypes.Structure):
    _fields_ = [("type", c_int32), ("id", c_int32)]


class DataType(ctypes.Structure):
    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device", Device),
        ("ndim", c_int32),
        ("dtype", DataType),
        ("shape", ctypes.POINTER(c_int64)),
        ("strides", ctypes.POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class Managed(ctypes.Structure):
    _fields_ = [("tensor", DLTensor), ("context", c_void_p), ("deleter", c_void_p)]


class ManagedVersioned(ctypes.Structure):
    _fields_ = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("context", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("tensor", DLTensor),
    ]


_Deleter = ctypes.CFUNCTYPE(None, c_void_p)
_KINDS = {b"dltensor_versioned": ManagedVersioned, b"dltensor": Managed}
# A capsule points at its name for as long as it lives, so the names live for ever.
_NAMES = {name: ctypes.create_string_buffer(name) for kind in _KINDS for name in (kind, b"used_" + kind)}


def _api(name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(ctypes.pythonapi, name)
    function.restype = result
    function.argtypes = arguments
    return function


_capsule_new = _api("PyCapsule_New", ctypes.py_object, c_void_p, c_void_p, c_void_p)
_capsule_is_valid = _api("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
_capsule_pointer = _api("PyCapsule_GetPointer", c_void_p, ctypes.py_object, ctypes.c_char_p)
_capsule_set_name = _api("PyCapsule_SetName", ctypes.c_int, ctypes.py_object, c_void_p)
_incref = _api("Py_IncRef", None, ctypes.py_object)


class Imported(NamedTuple):
    """A producer's tensor. Strides are bytes."""

    address: int
    shape: tuple[int, ...]
    strides: Optional[tuple[int, ...]]
    name: str
    itemsize: int
    device: tuple[int, int]
    readonly: bool
    owner: object


class _Lease:
    """A consumed capsule; calls the producer's deleter when nobody needs the memory any more."""

    def __init__(self, address: int, deleter: Optional[int]) -> None:
        self._address = address
        self._deleter = _Deleter(deleter) if deleter else None

    def __del__(self) -> None:
        deleter, self._deleter = self._deleter, None
        if deleter:
            deleter(self._address)


def import_tensor(source: Any) -> Imported:
    """Consumes a capsule of `source.__dlpack__`."""
    device_type, _ = source.__dlpack_device__()
    options = {"stream": -1} if int(device_type) == CUDA else {}  # the caller orders the streams
    try:
        capsule = source.__dlpack__(max_version=MAX_VERSION, **options)
    except TypeError:  # a producer from before versions
        capsule = source.__dlpack__(**options)
    kind = next((kind for kind in _KINDS if _capsule_is_valid(capsule, kind)), None)
    if kind is None:
        raise TypeError(f"{type(source).__name__}.__dlpack__ returned no unused DLPack capsule")
    address = _capsule_pointer(capsule, kind)
    managed: Any = _KINDS[kind].from_address(address)
    if kind == b"dltensor_versioned" and managed.major > MAX_VERSION[0]:
        raise TypeError(f"DLPack {managed.major}.{managed.minor} is newer than {MAX_VERSION[0]}.x")
    _capsule_set_name(capsule, ctypes.addressof(_NAMES[b"used_" + kind]))
    owner = _Lease(address, managed.deleter)
    tensor, dtype = managed.tensor, managed.tensor.dtype
    name = _CODES.get((dtype.code, dtype.bits), f"DLPack type {dtype.code} of {dtype.bits} bits")
    if dtype.lanes != 1:
        name += f" with {dtype.lanes} lanes"
    itemsize = (dtype.bits * dtype.lanes + 7) // 8
    return Imported(
        address=(tensor.data or 0) + tensor.byte_offset,
        shape=tuple(tensor.shape[: tensor.ndim]),
        strides=tuple(s * itemsize for s in tensor.strides[: tensor.ndim]) if tensor.strides else None,
        name=name,
        itemsize=itemsize,
        device=(tensor.device.type, tensor.device.id),
        readonly=bool(kind == b"dltensor_versioned" and managed.flags & _READ_ONLY),
        owner=owner,
    )


class _Export(NamedTuple):
    managed: ctypes.Structure
    sizes: Any
    owner: object
    capsule: Any
    kind: bytes


_exports: dict[int, _Export] = {}


def _drop(address: int, pop: Any = _exports.pop) -> None:
    pop(address, None)


_drop_thunk = _Deleter(_drop)
_incref(_drop_thunk)  # consumers call it until the very end of the process


def sweep() -> None:
    """Forgets exports whose capsule was thrown away unused.

    A capsule destructor would tell at once, but it may run while an exception is on its way, where no Python code may.
    """
    for address in list(_exports):
        export = _exports.get(address)
        if export and sys.getrefcount(export.capsule) <= 2 and _capsule_is_valid(export.capsule, export.kind):
            _exports.pop(address, None)


def export_tensor(
    *,
    address: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    name: str,
    device: tuple[int, int],
    readonly: bool,
    owner: object,
    versioned: bool,
) -> object:
    """Makes a capsule; `owner` lives until the consumer calls the deleter. Strides are elements."""
    sweep()
    kind = b"dltensor_versioned" if versioned else b"dltensor"
    managed: Any = _KINDS[kind]()
    code, bits = _CODE_OF[name]
    ndim = len(shape)
    sizes = (c_int64 * (2 * ndim))(*shape, *strides)
    first = ctypes.addressof(sizes)
    tensor = managed.tensor
    tensor.data = address
    tensor.device = Device(*device)
    tensor.ndim = ndim
    tensor.dtype = DataType(code, bits, 1)
    tensor.shape = ctypes.cast(first, ctypes.POINTER(c_int64))
    tensor.strides = ctypes.cast(first + 8 * ndim, ctypes.POINTER(c_int64))
    managed.deleter = ctypes.cast(_drop_thunk, c_void_p).value
    if versioned:
        managed.major, managed.minor = 1, 0
        managed.flags = _READ_ONLY if readonly else 0
    where = ctypes.addressof(managed)
    capsule = _capsule_new(where, ctypes.addressof(_NAMES[kind]), None)
    _exports[where] = _Export(managed, sizes, owner, capsule, kind)
    return capsule
