/* The dialect of the .cl files as CUDA C++, for NVRTC with -default-device (functions without KERNEL are the device's) and
 * -fmad=false; see opencl.h. */
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
#define THREADS 128
/* At least 4 groups on a multiprocessor, which hide each other's waits: a thread has up to 128 registers. */
#define KERNEL extern "C" __global__ void __launch_bounds__(THREADS, 4)
#define LARGE_KERNEL extern "C" __global__ void __launch_bounds__(THREADS, 1)
#define GLOBAL
#define LOCAL
#define INLINE __forceinline__
#define UNROLL _Pragma("unroll")
#define SHARED __shared__
#define GROUP(axis) ((int)((axis) == 0 ? blockIdx.x : (axis) == 1 ? blockIdx.y : blockIdx.z))
#define THREAD ((int)threadIdx.x)
#define BARRIER() __syncthreads()
#define BUFFER(name) uchar *name##_base, ulong name##_at
#define AT(type, name) ((type *)(name##_base + name##_at))
#define GIVEN(name) (name##_base != 0)
#define LOAD_HALF(p) half_to_float(*(const ushort *)(p))
#define HALF_TO_FLOAT(bits) half_to_float((ushort)(bits))
#define STORE_HALF(p, x) store_half(p, x)
#define FUNNEL(low, high, n) __funnelshift_r(low, high, n)
#define BYTE_TO_FLOAT(word, i, less) byte_to_float(word, i, less)
#define BITS_TO_FLOAT(u) __uint_as_float(u)
#define FLOAT_TO_BITS(f) __float_as_uint(f)
#define ATOMIC_ADD(p, n) atomicAdd(p, n)
#define ATOMIC_OR(p, n) atomicOr(p, n)
#define INFINITY BITS_TO_FLOAT(0x7f800000u)

/* Without cuda_fp16.h, which does not come with NVRTC. */
static float half_to_float(ushort bits)
{
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}

static void store_half(void *p, float x)
{
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(*(ushort *)p) : "f"(x));
}

/* A byte below the exponent of 2^23, and a sum of floats: conversions of integers have half the rate. */
static float byte_to_float(uint word, uint i, int less)
{
    return __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7440u | i)) - (float)(0x800000 + less);
}
