/* Launchers of control.cu: transitions of the control block, guarded updates. */
#include "kernels/cuda/control.h"

#include "kernels/cuda/calls.h"

_Static_assert((int)HL_CUDA_UPDATES == (int)HL_KERNEL_HORIZONTAL, "all fit");

/* ---- transitions ----------------------------------------------------------------------------- */

/* The block's scalars are float32 or float64; a loss or a norm may be of any floating type. */
static hl_status query_control(hl_device *device, const hl_graph *graph, hl_node_id id,
                               hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    hl_dtype dtype = node->op == HL_OP_CONTROL_BEGIN ? hl_dtype_attrs(node)->dtype : HL_DTYPE_F32;
    if (dtype != HL_DTYPE_F32 && dtype != HL_DTYPE_F64)
        return hl_reason_set(out_why_not, "needs float32 or float64, got %s", hl_dtype_name(dtype));
    out_req->deterministic = true;
    return HL_OK;
}

void hl_cuda_list_control(hl_cuda_calls *calls, const hl_graph *graph, hl_node_id id)
{
    const hl_node *node = &graph->nodes[id];
    const hl_type *operand = hl_node_in_type(graph, node, 1);
    int32_t dtype = (int32_t)operand->dtype;
    hl_cuda_shape one = hl_cuda_shape_blocks(calls->device, 1, HL_CUDA_CONTROL_THREADS);
    hl_cuda_word control = hl_cuda_in(calls, 0), in = hl_cuda_in(calls, 1);
    if (node->op == HL_OP_CONTROL_BEGIN)
        HL_CUDA_CALL(calls, control_begin, NULL, one, .at.control = control, .at.tables = in,
                     .n_scalars = operand->shape.dim[0], .n_steps = operand->shape.dim[1],
                     .is_f64 = hl_dtype_attrs(node)->dtype == HL_DTYPE_F64);
    else if (node->op == HL_OP_CONTROL_MICRO)
        HL_CUDA_CALL(calls, control_micro, NULL, one, .at.control = control, .at.loss = in,
                     .rows = hl_rows_attrs(node)->rows, .loss_dtype = dtype);
    else
        HL_CUDA_CALL(calls, control_apply, NULL, one, .at.control = control, .at.sumsq = in,
                     .beta1 = hl_betas_attrs(node)->beta1, .beta2 = hl_betas_attrs(node)->beta2,
                     .sumsq_dtype = dtype);
}

static hl_status prepare_control(hl_device *device, const hl_graph *graph, hl_node_id id,
                                 hl_kernel_state *out_state)
{
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    hl_cuda_list_control(&calls, graph, id);
    return hl_cuda_calls_end(&calls, out_state);
}

/* ---- updates: the state's memory is the output's --------------------------------------------- */

static hl_status query_update(hl_device *device, const hl_graph *graph, hl_node_id id,
                              hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    hl_dtype state = hl_node_in_type(graph, node, 0)->dtype;
    if (node->op == HL_OP_EMA && !hl_dtype_is_float(state))
        return hl_reason_set(out_why_not, "needs a floating average, got %s", hl_dtype_name(state));
    out_req->deterministic = true;
    return HL_OK;
}

static hl_cuda_update make_update(const hl_graph *graph, const hl_node *node)
{
    const hl_type *state = hl_node_in_type(graph, node, 0);
    hl_cuda_update update = {.n = hl_shape_numel(&state->shape),
                             .kind = node->op == HL_OP_ASSIGN       ? HL_CUDA_ASSIGN
                                     : node->op == HL_OP_ACCUMULATE ? HL_CUDA_ACCUMULATE
                                                                    : HL_CUDA_EMA,
                             .state_dtype = (int32_t)state->dtype,
                             .value_dtype = (int32_t)hl_node_in_type(graph, node, 1)->dtype};
    if (node->op == HL_OP_EMA) {
        update.decay = hl_ema_attrs(node)->decay;
        update.ramp = hl_ema_attrs(node)->ramp;
        update.take = hl_ema_attrs(node)->take;
    }
    return update;
}

static hl_status prepare_updates(hl_device *device, const hl_graph *graph, const hl_node_id *ids,
                                 int32_t n, hl_kernel_state *out_state)
{
    hl_cuda_update_states_params params = {
        .n_updates = n, .is_apply = graph->nodes[ids[0]].segment == HL_SEGMENT_APPLY};
    int64_t most = 0;
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, ids[0]);
    params.at.control = hl_cuda_in(&calls, 2);
    for (int32_t u = 0; u < n; u++) {
        params.of[u] = make_update(graph, &graph->nodes[ids[u]]);
        if (params.of[u].n > most) most = params.of[u].n;
    }
    for (int32_t k = 0; k < n * HL_CUDA_UPDATE_ARGS; k++) params.at.operand[k] = hl_cuda_arg(k);
    HL_CUDA_CALL_WITH(&calls, update_states, NULL, hl_cuda_shape_nodes(device, most, n), &params);
    return hl_cuda_calls_end(&calls, out_state);
}

static hl_status prepare_update(hl_device *device, const hl_graph *graph, hl_node_id id,
                                hl_kernel_state *out_state)
{
    return prepare_updates(device, graph, &id, 1, out_state);
}

static const hl_kernel begin =
    HL_CUDA_KERNEL_IN_SEQUENCE(CONTROL_BEGIN, "control_begin", query_control, prepare_control);
static const hl_kernel micro =
    HL_CUDA_KERNEL_IN_SEQUENCE(CONTROL_MICRO, "control_micro", query_control, prepare_control);
static const hl_kernel apply =
    HL_CUDA_KERNEL_IN_SEQUENCE(CONTROL_APPLY, "control_apply", query_control, prepare_control);

#define UPDATE(OP, text)                                                                           \
    HL_CUDA_KERNEL_HORIZONTAL(OP, text, query_update, prepare_update, prepare_updates)
static const hl_kernel assign = UPDATE(ASSIGN, "assign");
static const hl_kernel accumulate = UPDATE(ACCUMULATE, "accumulate");
static const hl_kernel ema = UPDATE(EMA, "ema");

const hl_kernel *const hl_cuda_control_kernels[] = {&begin,      &micro, &apply, &assign,
                                                    &accumulate, &ema,   NULL};
