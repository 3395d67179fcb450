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

void butler_amx_attend_packed(const struct butler_attention *attention);

#endif
