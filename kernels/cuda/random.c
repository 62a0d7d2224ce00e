/* Launchers of random.cu. Double results are a pointwise program's (pointwise.c). */
#include "kernels/cuda/random.h"

#include "kernels/cuda/calls.h"

static hl_status query_random(hl_device *device, const hl_graph *graph, hl_node_id id,
                              hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    hl_dtype dtype = hl_node_out_type(graph, &graph->nodes[id], 0)->dtype;
    if (!hl_cuda_suffix(dtype))
        return hl_reason_set(out_why_not, "makes float32, bfloat16 or float16, asked for %s",
                             hl_dtype_name(dtype));
    out_req->deterministic = true;
    return HL_OK;
}

static hl_status prepare_random(hl_device *device, const hl_graph *graph, hl_node_id id,
                                hl_kernel_state *out_state)
{
    const hl_node *node = &graph->nodes[id];
    const hl_type *type = hl_node_out_type(graph, node, 0);
    int first = type->shape.rank > 0;
    hl_rng_key key = hl_pw_instr_make(node).key;
    hl_cuda_draws draws = {.n_samples = hl_shape_span(&type->shape, 0, first),
                           .per_sample = hl_shape_span(&type->shape, first, type->shape.rank),
                           .key = {key.word[0], key.word[1]}};
    int64_t n_counters =
        (draws.per_sample + HL_CUDA_COUNTER_ELEMENTS - 1) / HL_CUDA_COUNTER_ELEMENTS;
    hl_cuda_shape shape = hl_cuda_shape_elements(device, draws.n_samples * n_counters);
    const char *suffix = hl_cuda_suffix(type->dtype);
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    hl_cuda_word y = hl_cuda_out(&calls, 0), control = hl_cuda_in(&calls, 0);
    if (node->op == HL_OP_DROPOUT_MASK)
        HL_CUDA_CALL(&calls, dropout_mask, suffix, shape, .at = {y, control}, .draws = draws,
                     .threshold = hl_dropout_threshold(hl_dropout_mask_attrs(node)->p),
                     .scale = (float)hl_dropout_scale(hl_dropout_mask_attrs(node)->p));
    else
        HL_CUDA_CALL(&calls, uniform, suffix, shape, .at = {y, control}, .draws = draws);
    return hl_cuda_calls_end(&calls, out_state);
}

static const hl_kernel dropout_mask =
    HL_CUDA_KERNEL(DROPOUT_MASK, "dropout_mask", query_random, prepare_random);
static const hl_kernel uniform = HL_CUDA_KERNEL(UNIFORM, "uniform", query_random, prepare_random);

const hl_kernel *const hl_cuda_random_kernels[] = {&dropout_mask, &uniform, NULL};
