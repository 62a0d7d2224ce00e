/* Schedules: an update waits for everybody who reads what it overwrites, wherever that lies in its
 * store; and who shares blocks has rows that fit. */
#include "kernels/cpu/cpu.h"
#include "ops/build.h"
#include "tests/c/bench.h"
#include "tests/c/dice.h"

/* Each node by itself. */
static void plan_bench(bench *b)
{
    hl_plan_options options = {.n_slots = 1, .k = 1, .chain = true};
    CHECK_OK(hl_plan_create(b->session, b->graph, &options, &b->plan));
}

static int32_t region_of(const hl_plan *plan, int32_t task)
{
    return plan->schedule.chains[plan->schedule.tasks[task].chain].region;
}

/* ---- updates and readers --------------------------------------------------------------------- */

enum { N_STORE = 48, N_TARGETS = 3 };

static hl_id add_leaf(bench *b, int64_t offset, int64_t n)
{
    int32_t store;
    hl_id leaf;
    hl_type type = {HL_DTYPE_F32, hl_shape_1d(n)};
    CHECK_OK(hl_graph_store(b->graph, "s", HL_DTYPE_F32, N_STORE, &store));
    CHECK_OK(hl_graph_leaf(b->graph, HL_VALUE_STATE, type, store, offset, "s", &leaf));
    return leaf;
}

static bool reads(const hl_plan *plan, int32_t task, const hl_value *target)
{
    const hl_node *node = &plan->graph->nodes[plan->schedule.tasks[task].node];
    for (int32_t j = 0; j < node->n_in; j++) {
        const hl_value *leaf = &plan->graph->values[node->in[j]];
        int64_t end = leaf->offset + hl_shape_numel(&leaf->type.shape);
        if (leaf->kind == HL_VALUE_STATE && leaf->store == target->store &&
            leaf->offset < target->offset + hl_shape_numel(&target->type.shape) &&
            target->offset < end)
            return true;
    }
    return false;
}

/* Counts the pairs of an update and a reader of what it overwrites; the reader is in an earlier
 * region. */
static int check_updates(const hl_plan *plan)
{
    int n = 0;
    for (int32_t u = 0; u < plan->schedule.n_tasks; u++) {
        const hl_node *update = &plan->graph->nodes[plan->schedule.tasks[u].node];
        if (update->op != HL_OP_ASSIGN) continue;
        for (int32_t r = 0; r < plan->schedule.n_tasks; r++) {
            if (r == u || !reads(plan, r, &plan->graph->values[update->in[0]])) continue;
            CHECK(region_of(plan, r) < region_of(plan, u));
            n++;
        }
    }
    return n;
}

/* Parts of one store that lie in one another, overlap by an element or meet. Readers are few: what
 * waits for one of them needs not wait for the others. */
static void test_updates_wait_for_readers(void)
{
    static const int64_t bounds[] = {0, 1, 15, 16, 17, 31, 32, 33, 47, N_STORE};
    enum { N_BOUNDS = sizeof bounds / sizeof bounds[0] };
    int n_pairs = 0;
    for (int seed = 0; seed < 500; seed++) {
        check_case("seed %d", seed);
        dice d = {hl_rng_key_make((uint64_t)seed, "waits"), 0};
        bench b = open_bench(hl_cpu_backend(), 2);
        hl_id x, out;
        const int64_t size = N_STORE / N_TARGETS;
        CHECK_OK(hl_graph_input(b.graph, "x", (hl_type){HL_DTYPE_F32, hl_shape_1d(size)}, &x));
        for (int i = 0; i < N_TARGETS; i++)
            CHECK_OK(hl_graph_commit(b.graph, add_leaf(&b, i * size, size), x));
        for (int i = roll(&d, 3); i >= 0; i--) {
            int begin = roll(&d, N_BOUNDS - 1), end = begin + 1 + roll(&d, N_BOUNDS - 1 - begin);
            hl_id leaf = add_leaf(&b, bounds[begin], bounds[end] - bounds[begin]);
            CHECK_OK(hl_build_unary(b.graph, HL_OP_EXP, leaf, &out));
            CHECK_OK(hl_graph_output(b.graph, out));
        }
        plan_bench(&b);
        n_pairs += check_updates(b.plan);
        close_bench(&b);
    }
    check_case("%s", "");
    CHECK(n_pairs > 1000);
}

/* Who reads a value of an update, through views too, goes before the next update in a row, though
 * it is ready later. */
static void test_updates_in_a_row_wait(void)
{
    for (int n_views = 0; n_views < 3; n_views++) {
        check_case("%d views", n_views);
        bench b = open_bench(hl_cpu_backend(), 2);
        hl_shape shapes[] = {hl_shape_2d(4, N_STORE / 4), hl_shape_2d(N_STORE, 1)};
        hl_id x, control, once, twice, seen, late;
        hl_type type = {HL_DTYPE_F32, hl_shape_1d(N_STORE)};
        hl_id state = add_leaf(&b, 0, N_STORE);
        CHECK_OK(hl_graph_control(b.graph, &control));
        CHECK_OK(hl_graph_input(b.graph, "x", type, &x));
        CHECK_OK(hl_graph_add(b.graph, HL_OP_ASSIGN, (hl_id[]){state, x, control}, 3, NULL, &once));
        CHECK_OK(
            hl_graph_add(b.graph, HL_OP_ACCUMULATE, (hl_id[]){once, x, control}, 3, NULL, &twice));
        CHECK_OK(hl_graph_commit(b.graph, state, twice));
        late = x;
        for (int i = 0; i < 3; i++) CHECK_OK(hl_build_unary(b.graph, HL_OP_SOFTMAX, late, &late));
        CHECK_OK(hl_build_sum(b.graph, late, NULL, 0, false, &late));
        seen = once;
        for (int i = 0; i < n_views; i++)
            CHECK_OK(hl_build_reshape(b.graph, seen, &shapes[i], &seen));
        CHECK_OK(hl_build_binary(b.graph, HL_OP_MUL, seen, late, &seen));
        CHECK_OK(hl_graph_output(b.graph, seen));
        plan_bench(&b);
        const int32_t *task_of_node = b.plan->schedule.task_of_node;
        int32_t update = task_of_node[hl_graph_producer(b.graph, twice)];
        int32_t reader = task_of_node[hl_graph_producer(b.graph, b.graph->outputs[0])];
        CHECK(region_of(b.plan, reader) < region_of(b.plan, update));
        close_bench(&b);
    }
    check_case("%s", "");
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* x (rows,cols) -> softmax -> seen in other rows -> softmax: one chain where the ones are parts of
 * the others, and each row is computed. */
static void test_rows_of_a_chain(void)
{
    static const struct {
        int64_t rows, cols, other;
        bool is_chain;
    } cases[] = {{12, 10, 6, true},   {12, 10, 24, true}, {12, 10, 8, false},
                 {12, 10, 20, false}, {15, 8, 10, false}, {8, 15, 8, true}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        check_case("%d rows, then %d", (int)cases[i].rows, (int)cases[i].other);
        enum { N = 120 };
        float in[N], out[N];
        hl_shape first = hl_shape_2d(cases[i].rows, cases[i].cols);
        hl_shape then = hl_shape_2d(cases[i].other, N / cases[i].other);
        hl_run_end end;
        int64_t steps;
        hl_id x;
        bench b = open_bench(hl_cpu_backend(), 1);
        CHECK_OK(hl_graph_input(b.graph, "x", (hl_type){HL_DTYPE_F32, first}, &x));
        CHECK_OK(hl_build_unary(b.graph, HL_OP_SOFTMAX, x, &x));
        CHECK_OK(hl_build_reshape(b.graph, x, &then, &x));
        CHECK_OK(hl_build_unary(b.graph, HL_OP_SOFTMAX, x, &x));
        CHECK_OK(hl_graph_output(b.graph, x));
        plan_bench(&b);
        CHECK_INT(b.plan->schedule.n_tasks, 2);
        CHECK_INT(b.plan->schedule.n_chains, cases[i].is_chain ? 1 : 2);
        for (int j = 0; j < N; j++) in[j] = 0;
        CHECK_OK(hl_plan_input(b.plan, 0, HL_DTYPE_F32, &first, in));
        CHECK_OK(hl_plan_run(b.plan, 1, 0, NULL, &end, &steps));
        CHECK_OK(hl_plan_output(b.plan, 0, HL_DTYPE_F32, out));
        for (int j = 0; j < N; j++)
            CHECK(out[j] > 0.99f * (float)cases[i].other / N &&
                  out[j] < 1.01f * (float)cases[i].other / N);
        close_bench(&b);
    }
}

int main(void)
{
    test_updates_wait_for_readers();
    test_updates_in_a_row_wait();
    test_rows_of_a_chain();
    return CHECK_DONE();
}
