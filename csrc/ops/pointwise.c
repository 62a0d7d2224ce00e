/* Pointwise ops: shapes broadcast as NumPy's, dtypes promote by hl_dtype_promote. Nothing is
 * inserted where dtypes are mixed: kernels convert what they load. */
#include "ops/need.h"
#include "ops/ops.h"

static hl_dtype make_float(const hl_graph *graph, hl_dtype dtype)
{
    return hl_dtype_is_float(dtype) ? dtype : graph->float_dtype;
}

hl_status hl_infer_unary(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    out_types[0] = *hl_node_in_type(graph, node, 0);
    return hl_need_number(&out_types[0], "the operand");
}

hl_status hl_infer_unary_float(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    out_types[0] = *hl_node_in_type(graph, node, 0);
    out_types[0].dtype = make_float(graph, out_types[0].dtype);
    return HL_OK;
}

hl_status hl_infer_unary_bool(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    out_types[0] = *hl_node_in_type(graph, node, 0);
    out_types[0].dtype = HL_DTYPE_BOOL;
    return HL_OK;
}

hl_status hl_infer_cast(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    out_types[0] = *hl_node_in_type(graph, node, 0);
    out_types[0].dtype = hl_dtype_attrs(node)->dtype;
    return hl_need_dtype_attr(out_types[0].dtype);
}

/* Operands first and first + 1, promoted and broadcast. */
static hl_status join_types(const hl_graph *graph, const hl_node *node, int first,
                            hl_type *out_type)
{
    const hl_type *a = hl_node_in_type(graph, node, first),
                  *b = hl_node_in_type(graph, node, first + 1);
    out_type->dtype = hl_dtype_promote(a->dtype, b->dtype);
    return hl_shape_broadcast(&a->shape, &b->shape, NULL, &out_type->shape);
}

hl_status hl_infer_binary(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    HL_TRY(join_types(graph, node, 0, &out_types[0]));
    if (node->op == HL_OP_SUB || node->op == HL_OP_MOD)
        return hl_need_number(&out_types[0], "one operand");
    return HL_OK;
}

hl_status hl_infer_binary_float(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    HL_TRY(join_types(graph, node, 0, &out_types[0]));
    out_types[0].dtype = make_float(graph, out_types[0].dtype);
    return HL_OK;
}

hl_status hl_infer_compare(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    HL_TRY(join_types(graph, node, 0, &out_types[0]));
    out_types[0].dtype = HL_DTYPE_BOOL;
    return HL_OK;
}

hl_status hl_infer_where(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    hl_type chosen;
    HL_TRY(join_types(graph, node, 1, &chosen));
    out_types[0].dtype = chosen.dtype;
    return hl_shape_broadcast(&hl_node_in_type(graph, node, 0)->shape, &chosen.shape, NULL,
                              &out_types[0].shape);
}
