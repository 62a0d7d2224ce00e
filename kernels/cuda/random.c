/* Launchers of random.cu. Double results are a pointwise program's (pointwise.c). */
#include <stdio.h>

#include "kernels/cuda/calls.h"

enum { COUNTER_ELEMENTS = 8 };

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
    int64_t n_samples = hl_shape_span(&type->shape, 0, first);
    int64_t per_sample = hl_shape_span(&type->shape, first, type->shape.rank);
    int64_t n_counters = (per_sample + COUNTER_ELEMENTS - 1) / COUNTER_ELEMENTS;
    hl_rng_key key = hl_pw_instr_of(node).key;
    char name[64];
    snprintf(name, sizeof name, "hl_cuda_%s_%s", hl_op_get(node->op)->name,
             hl_cuda_suffix(type->dtype));
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    hl_cuda_call_kernel(&calls, name, hl_cuda_shape_elements(device, n_samples * n_counters));
    hl_cuda_pass_out(&calls, 0);
    HL_CUDA_PASS(&calls, int64_t, n_samples);
    HL_CUDA_PASS(&calls, int64_t, per_sample);
    hl_cuda_pass_in(&calls, 0);
    HL_CUDA_PASS(&calls, uint32_t, key.word[0]);
    HL_CUDA_PASS(&calls, uint32_t, key.word[1]);
    if (node->op == HL_OP_DROPOUT_MASK) {
        HL_CUDA_PASS(&calls, uint32_t, hl_dropout_threshold(hl_dropout_mask_attrs(node)->p));
        HL_CUDA_PASS(&calls, float, (float)hl_dropout_scale(hl_dropout_mask_attrs(node)->p));
    }
    return hl_cuda_calls_end(&calls, out_state);
}

static const hl_kernel dropout_mask =
    HL_CUDA_KERNEL(DROPOUT_MASK, "dropout_mask", query_random, prepare_random);
static const hl_kernel uniform = HL_CUDA_KERNEL(UNIFORM, "uniform", query_random, prepare_random);

const hl_kernel *const hl_cuda_random_kernels[] = {&dropout_mask, &uniform, NULL};
