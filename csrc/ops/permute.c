/* How physical layouts pass through ops: attributes that name dims name their new places. */
#include "base/alloc.h"
#include "ops/build.h"
#include "ops/ops.h"

/* Where a dim of the old order stands in the new one. */
static void invert(const hl_ints *dims, int64_t *out_place)
{
    for (int32_t i = 0; i < dims->n; i++) out_place[dims->at[i]] = i;
}

bool hl_node_permute(const hl_graph *graph, const hl_node *node, const hl_ints *dims,
                     hl_attrs *attrs, hl_ints *out_dims)
{
    const hl_op_info *op = hl_op_get(node->op);
    if (op->permute) return op->permute(graph, node, dims, attrs, out_dims);
    if (!(op->flags & HL_OP_POINTWISE) || op->flags & HL_OP_GENERATOR) return false;
    return hl_permute_same(graph, node, dims, attrs, out_dims);
}

bool hl_permute_same(const hl_graph *graph, const hl_node *node, const hl_ints *dims,
                     hl_attrs *attrs, hl_ints *out_dims)
{
    (void)attrs;
    *out_dims = *dims;
    return hl_graph_shape(graph, node->out)->rank == dims->n;
}

/* The attribute axis, or axes, in ascending order again. */
static void move_axes(const hl_node *node, const hl_ints *dims, hl_attrs *attrs)
{
    hl_schema schema = hl_op_get(node->op)->schema;
    const hl_attr_info *list = hl_schema_find(schema, "axes"),
                       *one = hl_schema_find(schema, "axis");
    int64_t place[HL_MAX_RANK];
    bool chosen[HL_MAX_RANK] = {false};
    invert(dims, place);
    if (one) hl_attrs_int_set(attrs, one, place[hl_attrs_int(attrs, one)]);
    if (!list) return;
    hl_ints *axes = hl_attrs_ints(attrs, list);
    for (int32_t i = 0; i < axes->n; i++) chosen[place[axes->at[i]]] = true;
    axes->n = 0;
    for (int32_t d = 0; d < dims->n; d++)
        if (chosen[d]) axes->at[axes->n++] = d;
}

bool hl_permute_axes(const hl_graph *graph, const hl_node *node, const hl_ints *dims,
                     hl_attrs *attrs, hl_ints *out_dims)
{
    move_axes(node, dims, attrs);
    return hl_permute_same(graph, node, dims, attrs, out_dims);
}

bool hl_permute_pads(const hl_graph *graph, const hl_node *node, const hl_ints *dims,
                     hl_attrs *attrs, hl_ints *out_dims)
{
    const hl_attrs_pad *pad = hl_pad_attrs(node);
    for (int32_t d = 0; d < dims->n; d++) {
        attrs->pad.before.at[d] = pad->before.at[dims->at[d]];
        attrs->pad.after.at[d] = pad->after.at[dims->at[d]];
    }
    return hl_permute_same(graph, node, dims, attrs, out_dims);
}

/* What is left of the dims, in their new order and numbered without those that are gone. */
bool hl_permute_reduce(const hl_graph *graph, const hl_node *node, const hl_ints *dims,
                       hl_attrs *attrs, hl_ints *out_dims)
{
    hl_ints axes = hl_node_axes(node);
    int64_t number[HL_MAX_RANK];
    int32_t rank = hl_graph_shape(graph, node->in[0])->rank, n = 0;
    if (dims->n != rank) return false;
    move_axes(node, dims, attrs);
    if (hl_graph_shape(graph, node->out)->rank == rank) { /* keepdim */
        *out_dims = *dims;
        return true;
    }
    for (int32_t d = 0, i = 0; d < rank; d++) {
        bool gone = i < axes.n && axes.at[i] == d;
        i += gone;
        number[d] = gone ? HL_NONE : n++;
    }
    out_dims->n = 0;
    for (int32_t d = 0; d < rank; d++)
        if (number[dims->at[d]] != HL_NONE) out_dims->at[out_dims->n++] = number[dims->at[d]];
    return true;
}

/* ---- a node in another order ----------------------------------------------------------------- */

/* The value with its dims in this order, if it has as many. */
static hl_status turn(hl_graph *graph, hl_id value, const hl_ints *order, hl_id *out_id)
{
    *out_id = value;
    if (hl_graph_shape(graph, value)->rank != order->n) return HL_OK;
    return hl_build_permute(graph, value, order->at, out_id);
}

hl_status hl_build_in_order(hl_graph *graph, hl_node_id id, const hl_ints *order, hl_id *out_values)
{
    const hl_node node = graph->nodes[id];
    hl_attrs attrs = node.attrs;
    hl_ints out_order, back = {0};
    hl_id *in, made;
    if (!hl_node_permute(graph, &node, order, &attrs, &out_order))
        return hl_status_set(HL_ERROR_INTERNAL, "%s: it must take another order of dims",
                             hl_op_get(node.op)->name);
    back.n = out_order.n;
    invert(&out_order, back.at);
    HL_TRY(hl_alloc(((size_t)node.n_in + 1) * sizeof *in, (void **)&in));
    hl_status status = HL_OK;
    for (int32_t i = 0; i < node.n_in && status == HL_OK; i++)
        if (hl_op_is_fixed(node.op, i))
            in[i] = node.in[i];
        else
            status = turn(graph, node.in[i], order, &in[i]);
    if (status == HL_OK) status = hl_graph_add(graph, node.op, in, node.n_in, &attrs, &made);
    for (int32_t j = 0; j < node.n_out && status == HL_OK; j++)
        status = turn(graph, made + j, &back, &out_values[j]);
    hl_free(in);
    return status;
}
