/* What a batch is gathered from, as one launch takes it: a part for each array, by value, beside
 * the addresses of all operands. */
#ifndef HL_CUDA_BATCH_H
#define HL_CUDA_BATCH_H

#include <stdint.h>

enum { HL_CUDA_BATCH_PARTS = 32, HL_CUDA_BATCH_ARGS = 3 /* array, rows, what comes of it */ };

typedef struct hl_cuda_batch_part {
    int64_t n_axis, I, n; /* rows there are, elements of a row, rows that are taken */
    int64_t row_bytes;    /* of rows that are taken as they are; 0: they are converted */
    int32_t src_dtype, index_dtype, out_dtype;
    int32_t node_step; /* from the launch's node to this part's */
} hl_cuda_batch_part;

typedef struct hl_cuda_batch {
    hl_cuda_batch_part part[HL_CUDA_BATCH_PARTS];
} hl_cuda_batch;

/* Part u's operands from HL_CUDA_BATCH_ARGS * u on. */
typedef struct hl_cuda_batch_operands {
    void *p[HL_CUDA_BATCH_PARTS * HL_CUDA_BATCH_ARGS];
} hl_cuda_batch_operands;

#endif
