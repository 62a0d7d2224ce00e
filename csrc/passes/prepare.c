/* Passes that bring a graph into the form a device runs: element type, loop-invariant work,
 * lowering, packing. */
#include <string.h>

#include "base/alloc.h"
#include "passes/passes.h"
#include "passes/rewrite.h"

static hl_status reshape_to(hl_graph *graph, hl_id value, const hl_shape *shape, hl_id *out_value)
{
    hl_attrs attrs = {.n_dims = shape->rank};
    for (int32_t d = 0; d < shape->rank; d++) attrs.dims[d] = shape->dim[d];
    return hl_graph_add(graph, HL_OP_RESHAPE, &value, 1, &attrs, out_value);
}

/* ---- float64 --------------------------------------------------------------------------------- */

static bool is_other_float(hl_dtype dtype)
{
    return hl_dtype_is_float(dtype) && dtype != HL_DTYPE_F64;
}

/* The values before they were rounded, where they are known. */
static hl_status widen_const(hl_graph *graph, hl_value *value)
{
    int64_t n = hl_shape_numel(&value->type.shape);
    if (!value->wide && value->type.dtype != HL_DTYPE_F32)
        return hl_status_set(HL_ERROR_TRACE, "float64: constants must be float32, got %s",
                             hl_dtype_name(value->type.dtype));
    void *data;
    HL_TRY(hl_arena_alloc(&graph->arena, (size_t)(n ? n : 1) * sizeof(double), &data));
    for (int64_t i = 0; i < n; i++)
        ((double *)data)[i] = value->wide ? value->wide[i] : ((const float *)value->data)[i];
    value->data = data;
    return HL_OK;
}

hl_status hl_pass_double(hl_graph *graph)
{
    graph->float_dtype = HL_DTYPE_F64;
    for (int64_t i = 0; i < graph->n_values; i++) {
        hl_value *value = &graph->values[i];
        /* A resident array keeps its own type; BATCH_GATHER converts. */
        if (value->kind == HL_VALUE_SOURCE || !is_other_float(value->type.dtype)) continue;
        if (value->kind == HL_VALUE_CONST) HL_TRY(widen_const(graph, value));
        value->type.dtype = HL_DTYPE_F64;
    }
    for (int64_t i = 0; i < graph->n_stores; i++)
        if (is_other_float(graph->stores[i].dtype)) graph->stores[i].dtype = HL_DTYPE_F64;
    for (int64_t i = 0; i < graph->n_nodes; i++) {
        char kind;
        int slot;
        hl_node *node = &graph->nodes[i];
        if (hl_op_attr_slot(node->op, "dtype", &kind, &slot) &&
            is_other_float((hl_dtype)node->attrs.i[slot]))
            node->attrs.i[slot] = HL_DTYPE_F64;
    }
    return HL_OK;
}

/* ---- hoisting -------------------------------------------------------------------------------- */

/* By store: does a micro-batch change it? */
static hl_status find_changed_stores(const hl_graph *graph, bool **out_changed)
{
    HL_TRY(hl_alloc_zero((size_t)graph->n_stores + 1, (void **)out_changed));
    for (int64_t i = 0; i < graph->n_commits; i++)
        if (graph->commits[i].segment == HL_SEGMENT_MICRO)
            (*out_changed)[hl_graph_value(graph, graph->commits[i].target)->store] = true;
    return HL_OK;
}

/* A constant, or a parameter that only the optimizer changes. */
static bool is_fixed(const hl_value *value, const bool *changed)
{
    return value->kind == HL_VALUE_CONST ||
           (value->kind == HL_VALUE_PARAM && !changed[value->store]);
}

static bool is_invariant(const hl_graph *graph, const bool *changed, hl_id id)
{
    hl_node_id node = hl_graph_producer(graph, id);
    if (node != HL_NONE) return graph->nodes[node].segment == HL_SEGMENT_BEGIN;
    return is_fixed(hl_graph_value(graph, id), changed);
}

hl_status hl_pass_hoist(hl_graph *graph)
{
    bool *changed;
    HL_TRY(find_changed_stores(graph, &changed));
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

/* ---- guards ---------------------------------------------------------------------------------- */

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
        if (!(hl_op_get(node->op)->flags & HL_OP_GUARDED)) continue;
        for (int32_t j = 0; j < node->n_out; j++) s->continued[node->in[j]] = true;
    }
    return HL_OK;
}

/* After its segment's CONTROL node where there is one. */
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
    hl_attrs axis = {.i = {0}};
    HL_TRY(reshape_to(graph, *value, &flat, value));
    HL_TRY(hl_graph_add(graph, HL_OP_CONCAT, value, 1, &axis, value));
    return reshape_to(graph, *value, &shape, value);
}

/* Would the update that this commit becomes, and another that overwrites what it reads, wait for
 * each other? Two states that change places would, or a state that takes what the next update in a
 * row goes on from. It takes a copy, which is made before either. */
static bool is_overwritten(const guard_state *s, const hl_commit *commit)
{
    hl_id id = hl_graph_viewed(s->graph, commit->value);
    const hl_value *value = hl_graph_value(s->graph, id);
    if (value->kind == HL_VALUE_ACT) return s->continued[id];
    if (value->kind != HL_VALUE_PARAM && value->kind != HL_VALUE_STATE) return false;
    bool own = hl_graph_value(s->graph, commit->target)->store == value->store;
    return *count_of(s, commit->segment, value->store) > own;
}

/* A state that takes its own sum with a value has the value added: the same bits in one step. */
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
    graph->segment = commit.segment;
    graph->scope = NULL;
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

/* ---- lowering -------------------------------------------------------------------------------- */

static hl_status make_identity_map(const hl_graph *graph, hl_id **out_map)
{
    HL_TRY(hl_alloc((size_t)graph->n_values * sizeof **out_map, (void **)out_map));
    for (int64_t v = 0; v < graph->n_values; v++) (*out_map)[v] = (hl_id)v;
    return HL_OK;
}

enum { MOST_ROUNDS = 8, MOST_LOWERED_OUTS = 4 };

/* One sweep; the ops that a lowering made are seen by the next. */
static hl_status lower_once(hl_graph *graph, hl_device *device, bool deterministic,
                            bool *out_changed)
{
    hl_id *map = NULL;
    int64_t n_map = graph->n_values, n_nodes = graph->n_nodes;
    *out_changed = false;
    hl_status status = HL_OK;
    HL_GOTO(make_identity_map(graph, &map));
    for (int64_t i = 0; i < n_nodes; i++) {
        hl_node node = graph->nodes[i];
        const hl_op_info *op = hl_op_get(node.op);
        const hl_kernel *kernel;
        hl_kernel_req req;
        hl_id out[MOST_LOWERED_OUTS];
        if (!op->lower) continue;
        HL_GOTO(hl_kernel_find(device, graph, (hl_node_id)i, deterministic, &kernel, &req));
        if (kernel) continue;
        graph->segment = node.segment;
        graph->scope = node.scope;
        HL_GOTO(op->lower(graph, (hl_node_id)i, out));
        for (int32_t j = 0; j < node.n_out; j++) map[node.out + j] = out[j];
        *out_changed = true;
    }
    if (*out_changed) {
        hl_rewrite_replace(graph, map, n_map);
        HL_GOTO(hl_rewrite_sort(graph));
    }
cleanup:
    hl_free(map);
    return status;
}

hl_status hl_pass_lower(hl_graph *graph, hl_device *device, bool deterministic)
{
    bool changed = true;
    for (int round = 0; changed && round < MOST_ROUNDS; round++)
        HL_TRY(lower_once(graph, device, deterministic, &changed));
    return HL_OK;
}

/* ---- packing --------------------------------------------------------------------------------- */

typedef struct pack_state {
    hl_graph *graph;
    hl_uses uses;
    hl_id *map;
    hl_id (*packs)[2]; /* by matrix and orientation: its packed copy */
    bool *changed;     /* by store */
} pack_state;

/* A matrix that was only rounded is packed from where it lies: rounding and packing are one pass.
 */
static hl_id skip_rounding(const hl_graph *graph, hl_id matrix)
{
    hl_node_id maker = hl_graph_producer(graph, matrix);
    if (maker == HL_NONE || graph->nodes[maker].op != HL_OP_CAST) return matrix;
    hl_id from = graph->nodes[maker].in[0];
    hl_dtype dtype = hl_graph_dtype(graph, matrix);
    bool rounds = dtype == HL_DTYPE_BF16 || dtype == HL_DTYPE_F16;
    return rounds && hl_graph_dtype(graph, from) == HL_DTYPE_F32 ? from : matrix;
}

/* One packed copy per matrix and orientation, as early as the matrix is there. */
static hl_status pack_matrix(pack_state *s, hl_node_id id, hl_id *out_pack)
{
    const hl_node *node = &s->graph->nodes[id];
    hl_id *known = &s->packs[node->in[1]][node->attrs.i[1] != 0];
    hl_id matrix = skip_rounding(s->graph, node->in[1]);
    hl_attrs attrs = {.i = {node->attrs.i[1], hl_graph_dtype(s->graph, node->in[1])}};
    hl_node_id maker = hl_graph_producer(s->graph, matrix);
    if (maker != HL_NONE)
        s->graph->segment = s->graph->nodes[maker].segment;
    else if (is_fixed(hl_graph_value(s->graph, matrix), s->changed))
        s->graph->segment = HL_SEGMENT_BEGIN;
    if (*known == HL_NONE)
        HL_TRY(hl_graph_add(s->graph, HL_OP_MATMUL_PACK, &matrix, 1, &attrs, known));
    *out_pack = *known;
    return HL_OK;
}

/* The RELU that alone reads this value, or HL_NONE. */
static hl_node_id find_only_relu(const hl_graph *graph, const hl_uses *uses, hl_id value)
{
    if (value >= graph->n_values || uses->kept[value] || hl_uses_count(uses, value) != 1)
        return HL_NONE;
    hl_node_id user = uses->list[uses->start[value]];
    return graph->nodes[user].op == HL_OP_RELU ? user : HL_NONE;
}

static hl_status pack_matmul(pack_state *s, hl_node_id id)
{
    hl_graph *graph = s->graph;
    hl_node node = graph->nodes[id];
    hl_shape a = *hl_graph_shape(graph, node.in[0]), out = *hl_graph_shape(graph, node.out);
    int64_t k = a.dim[a.rank - 1], n = out.dim[out.rank - 1];
    hl_id in[3], packed;
    graph->scope = node.scope;
    graph->segment = node.segment;
    HL_TRY(pack_matrix(s, id, &in[1]));
    graph->segment = node.segment;
    hl_shape a2 = hl_shape_2d(hl_shape_span(&a, 0, a.rank - 1), k);
    HL_TRY(reshape_to(graph, node.in[0], &a2, &in[0]));
    if (node.n_in == 3) in[2] = node.in[2];
    hl_node_id relu = find_only_relu(graph, &s->uses, node.out);
    hl_attrs attrs = {.i = {n, relu != HL_NONE, node.attrs.i[2]}};
    HL_TRY(hl_graph_add(graph, HL_OP_MATMUL_PACKED, in, node.n_in, &attrs, &packed));
    HL_TRY(reshape_to(graph, packed, &out, &packed));
    s->map[node.out] = packed;
    if (relu != HL_NONE) s->map[graph->nodes[relu].out] = packed;
    return HL_OK;
}

hl_status hl_pass_pack(hl_graph *graph, hl_device *device)
{
    if (!device->packs) return HL_OK;
    pack_state s = {.graph = graph};
    int64_t n_map = graph->n_values, n_nodes = graph->n_nodes;
    hl_status status = HL_OK;
    HL_GOTO(hl_uses_init(graph, &s.uses));
    HL_GOTO(make_identity_map(graph, &s.map));
    HL_GOTO(find_changed_stores(graph, &s.changed));
    HL_GOTO(hl_alloc((size_t)n_map * sizeof *s.packs, (void **)&s.packs));
    for (int64_t v = 0; v < n_map; v++) s.packs[v][0] = s.packs[v][1] = HL_NONE;
    for (int64_t i = 0; i < n_nodes; i++) {
        const hl_node *node = &graph->nodes[i];
        if (node->op != HL_OP_MATMUL || node->attrs.i[0]) continue;
        if (hl_graph_shape(graph, node->in[1])->rank != 2 ||
            hl_graph_shape(graph, node->in[0])->rank < 2)
            continue;
        HL_GOTO(pack_matmul(&s, (hl_node_id)i));
    }
    hl_rewrite_replace(graph, s.map, n_map);
    HL_GOTO(hl_rewrite_sort(graph));
cleanup:
    hl_free(s.packs);
    hl_free(s.changed);
    hl_free(s.map);
    hl_uses_deinit(&s.uses);
    return status;
}
