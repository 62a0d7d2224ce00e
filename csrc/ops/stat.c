/* Statistics of channels: what means, ranges and covariances of a stream are made of, in one walk
 * over a batch.
 *
 * All that is added up is taken less a shift that the caller chooses, near the means, so that the
 * sums of squares do not cancel; sums of batches with one shift are the sums of all. They are
 * float64, and so is the work: a stream is longer than any batch that float32 adds up.
 *
 * Rejected: composition of sums and a product, which would read x five times and want a float64
 * copy of it. */
#include "ops/check.h"
#include "ops/ops.h"

hl_status hl_infer_channel_statistics(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    const hl_type *x = hl_node_in_type(graph, node, 0), *shift = hl_node_in_type(graph, node, 1);
    HL_TRY(hl_check_float(x, "the input"));
    HL_TRY(hl_check_rank(x, 1, "the input"));
    hl_shape rows = x->shape;
    rows.rank--;
    int64_t C = x->shape.dim[rows.rank];
    hl_shape channels = hl_shape_1d(C);
    HL_TRY(hl_check_dtype(shift, HL_DTYPE_F64, "the shift"));
    HL_TRY(hl_check_shape(shift, &channels, "the shift"));
    if (node->n_in > 2) {
        const hl_type *mask = hl_node_in_type(graph, node, 2);
        HL_TRY(hl_check_dtype(mask, HL_DTYPE_BOOL, "the mask"));
        HL_TRY(hl_check_shape(mask, &rows, "the mask"));
    }
    out_types[0] = (hl_type){HL_DTYPE_F64, {0, {0}}};
    for (int j = 1; j < 5; j++) out_types[j] = (hl_type){HL_DTYPE_F64, channels};
    if (node->attrs.channel_statistics.products) out_types[4].shape = (hl_shape){2, {C, C}};
    return HL_OK;
}

/* A subtraction, two comparisons and a sum for each element, and a product and a sum for each two
 * channels of a row: the other half of the products is a copy. */
hl_cost hl_cost_channel_statistics(const hl_graph *graph, const hl_node *node)
{
    hl_cost cost = hl_cost_bytes(graph, node);
    const hl_shape *x = hl_graph_shape(graph, node->in[0]);
    double n = (double)hl_shape_numel(x), C = (double)x->dim[x->rank - 1];
    bool products = hl_channel_statistics_attrs(node)->products;
    cost.flops = 4 * n + (products ? n * (C + 1) : 2 * n);
    return cost;
}
