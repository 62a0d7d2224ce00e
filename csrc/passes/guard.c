/* Guards: commits of plain values become updates that the control block can block.
 *
 * A state that gets some rows (a cache of keys and values) is not copied for that: the write itself
 * becomes the update, in steps without training, which nothing holds back. */
#include "passes/passes.h"

#include <math.h>

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

static const hl_op deciding[HL_SEGMENT_COUNT] = {HL_OP_CONTROL_BEGIN, HL_OP_CONTROL_MICRO,
                                                 HL_OP_CONTROL_APPLY};

/* The control block after its segment's CONTROL node, where there is one. */
static hl_status find_guard(guard_state *s, hl_segment segment, hl_id *out_guard)
{
    hl_id *guard = &s->guards[segment];
    for (int64_t i = 0; *guard == HL_NONE && i < s->graph->n_nodes; i++)
        if (s->graph->nodes[i].op == deciding[segment]) *guard = s->graph->nodes[i].out;
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

/* What a commit becomes: the value that the op takes, and its attributes. */
typedef struct update {
    hl_op op;
    hl_id value;
    hl_attrs attrs;
} update;

static const hl_node *find_maker(const hl_graph *graph, hl_id value, hl_op op)
{
    hl_node_id maker = hl_graph_producer(graph, value);
    return maker != HL_NONE && graph->nodes[maker].op == op ? &graph->nodes[maker] : NULL;
}

/* A sum of a state with a value is an addition: the same bits by one op. */
static bool find_added(const hl_graph *graph, const hl_commit *commit, const hl_node *sum,
                       update *out)
{
    int other = sum->in[0] == commit->target;
    if (sum->in[!other] != commit->target) return false;
    const hl_type *state = hl_node_in_type(graph, sum, !other);
    const hl_type *value = hl_node_in_type(graph, sum, other);
    *out = (update){.op = HL_OP_ACCUMULATE, .value = sum->in[other]};
    return value->dtype == state->dtype && hl_shape_equal(&value->shape, &state->shape);
}

/* A value times a number. */
static bool find_scaled(const hl_graph *graph, hl_id id, hl_id *out_value, double *out_by)
{
    const hl_node *product = find_maker(graph, id, HL_OP_MUL);
    if (!product) return false;
    int other = hl_rewrite_number(graph, product->in[0], out_by);
    *out_value = product->in[other];
    return other || hl_rewrite_number(graph, product->in[1], out_by);
}

/* A sum of a state and a value, each times a number, is an average: the same bits by one op. So do
 * running statistics move. */
static bool find_average(const hl_graph *graph, const hl_commit *commit, const hl_node *sum,
                         update *out)
{
    hl_id value[2];
    double by[2];
    for (int j = 0; j < 2; j++)
        if (!find_scaled(graph, sum->in[j], &value[j], &by[j])) return false;
    int other = value[0] == commit->target;
    const hl_type *state = &hl_graph_value(graph, commit->target)->type;
    const hl_type *type = &hl_graph_value(graph, value[other])->type;
    double keep = by[!other], take = by[other];
    *out = (update){HL_OP_EMA, value[other], {.ema = {.decay = keep, .take = take}}};
    return value[!other] == commit->target && keep >= 0 && keep <= 1 && take != 0 &&
           isfinite(take) && type->dtype == state->dtype &&
           hl_shape_equal(&type->shape, &state->shape);
}

static update find_update(const hl_graph *graph, const hl_commit *commit)
{
    update found;
    const hl_node *sum = find_maker(graph, commit->value, HL_OP_ADD);
    if (commit->added) return (update){.op = HL_OP_ACCUMULATE, .value = commit->value};
    if (sum && (find_added(graph, commit, sum, &found) || find_average(graph, commit, sum, &found)))
        return found;
    return (update){.op = HL_OP_ASSIGN, .value = commit->value};
}

/* Is the value elements of that leaf, as they are before updates? */
static bool is_of_leaf(const hl_graph *graph, hl_id id, hl_id leaf)
{
    const hl_value *a = hl_graph_value(graph, hl_graph_viewed(graph, id));
    const hl_value *b = hl_graph_value(graph, leaf);
    if ((a->kind != HL_VALUE_PARAM && a->kind != HL_VALUE_STATE) || a->store != b->store)
        return false;
    return a->offset < b->offset + hl_shape_numel(&b->type.shape) &&
           b->offset < a->offset + hl_shape_numel(&a->type.shape);
}

/* The write of rows into the state that they are committed to, which may be done where the state
 * lies: nobody else sees what was there before, or takes the result beyond the step. Not where a
 * CONTROL node decides about the segment's commits: it waits for the loss, which may wait for those
 * who read the state. NULL: the commit is no such write. */
static hl_node *find_write_in_place(const hl_graph *graph, const hl_commit *commit)
{
    const hl_node *write = find_maker(graph, commit->value, HL_OP_INDEX_COPY);
    if (commit->added || !write || write->in[0] != commit->target ||
        write->segment != commit->segment)
        return NULL;
    for (int64_t i = 0; i < graph->n_nodes; i++) {
        const hl_node *node = &graph->nodes[i];
        if (node->op == deciding[commit->segment]) return NULL;
        for (int32_t j = 0; j < node->n_in; j++)
            if (is_of_leaf(graph, node->in[j], commit->target) && (node != write || j > 0))
                return NULL;
    }
    for (int64_t i = 0; i < graph->n_outputs; i++)
        if (is_of_leaf(graph, graph->outputs[i], commit->target)) return NULL;
    for (int64_t i = 0; i < graph->n_commits; i++) {
        const hl_commit *other = &graph->commits[i];
        if (other == commit) continue;
        if (hl_graph_viewed(graph, other->value) == commit->value ||
            is_of_leaf(graph, other->value, commit->target) ||
            is_of_leaf(graph, other->target, commit->target))
            return NULL;
    }
    return (hl_node *)write; /* passes own the graph */
}

static hl_status guard_commit(guard_state *s, int64_t index)
{
    hl_graph *graph = s->graph;
    hl_commit commit = graph->commits[index];
    /* An update of the target itself, the last in a row, is where it has to be. */
    if (hl_graph_producer(graph, commit.value) != HL_NONE && !commit.added &&
        hl_graph_updated(graph, commit.value) == commit.target)
        return HL_OK;
    hl_node *write = find_write_in_place(graph, &graph->commits[index]);
    if (write) {
        write->op = HL_OP_INDEX_ASSIGN;
        return HL_OK;
    }
    update what = find_update(graph, &commit);
    hl_id in[3] = {commit.target, what.value};
    commit.value = what.value;
    HL_TRY(find_guard(s, commit.segment, &in[2]));
    hl_graph_stand_by(graph, &(hl_node){.segment = commit.segment});
    if (is_overwritten(s, &commit)) HL_TRY(copy_value(graph, &in[1]));
    HL_TRY(hl_graph_add(graph, what.op, in, 3, &what.attrs, &graph->commits[index].value));
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
