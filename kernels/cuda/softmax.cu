/* Softmax over the last axis, its logarithm, and their gradients, on rows (R,C).
 *
 * A cooperative group holds its row in registers (fold.h), so memory is read once; of the
 * gradients' two rows, up to 16 values each a thread. Rejected: the largest value and the sum in
 * one pass, rescaled where the largest grows: more exponentials, in divergent branches, to save a
 * pass over registers.
 *
 * Launch: any grid; threads a multiple of 32. */
#include "kernels/cuda/row.h"
#include "kernels/cuda/softmax.h"

template <class T, bool is_log, int KEEP>
HL_DEVICE void run_softmax(const T *x, T *y, int64_t R, int64_t C, int by_block)
{
    hl_coop_group coop = hl_coop_make(by_block);
    for (int64_t r = coop.first; r < R; r += coop.step) {
        const T *from = x + r * C;
        T *to = y + r * C;
        auto row = hl_coop_keep<KEEP>(coop, C, [=](int64_t c) { return hl_read(from, c); });
        hl_row_sum all = hl_row_exponentials(row);
        float log_sum = logf(all.sum), scale = 1.0f / all.sum;
        row.each([&](int64_t c, float v) {
            hl_write(to, c, is_log ? v - all.top - log_sum : expf(v - all.top) * scale);
        });
    }
}

struct grad_pair {
    float g, y;
};

/* y (dy - sum(dy y)); of the logarithm, dy - e^y sum(dy). */
template <class T, bool is_log, int KEEP>
HL_DEVICE void run_gradient(const T *dy, const T *y, T *dx, int64_t R, int64_t C, int by_block)
{
    enum { PAIRS = KEEP < 16 ? KEEP : 16 };
    hl_coop_group coop = hl_coop_make(by_block);
    for (int64_t r = coop.first; r < R; r += coop.step) {
        auto row = hl_coop_keep<PAIRS>(coop, C, [=](int64_t c) {
            return grad_pair{hl_read(dy, r * C + c), hl_read(y, r * C + c)};
        });
        float sum = 0;
        row.each([&](int64_t, grad_pair v) { sum += is_log ? v.g : v.g * v.y; });
        sum = hl_coop_sum(coop, sum);
        row.each([&](int64_t c, grad_pair v) {
            hl_write(dx, r * C + c, is_log ? v.g - expf(v.y) * sum : v.y * (v.g - sum));
        });
    }
}

#define KERNELS(keep, T, is_log, variant)                                                          \
    HL_CUDA_ENTRY_OF(softmax, variant##_x##keep, HL_CUDA_COOP_THREADS, p)                          \
    {                                                                                              \
        run_softmax<T, is_log, keep>((const T *)p.at.x, (T *)p.at.y, p.R, p.C, p.by_block);        \
    }                                                                                              \
    HL_CUDA_ENTRY_OF(softmax_grad, variant##_x##keep, HL_CUDA_COOP_THREADS, p)                     \
    {                                                                                              \
        run_gradient<T, is_log, keep>((const T *)p.at.dy, (const T *)p.at.y, (T *)p.at.dx, p.R,    \
                                      p.C, p.by_block);                                            \
    }
#define BOTH(T, suffix)                                                                            \
    HL_CUDA_ROW_KEEPS(KERNELS, T, false, suffix)                                                   \
    HL_CUDA_ROW_KEEPS(KERNELS, T, true, log_##suffix)
HL_FLOAT_TYPES(BOTH)
