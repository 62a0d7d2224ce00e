#include "passes/rewrite.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "ir/op.h"

hl_status hl_uses_init(const hl_graph *graph, hl_uses *out_uses)
{
    *out_uses = (hl_uses){0};
    int64_t n_operands = 0;
    for (int64_t i = 0; i < graph->n_nodes; i++) n_operands += graph->nodes[i].n_in;
    size_t n_start = (size_t)graph->n_values + 1;
    size_t bytes =
        n_start * sizeof(int32_t) * 2 + (size_t)n_operands * sizeof(hl_node_id) + n_start;
    void *memory;
    HL_TRY(hl_alloc_zero(bytes, &memory));
    int32_t *start = memory, *next = start + n_start;
    hl_node_id *list = next + n_start;
    bool *kept = (bool *)(list + n_operands);
    for (int64_t i = 0; i < graph->n_nodes; i++)
        for (int32_t j = 0; j < graph->nodes[i].n_in; j++) start[graph->nodes[i].in[j] + 1]++;
    for (size_t v = 1; v < n_start; v++) start[v] += start[v - 1];
    memcpy(next, start, n_start * sizeof *next);
    for (int64_t i = 0; i < graph->n_nodes; i++)
        for (int32_t j = 0; j < graph->nodes[i].n_in; j++)
            list[next[graph->nodes[i].in[j]]++] = (hl_node_id)i;
    for (int64_t i = 0; i < graph->n_commits; i++) kept[graph->commits[i].value] = true;
    for (int64_t i = 0; i < graph->n_outputs; i++) kept[graph->outputs[i]] = true;
    *out_uses = (hl_uses){start, list, kept, memory};
    return HL_OK;
}

void hl_uses_deinit(hl_uses *uses)
{
    hl_free(uses->memory);
    *uses = (hl_uses){0};
}

static bool is_for_updates(const hl_graph *graph, const hl_uses *uses, hl_id value)
{
    if (uses->kept[value]) return false;
    for (int32_t u = uses->start[value]; u < uses->start[value + 1]; u++) {
        const hl_node *user = &graph->nodes[uses->list[u]];
        uint32_t flags = hl_op_get(user->op)->flags;
        if (flags & HL_OP_VIEW ? !is_for_updates(graph, uses, user->out) : !(flags & HL_OP_UPDATES))
            return false;
    }
    return true;
}

bool hl_uses_by_updates(const hl_graph *graph, const hl_uses *uses, const hl_node *node)
{
    for (int32_t j = 0; j < node->n_out; j++)
        if (!is_for_updates(graph, uses, node->out + j)) return false;
    return true;
}

hl_status hl_rewrite_map(const hl_graph *graph, hl_id **out_map)
{
    HL_TRY(hl_alloc((size_t)(graph->n_values + 1) * sizeof **out_map, (void **)out_map));
    for (int64_t v = 0; v < graph->n_values; v++) (*out_map)[v] = (hl_id)v;
    return HL_OK;
}

hl_status hl_rewrite_changed_stores(const hl_graph *graph, uint8_t **out_changed)
{
    HL_TRY(hl_alloc_zero((size_t)graph->n_stores + 1, (void **)out_changed));
    for (int64_t i = 0; i < graph->n_commits; i++) {
        const hl_commit *commit = &graph->commits[i];
        (*out_changed)[hl_graph_value(graph, commit->target)->store] |=
            (uint8_t)(1 << commit->segment);
    }
    return HL_OK;
}

bool hl_rewrite_is_fixed(const hl_value *value, const uint8_t *changed, hl_segment last)
{
    if (value->kind == HL_VALUE_CONST) return true;
    bool is_stored = value->kind == HL_VALUE_PARAM || value->kind == HL_VALUE_STATE;
    return is_stored && !(changed[value->store] & ((2 << last) - 1));
}

bool hl_rewrite_number(const hl_graph *graph, hl_id id, double *out_number)
{
    const hl_value *value = hl_graph_value(graph, id);
    if (value->type.shape.rank || !hl_dtype_is_float(value->type.dtype) ||
        !hl_graph_number_read(graph, id, out_number))
        return false;
    if (value->doubles) *out_number = *value->doubles;
    return true;
}

static hl_id follow_map(const hl_id *map, int64_t n_map, hl_id value)
{
    while (value < n_map && map[value] != value) value = map[value];
    return value;
}

void hl_rewrite_replace(hl_graph *graph, hl_id *map, int64_t n_map)
{
    for (int64_t i = 0; i < graph->n_nodes; i++) {
        /* The arena's operand list is const for readers; passes own the graph. */
        hl_id *in = (hl_id *)graph->nodes[i].in;
        for (int32_t j = 0; j < graph->nodes[i].n_in; j++) in[j] = follow_map(map, n_map, in[j]);
    }
    for (int64_t i = 0; i < graph->n_commits; i++)
        graph->commits[i].value = follow_map(map, n_map, graph->commits[i].value);
    for (int64_t i = 0; i < graph->n_outputs; i++)
        graph->outputs[i] = follow_map(map, n_map, graph->outputs[i]);
}

typedef struct sort_frame {
    hl_node_id node;
    int32_t next_in;
} sort_frame;

typedef struct sort_state {
    const hl_graph *graph;
    uint8_t *mark; /* 1: needed, 2: open, 3: placed */
    hl_node_id *order;
    int64_t n_order;
    sort_frame *stack;
} sort_state;

/* Marks everything that a commit or an output needs. */
static void mark_needed(sort_state *s)
{
    const hl_graph *graph = s->graph;
    int64_t n_stack = 0;
    hl_node_id *stack = (hl_node_id *)s->stack;
#define PUSH(value)                                                                                \
    do {                                                                                           \
        hl_node_id p = hl_graph_producer(graph, value);                                            \
        if (p != HL_NONE && !s->mark[p]) s->mark[p] = 1, stack[n_stack++] = p;                     \
    } while (0)
    for (int64_t i = 0; i < graph->n_commits; i++) PUSH(graph->commits[i].value);
    for (int64_t i = 0; i < graph->n_outputs; i++) PUSH(graph->outputs[i]);
    while (n_stack) {
        const hl_node *node = &graph->nodes[stack[--n_stack]];
        for (int32_t j = 0; j < node->n_in; j++) PUSH(node->in[j]);
    }
#undef PUSH
}

static hl_status place_node(sort_state *s, hl_node_id root)
{
    int64_t depth = 0;
    s->stack[depth++] = (sort_frame){root, 0};
    s->mark[root] = 2;
    while (depth) {
        sort_frame *frame = &s->stack[depth - 1];
        const hl_node *node = &s->graph->nodes[frame->node];
        if (frame->next_in == node->n_in) {
            s->order[s->n_order++] = frame->node;
            s->mark[frame->node] = 3;
            depth--;
            continue;
        }
        hl_node_id p = hl_graph_producer(s->graph, node->in[frame->next_in++]);
        if (p == HL_NONE || s->mark[p] == 3) continue;
        if (s->mark[p] == 2)
            return hl_status_set(HL_ERROR_INTERNAL, "graph: no order exists, node %d feeds itself",
                                 p);
        s->mark[p] = 2;
        s->stack[depth++] = (sort_frame){p, 0};
    }
    return HL_OK;
}

/* A node and its place in the order so far. */
typedef struct fenced_node {
    hl_segment segment;
    int32_t fence, place;
    hl_node_id node;
} fenced_node;

static int compare_fenced(const void *a, const void *b)
{
    const fenced_node *x = a, *y = b;
    if (x->segment != y->segment) return x->segment < y->segment ? -1 : 1;
    if (x->fence != y->fence) return x->fence < y->fence ? -1 : 1;
    return (x->place > y->place) - (x->place < y->place);
}

/* What stands behind a fence comes after all before it, wherever it was added: a sum that a pass
 * made anew would keep its operands until the end. No operand stands behind a later fence. */
static hl_status order_fences(sort_state *s)
{
    const hl_graph *graph = s->graph;
    fenced_node *list;
    int32_t most = 0;
    for (int64_t i = 0; i < s->n_order; i++)
        if (graph->nodes[s->order[i]].fence > most) most = graph->nodes[s->order[i]].fence;
    if (!most) return HL_OK;
    HL_TRY(hl_alloc((size_t)s->n_order * sizeof *list, (void **)&list));
    for (int64_t i = 0; i < s->n_order; i++) {
        const hl_node *node = &graph->nodes[s->order[i]];
        list[i] = (fenced_node){node->segment, node->fence, (int32_t)i, s->order[i]};
    }
    qsort(list, (size_t)s->n_order, sizeof *list, compare_fenced);
    for (int64_t i = 0; i < s->n_order; i++) s->order[i] = list[i].node;
    hl_free(list);
    return HL_OK;
}

hl_id hl_rewrite_narrow(const hl_graph *graph, hl_id value)
{
    hl_node_id maker = hl_graph_producer(graph, value);
    if (maker == HL_NONE || graph->nodes[maker].op != HL_OP_CAST) return value;
    hl_id from = graph->nodes[maker].in[0];
    hl_dtype dtype = hl_graph_dtype(graph, from);
    bool widens = hl_graph_dtype(graph, value) == HL_DTYPE_F32 && hl_dtype_is_16_bit(dtype);
    return widens ? from : value;
}

hl_status hl_rewrite_sort(hl_graph *graph)
{
    int64_t n = graph->n_nodes;
    void *memory;
    HL_TRY(hl_alloc_zero((size_t)(n + 1) * (sizeof(sort_frame) + sizeof(hl_node_id) + 1), &memory));
    sort_state s = {.graph = graph, .stack = memory};
    s.order = (hl_node_id *)(s.stack + n + 1);
    s.mark = (uint8_t *)(s.order + n + 1);
    hl_status status = HL_OK;
    mark_needed(&s);
    for (int segment = 0; segment < HL_SEGMENT_COUNT; segment++)
        for (int64_t i = 0; i < n; i++)
            if (s.mark[i] == 1 && graph->nodes[i].segment == (hl_segment)segment)
                HL_GOTO(place_node(&s, (hl_node_id)i));
    HL_GOTO(order_fences(&s));
    HL_GOTO(hl_graph_reorder(graph, s.order, s.n_order));
cleanup:
    hl_free(memory);
    return status;
}

hl_status hl_rewrite_reorder(hl_graph *graph, hl_node_id *order, int64_t n)
{
    int64_t n_nodes = graph->n_nodes, n_needed = 0;
    void *memory;
    HL_TRY(hl_alloc_zero((size_t)(n_nodes + 1) * (sizeof(sort_frame) + 1), &memory));
    sort_state s = {.graph = graph, .stack = memory};
    s.mark = (uint8_t *)(s.stack + n_nodes + 1);
    mark_needed(&s);
    for (int64_t i = 0; i < n; i++)
        if (s.mark[order[i]]) order[n_needed++] = order[i];
    hl_free(memory);
    return hl_graph_reorder(graph, order, n_needed);
}
