/* Dropout masks and uniform numbers: 16 bits an element, bit for bit those of base/rng.h. Rows are
 * samples; the step and the first sample come from the control block. A thread makes the 8 elements
 * of one counter.
 *
 * Launch: any grid, any threads. */
#include "kernels/cuda/random.h"

#include "kernels/cuda/layout.h"
#include "kernels/cuda/philox.h"

enum { PER_COUNTER = HL_CUDA_COUNTER_ELEMENTS };

/* fn(bits) of every element of y (n_samples, per_sample). */
template <class T, class F>
HL_DEVICE void fill(T *y, const hl_control *control, const hl_cuda_draws &draws, F fn)
{
    int64_t n_samples = draws.n_samples, per_sample = draws.per_sample;
    int64_t n_blocks = (per_sample + PER_COUNTER - 1) / PER_COUNTER;
    uint32_t step = (uint32_t)control->attempted;
    bool is_short = hl_is_short(n_samples * n_blocks);
    HL_FOR_GRID(i, n_samples * n_blocks)
    {
        int64_t block, row = hl_divide(i, n_blocks, is_short, &block);
        hl_word4 words = hl_philox_block(draws.key[0], draws.key[1], step,
                                         (uint64_t)(control->micro_row + row), (uint64_t)block);
        int64_t first = PER_COUNTER * block, left = per_sample - first;
        T *to = y + row * per_sample + first;
        int64_t n = left < PER_COUNTER ? left : (int64_t)PER_COUNTER;
        HL_UNROLL
        for (int j = 0; j < PER_COUNTER; j++)
            if (j < n) hl_write(to, j, fn(hl_philox_bits16(words, j)));
    }
}

#define KERNELS(T, suffix)                                                                         \
    HL_CUDA_ENTRY_OF(dropout_mask, suffix, HL_CUDA_ELEMENT_THREADS, p)                             \
    {                                                                                              \
        uint32_t threshold = p.threshold;                                                          \
        float scale = p.scale;                                                                     \
        fill((T *)p.at.y, p.at.control, p.draws,                                                   \
             [=](uint32_t bits) { return bits < threshold ? 0.0f : scale; });                      \
    }                                                                                              \
    HL_CUDA_ENTRY_OF(uniform, suffix, HL_CUDA_ELEMENT_THREADS, p)                                  \
    {                                                                                              \
        fill((T *)p.at.y, p.at.control, p.draws,                                                   \
             [=](uint32_t bits) { return ((float)bits + 0.5f) * (1.0f / 65536.0f); });             \
    }
HL_FLOAT_TYPES(KERNELS)
