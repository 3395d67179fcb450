"""The kernels of src/gpu compile for NVIDIA's GPUs, by their compiler and without a GPU. Skipped where there is no NVRTC."""
import importlib.util
from concurrent.futures import ThreadPoolExecutor

import pytest

from cli import ROOT

spec = importlib.util.spec_from_file_location("gpu_kernels", ROOT / "tools/ci/gpu_kernels.py")
gpu_kernels = importlib.util.module_from_spec(spec)
spec.loader.exec_module(gpu_kernels)

ARCHITECTURES = ["sm_80", "sm_90"]
MOST_SHARED = 48 << 10  # bytes that a group has without asking for more


@pytest.fixture(scope="module")
def nvrtc():
    library = gpu_kernels.open_nvrtc()
    if not library:
        pytest.skip("there is no NVRTC (./setup --tests)")
    return library


@pytest.fixture(scope="module")
def logs(nvrtc):
    with ThreadPoolExecutor() as threads:
        return dict(zip(ARCHITECTURES, threads.map(lambda architecture: gpu_kernels.compile_kernels(nvrtc, architecture), ARCHITECTURES)))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_kernels_compile(logs, architecture):
    found = gpu_kernels.needs(logs[architecture])
    assert sorted(found) == sorted(gpu_kernels.kernel_names())
    for name, (registers, shared, spilled) in found.items():
        assert spilled == 0, f"{name} spills {spilled} bytes"
        assert 0 < registers <= 255 and shared <= MOST_SHARED, name


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
    registers, _, spilled = gpu_kernels.needs(gpu_kernels.compile_kernels(nvrtc, "sm_80", text))["f"]
    assert registers <= 32 and spilled > 0
