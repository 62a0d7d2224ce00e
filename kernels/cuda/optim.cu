/* Optimizers over the flat parameter buffer: one launch, one pass over memory, which writes the
 * parameters rounded to 16 bits too where there is such a copy of them.
 *
 * A block takes tiles of the buffer and goes through the segments that meet a tile, which gives
 * each element its learning rate scale, weight decay and the age of its states; segments need no
 * order, and what none covers is left as it is. Each thread looks at segments of its own for the
 * tile, and what they found goes round as the warps' votes: a model has a segment per tensor, and
 * going through all of them in every thread would cost more than the update. The thread that finds
 * one makes the corrections of its moments, which are many products in double, for all. The
 * formulas are kernels/cpu/optim.c's (torch.optim's, in its fp32 order); coefficients that a step
 * has in common are made in double and rounded once. When the guard is down nothing is touched.
 *
 * Launch: any grid; threads a multiple of 32. */
#include "kernels/cuda/optim.h"

#include "kernels/cuda/any.h"
#include "kernels/cuda/fold.h"
#include "kernels/cuda/tile_iterator.h"

/* A thread's elements of a tile are one vector. */
enum { THREADS = HL_CUDA_OPTIM_THREADS, WIDTH = HL_CUDA_OPTIM_ELEMENTS };
typedef hl_pack<float, WIDTH> vectors;

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

/* A parameter, its copy, its gradient and N states; copy and states may be NULL. */
template <int N> struct operands {
    float *param;
    const float *grad;
    void *copy;
    bool is_f16;
    float *state[N];

    HL_MEMBER bool is_aligned() const
    {
        bool all = vectors::is_aligned(param) && vectors::is_aligned(grad) &&
                   hl_pack_of<HL_DTYPE_BF16, WIDTH>::is_aligned(copy);
        HL_UNROLL
        for (int j = 0; j < N; j++) all = all && vectors::is_aligned(state[j]);
        return all;
    }
};

/* One step of W neighbours from `at` on. */
template <int W, int N, class Step>
HL_DEVICE void step_pack(const operands<N> &of, int64_t at, const Step &step)
{
    float w[W], g[W], s[N][W], own[N];
    hl_load_pack<HL_DTYPE_F32, W>(of.param, at, w);
    hl_load_pack<HL_DTYPE_F32, W>(of.grad, at, g);
    HL_UNROLL
    for (int j = 0; j < N; j++)
        if (of.state[j]) hl_load_pack<HL_DTYPE_F32, W>(of.state[j], at, s[j]);
    HL_UNROLL
    for (int k = 0; k < W; k++) {
        HL_UNROLL
        for (int j = 0; j < N; j++) own[j] = of.state[j] ? s[j][k] : 0.0f;
        step(w[k], g[k], own);
        HL_UNROLL
        for (int j = 0; j < N; j++) s[j][k] = own[j];
    }
    hl_store_pack<HL_DTYPE_F32, W>(of.param, at, w);
    if (of.copy && of.is_f16) hl_store_pack<HL_DTYPE_F16, W>(of.copy, at, w);
    if (of.copy && !of.is_f16) hl_store_pack<HL_DTYPE_BF16, W>(of.copy, at, w);
    HL_UNROLL
    for (int j = 0; j < N; j++)
        if (of.state[j]) hl_store_pack<HL_DTYPE_F32, W>(of.state[j], at, s[j]);
}

/* Elements of a segment by the block: the plan lays parameters so that vectors fit from each one's
 * beginning, and what is behind the last vector goes one by one. */
template <int N, class Step>
HL_DEVICE void step_part(const operands<N> &of, const part &at, const Step &step)
{
    int64_t rest = at.begin;
    if (at.begin % WIDTH == 0 && of.is_aligned()) {
        rest = at.end - at.end % WIDTH;
        for (int64_t i = at.begin + WIDTH * hl_thread(); i < rest; i += WIDTH * hl_threads())
            step_pack<WIDTH>(of, i, step);
    }
    for (int64_t i = rest + hl_thread(); i < at.end; i += hl_threads()) step_pack<1>(of, i, step);
}

/* What a segment says: its learning rate, its weight decay, steps of its states with this one, and
 * the corrections of Adam's moments of that age. */
struct terms {
    double rate, decay;
    int64_t age;
    const double *correction;
};

/* make(terms) of a segment gives what is done to each element of it: to the parameter and its
 * states, given the gradient. */
template <int N, class Make>
HL_DEVICE void for_each_segment(const hl_cuda_optim_at &all, const hl_cuda_optim_size &size,
                                float *const (&state)[N], Make make)
{
    int64_t n = size.n, n_segments = size.n_segments;
    const double *segments = all.segments;
    float lr = *all.lr;
    operands<N> of = {all.param, all.grad, all.copy, size.is_f16 != 0, {}};
    HL_UNROLL
    for (int j = 0; j < N; j++) of.state[j] = state[j];
    /* By warp: which of its threads' segments meet the tile. */
    HL_SHARED(uint32_t, found, THREADS / 32);
    HL_SHARED(double, corrections, 2 * THREADS); /* by thread: of its segment */
    int64_t tile_size = (int64_t)hl_threads() * HL_CUDA_OPTIM_ELEMENTS;
    for (int64_t tile = hl_block_x() * tile_size; tile < n; tile += hl_blocks_x() * tile_size) {
        int64_t end = tile + tile_size < n ? tile + tile_size : n;
        for (int64_t first = 0; first < n_segments; first += hl_threads()) {
            int64_t own = first + hl_thread();
            part p = {0, 0};
            if (own < n_segments) p = cut_segment(segments + 5 * own, tile, end);
            uint32_t vote = hl_ballot(HL_WARP_ALL, p.begin < p.end);
            hl_barrier(); /* the last votes' readers are through */
            if (hl_thread() % 32 == 0) found[hl_thread() / 32] = vote;
            if (p.begin < p.end)
                hl_control_correct(all.control, hl_control_age(all.control, segments[5 * own + 4]),
                                   corrections + 2 * hl_thread());
            hl_barrier();
            for (int warp = 0; warp < hl_threads() / 32; warp++) {
                for (uint32_t left = found[warp]; left; left &= left - 1) {
                    int finder = 32 * warp + lowest_bit(left);
                    const double *segment = segments + 5 * (first + finder);
                    terms said = {(double)lr * segment[2], segment[3],
                                  hl_control_age(all.control, segment[4]),
                                  corrections + 2 * finder};
                    step_part(of, cut_segment(segment, tile, end), make(said));
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
    float scale = *all.grad_scale, beta = (float)p.momentum, take = (float)(1 - p.dampening);
    bool has_momentum = p.momentum != 0, nesterov = p.nesterov != 0;
    float *const state[] = {has_momentum ? p.at.buffer : NULL};
    for_each_segment(all, p.size, state, [=](const terms &said) {
        float step = (float)said.rate, decay = (float)said.decay;
        bool is_first = said.age == 1;
        return [=](float &w, float grad, float(&s)[1]) {
            float g = grad * scale + decay * w;
            if (has_momentum) {
                float b = is_first ? g : beta * s[0] + take * g;
                s[0] = b;
                g = nesterov ? g + beta * b : b;
            }
            w = w - step * g;
        };
    });
}

HL_CUDA_ENTRY(adam, THREADS, p)
{
    const hl_cuda_optim_at &all = p.at.all;
    if (hl_is_blocked(all.control, p.size.is_apply)) return;
    bool decoupled = p.decoupled != 0;
    float scale = *all.grad_scale, keep2 = (float)p.beta2, tiny = (float)p.eps;
    float take1 = (float)(1 - p.beta1), take2 = (float)(1 - p.beta2);
    float *const state[] = {p.at.m, p.at.v};
    for_each_segment(all, p.size, state, [=](const terms &said) {
        float step = (float)(said.rate * said.correction[0]);
        float per_root2 = (float)said.correction[1];
        float keep = decoupled ? (float)(1 - said.rate * said.decay) : 1.0f;
        float decay = decoupled ? 0.0f : (float)said.decay;
        return [=](float &w, float grad, float(&s)[2]) {
            float g = grad * scale + decay * w;
            float mean = s[0] + take1 * (g - s[0]), square = s[1] * keep2 + take2 * (g * g);
            s[0] = mean;
            s[1] = square;
            w = w * keep - step * (mean / (sqrtf(square) * per_root2 + tiny));
        };
    });
}

HL_CUDA_ENTRY(rmsprop, THREADS, p)
{
    const hl_cuda_optim_at &all = p.at.all;
    if (hl_is_blocked(all.control, p.size.is_apply)) return;
    float scale = *all.grad_scale, keep = (float)p.alpha, take = (float)(1 - p.alpha);
    float tiny = (float)p.eps, beta = (float)p.momentum;
    bool has_momentum = p.momentum > 0, centered = p.centered != 0;
    float *const state[] = {p.at.square, has_momentum ? p.at.buffer : NULL,
                            centered ? p.at.average : NULL};
    for_each_segment(all, p.size, state, [=](const terms &said) {
        float step = (float)said.rate, decay = (float)said.decay;
        return [=](float &w, float grad, float(&s)[3]) {
            float g = grad * scale + decay * w;
            float variance = s[0] * keep + take * (g * g);
            s[0] = variance;
            if (centered) {
                float mean = s[2] + take * (g - s[2]);
                s[2] = mean;
                variance -= mean * mean;
            }
            float move = g / (sqrtf(variance) + tiny);
            if (has_momentum) {
                move = s[1] * beta + move;
                s[1] = move;
            }
            w = w - step * move;
        };
    });
}

HL_CUDA_ENTRY(lion, THREADS, p)
{
    const hl_cuda_optim_at &all = p.at.all;
    if (hl_is_blocked(all.control, p.size.is_apply)) return;
    float scale = *all.grad_scale, keep1 = (float)p.beta1, keep2 = (float)p.beta2;
    float take1 = (float)(1 - p.beta1), take2 = (float)(1 - p.beta2);
    float *const state[] = {p.at.m};
    for_each_segment(all, p.size, state, [=](const terms &said) {
        float step = (float)said.rate, decay = (float)said.decay;
        return [=](float &w, float grad, float(&s)[1]) {
            float g = grad * scale, old = s[0];
            float direction = keep1 * old + take1 * g;
            float sign = direction > 0 ? 1.0f : direction < 0 ? -1.0f : 0.0f;
            w = w - step * (sign + decay * w);
            s[0] = keep2 * old + take2 * g;
        };
    });
}

/* ---- the gradient's norm: one pass over it; unscaling and clipping are a factor -------------- */

enum { BATCH = 4 /* loads under way in a thread */ };

/* Of x[begin, end), W neighbours at a time, by the block: each thread's share of squares, or of the
 * elements themselves. */
template <int W>
HL_DEVICE float add_packs(const float *x, int64_t begin, int64_t end, bool is_square)
{
    float sum = 0;
    int64_t stride = (int64_t)W * hl_threads();
    for (int64_t i = begin + W * hl_thread(); i < end; i += BATCH * stride) {
        float v[BATCH][W] = {};
        HL_UNROLL
        for (int j = 0; j < BATCH; j++)
            if (i + j * stride < end) hl_load_pack<HL_DTYPE_F32, W>(x, i + j * stride, v[j]);
        HL_UNROLL
        for (int j = 0; j < BATCH; j++) {
            HL_UNROLL
            for (int k = 0; k < W; k++) sum += is_square ? v[j][k] * v[j][k] : v[j][k];
        }
    }
    return sum;
}
HL_DEVICE float add_up(const float *x, int64_t begin, int64_t end, bool is_square)
{
    bool fits = begin % WIDTH == 0 && vectors::is_aligned(x);
    int64_t rest = fits ? end - end % WIDTH : begin;
    float sum = add_packs<WIDTH>(x, begin, rest, is_square);
    sum += add_packs<1>(x, rest, end, is_square);
    return hl_coop_sum(hl_coop_make(1), sum);
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
