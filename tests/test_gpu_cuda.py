"""The kernels of src/gpu compile for NVIDIA's GPUs, by their compiler and without a GPU, and have the parameters that the host code
gives them; skipped where there is no NVRTC. The command on the stand-ins for CUDA's libraries that test_cuda is built with."""
import ctypes
import importlib.util
import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cli import FAILED, GQA, PROMPT, ROOT, butler

spec = importlib.util.spec_from_file_location("gpu_kernels", ROOT / "tools/ci/gpu_kernels.py")
gpu_kernels = importlib.util.module_from_spec(spec)
spec.loader.exec_module(gpu_kernels)

ARCHITECTURES = ["sm_80", "sm_90"]
FAKE = ROOT / "build/tests/fake_cuda"
needs_fake = pytest.mark.skipif(not (FAKE / "libcuda.so.1").exists(), reason="make tests builds the stand-ins for CUDA's libraries")
MOST_SHARED = 32 << 10  # bytes that a group has on every OpenCL device; CUDA's has 48 KB without asking for more


@pytest.fixture(scope="module")
def nvrtc():
    library = gpu_kernels.open_nvrtc()
    if not library:
        pytest.skip("there is no NVRTC (./setup --tests)")
    return library


@pytest.fixture(scope="module")
def compiled(nvrtc):
    """(log, cubin) of each architecture."""
    with ThreadPoolExecutor() as threads:
        return dict(zip(ARCHITECTURES, threads.map(lambda architecture: gpu_kernels.compile_kernels(nvrtc, architecture), ARCHITECTURES)))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_kernels_compile(compiled, architecture):
    found = gpu_kernels.needs(compiled[architecture][0])
    assert sorted(found) == sorted(gpu_kernels.kernel_names())
    for name, (registers, shared, spilled) in found.items():
        assert spilled == 0, f"{name} spills {spilled} bytes"
        assert 0 < registers <= 255 and shared <= MOST_SHARED, name


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_parameters(compiled, architecture):
    """Of the compiled kernels, against what gpu.h says that they are given: a buffer is an address and an offset."""
    header = (ROOT / "src/gpu/gpu.h").read_text()
    rows, = re.findall(r'#define GPU_ROWS "(\w+)"', header)
    expected = {}
    for name, formats in re.findall(r'each\((\w+), ([^)]+)\)', re.search(r"#define GPU_KERNELS(?:.*\\\n)+.*", header)[0]):
        letters = re.sub(r'[" ]', "", formats.replace("GPU_ROWS", rows))
        expected[name] = [size for letter in letters for size in {"b": [8, 8], "l": [8], "i": [4], "f": [4]}[letter]]
    assert gpu_kernels.parameters(compiled[architecture][1]) == expected


def test_what_does_not_compile(nvrtc):
    with pytest.raises(gpu_kernels.CompileError, match="sm_80.*\n.*undefined"):
        gpu_kernels.compile_kernels(nvrtc, "sm_80", 'extern "C" __global__ void f(int *x) { *x = missing; }')


def test_spills_are_seen(nvrtc):
    """128 numbers a thread that are all in use, in 24 registers."""
    text = """extern "C" __global__ void __launch_bounds__(1024, 2) f(float *x) {
        float v[128];
        #pragma unroll
        for (int i = 0; i < 128; i++) v[i] = x[i * 1024 + threadIdx.x];
        __syncthreads();
        #pragma unroll
        for (int i = 0; i < 128; i++) x[i * 1024 + threadIdx.x] = v[i] * v[127 - i];
    }"""
    registers, _, spilled = gpu_kernels.needs(gpu_kernels.compile_kernels(nvrtc, "sm_80", text)[0])["f"]
    assert registers <= 32 and spilled > 0


def test_arrays_in_memory_are_seen(nvrtc):
    text = 'extern "C" __global__ void f(int *x, int n) { int v[64]; for (int i = 0; i < n; i++) v[x[i]] = i; *x = v[n]; }'
    assert gpu_kernels.needs(gpu_kernels.compile_kernels(nvrtc, "sm_80", text)[0])["f"][2] == 256


def on_fake(*args, first=(), expect=0, **env):
    """The command where the stand-ins are the machine's CUDA; first: folders of libraries that are used instead."""
    path = os.pathsep.join(map(str, [*first, FAKE]))
    return butler(*args, expect=expect, env={**os.environ, "LD_LIBRARY_PATH": path, **env})


@needs_fake
def test_command():
    """The same text as on the CPU."""
    args = ["run", "-m", GQA, "-p", "It was", "-n", 2, "--temp", 0, "--kv", "tinyserve:budget=16"]
    assert on_fake(*args, "--device", "cuda:0").stdout == butler(*args).stdout
    assert re.search(r"^device +cuda:0: fake, ", on_fake("info", "-m", GQA, "--device", "auto").stdout, re.M)


@needs_fake
def test_eval():
    """One engine at a time is on the device, whose memory is not enough for four."""
    args = ["eval", "passkey", "-m", GQA, "--length", 128, "--limit", 4, "-t", 4, "--json"]
    assert '"n":4' in on_fake(*args, "--device", "cuda:0").stdout


@needs_fake
def test_card_gpu():
    """What bench/gpu.sh runs on a card builds, and runs on the stand-in."""
    subprocess.run(["make", "-s", "build/tests/card_gpu"], cwd=ROOT, check=True)
    env = {**os.environ, "LD_LIBRARY_PATH": str(FAKE)}
    said = subprocess.run([ROOT / "build/tests/card_gpu", "test_rows"], env=env, capture_output=True, text=True, check=True).stdout
    assert "[       OK ] test_rows" in said


CUDA_H = Path("/usr/local/cuda/include/cuda.h")
HEADER_CHECKS = """#include <cuda.h>
#include <cublas_v2.h>
#include <stddef.h>
#include "gpu/cuda_api.h"
#define SAME(field, own) _Static_assert(offsetof(CUDA_KERNEL_NODE_PARAMS_v2, field) == offsetof(struct butler_cuda_node_params, own), #own)
SAME(func, function); SAME(gridDimX, grid); SAME(blockDimX, block); SAME(sharedMemBytes, shared_bytes);
SAME(kernelParams, args); SAME(extra, extra); SAME(kern, kernel); SAME(ctx, context);
_Static_assert(sizeof(CUDA_KERNEL_NODE_PARAMS_v2) == sizeof(struct butler_cuda_node_params), "size");
_Static_assert(CUDA_ERROR_OUT_OF_MEMORY == CUDA_OUT_OF_MEMORY && CUDA_ERROR_NO_DEVICE == CUDA_NO_DEVICE, "codes");
_Static_assert(CU_STREAM_NON_BLOCKING == CUDA_STREAM_NON_BLOCKING, "flags");
_Static_assert(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT == CUDA_PROCESSORS, "attributes");
_Static_assert(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR == CUDA_CAPABILITY_MAJOR, "attributes");
_Static_assert(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR == CUDA_CAPABILITY_MINOR, "attributes");
_Static_assert(CUBLAS_OP_N == CUBLAS_NOT_TRANSPOSED && CUBLAS_OP_T == CUBLAS_TRANSPOSED && CUDA_R_32F == CUBLAS_FLOATS, "cuBLAS");
_Static_assert(CUBLAS_COMPUTE_32F_FAST_TF32 == CUBLAS_BY_TF32 && CUBLAS_GEMM_DEFAULT == CUBLAS_DEFAULT, "cuBLAS");
_Static_assert(CUBLAS_STATUS_ALLOC_FAILED == CUBLAS_NO_MEMORY, "cuBLAS");
"""


@pytest.mark.skipif(not CUDA_H.exists(), reason="CUDA's toolkit is absent")
def test_header(tmp_path):
    """Constants, layouts and names are those of NVIDIA's headers: a name without its _v2 is an older function."""
    checks = tmp_path / "checks.c"
    checks.write_text(HEADER_CHECKS)
    subprocess.run(["cc", "-fsyntax-only", f"-I{ROOT}/src", f"-I{CUDA_H.parent}", str(checks)], check=True)
    ours = {f"cu{name}" for name in re.findall(r"each\(int, (\w+), \(", (ROOT / "src/gpu/cuda_api.h").read_text().split("NVRTC_FUNCTIONS")[0])}
    renamed = set(re.findall(r"^#define +(cu[A-Z]\w+) +cu\w+$", CUDA_H.read_text(), re.M))
    assert {"cuMemAlloc_v2", "cuGraphLaunch"} <= ours and "cuMemAlloc" in renamed and not ours & renamed


@needs_fake
def test_metric_on_the_cpu(tmp_path):
    """A plug-in has no kernels: the same text as on the CPU, and a note says it once."""
    plugin = tmp_path / "value_norm.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", f"-I{ROOT}/include", str(ROOT / "examples/plugin.c"), "-o", str(plugin), "-lm"], check=True)
    args = ["run", "-m", GQA, "-p", PROMPT, "-n", 2, "--temp", 0, "--plugin", plugin, "--kv", "value_norm:budget=8"]
    result = on_fake(*args, "--device", "cuda:0")
    assert result.stdout == butler(*args).stdout
    assert result.stderr.count("note: --kv value_norm:budget=8: metric value_norm runs on the CPU") == 1


@needs_fake
def test_driver_without_graphs(tmp_path):
    """Launches go one by one where the driver lacks one of the functions for graphs."""
    library = tmp_path / "libcuda.so.1"
    library.write_bytes((FAKE / library.name).read_bytes().replace(b"cuGraphLaunch\0", b"cuGraphLaunc_\0"))
    with pytest.raises(AttributeError):
        ctypes.CDLL(str(library)).cuGraphLaunch
    args = ["run", "-m", GQA, "-p", "It", "-n", 3, "--temp", 0]
    assert on_fake(*args, "--device", "cuda:0", first=[tmp_path]).stdout == butler(*args).stdout


@needs_fake
def test_kernels_are_kept(tmp_path):
    """In the user's folder, by the command: the second start finds them."""
    def start():
        on_fake("run", "-m", GQA, "-p", "It", "-n", 1, "--device", "cuda:0", XDG_CACHE_HOME=str(tmp_path))
        path, = tmp_path.glob("butler/*.kernels")
        assert path.stat().st_mode & 0o777 == 0o600 and b"FAKE_CUBIN" in path.read_bytes()
        return path, path.stat().st_mtime_ns

    assert start() == start()


@needs_fake
def test_auto_says_why():
    result = on_fake("run", "-m", GQA, "-p", PROMPT, "-n", 1, "--device", "auto", FAKE_CUDA_VERSION="11040")
    assert re.search(r"note: --device auto: runs on \w.*: device cuda:0: the CUDA driver is too old: it is of CUDA 11\.4", result.stderr)


@needs_fake
def test_nvrtc_of_nvidia(nvrtc, tmp_path):
    """The host code calls NVIDIA's compiler, which does not list so old an architecture."""
    (tmp_path / "libnvrtc.so.12").symlink_to(nvrtc._name)
    result = on_fake("run", "-m", GQA, "-p", PROMPT, "--device", "cuda:0", first=[tmp_path], expect=FAILED, FAKE_CUDA_CAPABILITY="10")
    assert re.search(r"device cuda:0 \(fake\): no compiler here makes kernels for its compute capability 1\.0", result.stderr)
