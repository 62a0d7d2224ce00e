/* Inside of the products by cuBLASLt: what matmul_lt.c and matmul_tune.c share. */
#ifndef HL_KERNELS_CUDA_MATMUL_LT_H
#define HL_KERNELS_CUDA_MATMUL_LT_H

#include "base/alloc.h"
#include "kernels/cuda/lt_heuristics.h"
#include "kernels/cuda/matmul.h"

typedef struct hl_lt_state {
    hl_device *device;
    const hl_cublaslt *lt;
    hl_lt_product product;
    hl_lt_descs descs;
    hl_lt_algos algos;
    int n_in, chosen;
    bool benchmark;
    float us; /* of a launch, as measured by this state; 0: it was not */
} hl_lt_state;

/* Queues the product by algorithm `which`. */
hl_status hl_lt_launch(const hl_lt_state *state, int which, void *const *args,
                       const hl_launch *launch, hl_stream *stream);
/* hl_kernel's tune. */
hl_status hl_lt_tune(const hl_kernel_state *state, void *const *args, const hl_launch *launch,
                     hl_stream *stream);

#endif
