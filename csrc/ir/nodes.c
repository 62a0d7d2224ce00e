/* Nodes of a graph: adding one, copying them all, and what their ops say of a value. */
#include "ir/graph.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "ir/fusion.h"
#include "ir/op.h"

/* ---- what a node owns ------------------------------------------------------------------------ */

/* Texts among the attributes, which belong to another graph, are replaced by copies in this one. */
static hl_status own_attrs(hl_graph *graph, hl_node *node)
{
    int n;
    const hl_attr_info *info = hl_schema_attrs(hl_op_get(node->op)->schema, &n);
    for (int i = 0; i < n; i++)
        if (info[i].kind == HL_ATTR_text) {
            const char **text = hl_attrs_text(&node->attrs, &info[i]);
            HL_TRY(hl_arena_strdup(&graph->arena, *text, text));
        }
    return HL_OK;
}

/* Programs, which belong to another graph or to nobody, are replaced by copies in this one. */
static hl_status own_program(hl_graph *graph, const hl_program **program)
{
    const void *copy;
    if (!*program) return HL_OK;
    HL_TRY(hl_arena_copy(&graph->arena, *program, sizeof(hl_program), &copy));
    *program = copy;
    return HL_OK;
}
static hl_status own_programs(hl_graph *graph, hl_node *node)
{
    HL_TRY(own_program(graph, &node->program));
    for (int k = 0; k < HL_PROLOGUES; k++) HL_TRY(own_program(graph, &node->prologue[k]));
    return HL_OK;
}

/* ---- nodes ----------------------------------------------------------------------------------- */

/* "body.0: matmul of float32 (2, 3), float32 (4, 5): " in front of what infer said. */
static hl_status explain_node(const hl_graph *graph, const hl_node *node, hl_status status)
{
    enum { N_SHOWN = 3 };
    char operands[N_SHOWN * (HL_TYPE_TEXT + 2) + 8] = "", type[HL_TYPE_TEXT];
    size_t used = 0;
    for (int32_t i = 0; i < node->n_in && i < N_SHOWN; i++) {
        hl_type_format(&graph->values[node->in[i]].type, type);
        used += (size_t)snprintf(operands + used, sizeof operands - used, "%s%s",
                                 i > 0 ? ", " : " of ", type);
    }
    if (node->n_in > N_SHOWN) snprintf(operands + used, sizeof operands - used, ", ...");
    hl_status_context(status, "%s%s", hl_op_get(node->op)->name, operands);
    return node->scope ? hl_status_context(status, "%s", node->scope) : status;
}

static hl_status fail_node(const hl_graph *graph, const hl_node *node, hl_status code,
                           const char *rule, long long got)
{
    return explain_node(graph, node, hl_status_set(code, "%s, got %lld", rule, got));
}

static hl_status check_operands(const hl_graph *graph, const hl_node *node)
{
    const hl_op_info *info = hl_op_get(node->op);
    for (int32_t i = 0; i < node->n_in; i++)
        if (node->in[i] < 0 || node->in[i] >= graph->n_values)
            return hl_status_set(HL_ERROR_INTERNAL,
                                 "%s: operand %d must be a value of the graph, got id %d",
                                 info->name, i, node->in[i]);
    int32_t n_in = hl_node_anchor_in(node);
    if (n_in < info->min_in)
        return fail_node(graph, node, HL_ERROR_TRACE, "more operands are needed", n_in);
    if (info->max_in >= 0 && n_in > info->max_in)
        return fail_node(graph, node, HL_ERROR_TRACE, "fewer operands are taken", n_in);
    return HL_OK;
}

static hl_status fill_attrs(hl_graph *graph, hl_node *node, const hl_attrs *attrs)
{
    const hl_op_info *op = hl_op_get(node->op);
    int n;
    const hl_attr_info *info = hl_schema_attrs(op->schema, &n);
    hl_attrs_init(op->schema, &node->attrs);
    if (attrs) node->attrs = *attrs;
    for (int i = 0; i < n; i++) {
        if (!attrs && info[i].required)
            return hl_status_set(HL_ERROR_CONFIG, "%s: attribute %s is required, got none",
                                 op->name, info[i].name);
        int32_t length =
            info[i].kind == HL_ATTR_ints ? hl_attrs_ints(&node->attrs, &info[i])->n : 0;
        if (length < 0 || length > HL_MAX_RANK)
            return fail_node(graph, node, HL_ERROR_SHAPE, "a list must have at most 8 entries",
                             length);
    }
    return own_attrs(graph, node);
}

/* The fence behind which all operands of its segment are there. */
static int32_t find_fence(const hl_graph *graph, const hl_node *node)
{
    int32_t fence = node->fence;
    for (int32_t i = 0; i < node->n_in; i++) {
        hl_node_id p = hl_graph_producer(graph, node->in[i]);
        if (p == HL_NONE || graph->nodes[p].segment != node->segment) continue;
        if (graph->nodes[p].fence > fence) fence = graph->nodes[p].fence;
    }
    return fence;
}

/* Counts node and outputs; there must be room. */
static hl_id append_node(hl_graph *graph, hl_node node, const hl_type *types)
{
    node.fence = find_fence(graph, &node);
    node.out = (hl_id)graph->n_values;
    for (int32_t j = 0; j < node.n_out; j++)
        graph->values[graph->n_values++] = (hl_value){.kind = HL_VALUE_ACT,
                                                      .type = types[j],
                                                      .node = (hl_node_id)graph->n_nodes,
                                                      .output = j,
                                                      .store = HL_NONE};
    graph->nodes[graph->n_nodes++] = node;
    return node.out;
}

/* The node does nothing: its output is its operand, bit by bit. */
static bool is_identity(const hl_graph *graph, const hl_node *node, const hl_type *type)
{
    if (node->n_in != 1 || !hl_type_equal(&graph->values[node->in[0]].type, type)) return false;
    switch (node->op) {
    case HL_OP_RESHAPE:
    case HL_OP_EXPAND:
    case HL_OP_CAST:
    case HL_OP_SLICE:
    case HL_OP_SLICE_GRAD: return true;
    case HL_OP_SPLIT: return node->n_out == 1;
    case HL_OP_FLIP:
    case HL_OP_SUM:
    case HL_OP_PROD: return hl_node_axes(node).n == 0;
    case HL_OP_PERMUTE: {
        const hl_ints *dims = &hl_permute_attrs(node)->dims;
        for (int32_t d = 0; d < dims->n; d++)
            if (dims->at[d] != d) return false;
        return true;
    }
    default: return false;
    }
}

/* Room for a node, and a node with its operands copied. */
static hl_status begin_node(hl_graph *graph, hl_op op, const hl_id *in, int32_t n_in,
                            hl_node *out_node)
{
    HL_TRY(hl_graph_grow(&graph->nodes, &graph->cap_nodes, graph->n_nodes, 1, sizeof(hl_node)));
    const void *copy;
    HL_TRY(hl_arena_copy(&graph->arena, in, (size_t)n_in * sizeof(hl_id), &copy));
    *out_node = (hl_node){.op = op,
                          .segment = graph->segment,
                          .fence = graph->fence,
                          .n_in = n_in,
                          .in = copy,
                          .scope = graph->scope,
                          .gradient_of = graph->gradient_of,
                          .checkpoint = graph->checkpoint};
    return HL_OK;
}

/* Room for its outputs. */
static hl_status make_room(hl_graph *graph, int32_t n_out)
{
    return hl_graph_grow(&graph->values, &graph->cap_values, graph->n_values, n_out,
                         sizeof(hl_value));
}

/* Outputs and their types, in graph->types. */
static hl_status infer_node(hl_graph *graph, hl_node *node)
{
    const hl_op_info *info = hl_op_get(node->op);
    hl_status status = HL_OK;
    node->n_out = info->n_out;
    if (info->n_out < 0) status = info->infer(graph, node, NULL);
    if (status != HL_OK) return explain_node(graph, node, status);
    HL_TRY(make_room(graph, node->n_out));
    HL_TRY(hl_graph_grow(&graph->types, &graph->cap_types, 0, node->n_out, sizeof(hl_type)));
    status = info->infer(graph, node, graph->types);
    for (int32_t j = 0; status == HL_OK && j < node->n_out; j++)
        status = hl_shape_check(&graph->types[j].shape, NULL);
    return status == HL_OK ? HL_OK : explain_node(graph, node, status);
}

hl_status hl_graph_add(hl_graph *graph, hl_op op, const hl_id *in, int32_t n_in,
                       const hl_attrs *attrs, hl_id *out_first)
{
    hl_node node;
    hl_status status = begin_node(graph, op, in, n_in, &node);
    *out_first = HL_NONE; /* only now: it may be where an operand stood */
    if (status != HL_OK) return status;
    if (!hl_op_get(op)->infer)
        return hl_status_set(HL_ERROR_INTERNAL, "%s: it must be added with its program, got none",
                             hl_op_get(op)->name);
    HL_TRY(check_operands(graph, &node));
    HL_TRY(fill_attrs(graph, &node, attrs));
    HL_TRY(infer_node(graph, &node));
    *out_first = is_identity(graph, &node, graph->types) ? node.in[0]
                                                         : append_node(graph, node, graph->types);
    return HL_OK;
}

hl_status hl_graph_add_program(hl_graph *graph, const hl_id *in, int32_t n_in,
                               const hl_program *program, const hl_type *out_types, int32_t n_out,
                               hl_id *out_first)
{
    hl_node node;
    hl_status status = begin_node(graph, HL_OP_POINTWISE_FUSED, in, n_in, &node);
    *out_first = HL_NONE;
    if (status != HL_OK) return status;
    HL_TRY(check_operands(graph, &node));
    HL_TRY(hl_program_check(program, graph, node.in, n_in, out_types, n_out));
    HL_TRY(make_room(graph, n_out));
    node.program = program;
    HL_TRY(own_programs(graph, &node));
    node.n_out = n_out;
    *out_first = append_node(graph, node, out_types);
    return HL_OK;
}

/* The types of an anchor's outputs; those given are of its programs. */
static hl_status infer_anchor(const hl_graph *graph, const hl_node *node, const hl_type *types,
                              hl_type *out_types)
{
    const hl_program *epilogue = node->program;
    for (int32_t j = 0; epilogue && j < epilogue->n_out; j++) out_types[j] = *types++;
    int32_t first = hl_node_prologue_out(node, 0);
    for (int32_t j = first; j < node->n_out; j++) out_types[j] = *types++;
    return hl_fusion_infer(graph, node, out_types);
}

hl_status hl_graph_add_anchor(hl_graph *graph, hl_op op, const hl_id *in, int32_t n_in,
                              const hl_attrs *attrs, const hl_fusion *fusion, const hl_type *types,
                              hl_id *out_first)
{
    hl_node node;
    hl_status status = begin_node(graph, op, in, n_in, &node);
    *out_first = HL_NONE;
    if (status != HL_OK) return status;
    node.program = fusion->epilogue;
    node.n_out = hl_op_get(op)->n_out + (node.program ? node.program->n_out - 1 : 0);
    for (int k = 0; k < HL_PROLOGUES; k++) {
        node.prologue[k] = fusion->prologue[k];
        if (node.prologue[k]) node.n_out += node.prologue[k]->n_out - 1;
    }
    HL_TRY(check_operands(graph, &node));
    HL_TRY(fill_attrs(graph, &node, attrs));
    HL_TRY(make_room(graph, node.n_out));
    HL_TRY(hl_graph_grow(&graph->types, &graph->cap_types, 0, node.n_out, sizeof(hl_type)));
    status = infer_anchor(graph, &node, types, graph->types);
    if (status != HL_OK) return explain_node(graph, &node, status);
    HL_TRY(own_programs(graph, &node));
    *out_first = append_node(graph, node, graph->types);
    return HL_OK;
}

hl_status hl_graph_repeat(hl_graph *graph, hl_node_id id, const hl_id *in, hl_id *out_first)
{
    hl_node node;
    int32_t n_out = graph->nodes[id].n_out;
    hl_status status = begin_node(graph, graph->nodes[id].op, in, graph->nodes[id].n_in, &node);
    *out_first = HL_NONE;
    if (status != HL_OK) return status;
    const hl_id *operands = node.in;
    HL_TRY(make_room(graph, n_out));
    HL_TRY(hl_graph_grow(&graph->types, &graph->cap_types, 0, n_out, sizeof(hl_type)));
    node = graph->nodes[id];
    for (int32_t j = 0; j < n_out; j++) graph->types[j] = graph->values[node.out + j].type;
    node.in = operands;
    *out_first = append_node(graph, node, graph->types);
    return HL_OK;
}

/* ---- copying a graph ------------------------------------------------------------------------- */

static hl_status clone_values(hl_graph *graph, const hl_graph *from)
{
    HL_TRY(hl_graph_grow(&graph->values, &graph->cap_values, 0, from->n_values, sizeof(hl_value)));
    for (int64_t i = 0; i < from->n_values; i++) {
        hl_value value = from->values[i];
        HL_TRY(hl_arena_strdup(&graph->arena, value.name, &value.name));
        if (value.kind == HL_VALUE_CONST)
            HL_TRY(
                hl_arena_copy(&graph->arena, value.data, hl_type_bytes(&value.type), &value.data));
        if (value.doubles) {
            const void *copy;
            hl_type as_double = {HL_DTYPE_F64, value.type.shape};
            HL_TRY(hl_arena_copy(&graph->arena, value.doubles, hl_type_bytes(&as_double), &copy));
            value.doubles = copy;
        }
        graph->values[graph->n_values++] = value;
    }
    return HL_OK;
}

static hl_status clone_nodes(hl_graph *graph, const hl_graph *from)
{
    HL_TRY(hl_graph_grow(&graph->nodes, &graph->cap_nodes, 0, from->n_nodes, sizeof(hl_node)));
    const char *scope_from = NULL, *scope_copy = NULL;
    for (int64_t i = 0; i < from->n_nodes; i++) {
        hl_node node = from->nodes[i];
        const void *copy;
        HL_TRY(hl_arena_copy(&graph->arena, node.in, (size_t)node.n_in * sizeof(hl_id), &copy));
        node.in = copy;
        HL_TRY(own_attrs(graph, &node));
        HL_TRY(own_programs(graph, &node));
        if (node.scope != scope_from) {
            scope_from = scope_copy = node.scope;
            HL_TRY(hl_arena_strdup(&graph->arena, scope_copy, &scope_copy));
        }
        node.scope = scope_copy;
        graph->nodes[graph->n_nodes++] = node;
    }
    return HL_OK;
}

static hl_status clone_lists(hl_graph *graph, const hl_graph *from)
{
    HL_TRY(hl_graph_grow(&graph->stores, &graph->cap_stores, 0, from->n_stores, sizeof(hl_store)));
    for (int64_t i = 0; i < from->n_stores; i++) {
        hl_store store = from->stores[i];
        HL_TRY(hl_arena_strdup(&graph->arena, store.name, &store.name));
        graph->stores[graph->n_stores++] = store;
    }
    HL_TRY(
        hl_graph_grow(&graph->commits, &graph->cap_commits, 0, from->n_commits, sizeof(hl_commit)));
    for (int64_t i = 0; i < from->n_commits; i++) graph->commits[i] = from->commits[i];
    graph->n_commits = from->n_commits;
    HL_TRY(hl_graph_grow(&graph->outputs, &graph->cap_outputs, 0, from->n_outputs, sizeof(hl_id)));
    for (int64_t i = 0; i < from->n_outputs; i++) graph->outputs[i] = from->outputs[i];
    graph->n_outputs = from->n_outputs;
    HL_TRY(hl_graph_grow(&graph->checkpoints, &graph->cap_checkpoints, 0, from->n_checkpoints,
                         sizeof *graph->checkpoints));
    for (int64_t i = 0; i < from->n_checkpoints; i++) graph->checkpoints[i] = from->checkpoints[i];
    graph->n_checkpoints = from->n_checkpoints;
    return hl_graph_scope(graph, from->scope);
}

/* All fields but the lists, which stay as they are: so a field that is added later is copied too.
 */
static void clone_settings(hl_graph *graph, const hl_graph *from)
{
    hl_graph own = *graph;
    *graph = *from;
    graph->arena = own.arena;
    graph->scope = own.scope;
#define KEEP(list)                                                                                 \
    graph->list = own.list, graph->n_##list = own.n_##list, graph->cap_##list = own.cap_##list
    KEEP(values);
    KEEP(nodes);
    KEEP(commits);
    KEEP(stores);
    KEEP(outputs);
    KEEP(checkpoints);
#undef KEEP
    graph->types = own.types;
    graph->cap_types = own.cap_types;
}

hl_status hl_graph_clone(const hl_graph *graph, hl_graph **out_graph)
{
    *out_graph = NULL;
    hl_graph *copy;
    HL_TRY(hl_graph_create(&copy));
    hl_status status;
    clone_settings(copy, graph);
    HL_GOTO(clone_values(copy, graph));
    HL_GOTO(clone_nodes(copy, graph));
    HL_GOTO(clone_lists(copy, graph));
    *out_graph = copy;
    copy = NULL;
cleanup:
    hl_graph_destroy(copy);
    return status;
}
/* ---- what a value is of: operands come first, so these loops end ----------------------------- */

hl_id hl_graph_viewed(const hl_graph *graph, hl_id id)
{
    for (;;) {
        hl_node_id node = hl_graph_producer(graph, id);
        if (node == HL_NONE || !(hl_op_get(graph->nodes[node].op)->flags & HL_OP_VIEW)) return id;
        id = graph->nodes[node].in[0];
    }
}

uint32_t hl_graph_form(const hl_graph *graph, hl_id id)
{
    return graph->values[hl_graph_viewed(graph, id)].form;
}

hl_id hl_graph_updated(const hl_graph *graph, hl_id id)
{
    for (;;) {
        const hl_value *value = &graph->values[id];
        if (value->kind == HL_VALUE_PARAM || value->kind == HL_VALUE_STATE) return id;
        if (value->kind != HL_VALUE_ACT) return HL_NONE;
        const hl_node *node = &graph->nodes[value->node];
        if (!(hl_op_get(node->op)->flags & HL_OP_UPDATES)) return HL_NONE;
        id = node->in[value->output];
    }
}
