/* Recomputation (passes/recompute.c): steps have the same bits with it, whatever is recomputed, in
 * checkpoints within one another as well; the graph stays legal, forward as it was, and what the
 * backward pass waits for lies in less memory. */
#include <string.h>

#include "tests/c/train.h"

/* ---- steps ----------------------------------------------------------------------------------- */

enum { N_STEPS = 5, MAX_STATE = 4096 };

/* All that a few steps leave in the stores of a network. */
typedef struct outcome {
    int64_t n;
    double values[8 * MAX_STATE];
    int64_t n_recomputed;
} outcome;

static void read_stores(trainer *t, outcome *out)
{
    static const char *const names[] = {"param", "buffer", "ema", "optimizer.0", "optimizer.1"};
    out->n = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int64_t n = 0;
        for (int64_t s = 0; s < t->session->n_stores; s++)
            if (!strcmp(t->session->stores[s].name, names[i])) n = t->session->stores[s].n;
        if (!n) continue;
        CHECK(n <= MAX_STATE);
        CHECK_OK(hl_session_read(t->session, names[i], 0, n, HL_DTYPE_F64, out->values + out->n));
        out->n += n;
    }
}

static void train(const hl_backend *backend, const net *rolled, int k, bool fuse, outcome *out)
{
    trainer t = {.net = *rolled};
    hl_plan_info info;
    hl_run_end end;
    int64_t steps;
    trainer_open(&t, backend, 2);
    trainer_plan(&t, &t.net, k, fuse, true);
    trainer_fill(&t);
    CHECK_OK(hl_plan_run(t.plan, N_STEPS, 0, NULL, &end, &steps));
    hl_plan_info_read(t.plan, &info);
    out->n_recomputed = info.n_recomputed;
    read_stores(&t, out);
    trainer_close(&t);
}

static void test_same_bits(const hl_backend *backend, hl_dtype dtype)
{
    static const double shares[] = {0, 0.4, 1};
    static outcome want, got;
    int64_t n_recomputed = 0;
    trainer_dtype = dtype;
    for (uint64_t seed = 0; seed < 60; seed++) {
        int k = 1 + (int)(seed % 3);
        net n = net_roll(seed, k);
        bool fuse = seed % 4 != 3;
        train(backend, &n, k, fuse, &want);
        CHECK_INT(want.n_recomputed, 0);
        for (trainer_checkpoints = 0; trainer_checkpoints < 3; trainer_checkpoints++)
            for (int i = 0; i < 3; i++) {
                trainer_recompute = shares[i];
                check_case("%s, seed %d, %d checkpoints, share %g", backend->name, (int)seed,
                           trainer_checkpoints, shares[i]);
                train(backend, &n, k, fuse, &got);
                n_recomputed += got.n_recomputed;
                CHECK_INT(got.n, want.n);
                CHECK(!memcmp(got.values, want.values, (size_t)want.n * sizeof *want.values));
            }
        trainer_checkpoints = 0;
        trainer_recompute = 0;
    }
    CHECK(n_recomputed > 500);
    trainer_dtype = HL_DTYPE_F32;
}

static hl_status run_whole(void *context)
{
    return trainer_run_whole(context, hl_cpu_backend(), true, 24);
}

static void test_every_allocation_may_fail(void)
{
    trainer t = {.net = net_roll(11, 1)};
    check_case("allocations");
    trainer_checkpoints = 2;
    trainer_recompute = 1;
    CHECK(check_walk_faults(CHECK_FAULT_ALLOC, HL_ERROR_MEMORY, 0, run_whole, &t) > 100);
    trainer_checkpoints = 0;
    trainer_recompute = 0;
}

/* ---- graphs ---------------------------------------------------------------------------------- */

enum { DEPTH = 36, WIDTH = 64, BATCH = 512 };

/* A chain of layers, tanh(x w), whose steps are to be planned; each in checkpoint at(i). */
typedef struct chain {
    hl_graph *graph;
    hl_id params[DEPTH], loss, made[DEPTH], activated[DEPTH];
    hl_node_id n_forward;
} chain;

typedef int (*in_checkpoint)(int layer);

static int in_none(int layer)
{
    (void)layer;
    return 0;
}

/* Checkpoints of six layers. */
static int in_sixes(int layer)
{
    return layer / 6 + 1;
}

static chain build_chain(in_checkpoint at)
{
    chain c;
    int32_t store;
    hl_id x;
    int64_t size = WIDTH * WIDTH;
    hl_type type = {HL_DTYPE_F32, hl_shape_2d(WIDTH, WIDTH)};
    CHECK_OK(hl_graph_create(&c.graph));
    CHECK_OK(hl_graph_store(c.graph, "param", HL_DTYPE_F32, DEPTH * size, &store));
    CHECK_OK(hl_graph_input(c.graph, "x", (hl_type){HL_DTYPE_F32, hl_shape_2d(BATCH, WIDTH)}, &x));
    for (int i = 0; i < DEPTH; i++) {
        CHECK_OK(hl_graph_leaf(c.graph, HL_VALUE_PARAM, type, store, i * size, "w", &c.params[i]));
        if (at(i) && (!i || at(i) != at(i - 1))) CHECK_OK(hl_graph_checkpoint_begin(c.graph));
        CHECK_OK(hl_graph_add(c.graph, HL_OP_MATMUL, (hl_id[]){x, c.params[i]}, 2, NULL, &x));
        c.made[i] = x;
        CHECK_OK(hl_build_unary(c.graph, HL_OP_TANH, x, &x));
        c.activated[i] = x;
        if (at(i) && (i + 1 == DEPTH || at(i) != at(i + 1))) hl_graph_checkpoint_end(c.graph);
    }
    CHECK_OK(hl_build_sum(c.graph, x, NULL, 0, false, &c.loss));
    c.n_forward = (hl_node_id)c.graph->n_nodes;
    hl_step_term term = {.sum = c.loss, .denominator = HL_NONE, .weight = 1};
    double segment[5] = {0, (double)(DEPTH * size), 1, 0};
    bool has_grad[DEPTH];
    hl_step_spec spec = {.terms = &term,
                         .n_terms = 1,
                         .params = c.params,
                         .n_params = DEPTH,
                         .rows = BATCH,
                         .optimizer = HL_OP_SGD,
                         .segments = segment,
                         .n_segments = 1,
                         .n_table_rows = 1,
                         .n_table_cols = 1};
    CHECK_OK(hl_pass_training_step(c.graph, &spec, &c.loss, has_grad));
    return c;
}

static int count_op(const hl_graph *graph, hl_op op)
{
    int n = 0;
    for (int64_t i = 0; i < graph->n_nodes; i++) n += graph->nodes[i].op == op;
    return n;
}

static void check_order(const hl_graph *graph)
{
    int32_t fence = 0;
    CHECK_OK(hl_graph_verify(graph));
    for (int64_t i = 0; i < graph->n_nodes; i++) {
        if (graph->nodes[i].segment != HL_SEGMENT_MICRO) continue;
        CHECK(graph->nodes[i].fence >= fence);
        fence = graph->nodes[i].fence;
    }
}

static void test_nothing_is_asked_for(void)
{
    chain c = build_chain(in_none);
    hl_recomputed done;
    char *before, *after;
    check_case("share 0");
    CHECK_OK(hl_graph_print(c.graph, &before));
    CHECK_OK(hl_pass_recompute(c.graph, 0, &done));
    CHECK_OK(hl_graph_print(c.graph, &after));
    CHECK(!strcmp(before, after));
    CHECK_INT(done.n_saved, DEPTH); /* of tanh its result, of the product nothing */
    CHECK_INT(done.n_made, 0);
    CHECK(done.flops == 0 && done.step_flops > 0);
    hl_free(before);
    hl_free(after);
    hl_graph_destroy(c.graph);
}

/* Layers of a chain cost alike, so that segments of about its square root are best: all but a few
 * of its products are done twice, which is a third of forward and backward at most. */
static void test_a_chain(void)
{
    chain c = build_chain(in_none);
    hl_recomputed done;
    check_case("a chain");
    int n_products = count_op(c.graph, HL_OP_MATMUL);
    CHECK_OK(hl_pass_recompute(c.graph, 1, &done));
    check_order(c.graph);
    int n_again = count_op(c.graph, HL_OP_MATMUL) - n_products;
    CHECK(n_again > DEPTH / 2 && n_again < DEPTH);
    CHECK(done.n_made >= n_again &&
          done.n_made < DEPTH); /* tanh of a product that is kept needs none */
    CHECK(done.flops > 0.15 * done.step_flops && done.flops < 0.34 * done.step_flops);
    for (int i = 0; i < DEPTH; i++) { /* forward stands as it did */
        const hl_value *value = hl_graph_value(c.graph, c.activated[i]);
        CHECK(value->node != HL_NONE && value->node < c.n_forward + 2);
    }
    hl_graph_destroy(c.graph);
}

/* Of each six layers the last result is read outside; five are made again, each product once. */
static void test_checkpoints_of_a_chain(void)
{
    chain c = build_chain(in_sixes);
    hl_recomputed done;
    check_case("checkpoints");
    int n_products = count_op(c.graph, HL_OP_MATMUL);
    CHECK_OK(hl_pass_recompute(c.graph, 0, &done));
    check_order(c.graph);
    CHECK_INT(done.n_made, DEPTH / 6 * 5);
    CHECK_INT(count_op(c.graph, HL_OP_MATMUL) - n_products, DEPTH / 6 * 5);
    hl_graph_destroy(c.graph);
}

static int64_t predict_arena(in_checkpoint at, double share)
{
    hl_device *device;
    hl_device_options device_options = {.n_threads = 1};
    hl_plan_options options = {.fuse = true, .chain = true, .recompute = share};
    hl_plan_info info;
    chain c = build_chain(at);
    const hl_backend *backend = hl_null_backend();
    CHECK_OK(backend->device_open(backend, 0, &device_options, &device));
    CHECK_OK(hl_plan_predict(device, c.graph, &options, &info, NULL));
    device->ops->destroy(device);
    return info.arena_bytes;
}

static void test_memory(void)
{
    int64_t layer = (int64_t)sizeof(float) * BATCH * WIDTH, all = predict_arena(in_none, 0);
    check_case("memory");
    CHECK(all >= DEPTH * layer);
    CHECK(predict_arena(in_none, 1) < all / 2);
    CHECK(predict_arena(in_sixes, 0) < all / 2);
    CHECK(predict_arena(in_none, 0.5) < all);
}

/* ---- what is no step ------------------------------------------------------------------------- */

static void test_no_backward_pass(void)
{
    hl_graph *graph;
    hl_recomputed done;
    hl_id x;
    check_case("no backward pass");
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(hl_graph_input(graph, "x", (hl_type){HL_DTYPE_F32, hl_shape_1d(8)}, &x));
    CHECK_OK(hl_graph_checkpoint_begin(graph));
    CHECK_OK(hl_build_unary(graph, HL_OP_TANH, x, &x));
    hl_graph_checkpoint_end(graph);
    CHECK_OK(hl_graph_output(graph, x));
    CHECK_OK(hl_pass_recompute(graph, 1, &done));
    CHECK_INT(graph->n_nodes, 1);
    CHECK_INT(done.n_saved, 0);
    hl_graph_checkpoint_end(graph); /* of none that is open */
    CHECK_INT(graph->checkpoint, 0);
    hl_graph_destroy(graph);
}

int main(void)
{
    test_same_bits(hl_ref_backend(), HL_DTYPE_F32);
    test_same_bits(hl_cpu_backend(), HL_DTYPE_F32);
    test_same_bits(hl_cpu_backend(), HL_DTYPE_BF16);
    test_every_allocation_may_fail();
    test_nothing_is_asked_for();
    test_a_chain();
    test_checkpoints_of_a_chain();
    test_memory();
    test_no_backward_pass();
    return CHECK_DONE();
}
