"""Marks the wheel as one of this platform when it carries the library in src/deepep/lib."""

from pathlib import Path

from setuptools import setup
from setuptools.dist import Distribution

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # setuptools before 70
    from wheel.bdist_wheel import bdist_wheel

BUNDLED = Path(__file__).parent / "src/deepep/lib/libdeepep.so.0"


class WithLibrary(Distribution):
    def has_ext_modules(self) -> bool:
        return BUNDLED.exists()


class Wheel(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        _, _, platform = super().get_tag()
        return "py3", "none", platform  # ctypes: any interpreter, no ABI of it


setup(distclass=WithLibrary, cmdclass={"bdist_wheel": Wheel})
