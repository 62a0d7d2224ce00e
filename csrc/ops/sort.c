/* Order: sorting along an axis, and places in what is sorted.
 *
 * The first k elements of an order are one op, whatever k is: kernels choose how. argsort, topk and
 * unique are made of it in Python. An order has no gradient; the values carry theirs back to where
 * they stood. */
#include "ops/build.h"
#include "ops/check.h"
#include "ops/ops.h"

hl_status hl_infer_sort(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    hl_attrs_sort *attrs = &node->attrs.sort;
    out_types[0] = *hl_node_in_type(graph, node, 0);
    HL_TRY(hl_check_axis(&out_types[0].shape, &attrs->axis));
    int64_t *n = &out_types[0].shape.dim[attrs->axis];
    if (attrs->k == -1) attrs->k = *n;
    if (attrs->k < 0 || attrs->k > *n)
        return hl_status_set(HL_ERROR_SHAPE,
                             "k must be in [0, %lld], the elements along axis %lld, got %lld",
                             (long long)*n, (long long)attrs->axis, (long long)attrs->k);
    *n = attrs->k;
    out_types[1] = (hl_type){HL_DTYPE_I64, out_types[0].shape};
    return HL_OK;
}

/* One row of the sequence for all values, or one for each row of them. */
static hl_status check_rows(const hl_shape *sequence, const hl_shape *values)
{
    char one[HL_SHAPE_TEXT], other[HL_SHAPE_TEXT];
    bool fits = sequence->rank == 1 || sequence->rank == values->rank;
    for (int32_t d = 0; fits && d < sequence->rank - 1; d++)
        fits = sequence->dim[d] == values->dim[d];
    if (fits) return HL_OK;
    return hl_status_set(HL_ERROR_SHAPE,
                         "the sorted sequence must have one dim, or the values' dims but for the "
                         "last, got %s and values %s",
                         hl_shape_format(sequence, one), hl_shape_format(values, other));
}

hl_status hl_infer_searchsorted(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    const hl_type *sequence = hl_node_in_type(graph, node, 0);
    const hl_type *values = hl_node_in_type(graph, node, 1);
    bool is_int32 = node->attrs.searchsorted.int32_out;
    HL_TRY(hl_check_rank(sequence, 1, "the sorted sequence"));
    HL_TRY(hl_check_dtype(values, sequence->dtype, "the values"));
    HL_TRY(check_rows(&sequence->shape, &values->shape));
    int64_t n = sequence->shape.dim[sequence->shape.rank - 1];
    if (is_int32 && n > INT32_MAX)
        return hl_status_set(HL_ERROR_SHAPE,
                             "int32_out must have rows of at most 2147483647 elements, got %lld",
                             (long long)n);
    out_types[0] = (hl_type){is_int32 ? HL_DTYPE_I32 : HL_DTYPE_I64, values->shape};
    return HL_OK;
}

/* No two elements come from one place, so what is written back is not added. */
hl_status hl_vjp_sort(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                      hl_id *din)
{
    hl_node node = graph->nodes[id];
    hl_type type = *hl_node_in_type(graph, &node, 0);
    hl_attrs attrs = {.axis = {node.attrs.sort.axis}};
    hl_id in[3] = {HL_NONE, node.out + 1, dout[0]};
    if (!need[0] || dout[0] == HL_NONE) return HL_OK;
    HL_TRY(hl_build_full(graph, &type, 0, &in[0]));
    return hl_graph_add(graph, HL_OP_SCATTER, in, 3, &attrs, &din[0]);
}
