/* Which register tiles there are and how rows and columns are cut into them, for the products of
 * every type. */
#ifndef HL_KERNELS_CPU_GEMM_TILE_H
#define HL_KERNELS_CPU_GEMM_TILE_H

#include "kernels/cpu/simd/simd.h"

#if HL_ISA_AVX512 || defined(__aarch64__)
#define REGISTERS_32 1
#else
#define REGISTERS_32 0
#endif

enum {
    WIDTH_MAX = REGISTERS_32 ? 4 : 3, /* vectors */
    HEIGHT_MAX = REGISTERS_32 ? 14 : 12
};

static inline int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
static inline int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* The tiles that fit the registers: HEIGHT_OF[width] rows at most. */
#define HEIGHTS_4(X, w)  X(1, w) X(2, w) X(3, w) X(4, w)
#define HEIGHTS_6(X, w)  HEIGHTS_4(X, w) X(5, w) X(6, w)
#define HEIGHTS_7(X, w)  HEIGHTS_6(X, w) X(7, w)
#define HEIGHTS_9(X, w)  HEIGHTS_7(X, w) X(8, w) X(9, w)
#define HEIGHTS_12(X, w) HEIGHTS_9(X, w) X(10, w) X(11, w) X(12, w)
#define HEIGHTS_14(X, w) HEIGHTS_12(X, w) X(13, w) X(14, w)
#if REGISTERS_32
#define TILES(X) HEIGHTS_14(X, 1) HEIGHTS_14(X, 2) HEIGHTS_9(X, 3) HEIGHTS_7(X, 4)
static const int HEIGHT_OF[WIDTH_MAX + 1] = {0, 14, 14, 9, 7};
#else
#define TILES(X) HEIGHTS_12(X, 1) HEIGHTS_6(X, 2) HEIGHTS_4(X, 3)
static const int HEIGHT_OF[WIDTH_MAX + 1] = {0, 12, 6, 4};
#endif

/* Tiles of `rows` rows: the first `n_taller` have height + 1. */
typedef struct row_split {
    int64_t n_tiles, height, n_taller;
} row_split;

static inline row_split split_rows(int64_t rows, int64_t height_max)
{
    int64_t n_tiles = ceil_div(rows, height_max);
    return (row_split){n_tiles, rows / n_tiles, rows % n_tiles};
}

/* Vectors of the strip that starts with `left` vectors to go: all when they fit one tile, else
 * two, or three where one would be left over. Few rows take wide strips, to keep enough chains
 * going. */
static inline int choose_width(int64_t left, int64_t rows)
{
    if (left <= WIDTH_MAX) return (int)left;
    if (rows <= HEIGHT_OF[WIDTH_MAX] && WIDTH_MAX % 2 == 0) return WIDTH_MAX;
    return left == 3 ? 3 : 2;
}

#endif
