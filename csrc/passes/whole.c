/* Whole: ops that stand for several nodes (HL_OP_WHOLE) stay where a kernel takes them as they are;
 * elsewhere those nodes take their place, before any pass looks at them.
 *
 * What such an op leaves in a form of its kernel's (hl_kernel_req.saved) the op behind it reads,
 * its gradient, so both are kept or neither is. Their values keep the forms from here on: whoever
 * asks for kernels later gets the same answers. The nodes that take an op's place stand exactly
 * there, in the order in which its rule adds them.
 *
 * Mixed precision rounds what products read and leaves recurrent states in float32. Libraries that
 * compute a layer at once know one type for all of it, so there a layer is its nodes.
 *
 * Rejected: to leave it to the lower pass, which comes behind folding and mixed precision: those
 * would have to know what is inside. */
#include "base/alloc.h"
#include "passes/passes.h"
#include "passes/rewrite.h"

typedef struct whole_state {
    hl_graph *graph;
    hl_device *device;
    const hl_whole_options *options;
    hl_uses uses;
    hl_node_id
        *leader; /* by node: the one that makes what it reads, or itself; HL_NONE: not whole */
    bool *kept;  /* by node, of leaders: it and those behind it */
} whole_state;

static bool is_whole(const hl_graph *graph, int64_t id)
{
    return hl_op_get(graph->nodes[id].op)->flags & HL_OP_WHOLE;
}

static hl_node_id find_leader(const hl_graph *graph, hl_node_id id)
{
    const hl_node *node = &graph->nodes[id];
    for (int32_t i = 0; i < node->n_in; i++) {
        hl_node_id maker = hl_graph_producer(graph, node->in[i]);
        if (maker != HL_NONE && is_whole(graph, maker) && hl_op_get(graph->nodes[maker].op)->vjp &&
            !hl_op_get(node->op)->vjp)
            return maker;
    }
    return id;
}

/* Are values in a form of the kernel's read by the node's own gradient alone? */
static bool is_saved_for_group(const whole_state *s, hl_node_id leader)
{
    const hl_node *node = &s->graph->nodes[leader];
    for (int32_t j = 0; j < node->n_out; j++) {
        hl_id value = node->out + j;
        if (!s->graph->values[value].form) continue;
        if (s->uses.kept[value]) return false;
        for (int32_t u = s->uses.start[value]; u < s->uses.start[value + 1]; u++)
            if (s->leader[s->uses.list[u]] != leader) return false;
    }
    return true;
}

static void set_tf32(hl_graph *graph, hl_node_id id, bool tf32)
{
    hl_node *node = &graph->nodes[id];
    const hl_attr_info *attr = hl_schema_find(hl_op_get(node->op)->schema, "tf32");
    bool is_f32 = hl_graph_dtype(graph, node->in[0]) == HL_DTYPE_F32;
    if (attr) hl_attrs_int_set(&node->attrs, attr, tf32 && is_f32);
}

/* Asks for a kernel as the node is going to be. */
static hl_status ask(const whole_state *s, hl_node_id id, bool *out_taken)
{
    const hl_kernel *kernel;
    set_tf32(s->graph, id, s->options->tf32);
    HL_TRY(hl_select_try(s->graph, s->device, id, s->options->deterministic, &kernel));
    *out_taken = kernel != NULL;
    return HL_OK;
}

static void forget(const whole_state *s, hl_node_id id)
{
    const hl_node *node = &s->graph->nodes[id];
    set_tf32(s->graph, id, false);
    for (int32_t j = 0; j < node->n_out; j++) {
        s->graph->values[node->out + j].form = 0;
        s->graph->values[node->out + j].form_bytes = 0;
    }
}

static hl_status decide(const whole_state *s, hl_node_id leader)
{
    int64_t n = s->graph->n_nodes;
    bool taken = !s->options->is_mixed;
    for (int64_t i = leader; i < n && taken; i++)
        if (s->leader[i] == leader) HL_TRY(ask(s, (hl_node_id)i, &taken));
    s->kept[leader] = taken && is_saved_for_group(s, leader);
    for (int64_t i = leader; i < n && !s->kept[leader]; i++)
        if (s->leader[i] == leader) forget(s, (hl_node_id)i);
    return HL_OK;
}

/* Adds the nodes that take its place. */
static hl_status take_apart(hl_graph *graph, hl_node_id id, hl_id *map)
{
    hl_node node = graph->nodes[id];
    hl_id *out;
    hl_status status;
    HL_TRY(hl_alloc((size_t)node.n_out * sizeof *out, (void **)&out));
    hl_graph_stand_by(graph, &node);
    HL_GOTO(hl_op_get(node.op)->lower(graph, id, out));
    for (int32_t j = 0; j < node.n_out; j++) map[node.out + j] = out[j];
cleanup:
    hl_free(out);
    return status;
}

static hl_status replace(const whole_state *s)
{
    hl_graph *graph = s->graph;
    hl_id *map = NULL;
    hl_node_id *begin = NULL, *order = NULL;
    int64_t n = graph->n_nodes, n_map = graph->n_values, n_order = 0;
    hl_status status;
    HL_GOTO(hl_rewrite_map(graph, &map));
    HL_GOTO(hl_alloc((size_t)(n + 1) * sizeof *begin, (void **)&begin));
    for (int64_t i = 0; i < n; i++) {
        hl_node_id leader = s->leader[i];
        begin[i] = (hl_node_id)graph->n_nodes;
        if (leader != HL_NONE && !s->kept[leader]) HL_GOTO(take_apart(graph, (hl_node_id)i, map));
    }
    begin[n] = (hl_node_id)graph->n_nodes;
    HL_GOTO(hl_alloc((size_t)graph->n_nodes * sizeof *order, (void **)&order));
    for (int64_t i = 0; i < n; i++) {
        if (begin[i] == begin[i + 1]) order[n_order++] = (hl_node_id)i;
        for (hl_node_id k = begin[i]; k < begin[i + 1]; k++) order[n_order++] = k;
    }
    hl_rewrite_replace(graph, map, n_map);
    HL_GOTO(hl_rewrite_reorder(graph, order, n_order));
cleanup:
    hl_free(map);
    hl_free(begin);
    hl_free(order);
    return status;
}

/* Lists the nodes; false: there are none. */
static bool find_leaders(const whole_state *s)
{
    bool found = false;
    for (int64_t i = 0; i < s->graph->n_nodes; i++) {
        bool whole = is_whole(s->graph, i);
        s->leader[i] = whole ? find_leader(s->graph, (hl_node_id)i) : (hl_node_id)HL_NONE;
        found |= whole;
    }
    return found;
}

hl_status hl_pass_whole(hl_graph *graph, hl_device *device, const hl_whole_options *options)
{
    whole_state s = {.graph = graph, .device = device, .options = options};
    size_t n = (size_t)graph->n_nodes + 1;
    hl_status status = HL_OK;
    HL_TRY(hl_alloc_zero(n * (sizeof *s.leader + sizeof *s.kept), (void **)&s.leader));
    s.kept = (bool *)(s.leader + n);
    if (!find_leaders(&s)) goto cleanup;
    HL_GOTO(hl_uses_init(graph, &s.uses));
    for (int64_t i = 0; i < graph->n_nodes; i++)
        if (s.leader[i] == i) HL_GOTO(decide(&s, (hl_node_id)i));
    HL_GOTO(replace(&s));
cleanup:
    hl_uses_deinit(&s.uses);
    hl_free(s.leader);
    return status;
}
