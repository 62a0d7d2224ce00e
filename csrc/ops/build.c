/* Building blocks of gradients and passes. */
#include "ops/build.h"

hl_status hl_build_unary(hl_graph *graph, hl_op op, hl_id a, hl_id *out_id)
{
    return hl_graph_add(graph, op, &a, 1, NULL, out_id);
}

hl_status hl_build_binary(hl_graph *graph, hl_op op, hl_id a, hl_id b, hl_id *out_id)
{
    hl_id in[2] = {a, b};
    return hl_graph_add(graph, op, in, 2, NULL, out_id);
}

hl_status hl_build_number_like(hl_graph *graph, hl_id like, double number, hl_id *out_id)
{
    return hl_graph_number(graph, hl_graph_dtype(graph, like), number, out_id);
}

hl_status hl_build_binary_number(hl_graph *graph, hl_op op, hl_id a, double number, hl_id *out_id)
{
    hl_id constant;
    *out_id = HL_NONE;
    HL_TRY(hl_build_number_like(graph, a, number, &constant));
    return hl_build_binary(graph, op, a, constant, out_id);
}

hl_status hl_build_where(hl_graph *graph, hl_id condition, hl_id a, hl_id b, hl_id *out_id)
{
    hl_id in[3] = {condition, a, b};
    return hl_graph_add(graph, HL_OP_WHERE, in, 3, NULL, out_id);
}

hl_status hl_build_keep_if(hl_graph *graph, hl_id condition, hl_id a, hl_id *out_id)
{
    hl_id zero;
    *out_id = HL_NONE;
    HL_TRY(hl_build_number_like(graph, a, 0, &zero));
    return hl_build_where(graph, condition, a, zero, out_id);
}

hl_status hl_build_keep_unless(hl_graph *graph, hl_id condition, hl_id a, hl_id *out_id)
{
    hl_id zero;
    *out_id = HL_NONE;
    HL_TRY(hl_build_number_like(graph, a, 0, &zero));
    return hl_build_where(graph, condition, zero, a, out_id);
}

hl_status hl_build_cast(hl_graph *graph, hl_id x, hl_dtype dtype, hl_id *out_id)
{
    hl_attrs attrs = {.dtype = {dtype}};
    return hl_graph_add(graph, HL_OP_CAST, &x, 1, &attrs, out_id);
}

hl_status hl_build_full(hl_graph *graph, const hl_type *type, double number, hl_id *out_id)
{
    hl_shape shape = type->shape;
    hl_id constant;
    *out_id = HL_NONE;
    HL_TRY(hl_graph_number(graph, type->dtype, number, &constant));
    return hl_build_expand(graph, constant, &shape, out_id);
}

hl_status hl_build_places(hl_graph *graph, const hl_shape *shape, hl_id *out_id)
{
    hl_type type = {HL_DTYPE_F32, hl_shape_1d(hl_shape_numel(shape))};
    hl_attrs attrs = {.scan = {.axis = 0}};
    hl_id ones;
    *out_id = HL_NONE;
    HL_TRY(hl_build_full(graph, &type, 1, &ones));
    HL_TRY(hl_graph_add(graph, HL_OP_CUMSUM, &ones, 1, &attrs, out_id));
    return hl_build_reshape(graph, *out_id, shape, out_id);
}

hl_status hl_build_reshape(hl_graph *graph, hl_id x, const hl_shape *shape, hl_id *out_id)
{
    hl_attrs attrs = {.shape = {hl_ints_of(shape)}};
    return hl_graph_add(graph, HL_OP_RESHAPE, &x, 1, &attrs, out_id);
}

hl_status hl_build_permute(hl_graph *graph, hl_id x, const int64_t *dims, hl_id *out_id)
{
    hl_attrs attrs = {.permute = {hl_ints_make(dims, hl_graph_shape(graph, x)->rank)}};
    return hl_graph_add(graph, HL_OP_PERMUTE, &x, 1, &attrs, out_id);
}

hl_status hl_build_expand(hl_graph *graph, hl_id x, const hl_shape *shape, hl_id *out_id)
{
    hl_attrs attrs = {.shape = {hl_ints_of(shape)}};
    return hl_graph_add(graph, HL_OP_EXPAND, &x, 1, &attrs, out_id);
}

hl_status hl_build_slice(hl_graph *graph, hl_id x, int axis, int64_t start, int64_t stop,
                         hl_id *out_id)
{
    hl_attrs attrs = {.slice = {.axis = axis, .start = start, .stop = stop, .step = 1}};
    return hl_graph_add(graph, HL_OP_SLICE, &x, 1, &attrs, out_id);
}

hl_status hl_build_reduce(hl_graph *graph, hl_op op, hl_id x, const int64_t *axes, int32_t n,
                          bool keepdim, hl_id *out_id)
{
    hl_attrs attrs = {.reduce = {.axes = hl_ints_make(axes, n), .keepdim = keepdim}};
    return hl_graph_add(graph, op, &x, 1, &attrs, out_id);
}

hl_status hl_build_sum(hl_graph *graph, hl_id x, const int64_t *axes, int32_t n, bool keepdim,
                       hl_id *out_id)
{
    return hl_build_reduce(graph, HL_OP_SUM, x, axes, n, keepdim, out_id);
}

hl_status hl_build_keep_dims(hl_graph *graph, hl_id x, const hl_shape *full, const int64_t *axes,
                             int32_t n, hl_id *out_id)
{
    hl_shape shape = *full;
    for (int32_t i = 0; i < n; i++) shape.dim[axes[i]] = 1;
    return hl_build_reshape(graph, x, &shape, out_id);
}

hl_status hl_build_sum_to(hl_graph *graph, hl_id x, const hl_shape *shape, hl_id *out_id)
{
    hl_shape want = *shape, have = *hl_graph_shape(graph, x);
    int64_t axes[HL_MAX_RANK];
    int32_t n = 0, extra = have.rank - want.rank;
    *out_id = HL_NONE;
    for (int32_t d = 0; d < have.rank; d++)
        if (d < extra || (want.dim[d - extra] == 1 && have.dim[d] != 1)) axes[n++] = d;
    if (n > 0) HL_TRY(hl_build_sum(graph, x, axes, n, false, &x));
    return hl_build_reshape(graph, x, &want, out_id);
}

hl_status hl_build_grad_for(hl_graph *graph, hl_id grad, hl_id operand, hl_id *out_id)
{
    hl_type type = hl_graph_value(graph, operand)->type;
    *out_id = HL_NONE;
    HL_TRY(hl_build_sum_to(graph, grad, &type.shape, &grad));
    return hl_build_cast(graph, grad, type.dtype, out_id);
}

hl_status hl_build_accumulate(hl_graph *graph, hl_id term, hl_id *sum)
{
    if (*sum == HL_NONE) {
        *sum = term;
        return HL_OK;
    }
    hl_id total;
    HL_TRY(hl_build_binary(graph, HL_OP_ADD, *sum, term, &total));
    *sum = total;
    return HL_OK;
}

hl_status hl_build_matmul(hl_graph *graph, hl_id a, hl_id b, bool trans_a, bool trans_b,
                          hl_id *out_id)
{
    hl_id in[2] = {a, b};
    hl_attrs attrs = {.matmul = {.trans_a = trans_a, .trans_b = trans_b}};
    return hl_graph_add(graph, HL_OP_MATMUL, in, 2, &attrs, out_id);
}
