/* Parts of a flat state (WRITE_PARTS): they are made in the store's memory where nobody else of the
 * segment takes the store as it was, and copied there where somebody does; what lies between them
 * stays. On devices that compute at once and on an asynchronous one. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/ref/ref.h"
#include "ops/build.h"
#include "tests/c/async_device.h"
#include "tests/c/bench.h"

/* A state of two parts of PART elements, the second from ALIGN on. */
enum { PART = 29, ALIGN = 32, N = 70 };

/* Who takes the store beside the parts. */
typedef enum other {
    NOBODY,
    IN_APPLY,  /* a reader in a later segment: it sees what was written */
    OF_RESULT, /* a reader of what was written, in the same segment */
    A_READER,  /* of the store as it was */
    OF_A_PART, /* of the store as it was, by a leaf of some elements of it */
    AN_UPDATE, /* before this one, in a row with it */
    ONE_VALUE, /* nobody, but both parts are one value */
    AN_INPUT,  /* nobody, but a part is an input, which lies elsewhere */
    N_OTHERS
} other;

static hl_id add_leaf(bench *b, int64_t offset, int64_t n)
{
    int32_t store;
    hl_id leaf;
    hl_type type = {HL_DTYPE_F32, hl_shape_1d(n)};
    CHECK_OK(hl_graph_store(b->graph, "flat", HL_DTYPE_F32, N, &store));
    CHECK_OK(hl_graph_leaf(b->graph, HL_VALUE_STATE, type, store, offset, "flat", &leaf));
    return leaf;
}

/* The graph's only output, or nothing: double of what the other takes. */
static void add_reader(bench *b, hl_id value)
{
    CHECK_OK(hl_build_binary_number(b->graph, HL_OP_MUL, value, 2, &value));
    CHECK_OK(hl_graph_output(b->graph, value));
}

static void build(bench *b, other who)
{
    hl_id x, control, in[3];
    hl_type type = {HL_DTYPE_F32, hl_shape_1d(PART)};
    hl_attrs attrs = {.write_parts = {ALIGN}};
    hl_id leaf = add_leaf(b, 0, N), out;
    CHECK_OK(hl_graph_input(b->graph, "x", type, &x));
    CHECK_OK(hl_graph_control(b->graph, &control));
    CHECK_OK(hl_build_unary(b->graph, HL_OP_TANH, x, &in[1]));
    CHECK_OK(hl_build_unary(b->graph, HL_OP_EXP, x, &in[2]));
    if (who == ONE_VALUE) in[2] = in[1];
    if (who == AN_INPUT) in[2] = x;
    in[0] = leaf;
    if (who == AN_UPDATE)
        CHECK_OK(hl_graph_add(b->graph, HL_OP_ACCUMULATE, (hl_id[]){leaf, leaf, control}, 3, NULL,
                              &in[0]));
    if (who == A_READER) add_reader(b, leaf);
    if (who == OF_A_PART) add_reader(b, add_leaf(b, ALIGN, PART));
    CHECK_OK(hl_graph_add(b->graph, HL_OP_WRITE_PARTS, in, 3, &attrs, &out));
    CHECK_OK(hl_graph_commit(b->graph, leaf, out));
    if (who == OF_RESULT) add_reader(b, out);
    b->graph->segment = HL_SEGMENT_APPLY;
    if (who == IN_APPLY) add_reader(b, leaf);
    b->graph->segment = HL_SEGMENT_MICRO;
}

static bool has_output(other who)
{
    return who == IN_APPLY || who == OF_RESULT || who == A_READER || who == OF_A_PART;
}

/* Parts that are made where they have to be take no launch of their own. */
static void check_launches(const bench *b, other who)
{
    static const int want[N_OTHERS] = {
        [NOBODY] = 2,    [IN_APPLY] = 3,  [OF_RESULT] = 3, [A_READER] = 4,
        [OF_A_PART] = 4, [AN_UPDATE] = 4, [ONE_VALUE] = 2, [AN_INPUT] = 2};
    hl_plan_info info;
    hl_plan_info_read(b->plan, &info);
    CHECK_INT(info.n_kernels, want[who]);
}

/* state, other's output: what one step more makes of them. */
static void predict(other who, const double *x, double *state, double *output)
{
    double before[N];
    memcpy(before, state, sizeof before);
    for (int64_t i = 0; i < N; i++)
        if (who == AN_UPDATE) state[i] *= 2;
    for (int64_t i = 0; i < PART; i++) {
        state[i] = tanh(x[i]);
        state[ALIGN + i] = who == ONE_VALUE ? tanh(x[i]) : who == AN_INPUT ? x[i] : exp(x[i]);
    }
    const double *seen = who == A_READER || who == OF_A_PART ? before : state;
    for (int64_t i = 0; i < N; i++) output[i] = 2 * seen[who == OF_A_PART ? ALIGN + i % PART : i];
}

static bool is_near(double a, double b)
{
    return fabs(a - b) <= 1e-5 * (1 + fabs(b));
}

static void check_steps(bench *b, other who)
{
    double x[PART], state[N], want[N], output[N], seen[N];
    hl_shape shape = hl_shape_1d(PART);
    hl_run_end end;
    int64_t steps;
    for (int64_t i = 0; i < N; i++) want[i] = 100 + (double)i;
    CHECK_OK(hl_session_write(b->session, "flat", 0, N, HL_DTYPE_F64, want));
    for (int step = 0; step < 3; step++) {
        for (int64_t i = 0; i < PART; i++) x[i] = 0.25 * step - 0.01 * (double)i;
        predict(who, x, want, output);
        CHECK_OK(hl_plan_input(b->plan, 0, HL_DTYPE_F64, &shape, x));
        CHECK_OK(hl_plan_run(b->plan, 1, 0, NULL, &end, &steps));
        CHECK_OK(hl_session_read(b->session, "flat", 0, N, HL_DTYPE_F64, state));
        for (int64_t i = 0; i < N; i++) CHECK(is_near(state[i], want[i]));
        if (!has_output(who)) continue;
        CHECK_OK(hl_plan_output(b->plan, 0, HL_DTYPE_F64, seen));
        for (int64_t i = 0; i < (who == OF_A_PART ? PART : N); i++)
            CHECK(is_near(seen[i], output[i]));
    }
}

int main(void)
{
    const hl_backend *backends[] = {hl_ref_backend(), hl_cpu_backend(), async_backend()};
    for (int i = 0; i < 3; i++) {
        for (other who = NOBODY; who < N_OTHERS; who++) {
            check_case("%s, other %d", backends[i]->name, who);
            bench b = open_bench(backends[i], 2);
            hl_plan_options options = {.n_slots = 1, .k = 1, .chain = true, .capture = true};
            build(&b, who);
            CHECK_OK(hl_plan_create(b.session, b.graph, &options, &b.plan));
            check_launches(&b, who);
            check_steps(&b, who);
            close_bench(&b);
        }
    }
    return CHECK_DONE();
}
