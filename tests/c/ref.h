/* One node of any op on the reference device: what test_ref*.c are made of. Each case builds a
 * graph of one node with the types that infer would give, so that only the kernel is under test. */
#ifndef TESTS_C_REF_H
#define TESTS_C_REF_H

#include <math.h>

#include "backend/backend.h"
#include "kernels/ref/ref.h"
#include "tests/c/check.h"

typedef struct operand {
    hl_type type;
    void *data;
} operand;

enum { MAX_OPERANDS = 16 };

static hl_control control;
static hl_segment segment = HL_SEGMENT_MICRO;

#define DIMS(...)                                                                                  \
    {                                                                                              \
        sizeof((int64_t[]){__VA_ARGS__}) / 8,                                                      \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define F64(data, ...)       {{HL_DTYPE_F64, DIMS(__VA_ARGS__)}, data}
#define I64(data, ...)       {{HL_DTYPE_I64, DIMS(__VA_ARGS__)}, data}
#define OF(dtype, data, ...) {{HL_DTYPE_##dtype, DIMS(__VA_ARGS__)}, data}
#define NUMBER(data)         {{HL_DTYPE_F64, {0, {0}}}, data}
#define CONTROL              {{HL_DTYPE_U8, DIMS(sizeof(hl_control))}, &control}
#define LIST(...)                                                                                  \
    (operand[])                                                                                    \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
#define IN(...) LIST(__VA_ARGS__), sizeof(LIST(__VA_ARGS__)) / sizeof(operand)
#define OUT     IN

/* Selects, prepares, launches, releases. A guarded op's outputs are its first inputs. */
static inline hl_status run_program(hl_op op, const hl_program *program, const hl_attrs *attrs,
                                    const operand *in, size_t n_in, const operand *out,
                                    size_t n_out)
{
    hl_value values[MAX_OPERANDS] = {0};
    hl_id ids[MAX_OPERANDS];
    void *args[MAX_OPERANDS];
    for (size_t i = 0; i < n_in + n_out; i++) {
        const operand *x = i < n_in ? &in[i] : &out[i - n_in];
        values[i].type = x->type;
        args[i] = x->data;
        ids[i] = (hl_id)i;
    }
    hl_node node = {.op = op,
                    .n_in = (int32_t)n_in,
                    .n_out = (int32_t)n_out,
                    .in = ids,
                    .out = (hl_id)n_in,
                    .program = program};
    if (attrs) node.attrs = *attrs;
    hl_graph graph = {.values = values, .nodes = &node, .n_nodes = 1};
    graph.n_values = (int64_t)(n_in + n_out);

    hl_device *device = NULL;
    hl_kernel_state state = {0};
    hl_kernel_req req;
    const hl_backend *backend = hl_ref_backend();
    hl_launch launch = {.control = &control, .segment = segment};
    HL_TRY(backend->device_open(backend, 0, NULL, &device));
    hl_status status;
    HL_GOTO(hl_kernel_select(device, &graph, 0, false, &state.kernel, &req));
    HL_GOTO(state.kernel->prepare(device, &graph, 0, &state));
    status = state.kernel->launch(&state, args, &launch, NULL);
    hl_free(state.impl);
cleanup:
    device->ops->destroy(device);
    return status;
}

static inline hl_status run(hl_op op, const hl_attrs *attrs, const operand *in, size_t n_in,
                            const operand *out, size_t n_out)
{
    check_case("%s", hl_op_get(op)->name);
    return run_program(op, NULL, attrs, in, n_in, out, n_out);
}

#define ATTRS(...) (&(hl_attrs){__VA_ARGS__})

static inline void check_close(int line, const double *got, const double *want, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        bool same = isnan(want[i])   ? isnan(got[i])
                    : isinf(want[i]) ? got[i] == want[i]
                                     : fabs(got[i] - want[i]) <= 1e-14 * (1 + fabs(want[i]));
        if (!same)
            check_fail(__FILE__, line, "element %zu: got %.17g, want %.17g", i, got[i], want[i]);
    }
}
#define CHECK_CLOSE(got, ...)                                                                      \
    check_close(__LINE__, got, (double[]){__VA_ARGS__}, sizeof((double[]){__VA_ARGS__}) / 8)

static inline void check_ints(int line, const int64_t *got, const int64_t *want, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (got[i] != want[i])
            check_fail(__FILE__, line, "element %zu: got %lld, want %lld", i, (long long)got[i],
                       (long long)want[i]);
}
#define CHECK_INTS(got, ...)                                                                       \
    check_ints(__LINE__, got, (int64_t[]){__VA_ARGS__}, sizeof((int64_t[]){__VA_ARGS__}) / 8)

/* A fault of this row and value was raised; it is cleared. */
#define CHECK_FAULT(row, value)                                                                    \
    do {                                                                                           \
        CHECK_INT(control.error_code, 1);                                                          \
        CHECK_INT(control.error_row, row);                                                         \
        CHECK_INT(control.error_value, value);                                                     \
        control.error_code = control.error_row = control.error_value = 0;                          \
    } while (0)

#endif
