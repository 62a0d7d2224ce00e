/* Which of cuBLASLt's algorithms a product takes: chosen once, before its first launch.
 *
 * Without measuring it is the first that runs, which is nearly always the first. With it (the plan
 * was asked to benchmark) each is timed on the operands' own memory, between two events, and the
 * fastest is kept (autotune_cache.h): for the next node of the same description, the next plan and
 * the next process. What was kept is taken only if the heuristics still name it: its workspace is
 * then the node's. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "kernels/cuda/autotune_cache.h"
#include "kernels/cuda/matmul_lt.h"

/* A node's share of plan time, and what one algorithm gets of it at most. */
enum { MAX_NS = 1000000000, ROUND_NS = 2000000, MAX_LAUNCHES = 50, ROUNDS = 3 };

typedef struct tuning {
    hl_lt_state *state;
    void *const *args;
    const hl_launch *launch;
    hl_stream *stream;
    CUevent begin, end;
} tuning;

/* ---- what is kept ---------------------------------------------------------------------------- */

/* An algorithm is its 64 bytes, which cuBLASLt takes again in the same version. */
enum { ALGO_WORDS = 8, ALGO_TEXT = 16 * ALGO_WORDS };

static void write_key(const hl_lt_state *state, char *out_key)
{
    char product[HL_LT_TEXT];
    hl_lt_product_format(&state->product, product);
    snprintf(out_key, HL_CUDA_KEY_BYTES, "cuBLASLt %d; %s", state->lt->version, product);
}

static void write_algo(const cublasLtMatmulAlgo_t *algo, char *out_text)
{
    for (int i = 0; i < ALGO_WORDS; i++)
        snprintf(out_text + 16 * i, 17, "%016llx", (unsigned long long)algo->data[i]);
}

/* The number of the algorithm that was kept; -1: none, or none that the heuristics still name. */
static int recall(const hl_lt_state *state, const char *key)
{
    char line[HL_CUDA_AUTOTUNE_BYTES], text[ALGO_TEXT + 1];
    if (!hl_cuda_autotune_find(state->device, "matmul", key, line)) return -1;
    for (int i = 0; i < state->algos.n; i++) {
        write_algo(&state->algos.algo[i], text);
        if (strncmp(line, text, ALGO_TEXT) == 0) return i;
    }
    return -1;
}

static void keep(const hl_lt_state *state, const char *key, float ms)
{
    char line[HL_CUDA_AUTOTUNE_BYTES], algo[ALGO_TEXT + 1];
    write_algo(&state->algos.algo[state->chosen], algo);
    snprintf(line, sizeof line, "%s %.1f us", algo, 1e3 * (double)ms);
    hl_cuda_autotune_keep(state->device, "matmul", key, line);
}

/* ---- measuring ------------------------------------------------------------------------------- */

static hl_status launch_times(const tuning *t, int which, int n)
{
    for (int i = 0; i < n; i++)
        HL_TRY(hl_lt_launch(t->state, which, t->args, t->launch, t->stream));
    return HL_OK;
}

/* Milliseconds of n launches. */
static hl_status time_launches(const tuning *t, int which, int n, float *out_ms)
{
    hl_device *device = t->state->device;
    const hl_cuda_driver *driver = hl_cuda_device_driver(device);
    CUstream stream = hl_cuda_stream_handle(device, t->stream);
    *out_ms = 0;
    HL_TRY(hl_cuda_enter(device));
    CUresult error = driver->cuEventRecord(t->begin, stream);
    hl_status status = hl_cuda_check(device, error, "recording an event");
    if (status == HL_OK) status = launch_times(t, which, n);
    if (status == HL_OK)
        status = hl_cuda_check(device, driver->cuEventRecord(t->end, stream), "recording an event");
    if (status == HL_OK)
        status = hl_cuda_check(device, driver->cuEventSynchronize(t->end), "waiting for an event");
    if (status == HL_OK)
        status = hl_cuda_check(device, driver->cuEventElapsedTime(out_ms, t->begin, t->end),
                               "measuring a product");
    hl_cuda_leave(device);
    return status;
}

/* Milliseconds of one launch: the best of some rounds, after one to warm up. */
static hl_status measure(const tuning *t, int which, float *out_ms)
{
    float first, ms;
    HL_TRY(time_launches(t, which, 1, &first));
    HL_TRY(time_launches(t, which, 1, &first));
    int n = first > 0 ? (int)((float)ROUND_NS * 1e-6f / first) : MAX_LAUNCHES;
    n = n < 1 ? 1 : n > MAX_LAUNCHES ? MAX_LAUNCHES : n;
    *out_ms = first;
    for (int round = 0; round < ROUNDS; round++) {
        HL_TRY(time_launches(t, which, n, &ms));
        if (ms / (float)n < *out_ms) *out_ms = ms / (float)n;
    }
    return HL_OK;
}

/* The library may refuse an algorithm when it is run; a device that is lost is an error. */
static bool is_refusal(hl_status status)
{
    return status == HL_ERROR_DEVICE;
}

/* The fastest of them and its time, or the first that runs. */
static hl_status choose(tuning *t, bool measures, float *out_ms)
{
    hl_lt_state *state = t->state;
    int64_t until = hl_os_time_ns() + MAX_NS;
    int best = -1;
    for (int i = 0; i < state->algos.n; i++) {
        float ms = 0;
        hl_status status = measures ? measure(t, i, &ms) : launch_times(t, i, 1);
        if (is_refusal(status)) {
            hl_log(HL_LOG_DEBUG, "algorithm %d of cuBLASLt left out: %s", i, hl_status_message());
            continue;
        }
        HL_TRY(status);
        if (best < 0 || ms < *out_ms) best = i, *out_ms = ms;
        if (!measures || hl_os_time_ns() > until) break;
    }
    if (best < 0)
        return hl_status_context(HL_ERROR_DEVICE,
                                 "none of cuBLASLt's %d algorithms for this product runs; "
                                 "HOTLOOP_CUBLASLT_PATH=none does without it",
                                 state->algos.n);
    state->chosen = best;
    return HL_OK;
}

static hl_status tune_measured(tuning *t)
{
    hl_device *device = t->state->device;
    const hl_cuda_driver *driver = hl_cuda_device_driver(device);
    float ms;
    char key[HL_CUDA_KEY_BYTES];
    write_key(t->state, key);
    int known = recall(t->state, key);
    if (known >= 0) {
        t->state->chosen = known;
        hl_status launched = launch_times(t, known, 1);
        if (!is_refusal(launched)) return launched;
    }
    HL_TRY(hl_cuda_enter(device));
    hl_status status;
    HL_GOTO(hl_cuda_check(device, driver->cuEventCreate(&t->begin, 0), "making an event"));
    HL_GOTO(hl_cuda_check(device, driver->cuEventCreate(&t->end, 0), "making an event"));
    HL_GOTO(choose(t, true, &ms));
    t->state->us = 1e3f * ms;
    keep(t->state, key, ms);
cleanup:
    if (t->begin) driver->cuEventDestroy(t->begin);
    if (t->end) driver->cuEventDestroy(t->end);
    hl_cuda_leave(device);
    return status;
}

hl_status hl_lt_tune(const hl_kernel_state *kernel_state, void *const *args,
                     const hl_launch *launch, hl_stream *stream)
{
    float ms;
    tuning t = {.state = kernel_state->impl, .args = args, .launch = launch, .stream = stream};
    if (t.state->benchmark && t.state->algos.n > 1) return tune_measured(&t);
    return choose(&t, false, &ms);
}
