/* Recomputation: values of forward that the backward pass reads late are made a second time from
 * what is kept, by clones of their nodes, instead of lying in memory in between (activation
 * checkpointing; Chen et al. 2016, "Training deep nets with sublinear memory cost").
 *
 * The pass stands behind all others that change a graph. So a clone is the node as it is going to
 * run, fused work and 16-bit types included, and has the same kernel: its bits are those of the
 * first time, dropout's masks among them, which are functions of the control block. What is known
 * of memory is what will lie there, too. Clones commit nothing: commits name the values that were
 * made first.
 *
 * Which values is decided twice. Within a checkpoint (ir/graph.h) all are made again but those that
 * are read outside of it in forward. Of the others, a list in the order in which it is worth it:
 * first the values that need no product, by bytes for work; then segments of forward, of which
 * nothing is kept but what crosses their ends, the same way; a share of the list is taken. Segments
 * end where little crosses, and their size is the one with the least sum of what crosses all ends
 * and of the largest one's inside: the square root of a uniform chain.
 *
 * Clones stand before the first node of the backward pass that needs them, operands first, and make
 * again what they need themselves until they come to a value that is kept. A fence before them
 * keeps the schedule from running them sooner.
 *
 * Invariant: a node reads the same numbers as before; without a share and checkpoints the graph
 * stays as it is.
 * Rejected: cloning before the passes that fuse and lay out (a clone's sums and endings would be
 * fused otherwise than the first time's, for other bits); the best set by integer programming
 * (Checkmate: minutes where a plan takes milliseconds); offloading to the host (its bus is slower
 * than most of what would be computed again). */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "ops/parts.h"
#include "passes/passes.h"
#include "passes/rewrite.h"
#include "passes/schedule.h"

/* A value that is less than these parts of the largest one and of all of them is not worth a clone,
 * and is kept. Of the largest alone: logits of a large vocabulary make all else small. */
static const double SMALL_OF_LARGEST = 1.0 / 128, SMALL_OF_ALL = 1.0 / 2048;
/* Work of a byte that is moved, in operations: what a core does meanwhile. */
static const double BYTE_WORK = 16;
/* What needs no product is made again up to so much work for a byte. */
static const double MOST_WORK = 256;
/* Made again together with others of up to so many times its bytes. */
static const double MOST_BESIDE = 4;
/* A node frees memory if what it gives is less than this part of what it reads. */
static const double FREED_PART = 4;
enum { MOST_NODES = 64 }; /* of one that needs no product */
/* Sizes of segments that are tried: parts of all that is kept. */
static const double SEGMENT_STEP = 1.25, SEGMENT_LEAST = 1.0 / 128;

typedef struct recompute_state {
    hl_graph *graph;
    hl_id n_first;     /* values from this one on are clones' */
    hl_node_id turn;   /* the last node that the loss needs: behind it the backward pass begins */
    double small;      /* bytes of values that are kept */
    bool *is_forward;  /* by node: the loss needs it, or it is a clone */
    hl_id *root;       /* by value: whose memory it lies in, through views and parts */
    hl_node_id *last;  /* by root: forward's last node that reads it, or its own */
    bool *is_late;     /* by root: the backward pass reads it */
    bool *is_held;     /* by root: somebody reads it when the micro-batch is over */
    bool *is_made;     /* by root: to be made again */
    hl_id *clone;      /* by value; HL_NONE: there is none */
    hl_node_id *order; /* of all nodes */
    int64_t n_order, cap_order;
    hl_node_id *stack;
    int64_t n_stack, cap_stack;
    void *memory;
} recompute_state;

/* ---- what is there --------------------------------------------------------------------------- */

/* Is output j of the node its operand's memory? */
static bool is_alias(const hl_graph *graph, const hl_node *node, int32_t j)
{
    int64_t first;
    return hl_op_get(node->op)->flags & HL_OP_VIEW || hl_part_read(graph, node, j, &first);
}

/* Are all of them? Then it is nothing to run. */
static bool is_alias_node(const hl_graph *graph, const hl_node *node)
{
    for (int32_t j = 0; j < node->n_out; j++)
        if (!is_alias(graph, node, j)) return false;
    return true;
}

static void mark_forward(recompute_state *s, bool with_clones)
{
    const hl_graph *graph = s->graph;
    s->turn = HL_NONE;
    for (int64_t i = graph->n_nodes - 1; i >= 0; i--) {
        const hl_node *node = &graph->nodes[i];
        if (node->segment != HL_SEGMENT_MICRO) {
            s->is_forward[i] = false;
        } else if (node->out >= s->n_first) {
            s->is_forward[i] = with_clones;
        } else if (s->is_forward[i] || node->op == HL_OP_CONTROL_MICRO) {
            if (s->is_forward[i] && s->turn == HL_NONE) s->turn = (hl_node_id)i;
            for (int32_t j = 0; j < node->n_in; j++) {
                hl_node_id p = hl_graph_producer(graph, node->in[j]);
                if (p != HL_NONE) s->is_forward[p] = true;
            }
        }
    }
}

static void note_reader(recompute_state *s, hl_node_id id, hl_id root)
{
    const hl_node *node = &s->graph->nodes[id];
    if (s->is_forward[id])
        s->last[root] = id;
    else if (node->segment != HL_SEGMENT_MICRO)
        s->is_held[root] = true;
    else if (id > s->turn)
        s->is_late[root] = true;
}

static hl_status alloc_state(recompute_state *s)
{
    size_t n_values = (size_t)s->graph->n_values + 1, n_nodes = (size_t)s->graph->n_nodes + 1;
    HL_TRY(hl_alloc_zero(n_values * (2 * sizeof(hl_id) + sizeof(hl_node_id) + 3) + n_nodes,
                         &s->memory));
    s->root = s->memory;
    s->clone = s->root + n_values;
    s->last = s->clone + n_values;
    s->is_late = (bool *)(s->last + n_values);
    s->is_held = s->is_late + n_values;
    s->is_made = s->is_held + n_values;
    s->is_forward = s->is_made + n_values;
    return HL_OK;
}

static void end(recompute_state *s)
{
    hl_free(s->memory);
    hl_free(s->order);
    hl_free(s->stack);
    s->memory = NULL;
    s->order = s->stack = NULL;
    s->n_order = s->cap_order = s->n_stack = s->cap_stack = 0;
}

/* Looks at the graph as it is now. with_clones: they are part of forward. */
static hl_status begin(recompute_state *s, bool with_clones)
{
    const hl_graph *graph = s->graph;
    end(s);
    HL_TRY(alloc_state(s));
    for (int64_t v = 0; v < graph->n_values; v++) {
        s->root[v] = (hl_id)v;
        s->clone[v] = s->last[v] = HL_NONE;
    }
    mark_forward(s, with_clones);
    for (int64_t i = 0; i < graph->n_nodes; i++) {
        const hl_node *node = &graph->nodes[i];
        for (int32_t j = 0; j < node->n_out; j++) {
            if (is_alias(graph, node, j)) s->root[node->out + j] = s->root[node->in[0]];
            if (s->is_forward[i] && s->last[s->root[node->out + j]] == HL_NONE)
                s->last[node->out + j] = (hl_node_id)i;
        }
        if (is_alias_node(graph, node)) continue;
        for (int32_t j = 0; j < node->n_in; j++)
            note_reader(s, (hl_node_id)i, s->root[node->in[j]]);
    }
    for (int64_t i = 0; i < graph->n_commits; i++)
        s->is_held[s->root[graph->commits[i].value]] = true;
    for (int64_t i = 0; i < graph->n_outputs; i++) s->is_held[s->root[graph->outputs[i]]] = true;
    return HL_OK;
}

/* The forward node of whose results this is one with memory of its own; HL_NONE: there is none. */
static hl_node_id find_maker(const recompute_state *s, hl_id root)
{
    hl_node_id maker = hl_graph_producer(s->graph, root);
    return maker != HL_NONE && s->root[root] == root && s->is_forward[maker] ? maker
                                                                             : (hl_node_id)HL_NONE;
}

static double bytes_of(const recompute_state *s, hl_id root)
{
    return (double)hl_value_bytes(s->graph, root);
}

/* Forward makes it and it is large enough to be made again. */
static bool can_make(const recompute_state *s, hl_id root)
{
    return find_maker(s, root) != HL_NONE && !s->is_held[root] && bytes_of(s, root) > s->small;
}

/* It lies in memory from forward to the backward pass. */
static bool is_saved(const recompute_state *s, hl_id root)
{
    return s->is_late[root] && can_make(s, root);
}

static void find_small(recompute_state *s)
{
    double most = 0, all = 0;
    s->small = 0;
    for (int64_t v = 0; v < s->graph->n_values; v++) {
        if (!is_saved(s, (hl_id)v)) continue;
        if (bytes_of(s, (hl_id)v) > most) most = bytes_of(s, (hl_id)v);
        all += bytes_of(s, (hl_id)v);
    }
    s->small =
        most * SMALL_OF_LARGEST < all * SMALL_OF_ALL ? most * SMALL_OF_LARGEST : all * SMALL_OF_ALL;
}

/* ---- clones ---------------------------------------------------------------------------------- */

static bool needs_clone(const recompute_state *s, hl_id id)
{
    return s->is_made[s->root[id]] && s->clone[id] == HL_NONE;
}

static hl_status add_order(recompute_state *s, hl_node_id id)
{
    HL_TRY(hl_alloc_grow((void **)&s->order, &s->cap_order, s->n_order + 1, sizeof *s->order));
    s->order[s->n_order++] = id;
    return HL_OK;
}

static hl_status push(recompute_state *s, hl_id id)
{
    HL_TRY(hl_alloc_grow((void **)&s->stack, &s->cap_stack, s->n_stack + 1, sizeof *s->stack));
    s->stack[s->n_stack++] = hl_graph_producer(s->graph, id);
    return HL_OK;
}

/* Operands of a node that are made again are their clones. */
static void take_clones(const recompute_state *s, const hl_node *node, hl_id *out_in)
{
    for (int32_t j = 0; j < node->n_in; j++)
        out_in[j] = s->is_made[s->root[node->in[j]]] ? s->clone[node->in[j]] : node->in[j];
}

static hl_status repeat_node(recompute_state *s, hl_node_id id)
{
    const hl_node *node = &s->graph->nodes[id];
    hl_id first = node->out, copy, *in;
    int32_t n_out = node->n_out;
    HL_TRY(hl_alloc(((size_t)node->n_in + 1) * sizeof *in, (void **)&in));
    take_clones(s, node, in);
    hl_status status = hl_graph_repeat(s->graph, id, in, &copy);
    hl_free(in);
    HL_TRY(status);
    for (int32_t j = 0; j < n_out; j++) s->clone[first + j] = copy + j;
    return add_order(s, hl_graph_producer(s->graph, copy));
}

/* Makes a value, and what it needs, operands first. */
static hl_status make_clone(recompute_state *s, hl_id id)
{
    HL_TRY(push(s, id));
    while (s->n_stack) {
        hl_node_id top = s->stack[s->n_stack - 1];
        int64_t n = s->n_stack;
        for (int32_t j = 0; j < s->graph->nodes[top].n_in; j++)
            if (needs_clone(s, s->graph->nodes[top].in[j]))
                HL_TRY(push(s, s->graph->nodes[top].in[j]));
        if (s->n_stack > n) continue;
        s->n_stack--;
        /* It may have been pushed by two readers. */
        if (s->clone[s->graph->nodes[top].out] == HL_NONE) HL_TRY(repeat_node(s, top));
    }
    return HL_OK;
}

/* Gives a node of the backward pass the clones of what it reads. A view of what is made again has a
 * clone of its own where that is read. */
static hl_status serve_node(recompute_state *s, hl_node_id id)
{
    const hl_node *node = &s->graph->nodes[id];
    if (is_alias_node(s->graph, node)) return add_order(s, id);
    for (int32_t j = 0; j < s->graph->nodes[id].n_in; j++)
        if (needs_clone(s, s->graph->nodes[id].in[j]))
            HL_TRY(make_clone(s, s->graph->nodes[id].in[j]));
    node = &s->graph->nodes[id];
    /* The arena's operand list is const for readers; passes own the graph. */
    take_clones(s, node, (hl_id *)node->in);
    return add_order(s, id);
}

/* ---- the order of the backward pass ---------------------------------------------------------- */

/* Nodes behind the turn, in the order in which they are to run. */
typedef struct late_list {
    hl_node_id *nodes;
    int64_t n;
    int32_t *n_waits; /* by node: its operands from there that are not in the list yet */
    bool *is_listed;  /* by node */
    void *memory;
} late_list;

static bool is_behind(const recompute_state *s, hl_node_id id)
{
    return id > s->turn && s->graph->nodes[id].segment == HL_SEGMENT_MICRO;
}

static double count_bytes(const hl_graph *graph, hl_id first, int32_t n)
{
    double bytes = 0;
    for (int32_t j = 0; j < n; j++) bytes += (double)hl_value_bytes(graph, first + j);
    return bytes;
}

/* Does the node free more than it takes: is it a view, the gradient of a parameter, or much less
 * than what it reads? */
static bool frees_memory(const recompute_state *s, const hl_uses *uses, hl_node_id id)
{
    const hl_graph *graph = s->graph;
    const hl_node *node = &graph->nodes[id];
    double read = 0;
    if (is_alias_node(graph, node) || hl_uses_by_updates(graph, uses, node)) return true;
    for (int32_t j = 0; j < node->n_in; j++)
        if (is_behind(s, hl_graph_producer(graph, node->in[j])))
            read += (double)hl_value_bytes(graph, node->in[j]);
    return count_bytes(graph, node->out, node->n_out) * FREED_PART <= read;
}

/* Lists a node, and those that wait for it alone and free memory. */
static void list_node(const recompute_state *s, const hl_uses *uses, hl_node_id id, late_list *list)
{
    const hl_graph *graph = s->graph;
    int64_t next = list->n;
    list->nodes[list->n++] = id;
    list->is_listed[id] = true;
    for (; next < list->n; next++) {
        const hl_node *node = &graph->nodes[list->nodes[next]];
        int32_t end_of_users = uses->start[node->out + node->n_out];
        for (int32_t u = uses->start[node->out]; u < end_of_users; u++) {
            hl_node_id user = uses->list[u];
            if (!is_behind(s, user) || --list->n_waits[user] || !frees_memory(s, uses, user))
                continue;
            list->nodes[list->n++] = user;
            list->is_listed[user] = true;
        }
    }
}

/* As the graph has them, but that what frees memory comes as soon as it can. Sums that passes made
 * anew stand at the graph's end, and behind fences nobody would run them sooner. */
static hl_status list_late(const recompute_state *s, late_list *out_list)
{
    const hl_graph *graph = s->graph;
    size_t n = (size_t)graph->n_nodes + 1;
    hl_uses uses;
    *out_list = (late_list){0};
    HL_TRY(hl_alloc_zero(n * (2 * sizeof(int32_t) + 1), &out_list->memory));
    out_list->nodes = out_list->memory;
    out_list->n_waits = out_list->nodes + n;
    out_list->is_listed = (bool *)(out_list->n_waits + n);
    HL_TRY(hl_uses_init(graph, &uses));
    for (int64_t i = s->turn + 1; i < graph->n_nodes; i++)
        for (int32_t j = 0; j < graph->nodes[i].n_in; j++)
            out_list->n_waits[i] += is_behind(s, hl_graph_producer(graph, graph->nodes[i].in[j]));
    /* First the views of what forward made, then the others. */
    for (int all = 0; all < 2; all++)
        for (int64_t i = s->turn + 1; i < graph->n_nodes; i++) {
            if (!is_behind(s, (hl_node_id)i) || out_list->is_listed[i]) continue;
            if (all || (!out_list->n_waits[i] && is_alias_node(graph, &graph->nodes[i])))
                list_node(s, &uses, (hl_node_id)i, out_list);
        }
    hl_uses_deinit(&uses);
    return HL_OK;
}

/* Clones of the values that are to be made, each group behind a fence before the node that needs
 * it. Fences that were there already stay between those whom they keep apart: no views, which are
 * nothing to run. */
static hl_status make_late(recompute_state *s, const late_list *list)
{
    hl_graph *graph = s->graph;
    int32_t fence, before = 0;
    for (int64_t i = 0; i <= s->turn; i++) {
        if (graph->nodes[i].fence > before) before = graph->nodes[i].fence;
        HL_TRY(add_order(s, (hl_node_id)i));
    }
    fence = before;
    for (int64_t i = 0; i < list->n; i++) {
        hl_node_id id = list->nodes[i];
        int64_t first = s->n_order;
        int32_t own = is_alias_node(graph, &graph->nodes[id]) ? 0 : graph->nodes[id].fence;
        HL_TRY(s->is_forward[id] ? add_order(s, id) : serve_node(s, id));
        fence += own > before || s->n_order > first + 1;
        if (own > before) before = own;
        for (int64_t k = first; k < s->n_order; k++) graph->nodes[s->order[k]].fence = fence;
    }
    return HL_OK;
}

/* Is there a value to be made again that the backward pass reads? */
static bool has_choice(const recompute_state *s)
{
    for (int64_t v = 0; v < s->graph->n_values; v++)
        if (s->is_made[v] && s->is_late[v]) return true;
    return false;
}

static hl_status make_clones(recompute_state *s)
{
    hl_graph *graph = s->graph;
    late_list list;
    int64_t n_nodes = graph->n_nodes;
    hl_status status;
    if (!has_choice(s)) return HL_OK;
    HL_GOTO(list_late(s, &list));
    HL_GOTO(make_late(s, &list));
    for (int64_t i = s->turn + 1; i < n_nodes; i++)
        if (graph->nodes[i].segment != HL_SEGMENT_MICRO) HL_GOTO(add_order(s, (hl_node_id)i));
    HL_GOTO(hl_rewrite_reorder(graph, s->order, s->n_order));
cleanup:
    hl_free(list.memory);
    return status;
}

/* ---- checkpoints ----------------------------------------------------------------------------- */

static int depth_of(const hl_graph *graph, int32_t checkpoint)
{
    int depth = 0;
    for (; checkpoint; checkpoint = graph->checkpoints[checkpoint - 1]) depth++;
    return depth;
}

/* The checkpoint at this depth that a node is in; 0: it is not so deep. */
static int32_t find_checkpoint(const hl_graph *graph, hl_node_id id, int depth)
{
    int32_t checkpoint = graph->nodes[id].checkpoint;
    int own = depth_of(graph, checkpoint);
    for (; own > depth; own--) checkpoint = graph->checkpoints[checkpoint - 1];
    return own == depth ? checkpoint : 0;
}

static int find_depth(const hl_graph *graph)
{
    int most = 0;
    for (int32_t i = 1; i <= graph->n_checkpoints; i++)
        if (depth_of(graph, i) > most) most = depth_of(graph, i);
    return most;
}

/* What forward makes in a checkpoint is made again, but for what it reads elsewhere. */
static void choose_in_checkpoints(recompute_state *s, int depth)
{
    const hl_graph *graph = s->graph;
    for (int64_t v = 0; v < graph->n_values; v++) {
        hl_node_id maker = find_maker(s, (hl_id)v);
        s->is_made[v] =
            maker != HL_NONE && find_checkpoint(graph, maker, depth) && can_make(s, (hl_id)v);
    }
    for (int64_t i = 0; i < graph->n_nodes; i++) {
        const hl_node *node = &graph->nodes[i];
        if (!s->is_forward[i] || is_alias_node(graph, node)) continue;
        for (int32_t j = 0; j < node->n_in; j++) {
            hl_id root = s->root[node->in[j]];
            if (s->is_made[root] && find_checkpoint(graph, (hl_node_id)i, depth) !=
                                        find_checkpoint(graph, find_maker(s, root), depth))
                s->is_made[root] = false;
        }
    }
}

/* ---- the list -------------------------------------------------------------------------------- */

/* Places are the numbers of forward's nodes, in order. */
typedef struct choice {
    bool has_products;
    double merit;       /* bytes for work */
    int32_t first, end; /* places: of one node, or of a segment */
} choice;

typedef struct choice_state {
    recompute_state *s;
    int32_t n_places;
    hl_node_id *nodes;  /* by place */
    int32_t *place;     /* by node */
    double *saved;      /* by place: bytes of its results that lie in memory for backward */
    double *crossing;   /* by place: bytes that its node, or one behind it, reads from before */
    bool *is_dropped;   /* by place: these are made again without a product */
    int32_t *n_cuts;    /* by place: ends of segments up to it, which begin with their places */
    int32_t *best_cuts; /* of the best segments so far */
    uint32_t *seen;     /* by place: the search that was there last */
    bool *is_alone;     /* by place: its node is chosen, */
    bool *is_inside;    /* or a segment that it is in */
    uint32_t n_searches;
    choice *list;
    int64_t n_list;
    void *memory;
} choice_state;

static int32_t birth_of(const choice_state *c, hl_id root)
{
    return c->place[find_maker(c->s, root)];
}

static int32_t death_of(const choice_state *c, hl_id root)
{
    return c->place[c->s->last[root]];
}

static double work_of(const hl_graph *graph, hl_node_id id)
{
    const hl_node *node = &graph->nodes[id];
    if (is_alias_node(graph, node)) return 0;
    hl_cost cost = hl_node_cost(graph, node);
    return cost.flops + BYTE_WORK * cost.bytes;
}

static hl_status begin_choice(choice_state *c)
{
    recompute_state *s = c->s;
    const hl_graph *graph = s->graph;
    size_t n = (size_t)graph->n_nodes + 2;
    HL_TRY(hl_alloc_zero(n * (2 * sizeof(double) + 2 * sizeof(choice) + 5 * sizeof(int32_t) + 3),
                         &c->memory));
    c->saved = c->memory;
    c->crossing = c->saved + n;
    c->list = (choice *)(c->crossing + n);
    c->nodes = (hl_node_id *)(c->list + 2 * n);
    c->place = c->nodes + n;
    c->n_cuts = c->place + n;
    c->best_cuts = c->n_cuts + n;
    c->seen = (uint32_t *)(c->best_cuts + n);
    c->is_dropped = (bool *)(c->seen + n);
    c->is_alone = c->is_dropped + n;
    c->is_inside = c->is_alone + n;
    for (int64_t i = 0; i < graph->n_nodes; i++) {
        if (!s->is_forward[i] || graph->nodes[i].out >= s->n_first) continue;
        c->place[i] = c->n_places;
        c->nodes[c->n_places++] = (hl_node_id)i;
    }
    for (int64_t v = 0; v < s->n_first; v++)
        if (is_saved(s, (hl_id)v)) c->saved[birth_of(c, (hl_id)v)] += bytes_of(s, (hl_id)v);
    return HL_OK;
}

/* ---- what needs no product ------------------------------------------------------------------- */

/* Is it there in the backward pass, if those that were chosen so far are not? */
static bool is_there(const choice_state *c, hl_id root)
{
    return !can_make(c->s, root) || (c->s->is_late[root] && !c->is_dropped[birth_of(c, root)]);
}

typedef struct making {
    int32_t places[MOST_NODES]; /* to go through: those of which it needs a result */
    int n_places;
    double work, beside; /* bytes of what is made with it */
} making;

/* Adds what a node needs that is not there; false: too much. */
static bool add_needed(choice_state *c, making *m, hl_node_id id)
{
    const recompute_state *s = c->s;
    const hl_node *node = &s->graph->nodes[id];
    for (int32_t j = 0; j < node->n_in; j++) {
        hl_id root = s->root[node->in[j]];
        if (is_there(c, root)) continue;
        int32_t place = birth_of(c, root);
        if (c->seen[place] != c->n_searches) {
            if (m->n_places == MOST_NODES) return false;
            c->seen[place] = c->n_searches;
            m->places[m->n_places++] = place;
        }
        m->beside += bytes_of(s, root);
    }
    return true;
}

/* Can what a node gives be made again without a product, cheaply enough? */
static bool is_cheap(choice_state *c, int32_t place, double *out_work)
{
    const hl_graph *graph = c->s->graph;
    making m = {.places = {place}, .n_places = 1};
    c->seen[place] = ++c->n_searches;
    for (int i = 0; i < m.n_places; i++) {
        hl_node_id id = c->nodes[m.places[i]];
        if (hl_op_is_product(graph->nodes[id].op) || !add_needed(c, &m, id)) return false;
        m.work += work_of(graph, id);
    }
    *out_work = m.work;
    return m.work <= MOST_WORK * c->saved[place] && m.beside <= MOST_BESIDE * c->saved[place];
}

static void list_cheap(choice_state *c)
{
    double work;
    for (int32_t place = 0; place < c->n_places; place++) {
        if (c->saved[place] <= 0 || !is_cheap(c, place, &work)) continue;
        c->is_dropped[place] = true;
        c->list[c->n_list++] = (choice){
            .merit = c->saved[place] / (work > 1 ? work : 1), .first = place, .end = place + 1};
    }
}

/* ---- segments -------------------------------------------------------------------------------- */

/* Bytes that cross the beginning of each place. What is made again without a product has no part in
 * what a segment keeps. */
static void count_crossing(choice_state *c)
{
    const recompute_state *s = c->s;
    for (int64_t v = 0; v < s->n_first; v++) {
        if (find_maker(s, (hl_id)v) == HL_NONE) continue;
        c->crossing[birth_of(c, (hl_id)v) + 1] += bytes_of(s, (hl_id)v);
        c->crossing[death_of(c, (hl_id)v) + 1] -= bytes_of(s, (hl_id)v);
    }
    for (int32_t place = 1; place <= c->n_places; place++)
        c->crossing[place] += c->crossing[place - 1];
    for (int32_t place = 0; place < c->n_places; place++)
        if (c->is_dropped[place]) c->saved[place] = 0;
}

/* Ends a segment where its values are more than `most` bytes, at the place from half of that on
 * where least crosses. */
static void cut(choice_state *c, double most)
{
    int32_t first = 0, half = 0, n = 0;
    double bytes = 0;
    for (int32_t place = 0; place <= c->n_places; place++) c->n_cuts[place] = 0;
    for (int32_t place = 0; place < c->n_places; place++) {
        if (bytes < most / 2) half = place;
        bytes += c->saved[place];
        if (bytes <= most || place == first) continue;
        int32_t least = place;
        for (int32_t at = place; at > half && at > first; at--)
            if (c->crossing[at] < c->crossing[least]) least = at;
        c->n_cuts[least] = 1;
        first = half = least;
        place = least - 1;
        bytes = 0;
    }
    for (int32_t place = 0; place <= c->n_places; place++) {
        n += c->n_cuts[place];
        c->n_cuts[place] = n;
    }
}

static bool is_cut(const choice_state *c, const int32_t *n_cuts, hl_id root)
{
    return n_cuts[death_of(c, root)] > n_cuts[birth_of(c, root)];
}

/* Bytes that are kept for these segments, and of the values inside of the largest twice: while its
 * backward pass runs, gradients lie beside them. */
static double count_kept(const choice_state *c, double *inside)
{
    const recompute_state *s = c->s;
    double kept = 0, most = 0;
    for (int32_t i = 0; i <= c->n_cuts[c->n_places]; i++) inside[i] = 0;
    for (int64_t v = 0; v < s->n_first; v++) {
        hl_id root = (hl_id)v;
        if (find_maker(s, root) == HL_NONE) continue;
        if (is_cut(c, c->n_cuts, root))
            kept += bytes_of(s, root);
        else if (is_saved(s, root) && !c->is_dropped[birth_of(c, root)])
            inside[c->n_cuts[birth_of(c, root)]] += bytes_of(s, root);
    }
    for (int32_t i = 0; i <= c->n_cuts[c->n_places]; i++)
        if (inside[i] > most) most = inside[i];
    return kept + 2 * most;
}

/* Every segment but the last, whose backward pass begins at once. */
static void list_segments(choice_state *c, const double *inside)
{
    int32_t first = 0;
    double work = 0;
    for (int32_t place = 0; place < c->n_places; place++) {
        int32_t segment = c->best_cuts[place];
        work += work_of(c->s->graph, c->nodes[place]);
        if (c->best_cuts[place + 1 < c->n_places ? place + 1 : place] == segment) continue;
        if (inside[segment] > 0)
            c->list[c->n_list++] = (choice){.has_products = true,
                                            .merit = inside[segment] / (work > 1 ? work : 1),
                                            .first = first,
                                            .end = place + 1};
        first = place + 1;
        work = 0;
    }
}

static hl_status find_segments(choice_state *c)
{
    double all = 0, least, *inside = NULL;
    size_t n_places = (size_t)c->n_places + 1;
    HL_TRY(hl_alloc_zero((n_places + 1) * sizeof *inside, (void **)&inside));
    count_crossing(c);
    for (int32_t place = 0; place < c->n_places; place++) all += c->saved[place];
    least = 2 * all;
    for (double most = all / 2; most > all * SEGMENT_LEAST; most /= SEGMENT_STEP) {
        cut(c, most);
        double kept = count_kept(c, inside);
        if (kept >= least) continue;
        least = kept;
        memcpy(c->best_cuts, c->n_cuts, n_places * sizeof *c->best_cuts);
    }
    memcpy(c->n_cuts, c->best_cuts, n_places * sizeof *c->n_cuts);
    count_kept(c, inside);
    list_segments(c, inside);
    hl_free(inside);
    return HL_OK;
}

/* ---- a share of it --------------------------------------------------------------------------- */

static int compare_choices(const void *a, const void *b)
{
    const choice *x = a, *y = b;
    if (x->has_products != y->has_products) return x->has_products ? 1 : -1;
    if (x->merit != y->merit) return x->merit > y->merit ? -1 : 1;
    return (x->first > y->first) - (x->first < y->first);
}

/* Is it made again by what was chosen of the list? */
static bool is_chosen(const choice_state *c, hl_id root)
{
    int32_t birth = birth_of(c, root);
    return c->is_alone[birth] || (c->is_inside[birth] && !is_cut(c, c->best_cuts, root));
}

/* Does it cross an end of a segment that is made again? */
static bool is_boundary(const choice_state *c, hl_id root)
{
    if (!is_cut(c, c->best_cuts, root)) return false;
    for (int32_t place = birth_of(c, root); place <= death_of(c, root); place++)
        if (c->is_inside[place]) return true;
    return false;
}

/* The first n of the list. What is made with them needs no choice of its own. */
static void choose_of_list(choice_state *c, int64_t n)
{
    recompute_state *s = c->s;
    for (int64_t i = 0; i < n; i++) {
        const choice *chosen = &c->list[i];
        bool *is_in = chosen->has_products ? c->is_inside : c->is_alone;
        for (int32_t place = chosen->first; place < chosen->end; place++) is_in[place] = true;
    }
    for (int64_t v = 0; v < s->n_first; v++) {
        hl_id root = (hl_id)v;
        if (can_make(s, root) && !is_boundary(c, root))
            s->is_made[root] = !s->is_late[root] || is_chosen(c, root);
    }
}

static hl_status choose_share(recompute_state *s, double share, hl_recomputed *out)
{
    choice_state c = {.s = s};
    hl_status status;
    HL_GOTO(begin_choice(&c));
    list_cheap(&c);
    HL_GOTO(find_segments(&c));
    qsort(c.list, (size_t)c.n_list, sizeof *c.list, compare_choices);
    out->n_choices = c.n_list;
    double n = share * (double)c.n_list + 0.5;
    choose_of_list(&c, share > 0 && n < 1 ? c.n_list > 0 : (int64_t)n);
cleanup:
    hl_free(c.memory);
    return status;
}

/* ---- entry ----------------------------------------------------------------------------------- */

static void count_saved(const recompute_state *s, hl_recomputed *out)
{
    for (int64_t v = 0; v < s->n_first; v++) out->n_saved += is_saved(s, (hl_id)v);
}

/* Of the values that lay in memory in between. */
static void count_made(const recompute_state *s, hl_recomputed *out)
{
    for (int64_t v = 0; v < s->n_first; v++)
        out->n_made += s->is_made[v] && s->is_late[v] && s->clone[v] != HL_NONE;
}

static void count_flops(const recompute_state *s, hl_recomputed *out)
{
    for (int64_t i = 0; i < s->graph->n_nodes; i++) {
        const hl_node *node = &s->graph->nodes[i];
        double flops = hl_node_cost(s->graph, node).flops;
        *(node->out >= s->n_first ? &out->flops : &out->step_flops) += flops;
    }
}

hl_status hl_pass_recompute(hl_graph *graph, double share, hl_recomputed *out_recomputed)
{
    recompute_state s = {.graph = graph, .n_first = (hl_id)graph->n_values};
    hl_status status;
    *out_recomputed = (hl_recomputed){0};
    HL_GOTO(begin(&s, false));
    if (s.turn == HL_NONE) goto cleanup; /* there is no backward pass */
    find_small(&s);
    count_saved(&s, out_recomputed);
    for (int depth = 1, most = find_depth(graph); depth <= most; depth++) {
        HL_GOTO(begin(&s, true));
        choose_in_checkpoints(&s, depth);
        HL_GOTO(make_clones(&s));
        if (depth == 1) count_made(&s, out_recomputed);
    }
    HL_GOTO(begin(&s, false));
    HL_GOTO(choose_share(&s, share, out_recomputed));
    HL_GOTO(make_clones(&s));
    count_made(&s, out_recomputed);
    count_flops(&s, out_recomputed);
cleanup:
    end(&s);
    return status;
}
