/* Guarded updates as one launch takes them: what becomes of each state, by value, beside the
 * addresses of all operands. */
#ifndef HL_CUDA_UPDATE_H
#define HL_CUDA_UPDATE_H

#include <stdint.h>

enum { HL_CUDA_UPDATES = 32, HL_CUDA_UPDATE_ARGS = 4 /* state, value, control, state again */ };

enum { HL_CUDA_ASSIGN, HL_CUDA_ACCUMULATE, HL_CUDA_EMA };

typedef struct hl_cuda_update {
    int64_t n;
    double decay;
    int32_t kind, ramp, state_dtype, value_dtype;
} hl_cuda_update;

typedef struct hl_cuda_updates {
    hl_cuda_update of[HL_CUDA_UPDATES];
} hl_cuda_updates;

/* Update u's operands from HL_CUDA_UPDATE_ARGS * u on. */
typedef struct hl_cuda_update_operands {
    void *p[HL_CUDA_UPDATES * HL_CUDA_UPDATE_ARGS];
} hl_cuda_update_operands;

#endif
