"""Finds the library of this checkout, so that the tests run without an installation."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
BUILT = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release" / "libdeepep.so"

os.environ.setdefault("DEEPEP_LIBRARY", str(BUILT))
# Processes that the tests start find the package and the helpers the same way.
_paths = [str(ROOT / "bindings/python/src"), str(Path(__file__).parent)]
os.environ["PYTHONPATH"] = os.pathsep.join([*_paths, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)


def pytest_sessionstart() -> None:
    path = os.environ["DEEPEP_LIBRARY"]
    if not Path(path).exists():
        pytest.exit(f"{path} does not exist: run `cargo build --release`, or set DEEPEP_LIBRARY", returncode=2)


@pytest.fixture
def root() -> Path:
    return ROOT
