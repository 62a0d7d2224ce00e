/* Attention to a few sampled places of images of several sizes (Zhu et al. 2021, Deformable DETR):
 * each head of a query takes value at P places of each of L images, bilinearly and 0 beyond their
 * edges, and adds them by its weights.
 *
 * A location is a place in [0, 1] of an image's width and height, x before y, whose edges are those
 * of the pixels at the edges (align_corners False): pixel x w - 0.5. Images follow one another in
 * value, row by row. A location that is no number is beyond the edges.
 *
 * An op, and no composition of interpolation and products: that has 16 P times as much in memory as
 * value, for each image, and as its gradient. */
#include "ops/build.h"
#include "ops/check.h"
#include "ops/ops.h"

/* Operands from number `first` on: value, locations, weights. */
static hl_status check_operands(const hl_graph *graph, const hl_node *node, int first)
{
    static const char *const names[] = {"the value", "the locations", "the weights"};
    static const int ranks[] = {4, 6, 5};
    const hl_attrs_images *images = hl_images_attrs(node);
    const hl_type *in[3];
    for (int i = 0; i < 3; i++) {
        in[i] = hl_node_in_type(graph, node, first + i);
        if (in[i]->dtype != HL_DTYPE_F64) HL_TRY(hl_check_dtype(in[i], HL_DTYPE_F32, names[i]));
        HL_TRY(hl_check_dtype(in[i], in[0]->dtype, names[i]));
        HL_TRY(hl_check_rank_exactly(in[i], ranks[i], names[i]));
    }
    const int64_t *value = in[0]->shape.dim, *location = in[1]->shape.dim;
    int64_t N = value[0], M = value[2], Lq = location[1], P = location[4], left = value[1];
    hl_shape locations = {6, {N, Lq, M, images->heights.n, P, 2}};
    hl_shape weights = {5, {N, Lq, M, images->heights.n, P}};
    if (images->heights.n < 1 || images->heights.n != images->widths.n)
        return hl_status_set(HL_ERROR_SHAPE,
                             "there must be a height and a width of each image, got %d and %d",
                             images->heights.n, images->widths.n);
    HL_TRY(hl_check_shape(in[1], &locations, names[1]));
    HL_TRY(hl_check_shape(in[2], &weights, names[2]));
    for (int i = 0; i < images->heights.n; i++) {
        int64_t h = images->heights.at[i], w = images->widths.at[i];
        if (h < 1 || w < 1 || h > HL_DEFORMABLE_SIDE || w > HL_DEFORMABLE_SIDE)
            return hl_status_set(HL_ERROR_SHAPE,
                                 "heights and widths must lie in 1 ... %d, got (%lld, %lld)",
                                 HL_DEFORMABLE_SIDE, (long long)h, (long long)w);
        left = left < h * w ? -1 : left - h * w;
        if (left < 0) break;
    }
    if (left != 0)
        return hl_status_set(
            HL_ERROR_SHAPE, "the value must have a row for each pixel of all images, got %lld rows",
            (long long)value[1]);
    return HL_OK;
}

static hl_shape find_result(const hl_graph *graph, const hl_node *node, int first)
{
    const int64_t *value = hl_node_in_type(graph, node, first)->shape.dim;
    int64_t Lq = hl_node_in_type(graph, node, first + 1)->shape.dim[1];
    return (hl_shape){4, {value[0], Lq, value[2], value[3]}};
}

hl_status hl_infer_deformable(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    HL_TRY(check_operands(graph, node, 0));
    out_types[0].dtype = hl_node_in_type(graph, node, 0)->dtype;
    out_types[0].shape = find_result(graph, node, 0);
    return HL_OK;
}

hl_status hl_infer_deformable_grad(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    HL_TRY(check_operands(graph, node, 1));
    for (int i = 0; i < 3; i++) out_types[i] = *hl_node_in_type(graph, node, 1 + i);
    hl_type want = {out_types[0].dtype, find_result(graph, node, 1)};
    return hl_check_type(hl_node_in_type(graph, node, 0), &want, "the result's gradient");
}

hl_status hl_vjp_deformable(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                            hl_id *din)
{
    (void)need;
    const hl_node node = graph->nodes[id];
    hl_id in[4] = {dout[0], node.in[0], node.in[1], node.in[2]}, out;
    HL_TRY(hl_graph_add(graph, HL_OP_DEFORMABLE_GRAD, in, 4, &node.attrs, &out));
    for (int i = 0; i < 3; i++) din[i] = out + i;
    return HL_OK;
}

/* Four products and sums for each number that a weight multiplies, and twice that again for the
 * gradients. */
hl_cost hl_cost_deformable(const hl_graph *graph, const hl_node *node)
{
    bool is_grad = node->op == HL_OP_DEFORMABLE_GRAD;
    hl_cost cost = hl_cost_bytes(graph, node);
    const hl_shape *value = hl_graph_shape(graph, node->in[is_grad]);
    const hl_shape *weights = hl_graph_shape(graph, node->in[is_grad + 2]);
    cost.flops = (is_grad ? 16 : 8) * (double)hl_shape_numel(weights) * (double)value->dim[3];
    return cost;
}
