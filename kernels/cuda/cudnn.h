/* cuDNN as a table of functions, found when the first convolution asks for it, and its descriptors.
 *
 * Like cuBLASLt's table: no header of NVIDIA's, a sentence where the library is absent, a fake
 * library in tests. It is the backend API, C beneath the C++ of cudnn-frontend, which is headers
 * alone: everything is a descriptor of a type, which gets attributes and is finalized.
 *
 * A device has a handle. One of a description (gpus.h) has NVIDIA's text of it in the handle's
 * place: such a device has plans, and runs none.
 * Callers have entered the device: the library uses the current context. */
#ifndef HL_KERNELS_CUDA_CUDNN_H
#define HL_KERNELS_CUDA_CUDNN_H

#include "base/os.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/cudnn_types.h"
#include "kernels/cuda/refusals.h"

typedef struct hl_cudnn_calls {
#define HL_CUDNN_CALL(result, name, params) result(*name) params;
#include "kernels/cuda/cudnn.def"
} hl_cudnn_calls;

typedef struct hl_cudnn {
    hl_os_library library;
    hl_cudnn_calls call;
    cudnnHandle_t handle;                 /* under its lock: a handle is one thread's at a time */
    cudnnBackendDescriptor_t description; /* in its place */
    hl_mutex handle_lock;
    int version;
    char why_not[HL_REASON_BYTES]; /* neither: the sentence */
    /* What the heuristics said of convolutions (dnn_plans.c), under the device's library lock. */
    struct hl_dnn_answer **answers; /* freed with the library */
    int64_t n_answers, cap_answers;
    cudnnBackendDescriptor_t *kept; /* of their plans: destroyed when it stops */
    int64_t n_kept, cap_kept;
    hl_refusals refusals;         /* under the same lock */
    struct hl_dnn_layer **layers; /* recurrent ones (dnn_recurrent.c), under the same lock */
    int64_t n_layers, cap_layers;
    void (*stop_layers)(struct hl_cudnn *dnn); /* set with the first: destroys their descriptors */
} hl_cudnn;

/* The device's cuDNN, opened at the first call. HL_ERROR_CONFIG and the reason: none works, which
 * is found out once. */
hl_status hl_cudnn_get(hl_device *device, const hl_cudnn **out_dnn, hl_reason *out_why_not);
/* Before any such call: opens it for the GPU of this description (CUDNN_BACKEND_DEVICEPROP as JSON)
 * in place of the device's own. HL_ERROR_CONFIG and the reason: it cannot plan for that one here.
 * A device of a description needs no such call. */
hl_status hl_cudnn_describe(hl_device *device, const char *description, hl_reason *out_why_not);
/* Gives back what it holds on the GPU, with the device's context current (not in a forked child);
 * then the rest. NULL is allowed. */
void hl_cudnn_stop(hl_cudnn *dnn);
void hl_cudnn_destroy(HL_TAKE hl_cudnn *dnn);
/* "cuDNN: <what> must succeed, got CUDNN_STATUS_..." */
hl_status hl_cudnn_check(const hl_cudnn *dnn, cudnnStatus_t status, const char *what);

/* ---- descriptors ----------------------------------------------------------------------------- */

/* Descriptors that are made together and destroyed together; the first error is kept, so that a
 * list of attributes reads as one. */
enum { HL_CUDNN_DESCS = 128 };
typedef struct hl_cudnn_descs {
    const hl_cudnn *dnn;
    cudnnStatus_t status; /* of the first call that failed */
    const char *what;     /* it was to do */
    int n;
    cudnnBackendDescriptor_t made[HL_CUDNN_DESCS];
} hl_cudnn_descs;

/* What a call said that was to do this. */
void hl_cudnn_note(hl_cudnn_descs *descs, cudnnStatus_t status, const char *what);
/* NULL after an error. */
cudnnBackendDescriptor_t hl_cudnn_desc_make(hl_cudnn_descs *descs,
                                            cudnnBackendDescriptorType_t type);
void hl_cudnn_desc_set(hl_cudnn_descs *descs, cudnnBackendDescriptor_t desc,
                       cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                       int64_t n, const void *values);
/* An attribute that is a descriptor. */
void hl_cudnn_desc_link(hl_cudnn_descs *descs, cudnnBackendDescriptor_t desc,
                        cudnnBackendAttributeName_t name, cudnnBackendDescriptor_t value);
/* How many values there are; at most so many are written. */
int64_t hl_cudnn_desc_get(hl_cudnn_descs *descs, cudnnBackendDescriptor_t desc,
                          cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                          int64_t n_asked, void *out_values);
void hl_cudnn_desc_finalize(hl_cudnn_descs *descs, cudnnBackendDescriptor_t desc, const char *what);
/* Takes it off the list: whoever keeps it destroys it. */
void hl_cudnn_desc_keep(hl_cudnn_descs *descs, cudnnBackendDescriptor_t desc);
/* Destroys those made since there were so many. */
void hl_cudnn_descs_drop(hl_cudnn_descs *descs, int n);

#endif
