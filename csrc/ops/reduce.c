/* Reductions and scans.
 *
 * Lowering goes one adjacent group of axes at a time, the last first, because kernels reduce rows
 * or columns of a matrix: a sum of sums needs no copy of the operand, a permutation does. Moments
 * of groups are merged by the law of total variance, exact for equal counts. */
#include "ops/build.h"
#include "ops/check.h"
#include "ops/ops.h"

/* ---- types ----------------------------------------------------------------------------------- */

static hl_shape reduce_shape(const hl_shape *shape, const hl_ints *axes, bool keepdim)
{
    hl_shape reduced = {0, {0}};
    for (int32_t d = 0, i = 0; d < shape->rank; d++) {
        bool gone = i < axes->n && axes->at[i] == d;
        i += gone;
        if (!gone)
            reduced.dim[reduced.rank++] = shape->dim[d];
        else if (keepdim)
            reduced.dim[reduced.rank++] = 1;
    }
    return reduced;
}

/* Elements that make one of the result. */
static int64_t count_reduced(const hl_shape *shape, const hl_ints *axes)
{
    int64_t count = 1;
    for (int32_t i = 0; i < axes->n; i++) count *= shape->dim[axes->at[i]];
    return count;
}

/* A sum of integers is as torch's an int64. */
static hl_dtype sum_dtype(hl_dtype dtype)
{
    return hl_dtype_is_float(dtype) ? dtype : HL_DTYPE_I64;
}

static hl_status check_elements(const hl_shape *shape, const hl_ints *axes, const hl_shape *out)
{
    for (int32_t i = 0; i < axes->n; i++)
        if (shape->dim[axes->at[i]] == 0 && hl_shape_numel(out) > 0)
            return hl_status_set(HL_ERROR_SHAPE, "axis %d must have elements to reduce, got none",
                                 (int)axes->at[i]);
    return HL_OK;
}

hl_status hl_infer_reduce(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    const hl_type *x = hl_node_in_type(graph, node, 0);
    hl_attrs_reduce *attrs = &node->attrs.reduce;
    HL_TRY(hl_check_axes(&x->shape, &attrs->axes));
    out_types[0].shape = reduce_shape(&x->shape, &attrs->axes, attrs->keepdim);
    out_types[0].dtype = x->dtype;
    if (node->op == HL_OP_SUM || node->op == HL_OP_PROD) {
        out_types[0].dtype = sum_dtype(x->dtype);
        return HL_OK;
    }
    return check_elements(&x->shape, &attrs->axes, &out_types[0].shape);
}

hl_status hl_infer_prod_grad(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    out_types[0] = *hl_node_in_type(graph, node, 0);
    HL_TRY(hl_check_float(&out_types[0], "the input"));
    HL_TRY(hl_check_axes(&out_types[0].shape, &node->attrs.axes.axes));
    hl_type reduced = out_types[0];
    reduced.shape = reduce_shape(&reduced.shape, &node->attrs.axes.axes, true);
    HL_TRY(hl_check_type(hl_node_in_type(graph, node, 1), &reduced, "the product"));
    return hl_check_type(hl_node_in_type(graph, node, 2), &reduced, "the product's gradient");
}

hl_status hl_infer_argreduce(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    const hl_shape *x = &hl_node_in_type(graph, node, 0)->shape;
    hl_attrs_arg_reduce *attrs = &node->attrs.arg_reduce;
    HL_TRY(hl_check_axis(x, &attrs->axis));
    hl_ints axes = {1, {attrs->axis}};
    out_types[0].dtype = HL_DTYPE_I64;
    out_types[0].shape = reduce_shape(x, &axes, attrs->keepdim);
    return check_elements(x, &axes, &out_types[0].shape);
}

hl_status hl_infer_median(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    HL_TRY(hl_infer_argreduce(graph, node, &out_types[1]));
    out_types[0] = (hl_type){hl_node_in_type(graph, node, 0)->dtype, out_types[1].shape};
    return HL_OK;
}

hl_status hl_infer_moments(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    const hl_type *x = hl_node_in_type(graph, node, 0);
    hl_ints *axes = &node->attrs.axes.axes;
    HL_TRY(hl_check_float(x, "the input"));
    HL_TRY(hl_check_axes(&x->shape, axes));
    out_types[0].dtype = x->dtype;
    out_types[0].shape = reduce_shape(&x->shape, axes, false);
    out_types[1] = out_types[0];
    return check_elements(&x->shape, axes, &out_types[0].shape);
}

hl_status hl_infer_scan(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    out_types[0] = *hl_node_in_type(graph, node, 0);
    out_types[0].dtype = sum_dtype(out_types[0].dtype);
    return hl_check_axis(&out_types[0].shape, &node->attrs.scan.axis);
}

/* ---- gradients ------------------------------------------------------------------------------- */

hl_status hl_vjp_sum(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                     hl_id *din)
{
    hl_node node = graph->nodes[id];
    hl_shape shape = *hl_graph_shape(graph, node.in[0]);
    const hl_ints *axes = &node.attrs.reduce.axes;
    hl_id d;
    if (!need[0]) return HL_OK;
    HL_TRY(hl_build_keep_dims(graph, dout[0], &shape, axes->at, axes->n, &d));
    return hl_build_expand(graph, d, &shape, &din[0]);
}

hl_status hl_vjp_prod(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                      hl_id *din)
{
    hl_node node = graph->nodes[id];
    hl_attrs attrs = {.axes = {node.attrs.reduce.axes}};
    const hl_ints *axes = &attrs.axes.axes;
    hl_shape shape = *hl_graph_shape(graph, node.in[0]);
    hl_id in[3] = {node.in[0]};
    if (!need[0]) return HL_OK;
    HL_TRY(hl_build_keep_dims(graph, node.out, &shape, axes->at, axes->n, &in[1]));
    HL_TRY(hl_build_keep_dims(graph, dout[0], &shape, axes->at, axes->n, &in[2]));
    return hl_graph_add(graph, HL_OP_PROD_GRAD, in, 3, &attrs, &din[0]);
}

/* Every element equal to the extreme gets d / (how many there are). */
hl_status hl_vjp_extreme(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                         hl_id *din)
{
    hl_node node = graph->nodes[id];
    const int64_t *axes = node.attrs.reduce.axes.at;
    int32_t n = node.attrs.reduce.axes.n;
    hl_shape shape = *hl_graph_shape(graph, node.in[0]);
    hl_id extreme, chosen, count, d;
    if (!need[0]) return HL_OK;
    HL_TRY(hl_build_keep_dims(graph, node.out, &shape, axes, n, &extreme));
    HL_TRY(hl_build_binary(graph, HL_OP_EQ, node.in[0], extreme, &chosen));
    HL_TRY(hl_build_cast(graph, chosen, hl_graph_dtype(graph, node.in[0]), &count));
    HL_TRY(hl_build_sum(graph, count, axes, n, true, &count));
    HL_TRY(hl_build_keep_dims(graph, dout[0], &shape, axes, n, &d));
    HL_TRY(hl_build_binary(graph, HL_OP_DIV, d, count, &d));
    return hl_build_keep_if(graph, chosen, d, &din[0]);
}

/* The whole gradient goes to the chosen element. */
hl_status hl_vjp_median(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                        hl_id *din)
{
    hl_node node = graph->nodes[id];
    hl_type type = graph->values[node.in[0]].type;
    hl_attrs attrs = {.axis = {node.attrs.arg_reduce.axis}};
    const int64_t *axis = &attrs.axis.axis;
    hl_id in[3];
    if (!need[0]) return HL_OK;
    HL_TRY(hl_build_full(graph, &type, 0, &in[0]));
    HL_TRY(hl_build_keep_dims(graph, node.out + 1, &type.shape, axis, 1, &in[1]));
    HL_TRY(hl_build_keep_dims(graph, dout[0], &type.shape, axis, 1, &in[2]));
    return hl_graph_add(graph, HL_OP_SCATTER, in, 3, &attrs, &din[0]);
}

/* dx = dmean / n + dvar * 2 (x - mean) / n */
hl_status hl_vjp_moments(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                         hl_id *din)
{
    hl_node node = graph->nodes[id];
    hl_shape shape = *hl_graph_shape(graph, node.in[0]);
    const int64_t *axes = node.attrs.axes.axes.at;
    int32_t n = node.attrs.axes.axes.n;
    double share = 1 / (double)count_reduced(&shape, &node.attrs.axes.axes);
    hl_id sum = HL_NONE, d, mean;
    if (!need[0]) return HL_OK;
    if (dout[1] != HL_NONE) {
        hl_id centred;
        HL_TRY(hl_build_keep_dims(graph, node.out, &shape, axes, n, &mean));
        HL_TRY(hl_build_keep_dims(graph, dout[1], &shape, axes, n, &d));
        HL_TRY(hl_build_binary_number(graph, HL_OP_MUL, d, 2 * share, &d));
        HL_TRY(hl_build_binary(graph, HL_OP_SUB, node.in[0], mean, &centred));
        HL_TRY(hl_build_binary(graph, HL_OP_MUL, centred, d, &sum));
    }
    if (dout[0] != HL_NONE) {
        HL_TRY(hl_build_keep_dims(graph, dout[0], &shape, axes, n, &d));
        HL_TRY(hl_build_binary_number(graph, HL_OP_MUL, d, share, &d));
        HL_TRY(hl_build_accumulate(graph, d, &sum));
    }
    return hl_build_expand(graph, sum, &shape, &din[0]);
}

hl_status hl_vjp_cumsum(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                        hl_id *din)
{
    (void)need;
    hl_attrs attrs = graph->nodes[id].attrs;
    attrs.scan.reverse = !attrs.scan.reverse;
    return hl_graph_add(graph, HL_OP_CUMSUM, dout, 1, &attrs, &din[0]);
}

/* ---- lowering -------------------------------------------------------------------------------- */

typedef struct axis_split {
    hl_ints group; /* that is reduced first */
    hl_ints rest;  /* the other axes, as they are numbered afterwards */
} axis_split;

/* The adjacent axes at the end of the shape, or else those at its start. */
static axis_split split_axes(const hl_ints *axes, int32_t rank)
{
    axis_split split = {0};
    int32_t n = axes->n, trailing = 0, leading = 0;
    while (trailing < n && axes->at[n - 1 - trailing] == rank - 1 - trailing) trailing++;
    while (leading < n && axes->at[leading] == leading) leading++;
    int32_t first = trailing > 0 ? n - trailing : 0;
    split.group.n = trailing > 0 ? trailing : leading;
    for (int32_t i = 0; i < n; i++) {
        if (i >= first && i < first + split.group.n)
            split.group.at[i - first] = axes->at[i];
        else
            split.rest.at[split.rest.n++] = axes->at[i] - (trailing > 0 ? 0 : split.group.n);
    }
    return split;
}

static hl_status fail_lower(hl_op op)
{
    return hl_status_set(HL_ERROR_DEVICE, "%s: the device must have a kernel, got none",
                         hl_op_get(op)->name);
}

static hl_status add_moments(hl_graph *graph, hl_id x, const hl_ints *axes, hl_id *out_mean)
{
    hl_attrs attrs = {.axes = {*axes}};
    return hl_graph_add(graph, HL_OP_MOMENTS, &x, 1, &attrs, out_mean);
}

/* Mean and variance of groups, merged: var = mean(var_g) + var(mean_g). */
static hl_status merge_moments(hl_graph *graph, hl_id x, const axis_split *split, hl_id *out_values)
{
    const hl_ints *rest = &split->rest;
    hl_id first, second, inner;
    HL_TRY(add_moments(graph, x, &split->group, &first));
    hl_shape shape = *hl_graph_shape(graph, first);
    double share = 1 / (double)count_reduced(&shape, rest);
    HL_TRY(add_moments(graph, first, rest, &second));
    HL_TRY(hl_build_sum(graph, first + 1, rest->at, rest->n, false, &inner));
    HL_TRY(hl_build_binary_number(graph, HL_OP_MUL, inner, share, &inner));
    out_values[0] = second;
    return hl_build_binary(graph, HL_OP_ADD, second + 1, inner, &out_values[1]);
}

/* Two passes: the mean, then the squares of what is left. */
static hl_status sum_moments(hl_graph *graph, hl_id x, const hl_ints *axes, hl_id *out_values)
{
    hl_shape shape = *hl_graph_shape(graph, x);
    double share = 1 / (double)count_reduced(&shape, axes);
    hl_id mean, centred;
    HL_TRY(hl_build_sum(graph, x, axes->at, axes->n, false, &mean));
    HL_TRY(hl_build_binary_number(graph, HL_OP_MUL, mean, share, &out_values[0]));
    HL_TRY(hl_build_keep_dims(graph, out_values[0], &shape, axes->at, axes->n, &mean));
    HL_TRY(hl_build_binary(graph, HL_OP_SUB, x, mean, &centred));
    HL_TRY(hl_build_binary(graph, HL_OP_MUL, centred, centred, &centred));
    HL_TRY(hl_build_sum(graph, centred, axes->at, axes->n, false, &centred));
    return hl_build_binary_number(graph, HL_OP_MUL, centred, share, &out_values[1]);
}

static hl_status lower_moments(hl_graph *graph, hl_id x, const hl_ints *axes, hl_id *out_values)
{
    axis_split split = split_axes(axes, hl_graph_shape(graph, x)->rank);
    if (split.group.n > 0 && split.rest.n > 0) return merge_moments(graph, x, &split, out_values);
    return sum_moments(graph, x, axes, out_values);
}

hl_status hl_lower_reduce(hl_graph *graph, hl_node_id id, hl_id *out_values)
{
    hl_node node = graph->nodes[id];
    hl_shape out = *hl_graph_shape(graph, node.out);
    hl_ints axes = hl_node_axes(&node);
    hl_id x = node.in[0];
    if (node.op == HL_OP_MOMENTS) return lower_moments(graph, x, &axes, out_values);
    axis_split split = split_axes(&axes, hl_graph_shape(graph, x)->rank);
    if (split.group.n == 0 || split.rest.n == 0) return fail_lower(node.op);
    HL_TRY(hl_build_reduce(graph, node.op, x, split.group.at, split.group.n, false, &x));
    HL_TRY(hl_build_reduce(graph, node.op, x, split.rest.at, split.rest.n, false, &x));
    return hl_build_reshape(graph, x, &out, &out_values[0]);
}

/* With z zeros in a group, an element's other factors have z - (it is a zero itself) of them: their
 * product is that of the nonzero ones, less the element, when that number is 0, and else 0. */
hl_status hl_lower_prod_grad(hl_graph *graph, hl_node_id id, hl_id *out_values)
{
    hl_node node = graph->nodes[id];
    hl_id x = node.in[0], is_zero, zero, one, others, nonzero, product, rest;
    const int64_t *axes = node.attrs.axes.axes.at;
    int32_t n = node.attrs.axes.axes.n;
    HL_TRY(hl_build_binary_number(graph, HL_OP_EQ, x, 0, &is_zero));
    HL_TRY(hl_build_cast(graph, is_zero, hl_graph_dtype(graph, x), &zero));
    HL_TRY(hl_build_sum(graph, zero, axes, n, true, &others));
    HL_TRY(hl_build_binary(graph, HL_OP_GT, others, zero, &others));
    HL_TRY(hl_build_number_like(graph, x, 1, &one));
    HL_TRY(hl_build_where(graph, is_zero, one, x, &nonzero));
    HL_TRY(hl_build_reduce(graph, HL_OP_PROD, nonzero, axes, n, true, &product));
    HL_TRY(hl_build_binary(graph, HL_OP_DIV, product, nonzero, &rest));
    HL_TRY(hl_build_keep_unless(graph, others, rest, &rest));
    return hl_build_binary(graph, HL_OP_MUL, rest, node.in[2], &out_values[0]);
}
