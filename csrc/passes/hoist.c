/* Hoisting: loop-invariant code motion. Nodes that depend on constants alone, and on parameters and
 * state that neither segment changes, move from MICRO, which repeats, to BEGIN.
 *
 * The exception is a fill (one number everywhere) that an op writes over, or joins with other
 * parts: it can be made in the result's memory only in its own segment, and filling costs less than
 * copying a fill from elsewhere. Such a fill stays in the segment of its reader, and each op that
 * writes over a fill has its own. */
#include "passes/passes.h"

#include "base/alloc.h"
#include "ops/build.h"
#include "ops/parts.h"
#include "passes/rewrite.h"

/* ---- fills that are written over ------------------------------------------------------------- */

/* The number that a value, or the value it is a view of, is filled with; HL_NONE: it is no fill. */
static hl_id find_filling(const hl_graph *graph, hl_id id)
{
    double number;
    hl_node_id maker = hl_graph_producer(graph, hl_graph_viewed(graph, id));
    if (maker == HL_NONE || graph->nodes[maker].op != HL_OP_EXPAND) return HL_NONE;
    hl_id filling = graph->nodes[maker].in[0];
    return hl_graph_number_read(graph, filling, &number) ? filling : HL_NONE;
}

/* Does the node write over this operand, or have it made inside its result? */
static bool takes_memory(const hl_graph *graph, const hl_node *node, hl_id operand)
{
    if (hl_op_get(node->op)->flags & HL_OP_WRITES_FIRST) return node->in[0] == operand;
    int32_t first;
    int64_t align;
    return hl_node_joins(graph, node, &first, &align);
}

/* Is the operand a fill of this node alone: nobody else reads it, and its segment is the same? */
static bool is_own_fill(const hl_graph *graph, const hl_uses *uses, const hl_node *node,
                        hl_id operand)
{
    if (find_filling(graph, operand) == HL_NONE || hl_graph_viewed(graph, operand) != operand ||
        uses->kept[operand] || hl_uses_count(uses, operand) != 1)
        return false;
    return takes_memory(graph, node, operand) &&
           graph->nodes[hl_graph_producer(graph, operand)].segment == node->segment;
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
        if (filling == HL_NONE || is_own_fill(graph, &uses, node, node->in[0])) continue;
        HL_GOTO(give_fill(graph, (hl_node_id)i, filling));
    }
    HL_GOTO(hl_rewrite_sort(graph));
cleanup:
    hl_uses_deinit(&uses);
    return status;
}

/* ---- moving ---------------------------------------------------------------------------------- */

static bool is_invariant(const hl_graph *graph, const uint8_t *changed, hl_id id)
{
    hl_node_id node = hl_graph_producer(graph, id);
    if (node != HL_NONE) return graph->nodes[node].segment == HL_SEGMENT_BEGIN;
    return hl_rewrite_is_fixed(hl_graph_value(graph, id), changed, HL_SEGMENT_MICRO);
}

static void move_to_begin(hl_node *node)
{
    node->segment = HL_SEGMENT_BEGIN;
    node->fence = 0;
}

/* Moves a node, together with its own fills, if all its operands are invariant. */
static void hoist_node(hl_graph *graph, const hl_uses *uses, const uint8_t *changed, hl_node_id id)
{
    hl_node *node = &graph->nodes[id];
    for (int32_t j = 0; j < node->n_in; j++)
        if (!is_own_fill(graph, uses, node, node->in[j]) &&
            !is_invariant(graph, changed, node->in[j]))
            return;
    for (int32_t j = 0; j < node->n_in; j++)
        if (is_own_fill(graph, uses, node, node->in[j]))
            move_to_begin(&graph->nodes[hl_graph_producer(graph, node->in[j])]);
    move_to_begin(node);
}

/* Does the node move together with its only reader? */
static bool goes_with_reader(const hl_graph *graph, const hl_uses *uses, hl_node_id id)
{
    hl_id value = graph->nodes[id].out;
    return hl_uses_count(uses, value) == 1 &&
           is_own_fill(graph, uses, &graph->nodes[uses->list[uses->start[value]]], value);
}

hl_status hl_pass_hoist(hl_graph *graph)
{
    uint8_t *changed = NULL;
    hl_uses uses = {0};
    hl_status status = HL_OK;
    HL_GOTO(give_fills(graph));
    HL_GOTO(hl_uses_init(graph, &uses));
    HL_GOTO(hl_rewrite_changed_stores(graph, &changed));
    for (int64_t i = 0; i < graph->n_nodes; i++) {
        const hl_node *node = &graph->nodes[i];
        uint32_t flags = hl_op_get(node->op)->flags;
        if (node->segment != HL_SEGMENT_MICRO || flags & (HL_OP_UPDATES | HL_OP_RANDOM)) continue;
        if (!goes_with_reader(graph, &uses, (hl_node_id)i))
            hoist_node(graph, &uses, changed, (hl_node_id)i);
    }
    HL_GOTO(hl_rewrite_sort(graph));
cleanup:
    hl_free(changed);
    hl_uses_deinit(&uses);
    return status;
}
