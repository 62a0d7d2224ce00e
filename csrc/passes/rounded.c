/* Rounded copies: the optimizer writes the 16-bit weights that products read.
 *
 * After hoisting, a step of mixed precision begins with a cast of each parameter that a product
 * reads. Parameters change in the optimizer alone, whose kernel has the new ones in registers: it
 * writes them rounded as well, into a store that lies as the parameters do (hl_store.source), and
 * products read that store. An ASSIGN in BEGIN makes all of it anew, frozen parameters too; the
 * plan runs it where the copy is not current, which is before the first step and after a change
 * from outside. The ASSIGN behind the optimizer is part of its launch (hl_kernel.takes_next) and
 * has its guard: a step that is not applied changes neither. The first one's guard is a constant
 * that is up: the plan takes the copy for current behind it.
 *
 * The copy has a place for every parameter, at half of the parameter's bytes: at multiples of 32,
 * which vectors of 16 bytes need. It is made where it moves fewer bytes than the casts: 2 for each
 * parameter that learns, against 6 for each that is cast. So a large embedding in front of small
 * layers keeps its casts. Where something in BEGIN works on a cast (turns it, say) that cast stays:
 * BEGIN sees a store as the step before left it.
 *
 * Rejected: places for those parameters alone that are read in 16 bits (each plan would lay them
 * out by what it reads, and plans share the copy); a copy of the plan's own in the arena, which is
 * lost when another plan runs; one more operand and result of each optimizer, which an update
 * behind it already is. */
#include "passes/passes.h"

#include <string.h>

#include "base/alloc.h"
#include "ir/control.h"
#include "passes/rewrite.h"

enum { CAST_BYTES = 6, COPY_BYTES = 2 };

typedef struct rounded_state {
    hl_graph *graph;
    hl_uses uses;
    hl_node_id optimizer; /* HL_NONE: none, or parameters change elsewhere too */
    int32_t store;        /* of its parameters */
    hl_dtype dtype;       /* of the copies; HL_DTYPE_COUNT: there are none */
} rounded_state;

/* The one node that updates parameters. */
static void find_optimizer(rounded_state *s)
{
    const hl_graph *graph = s->graph;
    int n = 0;
    for (int64_t i = 0; i < graph->n_nodes; i++) {
        const hl_node *node = &graph->nodes[i];
        if (!(hl_op_get(node->op)->flags & HL_OP_UPDATES)) continue;
        for (int32_t j = 0; j < node->n_out; j++) {
            const hl_value *leaf = hl_graph_value(graph, hl_graph_updated(graph, node->in[j]));
            if (leaf->kind != HL_VALUE_PARAM) continue;
            s->optimizer = j || node->segment != HL_SEGMENT_APPLY ? HL_NONE : (hl_node_id)i;
            s->store = leaf->store;
            n++;
        }
    }
    if (n != 1) s->optimizer = HL_NONE;
}

/* Does nothing in BEGIN work on the value? */
static bool is_for_steps(const rounded_state *s, hl_id value)
{
    if (s->uses.kept[value]) return false;
    for (int32_t u = s->uses.start[value]; u < s->uses.start[value + 1]; u++) {
        const hl_node *user = &s->graph->nodes[s->uses.list[u]];
        bool is_view = hl_op_get(user->op)->flags & HL_OP_VIEW;
        if (is_view ? !is_for_steps(s, user->out) : user->segment == HL_SEGMENT_BEGIN) return false;
    }
    return true;
}

/* Is the node a cast that the copy can replace? All are to one type. */
static bool is_replaced(rounded_state *s, const hl_node *node)
{
    if (node->op != HL_OP_CAST || node->segment != HL_SEGMENT_BEGIN) return false;
    const hl_value *from = hl_graph_value(s->graph, node->in[0]);
    hl_dtype dtype = hl_graph_dtype(s->graph, node->out);
    bool rounds = from->type.dtype == HL_DTYPE_F32 && hl_dtype_is_16_bit(dtype) &&
                  (s->dtype == dtype || s->dtype == HL_DTYPE_COUNT);
    return rounds && from->kind == HL_VALUE_PARAM && from->store == s->store &&
           is_for_steps(s, node->out);
}

/* Bytes that casts move; the type to which they round. */
static int64_t count_cast_bytes(rounded_state *s)
{
    int64_t bytes = 0;
    for (int64_t i = 0; i < s->graph->n_nodes; i++) {
        const hl_node *node = &s->graph->nodes[i];
        if (!is_replaced(s, node)) continue;
        s->dtype = hl_graph_dtype(s->graph, node->out);
        bytes += CAST_BYTES * hl_shape_numel(hl_graph_shape(s->graph, node->out));
    }
    return bytes;
}

/* Can the optimizer's launch have an update behind it? */
static hl_status is_taken(const rounded_state *s, hl_device *device, bool deterministic,
                          bool *out_taken)
{
    const hl_kernel *kernel;
    hl_kernel_req req;
    HL_TRY(hl_kernel_find(device, s->graph, s->optimizer, deterministic, &kernel, &req));
    *out_taken = kernel && kernel->takes_next;
    return HL_OK;
}

/* copy <- value, where the graph stands now. */
static hl_status assign(rounded_state *s, int32_t store, int64_t n, hl_id value, hl_id guard)
{
    hl_id copy, out;
    hl_type type = {s->dtype, hl_shape_1d(n)};
    HL_TRY(hl_graph_leaf(s->graph, HL_VALUE_STATE, type, store, 0, s->graph->stores[store].name,
                         &copy));
    HL_TRY(hl_graph_add(s->graph, HL_OP_ASSIGN, (hl_id[]){copy, value, guard}, 3, NULL, &out));
    return hl_graph_commit(s->graph, copy, out);
}

static hl_status refresh_copy(rounded_state *s, int32_t store)
{
    static const hl_control up = {.window_ok = 1};
    hl_graph *graph = s->graph;
    int64_t n = graph->stores[s->store].n;
    hl_type type = {HL_DTYPE_F32, hl_shape_1d(n)};
    hl_type block = {HL_DTYPE_U8, hl_shape_1d(sizeof up)};
    hl_id all, guard;
    HL_TRY(hl_graph_leaf(graph, HL_VALUE_PARAM, type, s->store, 0, graph->stores[s->store].name,
                         &all));
    HL_TRY(hl_graph_const(graph, block, &up, &guard));
    hl_graph_stand_by(graph, &(hl_node){.segment = HL_SEGMENT_BEGIN});
    return assign(s, store, n, all, guard);
}

/* The last node to the place behind this one, before others that read its results. */
static hl_status move_behind(hl_graph *graph, hl_node_id node)
{
    int64_t n = graph->n_nodes;
    hl_node_id *order;
    HL_TRY(hl_alloc((size_t)n * sizeof *order, (void **)&order));
    for (int64_t i = 0; i < n; i++)
        order[i] = (hl_node_id)(i <= node ? i : i == node + 1 ? n - 1 : i - 1);
    hl_status status = hl_graph_reorder(graph, order, n);
    hl_free(order);
    return status;
}

static hl_status update_copy(rounded_state *s, int32_t store)
{
    hl_graph *graph = s->graph;
    hl_node node = graph->nodes[s->optimizer];
    hl_graph_stand_by(graph, &node);
    HL_TRY(assign(s, store, hl_shape_numel(hl_graph_shape(graph, node.out)), node.out,
                  node.in[node.n_in - 1]));
    return move_behind(graph, s->optimizer);
}

/* What read a cast reads its place in the copy. */
static hl_status read_copy(rounded_state *s, int32_t store)
{
    hl_graph *graph = s->graph;
    int64_t n_map = graph->n_values, n_nodes = graph->n_nodes;
    hl_id *map;
    HL_TRY(hl_rewrite_map(graph, &map));
    hl_status status = HL_OK;
    for (int64_t i = 0; i < n_nodes; i++) {
        const hl_node *node = &graph->nodes[i];
        if (!is_replaced(s, node)) continue;
        const hl_value from = *hl_graph_value(graph, node->in[0]);
        hl_type type = {s->dtype, from.type.shape};
        HL_GOTO(hl_graph_leaf(graph, HL_VALUE_STATE, type, store, from.offset, from.name,
                              &map[node->out]));
    }
    hl_rewrite_replace(graph, map, n_map);
cleanup:
    hl_free(map);
    return status;
}

static hl_status replace_casts(rounded_state *s)
{
    int32_t store;
    HL_TRY(hl_graph_store_rounded(s->graph, s->store, s->dtype, &store));
    HL_TRY(read_copy(s, store));
    HL_TRY(refresh_copy(s, store));
    HL_TRY(update_copy(s, store));
    return hl_rewrite_sort(s->graph);
}

hl_status hl_pass_rounded(hl_graph *graph, hl_device *device, bool deterministic)
{
    rounded_state s = {.graph = graph, .optimizer = HL_NONE, .dtype = HL_DTYPE_COUNT};
    bool is_worth_it, takes;
    find_optimizer(&s);
    if (s.optimizer == HL_NONE) return HL_OK;
    HL_TRY(is_taken(&s, device, deterministic, &takes));
    if (!takes) return HL_OK;
    hl_status status = HL_OK;
    HL_GOTO(hl_uses_init(graph, &s.uses));
    hl_id trained = graph->nodes[s.optimizer].out;
    is_worth_it =
        count_cast_bytes(&s) > COPY_BYTES * hl_shape_numel(hl_graph_shape(graph, trained));
    if (is_worth_it) HL_GOTO(replace_casts(&s));
cleanup:
    hl_uses_deinit(&s.uses);
    return status;
}
