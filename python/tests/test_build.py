"""The package has every function and struct of the header, and loads only the library that it was built with."""
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cffi import FFI

import butler
from conftest import ROOT

sys.path.append(str(ROOT / "python"))
import declarations  # noqa: E402

HEADER = (ROOT / "include/butler.h").read_text()


def test_everything_is_declared():
    declared = re.sub(r"/\*.*?\*/", "", HEADER, flags=re.S)
    names = set(re.findall(r"\b(butler_\w+)\(", declared)) - set(re.findall(r"typedef \w+ (\w+)\(", declared))
    assert len(names) > 60
    for name in names:
        assert callable(getattr(butler.lib, name)), name
    assert butler.lib.BUTLER_METRIC_ABI == 2 and butler.__version__ == re.search(r'BUTLER_VERSION "(.*)"', HEADER)[1]


def test_what_is_new_in_the_header_is_declared():
    changed = HEADER.replace("void butler_model_free(", "struct butler_new { bool a; double b; };\n/* A comment. */\n"
                             "int butler_new_function(const struct butler_new *x, ...);\n#define BUTLER_NEW 7\nvoid butler_model_free(")
    text = declarations.declarations(changed, "cc")
    ffi = FFI()
    ffi.cdef(text)
    assert ffi.sizeof("struct butler_new") == 16 and "butler_new_function" in text and "#define BUTLER_NEW 7\n" in text


def test_another_layout_is_refused(tmp_path):
    """Declarations of one header and the compiler's structs of another."""
    text = declarations.declarations(HEADER, "cc")
    ffi = FFI()
    ffi.cdef(text)
    declarations.check_layout(ffi, text, ROOT / "include", "cc")
    for old, new in (("double prefill_s, decode_s;", "float prefill_s; double decode_s;"), ("n_prefill, n_decode;", "n_decode, n_prefill;")):
        assert old in HEADER
        (tmp_path / "butler.h").write_text(HEADER.replace(old, new))
        with pytest.raises(subprocess.CalledProcessError):
            declarations.check_layout(ffi, text, tmp_path, "cc")


def test_another_library_is_refused(tmp_path):
    package = tmp_path / "butler"
    shutil.copytree(Path(butler.__file__).parent, package)

    def load():
        return subprocess.run([sys.executable, "-c", "import butler; print(butler.__file__)"], cwd=tmp_path, capture_output=True, text=True)
    assert load().stdout.strip() == str(package / "__init__.py")
    with open(package / "libbutler.so", "ab") as file:
        file.write(b"x")
    done = load()
    assert done.returncode == 1 and "ImportError" in done.stderr and "is not the library that this package" in done.stderr
