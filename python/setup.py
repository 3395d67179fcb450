"""Builds the shared library with the project's Makefile and puts it into the package, with the declarations that were made from the same
header. The library is loaded at run time: the wheel does not depend on a version of Python.

Nothing is written into the clone, which may be read-only: all goes to a temporary folder. BUTLER_BUILD=DIR names one for the objects
that is kept, so that a later build compiles only what has changed."""
import atexit
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from cffi import FFI
from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # setuptools before 70
    from wheel.bdist_wheel import bdist_wheel

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
CC = os.environ.get("CC", "cc")
WORK = tempfile.mkdtemp(prefix="butler-python-")
atexit.register(shutil.rmtree, WORK, ignore_errors=True)
OBJECTS = os.path.abspath(os.environ.get("BUTLER_BUILD") or os.path.join(WORK, "objects"))
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE))
from declarations import check_layout, declarations, version_of  # noqa: E402

HEADER = "".join((ROOT / "include" / name).read_text() for name in ("butler.h", "butler_plugin.h"))


def make_library(out):
    def make(*words):
        return subprocess.run(["make", "-s", f"-j{os.cpu_count() or 2}", f"BUILD={OBJECTS}", *words], cwd=ROOT, check=True,
                              stdout=subprocess.PIPE, text=True).stdout
    path = make("print-shared-library").strip()
    make(path)
    shutil.copyfile(ROOT / path, out)
    subprocess.run([os.environ.get("STRIP", "strip"), "--strip-unneeded", out], check=True)


class Build(build_py):
    def run(self):
        package = Path(self.build_lib) / "butler"
        shutil.rmtree(package, ignore_errors=True)  # files of an earlier build that are no more
        super().run()
        make_library(package / "libbutler.so")
        text = declarations(HEADER, CC)
        ffi = FFI()
        ffi.set_source("butler._ffi", None)
        ffi.cdef(text)
        check_layout(ffi, text, ROOT / "include", CC)
        ffi.emit_python_code(str(package / "_ffi.py"))
        digest = hashlib.sha256((package / "libbutler.so").read_bytes()).hexdigest()
        (package / "_build.py").write_text(f'VERSION = "{version_of(HEADER)}"\nLIBRARY_SHA256 = "{digest}"\n')


class Wheel(bdist_wheel):
    """For every Python 3 on this kind of machine."""

    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


class Binary(Distribution):
    def has_ext_modules(self):  # files of the package go where those of a machine do
        return True


setup(version=version_of(HEADER), packages=["butler"], cmdclass={"build_py": Build, "bdist_wheel": Wheel}, distclass=Binary,
      options={"build": {"build_base": os.path.join(WORK, "build")}, "egg_info": {"egg_base": WORK}})
