/* Runs a whole graph on the reference device, node by node, without a plan: what tests of passes
 * and gradients are made of. Inputs are given by the number of their slot field. */
#ifndef TESTS_C_EVAL_H
#define TESTS_C_EVAL_H

#include <stdlib.h>

#include "backend/backend.h"
#include "kernels/ref/ref.h"
#include "tests/c/check.h"

typedef struct evaluation {
    hl_graph *graph;
    hl_device *device;
    void **data; /* by value */
    int64_t n;
} evaluation;

static inline hl_status eval_node(evaluation *e, hl_node_id id)
{
    enum { MAX_ARGS = 40 };
    const hl_node *node = &e->graph->nodes[id];
    hl_kernel_state state = {0};
    hl_kernel_req req;
    hl_launch launch = {.node = id, .segment = node->segment};
    void *args[MAX_ARGS];
    for (int32_t i = 0; i < node->n_in; i++) args[i] = e->data[node->in[i]];
    for (int32_t j = 0; j < node->n_out; j++) args[node->n_in + j] = e->data[node->out + j];
    HL_TRY(hl_kernel_select(e->device, e->graph, id, false, &state.kernel, &req));
    HL_TRY(state.kernel->prepare(e->device, e->graph, id, &state));
    launch.scratch = malloc(req.scratch_bytes + 1);
    hl_status status = state.kernel->launch(&state, args, &launch, NULL);
    free(launch.scratch);
    hl_free(state.impl);
    return status;
}

/* eval_end frees. inputs[f] are the bytes of slot field f. */
static inline hl_status eval_begin(evaluation *e, hl_graph *graph, void *const *inputs)
{
    *e = (evaluation){.graph = graph, .n = graph->n_values};
    e->data = calloc((size_t)graph->n_values, sizeof(void *));
    HL_TRY(hl_ref_backend()->device_open(hl_ref_backend(), 0, NULL, &e->device));
    for (int64_t v = 0; v < graph->n_values; v++) {
        const hl_value *value = &graph->values[v];
        size_t n = (size_t)hl_shape_numel(&value->type.shape);
        if (value->kind == HL_VALUE_INPUT)
            e->data[v] = inputs[value->store];
        else if (value->kind == HL_VALUE_CONST)
            e->data[v] = (void *)value->data;
        else
            e->data[v] = malloc(n * hl_dtype_bytes(value->type.dtype) + 1);
    }
    for (int64_t i = 0; i < graph->n_nodes; i++) HL_TRY(eval_node(e, (hl_node_id)i));
    return HL_OK;
}

static inline void eval_end(evaluation *e)
{
    for (int64_t v = 0; v < e->n; v++) {
        hl_value_kind kind = e->graph->values[v].kind;
        if (kind != HL_VALUE_INPUT && kind != HL_VALUE_CONST) free(e->data[v]);
    }
    free(e->data);
    if (e->device) e->device->ops->destroy(e->device);
}

#endif
