/* Attention of q (B,H,L,E) to k (B,Hk,S,E) and v (B,Hk,S,Ev), and its gradient. */
#ifndef HL_CUDA_ATTENTION_H
#define HL_CUDA_ATTENTION_H

#include "ir/control.h"
#include "kernels/cuda/params.h"

/* Kernels are made for some widths of heads, the larger of E and Ev, and fill up to them. */
enum { HL_CUDA_ATTENTION_WIDEST = 256 };
#define HL_CUDA_ATTENTION_WIDTHS_F32(X, ...)                                                       \
    X(64, __VA_ARGS__) X(128, __VA_ARGS__) X(256, __VA_ARGS__)
#define HL_CUDA_ATTENTION_WIDTHS(X, ...)                                                           \
    X(32, __VA_ARGS__) HL_CUDA_ATTENTION_WIDTHS_F32(X, __VA_ARGS__)

/* A block's tiles: of `rows` queries (keys, where their gradient is summed) that it holds, beside
 * `cols` keys (queries) at a time. All fit into the 64 KiB of shared memory that sm_75 has, and
 * into registers. Of 16 bits: a warp for 16 rows. */
#define HL_CUDA_ATTENTION_ROWS(is_16_bit, width)      ((is_16_bit) && (width) > 128 ? 32 : 64)
#define HL_CUDA_ATTENTION_COLS(is_16_bit, width)      HL_CUDA_ATTENTION_ROWS(is_16_bit, width)
#define HL_CUDA_ATTENTION_GRAD_COLS(is_16_bit, width) (!(is_16_bit) ? 64 : (width) <= 128 ? 32 : 16)
/* Gradients of the keys and the values of such heads are summed by different blocks. */
#define HL_CUDA_ATTENTION_APART(width) ((width) > 128)
#define HL_CUDA_ATTENTION_THREADS(is_16_bit, width)                                                \
    ((is_16_bit) ? 2 * HL_CUDA_ATTENTION_ROWS(is_16_bit, width) : 256)
/* From one row of a tile in shared memory to the next: no two of eight lie in the same banks. */
#define HL_CUDA_ATTENTION_PITCH(width) ((width) + 8)

/* lse is (2,B,H,L), float32. n_tiles: blocks of queries, or of keys, in a head. */
typedef struct hl_cuda_attention {
    int64_t B, H, L, E, Hk, S, Ev, n_tiles;
    int64_t mask_stride[4]; /* 0: broadcast */
    float scale, drop_scale;
    uint32_t key[2], threshold; /* of dropout */
    int32_t is_causal, has_mask, mask_is_bool, drops;
} hl_cuda_attention;

typedef struct hl_cuda_attention_params {
    struct {
        HL_CUDA_AT(const void) q;
        HL_CUDA_AT(const void) k;
        HL_CUDA_AT(const void) v;
        HL_CUDA_AT(const void) mask;
        HL_CUDA_AT(const hl_control) control;
        HL_CUDA_AT(void) out;
        HL_CUDA_AT(float) lse;
    } at;
    hl_cuda_attention of;
    int32_t out_dtype;
} hl_cuda_attention_params;

/* delta (B,H,L), dout times out summed by rows, which the second kernel reads of the first. */
typedef struct hl_cuda_attention_grad_queries_params {
    struct {
        HL_CUDA_AT(const void) dout;
        HL_CUDA_AT(const void) q;
        HL_CUDA_AT(const void) k;
        HL_CUDA_AT(const void) v;
        HL_CUDA_AT(const void) out;
        HL_CUDA_AT(const float) lse;
        HL_CUDA_AT(const void) mask;
        HL_CUDA_AT(const hl_control) control;
        HL_CUDA_AT(void) dq;
        HL_CUDA_AT(float) delta;
    } at;
    hl_cuda_attention of;
    int32_t out_dtype, dq_dtype;
} hl_cuda_attention_grad_queries_params;

typedef struct hl_cuda_attention_grad_keys_params {
    struct {
        HL_CUDA_AT(const void) dout;
        HL_CUDA_AT(const void) q;
        HL_CUDA_AT(const void) k;
        HL_CUDA_AT(const void) v;
        HL_CUDA_AT(const float) lse;
        HL_CUDA_AT(const void) mask;
        HL_CUDA_AT(const hl_control) control;
        HL_CUDA_AT(const float) delta;
        HL_CUDA_AT(void) dk;
        HL_CUDA_AT(void) dv;
    } at;
    hl_cuda_attention of;
    int32_t dtype; /* of dk and dv */
} hl_cuda_attention_grad_keys_params;

#ifndef __cplusplus
#include "backend/backend.h"

/* Own kernels, behind the library's in the family's list. */
extern const hl_kernel hl_cuda_attention_own, hl_cuda_attention_grad_own;
#endif

#endif
