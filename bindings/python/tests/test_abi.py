"""The structs, numbers and functions of the binding are those of the header."""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

import deepep
from deepep import _abi, _lib

ENUMS = {
    "deep_ep_status_t": _abi.Status,
    "deep_ep_backend_t": _abi.Backend,
    "deep_ep_layout_t": _abi.Layout,
    "deep_ep_sync_t": _abi.Sync,
    "deep_ep_dtype_t": _abi.DType,
    "deep_ep_scale_dtype_t": _abi.ScaleType,
    "deep_ep_operation_t": _abi.Operation,
    "deep_ep_phase_t": _abi.Phase,
}
PREFIXES = ("DTYPE_", "BACKEND_", "SYNC_", "SCALE_", "OPERATION_", "PHASE_")


@pytest.fixture(scope="module")
def header() -> str:
    return (Path(__file__).resolve().parents[3] / "include/deep_ep.h").read_text()


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the C compiler makes of the header."""
    root = Path(__file__).resolve().parents[3]
    program = tmp_path_factory.mktemp("probe") / "layout"
    source = root / "tests/c/layout.c"
    subprocess.run(["cc", "-std=c99", f"-I{root / 'include'}", str(source), "-o", str(program)], check=True)
    return json.loads(subprocess.run([program], check=True, capture_output=True, text=True).stdout)


def test_struct_layouts(probe: Any) -> None:
    assert set(probe["structs"]) == set(_abi.STRUCTS)
    for name, wanted in probe["structs"].items():
        struct = _abi.STRUCTS[name][0]
        fields = [field for field, *_ in struct._fields_]
        found = {field: {"offset": getattr(struct, field).offset, "size": getattr(struct, field).size}
                 for field in fields}  # fmt: skip
        assert ctypes.sizeof(struct) == wanted["size"], name
        assert ctypes.alignment(struct) == wanted["align"], name
        assert found == wanted["fields"], name
        assert fields == list(wanted["fields"]), name


def test_enums(header: str) -> None:
    declared = dict(re.findall(r"^enum (deep_ep_\w+_t)\n.*?\{(.*?)\n\};", header, re.M | re.S))
    assert set(declared) == set(ENUMS)
    for name, body in declared.items():
        numbers = {}
        for member, value in re.findall(r"^\s*DEEP_EP_(\w+) = (\d+),", body, re.M):
            prefix = next((p for p in PREFIXES if member.startswith(p)), "")
            numbers[member[len(prefix) :]] = int(value)
        assert numbers == {one.name: int(one) for one in ENUMS[name]}, name


def test_flags_and_version(header: str) -> None:
    found = {name: int(value) for name, value in re.findall(r"^#define DEEP_EP_(\w+) (\d+)$", header, re.M)}
    flags = {
        **{f"BUFFER_{one.name}": int(one) for one in _abi.BufferFlags},
        **{f"DISPATCH_{one.name}": int(one) for one in _abi.DispatchFlags},
        **{f"COMBINE_{one.name}": int(one) for one in _abi.CombineFlags},
    }
    version = dict(zip(("VERSION_MAJOR", "VERSION_MINOR", "VERSION_PATCH"), _abi.VERSION))
    assert found == {**flags, **version}
    assert deepep.version() == _abi.VERSION


def test_functions(header: str) -> None:
    """Every declared function has a prototype with as many arguments, and the other way round."""
    text = re.sub(r"/\*.*?\*/", "", header, flags=re.S)
    declared = re.findall(r"^DEEP_EP_API\n[^;(]*?\b(deep_ep_\w+)\(([^;]*)\);", text, re.M)
    counts = {name: 0 if arguments.strip() == "void" else arguments.count(",") + 1 for name, arguments in declared}
    assert counts == {name: len(arguments) for name, (_, arguments) in _abi.FUNCTIONS.items()}


def test_init_sets_the_size() -> None:
    for struct, has_init in _abi.STRUCTS.values():
        if has_init:
            assert _lib.new(struct).struct_size == ctypes.sizeof(struct)


def test_status_names() -> None:
    for status in _abi.Status:
        assert deepep.status_string(status)
    assert deepep.status_string(12345)
