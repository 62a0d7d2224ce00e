/* Reductions: how launchers cut them, for the families that reduce, and what kernels take.
 *
 * A variant is a dtype's suffix, or int: for integers and bools of any size, with their dtype. */
#ifndef HL_CUDA_REDUCE_H
#define HL_CUDA_REDUCE_H

#include "kernels/cuda/channel.h"

/* Threads of a block; columns that it takes side by side, at most. */
enum { HL_CUDA_REDUCE_THREADS = 256, HL_CUDA_REDUCE_COLUMNS = 32 };

/* An array (O,N,I), reduced over N in n_parts parts of `part` elements; the last part has the rest.
 * They follow from the shape alone. */
typedef struct hl_cuda_groups {
    int64_t O, N, I, part, n_parts;
} hl_cuda_groups;

/* Columns side by side in a block. */
HL_CUDA_BOTH int hl_cuda_groups_width(int64_t I)
{
    int width = HL_CUDA_REDUCE_COLUMNS;
    while (width > 1 && width / 2 >= I) width /= 2;
    return width;
}

/* Folds of x, variants sum_*, prod_*, max_*, min_*. by_block, here and below: cooperative groups as
 * in fold.h, where I is 1. */
typedef struct hl_cuda_fold_params {
    struct {
        HL_CUDA_AT(const void) x;
        HL_CUDA_AT(void) out;
    } at;
    hl_cuda_groups groups;
    int32_t dtype, out_dtype, by_block; /* dtype: of x in variant int, here and below */
} hl_cuda_fold_params;

/* Where the largest (max_*) or smallest (min_*) of x (O,M,I) stands: of all elements k, or where
 * `among` (O,N,I) is given, of those that it names. */
typedef struct hl_cuda_arg_params {
    struct {
        HL_CUDA_AT(const void) x;
        HL_CUDA_AT(const int64_t) among;
        HL_CUDA_AT(int64_t) out;
    } at;
    hl_cuda_groups groups;
    int64_t M;
    int32_t dtype, by_block;
} hl_cuda_arg_params;

/* Medians of rows x (R,N), and where in its row the first element that equals it stands; a NaN, the
 * first one, where there is one. N < 2^32. */
typedef struct hl_cuda_median_params {
    struct {
        HL_CUDA_AT(const void) x;
        HL_CUDA_AT(void) values;
        HL_CUDA_AT(int64_t) places;
    } at;
    int64_t R, N;
    int32_t dtype, by_block;
} hl_cuda_median_params;

/* Mean and population variance; of a part where there are several, its mean and its sum of squares.
 * channel, eps: of a batch norm; not of parts. */
typedef struct hl_cuda_moments_params {
    struct {
        HL_CUDA_AT(const void) x;
        HL_CUDA_AT(void) mean;
        HL_CUDA_AT(void) var;
        hl_cuda_channel_at channel;
    } at;
    hl_cuda_groups groups;
    int64_t S; /* of plane_moments: x is (A,C,S), groups are (C, A S, 1) */
    float eps;
    int32_t out_dtype, by_block;
} hl_cuda_moments_params;
typedef hl_cuda_moments_params hl_cuda_plane_moments_params;

/* Merges the moments of parts; groups are those of the launch that made them. */
typedef struct hl_cuda_moments_merge_params {
    struct {
        HL_CUDA_AT(const float) part_mean;
        HL_CUDA_AT(const float) part_squares;
        HL_CUDA_AT(void) mean;
        HL_CUDA_AT(void) var;
        hl_cuda_channel_at channel;
    } at;
    hl_cuda_groups groups;
    float eps;
    int32_t out_dtype, by_block;
} hl_cuda_moments_merge_params;

/* Sums of batch norm's gradient, of dy and x (A,C,S) by groups (1,A,C) where S is 1, else
 * (C, A S, 1); of a part where there are several, without the division by the deviation, and
 * without channels. result and its scale: as in norm.h. */
typedef struct hl_cuda_batch_norm_sums_params {
    struct {
        HL_CUDA_AT(const void) dy;
        HL_CUDA_AT(const void) x;
        HL_CUDA_AT(const float) mean;
        HL_CUDA_AT(const float) var;
        HL_CUDA_AT(const void) result;
        HL_CUDA_AT(float) dbias;
        HL_CUDA_AT(float) dweight;
        hl_cuda_channel_at channel;
    } at;
    hl_cuda_groups groups;
    int64_t S;
    float eps, result_scale;
    int32_t by_block;
} hl_cuda_batch_norm_sums_params;

/* n: elements of a channel. */
typedef struct hl_cuda_batch_norm_sums_merge_params {
    struct {
        HL_CUDA_AT(const float) part_g;
        HL_CUDA_AT(const float) part_gc;
        HL_CUDA_AT(const float) mean;
        HL_CUDA_AT(const float) var;
        HL_CUDA_AT(float) dbias;
        HL_CUDA_AT(float) dweight;
        hl_cuda_channel_at channel;
    } at;
    hl_cuda_groups groups;
    int64_t n;
    float eps;
    int32_t by_block;
} hl_cuda_batch_norm_sums_merge_params;

/* Cumulative sums; before (O,n_parts,I): those of the sums of whole parts, NULL where there is one
 * part. */
typedef struct hl_cuda_cumsum_params {
    struct {
        HL_CUDA_AT(const void) x;
        HL_CUDA_AT(const void) before;
        HL_CUDA_AT(void) out;
    } at;
    hl_cuda_groups groups;
    int32_t dtype, out_dtype, is_reverse;
} hl_cuda_cumsum_params;

typedef struct hl_cuda_prod_grad_params {
    struct {
        HL_CUDA_AT(const float) x;
        HL_CUDA_AT(const float) dprod;
        HL_CUDA_AT(float) dx;
    } at;
    int64_t O, N, I;
} hl_cuda_prod_grad_params;

#ifndef __cplusplus
#include "kernels/cuda/calls.h"

hl_cuda_groups hl_cuda_groups_make(int64_t O, int64_t N, int64_t I);

/* What a batch norm has made beside its statistics or sums: its channels, at this offset of
 * scratch. */
typedef struct hl_cuda_channels {
    size_t offset;
    float eps;
} hl_cuda_channels;

/* Mean and population variance of input 0, into outputs out_mean and out_mean + 1 of out_dtype, by
 * one call or two; takes hl_cuda_moments_bytes of scratch from its beginning on. A > 0: the input
 * is (A,C,S), reduced over A and S, and groups are (C, A S, 1). channels: NULL, or those of a batch
 * norm. */
void hl_cuda_moments_call(hl_cuda_calls *calls, hl_dtype dtype, hl_dtype out_dtype,
                          const hl_cuda_groups *groups, int64_t A, int out_mean,
                          const hl_cuda_channels *channels);
size_t hl_cuda_moments_bytes(const hl_cuda_groups *groups);

/* Outputs 1 and 2 of BATCH_NORM_GRAD, dweight and dbias, and its channels, by one call or two;
 * takes hl_cuda_moments_bytes of scratch. groups are (1,A,C) where S is 1, else (C, A S, 1). types:
 * of dy, x and dx, as variants in norm.h. */
void hl_cuda_norm_sums_call(hl_cuda_calls *calls, const char *types, const hl_cuda_groups *groups,
                            int64_t S, hl_cuda_word result, float result_scale,
                            const hl_cuda_channels *channels);
#endif

#endif
