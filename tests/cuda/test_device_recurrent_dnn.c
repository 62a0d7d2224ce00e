/* Recurrent layers by the fake cuDNN on the emulated GPU, without a gradient: values against the
 * reference in every type, which nodes it takes, what planning says where its algorithms want too
 * much, and every call of the library, and every allocation, made to fail. Gradients, which read
 * what a forward kernel saved, are trained by tests/train/test_gpu_recurrent.py. */
#include <math.h>
#include <unistd.h>

#include "ir/convert.h"
#include "ir/recurrence.h"
#include "ops/build.h"
#include "tests/c/dice.h"
#include "tests/c/eval.h"
#include "tests/cuda/dnn_library.h"
#include "tests/cuda/node_case.h"

enum { N = 3, T = 5, I = 4, H = 6, P = 2, MAX_IN = 9, MAX_NUMBERS = 256 };
enum { CUDNN_NO_MEMORY = 4003, CUDNN_FAILED = 5000 };

typedef struct layer_case {
    hl_cell cell;
    hl_dtype dtype;
    bool has_bias, has_state_bias, has_projection, reverse;
    int64_t steps;  /* 0: T */
    bool asks_step; /* lengths are an input */
} layer_case;

static double numbers[MAX_IN][MAX_NUMBERS]; /* by operand */

static void forget_cache(void)
{
    static int n;
    char folder[128];
    snprintf(folder, sizeof folder, "/tmp/hotloop-recurrent-%d/%d", (int)getpid(), n++);
    setenv("HOTLOOP_CACHE_PATH", folder, 1);
}

/* The layer as the graph's last node, of this type. */
static hl_graph *make_graph(const layer_case *c, hl_dtype dtype)
{
    int64_t steps = c->steps ? c->steps : T, gates = hl_cell_gates(c->cell) * H,
            width = c->has_projection ? P : H;
    hl_type types[MAX_IN] = {{dtype, {3, {N, steps, I}}},
                             {dtype, {2, {gates, I}}},
                             {dtype, {2, {gates, width}}},
                             {dtype, {2, {N, width}}},
                             {HL_DTYPE_I32, {1, {N}}}};
    hl_attrs attrs = {.recurrent = {.cell = c->cell,
                                    .reverse = c->reverse,
                                    .has_bias = c->has_bias,
                                    .has_state_bias = c->has_state_bias,
                                    .has_projection = c->has_projection}};
    int n = HL_RECURRENT_INPUTS;
    hl_graph *graph;
    hl_id in[MAX_IN], out;
    if (c->cell == HL_CELL_LSTM) types[n++] = (hl_type){dtype, {2, {N, H}}};
    if (c->has_bias) types[n++] = (hl_type){dtype, {1, {gates}}};
    if (c->has_state_bias) types[n++] = (hl_type){dtype, {1, {gates}}};
    if (c->has_projection) types[n++] = (hl_type){dtype, {2, {P, H}}};
    CHECK_OK(hl_graph_create(&graph));
    for (int i = 0; i < n; i++) {
        if (i == HL_RECURRENT_LENGTHS && !c->asks_step)
            CHECK_OK(hl_build_full(graph, &types[i], (double)steps, &in[i]));
        else
            CHECK_OK(hl_graph_input(graph, "x", types[i], &in[i]));
    }
    CHECK_OK(hl_graph_add(graph, HL_OP_RECURRENT_LAYER, in, n, &attrs, &out));
    return graph;
}

/* Chooses the kernel, prepares, tunes, runs, captured too; any status. The k-th allocation fails,
 * 0: none. */
static hl_status try_layer(hl_device *device, const layer_case *c, bool benchmark, int64_t k,
                           bool *out_reached, node_case *out_node)
{
    node_case node;
    hl_graph *graph = make_graph(c, c->dtype);
    graph->benchmark = benchmark;
    node_begin(&node, device, graph);
    for (int v = 0; v < node.n_in; v++)
        if (v != HL_RECURRENT_LENGTHS)
            hl_convert(c->dtype, node.host[v], HL_DTYPE_F64, numbers[v],
                       hl_shape_numel(&graph->values[graph->nodes[node.node].in[v]].type.shape));
    hl_alloc_fault(k, false);
    hl_status status = node_run(&node);
    bool reached = hl_alloc_fault(0, false) >= k;
    if (out_reached) *out_reached = reached;
    if (out_node)
        *out_node = node;
    else
        node_end(&node);
    if (!out_node) hl_graph_destroy(graph);
    return status;
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Roundings of a type, relative. */
static double unit_of(hl_dtype dtype)
{
    return dtype == HL_DTYPE_F32 ? 0x1p-24 : dtype == HL_DTYPE_F16 ? 0x1p-11 : 0x1p-8;
}

/* Each of T steps sums products of I and H factors below 1 with weights below 1. */
static void compare(const layer_case *c, const node_case *node)
{
    hl_graph *graph = make_graph(c, HL_DTYPE_F64);
    evaluation e;
    void *inputs[MAX_IN];
    int n = 0;
    for (int i = 0; i < node->n_in; i++)
        if (i != HL_RECURRENT_LENGTHS) inputs[n++] = numbers[i];
    for (int i = 0; i < node->n_in; i++) { /* as the device has them */
        if (i == HL_RECURRENT_LENGTHS) continue;
        hl_convert(
            HL_DTYPE_F64, numbers[i], c->dtype, node->host[i],
            hl_shape_numel(&graph->values[graph->nodes[graph->n_nodes - 1].in[i]].type.shape));
    }
    CHECK_OK(eval_begin(&e, graph, inputs));
    const hl_node *layer = &graph->nodes[graph->n_nodes - 1];
    double allowed = T * (I + H + 8) * (1 + H) * unit_of(c->dtype);
    for (int j = 0; j < (c->cell == HL_CELL_LSTM ? 3 : 2); j++) {
        const double *want = e.data[layer->out + j];
        for (int64_t i = 0; i < hl_shape_numel(hl_graph_shape(graph, layer->out + j)); i++) {
            double got;
            size_t size = hl_dtype_bytes(c->dtype);
            hl_convert(HL_DTYPE_F64, &got, c->dtype,
                       (char *)node->host[node->n_in + j] + (size_t)i * size, 1);
            if (!(fabs(got - want[i]) <= allowed))
                check_fail(__FILE__, __LINE__, "output %d, element %d: %g, the reference has %g", j,
                           (int)i, got, want[i]);
        }
    }
    eval_end(&e);
    hl_graph_destroy(graph);
}

static const layer_case some[] = {
    {.cell = HL_CELL_TANH, .has_bias = true},
    {.cell = HL_CELL_RELU},
    {.cell = HL_CELL_LSTM},
    {.cell = HL_CELL_LSTM, .has_bias = true},
    {.cell = HL_CELL_LSTM, .has_bias = true, .has_projection = true},
    {.cell = HL_CELL_GRU},
    {.cell = HL_CELL_GRU, .has_state_bias = true},
    {.cell = HL_CELL_GRU, .has_bias = true, .has_state_bias = true},
};
enum { N_SOME = sizeof some / sizeof *some };

/* Every algorithm in turn is the fastest, where weights lie elsewhere for each. */
static void test_values(void)
{
    static const hl_dtype dtypes[] = {HL_DTYPE_F32, HL_DTYPE_BF16, HL_DTYPE_F16};
    for (int algo = 0; algo < HL_FAKE_DNN_ALGOS; algo++) {
        hl_fake_dnn_config config = {.rnn_ms = {9, 9, 9, 9}};
        config.rnn_ms[algo] = 0.01;
        forget_cache();
        hl_device *device = dnn_device_open(&config);
        for (int i = 0; i < N_SOME * 3; i++) {
            layer_case c = some[i % N_SOME];
            node_case node;
            c.dtype = dtypes[i / N_SOME];
            check_case("algorithm %d, layer %d, %s", algo, i % N_SOME, hl_dtype_name(c.dtype));
            CHECK_OK(try_layer(device, &c, true, 0, NULL, &node));
            compare(&c, &node);
            node_end(&node);
            hl_graph_destroy(node.graph);
        }
        int small = 3;
        CHECK((dnn_counts().forwards[algo] > 60) == (algo != small)); /* which is not captured */
        dnn_device_close(device);
    }
}

/* ---- which ----------------------------------------------------------------------------------- */

static bool is_taken(hl_device *device, const layer_case *c)
{
    hl_graph *graph = make_graph(c, c->dtype);
    const hl_kernel *kernel = NULL;
    hl_kernel_req req;
    CHECK_OK(hl_kernel_find(device, graph, (hl_node_id)graph->n_nodes - 1, false, &kernel, &req));
    hl_graph_destroy(graph);
    return kernel != NULL;
}

static void test_which(void)
{
    hl_device *device = dnn_device_open(NULL);
    layer_case usual = {.cell = HL_CELL_LSTM, .dtype = HL_DTYPE_F32, .has_bias = true}, c = usual;
    check_case("which layers are cuDNN's");
    CHECK(is_taken(device, &usual));
    c.reverse = true;
    CHECK(!is_taken(device, &c));
    c = usual, c.steps = 3;
    CHECK(!is_taken(device, &c));
    c.steps = 4;
    CHECK(is_taken(device, &c));
    c = usual, c.asks_step = true;
    CHECK(!is_taken(device, &c));
    c = usual, c.dtype = HL_DTYPE_F64;
    CHECK(!is_taken(device, &c));
    dnn_device_close(device);
    device = dnn_device_open(&(hl_fake_dnn_config){.rnn_lacks = 15});
    CHECK(!is_taken(device, &usual));
    dnn_device_close(device);
    /* Workspace up to what the products of all steps take, or 64 MiB. */
    device = dnn_device_open(&(hl_fake_dnn_config){.rnn_work_bytes = 65 << 20, .rnn_lacks = 2});
    CHECK(!is_taken(device, &usual));
    dnn_device_close(device);
}

/* ---- failures -------------------------------------------------------------------------------- */

/* Every call where nothing is measured, and of the many more where something is one in MEASURED. A
 * layer that fails for good is refused; but for that the next one runs. */
enum { MEASURED = 29 };
static void test_failures(int error)
{
    const layer_case *c = &some[4];
    for (int variant = 0; variant < 4; variant++) {
        bool sticky = variant & 1, benchmark = variant >> 1;
        int stride = benchmark ? MEASURED : 1;
        for (int64_t k = 1 + variant % stride;; k += stride) {
            check_case("call %d fails with %d, sticky %d, benchmark %d", (int)k, error, sticky,
                       benchmark);
            forget_cache();
            hl_device *device = dnn_device_open(NULL);
            layer_case layer = *c;
            layer.dtype = HL_DTYPE_F32;
            dnn_fail(k, sticky, error);
            hl_status status = try_layer(device, &layer, benchmark, 0, NULL, NULL);
            bool reached = dnn_counts().calls >= k;
            if (status == HL_ERROR_MEMORY) CHECK(strstr(hl_status_message(), "cuDNN") != NULL);
            CHECK(status != HL_ERROR_INTERNAL);
            dnn_fail(0, false, 0);
            if (error == CUDNN_NO_MEMORY || is_taken(device, &layer))
                CHECK_OK(try_layer(device, &layer, benchmark, 0, NULL, NULL));
            dnn_device_close(device);
            if (!reached) break;
        }
    }
}

static void test_allocations(void)
{
    for (int64_t k = 1;; k++) {
        check_case("allocation %d fails", (int)k);
        forget_cache();
        hl_device *device = dnn_device_open(NULL);
        layer_case layer = some[7];
        bool reached;
        layer.dtype = HL_DTYPE_F32;
        hl_status status = try_layer(device, &layer, true, k, &reached, NULL);
        if (status != HL_OK) CHECK_INT(status, HL_ERROR_MEMORY);
        CHECK_OK(try_layer(device, &layer, true, 0, NULL, NULL));
        dnn_device_close(device);
        if (!reached) break;
    }
}

int main(void)
{
    for (int i = 0; i < MAX_IN * MAX_NUMBERS; i++)
        numbers[i / MAX_NUMBERS][i % MAX_NUMBERS] = dice_draw();
    dnn_library_find();
    test_values();
    test_which();
    test_failures(CUDNN_NO_MEMORY);
    test_failures(CUDNN_FAILED);
    test_allocations();
    return CHECK_DONE();
}
