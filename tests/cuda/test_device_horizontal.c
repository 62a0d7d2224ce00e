/* Small things of one launch on the emulated GPU. Updates that stand in a row and have nothing to
 * do with each other are one, those that have are not; programs of one shape are one, and of
 * several shapes one launch, where they are of one type and do not wait for each other, or in order
 * where they do. A replay gives what the reference does. The order in which a launch's blocks run
 * is the emulation's, so that one launch too few shows. */
#include "kernels/ref/ref.h"
#include "plan/plan.h"
#include "tests/c/check.h"
#include "tests/cuda/fake_table.h"

enum { N = 300, N_COUNTERS = 40, N_STEPS = 3, MAX_STATES = 64 };

typedef struct state {
    const char *name;
    hl_id id;
    int64_t n;
} state;

/* Nodes that the launch of the one before them does too (-1: any number), and programs. */
typedef struct counts {
    int fused, programs;
} counts;

static hl_graph *graph;
static state states[MAX_STATES];
static int n_states;
static char names[MAX_STATES][16];

static hl_id add_state(hl_dtype dtype, int64_t n)
{
    state *s = &states[n_states];
    int32_t store;
    hl_shape shape = hl_shape_1d(n);
    snprintf(names[n_states], sizeof *names, "s%d", n_states);
    *s = (state){names[n_states], HL_NONE, n};
    CHECK_OK(hl_graph_store(graph, s->name, dtype, n, &store));
    CHECK_OK(
        hl_graph_leaf(graph, HL_VALUE_STATE, (hl_type){dtype, shape}, store, 0, s->name, &s->id));
    n_states++;
    return s->id;
}

static hl_id add_update(hl_op op, hl_id to, hl_id value)
{
    hl_id guard, out;
    hl_attrs attrs = {.ema = {0.5}};
    CHECK_OK(hl_graph_control(graph, &guard));
    CHECK_OK(hl_graph_add(graph, op, (hl_id[]){to, value, guard}, 3,
                          op == HL_OP_EMA ? &attrs : NULL, &out));
    return out;
}

/* ---- graphs, with what their plans have on the GPU ------------------------------------------- */

/* Sums of their own are added in place: so many that one launch does not take them all. */
static counts build_counters(void)
{
    static const int64_t one = 1;
    hl_id by, sum;
    CHECK_OK(hl_graph_const(graph, (hl_type){HL_DTYPE_I64, hl_shape_1d(1)}, &one, &by));
    for (int i = 0; i < N_COUNTERS; i++) {
        hl_id counter = add_state(HL_DTYPE_I64, 1);
        CHECK_OK(hl_graph_add(graph, HL_OP_ADD,
                              i % 2 ? (hl_id[]){counter, by} : (hl_id[]){by, counter}, 2, NULL,
                              &sum));
        CHECK_OK(hl_graph_commit(graph, counter, sum));
    }
    return (counts){.fused = N_COUNTERS - 2};
}

/* Of every kind, dtype and size. */
static counts build_kinds(void)
{
    static const hl_dtype dtypes[] = {HL_DTYPE_F32, HL_DTYPE_BF16, HL_DTYPE_F16, HL_DTYPE_I32};
    for (int d = 0; d < 4; d++) {
        hl_id to = add_state(HL_DTYPE_F32, N), from = add_state(dtypes[d], N);
        CHECK_OK(hl_graph_commit(graph, to, add_update(HL_OP_ACCUMULATE, to, from)));
        hl_id average = add_state(HL_DTYPE_F32, 7), of = add_state(HL_DTYPE_F32, 7);
        CHECK_OK(hl_graph_commit(graph, average, add_update(HL_OP_EMA, average, of)));
        hl_id set = add_state(dtypes[d], 1), by = add_state(dtypes[d], 1);
        CHECK_OK(hl_graph_commit(graph, set, add_update(HL_OP_ASSIGN, set, by)));
    }
    return (counts){.fused = 3 * 4 - 1};
}

/* a <- b and b <- c: a reads b before it is overwritten. */
static counts build_shift(void)
{
    hl_id a = add_state(HL_DTYPE_F32, N), b = add_state(HL_DTYPE_F32, N);
    hl_id c = add_state(HL_DTYPE_F32, N);
    CHECK_OK(hl_graph_commit(graph, a, add_update(HL_OP_ASSIGN, a, b)));
    CHECK_OK(hl_graph_commit(graph, b, add_update(HL_OP_ASSIGN, b, c)));
    return (counts){0};
}

/* a takes c, and b what a is behind it. */
static counts build_row(void)
{
    hl_id a = add_state(HL_DTYPE_F32, N), b = add_state(HL_DTYPE_F32, N);
    hl_id c = add_state(HL_DTYPE_F32, N), out = add_update(HL_OP_ACCUMULATE, a, c);
    CHECK_OK(hl_graph_commit(graph, a, out));
    CHECK_OK(hl_graph_commit(graph, b, add_update(HL_OP_ACCUMULATE, b, out)));
    return (counts){0};
}

/* a is updated twice. */
static counts build_twice(void)
{
    hl_id a = add_state(HL_DTYPE_F32, N), c = add_state(HL_DTYPE_F32, N);
    hl_id out = add_update(HL_OP_EMA, add_update(HL_OP_ACCUMULATE, a, c), c);
    CHECK_OK(hl_graph_commit(graph, a, out));
    return (counts){0};
}

/* Programs that read nothing in common, two of them of float64, and two that need the third's sum.
 */
static counts build_horizontal(void)
{
    static const hl_dtype dtypes[] = {HL_DTYPE_F32, HL_DTYPE_F64, HL_DTYPE_F32,
                                      HL_DTYPE_F64, HL_DTYPE_F32, HL_DTYPE_F32};
    hl_id sum = HL_NONE, value;
    hl_attrs all = {.reduce = {{1, {0}}}};
    for (int s = 0; s < 6; s++) {
        hl_id to = add_state(dtypes[s], 7);
        CHECK_OK(hl_graph_add(graph, HL_OP_NEG, &to, 1, NULL, &value));
        if (s > 3) CHECK_OK(hl_graph_add(graph, HL_OP_SUB, (hl_id[]){value, sum}, 2, NULL, &value));
        CHECK_OK(hl_graph_add(graph, HL_OP_MAXIMUM, (hl_id[]){value, to}, 2, NULL, &value));
        if (s == 2) CHECK_OK(hl_graph_add(graph, HL_OP_SUM, &value, 1, &all, &sum));
        CHECK_OK(hl_graph_commit(graph, to, value));
    }
    return (counts){.fused = -1, .programs = 3};
}

/* More negations than one program has results: three programs, which are one launch, as their
 * updates are. */
static counts build_many_results(void)
{
    enum { ALL = 30, PROGRAMS = 3 };
    hl_id value;
    for (int s = 0; s < ALL; s++) {
        hl_id to = add_state(HL_DTYPE_F32, 9);
        CHECK_OK(hl_graph_add(graph, HL_OP_NEG, &to, 1, NULL, &value));
        CHECK_OK(hl_graph_commit(graph, to, value));
    }
    return (counts){.fused = PROGRAMS - 1 + ALL - 1, .programs = 1};
}

/* Programs of several shapes, and with more of them one that sums, and three of which each reads
 * the last one's; what they make is put together, so that nothing stands between them. */
enum { SUMS = 5, FIRST, SECOND, N_ALL };
static void add_programs(int n_all)
{
    static const int64_t sizes[N_ALL] = {3, 40, 7, 100, 12, 1, 9, 9};
    static const hl_op ops[SUMS] = {HL_OP_NEG, HL_OP_ABS, HL_OP_NEG, HL_OP_SIGN, HL_OP_RELU};
    hl_attrs all = {.reduce = {{1, {0}}}}, square = {.shape = {{2, {3, 3}}}},
             column = {.shape = {{2, {9, 1}}}};
    hl_id from[N_ALL], value[N_ALL], *sum = &value[SUMS], *last = &value[SECOND], row;
    int64_t n = 0;
    for (int i = 0; i < n_all; i++) from[i] = add_state(HL_DTYPE_F32, sizes[i]);
    for (int i = 0; i < SUMS; i++)
        CHECK_OK(hl_graph_add(graph, ops[i], &from[i], 1, NULL, &value[i]));
    if (n_all > SUMS) {
        CHECK_OK(hl_graph_add(graph, HL_OP_MUL, (hl_id[]){from[3], value[3]}, 2, NULL, sum));
        CHECK_OK(hl_graph_add(graph, HL_OP_SUM, sum, 1, &all, sum));
        CHECK_OK(hl_graph_add(graph, HL_OP_NEG, &from[FIRST], 1, NULL, &value[FIRST]));
        CHECK_OK(hl_graph_add(graph, HL_OP_RESHAPE, &value[FIRST], 1, &square, last));
        CHECK_OK(hl_graph_add(graph, HL_OP_ABS, last, 1, NULL, last));
        CHECK_OK(hl_graph_add(graph, HL_OP_RESHAPE, last, 1, &column, last));
        CHECK_OK(hl_graph_add(graph, HL_OP_NEG, last, 1, NULL, last));
    }
    for (int i = 0; i < n_all; i++) {
        hl_attrs flat = {.shape = {{1, {sizes[i]}}}};
        CHECK_OK(hl_graph_add(graph, HL_OP_RESHAPE, &value[i], 1, &flat, &value[i]));
        n += sizes[i];
    }
    CHECK_OK(hl_graph_add(graph, HL_OP_CONCAT, value, n_all, &(hl_attrs){0}, &row));
    hl_id to = add_state(HL_DTYPE_F32, n);
    CHECK_OK(hl_graph_commit(graph, to, add_update(HL_OP_ASSIGN, to, row)));
}

/* Those that do not wait for each other run side by side. */
static counts build_programs(void)
{
    add_programs(SUMS);
    return (counts){.fused = SUMS - 1, .programs = 1};
}

/* All of them are a sequence, which is longer. */
static counts build_sequence(void)
{
    add_programs(N_ALL);
    return (counts){.fused = N_ALL - 1, .programs = 1};
}

/* A batch out of several arrays, a type and a width each, one of them converted. */
static counts build_batch(void)
{
    static const struct {
        hl_dtype dtype, to;
        int64_t width;
    } arrays[] = {{HL_DTYPE_F32, HL_DTYPE_F32, 4},
                  {HL_DTYPE_I64, HL_DTYPE_I64, 1},
                  {HL_DTYPE_I32, HL_DTYPE_F32, 3},
                  {HL_DTYPE_F32, HL_DTYPE_F32, 5}};
    static const int64_t rows[] = {5, 0, 7, 7, 2, 9};
    enum { FROM = 10, TAKEN = 6, N_ARRAYS = 4 };
    hl_id index, to[N_ARRAYS], value[N_ARRAYS];
    CHECK_OK(hl_graph_const(graph, (hl_type){HL_DTYPE_I64, hl_shape_1d(TAKEN)}, rows, &index));
    for (int a = 0; a < N_ARRAYS; a++) {
        int64_t width = arrays[a].width;
        hl_id from = add_state(arrays[a].dtype, FROM * width);
        hl_attrs as_rows = {.shape = {{2, {FROM, width}}}}, type = {.dtype = {arrays[a].to}};
        to[a] = add_state(arrays[a].to, TAKEN * width);
        CHECK_OK(hl_graph_add(graph, HL_OP_RESHAPE, &from, 1, &as_rows, &from));
        CHECK_OK(
            hl_graph_add(graph, HL_OP_BATCH_GATHER, (hl_id[]){from, index}, 2, &type, &value[a]));
    }
    for (int a = 0; a < N_ARRAYS; a++) {
        hl_attrs flat = {.shape = {{1, {TAKEN * arrays[a].width}}}};
        CHECK_OK(hl_graph_add(graph, HL_OP_RESHAPE, &value[a], 1, &flat, &value[a]));
        CHECK_OK(hl_graph_commit(graph, to[a], add_update(HL_OP_ASSIGN, to[a], value[a])));
    }
    return (counts){.fused = 2 * (N_ARRAYS - 1)};
}

/* ---- running --------------------------------------------------------------------------------- */

static int count_in_text(const hl_plan *plan, const char *what)
{
    char *text;
    int n = 0;
    CHECK_OK(hl_plan_print(plan, &text));
    for (const char *at = text; (at = strstr(at, what)); at++) n++;
    hl_free(text);
    return n;
}

static void run(const hl_backend *backend, counts (*build)(void), bool is_gpu, bool capture,
                double (*out_values)[N])
{
    hl_device *device;
    hl_session *session;
    hl_plan *plan;
    hl_run_end end;
    int64_t steps;
    hl_plan_options options = {
        .n_slots = 1, .k = 1, .fuse = true, .chain = true, .capture = capture};
    CHECK_OK(backend->device_open(backend, 0, NULL, &device));
    CHECK_OK(hl_session_create(device, &session));
    CHECK_OK(hl_graph_create(&graph));
    n_states = 0;
    counts want = build();
    CHECK_OK(hl_plan_create(session, graph, &options, &plan));
    if (want.fused >= 0)
        CHECK_INT(count_in_text(plan, "with the one before"), is_gpu ? want.fused : 0);
    CHECK_INT(count_in_text(plan, "cuda.pointwise:"), is_gpu ? want.programs : 0);
    for (int s = 0; s < n_states; s++) {
        double values[N];
        for (int i = 0; i < N; i++) values[i] = (s * 7 + i * 3) % 16;
        CHECK_OK(hl_session_write(session, states[s].name, 0, states[s].n, HL_DTYPE_F64, values));
    }
    hl_control control;
    CHECK_OK(hl_session_control_read(session, &control));
    control.window_ok = 1;
    CHECK_OK(hl_session_control_write(session, &control));
    CHECK_OK(hl_plan_run(plan, N_STEPS, 0, NULL, &end, &steps));
    for (int s = 0; s < n_states; s++)
        CHECK_OK(
            hl_session_read(session, states[s].name, 0, states[s].n, HL_DTYPE_F64, out_values[s]));
    hl_plan_destroy(plan);
    hl_session_destroy(session);
    device->ops->destroy(device);
}

static void check_graph(const char *name, counts (*build)(void))
{
    static double want[MAX_STATES][N], got[MAX_STATES][N];
    run(hl_ref_backend(), build, false, false, want);
    for (int capture = 0; capture < 2; capture++) {
        check_case("%s, captured %d", name, capture);
        run(hl_fake_backend(), build, true, capture, got);
        for (int s = 0; s < n_states; s++)
            CHECK(memcmp(got[s], want[s], (size_t)states[s].n * sizeof(double)) == 0);
    }
}

int main(void)
{
    check_graph("counters", build_counters);
    check_graph("kinds", build_kinds);
    check_graph("shift", build_shift);
    check_graph("row", build_row);
    check_graph("twice", build_twice);
    check_graph("beside", build_horizontal);
    check_graph("many results", build_many_results);
    check_graph("programs", build_programs);
    check_graph("sequence", build_sequence);
    check_graph("batch", build_batch);
    return CHECK_DONE();
}
