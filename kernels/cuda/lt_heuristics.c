/* Heuristics of cuBLASLt, asked once.
 *
 * Passes query a product again and again (as it stands, with each epilogue that would be had, once
 * more when kernels are selected), prepare asks for it, and so does every further plan; a search
 * takes the library some tens of microseconds. So the device keeps each answer under the product's
 * description, which holds all that the answer depends on: the cap of the workspace is the
 * device's. The newest MAX_ANSWERS are kept; an error is none of them.
 *
 * Split sums go through the workspace in float32 or not at all, never by additions in the result,
 * so an algorithm should give the same bits every run; a plan that is deterministic looks
 * (tune.c). */
#include "kernels/cuda/lt_heuristics.h"

#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "kernels/cuda/internal.h"

/* Workspace: what NVIDIA advises for Hopper, and enough for the split sums of older ones. */
enum { WORKSPACE_SM90 = 32 << 20, WORKSPACE = 8 << 20 };
/* 0.8 KB each; a model has tens of different products. */
enum { MAX_ANSWERS = 512 };

struct hl_lt_answer {
    uint64_t hash; /* of the text */
    char text[HL_PROBLEM_TEXT];
    cublasStatus_t status; /* of the search */
    hl_lt_algos algos;
};

/* ---- asking ---------------------------------------------------------------------------------- */

static hl_status set_preference(const hl_cublaslt *lt, cublasLtMatmulPreference_t preference,
                                cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
                                size_t bytes)
{
    return hl_cublaslt_check(
        lt, lt->call.cublasLtMatmulPreferenceSetAttribute(preference, attribute, value, bytes),
        "a preference");
}

size_t hl_lt_workspace_bytes(const hl_device *device)
{
    return hl_cuda_device_facts(device)->arch >= 90 ? WORKSPACE_SM90 : WORKSPACE;
}

static hl_status fill_preference(const hl_device *device, const hl_cublaslt *lt,
                                 const hl_lt_product *p, cublasLtMatmulPreference_t preference)
{
    uint64_t workspace = hl_lt_workspace_bytes(device);
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

static void search(const hl_cublaslt *lt, const hl_lt_descs *descs,
                   cublasLtMatmulPreference_t preference, struct hl_lt_answer *answer)
{
    cublasLtMatmulHeuristicResult_t result[HL_LT_ALGOS];
    int n = 0;
    memset(result, 0, sizeof result);
    answer->status = lt->call.cublasLtMatmulAlgoGetHeuristic(lt->handle, descs->product, descs->a,
                                                             descs->b, descs->d, descs->d,
                                                             preference, HL_LT_ALGOS, result, &n);
    hl_lt_algos *algos = &answer->algos;
    algos->n = 0;
    for (int i = 0; i < n && answer->status == CUBLAS_STATUS_SUCCESS; i++) {
        if (result[i].state != CUBLAS_STATUS_SUCCESS) continue;
        algos->algo[algos->n] = result[i].algo;
        algos->bytes[algos->n++] = result[i].workspaceSize;
    }
}

static hl_status ask(const hl_device *device, const hl_cublaslt *lt, const hl_lt_product *product,
                     struct hl_lt_answer *out_answer)
{
    cublasLtMatmulPreference_t preference = NULL;
    hl_lt_descs descs;
    HL_TRY(hl_lt_descs_init(lt, product, &descs));
    hl_status status;
    HL_GOTO(hl_cublaslt_check(lt, lt->call.cublasLtMatmulPreferenceCreate(&preference),
                              "a preference"));
    HL_GOTO(fill_preference(device, lt, product, preference));
    search(lt, &descs, preference, out_answer);
    if (out_answer->status == CUBLAS_STATUS_ALLOC_FAILED)
        status = hl_cublaslt_check(lt, out_answer->status, "a search");
cleanup:
    if (preference) lt->call.cublasLtMatmulPreferenceDestroy(preference);
    hl_lt_descs_deinit(lt, &descs);
    return status;
}

/* ---- keeping --------------------------------------------------------------------------------- */

static const struct hl_lt_answer *find_answer(const hl_cublaslt *lt, uint64_t hash,
                                              const char *text)
{
    for (int64_t i = 0; i < lt->n_answers; i++)
        if (lt->answers[i].hash == hash && strcmp(lt->answers[i].text, text) == 0)
            return &lt->answers[i];
    return NULL;
}

/* In the place of the oldest where there are many. Where there is no memory, it is asked again. */
static void keep_answer(hl_cublaslt *lt, const struct hl_lt_answer *answer)
{
    if (lt->n_answers < MAX_ANSWERS &&
        hl_alloc_grow((void **)&lt->answers, &lt->cap_answers, lt->n_answers + 1,
                      sizeof *lt->answers) == HL_OK)
        lt->answers[lt->n_answers++] = *answer;
    else if (lt->n_answers > 0)
        lt->answers[lt->n_replaced++ % lt->n_answers] = *answer;
}

/* Whether another search would end in the same way. */
static bool is_final(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_SUCCESS || status == CUBLAS_STATUS_NOT_SUPPORTED;
}

/* With the device entered and its libraries' lock held. */
static hl_status find_or_ask(hl_device *device, hl_cublaslt *lt, const hl_lt_product *product,
                             const hl_problem *problem, struct hl_lt_answer *out_answer,
                             bool *out_new)
{
    hl_text_copy(out_answer->text, sizeof out_answer->text, problem->text);
    out_answer->hash = hl_hash_text(HL_HASH_START, out_answer->text);
    const struct hl_lt_answer *known = find_answer(lt, out_answer->hash, out_answer->text);
    *out_new = !known;
    if (known) {
        *out_answer = *known;
        return HL_OK;
    }
    HL_TRY(ask(device, lt, product, out_answer));
    if (is_final(out_answer->status)) keep_answer(lt, out_answer);
    return HL_OK;
}

hl_status hl_lt_algos_find(hl_device *base, const hl_lt_product *product, hl_lt_algos *out_algos,
                           hl_reason *out_why_not)
{
    hl_cuda_device *device = hl_cuda_of(base);
    hl_cublaslt *lt = device->cublaslt;
    struct hl_lt_answer answer;
    hl_problem problem = hl_lt_product_problem(base, product);
    bool is_new;
    out_algos->n = 0;
    HL_TRY(hl_cuda_enter(base));
    hl_mutex_lock(&device->library_lock);
    hl_status status = find_or_ask(base, lt, product, &problem, &answer, &is_new);
    hl_mutex_unlock(&device->library_lock);
    hl_cuda_leave(base);
    /* What the library cannot even describe is for another kernel; a driver that fails is not. */
    if (status == HL_ERROR_DEVICE) return hl_reason_set(out_why_not, "%.150s", hl_status_message());
    HL_TRY(status);
    if (is_new) HL_TRY(hl_problem_recall(base, &problem));
    *out_algos = answer.algos;
    if (answer.algos.n) return HL_OK;
    return hl_reason_set(out_why_not, "cuBLASLt has no algorithm for it (%s)",
                         lt->call.cublasLtGetStatusName(answer.status));
}
