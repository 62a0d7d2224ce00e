/* GEMM: C = epilogue(alpha A B), row-major, the core under linear layers, convolutions, attention
 * and recurrences. Products are of float32, or of bfloat16 with float32 sums; C is float32.
 *
 * Pure functions of pointers and sizes: no allocation, no threads, no graph. A kernel owns the
 * partition over threads and the scratch. It packs B (hl_gemm_pack: panels are independent), then
 * calls hl_gemm_run (ranges of rows and of columns are independent). hl_gemm_tn_tile and
 * hl_gemm_tn_merge are the product A^T B with a long reduction.
 *
 * A is read where it lies, in one of three forms:
 * - rows: element (i, k) is a[i * a_row + k], a plain matrix;
 * - columns: element (i, k) is a[i + k * a_col], its transpose;
 * - segments: row i is n_segments runs of k terms each, and each run has a pointer of its own. A
 *   convolution in NHWC is such a product: a row of A is an output pixel, a segment is a tap of the
 *   kernel, its run is the C channels of the input pixel under that tap, and taps outside the image
 *   point at C zeros. Padding, stride and dilation are a matter of the pointers alone.
 *
 * B is packed. A packed B has panels of HL_GEMM_PANEL columns, and a panel has rows of 32-bit
 * words: one term of k in float32, two neighbours in k in bfloat16. Each segment begins a new word
 * row. hl_gemm_pack takes three strides, so that it reads a matrix, its transpose and a
 * convolution's weights (O,I,kh,kw) where they lie, from float32 (which it rounds) or bfloat16.
 *
 * The reduction may come in ranges, one call each, that add into one C: over parts of one packed B
 * (attention's sum over blocks of keys) or over several A and B (a recurrent cell's x W + h U).
 * `first` says that C starts from zero, and `last` that the epilogue runs. A caller that takes all
 * ranges of some rows before the next rows keeps their C in its cache. With `first` false at the
 * first call C is added to, as BLAS does with beta = 1.
 *
 * C is where the caller wants it, with any distance between rows: in a chain of products (the two
 * layers of an MLP, scores and values of attention) it is a tile in thread scratch, of as many rows
 * as a cache holds, which the next product reads as its A, rounded first for bfloat16.
 *
 * An element of C goes through these steps, each of them one rounding, and steps that are absent
 * cost nothing in the inner loop:
 *
 *     v = sum of the products    of this range
 *     v = v * alpha
 *     v = v + C                  unless first, and between the blocks of K, where tiles of a
 *                                processor with AMX begin with C in place of zero
 *     v = v * scale[j]           these four if last
 *     v = v + bias[j]
 *     v = v + residual[i][j]
 *     v = activation(v)
 *
 * The invariant: an element of C is one chain of fused multiply-adds in the order of k, in blocks
 * whose places depend on the sizes and strides alone. So the bits of a result depend neither on how
 * rows, columns and tiles are dealt to threads, nor on the tile heights that a range happens to
 * need. They do depend on the ranges of the reduction.
 *
 * bfloat16 needs AVX512_BF16. Its instruction multiplies pairs of neighbours in k and adds both
 * products to a float32 lane; it rounds to nearest even and flushes subnormal operands and results
 * to zero, whatever the modes are. Results are the same bits on every run of one machine, but not
 * those of the emulation (csrc/ops/matmul.c, lower_reduced), which follows float32's rules.
 *
 * Each name is that of the instruction set the including file is compiled for (HL_ISA_NAME). */
#ifndef HL_KERNELS_CPU_GEMM_H
#define HL_KERNELS_CPU_GEMM_H

#include <stddef.h>

#include "ir/dtype.h"
#include "kernels/cpu/simd/simd.h"

#define hl_gemm_f32           HL_ISA_NAME(hl_gemm_f32)
#define hl_gemm_bf16          HL_ISA_NAME(hl_gemm_bf16)
#define hl_gemm_amx           HL_ISA_NAME(hl_gemm_amx)
#define hl_gemm_rows_best     HL_ISA_NAME(hl_gemm_rows_best)
#define hl_gemm_rows_most     HL_ISA_NAME(hl_gemm_rows_most)
#define hl_gemm_count_rows    HL_ISA_NAME(hl_gemm_count_rows)
#define hl_gemm_pack_bytes    HL_ISA_NAME(hl_gemm_pack_bytes)
#define hl_gemm_pack          HL_ISA_NAME(hl_gemm_pack)
#define hl_gemm_scratch_bytes HL_ISA_NAME(hl_gemm_scratch_bytes)
#define hl_gemm_is_one_block  HL_ISA_NAME(hl_gemm_is_one_block)
#define hl_gemm_run           HL_ISA_NAME(hl_gemm_run)
#define hl_gemm_gelu          HL_ISA_NAME(hl_gemm_gelu)
#define hl_gemm_tn_plan_make  HL_ISA_NAME(hl_gemm_tn_plan_make)
#define hl_gemm_tn_tile       HL_ISA_NAME(hl_gemm_tn_tile)
#define hl_gemm_tn_merge      HL_ISA_NAME(hl_gemm_tn_merge)

/* B is packed in panels of this many columns; rows of C are best given in multiples of
 * HL_GEMM_ROWS_BEST, or of what hl_gemm_rows_best says of a type (any range is right). */
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

/* The element type of A and B: its inner loops (gemm_tile.h). hl_gemm_bf16 works only on a
 * processor with AVX512_BF16, hl_gemm_amx on one with AMX too. */
typedef struct hl_gemm_type hl_gemm_type;
extern const hl_gemm_type hl_gemm_f32;
#if HL_ISA_AVX512
extern const hl_gemm_type hl_gemm_bf16, hl_gemm_amx;
#endif

/* Rows of C: what fills the registers, and how many a call takes at once. */
int64_t hl_gemm_rows_best(const hl_gemm_type *type);
int64_t hl_gemm_rows_most(const hl_gemm_type *type);

/* A word of a packed B. */
typedef uint32_t hl_gemm_word __attribute__((may_alias));

/* ---- packing --------------------------------------------------------------------------------- */

/* B (S,K,N) as it lies: element (s, k, j) is at[s * segment_stride + k * k_stride + j * n_stride],
 * S = 1 for a matrix. `dtype` is HL_DTYPE_F32, which bfloat16 words are rounded from, or
 * HL_DTYPE_BF16 for bfloat16 words alone. */
typedef struct hl_gemm_b {
    const hl_gemm_type *type; /* of the words */
    hl_dtype dtype;
    const void *at;
    int64_t n_segments, k, n;
    int64_t segment_stride, k_stride, n_stride;
} hl_gemm_b;

/* Word rows of a panel: term k of segment s is in row s * count_rows(type, 1, K) + k for float32
 * and k / 2 for bfloat16. */
int64_t hl_gemm_count_rows(const hl_gemm_type *type, int64_t n_segments, int64_t k);
/* Bytes of the packed form. Columns beyond n and the second half of an odd run's last word are
 * zero in it. 64-byte alignment is best, 4 is enough. */
size_t hl_gemm_pack_bytes(const hl_gemm_type *type, int64_t n_segments, int64_t k, int64_t n);
/* Writes panels [panel0, panel1) of `packed` and reads their columns only. Fastest where n_stride
 * or k_stride is 1. */
void hl_gemm_pack(const hl_gemm_b *b, int64_t panel0, int64_t panel1, hl_gemm_word *packed);

/* ---- C = epilogue(alpha A B) ----------------------------------------------------------------- */

typedef enum hl_gemm_activation {
    HL_GEMM_NONE,
    HL_GEMM_RELU, /* a NaN stays a NaN */
    HL_GEMM_GELU  /* by tanh, the bits are those of the pointwise op */
} hl_gemm_activation;

typedef struct hl_gemm_epilogue {
    float alpha;               /* 1: none; applies to every range, the rest to the last one */
    const float *scale, *bias; /* (N), NULL: none */
    const float *residual;     /* element (i, j) is residual[i * ld_residual + j]; NULL: none */
    int64_t ld_residual;
    hl_gemm_activation activation;
} hl_gemm_epilogue;

typedef struct hl_gemm {
    const hl_gemm_type *type;
    int64_t n, k; /* k: terms of this range, in each segment */
    /* A by rows or by columns; one of the strides is 1, in elements. Unused with segments. */
    const void *a;
    int64_t a_row, a_col;
    /* Pointers to A's segments; NULL if A is a matrix. Segment s of row i begins segment_offset
     * elements behind segments[s * ld_segments + i]. */
    const void *const *segments;
    int64_t n_segments, ld_segments, segment_offset; /* n_segments: 1 without segments */
    /* Packed, at the first word row of this range in panel 0; b_rows: word rows of a panel, of the
     * whole packing. */
    const hl_gemm_word *b;
    int64_t b_rows;
    float *c; /* element (i, j) is c[i * ldc + j] */
    int64_t ldc;
    bool first, last;
    hl_gemm_epilogue epilogue;
} hl_gemm;

/* Bytes of scratch for one call of hl_gemm_run, one per concurrent caller; 64-byte aligned. Follows
 * from sizes and strides. */
size_t hl_gemm_scratch_bytes(const hl_gemm *gemm);
/* Whether no sum is kept in C before the epilogue: then, with first and last, `residual` may be C
 * itself, element by element. Follows from sizes and strides. */
bool hl_gemm_is_one_block(const hl_gemm *gemm);
/* Rows [m0, m1) and columns [n0, n1) of C; n0 is a multiple of HL_GEMM_PANEL, n1 likewise or N.
 * Neither A, B, scale nor bias may overlap C, nor may the residual but as above. An empty reduction
 * gives the epilogue of zero. */
void hl_gemm_run(const hl_gemm *gemm, int64_t m0, int64_t m1, int64_t n0, int64_t n1,
                 void *scratch);

/* C (rows,n) = gelu(C): the epilogue's last step, for sums that something else makes. */
void hl_gemm_gelu(int64_t rows, int64_t n, float *c, int64_t ldc);

/* ---- C = alpha A^T B ------------------------------------------------------------------------- */

/* C (+)= alpha A^T B with a long reduction, A (K,M) and B (K,N) as they lie in memory: the weight
 * gradient. */
typedef struct hl_gemm_tn {
    const hl_gemm_type *type;
    int64_t m, n, k;
    const void *a; /* (K,M) */
    int64_t lda;
    const void *b; /* (K,N) */
    int64_t ldb;
    /* B's rows as runs, in place of b: columns [s, s + 1) * segment_n of row i begin segment_offset
     * elements behind segments[s * ld_segments + i]; segment_n is a multiple of HL_GEMM_PANEL. */
    const void *const *segments;
    int64_t ld_segments, segment_n, segment_offset;
    float *c; /* (M,N) */
    int64_t ldc;
    float alpha;
    bool accumulate;
} hl_gemm_tn;

/* The partition: into tiles of C, and of K where C is small and K long. With n_splits = 1 the
 * tiles write C; else they write partial sums, which n_merges merges add up in a fixed tree once
 * all tiles are done. The splits, and with them the bits, follow from the shape alone; the tiles of
 * C shrink, at some cost, until there are n_tasks_min tasks or no sense in it: a few per thread. */
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
                     float *partials, void *scratch);
void hl_gemm_tn_merge(const hl_gemm_tn *gemm, const hl_gemm_tn_plan *plan, int64_t merge,
                      const float *partials);

#endif
