/* Pointwise ops: shapes broadcast as NumPy's, dtypes promote by hl_dtype_promote. Nothing is
 * inserted where dtypes are mixed: kernels convert what they load. */
#include "ir/program.h"
#include "ops/check.h"
#include "ops/ops.h"

static hl_dtype make_float(const hl_graph *graph, hl_dtype dtype)
{
    return hl_dtype_is_float(dtype) ? dtype : graph->float_dtype;
}

hl_status hl_infer_cast(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    out_types[0] = *hl_node_in_type(graph, node, 0);
    out_types[0].dtype = hl_dtype_attrs(node)->dtype;
    return hl_check_dtype_attr(out_types[0].dtype);
}

/* By the result that the op's row says. */
hl_status hl_infer_pointwise(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    hl_pw_result result = hl_pw_result_of(hl_pw_of_op(node->op));
    int first = result == HL_PW_RESULT_CHOSEN; /* of the operands whose dtypes count */
    hl_type type = *hl_node_in_type(graph, node, first);
    for (int32_t i = first + 1; i < node->n_in; i++) {
        const hl_type *operand = hl_node_in_type(graph, node, i);
        if (result != HL_PW_RESULT_FIRST) type.dtype = hl_dtype_promote(type.dtype, operand->dtype);
        HL_TRY(hl_shape_broadcast(&type.shape, &operand->shape, NULL, &type.shape));
    }
    if (first > 0)
        HL_TRY(hl_shape_broadcast(&hl_node_in_type(graph, node, 0)->shape, &type.shape, NULL,
                                  &type.shape));
    if (result == HL_PW_RESULT_FLOAT) type.dtype = make_float(graph, type.dtype);
    if (result == HL_PW_RESULT_BOOL) type.dtype = HL_DTYPE_BOOL;
    out_types[0] = type;
    if (result != HL_PW_RESULT_NUMBER) return HL_OK;
    return hl_check_number(&type, node->n_in == 1 ? "the operand" : "one operand");
}
