/* Guarded updates and optimizers, as cases for any device (cpu_case.h, tests/cuda/device_case.h):
 * every attribute, segments that leave gaps, and the guard, behind which not one bit changes. */
#ifndef TESTS_C_UPDATE_CASES_H
#define TESTS_C_UPDATE_CASES_H

#include "tests/c/case.h"

static void case_check(op_case *c);

static hl_type flat_type(hl_dtype dtype, int64_t n)
{
    return (hl_type){dtype, hl_shape_1d(n)};
}

/* The last input; set the segment first. */
static void add_control(op_case *c, int64_t applied, bool allows)
{
    int i = c->n_in++;
    c->in[i] = flat_type(HL_DTYPE_U8, (int64_t)sizeof(hl_control));
    c->is_control[i] = true;
    c->is_guarded = true;
    c->control.applied = applied;
    /* Only the segment's own guard counts. */
    c->control.apply = c->segment == HL_SEGMENT_APPLY ? allows : !allows;
    c->control.window_ok = c->segment == HL_SEGMENT_APPLY ? !allows : allows;
}

enum { N_MANY = 700 };

/* One segment; three with gaps, out of order, that end before n; one for every few elements, more
 * than a block has threads. States began at any step up to the last. */
static void fill_segments(op_case *c, int i, int64_t n, int form, int applied)
{
    static double table[N_MANY][5];
    int n_segments = form == 0 ? 1 : form == 1 ? 3 : N_MANY;
    double whole[5] = {0, (double)n, 1, 0.1, 0};
    double parts[3][5] = {{(double)(n / 3 + 5), (double)(n / 2 + 6), 0.5, 0.2, 0},
                          {0, (double)(n / 3), 1, 0, applied - 1},
                          {(double)(n / 2 + 6), (double)(n - 1), 2, 0.05, applied / 2}};
    if (form == 0) memcpy(table, whole, sizeof whole);
    if (form == 1) memcpy(table, parts, sizeof parts);
    for (int s = 0; form == 2 && s < N_MANY; s++) {
        double few[5] = {(double)(n * s / N_MANY), (double)(n * (s + 1) / N_MANY), 1 + s % 3,
                         s % 2 ? 0.1 : 0, s % applied};
        memcpy(table[s], few, sizeof few);
    }
    c->in[i] = (hl_type){HL_DTYPE_F64, hl_shape_2d(n_segments, 5)};
    case_fill(c, i, 0, 1);
    memcpy(c->data[i], table, (size_t)n_segments * 5 * sizeof(double));
}

typedef struct optimizer {
    hl_op op;
    unsigned states; /* bits: which buffers there are */
    hl_attrs attrs;
} optimizer;

/* number: of the optimizer, in the list below. */
static void check_optimizer(const optimizer *o, int number, int64_t n, int form, int applied,
                            bool allows)
{
    int n_state = hl_op_get(o->op)->n_out - 1;
    op_case c = {.op = o->op, .attrs = o->attrs, .n_out = 1 + n_state};
    c.segment = HL_SEGMENT_APPLY;
    for (int i = 0; i < n_state + 2; i++) {
        bool has = i == 0 || i > n_state || (o->states >> (i - 1) & 1);
        c.in[i] = flat_type(HL_DTYPE_F32, has ? n : 0);
        /* Second moments are positive, and larger than any squared mean where centred. */
        bool is_square = (o->op == HL_OP_ADAM && i == 2) || (o->op == HL_OP_RMSPROP && i == 1);
        case_fill(&c, i, is_square ? 2 : -1, is_square ? 3 : 1);
        if (i <= n_state) c.out[i] = c.in[i];
    }
    fill_segments(&c, n_state + 2, n, form, applied);
    for (int i = n_state + 3; i < n_state + 5; i++) {
        c.in[i] = (hl_type){HL_DTYPE_F32, hl_shape_scalar()};
        case_fill(&c, i, 0.1, 0.5);
    }
    c.n_in = n_state + 5;
    add_control(&c, applied, allows);
    if (o->op == HL_OP_ADAM) hl_control_raise(&c.control, o->attrs.adam.beta1, o->attrs.adam.beta2);
    c.tolerance = allows ? 2e-6 : 0;
    check_case("%s (optimizer %d) n %lld form %d applied %d guard %d", hl_op_get(o->op)->name,
               number, (long long)n, form, applied, !allows);
    case_check(&c);
}

static void test_optimizers(void)
{
    static const optimizer kinds[] = {{HL_OP_SGD, 0, {.sgd = {0}}},
                                      {HL_OP_SGD, 1, {.sgd = {.momentum = 0.9}}},
                                      {HL_OP_SGD, 1, {.sgd = {.momentum = 0.9, .dampening = 0.1}}},
                                      {HL_OP_SGD, 1, {.sgd = {.momentum = 0.9, .nesterov = true}}},
                                      {HL_OP_ADAM, 3, {.adam = {0.9, 0.999, 1e-8, false}}},
                                      {HL_OP_ADAM, 3, {.adam = {0.8, 0.99, 1e-6, true}}},
                                      {HL_OP_RMSPROP, 1, {.rmsprop = {0.99, 1e-8, 0, false}}},
                                      {HL_OP_RMSPROP, 3, {.rmsprop = {0.9, 1e-8, 0.5, false}}},
                                      {HL_OP_RMSPROP, 7, {.rmsprop = {0.99, 1e-3, 0.9, true}}},
                                      {HL_OP_RMSPROP, 5, {.rmsprop = {0.99, 1e-3, 0, true}}},
                                      {HL_OP_LION, 1, {.lion = {0.9, 0.99}}}};
    static const int64_t sizes[] = {1, 33, 5003};
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
        for (int form = 0; form < 3; form++)
            for (int step = 1; step < 4; step++)
                for (int s = 0; s < 6; s++)
                    if (form == 0 || sizes[s / 2] > 30)
                        check_optimizer(&kinds[k], (int)k, sizes[s / 2], form, step, s % 2);
}

#endif
