/* A weight's gradient as cuDNN leaves it, brought into the weight's order and float32. A thread has
 * an element of the result; weights are small, so reads find their lines in the cache.
 *
 * Launch: any grid, any threads. */
#include "kernels/cuda/conv_dnn.h"

#include "kernels/cuda/layout.h"

template <class T> HL_DEVICE void widen(const hl_cuda_conv_widen_params &p)
{
    int64_t n_results = p.O * p.M * p.N;
    bool is_short = hl_is_short(n_results);
    HL_FOR_GRID(i, n_results)
    {
        int64_t m, n, o = hl_divide(hl_divide(i, p.M, is_short, &m), p.N, is_short, &n);
        p.at.dst[i] = hl_read((const T *)p.at.src, (o * p.M + m) * p.N + n);
    }
}

#define KERNEL(T, suffix)                                                                          \
    HL_CUDA_ENTRY_OF(conv_widen, suffix, HL_CUDA_ELEMENT_THREADS, p)                               \
    {                                                                                              \
        widen<T>(p);                                                                               \
    }
KERNEL(hl_bf16, bf16)
KERNEL(hl_f16, f16)
