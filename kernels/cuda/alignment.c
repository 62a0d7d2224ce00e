/* How operands are aligned: libraries are told before anything has an address. */
#include "kernels/cuda/alignment.h"

#include "base/alloc.h"

/* The largest power of two that divides both. */
static int64_t common_power(int64_t a, int64_t b)
{
    int64_t bits = a | b;
    return bits & -bits;
}

static int64_t align_made(const hl_device *device, const hl_graph *graph, hl_id value, int depth);

/* Planning lays what a node joins where its result, or the store that it updates, wants it. */
static int64_t align_in_user(const hl_device *device, const hl_graph *graph, const hl_node *user,
                             hl_id value, int depth)
{
    int64_t offset = 0, least = (int64_t)device->alignment, align;
    int32_t first;
    if (hl_op_get(user->op)->flags & HL_OP_VIEW)
        return align_made(device, graph, user->out, depth + 1);
    if (!hl_node_joins(graph, user, &first, &align)) return least;
    align *= (int64_t)hl_dtype_bytes(hl_graph_dtype(graph, user->out));
    for (int32_t j = first; j < user->n_in; j++) {
        offset = hl_round_up(offset, align);
        if (user->in[j] == value) least = common_power(least, offset);
        offset += (int64_t)hl_type_bytes(&graph->values[user->in[j]].type);
    }
    int64_t whole = first ? hl_cuda_alignment(device, graph, user->in[0])
                          : align_made(device, graph, user->out, depth + 1);
    return common_power(least, whole);
}

enum { MAX_DEPTH = 8 };

static int64_t align_made(const hl_device *device, const hl_graph *graph, hl_id value, int depth)
{
    int64_t align = (int64_t)device->alignment;
    if (depth > MAX_DEPTH) return (int64_t)hl_dtype_bytes(hl_graph_dtype(graph, value));
    for (int64_t i = 0; i < graph->n_nodes; i++) {
        const hl_node *user = &graph->nodes[i];
        for (int32_t j = 0; j < user->n_in; j++)
            if (user->in[j] == value)
                align = common_power(align, align_in_user(device, graph, user, value, depth));
    }
    return align;
}

/* A parameter that is cast may lie in its rounded copy instead (passes/rounded.c), which later
 * passes decide. Fused or not, a cast has one answer: kernels are asked at several times. */
static int64_t align_cast(const hl_device *device, const hl_graph *graph, const hl_value *value)
{
    int64_t least = (int64_t)device->alignment;
    if (value->node == HL_NONE) return least;
    const hl_node *node = &graph->nodes[value->node];
    const hl_program *program = node->op == HL_OP_POINTWISE_FUSED ? node->program : NULL;
    bool is_cast = program ? program->n_code == 2 && program->code[1].op == HL_PW_CAST
                           : node->op == HL_OP_CAST;
    if (!is_cast || node->n_in != 1) return least;
    const hl_value *from = hl_graph_value(graph, node->in[0]);
    if (from->kind != HL_VALUE_PARAM) return least;
    return common_power(least, from->offset * (int64_t)hl_dtype_bytes(value->type.dtype));
}

uint32_t hl_cuda_alignment(const hl_device *device, const hl_graph *graph, hl_id id)
{
    const hl_value *value = hl_graph_value(graph, id);
    while (value->kind == HL_VALUE_ACT && value->node != HL_NONE &&
           hl_op_get(graph->nodes[value->node].op)->flags & (HL_OP_VIEW | HL_OP_UPDATES)) {
        id = graph->nodes[value->node].in[value->output];
        value = hl_graph_value(graph, id);
    }
    int64_t bytes = (int64_t)hl_dtype_bytes(value->type.dtype);
    switch (value->kind) {
    case HL_VALUE_ACT:
        return (uint32_t)common_power(align_made(device, graph, id, 0),
                                      align_cast(device, graph, value));
    case HL_VALUE_PARAM:
    case HL_VALUE_STATE:
        return (uint32_t)common_power((int64_t)device->alignment, value->offset * bytes);
    default: return HL_ALIGN;
    }
}
