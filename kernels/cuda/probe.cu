/* The probe: the first kernel a device runs when it is opened. It writes a pattern that the host
 * compares, so that a GPU, driver and build that do not work together are found before anything
 * depends on them. open.c has the same formula. */
#include <stdint.h>

extern "C" __global__ void hl_cuda_probe(uint32_t *dst, uint32_t n, uint32_t seed)
{
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) dst[i] = (i ^ seed) * 2654435761u;
}
