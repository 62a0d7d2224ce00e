/* Cross-entropy of integer targets from logits (N,C), and its gradient: the formulas of
 * kernels/ref/loss.c. A target that is no class is a fault; its row and ignored rows give 0 and
 * weigh 0.
 *
 * A team holds its row in registers (fold.h), so memory is read once, smoothed or not.
 *
 * dloss_step: 1, or 0 where all rows have the same gradient.
 *
 * Launch: any grid; threads a multiple of 32, at most 256; teams by by_block (fold.h).
 * class_weight NULL: all are 1. */
#include "kernels/cuda/fault.h"
#include "kernels/cuda/row.h"

/* -1 for a row that gives 0. Uniform over the team. */
HL_DEVICE int64_t take_target(const void *target, int32_t dtype, int64_t n, int64_t C,
                              int64_t ignored, const hl_team &team, hl_control *control,
                              int64_t fault)
{
    int64_t t = hl_read_int(target, dtype, n);
    if (t == ignored) return -1;
    if (t >= 0 && t < C) return t;
    if (team.rank == 0) hl_fault_set(control, fault, n, t);
    return -1;
}

template <class T> HL_DEVICE float weigh(const T *class_weight, int64_t c)
{
    return class_weight ? hl_read(class_weight, c) : 1.0f;
}

template <class T>
HL_DEVICE void run_loss(const T *logits, const void *target, int32_t target_dtype,
                        const T *class_weight, T *loss, T *weight, int64_t N, int64_t C,
                        float smoothing, int64_t ignored, hl_control *control, int64_t fault,
                        int by_block)
{
    hl_team team = hl_team_make(by_block);
    for (int64_t n = team.first; n < N; n += team.step) {
        const T *x = logits + n * C;
        int64_t t = take_target(target, target_dtype, n, C, ignored, team, control, fault);
        float value = 0, row_weight = 0;
        if (t >= 0) {
            auto row = hl_team_keep<32>(team, C, [=](int64_t c) { return hl_read(x, c); });
            hl_row_sum all = hl_row_exponentials(row);
            float log_sum = logf(all.sum), soft = 0;
            if (smoothing > 0) {
                row.each([&](int64_t c, float v) {
                    soft += weigh(class_weight, c) * (all.top - v + log_sum);
                });
                soft = hl_team_sum(team, soft);
            }
            row_weight = weigh(class_weight, t);
            value = (1 - smoothing) * row_weight * (all.top - hl_read(x, t) + log_sum) +
                    smoothing / (float)C * soft;
        }
        if (team.rank == 0) {
            hl_write(loss, n, value);
            hl_write(weight, n, row_weight);
        }
    }
}

/* dx = dloss ((1 - s) w_t (p - [c = t]) + s / C (p sum(w) - w_c)), p = softmax(x) */
template <class T>
HL_DEVICE void run_gradient(const T *dloss, int64_t dloss_step, const T *logits, const void *target,
                            int32_t target_dtype, const T *class_weight, T *dlogits, int64_t N,
                            int64_t C, float smoothing, int64_t ignored, hl_control *control,
                            int64_t fault, int by_block)
{
    hl_team team = hl_team_make(by_block);
    float all_weights = (float)C, share = smoothing / (float)C;
    if (smoothing > 0 && class_weight) {
        float sum = 0;
        for (int64_t c = team.rank; c < C; c += team.size) sum += hl_read(class_weight, c);
        all_weights = hl_team_sum(team, sum);
    }
    for (int64_t n = team.first; n < N; n += team.step) {
        const T *x = logits + n * C;
        T *dx = dlogits + n * C;
        int64_t t = take_target(target, target_dtype, n, C, ignored, team, control, fault);
        if (t < 0) {
            for (int64_t c = team.rank; c < C; c += team.size) hl_write(dx, c, 0.0f);
            continue;
        }
        auto row = hl_team_keep<32>(team, C, [=](int64_t c) { return hl_read(x, c); });
        hl_row_sum all = hl_row_exponentials(row);
        float g = hl_read(dloss, n * dloss_step), hard = (1 - smoothing) * weigh(class_weight, t);
        float scale = g * (hard + share * all_weights) / all.sum;
        row.each([&](int64_t c, float v) {
            float value = expf(v - all.top) * scale;
            if (smoothing > 0) value -= g * share * weigh(class_weight, c);
            if (c == t) value -= g * hard;
            hl_write(dx, c, value);
        });
    }
}

#define KERNELS(T, suffix)                                                                         \
    HL_KERNEL(hl_cuda_cross_entropy_##suffix, 256, const T *logits, const void *target,            \
              int32_t target_dtype, const T *class_weight, T *loss, T *weight, int64_t N,          \
              int64_t C, float smoothing, int64_t ignored, hl_control *control, int64_t fault,      \
              int by_block)                                                                        \
    {                                                                                              \
        run_loss(logits, target, target_dtype, class_weight, loss, weight, N, C, smoothing,        \
                 ignored, control, fault, by_block);                                                \
    }                                                                                              \
    HL_KERNEL(hl_cuda_cross_entropy_grad_##suffix, 256, const T *dloss, int64_t dloss_step,        \
              const T *logits, const void *target, int32_t target_dtype, const T *class_weight,    \
              T *dlogits, int64_t N, int64_t C, float smoothing, int64_t ignored,                  \
              hl_control *control, int64_t fault, int by_block)                                     \
    {                                                                                              \
        run_gradient(dloss, dloss_step, logits, target, target_dtype, class_weight, dlogits, N, C, \
                     smoothing, ignored, control, fault, by_block);                                 \
    }
HL_FLOAT_TYPES(KERNELS)
