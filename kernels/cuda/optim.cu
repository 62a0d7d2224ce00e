/* Optimizers over the flat parameter buffer: one launch, one pass over memory.
 *
 * A block takes tiles of the buffer and walks the segments that meet a tile, which gives each
 * element its learning rate scale and weight decay; segments need no order, and what none covers is
 * left as it is. Each thread looks at segments of its own for the tile, and what they found goes
 * round as the warps' votes: a model has a segment per tensor, and walking all of them in every
 * thread would cost more than the update. The formulas are kernels/cpu/optim.c's (torch.optim's, in
 * its fp32 order); coefficients that a step has in common are made in double and rounded once, and
 * the powers of Adam's correction by two threads of a block, for double is slow on most GPUs. When
 * the guard is down nothing is touched.
 *
 * Launch: any grid; threads a multiple of 32, 256 at most. State buffers that the attributes do not
 * need may be NULL. */
#include "kernels/cuda/any.h"
#include "kernels/cuda/fold.h"

enum { MOST_THREADS = 256, ELEMENTS = 4 /* of a tile, for each thread */ };

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
HL_DEVICE void walk(int64_t n, const double *segments, int64_t n_segments, float lr, Make make)
{
    /* By warp: which of its threads' segments meet the tile. */
    HL_SHARED(uint32_t, found, MOST_THREADS / 32);
    int64_t size = (int64_t)hl_threads() * ELEMENTS;
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
HL_KERNEL(hl_cuda_sgd, MOST_THREADS, float *param, float *buffer, const float *grad, int64_t n,
          const double *segments, int64_t n_segments, const float *grad_scale, const float *lr,
          const hl_control *control, double momentum, double dampening, int nesterov, int is_apply)
{
    if (hl_is_blocked(control, is_apply)) return;
    float scale = *grad_scale, beta = (float)momentum, take = (float)(1 - dampening);
    bool has_momentum = momentum != 0, is_first = control->applied == 1;
    walk(n, segments, n_segments, *lr, [=](double rate, double weight_decay) {
        float step = (float)rate, decay = (float)weight_decay;
        return [=](int64_t i) {
            float p = param[i], g = grad[i] * scale + decay * p;
            if (has_momentum) {
                float b = is_first ? g : beta * buffer[i] + take * g;
                buffer[i] = b;
                g = nesterov ? g + beta * b : b;
            }
            param[i] = p - step * g;
        };
    });
}

HL_KERNEL(hl_cuda_adam, MOST_THREADS, float *param, float *m, float *v, const float *grad,
          int64_t n, const double *segments, int64_t n_segments, const float *grad_scale,
          const float *lr, const hl_control *control, double beta1, double beta2, double eps,
          int decoupled, int is_apply)
{
    if (hl_is_blocked(control, is_apply)) return;
    HL_SHARED(double, correction, 2);
    if (hl_thread() < 2) {
        double left = 1 - pow(hl_thread() ? beta2 : beta1, (double)control->applied);
        correction[hl_thread()] = 1 / (hl_thread() ? sqrt(left) : left);
    }
    hl_barrier();
    double per_correction1 = correction[0];
    float per_root2 = (float)(double)correction[1];
    float scale = *grad_scale, keep2 = (float)beta2, tiny = (float)eps;
    float take1 = (float)(1 - beta1), take2 = (float)(1 - beta2);
    walk(n, segments, n_segments, *lr, [=](double rate, double weight_decay) {
        float step = (float)(rate * per_correction1);
        float keep = decoupled ? (float)(1 - rate * weight_decay) : 1.0f;
        float decay = decoupled ? 0.0f : (float)weight_decay;
        return [=](int64_t i) {
            float p = param[i], g = grad[i] * scale + decay * p;
            float mean = m[i] + take1 * (g - m[i]), square = v[i] * keep2 + take2 * (g * g);
            m[i] = mean;
            v[i] = square;
            param[i] = p * keep - step * (mean / (sqrtf(square) * per_root2 + tiny));
        };
    });
}

HL_KERNEL(hl_cuda_rmsprop, MOST_THREADS, float *param, float *square, float *buffer, float *average,
          const float *grad, int64_t n, const double *segments, int64_t n_segments,
          const float *grad_scale, const float *lr, const hl_control *control, double alpha,
          double eps, double momentum, int centered, int is_apply)
{
    if (hl_is_blocked(control, is_apply)) return;
    float scale = *grad_scale, keep = (float)alpha, take = (float)(1 - alpha), tiny = (float)eps;
    float beta = (float)momentum;
    bool has_momentum = momentum > 0;
    walk(n, segments, n_segments, *lr, [=](double rate, double weight_decay) {
        float step = (float)rate, decay = (float)weight_decay;
        return [=](int64_t i) {
            float p = param[i], g = grad[i] * scale + decay * p;
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
            param[i] = p - step * move;
        };
    });
}

HL_KERNEL(hl_cuda_lion, MOST_THREADS, float *param, float *m, const float *grad, int64_t n,
          const double *segments, int64_t n_segments, const float *grad_scale, const float *lr,
          const hl_control *control, double beta1, double beta2, int is_apply)
{
    if (hl_is_blocked(control, is_apply)) return;
    float scale = *grad_scale, keep1 = (float)beta1, keep2 = (float)beta2;
    float take1 = (float)(1 - beta1), take2 = (float)(1 - beta2);
    walk(n, segments, n_segments, *lr, [=](double rate, double weight_decay) {
        float step = (float)rate, decay = (float)weight_decay;
        return [=](int64_t i) {
            float p = param[i], g = grad[i] * scale, old = m[i];
            float direction = keep1 * old + take1 * g;
            float sign = direction > 0 ? 1.0f : direction < 0 ? -1.0f : 0.0f;
            param[i] = p - step * (sign + decay * p);
            m[i] = keep2 * old + take2 * g;
        };
    });
}

/* ---- the gradient's norm: one pass over it; unscaling and clipping are a factor ---- */

enum { BATCH = 8 /* loads under way in a thread */ };

/* Of x[begin, end), by the block: of squares, or of sums of them. */
HL_DEVICE float add_up(const float *x, int64_t begin, int64_t end, bool is_square)
{
    hl_team team = hl_team_make(1);
    float sum = 0;
    for (int64_t i = begin + team.rank; i < end; i += (int64_t)BATCH * team.size) {
        float v[BATCH];
        HL_UNROLL
        for (int j = 0; j < BATCH; j++) {
            int64_t at = i + (int64_t)j * team.size;
            v[j] = at < end ? x[at] : 0.0f;
        }
        HL_UNROLL
        for (int j = 0; j < BATCH; j++) sum += is_square ? v[j] * v[j] : v[j];
    }
    return hl_team_sum(team, sum);
}

/* Launch: one block a part, 256 threads. */
HL_KERNEL(hl_cuda_gradient_norm_parts, MOST_THREADS, const float *grad, int64_t n, int64_t part,
          float *sums)
{
    int64_t begin = hl_block_x() * part, end = begin + part < n ? begin + part : n;
    float sum = add_up(grad, begin, end, true);
    if (hl_thread() == 0) sums[hl_block_x()] = sum;
}

/* x: the gradient itself where it is one part, else the parts' sums. scale may be NULL; clip 0:
 * none. control NULL: none, else the transition to apply follows, by the square at `next_square`.
 * Launch: one block, up to 1024 threads. */
HL_KERNEL(hl_cuda_gradient_norm, 1024, const float *x, int64_t n, int is_square,
          const float *factor, const float *scale, float clip, float *out_square, float *out_factor,
          hl_control *control, const void *next_square, int32_t next_dtype)
{
    float sum = add_up(x, 0, n, is_square != 0);
    if (hl_thread() > 0) return;
    float f = scale ? *factor / *scale : *factor;
    float square = sum * f * f;
    float ratio = clip > 0 ? clip / (sqrtf(square) + 1e-6f) : 1.0f;
    *out_square = square;
    *out_factor = ratio >= 1 ? f : f * ratio; /* NaN stays */
    if (control) hl_control_apply(control, hl_read_any(next_square, next_dtype, 0));
}
