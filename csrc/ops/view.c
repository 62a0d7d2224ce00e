/* Views and copies: the same elements in another shape or order. */
#include "ops/build.h"
#include "ops/need.h"
#include "ops/ops.h"

/* ---- types ---- */

static hl_status need_list(const hl_attrs *attrs, int n, const char *what)
{
    if (attrs->n_dims == n) return HL_OK;
    return hl_status_set(HL_ERROR_SHAPE, "%s must have %d entries, got %d", what, n, attrs->n_dims);
}

static hl_status need_short_list(const hl_attrs *attrs)
{
    if (attrs->n_dims <= HL_MAX_RANK) return HL_OK;
    return hl_status_set(HL_ERROR_SHAPE, "a shape must have at most 8 dims, got %d", attrs->n_dims);
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

hl_status hl_infer_reshape(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    hl_attrs *attrs = &node->attrs;
    const hl_type *x = hl_node_in_type(graph, node, 0);
    HL_TRY(need_short_list(attrs));
    hl_shape shape = hl_shape_make(attrs->n_dims, attrs->dims);
    HL_TRY(solve_dim(&x->shape, &shape));
    char text[HL_SHAPE_TEXT];
    bool solved = true;
    for (int d = 0; d < shape.rank; d++) solved = solved && shape.dim[d] >= 0;
    if (!solved || hl_shape_numel(&shape) != hl_shape_numel(&x->shape)) {
        hl_shape asked = hl_shape_make(attrs->n_dims, attrs->dims);
        return hl_status_set(HL_ERROR_SHAPE, "the elements must stay %lld, got shape %s",
                             (long long)hl_shape_numel(&x->shape), hl_shape_format(&asked, text));
    }
    for (int d = 0; d < shape.rank; d++) attrs->dims[d] = shape.dim[d];
    out_types[0] = (hl_type){x->dtype, shape};
    return HL_OK;
}

hl_status hl_infer_permute(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    hl_attrs *attrs = &node->attrs;
    hl_type x = *hl_node_in_type(graph, node, 0);
    bool taken[HL_MAX_RANK] = {false};
    HL_TRY(need_list(attrs, x.shape.rank, "dims"));
    out_types[0] = x;
    for (int d = 0; d < x.shape.rank; d++) {
        int axis;
        HL_TRY(hl_shape_axis(&x.shape, attrs->dims[d], NULL, &axis));
        if (taken[axis])
            return hl_status_set(HL_ERROR_SHAPE, "a dim must be given once, got %d twice", axis);
        taken[axis] = true;
        attrs->dims[d] = axis;
        out_types[0].shape.dim[d] = x.shape.dim[axis];
    }
    return HL_OK;
}

hl_status hl_infer_expand(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    hl_attrs *attrs = &node->attrs;
    const hl_type *x = hl_node_in_type(graph, node, 0);
    HL_TRY(need_short_list(attrs));
    int extra = attrs->n_dims - x->shape.rank;
    if (extra < 0)
        return hl_status_set(HL_ERROR_SHAPE, "the shape must have at least %d dims, got %d",
                             x->shape.rank, attrs->n_dims);
    for (int d = 0; d < attrs->n_dims; d++) {
        int64_t have = d < extra ? 1 : x->shape.dim[d - extra];
        if (attrs->dims[d] == -1 && d >= extra) attrs->dims[d] = have;
        if (have != 1 && attrs->dims[d] != have)
            return hl_status_set(HL_ERROR_SHAPE, "dim %d must stay %lld, got %lld", d,
                                 (long long)have, (long long)attrs->dims[d]);
    }
    out_types[0] = (hl_type){x->dtype, hl_shape_make(attrs->n_dims, attrs->dims)};
    return HL_OK;
}

hl_status hl_infer_concat(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    hl_type sum = *hl_node_in_type(graph, node, 0);
    int axis;
    HL_TRY(hl_need_axis(&sum.shape, &node->attrs, 0, &axis));
    for (int32_t i = 1; i < node->n_in; i++) {
        const hl_type *x = hl_node_in_type(graph, node, i);
        hl_shape want = sum.shape;
        if (axis < x->shape.rank) want.dim[axis] = x->shape.dim[axis];
        HL_TRY(hl_need_dtype(x, sum.dtype, "every operand"));
        HL_TRY(hl_need_shape(x, &want, "every operand, but for the axis,"));
        if (__builtin_add_overflow(sum.shape.dim[axis], want.dim[axis], &sum.shape.dim[axis]))
            return hl_status_set(HL_ERROR_SHAPE, "a dim must fit in 63 bits, got %lld more",
                                 (long long)want.dim[axis]);
    }
    out_types[0] = sum;
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
    int64_t *i = node->attrs.i; /* axis, start, stop, step */
    int axis;
    out_types[0] = *hl_node_in_type(graph, node, 0);
    HL_TRY(hl_need_axis(&out_types[0].shape, &node->attrs, 0, &axis));
    if (i[3] < 1)
        return hl_status_set(HL_ERROR_SHAPE, "step must be at least 1, got %lld", (long long)i[3]);
    int64_t size = out_types[0].shape.dim[axis];
    i[1] = clamp_bound(i[1], size);
    i[2] = clamp_bound(i[2], size);
    if (i[2] < i[1]) i[2] = i[1];
    int64_t span = i[2] - i[1];
    out_types[0].shape.dim[axis] = span / i[3] + (span % i[3] != 0);
    return HL_OK;
}

hl_status hl_infer_slice_grad(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    const int64_t *i = node->attrs.i; /* axis, start, step, size */
    int axis;
    out_types[0] = *hl_node_in_type(graph, node, 0);
    HL_TRY(hl_need_axis(&out_types[0].shape, &node->attrs, 0, &axis));
    int64_t n = out_types[0].shape.dim[axis], reach;
    bool fits = i[1] >= 0 && i[2] >= 1 && i[3] >= 0 &&
                (n == 0 || (!__builtin_mul_overflow(n - 1, i[2], &reach) &&
                            !__builtin_add_overflow(reach, i[1], &reach) && reach < i[3]));
    if (!fits)
        return hl_status_set(HL_ERROR_SHAPE, "the slice must lie in %lld, got %lld from %lld on",
                             (long long)i[3], (long long)n, (long long)i[1]);
    out_types[0].shape.dim[axis] = i[3];
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

static hl_status check_pad_mode(int64_t mode)
{
    if (mode >= 0 && mode < PAD_MODES) return HL_OK;
    return hl_status_set(HL_ERROR_CONFIG, "mode must lie in 0 ... 3, got %lld", (long long)mode);
}

hl_status hl_infer_pad(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    const int64_t *pads = node->attrs.dims, mode = node->attrs.i[0];
    hl_shape *shape = &out_types[0].shape;
    out_types[0] = *hl_node_in_type(graph, node, 0);
    HL_TRY(check_pad_mode(mode));
    HL_TRY(need_list(&node->attrs, 2 * shape->rank, "pads"));
    for (int d = 0; d < shape->rank; d++) {
        int64_t before = pads[2 * d], after = pads[2 * d + 1];
        bool ok = can_pad(shape->dim[d], before, after, mode) &&
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
    const int64_t *pads = node->attrs.dims, mode = node->attrs.i[0];
    hl_shape *shape = &out_types[0].shape;
    out_types[0] = *hl_node_in_type(graph, node, 0);
    HL_TRY(check_pad_mode(mode));
    HL_TRY(need_list(&node->attrs, 2 * shape->rank, "pads"));
    for (int d = 0; d < shape->rank; d++) {
        bool ok = !__builtin_sub_overflow(shape->dim[d], pads[2 * d], &shape->dim[d]) &&
                  !__builtin_sub_overflow(shape->dim[d], pads[2 * d + 1], &shape->dim[d]) &&
                  shape->dim[d] >= 0 && can_pad(shape->dim[d], pads[2 * d], pads[2 * d + 1], mode);
        if (!ok)
            return hl_status_set(HL_ERROR_SHAPE,
                                 "pads must suit the dim and the mode, got %lld, %lld for dim %d",
                                 (long long)pads[2 * d], (long long)pads[2 * d + 1], d);
    }
    return HL_OK;
}

hl_status hl_infer_flip(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    out_types[0] = *hl_node_in_type(graph, node, 0);
    if (node->attrs.n_dims == 0) return HL_OK; /* no axes: nothing is reversed */
    return hl_need_axes(&out_types[0].shape, &node->attrs);
}

/* ---- gradients ---- */

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
    const hl_attrs *attrs = &graph->nodes[id].attrs;
    int64_t inverse[HL_MAX_RANK] = {0};
    for (int32_t d = 0; d < attrs->n_dims; d++) inverse[attrs->dims[d]] = d;
    return hl_build_permute(graph, dout[0], inverse, &din[0]);
}

hl_status hl_vjp_expand(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                        hl_id *din)
{
    (void)need;
    hl_shape shape = *hl_graph_shape(graph, graph->nodes[id].in[0]);
    return hl_build_sum_to(graph, dout[0], &shape, &din[0]);
}

hl_status hl_vjp_concat(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                        hl_id *din)
{
    hl_node node = graph->nodes[id];
    int axis = (int)node.attrs.i[0];
    int64_t start = 0;
    for (int32_t i = 0; i < node.n_in; i++) {
        int64_t stop = start + hl_graph_shape(graph, node.in[i])->dim[axis];
        if (need[i]) HL_TRY(hl_build_slice(graph, dout[0], axis, start, stop, &din[i]));
        start = stop;
    }
    return HL_OK;
}

hl_status hl_vjp_slice(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                       hl_id *din)
{
    (void)need;
    const hl_node *node = &graph->nodes[id];
    const int64_t *i = node->attrs.i; /* axis, start, stop, step */
    int64_t size = hl_graph_shape(graph, node->in[0])->dim[i[0]];
    hl_attrs attrs = {.i = {i[0], i[1], i[3], size}};
    return hl_graph_add(graph, HL_OP_SLICE_GRAD, dout, 1, &attrs, &din[0]);
}

hl_status hl_vjp_pad(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                     hl_id *din)
{
    (void)need;
    hl_attrs attrs = graph->nodes[id].attrs;
    if (attrs.i[0] != PAD_CONSTANT)
        return hl_graph_add(graph, HL_OP_PAD_GRAD, dout, 1, &attrs, &din[0]);
    /* What was put around is cut off, what was cut off got nothing. */
    attrs.f[0] = 0;
    for (int32_t d = 0; d < attrs.n_dims; d++) attrs.dims[d] = -attrs.dims[d];
    return hl_graph_add(graph, HL_OP_PAD, dout, 1, &attrs, &din[0]);
}

hl_status hl_vjp_flip(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                      hl_id *din)
{
    (void)need;
    hl_attrs attrs = graph->nodes[id].attrs;
    return hl_graph_add(graph, HL_OP_FLIP, dout, 1, &attrs, &din[0]);
}
