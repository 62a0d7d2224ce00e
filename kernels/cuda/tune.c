/* Which of a library's algorithms a node takes: chosen once, before its first launch.
 *
 * An algorithm has to run, which the library may refuse all the same; to keep a NaN through an
 * activation, as hotloop's own kernels do, because training knows by the loss alone that a number
 * is none; and to give the same bits twice where the plan is deterministic. Without measuring the
 * first one that does is taken, nearly always the heuristics' first.
 *
 * With it (the plan was asked to benchmark) all that do are timed between two events, on the
 * memory of the operands. Some work goes before, since an idle GPU has a low clock. Then come
 * rounds over all candidates in turn, so that whatever else happens to the clock meets all of them,
 * and of each the fastest round counts. The heuristics' first stays unless another one is faster by
 * a margin. A problem with programs is timed against the one without, plus what kernels in the
 * programs' place would take, which is what a copy of as many bytes takes (an upper bound: the
 * launch counts for every matrix); where that is faster by the margin, the problem is refused, and
 * the plan is made again without the programs. A problem that hotloop's own kernel may be good at
 * is timed against that in the same way.
 *
 * The outcome is kept (autotune_cache.h): for the next node of the same description, the next plan
 * and the next process. An algorithm that was kept is taken only if the heuristics still name it:
 * its workspace is then the node's. */
#include "kernels/cuda/tune.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "base/log.h"
#include "ir/fusion.h"
#include "kernels/cuda/autotune_cache.h"
#include "kernels/cuda/matmul.h"

/* A node's share of plan time, and what one candidate gets of it in a round. */
enum { MAX_NS = 1000000000, MAX_LAUNCHES = 50, ROUNDS = 5, WARM_ROUNDS = 100 };
static const float ROUND_MS = 0.5f, WARM_MS = 5, MARGIN = 0.97f;
/* The problem's and the bare one's algorithms, a copy, and hotloop's own kernel. */
enum { MAX_CANDIDATES = 2 * HL_TUNED_ALGOS + 2, SAMPLE_BYTES = 4096 };

/* FUSED: the node's problem. COPY: of half of the result onto the other half. OWN: the node by
 * hotloop's own kernel. */
typedef enum kind { FUSED, BARE, COPY, OWN } kind;
typedef struct candidate {
    kind kind;
    int which;
    int n;    /* launches of a round; 0: it was not timed */
    float ms; /* of a launch, in the fastest round */
} candidate;

typedef struct tuning {
    hl_tuned *state;
    hl_tuned_place place;
    int64_t until;
    CUevent begin, end;
    candidate list[MAX_CANDIDATES];
    int n;
} tuning;

/* ---- what is kept ---------------------------------------------------------------------------- */

static void write_key(const hl_tuned *state, char *out_key)
{
    hl_problem_key_write(state->problem.refusals, state->problem.text, out_key);
}

/* The number of the algorithm that was kept; -1: none, or none that the heuristics still name. */
static int recall(const hl_tuned *state)
{
    char key[HL_CUDA_KEY_BYTES], line[HL_CUDA_AUTOTUNE_BYTES], name[HL_TUNED_ALGO_TEXT];
    write_key(state, key);
    if (!hl_cuda_autotune_find(state->device, state->problem.refusals->kind, key, line)) return -1;
    for (int i = 0; i < state->n_algos; i++) {
        state->ops->name(state, i, name);
        size_t n = strlen(name);
        if (strncmp(line, name, n) == 0 && line[n] == ' ') return i;
    }
    return -1;
}

static void keep(const hl_tuned *state)
{
    char key[HL_CUDA_KEY_BYTES], line[HL_CUDA_AUTOTUNE_BYTES], name[HL_TUNED_ALGO_TEXT];
    write_key(state, key);
    state->ops->name(state, state->chosen, name);
    snprintf(line, sizeof line, "%s %.1f us", name, (double)state->us);
    hl_cuda_autotune_keep(state->device, state->problem.refusals->kind, key, line);
}

/* ---- what an algorithm has to do ------------------------------------------------------------- */

static hl_status download(const tuning *t, void *to, const void *from, size_t bytes)
{
    hl_device *device = t->state->device;
    HL_TRY(device->ops->copy(device, to, from, bytes, HL_COPY_DEVICE_TO_HOST, t->place.stream));
    return device->ops->synchronize(device, t->place.stream);
}

static bool is_nan(const void *at, hl_dtype type, size_t i)
{
    if (type == HL_DTYPE_F32) return isnan(((const float *)at)[i]);
    unsigned infinity = type == HL_DTYPE_BF16 ? 0x7F80 : 0x7C00;
    return (((const uint16_t *)at)[i] & 0x7FFFu) > infinity;
}

/* Looks at both ends of the result. */
static hl_status find_number(const tuning *t, bool *out_found)
{
    const hl_tuned *state = t->state;
    hl_dtype type = state->result;
    size_t bytes = (size_t)state->out_bytes[0], n = bytes < SAMPLE_BYTES ? bytes : SAMPLE_BYTES;
    const char *out = t->place.args[state->n_in];
    _Alignas(8) char sample[SAMPLE_BYTES];
    *out_found = false;
    for (int end = 0; end < 2; end++) {
        HL_TRY(download(t, sample, end ? out + bytes - n : out, n));
        for (size_t i = 0; i < n / hl_dtype_bytes(type); i++)
            *out_found |= !is_nan(sample, type, i);
    }
    return HL_OK;
}

/* Of all that the node has written. */
static hl_status take_digest(const tuning *t, uint64_t *out_digest)
{
    const hl_tuned *state = t->state;
    const hl_cuda_shape shape = {{HL_CUDA_DIGEST_BLOCKS, 1, 1}, {HL_CUDA_DIGEST_THREADS, 1, 1}, 0};
    void *sums;
    CUfunction kernel;
    *out_digest = HL_HASH_START;
    HL_TRY(hl_alloc(HL_CUDA_DIGEST_BYTES, &sums));
    hl_status status;
    HL_GOTO(hl_cuda_kernel_get(state->device, "hl_cuda_digest", 0, &kernel));
    for (int j = 0; j < state->n_out && j < HL_TUNED_OUTS; j++) {
        hl_cuda_digest_params params = {
            .at.src.bits = (uint64_t)(uintptr_t)t->place.args[state->n_in + j],
            .at.sums.bits = (uint64_t)(uintptr_t)t->place.launch->scratch,
            .n = state->out_bytes[j] / 2};
        HL_GOTO(hl_cuda_launch(state->device, kernel, &shape, t->place.stream,
                               (void *[]){&params, NULL}));
        HL_GOTO(download(t, sums, t->place.launch->scratch, HL_CUDA_DIGEST_BYTES));
        *out_digest = hl_hash_bytes(*out_digest, sums, HL_CUDA_DIGEST_BYTES);
    }
cleanup:
    hl_free(sums);
    return status;
}

/* Queues the problem; FAILS where the library does not take it. */
static hl_status try_launch(const tuning *t, bool bare, int which, bool gives_nan,
                            hl_refusal *out_refusal)
{
    bool refused;
    hl_status status = t->state->ops->launch(t->state, &t->place, bare, which, gives_nan, &refused);
    *out_refusal = refused ? HL_REFUSAL_FAILS : HL_REFUSAL_NONE;
    if (!refused) return status;
    hl_log(HL_LOG_DEBUG, "algorithm %d of %s left out: %s", which,
           t->state->problem.refusals->library, hl_status_message());
    return HL_OK;
}

static hl_status check_nan(const tuning *t, int which, hl_refusal *out_refusal)
{
    bool found;
    HL_TRY(try_launch(t, false, which, true, out_refusal));
    if (*out_refusal != HL_REFUSAL_NONE) return HL_OK;
    HL_TRY(find_number(t, &found));
    if (found) *out_refusal = HL_REFUSAL_DROPS_NAN;
    return HL_OK;
}

static hl_status check_repeats(const tuning *t, int which, hl_refusal *out_refusal)
{
    uint64_t digest[2];
    for (int i = 0; i < 2; i++) {
        HL_TRY(try_launch(t, false, which, false, out_refusal));
        if (*out_refusal != HL_REFUSAL_NONE) return HL_OK;
        HL_TRY(take_digest(t, &digest[i]));
    }
    if (digest[0] != digest[1]) *out_refusal = HL_REFUSAL_VARIES;
    return HL_OK;
}

/* Loads an algorithm of the node's problem, too. HL_REFUSAL_NONE: it may be taken. */
static hl_status check_algo(const tuning *t, int which, hl_refusal *out_refusal)
{
    const hl_tuned *state = t->state;
    HL_TRY(try_launch(t, false, which, false, out_refusal));
    if (*out_refusal == HL_REFUSAL_NONE && state->problem.activation)
        HL_TRY(check_nan(t, which, out_refusal));
    if (*out_refusal == HL_REFUSAL_NONE && state->deterministic)
        HL_TRY(check_repeats(t, which, out_refusal));
    return HL_OK;
}

/* For the device, so that the host's clock counts its work. */
static hl_status await(const tuning *t)
{
    return t->state->device->ops->synchronize(t->state->device, t->place.stream);
}

static hl_status refuse(const tuning *t, hl_refusal refusal)
{
    HL_TRY(await(t)); /* a device that does not work any more is no refusal of the library's */
    return hl_problem_refuse(t->state->device, &t->state->problem, refusal);
}

/* Lists the algorithms that may be taken, all of them or the first; HL_ERROR_CONFIG: none may. */
static hl_status list_algos(tuning *t, bool all)
{
    hl_refusal found, worst = HL_REFUSAL_FAILS;
    for (int i = 0; i < t->state->n_algos && (all || !t->n); i++) {
        if (t->n && hl_os_time_ns() > t->until) break;
        HL_TRY(check_algo(t, i, &found));
        if (found == HL_REFUSAL_DROPS_NAN) return refuse(t, found);
        if (found == HL_REFUSAL_VARIES) worst = found;
        if (found == HL_REFUSAL_NONE) t->list[t->n++] = (candidate){.kind = FUSED, .which = i};
        if (all) HL_TRY(await(t));
    }
    return t->n ? HL_OK : refuse(t, worst);
}

/* ---- measuring ------------------------------------------------------------------------------- */

/* Bytes that a copy among the candidates copies. */
static size_t count_copied(const hl_tuned *state)
{
    return (size_t)state->out_bytes[0] / 2 & ~(size_t)15;
}

static hl_status launch_times(const tuning *t, const candidate *c, int n, bool *out_refused)
{
    hl_device *device = t->state->device;
    char *out = t->place.args[t->state->n_in];
    size_t bytes = count_copied(t->state);
    *out_refused = false;
    for (int i = 0; i < n; i++) {
        if (c->kind == OWN)
            HL_TRY(t->state->own->launch(&t->state->own_state, t->place.args, t->place.launch,
                                         t->place.stream));
        else if (c->kind != COPY)
            HL_TRY(t->state->ops->launch(t->state, &t->place, c->kind == BARE, c->which, false,
                                         out_refused));
        else
            HL_TRY(device->ops->copy(device, out + bytes, out, bytes, HL_COPY_DEVICE_TO_DEVICE,
                                     t->place.stream));
    }
    return HL_OK;
}

/* Milliseconds of n launches. */
static hl_status time_launches(const tuning *t, const candidate *c, int n, float *out_ms,
                               bool *out_refused)
{
    hl_device *device = t->state->device;
    const hl_cuda_driver *driver = hl_cuda_device_driver(device);
    CUstream stream = hl_cuda_stream_handle(device, t->place.stream);
    *out_ms = 0;
    *out_refused = false;
    HL_TRY(hl_cuda_check(device, driver->cuEventRecord(t->begin, stream), "recording an event"));
    HL_TRY(launch_times(t, c, n, out_refused));
    HL_TRY(hl_cuda_check(device, driver->cuEventRecord(t->end, stream), "recording an event"));
    HL_TRY(hl_cuda_check(device, driver->cuEventSynchronize(t->end), "waiting for an event"));
    return hl_cuda_check(device, driver->cuEventElapsedTime(out_ms, t->begin, t->end),
                         "measuring an algorithm");
}

/* So many launches as take that long, if one takes ms. */
static int count_launches(float ms, float wanted_ms)
{
    float n = ms > 0 ? wanted_ms / ms : (float)MAX_LAUNCHES;
    return n < 1 ? 1 : n > MAX_LAUNCHES ? MAX_LAUNCHES : (int)n;
}

/* A candidate that is refused where it ran before is left out. */
static hl_status time_round(const tuning *t, candidate *c, bool is_first)
{
    int n = is_first ? 1 : c->n;
    bool refused;
    float ms;
    if (n == 0) return HL_OK;
    hl_status status = time_launches(t, c, n, &ms, &refused);
    c->n = refused ? 0 : is_first ? count_launches(ms, ROUND_MS) : n;
    if (refused) return HL_OK;
    if (is_first || ms / (float)n < c->ms) c->ms = ms / (float)n;
    return status;
}

static hl_status warm_up(const tuning *t)
{
    bool refused = false;
    float ms, total = 0;
    int n = 1;
    for (int i = 0; i < WARM_ROUNDS && total < WARM_MS && hl_os_time_ns() < t->until; i++) {
        hl_status status = time_launches(t, &t->list[0], n, &ms, &refused);
        if (refused) return HL_OK;
        HL_TRY(status);
        total += ms;
        n = count_launches(ms / (float)n, WARM_MS);
    }
    return HL_OK;
}

static hl_status measure(tuning *t)
{
    HL_TRY(warm_up(t));
    for (int round = 0; round <= ROUNDS; round++)
        for (int i = 0; i < t->n; i++) {
            if (round + i > 0 && hl_os_time_ns() > t->until) return HL_OK;
            HL_TRY(time_round(t, &t->list[i], round == 0));
        }
    return HL_OK;
}

/* The first of the algorithms for this, or one that is faster by the margin; NULL: none ran. */
static const candidate *pick(const tuning *t, kind wanted)
{
    const candidate *first = NULL, *best = NULL;
    for (int i = 0; i < t->n; i++) {
        const candidate *c = &t->list[i];
        if (c->kind != wanted || c->n == 0) continue;
        if (!first) first = c;
        if (!best || c->ms < best->ms) best = c;
    }
    return best && best->ms < MARGIN * first->ms ? best : first;
}

/* Lists what would take the place of a problem with programs: algorithms that run in the node's
 * scratch, and the copy. Nothing, where the library has no such problem. */
static hl_status list_bare(tuning *t)
{
    unsigned algos = 0;
    hl_refusal found;
    hl_status status = t->state->ops->begin_bare(t->state, &algos);
    if (status == HL_ERROR_CONFIG || !count_copied(t->state)) return HL_OK;
    HL_TRY(status);
    for (int i = 0; i < HL_TUNED_ALGOS; i++) {
        if (!(algos >> i & 1) || hl_os_time_ns() > t->until) continue;
        HL_TRY(try_launch(t, true, i, false, &found));
        if (found == HL_REFUSAL_NONE) t->list[t->n++] = (candidate){.kind = BARE, .which = i};
        HL_TRY(await(t));
    }
    t->list[t->n++] = (candidate){.kind = COPY};
    return HL_OK;
}

/* Milliseconds of the problem without programs and of kernels in their place. */
static float time_apart(const tuning *t)
{
    const candidate *bare = pick(t, BARE), *copy = pick(t, COPY);
    if (!bare || !copy) return INFINITY;
    /* A copy reads as many bytes as it writes. */
    float copied = 2 * (float)count_copied(t->state);
    return bare->ms + copy->ms * (float)t->state->problem.apart_bytes / copied;
}

/* HL_ERROR_CONFIG: what would take the problem's place is faster, and it is refused. */
static hl_status compare(const tuning *t, const candidate *best)
{
    const candidate *own = pick(t, OWN);
    float apart = time_apart(t), most = MARGIN * best->ms;
    if (own && own->ms < most && own->ms <= apart) return refuse(t, HL_REFUSAL_SLOWER);
    return apart < most ? refuse(t, HL_REFUSAL_COSTS_MORE) : HL_OK;
}

static hl_status choose_fastest(tuning *t)
{
    hl_tuned *state = t->state;
    const candidate *best;
    hl_status status;
    HL_GOTO(list_algos(t, true));
    if (state->problem.apart_bytes) HL_GOTO(list_bare(t));
    if (state->own) t->list[t->n++] = (candidate){.kind = OWN};
    HL_GOTO(measure(t));
    best = pick(t, FUSED);
    if (!best) HL_GOTO(refuse(t, HL_REFUSAL_FAILS));
    state->chosen = best->which;
    state->us = 1e3f * best->ms;
    HL_GOTO(compare(t, best));
    keep(state);
cleanup:
    state->ops->end_bare(state);
    return status;
}

/* ---- tuning ---------------------------------------------------------------------------------- */

/* *out_chosen: an algorithm that was kept is fine. */
static hl_status take_kept(tuning *t, bool *out_chosen)
{
    hl_refusal found;
    int known = recall(t->state);
    *out_chosen = false;
    if (known < 0) return HL_OK;
    HL_TRY(check_algo(t, known, &found));
    *out_chosen = found == HL_REFUSAL_NONE;
    t->state->chosen = known;
    return HL_OK;
}

static hl_status tune_measured(tuning *t)
{
    hl_device *device = t->state->device;
    const hl_cuda_driver *driver = hl_cuda_device_driver(device);
    bool is_chosen;
    HL_TRY(take_kept(t, &is_chosen));
    if (is_chosen) return HL_OK;
    HL_TRY(hl_cuda_enter(device));
    hl_status status;
    HL_GOTO(hl_cuda_check(device, driver->cuEventCreate(&t->begin, 0), "making an event"));
    HL_GOTO(hl_cuda_check(device, driver->cuEventCreate(&t->end, 0), "making an event"));
    HL_GOTO(choose_fastest(t));
cleanup:
    if (t->begin) driver->cuEventDestroy(t->begin);
    if (t->end) driver->cuEventDestroy(t->end);
    hl_cuda_leave(device);
    return status;
}

/* What another plan has found out since this one was made. */
static hl_status check_refusals(const hl_tuned *state)
{
    hl_reason why_not;
    HL_TRY(hl_problem_recall(state->device, &state->problem));
    if (hl_problem_check(state->device, &state->problem, state->deterministic, state->benchmark,
                         &why_not) == HL_OK)
        return HL_OK;
    return hl_status_set(HL_ERROR_CONFIG, "%s", why_not.text);
}

hl_status hl_tuned_tune(const hl_kernel_state *kernel_state, void *const *args,
                        const hl_launch *launch, hl_stream *stream)
{
    hl_tuned *state = kernel_state->impl;
    tuning t = {.state = state, .place = {args, launch, stream}, .until = hl_os_time_ns() + MAX_NS};
    HL_TRY(check_refusals(state));
    if (state->benchmark && (state->n_algos > 1 || state->problem.apart_bytes || state->own))
        return tune_measured(&t);
    HL_TRY(list_algos(&t, false));
    state->chosen = t.list[0].which;
    return HL_OK;
}

/* ---- the state ------------------------------------------------------------------------------- */

/* Of an output, in the form that it has. */
static int64_t count_bytes(const hl_graph *graph, hl_id id)
{
    const hl_value *value = &graph->values[id];
    return value->form ? value->form_bytes : (int64_t)hl_type_bytes(&value->type);
}

void hl_tuned_init(hl_device *device, const hl_graph *graph, hl_node_id id, const hl_tuned_ops *ops,
                   hl_tuned *out_tuned)
{
    const hl_node *node = &graph->nodes[id];
    *out_tuned = (hl_tuned){.ops = ops,
                            .device = device,
                            .result = hl_node_out_type(graph, node, 0)->dtype,
                            .n_in = node->n_in,
                            .n_out = node->n_out,
                            .benchmark = graph->benchmark,
                            .deterministic = graph->deterministic};
    for (int32_t j = 0; j < node->n_out && j < HL_TUNED_OUTS; j++)
        out_tuned->out_bytes[j] = count_bytes(graph, node->out + j);
}

hl_status hl_tuned_compare(hl_tuned *tuned, const hl_graph *graph, hl_node_id id,
                           const hl_kernel *own)
{
    hl_kernel_req req = {0};
    hl_reason why_not;
    if (!tuned->benchmark || hl_fusion_find(graph, &graph->nodes[id], own->fusions) < 0)
        return HL_OK;
    hl_status status = own->query(tuned->device, graph, id, &req, &why_not);
    if (status != HL_OK) return status == HL_ERROR_CONFIG ? HL_OK : status;
    HL_TRY(own->prepare(tuned->device, graph, id, &tuned->own_state));
    tuned->own = own;
    return HL_OK;
}

void hl_tuned_deinit(hl_tuned *tuned)
{
    if (tuned->own) tuned->own->release(&tuned->own_state);
    tuned->own = NULL;
}

size_t hl_tuned_scratch_bytes(const hl_tuned *tuned)
{
    return tuned->deterministic ? HL_CUDA_DIGEST_BYTES : 0;
}

void hl_tuned_describe(const hl_kernel_state *kernel_state, char *out_text, size_t bytes)
{
    const hl_tuned *state = kernel_state->impl;
    int n = snprintf(out_text, bytes, "algorithm %d of %d", state->chosen + 1, state->n_algos);
    if (state->us > 0) snprintf(out_text + n, bytes - (size_t)n, ", %.1f us", (double)state->us);
}
