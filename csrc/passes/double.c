/* Float64: every float of a graph becomes float64, for devices that compute in it. */
#include "passes/passes.h"

static bool is_other_float(hl_dtype dtype)
{
    return hl_dtype_is_float(dtype) && dtype != HL_DTYPE_F64;
}

/* Takes the values before rounding, where they are known. */
static hl_status convert_const(hl_graph *graph, hl_value *value)
{
    int64_t n = hl_shape_numel(&value->type.shape);
    if (!value->doubles && value->type.dtype != HL_DTYPE_F32)
        return hl_status_set(HL_ERROR_TRACE, "float64: constants must be float32, got %s",
                             hl_dtype_name(value->type.dtype));
    void *data;
    HL_TRY(hl_arena_alloc(&graph->arena, (size_t)(n ? n : 1) * sizeof(double), &data));
    for (int64_t i = 0; i < n; i++)
        ((double *)data)[i] = value->doubles ? value->doubles[i] : ((const float *)value->data)[i];
    value->data = data;
    return HL_OK;
}

hl_status hl_pass_double(hl_graph *graph)
{
    graph->float_dtype = HL_DTYPE_F64;
    for (int64_t i = 0; i < graph->n_values; i++) {
        hl_value *value = &graph->values[i];
        /* A resident array keeps its own type; BATCH_GATHER converts. */
        if (value->kind == HL_VALUE_DATASET || !is_other_float(value->type.dtype)) continue;
        if (value->kind == HL_VALUE_CONST) HL_TRY(convert_const(graph, value));
        value->type.dtype = HL_DTYPE_F64;
    }
    for (int64_t i = 0; i < graph->n_stores; i++)
        if (is_other_float(graph->stores[i].dtype)) graph->stores[i].dtype = HL_DTYPE_F64;
    for (int64_t i = 0; i < graph->n_nodes; i++) {
        hl_node *node = &graph->nodes[i];
        const hl_attr_info *dtype = hl_schema_find(hl_op_get(node->op)->schema, "dtype");
        if (dtype && is_other_float((hl_dtype)hl_attrs_int(&node->attrs, dtype)))
            hl_attrs_int_set(&node->attrs, dtype, HL_DTYPE_F64);
    }
    return HL_OK;
}
