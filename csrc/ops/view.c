/* Views and copies: the same elements in another shape or order. */
#include "base/alloc.h"
#include "ops/build.h"
#include "ops/check.h"
#include "ops/ops.h"
#include "ops/parts.h"

/* ---- types ----------------------------------------------------------------------------------- */

static hl_status check_list(const hl_ints *list, int n, const char *what)
{
    if (list->n == n) return HL_OK;
    return hl_status_set(HL_ERROR_SHAPE, "%s must have %d entries, got %d", what, n, list->n);
}

/* Fills the one dim that is -1 so that the elements stay the same in number. */
static hl_status solve_dim(const hl_shape *from, hl_shape *shape)
{
    int unknown = -1;
    int64_t rest = 1;
    for (int d = 0; d < shape->rank; d++) {
        if (shape->dim[d] == -1 && unknown < 0)
            unknown = d;
        else if (shape->dim[d] < 0)
            return hl_status_set(HL_ERROR_SHAPE, "one dim may be -1, no other negative, got %lld",
                                 (long long)shape->dim[d]);
        else if (__builtin_mul_overflow(rest, shape->dim[d], &rest))
            return hl_status_set(HL_ERROR_SHAPE, "elements must fit in 63 bits, got dim %lld",
                                 (long long)shape->dim[d]);
    }
    if (unknown >= 0 && rest > 0) shape->dim[unknown] = hl_shape_numel(from) / rest;
    return HL_OK;
}

hl_status hl_infer_same(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    out_types[0] = *hl_node_in_type(graph, node, 0);
    return HL_OK;
}

hl_status hl_infer_surrogate(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    const hl_type *value = hl_node_in_type(graph, node, 0);
    HL_TRY(hl_check_float(value, "the value"));
    out_types[0] = *value;
    return hl_check_type(hl_node_in_type(graph, node, 1), value, "the surrogate");
}

hl_status hl_vjp_surrogate(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                           hl_id *din)
{
    (void)graph, (void)id;
    if (need[1]) din[1] = dout[0];
    return HL_OK;
}

/* Behind autodiff nothing but the value is left of it. */
hl_status hl_lower_surrogate(hl_graph *graph, hl_node_id id, hl_id *out_values)
{
    out_values[0] = graph->nodes[id].in[0];
    return HL_OK;
}

hl_status hl_infer_reshape(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    hl_ints *dims = &node->attrs.shape.shape;
    const hl_type *x = hl_node_in_type(graph, node, 0);
    hl_shape shape = hl_shape_make(dims->n, dims->at);
    HL_TRY(solve_dim(&x->shape, &shape));
    char text[HL_SHAPE_TEXT];
    bool solved = true;
    for (int d = 0; d < shape.rank; d++) solved = solved && shape.dim[d] >= 0;
    if (!solved || hl_shape_numel(&shape) != hl_shape_numel(&x->shape)) {
        hl_shape asked = hl_shape_make(dims->n, dims->at);
        return hl_status_set(HL_ERROR_SHAPE, "the elements must stay %lld, got shape %s",
                             (long long)hl_shape_numel(&x->shape), hl_shape_format(&asked, text));
    }
    *dims = hl_ints_of(&shape);
    out_types[0] = (hl_type){x->dtype, shape};
    return HL_OK;
}

hl_status hl_infer_permute(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    hl_ints *dims = &node->attrs.permute.dims;
    hl_type x = *hl_node_in_type(graph, node, 0);
    bool taken[HL_MAX_RANK] = {false};
    HL_TRY(check_list(dims, x.shape.rank, "dims"));
    out_types[0] = x;
    for (int d = 0; d < x.shape.rank; d++) {
        int axis;
        HL_TRY(hl_shape_axis(&x.shape, dims->at[d], NULL, &axis));
        if (taken[axis])
            return hl_status_set(HL_ERROR_SHAPE, "a dim must be given once, got %d twice", axis);
        taken[axis] = true;
        dims->at[d] = axis;
        out_types[0].shape.dim[d] = x.shape.dim[axis];
    }
    return HL_OK;
}

hl_status hl_infer_expand(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    hl_ints *dims = &node->attrs.shape.shape;
    const hl_type *x = hl_node_in_type(graph, node, 0);
    int extra = dims->n - x->shape.rank;
    if (extra < 0)
        return hl_status_set(HL_ERROR_SHAPE, "the shape must have at least %d dims, got %d",
                             x->shape.rank, dims->n);
    for (int d = 0; d < dims->n; d++) {
        int64_t have = d < extra ? 1 : x->shape.dim[d - extra];
        if (dims->at[d] == -1 && d >= extra) dims->at[d] = have;
        if (have != 1 && dims->at[d] != have)
            return hl_status_set(HL_ERROR_SHAPE, "dim %d must stay %lld, got %lld", d,
                                 (long long)have, (long long)dims->at[d]);
    }
    out_types[0] = (hl_type){x->dtype, hl_shape_make(dims->n, dims->at)};
    return HL_OK;
}

hl_status hl_infer_concat(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    hl_type sum = *hl_node_in_type(graph, node, 0);
    HL_TRY(hl_check_axis(&sum.shape, &node->attrs.axis.axis));
    int axis = (int)node->attrs.axis.axis;
    for (int32_t i = 1; i < node->n_in; i++) {
        const hl_type *x = hl_node_in_type(graph, node, i);
        hl_shape want = sum.shape;
        if (axis < x->shape.rank) want.dim[axis] = x->shape.dim[axis];
        HL_TRY(hl_check_dtype(x, sum.dtype, "every operand"));
        HL_TRY(hl_check_shape(x, &want, "every operand, but for the axis,"));
        if (__builtin_add_overflow(sum.shape.dim[axis], want.dim[axis], &sum.shape.dim[axis]))
            return hl_status_set(HL_ERROR_SHAPE, "a dim must fit in 63 bits, got %lld more",
                                 (long long)want.dim[axis]);
    }
    out_types[0] = sum;
    return HL_OK;
}

hl_status hl_infer_write_parts(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    const hl_type *x = hl_node_in_type(graph, node, 0);
    int64_t align = node->attrs.write_parts.align, end = 0;
    HL_TRY(hl_check_rank_exactly(x, 1, "what is written to"));
    if (align < 1)
        return hl_status_set(HL_ERROR_CONFIG, "align must be at least 1, got %lld",
                             (long long)align);
    for (int32_t i = 1; i < node->n_in; i++) {
        const hl_type *part = hl_node_in_type(graph, node, i);
        HL_TRY(hl_check_dtype(part, x->dtype, "every part"));
        HL_TRY(hl_check_rank_exactly(part, 1, "every part"));
        end = hl_round_up(end, align) + part->shape.dim[0];
    }
    if (end > x->shape.dim[0])
        return hl_status_set(HL_ERROR_SHAPE, "parts must fit into %lld elements, got %lld",
                             (long long)x->shape.dim[0], (long long)end);
    out_types[0] = *x;
    return HL_OK;
}

/* Python's rule for slice bounds. */
static int64_t clamp_bound(int64_t bound, int64_t size)
{
    if (bound < 0) bound = bound < -size ? 0 : bound + size;
    return bound < size ? bound : size;
}

hl_status hl_infer_slice(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    hl_attrs_slice *slice = &node->attrs.slice;
    out_types[0] = *hl_node_in_type(graph, node, 0);
    HL_TRY(hl_check_axis(&out_types[0].shape, &slice->axis));
    if (slice->step < 1)
        return hl_status_set(HL_ERROR_SHAPE, "step must be at least 1, got %lld",
                             (long long)slice->step);
    int64_t *size = &out_types[0].shape.dim[slice->axis];
    slice->start = clamp_bound(slice->start, *size);
    slice->stop = clamp_bound(slice->stop, *size);
    if (slice->stop < slice->start) slice->stop = slice->start;
    int64_t span = slice->stop - slice->start;
    *size = span / slice->step + (span % slice->step != 0);
    if (*size <= 1) slice->step = 1; /* it may have been beyond any memory */
    return HL_OK;
}

/* n elements at start, start + step, ... lie among `size` ones. */
static hl_status check_run(int64_t start, int64_t step, int64_t n, int64_t size)
{
    int64_t reach;
    bool fits = start >= 0 && step >= 1 && size >= 0 &&
                (n == 0 || (!__builtin_mul_overflow(n - 1, step, &reach) &&
                            !__builtin_add_overflow(reach, start, &reach) && reach < size));
    if (fits) return HL_OK;
    return hl_status_set(HL_ERROR_SHAPE, "the slice must lie in %lld, got %lld from %lld on",
                         (long long)size, (long long)n, (long long)start);
}

hl_status hl_infer_slice_grad(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    hl_attrs_slice_grad *slice = &node->attrs.slice_grad;
    out_types[0] = *hl_node_in_type(graph, node, 0);
    HL_TRY(hl_check_axis(&out_types[0].shape, &slice->axis));
    int64_t *n = &out_types[0].shape.dim[slice->axis];
    HL_TRY(check_run(slice->start, slice->step, *n, slice->size));
    if (*n <= 1) slice->step = 1;
    *n = slice->size;
    return HL_OK;
}

hl_status hl_infer_slice_add(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    hl_attrs_slice_add *slice = &node->attrs.slice_add;
    const hl_type *src = hl_node_in_type(graph, node, 1);
    hl_type want = *hl_node_in_type(graph, node, 0);
    out_types[0] = want;
    HL_TRY(hl_check_float(&want, "x"));
    HL_TRY(hl_check_axis(&want.shape, &slice->axis));
    HL_TRY(hl_check_rank_exactly(src, want.shape.rank, "the source"));
    int64_t n = src->shape.dim[slice->axis], size = want.shape.dim[slice->axis];
    HL_TRY(check_run(slice->start, slice->step, n, size));
    if (n <= 1) slice->step = 1;
    want.shape.dim[slice->axis] = n;
    return hl_check_type(src, &want, "the source");
}

hl_status hl_infer_split(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    hl_attrs_split *split = &node->attrs.split;
    hl_type x = *hl_node_in_type(graph, node, 0);
    HL_TRY(hl_check_axis(&x.shape, &split->axis));
    if (split->size < 1)
        return hl_status_set(HL_ERROR_SHAPE, "size must be at least 1, got %lld",
                             (long long)split->size);
    int64_t dim = x.shape.dim[split->axis], n = dim ? (dim - 1) / split->size + 1 : 1;
    if (n > INT32_MAX)
        return hl_status_set(HL_ERROR_SHAPE, "pieces must be fewer than 2**31, got %lld",
                             (long long)n);
    node->n_out = (int32_t)n;
    for (int64_t j = 0; out_types && j < n; j++) {
        int64_t rest = dim - j * split->size;
        out_types[j] = x;
        out_types[j].shape.dim[split->axis] = rest < split->size ? rest : split->size;
    }
    return HL_OK;
}

enum { PAD_CONSTANT, PAD_REFLECT, PAD_REPLICATE, PAD_CIRCULAR, PAD_MODES };

/* Whether `size` elements can be padded so. */
static bool can_pad(int64_t size, int64_t before, int64_t after, int64_t mode)
{
    int64_t most = before > after ? before : after;
    if (mode == PAD_CONSTANT) {
        int64_t cut_before = before < 0 ? before : 0, cut_after = after < 0 ? after : 0;
        return cut_before >= -size && cut_after >= -size - cut_before;
    }
    if (before < 0 || after < 0) return false;
    if (most == 0) return true;
    if (mode == PAD_REFLECT) return most < size;
    return mode == PAD_CIRCULAR ? most <= size : size > 0;
}

/* *out_type becomes the operand's. */
static hl_status check_pads(const hl_graph *graph, const hl_node *node, hl_type *out_type)
{
    const hl_attrs_pad *pad = hl_pad_attrs(node);
    *out_type = *hl_node_in_type(graph, node, 0);
    if (pad->mode < 0 || pad->mode >= PAD_MODES)
        return hl_status_set(HL_ERROR_CONFIG, "mode must lie in 0 ... 3, got %lld",
                             (long long)pad->mode);
    HL_TRY(check_list(&pad->before, out_type->shape.rank, "before"));
    return check_list(&pad->after, out_type->shape.rank, "after");
}

hl_status hl_infer_pad(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    const hl_attrs_pad *pad = hl_pad_attrs(node);
    hl_shape *shape = &out_types[0].shape;
    HL_TRY(check_pads(graph, node, &out_types[0]));
    for (int d = 0; d < shape->rank; d++) {
        int64_t before = pad->before.at[d], after = pad->after.at[d];
        bool ok = can_pad(shape->dim[d], before, after, pad->mode) &&
                  !__builtin_add_overflow(shape->dim[d], before, &shape->dim[d]) &&
                  !__builtin_add_overflow(shape->dim[d], after, &shape->dim[d]);
        if (!ok)
            return hl_status_set(HL_ERROR_SHAPE,
                                 "pads must suit the dim and the mode, got %lld, %lld for dim %d",
                                 (long long)before, (long long)after, d);
    }
    return HL_OK;
}

hl_status hl_infer_pad_grad(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    const hl_attrs_pad *pad = hl_pad_attrs(node);
    hl_shape *shape = &out_types[0].shape;
    HL_TRY(check_pads(graph, node, &out_types[0]));
    for (int d = 0; d < shape->rank; d++) {
        int64_t before = pad->before.at[d], after = pad->after.at[d];
        bool ok = !__builtin_sub_overflow(shape->dim[d], before, &shape->dim[d]) &&
                  !__builtin_sub_overflow(shape->dim[d], after, &shape->dim[d]) &&
                  shape->dim[d] >= 0 && can_pad(shape->dim[d], before, after, pad->mode);
        if (!ok)
            return hl_status_set(HL_ERROR_SHAPE,
                                 "pads must suit the dim and the mode, got %lld, %lld for dim %d",
                                 (long long)before, (long long)after, d);
    }
    return HL_OK;
}

hl_status hl_infer_flip(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    out_types[0] = *hl_node_in_type(graph, node, 0);
    if (node->attrs.flip.axes.n == 0) return HL_OK; /* no axes: nothing is reversed */
    return hl_check_axes(&out_types[0].shape, &node->attrs.flip.axes);
}

/* ---- gradients ------------------------------------------------------------------------------- */

hl_status hl_vjp_reshape(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                         hl_id *din)
{
    (void)need;
    hl_shape shape = *hl_graph_shape(graph, graph->nodes[id].in[0]);
    return hl_build_reshape(graph, dout[0], &shape, &din[0]);
}

hl_status hl_vjp_permute(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                         hl_id *din)
{
    (void)need;
    const hl_ints *dims = &hl_permute_attrs(&graph->nodes[id])->dims;
    int64_t inverse[HL_MAX_RANK] = {0};
    for (int32_t d = 0; d < dims->n; d++) inverse[dims->at[d]] = d;
    return hl_build_permute(graph, dout[0], inverse, &din[0]);
}

hl_status hl_vjp_expand(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                        hl_id *din)
{
    (void)need;
    hl_shape shape = *hl_graph_shape(graph, graph->nodes[id].in[0]);
    return hl_build_sum_to(graph, dout[0], &shape, &din[0]);
}

/* Operands of one size, but for a smaller last one, all of which want a gradient, are a split's
 * outputs. */
static bool is_split(const hl_graph *graph, const hl_node *node, const bool *need,
                     int64_t *out_size)
{
    int64_t axis = hl_axis_attrs(node)->axis;
    *out_size = hl_graph_shape(graph, node->in[0])->dim[axis];
    for (int32_t i = 0; i < node->n_in; i++) {
        int64_t size = hl_graph_shape(graph, node->in[i])->dim[axis];
        bool fits = size == *out_size || (i == node->n_in - 1 && size < *out_size);
        if (!need[i] || !fits || size < 1) return false;
    }
    return true;
}

hl_status hl_vjp_concat(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                        hl_id *din)
{
    hl_node node = graph->nodes[id];
    int axis = (int)hl_axis_attrs(&node)->axis;
    int64_t start = 0, size;
    if (is_split(graph, &node, need, &size)) {
        hl_attrs attrs = {.split = {axis, size}};
        HL_TRY(hl_graph_add(graph, HL_OP_SPLIT, dout, 1, &attrs, &din[0]));
        for (int32_t i = 1; i < node.n_in; i++) din[i] = din[0] + i;
        return HL_OK;
    }
    for (int32_t i = 0; i < node.n_in; i++) {
        int64_t stop = start + hl_graph_shape(graph, node.in[i])->dim[axis];
        if (need[i]) HL_TRY(hl_build_slice(graph, dout[0], axis, start, stop, &din[i]));
        start = stop;
    }
    return HL_OK;
}

hl_status hl_vjp_split(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                       hl_id *din)
{
    (void)need;
    const hl_node node = graph->nodes[id];
    const hl_attrs_split *split = hl_split_attrs(&node);
    int64_t size = hl_graph_shape(graph, node.in[0])->dim[split->axis];
    hl_part *parts;
    int32_t n = 0;
    HL_TRY(hl_alloc((size_t)node.n_out * sizeof *parts, (void **)&parts));
    for (int32_t j = 0; j < node.n_out; j++)
        if (dout[j] != HL_NONE)
            parts[n++] = (hl_part){dout[j], HL_NONE, (int)split->axis, j * split->size, 1, size};
    hl_status status = hl_build_add_parts(graph, parts, n, &din[0]);
    hl_free(parts);
    return status;
}

hl_status hl_vjp_slice(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                       hl_id *din)
{
    (void)need;
    const hl_node *node = &graph->nodes[id];
    const hl_attrs_slice *slice = hl_slice_attrs(node);
    int64_t size = hl_graph_shape(graph, node->in[0])->dim[slice->axis];
    hl_attrs attrs = {.slice_grad = {slice->axis, slice->start, slice->step, size}};
    return hl_graph_add(graph, HL_OP_SLICE_GRAD, dout, 1, &attrs, &din[0]);
}

hl_status hl_vjp_pad(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                     hl_id *din)
{
    (void)need;
    hl_attrs attrs = graph->nodes[id].attrs;
    if (attrs.pad.mode != PAD_CONSTANT)
        return hl_graph_add(graph, HL_OP_PAD_GRAD, dout, 1, &attrs, &din[0]);
    /* What was put around is cut off, what was cut off got nothing. */
    attrs.pad.value = 0;
    for (int32_t d = 0; d < attrs.pad.before.n; d++) {
        attrs.pad.before.at[d] = -attrs.pad.before.at[d];
        attrs.pad.after.at[d] = -attrs.pad.after.at[d];
    }
    return hl_graph_add(graph, HL_OP_PAD, dout, 1, &attrs, &din[0]);
}

hl_status hl_vjp_flip(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                      hl_id *din)
{
    (void)need;
    hl_attrs attrs = graph->nodes[id].attrs;
    return hl_graph_add(graph, HL_OP_FLIP, dout, 1, &attrs, &din[0]);
}

/* ---- lowering -------------------------------------------------------------------------------- */

hl_status hl_lower_split(hl_graph *graph, hl_node_id id, hl_id *out_values)
{
    hl_node node = graph->nodes[id];
    const hl_attrs_split *split = hl_split_attrs(&node);
    for (int32_t j = 0; j < node.n_out; j++) {
        int64_t start = j * split->size;
        HL_TRY(hl_build_slice(graph, node.in[0], (int)split->axis, start, start + split->size,
                              &out_values[j]));
    }
    return HL_OK;
}
