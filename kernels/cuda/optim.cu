/* Optimizers over the flat parameter buffer: one launch, one pass over memory.
 *
 * A block takes tiles of the buffer and goes through the segments that meet a tile, which gives
 * each element its learning rate scale and weight decay; segments need no order, and what none
 * covers is left as it is. Each thread looks at segments of its own for the tile, and what they
 * found goes round as the warps' votes: a model has a segment per tensor, and going through all of
 * them in every thread would cost more than the update. The formulas are kernels/cpu/optim.c's
 * (torch.optim's, in its fp32 order); coefficients that a step has in common are made in double and
 * rounded once. When the guard is down nothing is touched.
 *
 * Launch: any grid; threads a multiple of 32. */
#include "kernels/cuda/optim.h"

#include "kernels/cuda/any.h"
#include "kernels/cuda/fold.h"

enum { THREADS = HL_CUDA_OPTIM_THREADS };

HL_DEVICE int lowest_bit(uint32_t bits)
{
    return hl_count_bits((bits & (0u - bits)) - 1);
}

/* Elements [begin, end) of a tile in which a segment lies. */
struct part {
    int64_t begin, end;
};
HL_DEVICE part cut_segment(const double *segment, int64_t begin, int64_t end)
{
    int64_t first = (int64_t)segment[0], last = (int64_t)segment[1];
    return {first > begin ? first : begin, last < end ? last : end};
}

/* make(lr, decay) of a segment, lr in double, gives what is done to each element i of it. */
template <class Make>
HL_DEVICE void for_each_segment(const hl_cuda_optim_at &all, const hl_cuda_optim_size &of,
                                Make make)
{
    int64_t n = of.n, n_segments = of.n_segments;
    const double *segments = all.segments;
    float lr = *all.lr;
    /* By warp: which of its threads' segments meet the tile. */
    HL_SHARED(uint32_t, found, THREADS / 32);
    int64_t size = (int64_t)hl_threads() * HL_CUDA_OPTIM_ELEMENTS;
    for (int64_t tile = hl_block_x() * size; tile < n; tile += hl_blocks_x() * size) {
        int64_t end = tile + size < n ? tile + size : n;
        for (int64_t first = 0; first < n_segments; first += hl_threads()) {
            int64_t own = first + hl_thread();
            part p = {0, 0};
            if (own < n_segments) p = cut_segment(segments + 4 * own, tile, end);
            uint32_t vote = hl_ballot(HL_WARP_ALL, p.begin < p.end);
            hl_barrier(); /* the last votes' readers are through */
            if (hl_thread() % 32 == 0) found[hl_thread() / 32] = vote;
            hl_barrier();
            for (int warp = 0; warp < hl_threads() / 32; warp++) {
                for (uint32_t left = found[warp]; left; left &= left - 1) {
                    const double *segment = segments + 4 * (first + 32 * warp + lowest_bit(left));
                    part at = cut_segment(segment, tile, end);
                    auto step = make((double)lr * segment[2], segment[3]);
                    for (int64_t i = at.begin + hl_thread(); i < at.end; i += hl_threads()) step(i);
                }
            }
        }
    }
}

/* The first step's buffer is the gradient itself: dampening begins with the second. */
HL_CUDA_ENTRY(sgd, THREADS, p)
{
    const hl_cuda_optim_at &all = p.at.all;
    if (hl_is_blocked(all.control, p.size.is_apply)) return;
    float *param = all.param, *buffer = p.at.buffer;
    const float *grad = all.grad;
    float scale = *all.grad_scale, beta = (float)p.momentum, take = (float)(1 - p.dampening);
    bool has_momentum = p.momentum != 0, is_first = all.control->applied == 1;
    bool nesterov = p.nesterov != 0;
    for_each_segment(all, p.size, [=](double rate, double weight_decay) {
        float step = (float)rate, decay = (float)weight_decay;
        return [=](int64_t i) {
            float w = param[i], g = grad[i] * scale + decay * w;
            if (has_momentum) {
                float b = is_first ? g : beta * buffer[i] + take * g;
                buffer[i] = b;
                g = nesterov ? g + beta * b : b;
            }
            param[i] = w - step * g;
        };
    });
}

HL_CUDA_ENTRY(adam, THREADS, p)
{
    const hl_cuda_optim_at &all = p.at.all;
    if (hl_is_blocked(all.control, p.size.is_apply)) return;
    float *param = all.param, *m = p.at.m, *v = p.at.v;
    const float *grad = all.grad;
    bool decoupled = p.decoupled != 0;
    double per_correction1 = all.control->correction[0];
    float per_root2 = (float)all.control->correction[1];
    float scale = *all.grad_scale, keep2 = (float)p.beta2, tiny = (float)p.eps;
    float take1 = (float)(1 - p.beta1), take2 = (float)(1 - p.beta2);
    for_each_segment(all, p.size, [=](double rate, double weight_decay) {
        float step = (float)(rate * per_correction1);
        float keep = decoupled ? (float)(1 - rate * weight_decay) : 1.0f;
        float decay = decoupled ? 0.0f : (float)weight_decay;
        return [=](int64_t i) {
            float w = param[i], g = grad[i] * scale + decay * w;
            float mean = m[i] + take1 * (g - m[i]), square = v[i] * keep2 + take2 * (g * g);
            m[i] = mean;
            v[i] = square;
            param[i] = w * keep - step * (mean / (sqrtf(square) * per_root2 + tiny));
        };
    });
}

HL_CUDA_ENTRY(rmsprop, THREADS, p)
{
    const hl_cuda_optim_at &all = p.at.all;
    if (hl_is_blocked(all.control, p.size.is_apply)) return;
    float *param = all.param, *square = p.at.square, *buffer = p.at.buffer, *average = p.at.average;
    const float *grad = all.grad;
    float scale = *all.grad_scale, keep = (float)p.alpha, take = (float)(1 - p.alpha);
    float tiny = (float)p.eps, beta = (float)p.momentum;
    bool has_momentum = p.momentum > 0, centered = p.centered != 0;
    for_each_segment(all, p.size, [=](double rate, double weight_decay) {
        float step = (float)rate, decay = (float)weight_decay;
        return [=](int64_t i) {
            float w = param[i], g = grad[i] * scale + decay * w;
            float variance = square[i] * keep + take * (g * g);
            square[i] = variance;
            if (centered) {
                float mean = average[i] + take * (g - average[i]);
                average[i] = mean;
                variance -= mean * mean;
            }
            float move = g / (sqrtf(variance) + tiny);
            if (has_momentum) {
                move = buffer[i] * beta + move;
                buffer[i] = move;
            }
            param[i] = w - step * move;
        };
    });
}

HL_CUDA_ENTRY(lion, THREADS, p)
{
    const hl_cuda_optim_at &all = p.at.all;
    if (hl_is_blocked(all.control, p.size.is_apply)) return;
    float *param = all.param, *m = p.at.m;
    const float *grad = all.grad;
    float scale = *all.grad_scale, keep1 = (float)p.beta1, keep2 = (float)p.beta2;
    float take1 = (float)(1 - p.beta1), take2 = (float)(1 - p.beta2);
    for_each_segment(all, p.size, [=](double rate, double weight_decay) {
        float step = (float)rate, decay = (float)weight_decay;
        return [=](int64_t i) {
            float w = param[i], g = grad[i] * scale, old = m[i];
            float direction = keep1 * old + take1 * g;
            float sign = direction > 0 ? 1.0f : direction < 0 ? -1.0f : 0.0f;
            param[i] = w - step * (sign + decay * w);
            m[i] = keep2 * old + take2 * g;
        };
    });
}

/* ---- the gradient's norm: one pass over it; unscaling and clipping are a factor -------------- */

enum { BATCH = 8 /* loads under way in a thread */ };

/* Of x[begin, end), by the block: of squares, or of sums of them. */
HL_DEVICE float add_up(const float *x, int64_t begin, int64_t end, bool is_square)
{
    hl_coop_group coop = hl_coop_make(1);
    float sum = 0;
    for (int64_t i = begin + coop.rank; i < end; i += (int64_t)BATCH * coop.size) {
        float v[BATCH];
        HL_UNROLL
        for (int j = 0; j < BATCH; j++) {
            int64_t at = i + (int64_t)j * coop.size;
            v[j] = at < end ? x[at] : 0.0f;
        }
        HL_UNROLL
        for (int j = 0; j < BATCH; j++) sum += is_square ? v[j] * v[j] : v[j];
    }
    return hl_coop_sum(coop, sum);
}

/* Launch: one block a part. */
HL_CUDA_ENTRY(gradient_norm_parts, THREADS, p)
{
    int64_t begin = hl_block_x() * p.part, end = begin + p.part < p.n ? begin + p.part : p.n;
    float sum = add_up(p.at.grad, begin, end, true);
    if (hl_thread() == 0) p.at.sums[hl_block_x()] = sum;
}

/* Launch: one block. */
HL_CUDA_ENTRY(gradient_norm, HL_CUDA_NORM_ALONE_THREADS, p)
{
    float sum = add_up(p.at.x, 0, p.n, p.is_square != 0);
    if (hl_thread() > 0) return;
    float f = p.at.scale ? *p.at.factor / *p.at.scale : *p.at.factor;
    float square = sum * f * f;
    float ratio = p.clip > 0 ? p.clip / (sqrtf(square) + 1e-6f) : 1.0f;
    *p.at.out_square = square;
    *p.at.out_factor = ratio >= 1 ? f : f * ratio; /* NaN stays */
    if (p.at.control)
        hl_control_apply(p.at.control, hl_read_any(p.at.next_square, p.next_dtype, 0), p.beta1,
                         p.beta2);
}
