/* Matrix products by cuBLASLt.
 *
 * The library's heuristics (lt_heuristics.h) say whether it can, with which algorithms, best first,
 * and how much workspace they want; that is the node's scratch.
 *
 * Before the first launch one of them is chosen (tune.c). That also loads the library's kernels,
 * which a capture forbids. Where none will do, the product is refused from then on (refusals.h) and
 * the plan made again, with hotloop's own kernel behind this one or with the
 * node's programs as nodes of their own. */
#include <math.h>
#include <stdio.h>

#include "base/alloc.h"
#include "kernels/cuda/lt_heuristics.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/tune.h"

/* A product, ready for each of its algorithms. */
typedef struct lt_work {
    hl_lt_product product;
    hl_lt_descs descs;
    hl_lt_algos algos;
} lt_work;
typedef struct lt_state {
    hl_tuned tuned; /* first */
    const hl_cublaslt *lt;
    lt_work work, bare; /* bare: without the node's programs, while it is tuned */
} lt_state;

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

/* That any of them may take. */
static size_t find_workspace(const hl_lt_algos *algos)
{
    size_t most = 0;
    for (int i = 0; i < algos->n; i++)
        if (algos->bytes[i] > most) most = algos->bytes[i];
    return most;
}

static const hl_tuned_ops tuned_ops;

/* The node's product and its algorithms; no descriptors yet. */
static hl_status begin_state(hl_device *device, const hl_graph *graph, hl_node_id id,
                             lt_state *state, hl_reason *out_why_not)
{
    lt_work *work = &state->work;
    hl_tuned *tuned = &state->tuned;
    *state = (lt_state){.lt = NULL};
    hl_tuned_init(device, graph, id, &tuned_ops, tuned);
    HL_TRY(hl_cublaslt_get(device, &state->lt, out_why_not));
    if (!hl_lt_product_make(device, graph, id, &work->product, out_why_not)) return HL_ERROR_CONFIG;
    tuned->problem = hl_lt_product_problem(device, &work->product);
    HL_TRY(hl_lt_algos_find(device, &work->product, &work->algos, out_why_not));
    if (!tuned->benchmark) drop_larger(&work->algos);
    tuned->n_algos = work->algos.n;
    return HL_OK;
}

static hl_status query_lt(hl_device *device, const hl_graph *graph, hl_node_id id,
                          hl_kernel_req *out_req, hl_reason *out_why_not)
{
    lt_state state;
    HL_TRY(hl_cuda_matmul_check(device, graph, id, out_why_not));
    HL_TRY(begin_state(device, graph, id, &state, out_why_not));
    const hl_lt_product *product = &state.work.product;
    HL_TRY(hl_problem_check(device, &state.tuned.problem, state.tuned.deterministic,
                            state.tuned.benchmark, out_why_not));
    out_req->scratch_bytes = hl_tuned_scratch_bytes(&state.tuned);
    size_t bytes = find_workspace(&state.work.algos);
    if (bytes > out_req->scratch_bytes) out_req->scratch_bytes = bytes;
    if (product->saved.form) out_req->saved[1] = product->saved;
    if (product->form_in) out_req->form_in[product->aux_arg] = product->form_in;
    out_req->deterministic = true;
    return HL_OK;
}

static void deinit_state(lt_state *state)
{
    if (state && state->lt) hl_lt_descs_deinit(state->lt, &state->work.descs);
    if (state) hl_tuned_deinit(&state->tuned);
    hl_free(state);
}

static hl_status make_descs(lt_state *state)
{
    hl_device *device = state->tuned.device;
    HL_TRY(hl_cuda_enter(device));
    hl_status status = hl_lt_descs_init(state->lt, &state->work.product, &state->work.descs);
    hl_cuda_leave(device);
    return status;
}

static hl_status prepare_lt(hl_device *device, const hl_graph *graph, hl_node_id id,
                            hl_kernel_state *out_state)
{
    hl_reason why_not = {""};
    lt_state *state;
    HL_TRY(hl_alloc_zero(sizeof *state, (void **)&state));
    hl_status status;
    HL_GOTO(begin_state(device, graph, id, state, &why_not));
    HL_GOTO(make_descs(state));
    if (hl_cuda_matmul_is_small(graph, id))
        HL_GOTO(hl_tuned_compare(&state->tuned, graph, id, &hl_cuda_matmul_plain));
    out_state->impl = state;
    state = NULL;
cleanup:
    deinit_state(state);
    if (status == HL_ERROR_CONFIG)
        status = hl_status_set(HL_ERROR_DEVICE, "cuBLASLt: must do what it said it could, got %s",
                               why_not.text);
    return status;
}

static void release_lt(hl_kernel_state *kernel_state)
{
    deinit_state(kernel_state->impl);
}

/* ---- launch ---------------------------------------------------------------------------------- */

static void *find_arg(void *const *args, int number)
{
    return number >= 0 ? args[number] : NULL;
}

static hl_status launch_work(const lt_state *state, const hl_tuned_place *place,
                             const lt_work *work, int which, float alpha, bool *out_refused)
{
    static const float zero = 0;
    const hl_cublaslt *lt = state->lt;
    const hl_lt_product *p = &work->product;
    const hl_lt_descs *d = &work->descs;
    hl_device *device = state->tuned.device;
    void *const *args = place->args;
    void *out = args[state->tuned.n_in];
    size_t bytes = work->algos.bytes[which];
    *out_refused = false;
    HL_TRY(hl_cuda_enter(device));
    hl_status status =
        hl_lt_descs_point(lt, p, d, find_arg(args, p->vector_arg), find_arg(args, p->aux_arg));
    if (status == HL_OK) {
        status = hl_cublaslt_check(
            lt,
            lt->call.cublasLtMatmul(lt->handle, d->product, &alpha, args[1], d->a, args[0], d->b,
                                    &zero, out, d->d, out, d->d, &work->algos.algo[which],
                                    bytes ? place->launch->scratch : NULL, bytes,
                                    hl_cuda_stream_handle(device, place->stream)),
            "a product");
        *out_refused = status == HL_ERROR_DEVICE;
    }
    hl_cuda_leave(device);
    return status;
}

static hl_status launch_lt(const hl_kernel_state *kernel_state, void *const *args,
                           const hl_launch *launch, hl_stream *stream)
{
    const lt_state *state = kernel_state->impl;
    bool refused;
    return launch_work(state, &(hl_tuned_place){args, launch, stream}, &state->work,
                       state->tuned.chosen, 1, &refused);
}

/* ---- tuning ---------------------------------------------------------------------------------- */

static hl_status launch_tuned(const hl_tuned *tuned, const hl_tuned_place *place, bool bare,
                              int which, bool is_nan, bool *out_refused)
{
    const lt_state *state = (const lt_state *)tuned;
    return launch_work(state, place, bare ? &state->bare : &state->work, which, is_nan ? NAN : 1,
                       out_refused);
}

/* An algorithm is its 64 bytes, which cuBLASLt takes again in the same version. */
static void name_algo(const hl_tuned *tuned, int which, char out_text[HL_TUNED_ALGO_TEXT])
{
    const cublasLtMatmulAlgo_t *algo = &((const lt_state *)tuned)->work.algos.algo[which];
    for (int i = 0; i < 8; i++)
        snprintf(out_text + 16 * i, 17, "%016llx", (unsigned long long)algo->data[i]);
}

static hl_status begin_bare(hl_tuned *tuned, unsigned *out_algos)
{
    lt_state *state = (lt_state *)tuned;
    lt_work *bare = &state->bare;
    size_t room = find_workspace(&state->work.algos);
    hl_reason why_not;
    bare->product = hl_lt_product_bare(&state->work.product);
    hl_problem problem = hl_lt_product_problem(tuned->device, &bare->product);
    HL_TRY(hl_lt_algos_find(tuned->device, &bare->product, &bare->algos, &why_not));
    HL_TRY(hl_problem_check(tuned->device, &problem, tuned->deterministic, true, &why_not));
    HL_TRY(hl_lt_descs_init(state->lt, &bare->product, &bare->descs));
    for (int i = 0; i < bare->algos.n; i++)
        if (bare->algos.bytes[i] <= room) *out_algos |= 1u << i;
    return HL_OK;
}

static void end_bare(hl_tuned *tuned)
{
    lt_state *state = (lt_state *)tuned;
    hl_lt_descs_deinit(state->lt, &state->bare.descs);
}

static const hl_tuned_ops tuned_ops = {
    .launch = launch_tuned, .name = name_algo, .begin_bare = begin_bare, .end_bare = end_bare};

static const hl_kernel matmul = {.op = HL_OP_MATMUL,
                                 .name = "cuda.matmul.cublaslt",
                                 .fusions = hl_lt_fusions,
                                 .query = query_lt,
                                 .prepare = prepare_lt,
                                 .tune = hl_tuned_tune,
                                 .describe = hl_tuned_describe,
                                 .launch = launch_lt,
                                 .release = release_lt};

const hl_kernel *const hl_cuda_matmul_kernels[] = {&matmul, &hl_cuda_matmul_plain, NULL};
