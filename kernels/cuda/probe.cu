/* The probe: the first kernel a device runs when it is opened. It writes a pattern that the host
 * compares, so that a GPU, driver and build that do not work together are found before anything
 * depends on them. open.c has the same formula.
 *
 * Launch: at least n threads in all. */
#include "kernels/cuda/prim.h"

HL_KERNEL(hl_cuda_probe, 128, uint32_t *dst, uint32_t n, uint32_t seed)
{
    uint32_t i = (uint32_t)(hl_block_x() * hl_threads() + hl_thread());
    if (i < n) dst[i] = (i ^ seed) * 2654435761u;
}
