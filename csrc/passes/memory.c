/* Memory: where every value lies before anything runs.
 *
 * Time is counted in regions. A value lives from the region that makes it to the last one that
 * reads it; what BEGIN makes for MICRO lives through all of MICRO, which repeats. Views share their
 * operand's bytes; operands of a concat along the leading axis are made inside its result; a kernel
 * that may work in place takes over an operand that dies with it, if nobody but earlier steps of
 * its own chain reads that operand in the region. What is left is placed by decreasing size at the
 * lowest offset that is free for its whole life (greedy by size, Pisarchyk and Lee 2020). The
 * invariant that tests check: two values that live in one region share no byte unless one is part
 * of the other. */
#include <string.h>

#include "base/alloc.h"
#include "passes/passes.h"
#include "passes/rewrite.h"
#include "passes/schedule.h"

typedef struct life {
    int32_t first, last; /* regions */
} life;

typedef struct block {
    int64_t bytes, offset;
    life life;
    hl_id value; /* or HL_NONE: scratch of a step */
    int32_t step;
} block;

typedef struct memory_state {
    const hl_graph *graph;
    const hl_schedule *schedule;
    const hl_device *device;
    hl_memory *out;
    hl_uses uses;
    life *lives; /* by value; of roots: over all parts */
    int32_t *region_of_step;
    bool *kept;   /* by root: a part or view of it is an output or a commit's value */
    bool *pinned; /* by value: may not be put inside another (already is, or is special) */
    block *blocks;
    int64_t n_blocks;
} memory_state;

size_t hl_value_bytes(const hl_graph *graph, hl_id value)
{
    const hl_type *type = &hl_graph_value(graph, value)->type;
    return (size_t)hl_shape_numel(&type->shape) * hl_dtype_bytes(type->dtype);
}

/* ---- lives ----------------------------------------------------------------------------------- */

static int32_t region_of_node(const memory_state *m, hl_node_id node)
{
    int32_t step = m->schedule->step_of_node[node];
    return step == HL_NONE ? HL_NONE : m->region_of_step[step];
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
    life *l = &m->lives[root];
    if (l->first == HL_NONE || region < l->first) l->first = region;
    if (region > l->last) l->last = region;
}

/* A value that crosses from BEGIN into MICRO is read again by every repetition. */
static void extend_over_loop(memory_state *m, hl_id root)
{
    life *l = &m->lives[root];
    if (l->first == HL_NONE || l->first == l->last) return;
    if (segment_of_region(m->schedule, l->first) == HL_SEGMENT_BEGIN &&
        segment_of_region(m->schedule, l->last) == HL_SEGMENT_MICRO)
        l->last = m->schedule->segment_first[2] - 1;
}

static void find_lives(memory_state *m)
{
    const hl_graph *graph = m->graph;
    for (int64_t v = 0; v < graph->n_values; v++) m->lives[v] = (life){HL_NONE, HL_NONE};
    for (int64_t i = 0; i < graph->n_nodes; i++) {
        const hl_node *node = &graph->nodes[i];
        int32_t region = region_of_node(m, (hl_node_id)i);
        if (region == HL_NONE) continue;
        for (int32_t j = 0; j < node->n_in; j++) extend(m, find_root(m, node->in[j]), region);
        for (int32_t j = 0; j < node->n_out; j++) extend(m, find_root(m, node->out + j), region);
    }
    for (int64_t i = 0; i < graph->n_outputs; i++) {
        hl_id root = find_root(m, graph->outputs[i]);
        if (graph->values[root].kind == HL_VALUE_ACT) extend(m, root, m->schedule->n_regions - 1);
    }
    for (int64_t v = 0; v < graph->n_values; v++) extend_over_loop(m, (hl_id)v);
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
        if (flags & HL_OP_GUARDED)
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

/* Operands of a concat of whole blocks (every dim before the axis is 1) are made where the result
 * wants them. */
static void share_concat(memory_state *m, hl_node_id id)
{
    const hl_node *node = &m->graph->nodes[id];
    const hl_shape *shape = hl_graph_shape(m->graph, node->out);
    if (hl_shape_span(shape, 0, (int)node->attrs.i[0]) != 1) return;
    int32_t step = m->schedule->step_of_node[id];
    int64_t offset = 0;
    bool all = true;
    for (int32_t j = 0; j < node->n_in; j++) {
        hl_id root = find_root(m, node->in[j]);
        size_t bytes = hl_value_bytes(m->graph, node->in[j]);
        bool whole = bytes == hl_value_bytes(m->graph, root);
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
    if (all && step != HL_NONE) m->out->elided[step] = true;
}

/* Is the operand read for the last time by this step, and before it in this region only by its own
 * chain? */
static bool dies_here(const memory_state *m, hl_id root, int32_t step)
{
    int32_t region = m->region_of_step[step];
    if (m->lives[root].last != region || m->lives[root].first == HL_NONE) return false;
    const hl_region *r = &m->schedule->regions[region];
    const hl_chain *last = &m->schedule->chains[r->first_chain + r->n_chains - 1];
    int32_t end = last->first_step + last->n_steps;
    for (int32_t s = m->schedule->chains[r->first_chain].first_step; s < end; s++) {
        if (s == step) continue;
        const hl_node *node = &m->graph->nodes[m->schedule->steps[s].node];
        bool touches = false;
        for (int32_t j = 0; j < node->n_in; j++) touches |= find_root(m, node->in[j]) == root;
        for (int32_t j = 0; j < node->n_out; j++) touches |= find_root(m, node->out + j) == root;
        if (touches && (s > step || m->schedule->steps[s].chain != m->schedule->steps[step].chain))
            return false;
    }
    return true;
}

/* Every earlier step of the chain that touches the operand must do so row by row, or another block
 * could still read rows that this one has overwritten. */
static bool is_row_wise_in_chain(const memory_state *m, hl_id root, int32_t step)
{
    int32_t chain = m->schedule->steps[step].chain;
    for (int32_t s = m->schedule->chains[chain].first_step; s <= step; s++) {
        const hl_step *other = &m->schedule->steps[s];
        const hl_node *node = &m->graph->nodes[other->node];
        for (int32_t j = 0; j < node->n_in; j++)
            if (find_root(m, node->in[j]) == root && other->req.rows &&
                !hl_kernel_reads_rows(&other->req, j))
                return false;
    }
    return true;
}

/* Does the node read this memory through one operand only? A kernel that overwrites it may not have
 * read the others yet. */
static bool is_read_once(const memory_state *m, const hl_node *node, hl_id root)
{
    int32_t n = 0;
    for (int32_t j = 0; j < node->n_in; j++) n += find_root(m, node->in[j]) == root;
    return n == 1;
}

static void share_in_place(memory_state *m, int32_t step)
{
    const hl_step *s = &m->schedule->steps[step];
    const hl_node *node = &m->graph->nodes[s->node];
    hl_id out = node->n_out ? node->out : HL_NONE;
    if (out == HL_NONE || m->out->places[out].root != out || m->pinned[out]) return;
    if (s->req.rows && !(s->req.row_out & 1)) return;
    for (int32_t j = 0; j < node->n_in && j < 64; j++) {
        if (!(s->req.in_place >> j & 1)) continue;
        hl_id root = find_root(m, node->in[j]);
        const hl_value *value = hl_graph_value(m->graph, root);
        if (value->kind != HL_VALUE_ACT ||
            hl_value_bytes(m->graph, root) != hl_value_bytes(m->graph, out))
            continue;
        if (m->kept[root] || !is_read_once(m, node, root) || !dies_here(m, root, step) ||
            !is_row_wise_in_chain(m, root, step))
            continue;
        if (m->graph->nodes[value->node].segment != node->segment) continue;
        join(m, out, root, 0);
        m->kept[root] |= m->kept[out];
        extend(m, root, m->lives[out].first);
        extend(m, root, m->lives[out].last);
        return;
    }
}

/* ---- placing --------------------------------------------------------------------------------- */

static bool overlap(life a, life b)
{
    return a.first <= b.last && b.first <= a.last;
}

static void sort_blocks(block *blocks, int64_t n)
{
    /* Shell sort: stable order is not needed, ties are broken by index. */
    for (int64_t gap = n / 2; gap > 0; gap /= 2)
        for (int64_t i = gap; i < n; i++) {
            block b = blocks[i];
            int64_t j = i;
            for (; j >= gap; j -= gap) {
                const block *p = &blocks[j - gap];
                bool after = p->bytes < b.bytes ||
                             (p->bytes == b.bytes &&
                              (p->value > b.value || (p->value == b.value && p->step > b.step)));
                if (!after) break;
                blocks[j] = *p;
            }
            blocks[j] = b;
        }
}

/* Lowest offset at which no placed block that lives at the same time lies; HL_NONE: beyond 63
 * bits. */
static int64_t find_offset(const memory_state *m, int64_t n_placed, const block *b)
{
    int64_t offset = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (int64_t i = 0; i < n_placed; i++) {
            const block *p = &m->blocks[i];
            if (overlap(p->life, b->life) && offset < p->offset + p->bytes &&
                p->offset < offset + b->bytes) {
                offset = p->offset + p->bytes;
                if (offset > INT64_MAX - b->bytes) return HL_NONE;
                moved = true;
            }
        }
    }
    return offset;
}

static hl_status fail_overflow(void)
{
    return hl_status_set(HL_ERROR_MEMORY, "plan: out of memory: activations overflow 2**63 bytes");
}

static hl_status place_blocks(memory_state *m)
{
    const hl_graph *graph = m->graph;
    int64_t align = (int64_t)m->device->alignment;
    int64_t thread_bytes = 0, most = 0;
    for (int64_t v = 0; v < graph->n_values; v++) {
        if (graph->values[v].kind != HL_VALUE_ACT || m->out->places[v].root != (hl_id)v) continue;
        if (m->lives[v].first == HL_NONE) continue;
        m->blocks[m->n_blocks++] =
            (block){.bytes = hl_round_up((int64_t)hl_value_bytes(graph, (hl_id)v), align),
                    .life = m->lives[v],
                    .value = (hl_id)v,
                    .step = HL_NONE};
    }
    for (int32_t s = 0; s < m->schedule->n_steps; s++) {
        const hl_kernel_req *req = &m->schedule->steps[s].req;
        life l = {m->region_of_step[s], m->region_of_step[s]};
        m->out->scratch[s] = HL_NONE;
        if ((int64_t)req->thread_scratch_bytes > thread_bytes)
            thread_bytes = (int64_t)req->thread_scratch_bytes;
        if (!req->scratch_bytes) continue;
        m->blocks[m->n_blocks++] = (block){.bytes = hl_round_up((int64_t)req->scratch_bytes, align),
                                           .life = l,
                                           .value = HL_NONE,
                                           .step = s};
    }
    sort_blocks(m->blocks, m->n_blocks);
    for (int64_t i = 0; i < m->n_blocks; i++) {
        block *b = &m->blocks[i];
        b->offset = find_offset(m, i, b);
        if (b->offset == HL_NONE) return fail_overflow();
        if (b->offset + b->bytes > most) most = b->offset + b->bytes;
        if (b->value != HL_NONE)
            m->out->places[b->value].offset = b->offset;
        else
            m->out->scratch[b->step] = b->offset;
    }
    m->out->thread_stride = hl_round_up(thread_bytes, align);
    m->out->thread_scratch = most;
    if (__builtin_add_overflow(most, m->out->thread_stride * m->device->n_threads,
                               &m->out->arena_bytes))
        return fail_overflow();
    return HL_OK;
}

/* ---- entry ----------------------------------------------------------------------------------- */

static hl_status alloc_state(memory_state *m, void **out_memory)
{
    size_t n_values = (size_t)m->graph->n_values + 1, n_steps = (size_t)m->schedule->n_steps + 1;
    HL_TRY(hl_alloc_zero(n_values * sizeof(hl_place), (void **)&m->out->places));
    HL_TRY(hl_alloc_zero(n_steps * sizeof(int64_t), (void **)&m->out->scratch));
    HL_TRY(hl_alloc_zero(n_steps, (void **)&m->out->elided));
    HL_TRY(hl_alloc_zero((n_values + n_steps) * sizeof(block) + n_values * (sizeof(life) + 2) +
                             n_steps * sizeof(int32_t),
                         out_memory));
    m->blocks = *out_memory;
    m->lives = (life *)(m->blocks + n_values + n_steps);
    m->region_of_step = (int32_t *)(m->lives + n_values);
    m->pinned = (bool *)(m->region_of_step + n_steps);
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
    for (int32_t s = 0; s < schedule->n_steps; s++)
        m.region_of_step[s] = schedule->chains[schedule->steps[s].chain].region;
    share_views_and_updates(&m);
    for (int64_t i = 0; i < graph->n_nodes; i++)
        if (graph->nodes[i].op == HL_OP_CONCAT) share_concat(&m, (hl_node_id)i);
    find_lives(&m);
    for (int64_t v = 0; v < graph->n_values; v++) m.kept[find_root(&m, (hl_id)v)] |= m.uses.kept[v];
    for (int32_t s = 0; s < schedule->n_steps; s++) share_in_place(&m, s);
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
