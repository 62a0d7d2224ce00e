#include "kernels/cuda/refusals.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "kernels/cuda/autotune_cache.h"
#include "kernels/cuda/internal.h"

struct hl_refused {
    char text[HL_PROBLEM_TEXT]; /* of a problem, or the name of an activation */
    hl_refusal refusal;
};

typedef struct refusal_row {
    const char *why;  /* "cuBLASLt: ..." of a problem */
    const char *line; /* in the autotune cache; NULL: it is not kept there */
    hl_log_level level;
    bool of_activation;
} refusal_row;
static const refusal_row rows[HL_REFUSALS] = {
    [HL_REFUSAL_FAILS] = {"no algorithm runs", NULL, HL_LOG_WARNING, false},
    [HL_REFUSAL_VARIES] = {"no algorithm gives the same bits twice", NULL, HL_LOG_WARNING, false},
    [HL_REFUSAL_DROPS_NAN] = {"it makes a number of NaN", "drops NaN", HL_LOG_INFO, true},
    [HL_REFUSAL_COSTS_MORE] = {"it is slower than without what is fused, and a kernel for that",
                               "apart", HL_LOG_INFO, false},
    [HL_REFUSAL_SLOWER] = {"it is slower than hotloop's own kernel", "own", HL_LOG_INFO, false},
};

void hl_refusals_deinit(hl_refusals *refusals)
{
    hl_free(refusals->list);
}

void hl_problem_key_write(const hl_refusals *refusals, const char *text, char *out_key)
{
    snprintf(out_key, HL_CUDA_KEY_BYTES, "%s %d; %s", refusals->library, refusals->version, text);
}

/* What such a refusal is kept under; NULL: it is not of this problem. */
static const char *find_text(const hl_problem *problem, hl_refusal refusal)
{
    if (refusal == HL_REFUSAL_COSTS_MORE && !problem->apart_bytes) return NULL;
    return rows[refusal].of_activation ? problem->activation : problem->text;
}

/* Under the device's library lock, as what follows. */
static bool is_refused(const hl_refusals *refusals, const char *text, hl_refusal refusal)
{
    for (int64_t i = 0; i < refusals->n; i++)
        if (refusals->list[i].refusal == refusal && strcmp(refusals->list[i].text, text) == 0)
            return true;
    return false;
}

/* The first refusal of a kind is said to the user, for all of them. */
static hl_status add_refusal(hl_device *device, hl_refusals *refusals, const char *text,
                             hl_refusal refusal)
{
    const refusal_row *row = &rows[refusal];
    bool is_first = true;
    if (is_refused(refusals, text, refusal)) return HL_OK;
    for (int64_t i = 0; i < refusals->n; i++) is_first &= refusals->list[i].refusal != refusal;
    HL_TRY(hl_alloc_grow((void **)&refusals->list, &refusals->cap, refusals->n + 1,
                         sizeof *refusals->list));
    struct hl_refused *refused = &refusals->list[refusals->n++];
    refused->refusal = refusal;
    hl_text_copy(refused->text, sizeof refused->text, text);
    __atomic_add_fetch(&device->n_refusals, 1, __ATOMIC_RELEASE);
    hl_log(is_first ? row->level : HL_LOG_DEBUG,
           "%s %d: %s: %s; hotloop's own kernels compute it, and others of which that is so",
           refusals->library, refusals->version, text, row->why);
    return HL_OK;
}

static hl_status add_locked(hl_device *base, hl_refusals *refusals, const char *text,
                            hl_refusal refusal)
{
    hl_cuda_device *device = hl_cuda_of(base);
    hl_mutex_lock(&device->library_lock);
    hl_status status = add_refusal(base, refusals, text, refusal);
    hl_mutex_unlock(&device->library_lock);
    return status;
}

hl_status hl_problem_refuse(hl_device *device, const hl_problem *problem, hl_refusal refusal)
{
    hl_refusals *refusals = problem->refusals;
    const char *text = find_text(problem, refusal);
    char key[HL_CUDA_KEY_BYTES];
    if (!text)
        return hl_status_set(HL_ERROR_INTERNAL, "%s: a problem is refused for what it is not",
                             refusals->library);
    HL_TRY(add_locked(device, refusals, text, refusal));
    hl_problem_key_write(refusals, text, key);
    if (rows[refusal].line) hl_cuda_autotune_keep(device, refusals->kind, key, rows[refusal].line);
    return hl_status_set(HL_ERROR_CONFIG, "%s: %s: %s", refusals->library, text, rows[refusal].why);
}

hl_status hl_problem_recall(hl_device *device, const hl_problem *problem)
{
    hl_refusals *refusals = problem->refusals;
    char key[HL_CUDA_KEY_BYTES], line[HL_CUDA_AUTOTUNE_BYTES];
    for (int r = HL_REFUSAL_FAILS; r < HL_REFUSALS; r++) {
        const char *text = rows[r].line ? find_text(problem, (hl_refusal)r) : NULL;
        if (!text) continue;
        hl_problem_key_write(refusals, text, key);
        if (hl_cuda_autotune_find(device, refusals->kind, key, line) &&
            strcmp(line, rows[r].line) == 0)
            HL_TRY(add_locked(device, refusals, text, (hl_refusal)r));
    }
    return HL_OK;
}

hl_status hl_problem_check(hl_device *base, const hl_problem *problem, bool deterministic,
                           bool benchmark, hl_reason *out_why_not)
{
    hl_cuda_device *device = hl_cuda_of(base);
    const bool counts[HL_REFUSALS] = {[HL_REFUSAL_FAILS] = true,
                                      [HL_REFUSAL_VARIES] = deterministic,
                                      [HL_REFUSAL_DROPS_NAN] = true,
                                      [HL_REFUSAL_COSTS_MORE] = benchmark,
                                      [HL_REFUSAL_SLOWER] = benchmark};
    hl_status status = HL_OK;
    hl_mutex_lock(&device->library_lock);
    for (int r = HL_REFUSAL_FAILS; r < HL_REFUSALS && status == HL_OK; r++) {
        const char *text = counts[r] ? find_text(problem, (hl_refusal)r) : NULL;
        if (text && is_refused(problem->refusals, text, (hl_refusal)r))
            status = hl_reason_set(out_why_not, "%s: %s", problem->refusals->library, rows[r].why);
    }
    hl_mutex_unlock(&device->library_lock);
    return status;
}
