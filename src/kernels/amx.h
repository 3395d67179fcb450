/* What the files for the matrix unit share: its tiles, all eight alike. */
#ifndef BUTLER_AMX_H
#define BUTLER_AMX_H

#include "kernels/vec512.h"

/* 16 rows of 64 bytes. Constant, because compilers drop stores to what tile instructions read. */
static const _Alignas(64) uint8_t amx_config[64] = {
    [0] = 1,   [16] = 64, [18] = 64, [20] = 64, [22] = 64, [24] = 64, [26] = 64, [28] = 64, [30] = 64,
    [48] = 16, [49] = 16, [50] = 16, [51] = 16, [52] = 16, [53] = 16, [54] = 16, [55] = 16,
};

#define TILE 16            /* lines of a tile */
#define HALF 1024          /* bytes of its high or low parts */
#define STEP BUTLER_TILE_K /* of k */

/* 16 lines of 16 words of 32 bits, turned: word w of all lines becomes line w. */
INLINE void transpose(__m512i v[16])
{
    __m512i a[16], b[16];
    UNROLL
    for (int i = 0; i < 16; i += 2) {
        a[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
        a[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
    }
    UNROLL
    for (int i = 0; i < 16; i += 4) {
        b[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
        b[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
        b[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
        b[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
    }
    /* b[4 g + c] holds words c, c + 4, c + 8, c + 12 of lines 4 g .. 4 g + 3 in its quarters. */
    UNROLL
    for (int c = 0; c < 4; c++) {
        __m512i even01 = _mm512_shuffle_i32x4(b[c], b[4 + c], 0x88), odd01 = _mm512_shuffle_i32x4(b[c], b[4 + c], 0xdd);
        __m512i even23 = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0x88), odd23 = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0xdd);
        v[c] = _mm512_shuffle_i32x4(even01, even23, 0x88);
        v[c + 4] = _mm512_shuffle_i32x4(odd01, odd23, 0x88);
        v[c + 8] = _mm512_shuffle_i32x4(even01, even23, 0xdd);
        v[c + 12] = _mm512_shuffle_i32x4(odd01, odd23, 0xdd);
    }
}

void butler_amx_attend_packed(const struct butler_attention *attention);

#endif
