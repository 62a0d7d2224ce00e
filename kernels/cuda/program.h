/* A pointwise program as the interpreter of pointwise.cu reads it, in device memory; made by the
 * launcher from hl_program and the node's types; and what the interpreter's kernels take. */
#ifndef HL_CUDA_PROGRAM_H
#define HL_CUDA_PROGRAM_H

#include "ir/program.h"
#include "kernels/cuda/layout.h"
#include "kernels/cuda/params.h"
#include "kernels/cuda/parts.h"
#include "kernels/cuda/tile_iterator.h"

typedef struct hl_cuda_step {
    uint8_t op, dst, a, b, c, in; /* as in hl_pw_instr; operands that the op lacks repeat a */
    int32_t dtype;                /* CAST */
    uint32_t threshold, key[2];   /* of random steps */
    double number;                /* NUMBER; DROPOUT_MASK: the scale */
} hl_cuda_step;

typedef struct hl_cuda_program {
    int64_t sample_size; /* of random steps: elements a sample; n and more: one sample */
    int32_t n_in, n_out, n_code, n_regs, n_sums;
    hl_cuda_step code[HL_PROGRAM_CODE];
    struct {
        int32_t dtype, is_whole; /* is_whole: element i is element i of the iteration */
        hl_cuda_layout at;       /* the iteration's dims, this input's strides */
    } in[HL_PROGRAM_INS];
    struct {
        int32_t dtype, reg, reduce; /* HL_CUDA_SUM_* */
    } out[HL_PROGRAM_OUTS];
    int32_t sum_out[HL_PROGRAM_OUTS]; /* the output of sum s */
} hl_cuda_program;

/* ---- kernels, by the type of registers ------------------------------------------------------- */

typedef struct hl_cuda_pointwise_params {
    struct {
        HL_CUDA_AT(void) operand[HL_CUDA_OPERANDS];
        HL_CUDA_AT(const hl_cuda_program) program;
        HL_CUDA_AT(void) scratch;
    } at;
    hl_cuda_tiles tiles;
} hl_cuda_pointwise_params;

typedef struct hl_cuda_pointwise_parts_params {
    struct {
        HL_CUDA_AT(void) operand[HL_CUDA_PARTS_OPERANDS];
        HL_CUDA_AT(const hl_cuda_program) programs; /* each part's */
    } at;
    hl_cuda_parts parts;
} hl_cuda_pointwise_parts_params;

/* Adds up the partials of one sum, or what an earlier merge left of them; how: HL_CUDA_SUM_*. */
typedef struct hl_cuda_pointwise_merge_params {
    struct {
        HL_CUDA_AT(const void) from;
        HL_CUDA_AT(void) to;
    } at;
    hl_cuda_tiles tiles;
    int32_t to_dtype, how;
} hl_cuda_pointwise_merge_params;

#endif
