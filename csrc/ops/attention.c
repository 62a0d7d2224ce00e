/* Attention: softmax(q k^T scale + mask) v, whose scores lie nowhere in memory where a device has a
 * kernel for it. Heads of queries share those of keys and values in groups of neighbours.
 *
 * What forward keeps for the gradient is each row's largest score plus the logarithm of the sum of
 * powers, rounded, and what the rounding took from it. Where all scores of a row are large, as
 * below a mask that adds -1e9 to all keys, the rounded number has nothing left of the logarithm,
 * and the gradient would take the weights of the row's n equal keys as 1 instead of 1/n. The first
 * number alone is what cuDNN keeps, too. */
#include <math.h>

#include "ops/build.h"
#include "ops/check.h"
#include "ops/ops.h"

/* ---- operands -------------------------------------------------------------------------------- */

/* The sizes of a node whose queries, keys and values stand at `first` and after it. */
typedef struct sizes {
    int64_t B, H, L, E, Hk, S, Ev;
} sizes;

static hl_status read_sizes(const hl_graph *graph, const hl_node *node, int first, sizes *out)
{
    static const char *const names[] = {"the query", "the key", "the value"};
    const hl_type *in[3];
    for (int i = 0; i < 3; i++) {
        in[i] = hl_node_in_type(graph, node, first + i);
        HL_TRY(hl_check_float(in[i], names[i]));
        HL_TRY(hl_check_rank_exactly(in[i], 4, names[i]));
        HL_TRY(hl_check_dtype(in[i], in[0]->dtype, names[i]));
    }
    const int64_t *q = in[0]->shape.dim, *k = in[1]->shape.dim, *v = in[2]->shape.dim;
    *out = (sizes){q[0], q[1], q[2], q[3], k[1], k[2], v[3]};
    hl_shape key = {4, {q[0], k[1], k[2], q[3]}}, value = {4, {q[0], k[1], k[2], v[3]}};
    HL_TRY(hl_check_shape(in[1], &key, names[1]));
    HL_TRY(hl_check_shape(in[2], &value, names[2]));
    if (out->Hk < 1 ? out->H != 0 : out->H % out->Hk != 0)
        return hl_status_set(HL_ERROR_SHAPE,
                             "the heads of the query must be a multiple of the key's, got %lld and "
                             "%lld",
                             (long long)out->H, (long long)out->Hk);
    return HL_OK;
}

/* Of scores: float32 where operands have 16 bits. */
static hl_dtype find_own(hl_dtype dtype)
{
    return dtype == HL_DTYPE_F64 ? dtype : HL_DTYPE_F32;
}

/* Logarithms of the rows' sums, and what rounding took from each. */
static hl_type find_log_sums(const sizes *n, hl_dtype own)
{
    return (hl_type){own, {4, {2, n->B, n->H, n->L}}};
}

/* Behind them, if the attributes say so: a mask that broadcasts, bool or of the scores' own type,
 * and the control block, for dropout. */
static hl_status check_rest(const hl_graph *graph, const hl_node *node, int at, const sizes *n)
{
    const hl_attrs_attention *attrs = hl_attention_attrs(node);
    const hl_dtype q = hl_node_in_type(graph, node, at - 3)->dtype;
    const int64_t full[] = {n->B, n->H, n->L, n->S};
    bool drops = attrs->p > 0;
    if (!(attrs->p >= 0 && attrs->p <= 1))
        return hl_status_set(HL_ERROR_CONFIG, "p must lie in 0 ... 1, got %g", attrs->p);
    if (!isfinite(attrs->scale))
        return hl_status_set(HL_ERROR_CONFIG, "scale must be finite, got %g", attrs->scale);
    if (node->n_in != at + attrs->has_mask + drops)
        return hl_status_set(HL_ERROR_TRACE, "there must be %d operands, got %d",
                             at + attrs->has_mask + drops, node->n_in);
    if (attrs->has_mask) {
        const hl_type *mask = hl_node_in_type(graph, node, at);
        if (mask->dtype != HL_DTYPE_BOOL) HL_TRY(hl_check_dtype(mask, find_own(q), "the mask"));
        HL_TRY(hl_check_rank_exactly(mask, 4, "the mask"));
        for (int d = 0; d < 4; d++)
            if (mask->shape.dim[d] != 1 && mask->shape.dim[d] != full[d])
                return hl_status_set(HL_ERROR_SHAPE,
                                     "the mask must broadcast to (%lld, %lld, %lld, %lld), got "
                                     "%lld in dim %d",
                                     (long long)full[0], (long long)full[1], (long long)full[2],
                                     (long long)full[3], (long long)mask->shape.dim[d], d);
    }
    if (!drops) return HL_OK;
    if (!attrs->stream)
        return hl_status_set(HL_ERROR_CONFIG, "a random stream must have a name, got none");
    return hl_check_control(hl_node_in_type(graph, node, node->n_in - 1));
}

hl_status hl_infer_attention(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    sizes n;
    HL_TRY(read_sizes(graph, node, 0, &n));
    HL_TRY(check_rest(graph, node, 3, &n));
    hl_dtype dtype = hl_node_in_type(graph, node, 0)->dtype, own = find_own(dtype);
    bool widens = hl_attention_attrs(node)->float32_out && dtype != HL_DTYPE_F64;
    out_types[0] = (hl_type){widens ? own : dtype, {4, {n.B, n.H, n.L, n.Ev}}};
    out_types[1] = find_log_sums(&n, own);
    return HL_OK;
}

/* In: dout, q, k, v, out, lse, mask, control. */
hl_status hl_infer_attention_grad(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    sizes n;
    HL_TRY(read_sizes(graph, node, 1, &n));
    hl_dtype dtype = hl_node_in_type(graph, node, 1)->dtype, own = find_own(dtype);
    hl_type out = {dtype, {4, {n.B, n.H, n.L, n.Ev}}}, lse = find_log_sums(&n, own);
    for (int i = 0; i < 5; i += 4) {
        const char *what = i ? "the result" : "the result's gradient";
        const hl_type *type = hl_node_in_type(graph, node, i);
        HL_TRY(hl_check_shape(type, &out.shape, what));
        if (type->dtype != own) HL_TRY(hl_check_dtype(type, dtype, what));
    }
    HL_TRY(hl_check_type(hl_node_in_type(graph, node, 5), &lse, "the logarithms of sums"));
    HL_TRY(check_rest(graph, node, 6, &n));
    bool widens = hl_attention_attrs(node)->float32_out;
    for (int i = 0; i < 3; i++)
        out_types[i] = (hl_type){widens ? own : dtype, hl_node_in_type(graph, node, 1 + i)->shape};
    return HL_OK;
}

/* Scores and values: two products forward; of the five of the gradient one is made again. */
static hl_cost count_cost(const hl_graph *graph, const hl_node *node, int first, double of_scores,
                          double of_values)
{
    hl_cost cost = hl_cost_bytes(graph, node);
    const int64_t *q = hl_node_in_type(graph, node, first)->shape.dim,
                  *v = hl_node_in_type(graph, node, first + 2)->shape.dim;
    double pairs = (double)q[0] * (double)q[1] * (double)q[2] * (double)v[2];
    if (hl_attention_attrs(node)->is_causal) pairs /= 2;
    cost.flops = 2 * pairs * (of_scores * (double)q[3] + of_values * (double)v[3]);
    cost.side = q[3] < q[2] ? q[3] : q[2];
    if (v[2] < cost.side) cost.side = v[2];
    return cost;
}

hl_cost hl_cost_attention(const hl_graph *graph, const hl_node *node)
{
    return count_cost(graph, node, 0, 1, 1);
}

hl_cost hl_cost_attention_grad(const hl_graph *graph, const hl_node *node)
{
    return count_cost(graph, node, 1, 3, 2);
}

/* ---- of products and softmax ----------------------------------------------------------------- */

/* A node whose queries stand at operand `first`, taken apart. Scores are (B,H,L,S); where heads of
 * queries share those of keys, products see them as (B,Hk,H/Hk L,S), so that a gradient sums over
 * the heads that share. */
typedef struct parts {
    sizes n;
    hl_attrs_attention attrs;
    hl_dtype own;
    hl_id q, k, v, mask, control; /* mask, control HL_NONE: none */
} parts;

static hl_status take_apart(hl_graph *graph, hl_node_id id, int first, parts *out)
{
    const hl_node node = graph->nodes[id];
    int at = first == 0 ? 3 : 6;
    HL_TRY(read_sizes(graph, &node, first, &out->n));
    out->attrs = node.attrs.attention;
    out->own = find_own(hl_graph_dtype(graph, node.in[first]));
    out->q = node.in[first], out->k = node.in[first + 1], out->v = node.in[first + 2];
    out->mask = out->attrs.has_mask ? node.in[at] : (hl_id)HL_NONE;
    out->control = out->attrs.p > 0 ? node.in[node.n_in - 1] : (hl_id)HL_NONE;
    return HL_OK;
}

/* (B,H,L,C) as (B,Hk,H/Hk L,C). */
static hl_status build_grouped(hl_graph *graph, const parts *p, hl_id x, hl_id *out_id)
{
    const sizes *n = &p->n;
    int64_t shared = n->Hk ? n->H / n->Hk : 0, C = hl_graph_shape(graph, x)->dim[3];
    hl_shape shape = {4, {n->B, n->Hk, shared * n->L, C}};
    return hl_build_reshape(graph, x, &shape, out_id);
}

/* (B,Hk,H/Hk L,C) as (B,H,L,C). */
static hl_status build_apart(hl_graph *graph, const parts *p, hl_id x, hl_id *out_id)
{
    hl_shape shape = {4, {p->n.B, p->n.H, p->n.L, hl_graph_shape(graph, x)->dim[3]}};
    return hl_build_reshape(graph, x, &shape, out_id);
}

/* a (B,H,L,.) by b (B,Hk,.,.), or b's transpose: (B,H,L,.). */
static hl_status build_product(hl_graph *graph, const parts *p, hl_id a, hl_id b, bool trans_b,
                               hl_id *out_id)
{
    HL_TRY(build_grouped(graph, p, a, &a));
    HL_TRY(hl_build_matmul(graph, a, b, false, trans_b, &a));
    return build_apart(graph, p, a, out_id);
}

/* a^T b of (B,H,L,.) both, summed over the heads that share: (B,Hk,.,.). */
static hl_status build_summed(hl_graph *graph, const parts *p, hl_id a, hl_id b, hl_id *out_id)
{
    HL_TRY(build_grouped(graph, p, a, &a));
    HL_TRY(build_grouped(graph, p, b, &b));
    return hl_build_matmul(graph, a, b, true, false, out_id);
}

/* Scores, -inf where a query must not see a key. */
static hl_status build_scores(hl_graph *graph, const parts *p, hl_id *out_id)
{
    hl_id scores, hidden, row, column, seen;
    HL_TRY(build_product(graph, p, p->q, p->k, true, &scores));
    HL_TRY(hl_build_binary_number(graph, HL_OP_MUL, scores, p->attrs.scale, &scores));
    HL_TRY(hl_build_number_like(graph, scores, -INFINITY, &hidden));
    if (p->mask != HL_NONE && hl_graph_dtype(graph, p->mask) == HL_DTYPE_BOOL)
        HL_TRY(hl_build_where(graph, p->mask, scores, hidden, &scores));
    else if (p->mask != HL_NONE)
        HL_TRY(hl_build_binary(graph, HL_OP_ADD, scores, p->mask, &scores));
    if (p->attrs.is_causal) {
        hl_shape rows = {2, {p->n.L, 1}}, columns = {2, {1, p->n.S}};
        HL_TRY(hl_build_places(graph, &rows, &row));
        HL_TRY(hl_build_places(graph, &columns, &column));
        HL_TRY(hl_build_binary(graph, HL_OP_GE, row, column, &seen));
        HL_TRY(hl_build_where(graph, seen, scores, hidden, &scores));
    }
    *out_id = scores;
    return HL_OK;
}

/* What dropout multiplies the softmax by, which is (B,H,L,S); HL_NONE: nothing. */
static hl_status build_drops(hl_graph *graph, const parts *p, hl_id *out_id)
{
    const sizes *n = &p->n;
    const int64_t dims[] = {n->B, n->H, n->L, n->S};
    hl_attrs attrs = {.dropout_mask = {.shape = hl_ints_make(dims, 4),
                                       .p = p->attrs.p,
                                       .stream = p->attrs.stream,
                                       .seed = p->attrs.seed,
                                       .dtype = p->own}};
    *out_id = HL_NONE;
    if (p->control == HL_NONE) return HL_OK;
    return hl_graph_add(graph, HL_OP_DROPOUT_MASK, &p->control, 1, &attrs, out_id);
}

/* Of two arrays (B,H,L,1) one (2,B,H,L). */
static hl_status build_log_sums(hl_graph *graph, const parts *p, hl_id rounded, hl_id rest,
                                hl_id *out_id)
{
    const hl_attrs attrs = {.axis = {.axis = 0}};
    hl_shape shape = {4, {1, p->n.B, p->n.H, p->n.L}};
    hl_id both[2];
    HL_TRY(hl_build_reshape(graph, rounded, &shape, &both[0]));
    HL_TRY(hl_build_reshape(graph, rest, &shape, &both[1]));
    return hl_graph_add(graph, HL_OP_CONCAT, both, 2, &attrs, out_id);
}

/* The first of these two arrays, or the second, per row: (B,H,L,1). */
static hl_status build_half(hl_graph *graph, const parts *p, hl_id log_sums, int which,
                            hl_id *out_id)
{
    hl_shape shape = {4, {p->n.B, p->n.H, p->n.L, 1}};
    HL_TRY(hl_build_slice(graph, log_sums, 0, which, which + 1, &log_sums));
    return hl_build_reshape(graph, log_sums, &shape, out_id);
}

/* Attention to no keys at all. */
static hl_status lower_nothing(hl_graph *graph, hl_node_id id, const parts *p, hl_id *out_values)
{
    hl_type type = graph->values[graph->nodes[id].out].type,
            rows = {p->own, {4, {p->n.B, p->n.H, p->n.L, 1}}};
    hl_id infinity, zero;
    HL_TRY(hl_build_full(graph, &type, 0, &out_values[0]));
    HL_TRY(hl_build_full(graph, &rows, INFINITY, &infinity));
    HL_TRY(hl_build_full(graph, &rows, 0, &zero));
    return build_log_sums(graph, p, infinity, zero, &out_values[1]);
}

/* A row that sees no key has zeros, and infinity for the logarithm of its sum. */
hl_status hl_lower_attention(hl_graph *graph, hl_node_id id, hl_id *out_values)
{
    const int64_t last = 3;
    parts p;
    hl_id scores, top, e, sum, is_empty, one, zero, log_sum, rounded, rest, infinity, drops;
    if (hl_dtype_is_16_bit(hl_graph_dtype(graph, graph->nodes[id].in[0])))
        return hl_lower_widened(graph, id, out_values);
    HL_TRY(take_apart(graph, id, 0, &p));
    if (p.n.S == 0) return lower_nothing(graph, id, &p, out_values);
    HL_TRY(build_scores(graph, &p, &scores));
    HL_TRY(hl_build_number_like(graph, scores, 0, &zero));
    HL_TRY(hl_build_number_like(graph, scores, 1, &one));
    HL_TRY(hl_build_number_like(graph, scores, INFINITY, &infinity));
    HL_TRY(hl_build_reduce(graph, HL_OP_MAX, scores, &last, 1, true, &top));
    HL_TRY(hl_build_binary_number(graph, HL_OP_EQ, top, -INFINITY, &is_empty));
    HL_TRY(hl_build_where(graph, is_empty, zero, top, &top));
    HL_TRY(hl_build_binary(graph, HL_OP_SUB, scores, top, &e));
    HL_TRY(hl_build_unary(graph, HL_OP_EXP, e, &e));
    HL_TRY(hl_build_sum(graph, e, &last, 1, true, &sum));
    HL_TRY(hl_build_where(graph, is_empty, one, sum, &sum));
    HL_TRY(hl_build_unary(graph, HL_OP_LOG, sum, &log_sum));
    HL_TRY(hl_build_binary(graph, HL_OP_ADD, log_sum, top, &rounded));
    HL_TRY(hl_build_binary(graph, HL_OP_SUB, rounded, top, &rest));
    HL_TRY(hl_build_binary(graph, HL_OP_SUB, log_sum, rest, &rest));
    HL_TRY(hl_build_where(graph, is_empty, infinity, rounded, &rounded));
    HL_TRY(hl_build_binary(graph, HL_OP_DIV, e, sum, &e));
    HL_TRY(build_drops(graph, &p, &drops));
    if (drops != HL_NONE) HL_TRY(hl_build_binary(graph, HL_OP_MUL, e, drops, &e));
    HL_TRY(build_log_sums(graph, &p, rounded, rest, &out_values[1]));
    return build_product(graph, &p, e, p.v, false, &out_values[0]);
}

/* The softmax again, of the logarithms of its sums, and what scores get: with w the softmax, d
 * dropout's factors and g = dout v^T, scores get w (d g - sum(dout out)). */
static hl_status build_score_grads(hl_graph *graph, hl_node_id id, const parts *p, hl_id *out_w,
                                   hl_id *out_ds)
{
    const hl_node node = graph->nodes[id];
    const int64_t last = 3;
    hl_id dout = node.in[0], out = node.in[4], scores, rounded, rest, w, g, drops, delta, ds;
    HL_TRY(build_scores(graph, p, &scores));
    HL_TRY(build_half(graph, p, node.in[5], 0, &rounded));
    HL_TRY(build_half(graph, p, node.in[5], 1, &rest));
    HL_TRY(hl_build_binary(graph, HL_OP_SUB, scores, rounded, &w));
    HL_TRY(hl_build_binary(graph, HL_OP_SUB, w, rest, &w));
    HL_TRY(hl_build_unary(graph, HL_OP_EXP, w, &w));
    HL_TRY(build_product(graph, p, dout, p->v, true, &g));
    HL_TRY(build_drops(graph, p, &drops));
    if (drops != HL_NONE) HL_TRY(hl_build_binary(graph, HL_OP_MUL, g, drops, &g));
    HL_TRY(hl_build_binary(graph, HL_OP_MUL, dout, out, &delta));
    HL_TRY(hl_build_sum(graph, delta, &last, 1, true, &delta));
    HL_TRY(hl_build_binary(graph, HL_OP_SUB, g, delta, &ds));
    HL_TRY(hl_build_binary(graph, HL_OP_MUL, w, ds, out_ds));
    *out_w = w;
    if (drops != HL_NONE) HL_TRY(hl_build_binary(graph, HL_OP_MUL, w, drops, out_w));
    return HL_OK;
}

hl_status hl_lower_attention_grad(hl_graph *graph, hl_node_id id, hl_id *out_values)
{
    const hl_node node = graph->nodes[id];
    parts p;
    hl_id w, ds;
    if (hl_dtype_is_16_bit(hl_graph_dtype(graph, graph->nodes[id].in[1])))
        return hl_lower_widened(graph, id, out_values);
    HL_TRY(take_apart(graph, id, 1, &p));
    HL_TRY(build_score_grads(graph, id, &p, &w, &ds));
    HL_TRY(hl_build_binary_number(graph, HL_OP_MUL, ds, p.attrs.scale, &ds));
    HL_TRY(build_product(graph, &p, ds, p.k, false, &out_values[0]));
    HL_TRY(build_summed(graph, &p, ds, p.q, &out_values[1]));
    return build_summed(graph, &p, w, node.in[0], &out_values[2]);
}

/* ---- the gradient ---------------------------------------------------------------------------- */

/* A mask that is added gets what scores get; that is as large as all scores, and in memory. */
static hl_status build_mask_grad(hl_graph *graph, hl_node_id grad, hl_id mask, hl_id *out_id)
{
    hl_shape shape = *hl_graph_shape(graph, mask);
    parts p;
    hl_id w, ds;
    HL_TRY(take_apart(graph, grad, 1, &p));
    HL_TRY(build_score_grads(graph, grad, &p, &w, &ds));
    return hl_build_sum_to(graph, ds, &shape, out_id);
}

hl_status hl_vjp_attention(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                           hl_id *din)
{
    const hl_node node = graph->nodes[id];
    hl_id in[8] = {dout[0], node.in[0], node.in[1], node.in[2], node.out, node.out + 1}, out;
    bool has_mask = node.attrs.attention.has_mask;
    if (dout[1] != HL_NONE)
        return hl_status_set(HL_ERROR_TRACE, "attention: the logarithms of sums have no gradient");
    for (int32_t i = 3; i < node.n_in; i++) in[3 + i] = node.in[i];
    HL_TRY(hl_graph_add(graph, HL_OP_ATTENTION_GRAD, in, 3 + node.n_in, &node.attrs, &out));
    for (int i = 0; i < 3; i++) din[i] = out + i;
    if (!has_mask || !need[3] || hl_graph_dtype(graph, node.in[3]) == HL_DTYPE_BOOL) return HL_OK;
    return build_mask_grad(graph, hl_graph_producer(graph, out), node.in[3], &din[3]);
}
