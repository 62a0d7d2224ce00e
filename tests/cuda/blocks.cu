/* Kernels whose block is several (HL_PRIM_BLOCKS), some of them wrong; launched with one block of
 * 256 threads, in and out (256): test_emulation.cpp says what they must give. */
#define HL_PRIM_BLOCKS        4
#define HL_PRIM_BLOCK_THREADS 64
#include "kernels/cuda/prim.h"

#define KERNEL(name) HL_KERNEL(name, 256, float *out, const float *in)

/* Each block sums neighbours so often as its number says, in memory of its own; then out, of which
 * a block writes a part, is turned round as a whole. */
KERNEL(prim_blocks)
{
    HL_SHARED_DYNAMIC(float, s);
    HL_SHARED(float, other, 64);
    int n = hl_threads(), t = hl_thread(), at = hl_block_x() * n + t;
    float v = in[at];
    for (int i = 0; i < hl_block_x(); i++) {
        s[t] = v;
        other[t] = 1;
        hl_barrier();
        v += s[(t + 1) % n] * other[(t + 5) % n];
        hl_barrier();
    }
    out[at] = v;
    hl_barrier_all();
    v = out[hl_blocks_x() * n - 1 - at];
    hl_barrier_all();
    out[at] = v;
}
KERNEL(wrong_block_without_barrier)
{
    HL_SHARED(float, s, 64);
    s[hl_thread()] = in[hl_thread()];
    if (hl_block_x() != 2) hl_barrier();
    out[hl_block_x() * 64 + hl_thread()] = s[(hl_thread() + 40) % 64];
    hl_barrier_all();
}
KERNEL(wrong_block_alone)
{
    if (hl_block_x() == 1) hl_barrier_all();
    out[hl_block_x() * 64 + hl_thread()] = in[hl_thread()];
}
KERNEL(wrong_half_block)
{
    if (hl_thread() < 32) hl_barrier();
    out[hl_block_x() * 64 + hl_thread()] = in[hl_thread()];
    hl_barrier_all();
}
