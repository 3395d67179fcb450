/* The instructions of a file, beside its code: BUTLER_TARGET(...) stands before all headers of the file, so that inline functions
 * of those have them too, and BUTLER_TARGET_END behind the last function. Everything else is compiled for the base instruction set;
 * which table runs is decided at start (dispatch.c). On other processors both are nothing. */
#ifndef BUTLER_TARGET_H
#define BUTLER_TARGET_H

#define BUTLER_PRAGMA(...) _Pragma(#__VA_ARGS__)

#if !defined(__x86_64__)
#define BUTLER_TARGET(names)
#define BUTLER_TARGET_END
#elif defined(__clang__)
#include <immintrin.h> /* whose functions have targets of their own */
#define BUTLER_TARGET(names) BUTLER_PRAGMA(clang attribute push(__attribute__((target(names))), apply_to = function))
#define BUTLER_TARGET_END _Pragma("clang attribute pop")
#else
#define BUTLER_TARGET(names) BUTLER_PRAGMA(GCC target(names))
#define BUTLER_TARGET_END
#endif

#define BUTLER_AVX2 "avx2,fma,f16c"
#define BUTLER_AVX512 "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl"
#define BUTLER_VNNI "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni"
#define BUTLER_AMX_BYTES "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,amx-tile,amx-int8"
#define BUTLER_AMX_FLOATS "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,amx-tile,amx-bf16,amx-int8"

#endif
