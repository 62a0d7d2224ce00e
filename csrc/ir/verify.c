/* The verifier: every invariant of ir/graph.h's head, checked from what is there, not from how it
 * was made. Runs before and after passes. */
#include <string.h>

#include "base/alloc.h"
#include "ir/fusion.h"
#include "ir/op.h"

static hl_status fail_value(const hl_graph *graph, hl_id id, const char *rule, int64_t got)
{
    const char *name = graph->values[id].name;
    return hl_status_set(HL_ERROR_INTERNAL, "graph: value %%%d%s%s: %s, got %lld", id,
                         name ? " " : "", name ? name : "", rule, (long long)got);
}

static hl_status fail_node(const hl_graph *graph, int64_t index, const char *rule, int64_t got)
{
    const hl_node *node = &graph->nodes[index];
    return hl_status_set(HL_ERROR_INTERNAL, "graph: node %lld %s%s%s: %s, got %lld",
                         (long long)index, hl_op_get(node->op)->name, node->scope ? " of " : "",
                         node->scope ? node->scope : "", rule, (long long)got);
}

static bool is_value(const hl_graph *graph, hl_id id)
{
    return id >= 0 && id < graph->n_values;
}

/* ---- values ---------------------------------------------------------------------------------- */

static hl_status check_store(const hl_graph *graph, hl_id id)
{
    const hl_value *value = &graph->values[id];
    if (value->store < 0 || value->store >= graph->n_stores)
        return fail_value(graph, id, "its store must exist", value->store);
    const hl_store *store = &graph->stores[value->store];
    int64_t n = hl_shape_numel(&value->type.shape);
    if (value->kind == HL_VALUE_SCALAR) {
        if (value->offset < 0 || value->offset > store->n - (int64_t)sizeof(double))
            return fail_value(graph, id, "a scalar must lie in the control block", value->offset);
        return HL_OK;
    }
    if (value->type.dtype != store->dtype)
        return fail_value(graph, id, "its dtype must be its store's", value->type.dtype);
    if (value->offset < 0 || n > store->n || value->offset > store->n - n)
        return fail_value(graph, id, "it must lie in its store", value->offset);
    return HL_OK;
}

static hl_status check_value(const hl_graph *graph, hl_id id)
{
    const hl_value *value = &graph->values[id];
    if ((int)value->type.dtype < 0 || value->type.dtype >= HL_DTYPE_COUNT)
        return fail_value(graph, id, "its dtype must exist", value->type.dtype);
    HL_TRY(hl_shape_check(&value->type.shape, "graph"));
    switch (value->kind) {
    case HL_VALUE_PARAM:
    case HL_VALUE_STATE:
    case HL_VALUE_SCALAR: return check_store(graph, id);
    case HL_VALUE_INPUT:
        if (value->store < 0 || value->store >= graph->n_inputs)
            return fail_value(graph, id, "its slot field must exist", value->store);
        return HL_OK;
    case HL_VALUE_DATASET:
        if (value->store < 0 || value->store >= graph->n_datasets)
            return fail_value(graph, id, "its dataset must exist", value->store);
        return HL_OK;
    case HL_VALUE_CONST:
        if (!value->data && hl_shape_numel(&value->type.shape) > 0)
            return fail_value(graph, id, "a constant must have bytes", 0);
        return HL_OK;
    case HL_VALUE_ACT: break;
    default: return fail_value(graph, id, "its kind must exist", value->kind);
    }
    if (value->node == HL_NONE) return HL_OK;
    if (value->node < 0 || value->node >= graph->n_nodes)
        return fail_value(graph, id, "its node must exist", value->node);
    const hl_node *node = &graph->nodes[value->node];
    if (value->output < 0 || value->output >= node->n_out || node->out + value->output != id)
        return fail_value(graph, id, "it must be an output of its node", value->output);
    return HL_OK;
}

/* ---- nodes ----------------------------------------------------------------------------------- */

static hl_status check_operand(const hl_graph *graph, int64_t index, hl_id id)
{
    const hl_node *node = &graph->nodes[index];
    if (!is_value(graph, id)) return fail_node(graph, index, "an operand must exist", id);
    const hl_value *value = &graph->values[id];
    if (value->kind != HL_VALUE_ACT) return HL_OK;
    if (value->node == HL_NONE) return fail_node(graph, index, "an operand must be alive", id);
    if (value->node >= index) return fail_node(graph, index, "operands must come first", id);
    const hl_node *maker = &graph->nodes[value->node];
    if (maker->segment > node->segment)
        return fail_node(graph, index, "an operand must not be of a later segment", id);
    if (maker->segment == node->segment && maker->fence > node->fence)
        return fail_node(graph, index, "an operand must not be behind a later fence", id);
    return HL_OK;
}

static hl_status fail_infer(int64_t index, const hl_op_info *info)
{
    return hl_status_context(HL_ERROR_INTERNAL, "graph: node %lld %s", (long long)index,
                             info->name);
}

/* types has room for the node's outputs. */
static hl_status check_types(const hl_graph *graph, int64_t index, hl_type *types)
{
    hl_node node = graph->nodes[index];
    const hl_op_info *info = hl_op_get(node.op);
    if (!info->infer) {
        if (!node.program) return fail_node(graph, index, "it must have a program", 0);
        for (int32_t j = 0; j < node.n_out; j++) types[j] = graph->values[node.out + j].type;
        return hl_program_check(node.program, graph, node.in, node.n_in, types, node.n_out);
    }
    for (int32_t j = 0; j < node.n_out; j++) types[j] = graph->values[node.out + j].type;
    if (hl_node_is_anchor(&node)) {
        if (hl_fusion_infer(graph, &node, types) != HL_OK) return fail_infer(index, info);
    } else {
        if (info->n_out < 0 && info->infer(graph, &node, NULL) != HL_OK)
            return fail_infer(index, info);
        if (node.n_out != graph->nodes[index].n_out)
            return fail_node(graph, index, "outputs must be as many as the op makes", node.n_out);
        if (info->infer(graph, &node, types) != HL_OK) return fail_infer(index, info);
    }
    for (int32_t j = 0; j < node.n_out; j++) {
        if (hl_type_equal(&types[j], &graph->values[node.out + j].type)) continue;
        char want[HL_TYPE_TEXT], got[HL_TYPE_TEXT];
        return hl_status_set(HL_ERROR_INTERNAL, "graph: node %lld %s: output %d must be %s, got %s",
                             (long long)index, info->name, j, hl_type_format(&types[j], want),
                             hl_type_format(&graph->values[node.out + j].type, got));
    }
    return HL_OK;
}

/* What can be said of a node before its operands and types. */
static hl_status check_node(const hl_graph *graph, int64_t index)
{
    const hl_node *node = &graph->nodes[index];
    if ((int)node->op < 0 || node->op >= HL_OP_COUNT)
        return hl_status_set(HL_ERROR_INTERNAL, "graph: node %lld: its op must exist, got %d",
                             (long long)index, (int)node->op);
    const hl_op_info *info = hl_op_get(node->op);
    if ((int)node->segment < 0 || node->segment >= HL_SEGMENT_COUNT)
        return fail_node(graph, index, "its segment must exist", node->segment);
    if (node->checkpoint < 0 || node->checkpoint > graph->n_checkpoints)
        return fail_node(graph, index, "its checkpoint must exist", node->checkpoint);
    int32_t n_in = hl_node_anchor_in(node), n_out = hl_node_anchor_out(node);
    if (n_in < info->min_in || (info->max_in >= 0 && n_in > info->max_in))
        return fail_node(graph, index, "operands must be as many as the op takes", n_in);
    if (info->n_out >= 0 ? n_out != info->n_out : n_out < 1)
        return fail_node(graph, index, "outputs must be as many as the op makes", n_out);
    for (int32_t j = 0; j < node->n_out; j++)
        if (!is_value(graph, node->out + j) || graph->values[node->out + j].node != index)
            return fail_node(graph, index, "its outputs must be its own", node->out + j);
    return HL_OK;
}

static hl_status check_nodes(const hl_graph *graph)
{
    int32_t most_out = 0;
    for (int64_t i = 0; i < graph->n_nodes; i++) {
        HL_TRY(check_node(graph, i));
        if (graph->nodes[i].n_out > most_out) most_out = graph->nodes[i].n_out;
    }
    hl_type *types;
    hl_status status = HL_OK;
    HL_TRY(hl_alloc((size_t)most_out * sizeof *types, (void **)&types));
    for (int64_t i = 0; i < graph->n_nodes; i++) {
        const hl_node *node = &graph->nodes[i];
        for (int32_t j = 0; j < node->n_in; j++) HL_GOTO(check_operand(graph, i, node->in[j]));
        HL_GOTO(check_types(graph, i, types));
    }
cleanup:
    hl_free(types);
    return status;
}

/* ---- commits and guards ---------------------------------------------------------------------- */

static hl_status check_commit(const hl_graph *graph, const hl_commit *commit)
{
    if (!is_value(graph, commit->target) || !is_value(graph, commit->value))
        return hl_status_set(HL_ERROR_INTERNAL, "graph: a commit's values must exist, got %d, %d",
                             commit->target, commit->value);
    const hl_value *target = &graph->values[commit->target];
    const hl_value *value = &graph->values[commit->value];
    if (target->kind != HL_VALUE_PARAM && target->kind != HL_VALUE_STATE)
        return fail_value(graph, commit->target, "a commit's target must be a store's",
                          target->kind);
    bool fits = commit->added ? hl_shape_equal(&target->type.shape, &value->type.shape)
                              : hl_type_equal(&target->type, &value->type);
    if (!fits) return fail_value(graph, commit->value, "a commit must keep the type", 0);
    if (value->kind != HL_VALUE_ACT) return HL_OK;
    if (value->node == HL_NONE)
        return fail_value(graph, commit->value, "a commit's value must be alive", value->node);
    if (graph->nodes[value->node].segment > commit->segment)
        return fail_value(graph, commit->value, "a commit must not be before its value",
                          commit->segment);
    return HL_OK;
}

/* By value: what is known of updates of it. */
typedef struct guard_marks {
    hl_node_id next; /* made by an update: the update that goes on from it, HL_NONE: none */
    bool consumed;   /* committed to its own leaf, or gone on from */
    uint8_t targets; /* by segment: a commit has it as its target */
} guard_marks;

/* Updates in a row change one memory, so they are a row: no value has two that go on from it. */
static hl_status mark_updates(const hl_graph *graph, guard_marks *marks)
{
    for (int64_t i = 0; i < graph->n_nodes; i++) {
        const hl_node *node = &graph->nodes[i];
        if (!(hl_op_get(node->op)->flags & HL_OP_UPDATES)) continue;
        for (int32_t j = 0; j < node->n_out; j++) {
            guard_marks *mark = &marks[node->in[j]];
            hl_node_id before = hl_graph_producer(graph, node->in[j]);
            if (hl_graph_updated(graph, node->in[j]) == HL_NONE)
                return fail_node(graph, i, "what it updates must be a store's", node->in[j]);
            if (before == HL_NONE) continue;
            if (graph->nodes[before].segment != node->segment)
                return fail_node(graph, i, "updates in a row must be of one segment",
                                 node->segment);
            if (mark->next != HL_NONE)
                return fail_node(graph, i, "one update may go on from a value", mark->next);
            mark->next = (hl_node_id)i;
            mark->consumed = true;
        }
    }
    return HL_OK;
}

/* Is the value, or what it is a view of, overwritten before a reader of this segment sees it? */
static bool is_overwritten(const hl_graph *graph, const guard_marks *marks, hl_id id,
                           hl_segment segment)
{
    hl_node_id next = marks[hl_graph_viewed(graph, id)].next;
    return next != HL_NONE && graph->nodes[next].segment < segment;
}

static hl_status mark_commits(const hl_graph *graph, guard_marks *marks)
{
    for (int64_t i = 0; i < graph->n_commits; i++) {
        const hl_commit *commit = &graph->commits[i];
        HL_TRY(check_commit(graph, commit));
        uint8_t bit = (uint8_t)(1u << commit->segment);
        if (marks[commit->target].targets & bit)
            return fail_value(graph, commit->target, "one commit a segment is allowed", 2);
        marks[commit->target].targets |= bit;
        if (is_overwritten(graph, marks, commit->value, commit->segment))
            return fail_value(graph, commit->value, "a commit must not be of what is overwritten",
                              commit->target);
        if (commit->added || hl_graph_updated(graph, commit->value) != commit->target) continue;
        if (marks[commit->value].next != HL_NONE)
            return fail_value(graph, commit->value, "the last update in a row is committed",
                              marks[commit->value].next);
        marks[commit->value].consumed = true;
    }
    return HL_OK;
}

static hl_status check_guards(const hl_graph *graph, const guard_marks *marks)
{
    for (int64_t i = 0; i < graph->n_nodes; i++) {
        const hl_node *node = &graph->nodes[i];
        for (int32_t j = 0; j < node->n_in; j++)
            if (is_overwritten(graph, marks, node->in[j], node->segment))
                return fail_node(graph, i, "what it reads must not be overwritten", node->in[j]);
        if (!(hl_op_get(node->op)->flags & HL_OP_UPDATES)) continue;
        for (int32_t j = 0; j < node->n_out; j++)
            if (!marks[node->out + j].consumed)
                return fail_node(graph, i, "its output must be committed where it is", j);
    }
    for (int64_t i = 0; i < graph->n_outputs; i++)
        if (is_overwritten(graph, marks, graph->outputs[i], HL_SEGMENT_COUNT))
            return fail_value(graph, graph->outputs[i], "an output must not be overwritten",
                              HL_NONE);
    return HL_OK;
}

hl_status hl_graph_verify(const hl_graph *graph)
{
    void *memory = NULL;
    for (int64_t i = 0; i < graph->n_values; i++) HL_TRY(check_value(graph, (hl_id)i));
    HL_TRY(check_nodes(graph));
    for (int64_t i = 0; i < graph->n_outputs; i++) {
        hl_id id = graph->outputs[i];
        if (!is_value(graph, id))
            return hl_status_set(HL_ERROR_INTERNAL, "graph: an output must exist, got %d", id);
        if (graph->values[id].kind == HL_VALUE_ACT && graph->values[id].node == HL_NONE)
            return fail_value(graph, id, "an output must be alive", HL_NONE);
    }
    HL_TRY(hl_alloc_zero((size_t)graph->n_values * sizeof(guard_marks), &memory));
    guard_marks *marks = memory;
    for (int64_t v = 0; v < graph->n_values; v++) marks[v].next = HL_NONE;
    hl_status status;
    HL_GOTO(mark_updates(graph, marks));
    HL_GOTO(mark_commits(graph, marks));
    HL_GOTO(check_guards(graph, marks));
cleanup:
    hl_free(memory);
    return status;
}
