/* Problems that a library has and that it does not get: what tuning found out about them.
 *
 * Heuristics answer before anything runs. Whether a problem's algorithms run, give the same bits
 * twice, keep a NaN and gain anything shows in tuning; a problem that fails there is refused by
 * queries from then on, on this device. What depends on library and GPU alone is in the autotune
 * cache, too, so that the next process plans without it from the start. */
#ifndef HL_KERNELS_CUDA_REFUSALS_H
#define HL_KERNELS_CUDA_REFUSALS_H

#include "backend/backend.h"

typedef enum hl_refusal {
    HL_REFUSAL_NONE,
    HL_REFUSAL_FAILS,     /* no algorithm runs; found anew in each process */
    HL_REFUSAL_VARIES,    /* none gives the same bits twice: for plans that are deterministic */
    HL_REFUSAL_DROPS_NAN, /* its activation makes a number of NaN: so do all that end in that one */
    HL_REFUSAL_COSTS_MORE, /* than without its programs: for plans that are autotuned */
    HL_REFUSAL_SLOWER,     /* than hotloop's own kernel: for plans that are autotuned */
    HL_REFUSALS
} hl_refusal;

/* What a library is refused on a device, under the device's library lock. */
typedef struct hl_refusals {
    const char *library; /* "cuBLASLt" */
    const char *kind;    /* "matmul": in the autotune cache */
    int version;         /* the library's */
    struct hl_refused *list;
    int64_t n, cap;
} hl_refusals;
void hl_refusals_deinit(hl_refusals *refusals);

/* A problem of one node. Equal problems have equal texts, of all that the library is told. */
enum { HL_PROBLEM_TEXT = 512 };
typedef struct hl_problem {
    hl_refusals *refusals;
    char text[HL_PROBLEM_TEXT];
    const char *activation; /* that it ends in: "relu"; NULL: none */
    int64_t apart_bytes;    /* that kernels in its programs' place would read and write */
} hl_problem;

/* The key of a text in the autotune cache (HL_CUDA_KEY_BYTES). */
void hl_problem_key_write(const hl_refusals *refusals, const char *text, char *out_key);

/* Returns HL_ERROR_CONFIG, with a message, where the problem is refused from now on; else what went
 * wrong. */
hl_status hl_problem_refuse(hl_device *device, const hl_problem *problem, hl_refusal refusal);
/* Takes over what the autotune cache says of the problem. */
hl_status hl_problem_recall(hl_device *device, const hl_problem *problem);
/* HL_ERROR_CONFIG and the reason: it is refused in such a plan. */
hl_status hl_problem_check(hl_device *device, const hl_problem *problem, bool deterministic,
                           bool benchmark, hl_reason *out_why_not);

#endif
