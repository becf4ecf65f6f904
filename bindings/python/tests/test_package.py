"""What users do with the package: run the example, install the wheel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest


def test_example(root: Path) -> None:
    example = root / "examples/roundtrip.py"
    assert len(example.read_text().splitlines()) <= 40
    done = subprocess.run([sys.executable, example], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ok: 4 ranks, 256 tokens"), done.stdout


def test_wheel_with_and_without_the_library(root: Path, tmp_path: Path) -> None:
    pytest.importorskip("setuptools")
    source = tmp_path / "python"
    ignored = shutil.ignore_patterns("tests", "lib", "build", "*.egg-info", "__pycache__", ".*_cache")
    shutil.copytree(root / "bindings/python", source, ignore=ignored)

    def wheel(name: str) -> Path:
        into = tmp_path / name
        into.mkdir()
        code = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
        subprocess.run([sys.executable, "-c", code, into], cwd=source, check=True, capture_output=True)
        return next(into.iterdir())

    pure = wheel("pure")
    assert pure.name == "deepep-0.1.0-py3-none-any.whl"
    assert {"deepep/py.typed", "deepep/_abi.py"} <= set(zipfile.ZipFile(pure).namelist())

    (source / "src/deepep/lib").mkdir()
    shutil.copy(os.environ["DEEPEP_LIBRARY"], source / "src/deepep/lib/libdeepep.so.0")
    full = wheel("full")
    assert full.name.startswith("deepep-0.1.0-py3-none-linux_")
    zipfile.ZipFile(full).extractall(tmp_path / "site")
    environment = {name: value for name, value in os.environ.items() if name != "DEEPEP_LIBRARY"}
    environment["PYTHONPATH"] = str(tmp_path / "site")
    code = "import deepep; print(deepep.version(), deepep.__file__)"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("(0, 1, 0)") and str(tmp_path) in done.stdout


def test_a_library_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    code = "import deepep; deepep.version()"
    for content in (None, b"junk"):
        path = tmp_path / "libdeepep.so"
        if content is not None:
            path.write_bytes(content)
        environment = {**os.environ, "DEEPEP_LIBRARY": str(path)}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        assert done.returncode == 1
        assert f"LoadError: cannot use {path} (DEEPEP_LIBRARY names it)" in done.stderr
