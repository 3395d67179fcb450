/* The dialect of the .cl files as OpenCL C 1.2; the device's compiler reads this file first. cuda.h has the same for CUDA.
 *
 * KERNEL: a function that the host launches over a grid of groups of THREADS threads (LARGE_KERNEL: of few groups, with many
 * registers); GROUP(axis): which group of the grid; THREAD: which thread of the group. GLOBAL and LOCAL qualify pointers to
 * device memory and to what the threads of a group share, SHARED declares the latter. BARRIER(): all threads of the group come
 * here before one goes on. BUFFER(name): a parameter, device memory as a buffer and an offset in bytes; AT(type, name): a
 * pointer to it; GIVEN(name): it is not NULL. INLINE: a function whose constant arguments make it small, which a compiler may
 * think too large to inline; UNROLL: a loop over arrays that are to be in registers. HALF_TO_FLOAT: of 16 bits; STORE_HALF
 * rounds to nearest even. FUNNEL: the 32 bits from bit n < 32 of two words on (Oclgrind lacks what LLVM makes of shifts).
 * BYTE_TO_FLOAT: byte i of a word, less an integer below 256. */
#pragma OPENCL FP_CONTRACT OFF
#define THREADS 128
#define KERNEL __attribute__((reqd_work_group_size(THREADS, 1, 1))) kernel void
#define LARGE_KERNEL KERNEL
#define GLOBAL global
#define LOCAL local
#define INLINE
#define UNROLL
#define SHARED local
#define GROUP(axis) ((int)get_group_id(axis))
#define THREAD ((int)get_local_id(0))
#define BARRIER() barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
#define BUFFER(name) global uchar *name##_base, ulong name##_at
#define AT(type, name) ((global type *)(name##_base + name##_at))
#define GIVEN(name) (name##_base != 0)
#define LOAD_HALF(p) vload_half(0, (const global half *)(p))
#define HALF_TO_FLOAT(bits) half_to_float((ushort)(bits))
#define STORE_HALF(p, x) vstore_half_rte(x, 0, (global half *)(p))
#define FUNNEL(low, high, n) ((uint)(as_ulong((uint2)(low, high)) >> (n)))
#define BYTE_TO_FLOAT(word, i, less) ((float)((int)((word) >> (i)*8 & 255) - (less)))
#define BITS_TO_FLOAT(u) as_float(u)
#define FLOAT_TO_BITS(f) as_uint(f)
#define ATOMIC_ADD(p, n) atomic_add(p, n)
#define ATOMIC_OR(p, n) atomic_or(p, n)

static float half_to_float(ushort bits)
{
    return vload_half(0, (const half *)&bits);
}
