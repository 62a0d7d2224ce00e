/* Cross-entropy of integer targets from logits (N,C), and its gradient: the formulas of
 * kernels/ref/loss.c. A target that is no class is a fault; its row and ignored rows give 0 and
 * weigh 0.
 *
 * A cooperative group holds its row in registers (fold.h), so memory is read once, smoothed or not.
 *
 * Launch: any grid; threads a multiple of 32. */
#include "kernels/cuda/fault.h"
#include "kernels/cuda/loss.h"
#include "kernels/cuda/row.h"

/* -1 for a row that gives 0. Uniform over the cooperative group. */
HL_DEVICE int64_t take_target(const hl_cuda_loss_at &in, const hl_cuda_loss_rule &rule, int64_t n,
                              const hl_coop_group &coop)
{
    int64_t t = hl_read_int(in.target, rule.target_dtype, n);
    if (t == rule.ignored) return -1;
    if (t >= 0 && t < rule.C) return t;
    if (coop.rank == 0) hl_fault_set(in.control, in.fault, n, t);
    return -1;
}

template <class T> HL_DEVICE float weigh(const T *class_weight, int64_t c)
{
    return class_weight ? hl_read(class_weight, c) : 1.0f;
}

template <class T, int KEEP>
HL_DEVICE void run_loss(const hl_cuda_loss_at &in, const hl_cuda_loss_rule &rule, T *loss,
                        T *weight)
{
    const T *logits = (const T *)in.logits, *class_weight = (const T *)in.class_weight;
    int64_t C = rule.C;
    float smoothing = rule.smoothing;
    hl_coop_group coop = hl_coop_make(rule.by_block);
    for (int64_t n = coop.first; n < rule.N; n += coop.step) {
        const T *x = logits + n * C;
        int64_t t = take_target(in, rule, n, coop);
        float value = 0, row_weight = 0;
        if (t >= 0) {
            auto row = hl_coop_keep<KEEP>(coop, C, [=](int64_t c) { return hl_read(x, c); });
            hl_row_sum all = hl_row_exponentials(row);
            float log_sum = logf(all.sum), soft = 0;
            if (smoothing > 0) {
                row.each([&](int64_t c, float v) {
                    soft += weigh(class_weight, c) * (all.top - v + log_sum);
                });
                soft = hl_coop_sum(coop, soft);
            }
            row_weight = weigh(class_weight, t);
            value = (1 - smoothing) * row_weight * (all.top - hl_read(x, t) + log_sum) +
                    smoothing / (float)C * soft;
        }
        if (coop.rank == 0) {
            hl_write(loss, n, value);
            hl_write(weight, n, row_weight);
        }
    }
}

/* dx = dloss ((1 - s) w_t (p - [c = t]) + s / C (p sum(w) - w_c)), p = softmax(x) */
template <class T, int KEEP>
HL_DEVICE void run_gradient(const hl_cuda_loss_at &in, const hl_cuda_loss_rule &rule,
                            const T *dloss, int64_t dloss_step, T *dlogits)
{
    const T *logits = (const T *)in.logits, *class_weight = (const T *)in.class_weight;
    int64_t C = rule.C;
    float smoothing = rule.smoothing;
    hl_coop_group coop = hl_coop_make(rule.by_block);
    float all_weights = (float)C, share = smoothing / (float)C;
    if (smoothing > 0 && class_weight) {
        float sum = 0;
        for (int64_t c = coop.rank; c < C; c += coop.size) sum += hl_read(class_weight, c);
        all_weights = hl_coop_sum(coop, sum);
    }
    for (int64_t n = coop.first; n < rule.N; n += coop.step) {
        const T *x = logits + n * C;
        T *dx = dlogits + n * C;
        int64_t t = take_target(in, rule, n, coop);
        if (t < 0) {
            for (int64_t c = coop.rank; c < C; c += coop.size) hl_write(dx, c, 0.0f);
            continue;
        }
        auto row = hl_coop_keep<KEEP>(coop, C, [=](int64_t c) { return hl_read(x, c); });
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

#define KERNELS(keep, T, suffix)                                                                   \
    HL_CUDA_ENTRY_OF(cross_entropy, suffix##_x##keep, HL_CUDA_COOP_THREADS, p)                     \
    {                                                                                              \
        run_loss<T, keep>(p.at.in, p.rule, (T *)p.at.loss, (T *)p.at.weight);                      \
    }                                                                                              \
    HL_CUDA_ENTRY_OF(cross_entropy_grad, suffix##_x##keep, HL_CUDA_COOP_THREADS, p)                \
    {                                                                                              \
        run_gradient<T, keep>(p.at.in, p.rule, (const T *)p.at.dloss, p.dloss_step,                \
                              (T *)p.at.dlogits);                                                  \
    }
#define BY_KEEP(T, suffix) HL_CUDA_ROW_KEEPS(KERNELS, T, suffix)
HL_FLOAT_TYPES(BY_KEEP)
