/* Which of cuBLASLt's algorithms a product takes: chosen once, before its first launch.
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
 * a margin. A product that carries programs is timed against the one without, plus what kernels in
 * the programs' place would take, which is what a copy of as many bytes takes (an upper bound: the
 * launch counts for every matrix); where that is faster by the margin, the product is refused, and
 * the plan is made again without the programs.
 *
 * The outcome is kept (autotune_cache.h): for the next node of the same description, the next plan
 * and the next process. An algorithm that was kept is taken only if the heuristics still name it:
 * its workspace is then the node's. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "kernels/cuda/autotune_cache.h"
#include "kernels/cuda/lt_refusals.h"
#include "kernels/cuda/matmul_lt.h"

/* A node's share of plan time, and what one candidate gets of it in a round. */
enum { MAX_NS = 1000000000, MAX_LAUNCHES = 50, ROUNDS = 5, WARM_ROUNDS = 100 };
static const float ROUND_MS = 0.5f, WARM_MS = 5, MARGIN = 0.97f;
/* Its product's and the bare one's algorithms, and a copy. */
enum { MAX_CANDIDATES = 2 * HL_LT_ALGOS + 1, SAMPLE_BYTES = 4096 };

typedef struct candidate {
    const hl_lt_work *work; /* NULL: a copy of half of the result onto the other half */
    int which;
    int n;    /* launches of a round; 0: it was not timed */
    float ms; /* of a launch, in the fastest round */
} candidate;

typedef struct tuning {
    hl_lt_state *state;
    hl_lt_place place;
    int64_t until;
    CUevent begin, end;
    candidate list[MAX_CANDIDATES];
    int n;
} tuning;

/* ---- what is kept ---------------------------------------------------------------------------- */

/* An algorithm is its 64 bytes, which cuBLASLt takes again in the same version. */
enum { ALGO_WORDS = 8, ALGO_TEXT = 16 * ALGO_WORDS };

static void write_key(const hl_lt_state *state, char *out_key)
{
    char product[HL_LT_TEXT];
    hl_lt_product_format(&state->work.product, product);
    hl_lt_key_write(state->lt, product, out_key);
}

static void write_algo(const cublasLtMatmulAlgo_t *algo, char *out_text)
{
    for (int i = 0; i < ALGO_WORDS; i++)
        snprintf(out_text + 16 * i, 17, "%016llx", (unsigned long long)algo->data[i]);
}

/* The number of the algorithm that was kept; -1: none, or none that the heuristics still name. */
static int recall(const hl_lt_state *state)
{
    const hl_lt_algos *algos = &state->work.algos;
    char key[HL_CUDA_KEY_BYTES], line[HL_CUDA_AUTOTUNE_BYTES], text[ALGO_TEXT + 1];
    write_key(state, key);
    if (!hl_cuda_autotune_find(state->device, "matmul", key, line)) return -1;
    for (int i = 0; i < algos->n; i++) {
        write_algo(&algos->algo[i], text);
        if (strncmp(line, text, ALGO_TEXT) == 0) return i;
    }
    return -1;
}

static void keep(const hl_lt_state *state)
{
    char key[HL_CUDA_KEY_BYTES], line[HL_CUDA_AUTOTUNE_BYTES], algo[ALGO_TEXT + 1];
    write_key(state, key);
    write_algo(&state->work.algos.algo[state->chosen], algo);
    snprintf(line, sizeof line, "%s %.1f us", algo, (double)state->us);
    hl_cuda_autotune_keep(state->device, "matmul", key, line);
}

/* ---- what an algorithm has to do ------------------------------------------------------------- */

static hl_status download(const tuning *t, void *to, const void *from, size_t bytes)
{
    hl_device *device = t->state->device;
    HL_TRY(device->ops->copy(device, to, from, bytes, HL_COPY_DEVICE_TO_HOST, t->place.stream));
    return device->ops->synchronize(device, t->place.stream);
}

static bool is_nan(const void *at, cudaDataType_t type, size_t i)
{
    if (type == CUDA_R_32F) return isnan(((const float *)at)[i]);
    unsigned infinity = type == CUDA_R_16BF ? 0x7F80 : 0x7C00;
    return (((const uint16_t *)at)[i] & 0x7FFFu) > infinity;
}

/* Looks at both ends of the result. */
static hl_status find_number(const tuning *t, bool *out_found)
{
    const hl_lt_state *state = t->state;
    cudaDataType_t type = state->work.product.result;
    size_t bytes = (size_t)state->out_bytes[0], n = bytes < SAMPLE_BYTES ? bytes : SAMPLE_BYTES;
    const char *out = t->place.args[state->n_in];
    _Alignas(8) char sample[SAMPLE_BYTES];
    *out_found = false;
    for (int end = 0; end < 2; end++) {
        HL_TRY(download(t, sample, end ? out + bytes - n : out, n));
        for (size_t i = 0; i < n / (type == CUDA_R_32F ? 4 : 2); i++)
            *out_found |= !is_nan(sample, type, i);
    }
    return HL_OK;
}

/* Of all that the product has written. */
static hl_status take_digest(const tuning *t, uint64_t *out_digest)
{
    const hl_lt_state *state = t->state;
    const hl_cuda_shape shape = {{HL_CUDA_DIGEST_BLOCKS, 1, 1}, {HL_CUDA_DIGEST_THREADS, 1, 1}, 0};
    void *sums;
    CUfunction kernel;
    *out_digest = HL_HASH_START;
    HL_TRY(hl_alloc(HL_CUDA_DIGEST_BYTES, &sums));
    hl_status status;
    HL_GOTO(hl_cuda_kernel_get(state->device, "hl_cuda_digest", 0, &kernel));
    for (int j = 0; j < state->n_out && j < HL_LT_OUTS; j++) {
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

/* Queues alpha times the product; FAILS where the library does not take it. */
static hl_status try_launch(const tuning *t, const hl_lt_work *work, int which, float alpha,
                            hl_lt_refusal *out_refusal)
{
    bool refused;
    hl_status status = hl_lt_launch(&t->place, work, which, alpha, &refused);
    *out_refusal = refused ? HL_LT_FAILS : HL_LT_FINE;
    if (!refused) return status;
    hl_log(HL_LOG_DEBUG, "algorithm %d of cuBLASLt left out: %s", which, hl_status_message());
    return HL_OK;
}

static hl_status check_nan(const tuning *t, int which, hl_lt_refusal *out_refusal)
{
    bool found;
    HL_TRY(try_launch(t, &t->state->work, which, NAN, out_refusal));
    if (*out_refusal != HL_LT_FINE) return HL_OK;
    HL_TRY(find_number(t, &found));
    if (found) *out_refusal = HL_LT_DROPS_NAN;
    return HL_OK;
}

static hl_status check_repeats(const tuning *t, int which, hl_lt_refusal *out_refusal)
{
    uint64_t digest[2];
    for (int i = 0; i < 2; i++) {
        HL_TRY(try_launch(t, &t->state->work, which, 1, out_refusal));
        if (*out_refusal != HL_LT_FINE) return HL_OK;
        HL_TRY(take_digest(t, &digest[i]));
    }
    if (digest[0] != digest[1]) *out_refusal = HL_LT_VARIES;
    return HL_OK;
}

/* Loads an algorithm of the node's product, too. HL_LT_FINE: it may be taken. */
static hl_status check_algo(const tuning *t, int which, hl_lt_refusal *out_refusal)
{
    const hl_lt_state *state = t->state;
    HL_TRY(try_launch(t, &state->work, which, 1, out_refusal));
    if (*out_refusal == HL_LT_FINE && state->work.product.activation)
        HL_TRY(check_nan(t, which, out_refusal));
    if (*out_refusal == HL_LT_FINE && state->deterministic)
        HL_TRY(check_repeats(t, which, out_refusal));
    return HL_OK;
}

/* For the device, so that the host's clock counts its work. */
static hl_status await(const tuning *t)
{
    return t->state->device->ops->synchronize(t->state->device, t->place.stream);
}

static hl_status refuse(const tuning *t, hl_lt_refusal refusal)
{
    HL_TRY(await(t)); /* a device that does not work any more is no refusal of the library's */
    return hl_lt_refuse(t->state->device, &t->state->work.product, refusal);
}

/* Lists the algorithms that may be taken, all of them or the first; HL_ERROR_CONFIG: none may. */
static hl_status list_algos(tuning *t, bool all)
{
    hl_lt_refusal found, worst = HL_LT_FAILS;
    for (int i = 0; i < t->state->work.algos.n && (all || !t->n); i++) {
        if (t->n && hl_os_time_ns() > t->until) break;
        HL_TRY(check_algo(t, i, &found));
        if (found == HL_LT_DROPS_NAN) return refuse(t, found);
        if (found == HL_LT_VARIES) worst = found;
        if (found == HL_LT_FINE) t->list[t->n++] = (candidate){.work = &t->state->work, .which = i};
        if (all) HL_TRY(await(t));
    }
    return t->n ? HL_OK : refuse(t, worst);
}

/* ---- measuring ------------------------------------------------------------------------------- */

/* Bytes that a candidate without a product copies. */
static size_t count_copied(const hl_lt_state *state)
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
        if (c->work)
            HL_TRY(hl_lt_launch(&t->place, c->work, c->which, 1, out_refused));
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
                         "measuring a product");
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

/* The first of a product's algorithms, or one that is faster by the margin; NULL: none ran. */
static const candidate *pick(const tuning *t, const hl_lt_work *work)
{
    const candidate *first = NULL, *best = NULL;
    for (int i = 0; i < t->n; i++) {
        const candidate *c = &t->list[i];
        if (c->work != work || c->n == 0) continue;
        if (!first) first = c;
        if (!best || c->ms < best->ms) best = c;
    }
    return best && best->ms < MARGIN * first->ms ? best : first;
}

/* Lists what would take the place of a product with programs: algorithms that run in the node's
 * workspace, and the copy. Nothing, where the library has no such product. */
static hl_status list_bare(tuning *t, hl_lt_work *bare)
{
    const hl_lt_state *state = t->state;
    hl_lt_refusal found;
    hl_reason why_not;
    size_t room = 0;
    bare->product = hl_lt_product_bare(&state->work.product);
    hl_status status = hl_lt_algos_find(state->device, &bare->product, &bare->algos, &why_not);
    if (status == HL_OK)
        status = hl_lt_refusals_check(state->device, &bare->product, state->deterministic, true,
                                      &why_not);
    if (status == HL_ERROR_CONFIG || !count_copied(state)) return HL_OK;
    HL_TRY(status);
    HL_TRY(hl_lt_descs_init(state->lt, &bare->product, &bare->descs));
    for (int i = 0; i < state->work.algos.n; i++)
        if (state->work.algos.bytes[i] > room) room = state->work.algos.bytes[i];
    for (int i = 0; i < bare->algos.n; i++) {
        if (bare->algos.bytes[i] > room || hl_os_time_ns() > t->until) continue;
        HL_TRY(try_launch(t, bare, i, 1, &found));
        if (found == HL_LT_FINE) t->list[t->n++] = (candidate){.work = bare, .which = i};
        HL_TRY(await(t));
    }
    t->list[t->n++] = (candidate){.work = NULL};
    return HL_OK;
}

/* Milliseconds of the product without programs and of kernels in their place. */
static float time_apart(const tuning *t, const hl_lt_work *bare)
{
    const candidate *product = pick(t, bare), *copy = pick(t, NULL);
    if (!product || !copy) return INFINITY;
    /* A copy reads as many bytes as it writes. */
    float copied = 2 * (float)count_copied(t->state);
    return product->ms + copy->ms * (float)t->state->work.product.apart_bytes / copied;
}

static hl_status choose_fastest(tuning *t)
{
    hl_lt_state *state = t->state;
    hl_lt_work bare = {.algos.n = 0};
    const candidate *best;
    hl_status status;
    HL_GOTO(list_algos(t, true));
    if (state->work.product.apart_bytes) HL_GOTO(list_bare(t, &bare));
    HL_GOTO(measure(t));
    best = pick(t, &state->work);
    if (!best) HL_GOTO(refuse(t, HL_LT_FAILS));
    state->chosen = best->which;
    state->us = 1e3f * best->ms;
    if (time_apart(t, &bare) < MARGIN * best->ms) HL_GOTO(refuse(t, HL_LT_COSTS_MORE));
    keep(state);
cleanup:
    hl_lt_descs_deinit(state->lt, &bare.descs);
    return status;
}

/* ---- tuning ---------------------------------------------------------------------------------- */

/* *out_chosen: an algorithm that was kept is fine. */
static hl_status take_kept(tuning *t, bool *out_chosen)
{
    hl_lt_refusal found;
    int known = recall(t->state);
    *out_chosen = false;
    if (known < 0) return HL_OK;
    HL_TRY(check_algo(t, known, &found));
    *out_chosen = found == HL_LT_FINE;
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
static hl_status check_refusals(const hl_lt_state *state)
{
    hl_reason why_not;
    const hl_lt_product *product = &state->work.product;
    HL_TRY(hl_lt_refusals_recall(state->device, product));
    if (hl_lt_refusals_check(state->device, product, state->deterministic, state->benchmark,
                             &why_not) == HL_OK)
        return HL_OK;
    return hl_status_set(HL_ERROR_CONFIG, "%s", why_not.text);
}

hl_status hl_lt_tune(const hl_kernel_state *kernel_state, void *const *args,
                     const hl_launch *launch, hl_stream *stream)
{
    hl_lt_state *state = kernel_state->impl;
    tuning t = {
        .state = state, .place = {state, args, launch, stream}, .until = hl_os_time_ns() + MAX_NS};
    HL_TRY(check_refusals(state));
    if (state->benchmark && (state->work.algos.n > 1 || state->work.product.apart_bytes))
        return tune_measured(&t);
    HL_TRY(list_algos(&t, false));
    state->chosen = t.list[0].which;
    return HL_OK;
}
