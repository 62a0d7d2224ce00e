/* Launchers of optim.cu: an optimizer is one launch over the whole flat buffer, which writes the
 * parameters' 16-bit copies too where an ASSIGN of them follows; the norm before it is one over the
 * gradient, in parts that depend on its size alone, and one that adds them up and takes the control
 * block on to apply where that follows. */
#include "kernels/cuda/optim.h"

#include "kernels/cuda/calls.h"

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

static void call_sgd(hl_cuda_calls *calls, hl_cuda_shape shape, const hl_cuda_optim_at *all,
                     const hl_cuda_optim_size *size, const hl_attrs_sgd *attrs)
{
    HL_CUDA_CALL(calls, sgd, NULL, shape, .at = {*all, .buffer = hl_cuda_in(calls, 1)},
                 .size = *size, .momentum = attrs->momentum, .dampening = attrs->dampening,
                 .nesterov = attrs->nesterov);
}

static void call_adam(hl_cuda_calls *calls, hl_cuda_shape shape, const hl_cuda_optim_at *all,
                      const hl_cuda_optim_size *size, const hl_attrs_adam *attrs)
{
    HL_CUDA_CALL(calls, adam, NULL, shape,
                 .at = {*all, .m = hl_cuda_in(calls, 1), .v = hl_cuda_in(calls, 2)}, .size = *size,
                 .beta1 = attrs->beta1, .beta2 = attrs->beta2, .eps = attrs->eps,
                 .decoupled = attrs->decoupled);
}

static void call_rmsprop(hl_cuda_calls *calls, hl_cuda_shape shape, const hl_cuda_optim_at *all,
                         const hl_cuda_optim_size *size, const hl_attrs_rmsprop *attrs)
{
    HL_CUDA_CALL(calls, rmsprop, NULL, shape,
                 .at = {*all, .square = hl_cuda_in(calls, 1), .buffer = hl_cuda_in(calls, 2),
                        .average = hl_cuda_in(calls, 3)},
                 .size = *size, .alpha = attrs->alpha, .eps = attrs->eps,
                 .momentum = attrs->momentum, .centered = attrs->centered);
}

static void call_lion(hl_cuda_calls *calls, hl_cuda_shape shape, const hl_cuda_optim_at *all,
                      const hl_cuda_optim_size *size, const hl_attrs_lion *attrs)
{
    HL_CUDA_CALL(calls, lion, NULL, shape, .at = {*all, .m = hl_cuda_in(calls, 1)}, .size = *size,
                 .beta1 = attrs->beta1, .beta2 = attrs->beta2);
}

/* The ASSIGN of the parameter to its rounded copy. What no segment covers keeps its bits in both.
 */
static bool takes_copy(const hl_graph *graph, hl_node_id id, hl_node_id next)
{
    const hl_node *node = &graph->nodes[id], *update = &graph->nodes[next];
    if (update->op != HL_OP_ASSIGN || update->in[1] != node->out) return false;
    const hl_value *copy = hl_graph_value(graph, update->in[0]);
    const hl_value *param = hl_graph_value(graph, node->in[0]);
    bool is_stored = copy->kind == HL_VALUE_STATE && param->kind == HL_VALUE_PARAM;
    return is_stored && graph->stores[copy->store].source == param->store &&
           copy->offset == param->offset && hl_dtype_is_16_bit(copy->type.dtype);
}

/* next: such an ASSIGN behind it; HL_NONE: there is none. */
static hl_status prepare_optim_and(hl_device *device, const hl_graph *graph, hl_node_id id,
                                   hl_node_id next, hl_kernel_state *out_state)
{
    const hl_node *node = &graph->nodes[id];
    int segments = node->n_out + 1;
    hl_cuda_optim_size size = {
        .n = hl_shape_numel(&hl_node_in_type(graph, node, 0)->shape),
        .n_segments = hl_node_in_type(graph, node, segments)->shape.dim[0],
        .is_apply = node->segment == HL_SEGMENT_APPLY,
    };
    int64_t tile = HL_CUDA_OPTIM_THREADS * HL_CUDA_OPTIM_ELEMENTS;
    hl_cuda_shape shape =
        hl_cuda_shape_blocks(device, (size.n + tile - 1) / tile, HL_CUDA_OPTIM_THREADS);
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    hl_cuda_optim_at all = {
        .param = hl_cuda_in(&calls, 0),
        .grad = hl_cuda_in(&calls, segments - 1),
        .segments = hl_cuda_in(&calls, segments),
        .grad_scale = hl_cuda_in(&calls, segments + 1),
        .lr = hl_cuda_in(&calls, segments + 2),
        .control = hl_cuda_in(&calls, segments + 3),
    };
    if (next != HL_NONE) { /* its inputs stand behind our outputs */
        all.copy = hl_cuda_out(&calls, node->n_out);
        size.is_f16 = hl_node_in_type(graph, &graph->nodes[next], 0)->dtype == HL_DTYPE_F16;
    }
    if (node->op == HL_OP_SGD)
        call_sgd(&calls, shape, &all, &size, hl_sgd_attrs(node));
    else if (node->op == HL_OP_ADAM)
        call_adam(&calls, shape, &all, &size, hl_adam_attrs(node));
    else if (node->op == HL_OP_RMSPROP)
        call_rmsprop(&calls, shape, &all, &size, hl_rmsprop_attrs(node));
    else
        call_lion(&calls, shape, &all, &size, hl_lion_attrs(node));
    return hl_cuda_calls_end(&calls, out_state);
}

static hl_status prepare_optim(hl_device *device, const hl_graph *graph, hl_node_id id,
                               hl_kernel_state *out_state)
{
    return prepare_optim_and(device, graph, id, HL_NONE, out_state);
}

/* ---- the gradient's norm --------------------------------------------------------------------- */

/* Every part begins where a vector may. Below the least part two blocks would take no less time
 * than one. What one block of the most threads reads in the time of a launch is not cut. */
enum { MIN_PART = 8192, MAX_PARTS = 1024, ALONE = 32768 };

static int64_t count_parts(int64_t n, int64_t *out_part)
{
    int64_t part = n <= ALONE ? ALONE : (n + MAX_PARTS - 1) / MAX_PARTS;
    *out_part = hl_round_up(part < MIN_PART ? MIN_PART : part, HL_CUDA_OPTIM_ELEMENTS);
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
        hl_cuda_shape parts = {{(unsigned)n_parts, 1, 1}, {HL_CUDA_OPTIM_THREADS, 1, 1}, 0};
        HL_CUDA_CALL(&calls, gradient_norm_parts, NULL, parts, .at.grad = hl_cuda_in(&calls, 0),
                     .at.sums = hl_cuda_scratch(0), .n = n, .part = part);
    }
    hl_cuda_gradient_norm_params params = {
        .at.x = is_cut ? hl_cuda_scratch(0) : hl_cuda_in(&calls, 0),
        .at.factor = hl_cuda_in(&calls, 1),
        .at.scale = hl_cuda_in(&calls, 2),
        .at.out_square = hl_cuda_out(&calls, 0),
        .at.out_factor = hl_cuda_out(&calls, 1),
        .n = is_cut ? n_parts : n,
        .clip = (float)hl_gradient_norm_attrs(node)->clip,
        .is_square = !is_cut,
    };
    if (next) { /* its inputs stand behind our outputs */
        params.at.control = hl_cuda_out(&calls, node->n_out);
        params.at.next_square = hl_cuda_out(&calls, node->n_out + 1);
        params.next_dtype = (int32_t)hl_node_in_type(graph, next, 1)->dtype;
        params.beta1 = hl_betas_attrs(next)->beta1, params.beta2 = hl_betas_attrs(next)->beta2;
    }
    hl_cuda_shape one = hl_cuda_shape_blocks(device, 1, HL_CUDA_NORM_ALONE_THREADS);
    HL_CUDA_CALL_WITH(&calls, gradient_norm, NULL, one, &params);
    return hl_cuda_calls_end(&calls, out_state);
}

static hl_status prepare_norm(hl_device *device, const hl_graph *graph, hl_node_id id,
                              hl_kernel_state *out_state)
{
    return prepare_norm_and(device, graph, id, NULL, out_state);
}

static bool takes_decision(const hl_graph *graph, hl_node_id id, hl_node_id next)
{
    const hl_node *decision = &graph->nodes[next];
    return decision->op == HL_OP_CONTROL_APPLY && decision->in[1] == graph->nodes[id].out;
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
                                        .takes_next = takes_decision,
                                        .launch = hl_cuda_calls_launch,
                                        .release = hl_cuda_calls_release};

#define OPTIMIZER(OP, text)                                                                        \
    {.op = HL_OP_##OP,                                                                             \
     .name = "cuda." text,                                                                         \
     .query = query_optim,                                                                         \
     .prepare = prepare_optim,                                                                     \
     .prepare_next = prepare_optim_and,                                                            \
     .takes_next = takes_copy,                                                                     \
     .launch = hl_cuda_calls_launch,                                                               \
     .release = hl_cuda_calls_release}
static const hl_kernel sgd = OPTIMIZER(SGD, "sgd");
static const hl_kernel adam = OPTIMIZER(ADAM, "adam");
static const hl_kernel rmsprop = OPTIMIZER(RMSPROP, "rmsprop");
static const hl_kernel lion = OPTIMIZER(LION, "lion");

const hl_kernel *const hl_cuda_optim_kernels[] = {&gradient_norm, &sgd,  &adam,
                                                  &rmsprop,       &lion, NULL};
