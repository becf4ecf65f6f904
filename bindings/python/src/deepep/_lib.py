"""Finds libdeepep and declares its functions."""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path
from typing import TypeVar

from . import _abi
from .errors import error_of

_SONAME = "libdeepep.so.0"
_BUNDLED = Path(__file__).parent / "lib" / _SONAME
_Struct = TypeVar("_Struct", bound=ctypes.Structure)


class LoadError(ImportError):
    """The shared library was not found, or is not one this package can use."""


@functools.cache
def lib() -> ctypes.CDLL:
    """The loaded library: $DEEPEP_LIBRARY, else the copy inside the package, else what the system's loader finds.

    CDLL, not PyDLL: the interpreter lock is free while a call waits for peers.
    """
    chosen = os.environ.get("DEEPEP_LIBRARY")
    path = chosen or (str(_BUNDLED) if _BUNDLED.exists() else _SONAME)
    try:
        loaded = ctypes.CDLL(path)
        for name, (result, arguments) in _abi.FUNCTIONS.items():
            function = getattr(loaded, name)
            function.restype = result
            function.argtypes = arguments
    except (OSError, AttributeError) as error:
        hint = "DEEPEP_LIBRARY names it" if chosen else "set DEEPEP_LIBRARY to the path of libdeepep.so"
        raise LoadError(f"cannot use {path} ({hint}): {error}") from error
    found = loaded.deep_ep_version()
    major, minor, _ = _abi.VERSION
    if found // 100 != major * 100 + minor:
        have = f"{found // 10000}.{found // 100 % 100}.{found % 100}"
        raise LoadError(f"{path} is version {have}, this package needs {major}.{minor}")
    return loaded


def version() -> tuple[int, int, int]:
    """Major, minor and patch of the loaded library."""
    found = lib().deep_ep_version()
    return found // 10000, found // 100 % 100, found % 100


def status_string(status: int) -> str:
    """The library's name of a status."""
    return str(lib().deep_ep_status_string(status).decode())


def last_error() -> str:
    """What the last failing call on this thread had to say."""
    return str(lib().deep_ep_last_error().decode(errors="replace"))


def check(status: int) -> None:
    """Raises the exception of a status other than 0. To be called on the thread that made the call."""
    if status:
        raise error_of(status, last_error())


_INITS = {struct: name[:-2] + "_init" for name, (struct, has_init) in _abi.STRUCTS.items() if has_init}


def new(struct: type[_Struct]) -> _Struct:
    """A struct with the library's defaults."""
    made = struct()
    check(getattr(lib(), _INITS[struct])(ctypes.byref(made), ctypes.sizeof(made)))
    return made
