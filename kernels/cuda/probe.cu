/* The probe: the first kernel a device runs when it is opened. It writes a pattern that the host
 * compares, so that a GPU, driver and build that do not work together are found before anything
 * depends on them. open.c has the same formula. */
#include "kernels/cuda/prim.h"

HL_KERNEL(hl_cuda_probe, 1024, uint32_t *dst, uint32_t n, uint32_t seed)
{
    HL_FOR_GRID(i, (int64_t)n) dst[i] = ((uint32_t)i ^ seed) * 2654435761u;
}
