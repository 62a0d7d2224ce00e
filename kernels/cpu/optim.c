/* Optimizers over the flat parameter buffer: one pass over memory per step.
 *
 * The segment table gives each stretch its learning rate scale, weight decay and the age of its
 * states; a block of elements visits the segments that meet it. The formulas are torch.optim's, in
 * its fp32 order of operations (torch 2.13, single-tensor form); coefficients that a step has in
 * common are made in double and rounded once. What no segment covers is left as it is, and
 * everything is when the step is not applied. */
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/simd/simd.h"

typedef struct optim_state {
    hl_op op;
    int n_state;
    int64_t n, n_segments;
    hl_attrs attrs;
} optim_state;

/* The parameters of one stretch of elements. */
typedef struct stretch {
    float *param, *state[3];
    const float *grad;
    float grad_scale;
    double lr, decay;
    int64_t age; /* steps of its states, this one among them */
    const hl_control *control;
    const hl_attrs *attrs;
} stretch;

static int count_states(hl_op op)
{
    return op == HL_OP_ADAM ? 2 : op == HL_OP_RMSPROP ? 3 : 1;
}

/* ---- one vector of elements; `at` is within the stretch, n the lanes in use ---- */

HL_SIMD hl_v take(const float *p, int64_t n)
{
    return n == HL_VL ? hl_v_load(p) : hl_v_load_n(p, n);
}
HL_SIMD void put(float *p, hl_v a, int64_t n)
{
    if (n == HL_VL) {
        hl_v_store(p, a);
    } else {
        hl_v_store_n(p, a, n);
    }
}

typedef struct sgd_terms {
    hl_v grad_scale, decay, lr, momentum, take_in;
    bool has_momentum, is_first, is_nesterov;
} sgd_terms;

static sgd_terms make_sgd(const stretch *s)
{
    const hl_attrs_sgd *attrs = &s->attrs->sgd;
    return (sgd_terms){.grad_scale = hl_v_set1(s->grad_scale),
                       .decay = hl_v_set1((float)s->decay),
                       .lr = hl_v_set1((float)s->lr),
                       .momentum = hl_v_set1((float)attrs->momentum),
                       .take_in = hl_v_set1((float)(1 - attrs->dampening)),
                       .has_momentum = attrs->momentum != 0,
                       .is_first = s->age == 1,
                       .is_nesterov = attrs->nesterov};
}

/* The first step's buffer is the gradient itself: dampening begins with the second. */
HL_SIMD void step_sgd(const stretch *s, const sgd_terms *t, int64_t at, int64_t n)
{
    hl_v param = take(s->param + at, n);
    hl_v grad = take(s->grad + at, n) * t->grad_scale + t->decay * param;
    if (t->has_momentum) {
        hl_v buffer = grad;
        if (!t->is_first) buffer = t->momentum * take(s->state[0] + at, n) + t->take_in * grad;
        put(s->state[0] + at, buffer, n);
        grad = t->is_nesterov ? grad + t->momentum * buffer : buffer;
    }
    put(s->param + at, param - t->lr * grad, n);
}

typedef struct adam_terms {
    hl_v grad_scale, decay, keep, beta1, beta2, rest1, rest2, eps, step_size, root_scale;
} adam_terms;

static adam_terms make_adam(const stretch *s)
{
    const hl_attrs_adam *attrs = &s->attrs->adam;
    double beta1 = attrs->beta1, beta2 = attrs->beta2;
    double correction[2];
    hl_control_correct(s->control, s->age, correction);
    return (adam_terms){.grad_scale = hl_v_set1(s->grad_scale),
                        .decay = hl_v_set1(attrs->decoupled ? 0 : (float)s->decay),
                        .keep = hl_v_set1(attrs->decoupled ? (float)(1 - s->lr * s->decay) : 1),
                        .beta1 = hl_v_set1((float)beta1),
                        .beta2 = hl_v_set1((float)beta2),
                        .rest1 = hl_v_set1((float)(1 - beta1)),
                        .rest2 = hl_v_set1((float)(1 - beta2)),
                        .eps = hl_v_set1((float)attrs->eps),
                        .step_size = hl_v_set1((float)(s->lr * correction[0])),
                        .root_scale = hl_v_set1((float)correction[1])};
}

HL_SIMD void step_adam(const stretch *s, const adam_terms *t, int64_t at, int64_t n)
{
    hl_v param = take(s->param + at, n);
    hl_v grad = take(s->grad + at, n) * t->grad_scale + t->decay * param;
    param = param * t->keep;
    hl_v m = take(s->state[0] + at, n), v = take(s->state[1] + at, n);
    m = m + t->rest1 * (grad - m);
    v = v * t->beta2 + t->rest2 * (grad * grad);
    put(s->state[0] + at, m, n);
    put(s->state[1] + at, v, n);
    hl_v size = hl_v_sqrt(v) * t->root_scale + t->eps;
    put(s->param + at, param - t->step_size * (m / size), n);
}

typedef struct rmsprop_terms {
    hl_v grad_scale, decay, alpha, rest, eps, lr, momentum;
    bool has_momentum, is_centered;
} rmsprop_terms;

static rmsprop_terms make_rmsprop(const stretch *s)
{
    const hl_attrs_rmsprop *attrs = &s->attrs->rmsprop;
    return (rmsprop_terms){.grad_scale = hl_v_set1(s->grad_scale),
                           .decay = hl_v_set1((float)s->decay),
                           .alpha = hl_v_set1((float)attrs->alpha),
                           .rest = hl_v_set1((float)(1 - attrs->alpha)),
                           .eps = hl_v_set1((float)attrs->eps),
                           .lr = hl_v_set1((float)s->lr),
                           .momentum = hl_v_set1((float)attrs->momentum),
                           .has_momentum = attrs->momentum > 0,
                           .is_centered = attrs->centered};
}

HL_SIMD void step_rmsprop(const stretch *s, const rmsprop_terms *t, int64_t at, int64_t n)
{
    hl_v param = take(s->param + at, n);
    hl_v grad = take(s->grad + at, n) * t->grad_scale + t->decay * param;
    hl_v square = take(s->state[0] + at, n) * t->alpha + t->rest * (grad * grad);
    put(s->state[0] + at, square, n);
    hl_v variance = square;
    if (t->is_centered) {
        hl_v average = take(s->state[2] + at, n);
        average = average + t->rest * (grad - average);
        put(s->state[2] + at, average, n);
        variance = square - average * average;
    }
    hl_v step = grad / (hl_v_sqrt(variance) + t->eps);
    if (t->has_momentum) {
        step = take(s->state[1] + at, n) * t->momentum + step;
        put(s->state[1] + at, step, n);
    }
    put(s->param + at, param - t->lr * step, n);
}

typedef struct lion_terms {
    hl_v grad_scale, decay, lr, beta1, rest1, beta2, rest2;
} lion_terms;

static lion_terms make_lion(const stretch *s)
{
    const hl_attrs_lion *attrs = &s->attrs->lion;
    return (lion_terms){.grad_scale = hl_v_set1(s->grad_scale),
                        .decay = hl_v_set1((float)s->decay),
                        .lr = hl_v_set1((float)s->lr),
                        .beta1 = hl_v_set1((float)attrs->beta1),
                        .rest1 = hl_v_set1((float)(1 - attrs->beta1)),
                        .beta2 = hl_v_set1((float)attrs->beta2),
                        .rest2 = hl_v_set1((float)(1 - attrs->beta2))};
}

HL_SIMD void step_lion(const stretch *s, const lion_terms *t, int64_t at, int64_t n)
{
    hl_v param = take(s->param + at, n), m = take(s->state[0] + at, n);
    hl_v grad = take(s->grad + at, n) * t->grad_scale;
    hl_v direction = t->beta1 * m + t->rest1 * grad, one = hl_v_set1(1);
    hl_v sign = hl_v_keep(hl_v_gt(direction, hl_v_zero()), one) -
                hl_v_keep(hl_v_lt(direction, hl_v_zero()), one);
    put(s->param + at, param - t->lr * (sign + t->decay * param), n);
    put(s->state[0] + at, t->beta2 * m + t->rest2 * grad, n);
}

/* ---- stretches ---- */

#define RUN(name)                                                                                  \
    static void run_##name(const stretch *s, int64_t n)                                            \
    {                                                                                              \
        name##_terms terms = make_##name(s);                                                       \
        int64_t i = 0;                                                                             \
        for (; i + HL_VL <= n; i += HL_VL) step_##name(s, &terms, i, HL_VL);                       \
        if (i < n) step_##name(s, &terms, i, n - i);                                               \
    }
RUN(sgd)
RUN(adam)
RUN(rmsprop)
RUN(lion)
#undef RUN

static void run_stretch(hl_op op, const stretch *s, int64_t n)
{
    if (op == HL_OP_SGD) {
        run_sgd(s, n);
    } else if (op == HL_OP_ADAM) {
        run_adam(s, n);
    } else if (op == HL_OP_RMSPROP) {
        run_rmsprop(s, n);
    } else {
        run_lion(s, n);
    }
}

static void run_optim(const hl_kernel_state *state, void *const *args, int64_t begin, int64_t end,
                      const hl_launch *launch)
{
    const optim_state *optim = state->impl;
    void *const *rest = args + 1 + optim->n_state; /* grad, segments, grad_scale, lr, control */
    const hl_control *control = rest[4];
    end = hl_cpu_min(end, optim->n);
    if (begin >= end || hl_launch_blocked(launch, control)) return;
    const float *grad = rest[0];
    const double *segments = rest[1];
    for (int64_t i = 0; i < optim->n_segments; i++) {
        const double *segment = segments + 5 * i;
        int64_t first = hl_cpu_max(begin, (int64_t)segment[0]);
        int64_t last = hl_cpu_min(end, (int64_t)segment[1]);
        if (first >= last) continue;
        stretch s = {.param = (float *)args[0] + first,
                     .grad = grad + first,
                     .grad_scale = *(const float *)rest[2],
                     .lr = (double)*(const float *)rest[3] * segment[2],
                     .decay = segment[3],
                     .age = hl_control_age(control, segment[4]),
                     .control = control,
                     .attrs = &optim->attrs};
        /* A buffer that the attributes do not need has no elements and is never touched. */
        for (int k = 0; k < optim->n_state; k++) {
            s.state[k] = args[1 + k] ? (float *)args[1 + k] + first : NULL;
        }
        run_stretch(optim->op, &s, last - first);
    }
}

static hl_status query_optim(hl_device *device, const hl_graph *graph, hl_node_id id,
                             hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    int n_state = count_states(node->op), segments = 2 + n_state;
    int64_t n = hl_shape_numel(&hl_node_in_type(graph, node, 0)->shape);
    for (int i = 0; i < node->n_in - 1; i++) {
        hl_dtype dtype = hl_node_in_type(graph, node, i)->dtype;
        if (i != segments && dtype != HL_DTYPE_F32) {
            return hl_reason_set(out_why_not, "needs float32, got %s", hl_dtype_name(dtype));
        }
    }
    out_req->rows = hl_cpu_max(n, 1);
    out_req->grain = n > 1 ? 1024 : 1;
    for (int i = 0; i < segments && n > 1; i++) {
        bool is_whole = hl_shape_numel(&hl_node_in_type(graph, node, i)->shape) == n;
        if (is_whole) out_req->row_in |= (uint64_t)1 << i;
    }
    out_req->row_out = hl_cpu_bits(1 + n_state);
    out_req->row_cost = 0.8;
    out_req->deterministic = true;
    return HL_OK;
}

static hl_status prepare_optim(hl_device *device, const hl_graph *graph, hl_node_id id,
                               hl_kernel_state *out_state)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    HL_TRY(hl_alloc_zero(sizeof(optim_state), &out_state->impl));
    optim_state *optim = out_state->impl;
    optim->op = node->op;
    optim->n_state = count_states(node->op);
    optim->n = hl_shape_numel(&hl_node_in_type(graph, node, 0)->shape);
    optim->n_segments = hl_node_in_type(graph, node, 2 + optim->n_state)->shape.dim[0];
    optim->attrs = node->attrs;
    return HL_OK;
}

#define KERNEL(OP, text)                                                                           \
    {.op = HL_OP_##OP,                                                                             \
     .name = HL_CPU_NAME(text),                                                                    \
     .query = query_optim,                                                                         \
     .prepare = prepare_optim,                                                                     \
     .block = run_optim}
static const hl_kernel sgd = KERNEL(SGD, "sgd");
static const hl_kernel adam = KERNEL(ADAM, "adam");
static const hl_kernel rmsprop = KERNEL(RMSPROP, "rmsprop");
static const hl_kernel lion = KERNEL(LION, "lion");

const hl_kernel *const HL_ISA_NAME(hl_cpu_optim_kernels)[] = {&sgd, &adam, &rmsprop, &lion, NULL};
