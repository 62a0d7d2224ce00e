/* Dropout masks and uniform numbers: 16 bits an element, bit for bit those of base/rng.h. Rows are
 * samples; the step and the first sample come from the control block. A thread makes the 8 elements
 * of one counter.
 *
 * Launch: any grid, any threads. */
#include "ir/control.h"
#include "kernels/cuda/layout.h"
#include "kernels/cuda/philox.h"

/* fn(bits) of every element of y (n_samples, per_sample). */
template <class T, class F>
HL_DEVICE void fill(T *y, int64_t n_samples, int64_t per_sample, const hl_control *control,
                    uint32_t key0, uint32_t key1, F fn)
{
    int64_t n_blocks = (per_sample + 7) / 8;
    uint32_t step = (uint32_t)control->attempted;
    bool is_short = hl_is_short(n_samples * n_blocks);
    HL_FOR_GRID(i, n_samples * n_blocks)
    {
        int64_t block, row = hl_divide(i, n_blocks, is_short, &block);
        hl_word4 words = hl_philox_block(key0, key1, step, (uint64_t)(control->micro_row + row),
                                         (uint64_t)block);
        T *to = y + row * per_sample + 8 * block;
        int64_t n = per_sample - 8 * block < 8 ? per_sample - 8 * block : 8;
        HL_UNROLL
        for (int j = 0; j < 8; j++)
            if (j < n) hl_write(to, j, fn(hl_philox_bits16(words, j)));
    }
}

#define KERNELS(T, suffix)                                                                         \
    HL_KERNEL(hl_cuda_dropout_mask_##suffix, 256, T *y, int64_t n_samples, int64_t per_sample,     \
              const hl_control *control, uint32_t key0, uint32_t key1, uint32_t threshold,         \
              float scale)                                                                         \
    {                                                                                              \
        fill(y, n_samples, per_sample, control, key0, key1,                                        \
             [=](uint32_t bits) { return bits < threshold ? 0.0f : scale; });                      \
    }                                                                                              \
    HL_KERNEL(hl_cuda_uniform_##suffix, 256, T *y, int64_t n_samples, int64_t per_sample,          \
              const hl_control *control, uint32_t key0, uint32_t key1)                             \
    {                                                                                              \
        fill(y, n_samples, per_sample, control, key0, key1,                                        \
             [=](uint32_t bits) { return ((float)bits + 0.5f) * (1.0f / 65536.0f); });             \
    }
HL_FLOAT_TYPES(KERNELS)
