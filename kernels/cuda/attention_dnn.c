/* Attention by cuDNN, and its gradient: 16 bits from sm_80 on, without masks and dropout.
 *
 * Before the first launch one algorithm is chosen (tune.c): one of cuDNN's plans, or hotloop's own
 * kernels, which are the last of them. Where it is not measured, the first that runs is taken. So a
 * node is never refused for what the library does not run. */
#include "kernels/cuda/attention.h"
#include "kernels/cuda/calls.h"
#include "kernels/cuda/dnn_attention.h"

typedef struct attention_state {
    hl_tuned tuned; /* first */
    hl_dnn_attention of;
    const hl_dnn_plans *plans;
    hl_kernel_state own;
} attention_state;

static const hl_tuned_ops tuned_ops;

static const hl_kernel *find_own(const hl_graph *graph, hl_node_id id)
{
    return graph->nodes[id].op == HL_OP_ATTENTION ? &hl_cuda_attention_own
                                                  : &hl_cuda_attention_grad_own;
}

static hl_status begin_state(hl_device *device, const hl_graph *graph, hl_node_id id,
                             attention_state *state, hl_reason *out_why_not)
{
    hl_tuned *tuned = &state->tuned;
    const hl_cudnn *dnn;
    *state = (attention_state){.plans = NULL};
    hl_tuned_init(device, graph, id, &tuned_ops, tuned);
    HL_TRY(hl_cudnn_get(device, &dnn, out_why_not));
    if (!hl_dnn_attention_make(device, graph, id, &state->of, out_why_not)) return HL_ERROR_CONFIG;
    hl_dnn_question question = hl_dnn_attention_question(device, &state->of);
    tuned->problem = question.problem;
    HL_TRY(hl_dnn_plans_find(device, &question, tuned->deterministic, tuned->benchmark,
                             &state->plans, out_why_not));
    tuned->n_algos = state->plans->n + 1;
    return HL_OK;
}

/* All that is in scratch is there for one launch, or between two. */
static hl_status query_attention(hl_device *device, const hl_graph *graph, hl_node_id id,
                                 hl_kernel_req *out_req, hl_reason *out_why_not)
{
    attention_state state;
    HL_TRY(find_own(graph, id)->query(device, graph, id, out_req, out_why_not));
    HL_TRY(begin_state(device, graph, id, &state, out_why_not));
    size_t bytes[] = {hl_dnn_plans_workspace(state.plans), hl_tuned_scratch_bytes(&state.tuned)};
    for (int i = 0; i < 2; i++)
        if (bytes[i] > out_req->scratch_bytes) out_req->scratch_bytes = bytes[i];
    return HL_OK;
}

static hl_status prepare_attention(hl_device *device, const hl_graph *graph, hl_node_id id,
                                   hl_kernel_state *out_state)
{
    hl_reason why_not = {""};
    attention_state *state;
    HL_TRY(hl_alloc_zero(sizeof *state, (void **)&state));
    hl_status status;
    HL_GOTO(begin_state(device, graph, id, state, &why_not));
    HL_GOTO(find_own(graph, id)->prepare(device, graph, id, &state->own));
    out_state->impl = state;
    state = NULL;
cleanup:
    hl_free(state);
    if (status == HL_ERROR_CONFIG)
        status = hl_status_set(HL_ERROR_DEVICE, "cuDNN: must do what it said it could, got %s",
                               why_not.text);
    return status;
}

static void release_attention(hl_kernel_state *kernel_state)
{
    attention_state *state = kernel_state->impl;
    if (state) hl_cuda_calls_release(&state->own);
    hl_free(state);
}

static hl_status launch_algo(const attention_state *state, const hl_tuned_place *place, int which,
                             bool *out_refused)
{
    *out_refused = false;
    if (which == state->plans->n)
        return hl_cuda_calls_launch(&state->own, place->args, place->launch, place->stream);
    hl_device *device = state->tuned.device;
    const hl_dnn_attention *of = &state->of;
    hl_dnn_places places = hl_dnn_attention_places(of, place->args);
    /* What rounding took from the logarithms of sums: cuDNN does not say, own gradients read it. */
    size_t rows = (size_t)(of->B * of->H * of->L);
    if (!of->is_grad)
        HL_TRY(device->ops->fill_zero(device, (float *)place->args[4] + rows, rows * sizeof(float),
                                      place->stream));
    return hl_dnn_plan_run(device, &state->plans->plan[which], &places, place->launch->scratch,
                           place->stream, out_refused);
}

static hl_status launch_attention(const hl_kernel_state *kernel_state, void *const *args,
                                  const hl_launch *launch, hl_stream *stream)
{
    const attention_state *state = kernel_state->impl;
    bool refused;
    return launch_algo(state, &(hl_tuned_place){args, launch, stream}, state->tuned.chosen,
                       &refused);
}

/* ---- tuning ---------------------------------------------------------------------------------- */

static hl_status launch_tuned(const hl_tuned *tuned, const hl_tuned_place *place, bool bare,
                              int which, bool is_nan, bool *out_refused)
{
    (void)bare, (void)is_nan; /* it has no programs */
    return launch_algo((const attention_state *)tuned, place, which, out_refused);
}

static void name_algo(const hl_tuned *tuned, int which, char out_text[HL_TUNED_ALGO_TEXT])
{
    const attention_state *state = (const attention_state *)tuned;
    hl_text_copy(out_text, HL_TUNED_ALGO_TEXT,
                 which < state->plans->n ? state->plans->plan[which].name : "own");
}

static void end_bare(hl_tuned *tuned)
{
    (void)tuned;
}

static const hl_tuned_ops tuned_ops = {
    .launch = launch_tuned, .name = name_algo, .end_bare = end_bare};

#define KERNEL(OP, text)                                                                           \
    {.op = HL_OP_##OP,                                                                             \
     .name = "cuda." text ".cudnn",                                                                \
     .query = query_attention,                                                                     \
     .prepare = prepare_attention,                                                                 \
     .tune = hl_tuned_tune,                                                                        \
     .describe = hl_tuned_describe,                                                                \
     .launch = launch_attention,                                                                   \
     .release = release_attention}
static const hl_kernel attention = KERNEL(ATTENTION, "attention");
static const hl_kernel gradient = KERNEL(ATTENTION_GRAD, "attention_grad");

const hl_kernel *const hl_cuda_attention_kernels[] = {&attention, &hl_cuda_attention_own, &gradient,
                                                      &hl_cuda_attention_grad_own, NULL};
