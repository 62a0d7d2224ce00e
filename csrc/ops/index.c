/* Indexed access. Indices are data: they get no gradient, and their range is the kernels' to check.
 *
 * Of equal indices the last write wins, so only that one's source has a gradient. Which one it
 * was is found with the op itself: written are the positions along the axis, read back, and
 * compared. Rejected: torch's rule, by which every such source gets the winner's gradient. */
#include "base/alloc.h"
#include "ops/build.h"
#include "ops/check.h"
#include "ops/ops.h"

/* ---- types ----------------------------------------------------------------------------------- */

/* An index of gather and scatter: x's rank, and no dim beyond the axis larger than x's. */
static hl_status check_index(const hl_graph *graph, hl_node *node)
{
    const hl_type *x = hl_node_in_type(graph, node, 0), *index = hl_node_in_type(graph, node, 1);
    HL_TRY(hl_check_axis(&x->shape, &node->attrs.axis.axis));
    HL_TRY(hl_check_integer(index, "the index"));
    HL_TRY(hl_check_rank_exactly(index, x->shape.rank, "the index"));
    for (int d = 0; d < x->shape.rank; d++)
        if (d != node->attrs.axis.axis && index->shape.dim[d] > x->shape.dim[d])
            return hl_status_set(HL_ERROR_SHAPE,
                                 "dim %d of the index must be at most %lld, got %lld", d,
                                 (long long)x->shape.dim[d], (long long)index->shape.dim[d]);
    return HL_OK;
}

hl_status hl_infer_gather(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    HL_TRY(check_index(graph, node));
    out_types[0].dtype = hl_node_in_type(graph, node, 0)->dtype;
    out_types[0].shape = hl_node_in_type(graph, node, 1)->shape;
    return HL_OK;
}

hl_status hl_infer_scatter(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    HL_TRY(check_index(graph, node));
    out_types[0] = *hl_node_in_type(graph, node, 0);
    hl_type src = {out_types[0].dtype, hl_node_in_type(graph, node, 1)->shape};
    return hl_check_type(hl_node_in_type(graph, node, 2), &src, "the source");
}

hl_status hl_infer_index_select(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    const hl_type *x = hl_node_in_type(graph, node, 0), *index = hl_node_in_type(graph, node, 1);
    HL_TRY(hl_check_axis(&x->shape, &node->attrs.axis.axis));
    HL_TRY(hl_check_integer(index, "the index"));
    int axis = (int)node->attrs.axis.axis, rank = x->shape.rank - 1 + index->shape.rank;
    if (rank > HL_MAX_RANK)
        return hl_status_set(HL_ERROR_SHAPE, "the result must have at most 8 dims, got %d", rank);
    hl_shape shape = {rank, {0}};
    int n = 0;
    for (int d = 0; d < axis; d++) shape.dim[n++] = x->shape.dim[d];
    for (int d = 0; d < index->shape.rank; d++) shape.dim[n++] = index->shape.dim[d];
    for (int d = axis + 1; d < x->shape.rank; d++) shape.dim[n++] = x->shape.dim[d];
    out_types[0] = (hl_type){x->dtype, shape};
    return HL_OK;
}

hl_status hl_infer_index_write(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    const hl_type *index = hl_node_in_type(graph, node, 1);
    hl_type src = *hl_node_in_type(graph, node, 0);
    out_types[0] = src;
    HL_TRY(hl_check_axis(&src.shape, &node->attrs.axis.axis));
    HL_TRY(hl_check_integer(index, "the index"));
    HL_TRY(hl_check_rank_exactly(index, 1, "the index"));
    src.shape.dim[node->attrs.axis.axis] = index->shape.dim[0];
    return hl_check_type(hl_node_in_type(graph, node, 2), &src, "the source");
}

hl_status hl_infer_batch_gather(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    const hl_type *source = hl_node_in_type(graph, node, 0);
    const hl_type *index = hl_node_in_type(graph, node, 1);
    int64_t window = node->attrs.batch.window;
    HL_TRY(hl_check_rank(source, 1, "the source"));
    HL_TRY(hl_check_integer(index, "the index"));
    HL_TRY(hl_check_rank_exactly(index, 1, "the index"));
    if (window < 0 || window > source->shape.dim[0])
        return hl_status_set(HL_ERROR_SHAPE,
                             "window must be in 0..%lld, the rows of the source, got %lld",
                             (long long)source->shape.dim[0], (long long)window);
    int n = 0, rank = source->shape.rank + (window > 0);
    if (rank > HL_MAX_RANK)
        return hl_status_set(HL_ERROR_SHAPE, "the result must have at most 8 dims, got %d", rank);
    hl_shape shape = {rank, {index->shape.dim[0]}};
    if (window) shape.dim[++n] = window;
    for (int d = 1; d < source->shape.rank; d++) shape.dim[++n] = source->shape.dim[d];
    out_types[0] = (hl_type){node->attrs.batch.dtype, shape};
    return hl_check_dtype_attr(out_types[0].dtype);
}

/* ---- gradients ------------------------------------------------------------------------------- */

/* An indexed op with the node's axis. */
static hl_status add_indexed(hl_graph *graph, hl_op op, const hl_node *node, const hl_id *in,
                             int32_t n_in, hl_id *out_id)
{
    return hl_graph_add(graph, op, in, n_in, &node->attrs, out_id);
}

static hl_status build_zeros_like(hl_graph *graph, hl_id like, hl_id *out_id)
{
    hl_type type = hl_graph_value(graph, like)->type;
    return hl_build_full(graph, &type, 0, out_id);
}

hl_status hl_vjp_gather(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                        hl_id *din)
{
    hl_node node = graph->nodes[id];
    hl_id in[3] = {HL_NONE, node.in[1], dout[0]};
    if (!need[0]) return HL_OK;
    HL_TRY(build_zeros_like(graph, node.in[0], &in[0]));
    return add_indexed(graph, HL_OP_SCATTER_ADD, &node, in, 3, &din[0]);
}

/* 0, 1, ... n - 1 along one axis of a shape, the other dims 1. */
static hl_status build_positions(hl_graph *graph, int64_t n, int axis, int rank, hl_id *out_id)
{
    *out_id = HL_NONE;
    void *memory;
    HL_TRY(hl_alloc((size_t)n * sizeof(int64_t), &memory));
    int64_t *positions = memory;
    for (int64_t i = 0; i < n; i++) positions[i] = i;
    hl_shape shape = {rank, {1, 1, 1, 1, 1, 1, 1, 1}};
    shape.dim[axis] = n;
    hl_status status = hl_graph_const(graph, (hl_type){HL_DTYPE_I64, shape}, positions, out_id);
    hl_free(memory);
    return status;
}

/* dsrc of a write: what `read` finds of dout at the index, where this source was the last. `slots`
 * and `positions` are what the write is repeated on, in int64. */
static hl_status build_winners(hl_graph *graph, const hl_node *node, hl_op read, hl_id slots,
                               hl_id positions, hl_id dout, hl_id *out_id)
{
    hl_id write_in[3] = {slots, node->in[1], positions}, read_in[2] = {HL_NONE, node->in[1]};
    hl_id last, grad;
    HL_TRY(add_indexed(graph, node->op, node, write_in, 3, &read_in[0]));
    HL_TRY(add_indexed(graph, read, node, read_in, 2, &last));
    HL_TRY(hl_build_binary(graph, HL_OP_EQ, last, positions, &last));
    read_in[0] = dout;
    HL_TRY(add_indexed(graph, read, node, read_in, 2, &grad));
    return hl_build_keep_if(graph, last, grad, out_id);
}

/* dx of a write: dout with zeros at the index. */
static hl_status build_overwritten(hl_graph *graph, const hl_node *node, hl_id dout, hl_id *out_id)
{
    hl_id in[3] = {dout, node->in[1], HL_NONE};
    HL_TRY(build_zeros_like(graph, node->in[2], &in[2]));
    return add_indexed(graph, node->op, node, in, 3, out_id);
}

hl_status hl_vjp_scatter(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                         hl_id *din)
{
    hl_node node = graph->nodes[id];
    if (need[0]) HL_TRY(build_overwritten(graph, &node, dout[0], &din[0]));
    if (!need[2]) return HL_OK;
    int axis = (int)node.attrs.axis.axis;
    hl_shape index = *hl_graph_shape(graph, node.in[1]);
    hl_type slots_type = {HL_DTYPE_I64, *hl_graph_shape(graph, node.in[0])};
    hl_id slots, positions;
    HL_TRY(hl_build_full(graph, &slots_type, 0, &slots));
    HL_TRY(build_positions(graph, index.dim[axis], axis, index.rank, &positions));
    HL_TRY(hl_build_expand(graph, positions, &index, &positions));
    return build_winners(graph, &node, HL_OP_GATHER, slots, positions, dout[0], &din[2]);
}

hl_status hl_vjp_scatter_add(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                             hl_id *din)
{
    hl_node node = graph->nodes[id];
    hl_id in[2] = {dout[0], node.in[1]};
    din[0] = dout[0];
    if (!need[2]) return HL_OK;
    return add_indexed(graph, HL_OP_GATHER, &node, in, 2, &din[2]);
}

hl_status hl_vjp_index_select(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                              hl_id *din)
{
    hl_node node = graph->nodes[id];
    if (!need[0]) return HL_OK;
    hl_shape rows = *hl_graph_shape(graph, node.in[0]);
    hl_shape index = hl_shape_1d(hl_shape_numel(hl_graph_shape(graph, node.in[1])));
    rows.dim[node.attrs.axis.axis] = index.dim[0];
    hl_id in[3];
    HL_TRY(build_zeros_like(graph, node.in[0], &in[0]));
    HL_TRY(hl_build_reshape(graph, node.in[1], &index, &in[1]));
    HL_TRY(hl_build_reshape(graph, dout[0], &rows, &in[2]));
    return add_indexed(graph, HL_OP_INDEX_ADD, &node, in, 3, &din[0]);
}

hl_status hl_vjp_index_add(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                           hl_id *din)
{
    hl_node node = graph->nodes[id];
    hl_id in[2] = {dout[0], node.in[1]};
    din[0] = dout[0];
    if (!need[2]) return HL_OK;
    return add_indexed(graph, HL_OP_INDEX_SELECT, &node, in, 2, &din[2]);
}

hl_status hl_vjp_index_copy(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                            hl_id *din)
{
    hl_node node = graph->nodes[id];
    if (need[0]) HL_TRY(build_overwritten(graph, &node, dout[0], &din[0]));
    if (!need[2]) return HL_OK;
    int axis = (int)node.attrs.axis.axis;
    /* One position per row: dims beside the axis are 1, and broadcast against the gradient. */
    hl_type slots_type = {HL_DTYPE_I64,
                          {hl_graph_shape(graph, node.in[0])->rank, {1, 1, 1, 1, 1, 1, 1, 1}}};
    slots_type.shape.dim[axis] = hl_graph_shape(graph, node.in[0])->dim[axis];
    int64_t n = hl_graph_shape(graph, node.in[1])->dim[0];
    hl_id slots, positions;
    HL_TRY(hl_build_full(graph, &slots_type, 0, &slots));
    HL_TRY(build_positions(graph, n, axis, slots_type.shape.rank, &positions));
    return build_winners(graph, &node, HL_OP_INDEX_SELECT, slots, positions, dout[0], &din[2]);
}
