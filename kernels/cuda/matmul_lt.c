/* Matrix products by cuBLASLt.
 *
 * The library's heuristics are asked when a node is: whether it can, with which algorithms, best
 * first, and how much workspace they want; that is the node's scratch. Split sums go through the
 * workspace in float32 or not at all, never by additions in the result, so every algorithm gives
 * the same bits every run.
 *
 * Before the first launch one of them is settled: without measuring the first that runs, with it
 * the fastest (matmul_tune.c). That also loads the library's kernels, which a capture forbids. */
#include <stdio.h>
#include <string.h>

#include "kernels/cuda/matmul_lt.h"

/* Workspace: what NVIDIA advises for Hopper, and enough for the split sums of older ones. */
enum { WORKSPACE_SM90 = 32 << 20, WORKSPACE = 8 << 20 };

/* ---- algorithms ------------------------------------------------------------------------------ */

static hl_status set_preference(const hl_cublaslt *lt, cublasLtMatmulPreference_t preference,
                                cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
                                size_t bytes)
{
    return hl_cublaslt_check(
        lt, lt->call.cublasLtMatmulPreferenceSetAttribute(preference, attribute, value, bytes),
        "a preference");
}

static hl_status fill_preference(const hl_device *device, const hl_cublaslt *lt,
                                 const hl_lt_product *p, cublasLtMatmulPreference_t preference)
{
    uint64_t workspace = hl_cuda_device_facts(device)->arch >= 90 ? WORKSPACE_SM90 : WORKSPACE;
    uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const cublasLtMatmulPreferenceAttributes_t attributes[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    const uint32_t align[] = {p->align_a, p->align_b, p->align_d, p->align_d};
    HL_TRY(set_preference(lt, preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                          sizeof workspace));
    HL_TRY(set_preference(lt, preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes,
                          sizeof schemes));
    for (int i = 0; i < 4; i++)
        HL_TRY(set_preference(lt, preference, attributes[i], &align[i], sizeof align[i]));
    return HL_OK;
}

static hl_status ask_heuristics(const hl_cublaslt *lt, const hl_lt_descs *descs,
                                cublasLtMatmulPreference_t preference, hl_lt_algos *algos,
                                hl_reason *out_why_not)
{
    cublasLtMatmulHeuristicResult_t result[HL_LT_ALGOS];
    int n = 0;
    memset(result, 0, sizeof result);
    cublasStatus_t status = lt->call.cublasLtMatmulAlgoGetHeuristic(
        lt->handle, descs->product, descs->a, descs->b, descs->d, descs->d, preference, HL_LT_ALGOS,
        result, &n);
    if (status == CUBLAS_STATUS_ALLOC_FAILED) return hl_cublaslt_check(lt, status, "a search");
    algos->n = 0;
    for (int i = 0; i < n && status == CUBLAS_STATUS_SUCCESS; i++) {
        if (result[i].state != CUBLAS_STATUS_SUCCESS) continue;
        algos->algo[algos->n] = result[i].algo;
        algos->bytes[algos->n++] = result[i].workspaceSize;
    }
    if (algos->n) return HL_OK;
    return hl_reason_set(out_why_not, "cuBLASLt has no algorithm for it (%s)",
                         lt->call.cublasLtGetStatusName(status));
}

static hl_status find_algos(hl_device *device, const hl_cublaslt *lt, const hl_lt_product *product,
                            const hl_lt_descs *descs, hl_lt_algos *out_algos,
                            hl_reason *out_why_not)
{
    cublasLtMatmulPreference_t preference = NULL;
    hl_status status;
    out_algos->n = 0;
    HL_GOTO(hl_cublaslt_check(lt, lt->call.cublasLtMatmulPreferenceCreate(&preference),
                              "a preference"));
    HL_GOTO(fill_preference(device, lt, product, preference));
    HL_GOTO(ask_heuristics(lt, descs, preference, out_algos, out_why_not));
cleanup:
    if (preference) lt->call.cublasLtMatmulPreferenceDestroy(preference);
    return status;
}

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

/* The node's product and its algorithms, with the device entered. */
static hl_status make_state(hl_lt_state *state, hl_reason *out_why_not)
{
    HL_TRY(hl_lt_descs_init(state->lt, &state->product, &state->descs));
    HL_TRY(find_algos(state->device, state->lt, &state->product, &state->descs, &state->algos,
                      out_why_not));
    if (!state->benchmark) drop_larger(&state->algos);
    return HL_OK;
}

static hl_status begin_state(hl_device *device, const hl_graph *graph, hl_node_id id,
                             hl_lt_state *state, hl_reason *out_why_not)
{
    *state = (hl_lt_state){
        .device = device, .n_in = graph->nodes[id].n_in, .benchmark = graph->benchmark};
    HL_TRY(hl_cublaslt_get(device, &state->lt, out_why_not));
    if (!hl_lt_product_make(device, graph, id, &state->product, out_why_not))
        return HL_ERROR_CONFIG;
    HL_TRY(hl_cuda_enter(device));
    hl_status status = make_state(state, out_why_not);
    if (status != HL_OK) hl_lt_descs_deinit(state->lt, &state->descs);
    hl_cuda_leave(device);
    /* What the library cannot even describe is for another kernel. */
    return status == HL_ERROR_DEVICE ? hl_reason_set(out_why_not, "%.150s", hl_status_message())
                                     : status;
}

static void end_state(hl_lt_state *state)
{
    hl_lt_descs_deinit(state->lt, &state->descs);
}

static hl_status query_lt(hl_device *device, const hl_graph *graph, hl_node_id id,
                          hl_kernel_req *out_req, hl_reason *out_why_not)
{
    hl_lt_state state;
    HL_TRY(hl_cuda_matmul_check(device, graph, id, out_why_not));
    HL_TRY(begin_state(device, graph, id, &state, out_why_not));
    for (int i = 0; i < state.algos.n; i++)
        if (state.algos.bytes[i] > out_req->scratch_bytes)
            out_req->scratch_bytes = state.algos.bytes[i];
    out_req->deterministic = true;
    end_state(&state);
    return HL_OK;
}

static hl_status prepare_lt(hl_device *device, const hl_graph *graph, hl_node_id id,
                            hl_kernel_state *out_state)
{
    hl_reason why_not = {""};
    hl_lt_state *state;
    HL_TRY(hl_alloc_zero(sizeof *state, (void **)&state));
    hl_status status = begin_state(device, graph, id, state, &why_not);
    if (status == HL_OK) {
        out_state->impl = state;
        return HL_OK;
    }
    hl_free(state);
    if (status != HL_ERROR_CONFIG) return status;
    return hl_status_set(HL_ERROR_DEVICE, "cuBLASLt: must do what it said it could, got %s",
                         why_not.text);
}

static void release_lt(hl_kernel_state *kernel_state)
{
    hl_lt_state *state = kernel_state->impl;
    if (state) end_state(state);
    hl_free(state);
}

/* ---- launch ---------------------------------------------------------------------------------- */

static void *find_arg(void *const *args, int number)
{
    return number >= 0 ? args[number] : NULL;
}

hl_status hl_lt_launch(const hl_lt_state *state, int which, void *const *args,
                       const hl_launch *launch, hl_stream *stream)
{
    static const float one = 1, zero = 0;
    const hl_cublaslt *lt = state->lt;
    const hl_lt_product *p = &state->product;
    const hl_lt_descs *d = &state->descs;
    size_t bytes = state->algos.bytes[which];
    HL_TRY(hl_cuda_enter(state->device));
    hl_status status =
        hl_lt_descs_point(lt, p, d, find_arg(args, p->vector_arg), find_arg(args, p->aux_arg));
    void *out = args[state->n_in];
    if (status == HL_OK)
        status = hl_cublaslt_check(
            lt,
            lt->call.cublasLtMatmul(lt->handle, d->product, &one, args[1], d->a, args[0], d->b,
                                    &zero, out, d->d, out, d->d, &state->algos.algo[which],
                                    bytes ? launch->scratch : NULL, bytes,
                                    hl_cuda_stream_handle(state->device, stream)),
            "a product");
    hl_cuda_leave(state->device);
    return status;
}

static hl_status launch_lt(const hl_kernel_state *kernel_state, void *const *args,
                           const hl_launch *launch, hl_stream *stream)
{
    const hl_lt_state *state = kernel_state->impl;
    return hl_lt_launch(state, state->chosen, args, launch, stream);
}

static void describe_lt(const hl_kernel_state *kernel_state, char *out_text, size_t bytes)
{
    const hl_lt_state *state = kernel_state->impl;
    int n = snprintf(out_text, bytes, "algorithm %d of %d", state->chosen + 1, state->algos.n);
    if (state->us > 0) snprintf(out_text + n, bytes - (size_t)n, ", %.1f us", (double)state->us);
}

#define LT_KERNEL(OP, text)                                                                        \
    {.op = HL_OP_##OP,                                                                             \
     .name = "cuda." text ".cublaslt",                                                             \
     .query = query_lt,                                                                            \
     .prepare = prepare_lt,                                                                        \
     .tune = hl_lt_tune,                                                                           \
     .describe = describe_lt,                                                                      \
     .launch = launch_lt,                                                                          \
     .release = release_lt}
static const hl_kernel matmul = LT_KERNEL(MATMUL, "matmul");
static const hl_kernel matmul_fused = LT_KERNEL(MATMUL_FUSED, "matmul_fused");

const hl_kernel *const hl_cuda_matmul_kernels[] = {&matmul, &hl_cuda_matmul_plain, &matmul_fused,
                                                   &hl_cuda_matmul_fused_plain, NULL};
