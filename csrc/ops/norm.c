/* Normalisation. The gradients subtract the mean before they multiply, so that they keep their
 * digits where the mean is large; of the batch's statistics only x, mean and variance are kept. */
#include "ops/build.h"
#include "ops/check.h"
#include "ops/ops.h"
#include "ops/window.h"

/* ---- types ----------------------------------------------------------------------------------- */

/* Of what a norm computes in, its parameters and its statistics: x's own, float32 where x has 16
 * bits. */
static hl_dtype find_own(const hl_type *x)
{
    return hl_dtype_is_16_bit(x->dtype) ? HL_DTYPE_F32 : x->dtype;
}

/* Of the first output: as norms compute, or of 16 bits where that is asked for. */
static hl_status find_given(hl_dtype dtype, const hl_type *x, hl_type *out_type)
{
    HL_TRY(hl_check_dtype_attr(dtype));
    if (!hl_dtype_is_float(dtype))
        return hl_status_set(HL_ERROR_TRACE, "dtype must be floating, got %s",
                             hl_dtype_name(dtype));
    *out_type = *x;
    out_type->dtype = hl_dtype_is_16_bit(dtype) ? dtype : find_own(x);
    return HL_OK;
}

/* dy has x's shape; either may have 16 bits. */
static hl_status check_dy(const hl_type *dy, const hl_type *x)
{
    hl_type own = {find_own(x), x->shape};
    if (hl_dtype_is_16_bit(dy->dtype)) own.dtype = dy->dtype;
    return hl_check_type(dy, &own, "dy");
}

/* (C) */
static hl_shape find_channels(const hl_node *node, const hl_type *x)
{
    bool last = hl_batch_norm_attrs(node)->channels_last;
    return hl_shape_1d(x->shape.dim[hl_channel_dim(&x->shape, last)]);
}

hl_status hl_infer_batch_norm(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    const hl_type *x = hl_node_in_type(graph, node, 0);
    HL_TRY(hl_check_float(x, "the input"));
    HL_TRY(hl_check_rank(x, 2, "the input"));
    hl_type channels = {find_own(x), find_channels(node, x)};
    HL_TRY(hl_check_type(hl_node_in_type(graph, node, 1), &channels, "the weight"));
    HL_TRY(hl_check_type(hl_node_in_type(graph, node, 2), &channels, "the bias"));
    if (hl_shape_numel(&x->shape) == 0)
        return hl_status_set(HL_ERROR_SHAPE, "there must be elements to normalise, got none");
    out_types[1] = out_types[2] = channels;
    return find_given(hl_batch_norm_attrs(node)->dtype, x, &out_types[0]);
}

hl_status hl_infer_batch_norm_grad(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    static const char *const what[] = {"the weight", "the mean", "the variance"};
    const hl_type *x = hl_node_in_type(graph, node, 1);
    HL_TRY(hl_check_float(x, "the input"));
    HL_TRY(hl_check_rank(x, 2, "the input"));
    hl_type channels = {find_own(x), find_channels(node, x)};
    HL_TRY(check_dy(hl_node_in_type(graph, node, 0), x));
    for (int i = 2; i < 5; i++)
        HL_TRY(hl_check_type(hl_node_in_type(graph, node, i), &channels, what[i - 2]));
    if (hl_shape_numel(&x->shape) == 0)
        return hl_status_set(HL_ERROR_SHAPE, "there must be elements to normalise, got none");
    out_types[1] = out_types[2] = channels;
    return find_given(hl_batch_norm_attrs(node)->dtype, x, &out_types[0]);
}

/* The dims before the last n_axes, and those. */
static hl_status split_rows(const hl_type *x, int64_t n_axes, hl_type *out_rows, hl_type *out_cols)
{
    HL_TRY(hl_check_float(x, "the input"));
    if (n_axes < 1 || n_axes > x->shape.rank)
        return hl_status_set(HL_ERROR_SHAPE, "n_axes must lie in 1 ... %d, got %lld", x->shape.rank,
                             (long long)n_axes);
    int32_t n_rows = x->shape.rank - (int32_t)n_axes;
    hl_dtype own = find_own(x);
    *out_rows = (hl_type){own, hl_shape_make(n_rows, x->shape.dim)};
    *out_cols = (hl_type){own, hl_shape_make((int32_t)n_axes, x->shape.dim + n_rows)};
    return HL_OK;
}

hl_status hl_infer_layer_norm(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    const hl_type *x = hl_node_in_type(graph, node, 0);
    hl_type rows, cols;
    HL_TRY(split_rows(x, hl_layer_norm_attrs(node)->n_axes, &rows, &cols));
    for (int32_t i = 1; i < node->n_in; i++)
        HL_TRY(hl_check_type(hl_node_in_type(graph, node, i), &cols,
                             i == 1 ? "the weight" : "the bias"));
    if (hl_shape_numel(&cols.shape) == 0)
        return hl_status_set(HL_ERROR_SHAPE, "there must be elements to normalise, got none");
    out_types[1] = out_types[2] = rows;
    return find_given(hl_layer_norm_attrs(node)->dtype, x, &out_types[0]);
}

hl_status hl_infer_layer_norm_grad(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    const hl_type *x = hl_node_in_type(graph, node, 1);
    hl_type rows, cols;
    HL_TRY(split_rows(x, hl_layer_norm_attrs(node)->n_axes, &rows, &cols));
    HL_TRY(check_dy(hl_node_in_type(graph, node, 0), x));
    HL_TRY(hl_check_type(hl_node_in_type(graph, node, 2), &rows, "the mean"));
    HL_TRY(hl_check_type(hl_node_in_type(graph, node, 3), &rows, "1/std"));
    if (node->n_in == 5)
        HL_TRY(hl_check_type(hl_node_in_type(graph, node, 4), &cols, "the weight"));
    return find_given(hl_layer_norm_attrs(node)->dtype, x, &out_types[0]);
}

/* ---- 16 bits --------------------------------------------------------------------------------- */

enum { NORM_INS = 5 };

/* Of a norm that reads or gives 16 bits: the same without, between casts. */
static hl_status lower_narrow(hl_graph *graph, hl_node_id id, hl_id *out_values, bool *out_done)
{
    hl_node node = graph->nodes[id];
    hl_dtype given = hl_graph_dtype(graph, node.out);
    hl_attrs attrs = node.attrs;
    hl_id in[NORM_INS], out;
    *out_done = hl_dtype_is_16_bit(given);
    for (int32_t i = 0; i < node.n_in; i++) {
        in[i] = node.in[i];
        if (!hl_dtype_is_16_bit(hl_graph_dtype(graph, in[i]))) continue;
        HL_TRY(hl_build_cast(graph, in[i], HL_DTYPE_F32, &in[i]));
        *out_done = true;
    }
    if (!*out_done) return HL_OK;
    hl_attrs_int_set(&attrs, hl_schema_find(hl_op_get(node.op)->schema, "dtype"), HL_DTYPE_F32);
    HL_TRY(hl_graph_add(graph, node.op, in, node.n_in, &attrs, &out));
    for (int32_t j = 1; j < node.n_out; j++) out_values[j] = out + j;
    return hl_build_cast(graph, out, given, &out_values[0]);
}

/* In what the norm of x computes, or as it is where it has that already. */
static hl_status build_own(hl_graph *graph, hl_id x, hl_id value, hl_id *out_id)
{
    hl_dtype own = find_own(&graph->values[x].type);
    *out_id = value;
    return hl_graph_dtype(graph, value) == own ? HL_OK : hl_build_cast(graph, value, own, out_id);
}

/* The gradient of x in x's type. */
static hl_status finish_dx(hl_graph *graph, hl_id x, hl_id *dx)
{
    hl_dtype dtype = hl_graph_dtype(graph, x);
    return hl_graph_dtype(graph, *dx) == dtype ? HL_OK : hl_build_cast(graph, *dx, dtype, dx);
}

/* ---- batch norm ------------------------------------------------------------------------------ */

typedef struct batch_values {
    hl_id x, weight, mean, var;
    int rank;
    bool channels_last;
    double eps, share;         /* share: 1 / elements per channel */
    int64_t axes[HL_MAX_RANK]; /* all but the channels */
} batch_values;

static batch_values make_batch(const hl_graph *graph, hl_id x, hl_id weight, hl_id mean, hl_id var,
                               const hl_attrs_batch_norm *attrs)
{
    const hl_shape *shape = hl_graph_shape(graph, x);
    batch_values values = {.x = x,
                           .weight = weight,
                           .mean = mean,
                           .var = var,
                           .rank = shape->rank,
                           .channels_last = attrs->channels_last,
                           .eps = attrs->eps};
    int channel = hl_channel_dim(shape, values.channels_last);
    values.share = (double)shape->dim[channel] / (double)hl_shape_numel(shape);
    for (int d = 0, i = 0; d < shape->rank; d++)
        if (d != channel) values.axes[i++] = d;
    return values;
}

static batch_values read_batch_norm(const hl_graph *graph, hl_node_id id)
{
    const hl_node *node = &graph->nodes[id];
    return make_batch(graph, node->in[0], node->in[1], node->out + 1, node->out + 2,
                      &node->attrs.batch_norm);
}

static hl_status build_rstd(hl_graph *graph, hl_id var, double eps, hl_id *out_id)
{
    HL_TRY(hl_build_binary_number(graph, HL_OP_ADD, var, eps, out_id));
    return hl_build_unary(graph, HL_OP_RSQRT, *out_id, out_id);
}

/* Values per channel in a shape that broadcasts with x. */
static hl_status build_spread(hl_graph *graph, const batch_values *bn, hl_id per_channel,
                              hl_id *out_id)
{
    hl_shape shape = {.rank = bn->rank};
    for (int d = 0; d < bn->rank; d++) shape.dim[d] = 1;
    shape.dim[hl_channel_dim(&shape, bn->channels_last)] =
        hl_graph_shape(graph, per_channel)->dim[0];
    return hl_build_reshape(graph, per_channel, &shape, out_id);
}

/* x - mean */
static hl_status build_centred(hl_graph *graph, const batch_values *bn, hl_id *out_id)
{
    hl_id mean;
    HL_TRY(build_spread(graph, bn, bn->mean, &mean));
    return hl_build_binary(graph, HL_OP_SUB, bn->x, mean, out_id);
}

/* a op (a value per channel) * factor */
static hl_status build_per_channel(hl_graph *graph, const batch_values *bn, hl_op op, hl_id a,
                                   hl_id per_channel, double factor, hl_id *out_id)
{
    if (factor != 1)
        HL_TRY(hl_build_binary_number(graph, HL_OP_MUL, per_channel, factor, &per_channel));
    HL_TRY(build_spread(graph, bn, per_channel, &per_channel));
    return hl_build_binary(graph, op, a, per_channel, out_id);
}

/* With c = x - mean, r = 1/std, s = sum(dy c): dbias = sum(dy), dweight = s r. */
static hl_status build_batch_sums(hl_graph *graph, const batch_values *bn, hl_id dy, hl_id centred,
                                  hl_id rstd, hl_id *out_dweight)
{
    hl_id product;
    HL_TRY(hl_build_binary(graph, HL_OP_MUL, dy, centred, &product));
    HL_TRY(hl_build_sum(graph, product, bn->axes, bn->rank - 1, false, &product));
    return hl_build_binary(graph, HL_OP_MUL, product, rstd, out_dweight);
}

static hl_status build_batch_grad(hl_graph *graph, const batch_values *bn, hl_id dy, hl_id *din)
{
    hl_id in[5] = {dy, bn->x, bn->weight, bn->mean, bn->var}, out;
    hl_attrs attrs = {.batch_norm = {.eps = bn->eps,
                                     .dtype = hl_graph_dtype(graph, bn->x),
                                     .channels_last = bn->channels_last}};
    HL_TRY(hl_graph_add(graph, HL_OP_BATCH_NORM_GRAD, in, 5, &attrs, &out));
    for (int i = 0; i < 3; i++) din[i] = out + i;
    return HL_OK;
}

/* What flows in through the statistics: dmean / n + dvar 2 (x - mean) / n. */
static hl_status add_batch_statistics(hl_graph *graph, const batch_values *bn, hl_id dmean,
                                      hl_id dvar, hl_id *dx)
{
    hl_shape shape = *hl_graph_shape(graph, bn->x);
    hl_id centred, term;
    if (dvar != HL_NONE) {
        HL_TRY(build_centred(graph, bn, &centred));
        HL_TRY(build_per_channel(graph, bn, HL_OP_MUL, centred, dvar, 2 * bn->share, &term));
        HL_TRY(hl_build_accumulate(graph, term, dx));
    }
    if (dmean == HL_NONE) return HL_OK;
    HL_TRY(hl_build_binary_number(graph, HL_OP_MUL, dmean, bn->share, &term));
    HL_TRY(build_spread(graph, bn, term, &term));
    HL_TRY(hl_build_accumulate(graph, term, dx));
    return hl_build_expand(graph, *dx, &shape, dx);
}

hl_status hl_vjp_batch_norm(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                            hl_id *din)
{
    batch_values bn = read_batch_norm(graph, id);
    hl_id dy = dout[0];
    if (dy != HL_NONE) HL_TRY(build_batch_grad(graph, &bn, dy, din));
    if (!need[0]) return HL_OK;
    HL_TRY(add_batch_statistics(graph, &bn, dout[1], dout[2], &din[0]));
    return finish_dx(graph, bn.x, &din[0]);
}

/* Of channels that are not last, the norm of channels that are: statistics of columns, for which
 * there are kernels, between permutations that cancel against those of convolutions. */
static hl_status lower_planes(hl_graph *graph, hl_node_id id, hl_id *out_values, bool *out_done)
{
    const hl_node *node = &graph->nodes[id];
    int32_t rank = hl_graph_shape(graph, node->in[0])->rank;
    hl_ints order = hl_order_channels(rank, true);
    *out_done = rank > 2 && !node->attrs.batch_norm.channels_last;
    return *out_done ? hl_build_in_order(graph, id, &order, out_values) : HL_OK;
}

/* dx = weight r (dy - dbias / n - c (dweight r / n)), letters as above. */
hl_status hl_lower_batch_norm_grad(hl_graph *graph, hl_node_id id, hl_id *out_values)
{
    const hl_node *node = &graph->nodes[id];
    hl_id dy = node->in[0], centred, rstd, dweight, dbias, scale, slope, dx;
    bool done;
    batch_values bn = make_batch(graph, node->in[1], node->in[2], node->in[3], node->in[4],
                                 &node->attrs.batch_norm);
    HL_TRY(lower_narrow(graph, id, out_values, &done));
    if (!done) HL_TRY(lower_planes(graph, id, out_values, &done));
    if (done) return HL_OK;
    HL_TRY(build_centred(graph, &bn, &centred));
    HL_TRY(hl_build_sum(graph, dy, bn.axes, bn.rank - 1, false, &dbias));
    HL_TRY(build_rstd(graph, bn.var, bn.eps, &rstd));
    HL_TRY(build_batch_sums(graph, &bn, dy, centred, rstd, &dweight));
    HL_TRY(hl_build_binary(graph, HL_OP_MUL, dweight, rstd, &slope));
    HL_TRY(hl_build_binary(graph, HL_OP_MUL, bn.weight, rstd, &scale));
    HL_TRY(build_per_channel(graph, &bn, HL_OP_MUL, centred, slope, bn.share, &slope));
    HL_TRY(build_per_channel(graph, &bn, HL_OP_SUB, dy, dbias, bn.share, &dx));
    HL_TRY(hl_build_binary(graph, HL_OP_SUB, dx, slope, &dx));
    out_values[1] = dweight;
    out_values[2] = dbias;
    return build_per_channel(graph, &bn, HL_OP_MUL, dx, scale, 1, &out_values[0]);
}

/* y = (x - mean) * (weight / std) + bias, the factor per channel made first. */
hl_status hl_build_normalized(hl_graph *graph, hl_node_id norm, hl_id x, hl_id mean, hl_id var,
                              hl_id *out_y)
{
    const hl_node node = graph->nodes[norm];
    hl_dtype given = hl_graph_dtype(graph, node.out);
    batch_values bn = make_batch(graph, x, node.in[1], mean, var, &node.attrs.batch_norm);
    hl_id scale, y;
    HL_TRY(build_own(graph, x, x, &bn.x));
    HL_TRY(build_rstd(graph, bn.var, bn.eps, &scale));
    HL_TRY(hl_build_binary(graph, HL_OP_MUL, bn.weight, scale, &scale));
    HL_TRY(build_centred(graph, &bn, &y));
    HL_TRY(build_per_channel(graph, &bn, HL_OP_MUL, y, scale, 1, &y));
    HL_TRY(build_per_channel(graph, &bn, HL_OP_ADD, y, node.in[2], 1, &y));
    *out_y = y;
    return hl_graph_dtype(graph, y) == given ? HL_OK : hl_build_cast(graph, y, given, out_y);
}

hl_status hl_lower_batch_norm(hl_graph *graph, hl_node_id id, hl_id *out_values)
{
    batch_values bn = read_batch_norm(graph, id);
    hl_attrs attrs = {.axes = {hl_ints_make(bn.axes, bn.rank - 1)}};
    bool done;
    HL_TRY(lower_narrow(graph, id, out_values, &done));
    if (!done) HL_TRY(lower_planes(graph, id, out_values, &done));
    if (done) return HL_OK;
    HL_TRY(hl_graph_add(graph, HL_OP_MOMENTS, &bn.x, 1, &attrs, &out_values[1]));
    out_values[2] = out_values[1] + 1;
    return hl_build_normalized(graph, id, bn.x, out_values[1], out_values[2], &out_values[0]);
}

/* ---- layer norm: on a matrix of rows --------------------------------------------------------- */

typedef struct layer_values {
    hl_id x, weight, mean, rstd; /* (R,C) (C) (R) (R); weight HL_NONE when there is none */
    hl_shape full, matrix, rows, cols;
} layer_values;

static hl_status build_layer_values(hl_graph *graph, hl_node_id id, layer_values *out_values)
{
    hl_node node = graph->nodes[id];
    layer_values ln = {.x = node.in[0], .weight = HL_NONE};
    ln.full = *hl_graph_shape(graph, ln.x);
    int32_t n_rows = ln.full.rank - (int32_t)node.attrs.layer_norm.n_axes;
    ln.rows = hl_shape_1d(hl_shape_span(&ln.full, 0, n_rows));
    ln.cols = hl_shape_1d(hl_shape_span(&ln.full, n_rows, ln.full.rank));
    ln.matrix = hl_shape_2d(ln.rows.dim[0], ln.cols.dim[0]);
    HL_TRY(hl_build_reshape(graph, ln.x, &ln.matrix, &ln.x));
    HL_TRY(hl_build_reshape(graph, node.out + 1, &ln.rows, &ln.mean));
    HL_TRY(hl_build_reshape(graph, node.out + 2, &ln.rows, &ln.rstd));
    if (node.n_in > 1) HL_TRY(hl_build_reshape(graph, node.in[1], &ln.cols, &ln.weight));
    *out_values = ln;
    return HL_OK;
}

/* a op (a value per row) */
static hl_status build_per_row(hl_graph *graph, const layer_values *ln, hl_op op, hl_id a,
                               hl_id per_row, hl_id *out_id)
{
    hl_shape column = hl_shape_2d(ln->rows.dim[0], 1);
    HL_TRY(hl_build_reshape(graph, per_row, &column, &per_row));
    return hl_build_binary(graph, op, a, per_row, out_id);
}

/* Sums over the rows, in the operand's shape. */
static hl_status build_row_sum(hl_graph *graph, hl_id matrix, hl_id operand, hl_id *out_id)
{
    const int64_t axis = 0;
    hl_shape shape = *hl_graph_shape(graph, operand);
    HL_TRY(hl_build_sum(graph, matrix, &axis, 1, false, out_id));
    return hl_build_reshape(graph, *out_id, &shape, out_id);
}

static hl_status build_layer_dx(hl_graph *graph, const layer_values *ln, hl_id dy, hl_id *out_id)
{
    hl_id in[5] = {dy, ln->x, ln->mean, ln->rstd, ln->weight};
    hl_attrs attrs = {.layer_norm = {.n_axes = 1, .dtype = hl_graph_dtype(graph, ln->x)}};
    return hl_graph_add(graph, HL_OP_LAYER_NORM_GRAD, in, ln->weight == HL_NONE ? 4 : 5, &attrs,
                        out_id);
}

/* What flows in through the statistics: dmean / n - drstd rstd^3 (x - mean) / n. */
static hl_status add_statistics_grad(hl_graph *graph, const layer_values *ln, hl_id dmean,
                                     hl_id drstd, hl_id *dx)
{
    double share = 1 / (double)ln->cols.dim[0];
    hl_id term, centred;
    if (drstd != HL_NONE) {
        HL_TRY(hl_build_reshape(graph, drstd, &ln->rows, &term));
        for (int i = 0; i < 3; i++)
            HL_TRY(hl_build_binary(graph, HL_OP_MUL, term, ln->rstd, &term));
        HL_TRY(hl_build_binary_number(graph, HL_OP_MUL, term, -share, &term));
        HL_TRY(build_per_row(graph, ln, HL_OP_SUB, ln->x, ln->mean, &centred));
        HL_TRY(build_per_row(graph, ln, HL_OP_MUL, centred, term, &term));
        HL_TRY(hl_build_accumulate(graph, term, dx));
    }
    if (dmean == HL_NONE) return HL_OK;
    hl_shape column = hl_shape_2d(ln->rows.dim[0], 1);
    HL_TRY(hl_build_reshape(graph, dmean, &column, &term));
    HL_TRY(hl_build_binary_number(graph, HL_OP_MUL, term, share, &term));
    HL_TRY(hl_build_expand(graph, term, &ln->matrix, &term));
    return hl_build_accumulate(graph, term, dx);
}

hl_status hl_vjp_layer_norm(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                            hl_id *din)
{
    hl_node node = graph->nodes[id];
    layer_values ln;
    hl_id dy = HL_NONE, dy_own = HL_NONE, dx = HL_NONE, xhat;
    bool needs_params = (node.n_in > 1 && need[1]) || (node.n_in > 2 && need[2]);
    HL_TRY(build_layer_values(graph, id, &ln));
    if (dout[0] != HL_NONE) HL_TRY(hl_build_reshape(graph, dout[0], &ln.matrix, &dy));
    if (dy != HL_NONE && needs_params) HL_TRY(build_own(graph, ln.x, dy, &dy_own));
    if (dy != HL_NONE && node.n_in > 2 && need[2])
        HL_TRY(build_row_sum(graph, dy_own, node.in[2], &din[2]));
    if (dy != HL_NONE && node.n_in > 1 && need[1]) {
        HL_TRY(build_per_row(graph, &ln, HL_OP_SUB, ln.x, ln.mean, &xhat));
        HL_TRY(build_per_row(graph, &ln, HL_OP_MUL, xhat, ln.rstd, &xhat));
        HL_TRY(hl_build_binary(graph, HL_OP_MUL, dy_own, xhat, &xhat));
        HL_TRY(build_row_sum(graph, xhat, node.in[1], &din[1]));
    }
    if (!need[0]) return HL_OK;
    if (dy != HL_NONE) HL_TRY(build_layer_dx(graph, &ln, dy, &dx));
    HL_TRY(add_statistics_grad(graph, &ln, dout[1], dout[2], &dx));
    HL_TRY(finish_dx(graph, ln.x, &dx));
    return hl_build_reshape(graph, dx, &ln.full, &din[0]);
}

/* Of LAYER_NORM_GRAD too: but for rounding there is nothing simpler. */
hl_status hl_lower_layer_norm(hl_graph *graph, hl_node_id id, hl_id *out_values)
{
    bool done;
    HL_TRY(lower_narrow(graph, id, out_values, &done));
    if (done) return HL_OK;
    return hl_status_set(HL_ERROR_DEVICE, "%s: the device must have a kernel, got none",
                         hl_op_get(graph->nodes[id].op)->name);
}
