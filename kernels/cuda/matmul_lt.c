/* Matrix products by cuBLASLt.
 *
 * The library's heuristics (lt_heuristics.h) say whether it can, with which algorithms, best first,
 * and how much workspace they want; that is the node's scratch.
 *
 * Before the first launch one of them is chosen (matmul_tune.c). That also loads the library's
 * kernels, which a capture forbids. Where none will do, the product is refused from then on
 * (lt_refusals.h) and the plan made again, with hotloop's own kernel behind this one or with the
 * node's programs as nodes of their own. */
#include <stdio.h>

#include "kernels/cuda/lt_refusals.h"
#include "kernels/cuda/matmul_lt.h"

/* ---- query, prepare -------------------------------------------------------------------------- */

/* Those after the first are for where it does not run: they get no memory of their own. */
static void drop_larger(hl_lt_algos *algos)
{
    int n = 0;
    for (int i = 0; i < algos->n; i++) {
        if (algos->bytes[i] > algos->bytes[0]) continue;
        algos->algo[n] = algos->algo[i];
        algos->bytes[n++] = algos->bytes[i];
    }
    algos->n = n;
}

/* Of an output, in the form that it has. */
static int64_t count_bytes(const hl_graph *graph, hl_id id)
{
    const hl_value *value = &graph->values[id];
    return value->form ? value->form_bytes : (int64_t)hl_type_bytes(&value->type);
}

/* The node's product and its algorithms; no descriptors yet. */
static hl_status begin_state(hl_device *device, const hl_graph *graph, hl_node_id id,
                             hl_lt_state *state, hl_reason *out_why_not)
{
    const hl_node *node = &graph->nodes[id];
    hl_lt_work *work = &state->work;
    *state = (hl_lt_state){.device = device,
                           .n_in = node->n_in,
                           .n_out = node->n_out,
                           .benchmark = graph->benchmark,
                           .deterministic = graph->deterministic};
    HL_TRY(hl_cublaslt_get(device, &state->lt, out_why_not));
    if (!hl_lt_product_make(device, graph, id, &work->product, out_why_not)) return HL_ERROR_CONFIG;
    HL_TRY(hl_lt_algos_find(device, &work->product, &work->algos, out_why_not));
    for (int32_t j = 0; j < node->n_out && j < HL_LT_OUTS; j++)
        state->out_bytes[j] = count_bytes(graph, node->out + j);
    if (!state->benchmark) drop_larger(&work->algos);
    return HL_OK;
}

static hl_status query_lt(hl_device *device, const hl_graph *graph, hl_node_id id,
                          hl_kernel_req *out_req, hl_reason *out_why_not)
{
    hl_lt_state state;
    HL_TRY(hl_cuda_matmul_check(device, graph, id, out_why_not));
    HL_TRY(begin_state(device, graph, id, &state, out_why_not));
    const hl_lt_product *product = &state.work.product;
    HL_TRY(
        hl_lt_refusals_check(device, product, state.deterministic, state.benchmark, out_why_not));
    if (state.deterministic) out_req->scratch_bytes = HL_CUDA_DIGEST_BYTES;
    for (int i = 0; i < state.work.algos.n; i++)
        if (state.work.algos.bytes[i] > out_req->scratch_bytes)
            out_req->scratch_bytes = state.work.algos.bytes[i];
    if (product->saved.form) out_req->saved[1] = product->saved;
    if (product->form_in) out_req->form_in[product->aux_arg] = product->form_in;
    out_req->deterministic = true;
    return HL_OK;
}

static hl_status make_descs(hl_lt_state *state)
{
    HL_TRY(hl_cuda_enter(state->device));
    hl_status status = hl_lt_descs_init(state->lt, &state->work.product, &state->work.descs);
    hl_cuda_leave(state->device);
    return status;
}

static hl_status prepare_lt(hl_device *device, const hl_graph *graph, hl_node_id id,
                            hl_kernel_state *out_state)
{
    hl_reason why_not = {""};
    hl_lt_state *state;
    HL_TRY(hl_alloc_zero(sizeof *state, (void **)&state));
    hl_status status;
    HL_GOTO(begin_state(device, graph, id, state, &why_not));
    HL_GOTO(make_descs(state));
    out_state->impl = state;
    state = NULL;
cleanup:
    hl_free(state);
    if (status == HL_ERROR_CONFIG)
        status = hl_status_set(HL_ERROR_DEVICE, "cuBLASLt: must do what it said it could, got %s",
                               why_not.text);
    return status;
}

static void release_lt(hl_kernel_state *kernel_state)
{
    hl_lt_state *state = kernel_state->impl;
    if (state) hl_lt_descs_deinit(state->lt, &state->work.descs);
    hl_free(state);
}

/* ---- launch ---------------------------------------------------------------------------------- */

static void *find_arg(void *const *args, int number)
{
    return number >= 0 ? args[number] : NULL;
}

hl_status hl_lt_launch(const hl_lt_place *place, const hl_lt_work *work, int which, float alpha,
                       bool *out_refused)
{
    static const float zero = 0;
    const hl_lt_state *state = place->state;
    const hl_cublaslt *lt = state->lt;
    const hl_lt_product *p = &work->product;
    const hl_lt_descs *d = &work->descs;
    void *const *args = place->args;
    void *out = args[state->n_in];
    size_t bytes = work->algos.bytes[which];
    *out_refused = false;
    HL_TRY(hl_cuda_enter(state->device));
    hl_status status =
        hl_lt_descs_point(lt, p, d, find_arg(args, p->vector_arg), find_arg(args, p->aux_arg));
    if (status == HL_OK) {
        status = hl_cublaslt_check(
            lt,
            lt->call.cublasLtMatmul(lt->handle, d->product, &alpha, args[1], d->a, args[0], d->b,
                                    &zero, out, d->d, out, d->d, &work->algos.algo[which],
                                    bytes ? place->launch->scratch : NULL, bytes,
                                    hl_cuda_stream_handle(state->device, place->stream)),
            "a product");
        *out_refused = status == HL_ERROR_DEVICE;
    }
    hl_cuda_leave(state->device);
    return status;
}

static hl_status launch_lt(const hl_kernel_state *kernel_state, void *const *args,
                           const hl_launch *launch, hl_stream *stream)
{
    const hl_lt_state *state = kernel_state->impl;
    bool refused;
    return hl_lt_launch(&(hl_lt_place){state, args, launch, stream}, &state->work, state->chosen, 1,
                        &refused);
}

static void describe_lt(const hl_kernel_state *kernel_state, char *out_text, size_t bytes)
{
    const hl_lt_state *state = kernel_state->impl;
    int n = snprintf(out_text, bytes, "algorithm %d of %d", state->chosen + 1, state->work.algos.n);
    if (state->us > 0) snprintf(out_text + n, bytes - (size_t)n, ", %.1f us", (double)state->us);
}

static const hl_kernel matmul = {.op = HL_OP_MATMUL,
                                 .name = "cuda.matmul.cublaslt",
                                 .fusions = hl_lt_fusions,
                                 .query = query_lt,
                                 .prepare = prepare_lt,
                                 .tune = hl_lt_tune,
                                 .describe = describe_lt,
                                 .launch = launch_lt,
                                 .release = release_lt};

const hl_kernel *const hl_cuda_matmul_kernels[] = {&matmul, &hl_cuda_matmul_plain, NULL};
