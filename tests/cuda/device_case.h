/* One node run on the emulated GPU and on the reference backend, and compared: a case
 * (tests/c/case.h) goes through all the runs of node_case.h. */
#ifndef TESTS_CUDA_DEVICE_CASE_H
#define TESTS_CUDA_DEVICE_CASE_H

#include "tests/c/case.h"
#include "tests/cuda/node_case.h"

static hl_device *case_gpu;
/* How the next cases run: by deterministic kernels alone; operands so many bytes off from where
 * they would lie aligned. */
static bool case_deterministic;
static size_t case_shift;

__attribute__((unused)) static void case_open(void)
{
    case_gpu = fake_device_open(NULL);
    CHECK_OK(hl_ref_backend()->device_open(hl_ref_backend(), 0, NULL, &case_ref));
}

__attribute__((unused)) static void case_close(void)
{
    fake_device_close(case_gpu);
    case_ref->ops->destroy(case_ref);
}

/* The bits of all runs, from malloc; got[] and control_after[0] too. */
static bool case_run_gpu(op_case *c, unsigned char **out_bytes)
{
    case_graph g;
    node_case node;
    case_build(c, false, &g);
    node_begin(&node, case_gpu, &g.graph);
    node.deterministic = case_deterministic, node.shift = case_shift, node.control = c->control;
    for (int v = 0; v < c->n_in; v++) {
        if (c->is_control[v]) node.over[v] = NODE_CONTROL;
        int64_t n = c->is_control[v] ? 0 : hl_shape_numel(&c->in[v].shape);
        for (int64_t e = 0; e < n; e++)
            element_store(node.host[v], c->in[v].dtype, e, c->data[v][e]);
    }
    for (int j = 0; j < c->n_out && c->is_guarded; j++) node.over[c->n_in + j] = node.over[j];
    hl_status status = node_run(&node);
    CHECK_OK(status);
    c->control_after[0] = node.control_after;
    for (int j = 0; j < c->n_out && status == HL_OK; j++) {
        int v = c->n_in + j;
        int64_t n = hl_shape_numel(&c->out[j].shape);
        if (node.over[v] == NODE_CONTROL) continue;
        out_bytes[j] = node.host[v];
        node.host[v] = NULL;
        c->got[j] = realloc(c->got[j], (size_t)(n + 1) * sizeof(double));
        for (int64_t e = 0; e < n; e++)
            c->got[j][e] = element_load(out_bytes[j], c->out[j].dtype, e);
    }
    node_end(&node);
    return status == HL_OK;
}

/* Everything the head of this file promises, for one case; then frees the case's memory. */
__attribute__((unused)) static void case_check(op_case *c)
{
    unsigned char *first[CASE_MAX] = {NULL};
    hl_kernel_req ignored;
    if (case_run_gpu(c, first) && !c->allows_any &&
        case_run_once(c, case_ref, 1, CASE_APART, NULL, &ignored))
        case_compare(c);
    for (int j = 0; j < CASE_MAX; j++) free(first[j]);
    case_forget(c);
}

#endif
