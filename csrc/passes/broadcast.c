/* Broadcasting: a pointwise node that reads an expanded value reads what was expanded.
 *
 * The gradient of a sum or a mean is one number, or one a row, expanded to the shape of what was
 * summed. Pointwise kernels repeat operands themselves, so the expanded value need not be in
 * memory, where it takes as many bytes as what it is multiplied with, and is read once more. It
 * stays where the node has its shape from it alone, and where others than pointwise nodes read it.
 *
 * Rejected: derivatives that do not expand. A rule that gives its operand's gradient in a smaller
 * shape would leave it to all others to know that. */
#include "passes/passes.h"
#include "passes/rewrite.h"

/* The shape of a node's result with another value as operand j; false: they do not fit. */
static bool broadcasts_to(const hl_graph *graph, const hl_node *node, int32_t j, hl_id other,
                          hl_shape *out_shape)
{
    *out_shape = hl_shape_scalar();
    for (int32_t i = 0; i < node->n_in; i++) {
        const hl_shape *next = hl_graph_shape(graph, i == j ? other : node->in[i]);
        if (hl_shape_broadcast(out_shape, next, "pointwise", out_shape) != HL_OK) return false;
    }
    return true;
}

static void read_unexpanded(hl_graph *graph, hl_node *node, int32_t j)
{
    hl_node_id maker = hl_graph_producer(graph, node->in[j]);
    hl_shape shape;
    if (maker == HL_NONE || graph->nodes[maker].op != HL_OP_EXPAND) return;
    hl_id source = graph->nodes[maker].in[0];
    if (!broadcasts_to(graph, node, j, source, &shape) ||
        !hl_shape_equal(&shape, hl_graph_shape(graph, node->out)))
        return;
    /* The arena's operand list is const for readers; passes own the graph. */
    ((hl_id *)node->in)[j] = source;
}

hl_status hl_pass_broadcast(hl_graph *graph)
{
    for (int64_t i = 0; i < graph->n_nodes; i++) {
        hl_node *node = &graph->nodes[i];
        if (!(hl_op_get(node->op)->flags & HL_OP_POINTWISE)) continue;
        for (int32_t j = 0; j < node->n_in; j++) read_unexpanded(graph, node, j);
    }
    return hl_rewrite_sort(graph);
}
