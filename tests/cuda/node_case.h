/* One node on the emulated GPU: its kernel is chosen, prepared and autotuned, then launched,
 * replayed from a capture, and launched with its output over each input that the kernel allows. All
 * runs must give the same bits, which the test then compares with what it knows.
 *
 * Around every operand lie guards, which read as NaN, as scratch and outputs do; inputs stay as
 * they were; attributes' names are gone by the launch, as they are in a plan. A failure is a
 * status, so that a test can fail any call of it. */
#ifndef TESTS_CUDA_NODE_CASE_H
#define TESTS_CUDA_NODE_CASE_H

#include <stdlib.h>

#include "ir/graph.h"
#include "tests/c/element.h"
#include "tests/cuda/fake_device.h"
#include "tests/cuda/upload.h"

enum { NODE_ARGS = 48, NODE_GUARD = 256, NODE_CONTROL = NODE_ARGS, NODE_SCRATCH, NODE_BUFFERS };

typedef struct node_case {
    hl_device *device;
    hl_graph *graph;
    hl_node_id node;
    bool deterministic;
    size_t shift; /* operands lie so many bytes off from where they would lie aligned */
    hl_control control, control_after;
    const hl_kernel *kernel;
    int n_in, n_args;
    int over[NODE_BUFFERS]; /* the buffer that an operand lies in: its own, or another's */
    size_t bytes[NODE_BUFFERS];
    void *at[NODE_BUFFERS];
    void *host[NODE_BUFFERS]; /* inputs as the test fills them, outputs as the device left them */
} node_case;

static inline hl_type node_type(const node_case *c, int arg)
{
    const hl_node *node = &c->graph->nodes[c->node];
    hl_id id = arg < node->n_in ? node->in[arg] : node->out + arg - node->n_in;
    return c->graph->values[id].type;
}

static inline hl_status node_alloc(node_case *c, int v, size_t bytes)
{
    c->bytes[v] = bytes;
    c->over[v] = v;
    return c->device->ops->memory_alloc(c->device, bytes + 3 * (size_t)NODE_GUARD, &c->at[v]);
}

/* Operands of the graph's last node, zeros; the test fills host[] and may set the fields above it,
 * but for the sizes. */
static inline void node_begin(node_case *c, hl_device *device, hl_graph *graph)
{
    *c = (node_case){.device = device, .graph = graph, .node = (hl_node_id)graph->n_nodes - 1};
    const hl_node *node = &graph->nodes[c->node];
    c->deterministic = true;
    c->n_in = node->n_in, c->n_args = node->n_in + node->n_out;
    for (int v = 0; v < c->n_args; v++) {
        hl_type type = node_type(c, v);
        CHECK_OK(node_alloc(c, v, hl_type_bytes(&type)));
        c->host[v] = calloc(1, c->bytes[v] + 1);
    }
    CHECK_OK(node_alloc(c, NODE_CONTROL, sizeof c->control));
}

/* The graph stays the test's. */
static inline void node_end(node_case *c)
{
    for (int v = 0; v < NODE_BUFFERS; v++) {
        c->device->ops->memory_free(c->device, c->at[v]);
        free(c->host[v]);
    }
}

/* Where a buffer begins in its memory: a plan aligns scratch. */
static inline size_t node_begin_of(const node_case *c, int v)
{
    return NODE_GUARD + (v == NODE_SCRATCH ? 0 : c->shift);
}
static inline unsigned char *node_arg(const node_case *c, int v)
{
    return (unsigned char *)c->at[c->over[v]] + node_begin_of(c, v);
}

/* Fills a buffer and its guards; from NULL: all of it is NaN. */
static inline hl_status node_put(const node_case *c, int v, const void *from)
{
    const hl_device_ops *ops = c->device->ops;
    size_t total = c->bytes[v] + 3 * (size_t)NODE_GUARD;
    unsigned char *image = malloc(total);
    memset(image, 0xFF, total);
    if (from) memcpy(image + node_begin_of(c, v), from, c->bytes[v]);
    hl_status status = ops->copy(c->device, c->at[v], image, total, HL_COPY_HOST_TO_DEVICE, NULL);
    if (status == HL_OK) status = ops->synchronize(c->device, NULL);
    free(image);
    return status;
}

/* Looks at the guards of a buffer and reads its first bytes: of what lies over it, which may be
 * smaller. */
static inline hl_status node_take(const node_case *c, int v, void *to, size_t bytes)
{
    const hl_device_ops *ops = c->device->ops;
    size_t begin = node_begin_of(c, v), end = begin + c->bytes[v];
    size_t total = c->bytes[v] + 3 * (size_t)NODE_GUARD;
    unsigned char *image = malloc(total);
    hl_status status = ops->copy(c->device, image, c->at[v], total, HL_COPY_DEVICE_TO_HOST, NULL);
    if (status == HL_OK) status = ops->synchronize(c->device, NULL);
    if (status != HL_OK) (void)ops->synchronize(c->device, NULL); /* what was queued writes it */
    for (size_t i = 0; i < total && status == HL_OK; i++) {
        if ((i >= begin && i < end) || image[i] == 0xFF) continue;
        check_fail(__FILE__, __LINE__, "buffer %d: byte %d beside it was written", v,
                   (int)(i < begin ? i - begin : i - end));
        break;
    }
    CHECK(bytes <= c->bytes[v]);
    if (status == HL_OK) memcpy(to, image + begin, bytes);
    free(image);
    return status;
}

static inline hl_status node_launch(const node_case *c, const hl_kernel_state *state,
                                    void *const *args, const hl_launch *launch, bool captured)
{
    const hl_device_ops *ops = c->device->ops;
    hl_capture *capture = NULL;
    if (captured) HL_TRY(ops->capture_begin(c->device, NULL));
    hl_status status = c->kernel->launch(state, args, launch, NULL);
    if (captured) {
        hl_status ended = ops->capture_end(c->device, NULL, &capture);
        if (status == HL_OK) status = ended;
        if (status == HL_OK) status = ops->capture_launch(c->device, capture, NULL);
    }
    if (status == HL_OK) status = ops->synchronize(c->device, NULL);
    ops->capture_destroy(c->device, capture);
    return status;
}

/* Reads everything back: inputs under nobody are as they were. */
static inline hl_status node_read(node_case *c)
{
    bool is_changed[NODE_BUFFERS] = {false};
    for (int v = c->n_in; v < c->n_args; v++) {
        is_changed[c->over[v]] = true;
        if (c->over[v] != NODE_CONTROL) HL_TRY(node_take(c, c->over[v], c->host[v], c->bytes[v]));
    }
    for (int v = 0; v < c->n_in; v++) {
        if (c->over[v] != v || is_changed[v]) continue;
        void *now = malloc(c->bytes[v] + 1);
        hl_status status = node_take(c, v, now, c->bytes[v]);
        if (status == HL_OK) CHECK(memcmp(now, c->host[v], c->bytes[v]) == 0);
        free(now);
        HL_TRY(status);
    }
    HL_TRY(node_take(c, NODE_SCRATCH, c->host[NODE_SCRATCH], c->bytes[NODE_SCRATCH]));
    return node_take(c, NODE_CONTROL, &c->control_after, sizeof c->control_after);
}

static inline hl_status node_fill(const node_case *c)
{
    for (int v = 0; v < c->n_args; v++)
        if (c->over[v] == v) HL_TRY(node_put(c, v, v < c->n_in ? c->host[v] : NULL));
    HL_TRY(node_put(c, NODE_SCRATCH, NULL));
    return node_put(c, NODE_CONTROL, &c->control);
}

/* Once, on fresh operands; tunes it first if asked, as a plan does before its first launch. */
static inline hl_status node_run_once(node_case *c, const hl_kernel_state *state, bool tuned,
                                      bool captured)
{
    hl_launch launch = {.scratch = node_arg(c, NODE_SCRATCH),
                        .control = (hl_control *)node_arg(c, NODE_CONTROL),
                        .node = c->node,
                        .segment = c->graph->nodes[c->node].segment};
    void *args[NODE_ARGS];
    for (int v = 0; v < c->n_args; v++) args[v] = node_arg(c, v);
    HL_TRY(node_fill(c));
    if (tuned && c->kernel->tune) {
        HL_TRY(c->kernel->tune(state, args, &launch, NULL));
        HL_TRY(node_fill(c));
    }
    HL_TRY(node_launch(c, state, args, &launch, captured));
    return node_read(c);
}

/* One more run, which must give the bits of the last one. */
static inline hl_status node_repeat(node_case *c, const hl_kernel_state *state, bool captured)
{
    void *first[NODE_ARGS];
    hl_control control = c->control_after;
    for (int v = c->n_in; v < c->n_args; v++) {
        first[v] = malloc(c->bytes[v] + 1);
        memcpy(first[v], c->host[v], c->bytes[v]);
    }
    hl_status status = node_run_once(c, state, false, captured);
    for (int v = c->n_in; v < c->n_args; v++) {
        if (status == HL_OK && memcmp(first[v], c->host[v], c->bytes[v]) != 0)
            check_fail(__FILE__, __LINE__, "output %d: other bits %s buffer %d", v - c->n_in,
                       captured ? "captured, in" : "in", c->over[v]);
        free(first[v]);
    }
    if (status == HL_OK) CHECK(memcmp(&control, &c->control_after, sizeof control) == 0);
    return status;
}

/* Each output over each input that the kernel allows, where the test has laid nothing over
 * anything.
 */
static inline hl_status node_run_in_place(node_case *c, const hl_kernel_state *state,
                                          const hl_kernel_req *req)
{
    for (int v = c->n_in; v < c->n_args; v++)
        if (c->over[v] != v) return HL_OK;
    for (int v = c->n_in; v < c->n_args; v++)
        for (int in = 0; in < c->n_in; in++) {
            if (!hl_kernel_takes_place(req, in, v - c->n_in)) continue;
            c->over[v] = in;
            hl_status status = node_repeat(c, state, false);
            c->over[v] = v;
            HL_TRY(status);
        }
    return HL_OK;
}

/* Everything the head of this file promises. */
static inline hl_status node_run(node_case *c)
{
    hl_kernel_req req = {0};
    HL_TRY(hl_kernel_select(c->device, c->graph, c->node, c->deterministic, &c->kernel, &req));
    HL_TRY(node_alloc(c, NODE_SCRATCH, req.scratch_bytes));
    c->host[NODE_SCRATCH] = malloc(req.scratch_bytes + 1);
    hl_kernel_state state = {.kernel = c->kernel};
    HL_TRY(c->kernel->prepare(c->device, c->graph, c->node, &state));
    hl_status status = upload_state(c->device, &state);
    if (status == HL_OK) status = node_run_once(c, &state, true, false);
    if (status == HL_OK) status = node_repeat(c, &state, true);
    if (status == HL_OK) status = node_run_in_place(c, &state, &req);
    release_state(c->device, &state);
    return status;
}

#endif
