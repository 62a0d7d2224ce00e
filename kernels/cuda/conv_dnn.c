/* Convolutions by cuDNN, their gradients, and pointwise work behind them.
 *
 * Channels that do not stand last are asked for. cuDNN's plans (dnn_plans.h) say whether it can,
 * how, and with how much workspace. It reads weights in the order (O,kernel,C/groups), hotloop
 * keeps torch's (O,C/groups,kernel): where the two differ a transposition by way of scratch stands
 * before the convolution, or behind it where it makes the weight's gradient, which is then widened
 * too. A batch norm's statistics come as sums, of which a kernel makes mean and variance.
 *
 * Before the first launch one plan is chosen (tune.c). That also loads the library's kernels, which
 * a capture forbids. Where none will do, the convolution is refused from then on (refusals.h) and
 * hotloop's plan made again, with hotloop's own kernels (conv.c). */
#include <string.h>

#include "kernels/cuda/calls.h"
#include "kernels/cuda/conv_dnn.h"
#include "kernels/cuda/copy.h"
#include "kernels/cuda/dnn_conv.h"
#include "kernels/cuda/internal.h"

typedef struct conv_state {
    hl_tuned tuned; /* first */
    const hl_cudnn *dnn;
    hl_dnn_conv conv, bare;
    const hl_dnn_plans *plans,
        *bare_plans;                   /* bare: without the node's programs; while it is tuned */
    hl_kernel_state before, behind;    /* own kernels around the library's; impl NULL: none */
    int packed;                        /* which of the three tensors lies in scratch, or -1 */
    size_t sums, sums_bytes;           /* of channels, then of squares; behind the packed weight */
    size_t workspace, workspace_bytes; /* behind them */
} conv_state;

/* ---- query, prepare -------------------------------------------------------------------------- */

static const hl_tuned_ops tuned_ops;

static hl_status find_bare(conv_state *state, hl_reason *out_why_not)
{
    const hl_tuned *tuned = &state->tuned;
    state->bare = hl_dnn_conv_bare(&state->conv);
    hl_dnn_question question = hl_dnn_conv_question(tuned->device, &state->bare);
    return hl_dnn_plans_find(tuned->device, &question, tuned->deterministic, tuned->benchmark,
                             &state->bare_plans, out_why_not);
}

/* All but own kernels. An activation is tuned with a weight that is NaN: that needs a place of its
 * own. */
static hl_status begin_state(hl_device *device, const hl_graph *graph, hl_node_id id,
                             conv_state *state, hl_reason *out_why_not)
{
    hl_tuned *tuned = &state->tuned;
    *state = (conv_state){.packed = -1};
    hl_tuned_init(device, graph, id, &tuned_ops, tuned);
    HL_TRY(hl_cudnn_get(device, &state->dnn, out_why_not));
    if (!hl_dnn_conv_make(device, graph, id, &state->conv, out_why_not)) return HL_ERROR_CONFIG;
    hl_dnn_question question = hl_dnn_conv_question(device, &state->conv);
    tuned->problem = question.problem;
    HL_TRY(hl_dnn_plans_find(device, &question, tuned->deterministic, tuned->benchmark,
                             &state->plans, out_why_not));
    tuned->n_algos = state->plans->n;
    state->packed = hl_dnn_conv_packed(&state->conv);
    if (state->packed >= 0 || state->conv.activation)
        state->sums =
            (size_t)hl_round_up(hl_dnn_conv_weight_bytes(&state->conv), (int64_t)device->alignment);
    if (state->conv.has_sums)
        state->sums_bytes =
            (size_t)hl_round_up(hl_dnn_conv_sums_bytes(&state->conv), (int64_t)device->alignment);
    state->workspace = state->sums + 2 * state->sums_bytes;
    state->workspace_bytes = hl_dnn_plans_workspace(state->plans);
    if (!tuned->benchmark || !state->conv.apart_bytes) return HL_OK;
    /* Tuning compares with the plans without programs, which need their room too: no more than the
     * node would take without programs. */
    hl_status status = find_bare(state, out_why_not);
    if (status != HL_OK) return status == HL_ERROR_CONFIG ? HL_OK : status;
    size_t bare_bytes = hl_dnn_plans_workspace(state->bare_plans);
    if (bare_bytes > state->workspace_bytes) state->workspace_bytes = bare_bytes;
    state->bare_plans = NULL;
    return HL_OK;
}

static hl_status query_conv(hl_device *device, const hl_graph *graph, hl_node_id id,
                            hl_kernel_req *out_req, hl_reason *out_why_not)
{
    const hl_node *node = &graph->nodes[id];
    conv_state state;
    HL_TRY(begin_state(device, graph, id, &state, out_why_not));
    out_req->deterministic = true;
    out_req->scratch_bytes = hl_tuned_scratch_bytes(&state.tuned);
    if (state.workspace + state.workspace_bytes > out_req->scratch_bytes)
        out_req->scratch_bytes = state.workspace + state.workspace_bytes;
    if (!hl_conv_attrs(node)->channels_last)
        out_req->order = hl_order_channels(hl_graph_shape(graph, node->in[0])->rank, true);
    return HL_OK;
}

/* (O,M,N) in args or scratch to (O,N,M) in the other. */
static void call_pack(hl_cuda_calls *calls, const conv_state *state)
{
    const hl_dnn_conv *c = &state->conv;
    int64_t n_taps = hl_window_span(c->conv.window.kernel), in = c->conv.C / c->conv.groups;
    bool is_result = state->packed == 2;
    int64_t B = c->conv.O, M = is_result ? n_taps : in, N = is_result ? in : n_taps;
    int64_t tile = HL_CUDA_TRANSPOSE_TILE;
    hl_cuda_word weight = is_result ? hl_cuda_out(calls, 0) : hl_cuda_in(calls, 1),
                 scratch = hl_cuda_scratch(0);
    cudnnDataType_t type = is_result ? c->result : c->operand;
    if (c->widens) {
        HL_CUDA_CALL(calls, conv_widen, type == CUDNN_DATA_HALF ? "f16" : "bf16",
                     hl_cuda_shape_elements(calls->device, B * M * N), .at = {scratch, weight},
                     .O = B, .M = M, .N = N);
        return;
    }
    HL_CUDA_CALL(
        calls, transpose, type == CUDNN_DATA_FLOAT ? "4" : "2",
        hl_cuda_shape_blocks(calls->device, B * ((M + tile - 1) / tile) * ((N + tile - 1) / tile),
                             HL_CUDA_TRANSPOSE_THREADS),
        .at = {is_result ? scratch : weight, is_result ? weight : scratch}, .B = B, .M = M, .N = N);
}

/* Outputs 1 and 2 of the sums. */
static void call_moments(hl_cuda_calls *calls, const hl_graph *graph, const hl_node *node,
                         const conv_state *state)
{
    const hl_type *x = hl_node_out_type(graph, node, 0);
    hl_cuda_conv_moments_params p = {.at.x = hl_cuda_out(calls, 0),
                                     .at.sums = hl_cuda_scratch(state->sums),
                                     .at.squares = hl_cuda_scratch(state->sums + state->sums_bytes),
                                     .at.mean = hl_cuda_out(calls, 1),
                                     .at.var = hl_cuda_out(calls, 2),
                                     .C = x->shape.dim[x->shape.rank - 1]};
    p.R = hl_shape_numel(&x->shape) / p.C;
    hl_cuda_shape shape = hl_cuda_shape_coop_groups(calls->device, p.C, p.R, &p.by_block);
    HL_CUDA_CALL_WITH(calls, conv_moments, hl_cuda_suffix(x->dtype), shape, &p);
}

static hl_status prepare_conv(hl_device *device, const hl_graph *graph, hl_node_id id,
                              hl_kernel_state *out_state)
{
    hl_reason why_not = {""};
    conv_state *state;
    HL_TRY(hl_alloc_zero(sizeof *state, (void **)&state));
    hl_status status;
    HL_GOTO(begin_state(device, graph, id, state, &why_not));
    if (state->packed >= 0) {
        hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
        call_pack(&calls, state);
        HL_GOTO(hl_cuda_calls_end(&calls, state->packed == 2 ? &state->behind : &state->before));
    }
    if (state->conv.has_sums) {
        hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
        call_moments(&calls, graph, &graph->nodes[id], state);
        HL_GOTO(hl_cuda_calls_end(&calls, &state->behind));
    }
    out_state->impl = state;
    state = NULL;
cleanup:
    if (state) hl_cuda_calls_release(&state->before);
    if (state) hl_cuda_calls_release(&state->behind);
    hl_free(state);
    if (status == HL_ERROR_CONFIG)
        status = hl_status_set(HL_ERROR_DEVICE, "cuDNN: must do what it said it could, got %s",
                               why_not.text);
    return status;
}

static void release_conv(hl_kernel_state *kernel_state)
{
    conv_state *state = kernel_state->impl;
    if (state) hl_cuda_calls_release(&state->before);
    if (state) hl_cuda_calls_release(&state->behind);
    hl_free(state);
}

/* ---- launch ---------------------------------------------------------------------------------- */

static hl_dnn_places find_places(const conv_state *state, const hl_dnn_conv *conv,
                                 const hl_tuned_place *place, bool weight_in_scratch)
{
    hl_dnn_places places = {0};
    for (int i = 0; i < 3; i++) {
        bool in_scratch = i == state->packed || (i == 1 && weight_in_scratch);
        hl_dnn_place(&places, HL_DNN_FIRST + i,
                     in_scratch ? place->launch->scratch
                                : place->args[i < 2 ? i : state->tuned.n_in]);
    }
    char *sums = (char *)place->launch->scratch + state->sums;
    if (conv->has_sums) {
        hl_dnn_place(&places, HL_DNN_SUMS, sums);
        hl_dnn_place(&places, HL_DNN_SQUARES, sums + state->sums_bytes);
    }
    for (int i = 0; i < conv->n_steps; i++)
        if (conv->step[i].arg >= 0)
            hl_dnn_place(&places, HL_DNN_BESIDE + i, place->args[conv->step[i].arg]);
    return places;
}

/* A weight of NaN, in the place of the packed one. */
static hl_status fill_nan(const conv_state *state, const hl_tuned_place *place)
{
    hl_device *device = state->tuned.device;
    const hl_cuda_driver *driver = hl_cuda_device_driver(device);
    HL_TRY(hl_cuda_enter(device));
    hl_status status =
        hl_cuda_check(device,
                      driver->cuMemsetD8Async((CUdeviceptr)(uintptr_t)place->launch->scratch, 0xFF,
                                              (size_t)hl_dnn_conv_weight_bytes(&state->conv),
                                              hl_cuda_stream_handle(device, place->stream)),
                      "filling a weight");
    hl_cuda_leave(device);
    return status;
}

static hl_status launch_plan(const conv_state *state, const hl_tuned_place *place, bool bare,
                             int which, bool is_nan, bool *out_refused)
{
    const hl_dnn_conv *conv = bare ? &state->bare : &state->conv;
    const hl_dnn_plans *plans = bare ? state->bare_plans : state->plans;
    hl_dnn_places places = find_places(state, conv, place, is_nan);
    *out_refused = false;
    if (is_nan)
        HL_TRY(fill_nan(state, place));
    else if (state->before.impl)
        HL_TRY(hl_cuda_calls_launch(&state->before, place->args, place->launch, place->stream));
    HL_TRY(hl_dnn_plan_run(state->tuned.device, &plans->plan[which], &places,
                           (char *)place->launch->scratch + state->workspace, place->stream,
                           out_refused));
    if (!state->behind.impl || (bare && state->conv.has_sums)) return HL_OK;
    return hl_cuda_calls_launch(&state->behind, place->args, place->launch, place->stream);
}

static hl_status launch_conv(const hl_kernel_state *kernel_state, void *const *args,
                             const hl_launch *launch, hl_stream *stream)
{
    const conv_state *state = kernel_state->impl;
    bool refused;
    return launch_plan(state, &(hl_tuned_place){args, launch, stream}, false, state->tuned.chosen,
                       false, &refused);
}

/* ---- tuning ---------------------------------------------------------------------------------- */

static hl_status launch_tuned(const hl_tuned *tuned, const hl_tuned_place *place, bool bare,
                              int which, bool is_nan, bool *out_refused)
{
    return launch_plan((const conv_state *)tuned, place, bare, which, is_nan, out_refused);
}

static void name_plan(const hl_tuned *tuned, int which, char out_text[HL_TUNED_ALGO_TEXT])
{
    hl_text_copy(out_text, HL_TUNED_ALGO_TEXT,
                 ((const conv_state *)tuned)->plans->plan[which].name);
}

static hl_status begin_bare(hl_tuned *tuned, unsigned *out_algos)
{
    conv_state *state = (conv_state *)tuned;
    hl_reason why_not;
    HL_TRY(find_bare(state, &why_not));
    *out_algos = (1u << state->bare_plans->n) - 1;
    return HL_OK;
}

static void end_bare(hl_tuned *tuned)
{
    ((conv_state *)tuned)->bare_plans = NULL;
}

static const hl_tuned_ops tuned_ops = {
    .launch = launch_tuned, .name = name_plan, .begin_bare = begin_bare, .end_bare = end_bare};

/* A weight's gradient has another order than the library gives it: nothing can stand behind it. */
#define CONV(OP, text, fusion_texts)                                                               \
    {.op = HL_OP_##OP,                                                                             \
     .name = "cuda." text ".cudnn",                                                                \
     .fusions = fusion_texts,                                                                      \
     .query = query_conv,                                                                          \
     .prepare = prepare_conv,                                                                      \
     .tune = hl_tuned_tune,                                                                        \
     .describe = hl_tuned_describe,                                                                \
     .launch = launch_conv,                                                                        \
     .release = release_conv}
static const hl_kernel conv = CONV(CONV, "conv", hl_dnn_fusions);
static const hl_kernel transpose = CONV(CONV_TRANSPOSE, "conv_transpose", hl_dnn_fusions);
static const hl_kernel weight_grad = CONV(CONV_WEIGHT_GRAD, "conv_weight_grad", NULL);

const hl_kernel *const hl_cuda_conv_dnn_kernels[] = {&conv, &transpose, &weight_grad, NULL};
