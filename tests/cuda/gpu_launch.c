/* Launches for kernel tests, through the backend as plans use it. */
#include "tests/cuda/gpu_launch.h"

#include <string.h>

#include "kernels/cuda/cuda.h"

static hl_device *device;
static char error[HL_STATUS_MESSAGE_BYTES];

static int answer(hl_status status)
{
    if (status == HL_OK) return 0;
    hl_text_copy(error, sizeof error, hl_status_message());
    return -1;
}

int hl_gpu_open(void)
{
    const hl_backend *backend = hl_cuda_backend();
    return answer(backend->device_open(backend, 0, NULL, &device));
}

void hl_gpu_close(void)
{
    device->ops->destroy(device);
    device = NULL;
}

void *hl_gpu_alloc(size_t bytes)
{
    void *memory;
    return device->ops->host_alloc(device, bytes, &memory) == HL_OK ? memory : NULL;
}

void hl_gpu_free(void *memory)
{
    device->ops->host_free(device, memory);
}

int hl_gpu_launch(const char *kernel, const unsigned grid[3], unsigned threads, size_t shared_bytes,
                  void **args)
{
    CUfunction function;
    hl_cuda_shape shape = {{grid[0], grid[1], grid[2]}, {threads, 1, 1}, (unsigned)shared_bytes};
    hl_status status = hl_cuda_kernel_get(device, kernel, shared_bytes, &function);
    if (status == HL_OK) status = hl_cuda_launch(device, function, &shape, NULL, args);
    if (status == HL_OK) status = device->ops->synchronize(device, NULL);
    return answer(status);
}

const char *hl_gpu_error(void)
{
    return error;
}

const char *hl_gpu_name(void)
{
    return device->name;
}

int hl_gpu_arch(void)
{
    return hl_cuda_device_facts(device)->arch;
}
