/* Sequences on the emulated GPU: a loss, its sums, the decision on the micro-batch and the gradient
 * are one launch where they are small, and have the bits of separate launches, in whatever order
 * threads run, interpreted or compiled; an index out of range tells its node and row, a loss that
 * is no number stops the run. */
#include <math.h>

#include "ir/op.h"
#include "ops/build.h"
#include "plan/plan.h"
#include "tests/c/check.h"
#include "tests/cuda/emu/emu.h"
#include "tests/cuda/fake_device.h"
#include "tests/cuda/fake_nvrtc.h"

enum { MAX_STATES = 8, MAX_NUMBERS = 1 << 14 };

typedef struct state {
    char name[8];
    hl_dtype dtype;
    int64_t n;
} state;

typedef struct outcome {
    hl_control control;
    hl_status status;
    char message[HL_STATUS_MESSAGE_BYTES];
    float numbers[MAX_NUMBERS];
} outcome;

/* What a graph is made for: rows and classes, and what is wrong with the numbers. */
typedef struct sample {
    int64_t N, C;
    double smoothing;
    bool is_weighted, has_nan;
    int64_t wrong_row; /* whose target is no class; -1: none */
} sample;

static hl_graph *graph;
static hl_id guard;
static state states[MAX_STATES];
static int n_states;

/* ---- graphs ---------------------------------------------------------------------------------- */

static hl_id add_state(hl_dtype dtype, hl_shape shape)
{
    state *s = &states[n_states];
    int32_t store;
    hl_id id;
    *s = (state){.dtype = dtype, .n = hl_shape_numel(&shape)};
    snprintf(s->name, sizeof s->name, "s%d", n_states++);
    CHECK_OK(hl_graph_store(graph, s->name, dtype, s->n, &store));
    CHECK_OK(hl_graph_leaf(graph, HL_VALUE_STATE, (hl_type){dtype, shape}, store, 0, s->name, &id));
    return id;
}

static void keep_in(hl_id to, hl_id value)
{
    hl_id out;
    CHECK_OK(hl_graph_add(graph, HL_OP_ASSIGN, (hl_id[]){to, value, guard}, 3, NULL, &out));
    CHECK_OK(hl_graph_commit(graph, to, out));
}

static void keep(hl_id value)
{
    keep_in(add_state(hl_graph_dtype(graph, value), *hl_graph_shape(graph, value)), value);
}

static void add_transition(hl_op op, hl_segment segment, hl_id operand, const hl_attrs *attrs)
{
    hl_id control, out;
    graph->segment = segment;
    CHECK_OK(hl_graph_control(graph, &control));
    CHECK_OK(hl_graph_add(graph, op, (hl_id[]){control, operand}, 2, attrs, &out));
    CHECK_OK(hl_graph_commit(graph, control, out));
    guard = out;
}

static void add_decision(hl_id loss, int64_t rows)
{
    add_transition(HL_OP_CONTROL_MICRO, HL_SEGMENT_MICRO, loss,
                   &(hl_attrs){.rows = {.rows = rows}});
}

/* One over a sum, with one dim more, as the seed of the backward pass is. */
static hl_id add_seed(hl_id sum)
{
    hl_id one, seed;
    hl_shape shape = hl_shape_1d(1);
    CHECK_OK(hl_build_full(graph, &(hl_type){HL_DTYPE_F32, hl_shape_scalar()}, 1, &one));
    CHECK_OK(hl_graph_add(graph, HL_OP_DIV, (hl_id[]){one, sum}, 2, NULL, &seed));
    CHECK_OK(hl_build_reshape(graph, seed, &shape, &seed));
    return seed;
}

/* Cross-entropy over the sum of weights, its gradient, and that of a bias; what stands before it is
 * in the sequence too, so that the node of a fault is not its first. The gradient takes the place
 * of what it begins with, which so is not the same in all steps. */
static void build_cross_entropy(const sample *s)
{
    static const int64_t rows = 0;
    hl_id in[4], loss, sums[2], mean, gradient, bias;
    int n = 2;
    hl_id begin = add_state(HL_DTYPE_F32, hl_shape_2d(s->N, s->C));
    CHECK_OK(hl_build_unary(graph, HL_OP_NEG, begin, &in[1]));
    in[2] = add_state(HL_DTYPE_I64, hl_shape_1d(s->N));
    if (s->is_weighted) in[++n] = add_state(HL_DTYPE_F32, hl_shape_1d(s->C));
    hl_attrs attrs = {.cross_entropy = {.label_smoothing = s->smoothing, .ignore_index = -100}};
    CHECK_OK(hl_graph_add(graph, HL_OP_CROSS_ENTROPY, in + 1, n, &attrs, &loss));
    for (int i = 0; i < 2; i++) CHECK_OK(hl_build_sum(graph, loss + i, NULL, 0, false, &sums[i]));
    CHECK_OK(hl_graph_add(graph, HL_OP_DIV, sums, 2, NULL, &mean));
    in[0] = add_seed(sums[1]);
    add_decision(mean, s->N);
    CHECK_OK(hl_graph_add(graph, HL_OP_CROSS_ENTROPY_GRAD, in, n + 1, &attrs, &gradient));
    CHECK_OK(hl_build_sum(graph, gradient, &rows, 1, false, &bias));
    keep_in(begin, gradient);
    keep(bias);
}

/* Mean squared error, composed, with dropout before it; the targets' cast is made once a run. */
static void build_squares(const sample *s)
{
    static const int64_t rows = 0;
    hl_id x = add_state(HL_DTYPE_F32, hl_shape_2d(s->N, s->C)), control, mask, loss, seed, bias;
    hl_id y = add_state(HL_DTYPE_I64, hl_shape_1d(s->N));
    hl_attrs drop;
    hl_attrs_init(HL_SCHEMA_dropout_mask, &drop);
    drop.dropout_mask.shape = (hl_ints){2, {s->N, s->C}};
    drop.dropout_mask.p = 0.3, drop.dropout_mask.stream = "drop";
    hl_shape column = hl_shape_2d(s->N, 1);
    CHECK_OK(hl_graph_control(graph, &control));
    CHECK_OK(hl_graph_add(graph, HL_OP_DROPOUT_MASK, &control, 1, &drop, &mask));
    CHECK_OK(hl_build_binary(graph, HL_OP_MUL, x, mask, &x));
    CHECK_OK(hl_build_cast(graph, y, HL_DTYPE_F32, &y));
    CHECK_OK(hl_build_reshape(graph, y, &column, &y));
    CHECK_OK(hl_build_binary(graph, HL_OP_SUB, x, y, &x));
    CHECK_OK(hl_build_binary(graph, HL_OP_MUL, x, x, &loss));
    CHECK_OK(hl_build_sum(graph, loss, NULL, 0, false, &loss));
    seed = add_seed(loss);
    add_decision(loss, s->N);
    CHECK_OK(hl_build_binary(graph, HL_OP_MUL, x, seed, &x));
    CHECK_OK(hl_build_sum(graph, x, &rows, 1, false, &bias));
    keep(x);
    keep(bias);
}

/* ---- running --------------------------------------------------------------------------------- */

/* How a plan runs: the launch of a sequence, or of each node; the order of threads. */
typedef struct way {
    bool is_separate, has_nvrtc, captures;
    uint32_t order;
} way;

static hl_device_ops separate_ops;
static const hl_device_ops *device_ops;

/* The device's kernels, without sequences. */
static const hl_kernel *const *list_separate(const hl_device *device, hl_op op)
{
    enum { MOST = 8 };
    static hl_kernel copy[HL_OP_COUNT][MOST];
    static const hl_kernel *list[HL_OP_COUNT][MOST + 1];
    const hl_kernel *const *all = device_ops->kernels(device, op);
    for (int i = 0; all && all[i]; i++) {
        CHECK(i < MOST);
        copy[op][i] = *all[i];
        copy[op][i].prepare_sequence = NULL;
        list[op][i] = &copy[op][i];
    }
    return all ? list[op] : NULL;
}

static void fill_states(hl_session *session, const sample *s)
{
    static double numbers[MAX_NUMBERS];
    for (int i = 0; i < n_states; i++) {
        bool is_target = states[i].dtype == HL_DTYPE_I64;
        for (int64_t e = 0; e < states[i].n; e++)
            numbers[e] = is_target ? (double)(e % s->C) : (double)((e * 37 + i) % 29) / 8 - 1.5;
        if (is_target && s->wrong_row >= 0) numbers[s->wrong_row] = (double)s->C;
        if (i == 0 && s->has_nan) numbers[states[i].n / 2] = NAN;
        CHECK_OK(hl_session_write(session, states[i].name, 0, states[i].n, HL_DTYPE_F64, numbers));
    }
}

static int count_joined(const hl_plan *plan)
{
    static const char what[] = "with the one before";
    char *text;
    int n = 0;
    CHECK_OK(hl_plan_print(plan, &text));
    for (const char *at = text; (at = strstr(at, what)); at++) n++;
    hl_free(text);
    return n;
}

/* Returns how many nodes the launch of another one does. */
static int run(void (*build)(const sample *), const sample *s, way w, outcome *out)
{
    hl_device *device;
    hl_session *session;
    hl_plan *plan;
    hl_run_end end;
    int64_t steps, n = 0;
    hl_plan_options options = {
        .n_slots = 1, .k = 1, .fuse = true, .chain = true, .capture = w.captures};
    memset(out, 0, sizeof *out);
    setenv("HOTLOOP_NVRTC_PATH", w.has_nvrtc ? FAKE_NVRTC : "none", 1);
    hl_emu_set_order(w.order);
    hl_fake_reset(NULL);
    CHECK_OK(hl_fake_backend()->device_open(hl_fake_backend(), 0, NULL, &device));
    device_ops = device->ops;
    separate_ops = *device_ops;
    separate_ops.kernels = list_separate;
    if (w.is_separate) device->ops = &separate_ops;
    CHECK_OK(hl_session_create(device, &session));
    CHECK_OK(hl_graph_create(&graph));
    n_states = 0;
    build(s);
    CHECK_OK(hl_plan_create(session, graph, &options, &plan));
    fill_states(session, s);
    CHECK_OK(hl_session_control_read(session, &out->control));
    out->control.window_ok = 1;
    CHECK_OK(hl_session_control_write(session, &out->control));
    out->status = hl_plan_run(plan, 2, 0, NULL, &end, &steps);
    if (out->status != HL_OK)
        snprintf(out->message, sizeof out->message, "%s", hl_status_message());
    CHECK_OK(hl_session_control_read(session, &out->control));
    for (int i = 0; i < n_states; i++) {
        if (states[i].dtype == HL_DTYPE_I64) continue;
        CHECK(n + states[i].n <= MAX_NUMBERS);
        CHECK_OK(hl_session_read(session, states[i].name, 0, states[i].n, HL_DTYPE_F32,
                                 out->numbers + n));
        n += states[i].n;
    }
    int n_joined = count_joined(plan);
    hl_plan_destroy(plan);
    hl_session_destroy(session);
    device->ops->destroy(device);
    CHECK(!strcmp(hl_fake_message(), ""));
    CHECK_INT(hl_fake_live_sum(), 0);
    return n_joined;
}

/* ---- what is checked ------------------------------------------------------------------------- */

static outcome want, got;

/* n_want: launches that a sequence saves. */
static void check_ways(const char *name, void (*build)(const sample *), sample s, int n_want)
{
    static const way ways[] = {{.order = HL_EMU_FORWARD},
                               {.order = HL_EMU_REVERSE, .captures = true},
                               {.order = 7},
                               {.has_nvrtc = true, .order = HL_EMU_FORWARD},
                               {.has_nvrtc = true, .order = 5, .captures = true},
                               {.is_separate = true, .has_nvrtc = true}};
    int n_separate = run(build, &s, (way){.is_separate = true}, &want);
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        check_case("%s, %lld rows of %lld, way %d", name, (long long)s.N, (long long)s.C, (int)w);
        int n = run(build, &s, ways[w], &got);
        CHECK_INT(n - n_separate, ways[w].is_separate ? 0 : n_want);
        CHECK(!strcmp(got.message, want.message));
        CHECK_INT(memcmp(&got, &want, sizeof want), 0);
    }
    hl_emu_set_order(HL_EMU_FORWARD);
    if (s.wrong_row >= 0) {
        char where[64];
        snprintf(where, sizeof where, "got %lld at position %lld", (long long)s.C,
                 (long long)s.wrong_row);
        CHECK_INT(want.status, HL_ERROR_DATA);
        CHECK(strstr(want.message, "cross_entropy") && strstr(want.message, where));
    } else {
        CHECK_OK(want.status);
        CHECK_INT(want.control.stopped, s.has_nan);
        CHECK(s.has_nan || want.control.loss != 0);
    }
}

/* ---- profiles -------------------------------------------------------------------------------- */

/* A product's columns are summed, and the sums times a factor lie where the product lay: repeated
 * on that they soon are infinite. */
enum { FACTOR = 4 };
static void build_growing(void)
{
    static const int64_t rows = 0;
    hl_id tables = add_state(HL_DTYPE_F64, hl_shape_2d(1, 2)), x, y, sum, out;
    hl_id a = add_state(HL_DTYPE_F32, hl_shape_2d(64, 8));
    hl_id b = add_state(HL_DTYPE_F32, hl_shape_2d(8, 8));
    hl_id c = add_state(HL_DTYPE_F32, hl_shape_2d(8, 1));
    hl_id factor = add_state(HL_DTYPE_F32, hl_shape_2d(64, 8));
    hl_id square = add_state(HL_DTYPE_F32, hl_shape_scalar());
    add_transition(HL_OP_CONTROL_BEGIN, HL_SEGMENT_BEGIN, tables,
                   &(hl_attrs){.dtype = {.dtype = HL_DTYPE_F32}});
    graph->segment = HL_SEGMENT_MICRO;
    CHECK_OK(hl_build_matmul(graph, a, b, false, false, &x));
    CHECK_OK(hl_build_sum(graph, x, &rows, 1, false, &sum));
    CHECK_OK(hl_build_binary(graph, HL_OP_MUL, factor, sum, &y));
    CHECK_OK(hl_build_matmul(graph, y, c, false, false, &x));
    CHECK_OK(hl_build_sum(graph, x, NULL, 0, false, &sum));
    add_decision(sum, 64);
    CHECK_OK(hl_graph_add(graph, HL_OP_ASSIGN, (hl_id[]){square, sum, guard}, 3, NULL, &out));
    CHECK_OK(hl_graph_commit(graph, square, out));
    keep(y);
    CHECK_OK(hl_build_unary(graph, HL_OP_ABS, b, &x));
    keep_in(b, x); /* so that the product is not the same in all steps */
    add_transition(HL_OP_CONTROL_APPLY, HL_SEGMENT_APPLY, square, &(hl_attrs){0});
    graph->segment = HL_SEGMENT_MICRO;
}

/* A profile repeats a sequence that writes over what it reads, and measures a step that is applied
 * all the same. */
static void test_profile(void)
{
    static double numbers[64 * 8];
    hl_session *session;
    hl_plan *plan;
    hl_profile profile;
    hl_run_end end;
    int64_t steps;
    hl_plan_options options = {.n_slots = 1, .k = 1, .fuse = true, .chain = true};
    check_case("profile");
    setenv("HOTLOOP_NVRTC_PATH", "none", 1);
    hl_device *device = fake_device_open(NULL);
    CHECK_OK(hl_session_create(device, &session));
    CHECK_OK(hl_graph_create(&graph));
    n_states = 0;
    build_growing();
    CHECK_OK(hl_plan_create(session, graph, &options, &plan));
    CHECK_INT(count_joined(plan), 5); /* sequences of two and of three, three updates */
    for (int i = 0; i < n_states; i++) {
        for (int64_t e = 0; e < states[i].n; e++) numbers[e] = i == FACTOR ? 1e10 : 1;
        CHECK_OK(hl_session_write(session, states[i].name, 0, states[i].n, HL_DTYPE_F64, numbers));
    }
    CHECK_OK(hl_plan_run(plan, 1, 0, NULL, &end, &steps));
    CHECK_OK(hl_plan_profile(plan, &profile));
    hl_profile_deinit(&profile);
    hl_plan_destroy(plan);
    hl_session_destroy(session);
    fake_device_close(device);
}

int main(void)
{
    const sample plain = {.N = 512, .C = 3, .wrong_row = -1};
    setenv("HOTLOOP_CACHE_PATH", "", 1);
    sample s = plain;
    check_ways("cross-entropy", build_cross_entropy, s, 6);
    s.smoothing = 0.1, s.is_weighted = true;
    check_ways("with weights and smoothing", build_cross_entropy, s, 6);
    s.N = 7, s.C = 40;
    check_ways("of many classes", build_cross_entropy, s, 6);
    s = plain, s.N = 1;
    check_ways("of one", build_cross_entropy, s, 6);
    s = plain, s.wrong_row = 300;
    check_ways("of a wrong target", build_cross_entropy, s, 6);
    s = plain, s.has_nan = true;
    check_ways("of NaN", build_cross_entropy, s, 6);
    s = plain, s.N = 1100; /* the loss, but not what is scalar */
    check_ways("large", build_cross_entropy, s, 2);
    check_ways("squares", build_squares, plain, 3);
    s = plain, s.N = 5, s.C = 130;
    check_ways("wide squares", build_squares, s, 3);
    test_profile();
    return CHECK_DONE();
}
