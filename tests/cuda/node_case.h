/* One node on the emulated GPU: its kernel is chosen, prepared, launched and captured, between
 * guards; the bits of a replay are those of the launch. The test compares them with its own sums in
 * double. */
#ifndef TESTS_CUDA_NODE_CASE_H
#define TESTS_CUDA_NODE_CASE_H

#include <stdlib.h>

#include "base/half.h"
#include "ir/graph.h"
#include "tests/c/check.h"
#include "tests/cuda/fake_table.h"

enum { NODE_ARGS = 12, NODE_GUARD = 256 };

typedef struct node_case {
    hl_device *device;
    hl_graph *graph;
    hl_node_id node;
    const hl_kernel *kernel;
    int n_args;
    size_t bytes[NODE_ARGS];
    void *at[NODE_ARGS];   /* device memory, a guard before and behind */
    void *host[NODE_ARGS]; /* inputs as the test fills them, outputs as the device left them */
} node_case;

static inline double node_load(const void *from, hl_dtype dtype, int64_t i)
{
    switch (dtype) {
    case HL_DTYPE_BF16: return (double)hl_bf16_to_f32(((const uint16_t *)from)[i]);
    case HL_DTYPE_F16: return (double)hl_f16_to_f32(((const uint16_t *)from)[i]);
    case HL_DTYPE_U8: return ((const uint8_t *)from)[i];
    default: return (double)((const float *)from)[i];
    }
}

static inline void node_store(void *to, hl_dtype dtype, int64_t i, double value)
{
    switch (dtype) {
    case HL_DTYPE_BF16: ((uint16_t *)to)[i] = hl_f32_to_bf16((float)value); break;
    case HL_DTYPE_F16: ((uint16_t *)to)[i] = hl_f32_to_f16((float)value); break;
    case HL_DTYPE_U8: ((uint8_t *)to)[i] = (uint8_t)value; break;
    default: ((float *)to)[i] = (float)value; break;
    }
}

static inline hl_type node_type(const node_case *c, int arg)
{
    const hl_node *node = &c->graph->nodes[c->node];
    hl_id id = arg < node->n_in ? node->in[arg] : node->out + arg - node->n_in;
    return c->graph->values[id].type;
}

/* Operands of the graph's last node, zeros; the test fills host[]. */
static inline void node_begin(node_case *c, hl_device *device, hl_graph *graph)
{
    *c = (node_case){.device = device, .graph = graph, .node = (hl_node_id)graph->n_nodes - 1};
    const hl_node *node = &graph->nodes[c->node];
    c->n_args = node->n_in + node->n_out;
    for (int i = 0; i < c->n_args; i++) {
        hl_type type = node_type(c, i);
        c->bytes[i] = hl_type_bytes(&type);
        c->host[i] = calloc(1, c->bytes[i] + 2 * NODE_GUARD);
        CHECK_OK(device->ops->memory_alloc(device, c->bytes[i] + 2 * NODE_GUARD, &c->at[i]));
    }
}

/* As a plan does before the first launch. */
static inline hl_status node_tune(node_case *c, const hl_kernel_state *state, void *scratch)
{
    hl_launch launch = {.scratch = scratch, .node = c->node, .segment = HL_SEGMENT_MICRO};
    void *args[NODE_ARGS];
    for (int i = 0; i < c->n_args; i++) args[i] = (char *)c->at[i] + NODE_GUARD;
    return c->kernel->tune ? c->kernel->tune(state, args, &launch, NULL) : HL_OK;
}

/* Runs once, alone or within a capture, and reads all operands back. */
static inline hl_status node_run_once(node_case *c, const hl_kernel_state *state, void *scratch,
                                      bool captured)
{
    hl_device *device = c->device;
    const hl_device_ops *ops = device->ops;
    hl_launch launch = {.scratch = scratch, .node = c->node, .segment = HL_SEGMENT_MICRO};
    void *args[NODE_ARGS];
    int n_in = c->graph->nodes[c->node].n_in;
    hl_status status = HL_OK;
    for (int i = 0; i < c->n_args && status == HL_OK; i++) {
        size_t total = c->bytes[i] + 2 * NODE_GUARD;
        unsigned char *image = malloc(total);
        memset(image, 0xA5, total);
        memset(image + NODE_GUARD, 0xFF, c->bytes[i]);
        if (i < n_in) memcpy(image + NODE_GUARD, c->host[i], c->bytes[i]);
        status = ops->copy(device, c->at[i], image, total, HL_COPY_HOST_TO_DEVICE, NULL);
        if (status == HL_OK) status = ops->synchronize(device, NULL);
        free(image);
        args[i] = (char *)c->at[i] + NODE_GUARD;
    }
    hl_capture *capture = NULL;
    captured = captured && status == HL_OK;
    if (captured) status = ops->capture_begin(device, NULL);
    bool begun = captured && status == HL_OK;
    if (status == HL_OK) status = c->kernel->launch(state, args, &launch, NULL);
    if (begun) {
        hl_status ended = ops->capture_end(device, NULL, &capture);
        if (status == HL_OK) status = ended;
        if (status == HL_OK) status = ops->capture_launch(device, capture, NULL);
    }
    if (status == HL_OK) status = ops->synchronize(device, NULL);
    ops->capture_destroy(device, capture);
    for (int i = 0; i < c->n_args && status == HL_OK; i++) {
        size_t total = c->bytes[i] + 2 * NODE_GUARD;
        unsigned char *image = malloc(total);
        status = ops->copy(device, image, c->at[i], total, HL_COPY_DEVICE_TO_HOST, NULL);
        if (status == HL_OK) status = ops->synchronize(device, NULL);
        if (status != HL_OK) (void)ops->synchronize(device, NULL); /* what was queued writes it */
        for (int g = 0; g < NODE_GUARD && status == HL_OK; g++)
            CHECK(image[g] == 0xA5 && image[NODE_GUARD + c->bytes[i] + (size_t)g] == 0xA5);
        if (status == HL_OK && i < n_in)
            CHECK(memcmp(image + NODE_GUARD, c->host[i], c->bytes[i]) == 0);
        else if (status == HL_OK)
            memcpy(c->host[i], image + NODE_GUARD, c->bytes[i]);
        free(image);
    }
    return status;
}

/* Alone, then by a replay: the same bits. */
static inline hl_status node_run(node_case *c)
{
    hl_device *device = c->device;
    hl_kernel_req req = {0};
    void *scratch = NULL;
    HL_TRY(hl_kernel_select(device, c->graph, c->node, true, &c->kernel, &req));
    hl_kernel_state state = {.kernel = c->kernel};
    HL_TRY(device->ops->memory_alloc(device, req.scratch_bytes, &scratch));
    hl_status status = c->kernel->prepare(device, c->graph, c->node, &state);
    void *first[NODE_ARGS] = {NULL};
    if (status == HL_OK) {
        status = node_tune(c, &state, scratch);
        if (status == HL_OK) status = node_run_once(c, &state, scratch, false);
        for (int i = 0; i < c->n_args; i++) {
            first[i] = malloc(c->bytes[i] + 1);
            memcpy(first[i], c->host[i], c->bytes[i]);
        }
        if (status == HL_OK) status = node_run_once(c, &state, scratch, true);
        for (int i = 0; i < c->n_args; i++) {
            if (status == HL_OK) CHECK(memcmp(first[i], c->host[i], c->bytes[i]) == 0);
            free(first[i]);
        }
        c->kernel->release(&state);
    }
    device->ops->memory_free(device, scratch);
    return status;
}

/* The graph stays the test's. */
static inline void node_end(node_case *c)
{
    for (int i = 0; i < c->n_args; i++) {
        c->device->ops->memory_free(c->device, c->at[i]);
        free(c->host[i]);
    }
}

#endif
