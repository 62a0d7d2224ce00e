/* The probe: the first kernel a device runs when it is opened. It writes a pattern that the host
 * compares, so that a GPU, driver and build that do not work together are found before anything
 * depends on them.
 *
 * Launch: at least n threads in all. */
#include "kernels/cuda/probe.h"

HL_CUDA_ENTRY(probe, HL_CUDA_PROBE_THREADS, p)
{
    uint32_t i = (uint32_t)(hl_block_x() * hl_threads() + hl_thread());
    if (i < p.n) p.at.dst[i] = hl_cuda_probe_value(i, p.seed);
}
