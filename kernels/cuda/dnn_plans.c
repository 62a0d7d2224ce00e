/* Heuristics of cuDNN, asked once, and the plans that came of them.
 *
 * Passes query a node again and again, and so does every further plan of hotloop's; a search
 * takes the library a millisecond and a plan up to a second, where it compiles. So the device keeps
 * each answer under the problem's text.
 *
 * Not every engine will do: sums in less than float32 are none of ours; float32 operands rounded to
 * TF32 are wanted only where the graph allows it; and a deterministic plan wants the same bits, of
 * which cuDNN says which engines give them (tune.c looks all the same).
 *
 * First come the engines that the heuristics rank; those that are there for all problems, slowly,
 * come only where none of them makes a plan. */
#include "kernels/cuda/dnn_plans.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "kernels/cuda/internal.h"

/* Of plans that the library compiles, half a second each and more. */
enum { MAX_COMPILED = 2 };
enum { MAX_CONFIGS = 24, MAX_KNOBS = 48, MAX_NOTES = 16 };

struct hl_dnn_answer {
    uint64_t hash; /* of the text */
    char text[HL_PROBLEM_TEXT];
    bool deterministic, all;
    cudnnStatus_t status; /* of the search */
    hl_dnn_plans plans;
};

/* ---- engines --------------------------------------------------------------------------------- */

/* Which of an engine's notes of one type are there, a bit each. */
static unsigned read_notes(hl_cudnn_descs *descs, cudnnBackendDescriptor_t engine,
                           cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type)
{
    int32_t notes[MAX_NOTES]; /* enumerators */
    unsigned bits = 0;
    int64_t n = hl_cudnn_desc_get(descs, engine, name, type, MAX_NOTES, notes);
    for (int64_t i = 0; i < n && i < MAX_NOTES; i++)
        if (notes[i] >= 0 && notes[i] < 32) bits |= 1u << notes[i]; /* a newer library has more */
    return bits;
}

static bool suits(hl_cudnn_descs *descs, const hl_dnn_question *question, bool deterministic,
                  cudnnBackendDescriptor_t engine)
{
    unsigned notes =
        read_notes(descs, engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE);
    unsigned bad = 1u << CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION;
    if (question->is_exact)
        bad |=
            1u << CUDNN_NUMERICAL_NOTE_TENSOR_CORE | 1u << CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS;
    if (deterministic) bad |= 1u << CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
    return !(notes & bad);
}

static bool compiles(hl_cudnn_descs *descs, cudnnBackendDescriptor_t engine)
{
    return read_notes(descs, engine, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE) >>
               CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION &
           1;
}

static void name_plan(hl_cudnn_descs *descs, cudnnBackendDescriptor_t engine, hl_dnn_plan *plan)
{
    cudnnBackendDescriptor_t knobs[MAX_KNOBS];
    int64_t index = 0;
    uint64_t hash = HL_HASH_START;
    hl_cudnn_desc_get(descs, engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &index);
    for (int i = 0; i < MAX_KNOBS; i++)
        knobs[i] = hl_cudnn_desc_make(descs, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
    int64_t n = hl_cudnn_desc_get(descs, plan->config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES,
                                  CUDNN_TYPE_BACKEND_DESCRIPTOR, MAX_KNOBS, knobs);
    for (int64_t i = 0; i < n && i < MAX_KNOBS; i++) {
        int64_t type = 0, value = 0;
        hl_cudnn_desc_get(descs, knobs[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE,
                          1, &type);
        hl_cudnn_desc_get(descs, knobs[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1,
                          &value);
        hash = hl_hash_bytes(hash, &(int64_t[]){type, value}, 2 * sizeof(int64_t));
    }
    snprintf(plan->name, sizeof plan->name, "engine%lld-%016llx", (long long)index,
             (unsigned long long)hash);
}

/* ---- plans ----------------------------------------------------------------------------------- */

/* Finalizes a plan by this configuration, or says by the status why there is none. */
static void make_plan(hl_cudnn_descs *descs, cudnnBackendDescriptor_t config, hl_dnn_plan *plan)
{
    int64_t bytes = 0;
    const hl_cudnn *dnn = descs->dnn;
    plan->config = config;
    plan->desc = hl_cudnn_desc_make(descs, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    hl_cudnn_desc_link(descs, plan->desc, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    if (dnn->handle)
        hl_cudnn_desc_set(descs, plan->desc, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1,
                          &dnn->handle);
    else
        hl_cudnn_desc_link(descs, plan->desc, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP,
                           dnn->description);
    hl_cudnn_desc_finalize(descs, plan->desc, "a plan");
    hl_cudnn_desc_get(descs, plan->desc, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64,
                      1, &bytes);
    plan->bytes = (size_t)bytes;
}

/* A failure of memory ends the search; any other is that of this configuration alone. */
static bool must_stop(hl_cudnn_descs *descs)
{
    bool stops = descs->status == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
                 descs->status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
    if (!stops) descs->status = CUDNN_STATUS_SUCCESS;
    return stops;
}

/* Adds the plan of a configuration, if it suits. */
static void try_config(hl_cudnn_descs *descs, const hl_dnn_question *question, bool deterministic,
                       cudnnBackendDescriptor_t config, hl_dnn_plans *plans)
{
    hl_dnn_plan plan = {0};
    int before = descs->n;
    cudnnBackendDescriptor_t engine = hl_cudnn_desc_make(descs, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    hl_cudnn_desc_get(descs, config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                      &engine);
    bool is_compiled = compiles(descs, engine);
    bool fits = suits(descs, question, deterministic, engine) &&
                (!is_compiled || plans->n_compiled < MAX_COMPILED);
    if (fits && descs->status == CUDNN_STATUS_SUCCESS) {
        make_plan(descs, config, &plan);
        name_plan(descs, engine, &plan);
        fits = descs->status == CUDNN_STATUS_SUCCESS && plan.bytes <= HL_DNN_WORKSPACE;
        if (fits) {
            hl_cudnn_desc_keep(descs, plan.desc);
            hl_cudnn_desc_keep(descs, config);
            plans->plan[plans->n++] = plan;
            plans->n_compiled += is_compiled;
            before--;
        }
    }
    hl_cudnn_descs_drop(descs, before);
}

/* The configurations of one mode of heuristics, best first; how many. */
static int64_t find_configs(hl_cudnn_descs *descs, cudnnBackendDescriptor_t graph,
                            cudnnBackendHeurMode_t mode, cudnnBackendDescriptor_t *configs)
{
    const hl_cudnn *dnn = descs->dnn;
    cudnnBackendDescriptor_t heur = hl_cudnn_desc_make(descs, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    hl_cudnn_desc_link(descs, heur, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    hl_cudnn_desc_set(descs, heur, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    if (dnn->description)
        hl_cudnn_desc_link(descs, heur, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, dnn->description);
    hl_cudnn_desc_finalize(descs, heur, "heuristics");
    int64_t n = hl_cudnn_desc_get(descs, heur, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                  CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, NULL);
    if (n > MAX_CONFIGS) n = MAX_CONFIGS;
    for (int64_t i = 0; i < n; i++)
        configs[i] = hl_cudnn_desc_make(descs, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (n > 0)
        n = hl_cudnn_desc_get(descs, heur, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                              CUDNN_TYPE_BACKEND_DESCRIPTOR, n, configs);
    return n;
}

static void search(hl_cudnn_descs *descs, const hl_dnn_question *question,
                   struct hl_dnn_answer *answer)
{
    static const cudnnBackendHeurMode_t modes[] = {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK};
    hl_dnn_plans *plans = &answer->plans;
    int wanted = answer->all ? HL_TUNED_ALGOS : 1;
    cudnnBackendDescriptor_t graph = question->build(descs, question->of), configs[MAX_CONFIGS];
    answer->status = descs->status;
    if (!graph) return;
    for (int m = 0; m < 2 && plans->n == 0; m++) {
        int before = descs->n;
        int64_t n = find_configs(descs, graph, modes[m], configs);
        answer->status = descs->status;
        for (int64_t i = 0; i < n && plans->n < wanted; i++) {
            try_config(descs, question, answer->deterministic, configs[i], plans);
            if (descs->status != CUDNN_STATUS_SUCCESS) answer->status = descs->status;
            if (must_stop(descs)) return;
        }
        if (must_stop(descs)) return;
        hl_cudnn_descs_drop(descs, before);
    }
}

static void drop_plans(const hl_cudnn *dnn, hl_dnn_plans *plans)
{
    for (int i = 0; i < plans->n; i++) {
        dnn->call.cudnnBackendDestroyDescriptor(plans->plan[i].desc);
        dnn->call.cudnnBackendDestroyDescriptor(plans->plan[i].config);
    }
    plans->n = 0;
}

/* ---- keeping --------------------------------------------------------------------------------- */

static struct hl_dnn_answer *find_answer(const hl_cudnn *dnn, const struct hl_dnn_answer *like)
{
    for (int64_t i = 0; i < dnn->n_answers; i++) {
        struct hl_dnn_answer *a = dnn->answers[i];
        if (a->hash == like->hash && a->deterministic == like->deterministic &&
            a->all == like->all && strcmp(a->text, like->text) == 0)
            return a;
    }
    return NULL;
}

/* Whether another search would end in the same way: with plans, or without; a driver that fails may
 * work again. */
static bool is_final(const struct hl_dnn_answer *answer)
{
    return answer->plans.n > 0 || answer->status / 1000 != CUDNN_STATUS_EXECUTION_FAILED / 1000;
}

/* Room for one more answer and what its plans hold. */
static hl_status make_room(hl_cudnn *dnn)
{
    HL_TRY(hl_alloc_grow((void **)&dnn->answers, &dnn->cap_answers, dnn->n_answers + 1,
                         sizeof *dnn->answers));
    return hl_alloc_grow((void **)&dnn->kept, &dnn->cap_kept, dnn->n_kept + 2 * HL_TUNED_ALGOS,
                         sizeof *dnn->kept);
}

static void keep_answer(hl_cudnn *dnn, struct hl_dnn_answer *answer)
{
    for (int i = 0; i < answer->plans.n; i++) {
        dnn->kept[dnn->n_kept++] = answer->plans.plan[i].desc;
        dnn->kept[dnn->n_kept++] = answer->plans.plan[i].config;
    }
    dnn->answers[dnn->n_answers++] = answer;
}

/* With the device entered and its libraries' lock held. */
static hl_status ask(hl_cudnn *dnn, const hl_dnn_question *question, struct hl_dnn_answer *answer,
                     hl_reason *out_why_not)
{
    hl_cudnn_descs descs = {.dnn = dnn};
    HL_TRY(make_room(dnn));
    search(&descs, question, answer);
    hl_status status = must_stop(&descs) ? hl_cudnn_check(dnn, answer->status, "a search") : HL_OK;
    hl_cudnn_descs_drop(&descs, 0);
    if (status != HL_OK)
        drop_plans(dnn, &answer->plans);
    else if (!is_final(answer))
        status = hl_reason_set(out_why_not, "cuDNN does not plan it (%s)",
                               dnn->call.cudnnGetErrorString(answer->status));
    else
        keep_answer(dnn, answer);
    return status;
}

static struct hl_dnn_answer make_question(const char *text, bool deterministic, bool all)
{
    struct hl_dnn_answer like = {
        .hash = hl_hash_text(HL_HASH_START, text), .deterministic = deterministic, .all = all};
    hl_text_copy(like.text, sizeof like.text, text);
    return like;
}

/* What is refused is not asked about: the library would compile plans for nothing. */
static hl_status check_refusals(hl_device *base, hl_cudnn *dnn, const hl_problem *problem,
                                bool deterministic, bool all, hl_reason *out_why_not)
{
    hl_cuda_device *device = hl_cuda_of(base);
    struct hl_dnn_answer like = make_question(problem->text, deterministic, all);
    hl_mutex_lock(&device->library_lock);
    bool is_known = find_answer(dnn, &like) != NULL;
    hl_mutex_unlock(&device->library_lock);
    if (!is_known) HL_TRY(hl_problem_recall(base, problem));
    return hl_problem_check(base, problem, deterministic, all, out_why_not);
}

static hl_status find_or_ask(hl_cudnn *dnn, const hl_dnn_question *question, bool deterministic,
                             bool all, struct hl_dnn_answer **out_answer, hl_reason *out_why_not)
{
    struct hl_dnn_answer like = make_question(question->problem.text, deterministic, all), *answer;
    *out_answer = find_answer(dnn, &like);
    if (*out_answer) return HL_OK;
    HL_TRY(hl_alloc(sizeof *answer, (void **)&answer));
    *answer = like;
    hl_status status = ask(dnn, question, answer, out_why_not);
    if (status == HL_OK)
        *out_answer = answer;
    else
        hl_free(answer);
    return status;
}

hl_status hl_dnn_plans_find(hl_device *base, const hl_dnn_question *question, bool deterministic,
                            bool all, const hl_dnn_plans **out_plans, hl_reason *out_why_not)
{
    hl_cuda_device *device = hl_cuda_of(base);
    hl_cudnn *dnn = device->cudnn;
    struct hl_dnn_answer *answer;
    *out_plans = NULL;
    HL_TRY(check_refusals(base, dnn, &question->problem, deterministic, all, out_why_not));
    HL_TRY(hl_cuda_enter(base));
    hl_mutex_lock(&device->library_lock);
    hl_status status = find_or_ask(dnn, question, deterministic, all, &answer, out_why_not);
    hl_mutex_unlock(&device->library_lock);
    hl_cuda_leave(base);
    HL_TRY(status);
    *out_plans = &answer->plans;
    if (answer->plans.n) return HL_OK;
    return hl_reason_set(out_why_not, "cuDNN has no plan for it (%s)",
                         dnn->call.cudnnGetErrorString(answer->status));
}

size_t hl_dnn_plans_workspace(const hl_dnn_plans *plans)
{
    size_t most = 0;
    for (int i = 0; i < plans->n; i++)
        if (plans->plan[i].bytes > most) most = plans->plan[i].bytes;
    return most;
}

/* ---- running --------------------------------------------------------------------------------- */

static void execute(hl_cudnn_descs *descs, const hl_dnn_plan *plan, const hl_dnn_places *places,
                    void *workspace, cudaStream_t stream)
{
    const hl_cudnn_calls *call = &descs->dnn->call;
    cudnnHandle_t handle = descs->dnn->handle;
    cudnnBackendDescriptor_t pack =
        hl_cudnn_desc_make(descs, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    hl_cudnn_desc_set(descs, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, places->n,
                      places->id);
    hl_cudnn_desc_set(descs, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
                      places->n, places->at);
    hl_cudnn_desc_set(descs, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1,
                      &workspace);
    hl_cudnn_desc_finalize(descs, pack, "a variant pack");
    if (descs->status != CUDNN_STATUS_SUCCESS) return;
    hl_cudnn_note(descs, call->cudnnSetStream(handle, stream), "setting a stream");
    if (descs->status == CUDNN_STATUS_SUCCESS)
        hl_cudnn_note(descs, call->cudnnBackendExecute(handle, plan->desc, pack), "a plan");
}

hl_status hl_dnn_plan_run(hl_device *device, const hl_dnn_plan *plan, const hl_dnn_places *places,
                          void *workspace, hl_stream *stream, bool *out_refused)
{
    hl_cudnn *dnn = hl_cuda_of(device)->cudnn;
    hl_cudnn_descs descs = {.dnn = dnn};
    HL_TRY(hl_cuda_enter(device));
    hl_mutex_lock(&dnn->handle_lock);
    execute(&descs, plan, places, plan->bytes ? workspace : NULL,
            hl_cuda_stream_handle(device, stream));
    hl_mutex_unlock(&dnn->handle_lock);
    hl_cudnn_descs_drop(&descs, 0);
    hl_status status = hl_cudnn_check(dnn, descs.status, descs.what);
    *out_refused = status == HL_ERROR_DEVICE;
    hl_cuda_leave(device);
    return status;
}
