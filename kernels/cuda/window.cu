/* Sliding windows: side by side and back, and their largest elements. Channels stand last.
 *
 * A thread has an element of the result. What adds up gradients is written from the side of the
 * input: an element of x visits the windows that read it, so that nothing is added by two threads
 * and the order of sums is the shape's. The gradient of max pooling searches each of these windows
 * again for its largest element.
 *
 * Launch: any grid, any threads. */
#include "kernels/cuda/window.h"

#include "kernels/cuda/any.h"
#include "kernels/cuda/layout.h"

enum { DIMS = HL_CUDA_WINDOW_DIMS };

/* Coordinates of a place in row-major order; returns what is left of it. */
HL_DEVICE int64_t locate(const hl_cuda_window &w, int64_t place, const int64_t (&dims)[DIMS],
                         int64_t (&at)[DIMS])
{
    HL_UNROLL
    for (int d = DIMS - 1; d >= 0; d--) place = hl_divide(place, dims[d], w.is_short, &at[d]);
    return place;
}

/* The element of x's channel that tap k of output o reads; -1: padding. */
HL_DEVICE int64_t find_input(const hl_cuda_window &w, const int64_t (&o)[DIMS],
                             const int64_t (&k)[DIMS])
{
    int64_t place = 0;
    HL_UNROLL
    for (int d = 0; d < DIMS; d++) {
        int64_t at = o[d] * w.stride[d] - w.before[d] + k[d] * w.dilation[d];
        if (at < 0 || at >= w.in[d]) return -1;
        place = place * w.in[d] + at;
    }
    return place;
}

/* The output that reads element `at` by tap k, and its coordinates; -1: none does. */
HL_DEVICE int64_t find_output(const hl_cuda_window &w, const int64_t (&at)[DIMS],
                              const int64_t (&k)[DIMS], int64_t (&o)[DIMS])
{
    int64_t place = 0;
    HL_UNROLL
    for (int d = 0; d < DIMS; d++) {
        int64_t from = at[d] + w.before[d] - k[d] * w.dilation[d], rest;
        if (from < 0) return -1;
        o[d] = hl_divide(from, w.stride[d], w.is_short, &rest);
        if (rest != 0 || o[d] >= w.out[d]) return -1;
        place = place * w.out[d] + o[d];
    }
    return place;
}

/* Tap by tap in row-major order. */
HL_DEVICE bool next_tap(const hl_cuda_window &w, int64_t (&k)[DIMS])
{
    for (int d = DIMS - 1; d >= 0; d--) {
        if (++k[d] < w.kernel[d]) return true;
        k[d] = 0;
    }
    return false;
}

/* ---- side by side, and back ---- */

template <class W> HL_DEVICE void unfold(const hl_cuda_window &w, const W *x, W *windows)
{
    HL_FOR_GRID(i, w.N * w.n_out * w.n_taps * w.C)
    {
        int64_t c, o[DIMS], k[DIMS], place = hl_divide(i, w.C, w.is_short, &c);
        int64_t image = locate(w, locate(w, place, w.kernel, k), w.out, o);
        int64_t from = find_input(w, o, k);
        if (from < 0)
            windows[i] = W{};
        else
            windows[i] = *hl_vector(x + (image * w.n_in + from) * w.C + c);
    }
}

template <class T> HL_DEVICE void fold(const hl_cuda_window &w, const T *windows, T *x)
{
    HL_FOR_GRID(i, w.N * w.n_in * w.C)
    {
        int64_t c, at[DIMS], o[DIMS], k[DIMS] = {}, tap = 0;
        int64_t image = locate(w, hl_divide(i, w.C, w.is_short, &c), w.in, at);
        float sum = 0;
        do {
            int64_t from = find_output(w, at, k, o);
            if (from >= 0)
                sum += hl_read(windows, ((image * w.n_out + from) * w.n_taps + tap) * w.C + c);
            tap++;
        } while (next_tap(w, k));
        hl_write(x, i, sum);
    }
}

/* ---- the largest ---- */

/* A NaN is the largest, and of equal numbers the first. */
HL_DEVICE bool is_larger(float a, float largest)
{
    return a > largest || (a != a && largest == largest);
}

/* Where the largest of output o's window is in its channel, which begins at x; every window has an
 * element. */
template <class T>
HL_DEVICE int64_t search(const hl_cuda_window &w, const T *x, const int64_t (&o)[DIMS])
{
    int64_t k[DIMS] = {}, best = -1;
    float largest = 0;
    do {
        int64_t place = find_input(w, o, k);
        if (place < 0) continue;
        float value = hl_read(x, place * w.C);
        if (best < 0 || is_larger(value, largest)) best = place, largest = value;
    } while (next_tap(w, k));
    return best;
}

/* Of element i of a result: its image and channel in x, and its output. */
template <class T>
HL_DEVICE const T *find_channel(const hl_cuda_window &w, const T *x, int64_t i, int64_t (&o)[DIMS])
{
    int64_t c, image = locate(w, hl_divide(i, w.C, w.is_short, &c), w.out, o);
    return x + image * w.n_in * w.C + c;
}

template <class T>
HL_DEVICE void add_gradients(const hl_cuda_window &w, const T *dy, const T *x, T *dx)
{
    HL_FOR_GRID(i, w.N * w.n_in * w.C)
    {
        int64_t c, at[DIMS], o[DIMS], k[DIMS] = {};
        int64_t place = hl_divide(i, w.C, w.is_short, &c);
        int64_t image = locate(w, place, w.in, at), own = place - image * w.n_in;
        const T *channel = x + image * w.n_in * w.C + c;
        float sum = 0;
        do {
            int64_t from = find_output(w, at, k, o);
            if (from >= 0 && search(w, channel, o) == own)
                sum += hl_read(dy, (image * w.n_out + from) * w.C + c);
        } while (next_tap(w, k));
        hl_write(dx, i, sum);
    }
}

/* ---- kernels ---- */

#define COPIES(W, bytes)                                                                           \
    HL_CUDA_ENTRY_OF(window_unfold, bytes, HL_CUDA_ELEMENT_THREADS, p)                             \
    {                                                                                              \
        unfold(p.window, (const W *)p.at.x, (W *)p.at.windows);                                    \
    }
HL_WORD_TYPES(COPIES)
COPIES(hl_word4, 16)

#define KERNELS(T, suffix)                                                                         \
    HL_CUDA_ENTRY_OF(window_fold, suffix, HL_CUDA_ELEMENT_THREADS, p)                              \
    {                                                                                              \
        fold(p.window, (const T *)p.at.windows, (T *)p.at.x);                                      \
    }                                                                                              \
    HL_CUDA_ENTRY_OF(max_pool, suffix, HL_CUDA_ELEMENT_THREADS, p)                                 \
    {                                                                                              \
        const hl_cuda_window &w = p.window;                                                        \
        int64_t o[DIMS];                                                                           \
        HL_FOR_GRID(i, w.N *w.n_out *w.C)                                                          \
        {                                                                                          \
            const T *x = find_channel(w, (const T *)p.at.x, i, o);                                 \
            ((T *)p.at.y)[i] = x[search(w, x, o) * w.C];                                           \
        }                                                                                          \
    }                                                                                              \
    HL_CUDA_ENTRY_OF(max_pool_index, suffix, HL_CUDA_ELEMENT_THREADS, p)                           \
    {                                                                                              \
        const hl_cuda_window &w = p.window;                                                        \
        int64_t o[DIMS];                                                                           \
        HL_FOR_GRID(i, w.N *w.n_out *w.C)                                                          \
        p.at.index[i] = search(w, find_channel(w, (const T *)p.at.x, i, o), o);                    \
    }                                                                                              \
    HL_CUDA_ENTRY_OF(max_pool_grad, suffix, HL_CUDA_ELEMENT_THREADS, p)                            \
    {                                                                                              \
        add_gradients(p.window, (const T *)p.at.dy, (const T *)p.at.x, (T *)p.at.dx);              \
    }
KERNELS(float, f32)
KERNELS(hl_bf16, bf16)
KERNELS(hl_f16, f16)
