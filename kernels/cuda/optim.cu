/* Optimizers over the flat parameter buffer: one launch, one pass over memory.
 *
 * A block takes tiles of the buffer and walks the segments that meet a tile, which gives each
 * element its learning rate scale and weight decay; segments need no order, and what none covers is
 * left as it is. The formulas are kernels/cpu/optim.c's (torch.optim's, in its fp32 order);
 * coefficients that a step has in common are made in double and rounded once, and the powers of
 * Adam's correction by one thread of a block, for double is slow on most GPUs. When the guard is
 * down nothing is touched.
 *
 * Launch: any grid; any threads. State buffers that the attributes do not need may be NULL. */
#include "kernels/cuda/fault.h"

enum { TILE = 2048 };

/* fn(i, lr, decay), lr in double for the segment. */
template <class Make>
HL_DEVICE void walk(int64_t n, const double *segments, int64_t n_segments, float lr, Make make)
{
    for (int64_t tile = (int64_t)hl_block_x() * TILE; tile < n;
         tile += (int64_t)hl_blocks_x() * TILE) {
        int64_t end = tile + TILE < n ? tile + TILE : n;
        for (int64_t s = 0; s < n_segments; s++) {
            const double *segment = segments + 4 * s;
            int64_t first = (int64_t)segment[0], last = (int64_t)segment[1];
            if (first < tile) first = tile;
            if (last > end) last = end;
            if (first >= last) continue;
            auto step = make((double)lr * segment[2], segment[3]);
            for (int64_t i = first + hl_thread(); i < last; i += hl_threads()) step(i);
        }
    }
}

/* The first step's buffer is the gradient itself: dampening begins with the second. */
HL_KERNEL(hl_cuda_sgd, 1024, float *param, float *buffer, const float *grad, int64_t n,
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

HL_KERNEL(hl_cuda_adam, 1024, float *param, float *m, float *v, const float *grad, int64_t n,
          const double *segments, int64_t n_segments, const float *grad_scale, const float *lr,
          const hl_control *control, double beta1, double beta2, double eps, int decoupled,
          int is_apply)
{
    if (hl_is_blocked(control, is_apply)) return;
    HL_SHARED(double, correction, 2);
    if (hl_thread() == 0) {
        correction[0] = 1 / (1 - pow(beta1, (double)control->applied));
        correction[1] = 1 / sqrt(1 - pow(beta2, (double)control->applied));
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

HL_KERNEL(hl_cuda_rmsprop, 1024, float *param, float *square, float *buffer, float *average,
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

HL_KERNEL(hl_cuda_lion, 1024, float *param, float *m, const float *grad, int64_t n,
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
