/* A graph, its plan, and the session and device of its own that they are of. */
#ifndef TESTS_C_BENCH_H
#define TESTS_C_BENCH_H

#include "plan/session.h"
#include "tests/c/check.h"

typedef struct bench {
    hl_device *device;
    hl_session *session;
    hl_graph *graph;
    hl_plan *plan;
} bench;

static inline bench open_bench(const hl_backend *backend, int n_threads)
{
    bench b = {0};
    hl_device_options options = {.n_threads = n_threads};
    CHECK_OK(backend->device_open(backend, 0, &options, &b.device));
    CHECK_OK(hl_session_create(b.device, &b.session));
    CHECK_OK(hl_graph_create(&b.graph));
    return b;
}

static inline void close_bench(bench *b)
{
    hl_plan_destroy(b->plan);
    hl_session_destroy(b->session);
    b->device->ops->destroy(b->device);
}

#endif
