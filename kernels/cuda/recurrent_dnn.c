/* Recurrent layers by cuDNN, and their gradients.
 *
 * In training the weight space and the library's reserve are what the forward kernel saves, in
 * place of gates: the weights are copied there at each launch, and the backward kernel reads them
 * there. A prediction has the weight space in scratch. (Rejected: a weight space that lasts, filled
 * behind the optimizer. The copies are as many bytes as the weights twice, against T products with
 * them.)
 *
 * Algorithms have reserves of their own, so forward and backward take the same one. It is chosen
 * before the first launch where the gradient is tuned (tune.c), by the time of both; of predictions
 * by the forward kernel. A candidate has to be captured, too: some of the library's algorithms work
 * on streams of their own. Where none will do, the layer is refused from then on, and the plan made
 * again with its product and its recurrence apart.
 *
 * Not compared yet: the layer with what it is apart, which is other kernels and no algorithm of
 * this one. */
#include <string.h>

#include "base/alloc.h"
#include "kernels/cuda/dnn_recurrent.h"
#include "kernels/cuda/internal.h"

enum { FORM = 0x524E4E, EMPTY_BYTES = 16 };

typedef struct layer_state {
    hl_tuned tuned; /* first */
    hl_dnn_recurrent of;
    hl_dnn_layer *layer;
    bool is_grad;
    /* Of every row, on the device. Not the operand: nobody has written that when the layer is
     * tuned, and libraries believe what they read. */
    const int32_t *lengths;
    int32_t *upload;                      /* the same on the host */
    int n_in, c0, weight[HL_DNN_WEIGHTS]; /* args; -1: not there. Weights, or their gradients */
    /* In what is saved, or (predictions) in scratch, where a weight space comes first. */
    size_t reserve;
    /* In scratch: results that nobody reads, or gradients of weights; then workspace. */
    size_t work;
} layer_state;

static const hl_tuned_ops tuned_ops;

static size_t round_up(const hl_device *device, size_t bytes)
{
    return (size_t)hl_round_up((int64_t)bytes, (int64_t)device->alignment);
}

/* ---- query, prepare -------------------------------------------------------------------------- */

static size_t state_bytes(const hl_dnn_recurrent *d, int64_t columns)
{
    return (size_t)(d->N * columns) * (d->type == CUDNN_DATA_FLOAT ? 4 : 2);
}

/* Of the forward results that a gradient's tuning makes again. */
static size_t results_bytes(const hl_device *device, const hl_dnn_recurrent *d)
{
    return round_up(device, state_bytes(d, d->T * d->P)) + round_up(device, state_bytes(d, d->P)) +
           round_up(device, state_bytes(d, d->H));
}

static void find_args(const hl_graph *graph, const hl_node *node, layer_state *state)
{
    const hl_recurrent l = hl_recurrent_of(graph, node);
    int grad = node->n_in;
    state->n_in = node->n_in;
    state->c0 = l.r.c0;
    const int forward[] = {HL_RECURRENT_W_IH, HL_RECURRENT_W_HH, l.bias, l.r.bias, l.r.w_hr},
              gradients[] = {grad + HL_RECURRENT_GRAD_DW_IH, grad + HL_RECURRENT_GRAD_DW_HH,
                             grad + HL_RECURRENT_GRAD_BIAS, grad + HL_RECURRENT_GRAD_STATE_BIAS,
                             grad + HL_RECURRENT_GRAD_DW_HR};
    memcpy(state->weight, state->is_grad ? gradients : forward, sizeof forward);
}

static hl_status begin_state(hl_device *device, const hl_graph *graph, hl_node_id id,
                             layer_state *state, hl_reason *out_why_not)
{
    const hl_node *node = &graph->nodes[id];
    hl_tuned *tuned = &state->tuned;
    const hl_cudnn *dnn;
    *state = (layer_state){.is_grad = node->op == HL_OP_RECURRENT_LAYER_GRAD};
    hl_tuned_init(device, graph, id, &tuned_ops, tuned);
    HL_TRY(hl_cudnn_get(device, &dnn, out_why_not));
    if (!hl_dnn_recurrent_make(device, graph, id, &state->of, out_why_not)) return HL_ERROR_CONFIG;
    tuned->problem = hl_dnn_recurrent_problem(device, &state->of);
    HL_TRY(hl_dnn_layer_find(device, &state->of, tuned->deterministic, tuned->benchmark,
                             &state->layer, out_why_not));
    tuned->n_algos = state->layer->n;
    find_args(graph, node, state);
    state->reserve = round_up(device, state->layer->weight_bytes);
    if (state->is_grad) {
        size_t results = results_bytes(device, &state->of);
        state->work = results > state->reserve ? results : state->reserve;
    } else if (!state->of.is_training) {
        state->work = state->reserve;
    }
    return HL_OK;
}

static hl_status query_layer(hl_device *device, const hl_graph *graph, hl_node_id id,
                             hl_kernel_req *out_req, hl_reason *out_why_not)
{
    layer_state state;
    HL_TRY(begin_state(device, graph, id, &state, out_why_not));
    size_t bytes[] = {state.work + state.layer->work_bytes, hl_tuned_scratch_bytes(&state.tuned)};
    out_req->scratch_bytes = bytes[bytes[1] > bytes[0]];
    out_req->deterministic = true;
    if (state.is_grad) {
        out_req->form_in[HL_RECURRENT_GRAD_GATES] = out_req->form_in[HL_RECURRENT_GRAD_CELLS] =
            FORM;
        return HL_OK;
    }
    size_t saved = state.of.is_training ? state.reserve + state.layer->reserve_bytes : EMPTY_BYTES;
    out_req->saved[HL_RECURRENCE_GATES] = (hl_saved){FORM, (int64_t)saved};
    out_req->saved[HL_RECURRENCE_CELLS] = (hl_saved){FORM, EMPTY_BYTES};
    return HL_OK;
}

static hl_status prepare_layer(hl_device *device, const hl_graph *graph, hl_node_id id,
                               hl_kernel_state *out_state)
{
    hl_reason why_not = {""};
    layer_state *state;
    int32_t *lengths;
    HL_TRY(hl_alloc_zero(sizeof *state, (void **)&state));
    hl_status status;
    HL_GOTO(begin_state(device, graph, id, state, &why_not));
    HL_GOTO(hl_alloc((size_t)state->of.N * sizeof *lengths, (void **)&lengths));
    for (int64_t n = 0; n < state->of.N; n++) lengths[n] = (int32_t)state->of.T;
    state->upload = lengths;
    out_state->impl = state;
    out_state->upload = lengths;
    out_state->upload_bytes = (size_t)state->of.N * sizeof *lengths;
    state = NULL;
cleanup:
    hl_free(state);
    if (status == HL_ERROR_CONFIG)
        status = hl_status_set(HL_ERROR_DEVICE, "cuDNN: must do what it said it could, got %s",
                               why_not.text);
    return status;
}

static void release_layer(hl_kernel_state *kernel_state)
{
    layer_state *state = kernel_state->impl;
    if (state) hl_free(state->upload);
    hl_free(state);
}

/* ---- launch ---------------------------------------------------------------------------------- */

/* Weights into the weight space, or gradients out of it. */
static hl_status copy_pieces(const layer_state *state, const hl_tuned_place *place, int which,
                             char *space, const int *args, bool out)
{
    hl_device *device = state->tuned.device;
    const hl_dnn_recurrent_algo *algo = &state->layer->algo[which];
    for (int i = 0; i < algo->n_pieces; i++) {
        const hl_dnn_piece *p = &algo->piece[i];
        if (args[p->of] < 0) continue;
        char *weight = (char *)place->args[args[p->of]] + p->from, *at = space + p->at;
        HL_TRY(device->ops->copy(device, out ? weight : at, out ? at : weight, p->bytes,
                                 HL_COPY_DEVICE_TO_DEVICE, place->stream));
    }
    return HL_OK;
}

static hl_status launch_forward(const layer_state *state, const hl_tuned_place *place, int which,
                                bool *out_refused)
{
    void *const *args = place->args, *const *outs = args + state->n_in;
    char *scratch = place->launch->scratch,
         *space = state->of.is_training ? outs[HL_RECURRENCE_GATES] : scratch;
    *out_refused = false;
    HL_TRY(copy_pieces(state, place, which, space, state->weight, false));
    const hl_dnn_layer_args a = {.x = args[HL_RECURRENT_X],
                                 .h0 = args[HL_RECURRENT_H0],
                                 .c0 = state->c0 >= 0 ? args[state->c0] : NULL,
                                 .lengths = state->lengths,
                                 .out = outs[HL_RECURRENCE_OUT],
                                 .h = outs[HL_RECURRENCE_H],
                                 .c = state->c0 >= 0 ? outs[HL_RECURRENCE_C] : NULL,
                                 .weights = space,
                                 .reserve = space + state->reserve,
                                 .work = scratch + state->work};
    return hl_dnn_layer_forward(state->tuned.device, state->layer, which, &a, place->stream,
                                out_refused);
}

static hl_dnn_layer_args find_grad_args(const layer_state *state, const hl_tuned_place *place)
{
    void *const *args = place->args, *const *outs = args + state->n_in;
    char *saved = args[HL_RECURRENT_GRAD_GATES], *scratch = place->launch->scratch;
    bool has_c = state->c0 >= 0;
    return (hl_dnn_layer_args){.x = args[HL_RECURRENT_GRAD_X],
                               .h0 = args[HL_RECURRENT_GRAD_H0],
                               .c0 = has_c ? args[state->c0] : NULL,
                               .lengths = state->lengths,
                               .out = args[HL_RECURRENT_GRAD_OUT],
                               .weights = saved,
                               .reserve = saved + state->reserve,
                               .work = scratch + state->work,
                               .dout = args[HL_RECURRENT_GRAD_DOUT],
                               .dh = args[HL_RECURRENT_GRAD_DH],
                               .dc = has_c ? args[HL_RECURRENT_GRAD_DC] : NULL,
                               .dx = outs[HL_RECURRENT_GRAD_DX],
                               .dh0 = outs[HL_RECURRENT_GRAD_DH0],
                               .dc0 = has_c ? outs[HL_RECURRENT_GRAD_DC0] : NULL,
                               .dweights = scratch};
}

static hl_status launch_grad(const layer_state *state, const hl_tuned_place *place, int which,
                             bool *out_refused)
{
    hl_device *device = state->tuned.device;
    hl_dnn_layer_args a = find_grad_args(state, place);
    *out_refused = false;
    HL_TRY(device->ops->fill_zero(device, a.dweights, state->layer->algo[which].weight_bytes,
                                  place->stream));
    HL_TRY(hl_dnn_layer_backward(device, state->layer, which, &a, place->stream, out_refused));
    return copy_pieces(state, place, which, a.dweights, state->weight, true);
}

static hl_status launch_layer(const hl_kernel_state *kernel_state, void *const *args,
                              const hl_launch *launch, hl_stream *stream)
{
    const layer_state *state = kernel_state->impl;
    const hl_tuned_place place = {args, launch, stream};
    bool refused;
    int which = state->layer->chosen;
    if (which < 0)
        return hl_status_set(HL_ERROR_INTERNAL,
                             "cuDNN: a recurrent layer must be tuned before it runs");
    return state->is_grad ? launch_grad(state, &place, which, &refused)
                          : launch_forward(state, &place, which, &refused);
}

/* ---- tuning ---------------------------------------------------------------------------------- */

/* The forward pass that goes before a gradient in tuning: its results lie in scratch. */
static hl_status launch_before(const layer_state *state, const hl_tuned_place *place, int which,
                               bool *out_refused)
{
    static const int weights[] = {HL_RECURRENT_GRAD_W_IH, HL_RECURRENT_GRAD_W_HH, -1, -1, -1};
    hl_device *device = state->tuned.device;
    const hl_dnn_recurrent *d = &state->of;
    int with_projection[HL_DNN_WEIGHTS];
    hl_dnn_layer_args a = find_grad_args(state, place);
    memcpy(with_projection, weights, sizeof weights);
    if (d->has_projection) with_projection[HL_DNN_W_HR] = state->n_in - 1;
    *out_refused = false;
    HL_TRY(device->ops->fill_zero(device, a.weights, state->layer->algo[which].weight_bytes,
                                  place->stream));
    HL_TRY(copy_pieces(state, place, which, a.weights, with_projection, false));
    a.out = place->launch->scratch;
    a.h = (char *)a.out + round_up(device, state_bytes(d, d->T * d->P));
    a.c = a.c0 ? (char *)a.h + round_up(device, state_bytes(d, d->P)) : NULL;
    return hl_dnn_layer_forward(device, state->layer, which, &a, place->stream, out_refused);
}

static hl_status launch_both(const layer_state *state, const hl_tuned_place *place, int which,
                             bool *out_refused)
{
    if (!state->is_grad) return launch_forward(state, place, which, out_refused);
    HL_TRY(launch_before(state, place, which, out_refused));
    return launch_grad(state, place, which, out_refused);
}

/* Is it captured like any other work? Whoever refuses that has no place in a step. */
static hl_status probe(const layer_state *state, const hl_tuned_place *place, int which,
                       bool *out_refused)
{
    hl_device *device = state->tuned.device;
    hl_capture *capture = NULL;
    HL_TRY(device->ops->synchronize(device, place->stream));
    HL_TRY(device->ops->capture_begin(device, place->stream));
    hl_status status = launch_both(state, place, which, out_refused);
    hl_status ended = device->ops->capture_end(device, place->stream, &capture);
    device->ops->capture_destroy(device, capture);
    if (ended == HL_ERROR_DEVICE) *out_refused = true;
    return status != HL_OK ? status : ended;
}

static hl_status launch_tuned(const hl_tuned *tuned, const hl_tuned_place *place, bool bare,
                              int which, bool is_nan, bool *out_refused)
{
    (void)bare, (void)is_nan; /* it has no programs */
    const layer_state *state = (const layer_state *)tuned;
    hl_dnn_recurrent_algo *algo = &state->layer->algo[which];
    HL_TRY(launch_both(state, place, which, out_refused));
    if (algo->is_probed) return HL_OK;
    HL_TRY(probe(state, place, which, out_refused));
    algo->is_probed = true;
    return HL_OK;
}

static void name_algo(const hl_tuned *tuned, int which, char out_text[HL_TUNED_ALGO_TEXT])
{
    hl_text_copy(out_text, HL_TUNED_ALGO_TEXT,
                 ((const layer_state *)tuned)->layer->algo[which].name);
}

static void end_bare(hl_tuned *tuned)
{
    (void)tuned;
}

static const hl_tuned_ops tuned_ops = {
    .launch = launch_tuned, .name = name_algo, .end_bare = end_bare};

/* Who chooses: the gradient, or a forward kernel that has none. What was chosen stays, since the
 * other half may have been captured. */
static hl_status tune_layer(const hl_kernel_state *kernel_state, void *const *args,
                            const hl_launch *launch, hl_stream *stream)
{
    layer_state *state = kernel_state->impl;
    state->lengths = kernel_state->uploaded;
    if (state->layer->chosen >= 0 || (state->of.is_training && !state->is_grad)) return HL_OK;
    HL_TRY(hl_tuned_tune(kernel_state, args, launch, stream));
    int none = -1; /* or what another plan has chosen in the meantime */
    atomic_compare_exchange_strong(&state->layer->chosen, &none, state->tuned.chosen);
    return HL_OK;
}

static void describe_layer(const hl_kernel_state *kernel_state, char *out_text, size_t bytes)
{
    layer_state *state = kernel_state->impl;
    if (state->layer->chosen >= 0) state->tuned.chosen = state->layer->chosen;
    hl_tuned_describe(kernel_state, out_text, bytes);
}

#define KERNEL(OP, text)                                                                           \
    {.op = HL_OP_##OP,                                                                             \
     .name = "cuda." text ".cudnn",                                                                \
     .query = query_layer,                                                                         \
     .prepare = prepare_layer,                                                                     \
     .tune = tune_layer,                                                                           \
     .describe = describe_layer,                                                                   \
     .launch = launch_layer,                                                                       \
     .release = release_layer}
static const hl_kernel layer = KERNEL(RECURRENT_LAYER, "recurrent_layer");
static const hl_kernel gradient = KERNEL(RECURRENT_LAYER_GRAD, "recurrent_layer_grad");

const hl_kernel *const hl_cuda_recurrent_dnn_kernels[] = {&layer, &gradient, NULL};
