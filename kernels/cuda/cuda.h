/* The CUDA backend: NVIDIA GPUs from sm_75 on, through the driver alone.
 *
 * Host code is plain C and is in every build; what nvcc makes of kernels/cuda is embedded as
 * fatbins and absent from a CPU-only build. A build is the backend plus where it gets its driver
 * and its kernels from, so that tests open the same devices over an emulated driver.
 *
 * Kernel families (softmax.cu with softmax.c) use what stands below: names to kernels, and one
 * launch. A family's list goes into HL_CUDA_FAMILIES. */
#ifndef HL_KERNELS_CUDA_CUDA_H
#define HL_KERNELS_CUDA_CUDA_H

#include "backend/backend.h"
#include "kernels/cuda/driver.h"

typedef struct hl_cuda_build {
    hl_backend base;
    /* hl_cuda_driver_open, or a test's */
    hl_status (*driver_open)(const hl_library_search *search, hl_cuda_driver *out_driver,
                             bool *out_absent);
    /* Fatbins, one after the other; none: a CPU-only build. */
    const unsigned char *fatbins, *fatbins_end;
    int toolkit; /* CUDA version of the nvcc that made them: 13000; 0: none */
} hl_cuda_build;

/* What this library was built with (build.c). */
const hl_cuda_build *hl_cuda_build_get(void);
static inline const hl_backend *hl_cuda_backend(void)
{
    return &hl_cuda_build_get()->base;
}

/* hl_backend's functions for any hl_cuda_build. */
hl_status hl_cuda_device_open(const hl_backend *build, int index, const hl_device_options *options,
                              HL_GIVE hl_device **out_device);
void hl_cuda_survey(const hl_backend *build, const hl_device_options *options, bool with_open,
                    hl_survey *out_survey);

/* Lists of the families, hl_cuda_<family>_kernels, NULL-terminated; of two that have an op the
 * first is asked first. */
/* clang-format off: one a line */
#define HL_CUDA_FAMILIES(X)                                                                        \
    X(copy)                                                                                        \
    X(index)                                                                                       \
    X(random)                                                                                      \
    X(pointwise)                                                                                   \
    X(softmax)                                                                                     \
    X(loss)                                                                                        \
    X(control)                                                                                     \
    X(optim)                                                                                       \
    X(norm)                                                                                        \
    X(reduce)                                                                                      \
    X(matmul)                                                                                      \
    X(attention)                                                                                   \
    X(recurrent_dnn)                                                                               \
    X(conv_dnn)                                                                                    \
    X(conv)                                                                                        \
    X(window)                                                                                      \
    X(resample)                                                                                    \
    X(ctc)                                                                                         \
    X(recurrence)                                                                                  \
    X(linalg)                                                                                      \
    X(stat)                                                                                        \
    X(sort)                                                                                        \
    X(deformable)
/* clang-format on */
#define HL_CUDA_LIST(family) extern const hl_kernel *const hl_cuda_##family##_kernels[];
HL_CUDA_FAMILIES(HL_CUDA_LIST)
#undef HL_CUDA_LIST

/* ---- for kernels ----------------------------------------------------------------------------- */

/* Ampere: the oldest that multiplies bfloat16. */
enum { HL_CUDA_OLDEST_BF16 = 80 };
typedef struct hl_cuda_facts {
    int arch; /* 90: sm_90 */
    int n_multiprocessors;
    size_t shared_bytes_block; /* dynamic shared memory that one block may ask for */
    double bytes_per_us;       /* of its memory, at the most; 0: the driver does not know */
} hl_cuda_facts;
const hl_cuda_facts *hl_cuda_device_facts(const hl_device *device);
const hl_cuda_driver *hl_cuda_device_driver(const hl_device *device);
/* The driver's handle of a stream; NULL: of the device's own. */
CUstream hl_cuda_stream_handle(const hl_device *device, const hl_stream *stream);

/* A kernel by its extern "C" name, out of any of the fatbins; lives as long as the device. It is
 * loaded now: a first launch within a capture would load it there, which capture forbids.
 * shared_bytes: the most dynamic shared memory that a launch will ask for. */
hl_status hl_cuda_kernel_get(hl_device *device, const char *name, size_t shared_bytes,
                             CUfunction *out_kernel);

typedef struct hl_cuda_shape {
    unsigned grid[3], block[3];
    unsigned shared_bytes;
} hl_cuda_shape;
/* params: a pointer to each, then NULL, by which an emulated driver counts them; they are read
 * during the call. */
hl_status hl_cuda_launch(hl_device *device, CUfunction kernel, const hl_cuda_shape *shape,
                         hl_stream *stream, void **params);

/* Makes the device's context the thread's, and puts back what was there: whoever shares the process
 * (torch, on another GPU perhaps) finds its own. Enter refuses a lost device and a forked child;
 * only who has entered leaves. */
hl_status hl_cuda_enter(hl_device *device);
void hl_cuda_leave(hl_device *device);
/* A driver's answer as a status: "cuda: <what> must succeed, got ..."; records a lost device. */
hl_status hl_cuda_check(hl_device *device, CUresult error, const char *what);

#endif
