#!/usr/bin/env python3
"""Compiles the kernels of src/gpu for NVIDIA's GPUs, without one, and prints a Markdown table of what each needs: registers a thread,
bytes of shared memory a group, bytes that are spilled (arrays that are not in registers count, too).

    tools/ci/gpu_kernels.py [ARCHITECTURE ...]      sm_80 sm_90 if none is given

The compiler is NVRTC, from the Python package nvidia-cuda-nvrtc-cu12 (./setup --tests puts it into build/python) or the file that
BUTLER_NVRTC names. Exit status: 0 all compile and none spills; 1 not so; 77 there is no NVRTC."""
import ctypes
import os
import re
import struct
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ["cuda.h", "kernels.cl", "cache.cl", "attend.cl", "fused.cl", "one_bit.cl", "predicted.cl", "evict.cl"]
OPTIONS = ["-default-device", "-fmad=false", "--ptxas-options=-v"]
USED = re.compile(r"Compiling entry function '(\w+)' .*\n.*\n.* (\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill "
                  r"loads\n.*Used (\d+) registers(?:.* (\d+) bytes smem)?")


class CompileError(Exception):
    pass


def kernel_names():
    """As GPU_KERNELS of gpu.h lists them."""
    return re.findall(r"each\((\w+)", re.search(r"#define GPU_KERNELS(?:.*\\\n)+.*", (ROOT / "src/gpu/gpu.h").read_text())[0])


def open_nvrtc():
    """The library, or None."""
    python = Path(os.environ.get("BUTLER_PYTHON", ROOT / "build/python"))
    path = os.environ.get("BUTLER_NVRTC") or next(iter(sorted(python.glob("nvidia/cuda_nvrtc/lib/libnvrtc.so.*"))), None)
    try:
        return ctypes.CDLL(str(path)) if path else None
    except OSError as error:
        print(f"{path}: {error}", file=sys.stderr)
        return None


def compile_kernels(nvrtc, architecture, text=None):
    """The compiler's log, which names what each kernel needs, and the cubin. text: instead of the kernels'."""
    def call(name, *args):
        code = getattr(nvrtc, name)(*args)
        if code != 0:
            nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
            raise CompileError(f"{name}: {nvrtc.nvrtcGetErrorString(code).decode()}")

    def text_of(kind):
        size = ctypes.c_size_t()
        call(f"nvrtcGet{kind}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        call(f"nvrtcGet{kind}", program, buffer)
        return buffer.value if kind == "ProgramLog" else buffer.raw

    if text is None:
        text = "".join((ROOT / "src/gpu" / name).read_text() for name in SOURCES)
    program = ctypes.c_void_p()
    call("nvrtcCreateProgram", ctypes.byref(program), text.encode(), b"butler.cu", 0, None, None)
    options = [f"-arch={architecture}".encode(), *(option.encode() for option in OPTIONS)]
    try:
        call("nvrtcCompileProgram", program, len(options), (ctypes.c_char_p * len(options))(*options))
        if not text_of("CUBIN").startswith(b"\x7fELF"):
            raise CompileError("no cubin came")
        return text_of("ProgramLog").decode(), text_of("CUBIN")
    except CompileError as error:
        raise CompileError(f"{architecture}: {error}\n{text_of('ProgramLog').decode()}") from None
    finally:
        call("nvrtcDestroyProgram", ctypes.byref(program))


def needs(log):
    """{kernel: (registers, bytes of shared memory, bytes of a thread's arrays that are not in registers, and of spill)} of a compiler's
    log."""
    return {name: (int(registers), int(shared or 0), int(stack) + int(stores) + int(loads))
            for name, stack, stores, loads, registers, shared in USED.findall(log)}


def parameters(cubin):
    """{kernel: bytes of each of its parameters} of a cubin: what its sections .nv.info.KERNEL say (attribute KPARAM_INFO)."""
    headers, = struct.unpack_from("<Q", cubin, 40)
    size, n, names = struct.unpack_from("<HHH", cubin, 58)
    sections = [struct.unpack_from("<IIQQQQ", cubin, headers + i * size) for i in range(n)]
    found = {}
    for name, _, _, _, offset, length in sections:
        at = sections[names][4] + name
        name = cubin[at:cubin.index(0, at)].decode()
        if not name.startswith(".nv.info."):
            continue
        sizes, at = {}, offset
        while at < offset + length:
            form, attribute, n_bytes = struct.unpack_from("<BBH", cubin, at)
            if attribute == 0x17:
                ordinal, flags = struct.unpack_from("<4xH2xI", cubin, at + 4)
                sizes[ordinal] = flags >> 18
            at += 4 + (n_bytes if form == 4 else 0)
        found[name.removeprefix(".nv.info.")] = [sizes[i] for i in range(len(sizes))]
    return found


def main(architectures):
    nvrtc = open_nvrtc()
    if not nvrtc:
        print("there is no NVRTC: ./setup --tests fetches the Python package nvidia-cuda-nvrtc-cu12", file=sys.stderr)
        return 77
    try:
        found = {architecture: needs(compile_kernels(nvrtc, architecture)[0]) for architecture in architectures}
    except CompileError as error:
        print(error, file=sys.stderr)
        return 1
    names = kernel_names()
    missing = [f"{architecture}: {name}" for architecture in architectures for name in names if name not in found[architecture]]
    print("| kernel |", *(f"{a}: registers | shared memory | spilled |" for a in architectures))
    print("| --- |", *("---: | ---: | ---: |" for _ in architectures))
    for name in names:
        print(f"| {name} |", *("%d | %d | %d |" % found[a].get(name, (0, 0, 0)) for a in architectures))
    for name in missing:
        print(f"no kernel of {name}", file=sys.stderr)
    return 1 if missing or any(spilled for each in found.values() for _, _, spilled in each.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["sm_80", "sm_90"]))
