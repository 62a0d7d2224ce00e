/* Parameters of kernels that sort rows, and that look for places in sorted rows. */
#ifndef HL_CUDA_SORT_H
#define HL_CUDA_SORT_H

#include "kernels/cuda/params.h"

/* A block sorts so many elements at a time: a tile of a row, or several short ones. */
enum { HL_CUDA_TILE_SORT = 2048, HL_CUDA_TILE_SORT_THREADS = 256 };

/* What is sorted: a key with the place in the row that it came from. */
typedef struct hl_cuda_wide_entry {
    uint64_t key, place;
} hl_cuda_wide_entry;

/* Rows of N elements, which are those of x, or where `from` is given entries made before, are cut
 * into tiles of 2^tile_bits; the first k of each tile, in order, become entries, or where values
 * and places are given, for rows of one tile, elements of x (R,X) and their places. Keys are
 * exclusive-or'd with the mask. A variant is the bits of a key. */
typedef struct hl_cuda_sort_tiles_params {
    struct {
        HL_CUDA_AT(const void) x;
        HL_CUDA_AT(const void) from;
        HL_CUDA_AT(void) to;
        HL_CUDA_AT(void) values;
        HL_CUDA_AT(int64_t) places;
    } at;
    int64_t R, X, N, k;
    uint64_t mask;
    int32_t tile_bits, dtype, bytes; /* bytes of an element */
} hl_cuda_sort_tiles_params;

/* For a radix sort of all rows (R,N) at once: keys[i] <- a word of the key of element values[i]:
 * the low one, the high one, or its row. The low one comes first, of all elements in order. */
enum { HL_CUDA_SORT_LOW, HL_CUDA_SORT_HIGH, HL_CUDA_SORT_ROW };
typedef struct hl_cuda_sort_words_params {
    struct {
        HL_CUDA_AT(const void) x;
        HL_CUDA_AT(uint32_t) keys;
        HL_CUDA_AT(int32_t) values;
    } at;
    int64_t R, N;
    uint64_t mask;
    int32_t word, dtype;
} hl_cuda_sort_words_params;

/* Results (R,k) of sorted elements (R,N). */
typedef struct hl_cuda_sort_take_params {
    struct {
        HL_CUDA_AT(const void) x;
        HL_CUDA_AT(const int32_t) from;
        HL_CUDA_AT(void) values;
        HL_CUDA_AT(int64_t) places;
    } at;
    int64_t R, N, k;
    int32_t bytes;
} hl_cuda_sort_take_params;

/* out[i]: how many of a row of N come before values[i]; each row has per_row values. */
typedef struct hl_cuda_searchsorted_params {
    struct {
        HL_CUDA_AT(const void) sorted;
        HL_CUDA_AT(const void) values;
        HL_CUDA_AT(void) out;
    } at;
    int64_t N, n, per_row;
    int32_t dtype, out_dtype, right;
} hl_cuda_searchsorted_params;

#endif
