/* Convolutions of groups with few channels, and the end of every weight gradient.
 *
 * A thread has an element of the result and visits what its window reads; neighbours have
 * neighbouring channels. Of a weight's gradient it has an element of a part, and visits the pixels
 * of a share. The order of sums is fixed by the shape.
 *
 * Launch: any grid, any threads. */
#include "kernels/cuda/any.h"
#include "kernels/cuda/matmul.h"

template <class T> HL_DEVICE void convolve(const hl_cuda_conv_grouped_params &p)
{
    const hl_cuda_windows &windows = p.windows;
    int64_t channels = p.groups * p.of.N, n = p.of.M * channels;
    bool is_short = hl_is_short(n);
    HL_FOR_GRID(i, n)
    {
        int64_t channel, row = hl_divide(i, channels, is_short, &channel), rest;
        const T *x = (const T *)p.at.x + hl_divide(channel, p.of.N, is_short, &rest) * p.in;
        const T *w = (const T *)p.at.w + channel;
        hl_windows_row from;
        uint32_t tap[HL_CUDA_WINDOWS_DIMS];
        float sum = 0;
        from.begin(windows, row);
        for (tap[0] = 0; tap[0] < windows.tap[0][1]; tap[0]++)
            for (tap[1] = 0; tap[1] < windows.tap[1][1]; tap[1]++)
                for (tap[2] = 0; tap[2] < windows.tap[2][1]; tap[2]++) {
                    int64_t at = from.find(windows, tap);
                    for (int64_t k = 0; k < p.in; k++, w += channels)
                        if (at >= 0) sum = fmaf(hl_read(x, at + k), hl_read(w, 0), sum);
                }
        if (p.at.bias) sum += (float)hl_read_any(p.at.bias, p.of.bias_dtype, channel);
        hl_write_float(p.at.c, p.of.c_dtype, p.first + hl_layout_offset(p.rows, row) + channel,
                       sum);
    }
}

template <class T> HL_DEVICE void convolve_pixels(const hl_cuda_conv_grouped_weight_grad_params &p)
{
    const hl_cuda_windows &windows = p.windows;
    int64_t channels = p.groups * p.of.M, n = p.shares * p.of.N * channels;
    bool is_short = hl_is_short(n);
    HL_FOR_GRID(i, n)
    {
        int64_t channel, run, rest, k;
        int64_t share =
            hl_divide(hl_divide(i, channels, is_short, &channel), p.of.N, is_short, &run);
        int64_t first = share * p.of.K, end = first + p.of.K;
        const T *x = (const T *)p.at.x + hl_divide(channel, p.of.M, is_short, &rest) * p.in;
        const T *y = (const T *)p.at.y + channel;
        hl_windows_row from;
        uint32_t tap[HL_CUDA_WINDOWS_DIMS];
        float sum = 0;
        hl_windows_tap(windows, (uint32_t)hl_divide(run, p.in, is_short, &k), tap);
        if (end > windows.n_pixels) end = windows.n_pixels;
        from.begin(windows, first);
        for (int64_t row = first; row < end; row++, from.next(windows)) {
            int64_t at = from.find(windows, tap);
            if (at >= 0) sum = fmaf(hl_read(y, row * p.of.a_k), hl_read(x, at + k), sum);
        }
        p.at.parts[i] = sum;
    }
}

#define KERNELS(T, suffix)                                                                         \
    HL_CUDA_ENTRY_OF(conv_grouped, suffix, HL_CUDA_ELEMENT_THREADS, p)                             \
    {                                                                                              \
        convolve<T>(p);                                                                            \
    }                                                                                              \
    HL_CUDA_ENTRY_OF(conv_grouped_weight_grad, suffix, HL_CUDA_ELEMENT_THREADS, p)                 \
    {                                                                                              \
        convolve_pixels<T>(p);                                                                     \
    }
HL_FLOAT_TYPES(KERNELS)

/* In the order of the weight. */
HL_CUDA_ENTRY(conv_merge, HL_CUDA_ELEMENT_THREADS, p)
{
    HL_FOR_GRID(i, p.n)
    {
        const float *part = p.at.parts + hl_layout_offset(p.weight, i);
        float sum = part[0];
        for (int64_t s = 1; s < p.shares; s++) sum += part[s * p.n];
        hl_write_float(p.at.w, p.dtype, i, sum);
    }
}
