/* The emulation of kernels/cuda/probe.cu. */
#include "tests/cuda/fake_driver.h"

static const char *run_probe(void *context, const hl_fake_launch *launch, void *const *params)
{
    (void)context;
    uint32_t *dst = (uint32_t *)(uintptr_t) * (CUdeviceptr *)params[0];
    uint32_t n = *(uint32_t *)params[1], seed = *(uint32_t *)params[2];
    uint64_t n_threads = (uint64_t)launch->grid[0] * launch->block[0];
    for (uint64_t i = 0; i < n_threads && i < n; i++) dst[i] = ((uint32_t)i ^ seed) * 2654435761u;
    return NULL;
}

void hl_fake_probe_register(void)
{
    static const size_t bytes[] = {sizeof(CUdeviceptr), sizeof(uint32_t), sizeof(uint32_t)};
    hl_fake_kernel("hl_cuda_probe", run_probe, NULL, 3, bytes);
}
