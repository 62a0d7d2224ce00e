/* Training steps for tests: small random networks (layers, batch statistics, dropout, two losses
 * with every kind of denominator, every optimizer), their data, and one way to plan and feed them.
 */
#ifndef TESTS_C_TRAIN_H
#define TESTS_C_TRAIN_H

#include <math.h>

#include "ir/op.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/kernel.h"
#include "kernels/ref/ref.h"
#include "ops/build.h"
#include "passes/passes.h"
#include "plan/session.h"
#include "tests/c/check.h"
#include "tests/c/dice.h"

enum { MAX_LAYERS = 4, MAX_WIDTH = 24, DATA_ROWS = 96 };
typedef enum net_denominator { BY_ROWS, BY_NUMBER, BY_WEIGHT } net_denominator;

/* What is rolled for one network; BY_WEIGHT: a sum that depends on the batch. */
typedef struct net {
    int n_layers, width[MAX_LAYERS + 1], act[MAX_LAYERS];
    bool dropout, batch_norm, accumulate;
    int64_t rows;
    int n_terms;
    net_denominator denominator[2];
    hl_step_spec spec;
    int64_t n_params, n_flat;
    hl_id params[2 * MAX_LAYERS + 2];
    double segments[2][5];
    hl_id loss;
    bool has_grad[2 * MAX_LAYERS + 2];
} net;

static inline net net_roll(uint64_t seed, int k)
{
    dice d = {hl_rng_key_make(seed, "net"), 0};
    net n = {.n_layers = 1 + roll(&d, MAX_LAYERS), .rows = 1 + roll(&d, 40)};
    for (int i = 0; i <= n.n_layers; i++) n.width[i] = 1 + roll(&d, MAX_WIDTH);
    for (int i = 0; i < n.n_layers; i++) n.act[i] = roll(&d, 4);
    n.dropout = roll(&d, 2), n.batch_norm = roll(&d, 3) == 0;
    n.accumulate = k > 1 || roll(&d, 2);
    n.n_terms = 1 + roll(&d, 2);
    for (int t = 0; t < 2; t++) n.denominator[t] = (net_denominator)roll(&d, 3);
    static const hl_op ops[] = {HL_OP_SGD, HL_OP_ADAM, HL_OP_RMSPROP};
    n.spec.optimizer = ops[roll(&d, 3)];
    if (n.spec.optimizer == HL_OP_SGD)
        n.spec.attrs = (hl_attrs){.sgd = {.momentum = roll(&d, 2) * 0.9}};
    else if (n.spec.optimizer == HL_OP_ADAM)
        n.spec.attrs = (hl_attrs){.adam = {0.9, 0.99, 0.1, roll(&d, 2)}};
    else
        n.spec.attrs = (hl_attrs){
            .rmsprop = {0.9, 0.1, .momentum = roll(&d, 2) * 0.5, .centered = roll(&d, 2)}};
    n.spec.clip_norm = roll(&d, 2) * 0.5;
    n.spec.clip_value = roll(&d, 3) == 0 ? 0.02 : 0;
    n.spec.ema = roll(&d, 2) * 0.9;
    n.spec.ema_ramp = roll(&d, 2);
    return n;
}

/* The next place for a parameter. */
static inline int64_t net_padded(int64_t n)
{
    return hl_round_up(n, HL_ALIGN / (int64_t)sizeof(float));
}

static inline hl_status net_param(hl_graph *graph, net *n, hl_shape shape, hl_id *out)
{
    int32_t store = hl_graph_store_find(graph, "param");
    hl_type type = {HL_DTYPE_F32, shape};
    int64_t offset = net_padded(n->n_flat);
    HL_TRY(hl_graph_leaf(graph, HL_VALUE_PARAM, type, store, offset, "p", out));
    n->params[n->n_params++] = *out;
    n->n_flat = offset + hl_shape_numel(&shape);
    return HL_OK;
}

static inline int64_t net_count(const net *n)
{
    int64_t count = 0;
    for (int i = 0; i < n->n_layers; i++)
        count += net_padded(n->width[i] * n->width[i + 1]) + net_padded(n->width[i + 1]);
    return count + 2 * net_padded(n->width[1]);
}

/* weight and bias of batch statistics, whose running mean is committed in every micro-batch */
static inline hl_status net_norm(hl_graph *graph, net *n, hl_id *x)
{
    hl_id in[3] = {*x}, running, step;
    int64_t width = n->width[1];
    int32_t store;
    hl_attrs attrs = {.batch_norm = {.eps = 1e-2}};
    HL_TRY(net_param(graph, n, hl_shape_1d(width), &in[1]));
    HL_TRY(net_param(graph, n, hl_shape_1d(width), &in[2]));
    HL_TRY(hl_graph_add(graph, HL_OP_BATCH_NORM, in, 3, &attrs, x));
    HL_TRY(hl_graph_store(graph, "buffer", HL_DTYPE_F32, width, &store));
    HL_TRY(hl_graph_leaf(graph, HL_VALUE_STATE, (hl_type){HL_DTYPE_F32, hl_shape_1d(width)}, store,
                         0, "running", &running));
    HL_TRY(hl_build_binary(graph, HL_OP_SUB, *x + 1, running, &step));
    HL_TRY(hl_build_binary_number(graph, HL_OP_MUL, step, 0.1, &step));
    HL_TRY(hl_build_binary(graph, HL_OP_ADD, running, step, &step));
    return hl_graph_commit(graph, running, step);
}

static inline hl_status net_dropout(hl_graph *graph, const net *n, hl_id *x)
{
    hl_id control, mask;
    hl_attrs attrs;
    hl_attrs_init(HL_SCHEMA_dropout_mask, &attrs);
    attrs.dropout_mask.shape = (hl_ints){2, {n->rows, hl_graph_shape(graph, *x)->dim[1]}};
    attrs.dropout_mask.p = 0.3, attrs.dropout_mask.stream = "drop";
    HL_TRY(hl_graph_control(graph, &control));
    HL_TRY(hl_graph_add(graph, HL_OP_DROPOUT_MASK, &control, 1, &attrs, &mask));
    return hl_build_binary(graph, HL_OP_MUL, *x, mask, x);
}

static inline hl_status net_layer(hl_graph *graph, net *n, int i, hl_id *x)
{
    static const hl_op acts[] = {HL_OP_TANH, HL_OP_RELU, HL_OP_SIGMOID, HL_OP_SOFTPLUS, HL_OP_GELU};
    hl_id in[3] = {*x};
    hl_attrs attrs = {.matmul = {.trans_b = true}};
    HL_TRY(net_param(graph, n, hl_shape_2d(n->width[i + 1], n->width[i]), &in[1]));
    HL_TRY(net_param(graph, n, hl_shape_1d(n->width[i + 1]), &in[2]));
    HL_TRY(hl_graph_add(graph, HL_OP_MATMUL, in, 3, &attrs, x));
    if (i == 0 && n->batch_norm) HL_TRY(net_norm(graph, n, x));
    if (i + 1 == n->n_layers) return HL_OK;
    HL_TRY(hl_build_unary(graph, acts[n->act[i]], *x, x));
    return n->dropout ? net_dropout(graph, n, x) : HL_OK;
}

/* Checkpoints of forward: 1 around each layer, 2 around all of them too. */
static int trainer_checkpoints;

static inline hl_status net_forward(hl_graph *graph, net *n, hl_id *x)
{
    if (trainer_checkpoints > 1) HL_TRY(hl_graph_checkpoint_begin(graph));
    for (int i = 0; i < n->n_layers; i++) {
        if (trainer_checkpoints) HL_TRY(hl_graph_checkpoint_begin(graph));
        HL_TRY(net_layer(graph, n, i, x));
        hl_graph_checkpoint_end(graph);
    }
    hl_graph_checkpoint_end(graph);
    return HL_OK;
}

/* Squared errors; with BY_WEIGHT rows count by the sign of their first feature. */
static inline hl_status net_term(hl_graph *graph, const net *n, int t, hl_id x, hl_id y,
                                 hl_step_term *out)
{
    hl_id per_row, weight;
    *out = (hl_step_term){.denominator = HL_NONE, .weight = t ? 0.5 : 1};
    if (n->denominator[t] == BY_WEIGHT) {
        HL_TRY(hl_build_slice(graph, x, 1, 0, 1, &weight));
        HL_TRY(hl_build_binary_number(graph, HL_OP_GT, weight, 0, &weight));
        HL_TRY(hl_build_cast(graph, weight, HL_DTYPE_F32, &weight));
        HL_TRY(hl_build_sum(graph, weight, NULL, 0, false, &out->denominator));
        HL_TRY(hl_build_binary(graph, HL_OP_MUL, y, weight, &per_row));
    } else {
        per_row = y;
    }
    HL_TRY(hl_build_binary(graph, HL_OP_MUL, per_row, per_row, &per_row));
    if (t) HL_TRY(hl_build_unary(graph, HL_OP_TANH, per_row, &per_row));
    if (n->denominator[t] == BY_ROWS) {
        HL_TRY(hl_build_sum(graph, per_row, NULL, 0, false, &out->sum));
        return hl_build_binary_number(graph, HL_OP_MUL, out->sum, 1.0 / (double)n->rows, &out->sum);
    }
    if (n->denominator[t] == BY_NUMBER)
        HL_TRY(hl_graph_number(graph, HL_DTYPE_F32, 2.0 * (double)n->rows, &out->denominator));
    return hl_build_sum(graph, per_row, NULL, 0, false, &out->sum);
}

static bool trainer_streamed; /* whether a source makes the rows of the data, */
static int trainer_loaders;   /* and on how many threads batches are made */

static inline hl_status net_build(hl_graph *graph, net *n)
{
    hl_id index, dataset, x, y;
    int32_t store;
    hl_step_term terms[2];
    hl_attrs dtype = {.dtype = {HL_DTYPE_F32}};
    n->n_flat = n->n_params = 0;
    int64_t most = net_count(n) - (n->batch_norm ? 0 : 2 * net_padded(n->width[1]));
    HL_TRY(hl_graph_store(graph, "param", HL_DTYPE_F32, most, &store));
    HL_TRY(hl_graph_input(graph, "rows", (hl_type){HL_DTYPE_I64, hl_shape_1d(n->rows)}, &index));
    hl_type of_data = {HL_DTYPE_F32, hl_shape_2d(DATA_ROWS, n->width[0])};
    HL_TRY(trainer_streamed ? hl_graph_streamed_dataset(graph, "x", of_data, &dataset)
                            : hl_graph_dataset(graph, "x", of_data, &dataset));
    HL_TRY(hl_graph_add(graph, HL_OP_BATCH_GATHER, (hl_id[]){dataset, index}, 2, &dtype, &x));
    y = x;
    HL_TRY(net_forward(graph, n, &y));
    for (int t = 0; t < n->n_terms; t++) HL_TRY(net_term(graph, n, t, x, y, &terms[t]));
    n->segments[0][1] = n->segments[1][0] = (double)(n->n_flat / 2);
    n->segments[1][1] = (double)n->n_flat;
    n->segments[0][2] = 1, n->segments[1][2] = 0.5, n->segments[1][3] = 0.01;
    n->spec.terms = terms, n->spec.n_terms = n->n_terms;
    n->spec.params = n->params, n->spec.n_params = n->n_params;
    n->spec.rows = n->rows, n->spec.accumulate = n->accumulate;
    n->spec.segments = n->segments[0], n->spec.n_segments = 2;
    n->spec.n_table_rows = 1, n->spec.n_table_cols = 3;
    HL_TRY(hl_pass_training_step(graph, &n->spec, &n->loss, n->has_grad));
    HL_TRY(hl_graph_output(graph, n->loss));
    return hl_graph_output(graph, y);
}

/* ---- a run of one ---------------------------------------------------------------------------- */

static hl_dtype trainer_dtype;      /* of the products in plans made from now on */
static bool trainer_capture;        /* whether these capture, */
static bool trainer_overlap = true; /* and use a second stream, */
static bool trainer_benchmark, trainer_deterministic; /* and are autotuned, or have to repeat */
static bool trainer_fed;                              /* whether batches are gathered on the host */
static double trainer_recompute;                      /* share of what is kept for backward */
static int trainer_slots = 2;
static bool trainer_profiles; /* whether trainer_run_whole does so in the end */
static const char *trainer_isa = HL_CPU_TEXT(HL_ISA);

typedef struct trainer {
    hl_device *device;
    hl_session *session;
    hl_plan *plan;
    hl_feed *feed;
    net net;
    float data[DATA_ROWS * MAX_WIDTH];
    hl_source source; /* which gives the data's rows, slowly */
    hl_type row;
    uint64_t epoch; /* that its batches must be of */
} trainer;

static inline hl_status trainer_make_rows(void *context, const hl_batch *batch, void *const *fields)
{
    const trainer *t = context;
    int64_t width = t->net.width[0];
    /* Loaders are at work on the old epoch until a seek ends them. */
    if (!trainer_loaders) CHECK_INT(batch->epoch, t->epoch);
    CHECK(batch->is_training);
    for (int64_t i = 0; i < batch->rows[0] % 3 * 100; i++) hl_os_thread_yield();
    for (int64_t i = 0; i < batch->n; i++)
        memcpy((float *)fields[0] + i * width, t->data + batch->rows[i] * width,
               (size_t)width * sizeof *t->data);
    return HL_OK;
}

static inline void trainer_give_data(trainer *t)
{
    if (!trainer_streamed) {
        CHECK_OK(hl_plan_dataset(t->plan, 0, t->data, DATA_ROWS));
        return;
    }
    t->row = (hl_type){HL_DTYPE_F32, hl_shape_1d(t->net.width[0])};
    t->source = (hl_source){DATA_ROWS, 1, &t->row, trainer_make_rows, t};
    CHECK_OK(hl_plan_dataset_source(t->plan, 0, &t->source, 0));
}

static inline void trainer_fill(trainer *t)
{
    float values[4096];
    double rate[3] = {0.05, 0.04, 0.03};
    for (int64_t i = 0; i < DATA_ROWS * t->net.width[0]; i++)
        t->data[i] = (float)((i * 7 + i / 5) % 23) / 23 - 0.45f;
    for (int64_t i = 0; i < t->net.n_flat; i++) values[i] = (float)((i * 5) % 17) / 34 - 0.23f;
    CHECK_OK(hl_session_write(t->session, "param", 0, t->net.n_flat, HL_DTYPE_F32, values));
    CHECK_OK(hl_session_write(t->session, "table", 0, 3, HL_DTYPE_F64, rate));
    trainer_give_data(t);
}

static inline void trainer_open(trainer *t, const hl_backend *backend, int n_threads)
{
    hl_device_options options = {.n_threads = n_threads, .isa = trainer_isa};
    CHECK_OK(backend->device_open(backend, 0, &options, &t->device));
    CHECK_OK(hl_session_create(t->device, &t->session));
}

/* A plan of the network, fed with the data in a shuffled order. */
static inline void trainer_plan(trainer *t, net *n, int k, bool fuse, bool chain)
{
    hl_graph *graph;
    hl_plan_options options = {.n_slots = trainer_slots,
                               .k = k,
                               .fuse = fuse,
                               .chain = chain,
                               .compute_dtype = trainer_dtype};
    options.capture = trainer_capture;
    options.overlap = trainer_overlap;
    options.fed = trainer_fed;
    options.benchmark = trainer_benchmark;
    options.deterministic = trainer_deterministic;
    options.recompute = trainer_recompute;
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(net_build(graph, n));
    CHECK_OK(hl_plan_create(t->session, graph, &options, &t->plan));
    hl_feed_options feed = {.sampler = {.n = DATA_ROWS, .shuffle = true, .seed = 3},
                            .batch = n->rows,
                            .count = DATA_ROWS,
                            .is_training = true,
                            .n_threads = trainer_loaders,
                            .n_slots = trainer_slots};
    CHECK_OK(hl_feed_create(&feed, &t->feed));
    CHECK_OK(hl_plan_feed(t->plan, t->feed));
}

static inline void trainer_close(trainer *t)
{
    hl_plan_destroy(t->plan);
    hl_feed_destroy(t->feed);
    hl_session_destroy(t->session);
    t->device->ops->destroy(t->device);
}

/* All from the device on, over the trainer's network and data, and all given back, whatever call
 * fails on the way. */
static inline hl_status trainer_run_whole(trainer *t, const hl_backend *backend, bool fuse,
                                          int64_t rows)
{
    hl_device_options options = {0};
    hl_plan_options plan_options = {
        .n_slots = trainer_slots, .k = 1, .fuse = fuse, .capture = true, .overlap = true};
    plan_options.recompute = trainer_recompute;
    hl_feed_options feed_options = {
        .sampler = {.n = DATA_ROWS}, .batch = t->net.rows, .count = rows, .n_slots = trainer_slots};
    hl_device *device = NULL;
    hl_session *session = NULL;
    hl_plan *plan = NULL;
    hl_feed *feed = NULL;
    hl_graph *graph = NULL;
    hl_profile profile = {0};
    hl_run_end end;
    int64_t steps;
    float one = 1;
    hl_status status = HL_OK;
    HL_GOTO(backend->device_open(backend, 0, &options, &device));
    HL_GOTO(hl_session_create(device, &session));
    HL_GOTO(hl_graph_create(&graph));
    HL_GOTO(net_build(graph, &t->net));
    hl_graph *taken = graph;
    graph = NULL;
    HL_GOTO(hl_plan_create(session, taken, &plan_options, &plan));
    HL_GOTO(hl_feed_create(&feed_options, &feed));
    HL_GOTO(hl_plan_feed(plan, feed));
    HL_GOTO(hl_plan_dataset(plan, 0, t->data, DATA_ROWS));
    HL_GOTO(hl_plan_run(plan, 1000, 0, NULL, &end, &steps));
    CHECK_INT(end, HL_RUN_FEED_END);
    HL_GOTO(hl_session_read(session, "param", 0, 1, HL_DTYPE_F32, &one));
    if (trainer_profiles) HL_GOTO(hl_plan_profile(plan, &profile));
cleanup:
    hl_profile_deinit(&profile);
    hl_graph_destroy(graph);
    hl_plan_destroy(plan);
    hl_feed_destroy(feed);
    hl_session_destroy(session);
    if (device) device->ops->destroy(device);
    return status;
}

/* A plan of one node, which trains nothing: x (3) -> tanh(x). */
__attribute__((unused)) static hl_plan *make_tanh(hl_session *session)
{
    hl_graph *graph;
    hl_plan *plan;
    hl_id x;
    hl_plan_options options = {.n_slots = 1, .k = 1, .fuse = true, .chain = true};
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(hl_graph_input(graph, "x", (hl_type){HL_DTYPE_F32, hl_shape_1d(3)}, &x));
    CHECK_OK(hl_build_unary(graph, HL_OP_TANH, x, &x));
    CHECK_OK(hl_graph_output(graph, x));
    CHECK_OK(hl_plan_create(session, graph, &options, &plan));
    return plan;
}

#endif
