/* Optimizers over flat buffers, each as its paper and torch.optim's single-tensor form have it.
 *
 * A segment gives its elements a learning rate scale, a weight decay and the age of their states;
 * what no segment covers is left alone. The guard is up only after CONTROL_APPLY, so
 * control->applied is this step's number, from 1. */
#include <math.h>

#include "kernels/ref/ref.h"

enum { SEGMENT_BEGIN, SEGMENT_END, SEGMENT_LR, SEGMENT_DECAY, SEGMENT_BEGAN, SEGMENT_FIELDS };

/* Operands of any optimizer with n_state state buffers. */
typedef struct update {
    const hl_attrs *attrs;
    double *param, *state[3];
    const double *grad, *segments;
    int64_t n_segments;
    double grad_scale, lr;
} update;

/* One element's gradient, scaled, and what its segment says: power, of Adam's betas. */
typedef struct element {
    int64_t i;
    double grad, lr, decay;
    int64_t age;
    double power[2];
} element;

typedef void (*update_fn)(const update *u, element e);

static hl_status update_segments(const hl_kernel_state *state, void *const *args,
                                 const hl_launch *launch, int n_state, update_fn fn)
{
    const hl_ref_call *call = state->impl;
    const hl_control *control = args[call->n_in - 1];
    if (hl_launch_blocked(launch, control)) return HL_OK;
    void *const *rest = args + 1 + n_state; /* grad, segments, grad_scale, lr */
    update u = {.attrs = &call->attrs,
                .param = args[0],
                .grad = rest[0],
                .segments = rest[1],
                .n_segments = call->in[2 + n_state].shape.dim[0],
                .grad_scale = *(const double *)rest[2],
                .lr = *(const double *)rest[3]};
    for (int s = 0; s < n_state; s++) u.state[s] = args[1 + s];
    for (int64_t s = 0; s < u.n_segments; s++) {
        const double *segment = u.segments + s * SEGMENT_FIELDS;
        int64_t end = (int64_t)segment[SEGMENT_END];
        element e = {.lr = u.lr * segment[SEGMENT_LR],
                     .decay = segment[SEGMENT_DECAY],
                     .age = hl_control_age(control, segment[SEGMENT_BEGAN])};
        for (int b = 0; b < 2; b++) e.power[b] = hl_control_power(control, b, e.age);
        for (e.i = (int64_t)segment[SEGMENT_BEGIN]; e.i < end; e.i++) {
            e.grad = u.grad[e.i] * u.grad_scale;
            fn(&u, e);
        }
    }
    return HL_OK;
}

/* The first step's buffer is the gradient itself: dampening begins with the second. */
static void update_sgd(const update *u, element e)
{
    double momentum = u->attrs->sgd.momentum, dampening = u->attrs->sgd.dampening;
    double grad = e.grad + e.decay * u->param[e.i];
    if (momentum != 0) {
        double *buffer = &u->state[0][e.i];
        *buffer = e.age == 1 ? grad : momentum * *buffer + (1 - dampening) * grad;
        grad = u->attrs->sgd.nesterov ? grad + momentum * *buffer : *buffer;
    }
    u->param[e.i] -= e.lr * grad;
}

static void update_adam(const update *u, element e)
{
    const hl_attrs_adam *adam = &u->attrs->adam;
    double beta1 = adam->beta1, beta2 = adam->beta2, eps = adam->eps;
    bool is_decoupled = adam->decoupled;
    double *param = &u->param[e.i], *m = &u->state[0][e.i], *v = &u->state[1][e.i];
    double grad = is_decoupled ? e.grad : e.grad + e.decay * *param;
    if (is_decoupled) *param *= 1 - e.lr * e.decay;
    *m = beta1 * *m + (1 - beta1) * grad;
    *v = beta2 * *v + (1 - beta2) * grad * grad;
    double correction1 = 1 - e.power[0], correction2 = 1 - e.power[1];
    *param -= e.lr / correction1 * *m / (sqrt(*v) / sqrt(correction2) + eps);
}

static void update_rmsprop(const update *u, element e)
{
    const hl_attrs_rmsprop *attrs = &u->attrs->rmsprop;
    double alpha = attrs->alpha, eps = attrs->eps, momentum = attrs->momentum;
    double *param = &u->param[e.i], *square = &u->state[0][e.i];
    double grad = e.grad + e.decay * *param;
    *square = alpha * *square + (1 - alpha) * grad * grad;
    double variance = *square;
    if (attrs->centered) {
        double *average = &u->state[2][e.i];
        *average = alpha * *average + (1 - alpha) * grad;
        variance -= *average * *average;
    }
    double step = grad / (sqrt(variance) + eps);
    if (momentum > 0) {
        double *buffer = &u->state[1][e.i];
        *buffer = momentum * *buffer + step;
        step = *buffer;
    }
    *param -= e.lr * step;
}

static void update_lion(const update *u, element e)
{
    double beta1 = u->attrs->lion.beta1, beta2 = u->attrs->lion.beta2;
    double *param = &u->param[e.i], *m = &u->state[0][e.i];
    double direction = beta1 * *m + (1 - beta1) * e.grad;
    double sign = (direction > 0) - (direction < 0);
    *param -= e.lr * (sign + e.decay * *param);
    *m = beta2 * *m + (1 - beta2) * e.grad;
}

static hl_status launch_sgd(const hl_kernel_state *state, void *const *args,
                            const hl_launch *launch, hl_stream *stream)
{
    (void)stream;
    return update_segments(state, args, launch, 1, update_sgd);
}

static hl_status launch_adam(const hl_kernel_state *state, void *const *args,
                             const hl_launch *launch, hl_stream *stream)
{
    (void)stream;
    return update_segments(state, args, launch, 2, update_adam);
}

static hl_status launch_rmsprop(const hl_kernel_state *state, void *const *args,
                                const hl_launch *launch, hl_stream *stream)
{
    (void)stream;
    return update_segments(state, args, launch, 3, update_rmsprop);
}

static hl_status launch_lion(const hl_kernel_state *state, void *const *args,
                             const hl_launch *launch, hl_stream *stream)
{
    (void)stream;
    return update_segments(state, args, launch, 1, update_lion);
}

/* in = grad, factor, loss scale or nothing */
static hl_status launch_gradient_norm(const hl_kernel_state *state, void *const *args,
                                      const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    const hl_ref_call *call = state->impl;
    const double *grad = args[0];
    double factor = *(const double *)args[1], clip = call->attrs.gradient_norm.clip, sum = 0;
    int64_t n = hl_shape_numel(&call->in[0].shape);
    if (call->n_in > 2) factor /= *(const double *)args[2];
    for (int64_t i = 0; i < n; i++) sum += grad[i] * grad[i];
    sum *= factor * factor;
    double ratio = clip > 0 ? clip / (sqrt(sum) + 1e-6) : 1;
    *(double *)args[call->n_in] = sum;
    *(double *)args[call->n_in + 1] = ratio < 1 || isnan(ratio) ? factor * ratio : factor;
    return HL_OK;
}

static const hl_kernel kernels[] = {
    HL_REF_KERNEL(GRADIENT_NORM, "gradient_norm", hl_ref_query_f64, launch_gradient_norm),
    HL_REF_KERNEL(SGD, "sgd", hl_ref_query_f64, launch_sgd),
    HL_REF_KERNEL(ADAM, "adam", hl_ref_query_f64, launch_adam),
    HL_REF_KERNEL(RMSPROP, "rmsprop", hl_ref_query_f64, launch_rmsprop),
    HL_REF_KERNEL(LION, "lion", hl_ref_query_f64, launch_lion),
};
const hl_ref_family hl_ref_optim = HL_REF_FAMILY(kernels);
