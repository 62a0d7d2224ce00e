/* Attention (Vaswani et al. 2017): the softmax of each query's scores, all of them in memory. */
#include <math.h>

#include "base/rng.h"
#include "kernels/ref/ref.h"

typedef struct attention {
    const hl_attrs_attention *attrs;
    int64_t B, H, L, E, Hk, S, Ev;
    const double *q, *k, *v;
    const void *mask; /* NULL: none */
    const hl_type *mask_type;
    const hl_control *control; /* NULL: no dropout */
    hl_rng_key key;
} attention;

/* Queries, keys and values stand at `first` and after it, mask and control at `rest`. */
static attention read_attention(const hl_ref_call *call, void *const *args, int first, int rest)
{
    const hl_type *in = call->in + first;
    attention a = {.attrs = &call->attrs.attention,
                   .B = in[0].shape.dim[0],
                   .H = in[0].shape.dim[1],
                   .L = in[0].shape.dim[2],
                   .E = in[0].shape.dim[3],
                   .Hk = in[1].shape.dim[1],
                   .S = in[1].shape.dim[2],
                   .Ev = in[2].shape.dim[3],
                   .q = args[first],
                   .k = args[first + 1],
                   .v = args[first + 2]};
    if (a.attrs->has_mask) a.mask = args[rest], a.mask_type = &call->in[rest];
    if (a.attrs->p > 0) {
        a.control = args[call->n_in - 1];
        a.key = hl_rng_key_make((uint64_t)a.attrs->seed, a.attrs->stream);
    }
    return a;
}

/* A query's head and the keys' that it shares with others. */
typedef struct row {
    int64_t b, h, l, of_query, of_keys; /* of_query: in (B,H,L); of_keys: in (B,Hk) */
} row;

static row find_row(const attention *a, int64_t r)
{
    row at = {.l = r % a->L, .h = r / a->L % a->H, .b = r / a->L / a->H, .of_query = r};
    at.of_keys = at.b * a->Hk + at.h / (a->H / a->Hk);
    return at;
}

static double dot(const double *a, const double *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* -inf: the query does not see the key. */
static double find_score(const attention *a, row at, int64_t s)
{
    double score = a->attrs->scale *
                   dot(a->q + at.of_query * a->E, a->k + (at.of_keys * a->S + s) * a->E, a->E);
    if (a->attrs->is_causal && s > at.l) return -INFINITY;
    if (!a->mask) return score;
    const int64_t places[] = {at.b, at.h, at.l, s}, *dim = a->mask_type->shape.dim;
    int64_t i = 0;
    for (int d = 0; d < 4; d++) i = i * dim[d] + (dim[d] == 1 ? 0 : places[d]);
    if (a->mask_type->dtype == HL_DTYPE_BOOL)
        return hl_ref_load_int(a->mask, HL_DTYPE_BOOL, i) ? score : -INFINITY;
    return score + hl_ref_load(a->mask, a->mask_type->dtype, i);
}

/* What dropout multiplies the softmax by. */
static double find_drop(const attention *a, row at, int64_t s)
{
    if (!a->control) return 1;
    uint16_t bits = hl_rng_bits16(a->key, (uint32_t)a->control->attempted,
                                  (uint64_t)(a->control->micro_row + at.b),
                                  (uint64_t)((at.h * a->L + at.l) * a->S + s));
    return bits < hl_dropout_threshold(a->attrs->p) ? 0 : hl_dropout_scale(a->attrs->p);
}

/* q, k, v[, mask][, control] -> out (B,H,L,Ev), the logarithms of the rows' sums and what rounding
 * took from each (2,B,H,L) */
static hl_status launch_attention(const hl_kernel_state *state, void *const *args,
                                  const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    const hl_ref_call *call = state->impl;
    attention a = read_attention(call, args, 0, 3);
    int64_t n_rows = a.B * a.H * a.L;
    double *out = args[call->n_in], *lse = args[call->n_in + 1], *rest = lse + n_rows;
    for (int64_t r = 0; r < n_rows; r++) {
        row at = find_row(&a, r);
        double largest = -INFINITY, sum = 0, *to = out + r * a.Ev;
        for (int64_t s = 0; s < a.S; s++) {
            double score = find_score(&a, at, s);
            if (score > largest || isnan(score)) largest = score; /* a NaN stays it */
        }
        for (int64_t e = 0; e < a.Ev; e++) to[e] = 0;
        lse[r] = INFINITY, rest[r] = 0;
        if (largest == -INFINITY) continue;
        for (int64_t s = 0; s < a.S; s++) sum += exp(find_score(&a, at, s) - largest);
        lse[r] = largest + log(sum);
        rest[r] = log(sum) - (lse[r] - largest);
        for (int64_t s = 0; s < a.S; s++) {
            double w = exp(find_score(&a, at, s) - largest) / sum * find_drop(&a, at, s);
            for (int64_t e = 0; e < a.Ev; e++) to[e] += w * a.v[(at.of_keys * a.S + s) * a.Ev + e];
        }
    }
    return HL_OK;
}

/* dout, q, k, v, out, lse[, mask][, control] -> dq, dk, dv */
static hl_status launch_attention_grad(const hl_kernel_state *state, void *const *args,
                                       const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    const hl_ref_call *call = state->impl;
    attention a = read_attention(call, args, 1, 6);
    int64_t n_rows = a.B * a.H * a.L;
    const double *dout = args[0], *out = args[4], *lse = args[5], *rest = lse + n_rows;
    double *dq = args[call->n_in], *dk = args[call->n_in + 1], *dv = args[call->n_in + 2];
    for (int64_t i = 0; i < n_rows * a.E; i++) dq[i] = 0;
    for (int64_t i = 0; i < a.B * a.Hk * a.S * a.E; i++) dk[i] = 0;
    for (int64_t i = 0; i < a.B * a.Hk * a.S * a.Ev; i++) dv[i] = 0;
    for (int64_t r = 0; r < n_rows; r++) {
        row at = find_row(&a, r);
        const double *dy = dout + r * a.Ev;
        double delta = dot(dy, out + r * a.Ev, a.Ev);
        for (int64_t s = 0; s < a.S; s++) {
            int64_t key = at.of_keys * a.S + s;
            double w = exp(find_score(&a, at, s) - lse[r] - rest[r]), drop = find_drop(&a, at, s);
            double g = drop * dot(dy, a.v + key * a.Ev, a.Ev),
                   ds = w * (g - delta) * a.attrs->scale;
            for (int64_t e = 0; e < a.E; e++) {
                dq[r * a.E + e] += ds * a.k[key * a.E + e];
                dk[key * a.E + e] += ds * a.q[r * a.E + e];
            }
            for (int64_t e = 0; e < a.Ev; e++) dv[key * a.Ev + e] += w * drop * dy[e];
        }
    }
    return HL_OK;
}

static const hl_kernel kernels[] = {
    HL_REF_KERNEL(ATTENTION, "attention", hl_ref_query_f64, launch_attention),
    HL_REF_KERNEL(ATTENTION_GRAD, "attention_grad", hl_ref_query_f64, launch_attention_grad),
};
const hl_ref_family hl_ref_attention = HL_REF_FAMILY(kernels);
