/* Resampling along an axis by a banded matrix; a thread has an element of the result. What a start
 * leads to outside of x counts as 0.
 *
 * Launch: any grid, any threads. */
#include "kernels/cuda/resample.h"

#include "kernels/cuda/any.h"
#include "kernels/cuda/layout.h"

template <class T> HL_DEVICE void resample(const hl_cuda_resample_params &p)
{
    const T *x = (const T *)p.at.x;
    int64_t n_results = p.O * p.m * p.I;
    bool is_short = hl_is_short(n_results);
    HL_FOR_GRID(i, n_results)
    {
        int64_t inside, j, o = hl_divide(hl_divide(i, p.I, is_short, &inside), p.m, is_short, &j);
        int64_t start = p.at.start[j];
        float sum = 0;
        for (int64_t t = 0; t < p.taps; t++)
            if (start >= -t && start < p.n - t)
                sum = fmaf(p.at.weight[j * p.taps + t],
                           hl_read(x, (o * p.n + start + t) * p.I + inside), sum);
        hl_write((T *)p.at.y, i, sum);
    }
}

#define KERNEL(T, suffix)                                                                          \
    HL_CUDA_ENTRY_OF(resample, suffix, HL_CUDA_ELEMENT_THREADS, p)                                 \
    {                                                                                              \
        resample<T>(p);                                                                            \
    }
KERNEL(float, f32)
KERNEL(hl_bf16, bf16)
KERNEL(hl_f16, f16)
