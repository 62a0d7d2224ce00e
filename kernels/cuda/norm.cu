/* Layer normalisation on rows (R,C) and its input gradient; batch normalisation's last step, for
 * which kernels/cuda/reduce.cu makes the statistics.
 *
 * A team reads its row twice for the statistics, mean first and then the mean square distance from
 * it, as ref does: the second time it comes from cache. Rejected: one pass of squares, which loses
 * all digits where the mean is large.
 *
 * Launch: any grid; threads a multiple of 32; by_block 1: a block per row, 0: a warp per row.
 * weight and bias may be NULL. */
#include "kernels/cuda/fold.h"

template <class T>
HL_DEVICE void run_layer_norm(const T *src, const float *weight, const float *bias, T *dst,
                              float *mean, float *rstd, int64_t R, int64_t C, float eps,
                              int by_block)
{
    hl_team team = hl_team_make(by_block);
    for (int64_t r = team.first; r < R; r += team.step) {
        const T *x = src + r * C;
        float sum = 0, squares = 0;
        for (int64_t c = team.rank; c < C; c += team.size) sum += hl_read(x, c);
        float middle = hl_team_sum(team, sum) / (float)C;
        for (int64_t c = team.rank; c < C; c += team.size) {
            float distance = hl_read(x, c) - middle;
            squares += distance * distance;
        }
        float scale = hl_rsqrt(hl_team_sum(team, squares) / (float)C + eps);
        for (int64_t c = team.rank; c < C; c += team.size) {
            float z = (hl_read(x, c) - middle) * scale;
            hl_write(dst, r * C + c, z * (weight ? weight[c] : 1.0f) + (bias ? bias[c] : 0.0f));
        }
        if (team.rank == 0) {
            mean[r] = middle;
            rstd[r] = scale;
        }
    }
}

/* With z = (x - mean) rstd and g = dy weight: dx = rstd (g - mean(g) - z mean(g z)). */
template <class T>
HL_DEVICE void run_layer_norm_grad(const T *dy, const T *src, const float *mean, const float *rstd,
                                   const float *weight, T *dx, int64_t R, int64_t C, int by_block)
{
    hl_team team = hl_team_make(by_block);
    for (int64_t r = team.first; r < R; r += team.step) {
        float middle = mean[r], scale = rstd[r], sum_g = 0, sum_gz = 0;
        for (int64_t c = team.rank; c < C; c += team.size) {
            float g = hl_read(dy, r * C + c) * (weight ? weight[c] : 1.0f);
            sum_g += g;
            sum_gz += g * ((hl_read(src, r * C + c) - middle) * scale);
        }
        sum_g = hl_team_sum(team, sum_g) / (float)C;
        sum_gz = hl_team_sum(team, sum_gz) / (float)C;
        for (int64_t c = team.rank; c < C; c += team.size) {
            float g = hl_read(dy, r * C + c) * (weight ? weight[c] : 1.0f);
            float z = (hl_read(src, r * C + c) - middle) * scale;
            hl_write(dx, r * C + c, scale * (g - sum_g - z * sum_gz));
        }
    }
}

/* x (A,C,S) -> (x - mean[c]) / sqrt(var[c] + eps) weight[c] + bias[c] */
template <class T>
HL_DEVICE void run_batch_norm(const T *src, const float *mean, const float *var,
                              const float *weight, const float *bias, T *dst, int64_t n, int64_t C,
                              int64_t S, float eps)
{
    HL_FOR_GRID(i, n)
    {
        int64_t c = i / S % C;
        float z = (hl_read(src, i) - mean[c]) * hl_rsqrt(var[c] + eps);
        hl_write(dst, i, z * weight[c] + bias[c]);
    }
}

#define KERNELS(T, suffix)                                                                         \
    HL_KERNEL(hl_cuda_layer_norm_##suffix, 1024, const T *src, const float *weight,                \
              const float *bias, T *dst, float *mean, float *rstd, int64_t R, int64_t C,           \
              float eps, int by_block)                                                             \
    {                                                                                              \
        run_layer_norm(src, weight, bias, dst, mean, rstd, R, C, eps, by_block);                   \
    }                                                                                              \
    HL_KERNEL(hl_cuda_layer_norm_grad_##suffix, 1024, const T *dy, const T *src,                   \
              const float *mean, const float *rstd, const float *weight, T *dx, int64_t R,         \
              int64_t C, int by_block)                                                             \
    {                                                                                              \
        run_layer_norm_grad(dy, src, mean, rstd, weight, dx, R, C, by_block);                      \
    }                                                                                              \
    HL_KERNEL(hl_cuda_batch_norm_##suffix, 256, const T *src, const float *mean, const float *var, \
              const float *weight, const float *bias, T *dst, int64_t n, int64_t C, int64_t S,     \
              float eps)                                                                           \
    {                                                                                              \
        run_batch_norm(src, mean, var, weight, bias, dst, n, C, S, eps);                           \
    }
HL_FLOAT_TYPES(KERNELS)
