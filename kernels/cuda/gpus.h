/* GPUs that are described: plans can be predicted for them where there is none, nor a driver.
 *
 * A device of a description is the CUDA device with another driver in its table (driver.h): one of
 * ours, which sees every described GPU and answers from its description what queries, preparation
 * and sessions ask: properties, memory, handles of code, streams and events. All that would do
 * work there is refused as CUDA_ERROR_NOT_SUPPORTED, by the table itself: a call that this driver
 * does not name is one that it refuses. So passes and kernels know nothing of descriptions, and a
 * prediction is what the same code makes on a real GPU of these properties.
 *
 * What chooses on the GPU itself is told here that there is none: hl_cuda_device_gpu. Rejected: a
 * backend of its own (a second list of kernels to keep equal), numbers in C (cuDNN reads this text
 * to plan without a GPU). */
#ifndef HL_KERNELS_CUDA_GPUS_H
#define HL_KERNELS_CUDA_GPUS_H

#include "backend/backend.h"
#include "kernels/cuda/driver.h"

typedef struct hl_cuda_gpu {
    const char *name; /* "T4" */
    const char *text; /* its properties, in JSON */
} hl_cuda_gpu;

/* NULL-named behind the last; their order is that of the driver's ordinals. */
extern const hl_cuda_gpu hl_cuda_gpus[];

/* The ordinal of a name, in whichever case. HL_ERROR_CONFIG lists the names. */
hl_status hl_cuda_gpu_find(const char *name, int *out_index);
/* A whole number among the properties; -1: there is none of this key. */
int64_t hl_cuda_gpu_number(const hl_cuda_gpu *gpu, const char *key);
/* The driver in whose machine all of them are. Never fails. */
hl_status hl_cuda_gpus_driver_open(const hl_library_search *search, hl_cuda_driver *out_driver,
                                   bool *out_absent);

/* The description that a device was opened by; NULL: it is a GPU. A library that needs one says no
 * by it, and one that plans without gets its text. */
const hl_cuda_gpu *hl_cuda_device_gpu(const hl_device *device);

#endif
