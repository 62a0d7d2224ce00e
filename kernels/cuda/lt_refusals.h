/* Products that the library has and that it does not get: what tuning found out about them.
 *
 * Heuristics answer before anything runs. Whether a product's algorithms run, give the same bits
 * twice, keep a NaN and gain anything shows in tuning; a product that fails there is refused by
 * queries from then on, on this device. What depends on library and GPU alone is in the autotune
 * cache, too, so that the next process plans without it from the start. */
#ifndef HL_KERNELS_CUDA_LT_REFUSALS_H
#define HL_KERNELS_CUDA_LT_REFUSALS_H

#include "kernels/cuda/lt_product.h"

typedef enum hl_lt_refusal {
    HL_LT_FINE,       /* none */
    HL_LT_FAILS,      /* no algorithm runs; found anew in each process */
    HL_LT_VARIES,     /* none gives the same bits twice: for plans that are deterministic */
    HL_LT_DROPS_NAN,  /* its activation makes a number of NaN: so do all that end in that one */
    HL_LT_COSTS_MORE, /* than without its programs: for plans that are autotuned */
    HL_LT_REFUSALS
} hl_lt_refusal;

/* The key of a product in the autotune cache (HL_CUDA_KEY_BYTES). */
void hl_lt_key_write(const hl_cublaslt *lt, const char *product, char *out_key);

/* Returns HL_ERROR_CONFIG, with a message, where the product is refused from now on; else what went
 * wrong. */
hl_status hl_lt_refuse(hl_device *device, const hl_lt_product *product, hl_lt_refusal refusal);
/* Takes over what the autotune cache says of the product. */
hl_status hl_lt_refusals_recall(hl_device *device, const hl_lt_product *product);
/* HL_ERROR_CONFIG and the reason: it is refused in such a plan. */
hl_status hl_lt_refusals_check(hl_device *device, const hl_lt_product *product, bool deterministic,
                               bool benchmark, hl_reason *out_why_not);

#endif
