/* Inside of the products by cuBLASLt: what matmul_lt.c and matmul_tune.c share. */
#ifndef HL_KERNELS_CUDA_MATMUL_LT_H
#define HL_KERNELS_CUDA_MATMUL_LT_H

#include "base/alloc.h"
#include "kernels/cuda/lt_heuristics.h"
#include "kernels/cuda/matmul.h"

enum { HL_LT_OUTS = 2 };
/* A product, ready for each of its algorithms. */
typedef struct hl_lt_work {
    hl_lt_product product;
    hl_lt_descs descs;
    hl_lt_algos algos;
} hl_lt_work;
typedef struct hl_lt_state {
    hl_device *device;
    const hl_cublaslt *lt;
    hl_lt_work work;
    int n_in, n_out, chosen;
    int64_t out_bytes[HL_LT_OUTS];
    bool benchmark, deterministic;
    float us; /* of a launch, as measured by this state; 0: it was not */
} hl_lt_state;

/* Where a product is queued. */
typedef struct hl_lt_place {
    const hl_lt_state *state;
    void *const *args;
    const hl_launch *launch;
    hl_stream *stream;
} hl_lt_place;
/* Queues alpha times the product by algorithm `which`. out_refused: the library did not take it. */
hl_status hl_lt_launch(const hl_lt_place *place, const hl_lt_work *work, int which, float alpha,
                       bool *out_refused);
/* hl_kernel's tune. */
hl_status hl_lt_tune(const hl_kernel_state *state, void *const *args, const hl_launch *launch,
                     hl_stream *stream);

#endif
