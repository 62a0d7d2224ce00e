/* Connectionist temporal classification, by the recursions of Graves et al. 2006, section 4.1, in
 * logarithms. A probability of a path ends at time t in place s of blank, l_1, blank, ..., blank.
 */
#include <math.h>

#include "kernels/ref/ref.h"

/* One sequence. */
typedef struct sequence {
    int64_t T, N, C, S, n; /* sizes, and which of N it is */
    int64_t time, places;  /* its own length, and 2 U + 1 */
    int64_t blank;
    const double *log_probs; /* (T,N,C) */
    const void *targets;     /* (N,S) */
    hl_dtype target_dtype;
} sequence;

static double log_add(double a, double b)
{
    double top = a > b ? a : b, low = a > b ? b : a;
    return top == -INFINITY ? top : top + log1p(exp(low - top));
}

static int64_t find_class(const sequence *q, int64_t s)
{
    if (s % 2 == 0) return q->blank;
    return hl_ref_load_int(q->targets, q->target_dtype, q->n * q->S + s / 2);
}

static double read_log_prob(const sequence *q, int64_t t, int64_t s)
{
    return q->log_probs[(t * q->N + q->n) * q->C + find_class(q, s)];
}

/* A path may come to place s from s - 2: not past a blank between two of the same class. */
static bool may_skip(const sequence *q, int64_t s)
{
    return s >= 2 && s % 2 == 1 && find_class(q, s) != find_class(q, s - 2);
}

/* Sequence n of the operands from `first` on; false where it counts 0: a fault. */
static bool take_sequence(const hl_ref_call *call, void *const *args, int first, int64_t n,
                          const hl_launch *launch, sequence *out)
{
    const int64_t *dim = call->in[first].shape.dim;
    *out = (sequence){.T = dim[0],
                      .N = dim[1],
                      .C = dim[2],
                      .S = call->in[first + 1].shape.dim[1],
                      .n = n,
                      .blank = call->attrs.ctc.blank,
                      .log_probs = args[first],
                      .targets = args[first + 1],
                      .target_dtype = call->in[first + 1].dtype};
    int64_t length[2], most[] = {out->T, out->S};
    for (int i = 0; i < 2; i++) {
        length[i] = hl_ref_load_int(args[first + 2 + i], call->in[first + 2 + i].dtype, n);
        if (length[i] >= 0 && length[i] <= most[i]) continue;
        hl_launch_fault(launch, 3 * n + i, length[i]);
        return false;
    }
    out->time = length[0], out->places = 2 * length[1] + 1;
    for (int64_t s = 1; s < out->places; s += 2) {
        int64_t c = find_class(out, s);
        if (c >= 0 && c < out->C && c != out->blank) continue;
        hl_launch_fault(launch, 3 * (n * out->S + s / 2) + 2, c);
        return false;
    }
    return true;
}

/* -log of the probability of all paths, of those that have come to each place at the end. */
static double find_loss(const sequence *q, const double *alpha)
{
    int64_t width = 2 * q->S + 1;
    if (q->time == 0) return q->places == 1 ? 0 : INFINITY;
    const double *last = alpha + (q->time - 1) * width;
    return -(q->places == 1 ? last[0] : log_add(last[q->places - 1], last[q->places - 2]));
}

/* alpha (T,2S+1): the probability of all paths that come to s at t, -inf where there are none. */
static void fill_alpha(const sequence *q, double *alpha)
{
    int64_t width = 2 * q->S + 1;
    for (int64_t t = 0; t < q->time; t++)
        for (int64_t s = 0; s < q->places; s++) {
            double *to = alpha + t * width + s, *from = to - width, sum = -INFINITY;
            if (t == 0) sum = s < 2 ? 0 : -INFINITY;
            if (t > 0) sum = from[0];
            if (t > 0 && s >= 1) sum = log_add(sum, from[-1]);
            if (t > 0 && may_skip(q, s)) sum = log_add(sum, from[-2]);
            *to = sum + read_log_prob(q, t, s);
        }
}

static hl_status launch_ctc_loss(const hl_kernel_state *state, void *const *args,
                                 const hl_launch *launch, hl_stream *stream)
{
    (void)stream;
    const hl_ref_call *call = state->impl;
    const int64_t *dim = call->out[1].shape.dim;
    double *loss = args[call->n_in];
    for (int64_t n = 0; n < dim[0]; n++) {
        double *alpha = (double *)args[call->n_in + 1] + n * dim[1] * dim[2];
        sequence q;
        for (int64_t i = 0; i < dim[1] * dim[2]; i++) alpha[i] = -INFINITY;
        loss[n] = 0;
        if (!take_sequence(call, args, 0, n, launch, &q)) continue;
        fill_alpha(&q, alpha);
        loss[n] = find_loss(&q, alpha);
        if (call->attrs.ctc.zero_infinity && isinf(loss[n])) loss[n] = 0;
    }
    return HL_OK;
}

/* At one time: beta (2S+1), the probability of going on from each place, is taken back by a step;
 * what each class has of all paths leaves its gradient. */
static void take_back(const sequence *q, int64_t t, const double *alpha, double loss, double dloss,
                      double *beta, double *grad)
{
    for (int64_t c = 0; c < q->C; c++)
        grad[c] = dloss * exp(q->log_probs[(t * q->N + q->n) * q->C + c]);
    for (int64_t s = 0; s < q->places; s++)
        grad[find_class(q, s)] -= dloss * exp(alpha[s] + beta[s] + loss);
    /* beta of t - 1, from the lowest place on: it reads those above. */
    for (int64_t s = 0; s < q->places; s++) {
        double sum = beta[s] + read_log_prob(q, t, s);
        if (s + 1 < q->places) sum = log_add(sum, beta[s + 1] + read_log_prob(q, t, s + 1));
        if (s + 2 < q->places && may_skip(q, s + 2))
            sum = log_add(sum, beta[s + 2] + read_log_prob(q, t, s + 2));
        beta[s] = sum;
    }
}

static hl_status launch_ctc_loss_grad(const hl_kernel_state *state, void *const *args,
                                      const hl_launch *launch, hl_stream *stream)
{
    (void)stream;
    const hl_ref_call *call = state->impl;
    const int64_t *dim = call->in[5].shape.dim;
    int64_t N = dim[0], T = dim[1], width = dim[2], C = call->out[0].shape.dim[2];
    double *beta = launch->scratch, *grad = args[call->n_in];
    for (int64_t i = 0; i < T * N * C; i++) grad[i] = 0;
    for (int64_t n = 0; n < N; n++) {
        const double *alpha = (const double *)args[5] + n * T * width;
        sequence q;
        if (!take_sequence(call, args, 1, n, launch, &q)) continue;
        double loss = find_loss(&q, alpha), dloss = ((const double *)args[0])[n];
        if (call->attrs.ctc.zero_infinity && isinf(loss)) continue;
        if (isinf(loss)) dloss = NAN;
        for (int64_t s = 0; s < q.places; s++) beta[s] = s + 2 >= q.places ? 0 : -INFINITY;
        for (int64_t t = q.time - 1; t >= 0; t--)
            take_back(&q, t, alpha + t * width, loss, dloss, beta, grad + (t * N + n) * C);
    }
    return HL_OK;
}

static hl_status query_ctc_loss_grad(hl_device *device, const hl_graph *graph, hl_node_id id,
                                     hl_kernel_req *out_req, hl_reason *out_why_not)
{
    const hl_shape *alpha = &hl_node_in_type(graph, &graph->nodes[id], 5)->shape;
    out_req->scratch_bytes = (size_t)alpha->dim[2] * sizeof(double);
    return hl_ref_query_f64(device, graph, id, out_req, out_why_not);
}

static const hl_kernel kernels[] = {
    HL_REF_KERNEL(CTC_LOSS, "ctc_loss", hl_ref_query_f64, launch_ctc_loss),
    HL_REF_KERNEL(CTC_LOSS_GRAD, "ctc_loss_grad", query_ctc_loss_grad, launch_ctc_loss_grad),
};
const hl_ref_family hl_ref_ctc = HL_REF_FAMILY(kernels);
