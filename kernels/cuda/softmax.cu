/* Softmax over the last axis, its logarithm, and their gradients, on rows (R,C).
 *
 * A team (a warp, or a block for long rows) reads its row twice: once for the largest value and the
 * sum of e^(x - largest) together, rescaled where the largest grows, once to write. Rejected: three
 * passes (a third more memory traffic where a row leaves the cache), the row in registers (one
 * kernel per length).
 *
 * Launch: any grid; threads a multiple of 32; by_block 1: a block per row, 0: a warp per row. */
#include "kernels/cuda/row.h"

HL_DEVICE float invert(float x)
{
    return 1.0f / x;
}

template <class T, bool is_log>
HL_DEVICE void run_softmax(const T *x, T *y, int64_t R, int64_t C, int by_block)
{
    hl_team team = hl_team_make(by_block);
    for (int64_t r = team.first; r < R; r += team.step) {
        const T *from = x + r * C;
        T *to = y + r * C;
        hl_row_sum row = hl_row_exponentials(team, from, C);
        float log_sum = logf(row.sum), scale = invert(row.sum);
        for (int64_t c = team.rank; c < C; c += team.size) {
            float above = hl_read(from, c) - row.top;
            hl_write(to, c, is_log ? above - log_sum : expf(above) * scale);
        }
    }
}

/* y (dy - sum(dy y)); of the logarithm, dy - e^y sum(dy). */
template <class T, bool is_log>
HL_DEVICE void run_gradient(const T *dy, const T *y, T *dx, int64_t R, int64_t C, int by_block)
{
    hl_team team = hl_team_make(by_block);
    for (int64_t r = team.first; r < R; r += team.step) {
        float sum = 0;
        for (int64_t c = team.rank; c < C; c += team.size) {
            float g = hl_read(dy, r * C + c);
            sum += is_log ? g : g * hl_read(y, r * C + c);
        }
        sum = hl_team_sum(team, sum);
        for (int64_t c = team.rank; c < C; c += team.size) {
            float g = hl_read(dy, r * C + c), v = hl_read(y, r * C + c);
            hl_write(dx, r * C + c, is_log ? g - expf(v) * sum : v * (g - sum));
        }
    }
}

#define KERNELS(T, suffix)                                                                         \
    HL_KERNEL(hl_cuda_softmax_##suffix, 1024, const T *x, T *y, int64_t R, int64_t C,              \
              int by_block)                                                                        \
    {                                                                                              \
        run_softmax<T, false>(x, y, R, C, by_block);                                               \
    }                                                                                              \
    HL_KERNEL(hl_cuda_log_softmax_##suffix, 1024, const T *x, T *y, int64_t R, int64_t C,          \
              int by_block)                                                                        \
    {                                                                                              \
        run_softmax<T, true>(x, y, R, C, by_block);                                                \
    }                                                                                              \
    HL_KERNEL(hl_cuda_softmax_grad_##suffix, 1024, const T *dy, const T *y, T *dx, int64_t R,      \
              int64_t C, int by_block)                                                             \
    {                                                                                              \
        run_gradient<T, false>(dy, y, dx, R, C, by_block);                                         \
    }                                                                                              \
    HL_KERNEL(hl_cuda_log_softmax_grad_##suffix, 1024, const T *dy, const T *y, T *dx, int64_t R,  \
              int64_t C, int by_block)                                                             \
    {                                                                                              \
        run_gradient<T, true>(dy, y, dx, R, C, by_block);                                          \
    }
HL_FLOAT_TYPES(KERNELS)
