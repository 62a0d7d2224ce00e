/* Cross-entropy of logits (N,C) and integer targets, and its gradient; by_block as in fold.h, the
 * end of a variant, x1, x4 or x32, as in params.h. class_weight NULL: all are 1. */
#ifndef HL_CUDA_LOSS_H
#define HL_CUDA_LOSS_H

#include "ir/control.h"
#include "kernels/cuda/params.h"

/* What both read, and how. */
typedef struct hl_cuda_loss_at {
    HL_CUDA_AT(const void) logits;
    HL_CUDA_AT(const void) target;
    HL_CUDA_AT(const void) class_weight;
    HL_CUDA_AT(hl_control) control;
    HL_CUDA_NUMBER fault;
} hl_cuda_loss_at;
typedef struct hl_cuda_loss_rule {
    int64_t N, C, ignored;
    float smoothing;
    int32_t target_dtype, by_block;
} hl_cuda_loss_rule;

typedef struct hl_cuda_cross_entropy_params {
    struct {
        hl_cuda_loss_at in;
        HL_CUDA_AT(void) loss;
        HL_CUDA_AT(void) weight;
    } at;
    hl_cuda_loss_rule rule;
} hl_cuda_cross_entropy_params;

typedef struct hl_cuda_cross_entropy_grad_params {
    struct {
        hl_cuda_loss_at in;
        HL_CUDA_AT(const void) dloss;
        HL_CUDA_AT(void) dlogits;
    } at;
    hl_cuda_loss_rule rule;
    int64_t dloss_step; /* 1, or 0 where all rows have the same gradient */
} hl_cuda_cross_entropy_grad_params;

#if defined(__CUDACC__) || defined(HL_EMULATE)
#include "kernels/cuda/fault.h"
#include "kernels/cuda/row.h"

/* -1 for a row that gives 0. Uniform over the cooperative group. */
HL_DEVICE int64_t hl_loss_target(const hl_cuda_loss_at &in, const hl_cuda_loss_rule &rule,
                                 int64_t n, const hl_coop_group &coop)
{
    int64_t t = hl_read_int(in.target, rule.target_dtype, n);
    if (t == rule.ignored) return -1;
    if (t >= 0 && t < rule.C) return t;
    if (coop.rank == 0) hl_fault_set(in.control, in.fault, n, t);
    return -1;
}

template <class T> HL_DEVICE float hl_loss_weigh(const T *class_weight, int64_t c)
{
    return class_weight ? hl_read(class_weight, c) : 1.0f;
}

template <class T, int KEEP> HL_DEVICE void hl_loss_run(const hl_cuda_cross_entropy_params &p)
{
    const hl_cuda_loss_at &in = p.at.in;
    const hl_cuda_loss_rule &rule = p.rule;
    const T *logits = (const T *)in.logits, *class_weight = (const T *)in.class_weight;
    int64_t C = rule.C;
    float smoothing = rule.smoothing;
    hl_coop_group coop = hl_coop_make(rule.by_block);
    for (int64_t n = coop.first; n < rule.N; n += coop.step) {
        const T *x = logits + n * C;
        int64_t t = hl_loss_target(in, rule, n, coop);
        float value = 0, row_weight = 0;
        if (t >= 0) {
            auto row = hl_coop_keep<KEEP>(coop, C, [=](int64_t c) { return hl_read(x, c); });
            hl_row_sum all = hl_row_exponentials(row);
            float log_sum = logf(all.sum), soft = 0;
            if (smoothing > 0) {
                row.each([&](int64_t c, float v) {
                    soft += hl_loss_weigh(class_weight, c) * (all.top - v + log_sum);
                });
                soft = hl_coop_sum(coop, soft);
            }
            row_weight = hl_loss_weigh(class_weight, t);
            value = (1 - smoothing) * row_weight * (all.top - hl_read(x, t) + log_sum) +
                    smoothing / (float)C * soft;
        }
        if (coop.rank == 0) {
            hl_write((T *)p.at.loss, n, value);
            hl_write((T *)p.at.weight, n, row_weight);
        }
    }
}

/* dx = dloss ((1 - s) w_t (p - [c = t]) + s / C (p sum(w) - w_c)), p = softmax(x) */
template <class T, int KEEP>
HL_DEVICE void hl_loss_run_gradient(const hl_cuda_cross_entropy_grad_params &p)
{
    const hl_cuda_loss_at &in = p.at.in;
    const hl_cuda_loss_rule &rule = p.rule;
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
        T *dx = (T *)p.at.dlogits + n * C;
        int64_t t = hl_loss_target(in, rule, n, coop);
        if (t < 0) {
            for (int64_t c = coop.rank; c < C; c += coop.size) hl_write(dx, c, 0.0f);
            continue;
        }
        auto row = hl_coop_keep<KEEP>(coop, C, [=](int64_t c) { return hl_read(x, c); });
        hl_row_sum all = hl_row_exponentials(row);
        float g = hl_read((const T *)p.at.dloss, n * p.dloss_step),
              hard = (1 - smoothing) * hl_loss_weigh(class_weight, t);
        float scale = g * (hard + share * all_weights) / all.sum;
        row.each([&](int64_t c, float v) {
            float value = expf(v - all.top) * scale;
            if (smoothing > 0) value -= g * share * hl_loss_weigh(class_weight, c);
            if (c == t) value -= g * hard;
            hl_write(dx, c, value);
        });
    }
}
#endif

#endif
