/* Fusion: clusters of pointwise nodes (and the sums that end them) become one POINTWISE_FUSED node
 * each. A sum may be over any axes that two splits of the shape tell from the others: leading or
 * trailing ones, those in the middle, or all but those.
 *
 * Clusters (clusters.h) grow along edges: producer and consumer join when they iterate over the
 * same shape, the program stays within its limits, and no cycle comes of it. Sums over the same
 * shape that share an operand join too, so that a backward pass reads its data once. Sources
 * (dropout masks) and numbers are never members: whoever needs one recomputes it in registers. The
 * same holds for a value that another cluster of the same shape made in few cheap steps from
 * operands this cluster reads anyway, or from small ones: recomputing it costs less than a trip
 * through memory.
 *
 * Where each node is a launch, which costs as much as some ten thousand elements do, small clusters
 * of one shape join side by side too, whatever they read.
 *
 * Nodes behind different fences stay apart (ir/graph.h), and none recomputes what another's fence
 * keeps.
 *
 * Rejected: fusing across different shapes (broadcast producers are small and stay nodes of their
 * own), and a cost model beyond counting: the one thing that matters here is bytes. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "passes/clusters.h"
#include "passes/emit.h"
#include "passes/passes.h"

/* Members and operands take a register each; some are left for what is recomputed. */
enum {
    MAX_REGISTERS = HL_PROGRAM_REGS - 10,
    MAX_LOADS = HL_PROGRAM_INS - 6,
    MAX_REMATERIALISED = 5,
    SMALL_FRACTION = 16,
    MAX_HORIZONTAL = 1 << 15 /* elements of clusters that join side by side */
};

typedef struct fuse_state {
    hl_graph *graph;
    hl_uses uses;
    hl_clusters clusters;
    bool *fusible; /* by node */
} fuse_state;

/* ---- what can be fused ----------------------------------------------------------------------- */

static bool is_float_or_bool(hl_dtype dtype)
{
    return hl_dtype_is_float(dtype) || dtype == HL_DTYPE_BOOL;
}

/* Adds those of a sum; false where there are too many. */
static bool add_splits(const hl_graph *graph, const hl_node *node, int32_t *splits,
                       int32_t *n_splits)
{
    hl_ints axes = hl_node_axes(node);
    return hl_program_splits_add(hl_graph_shape(graph, node->in[0]), &axes, splits, n_splits);
}

static bool is_fusible(const hl_graph *graph, const hl_node *node)
{
    const hl_op_info *op = hl_op_get(node->op);
    int32_t splits[HL_PROGRAM_SPLITS], n_splits = 0;
    if (op->flags & HL_OP_GENERATOR) return false;
    if (hl_pw_of_op(node->op) == HL_PW_COUNT &&
        !(hl_op_is_sum(node->op) && add_splits(graph, node, splits, &n_splits)))
        return false;
    if (!is_float_or_bool(hl_graph_dtype(graph, node->out))) return false;
    for (int32_t j = 0; j < node->n_in; j++)
        if (!is_float_or_bool(hl_graph_dtype(graph, node->in[j])) && node->op != HL_OP_CAST)
            return false;
    return true;
}

/* A reader of a state runs before the state's update, a reader of the update after it, so there is
 * no place for a cluster of both. Nothing is fused that depends on an update of its own segment. */
static hl_status find_fusible(fuse_state *s)
{
    const hl_graph *graph = s->graph;
    bool *follows;
    HL_TRY(hl_alloc((size_t)graph->n_nodes * sizeof *s->fusible, (void **)&s->fusible));
    HL_TRY(hl_alloc_zero((size_t)graph->n_nodes * sizeof *follows, (void **)&follows));
    for (int64_t i = 0; i < graph->n_nodes; i++) {
        const hl_node *node = &graph->nodes[i];
        for (int32_t j = 0; j < node->n_in; j++) {
            hl_node_id p = hl_graph_producer(graph, node->in[j]);
            if (p == HL_NONE || graph->nodes[p].segment != node->segment) continue;
            follows[i] |= follows[p] || hl_op_get(graph->nodes[p].op)->flags & HL_OP_UPDATES;
        }
        s->fusible[i] = !follows[i] && is_fusible(graph, node);
    }
    hl_free(follows);
    return HL_OK;
}

static const hl_shape *iteration_shape(const hl_graph *graph, hl_node_id id)
{
    const hl_node *node = &graph->nodes[id];
    return hl_graph_shape(graph, hl_op_is_sum(node->op) ? node->in[0] : node->out);
}

static bool is_generator(const hl_graph *graph, hl_id value)
{
    const hl_value *v = hl_graph_value(graph, value);
    return v->kind == HL_VALUE_ACT && hl_op_get(graph->nodes[v->node].op)->flags & HL_OP_GENERATOR;
}

/* ---- clusters -------------------------------------------------------------------------------- */

/* Its cluster, named by the least member; HL_NONE: it is not fusible. */
static hl_node_id cluster_of(const fuse_state *s, hl_node_id node)
{
    return s->fusible[node] ? s->clusters.leader[node] : (hl_node_id)HL_NONE;
}

/* The splits that the sums of some clusters need together. */
typedef struct sum_splits {
    int32_t at[HL_PROGRAM_SPLITS], n;
    bool needs_two; /* a sum that has two of its own */
} sum_splits;

static bool add_cluster_splits(const fuse_state *s, hl_node_id leader, sum_splits *splits)
{
    hl_node_id m = leader;
    do {
        const hl_node *node = &s->graph->nodes[m];
        int32_t own[HL_PROGRAM_SPLITS], n_own = 0;
        if (hl_op_is_sum(node->op)) {
            if (!add_splits(s->graph, node, splits->at, &splits->n)) return false;
            add_splits(s->graph, node, own, &n_own);
            splits->needs_two = splits->needs_two || n_own == 2;
        }
        m = s->clusters.next[m];
    } while (m != leader);
    return true;
}

static hl_pw_sums sums_of(const hl_program *program, const hl_node *sum)
{
    hl_ints axes = hl_node_axes(sum);
    return hl_program_sums(program, &axes);
}

/* Does a sum of the cluster keep what is behind the first of two splits, and nothing else? Devices
 * that go through the rows of each outer group have no use for that. */
static bool sums_outer_alone(const fuse_state *s, hl_node_id leader, const sum_splits *splits)
{
    hl_node_id m = leader;
    do {
        const hl_node *node = &s->graph->nodes[m];
        hl_program program = {0};
        if (hl_op_is_sum(node->op)) {
            program.shape = *hl_graph_shape(s->graph, node->in[0]);
            hl_program_splits_set(&program, splits->at, splits->n);
            if (sums_of(&program, node) == HL_PW_SUM_OUTER) return true;
        }
        m = s->clusters.next[m];
    } while (m != leader);
    return false;
}

/* Can one program do the sums of both clusters? Sums over rows and columns of two different
 * matrices are better apart: a program has two splits where one of its sums has. */
static bool agree_on_splits(const fuse_state *s, hl_node_id a, hl_node_id b)
{
    sum_splits splits = {.n = 0};
    if (!add_cluster_splits(s, a, &splits) || !add_cluster_splits(s, b, &splits)) return false;
    if (splits.n < 2) return true;
    return splits.needs_two && !sums_outer_alone(s, a, &splits) && !sums_outer_alone(s, b, &splits);
}

/* Would the union of two clusters fit a program: distinct operands from outside, numbers among
 * them, and members? */
static bool is_small_enough(fuse_state *s, hl_node_id a, hl_node_id b)
{
    hl_id load[MAX_REGISTERS];
    int n = 0, n_loads = 0;
    int n_members = s->clusters.n_members[a] + s->clusters.n_members[b];
    for (int side = 0; side < 2; side++) {
        hl_node_id leader = side ? b : a, m = leader;
        do {
            const hl_node *node = &s->graph->nodes[m];
            for (int32_t j = 0; j < node->n_in; j++) {
                hl_node_id p = hl_graph_producer(s->graph, node->in[j]);
                if (p != HL_NONE && (cluster_of(s, p) == a || cluster_of(s, p) == b)) continue;
                int known = 0;
                while (known < n && load[known] != node->in[j]) known++;
                if (known < n) continue;
                n_loads += !hl_emit_is_number(s->graph, node->in[j]);
                if (n + 1 + n_members > MAX_REGISTERS || n_loads > MAX_LOADS) return false;
                load[n++] = node->in[j];
            }
            m = s->clusters.next[m];
        } while (m != leader);
    }
    return n + n_members <= MAX_REGISTERS;
}

/* May one kernel compute both? */
static bool have_one_place(const hl_graph *graph, hl_node_id a, hl_node_id b)
{
    const hl_node *x = &graph->nodes[a], *y = &graph->nodes[b];
    return x->segment == y->segment && x->fence == y->fence;
}

static void try_join(fuse_state *s, hl_node_id from, hl_node_id to)
{
    hl_node_id a = cluster_of(s, from), b = cluster_of(s, to);
    if (a == HL_NONE || b == HL_NONE || a == b) return;
    if (!have_one_place(s->graph, a, b)) return;
    if (!hl_shape_equal(iteration_shape(s->graph, a), iteration_shape(s->graph, b))) return;
    if (!agree_on_splits(s, a, b)) return;
    if (is_small_enough(s, a, b)) hl_clusters_join(&s->clusters, a, b);
}

static void grow_clusters(fuse_state *s)
{
    const hl_graph *graph = s->graph;
    for (int64_t i = 0; i < graph->n_nodes; i++) {
        const hl_node *node = &graph->nodes[i];
        for (int32_t j = 0; j < node->n_in; j++) {
            hl_node_id p = hl_graph_producer(graph, node->in[j]);
            /* The value of a sum has another shape than its iteration: nobody joins behind it. */
            if (p != HL_NONE && !hl_op_is_sum(graph->nodes[p].op)) try_join(s, p, (hl_node_id)i);
        }
    }
    /* Sums that read the same value: one pass for all of them. */
    for (int64_t v = 0; v < s->graph->n_values; v++) {
        hl_node_id first = HL_NONE;
        for (int32_t u = s->uses.start[v]; u < s->uses.start[v + 1]; u++) {
            hl_node_id user = s->uses.list[u];
            if (!s->fusible[user]) continue;
            if (!hl_shape_equal(iteration_shape(graph, user), hl_graph_shape(graph, (hl_id)v)))
                continue;
            if (first == HL_NONE)
                first = user;
            else
                try_join(s, first, user);
        }
    }
}

/* Does a member compute, read or write float64? All registers of a program are of one type. */
static bool has_double(const fuse_state *s, hl_node_id leader)
{
    const hl_graph *graph = s->graph;
    hl_node_id m = leader;
    do {
        const hl_node *node = &graph->nodes[m];
        if (hl_graph_dtype(graph, node->out) == HL_DTYPE_F64) return true;
        for (int32_t j = 0; j < node->n_in; j++)
            if (hl_graph_dtype(graph, node->in[j]) == HL_DTYPE_F64) return true;
        m = s->clusters.next[m];
    } while (m != leader);
    return false;
}

/* Members whose value somebody outside may want: no fewer than the program's results. */
static int count_results(const fuse_state *s, hl_node_id leader)
{
    int n = 0;
    hl_node_id m = leader;
    do {
        hl_id value = s->graph->nodes[m].out;
        bool is_wanted = s->uses.kept[value] || hl_op_is_sum(s->graph->nodes[m].op);
        for (int32_t u = s->uses.start[value]; u < s->uses.start[value + 1] && !is_wanted; u++)
            is_wanted = cluster_of(s, s->uses.list[u]) != leader;
        n += is_wanted;
        m = s->clusters.next[m];
    } while (m != leader);
    return n;
}

static void try_join_horizontal(fuse_state *s, hl_node_id from, hl_node_id to)
{
    hl_node_id a = cluster_of(s, from), b = cluster_of(s, to);
    if (count_results(s, a) + count_results(s, b) <= HL_PROGRAM_OUTS) try_join(s, a, b);
}

typedef struct small_cluster {
    hl_node_id leader;
    hl_segment segment;
    int32_t fence;
    const hl_shape *shape;
    bool has_double;
} small_cluster;

static int compare_kinds(const small_cluster *x, const small_cluster *y)
{
    if (x->segment != y->segment) return x->segment < y->segment ? -1 : 1;
    if (x->fence != y->fence) return x->fence < y->fence ? -1 : 1;
    if (x->has_double != y->has_double) return x->has_double - y->has_double;
    if (x->shape->rank != y->shape->rank) return x->shape->rank - y->shape->rank;
    for (int d = 0; d < x->shape->rank; d++)
        if (x->shape->dim[d] != y->shape->dim[d])
            return x->shape->dim[d] < y->shape->dim[d] ? -1 : 1;
    return 0;
}
static int compare_small(const void *a, const void *b)
{
    const small_cluster *x = a, *y = b;
    int kinds = compare_kinds(x, y);
    return kinds ? kinds : (x->leader > y->leader) - (x->leader < y->leader);
}

/* Joins each small cluster, in node order, with the one before it of its kind. Where that one has
 * no room left, or there is a path between the two, the next cluster begins anew. */
static hl_status join_horizontal(fuse_state *s)
{
    const hl_graph *graph = s->graph;
    small_cluster *list;
    int64_t n = 0;
    HL_TRY(hl_alloc((size_t)graph->n_nodes * sizeof *list, (void **)&list));
    for (int64_t i = 0; i < graph->n_nodes; i++) {
        if (cluster_of(s, (hl_node_id)i) != i) continue;
        const hl_shape *shape = iteration_shape(graph, (hl_node_id)i);
        if (hl_shape_numel(shape) > MAX_HORIZONTAL) continue;
        list[n++] = (small_cluster){(hl_node_id)i, graph->nodes[i].segment, graph->nodes[i].fence,
                                    shape, has_double(s, (hl_node_id)i)};
    }
    qsort(list, (size_t)n, sizeof *list, compare_small);
    for (int64_t i = 1; i < n; i++)
        if (compare_kinds(&list[i - 1], &list[i]) == 0)
            try_join_horizontal(s, list[i - 1].leader, list[i].leader);
    hl_free(list);
    return HL_OK;
}

/* ---- programs -------------------------------------------------------------------------------- */

typedef struct emit_state {
    fuse_state *fuse;
    hl_node_id cluster;
    hl_emitter out;
} emit_state;

static bool is_loaded_or_small(const emit_state *e, hl_id value)
{
    const hl_graph *graph = e->fuse->graph;
    int64_t n = hl_shape_numel(hl_graph_shape(graph, value));
    if (hl_emit_is_number(graph, value) ||
        n * SMALL_FRACTION <= hl_shape_numel(&e->out.program.shape))
        return true;
    uint8_t reg;
    if (hl_emit_find(&e->out, value, &reg)) return true;
    hl_node_id m = e->cluster;
    do {
        const hl_node *node = &e->fuse->graph->nodes[m];
        for (int32_t j = 0; j < node->n_in; j++)
            if (node->in[j] == value) return true;
        m = e->fuse->clusters.next[m];
    } while (m != e->cluster);
    return false;
}

/* What a recomputation may still cost. */
typedef struct rematerialise_budget {
    int steps;
    int loads; /* one operand that lies in memory anyway may be read in the value's place */
} rematerialise_budget;

/* Is it cheaper to compute a foreign value here than to have it stored and load it? */
static bool is_worth_rematerialising(const emit_state *e, hl_id value, rematerialise_budget *budget)
{
    const hl_graph *graph = e->fuse->graph;
    hl_node_id p = hl_graph_producer(graph, value);
    if (p == HL_NONE || !e->fuse->fusible[p] || hl_op_is_sum(graph->nodes[p].op)) return false;
    if (!hl_shape_equal(hl_graph_shape(graph, value), &e->out.program.shape)) return false;
    if (!have_one_place(graph, p, e->cluster)) return false;
    if (--budget->steps < 0) return false;
    const hl_node *node = &graph->nodes[p];
    for (int32_t j = 0; j < node->n_in; j++) {
        hl_node_id maker = hl_graph_producer(graph, node->in[j]);
        if (is_generator(graph, node->in[j])) return false;
        if (is_loaded_or_small(e, node->in[j])) continue;
        if (is_worth_rematerialising(e, node->in[j], budget)) continue;
        bool in_memory = maker == HL_NONE || !e->fuse->fusible[maker];
        if (!in_memory || --budget->loads < 0) return false;
    }
    return true;
}

static hl_status emit_value(emit_state *e, hl_id value, uint8_t *out_reg);

static hl_status emit_node(emit_state *e, hl_node_id id, uint8_t *out_reg)
{
    const hl_node *node = &e->fuse->graph->nodes[id];
    uint8_t reg[3] = {0};
    bool is_generator = hl_op_get(node->op)->flags & HL_OP_GENERATOR;
    for (int32_t j = 0; j < node->n_in && !is_generator; j++)
        HL_TRY(emit_value(e, node->in[j], &reg[j]));
    return hl_emit_node(&e->out, node, reg, out_reg);
}

static hl_status emit_value(emit_state *e, hl_id value, uint8_t *out_reg)
{
    const hl_graph *graph = e->fuse->graph;
    if (hl_emit_find(&e->out, value, out_reg)) return HL_OK;
    if (hl_emit_is_number(graph, value)) return hl_emit_number(&e->out, value, out_reg);
    hl_node_id p = hl_graph_producer(graph, value);
    rematerialise_budget budget = {MAX_REMATERIALISED, 1};
    bool member =
        p != HL_NONE && cluster_of(e->fuse, p) == e->cluster && !hl_op_is_sum(graph->nodes[p].op);
    bool same_shape = hl_shape_equal(hl_graph_shape(graph, value), &e->out.program.shape);
    if (member || (is_generator(graph, value) && same_shape) ||
        is_worth_rematerialising(e, value, &budget))
        return emit_node(e, p, out_reg);
    return hl_emit_load(&e->out, value, out_reg);
}

/* Which members' values are read outside: by another kind of node, or by a cluster that will load
 * them. */
static bool is_read_outside(const fuse_state *s, hl_id value, const bool *loaded)
{
    if (s->uses.kept[value] || loaded[value]) return true;
    for (int32_t u = s->uses.start[value]; u < s->uses.start[value + 1]; u++)
        if (!s->fusible[s->uses.list[u]]) return true;
    return false;
}

/* In node order, so that operands come first. A cluster has no more members than registers. */
static int list_members(const fuse_state *s, hl_node_id cluster, hl_node_id *out_members)
{
    int n = 0;
    hl_node_id m = cluster;
    do {
        int at = n++;
        for (; at > 0 && out_members[at - 1] > m; at--) out_members[at] = out_members[at - 1];
        out_members[at] = m;
        m = s->clusters.next[m];
    } while (m != cluster);
    return n;
}

static hl_status emit_cluster(fuse_state *s, hl_node_id cluster, const bool *loaded, emit_state *e,
                              hl_type *out_types, hl_id *out_values)
{
    e->fuse = s;
    e->cluster = cluster;
    hl_emit_begin(&e->out, s->graph, iteration_shape(s->graph, cluster));
    sum_splits splits = {.n = 0};
    add_cluster_splits(s, cluster, &splits);
    hl_program_splits_set(&e->out.program, splits.at, splits.n);
    hl_node_id members[MAX_REGISTERS];
    int n_members = list_members(s, cluster, members);
    for (int i = 0; i < n_members; i++) {
        const hl_node *node = &s->graph->nodes[members[i]];
        if (loaded && !is_read_outside(s, node->out, loaded)) continue;
        uint8_t reg;
        hl_pw_sums sums = HL_PW_FULL;
        if (hl_op_is_sum(node->op)) {
            sums = sums_of(&e->out.program, node);
            HL_TRY(emit_value(e, node->in[0], &reg));
        } else {
            HL_TRY(emit_value(e, node->out, &reg));
        }
        if (!loaded) continue;
        HL_TRY(hl_emit_output(&e->out, reg, sums));
        out_types[e->out.program.n_out - 1] = s->graph->values[node->out].type;
        out_values[e->out.program.n_out - 1] = node->out;
    }
    return HL_OK;
}

/* Sums over middle axes that found no pointwise work to join: devices have kernels for them. */
static bool has_sums_alone(const emit_state *e)
{
    const hl_program *program = &e->out.program;
    return program->split[0] > 0 && program->n_code == program->n_in;
}

/* The first checkpoint that a member is in: what members before and behind it give is read outside,
 * so that nothing is recomputed for it. */
static int32_t find_checkpoint(const fuse_state *s, hl_node_id cluster)
{
    hl_node_id members[MAX_REGISTERS];
    int n = list_members(s, cluster, members);
    int32_t found = 0;
    for (int i = 0; i < n && !found; i++) found = s->graph->nodes[members[i]].checkpoint;
    return found;
}

/* The cluster's nodes stay single: as if they had never been fusible. */
static void dissolve(fuse_state *s, hl_node_id cluster)
{
    hl_node_id m = cluster;
    do {
        s->fusible[m] = false;
        m = s->clusters.next[m];
    } while (m != cluster);
}

static hl_status rewrite_clusters(fuse_state *s)
{
    hl_graph *graph = s->graph;
    int64_t n_nodes = graph->n_nodes, n_map = graph->n_values;
    hl_id *map = NULL;
    bool *loaded = NULL;
    emit_state *e = NULL;
    hl_status status = HL_OK;
    HL_GOTO(hl_rewrite_map(graph, &map));
    HL_GOTO(hl_alloc_zero((size_t)n_map, (void **)&loaded));
    HL_GOTO(hl_alloc(sizeof *e, (void **)&e));
    hl_type types[HL_PROGRAM_OUTS];
    hl_id values[HL_PROGRAM_OUTS];
    /* First round: what each cluster will load from others, given what it recomputes. */
    for (int64_t i = 0; i < n_nodes; i++) {
        if (cluster_of(s, (hl_node_id)i) != i) continue;
        status = emit_cluster(s, (hl_node_id)i, NULL, e, types, values);
        if ((status != HL_OK && e->out.is_refused) || (status == HL_OK && has_sums_alone(e))) {
            dissolve(s, (hl_node_id)i);
            continue;
        }
        HL_GOTO(status);
        for (int32_t j = 0; j < e->out.program.n_in; j++) loaded[e->out.in[j]] = true;
    }
    for (int64_t i = 0; i < n_nodes; i++) {
        if (cluster_of(s, (hl_node_id)i) != i) continue;
        status = emit_cluster(s, (hl_node_id)i, loaded, e, types, values);
        if (status != HL_OK && e->out.is_refused) continue;
        HL_GOTO(status);
        if (!e->out.program.n_out) continue;
        hl_id first;
        hl_graph_stand_by(graph, &graph->nodes[i]);
        graph->checkpoint = find_checkpoint(s, (hl_node_id)i);
        HL_GOTO(hl_graph_add_program(graph, e->out.in, e->out.program.n_in, &e->out.program, types,
                                     e->out.program.n_out, &first));
        for (int32_t j = 0; j < e->out.program.n_out; j++) map[values[j]] = first + j;
    }
    status = HL_OK;
    hl_rewrite_replace(graph, map, n_map);
    HL_GOTO(hl_rewrite_sort(graph));
cleanup:
    hl_free(map);
    hl_free(loaded);
    hl_free(e);
    return status;
}

hl_status hl_pass_fuse(hl_graph *graph, hl_device *device)
{
    if (!device->fuses || !graph->n_nodes) return HL_OK;
    fuse_state s = {.graph = graph};
    hl_status status = HL_OK;
    HL_GOTO(hl_uses_init(graph, &s.uses));
    HL_GOTO(hl_clusters_init(graph, &s.uses, &s.clusters));
    HL_GOTO(find_fusible(&s));
    grow_clusters(&s);
    if (device->ops->stream_create) HL_GOTO(join_horizontal(&s));
    HL_GOTO(rewrite_clusters(&s));
cleanup:
    hl_free(s.fusible);
    hl_clusters_deinit(&s.clusters);
    hl_uses_deinit(&s.uses);
    return status;
}
