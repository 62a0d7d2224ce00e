/* Plans: invariants of schedule and memory on random graphs, and whole training steps on all
 * backends. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "kernels/cpu/cpu.h"
#include "kernels/ref/ref.h"
#include "ops/build.h"
#include "passes/passes.h"
#include "passes/schedule.h"
#include "plan/internal.h"
#include "tests/c/check.h"

/* ---- random graphs -----------------------------------------------------------------------------
 */

typedef struct dice {
    hl_rng_key key;
    uint32_t n;
} dice;

static int roll(dice *d, int sides)
{
    return hl_rng_bits16(d->key, d->n++, 0, 0) % sides;
}

/* A value of the given shape from a pool of those that exist. */
static hl_id pick(dice *d, const hl_id *pool, int n)
{
    return pool[roll(d, n)];
}

enum { ROWS = 24, COLS = 6, MOST_VALUES = 64 };

/* Ops on (ROWS, COLS) values, column vectors and row vectors, with commits and outputs. */
static hl_status grow_graph(hl_graph *graph, dice *d, int n_ops)
{
    hl_id full[MOST_VALUES], rows[MOST_VALUES];
    int n_full = 0, n_rows = 0;
    hl_type type = {HL_DTYPE_F32, hl_shape_2d(ROWS, COLS)}, row = {HL_DTYPE_F32, hl_shape_1d(COLS)};
    hl_type square = {HL_DTYPE_F32, hl_shape_2d(COLS, COLS)};
    int32_t store;
    hl_id weight, state;
    HL_TRY(hl_graph_input(graph, "x", type, &full[n_full++]));
    HL_TRY(hl_graph_store(graph, "param", HL_DTYPE_F32, COLS * COLS, &store));
    HL_TRY(hl_graph_leaf(graph, HL_VALUE_PARAM, square, store, 0, "w", &weight));
    HL_TRY(hl_graph_store(graph, "state", HL_DTYPE_F32, COLS, &store));
    HL_TRY(hl_graph_leaf(graph, HL_VALUE_STATE, row, store, 0, "s", &state));
    rows[n_rows++] = state;
    for (int i = 0; i < n_ops && n_full < MOST_VALUES && n_rows < MOST_VALUES; i++) {
        hl_id a = pick(d, full, n_full), out;
        hl_attrs attrs = {0};
        switch (roll(d, 7)) {
        case 0:
            HL_TRY(hl_graph_add(graph, HL_OP_TANH, &a, 1, NULL, &full[n_full]));
            n_full++;
            break;
        case 1:
            HL_TRY(hl_graph_add(graph, HL_OP_ADD, (hl_id[]){a, pick(d, full, n_full)}, 2, NULL,
                                &full[n_full]));
            n_full++;
            break;
        case 2:
            HL_TRY(hl_graph_add(graph, HL_OP_MUL, (hl_id[]){a, pick(d, rows, n_rows)}, 2, NULL,
                                &full[n_full]));
            n_full++;
            break;
        case 3:
            HL_TRY(hl_graph_add(graph, HL_OP_MATMUL, (hl_id[]){a, weight}, 2, NULL, &full[n_full]));
            n_full++;
            break;
        case 4:
            HL_TRY(hl_build_sum(graph, a, (int64_t[]){0}, 1, false, &rows[n_rows]));
            n_rows++;
            break;
        case 5:
            attrs.i[0] = 0;
            HL_TRY(hl_graph_add(graph, HL_OP_CONCAT, (hl_id[]){a, pick(d, full, n_full)}, 2, &attrs,
                                &out));
            attrs = (hl_attrs){.i = {0, roll(d, ROWS), ROWS, 1}};
            attrs.i[2] = attrs.i[1] + ROWS;
            HL_TRY(hl_graph_add(graph, HL_OP_SLICE, &out, 1, &attrs, &full[n_full]));
            n_full++;
            break;
        default:
            HL_TRY(hl_graph_add(graph, HL_OP_SOFTMAX, &a, 1, NULL, &full[n_full]));
            n_full++;
        }
    }
    HL_TRY(hl_graph_commit(graph, state, rows[n_rows - 1]));
    HL_TRY(hl_graph_output(graph, full[n_full - 1]));
    return hl_graph_output(graph, rows[roll(d, n_rows)]);
}

static hl_graph *make_graph(uint64_t seed, int n_ops)
{
    dice d = {hl_rng_key_make(seed, "graph"), 0};
    hl_graph *graph;
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(grow_graph(graph, &d, n_ops));
    return graph;
}

/* ---- invariants
 * ---------------------------------------------------------------------------------- */

typedef struct span {
    int64_t begin, end;
    int32_t first, last;
    hl_id root;
} span;

static int32_t region_of(const hl_plan *plan, int32_t step)
{
    return plan->schedule.chains[plan->schedule.steps[step].chain].region;
}

static int64_t offset_of(const hl_plan *plan, hl_id id)
{
    hl_id root = plan->memory.places[id].root;
    return plan->memory.places[root].offset + (root == id ? 0 : plan->memory.places[id].offset);
}

/* Bytes and regions of every value that lies in the arena, recomputed from the schedule alone. */
static int collect_spans(const hl_plan *plan, span *spans)
{
    const hl_graph *graph = plan->graph;
    int n = 0;
    for (int64_t v = 0; v < graph->n_values; v++) {
        hl_id root = plan->memory.places[v].root;
        if (graph->values[v].kind != HL_VALUE_ACT || graph->values[root].kind != HL_VALUE_ACT)
            continue;
        span s = {.first = HL_NONE, .last = HL_NONE, .root = root};
        for (int32_t i = 0; i < plan->schedule.n_steps; i++) {
            const hl_node *node = &graph->nodes[plan->schedule.steps[i].node];
            bool touches = v >= node->out && v < node->out + node->n_out;
            for (int32_t j = 0; j < node->n_in; j++) touches |= node->in[j] == v;
            if (!touches) continue;
            if (s.first == HL_NONE) s.first = region_of(plan, i);
            s.last = region_of(plan, i);
        }
        for (int64_t i = 0; i < graph->n_outputs; i++)
            if (graph->outputs[i] == v) s.last = plan->schedule.n_regions - 1;
        if (s.first == HL_NONE) continue;
        s.begin = offset_of(plan, (hl_id)v);
        s.end = s.begin + (int64_t)hl_value_bytes(graph, (hl_id)v);
        spans[n++] = s;
    }
    return n;
}

static void check_memory(const hl_plan *plan)
{
    static span spans[4 * MOST_VALUES];
    int n = collect_spans(plan, spans);
    for (int i = 0; i < n; i++) {
        CHECK(spans[i].begin >= 0 && spans[i].end <= plan->memory.arena_bytes);
        if (plan->memory.places[spans[i].root].root == spans[i].root)
            CHECK(plan->memory.places[spans[i].root].offset %
                      (int64_t)plan->session->device->alignment ==
                  0);
        for (int j = 0; j < i; j++) {
            bool alive = spans[i].first <= spans[j].last && spans[j].first <= spans[i].last;
            bool apart = spans[i].end <= spans[j].begin || spans[j].end <= spans[i].begin;
            CHECK(!alive || apart || spans[i].root == spans[j].root);
        }
    }
}

/* Operands are made before: in an earlier region, or earlier in the same chain and row by row. */
static void check_schedule(const hl_plan *plan)
{
    const hl_graph *graph = plan->graph;
    for (int32_t s = 0; s < plan->schedule.n_steps; s++) {
        const hl_step *step = &plan->schedule.steps[s];
        const hl_node *node = &graph->nodes[step->node];
        for (int32_t j = 0; j < node->n_in; j++) {
            hl_id id = node->in[j];
            while (graph->values[id].kind == HL_VALUE_ACT &&
                   hl_op_get(graph->nodes[graph->values[id].node].op)->flags & HL_OP_VIEW)
                id = graph->nodes[graph->values[id].node].in[0];
            if (graph->values[id].kind != HL_VALUE_ACT) continue;
            int32_t maker = plan->schedule.step_of_node[graph->values[id].node];
            CHECK(maker < s);
            if (region_of(plan, maker) < region_of(plan, s)) continue;
            CHECK_INT(plan->schedule.steps[maker].chain, step->chain);
            CHECK(step->req.row_in >> j & 1);
            CHECK(plan->schedule.steps[maker].req.row_out >> graph->values[id].output & 1);
        }
    }
}

static void run_once(hl_plan *plan, float *out, int64_t n)
{
    float x[ROWS * COLS];
    hl_shape shape = hl_shape_2d(ROWS, COLS);
    hl_run_end end;
    int64_t steps;
    for (int i = 0; i < ROWS * COLS; i++) x[i] = (float)(i % 7) / 7 - 0.4f;
    CHECK_OK(hl_plan_input(plan, 0, HL_DTYPE_F32, &shape, x));
    CHECK_OK(hl_plan_run(plan, 2, 0, NULL, &end, &steps));
    CHECK_INT(steps, 2);
    CHECK_OK(hl_plan_output(plan, 0, HL_DTYPE_F32, out));
    for (int64_t i = 0; i < n; i++) CHECK(isfinite(out[i]));
}

static hl_plan *make_plan(hl_session *session, hl_graph *graph, bool fuse, bool chain)
{
    hl_plan *plan;
    hl_plan_options options = {.n_slots = 1, .k = 1, .fuse = fuse, .chain = chain};
    CHECK_OK(hl_plan_create(session, graph, &options, &plan));
    return plan;
}

static hl_session *open_session(const hl_backend *backend, int n_threads, hl_device **out_device)
{
    hl_session *session;
    hl_device_options options = {.n_threads = n_threads};
    CHECK_OK(backend->device_open(backend, 0, &options, out_device));
    CHECK_OK(hl_session_create(*out_device, &session));
    float w[COLS * COLS];
    CHECK_OK(hl_session_store(session, "param", HL_DTYPE_F32, COLS * COLS));
    for (int i = 0; i < COLS * COLS; i++) w[i] = (float)(i % 5) / 5 - 0.4f;
    CHECK_OK(hl_session_write(session, "param", 0, COLS * COLS, HL_DTYPE_F32, w));
    return session;
}

static void close_session(hl_plan *plan, hl_session *session, hl_device *device)
{
    hl_plan_destroy(plan);
    hl_session_destroy(session);
    device->ops->destroy(device);
}

static void test_invariants_on_random_graphs(void)
{
    const hl_backend *backends[] = {hl_null_backend(), hl_cpu_backend()};
    for (int b = 0; b < 2; b++)
        for (uint64_t seed = 0; seed < 500; seed++) {
            hl_device *device;
            hl_session *session = open_session(backends[b], 2, &device);
            check_case("backend %d, seed %d", b, (int)seed);
            hl_plan *plan = make_plan(session, make_graph(seed, 4 + (int)(seed % 40)), true, true);
            check_schedule(plan);
            check_memory(plan);
            close_session(plan, session, device);
        }
}

/* The value of a random graph is the same fused or not, chained or not, at any number of threads.
 */
static void test_same_value_however_planned(void)
{
    for (uint64_t seed = 0; seed < 60; seed++) {
        check_case("seed %d", (int)seed);
        float want[ROWS * COLS], got[ROWS * COLS], plain[ROWS * COLS];
        hl_device *device;
        hl_session *session = open_session(hl_ref_backend(), 1, &device);
        hl_plan *plan = make_plan(session, make_graph(seed, 20), false, false);
        run_once(plan, want, ROWS * COLS);
        close_session(plan, session, device);
        for (int variant = 0; variant < 4; variant++) {
            session = open_session(hl_cpu_backend(), variant < 2 ? 1 : 7, &device);
            plan = make_plan(session, make_graph(seed, 20), true, variant % 2);
            run_once(plan, got, ROWS * COLS);
            close_session(plan, session, device);
            if (!variant) memcpy(plain, got, sizeof plain);
            CHECK(!memcmp(plain, got, sizeof got));
            for (int i = 0; i < ROWS * COLS; i++)
                CHECK(fabsf(want[i] - got[i]) <= 1e-3f * (1 + fabsf(want[i])));
        }
    }
}

int main(void)
{
    test_invariants_on_random_graphs();
    test_same_value_however_planned();
    return CHECK_DONE();
}
