/* Guards: commits of plain values become updates that the control block can block. */
#include "passes/passes.h"

#include "base/alloc.h"
#include "ops/build.h"
#include "passes/rewrite.h"

typedef struct guard_state {
    hl_graph *graph;
    hl_id guards[HL_SEGMENT_COUNT]; /* the control block as updates must see it, HL_NONE: not yet */
    int64_t n_stores;
    int32_t *n_commits; /* by segment and store */
    bool *continued;    /* by value: the next update in a row goes on from it */
} guard_state;

static int32_t *count_of(const guard_state *s, hl_segment segment, int32_t store)
{
    return &s->n_commits[(int64_t)segment * s->n_stores + store];
}

static hl_status init_guards(guard_state *s)
{
    const hl_graph *graph = s->graph;
    for (int segment = 0; segment < HL_SEGMENT_COUNT; segment++) s->guards[segment] = HL_NONE;
    s->n_stores = graph->n_stores;
    HL_TRY(hl_alloc_zero(((size_t)s->n_stores * HL_SEGMENT_COUNT + 1) * sizeof *s->n_commits,
                         (void **)&s->n_commits));
    HL_TRY(hl_alloc_zero((size_t)graph->n_values + 1, (void **)&s->continued));
    for (int64_t i = 0; i < graph->n_commits; i++)
        ++*count_of(s, graph->commits[i].segment,
                    hl_graph_value(graph, graph->commits[i].target)->store);
    for (int64_t i = 0; i < graph->n_nodes; i++) {
        const hl_node *node = &graph->nodes[i];
        if (!(hl_op_get(node->op)->flags & HL_OP_UPDATES)) continue;
        for (int32_t j = 0; j < node->n_out; j++) s->continued[node->in[j]] = true;
    }
    return HL_OK;
}

/* The control block after its segment's CONTROL node, where there is one. */
static hl_status find_guard(guard_state *s, hl_segment segment, hl_id *out_guard)
{
    static const hl_op last[HL_SEGMENT_COUNT] = {HL_OP_CONTROL_BEGIN, HL_OP_CONTROL_MICRO,
                                                 HL_OP_CONTROL_APPLY};
    hl_id *guard = &s->guards[segment];
    for (int64_t i = 0; *guard == HL_NONE && i < s->graph->n_nodes; i++)
        if (s->graph->nodes[i].op == last[segment]) *guard = s->graph->nodes[i].out;
    if (*guard == HL_NONE) HL_TRY(hl_graph_control(s->graph, guard));
    *out_guard = *guard;
    return HL_OK;
}

static hl_status copy_value(hl_graph *graph, hl_id *value)
{
    hl_shape shape = *hl_graph_shape(graph, *value), flat = hl_shape_1d(hl_shape_numel(&shape));
    hl_attrs axis = {.axis = {0}};
    HL_TRY(hl_build_reshape(graph, *value, &flat, value));
    HL_TRY(hl_graph_add(graph, HL_OP_CONCAT, value, 1, &axis, value));
    return hl_build_reshape(graph, *value, &shape, value);
}

/* Would this commit's update and another one, which overwrites what it reads, wait for each other?
 * Two states that swap their values would, or a state that takes the value from which the next
 * update goes on. Such a commit takes a copy, which is made before both updates. */
static bool is_overwritten(const guard_state *s, const hl_commit *commit)
{
    hl_id id = hl_graph_viewed(s->graph, commit->value);
    const hl_value *value = hl_graph_value(s->graph, id);
    if (value->kind == HL_VALUE_ACT) return s->continued[id];
    if (value->kind != HL_VALUE_PARAM && value->kind != HL_VALUE_STATE) return false;
    bool own = hl_graph_value(s->graph, commit->target)->store == value->store;
    return *count_of(s, commit->segment, value->store) > own;
}

/* A commit of a state's sum with a value becomes an addition: the same bits by one op. */
static void find_added(const hl_graph *graph, hl_commit *commit)
{
    hl_node_id maker = hl_graph_producer(graph, commit->value);
    if (maker == HL_NONE || graph->nodes[maker].op != HL_OP_ADD || commit->added) return;
    const hl_node *node = &graph->nodes[maker];
    int other = node->in[0] == commit->target;
    if (node->in[!other] != commit->target) return;
    const hl_type *state = hl_node_in_type(graph, node, !other);
    const hl_type *value = hl_node_in_type(graph, node, other);
    if (value->dtype != state->dtype || !hl_shape_equal(&value->shape, &state->shape)) return;
    commit->value = node->in[other];
    commit->added = true;
}

static hl_status guard_commit(guard_state *s, int64_t index)
{
    hl_graph *graph = s->graph;
    hl_commit commit = graph->commits[index];
    /* An update of the target itself, the last in a row, is where it has to be. */
    if (hl_graph_producer(graph, commit.value) != HL_NONE && !commit.added &&
        hl_graph_updated(graph, commit.value) == commit.target)
        return HL_OK;
    find_added(graph, &commit);
    hl_id in[3] = {commit.target, commit.value};
    HL_TRY(find_guard(s, commit.segment, &in[2]));
    hl_graph_stand_by(graph, &(hl_node){.segment = commit.segment});
    if (is_overwritten(s, &commit)) HL_TRY(copy_value(graph, &in[1]));
    HL_TRY(hl_graph_add(graph, commit.added ? HL_OP_ACCUMULATE : HL_OP_ASSIGN, in, 3, NULL,
                        &graph->commits[index].value));
    graph->commits[index].added = false;
    return HL_OK;
}

hl_status hl_pass_guard(hl_graph *graph)
{
    guard_state s = {.graph = graph};
    hl_status status = HL_OK;
    HL_GOTO(init_guards(&s));
    for (int64_t i = 0; i < graph->n_commits; i++) HL_GOTO(guard_commit(&s, i));
    HL_GOTO(hl_rewrite_sort(graph));
cleanup:
    hl_free(s.n_commits);
    hl_free(s.continued);
    return status;
}
