"""The address of an object's buffer (bytearray, memoryview, array.array), also of read-only ones."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_char_p, c_int, c_ssize_t, c_void_p, py_object
from typing import Any, NamedTuple, Optional

_FULL_RO = 0x011C  # PyBUF_INDIRECT | PyBUF_FORMAT


class _PyBuffer(ctypes.Structure):
    _fields_ = [
        ("buf", c_void_p),
        ("obj", c_void_p),
        ("len", c_ssize_t),
        ("itemsize", c_ssize_t),
        ("readonly", c_int),
        ("ndim", c_int),
        ("format", c_char_p),
        ("shape", POINTER(c_ssize_t)),
        ("strides", POINTER(c_ssize_t)),
        ("suboffsets", POINTER(c_ssize_t)),
        ("internal", c_void_p),
    ]


_get = ctypes.pythonapi.PyObject_GetBuffer
_get.argtypes = [py_object, POINTER(_PyBuffer), c_int]
_release = ctypes.pythonapi.PyBuffer_Release
_release.argtypes = [POINTER(_PyBuffer)]
_release.restype = None


class _Held:
    """Gives the buffer back when nobody needs its address any more."""

    def __init__(self, source: Any) -> None:
        self.view = _PyBuffer()
        self._release: Any = None
        _get(source, byref(self.view), _FULL_RO)
        self._release = _release

    def __del__(self) -> None:
        if self._release:
            self._release(byref(self.view))


class PyBuffer(NamedTuple):
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    format: str
    itemsize: int
    readonly: bool
    owner: object


def import_buffer(source: Any) -> Optional[PyBuffer]:
    """None when the object has no buffer of plain memory."""
    try:
        held = _Held(source)
    except TypeError:
        return None
    view = held.view
    if view.suboffsets:
        return None
    return PyBuffer(
        address=view.buf or 0,
        shape=tuple(view.shape[: view.ndim]),
        strides=tuple(view.strides[: view.ndim]),
        format=(view.format or b"B").decode(),
        itemsize=view.itemsize,
        readonly=bool(view.readonly),
        owner=held,
    )
