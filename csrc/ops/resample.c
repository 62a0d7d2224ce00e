/* Resampling along one axis by a banded matrix: every output is a weighted sum of a few neighbours.
 * Interpolation, with or without antialiasing, and means over windows, adaptive ones too, are
 * such maps, one for each axis; bands and weights are made where a graph is traced.
 *
 * The transpose of a banded matrix is banded, so that the gradient is the same op with the two
 * bands in each other's place: no kernel adds to elements that another one may add to. */
#include "ops/build.h"
#include "ops/check.h"
#include "ops/ops.h"

/* starts (n), weights (n times a number of taps) */
static hl_status check_band(const hl_graph *graph, const hl_node *node, int first, hl_dtype dtype,
                            const char *starts, const char *weights)
{
    const hl_type *start = hl_node_in_type(graph, node, first);
    const hl_type *weight = hl_node_in_type(graph, node, first + 1);
    HL_TRY(hl_check_dtype(start, HL_DTYPE_I64, starts));
    HL_TRY(hl_check_rank_exactly(start, 1, starts));
    HL_TRY(hl_check_dtype(weight, dtype, weights));
    HL_TRY(hl_check_rank_exactly(weight, 1, weights));
    int64_t n = start->shape.dim[0], n_weights = weight->shape.dim[0];
    if (n == 0 || n_weights == 0 || n_weights % n != 0)
        return hl_status_set(HL_ERROR_SHAPE,
                             "%s must have some weights for each of %lld starts, "
                             "got %lld",
                             weights, (long long)n, (long long)n_weights);
    return HL_OK;
}

hl_status hl_infer_resample(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    const hl_type *x = hl_node_in_type(graph, node, 0);
    int64_t *axis = &node->attrs.axis.axis;
    HL_TRY(hl_check_float(x, "the input"));
    HL_TRY(hl_check_axis(&x->shape, axis));
    hl_dtype dtype = x->dtype == HL_DTYPE_F64 ? HL_DTYPE_F64 : HL_DTYPE_F32;
    HL_TRY(check_band(graph, node, 1, dtype, "the starts", "the weights"));
    HL_TRY(check_band(graph, node, 3, dtype, "the transpose's starts", "the transpose's weights"));
    int64_t n_in = hl_node_in_type(graph, node, 3)->shape.dim[0];
    if (x->shape.dim[*axis] != n_in)
        return hl_status_set(HL_ERROR_SHAPE, "the axis must have %lld elements, got %lld",
                             (long long)n_in, (long long)x->shape.dim[*axis]);
    out_types[0] = *x;
    out_types[0].shape.dim[*axis] = hl_node_in_type(graph, node, 1)->shape.dim[0];
    return HL_OK;
}

hl_status hl_vjp_resample(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                          hl_id *din)
{
    (void)need;
    const hl_node node = graph->nodes[id];
    hl_id in[5] = {dout[0], node.in[3], node.in[4], node.in[1], node.in[2]};
    return hl_graph_add(graph, HL_OP_RESAMPLE, in, 5, &node.attrs, &din[0]);
}

hl_cost hl_cost_resample(const hl_graph *graph, const hl_node *node)
{
    hl_cost cost = hl_cost_bytes(graph, node);
    int64_t n = hl_node_in_type(graph, node, 1)->shape.dim[0];
    int64_t taps = hl_node_in_type(graph, node, 2)->shape.dim[0] / n;
    cost.flops = 2 * (double)taps * (double)hl_shape_numel(hl_graph_shape(graph, node->out));
    return cost;
}
