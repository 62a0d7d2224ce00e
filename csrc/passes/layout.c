/* Layout: permutations that cancel one another are taken out.
 *
 * A permutation of dims is a copy. From each one the pass follows the ops that give the same
 * elements whatever order the dims lie in (op table, column `permute`), forward and into the
 * backward pass, until another permutation undoes it or something else needs the dims as they were.
 * Values that meet in an op are one region. Where it removes more copies than it would insert, its
 * ops are rewritten for the order in which the operands lie.
 *
 * Followed are ops that compute or move each element by itself, and those whose kernels take dims
 * in any order (batch norm, sums), which then add in another order. An operand that is broadcast,
 * of dims of one element but for those that stand in one order both ways, lies alike in both:
 * values per channel cost no copy.
 *
 * Convolutions and pooling ask for an order by themselves (hl_kernel_req.order), and their
 * permutations are cancelled against one another here. Rejected: a search over the layouts of all
 * values at once. */
#include "base/alloc.h"
#include "ops/build.h"
#include "passes/passes.h"
#include "passes/rewrite.h"

/* Copies that go and copies that come. */
typedef struct layout_gain {
    int32_t removed, inserted;
} layout_gain;

typedef struct layout_state {
    hl_graph *graph;
    int64_t n_values, n_nodes; /* that were there when the pass began */
    hl_uses uses;
    hl_id *map;        /* of hl_rewrite_replace */
    hl_ints *order;    /* by value in a region: its dim i is dim order[i] of what replaces it */
    hl_id *now;        /* by value in a region: what replaces it */
    hl_id *joined;     /* by value in a region: another one of it, or itself */
    layout_gain *gain; /* by value that joined_first gives: the region's */
    hl_node_id *first_turn; /* by value outside: the first permutation of it */
    bool changed;
    bool *is_in;     /* by value: is it in a region? */
    bool *is_entry;  /* by value in a region: a permutation of one outside, read in its place */
    bool *is_wanted; /* by value in a region: somebody needs it as it was */
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
    s->is_in[value] = true, s->is_entry[value] = is_entry;
    s->order[value] = *order;
    s->now[value] = HL_NONE;
    s->joined[value] = value;
}

/* The value that stands for the region that this one is in. */
static hl_id joined_first(const layout_state *s, hl_id value)
{
    while (s->joined[value] != value) {
        s->joined[value] = s->joined[s->joined[value]];
        value = s->joined[value];
    }
    return value;
}

static void join(layout_state *s, hl_id a, hl_id b)
{
    s->joined[joined_first(s, b)] = joined_first(s, a);
}

static bool moves_elements(const hl_node *node)
{
    return hl_op_role_in(node->op, 0) == 'f' && hl_op_role_out(node->op, 0) == 'f';
}

static bool is_followed(const hl_node *node)
{
    const hl_op_info *op = hl_op_get(node->op);
    if (op->flags & HL_OP_UPDATES) return false;
    if (op->flags & (HL_OP_POINTWISE | HL_OP_ANY_ORDER)) return true;
    return moves_elements(node) && !hl_schema_find(op->schema, "channels_last");
}

/* Does operand i have dims that are permuted with the others? */
static bool has_order(const layout_state *s, const hl_node *node, int32_t i)
{
    return !hl_op_is_fixed(node->op, i) && hl_graph_shape(s->graph, node->in[i])->rank > 0;
}

/* Does it stand in a region, in this order? */
static bool is_ordered(const layout_state *s, const hl_node *node, int32_t i, const hl_ints *order)
{
    return s->is_in[node->in[i]] && has_order(s, node, i) && is_same(&s->order[node->in[i]], order);
}

/* The shape with dims of 1 before it, as broadcasting has them. */
static hl_shape pad_shape(const hl_shape *shape, int32_t rank)
{
    hl_shape padded = {.rank = rank};
    int32_t missing = rank - shape->rank;
    for (int32_t d = 0; d < rank; d++) padded.dim[d] = d < missing ? 1 : shape->dim[d - missing];
    return padded;
}

/* Do the elements of a value that has this shape in that order lie as they do without it? Then a
 * reshape permutes them. */
static bool lies_alike(const hl_shape *shape, const hl_ints *order)
{
    hl_ints dims = invert(order);
    int64_t last = -1;
    if (shape->rank > order->n) return false;
    hl_shape padded = pad_shape(shape, order->n);
    for (int32_t d = 0; d < dims.n; d++) {
        if (padded.dim[dims.at[d]] == 1) continue;
        if (dims.at[d] < last) return false;
        last = dims.at[d];
    }
    return true;
}

/* What a value is broadcast from, if its elements lie alike in that order: itself or the operand of
 * EXPAND, whose dtype CAST may have changed; HL_NONE: they do not. */
static hl_id find_source(const layout_state *s, hl_id value, const hl_ints *order)
{
    static const hl_op through[] = {HL_OP_CAST, HL_OP_EXPAND};
    for (int i = 0; i < 2; i++) {
        if (lies_alike(hl_graph_shape(s->graph, value), order)) return value;
        hl_node_id maker = hl_graph_producer(s->graph, value);
        if (maker == HL_NONE) return HL_NONE;
        if (s->graph->nodes[maker].op == through[i]) value = s->graph->nodes[maker].in[0];
    }
    return lies_alike(hl_graph_shape(s->graph, value), order) ? value : HL_NONE;
}

static hl_shape turn_shape(const hl_shape *shape, const hl_ints *order)
{
    hl_shape padded = pad_shape(shape, order->n), turned = padded;
    for (int32_t d = 0; d < order->n; d++) turned.dim[order->at[d]] = padded.dim[d];
    return turned;
}

/* Do the dims that a node adds up stand together in this order? No kernel adds up others. */
static bool stand_together(const hl_graph *graph, const hl_node *turned, const hl_ints *order)
{
    int64_t O, N, I;
    hl_ints axes = hl_node_axes(turned);
    if (axes.n == 0 || moves_elements(turned)) return true;
    hl_shape shape = turn_shape(hl_graph_shape(graph, turned->in[0]), order);
    return hl_shape_split(&shape, axes.at, axes.n, &O, &N, &I);
}

/* Can the node work on operands in another order? If so, its attributes then, the order of its
 * operands and that of its results. */
static bool can_reorder(const layout_state *s, const hl_node *node, hl_attrs *attrs,
                        hl_ints *out_in, hl_ints *out_order)
{
    const hl_graph *graph = s->graph;
    hl_ints out_dims;
    bool found = false;
    if (!is_followed(node)) return false;
    for (int32_t i = 0; i < node->n_in && !found; i++) {
        found = s->is_in[node->in[i]] && has_order(s, node, i);
        if (found) *out_in = s->order[node->in[i]];
    }
    if (!found) return false;
    bool broadcasts = hl_op_get(node->op)->flags & HL_OP_POINTWISE;
    for (int32_t i = 0; i < node->n_in; i++) {
        if (!has_order(s, node, i) || is_ordered(s, node, i, out_in)) continue;
        if (!broadcasts && hl_graph_shape(graph, node->in[i])->rank != out_in->n) return false;
        if (find_source(s, node->in[i], out_in) == HL_NONE) return false;
    }
    hl_ints dims = invert(out_in);
    *attrs = node->attrs;
    if (!hl_node_permute(graph, node, &dims, attrs, &out_dims)) return false;
    *out_order = invert(&out_dims);
    hl_node turned = *node;
    turned.attrs = *attrs;
    if (!stand_together(graph, &turned, out_in)) return false;
    return out_dims.n == hl_graph_shape(graph, node->out)->rank;
}

/* A node needs an operand as it was. */
static void want_operand(layout_state *s, hl_id value)
{
    if (s->is_in[value]) s->is_wanted[value] = true;
}

/* The node works in this order: what it reads and gives is one region. */
static void enter_node(layout_state *s, const hl_node *node, const hl_ints *in_order,
                       const hl_ints *out_order)
{
    for (int32_t k = 0; k < node->n_out; k++) {
        if (hl_graph_shape(s->graph, node->out + k)->rank != out_order->n) continue;
        enter(s, node->out + k, out_order, false);
        join(s, node->out, node->out + k);
    }
    for (int32_t k = 0; k < node->n_in; k++) {
        if (is_ordered(s, node, k, in_order))
            join(s, node->out, node->in[k]);
        else
            want_operand(s, node->in[k]);
    }
}

/* Equal permutations of one value are one copy. */
static void share_permutation(layout_state *s, hl_node_id id)
{
    const hl_node *node = &s->graph->nodes[id];
    hl_node_id *first = &s->first_turn[node->in[0]];
    if (*first == HL_NONE) *first = id;
    if (*first == id) return;
    const hl_node *other = &s->graph->nodes[*first];
    if (!is_same(&hl_permute_attrs(node)->dims, &hl_permute_attrs(other)->dims)) return;
    s->map[node->out] = other->out;
    s->changed = true;
}

static void grow_regions(layout_state *s)
{
    const hl_graph *graph = s->graph;
    for (int64_t i = 0; i < s->n_nodes; i++) {
        const hl_node *node = &graph->nodes[i];
        hl_attrs attrs;
        hl_ints in_order, order;
        if (is_permute(node)) {
            bool is_entry = !s->is_in[node->in[0]];
            order = hl_permute_attrs(node)->dims;
            if (!is_entry) order = compose(&s->order[node->in[0]], &order);
            enter(s, node->out, &order, is_entry);
            if (!is_entry) join(s, node->out, node->in[0]);
            if (is_entry) share_permutation(s, (hl_node_id)i);
        } else if (can_reorder(s, node, &attrs, &in_order, &order)) {
            enter_node(s, node, &in_order, &order);
        } else {
            for (int32_t k = 0; k < node->n_in; k++) want_operand(s, node->in[k]);
        }
    }
}

/* By who is no part of the region? */
static bool is_read_outside(const layout_state *s, hl_id value)
{
    return s->is_wanted[value] || s->uses.kept[value];
}

static const hl_node *find_maker(const layout_state *s, hl_id value)
{
    return &s->graph->nodes[hl_graph_producer(s->graph, value)];
}

/* Does it take a copy to have a value of a region as it was? What was in place, as a slice of
 * leading dims, is a copy in another order. */
static bool needs_copy(const layout_state *s, hl_id value)
{
    const hl_ints *order = &s->order[value];
    const hl_node *maker = find_maker(s, value);
    if (is_identity(order)) return false;
    return !lies_alike(hl_graph_shape(s->graph, value), order) ||
           (moves_elements(maker) && !is_permute(maker));
}

static void count_gains(layout_state *s)
{
    for (hl_id v = 0; v < s->n_values; v++) {
        if (!s->is_in[v]) continue;
        layout_gain *gain = &s->gain[joined_first(s, v)];
        bool is_read = is_read_outside(s, v);
        if (s->is_entry[v]) {
            gain->removed += !is_read;
        } else {
            gain->removed += is_permute(find_maker(s, v));
            gain->inserted += is_read && needs_copy(s, v);
        }
    }
}

/* Is the value in a region that is rewritten? */
static bool is_turned(const layout_state *s, hl_id value)
{
    if (!s->is_in[value]) return false;
    const layout_gain *gain = &s->gain[joined_first(s, value)];
    return gain->removed > gain->inserted;
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
    const hl_shape *shape = hl_graph_shape(s->graph, old);
    if (lies_alike(shape, &s->order[old]))
        HL_TRY(hl_build_reshape(s->graph, id, shape, &id));
    else
        HL_TRY(hl_build_permute(s->graph, id, s->order[old].at, &id));
    s->map[old] = id;
    return HL_OK;
}

/* The value in this order, from what it is broadcast from, which lies alike in both. */
static hl_status build_turned(layout_state *s, hl_id value, const hl_ints *order, hl_id *out_id)
{
    hl_id source = find_source(s, value, order);
    hl_shape shape = turn_shape(hl_graph_shape(s->graph, value), order);
    hl_shape narrow = turn_shape(hl_graph_shape(s->graph, source), order);
    HL_TRY(hl_build_reshape(s->graph, source, &narrow, out_id));
    hl_dtype dtype = hl_graph_dtype(s->graph, value);
    if (hl_graph_dtype(s->graph, source) != dtype)
        HL_TRY(hl_build_cast(s->graph, *out_id, dtype, out_id));
    return hl_build_expand(s->graph, *out_id, &shape, out_id);
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
    return build_turned(s, node->in[i], order, out_id);
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

static hl_status rewrite_regions(layout_state *s)
{
    hl_status status = HL_OK;
    for (int64_t i = 0; i < s->n_nodes && status == HL_OK; i++) {
        const hl_node node = s->graph->nodes[i];
        if (node.n_out == 0 || !is_turned(s, node.out)) continue;
        s->changed = true;
        hl_graph_stand_by(s->graph, &node);
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

/* A permutation of what lies alike in both orders is none. */
static hl_status replace_free(layout_state *s)
{
    for (int64_t i = 0; i < s->n_nodes; i++) {
        const hl_node node = s->graph->nodes[i];
        if (!is_permute(&node) || s->map[node.out] != node.out || is_turned(s, node.out)) continue;
        hl_ints order = invert(&hl_permute_attrs(&node)->dims);
        if (find_source(s, node.in[0], &order) == HL_NONE) continue;
        hl_graph_stand_by(s->graph, &node);
        HL_TRY(build_turned(s, node.in[0], &order, &s->map[node.out]));
        s->changed = true;
    }
    return HL_OK;
}

/* ---- the pass -------------------------------------------------------------------------------- */

static hl_status alloc_state(layout_state *s, void **out_memory)
{
    size_t n = (size_t)s->n_values + 1;
    HL_TRY(hl_alloc_zero(n * (sizeof(hl_ints) + sizeof(layout_gain) + 3 * sizeof(hl_id) + 3),
                         out_memory));
    s->order = *out_memory;
    s->gain = (layout_gain *)(s->order + n);
    s->now = (hl_id *)(s->gain + n);
    s->joined = s->now + n;
    s->first_turn = s->joined + n;
    s->is_in = (bool *)(s->first_turn + n);
    s->is_entry = s->is_in + n;
    s->is_wanted = s->is_entry + n;
    for (size_t v = 0; v < n; v++) s->first_turn[v] = HL_NONE;
    return HL_OK;
}

hl_status hl_pass_layout(hl_graph *graph)
{
    layout_state s = {.graph = graph, .n_values = graph->n_values, .n_nodes = graph->n_nodes};
    void *memory = NULL;
    hl_status status;
    HL_GOTO(hl_uses_init(graph, &s.uses));
    HL_GOTO(hl_rewrite_map(graph, &s.map));
    HL_GOTO(alloc_state(&s, &memory));
    grow_regions(&s);
    count_gains(&s);
    HL_GOTO(rewrite_regions(&s));
    HL_GOTO(replace_free(&s));
    if (s.changed) {
        hl_rewrite_replace(graph, s.map, s.n_values);
        HL_GOTO(hl_rewrite_sort(graph));
    }
cleanup:
    hl_free(memory);
    hl_free(s.map);
    hl_uses_deinit(&s.uses);
    return status;
}
