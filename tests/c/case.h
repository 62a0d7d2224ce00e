/* One node, its operands and what came of it: the case that tests of kernels run on a device and on
 * the reference backend, and compare.
 *
 * A case gives op, attributes, types and values; the reference runs it with float64 in place of
 * every floating type, on values that were rounded first. Here is what devices in host memory need
 * (cpu_case.h, and the reference itself): guards around every buffer, NaN in scratch and outputs.
 * Others copy the operands (tests/cuda/device_case.h). */
#ifndef TESTS_C_CASE_H
#define TESTS_C_CASE_H

#include <math.h>
#include <stdlib.h>

#include "backend/backend.h"
#include "base/alloc.h"
#include "kernels/ref/ref.h"
#include "tests/c/check.h"
#include "tests/c/dice.h"
#include "tests/c/element.h"

enum { CASE_MAX = 24, CASE_GUARD = 64 };

typedef struct op_case {
    hl_op op;
    hl_segment segment;
    hl_attrs attrs;
    const hl_program *program;
    int n_in, n_out;
    hl_type in[CASE_MAX], out[CASE_MAX];
    double *data[CASE_MAX];    /* values of the inputs; case_fill makes them */
    bool is_control[CASE_MAX]; /* input is the control block below */
    bool is_guarded;           /* output j lies over input j */
    bool allows_any;           /* no reference: only the cuts are compared */
    hl_control control;
    double tolerance; /* relative, and absolute where |value| < 1 */
    double *want[CASE_MAX], *got[CASE_MAX];
    hl_control control_after[2]; /* device, reference */
} op_case;

/* The op's attribute `axes`, or `axis`. */
static inline void set_axes(op_case *c, const int64_t *axes, int n)
{
    hl_schema schema = hl_op_get(c->op)->schema;
    const hl_attr_info *list = hl_schema_find(schema, "axes");
    if (list)
        *hl_attrs_ints(&c->attrs, list) = hl_ints_make(axes, n);
    else
        hl_attrs_int_set(&c->attrs, hl_schema_find(schema, "axis"), axes[0]);
}

static hl_device *case_ref;

static hl_dtype case_dtype(hl_dtype dtype, bool is_ref)
{
    return is_ref && hl_dtype_is_float(dtype) ? HL_DTYPE_F64 : dtype;
}

static size_t case_bytes(const hl_type *type)
{
    return (size_t)hl_shape_numel(&type->shape) * hl_dtype_bytes(type->dtype);
}

/* Uniform in [low, high), rounded to what the dtype holds. */
__attribute__((unused)) static void case_fill(op_case *c, int i, double low, double high)
{
    int64_t n = hl_shape_numel(&c->in[i].shape);
    if (!c->data[i]) c->data[i] = malloc((size_t)(n + 1) * sizeof(double));
    for (int64_t e = 0; e < n; e++) {
        double value = low + (high - low) * (dice_draw() + 1) / 2, memory;
        if (!hl_dtype_is_float(c->in[i].dtype)) value = floor(value);
        element_store(&memory, c->in[i].dtype, 0, value);
        c->data[i][e] = element_load(&memory, c->in[i].dtype, 0);
    }
}

/* Guarded memory of exactly `bytes`, full of 0xFF: NaN in every floating type. */
static unsigned char *case_alloc(size_t bytes)
{
    size_t total = (bytes + 2 * CASE_GUARD + 63) / 64 * 64;
    unsigned char *block = aligned_alloc(64, total);
    memset(block, 0xFF, total);
    memset(block, 0xA5, CASE_GUARD);
    memset(block + CASE_GUARD + bytes, 0xA5, CASE_GUARD);
    return block + CASE_GUARD;
}

static void case_free(unsigned char *at, size_t bytes)
{
    if (!at) return;
    for (int i = 0; i < CASE_GUARD; i++) {
        CHECK_INT(at[-1 - i], 0xA5);
        CHECK_INT(at[bytes + (size_t)i], 0xA5);
    }
    free(at - CASE_GUARD);
}

/* The graph of one node, by hand: kernels read values and nodes alone. */
typedef struct case_graph {
    hl_graph graph;
    hl_value value[2 * CASE_MAX];
    hl_node node;
    hl_id in[CASE_MAX];
} case_graph;

static void case_build(const op_case *c, bool is_ref, case_graph *g)
{
    memset(g, 0, sizeof *g);
    for (int v = 0; v < c->n_in + c->n_out; v++) {
        const hl_type *type = v < c->n_in ? &c->in[v] : &c->out[v - c->n_in];
        g->value[v].type = *type;
        g->value[v].type.dtype = case_dtype(type->dtype, is_ref);
        if (v < c->n_in) g->in[v] = v;
    }
    g->node = (hl_node){.op = c->op, .segment = c->segment, .n_in = c->n_in, .n_out = c->n_out};
    g->node.in = g->in, g->node.out = c->n_in;
    g->node.attrs = c->attrs, g->node.program = c->program;
    g->graph.values = g->value, g->graph.n_values = c->n_in + c->n_out;
    g->graph.nodes = &g->node, g->graph.n_nodes = 1;
}

static void case_spoil(unsigned char *scratch, size_t bytes)
{
    if (bytes > 0) memset(scratch, 0xFF, bytes);
}

/* Operands of the run that keeps blocks to their rows. */
typedef struct case_rows {
    int n_in, n_out;
    size_t bytes[2 * CASE_MAX];
    unsigned char *saved[2 * CASE_MAX]; /* whole inputs; outputs before the block */
} case_rows;

static void case_show_rows(const hl_kernel_req *req, const case_rows *rows, void *const *args,
                           int64_t begin, int64_t end)
{
    for (int v = 0; v < rows->n_in + rows->n_out; v++) {
        size_t part = rows->bytes[v] / (size_t)req->rows;
        bool is_in = v < rows->n_in;
        if (!is_in) memcpy(rows->saved[v], args[v], rows->bytes[v]);
        if (!is_in || !(req->row_in >> v & 1)) continue;
        CHECK_INT(part * (size_t)req->rows, rows->bytes[v]);
        size_t at = part * (size_t)begin;
        case_spoil(args[v], rows->bytes[v]);
        memcpy((unsigned char *)args[v] + at, rows->saved[v] + at, part * (size_t)(end - begin));
    }
}

static void case_check_rows(const hl_kernel_req *req, const case_rows *rows, void *const *args,
                            int64_t begin, int64_t end)
{
    for (int j = 0; j < rows->n_out; j++) {
        int v = rows->n_in + j;
        if (!(req->row_out >> j & 1)) continue;
        size_t part = rows->bytes[v] / (size_t)req->rows, first = part * (size_t)begin;
        size_t last = part * (size_t)end;
        const unsigned char *now = args[v], *before = rows->saved[v];
        CHECK(memcmp(now, before, first) == 0);
        CHECK(memcmp(now + last, before + last, rows->bytes[v] - last) == 0);
    }
}

static void case_launch(const hl_kernel *kernel, const hl_kernel_state *state,
                        const hl_kernel_req *req, void *const *args, hl_launch *launch,
                        int64_t grains_per_block, const case_rows *rows)
{
    if (!kernel->block) {
        CHECK_OK(kernel->launch(state, args, launch, NULL));
        return;
    }
    CHECK(req->rows >= 1 && req->grain >= 1);
    int64_t step = grains_per_block * req->grain, n_blocks = (req->rows + step - 1) / step;
    /* Last block first: order must not matter. */
    for (int64_t b = n_blocks - 1; b >= 0; b--) {
        case_spoil(launch->thread_scratch, req->thread_scratch_bytes);
        int64_t end = (b + 1) * step < req->rows ? (b + 1) * step : req->rows;
        if (rows) case_show_rows(req, rows, args, b * step, end);
        kernel->block(state, args, b * step, end, launch);
        if (rows) case_check_rows(req, rows, args, b * step, end);
    }
    n_blocks = (req->phase_rows - 1) / grains_per_block + 1;
    for (launch->phase = 1; launch->phase < req->n_phases; launch->phase++)
        for (int64_t b = n_blocks - 1; b >= 0; b--) {
            case_spoil(launch->thread_scratch, req->thread_scratch_bytes);
            int64_t begin = b * grains_per_block, left = req->phase_rows - begin;
            kernel->block(state, args, begin,
                          begin + (left < grains_per_block ? left : grains_per_block), launch);
        }
    launch->phase = 0;
}

enum { CASE_APART = -1, CASE_BY_ROWS = -2 };

/* The way to run a case in which output j is laid over input i. */
static inline int case_over(int i, int j)
{
    return j * CASE_MAX + i;
}

/* False when no kernel takes the node. way: case_over of two operands, CASE_APART, or CASE_BY_ROWS:
 * blocks are kept to their rows. *out_req: what the kernel asks for. */
__attribute__((unused)) static bool case_run_once(op_case *c, hl_device *device, int64_t grains,
                                                  int way, unsigned char **out_bytes,
                                                  hl_kernel_req *out_req)
{
    bool is_ref = device == case_ref;
    case_graph g;
    case_build(c, is_ref, &g);
    const hl_kernel *kernel = NULL;
    hl_kernel_req req = {0};
    hl_reason reason = {""};
    const hl_kernel *const *list = device->ops->kernels(device, c->op);
    for (; list && *list && !kernel; list++) {
        req = (hl_kernel_req){0};
        if ((*list)->query(device, &g.graph, 0, &req, &reason) == HL_OK) kernel = *list;
    }
    if (!kernel) {
        check_fail(__FILE__, __LINE__, "no kernel: %s", reason.text);
        return false;
    }
    if (req.grain < 1) req.grain = 1;
    *out_req = req;
    int over = way < 0 ? -1 : way % CASE_MAX, placed = way < 0 ? -1 : c->n_in + way / CASE_MAX;
    /* What is read whole is overwritten when all is read. */
    bool is_cut = way < 0 || hl_kernel_reads_rows(&req, over);
    if (!is_cut) grains = req.rows / req.grain + 1;
    hl_kernel_state state = {.kernel = kernel};
    CHECK_OK(kernel->prepare(device, &g.graph, 0, &state));
    unsigned char *args[2 * CASE_MAX] = {NULL};
    hl_control control = c->control;
    for (int v = 0; v < c->n_in + c->n_out; v++) {
        const hl_type *type = &g.value[v].type;
        if (v < c->n_in && c->is_control[v]) {
            args[v] = (unsigned char *)&control;
            continue;
        }
        int j = v - c->n_in;
        if (j >= 0 && c->is_guarded) {
            args[v] = args[j];
        } else if (v == placed) {
            args[v] = args[over];
        } else {
            args[v] = case_alloc(case_bytes(type));
        }
        for (int64_t e = 0; v < c->n_in && e < hl_shape_numel(&type->shape); e++) {
            element_store(args[v], type->dtype, e, c->data[v][e]);
        }
    }
    unsigned char *scratch = case_alloc(req.scratch_bytes);
    unsigned char *thread_scratch = case_alloc(req.thread_scratch_bytes);
    hl_launch launch = {.scratch = scratch,
                        .thread_scratch = thread_scratch,
                        .control = &control,
                        .segment = c->segment};
    case_rows rows = {.n_in = c->n_in, .n_out = c->n_out};
    for (int v = 0; v < c->n_in + c->n_out && way == CASE_BY_ROWS; v++) {
        bool is_control = v < c->n_in && c->is_control[v];
        rows.bytes[v] = is_control ? 0 : case_bytes(&g.value[v].type);
        rows.saved[v] = malloc(rows.bytes[v] + 1);
        memcpy(rows.saved[v], args[v], rows.bytes[v]);
    }
    case_launch(kernel, &state, &req, (void *const *)args, &launch, grains,
                way == CASE_BY_ROWS ? &rows : NULL);
    for (int v = 0; v < c->n_in + c->n_out; v++) free(rows.saved[v]);
    c->control_after[is_ref] = control;
    for (int j = 0; j < c->n_out; j++) {
        const hl_type *type = &g.value[c->n_in + j].type;
        size_t bytes = case_bytes(type);
        if (args[c->n_in + j] == (unsigned char *)&control) continue;
        double **values = is_ref ? c->want : c->got;
        int64_t n = hl_shape_numel(&type->shape);
        values[j] = realloc(values[j], (size_t)(n + 1) * sizeof(double));
        for (int64_t e = 0; e < n; e++) {
            values[j][e] = element_load(args[c->n_in + j], type->dtype, e);
        }
        if (out_bytes) {
            out_bytes[j] = malloc(bytes + 1);
            memcpy(out_bytes[j], args[c->n_in + j], bytes);
        }
    }
    for (int v = 0; v < c->n_in + c->n_out; v++) {
        if (args[v] == (unsigned char *)&control) continue;
        bool is_alias = v >= c->n_in && (c->is_guarded || v == placed);
        if (!is_alias) case_free(args[v], case_bytes(&g.value[v].type));
    }
    case_free(scratch, req.scratch_bytes);
    case_free(thread_scratch, req.thread_scratch_bytes);
    if (kernel->release) {
        kernel->release(&state);
    } else {
        hl_free(state.impl);
    }
    return true;
}

__attribute__((unused)) static void case_compare(const op_case *c)
{
    for (int j = 0; j < c->n_out; j++) {
        if (!c->want[j] || !c->got[j]) continue;
        int64_t n = hl_shape_numel(&c->out[j].shape);
        for (int64_t e = 0; e < n; e++) {
            double want = c->want[j][e], got = c->got[j][e];
            double size = fabs(want) > 1 ? fabs(want) : 1;
            bool same = got == want || (isnan(got) && isnan(want)) ||
                        fabs(got - want) <= c->tolerance * size;
            if (same) continue;
            check_fail(__FILE__, __LINE__, "output %d element %lld: got %.9g, want %.9g", j,
                       (long long)e, got, want);
            return;
        }
    }
}

__attribute__((unused)) static void case_forget(op_case *c)
{
    for (int v = 0; v < CASE_MAX; v++) {
        free(c->data[v]), free(c->want[v]), free(c->got[v]);
        c->data[v] = c->want[v] = c->got[v] = NULL;
    }
}

#endif
