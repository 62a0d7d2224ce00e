/* Inside of the CUDA device, for open.c, device.c, compile.c, the libraries' tables and the
 * autotune cache alone. */
#ifndef HL_KERNELS_CUDA_INTERNAL_H
#define HL_KERNELS_CUDA_INTERNAL_H

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/gpus.h"
#include "kernels/cuda/nvrtc.h"

struct hl_stream {
    CUstream handle;
};
struct hl_event {
    CUevent handle;
};
struct hl_capture {
    CUgraphExec handle;
};

typedef struct hl_cuda_block {
    void *ptr;
    size_t bytes;
} hl_cuda_block;

/* Compiles one kernel at a time. */
typedef struct hl_cuda_compiler {
    hl_mutex lock;
    hl_cuda_nvrtc nvrtc;
    bool is_tried, has_warned;
    hl_status_record why_not; /* why there is no NVRTC, once it was looked for */
} hl_cuda_compiler;

typedef struct hl_cuda_device {
    hl_device base;
    hl_cuda_driver driver;
    const hl_cuda_gpu *gpu; /* that it is the description of; NULL: it is a GPU */
    hl_cuda_facts facts;
    CUdevice ordinal;
    CUcontext context;    /* the primary one, shared with whoever else is in the process */
    hl_stream stream;     /* the device's own */
    CUlibrary *libraries; /* the fatbins, then what was compiled; under the compiler's lock */
    int64_t n_libraries, cap_libraries;
    hl_cuda_compiler compiler;
    const hl_kernel *const *list[HL_OP_COUNT]; /* into entries; NULL: no kernel */
    const hl_kernel **entries;
    int64_t fork_count; /* of the process that opened it */
    _Atomic int lost;   /* a CUresult; 0: it works */
    /* Live blocks of memory_alloc, under the lock. */
    hl_mutex lock;
    hl_cuda_block *blocks;
    int64_t n_blocks, cap_blocks;
    int64_t current_bytes, peak_bytes;
    /* Libraries, opened when the first kernel asks; under their own lock. */
    hl_mutex library_lock;
    char *library_roots; /* of hl_device_options, or NULL */
    struct hl_cublaslt *cublaslt;
    struct hl_cudnn *cudnn;
    struct hl_cuda_autotune_entry *autotuned; /* under the same lock */
    int64_t n_autotuned, cap_autotuned;
} hl_cuda_device;

static inline hl_cuda_device *hl_cuda_of(hl_device *device)
{
    return (hl_cuda_device *)device;
}

extern const hl_device_ops hl_cuda_device_ops;

/* Is there a kernel of this name? Under the compiler's lock. */
bool hl_cuda_kernel_exists(hl_device *device, const char *name);

#endif
