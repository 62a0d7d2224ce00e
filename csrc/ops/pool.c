/* Pooling by the largest element of each window. Means over windows are RESAMPLEs.
 *
 * The gradient looks for the largest again, in x, which the backward pass of what made x reads in
 * any case: no index is kept. */
#include "ir/window.h"
#include "ops/build.h"
#include "ops/check.h"
#include "ops/ops.h"
#include "ops/window.h"

/* Every window has an element that is no padding. */
static hl_status check_windows(const hl_attrs_pool *pool, int32_t d, int64_t in, int64_t out)
{
    int64_t kernel = pool->kernel.at[d], stride = pool->stride.at[d];
    int64_t dilation = pool->dilation.at[d], before = pool->before.at[d];
    int64_t inside = (before + stride - 1) / stride; /* windows from here on begin inside */
    for (int64_t o = 0; o < out && o < inside; o++) {
        int64_t tap = (before - o * stride + dilation - 1) / dilation;
        if (tap >= kernel || o * stride - before + tap * dilation >= in)
            return hl_status_set(HL_ERROR_SHAPE,
                                 "the padding before spatial dim %d must leave an element in every "
                                 "window, got %lld with kernel %lld",
                                 (int)d, (long long)before, (long long)kernel);
    }
    if (out > inside && (out - 1) * stride - before >= in)
        return hl_status_set(HL_ERROR_SHAPE,
                             "the padding behind spatial dim %d must leave an element in every "
                             "window, got %lld with kernel %lld",
                             (int)d, (long long)pool->after.at[d], (long long)kernel);
    return HL_OK;
}

static hl_status infer_windows(const hl_graph *graph, hl_node *node, int operand, hl_shape *out)
{
    const hl_type *x = hl_node_in_type(graph, node, operand);
    hl_attrs_pool *pool = &node->attrs.pool;
    bool last = pool->channels_last;
    HL_TRY(hl_check_float(x, "the input"));
    HL_TRY(hl_check_window(x->shape.rank - 2, &pool->stride, &pool->dilation, &pool->before,
                           &pool->after));
    hl_ints in = hl_spatial_dims(&x->shape, last), dims;
    if (pool->kernel.n != in.n)
        return hl_status_set(HL_ERROR_SHAPE, "kernel must have %d numbers, got %d", (int)in.n,
                             (int)pool->kernel.n);
    HL_TRY(hl_count_windows(&in, &pool->kernel, &pool->stride, &pool->dilation, &pool->before,
                            &pool->after, &dims));
    for (int32_t d = 0; d < in.n; d++) HL_TRY(check_windows(pool, d, in.at[d], dims.at[d]));
    int64_t channels = x->shape.dim[hl_channel_dim(&x->shape, last)];
    *out = hl_spatial_shape(x->shape.dim[0], channels, &dims, last);
    return HL_OK;
}

hl_status hl_infer_max_pool(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    out_types[0].dtype = hl_node_in_type(graph, node, 0)->dtype;
    return infer_windows(graph, node, 0, &out_types[0].shape);
}

hl_status hl_infer_max_pool_index(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    out_types[0].dtype = HL_DTYPE_I64;
    return infer_windows(graph, node, 0, &out_types[0].shape);
}

hl_status hl_infer_max_pool_grad(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    const hl_type *x = hl_node_in_type(graph, node, 1);
    hl_type dy = {x->dtype, {0}};
    HL_TRY(infer_windows(graph, node, 1, &dy.shape));
    out_types[0] = *x;
    return hl_check_type(hl_node_in_type(graph, node, 0), &dy, "dy");
}

hl_status hl_vjp_max_pool(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                          hl_id *din)
{
    (void)need;
    const hl_node node = graph->nodes[id];
    hl_id in[2] = {dout[0], node.in[0]};
    return hl_graph_add(graph, HL_OP_MAX_POOL_GRAD, in, 2, &node.attrs, &din[0]);
}

/* A comparison for each tap. */
hl_cost hl_cost_pool(const hl_graph *graph, const hl_node *node)
{
    hl_cost cost = hl_cost_bytes(graph, node);
    const hl_ints *kernel = &hl_pool_attrs(node)->kernel;
    cost.flops = (double)hl_shape_numel(
        hl_graph_shape(graph, node->op == HL_OP_MAX_POOL_GRAD ? node->in[0] : node->out));
    for (int32_t d = 0; d < kernel->n; d++) cost.flops *= (double)kernel->at[d];
    return cost;
}
