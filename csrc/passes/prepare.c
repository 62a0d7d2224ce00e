/* Passes that bring a graph into the form a device runs: element type, loop-invariant work,
 * lowering, packing. */
#include <string.h>

#include "base/alloc.h"
#include "passes/passes.h"
#include "passes/rewrite.h"

static hl_status reshape_to(hl_graph *graph, hl_id value, const hl_shape *shape, hl_id *out_value)
{
    hl_attrs attrs = {.n_dims = shape->rank};
    for (int32_t d = 0; d < shape->rank; d++) attrs.dims[d] = shape->dim[d];
    return hl_graph_add(graph, HL_OP_RESHAPE, &value, 1, &attrs, out_value);
}

/* ---- float64 --------------------------------------------------------------------------------- */

static bool is_other_float(hl_dtype dtype)
{
    return hl_dtype_is_float(dtype) && dtype != HL_DTYPE_F64;
}

/* The values before they were rounded, where they are known. */
static hl_status widen_const(hl_graph *graph, hl_value *value)
{
    int64_t n = hl_shape_numel(&value->type.shape);
    if (!value->wide && value->type.dtype != HL_DTYPE_F32)
        return hl_status_set(HL_ERROR_TRACE, "float64: constants must be float32, got %s",
                             hl_dtype_name(value->type.dtype));
    void *data;
    HL_TRY(hl_arena_alloc(&graph->arena, (size_t)(n ? n : 1) * sizeof(double), &data));
    for (int64_t i = 0; i < n; i++)
        ((double *)data)[i] = value->wide ? value->wide[i] : ((const float *)value->data)[i];
    value->data = data;
    return HL_OK;
}

hl_status hl_pass_double(hl_graph *graph)
{
    graph->float_dtype = HL_DTYPE_F64;
    for (int64_t i = 0; i < graph->n_values; i++) {
        hl_value *value = &graph->values[i];
        /* A resident array keeps its own type; BATCH_GATHER converts. */
        if (value->kind == HL_VALUE_SOURCE || !is_other_float(value->type.dtype)) continue;
        if (value->kind == HL_VALUE_CONST) HL_TRY(widen_const(graph, value));
        value->type.dtype = HL_DTYPE_F64;
    }
    for (int64_t i = 0; i < graph->n_stores; i++)
        if (is_other_float(graph->stores[i].dtype)) graph->stores[i].dtype = HL_DTYPE_F64;
    for (int64_t i = 0; i < graph->n_nodes; i++) {
        char kind;
        int slot;
        hl_node *node = &graph->nodes[i];
        if (hl_op_attr_slot(node->op, "dtype", &kind, &slot) &&
            is_other_float((hl_dtype)node->attrs.i[slot]))
            node->attrs.i[slot] = HL_DTYPE_F64;
    }
    return HL_OK;
}

/* ---- hoisting -------------------------------------------------------------------------------- */

/* A constant, or a parameter that only the optimizer changes. */
static bool is_fixed(const hl_graph *graph, const hl_value *value)
{
    if (value->kind != HL_VALUE_PARAM) return value->kind == HL_VALUE_CONST;
    for (int64_t i = 0; i < graph->n_commits; i++)
        if (graph->commits[i].segment == HL_SEGMENT_MICRO &&
            hl_graph_value(graph, graph->commits[i].target)->store == value->store)
            return false;
    return true;
}

static bool is_invariant(const hl_graph *graph, hl_id id)
{
    const hl_value *value = hl_graph_value(graph, id);
    if (value->kind == HL_VALUE_ACT) return graph->nodes[value->node].segment == HL_SEGMENT_BEGIN;
    return is_fixed(graph, value);
}

hl_status hl_pass_hoist(hl_graph *graph)
{
    for (int64_t i = 0; i < graph->n_nodes; i++) {
        hl_node *node = &graph->nodes[i];
        uint32_t flags = hl_op_get(node->op)->flags;
        if (node->segment != HL_SEGMENT_MICRO || flags & (HL_OP_GUARDED | HL_OP_RANDOM)) continue;
        bool invariant = true;
        for (int32_t j = 0; j < node->n_in; j++) invariant &= is_invariant(graph, node->in[j]);
        if (invariant) node->segment = HL_SEGMENT_BEGIN;
    }
    return hl_rewrite_sort(graph);
}

/* ---- guards ---------------------------------------------------------------------------------- */

/* The control block as the segment's guards must see it: after its CONTROL node where there is one.
 */
static hl_status find_guard(hl_graph *graph, hl_segment segment, hl_id *out_guard)
{
    static const hl_op last[HL_SEGMENT_COUNT] = {HL_OP_CONTROL_BEGIN, HL_OP_CONTROL_MICRO,
                                                 HL_OP_CONTROL_APPLY};
    *out_guard = HL_NONE;
    for (int64_t i = 0; i < graph->n_nodes; i++)
        if (graph->nodes[i].op == last[segment]) {
            *out_guard = graph->nodes[i].out;
            return HL_OK;
        }
    return hl_graph_control(graph, out_guard);
}

/* A commit of another commit's target (two states that change places) would have each update wait
 * for the other: it takes a copy, which is made before either. */
static bool is_overwritten(const hl_graph *graph, int64_t commit, hl_id value)
{
    const hl_value *v = hl_graph_value(graph, value);
    while (v->kind == HL_VALUE_ACT && hl_op_get(graph->nodes[v->node].op)->flags & HL_OP_VIEW)
        v = hl_graph_value(graph, graph->nodes[v->node].in[0]);
    if (v->kind != HL_VALUE_PARAM && v->kind != HL_VALUE_STATE) return false;
    for (int64_t i = 0; i < graph->n_commits; i++)
        if (i != commit && graph->commits[i].segment == graph->commits[commit].segment &&
            hl_graph_value(graph, graph->commits[i].target)->store == v->store)
            return true;
    return false;
}

static hl_status copy_value(hl_graph *graph, hl_id *value)
{
    hl_shape shape = *hl_graph_shape(graph, *value), flat = hl_shape_1d(hl_shape_numel(&shape));
    hl_attrs axis = {.i = {0}};
    HL_TRY(reshape_to(graph, *value, &flat, value));
    HL_TRY(hl_graph_add(graph, HL_OP_CONCAT, value, 1, &axis, value));
    return reshape_to(graph, *value, &shape, value);
}

hl_status hl_pass_guard(hl_graph *graph)
{
    for (int64_t i = 0; i < graph->n_commits; i++) {
        hl_commit commit = graph->commits[i];
        const hl_value *value = hl_graph_value(graph, commit.value);
        if (value->kind == HL_VALUE_ACT &&
            hl_op_get(graph->nodes[value->node].op)->flags & HL_OP_GUARDED &&
            graph->nodes[value->node].in[value->output] == commit.target)
            continue;
        hl_id in[3] = {commit.target, commit.value};
        HL_TRY(find_guard(graph, commit.segment, &in[2]));
        graph->segment = commit.segment;
        graph->scope = NULL;
        if (is_overwritten(graph, i, in[1])) HL_TRY(copy_value(graph, &in[1]));
        HL_TRY(hl_graph_add(graph, commit.added ? HL_OP_ACCUMULATE : HL_OP_ASSIGN, in, 3, NULL,
                            &graph->commits[i].value));
        graph->commits[i].added = false;
    }
    return hl_rewrite_sort(graph);
}

/* ---- lowering -------------------------------------------------------------------------------- */

static hl_status make_identity_map(const hl_graph *graph, hl_id **out_map)
{
    HL_TRY(hl_alloc((size_t)graph->n_values * sizeof **out_map, (void **)out_map));
    for (int64_t v = 0; v < graph->n_values; v++) (*out_map)[v] = (hl_id)v;
    return HL_OK;
}

enum { MOST_ROUNDS = 8, MOST_LOWERED_OUTS = 4 };

/* One sweep; the ops that a lowering made are seen by the next. */
static hl_status lower_once(hl_graph *graph, hl_device *device, bool *out_changed)
{
    hl_id *map = NULL;
    int64_t n_map = graph->n_values, n_nodes = graph->n_nodes;
    *out_changed = false;
    hl_status status = HL_OK;
    HL_GOTO(make_identity_map(graph, &map));
    for (int64_t i = 0; i < n_nodes; i++) {
        hl_node node = graph->nodes[i];
        const hl_op_info *op = hl_op_get(node.op);
        const hl_kernel *kernel;
        hl_kernel_req req;
        hl_id out[MOST_LOWERED_OUTS];
        if (!op->lower) continue;
        HL_GOTO(hl_kernel_find(device, graph, (hl_node_id)i, &kernel, &req));
        if (kernel) continue;
        graph->segment = node.segment;
        graph->scope = node.scope;
        HL_GOTO(op->lower(graph, (hl_node_id)i, out));
        for (int32_t j = 0; j < node.n_out; j++) map[node.out + j] = out[j];
        *out_changed = true;
    }
    if (*out_changed) {
        hl_rewrite_replace(graph, map, n_map);
        HL_GOTO(hl_rewrite_sort(graph));
    }
cleanup:
    hl_free(map);
    return status;
}

hl_status hl_pass_lower(hl_graph *graph, hl_device *device)
{
    bool changed = true;
    for (int round = 0; changed && round < MOST_ROUNDS; round++)
        HL_TRY(lower_once(graph, device, &changed));
    return HL_OK;
}

/* ---- packing --------------------------------------------------------------------------------- */

/* A matrix that was only rounded is packed from where it lies: rounding and packing are one pass.
 */
static hl_id skip_rounding(const hl_graph *graph, hl_id matrix)
{
    const hl_value *value = hl_graph_value(graph, matrix);
    if (value->kind != HL_VALUE_ACT || graph->nodes[value->node].op != HL_OP_CAST) return matrix;
    hl_id from = graph->nodes[value->node].in[0];
    bool rounds = value->type.dtype == HL_DTYPE_BF16 || value->type.dtype == HL_DTYPE_F16;
    return rounds && hl_graph_dtype(graph, from) == HL_DTYPE_F32 ? from : matrix;
}

/* One packed copy per matrix, orientation and type. */
static hl_status find_pack(hl_graph *graph, hl_id matrix, int64_t trans, hl_dtype dtype,
                           hl_segment segment, hl_id *out_pack)
{
    for (int64_t i = 0; i < graph->n_nodes; i++) {
        const hl_node *node = &graph->nodes[i];
        if (node->op == HL_OP_MATMUL_PACK && node->in[0] == matrix && node->attrs.i[0] == trans &&
            node->attrs.i[1] == (int64_t)dtype) {
            *out_pack = node->out;
            return HL_OK;
        }
    }
    hl_attrs attrs = {.i = {trans, dtype}};
    graph->segment = segment;
    return hl_graph_add(graph, HL_OP_MATMUL_PACK, &matrix, 1, &attrs, out_pack);
}

/* The RELU that alone reads this value, or HL_NONE. */
static hl_node_id find_only_relu(const hl_graph *graph, const hl_uses *uses, hl_id value)
{
    if (value >= graph->n_values || uses->kept[value] || hl_uses_count(uses, value) != 1)
        return HL_NONE;
    hl_node_id user = uses->list[uses->start[value]];
    return graph->nodes[user].op == HL_OP_RELU ? user : HL_NONE;
}

static hl_status pack_matmul(hl_graph *graph, const hl_uses *uses, hl_node_id id, hl_id *map)
{
    hl_node node = graph->nodes[id];
    hl_shape a = *hl_graph_shape(graph, node.in[0]), b = *hl_graph_shape(graph, node.in[1]);
    hl_shape out = *hl_graph_shape(graph, node.out);
    int64_t trans_b = node.attrs.i[1], k = a.dim[a.rank - 1], n = out.dim[out.rank - 1];
    hl_dtype dtype = hl_graph_dtype(graph, node.in[1]);
    hl_id in[3], packed, from = skip_rounding(graph, node.in[1]);
    const hl_value *matrix = hl_graph_value(graph, from);
    hl_segment segment = node.segment;
    if (is_fixed(graph, matrix))
        segment = HL_SEGMENT_BEGIN;
    else if (matrix->kind == HL_VALUE_ACT)
        segment = graph->nodes[matrix->node].segment;
    (void)b;
    graph->scope = node.scope;
    HL_TRY(find_pack(graph, from, trans_b, dtype, segment, &in[1]));
    graph->segment = node.segment;
    hl_shape a2 = hl_shape_2d(hl_shape_span(&a, 0, a.rank - 1), k);
    HL_TRY(reshape_to(graph, node.in[0], &a2, &in[0]));
    if (node.n_in == 3) in[2] = node.in[2];
    hl_node_id relu = find_only_relu(graph, uses, node.out);
    hl_attrs attrs = {.i = {n, relu != HL_NONE, node.attrs.i[2]}};
    HL_TRY(hl_graph_add(graph, HL_OP_MATMUL_PACKED, in, node.n_in, &attrs, &packed));
    HL_TRY(reshape_to(graph, packed, &out, &packed));
    map[node.out] = packed;
    if (relu != HL_NONE) map[graph->nodes[relu].out] = packed;
    return HL_OK;
}

hl_status hl_pass_pack(hl_graph *graph, hl_device *device)
{
    if (!device->packs) return HL_OK;
    hl_uses uses;
    hl_id *map = NULL;
    int64_t n_map = graph->n_values, n_nodes = graph->n_nodes;
    HL_TRY(hl_uses_init(graph, &uses));
    hl_status status = HL_OK;
    HL_GOTO(make_identity_map(graph, &map));
    for (int64_t i = 0; i < n_nodes; i++) {
        const hl_node *node = &graph->nodes[i];
        if (node->op != HL_OP_MATMUL || node->attrs.i[0]) continue;
        if (hl_graph_shape(graph, node->in[1])->rank != 2 ||
            hl_graph_shape(graph, node->in[0])->rank < 2)
            continue;
        HL_GOTO(pack_matmul(graph, &uses, (hl_node_id)i, map));
    }
    hl_rewrite_replace(graph, map, n_map);
    HL_GOTO(hl_rewrite_sort(graph));
cleanup:
    hl_uses_deinit(&uses);
    hl_free(map);
    return status;
}
