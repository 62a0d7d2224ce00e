/* Launchers of ctc.cu. */
#include "kernels/cuda/ctc.h"

#include "kernels/cuda/calls.h"

/* Where log_probs stand: behind the loss' gradient, or first. */
static int find_first(const hl_node *node)
{
    return node->op == HL_OP_CTC_LOSS_GRAD;
}

static hl_cuda_ctc_rule make_rule(const hl_graph *graph, const hl_node *node)
{
    int first = find_first(node);
    const hl_type *log_probs = hl_node_in_type(graph, node, first);
    const hl_type *targets = hl_node_in_type(graph, node, first + 1);
    return (hl_cuda_ctc_rule){
        .T = log_probs->shape.dim[0],
        .N = log_probs->shape.dim[1],
        .C = log_probs->shape.dim[2],
        .S = targets->shape.dim[1],
        .blank = hl_ctc_attrs(node)->blank,
        .target_dtype = (int32_t)targets->dtype,
        .input_dtype = (int32_t)hl_node_in_type(graph, node, first + 2)->dtype,
        .length_dtype = (int32_t)hl_node_in_type(graph, node, first + 3)->dtype,
        .zero_infinity = hl_ctc_attrs(node)->zero_infinity};
}

/* Of rows of places, behind which the chain lies. */
static size_t count_row_bytes(const hl_cuda_ctc_rule *rule)
{
    return (size_t)(3 * rule->N * (2 * rule->S + 1)) * sizeof(float);
}

static hl_status query_ctc(hl_device *device, const hl_graph *graph, hl_node_id id,
                           hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    bool is_grad = find_first(node);
    if (!hl_cuda_is_dtype(graph, node, 0, is_grad ? 2 : 1, HL_DTYPE_F32, out_why_not) ||
        (is_grad && !hl_cuda_is_dtype(graph, node, 5, 6, HL_DTYPE_F32, out_why_not)))
        return HL_ERROR_CONFIG;
    hl_cuda_ctc_rule rule = make_rule(graph, node);
    if (is_grad)
        out_req->scratch_bytes =
            count_row_bytes(&rule) + (size_t)(rule.N * rule.S) * sizeof(int32_t);
    out_req->deterministic = true;
    return HL_OK;
}

static hl_status prepare_ctc(hl_device *device, const hl_graph *graph, hl_node_id id,
                             hl_kernel_state *out_state)
{
    const hl_node *node = &graph->nodes[id];
    int first = find_first(node);
    hl_cuda_ctc_rule rule = make_rule(graph, node);
    hl_cuda_shape shape = hl_cuda_shape_blocks(device, rule.N, HL_CUDA_CTC_THREADS);
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    hl_cuda_ctc_at in = {hl_cuda_in(&calls, first),     hl_cuda_in(&calls, first + 1),
                         hl_cuda_in(&calls, first + 2), hl_cuda_in(&calls, first + 3),
                         hl_cuda_control_block(),       hl_cuda_fault_word(&calls)};
    if (rule.N > 0 && first)
        HL_CUDA_CALL(&calls, ctc_loss_grad, NULL, shape,
                     .at = {in, hl_cuda_in(&calls, 0), hl_cuda_in(&calls, 5), hl_cuda_scratch(0),
                            hl_cuda_scratch(count_row_bytes(&rule)), hl_cuda_out(&calls, 0)},
                     .rule = rule);
    else if (rule.N > 0)
        HL_CUDA_CALL(&calls, ctc_loss, NULL, shape,
                     .at = {in, hl_cuda_out(&calls, 0), hl_cuda_out(&calls, 1)}, .rule = rule);
    return hl_cuda_calls_end(&calls, out_state);
}

static const hl_kernel ctc_loss = HL_CUDA_KERNEL(CTC_LOSS, "ctc_loss", query_ctc, prepare_ctc);
static const hl_kernel ctc_loss_grad =
    HL_CUDA_KERNEL(CTC_LOSS_GRAD, "ctc_loss_grad", query_ctc, prepare_ctc);

const hl_kernel *const hl_cuda_ctc_kernels[] = {&ctc_loss, &ctc_loss_grad, NULL};
