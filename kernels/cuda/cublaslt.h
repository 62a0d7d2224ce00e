/* cuBLASLt as a table of functions, found when the first product asks for it: one handle a device.
 *
 * Like the driver's table: no header of NVIDIA's, a sentence where the library is absent, a fake
 * library in tests. It uses the current context, so a caller has entered the device. */
#ifndef HL_KERNELS_CUDA_CUBLASLT_H
#define HL_KERNELS_CUDA_CUBLASLT_H

#include "kernels/cuda/cublaslt_types.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/refusals.h"

typedef struct hl_cublaslt_calls {
#define HL_CUBLASLT_CALL(result, name, params) result(*name) params;
#include "kernels/cuda/cublaslt.def"
} hl_cublaslt_calls;

typedef struct hl_cublaslt {
    hl_os_library library;
    hl_cublaslt_calls call;
    cublasLtHandle_t handle;
    int version;
    char why_not[HL_REASON_BYTES]; /* handle NULL: the sentence */
    /* What the heuristics said of products (lt_heuristics.c), under the device's library lock. */
    struct hl_lt_answer *answers;
    int64_t n_answers, cap_answers, n_replaced;
    hl_refusals refusals; /* under the same lock */
} hl_cublaslt;

/* The device's cuBLASLt, opened at the first call. HL_ERROR_CONFIG and the reason: none works,
 * which is found out once. */
hl_status hl_cublaslt_get(hl_device *device, const hl_cublaslt **out_lt, hl_reason *out_why_not);
/* Gives back what it holds on the GPU, with the device's context current (not in a forked child);
 * then the rest. NULL is allowed. */
void hl_cublaslt_stop(hl_cublaslt *lt);
void hl_cublaslt_destroy(HL_TAKE hl_cublaslt *lt);
/* "cuBLASLt: <what> must succeed, got CUBLAS_STATUS_..." */
hl_status hl_cublaslt_check(const hl_cublaslt *lt, cublasStatus_t status, const char *what);

#endif
