/* Layout: permutations that cancel one another are taken out.
 *
 * A permutation of dims is a copy. From each one, and from those of the same dims that meet it, the
 * pass follows the ops that give the same elements whatever order the dims lie in (op table, column
 * `permute`), forward and into the backward pass, until another permutation undoes it or something
 * else needs the dims as they were. Where that removes more copies than it would insert, the ops in
 * between are rewritten for the order in which the operands lie.
 *
 * Followed are ops that compute or move each element by itself, and those whose kernels take dims
 * in any order (batch norm), whose statistics then are sums in another order. Other sums are not:
 * they would round otherwise. An operand that is broadcast, of dims of one element but for those
 * that stand in one order both ways, lies alike in both: values per channel cost no copy.
 *
 * Convolutions and pooling ask for an order by themselves (hl_kernel_req.order), and their
 * permutations are cancelled against one another here. Rejected: a search over the layouts of all
 * values at once. */
#include "base/alloc.h"
#include "ops/build.h"
#include "passes/passes.h"
#include "passes/rewrite.h"

typedef struct layout_state {
    hl_graph *graph;
    int64_t n_values, n_nodes; /* that were there when the pass began */
    hl_uses uses;
    hl_id *map;       /* of hl_rewrite_replace */
    hl_ints *order;   /* by value in the region: its dim i is dim order[i] of what replaces it */
    hl_id *now;       /* by value in the region: what replaces it */
    bool *is_in;      /* by value: is it in the region? */
    bool *is_entry;   /* by value in the region: a permutation of one outside, read in its place */
    bool *is_wanted;  /* by value in the region: somebody needs it as it was */
    bool *is_done;    /* by node: it was rewritten */
    hl_node_id first; /* permutation that the region begins with */
    hl_node_id last;  /* node that reads it last */
    hl_id *entered;   /* its values */
    int64_t n_entered;
} layout_state;

static hl_ints invert(const hl_ints *dims)
{
    hl_ints places = {.n = dims->n};
    for (int32_t i = 0; i < dims->n; i++) places.at[dims->at[i]] = i;
    return places;
}

static bool is_same(const hl_ints *a, const hl_ints *b)
{
    bool same = a->n == b->n;
    for (int32_t i = 0; i < a->n && same; i++) same = a->at[i] == b->at[i];
    return same;
}

/* The order of PERMUTE(value, dims), of a value whose order this is. */
static hl_ints compose(const hl_ints *order, const hl_ints *dims)
{
    hl_ints both = {.n = dims->n};
    for (int32_t i = 0; i < dims->n; i++) both.at[i] = order->at[dims->at[i]];
    return both;
}

static bool is_identity(const hl_ints *order)
{
    for (int32_t i = 0; i < order->n; i++)
        if (order->at[i] != i) return false;
    return true;
}

static bool is_permute(const hl_node *node)
{
    return node->op == HL_OP_PERMUTE;
}

/* ---- the region ------------------------------------------------------------------------------ */

static void enter(layout_state *s, hl_id value, const hl_ints *order, bool is_entry)
{
    s->is_in[value] = true, s->is_wanted[value] = false, s->is_entry[value] = is_entry;
    s->order[value] = *order;
    s->now[value] = HL_NONE;
    s->entered[s->n_entered++] = value;
    int32_t end = s->uses.start[value + 1];
    if (end > s->uses.start[value] && s->uses.list[end - 1] > s->last)
        s->last = s->uses.list[end - 1];
}

static void leave_region(layout_state *s)
{
    while (s->n_entered > 0) s->is_in[s->entered[--s->n_entered]] = false;
}

/* The order of an operand that stands in the region or may enter it; NULL: it does neither. */
static const hl_ints *find_order(const layout_state *s, hl_id value, hl_ints *room)
{
    hl_node_id maker = hl_graph_producer(s->graph, value);
    if (s->is_in[value]) return &s->order[value];
    if (maker == HL_NONE || !is_permute(&s->graph->nodes[maker])) return NULL;
    *room = hl_permute_attrs(&s->graph->nodes[maker])->dims;
    return room;
}

static bool is_followed(const hl_node *node)
{
    const hl_op_info *op = hl_op_get(node->op);
    bool moves = hl_op_role_in(node->op, 0) == 'f' && hl_op_role_out(node->op, 0) == 'f';
    bool has_preference = hl_schema_find(op->schema, "channels_last");
    return op->flags & (HL_OP_POINTWISE | HL_OP_ANY_ORDER) || (moves && !has_preference);
}

/* Does operand i have dims that are permuted with the others? */
static bool has_order(const layout_state *s, const hl_node *node, int32_t i)
{
    return !hl_op_is_fixed(node->op, i) && hl_graph_shape(s->graph, node->in[i])->rank > 0;
}

/* Does it stand in this order, in the region or where it may enter it? */
static bool is_ordered(const layout_state *s, const hl_node *node, int32_t i, const hl_ints *order)
{
    hl_ints room;
    const hl_ints *own = has_order(s, node, i) ? find_order(s, node->in[i], &room) : NULL;
    return own && is_same(own, order);
}

/* Do the elements of a value that has this shape in that order lie as they do without it? Then a
 * reshape permutes them. */
static bool lies_alike(const hl_shape *shape, const hl_ints *order)
{
    hl_ints dims = invert(order);
    int64_t last = -1;
    if (shape->rank != order->n) return false;
    for (int32_t d = 0; d < dims.n; d++) {
        if (shape->dim[dims.at[d]] == 1) continue;
        if (dims.at[d] < last) return false;
        last = dims.at[d];
    }
    return true;
}

/* Can the node work on operands in another order? If so, its attributes then, the order of its
 * operands and that of its results. */
static bool can_reorder(const layout_state *s, const hl_node *node, hl_attrs *attrs,
                        hl_ints *out_in, hl_ints *out_order)
{
    const hl_graph *graph = s->graph;
    hl_ints room, out_dims;
    bool found = false;
    if (!is_followed(node) || hl_op_get(node->op)->flags & HL_OP_UPDATES) return false;
    for (int32_t i = 0; i < node->n_in && !found; i++) {
        const hl_ints *own = has_order(s, node, i) ? find_order(s, node->in[i], &room) : NULL;
        if (own) *out_in = *own;
        found = own;
    }
    if (!found || out_in->n != hl_graph_shape(graph, node->out)->rank) return false;
    for (int32_t i = 0; i < node->n_in; i++)
        if (has_order(s, node, i) && !is_ordered(s, node, i, out_in) &&
            !lies_alike(hl_graph_shape(graph, node->in[i]), out_in))
            return false;
    hl_ints dims = invert(out_in);
    *attrs = node->attrs;
    if (!hl_node_permute(graph, node, &dims, attrs, &out_dims)) return false;
    *out_order = invert(&out_dims);
    return true;
}

/* Copies that go and copies that come. */
typedef struct layout_gain {
    int32_t removed, inserted;
} layout_gain;

static bool reads_region(const layout_state *s, const hl_node *node)
{
    for (int32_t i = 0; i < node->n_in; i++)
        if (node->in[i] < s->n_values && s->is_in[node->in[i]]) return true;
    return false;
}

/* Operands of a node that needs them as they were. */
static void want_operand(layout_state *s, hl_id value)
{
    if (s->is_in[value]) s->is_wanted[value] = true;
}

/* The node works in this order: what it reads and gives is in the region. */
static void enter_node(layout_state *s, const hl_node *node, const hl_ints *in_order,
                       const hl_ints *out_order)
{
    for (int32_t k = 0; k < node->n_in; k++) {
        if (!is_ordered(s, node, k, in_order))
            want_operand(s, node->in[k]);
        else if (!s->is_in[node->in[k]])
            enter(s, node->in[k], in_order, true);
    }
    for (int32_t k = 0; k < node->n_out; k++)
        if (hl_graph_shape(s->graph, node->out + k)->rank == out_order->n)
            enter(s, node->out + k, out_order, false);
}

/* What follows from the permutation `first`, in node order. */
static void grow_region(layout_state *s, hl_node_id first)
{
    const hl_graph *graph = s->graph;
    s->first = s->last = first;
    enter(s, graph->nodes[first].out, &hl_permute_attrs(&graph->nodes[first])->dims, true);
    for (int64_t i = first + 1; i <= s->last; i++) {
        const hl_node *node = &graph->nodes[i];
        hl_attrs attrs;
        hl_ints in_order, order;
        if (s->is_done[i] || !reads_region(s, node)) continue;
        if (is_permute(node)) {
            order = compose(&s->order[node->in[0]], &hl_permute_attrs(node)->dims);
            enter(s, node->out, &order, false);
        } else if (can_reorder(s, node, &attrs, &in_order, &order)) {
            enter_node(s, node, &in_order, &order);
        } else {
            for (int32_t k = 0; k < node->n_in; k++) want_operand(s, node->in[k]);
        }
    }
}

/* By who is no part of the region: also by nodes that stand before it. */
static bool is_read_outside(const layout_state *s, hl_id value)
{
    if (s->is_wanted[value] || s->uses.kept[value]) return true;
    for (int32_t u = s->uses.start[value]; u < s->uses.start[value + 1]; u++) {
        hl_node_id id = s->uses.list[u];
        const hl_node *user = &s->graph->nodes[id];
        bool is_inside = user->n_out > 0 && s->is_in[user->out] && !s->is_entry[user->out];
        if (id <= s->first || !is_inside) return true;
    }
    return false;
}

static void count_gain(const layout_state *s, layout_gain *gain)
{
    for (int64_t i = 0; i < s->n_entered; i++) {
        hl_id v = s->entered[i];
        const hl_node *maker = &s->graph->nodes[hl_graph_producer(s->graph, v)];
        bool is_read = is_read_outside(s, v);
        if (s->is_entry[v]) {
            gain->removed += !is_read;
        } else {
            gain->removed += is_permute(maker);
            gain->inserted += is_read && !is_identity(&s->order[v]);
        }
    }
}

/* ---- rewriting ------------------------------------------------------------------------------- */

/* What a value of the region is in the order of what replaces it. */
static hl_id find_now(const layout_state *s, hl_id value)
{
    hl_node_id maker = hl_graph_producer(s->graph, value);
    if (!s->is_in[value]) return value;
    return s->now[value] != HL_NONE ? s->now[value] : s->graph->nodes[maker].in[0];
}

/* A value that is read outside, in the order that it had. */
static hl_status restore(layout_state *s, hl_id old)
{
    hl_id id = s->now[old];
    if (!is_identity(&s->order[old])) HL_TRY(hl_build_permute(s->graph, id, s->order[old].at, &id));
    s->map[old] = id;
    return HL_OK;
}

/* Operand i in this order. */
static hl_status find_ordered(layout_state *s, const hl_node *node, int32_t i, const hl_ints *order,
                              hl_id *out_id)
{
    *out_id = node->in[i];
    if (!has_order(s, node, i)) return HL_OK;
    if (is_ordered(s, node, i, order)) {
        *out_id = find_now(s, node->in[i]);
        return HL_OK;
    }
    hl_shape shape = *hl_graph_shape(s->graph, node->in[i]), turned = shape;
    for (int32_t d = 0; d < shape.rank; d++) turned.dim[order->at[d]] = shape.dim[d];
    return hl_build_reshape(s->graph, node->in[i], &turned, out_id);
}

static hl_status rewrite_node(layout_state *s, const hl_node *node)
{
    hl_attrs attrs;
    hl_ints in_order, order;
    hl_id *in, out;
    if (!can_reorder(s, node, &attrs, &in_order, &order))
        return hl_status_set(HL_ERROR_INTERNAL, "layout: %s must work in another order",
                             hl_op_get(node->op)->name);
    HL_TRY(hl_alloc(((size_t)node->n_in + 1) * sizeof *in, (void **)&in));
    hl_status status = HL_OK;
    for (int32_t i = 0; i < node->n_in && status == HL_OK; i++)
        status = find_ordered(s, node, i, &in_order, &in[i]);
    if (status == HL_OK) status = hl_graph_add(s->graph, node->op, in, node->n_in, &attrs, &out);
    hl_free(in);
    for (int32_t k = 0; k < node->n_out && status == HL_OK; k++) {
        s->now[node->out + k] = out + k;
        if (!s->is_in[node->out + k]) s->map[node->out + k] = out + k;
    }
    return status;
}

static hl_status rewrite_region(layout_state *s, hl_node_id first)
{
    hl_status status = HL_OK;
    for (int64_t i = first + 1; i <= s->last && status == HL_OK; i++) {
        const hl_node node = s->graph->nodes[i];
        if (s->is_done[i] || !reads_region(s, &node) || !s->is_in[node.out]) continue;
        if (s->is_entry[node.out]) continue;
        hl_graph_stand_by(s->graph, &node);
        s->is_done[i] = true;
        if (is_permute(&node))
            s->now[node.out] = find_now(s, node.in[0]);
        else
            status = rewrite_node(s, &node);
        for (int32_t k = 0; k < node.n_out && status == HL_OK; k++)
            if (s->is_in[node.out + k] && is_read_outside(s, node.out + k))
                status = restore(s, node.out + k);
    }
    return status;
}

/* ---- the pass -------------------------------------------------------------------------------- */

static hl_status alloc_state(layout_state *s, void **out_memory)
{
    size_t n = (size_t)s->n_values + 1;
    HL_TRY(hl_alloc_zero(n * (sizeof(hl_ints) + 2 * sizeof(hl_id) + 3) + (size_t)s->n_nodes + 1,
                         out_memory));
    s->order = *out_memory;
    s->now = (hl_id *)(s->order + n);
    s->entered = s->now + n;
    s->is_in = (bool *)(s->entered + n);
    s->is_entry = s->is_in + n;
    s->is_wanted = s->is_entry + n;
    s->is_done = s->is_wanted + n;
    return HL_OK;
}

hl_status hl_pass_layout(hl_graph *graph)
{
    layout_state s = {.graph = graph, .n_values = graph->n_values, .n_nodes = graph->n_nodes};
    void *memory = NULL;
    bool changed = false;
    hl_status status;
    HL_GOTO(hl_uses_init(graph, &s.uses));
    HL_GOTO(hl_rewrite_map(graph, &s.map));
    HL_GOTO(alloc_state(&s, &memory));
    for (int64_t i = 0; i < s.n_nodes; i++) {
        layout_gain gain = {0, 0};
        if (!is_permute(&graph->nodes[i]) || s.is_done[i]) continue;
        leave_region(&s);
        grow_region(&s, (hl_node_id)i);
        count_gain(&s, &gain);
        if (gain.removed <= gain.inserted) continue;
        HL_GOTO(rewrite_region(&s, (hl_node_id)i));
        changed = true;
    }
    if (changed) {
        hl_rewrite_replace(graph, s.map, s.n_values);
        HL_GOTO(hl_rewrite_sort(graph));
    }
cleanup:
    hl_free(memory);
    hl_free(s.map);
    hl_uses_deinit(&s.uses);
    return status;
}
