/* Launchers of optim.cu: an optimizer is one launch over the whole flat buffer; the norm before it
 * is one over the gradient, in parts that depend on its size alone, and one that adds them up and
 * takes the control block on to apply where that follows. */
#include <stdio.h>

#include "kernels/cuda/calls.h"

enum { THREADS = 256, ELEMENTS = 4 /* of a block's tile for each thread, as in optim.cu */ };

/* in = param, states, grad, segments, grad_scale, lr, control. */
static hl_status query_optim(hl_device *device, const hl_graph *graph, hl_node_id id,
                             hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    int segments = node->n_out + 1;
    if (!hl_cuda_is_dtype(graph, node, 0, segments, HL_DTYPE_F32, out_why_not) ||
        !hl_cuda_is_dtype(graph, node, segments + 1, segments + 3, HL_DTYPE_F32, out_why_not))
        return HL_ERROR_CONFIG;
    out_req->deterministic = true;
    return HL_OK;
}

/* What an optimizer's kernel takes of its attributes. */
static void pass_attrs(hl_cuda_calls *calls, const hl_node *node)
{
    int n;
    const hl_attr_info *attrs = hl_schema_attrs(hl_op_get(node->op)->schema, &n);
    for (int i = 0; i < n; i++) {
        if (attrs[i].kind == HL_ATTR_float)
            HL_CUDA_PASS(calls, double, *hl_attrs_float(&node->attrs, &attrs[i]));
        else
            HL_CUDA_PASS(calls, int, (int)hl_attrs_int(&node->attrs, &attrs[i]));
    }
}

static hl_status prepare_optim(hl_device *device, const hl_graph *graph, hl_node_id id,
                               hl_kernel_state *out_state)
{
    const hl_node *node = &graph->nodes[id];
    int segments = node->n_out + 1;
    int64_t n = hl_shape_numel(&hl_node_in_type(graph, node, 0)->shape);
    int64_t tile = THREADS * ELEMENTS;
    char name[64];
    snprintf(name, sizeof name, "hl_cuda_%s", hl_op_get(node->op)->name);
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    hl_cuda_call_kernel(&calls, name, hl_cuda_shape_blocks(device, (n + tile - 1) / tile, THREADS));
    for (int i = 0; i < segments; i++) hl_cuda_pass_in(&calls, i);
    HL_CUDA_PASS(&calls, int64_t, n);
    hl_cuda_pass_in(&calls, segments);
    HL_CUDA_PASS(&calls, int64_t, hl_node_in_type(graph, node, segments)->shape.dim[0]);
    for (int i = segments + 1; i < node->n_in; i++) hl_cuda_pass_in(&calls, i);
    pass_attrs(&calls, node);
    hl_cuda_pass_is_apply(&calls);
    return hl_cuda_calls_end(&calls, out_state);
}

/* ---- the gradient's norm ---- */

/* Below the least part two blocks would take no less time than one. What one block of the most
 * threads reads in the time of a launch is not cut. */
enum { LEAST_PART = 8192, MOST_PARTS = 1024, ALONE = 32768, ALONE_THREADS = 1024 };

static int64_t count_parts(int64_t n, int64_t *out_part)
{
    int64_t part = n <= ALONE ? ALONE : (n + MOST_PARTS - 1) / MOST_PARTS;
    *out_part = part < LEAST_PART ? LEAST_PART : part;
    return n > 0 ? (n + *out_part - 1) / *out_part : 1;
}

static hl_status query_norm(hl_device *device, const hl_graph *graph, hl_node_id id,
                            hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    int64_t n = hl_shape_numel(&hl_node_in_type(graph, node, 0)->shape), part;
    int64_t n_parts = count_parts(n, &part);
    if (!hl_cuda_is_dtype(graph, node, 0, node->n_in, HL_DTYPE_F32, out_why_not))
        return HL_ERROR_CONFIG;
    out_req->scratch_bytes = n_parts > 1 ? (size_t)n_parts * sizeof(float) : 0;
    out_req->deterministic = true;
    return HL_OK;
}

/* next: the CONTROL_APPLY behind it, which then is the same launch; NULL: there is none. */
static hl_status prepare_norm_and(hl_device *device, const hl_graph *graph, hl_node_id id,
                                  const hl_node *next, hl_kernel_state *out_state)
{
    const hl_node *node = &graph->nodes[id];
    int64_t n = hl_shape_numel(&hl_node_in_type(graph, node, 0)->shape), part;
    int64_t n_parts = count_parts(n, &part);
    bool is_cut = n_parts > 1;
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    if (is_cut) {
        hl_cuda_shape shape = {{(unsigned)n_parts, 1, 1}, {THREADS, 1, 1}, 0};
        hl_cuda_call_kernel(&calls, "hl_cuda_gradient_norm_parts", shape);
        hl_cuda_pass_in(&calls, 0);
        HL_CUDA_PASS(&calls, int64_t, n);
        HL_CUDA_PASS(&calls, int64_t, part);
        hl_cuda_pass_scratch(&calls, 0);
    }
    hl_cuda_call_kernel(&calls, "hl_cuda_gradient_norm",
                        hl_cuda_shape_blocks(device, 1, ALONE_THREADS));
    hl_cuda_pass_place(&calls, (hl_cuda_place){is_cut ? HL_CUDA_SCRATCH : HL_CUDA_IN, 0});
    HL_CUDA_PASS(&calls, int64_t, is_cut ? n_parts : n);
    HL_CUDA_PASS(&calls, int, !is_cut);
    hl_cuda_pass_in(&calls, 1);
    hl_cuda_pass_in(&calls, 2);
    HL_CUDA_PASS(&calls, float, (float)hl_gradient_norm_attrs(node)->clip);
    hl_cuda_pass_out(&calls, 0);
    hl_cuda_pass_out(&calls, 1);
    for (int i = 0; i < 2; i++) { /* its inputs stand behind our outputs */
        if (next)
            hl_cuda_pass_out(&calls, node->n_out + i);
        else
            hl_cuda_pass_null(&calls);
    }
    HL_CUDA_PASS(&calls, int32_t, next ? (int32_t)hl_node_in_type(graph, next, 1)->dtype : 0);
    return hl_cuda_calls_end(&calls, out_state);
}

static hl_status prepare_norm(hl_device *device, const hl_graph *graph, hl_node_id id,
                              hl_kernel_state *out_state)
{
    return prepare_norm_and(device, graph, id, NULL, out_state);
}

static hl_status prepare_norm_next(hl_device *device, const hl_graph *graph, hl_node_id id,
                                   hl_node_id next, hl_kernel_state *out_state)
{
    return prepare_norm_and(device, graph, id, &graph->nodes[next], out_state);
}

static const hl_kernel gradient_norm = {.op = HL_OP_GRADIENT_NORM,
                                        .name = "cuda.gradient_norm",
                                        .query = query_norm,
                                        .prepare = prepare_norm,
                                        .prepare_next = prepare_norm_next,
                                        .next_op = HL_OP_CONTROL_APPLY,
                                        .launch = hl_cuda_calls_launch,
                                        .release = hl_cuda_calls_release};
static const hl_kernel sgd = HL_CUDA_KERNEL(SGD, "sgd", query_optim, prepare_optim);
static const hl_kernel adam = HL_CUDA_KERNEL(ADAM, "adam", query_optim, prepare_optim);
static const hl_kernel rmsprop = HL_CUDA_KERNEL(RMSPROP, "rmsprop", query_optim, prepare_optim);
static const hl_kernel lion = HL_CUDA_KERNEL(LION, "lion", query_optim, prepare_optim);

const hl_kernel *const hl_cuda_optim_kernels[] = {&gradient_norm, &sgd,  &adam,
                                                  &rmsprop,       &lion, NULL};
