/* Parameters of the statistics of channels.
 *
 * Channels are cut into strips of 4 m, m at most HL_CUDA_STAT_SIDE, and the products of two strips
 * into tiles of 4 x 4: tile (i, j) has channels i, i + m, i + 2 m, i + 3 m of the one strip and j,
 * j + m, ... of the other, so that neighbouring threads read neighbouring channels. Of a strip with
 * itself there are the tiles with i <= j. The cuts come from the shape alone. */
#ifndef HL_CUDA_STAT_H
#define HL_CUDA_STAT_H

#include "kernels/cuda/params.h"

enum {
    HL_CUDA_STAT_TILE = 4,
    HL_CUDA_STAT_SIDE = 16, /* tiles along a strip, at most */
    HL_CUDA_STAT_THREADS = HL_CUDA_STAT_SIDE * HL_CUDA_STAT_SIDE,
    HL_CUDA_STAT_PANEL = 1024,     /* elements of a strip in shared memory */
    HL_CUDA_STAT_FOLD_OUTPUTS = 32 /* that a block of the fold has */
};

/* Rows (R,C) in n_parts parts of `part` rows; products: of every two channels, else squares. */
typedef struct hl_cuda_stat_cut {
    int64_t R, C, part, n_parts;
    int32_t m, n_strips, products;
} hl_cuda_stat_cut;

/* Pairs of strips (I <= J), one behind another by I. */
HL_CUDA_BOTH int64_t hl_cuda_stat_pairs(const hl_cuda_stat_cut *cut)
{
    return cut->products ? (int64_t)cut->n_strips * (cut->n_strips + 1) / 2 : cut->n_strips;
}
/* The place of i <= j among n (n + 1) / 2 such pairs. */
HL_CUDA_BOTH int64_t hl_cuda_stat_pair(int64_t n, int64_t i, int64_t j)
{
    return i * n - i * (i - 1) / 2 + j - i;
}

/* A part's result, in doubles: the count; lowest, highest and sums of all channels of the strips;
 * then their squares, or for each pair of strips 16 products of each of m^2 tiles, the first ones
 * of all tiles first. */
HL_CUDA_BOTH int64_t hl_cuda_stat_channels(const hl_cuda_stat_cut *cut)
{
    return (int64_t)HL_CUDA_STAT_TILE * cut->m * cut->n_strips;
}
HL_CUDA_BOTH int64_t hl_cuda_stat_at_products(const hl_cuda_stat_cut *cut)
{
    return 1 + 3 * hl_cuda_stat_channels(cut);
}
HL_CUDA_BOTH int64_t hl_cuda_stat_pair_size(const hl_cuda_stat_cut *cut)
{
    return (int64_t)HL_CUDA_STAT_TILE * HL_CUDA_STAT_TILE * cut->m * cut->m;
}
HL_CUDA_BOTH int64_t hl_cuda_stat_partial(const hl_cuda_stat_cut *cut)
{
    int64_t products = cut->products ? hl_cuda_stat_pairs(cut) * hl_cuda_stat_pair_size(cut)
                                     : hl_cuda_stat_channels(cut);
    return hl_cuda_stat_at_products(cut) + products;
}

/* Partial results of all parts; mask may be NULL. */
typedef struct hl_cuda_channel_parts_params {
    struct {
        HL_CUDA_AT(const void) x;
        HL_CUDA_AT(const double) shift;
        HL_CUDA_AT(const uint8_t) mask;
        HL_CUDA_AT(double) partials;
    } at;
    hl_cuda_stat_cut cut;
} hl_cuda_channel_parts_params;

/* The results of all rows. */
typedef struct hl_cuda_channel_fold_params {
    struct {
        HL_CUDA_AT(const double) partials;
        HL_CUDA_AT(double) count;
        HL_CUDA_AT(double) lowest;
        HL_CUDA_AT(double) highest;
        HL_CUDA_AT(double) sums;
        HL_CUDA_AT(double) products;
    } at;
    hl_cuda_stat_cut cut;
} hl_cuda_channel_fold_params;

#endif
