/* GEMM with bfloat16 operands and float32 sums and results, for processors with AVX512_BF16: the
 * twin of gemm.h, with its cutting and its invariant.
 *
 * One instruction multiplies a pair of neighbours in k and adds both products to a float32 lane.
 * So k runs in pairs: a row of A is pairs as it lies; B is packed so that the pair (k, k + 1) of a
 * column is one 32-bit word. An odd K ends with a pair whose second half is zero on both sides.
 *
 * The instruction rounds to nearest even and flushes subnormal operands and results to zero,
 * whatever the modes are: results are the same bits on every run of one machine, but not those of
 * the emulation (csrc/ops/matmul.c, lower_low), which follows float32's rules. */
#ifndef HL_KERNELS_CPU_GEMM_BF16_H
#define HL_KERNELS_CPU_GEMM_BF16_H

#include "kernels/cpu/gemm.h"

#if HL_ISA_AVX512

/* Two neighbours in k; the first in the low half. Rows of an odd number of bfloat16 make it
 * unaligned. */
typedef uint32_t hl_bf16_pair __attribute__((may_alias, aligned(2)));

/* Packed form of a K x N matrix: panels of HL_GEMM_PANEL columns, one row of words per pair of k;
 * columns beyond N and an odd K's last half are zero. */
size_t hl_gemm_bf16_pack_bytes(int64_t k, int64_t n);
/* b[i * row_stride + j * col_stride] is element (i, j), float32 (rounded here) or bfloat16.
 * Writes panels [panel0, panel1) and reads their columns only. */
void hl_gemm_bf16_pack_f32(int64_t k, int64_t n, const float *b, int64_t row_stride,
                           int64_t col_stride, int64_t panel0, int64_t panel1,
                           hl_bf16_pair *packed);
void hl_gemm_bf16_pack(int64_t k, int64_t n, const uint16_t *b, int64_t row_stride,
                       int64_t col_stride, int64_t panel0, int64_t panel1, hl_bf16_pair *packed);

/* C = A B, then + bias, then ReLU. */
typedef struct hl_gemm_bf16 {
    int64_t n, k;
    const uint16_t *a; /* element (i, k) is a[i * a_row + k * a_col] */
    int64_t a_row, a_col;
    const hl_bf16_pair *b; /* packed */
    float *c;
    int64_t ldc;
    bool relu;
    const float *bias; /* (N), or NULL */
} hl_gemm_bf16;

/* Bytes of scratch for one call of hl_gemm_bf16_rows, one per concurrent caller. */
size_t hl_gemm_bf16_scratch_bytes(const hl_gemm_bf16 *gemm);
/* Rows [m0, m1) of C. */
void hl_gemm_bf16_rows(const hl_gemm_bf16 *gemm, int64_t m0, int64_t m1, void *scratch);

/* C = A^T B, A (K,M) and B (K,N) as they lie: the weight gradient. Cut by hl_gemm_tn_plan_make;
 * partial sums are float32 and merged by hl_gemm_tn_merge. Scratch as the plan says, its partials
 * too. */
typedef struct hl_gemm_bf16_tn {
    int64_t m, n, k;
    const uint16_t *a, *b;
    float *c; /* (M,N) */
} hl_gemm_bf16_tn;
void hl_gemm_bf16_tn_tile(const hl_gemm_bf16_tn *gemm, const hl_gemm_tn_plan *plan, int64_t tile,
                          float *partials, float *scratch);

#endif
#endif
