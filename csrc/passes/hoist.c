/* Hoisting: loop-invariant code motion. What depends on parameters and constants alone moves from
 * MICRO, which repeats, to BEGIN.
 *
 * A fill (one number all over) that an op writes over is the exception: a kernel works in place on
 * a value of its own segment alone, and filling memory costs less than copying what was filled
 * elsewhere. Such a fill stands in its writer's segment, and each writer has one of its own. */
#include "passes/passes.h"

#include "base/alloc.h"
#include "ops/build.h"
#include "passes/rewrite.h"

/* ---- fills that are written over ------------------------------------------------------------- */

/* The number that a value, or what it is a view of, is filled with; HL_NONE: it is no fill. */
static hl_id find_filling(const hl_graph *graph, hl_id id)
{
    double number;
    hl_node_id maker = hl_graph_producer(graph, hl_graph_viewed(graph, id));
    if (maker == HL_NONE || graph->nodes[maker].op != HL_OP_EXPAND) return HL_NONE;
    hl_id filling = graph->nodes[maker].in[0];
    return hl_graph_number_read(graph, filling, &number) ? filling : HL_NONE;
}

/* The fill that this node alone reads, and writes over; HL_NONE: there is none. */
static hl_node_id find_own_fill(const hl_graph *graph, const hl_uses *uses, hl_node_id id)
{
    const hl_node *node = &graph->nodes[id];
    if (!(hl_op_get(node->op)->flags & HL_OP_WRITES_FIRST)) return HL_NONE;
    hl_id base = node->in[0];
    if (find_filling(graph, base) == HL_NONE || hl_graph_viewed(graph, base) != base ||
        uses->kept[base] || hl_uses_count(uses, base) != 1)
        return HL_NONE;
    hl_node_id fill = hl_graph_producer(graph, base);
    return graph->nodes[fill].segment == node->segment ? fill : (hl_node_id)HL_NONE;
}

static hl_status give_fill(hl_graph *graph, hl_node_id id, hl_id filling)
{
    hl_node node = graph->nodes[id];
    hl_shape scalar = hl_shape_scalar(), shape = *hl_graph_shape(graph, node.in[0]);
    hl_id fill;
    hl_graph_stand_by(graph, &node);
    HL_TRY(hl_build_reshape(graph, filling, &scalar, &fill));
    HL_TRY(hl_build_expand(graph, fill, &shape, &fill));
    /* The arena's operand list is const for readers; passes own the graph. */
    ((hl_id *)node.in)[0] = fill;
    return HL_OK;
}

static hl_status give_fills(hl_graph *graph)
{
    hl_uses uses;
    hl_status status = HL_OK;
    int64_t n_nodes = graph->n_nodes;
    HL_TRY(hl_uses_init(graph, &uses));
    for (int64_t i = 0; i < n_nodes; i++) {
        const hl_node *node = &graph->nodes[i];
        if (!(hl_op_get(node->op)->flags & HL_OP_WRITES_FIRST)) continue;
        hl_id filling = find_filling(graph, node->in[0]);
        if (filling == HL_NONE || find_own_fill(graph, &uses, (hl_node_id)i) != HL_NONE) continue;
        HL_GOTO(give_fill(graph, (hl_node_id)i, filling));
    }
    HL_GOTO(hl_rewrite_sort(graph));
cleanup:
    hl_uses_deinit(&uses);
    return status;
}

/* ---- moving ---------------------------------------------------------------------------------- */

static bool is_invariant(const hl_graph *graph, const bool *changed, hl_id id)
{
    hl_node_id node = hl_graph_producer(graph, id);
    if (node != HL_NONE) return graph->nodes[node].segment == HL_SEGMENT_BEGIN;
    return hl_rewrite_is_fixed(hl_graph_value(graph, id), changed);
}

static void move_to_begin(hl_node *node)
{
    node->segment = HL_SEGMENT_BEGIN;
    node->fence = 0;
}

/* Moves a node if all that it reads allows it, and the fill that it writes over with it. */
static void hoist_node(hl_graph *graph, const hl_uses *uses, const bool *changed, hl_node_id id)
{
    hl_node *node = &graph->nodes[id];
    hl_node_id fill = find_own_fill(graph, uses, id);
    for (int32_t j = fill != HL_NONE; j < node->n_in; j++)
        if (!is_invariant(graph, changed, node->in[j])) return;
    move_to_begin(node);
    if (fill != HL_NONE) move_to_begin(&graph->nodes[fill]);
}

/* Is the node a fill that its only reader writes over? */
static bool is_own_fill(const hl_graph *graph, const hl_uses *uses, hl_node_id id)
{
    hl_id value = graph->nodes[id].out;
    return hl_uses_count(uses, value) == 1 &&
           find_own_fill(graph, uses, uses->list[uses->start[value]]) == id;
}

hl_status hl_pass_hoist(hl_graph *graph)
{
    bool *changed = NULL;
    hl_uses uses = {0};
    hl_status status = HL_OK;
    HL_GOTO(give_fills(graph));
    HL_GOTO(hl_uses_init(graph, &uses));
    HL_GOTO(hl_rewrite_changed_stores(graph, &changed));
    for (int64_t i = 0; i < graph->n_nodes; i++) {
        const hl_node *node = &graph->nodes[i];
        uint32_t flags = hl_op_get(node->op)->flags;
        if (node->segment != HL_SEGMENT_MICRO || flags & (HL_OP_GUARDED | HL_OP_RANDOM)) continue;
        if (!is_own_fill(graph, &uses, (hl_node_id)i))
            hoist_node(graph, &uses, changed, (hl_node_id)i);
    }
    HL_GOTO(hl_rewrite_sort(graph));
cleanup:
    hl_free(changed);
    hl_uses_deinit(&uses);
    return status;
}
