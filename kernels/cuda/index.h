/* Parameters of kernels that access arrays by index, along the middle dim of (O,A,I). A variant is
 * the bytes of the words that move, or a dtype's suffix; batch_gather has none. */
#ifndef HL_CUDA_INDEX_H
#define HL_CUDA_INDEX_H

#include "ir/control.h"
#include "kernels/cuda/layout.h"
#include "kernels/cuda/params.h"

/* An array of indices of this dtype, each at least 0 and below n, and where another one is reported
 * (fault.h). */
typedef struct hl_cuda_index_at {
    HL_CUDA_AT(const void) p;
    HL_CUDA_AT(hl_control) control;
    HL_CUDA_NUMBER fault;
} hl_cuda_index_at;
typedef struct hl_cuda_index_axis {
    int64_t n;
    int32_t dtype;
} hl_cuda_index_axis;

/* ---- reading ---- */

/* out[i] = x[.. index[i] ..]; layout has the index's dims and x's strides, 0 along the axis. */
typedef struct hl_cuda_gather_params {
    struct {
        hl_cuda_index_at index;
        HL_CUDA_AT(const void) x;
        HL_CUDA_AT(void) out;
    } at;
    hl_cuda_index_axis axis;
    hl_cuda_layout layout;
    int64_t step; /* of x along the axis */
} hl_cuda_gather_params;

/* x (O,axis.n,I) by index (n) -> out (O,n,I) */
typedef struct hl_cuda_index_select_params {
    struct {
        hl_cuda_index_at index;
        HL_CUDA_AT(const void) x;
        HL_CUDA_AT(void) out;
    } at;
    hl_cuda_index_axis axis;
    int64_t O, I, n;
} hl_cuda_index_select_params;

/* ---- the last of equal indices wins: winner[target] is its place in the index, -1: none ---- */

typedef struct hl_cuda_fill_params {
    struct {
        HL_CUDA_AT(uint32_t) dst;
    } at;
    int64_t n;
    uint32_t value;
} hl_cuda_fill_params;

typedef struct hl_cuda_index_claim_params {
    struct {
        hl_cuda_index_at index;
        HL_CUDA_AT(int32_t) winner;
    } at;
    hl_cuda_index_axis axis;
    int64_t n;
} hl_cuda_index_claim_params;

/* Targets are elements of x, by layout and step as above. */
typedef struct hl_cuda_scatter_claim_params {
    struct {
        hl_cuda_index_at index;
        HL_CUDA_AT(int32_t) winner;
    } at;
    hl_cuda_index_axis axis;
    hl_cuda_layout layout;
    int64_t step;
} hl_cuda_scatter_claim_params;

/* x, out (O,A,I), src (O,n,I) */
typedef struct hl_cuda_index_copy_params {
    struct {
        HL_CUDA_AT(const void) x;
        HL_CUDA_AT(const void) src;
        HL_CUDA_AT(const int32_t) winner;
        HL_CUDA_AT(void) out;
    } at;
    int64_t O, A, I, n;
} hl_cuda_index_copy_params;

/* src (O,n,I); out (O,A,I) is changed where it is */
typedef struct hl_cuda_index_assign_params {
    struct {
        hl_cuda_index_at index;
        HL_CUDA_AT(const void) src;
        HL_CUDA_AT(const int32_t) winner;
        HL_CUDA_AT(void) out;
    } at;
    hl_cuda_index_axis axis;
    int64_t O, A, I, n;
} hl_cuda_index_assign_params;

/* n targets; from has the index's dims and src's strides. */
typedef struct hl_cuda_scatter_params {
    struct {
        HL_CUDA_AT(const void) x;
        HL_CUDA_AT(const void) src;
        HL_CUDA_AT(const int32_t) winner;
        HL_CUDA_AT(void) out;
    } at;
    int64_t n;
    hl_cuda_layout from;
} hl_cuda_scatter_params;

/* ---- radix sort of pairs: keys are targets, values are places in the index ---- */

/* A block counts and moves a tile at a time; digits have eight bits. */
enum { HL_CUDA_SORT_TILE = 1024, HL_CUDA_SORT_DIGITS = 256, HL_CUDA_SORT_THREADS = 256 };

/* An index out of range sorts behind all targets. */
typedef struct hl_cuda_index_keys_params {
    struct {
        hl_cuda_index_at index;
        HL_CUDA_AT(uint32_t) keys;
        HL_CUDA_AT(int32_t) values;
    } at;
    hl_cuda_index_axis axis;
    int64_t n;
} hl_cuda_index_keys_params;

/* Targets are the n_targets elements of x. */
typedef struct hl_cuda_scatter_keys_params {
    struct {
        hl_cuda_index_at index;
        HL_CUDA_AT(uint32_t) keys;
        HL_CUDA_AT(int32_t) values;
    } at;
    hl_cuda_index_axis axis;
    hl_cuda_layout layout;
    int64_t step, n_targets;
} hl_cuda_scatter_keys_params;

/* counts (digits, tiles): how often the digit at `shift` stands in each tile. */
typedef struct hl_cuda_sort_count_params {
    struct {
        HL_CUDA_AT(const uint32_t) keys;
        HL_CUDA_AT(uint32_t) counts;
    } at;
    int64_t n;
    int32_t shift;
} hl_cuda_sort_count_params;

/* counts[digit][tile] <- the sum of the digit's counts before it; totals (digits): of all of them.
 */
typedef struct hl_cuda_sort_scan_params {
    struct {
        HL_CUDA_AT(uint32_t) counts;
        HL_CUDA_AT(uint32_t) totals;
    } at;
    int64_t n_tiles;
} hl_cuda_sort_scan_params;

/* Moves each pair to the place that the scanned counts give; of one tile, the counts are totals. */
typedef struct hl_cuda_sort_move_params {
    struct {
        HL_CUDA_AT(const uint32_t) keys;
        HL_CUDA_AT(const int32_t) values;
        HL_CUDA_AT(uint32_t) out_keys;
        HL_CUDA_AT(int32_t) out_values;
        HL_CUDA_AT(const uint32_t) counts;
        HL_CUDA_AT(const uint32_t) totals;
    } at;
    int64_t n;
    int32_t shift;
} hl_cuda_sort_move_params;

/* ---- adding ---- */

/* Sorted pairs (n), of which those with keys below A are added to out (O,A,I). A run of equal keys
 * is cut where a segment of 2^segment_bits pairs ends. */
typedef struct hl_cuda_runs {
    int64_t n, O, A, I;
    int32_t segment_bits;
} hl_cuda_runs;

/* The first of a segment's two partial sums is of the run that came into it, the second of the run
 * that begins in it and goes on: parts (segments,2,O,I). */
enum { HL_CUDA_SEGMENT_PARTS = 2 };

/* out, which holds x, += each run that is not cut; parts <- the sums of the others' segments. Rows
 * of src (O,..,I) are src_step apart along O; from: that of a value. */
typedef struct hl_cuda_add_runs_params {
    struct {
        HL_CUDA_AT(const uint32_t) keys;
        HL_CUDA_AT(const int32_t) values;
        HL_CUDA_AT(const void) src;
        HL_CUDA_AT(void) out;
        HL_CUDA_AT(void) parts;
    } at;
    hl_cuda_runs runs;
    hl_cuda_layout from;
    int64_t src_step;
} hl_cuda_add_runs_params;

/* out += the parts of each run that is cut, in order. */
typedef struct hl_cuda_merge_runs_params {
    struct {
        HL_CUDA_AT(const uint32_t) keys;
        HL_CUDA_AT(const void) parts;
        HL_CUDA_AT(void) out;
    } at;
    hl_cuda_runs runs;
} hl_cuda_merge_runs_params;

/* out (O,axis.n,I), which holds x, += rows of src (O,n,I). */
typedef struct hl_cuda_index_add_atomic_params {
    struct {
        hl_cuda_index_at index;
        HL_CUDA_AT(const float) src;
        HL_CUDA_AT(float) out;
    } at;
    hl_cuda_index_axis axis;
    int64_t O, I, n;
} hl_cuda_index_add_atomic_params;

/* out[first + layout(i)] += src[i]; out holds x, and no two i meet in one element. */
typedef struct hl_cuda_slice_add_params {
    struct {
        HL_CUDA_AT(const void) src;
        HL_CUDA_AT(void) out;
    } at;
    int64_t first;
    hl_cuda_layout layout;
} hl_cuda_slice_add_params;

/* ---- a batch: a part for each array, one launch for all ---- */

enum { HL_CUDA_BATCH_PARTS = 32, HL_CUDA_BATCH_ARGS = 3 /* array, row numbers, result */ };

typedef struct hl_cuda_batch_part {
    int64_t n_axis, I, n; /* rows there are, elements of a row, rows that are taken */
    int64_t step;         /* elements from a row to the next: windows overlap */
    int64_t row_bytes;    /* of rows that are taken as they are; 0: they are converted */
    int32_t src_dtype, index_dtype, out_dtype;
    int32_t node_step; /* this part's node minus the launch's, for faults */
} hl_cuda_batch_part;

typedef struct hl_cuda_batch_gather_params {
    struct {
        HL_CUDA_AT(hl_control) control;
        HL_CUDA_NUMBER fault;
        /* Those of part u begin at HL_CUDA_BATCH_ARGS * u. */
        HL_CUDA_AT(void) operand[HL_CUDA_BATCH_PARTS * HL_CUDA_BATCH_ARGS];
    } at;
    hl_cuda_batch_part part[HL_CUDA_BATCH_PARTS];
    int32_t n_parts;
} hl_cuda_batch_gather_params;

#endif
