/* Convolutions by cuDNN on the emulated GPU: values of the three ops with what stands behind them,
 * which engine is taken and kept in the autotune cache, which never is, what tuning refuses, and
 * every call of the library made to fail. The plain convolution's values are compared with NumPy's
 * by tests/ops too. */
#include <math.h>
#include <unistd.h>

#include "ir/window.h"
#include "kernels/cuda/autotune_cache.h"
#include "kernels/cuda/cudnn.h"
#include "kernels/cuda/tune.h"
#include "tests/c/dice.h"
#include "tests/c/fusion_case.h"
#include "tests/cuda/dnn_library.h"
#include "tests/cuda/node_case.h"

#define F32  HL_DTYPE_F32
#define BF16 HL_DTYPE_BF16
#define F16  HL_DTYPE_F16

enum { CUDNN_NO_MEMORY = 4003, CUDNN_FAILED = 5000 };

static char cache_folder[128];

/* Nothing is kept on disk from here on. */
static void forget_cache(void)
{
    static int n;
    snprintf(cache_folder, sizeof cache_folder, "/tmp/hotloop-dnn-%d/%d", (int)getpid(), n++);
    setenv("HOTLOOP_CACHE_PATH", cache_folder, 1);
}

/* ---- nodes ----------------------------------------------------------------------------------- */

/* Sizes of x, of the kernel and so on, along each of n dims. */
typedef struct geometry {
    int n;
    int64_t N, C, O, groups;
    int64_t in[3], kernel[3], stride[3], dilation[3], before[3], after[3];
} geometry;

static const geometry geometries[] = {
    {2, 2, 6, 4, 2, {7, 6}, {3, 2}, {2, 1}, {1, 2}, {1, 0}, {1, 1}},
    {2, 2, 3, 5, 1, {5, 5}, {1, 1}, {1, 1}, {1, 1}, {0, 0}, {0, 0}},
    {2, 1, 4, 4, 4, {6, 6}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}},
    {1, 2, 3, 4, 1, {9}, {4}, {3}, {1}, {2}, {2}},
    {3, 1, 2, 3, 1, {4, 3, 5}, {2, 2, 3}, {1, 1, 2}, {1, 1, 1}, {0, 1, 1}, {1, 0, 1}},
    /* of many pixels */
    {2, 2, 3, 4, 1, {24, 25}, {3, 2}, {1, 1}, {1, 1}, {1, 1}, {1, 0}},
    {1, 5, 2, 4, 2, {230}, {3}, {1}, {1}, {1}, {1}},
    {3, 2, 2, 3, 1, {9, 8, 8}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}, {0, 0, 0}},
};
enum { N_GEOMETRIES = sizeof geometries / sizeof *geometries, N_LARGE = 3 };
static const geometry *const large = geometries + N_GEOMETRIES - N_LARGE;

typedef struct conv_case {
    const geometry *g;
    hl_op op;
    hl_dtype dtype;
    bool has_bias, tf32, float32_out;
    const char *fusion;
} conv_case;

static hl_shape make_shape(int64_t n, const int64_t *spatial, int n_spatial, int64_t c, bool last)
{
    hl_shape shape = {.rank = 0};
    shape.dim[shape.rank++] = n;
    if (!last) shape.dim[shape.rank++] = c;
    for (int d = 0; d < n_spatial; d++) shape.dim[shape.rank++] = spatial[d];
    if (last) shape.dim[shape.rank++] = c;
    return shape;
}

/* Is an operand of the fusion one number for each channel? */
static bool is_column(const conv_case *c, char name)
{
    char text[16];
    snprintf(text, sizeof text, "columns(%c)", name);
    return strstr(c->fusion, text) != NULL;
}

static hl_graph *make_graph(const conv_case *c)
{
    const geometry *g = c->g;
    hl_graph *graph;
    hl_id in[6], out;
    int n_in = 2;
    int64_t outs[3];
    for (int d = 0; d < g->n; d++)
        outs[d] =
            (g->in[d] + g->before[d] + g->after[d] - g->dilation[d] * (g->kernel[d] - 1) - 1) /
                g->stride[d] +
            1;
    hl_type x = {c->dtype, make_shape(g->N, g->in, g->n, g->C, true)},
            y = {c->dtype, make_shape(g->N, outs, g->n, g->O, true)},
            w = {c->dtype, make_shape(g->O, g->kernel, g->n, g->C / g->groups, false)};
    bool is_data = c->op == HL_OP_CONV_TRANSPOSE, is_weight = c->op == HL_OP_CONV_WEIGHT_GRAD;
    hl_attrs attrs = {.conv = {.stride = hl_ints_make(g->stride, g->n),
                               .dilation = hl_ints_make(g->dilation, g->n),
                               .before = hl_ints_make(g->before, g->n),
                               .after = hl_ints_make(g->after, g->n),
                               .groups = g->groups,
                               .channels_last = true,
                               .float32_out = c->float32_out,
                               .tf32 = c->tf32}};
    if (is_data) attrs.conv.size = hl_ints_make(g->in, g->n);
    if (is_weight) attrs.conv.size = hl_ints_make(g->kernel, g->n);
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(hl_graph_input(graph, "a", is_data || is_weight ? y : x, &in[0]));
    CHECK_OK(hl_graph_input(graph, "b", is_weight ? x : w, &in[1]));
    hl_type channels = {F32, hl_shape_1d(is_data ? g->C : g->O)}, whole = is_data     ? x
                                                                          : is_weight ? w
                                                                                      : y;
    if (c->has_bias) CHECK_OK(hl_graph_input(graph, "bias", channels, &in[n_in++]));
    for (const char *name = "yzw"; *name; name++)
        if (fusion_reads(c->fusion, *name))
            CHECK_OK(hl_graph_input(graph, "beside", is_column(c, *name) ? channels : whole,
                                    &in[n_in++]));
    if (*c->fusion)
        CHECK_OK(fusion_add(graph, c->op, in, n_in, &attrs, c->fusion, &out));
    else
        CHECK_OK(hl_graph_add(graph, c->op, in, n_in, &attrs, &out));
    return graph;
}

static void fill_case(node_case *c)
{
    for (int i = 0; i < c->n_in; i++) {
        hl_type type = node_type(c, i);
        for (int64_t e = 0; e < hl_shape_numel(&type.shape); e++)
            element_store(c->host[i], type.dtype, e, dice_draw());
    }
}

static void check_by_library(const node_case *c)
{
    CHECK(c->kernel && strstr(c->kernel->name, ".cudnn"));
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Coordinates of element i of a shape. */
static void locate(const hl_shape *shape, int64_t i, int64_t *at)
{
    for (int d = shape->rank - 1; d >= 0; d--) {
        at[d] = i % shape->dim[d];
        i /= shape->dim[d];
    }
}

static int64_t place(const hl_shape *shape, const int64_t *at)
{
    int64_t i = 0;
    for (int d = 0; d < shape->rank; d++) i = i * shape->dim[d] + at[d];
    return i;
}

/* All three results in doubles, by one pass over pairs of an output and an element of the weight:
 * each of them adds a term to y, x and w. Operands come from the node, results are zeros before. */
static void expect(const conv_case *c, const node_case *node, double *out)
{
    const geometry *g = c->g;
    bool is_data = c->op == HL_OP_CONV_TRANSPOSE, is_weight = c->op == HL_OP_CONV_WEIGHT_GRAD;
    hl_type a = node_type(node, 0), b = node_type(node, 1), r = node_type(node, node->n_in);
    const hl_shape *x = is_data     ? &r.shape
                        : is_weight ? &b.shape
                                    : &a.shape,
                   *w = is_weight ? &r.shape : &b.shape,
                   *y = c->op == HL_OP_CONV ? &r.shape : &a.shape;
    int64_t in = g->C / g->groups, n_out = g->O / g->groups;
    for (int64_t i = 0; i < hl_shape_numel(y); i++)
        for (int64_t j = 0; j < hl_shape_numel(w); j++) {
            int64_t at_y[HL_MAX_RANK], at_w[HL_MAX_RANK], at_x[HL_MAX_RANK];
            bool is_inside = true;
            locate(y, i, at_y), locate(w, j, at_w);
            if (at_y[g->n + 1] != at_w[0]) continue;
            at_x[0] = at_y[0], at_x[g->n + 1] = at_w[0] / n_out * in + at_w[1];
            for (int d = 0; d < g->n; d++) {
                at_x[d + 1] =
                    at_y[d + 1] * g->stride[d] - g->before[d] + at_w[d + 2] * g->dilation[d];
                is_inside &= at_x[d + 1] >= 0 && at_x[d + 1] < g->in[d];
            }
            if (!is_inside) continue;
            int64_t k = place(x, at_x), of_a = c->op == HL_OP_CONV ? k : i,
                    of_b = is_weight ? k : j,
                    of_r = is_data     ? k
                           : is_weight ? j
                                       : i;
            out[of_r] += element_load(node->host[0], a.dtype, of_a) *
                         element_load(node->host[1], b.dtype, of_b);
        }
}

/* What stands behind the convolution: a product first, then sums, then relu. */
static double finish(const conv_case *c, const node_case *node, int64_t i, double value)
{
    int beside = 2 + c->has_bias;
    hl_type r = node_type(node, node->n_in);
    int64_t channels = r.shape.dim[r.shape.rank - 1];
    if (c->has_bias) value += element_load(node->host[2], F32, i % channels);
    for (const char *name = "yzw"; *name && fusion_reads(c->fusion, *name); name++, beside++) {
        hl_dtype dtype = node_type(node, beside).dtype;
        double by = element_load(node->host[beside], dtype, is_column(c, *name) ? i % channels : i);
        value = *name == 'y' && strstr(c->fusion, "mul") ? value * by : value + by;
    }
    return strstr(c->fusion, "relu") && value < 0 ? 0 : value;
}

/* Outputs 1 and 2 are mean and variance of the channels of output 0. */
static void check_moments(const node_case *node)
{
    hl_type type = node_type(node, node->n_in);
    int64_t C = type.shape.dim[type.shape.rank - 1], R = hl_shape_numel(&type.shape) / C;
    double slack = type.dtype == F16 ? 1e-3 : type.dtype == BF16 ? 1e-2 : 1e-5;
    for (int64_t c = 0; c < C; c++) {
        double mean = 0, var = 0, got[2];
        for (int64_t r = 0; r < R; r++)
            mean += element_load(node->host[node->n_in], type.dtype, r * C + c) / (double)R;
        for (int64_t r = 0; r < R; r++) {
            double v = element_load(node->host[node->n_in], type.dtype, r * C + c) - mean;
            var += v * v / (double)R;
        }
        for (int j = 0; j < 2; j++) got[j] = element_load(node->host[node->n_in + 1 + j], F32, c);
        if (!(fabs(got[0] - mean) <= slack * sqrt(var)) || !(fabs(got[1] - var) <= slack * var))
            check_fail(__FILE__, __LINE__, "channel %d: got %g, %g, want %g, %g", (int)c, got[0],
                       got[1], mean, var);
    }
}

/* Sums, whose own kernel takes the emulated GPU longer than a copy of so little: tuned, they would
 * be refused. */
static bool gains_nothing(const conv_case *c)
{
    return strstr(c->fusion, "mean_rows") != NULL;
}

static void test_value(hl_device *device, const conv_case *c)
{
    node_case node;
    check_case("%s, %s, geometry %d, bias %d, tf32 %d, float32 %d: %s", hl_op_get(c->op)->name,
               hl_dtype_name(c->dtype), (int)(c->g - geometries), c->has_bias, c->tf32,
               c->float32_out, c->fusion);
    hl_graph *graph = make_graph(c);
    graph->benchmark = !gains_nothing(c);
    node_begin(&node, device, graph);
    fill_case(&node);
    CHECK_OK(node_run(&node));
    check_by_library(&node);
    hl_type result = node_type(&node, node.n_in);
    int64_t n = hl_shape_numel(&result.shape);
    double *want = calloc((size_t)n, sizeof *want);
    expect(c, &node, want);
    double slack = c->dtype == F16 ? 2e-3 : c->dtype == BF16 ? 1e-2 : c->tf32 ? 4e-3 : 1e-5;
    for (int64_t i = 0; i < n; i++) {
        double value = finish(c, &node, i, want[i]),
               got = element_load(node.host[node.n_in], result.dtype, i);
        if (!(fabs(got - value) <= slack * (1 + fabs(value))))
            check_fail(__FILE__, __LINE__, "element %d: got %g, want %g", (int)i, got, value);
    }
    if (node.n_args - node.n_in == 3) check_moments(&node);
    free(want);
    node_end(&node);
    hl_graph_destroy(graph);
}

static void test_values(void)
{
    static const hl_dtype dtypes[] = {F32, BF16, F16};
    static const hl_op ops[] = {HL_OP_CONV, HL_OP_CONV_TRANSPOSE, HL_OP_CONV_WEIGHT_GRAD};
    static const char *const fusions[] = {"",
                                          "relu(x)",
                                          "add(x, y)",
                                          "relu(add(x, y))",
                                          "add(x, columns(y))",
                                          "relu(add(add(x, columns(y)), z))",
                                          "mul(x, columns(y))",
                                          "add(mul(x, columns(y)), columns(z))",
                                          "relu(add(add(mul(x, columns(y)), columns(z)), w))"};
    enum { N_FUSIONS = sizeof fusions / sizeof *fusions };
    hl_device *device = dnn_device_open(NULL);
    for (int d = 0; d < 3; d++)
        for (int g = 0; g < N_GEOMETRIES; g++)
            for (int o = 0; o < 3; o++)
                test_value(device, &(conv_case){.g = &geometries[g],
                                                .op = ops[o],
                                                .dtype = dtypes[d],
                                                .fusion = ""});
    for (int f = 0; f < N_FUSIONS; f++)
        for (int o = 0; o < 2; o++)
            for (int bias = 0; bias < 2; bias++)
                test_value(device, &(conv_case){.g = &geometries[f % N_GEOMETRIES],
                                                .op = ops[o],
                                                .dtype = dtypes[(f + o) % 3],
                                                .has_bias = bias,
                                                .fusion = fusions[f]});
    for (int d = 0; d < 3; d++)
        for (int g = 0; g < N_LARGE; g++)
            for (int o = 0; o < 2; o++)
                test_value(device, &(conv_case){.g = &large[g],
                                                .op = ops[o],
                                                .dtype = dtypes[d],
                                                .has_bias = d == g,
                                                .fusion = "x, mean_rows(x), var_rows(x)"});
    for (int d = 1; d < 3; d++)
        for (int g = 0; g < 3; g++)
            test_value(device, &(conv_case){.g = &geometries[g],
                                            .op = HL_OP_CONV_WEIGHT_GRAD,
                                            .dtype = dtypes[d],
                                            .float32_out = true,
                                            .fusion = ""});
    test_value(
        device,
        &(conv_case){
            .g = &geometries[0], .op = HL_OP_CONV, .dtype = F32, .tf32 = true, .fusion = ""});
    dnn_device_close(device);
}

/* ---- which kernel ---------------------------------------------------------------------------- */

static const conv_case plain = {.g = &geometries[0], .op = HL_OP_CONV, .dtype = F32, .fusion = ""},
                       with_relu = {.g = &geometries[0],
                                    .op = HL_OP_CONV,
                                    .dtype = F32,
                                    .has_bias = true,
                                    .fusion = "relu(x)"},
                       relu_alone = {.g = &geometries[0],
                                     .op = HL_OP_CONV,
                                     .dtype = F32,
                                     .fusion = "relu(x)"},
                       with_sums = {.g = large,
                                    .op = HL_OP_CONV,
                                    .dtype = BF16,
                                    .fusion = "x, mean_rows(x), var_rows(x)"};

/* cuDNN's, if it is chosen. */
static const hl_kernel *find_kernel(hl_device *device, hl_graph *graph)
{
    hl_kernel_req req;
    const hl_kernel *kernel;
    CHECK_OK(hl_kernel_find_in_any_order(device, graph, 0, false, &kernel, &req));
    return kernel && strstr(kernel->name, ".cudnn") ? kernel : NULL;
}

static void check_kernel(const hl_fake_dnn_config *config, const conv_case *c, bool is_there)
{
    hl_device *device = dnn_device_open(config);
    hl_graph *graph = make_graph(c);
    CHECK((find_kernel(device, graph) != NULL) == is_there);
    hl_graph_destroy(graph);
    dnn_device_close(device);
}

/* A machine where the library is not even asked for sums. */
static void check_no_sums(const hl_fake_config *machine, const conv_case *c)
{
    dnn_reset(NULL);
    hl_device *device = fake_device_open(machine);
    hl_graph *graph = make_graph(c);
    CHECK(find_kernel(device, graph) == NULL);
    CHECK_INT(dnn_counts().searches, 0);
    hl_graph_destroy(graph);
    dnn_device_close(device);
}

/* What the library has not, and what is not asked for, is for another kernel. */
static void test_refusals(void)
{
    check_case("no library starts");
    check_kernel(&(hl_fake_dnn_config){.is_silent = true}, &plain, false);
    check_case("no pointwise steps");
    check_kernel(&(hl_fake_dnn_config){.has_no_steps = true}, &with_relu, false);
    check_kernel(&(hl_fake_dnn_config){.has_no_steps = true}, &plain, true);
    check_case("a sum of weight gradients, whose order is not the library's");
    conv_case summed = plain;
    summed.op = HL_OP_CONV_WEIGHT_GRAD, summed.fusion = "add(x, y)";
    check_kernel(NULL, &summed, false);
    check_case("no sums");
    check_kernel(&(hl_fake_dnn_config){.has_no_sums = true}, &with_sums, false);
    check_kernel(&(hl_fake_dnn_config){.has_no_steps = true}, &with_sums, true);
    check_case("no sums of few pixels");
    conv_case few = with_sums;
    few.g = &geometries[0];
    check_kernel(NULL, &few, false);
    static const hl_fake_config without[] = {
        {.memory_khz = 1000000}, {.memory_khz = -1}, {.arch = 75}};
    conv_case half = with_sums;
    half.dtype = F16;
    for (int i = 0; i < 3; i++) {
        check_case("no sums on GPU %d: its memory is fast, or who knows, or it is a Turing", i);
        check_no_sums(&without[i], &half);
    }
    check_case("no sums without NVRTC");
    setenv("HOTLOOP_NVRTC_PATH", "none", 1);
    check_no_sums(NULL, &half);
    setenv("HOTLOOP_NVRTC_PATH", FAKE_NVRTC, 1);
    check_case("float64");
    conv_case wide = plain;
    wide.dtype = HL_DTYPE_F64;
    check_kernel(NULL, &wide, false);
    check_case("channels that stand second");
    hl_kernel_req req;
    const hl_kernel *kernel;
    hl_device *device = dnn_device_open(NULL);
    hl_graph *graph;
    hl_id in[2], out;
    hl_attrs attrs = {.conv = {.groups = 1}};
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(hl_graph_input(graph, "x", (hl_type){F32, {4, {2, 3, 5, 6}}}, &in[0]));
    CHECK_OK(hl_graph_input(graph, "w", (hl_type){F32, {4, {4, 3, 2, 2}}}, &in[1]));
    CHECK_OK(hl_graph_add(graph, HL_OP_CONV, in, 2, &attrs, &out));
    CHECK_OK(hl_kernel_find_in_any_order(device, graph, 0, false, &kernel, &req));
    CHECK(kernel && req.order.n == 4 && req.order.at[1] == 2 && req.order.at[3] == 1);
    hl_graph_destroy(graph);
    dnn_device_close(device);
}

/* An image without a pixel is no convolution of the library's. */
static void test_empty(void)
{
    static const geometry none = {2, 0, 3, 4, 1, {5, 5}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}};
    conv_case empty = plain;
    check_case("no images");
    empty.g = &none;
    check_kernel(NULL, &empty, false);
}

/* A device that was told of a GPU has plans for it by that description, and no handle; where no
 * driver is, to which cuDNN is linked, it says so. */
static void test_described(void)
{
    hl_reason why_not = {""};
    check_case("a description");
    if (!dlopen("libcuda.so.1", RTLD_NOW)) {
        hl_device *device = dnn_device_open(NULL);
        CHECK_INT(hl_cudnn_describe(device, "{}", &why_not), HL_ERROR_CONFIG);
        CHECK(strstr(why_not.text, "got no libcuda.so.1") != NULL);
        dnn_device_close(device);
    }
    void *stub = dlopen(STUB_CUDA, RTLD_NOW | RTLD_GLOBAL);
    CHECK(stub != NULL);
    hl_device *device = dnn_device_open(&(hl_fake_dnn_config){.is_silent = true});
    hl_graph *graph = make_graph(&with_relu);
    CHECK_OK(hl_cudnn_describe(device, "{}", &why_not));
    const hl_kernel *kernel = find_kernel(device, graph);
    CHECK(kernel && strstr(kernel->name, ".cudnn"));
    CHECK_INT(dnn_counts().plans, 1);
    hl_graph_destroy(graph);
    dnn_device_close(device);
    dlclose(stub);
}

/* ---- which engine ---------------------------------------------------------------------------- */

/* Runs one convolution; returns the engine that its launches took. */
static int run_conv(hl_device *device, const conv_case *c, bool benchmark, bool deterministic)
{
    node_case node;
    hl_graph *graph = make_graph(c);
    graph->benchmark = benchmark, graph->deterministic = deterministic;
    node_begin(&node, device, graph);
    fill_case(&node);
    CHECK_OK(node_run(&node));
    check_by_library(&node);
    node_end(&node);
    hl_graph_destroy(graph);
    return dnn_counts().last_engine;
}

enum { LAUNCHES = 3 }; /* of one node that is not measured: while it is tuned, alone, captured */

static void test_engines(void)
{
    conv_case rounded = plain, reduced = plain;
    rounded.tf32 = true, reduced.dtype = BF16;
    forget_cache();
    hl_device *device = dnn_device_open(NULL);
    check_case("the heuristics' first that makes a plan");
    CHECK_INT(run_conv(device, &plain, false, false), 1);
    CHECK_INT(dnn_counts().runs, LAUNCHES);
    CHECK_INT(dnn_counts().plans, 1);
    check_case("the fastest, which may vary");
    CHECK_INT(run_conv(device, &plain, true, false), 6);
    check_case("the fastest that does not");
    CHECK_INT(run_conv(device, &plain, true, true), 3);
    check_case("the fastest, in TF32");
    CHECK_INT(run_conv(device, &rounded, true, true), 5);
    check_case("the fastest of 16 bits");
    CHECK_INT(run_conv(device, &reduced, true, true), 3);
    dnn_device_close(device);
}

/* Asked once of equal convolutions, and again of one that differs. */
static void test_asked_once(void)
{
    check_case("asked once");
    hl_device *device = dnn_device_open(NULL);
    for (int i = 0; i < 3; i++) (void)run_conv(device, &plain, true, true);
    CHECK_INT(dnn_counts().searches, 1);
    conv_case other = plain;
    other.g = &geometries[1];
    (void)run_conv(device, &other, true, true);
    CHECK_INT(dnn_counts().searches, 2);
    CHECK_INT(dnn_counts().problems, 2);
    dnn_device_close(device);
}

static void test_autotune_cache(void)
{
    check_case("autotuned");
    forget_cache();
    hl_device *device = dnn_device_open(NULL);
    CHECK_INT(run_conv(device, &plain, true, false), 6);
    int64_t measured = dnn_counts().runs;
    CHECK(measured > 20);
    CHECK_INT(run_conv(device, &plain, true, false), 6);
    CHECK_INT(dnn_counts().runs, measured + LAUNCHES);
    char *text;
    CHECK_OK(hl_cuda_autotune_print(device, &text));
    CHECK(strstr(text, "conv; ") && strstr(text, "cuDNN 92801; conv f32 f32"));
    dnn_device_close(device);

    check_case("cache from disk");
    device = dnn_device_open(NULL);
    CHECK_INT(run_conv(device, &plain, true, false), 6);
    CHECK_INT(dnn_counts().runs, LAUNCHES);
    dnn_device_close(device);

    check_case("cache from text");
    forget_cache();
    device = dnn_device_open(NULL);
    CHECK_OK(hl_cuda_autotune_read(device, text));
    CHECK_INT(run_conv(device, &plain, true, false), 6);
    CHECK_INT(dnn_counts().runs, LAUNCHES);
    dnn_device_close(device);
    hl_free(text);
}

/* Where they are faster than a plan without them and a read, they are taken; that plan needs its
 * own workspace to be timed. */
static void test_sums_are_measured(void)
{
    check_case("sums that gain something");
    forget_cache();
    hl_device *device = dnn_device_open(&(hl_fake_dnn_config){.step_ms = -1});
    run_conv(device, &with_sums, true, true);
    CHECK(dnn_counts().has_sums);
    dnn_device_close(device);
}

/* What was refused is known to the next process before the library is asked, which would compile.
 */
static void test_refusal_is_kept(void)
{
    check_case("a refusal from disk");
    forget_cache();
    for (int process = 0; process < 2; process++) {
        hl_device *device = dnn_device_open(&(hl_fake_dnn_config){.step_ms = 50});
        hl_graph *graph = make_graph(&with_sums);
        graph->benchmark = true;
        CHECK((find_kernel(device, graph) != NULL) == (process == 0));
        if (process == 1) CHECK_INT(dnn_counts().searches, 0);
        hl_graph_destroy(graph);
        if (process == 0) {
            node_case node;
            graph = make_graph(&with_sums);
            graph->benchmark = true;
            node_begin(&node, device, graph);
            fill_case(&node);
            CHECK_ERROR(node_run(&node), HL_ERROR_CONFIG, "it is slower than without");
            node_end(&node);
            hl_graph_destroy(graph);
        }
        dnn_device_close(device);
    }
}

/* Runs a node that no engine may compute; the message, and that it is refused from then on. */
static void check_refused(const hl_fake_dnn_config *config, const conv_case *c, bool deterministic,
                          const char *why)
{
    check_case("%s", why);
    node_case node;
    forget_cache();
    hl_device *device = dnn_device_open(config);
    hl_graph *graph = make_graph(c);
    graph->benchmark = true, graph->deterministic = deterministic;
    node_begin(&node, device, graph);
    fill_case(&node);
    int64_t before = device->n_refusals;
    CHECK_ERROR(node_run(&node), HL_ERROR_CONFIG, why);
    CHECK(device->n_refusals > before);
    CHECK(find_kernel(device, graph) == NULL);
    node_end(&node);
    hl_graph_destroy(graph);
    dnn_device_close(device);
}

static void test_refused(void)
{
    check_refused(&(hl_fake_dnn_config){.runs_nothing = true}, &plain, false, "no algorithm runs");
    check_refused(&(hl_fake_dnn_config){.drops_nan = true}, &with_relu, false,
                  "it makes a number of NaN");
    check_refused(&(hl_fake_dnn_config){.step_ms = 50}, &relu_alone, false,
                  "it is slower than without what is fused");
    check_refused(&(hl_fake_dnn_config){.step_ms = 50}, &with_sums, false,
                  "it is slower than without what is fused");
    check_refused(&(hl_fake_dnn_config){.step_ms = 50, .plain_bytes = 131}, &with_sums, false,
                  "it is slower than without what is fused");
    check_refused(&(hl_fake_dnn_config){.varying = 0x7FF}, &plain, true,
                  "no algorithm gives the same bits twice");
}

/* ---- failures -------------------------------------------------------------------------------- */

/* Chooses the kernel, prepares, tunes, runs; any status. The k-th allocation fails, 0: none. */
static hl_status try_conv(hl_device *device, const conv_case *c, bool benchmark, int64_t k,
                          bool *out_reached)
{
    node_case node;
    hl_graph *graph = make_graph(c);
    graph->benchmark = benchmark, graph->deterministic = true;
    node_begin(&node, device, graph);
    hl_alloc_fault(k, false);
    hl_status status = node_run(&node);
    bool reached = hl_alloc_fault(0, false) >= k;
    if (out_reached) *out_reached = reached;
    node_end(&node);
    hl_graph_destroy(graph);
    return status;
}

/* Every call where nothing is measured, and of the many more where something is one in MEASURED. A
 * convolution that fails for good is refused; but for that the next one runs. */
enum { MEASURED = 29 };
static void test_failures(int error, const conv_case *c)
{
    for (int variant = 0; variant < (gains_nothing(c) ? 2 : 4); variant++) {
        bool sticky = variant & 1, benchmark = variant >> 1;
        int stride = benchmark ? MEASURED : 1;
        for (int64_t k = 1 + variant % stride;; k += stride) {
            check_case("call %d fails with %d, sticky %d, benchmark %d", (int)k, error, sticky,
                       benchmark);
            hl_device *device = dnn_device_open(NULL);
            dnn_fail(k, sticky, error);
            hl_status status = try_conv(device, c, benchmark, 0, NULL);
            bool reached = dnn_counts().calls >= k;
            if (status == HL_ERROR_MEMORY) CHECK(strstr(hl_status_message(), "cuDNN") != NULL);
            CHECK(status != HL_ERROR_INTERNAL);
            dnn_fail(0, false, 0);
            hl_graph *graph = make_graph(c);
            graph->benchmark = benchmark, graph->deterministic = true;
            if (error == CUDNN_NO_MEMORY || find_kernel(device, graph))
                CHECK_OK(try_conv(device, c, benchmark, 0, NULL));
            hl_graph_destroy(graph);
            dnn_device_close(device);
            if (!reached) break;
        }
    }
}

static void test_allocations(const conv_case *c)
{
    for (int64_t k = 1;; k++) {
        check_case("allocation %d fails: %s", (int)k, c->fusion);
        hl_device *device = dnn_device_open(NULL);
        bool reached;
        hl_status status = try_conv(device, c, !gains_nothing(c), k, &reached);
        if (status != HL_OK) CHECK_INT(status, HL_ERROR_MEMORY);
        CHECK_OK(try_conv(device, c, !gains_nothing(c), 0, NULL));
        dnn_device_close(device);
        if (!reached) break;
    }
}

/* Every call of the driver's: an error and not another kernel, nothing held, and the next
 * convolution runs. */
static void test_driver_failures(void)
{
    for (int64_t k = 1;; k += 5) {
        check_case("call %d of the driver fails", (int)k);
        hl_device *device = dnn_device_open(NULL);
        node_case node;
        hl_graph *graph = make_graph(&with_relu);
        graph->benchmark = true;
        node_begin(&node, device, graph);
        hl_fake_fail(k, false, CUDA_ERROR_UNKNOWN);
        hl_status status = node_run(&node);
        int64_t n_seen = hl_fake_fail(0, false, 0);
        hl_fake_message_clear();
        if (n_seen < k) CHECK_OK(status);
        node_end(&node);
        hl_graph_destroy(graph);
        CHECK_OK(try_conv(device, &with_relu, true, 0, NULL));
        dnn_device_close(device);
        if (n_seen < k) break;
    }
}

int main(void)
{
    dnn_library_find();
    setenv("HOTLOOP_NVRTC_PATH", FAKE_NVRTC, 1);
    forget_cache();
    test_values();
    test_refusals();
    test_empty();
    test_described();
    test_engines();
    test_asked_once();
    test_autotune_cache();
    test_sums_are_measured();
    test_refusal_is_kept();
    test_refused();
    setenv("HOTLOOP_CACHE_PATH", "", 1); /* a device knows what it has measured itself */
    test_failures(CUDNN_NO_MEMORY, &with_relu);
    test_failures(CUDNN_FAILED, &with_relu);
    test_failures(CUDNN_FAILED, &with_sums);
    test_allocations(&with_relu);
    test_allocations(&with_sums);
    test_driver_failures();
    char command[192];
    snprintf(command, sizeof command, "rm -rf /tmp/hotloop-dnn-%d", (int)getpid());
    CHECK(system(command) == 0);
    return CHECK_DONE();
}
