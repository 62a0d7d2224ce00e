/* GEMM, fp32, row-major: the core under linear layers, recurrences and 1x1 convolutions.
 *
 * Pure functions of pointers and sizes: no allocation, no threads, no IR. A backend kernel owns
 * the blocks and the scratch; it calls hl_gemm_pack (panel ranges are independent), then
 * hl_gemm_rows (row ranges are independent), or hl_gemm_tn_tile (tiles are independent) and
 * hl_gemm_tn_merge.
 *
 * The invariant: an element of C is one chain of fused multiply-adds in the order of k, cut at
 * places that depend on the shape alone. So the bits of a result depend neither on how rows,
 * panels and tiles are dealt to threads, nor on the tile heights that a range happens to need.
 *
 * Each name is that of the instruction set the including file is compiled for (HL_ISA_NAME). */
#ifndef HL_KERNELS_CPU_GEMM_H
#define HL_KERNELS_CPU_GEMM_H

#include <stddef.h>

#include "kernels/cpu/simd/simd.h"

#define hl_gemm_pack_bytes    HL_ISA_NAME(hl_gemm_pack_bytes)
#define hl_gemm_pack          HL_ISA_NAME(hl_gemm_pack)
#define hl_gemm_scratch_bytes HL_ISA_NAME(hl_gemm_scratch_bytes)
#define hl_gemm_rows          HL_ISA_NAME(hl_gemm_rows)
#define hl_gemm_tn_plan_make  HL_ISA_NAME(hl_gemm_tn_plan_make)
#define hl_gemm_tn_tile       HL_ISA_NAME(hl_gemm_tn_tile)
#define hl_gemm_tn_merge      HL_ISA_NAME(hl_gemm_tn_merge)

/* B is packed in panels of this many columns; rows of C are best given in multiples of
 * HL_GEMM_ROWS_BEST (any range is right). */
enum {
    HL_GEMM_PANEL = 2 * HL_VL,
#if HL_ISA_AVX512 || defined(__aarch64__)
    HL_GEMM_ROWS_BEST = 14
#else
    HL_GEMM_ROWS_BEST = 6
#endif
};
static inline int64_t hl_gemm_panels(int64_t n)
{
    return (n + HL_GEMM_PANEL - 1) / HL_GEMM_PANEL;
}

/* Packed form of a K x N matrix: panel p holds columns [p, p + 1) * HL_GEMM_PANEL for k = 0..K-1,
 * row after row, columns beyond N zero. 64-byte alignment is best, 4 is enough. */
size_t hl_gemm_pack_bytes(int64_t k, int64_t n);
/* b[i * row_stride + j * col_stride] is element (i, j): B itself with (ldb, 1), the transpose of a
 * stored N x K matrix with (1, ldb). Writes panels [panel0, panel1) and reads their columns only.
 * */
void hl_gemm_pack(int64_t k, int64_t n, const float *b, int64_t row_stride, int64_t col_stride,
                  int64_t panel0, int64_t panel1, float *packed);

/* C = epilogue(alpha A B), or C + alpha A B; then + bias, then ReLU (a NaN stays a NaN). */
typedef struct hl_gemm {
    int64_t n, k;
    const float *a;       /* element (i, k) is a[i * a_row + k * a_col] */
    int64_t a_row, a_col; /* one of them is 1 */
    const float *b;       /* packed */
    float *c;             /* element (i, j) is c[i * ldc + j] */
    int64_t ldc;
    float alpha;
    bool accumulate; /* C += */
    bool relu;
    const float *bias; /* (N), or NULL */
} hl_gemm;

/* Bytes of scratch for one call of hl_gemm_rows, one per concurrent caller; 64-byte aligned.
 * Follows from n, k and the strides of A. */
size_t hl_gemm_scratch_bytes(const hl_gemm *gemm);
/* Rows [m0, m1) of C. A, B, bias and C must not overlap. */
void hl_gemm_rows(const hl_gemm *gemm, int64_t m0, int64_t m1, float *scratch);

/* C (+)= alpha A^T B with a long reduction, A (K,M) and B (K,N) as they lie in memory: the weight
 * gradient. */
typedef struct hl_gemm_tn {
    int64_t m, n, k;
    const float *a; /* (K,M) */
    int64_t lda;
    const float *b; /* (K,N) */
    int64_t ldb;
    float *c; /* (M,N) */
    int64_t ldc;
    float alpha;
    bool accumulate;
} hl_gemm_tn;

/* How the work is cut: into tiles of C, and of K where C is small and K long. With n_splits = 1
 * the tiles write C; else they write partial sums, which n_merges merges add up in a fixed tree
 * once all tiles are done. The splits, and with them the bits, follow from the shape alone; the
 * tiles of C shrink, at some cost, until there are n_tasks_min tasks or no sense in it: a few per
 * thread. */
typedef struct hl_gemm_tn_plan {
    int64_t tile_m, tile_n, tile_k;
    int64_t n_tiles_m, n_tiles_n, n_splits;
    int64_t n_tiles;      /* tasks: n_splits * n_tiles_m * n_tiles_n */
    int64_t n_merges;     /* 0 when n_splits is 1 */
    bool swapped;         /* tiles are of C^T: vectors run along M */
    size_t partial_bytes; /* one buffer for all; 0 when n_splits is 1 */
    size_t scratch_bytes; /* per concurrent caller, 64-byte aligned */
} hl_gemm_tn_plan;

void hl_gemm_tn_plan_make(int64_t m, int64_t n, int64_t k, int64_t n_tasks_min,
                          hl_gemm_tn_plan *out_plan);
void hl_gemm_tn_tile(const hl_gemm_tn *gemm, const hl_gemm_tn_plan *plan, int64_t tile,
                     float *partials, float *scratch);
void hl_gemm_tn_merge(const hl_gemm_tn *gemm, const hl_gemm_tn_plan *plan, int64_t merge,
                      const float *partials);

#endif
