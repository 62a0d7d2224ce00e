/* What cuDNN leaves to be done.
 *
 * A weight's gradient, brought into the weight's order and float32. A thread has an element of the
 * result; weights are small, so reads find their lines in the cache. Launch: any grid, any threads.
 *
 * Mean and variance of channels, of their sums and the sums of their squares. The difference of
 * these loses the digits that the square of the mean is larger by, beside what cuDNN's sums have
 * lost: where that is more than four bits' worth, the channel is read again, at distances from the
 * mean. The channels of batch norms, whose means are near 0, hardly ever are.
 * Launch: cooperative groups by by_block (fold.h). */
#include "kernels/cuda/conv_dnn.h"

#include "kernels/cuda/fold.h"
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

/* Elements that a thread has on their way at once. */
enum { BATCH = 8 };

struct moments {
    float mean, var;
};

/* Of column c, by its distances from a number that is near the mean. */
template <class X>
HL_DEVICE moments read_again(const hl_coop_group &coop, const X *x, int64_t c, int64_t R, int64_t C,
                             float middle)
{
    float sum = 0, squares = 0;
    for (int64_t first = coop.rank; first < R; first += BATCH * coop.size) {
        float v[BATCH];
        HL_UNROLL
        for (int i = 0; i < BATCH; i++) {
            int64_t r = first + i * coop.size;
            v[i] = r < R ? hl_read(x, r * C + c) - middle : 0;
        }
        HL_UNROLL
        for (int i = 0; i < BATCH; i++) {
            sum += v[i];
            squares += v[i] * v[i];
        }
    }
    float off = hl_coop_sum(coop, sum) / (float)R;
    float var = hl_coop_sum(coop, squares) / (float)R - off * off;
    return {middle + off, var < 0 ? 0 : var};
}

template <class X> HL_DEVICE void end_moments(const hl_cuda_conv_moments_params &p)
{
    const float least = 1.0f / 16, most = 3.0e38f; /* sums may have overflowed */
    hl_coop_group coop = hl_coop_make(p.by_block);
    for (int64_t c = coop.first; c < p.C; c += coop.step) {
        float mean = p.at.sums[c] / (float)p.R, square = p.at.squares[c] / (float)p.R;
        moments all = {mean, square - mean * mean};
        bool is_zero = mean == 0 && square == 0;
        if (!is_zero && !(all.var > least * square && all.var < most))
            all = read_again(coop, (const X *)p.at.x, c, p.R, p.C, mean);
        if (coop.rank == 0) {
            p.at.mean[c] = all.mean;
            p.at.var[c] = all.var;
        }
    }
}

#define WIDEN(T, suffix)                                                                           \
    HL_CUDA_ENTRY_OF(conv_widen, suffix, HL_CUDA_ELEMENT_THREADS, p)                               \
    {                                                                                              \
        widen<T>(p);                                                                               \
    }
WIDEN(hl_bf16, bf16)
WIDEN(hl_f16, f16)
#define MOMENTS(X, suffix)                                                                         \
    HL_CUDA_ENTRY_OF(conv_moments, suffix, HL_CUDA_COOP_THREADS, p)                                \
    {                                                                                              \
        end_moments<X>(p);                                                                         \
    }
MOMENTS(float, f32)
MOMENTS(hl_bf16, bf16)
MOMENTS(hl_f16, f16)
