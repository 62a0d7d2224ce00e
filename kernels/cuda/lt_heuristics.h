/* What cuBLASLt's heuristics say of a product: which algorithms, best first, and the workspace that
 * each wants. */
#ifndef HL_KERNELS_CUDA_LT_HEURISTICS_H
#define HL_KERNELS_CUDA_LT_HEURISTICS_H

#include "kernels/cuda/lt_product.h"

/* The most workspace that an algorithm may want on this device. */
size_t hl_lt_workspace_bytes(const hl_device *device);

enum { HL_LT_ALGOS = 8 };
/* Best first, as the heuristics see it. */
typedef struct hl_lt_algos {
    int n;
    cublasLtMatmulAlgo_t algo[HL_LT_ALGOS];
    size_t bytes[HL_LT_ALGOS]; /* of workspace */
} hl_lt_algos;

/* At least one algorithm, or HL_ERROR_CONFIG and the reason. The library is asked once a device
 * about products of one description; the answer, yes or no, serves all later calls. */
hl_status hl_lt_algos_find(hl_device *device, const hl_lt_product *product, hl_lt_algos *out_algos,
                           hl_reason *out_why_not);

#endif
