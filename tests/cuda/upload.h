/* What a plan does for a kernel's state besides: the copy in device memory of what it uploads. */
#ifndef HL_TESTS_CUDA_UPLOAD_H
#define HL_TESTS_CUDA_UPLOAD_H

#include "backend/backend.h"

static inline hl_status upload_state(hl_device *device, hl_kernel_state *state)
{
    void *copy;
    if (!state->upload_bytes) return HL_OK;
    HL_TRY(device->ops->memory_alloc(device, state->upload_bytes, &copy));
    state->uploaded = copy;
    HL_TRY(device->ops->copy(device, copy, state->upload, state->upload_bytes,
                             HL_COPY_HOST_TO_DEVICE, NULL));
    return device->ops->synchronize(device, NULL);
}

/* The state and its copy. */
static inline void release_state(hl_device *device, hl_kernel_state *state)
{
    if (state->uploaded) device->ops->memory_free(device, (void *)state->uploaded);
    state->kernel->release(state);
}

#endif
