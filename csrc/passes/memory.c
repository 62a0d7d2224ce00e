/* Buffer assignment: every value gets an offset before anything runs.
 *
 * Time is counted in regions. A value lives from the region that makes it to the last one that
 * reads it; what BEGIN makes for MICRO lives through all of MICRO, which repeats. Views share their
 * operand's bytes; operands that a node puts one behind another are made inside its result; parts
 * of a value, cut along its leading axis, are read where it lies, if it is there long enough; a
 * kernel that may work in place takes over an operand that dies with it, if nobody but earlier
 * tasks of its own chain reads that operand in the region. What a task on the side stream touches
 * lives until the main stream waits for it, and is written over by nobody before. What is left is
 * placed by decreasing size at the lowest offset that is free for its whole life (greedy by size,
 * Pisarchyk and Lee 2020). The invariant that tests check: two values that live in one region share
 * no byte unless one is part of the other. */
#include <stdlib.h>

#include "base/alloc.h"
#include "ops/parts.h"
#include "passes/passes.h"
#include "passes/placing.h"
#include "passes/rewrite.h"
#include "passes/schedule.h"

typedef struct block {
    int64_t bytes;
    hl_life life; /* regions */
    hl_id value;  /* or HL_NONE: scratch of a task */
    int32_t task;
} block;

/* What the tasks of one region do with a root's memory. */
typedef struct touches {
    int32_t region;
    int32_t last_task;
    int32_t chain; /* HL_NONE: several */
    bool whole;    /* one of them reads more than its own rows */
} touches;

typedef struct memory_state {
    const hl_graph *graph;
    const hl_schedule *schedule;
    const hl_device *device;
    hl_memory *out;
    hl_uses uses;
    hl_life *lives;   /* by value; of roots: over all parts */
    int32_t *joins;   /* by root: the region before which the main stream waits for those who read
                         it on the side stream; 0: nobody does */
    touches *touches; /* by root: of the region at hand */
    int32_t *region_of_task;
    bool *kept;   /* by root: a part or view of it is an output or a commit's value */
    bool *pinned; /* by value: may not be put inside another (already is, or is special) */
    block *blocks;
    int64_t n_blocks;
} memory_state;

size_t hl_value_bytes(const hl_graph *graph, hl_id value)
{
    const hl_value *saved = hl_graph_value(graph, hl_graph_viewed(graph, value));
    return saved->form ? (size_t)saved->form_bytes
                       : hl_type_bytes(&hl_graph_value(graph, value)->type);
}

/* ---- lives ----------------------------------------------------------------------------------- */

static int32_t region_of_node(const memory_state *m, hl_node_id node)
{
    int32_t task = m->schedule->task_of_node[node];
    return task == HL_NONE ? HL_NONE : m->region_of_task[task];
}

static hl_segment segment_of_region(const hl_schedule *schedule, int32_t region)
{
    return region >= schedule->segment_first[2]   ? HL_SEGMENT_APPLY
           : region >= schedule->segment_first[1] ? HL_SEGMENT_MICRO
                                                  : HL_SEGMENT_BEGIN;
}

static hl_id find_root(const memory_state *m, hl_id value)
{
    while (m->out->places[value].root != value) value = m->out->places[value].root;
    return value;
}

static void extend(memory_state *m, hl_id root, int32_t region)
{
    hl_life *l = &m->lives[root];
    if (l->first == HL_NONE || region < l->first) l->first = region;
    if (region > l->last) l->last = region;
}

/* The last region in which a task may be running. */
static int32_t last_region_of(const memory_state *m, int32_t task)
{
    const hl_task *t = &m->schedule->tasks[task];
    return t->side == HL_NONE ? m->region_of_task[task] : t->join - 1;
}

/* A task touches this memory. */
static void extend_over_task(memory_state *m, hl_id root, int32_t task)
{
    extend(m, root, m->region_of_task[task]);
    extend(m, root, last_region_of(m, task));
    int32_t join = m->schedule->tasks[task].join;
    if (join > m->joins[root]) m->joins[root] = join;
}

/* A value that crosses from BEGIN into MICRO is read again by every repetition. */
static void extend_over_loop(memory_state *m, hl_id root)
{
    hl_life *l = &m->lives[root];
    if (l->first == HL_NONE || l->first == l->last) return;
    if (segment_of_region(m->schedule, l->first) == HL_SEGMENT_BEGIN &&
        segment_of_region(m->schedule, l->last) == HL_SEGMENT_MICRO)
        l->last = m->schedule->segment_first[2] - 1;
}

static void find_lives(memory_state *m)
{
    const hl_graph *graph = m->graph;
    for (int64_t v = 0; v < graph->n_values; v++) m->lives[v] = (hl_life){HL_NONE, HL_NONE};
    for (int64_t v = 0; v < graph->n_values; v++) m->joins[v] = 0;
    for (int64_t i = 0; i < graph->n_nodes; i++) {
        const hl_node *node = &graph->nodes[i];
        int32_t task = m->schedule->task_of_node[i];
        if (task == HL_NONE) continue;
        for (int32_t j = 0; j < node->n_in; j++)
            extend_over_task(m, find_root(m, node->in[j]), task);
        for (int32_t j = 0; j < node->n_out; j++)
            extend_over_task(m, find_root(m, node->out + j), task);
    }
    for (int64_t i = 0; i < graph->n_outputs; i++) {
        hl_id root = find_root(m, graph->outputs[i]);
        if (graph->values[root].kind == HL_VALUE_ACT) extend(m, root, m->schedule->n_regions - 1);
    }
    for (int64_t v = 0; v < graph->n_values; v++) extend_over_loop(m, (hl_id)v);
}

static bool is_update(const hl_node *node)
{
    return hl_op_get(node->op)->flags & HL_OP_UPDATES;
}

/* ---- sharing --------------------------------------------------------------------------------- */

static void join(memory_state *m, hl_id value, hl_id root, int64_t offset)
{
    m->out->places[value] = (hl_place){root, offset};
}

static void share_views_and_updates(memory_state *m)
{
    const hl_graph *graph = m->graph;
    for (int64_t i = 0; i < graph->n_nodes; i++) {
        const hl_node *node = &graph->nodes[i];
        uint32_t flags = hl_op_get(node->op)->flags;
        if (flags & HL_OP_VIEW) join(m, node->out, node->in[0], 0);
        if (is_update(node))
            for (int32_t j = 0; j < node->n_out; j++) join(m, node->out + j, node->in[j], 0);
    }
}

/* Can the memory of this value be laid inside another's? */
static bool is_movable(const memory_state *m, hl_id root)
{
    const hl_value *value = hl_graph_value(m->graph, root);
    if (value->kind != HL_VALUE_ACT || m->pinned[root]) return false;
    hl_segment segment = m->graph->nodes[value->node].segment;
    return segment != HL_SEGMENT_BEGIN;
}

/* May the operands of an update be made in the store's memory, before its turn? If its segment has
 * nobody else who takes the store's elements as they were before. */
static bool takes_store_alone(const memory_state *m, hl_node_id id)
{
    const hl_graph *graph = m->graph;
    const hl_node *node = &graph->nodes[id];
    int32_t store = hl_graph_value(graph, node->in[0])->store;
    for (int64_t v = 0; v < graph->n_values; v++) {
        const hl_value *value = &graph->values[v];
        bool is_leaf = value->kind == HL_VALUE_PARAM || value->kind == HL_VALUE_STATE;
        if ((hl_id)v == node->in[0] && !is_leaf) return false;
        if (!is_leaf || value->store != store) continue;
        for (int32_t u = m->uses.start[v]; u < m->uses.start[v + 1]; u++) {
            hl_node_id user = m->uses.list[u];
            if (user != id && graph->nodes[user].segment == node->segment) return false;
        }
    }
    return true;
}

/* Operands that lie one behind the other in the result are made there. */
static void share_joined(memory_state *m, hl_node_id id)
{
    const hl_node *node = &m->graph->nodes[id];
    int32_t task = m->schedule->task_of_node[id], first;
    int64_t offset = 0, align;
    bool all = true;
    if (!hl_node_joins(m->graph, node, &first, &align)) return;
    if (is_update(node) && !takes_store_alone(m, id)) return;
    align *= (int64_t)hl_dtype_bytes(hl_graph_dtype(m->graph, node->out));
    for (int32_t j = first; j < node->n_in; j++) {
        hl_id root = find_root(m, node->in[j]);
        size_t bytes = hl_value_bytes(m->graph, node->in[j]);
        bool whole = bytes == hl_value_bytes(m->graph, root);
        offset = hl_round_up(offset, align);
        if (whole && is_movable(m, root) &&
            m->graph->nodes[m->graph->values[root].node].segment == node->segment) {
            join(m, root, node->out, offset);
            m->pinned[root] = true;
        } else {
            all = false;
        }
        offset += (int64_t)bytes;
    }
    m->pinned[node->out] = true;
    if (all && task != HL_NONE) m->out->elided[task] = true;
}

/* ---- parts that are read --------------------------------------------------------------------- */

/* Bytes from the beginning of its root. */
static int64_t find_offset(const memory_state *m, hl_id value)
{
    int64_t offset = 0;
    for (; m->out->places[value].root != value; value = m->out->places[value].root)
        offset += m->out->places[value].offset;
    return offset;
}

/* By store: the first region in which an update writes it, INT32_MAX: none does. */
static hl_status find_first_writes(const memory_state *m, HL_GIVE int32_t **out_regions)
{
    const hl_graph *graph = m->graph;
    HL_TRY(hl_alloc((size_t)graph->n_stores * sizeof **out_regions, (void **)out_regions));
    for (int64_t s = 0; s < graph->n_stores; s++) (*out_regions)[s] = INT32_MAX;
    for (int64_t i = 0; i < graph->n_nodes; i++) {
        const hl_node *node = &graph->nodes[i];
        int32_t region = region_of_node(m, (hl_node_id)i);
        if (!is_update(node) || region == HL_NONE) continue;
        /* Its parts may be made in the store, earlier in its segment. */
        int32_t part;
        int64_t align;
        if (hl_node_joins(graph, node, &part, &align))
            region = m->schedule->segment_first[node->segment];
        for (int32_t j = 0; j < node->n_out; j++) {
            int32_t *first =
                &(*out_regions)[hl_graph_value(graph, find_root(m, node->out + j))->store];
            if (region < *first) *first = region;
        }
    }
    return HL_OK;
}

/* May the value be read in place of a part of it as long as the part lives? Made values may; of
 * leaves, stores until an update writes them, and inputs while micro-batches run. Where the part
 * would begin must be a place for an operand. */
static bool shows_part(const memory_state *m, const int32_t *first_writes, hl_id whole, hl_id part,
                       int64_t first)
{
    hl_id root = find_root(m, whole);
    const hl_value *value = hl_graph_value(m->graph, root);
    int64_t bytes = (int64_t)hl_dtype_bytes(hl_graph_dtype(m->graph, part));
    int64_t offset = find_offset(m, whole) + first * bytes;
    int64_t align = (int64_t)m->device->alignment;
    int32_t last = m->lives[part].last;
    if (find_root(m, part) != part || m->pinned[part]) return false;
    switch (value->kind) {
    case HL_VALUE_ACT: return offset % align == 0;
    case HL_VALUE_INPUT:
        return offset % align == 0 && align <= HL_ALIGN && !m->kept[part] &&
               last < m->schedule->segment_first[HL_SEGMENT_APPLY];
    case HL_VALUE_PARAM:
    case HL_VALUE_STATE:
        return (value->offset * bytes + offset) % align == 0 && !m->kept[part] &&
               last < first_writes[value->store];
    default: return false;
    }
}

/* Of all parts of one root: bytes, bytes times the regions in which they live, and the last of
 * these. */
typedef struct part_gain {
    double bytes, lived;
    int32_t last;
} part_gain;

/* Calls for each node that may go without its work. */
static bool are_parts(const memory_state *m, const int32_t *first_writes, hl_node_id id)
{
    const hl_node *node = &m->graph->nodes[id];
    int64_t first;
    if (m->schedule->task_of_node[id] == HL_NONE) return false;
    for (int32_t j = 0; j < node->n_out; j++)
        if (!hl_part_read(m->graph, node, j, &first) ||
            !shows_part(m, first_writes, node->in[0], node->out + j, first))
            return false;
    return true;
}

static void count_gain(const memory_state *m, const hl_node *node, part_gain *gains)
{
    part_gain *gain = &gains[find_root(m, node->in[0])];
    for (int32_t j = 0; j < node->n_out; j++) {
        const hl_life *life = &m->lives[node->out + j];
        double bytes = (double)hl_value_bytes(m->graph, node->out + j);
        gain->bytes += bytes;
        gain->lived += bytes * (life->last - life->first);
        if (life->last > gain->last) gain->last = life->last;
    }
}

/* Is it worth keeping a value as long as its parts are read? Where these are most of it, copies
 * would take as much memory beside it when they are made; else if it takes less over time. */
static bool is_worth_keeping(const memory_state *m, hl_id root, const part_gain *gain)
{
    if (hl_graph_value(m->graph, root)->kind != HL_VALUE_ACT) return true;
    double bytes = (double)hl_value_bytes(m->graph, root);
    return gain->bytes * 2 >= bytes || bytes * (gain->last - m->lives[root].last) <= gain->lived;
}

/* Parts of a value are read where it lies. */
static hl_status share_parts(memory_state *m)
{
    const hl_graph *graph = m->graph;
    int32_t *first_writes = NULL;
    part_gain *gains = NULL;
    bool any = false;
    hl_status status = HL_OK;
    HL_GOTO(find_first_writes(m, &first_writes));
    HL_GOTO(hl_alloc_zero((size_t)graph->n_values * sizeof *gains, (void **)&gains));
    for (int64_t i = 0; i < graph->n_nodes; i++)
        if (are_parts(m, first_writes, (hl_node_id)i)) count_gain(m, &graph->nodes[i], gains);
    for (int64_t i = 0; i < graph->n_nodes; i++) {
        const hl_node *node = &graph->nodes[i];
        if (!are_parts(m, first_writes, (hl_node_id)i)) continue;
        hl_id root = find_root(m, node->in[0]);
        if (!is_worth_keeping(m, root, &gains[root])) continue;
        for (int32_t j = 0; j < node->n_out; j++) {
            int64_t first;
            hl_part_read(graph, node, j, &first);
            size_t bytes = hl_dtype_bytes(hl_graph_dtype(graph, node->out + j));
            join(m, node->out + j, node->in[0], first * (int64_t)bytes);
            m->kept[root] |= m->kept[node->out + j];
        }
        m->out->elided[m->schedule->task_of_node[i]] = any = true;
    }
    if (any) find_lives(m);
cleanup:
    hl_free(first_writes);
    hl_free(gains);
    return status;
}

/* ---- in place -------------------------------------------------------------------------------- */

static void touch(memory_state *m, hl_id root, int32_t task, bool whole)
{
    touches *t = &m->touches[root];
    int32_t region = m->region_of_task[task], chain = m->schedule->tasks[task].chain;
    if (t->region != region) *t = (touches){region, task, chain, whole};
    t->last_task = task;
    if (t->chain != chain) t->chain = HL_NONE;
    t->whole |= whole;
}

/* Notes what all tasks of the region that begins with this one touch. */
static void touch_region(memory_state *m, int32_t first_task)
{
    int32_t region = m->region_of_task[first_task];
    for (int32_t s = first_task; s < m->schedule->n_tasks && m->region_of_task[s] == region; s++) {
        const hl_task *task = &m->schedule->tasks[s];
        const hl_node *node = &m->graph->nodes[task->node];
        for (int32_t j = 0; j < node->n_in; j++) {
            /* Rows of a part are other rows of the whole. */
            hl_id root = find_root(m, node->in[j]);
            bool by_rows = hl_kernel_reads_rows(&task->req, j) &&
                           hl_value_bytes(m->graph, node->in[j]) == hl_value_bytes(m->graph, root);
            touch(m, root, s, task->req.rows && !by_rows);
        }
        for (int32_t j = 0; j < node->n_out; j++) touch(m, find_root(m, node->out + j), s, false);
    }
}

/* Does the operand die with this task, untouched in this region by other chains, and by its own row
 * by row, so that no other block still reads rows that this one has overwritten? Nor may another
 * stream still read it. */
static bool dies_here(const memory_state *m, hl_id root, int32_t task)
{
    const hl_life *life = &m->lives[root];
    const touches *t = &m->touches[root];
    int32_t region = m->region_of_task[task];
    return life->first != HL_NONE && life->last == region && m->joins[root] <= region &&
           t->last_task == task && t->chain != HL_NONE && !t->whole;
}

/* Does the node read this memory through one operand only? A kernel that overwrites it may not have
 * read the others yet. */
static bool is_read_once(const memory_state *m, const hl_node *node, hl_id root)
{
    int32_t n = 0;
    for (int32_t j = 0; j < node->n_in; j++) n += find_root(m, node->in[j]) == root;
    return n == 1;
}

/* Operand i of a task as memory that its result j may take over: the root, or HL_NONE. */
static hl_id find_dying(const memory_state *m, int32_t task, int32_t i, int32_t j)
{
    const hl_task *s = &m->schedule->tasks[task];
    const hl_node *node = &m->graph->nodes[s->node];
    hl_id root = find_root(m, node->in[i]);
    const hl_value *value = hl_graph_value(m->graph, root);
    size_t bytes = hl_value_bytes(m->graph, node->out + j);
    if (!hl_kernel_takes_place(&s->req, i, j) || value->kind != HL_VALUE_ACT) return HL_NONE;
    if (hl_value_bytes(m->graph, root) != bytes || hl_value_bytes(m->graph, node->in[i]) != bytes)
        return HL_NONE;
    if (m->kept[root] || !is_read_once(m, node, root) || !dies_here(m, root, task)) return HL_NONE;
    /* Of two results only one can have it, be the other read or not. */
    for (int32_t k = 0; k < j; k++)
        if (find_root(m, node->out + k) == root) return HL_NONE;
    return m->graph->nodes[value->node].segment == node->segment ? root : (hl_id)HL_NONE;
}

/* Does nobody but this node read the value, and does its maker read constants alone? Filling needs
 * no alignment. */
static bool is_own_fill(const memory_state *m, hl_id root)
{
    const hl_node *maker = &m->graph->nodes[m->graph->values[root].node];
    for (int32_t j = 0; j < maker->n_in; j++)
        if (hl_graph_value(m->graph, maker->in[j])->kind != HL_VALUE_CONST) return false;
    return hl_uses_count(&m->uses, root) == 1;
}

/* May an operand be made where the result lies, inside another value? That one lives from then on,
 * which should take less memory over time than it saves; a store is there anyway. */
static bool can_move(const memory_state *m, hl_id root, hl_id out, hl_id whole)
{
    bool is_aligned = find_offset(m, out) % (int64_t)m->device->alignment == 0;
    if (!is_aligned && !is_own_fill(m, root)) return false;
    if (hl_graph_value(m->graph, whole)->kind != HL_VALUE_ACT) return true;
    const hl_life *life = &m->lives[root], *own = &m->lives[whole];
    double bytes = (double)hl_value_bytes(m->graph, root);
    double rest = (double)hl_value_bytes(m->graph, whole) - bytes;
    return rest * (own->first - life->first) < bytes * (life->last - own->first + 1);
}

/* Two values are one memory from now on. */
static void merge_into(memory_state *m, hl_id from, hl_id into)
{
    m->kept[into] |= m->kept[from];
    extend(m, into, m->lives[from].first);
    extend(m, into, m->lives[from].last);
    if (m->joins[from] > m->joins[into]) m->joins[into] = m->joins[from];
    touches *t = &m->touches[into], *more = &m->touches[from];
    if (more->last_task > t->last_task) t->last_task = more->last_task;
    if (t->chain != more->chain) t->chain = HL_NONE;
    t->whole |= more->whole;
}

/* Result j takes over an operand's memory; one that is made inside another value has the operand
 * made there instead. */
static void share_output(memory_state *m, int32_t task, int32_t j)
{
    const hl_task *s = &m->schedule->tasks[task];
    const hl_node *node = &m->graph->nodes[s->node];
    hl_id out = node->out + j, whole = find_root(m, out);
    if (s->req.rows && !(s->req.row_out >> j & 1)) return;
    if (whole == out && m->pinned[out]) return;
    for (int32_t i = 0; i < node->n_in; i++) {
        hl_id root = find_dying(m, task, i, j);
        if (root == HL_NONE) continue;
        if (whole != out && !can_move(m, root, out, whole)) continue;
        hl_id into = whole == out ? root : whole, from = whole == out ? out : root;
        join(m, from, whole == out ? root : out, 0);
        merge_into(m, from, into);
        return;
    }
}

static void share_in_place(memory_state *m, int32_t task)
{
    const hl_node *node = &m->graph->nodes[m->schedule->tasks[task].node];
    if (is_update(node)) return;
    for (int32_t j = 0; j < node->n_out && j < HL_KERNEL_PLACES; j++) share_output(m, task, j);
}

/* ---- placing --------------------------------------------------------------------------------- */

/* By decreasing size; ties by number, so that there is one order. */
static int compare_blocks(const void *a, const void *b)
{
    const block *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
    if (x->value != y->value) return x->value < y->value ? -1 : 1;
    return (x->task > y->task) - (x->task < y->task);
}

static hl_status fail_overflow(void)
{
    return hl_status_set(HL_ERROR_MEMORY, "plan: out of memory: activations overflow 2**63 bytes");
}

static void list_blocks(memory_state *m)
{
    const hl_graph *graph = m->graph;
    int64_t align = (int64_t)m->device->alignment;
    for (int64_t v = 0; v < graph->n_values; v++) {
        if (graph->values[v].kind != HL_VALUE_ACT || m->out->places[v].root != (hl_id)v) continue;
        if (m->lives[v].first == HL_NONE) continue;
        m->blocks[m->n_blocks++] =
            (block){.bytes = hl_round_up((int64_t)hl_value_bytes(graph, (hl_id)v), align),
                    .life = m->lives[v],
                    .value = (hl_id)v,
                    .task = HL_NONE};
    }
    for (int32_t s = 0; s < m->schedule->n_tasks; s++) {
        int64_t bytes = (int64_t)m->schedule->tasks[s].req.scratch_bytes;
        m->out->scratch[s] = HL_NONE;
        if (!bytes) continue;
        m->blocks[m->n_blocks++] = (block){.bytes = hl_round_up(bytes, align),
                                           .life = {m->region_of_task[s], last_region_of(m, s)},
                                           .value = HL_NONE,
                                           .task = s};
    }
    qsort(m->blocks, (size_t)m->n_blocks, sizeof *m->blocks, compare_blocks);
}

static hl_status place_blocks(memory_state *m)
{
    hl_placing placing;
    int64_t most = 0, thread_bytes = 0, offset;
    hl_status status = HL_OK;
    HL_GOTO(hl_placing_init(m->schedule->n_regions, &placing));
    for (int64_t i = 0; i < m->n_blocks; i++) {
        const block *b = &m->blocks[i];
        HL_GOTO(hl_placing_add(&placing, b->bytes, b->life, &offset));
        if (offset == HL_NONE) HL_GOTO(fail_overflow());
        if (offset + b->bytes > most) most = offset + b->bytes;
        if (b->value != HL_NONE)
            m->out->places[b->value].offset = offset;
        else
            m->out->scratch[b->task] = offset;
    }
    for (int32_t s = 0; s < m->schedule->n_tasks; s++) {
        int64_t bytes = (int64_t)m->schedule->tasks[s].req.thread_scratch_bytes;
        if (bytes > thread_bytes) thread_bytes = bytes;
    }
    m->out->thread_stride = hl_round_up(thread_bytes, (int64_t)m->device->alignment);
    m->out->thread_scratch = most;
    if (__builtin_add_overflow(most, m->out->thread_stride * m->device->n_threads,
                               &m->out->arena_bytes))
        status = fail_overflow();
cleanup:
    hl_placing_deinit(&placing);
    return status;
}

/* ---- entry ----------------------------------------------------------------------------------- */

static hl_status alloc_state(memory_state *m, void **out_memory)
{
    size_t n_values = (size_t)m->graph->n_values + 1, n_tasks = (size_t)m->schedule->n_tasks + 1;
    HL_TRY(hl_alloc_zero(n_values * sizeof(hl_place), (void **)&m->out->places));
    HL_TRY(hl_alloc_zero(n_tasks * sizeof(int64_t), (void **)&m->out->scratch));
    HL_TRY(hl_alloc_zero(n_tasks, (void **)&m->out->elided));
    HL_TRY(hl_alloc_zero((n_values + n_tasks) * sizeof(block) +
                             n_values * (sizeof(hl_life) + sizeof(touches) + sizeof(int32_t) + 2) +
                             n_tasks * sizeof(int32_t),
                         out_memory));
    m->blocks = *out_memory;
    m->lives = (hl_life *)(m->blocks + n_values + n_tasks);
    m->touches = (touches *)(m->lives + n_values);
    m->joins = (int32_t *)(m->touches + n_values);
    m->region_of_task = m->joins + n_values;
    m->pinned = (bool *)(m->region_of_task + n_tasks);
    m->kept = m->pinned + n_values;
    return HL_OK;
}

hl_status hl_pass_memory(const hl_graph *graph, const hl_schedule *schedule,
                         const hl_device *device, hl_memory *out_memory)
{
    *out_memory = (hl_memory){0};
    memory_state m = {.graph = graph, .schedule = schedule, .device = device, .out = out_memory};
    void *memory = NULL;
    hl_status status = HL_OK;
    HL_GOTO(alloc_state(&m, &memory));
    HL_GOTO(hl_uses_init(graph, &m.uses));
    for (int64_t v = 0; v < graph->n_values; v++)
        m.out->places[v] =
            (hl_place){(hl_id)v, graph->values[v].kind == HL_VALUE_ACT ? 0 : HL_NONE};
    for (int64_t v = 0; v < graph->n_values; v++) m.touches[v].region = HL_NONE;
    for (int32_t s = 0; s < schedule->n_tasks; s++)
        m.region_of_task[s] = schedule->chains[schedule->tasks[s].chain].region;
    share_views_and_updates(&m);
    for (int64_t i = 0; i < graph->n_nodes; i++) share_joined(&m, (hl_node_id)i);
    find_lives(&m);
    for (int64_t v = 0; v < graph->n_values; v++) m.kept[find_root(&m, (hl_id)v)] |= m.uses.kept[v];
    HL_GOTO(share_parts(&m));
    for (int32_t s = 0; s < schedule->n_tasks; s++) {
        if (!s || m.region_of_task[s] != m.region_of_task[s - 1]) touch_region(&m, s);
        share_in_place(&m, s);
    }
    list_blocks(&m);
    HL_GOTO(place_blocks(&m));
    /* Every value straight to its root, with the offset summed up. */
    for (int64_t v = 0; v < graph->n_values; v++) {
        int64_t offset = 0;
        hl_id root = (hl_id)v;
        while (m.out->places[root].root != root) {
            offset += m.out->places[root].offset;
            root = m.out->places[root].root;
        }
        if (root != (hl_id)v) m.out->places[v] = (hl_place){root, offset};
    }
cleanup:
    hl_uses_deinit(&m.uses);
    hl_free(memory);
    if (status != HL_OK) hl_memory_deinit(out_memory);
    return status;
}

void hl_memory_deinit(hl_memory *memory)
{
    hl_free(memory->places);
    hl_free(memory->scratch);
    hl_free(memory->elided);
    *memory = (hl_memory){0};
}
