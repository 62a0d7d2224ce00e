/* Hoisting: loop-invariant code motion. What depends on parameters and constants alone moves from
 * MICRO, which repeats, to BEGIN. */
#include "passes/passes.h"

#include "base/alloc.h"
#include "passes/rewrite.h"

static bool is_invariant(const hl_graph *graph, const bool *changed, hl_id id)
{
    hl_node_id node = hl_graph_producer(graph, id);
    if (node != HL_NONE) return graph->nodes[node].segment == HL_SEGMENT_BEGIN;
    return hl_rewrite_is_fixed(hl_graph_value(graph, id), changed);
}

hl_status hl_pass_hoist(hl_graph *graph)
{
    bool *changed;
    HL_TRY(hl_rewrite_changed_stores(graph, &changed));
    for (int64_t i = 0; i < graph->n_nodes; i++) {
        hl_node *node = &graph->nodes[i];
        uint32_t flags = hl_op_get(node->op)->flags;
        if (node->segment != HL_SEGMENT_MICRO || flags & (HL_OP_GUARDED | HL_OP_RANDOM)) continue;
        bool invariant = true;
        for (int32_t j = 0; j < node->n_in; j++)
            invariant &= is_invariant(graph, changed, node->in[j]);
        if (invariant) node->segment = HL_SEGMENT_BEGIN;
    }
    hl_free(changed);
    return hl_rewrite_sort(graph);
}
