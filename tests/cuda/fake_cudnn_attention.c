/* Attention as the fake cuDNN knows it: how its descriptors are finalized, and what it computes, by
 * definition, in float32, with all scores of a query at a time. */
#include <math.h>
#include <stdlib.h>

#include "tests/cuda/fake_cudnn_desc.h"

/* ---- finalizing ------------------------------------------------------------------------------ */

static bool read_tensor(const desc *d, int name, tensor *out)
{
    const desc *link = hl_fake_dnn_link(d, name, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    if (link) *out = link->as.tensor;
    return link;
}

/* One float, by value. */
static bool is_number(const tensor *t)
{
    bool is_one = t->rank == 4 && t->type == CUDNN_DATA_FLOAT && t->is_by_value && !t->is_virtual;
    for (int i = 0; i < 4; i++) is_one = is_one && t->dim[i] == 1;
    return is_one;
}

/* Row-major, of these dims. */
static bool is_whole(const tensor *t, int64_t b, int64_t h, int64_t n, int64_t e)
{
    const int64_t dim[] = {b, h, n, e}, stride[] = {h * n * e, n * e, e, 1};
    bool fits = t->rank == 4;
    for (int i = 0; i < 4; i++) fits = fits && t->dim[i] == dim[i] && t->stride[i] == stride[i];
    return fits;
}

cudnnStatus_t hl_fake_dnn_finalize_band(desc *d)
{
    attention *a = &d->as.attention;
    int64_t mode = -1;
    a->type = d->type;
    if (!read_tensor(d, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_XDESC, &a->x) ||
        !read_tensor(d, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_YDESC, &a->y) ||
        !read_tensor(d, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_BDESC, &a->hidden) ||
        !is_number(&a->hidden) || !a->x.is_virtual || !a->y.is_virtual)
        return hl_fake_dnn_complain("a mask that is not whole");
    hl_fake_dnn_numbers(d, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_COMPARISON_MODE, &mode);
    if (mode != CUDNN_POINTWISE_CMP_GE) return hl_fake_dnn_complain("a mask of another kind");
    return CUDNN_STATUS_SUCCESS;
}

/* Arguments in the order of the node's. */
static const int forward_names[] = {
    CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC, CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC,
    CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC, CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC,
    CUDNN_ATTR_OPERATION_SDPA_FWD_STATSDESC};
static const int grad_names[] = {
    CUDNN_ATTR_OPERATION_SDPA_BWD_DODDESC, CUDNN_ATTR_OPERATION_SDPA_BWD_QDESC,
    CUDNN_ATTR_OPERATION_SDPA_BWD_KDESC,   CUDNN_ATTR_OPERATION_SDPA_BWD_VDESC,
    CUDNN_ATTR_OPERATION_SDPA_BWD_ODESC,   CUDNN_ATTR_OPERATION_SDPA_BWD_STATSDESC,
    CUDNN_ATTR_OPERATION_SDPA_BWD_DQDESC,  CUDNN_ATTR_OPERATION_SDPA_BWD_DKDESC,
    CUDNN_ATTR_OPERATION_SDPA_BWD_DVDESC};

static bool is_grad(const attention *a)
{
    return a->type == CUDNN_BACKEND_OPERATION_SDPA_BWD_DESCRIPTOR;
}

static cudnnStatus_t check_shapes(const attention *a)
{
    const tensor *q = &a->arg[is_grad(a)], *k = q + 1, *v = q + 2, *out = q + 3, *lse = q + 4;
    int64_t B = q->dim[0], H = q->dim[1], L = q->dim[2], E = q->dim[3], Hk = k->dim[1],
            S = k->dim[2], Ev = v->dim[3];
    bool fits = is_whole(q, B, H, L, E) && is_whole(k, B, Hk, S, E) && is_whole(v, B, Hk, S, Ev) &&
                is_whole(out, B, H, L, Ev) && is_whole(lse, B, H, L, 1) && H % Hk == 0;
    if (is_grad(a))
        fits = fits && is_whole(&a->arg[0], B, H, L, Ev) && is_whole(&a->arg[6], B, H, L, E) &&
               is_whole(&a->arg[7], B, Hk, S, E) && is_whole(&a->arg[8], B, Hk, S, Ev);
    for (int64_t i = 0; i < a->n; i++) {
        bool is_lse = &a->arg[i] == lse;
        if ((a->arg[i].type == CUDNN_DATA_FLOAT) != is_lse || a->arg[i].is_virtual ||
            (!is_lse && a->arg[i].type != q->type))
            return hl_fake_dnn_complain("attention of other types");
    }
    if (!fits) return hl_fake_dnn_complain("attention of other shapes");
    if (a->is_causal && (!is_whole(&a->x, B, H, L, S) || !is_whole(&a->y, B, H, L, S)))
        return hl_fake_dnn_complain("a mask of other scores");
    return E % 8 || Ev % 8 ? CUDNN_STATUS_NOT_SUPPORTED : CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t hl_fake_dnn_finalize_attention(desc *d)
{
    attention *a = &d->as.attention;
    bool is_forward = d->type == CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR;
    const int *names = is_forward ? forward_names : grad_names;
    int within = is_forward ? CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH
                            : CUDNN_ATTR_OPERATION_SDPA_BWD_SUBGRAPH;
    a->type = d->type, a->n = is_forward ? 5 : 9;
    for (int64_t i = 0; i < a->n; i++)
        if (!read_tensor(d, names[i], &a->arg[i]))
            return hl_fake_dnn_complain("attention that is not whole");
    if (!read_tensor(d,
                     is_forward ? CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC
                                : CUDNN_ATTR_OPERATION_SDPA_BWD_SCALEDESC,
                     &a->scale) ||
        !is_number(&a->scale))
        return hl_fake_dnn_complain("attention without a scale");
    const desc *graph = hl_fake_dnn_link(d, within, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    if (graph) {
        int64_t from = -1, to = -1;
        const attention *band = &graph->as.graph.attention;
        hl_fake_dnn_numbers(d, within + 1, &from);
        hl_fake_dnn_numbers(d, within + 2, &to);
        if (band->type != CUDNN_BACKEND_OPERATION_DIAGONAL_BAND_MASK_DESCRIPTOR ||
            band->x.id != from || band->y.id != to)
            return hl_fake_dnn_complain("a graph within that is no mask");
        a->is_causal = 1, a->hidden = band->hidden, a->x = band->x, a->y = band->y;
    }
    return check_shapes(a);
}

/* ---- computing ------------------------------------------------------------------------------- */

typedef struct sizes {
    const job *j;
    const attention *a;
    int64_t type, H, L, S, E, Hk, Ev;
} sizes;

/* Element e of a row of an argument. */
static float read(const sizes *s, int arg, int64_t row, int64_t width, int64_t e)
{
    return hl_fake_dnn_load(s->j->arg[arg], s->type, row * width + e);
}

static float dot(const sizes *s, int a, int64_t row_a, int b, int64_t row_b, int64_t width)
{
    float sum = 0;
    for (int64_t e = 0; e < width; e++)
        sum += read(s, a, row_a, width, e) * read(s, b, row_b, width, e);
    return sum;
}

static float find_score(const sizes *s, int q, int64_t row, int64_t keys, int64_t key)
{
    if (s->a->is_causal && key > row % s->L) return s->j->hidden;
    return s->j->scale * dot(s, q, row, q + 1, keys * s->S + key, s->E);
}

static int64_t find_keys(const sizes *s, int64_t row)
{
    int64_t head = row / s->L;
    return head / s->H * s->Hk + head % s->H / (s->H / s->Hk);
}

static void attend_row(const sizes *s, int64_t row)
{
    int64_t keys = find_keys(s, row);
    float top = -INFINITY, sum = 0;
    for (int64_t k = 0; k < s->S; k++) top = fmaxf(top, find_score(s, 0, row, keys, k));
    for (int64_t k = 0; k < s->S; k++) sum += expf(find_score(s, 0, row, keys, k) - top);
    for (int64_t e = 0; e < s->Ev; e++) {
        float out = 0;
        for (int64_t k = 0; k < s->S; k++)
            out += expf(find_score(s, 0, row, keys, k) - top) / sum *
                   read(s, 2, keys * s->S + k, s->Ev, e);
        hl_fake_dnn_store(s->j->arg[3], s->type, row * s->Ev + e, out);
    }
    ((float *)s->j->arg[4])[row] = top + logf(sum);
}

/* A row's part of all gradients. */
static void add_row(const sizes *s, int64_t row, float *dq, float *dk, float *dv)
{
    int64_t keys = find_keys(s, row);
    float delta = dot(s, 0, row, 4, row, s->Ev), lse = ((const float *)s->j->arg[5])[row];
    for (int64_t k = 0; k < s->S; k++) {
        int64_t key = keys * s->S + k;
        float w = expf(find_score(s, 1, row, keys, k) - lse);
        float ds = w * (dot(s, 0, row, 3, key, s->Ev) - delta) * s->j->scale;
        for (int64_t e = 0; e < s->E; e++) {
            dq[row * s->E + e] += ds * read(s, 2, key, s->E, e);
            dk[key * s->E + e] += ds * read(s, 1, row, s->E, e);
        }
        for (int64_t e = 0; e < s->Ev; e++) dv[key * s->Ev + e] += w * read(s, 0, row, s->Ev, e);
    }
}

void hl_fake_dnn_attend(const job *j)
{
    const attention *a = &j->p.attention;
    const tensor *q = &a->arg[is_grad(a)], *k = q + 1, *v = q + 2;
    sizes s = {j, a, q->type, q->dim[1], q->dim[2], k->dim[2], q->dim[3], k->dim[1], v->dim[3]};
    int64_t n_rows = q->dim[0] * s.H * s.L, n_keys = q->dim[0] * s.Hk * s.S;
    if (!is_grad(a)) {
        for (int64_t row = 0; row < n_rows; row++) attend_row(&s, row);
        return;
    }
    const int64_t n[] = {n_rows * s.E, n_keys * s.E, n_keys * s.Ev};
    float *sum[3];
    for (int i = 0; i < 3; i++) sum[i] = calloc((size_t)n[i], sizeof *sum[i]);
    for (int64_t row = 0; row < n_rows; row++) add_row(&s, row, sum[0], sum[1], sum[2]);
    for (int i = 0; i < 3; i++) {
        for (int64_t e = 0; e < n[i]; e++) hl_fake_dnn_store(j->arg[6 + i], s.type, e, sum[i][e]);
        free(sum[i]);
    }
}
