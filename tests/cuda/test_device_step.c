/* A step of the control block, guarded updates and optimizers alone, as plans on the emulated GPU:
 * losses and norms are given, finite or not, with every way of stopping, skipping and scaling. The
 * control block is the reference's field by field, parameters are close to it, a captured plan
 * gives the bits of one that is run call by call, and a 16-bit copy of the parameters, which the
 * optimizer's launch writes, is these rounded. */
#include <math.h>

#include "base/half.h"
#include "ir/op.h"
#include "kernels/ref/ref.h"
#include "plan/plan.h"
#include "tests/c/check.h"
#include "tests/cuda/fake_table.h"

enum { N = 3000, N_STEPS = 14, N_TABLE = 9, MAX_STATES = 3, MAX_STORES = 3 + MAX_STATES };

typedef struct setting {
    hl_op optimizer;
    hl_attrs attrs;
    int32_t k;
    hl_nan_mode nan_mode;
    double loss_scale; /* 1: none */
    hl_dtype copy;     /* of the parameters; F32: none */
} setting;

typedef struct outcome {
    hl_control control[N_STEPS];
    double values[N_STEPS][MAX_STORES][N], copy[N_STEPS][N];
} outcome;

static outcome want, eager, captured;

/* ---- the graph ------------------------------------------------------------------------------- */

static hl_graph *graph;
static hl_id control_leaf, guard;

static hl_id add_store(const char *name, hl_dtype dtype, hl_shape shape, hl_value_kind kind)
{
    int32_t store;
    hl_id id;
    CHECK_OK(hl_graph_store(graph, name, dtype, hl_shape_numel(&shape), &store));
    CHECK_OK(hl_graph_leaf(graph, kind, (hl_type){dtype, shape}, store, 0, name, &id));
    return id;
}

static hl_id add_state(const char *name, hl_shape shape)
{
    return add_store(name, HL_DTYPE_F32, shape, HL_VALUE_STATE);
}

static void add_transition(hl_op op, hl_segment segment, hl_id operand, const hl_attrs *attrs)
{
    graph->segment = segment;
    CHECK_OK(hl_graph_add(graph, op, (hl_id[]){control_leaf, operand}, 2, attrs, &guard));
    CHECK_OK(hl_graph_commit(graph, control_leaf, guard));
}

static void add_update(hl_op op, hl_id state, hl_id value, const hl_attrs *attrs)
{
    hl_id out;
    CHECK_OK(hl_graph_add(graph, op, (hl_id[]){state, value, guard}, 3, attrs, &out));
    CHECK_OK(hl_graph_commit(graph, state, out));
}

static void add_copy(const setting *set, hl_id param, hl_id by)
{
    int32_t store;
    hl_id copy;
    hl_type type = {set->copy, hl_shape_1d(N)};
    if (set->copy == HL_DTYPE_F32) return;
    CHECK_OK(hl_graph_store_rounded(graph, hl_graph_store_find(graph, "param"), set->copy, &store));
    CHECK_OK(hl_graph_leaf(graph, HL_VALUE_STATE, type, store, 0, "copy", &copy));
    hl_id decided = guard;
    guard = by;
    add_update(HL_OP_ASSIGN, copy, param, NULL);
    guard = decided;
}

/* param, states, grad, segments, grad_scale, lr, control */
static void add_optimizer(const setting *set, hl_id sum)
{
    static const double segments[3][5] = {
        {0, 1000, 1, 0.01, 0}, {1000, 2047, 0.5, 0, 0}, {2050, N, 2, 0.1, 0}};
    static const char *const names[MAX_STATES] = {"optimizer.0", "optimizer.1", "optimizer.2"};
    hl_id in[9], out, param;
    int n_state = hl_op_get(set->optimizer)->n_out - 1, n = 0;
    hl_type table = {HL_DTYPE_F64, hl_shape_2d(3, 5)};
    param = in[n++] = add_store("param", HL_DTYPE_F32, hl_shape_1d(N), HL_VALUE_PARAM);
    for (int i = 0; i < n_state; i++) in[n++] = add_state(names[i], hl_shape_1d(N));
    in[n++] = sum;
    CHECK_OK(hl_graph_const(graph, table, segments, &in[n++]));
    in[n++] = add_state("factor", hl_shape_scalar());
    CHECK_OK(hl_graph_scalar(graph, "lr", &in[n++]));
    in[n++] = guard;
    CHECK_OK(hl_graph_add(graph, set->optimizer, in, n, &set->attrs, &out));
    for (int i = 0; i <= n_state; i++) CHECK_OK(hl_graph_commit(graph, in[i], out + i));
    add_copy(set, out, guard);
    hl_id average = add_state("ema", hl_shape_1d(N));
    CHECK_OK(hl_graph_add(graph, HL_OP_EMA, (hl_id[]){average, out, guard}, 3,
                          &(hl_attrs){.ema = {.decay = 0.9, .ramp = 1}}, &out));
    CHECK_OK(hl_graph_commit(graph, average, out));
    (void)param;
}

static void build_step(const setting *set)
{
    static const hl_control up = {.window_ok = 1};
    hl_id lr, open;
    hl_type block = {HL_DTYPE_U8, hl_shape_1d(sizeof up)};
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(hl_graph_scalar(graph, "lr", &lr));
    CHECK_OK(hl_graph_control(graph, &control_leaf));
    hl_id tables = add_store("table", HL_DTYPE_F64, hl_shape_2d(1, N_TABLE), HL_VALUE_STATE);
    hl_id sum = add_state("sum", hl_shape_1d(N)), zeros = add_state("zeros", hl_shape_1d(N));
    hl_id grad = add_state("grad", hl_shape_1d(N)), loss = add_state("loss", hl_shape_scalar());
    hl_id square = add_state("square", hl_shape_scalar());
    add_transition(HL_OP_CONTROL_BEGIN, HL_SEGMENT_BEGIN, tables,
                   &(hl_attrs){.dtype = {.dtype = HL_DTYPE_F32}});
    add_update(HL_OP_ASSIGN, sum, zeros, NULL);
    CHECK_OK(hl_graph_const(graph, block, &up, &open));
    add_copy(set, add_store("param", HL_DTYPE_F32, hl_shape_1d(N), HL_VALUE_PARAM), open);
    add_transition(HL_OP_CONTROL_MICRO, HL_SEGMENT_MICRO, loss, &(hl_attrs){.rows = {.rows = 8}});
    add_update(HL_OP_ACCUMULATE, sum, grad, NULL);
    hl_attrs betas = {0};
    if (set->optimizer == HL_OP_ADAM)
        betas.betas = (hl_attrs_betas){set->attrs.adam.beta1, set->attrs.adam.beta2};
    add_transition(HL_OP_CONTROL_APPLY, HL_SEGMENT_APPLY, square, &betas);
    add_optimizer(set, sum);
    graph->segment = HL_SEGMENT_MICRO;
}

/* ---- a run ----------------------------------------------------------------------------------- */

/* Each step's operands; step 9 is out of range for float16 gradients, 4 for the model itself. */
static void give_numbers(hl_session *session, int step)
{
    static float grad[N];
    float loss = step == 6 ? NAN : 1.0f / (float)(step + 1), factor = 0.25f;
    float square = step == 3 || step == 9 || step == 10 ? INFINITY : 1.5f + (float)step;
    for (int i = 0; i < N; i++) grad[i] = (float)((i * 7 + step * 13) % 29) / 16 - 0.875f;
    CHECK_OK(hl_session_write(session, "loss", 0, 1, HL_DTYPE_F32, &loss));
    CHECK_OK(hl_session_write(session, "square", 0, 1, HL_DTYPE_F32, &square));
    CHECK_OK(hl_session_write(session, "factor", 0, 1, HL_DTYPE_F32, &factor));
    CHECK_OK(hl_session_write(session, "grad", 0, N, HL_DTYPE_F32, grad));
}

static void give_state(hl_session *session, const setting *set)
{
    static float param[N];
    double table[N_TABLE];
    hl_control control;
    for (int i = 0; i < N; i++) param[i] = (float)(i % 17) / 8 - 1;
    for (int i = 0; i < N_TABLE; i++) table[i] = 0.01 * (i + 1);
    CHECK_OK(hl_session_write(session, "param", 0, N, HL_DTYPE_F32, param));
    CHECK_OK(hl_session_write(session, "table", 0, N_TABLE, HL_DTYPE_F64, table));
    CHECK_OK(hl_session_control_read(session, &control));
    control.nan_mode = set->nan_mode;
    control.scaling = set->loss_scale > 1;
    control.loss_scale = set->loss_scale;
    control.good_steps = HL_LOSS_SCALE_STEPS - 2;
    CHECK_OK(hl_session_control_write(session, &control));
}

static void read_stores(hl_session *session, const setting *set, double (*values)[N])
{
    static const char *const names[MAX_STORES] = {"param",       "ema",         "sum",
                                                  "optimizer.0", "optimizer.1", "optimizer.2"};
    int n = 3 + hl_op_get(set->optimizer)->n_out - 1;
    for (int s = 0; s < n; s++)
        CHECK_OK(hl_session_read(session, names[s], 0, N, HL_DTYPE_F64, values[s]));
}

static const char *copy_name(const setting *set)
{
    return set->copy == HL_DTYPE_BF16 ? "param.bfloat16" : "param.float16";
}

/* The optimizer's launch writes the copy, and the launch that makes it anew stands alone. */
static void check_plan(const hl_plan *plan)
{
    char *text;
    CHECK_OK(hl_plan_print(plan, &text));
    CHECK(strstr(text, "cuda.assign (with the one before): %") != NULL);
    CHECK(strstr(text, "cuda.assign (where the copy is not current): %") != NULL);
    hl_free(text);
}

static void run_steps(const hl_backend *backend, const setting *set, bool capture, outcome *out)
{
    hl_device *device;
    hl_session *session;
    hl_plan *plan;
    hl_run_end end;
    int64_t steps;
    hl_plan_options options = {
        .n_slots = 1, .k = set->k, .fuse = true, .chain = true, .capture = capture};
    memset(out, 0, sizeof *out);
    CHECK_OK(backend->device_open(backend, 0, NULL, &device));
    CHECK_OK(hl_session_create(device, &session));
    build_step(set);
    CHECK_OK(hl_plan_create(session, graph, &options, &plan));
    if (set->copy != HL_DTYPE_F32 && backend != hl_ref_backend()) check_plan(plan);
    give_state(session, set);
    for (int step = 0; step < N_STEPS; step++) {
        give_numbers(session, step);
        CHECK_OK(hl_plan_run(plan, 1, 0, NULL, &end, &steps));
        CHECK_OK(hl_session_control_read(session, &out->control[step]));
        read_stores(session, set, out->values[step]);
        if (set->copy != HL_DTYPE_F32)
            CHECK_OK(hl_session_read(session, copy_name(set), 0, N, HL_DTYPE_F64, out->copy[step]));
    }
    hl_plan_destroy(plan);
    hl_session_destroy(session);
    device->ops->destroy(device);
}

/* ---- comparing ------------------------------------------------------------------------------- */

static void check_number(const char *field, double got, double expected)
{
    if (got == expected || (isnan(got) && isnan(expected))) return;
    check_fail(__FILE__, __LINE__, "%s: got %.17g, want %.17g", field, got, expected);
}

#define CHECK_FIELD(field) check_number(#field, (double)got->field, (double)ref->field)

/* Scalars are float32 here and double on the reference. */
static void check_control(const hl_control *got, const hl_control *ref)
{
    CHECK_FIELD(attempted);
    CHECK_FIELD(applied);
    CHECK_FIELD(skipped);
    CHECK_FIELD(micro_row);
    CHECK_FIELD(n_micro);
    CHECK_FIELD(apply);
    CHECK_FIELD(window_ok);
    CHECK_FIELD(stopped);
    CHECK_FIELD(nan_mode);
    CHECK_FIELD(stopped_at);
    CHECK_FIELD(loss);
    CHECK_FIELD(grad_norm);
    CHECK_FIELD(lr);
    CHECK_FIELD(clip);
    CHECK_FIELD(loss_scale);
    CHECK_FIELD(good_steps);
    CHECK_FIELD(scaling);
    CHECK_FIELD(powered);
    for (int b = 0; b < 2; b++) {
        CHECK_FIELD(beta[b]);
        CHECK_FIELD(power[b]);
        CHECK_FIELD(correction[b]);
    }
    CHECK_FIELD(error_code);
    CHECK_FIELD(error_row);
    CHECK_FIELD(error_value);
    CHECK_FIELD(n_ring);
    check_number("scale", (double)got->scale.f, (double)(float)ref->scale.d);
    for (int s = 0; s < HL_CONTROL_SCALARS; s++) {
        CHECK_FIELD(factor[s]);
        check_number("scalar", (double)got->scalar[s].f, (double)(float)ref->scalar[s].d);
    }
    for (int64_t i = 0; i < ref->n_ring; i++) {
        CHECK_FIELD(ring[i].step);
        CHECK_FIELD(ring[i].loss);
        CHECK_FIELD(ring[i].grad_norm);
        CHECK_FIELD(ring[i].lr);
        CHECK_FIELD(ring[i].applied);
    }
}

static void check_values(int step)
{
    for (int s = 0; s < MAX_STORES; s++)
        for (int i = 0; i < N; i++) {
            double got = eager.values[step][s][i], expected = want.values[step][s][i];
            if (fabs(got - expected) <= 1e-5 * (1 + fabs(expected))) continue;
            check_fail(__FILE__, __LINE__, "step %d, store %d, element %d: got %g, want %g", step,
                       s, i, got, expected);
            return;
        }
}

static void check_copy(const setting *set, int step)
{
    for (int i = 0; i < N; i++) {
        float param = (float)eager.values[step][0][i];
        float rounded = set->copy == HL_DTYPE_BF16 ? hl_bf16_to_f32(hl_f32_to_bf16(param))
                                                   : hl_f16_to_f32(hl_f32_to_f16(param));
        if (eager.copy[step][i] == (double)rounded) continue;
        check_fail(__FILE__, __LINE__, "step %d, element %d: the copy is %g, the parameter %g",
                   step, i, eager.copy[step][i], (double)param);
        return;
    }
}

static void check_setting(const setting *set)
{
    check_case("%s, k %d, nan mode %d, scale %g, copy %s", hl_op_get(set->optimizer)->name,
               (int)set->k, (int)set->nan_mode, set->loss_scale, hl_dtype_name(set->copy));
    hl_fake_reset(NULL);
    run_steps(hl_ref_backend(), set, false, &want);
    run_steps(hl_fake_backend(), set, false, &eager);
    run_steps(hl_fake_backend(), set, true, &captured);
    CHECK_INT(hl_fake_live_sum(), 0);
    for (int step = 0; step < N_STEPS; step++) {
        check_control(&eager.control[step], &want.control[step]);
        check_values(step);
        if (set->copy != HL_DTYPE_F32) check_copy(set, step);
    }
    CHECK_INT(memcmp(&eager, &captured, sizeof eager), 0);
    const hl_control *last = &want.control[N_STEPS - 1];
    bool stops = set->nan_mode == HL_NAN_STOP;
    CHECK_INT(last->stopped, stops);
    CHECK(stops || last->skipped == 4);
    CHECK(last->applied > 2);
}

int main(void)
{
    static const setting optimizers[] = {
        {.optimizer = HL_OP_SGD, .attrs = {.sgd = {0.9, 0.1}}},
        {.optimizer = HL_OP_ADAM, .attrs = {.adam = {0.9, 0.99, 0.1, true}}},
        {.optimizer = HL_OP_RMSPROP, .attrs = {.rmsprop = {0.9, 0.1, 0.5, true}}},
        {.optimizer = HL_OP_LION, .attrs = {.lion = {0.9, 0.99}}}};
    static const double scales[] = {1, 2, 65536};
    static const hl_dtype copies[] = {HL_DTYPE_F32, HL_DTYPE_BF16, HL_DTYPE_F16};
    for (size_t o = 0; o < sizeof optimizers / sizeof *optimizers; o++)
        for (int mode = 0; mode < 2; mode++)
            for (size_t s = 0; s < sizeof scales / sizeof *scales; s++) {
                setting set = optimizers[o];
                set.nan_mode = mode ? HL_NAN_SKIP : HL_NAN_STOP;
                set.loss_scale = scales[s];
                set.k = 1 + 2 * (int)(o + s) % 3;
                set.copy = copies[((int)s + mode) % 3];
                check_setting(&set);
            }
    return CHECK_DONE();
}
