/* relu before dropout: its gradient reads dropout's result, and its own result is stored nowhere.
 *
 * Where the mask lets an element through, relu's result and dropout's are positive together, and
 * the gradient is dy times the mask's scale; elsewhere it is 0. So the gradient needs no mask: it
 * is that of relu, from dropout's result and dy * scale. (An infinite dy is 0 there too, where dy *
 * 0 would be NaN.) */
#include "base/alloc.h"
#include "ops/build.h"
#include "passes/passes.h"
#include "passes/rewrite.h"

/* The cast of a value to this type; HL_NONE: there is none. */
static hl_id find_cast(const hl_graph *graph, const hl_uses *uses, hl_id value, hl_dtype dtype)
{
    for (int32_t u = uses->start[value]; u < uses->start[value + 1]; u++) {
        const hl_node *node = &graph->nodes[uses->list[u]];
        if (node->op == HL_OP_CAST && hl_graph_dtype(graph, node->out) == dtype) return node->out;
    }
    return HL_NONE;
}

/* The other factor of a product of which one is this value; HL_NONE: it is none of it. */
static hl_id find_factor(const hl_node *node, hl_id value)
{
    if (node->op != HL_OP_MUL) return HL_NONE;
    return node->in[1] == value ? node->in[0] : node->in[0] == value ? node->in[1] : HL_NONE;
}

/* This value times a dropout's mask, in its type: one of 16 bits is widened for the product, which
 * is rounded then. HL_NONE: there is none. */
static hl_id find_dropout(const hl_graph *graph, const hl_uses *uses, hl_id value, hl_id mask)
{
    hl_id narrow = hl_rewrite_narrow(graph, value);
    hl_dtype dtype = hl_graph_dtype(graph, narrow), computed = hl_graph_dtype(graph, mask);
    hl_id factor = dtype == computed ? narrow : find_cast(graph, uses, narrow, computed);
    if (factor == HL_NONE) return HL_NONE;
    for (int32_t u = uses->start[factor]; u < uses->start[factor + 1]; u++) {
        const hl_node *node = &graph->nodes[uses->list[u]];
        if (find_factor(node, factor) == mask)
            return dtype == computed ? node->out : find_cast(graph, uses, node->out, dtype);
    }
    return HL_NONE;
}

/* The mask of a dropout that is a factor of this product; HL_NONE: none is. */
static hl_node_id find_mask(const hl_graph *graph, const hl_node *product)
{
    for (int32_t i = 0; product->op == HL_OP_MUL && i < 2; i++) {
        hl_node_id maker = hl_graph_producer(graph, product->in[i]);
        if (maker != HL_NONE && hl_pw_of_op(graph->nodes[maker].op) == HL_PW_DROPOUT_MASK)
            return maker;
    }
    return HL_NONE;
}

/* *out_by: what takes the place of a gradient; HL_NONE: nothing. */
static hl_status read_after_dropout(hl_graph *graph, const hl_uses *uses, const hl_node *gradient,
                                    hl_id *out_by)
{
    hl_dtype dtype = hl_graph_dtype(graph, gradient->in[0]);
    hl_node_id maker = hl_graph_producer(graph, gradient->in[0]);
    *out_by = HL_NONE;
    if (maker != HL_NONE && graph->nodes[maker].op == HL_OP_CAST)
        maker = hl_graph_producer(graph, graph->nodes[maker].in[0]);
    if (maker == HL_NONE) return HL_OK;
    hl_node_id mask = find_mask(graph, &graph->nodes[maker]);
    if (mask == HL_NONE) return HL_OK;
    hl_id drawn = graph->nodes[mask].out, dy = find_factor(&graph->nodes[maker], drawn), scaled;
    hl_id result = find_dropout(graph, uses, gradient->in[1], drawn);
    if (result == HL_NONE || !hl_dtype_is_float(dtype)) return HL_OK;
    /* The mask alone may give the product its type, and a scale would not. */
    if (!hl_type_equal(&graph->values[dy].type, &graph->values[graph->nodes[maker].out].type))
        return HL_OK;
    if (graph->nodes[hl_graph_producer(graph, result)].segment != gradient->segment) return HL_OK;
    double scale = hl_dropout_scale(hl_dropout_mask_attrs(&graph->nodes[mask])->p);
    hl_graph_stand_by(graph, gradient);
    HL_TRY(hl_build_binary_number(graph, HL_OP_MUL, dy, scale, &scaled));
    HL_TRY(hl_build_cast(graph, scaled, dtype, &scaled));
    return hl_build_binary(graph, HL_OP_RELU_GRAD, scaled, result, out_by);
}

hl_status hl_pass_relu(hl_graph *graph)
{
    int64_t n_nodes = graph->n_nodes, n_values = graph->n_values;
    hl_uses uses = {0};
    hl_id *map = NULL;
    hl_status status;
    HL_GOTO(hl_uses_init(graph, &uses));
    HL_GOTO(hl_rewrite_map(graph, &map));
    for (int64_t i = 0; i < n_nodes; i++) {
        const hl_node node = graph->nodes[i];
        hl_id by;
        if (node.op != HL_OP_RELU_GRAD) continue;
        HL_GOTO(read_after_dropout(graph, &uses, &node, &by));
        if (by != HL_NONE) map[node.out] = by;
    }
    hl_rewrite_replace(graph, map, n_values);
    HL_GOTO(hl_rewrite_sort(graph));
cleanup:
    hl_free(map);
    hl_uses_deinit(&uses);
    return status;
}
