/* Products by cuBLASLt on the emulated GPU: their epilogues, which algorithm is taken and kept in
 * the autotune cache, what is said of alignment, and every call of the library made to fail. */
#include <math.h>
#include <unistd.h>

#include "kernels/cuda/autotune_cache.h"
#include "kernels/cuda/lt_product.h"
#include "kernels/cuda/matmul.h"
#include "tests/c/dice.h"
#include "tests/c/fusion_case.h"
#include "tests/cuda/lt_library.h"
#include "tests/cuda/node_case.h"

static char cache_folder[128];

/* Nothing is kept on disk from here on. */
static void forget_cache(void)
{
    static int n;
    snprintf(cache_folder, sizeof cache_folder, "/tmp/hotloop-lt-%d/%d", (int)getpid(), n++);
    setenv("HOTLOOP_CACHE_PATH", cache_folder, 1);
}

/* ---- epilogues
 * ------------------------------------------------------------------------------------ */

enum { M = 8, N = 136, K = 16 };

static const char GELU[] = "gelu(x)";
static const char GELU_BOTH[] = "gelu(x), x";
static const char GELU_GRAD[] = "gelu_grad(x, y)";
static const char GELU_GRAD_SUM[] = "gelu_grad(x, y), sum_rows(gelu_grad(x, y))";
static const char MASKED[] = "where(y, x, 0)";
static const char MASKED_SUM[] = "where(y, x, 0), sum_rows(where(y, x, 0))";
static const char RELU[] = "relu(x)";
static const char RELU_MASK[] = "relu(x), gt(x, 0)";
static const char SUM_A[] = "a: x, sum_rows(x)";
static const char SUM_B[] = "b: x, sum_rows(x)";

/* a (M,K) and b (K,N), as trans says; third: bias, mask, gelu's operand, or none. */
static hl_graph *make_graph(hl_dtype dtype, bool float32_out, const char *fusion, int trans,
                            const hl_type *third)
{
    hl_graph *graph;
    hl_id in[3], out;
    hl_attrs attrs = {
        .matmul = {.trans_a = trans & 1, .trans_b = trans >> 1, .float32_out = float32_out}};
    hl_type a = {dtype, trans & 1 ? hl_shape_2d(K, M) : hl_shape_2d(M, K)};
    hl_type b = {dtype, trans >> 1 ? hl_shape_2d(N, K) : hl_shape_2d(K, N)};
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(hl_graph_input(graph, "a", a, &in[0]));
    CHECK_OK(hl_graph_input(graph, "b", b, &in[1]));
    if (third) CHECK_OK(hl_graph_input(graph, "third", *third, &in[2]));
    if (third && third->dtype == HL_DTYPE_BOOL) {
        graph->values[in[2]].form = HL_CUDA_FORM_RELU_BITS;
        graph->values[in[2]].form_bytes = M * 32;
    }
    CHECK_OK(fusion_add(graph, HL_OP_MATMUL, in, third ? 3 : 2, &attrs, fusion, &out));
    return graph;
}

static void fill_case(node_case *c)
{
    for (int i = 0; i < 3 && i < c->graph->nodes[c->node].n_in; i++) {
        hl_type type = node_type(c, i);
        if (type.dtype == HL_DTYPE_BOOL) continue;
        for (int64_t e = 0; e < hl_shape_numel(&type.shape); e++)
            element_store(c->host[i], type.dtype, e, dice_draw());
    }
}

/* The product's element before its epilogue, and what rounding may do to it. */
static double expect(const node_case *c, int trans, bool has_bias, int64_t row, int64_t col)
{
    hl_dtype dtype = node_type(c, 0).dtype;
    double sum = has_bias ? element_load(c->host[2], node_type(c, 2).dtype, col) : 0;
    for (int64_t k = 0; k < K; k++)
        sum += element_load(c->host[0], dtype, trans & 1 ? k * M + row : row * K + k) *
               element_load(c->host[1], dtype, trans >> 1 ? col * K + k : k * N + col);
    return sum;
}

static void check_value(double got, double want, hl_dtype dtype)
{
    double slack = dtype == HL_DTYPE_F32 ? 1e-5 : dtype == HL_DTYPE_F16 ? 1e-2 : 5e-2;
    if (!(fabs(got - want) <= slack * (1 + fabs(want))))
        check_fail(__FILE__, __LINE__, "got %g, want %g", got, want);
}

static void check_by_library(const node_case *c)
{
    CHECK(c->kernel && strstr(c->kernel->name, "cublaslt"));
}

/* relu with a mask, and a product that reads it. */
static void test_masks(hl_device *device, hl_dtype dtype, bool has_bias, int trans)
{
    check_case("mask: %s, bias %d, trans %d", hl_dtype_name(dtype), has_bias, trans);
    node_case c, back;
    hl_type bias = {dtype, hl_shape_1d(N)}, mask = {HL_DTYPE_BOOL, hl_shape_2d(M, N)};
    hl_graph *graph = make_graph(dtype, false, RELU_MASK, trans, has_bias ? &bias : NULL);
    hl_graph *graph_back = make_graph(dtype, false, MASKED, trans, &mask);
    node_begin(&c, device, graph);
    node_begin(&back, device, graph_back);
    fill_case(&c), fill_case(&back);
    int out = c.n_in;
    CHECK_OK(node_run(&c));
    check_by_library(&c);
    hl_type made = node_type(&c, out + 1);
    CHECK(hl_type_equal(&made, &mask));
    memcpy(back.host[2], c.host[out + 1], c.bytes[out + 1]);
    CHECK_OK(node_run(&back));
    check_by_library(&back);
    for (int64_t i = 0; i < M * N; i++) {
        double want = expect(&c, trans, has_bias, i / N, i % N);
        double got = element_load(c.host[out], dtype, i);
        check_value(got, want > 0 ? want : 0, dtype);
        double passed = got > 0 ? expect(&back, trans, false, i / N, i % N) : 0;
        check_value(element_load(back.host[3], dtype, i), passed, dtype);
    }
    node_end(&c), node_end(&back);
    hl_graph_destroy(graph);
    hl_graph_destroy(graph_back);
}

static void test_sums(hl_device *device, hl_dtype dtype, const char *fusion, int trans)
{
    check_case("sums: %s, %s, trans %d", hl_dtype_name(dtype), fusion, trans);
    node_case c;
    hl_graph *graph = make_graph(dtype, true, fusion, trans, NULL);
    node_begin(&c, device, graph);
    fill_case(&c);
    CHECK_OK(node_run(&c));
    check_by_library(&c);
    for (int64_t i = 0; i < M * N; i++)
        check_value(((float *)c.host[2])[i], expect(&c, trans, false, i / N, i % N), HL_DTYPE_F32);
    bool of_a = fusion == SUM_A;
    for (int64_t i = 0; i < (of_a ? M : N); i++) {
        double want = 0;
        for (int64_t k = 0; k < K; k++)
            want += of_a ? element_load(c.host[0], dtype, trans & 1 ? k * M + i : i * K + k)
                         : element_load(c.host[1], dtype, trans >> 1 ? i * K + k : k * N + i);
        check_value(((float *)c.host[3])[i], want, HL_DTYPE_F32);
    }
    node_end(&c);
    hl_graph_destroy(graph);
}

static void test_relu(hl_device *device, hl_dtype dtype, bool has_bias, bool by_library)
{
    check_case("relu: %s, bias %d", hl_dtype_name(dtype), has_bias);
    node_case c;
    hl_type bias = {dtype, hl_shape_1d(N)};
    hl_graph *graph = make_graph(dtype, false, RELU, 0, has_bias ? &bias : NULL);
    node_begin(&c, device, graph);
    fill_case(&c);
    CHECK_OK(node_run(&c));
    CHECK(c.kernel && !strstr(c.kernel->name, "cublaslt") == !by_library);
    for (int64_t i = 0; i < M * N; i++) {
        double want = expect(&c, 0, has_bias, i / N, i % N);
        check_value(element_load(c.host[c.n_in], dtype, i), want > 0 ? want : 0, dtype);
    }
    node_end(&c);
    hl_graph_destroy(graph);
}

static double gelu(double x)
{
    return x / 2 * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * pow(x, 3))));
}

/* By central differences, so that no formula is shared with who is tested. */
static double gelu_slope(double x)
{
    return (gelu(x + 1e-5) - gelu(x - 1e-5)) / 2e-5;
}

/* gelu, alone and with its operand kept. */
static void test_gelu(hl_device *device, hl_dtype dtype, const char *fusion, bool has_bias,
                      int trans)
{
    check_case("gelu: %s, %s, bias %d, trans %d", hl_dtype_name(dtype), fusion, has_bias, trans);
    node_case c;
    hl_type bias = {dtype, hl_shape_1d(N)};
    hl_graph *graph = make_graph(dtype, false, fusion, trans, has_bias ? &bias : NULL);
    node_begin(&c, device, graph);
    fill_case(&c);
    CHECK_OK(node_run(&c));
    check_by_library(&c);
    int out = c.n_in;
    CHECK_INT(c.n_args, out + 1 + (fusion == GELU_BOTH));
    for (int64_t i = 0; i < M * N; i++) {
        double x = expect(&c, trans, has_bias, i / N, i % N);
        check_value(element_load(c.host[out], dtype, i), gelu(x), dtype);
        if (fusion == GELU_BOTH) check_value(element_load(c.host[out + 1], dtype, i), x, dtype);
    }
    node_end(&c);
    hl_graph_destroy(graph);
}

/* Its gradient times a product; has_sums: and the sums over the result's rows. */
static void test_gelu_grad(hl_device *device, hl_dtype dtype, bool float32_out, bool has_sums,
                           int trans)
{
    check_case("gelu's gradient: %s, float32_out %d, sums %d, trans %d", hl_dtype_name(dtype),
               float32_out, has_sums, trans);
    node_case c;
    hl_dtype result = float32_out ? HL_DTYPE_F32 : dtype;
    hl_type operand = {result, hl_shape_2d(M, N)};
    const char *fusion = has_sums ? GELU_GRAD_SUM : GELU_GRAD;
    hl_graph *graph = make_graph(dtype, float32_out, fusion, trans, &operand);
    node_begin(&c, device, graph);
    fill_case(&c);
    CHECK_OK(node_run(&c));
    check_by_library(&c);
    double sums[N] = {0};
    for (int64_t i = 0; i < M * N; i++) {
        double want = expect(&c, trans, false, i / N, i % N);
        want *= gelu_slope(element_load(c.host[2], result, i));
        check_value(element_load(c.host[3], result, i), want, result);
        sums[i % N] += want;
    }
    for (int64_t n = 0; n < N && has_sums; n++)
        check_value(((float *)c.host[4])[n], sums[n], HL_DTYPE_F32);
    node_end(&c);
    hl_graph_destroy(graph);
}

/* A masked product with the sums over its rows. */
static void test_masked_sums(hl_device *device)
{
    check_case("masked sums");
    node_case c, back;
    hl_type mask = {HL_DTYPE_BOOL, hl_shape_2d(M, N)};
    hl_graph *graph = make_graph(HL_DTYPE_F32, false, RELU_MASK, 0, NULL);
    hl_graph *graph_back = make_graph(HL_DTYPE_F32, false, MASKED_SUM, 2, &mask);
    node_begin(&c, device, graph);
    node_begin(&back, device, graph_back);
    fill_case(&c), fill_case(&back);
    CHECK_OK(node_run(&c));
    memcpy(back.host[2], c.host[3], c.bytes[3]);
    CHECK_OK(node_run(&back));
    check_by_library(&back);
    for (int64_t n = 0; n < N; n++) {
        double want = 0;
        for (int64_t m = 0; m < M; m++)
            if (((float *)c.host[2])[m * N + n] > 0) want += expect(&back, 2, false, m, n);
        check_value(((float *)back.host[4])[n], want, HL_DTYPE_F32);
    }
    node_end(&c), node_end(&back);
    hl_graph_destroy(graph);
    hl_graph_destroy(graph_back);
}

static void test_gelus(void)
{
    static const hl_dtype dtypes[] = {HL_DTYPE_F32, HL_DTYPE_BF16, HL_DTYPE_F16};
    hl_device *device = lt_device_open(NULL);
    for (int d = 0; d < 3; d++)
        for (int trans = 0; trans < 4; trans++) {
            for (int bias = 0; bias < 2; bias++) {
                test_gelu(device, dtypes[d], GELU, bias, trans);
                test_gelu(device, dtypes[d], GELU_BOTH, bias, trans);
            }
            test_gelu_grad(device, dtypes[d], false, false, trans);
            test_gelu_grad(device, dtypes[d], true, true, trans);
        }
    test_masked_sums(device);
    lt_device_close(device);
}

static void test_ends(void)
{
    static const hl_dtype dtypes[] = {HL_DTYPE_F32, HL_DTYPE_BF16, HL_DTYPE_F16};
    hl_device *device = lt_device_open(NULL);
    for (int d = 0; d < 3; d++) {
        for (int trans = 0; trans < 4; trans++) {
            test_masks(device, dtypes[d], trans & 1, trans);
            if (trans & 1) test_sums(device, dtypes[d], SUM_A, trans);
            if (!(trans >> 1)) test_sums(device, dtypes[d], SUM_B, trans);
        }
        for (int bias = 0; bias < 2; bias++) test_relu(device, dtypes[d], bias, true);
    }
    lt_device_close(device);
}

/* The kernel of the only node; NULL: none. */
static const hl_kernel *find_kernel(hl_device *device, hl_graph *graph)
{
    hl_kernel_req req;
    const hl_kernel *kernel;
    CHECK_OK(hl_kernel_find(device, graph, 0, false, &kernel, &req));
    return kernel;
}

/* gelu by no kernel but the library's, and by that under its conditions. */
static void test_gelu_refusals(void)
{
    static const char *const fusions[] = {GELU, GELU_BOTH, GELU_GRAD, GELU_GRAD_SUM};
    static const int epilogues[] = {32, 160, 192, 208};
    hl_type operand = {HL_DTYPE_F32, hl_shape_2d(M, N)},
            reduced = {HL_DTYPE_BF16, hl_shape_2d(M, N)};
    for (int i = 0; i < 4; i++)
        for (int refuse = 0; refuse < 2; refuse++) {
            check_case("epilogue %d, refused %d", epilogues[i], refuse);
            hl_device *device =
                lt_device_open(&(hl_fake_lt_config){.refused = {refuse ? epilogues[i] : 0}});
            hl_graph *graph =
                make_graph(HL_DTYPE_F32, false, fusions[i], 0, i < 2 ? NULL : &operand);
            const hl_kernel *kernel = find_kernel(device, graph);
            CHECK((kernel != NULL) == !refuse);
            hl_graph_destroy(graph);
            lt_device_close(device);
        }
    hl_device *device = lt_device_open(NULL);
    check_case("sums of 16 bits");
    hl_graph *graph = make_graph(HL_DTYPE_BF16, false, GELU_GRAD_SUM, 0, &reduced);
    CHECK(find_kernel(device, graph) == NULL);
    hl_graph_destroy(graph);
    for (int64_t n = 1; n <= 24; n++) {
        hl_id in[3], out;
        check_case("%d columns", (int)n);
        CHECK_OK(hl_graph_create(&graph));
        CHECK_OK(hl_graph_input(graph, "a", (hl_type){HL_DTYPE_F32, hl_shape_2d(M, K)}, &in[0]));
        CHECK_OK(hl_graph_input(graph, "b", (hl_type){HL_DTYPE_F32, hl_shape_2d(K, n)}, &in[1]));
        CHECK_OK(fusion_add(graph, HL_OP_MATMUL, in, 2, NULL, GELU_BOTH, &out));
        CHECK((find_kernel(device, graph) != NULL) == (n % 8 == 0));
        hl_graph_destroy(graph);
    }
    check_case("a batch");
    hl_id in[2], out;
    hl_type batch = {HL_DTYPE_F32, {3, {2, 8, 8}}};
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(hl_graph_input(graph, "a", batch, &in[0]));
    CHECK_OK(hl_graph_input(graph, "b", batch, &in[1]));
    CHECK_OK(fusion_add(graph, HL_OP_MATMUL, in, 2, NULL, GELU, &out));
    CHECK(find_kernel(device, graph) == NULL);
    hl_graph_destroy(graph);
    lt_device_close(device);
}

/* Operands that an epilogue does not have, or of another type, are no node. */
static void test_no_nodes(void)
{
    const struct {
        const char *fusion;
        int n_in;
        hl_type third;
    } rows[] = {
        {GELU_GRAD, 2, {HL_DTYPE_F32, {0}}},       {GELU_GRAD, 3, {HL_DTYPE_BF16, {2, {M, N}}}},
        {GELU_GRAD, 3, {HL_DTYPE_F32, {1, {M}}}},  {GELU_GRAD_SUM, 3, {HL_DTYPE_F32, {2, {M, 8}}}},
        {MASKED, 3, {HL_DTYPE_BOOL, {2, {M, N}}}}, {MASKED_SUM, 3, {HL_DTYPE_F32, {2, {M, N}}}},
        {GELU, 3, {HL_DTYPE_F32, {1, {M}}}},       {GELU_BOTH, 3, {HL_DTYPE_F32, {2, {M, N}}}},
        {"tanh(x)", 2, {HL_DTYPE_F32, {0}}},       {"relu(x), x", 2, {HL_DTYPE_F32, {0}}},
    };
    hl_device *device = lt_device_open(NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        hl_graph *graph;
        hl_id in[3], out;
        check_case("no node %d", (int)i);
        CHECK_OK(hl_graph_create(&graph));
        CHECK_OK(hl_graph_input(graph, "a", (hl_type){HL_DTYPE_F32, hl_shape_2d(M, K)}, &in[0]));
        CHECK_OK(hl_graph_input(graph, "b", (hl_type){HL_DTYPE_F32, hl_shape_2d(K, N)}, &in[1]));
        CHECK_OK(hl_graph_input(graph, "third", rows[i].third, &in[2]));
        hl_status status =
            fusion_add(graph, HL_OP_MATMUL, in, rows[i].n_in, NULL, rows[i].fusion, &out);
        CHECK(status != HL_OK || find_kernel(device, graph) == NULL);
        hl_graph_destroy(graph);
    }
    lt_device_close(device);
}

/* What the library refuses is ours, or is nobody's. */
static void test_refusals(void)
{
    hl_kernel_req req;
    const hl_kernel *kernel;
    hl_device *device = lt_device_open(&(hl_fake_lt_config){.refused = {2}});
    test_relu(device, HL_DTYPE_BF16, false, false);
    lt_device_close(device);
    check_case("refusals");
    device = lt_device_open(&(hl_fake_lt_config){.refused = {512}});
    hl_graph *graph = make_graph(HL_DTYPE_F32, false, SUM_A, 1, NULL);
    CHECK_OK(hl_kernel_find(device, graph, 0, false, &kernel, &req));
    CHECK(kernel == &hl_cuda_matmul_plain);
    hl_graph_destroy(graph);
    lt_device_close(device);
    device = lt_device_open(&(hl_fake_lt_config){.is_silent = true});
    graph = make_graph(HL_DTYPE_F32, false, "", 0, NULL);
    CHECK_OK(hl_kernel_find(device, graph, 0, false, &kernel, &req));
    CHECK(kernel && strcmp(kernel->name, "cuda.matmul") == 0);
    CHECK_INT(req.scratch_bytes, 0);
    hl_graph_destroy(graph);
    lt_device_close(device);
}

/* ---- which algorithm ------------------------------------------------------------------------- */

/* Runs one product; returns the number of the algorithm that its launches took. */
static int run_product(hl_device *device, bool benchmark, int n_times)
{
    node_case c;
    hl_graph *graph = make_graph(HL_DTYPE_BF16, true, "", 2, NULL);
    graph->benchmark = benchmark;
    for (int i = 0; i < n_times; i++) {
        node_begin(&c, device, graph);
        fill_case(&c);
        CHECK_OK(node_run(&c));
        for (int64_t e = 0; e < M * N; e++)
            check_value(((float *)c.host[2])[e], expect(&c, 2, false, e / N, e % N), HL_DTYPE_F32);
        node_end(&c);
    }
    hl_graph_destroy(graph);
    return lt_counts().last_algo;
}

enum { LAUNCHES = 3 }; /* of one node that is not measured: while it is tuned, alone, captured */

static void test_autotune_cache(void)
{
    check_case("autotuned");
    forget_cache();
    hl_device *device = lt_device_open(NULL);
    CHECK_INT(run_product(device, false, 1), 0);
    CHECK_INT(lt_counts().products, LAUNCHES);
    CHECK_INT(run_product(device, true, 1), 3);
    int64_t measured = lt_counts().products;
    CHECK(measured > 20);
    CHECK_INT(run_product(device, true, 2), 3); /* as before: known */
    CHECK_INT(lt_counts().products, measured + 2 * LAUNCHES);
    char *text;
    CHECK_OK(hl_cuda_autotune_print(device, &text));
    lt_device_close(device);

    check_case("cache from disk");
    device = lt_device_open(NULL);
    CHECK_INT(run_product(device, true, 1), 3);
    CHECK_INT(lt_counts().products, LAUNCHES);
    lt_device_close(device);

    check_case("cache from text");
    forget_cache();
    device = lt_device_open(NULL);
    CHECK_OK(hl_cuda_autotune_read(device, "no such line\n = \n"));
    CHECK_OK(hl_cuda_autotune_read(device, text));
    CHECK_INT(run_product(device, true, 1), 3);
    CHECK_INT(lt_counts().products, LAUNCHES);
    lt_device_close(device);

    check_case("a cached algorithm that no longer runs");
    device = lt_device_open(&(hl_fake_lt_config){.n_broken = 4, .ms = {[6] = 1}});
    CHECK_OK(hl_cuda_autotune_read(device, text));
    CHECK_INT(run_product(device, true, 1), 6);
    lt_device_close(device);
    hl_free(text);
}

/* The cache keeps no more entries than it has room for, however many lines a text has. */
static void test_many_entries(void)
{
    check_case("many entries");
    hl_device *device = lt_device_open(NULL);
    char line[32], *text;
    for (int i = 0; i < 5000; i++) {
        snprintf(line, sizeof line, "k%d = v", i);
        CHECK_OK(hl_cuda_autotune_read(device, line));
    }
    CHECK_OK(hl_cuda_autotune_print(device, &text));
    CHECK(strstr(text, "k4095 = v\n") && !strstr(text, "k4096 = v\n"));
    hl_free(text);
    lt_device_close(device);
}

/* Asks for the kernel of a product of so many columns; how many searches that took. */
static int64_t ask_columns(hl_device *device, int64_t n)
{
    hl_graph *graph;
    hl_id in[2], out;
    int64_t before = lt_counts().searches;
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(hl_graph_input(graph, "a", (hl_type){HL_DTYPE_F32, hl_shape_2d(M, K)}, &in[0]));
    CHECK_OK(hl_graph_input(graph, "b", (hl_type){HL_DTYPE_F32, hl_shape_2d(K, n)}, &in[1]));
    CHECK_OK(hl_graph_add(graph, HL_OP_MATMUL, in, 2, &(hl_attrs){0}, &out));
    CHECK(find_kernel(device, graph) != NULL);
    hl_graph_destroy(graph);
    return lt_counts().searches - before;
}

/* What heuristics said is kept of the newest products. */
static void test_many_products(void)
{
    check_case("many products");
    enum { KEPT = 512, MORE = 20 };
    hl_device *device = lt_device_open(NULL);
    for (int64_t n = 1; n <= KEPT + MORE; n++) CHECK_INT(ask_columns(device, n), 1);
    for (int64_t n = MORE + 1; n <= KEPT + MORE; n++) CHECK_INT(ask_columns(device, n), 0);
    CHECK_INT(ask_columns(device, 1), 1);
    CHECK_INT(ask_columns(device, 1), 0);
    CHECK_INT(ask_columns(device, MORE + 1), 1); /* it was the oldest */
    lt_device_close(device);
}

static void test_broken(void)
{
    check_case("broken algorithms");
    forget_cache();
    hl_device *device = lt_device_open(&(hl_fake_lt_config){.n_broken = 1});
    CHECK_INT(run_product(device, false, 1), 6);
    lt_device_close(device);
    for (int benchmark = 0; benchmark < 2; benchmark++) {
        device = lt_device_open(&(hl_fake_lt_config){.n_broken = 7});
        node_case c;
        hl_graph *graph = make_graph(HL_DTYPE_F32, false, "", 0, NULL);
        graph->benchmark = benchmark;
        node_begin(&c, device, graph);
        CHECK_ERROR(node_run(&c), HL_ERROR_CONFIG, "no algorithm runs");
        node_end(&c);
        CHECK(strcmp(find_kernel(device, graph)->name, "cuda.matmul") == 0);
        hl_graph_destroy(graph);
        lt_device_close(device);
    }
}

/* ---- alignment ------------------------------------------------------------------------------- */

static void test_alignment(void)
{
    check_case("alignment");
    hl_device *device = lt_device_open(NULL);
    hl_graph *graph;
    hl_id x, w, joined[3], out;
    int32_t store;
    hl_lt_product p;
    hl_reason why;
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(hl_graph_store(graph, "param", HL_DTYPE_F32, 1000, &store));
    CHECK_OK(hl_graph_input(graph, "x", (hl_type){HL_DTYPE_F32, hl_shape_2d(6, 10)}, &x));
    CHECK_OK(hl_graph_leaf(graph, HL_VALUE_PARAM, (hl_type){HL_DTYPE_F32, hl_shape_2d(10, 10)},
                           store, 10, "w", &w));
    CHECK_OK(hl_graph_add(graph, HL_OP_MATMUL, (hl_id[]){x, w}, 2, &(hl_attrs){0}, &joined[1]));
    hl_attrs flat = {.shape = {{1, {60}}}};
    CHECK_OK(hl_graph_add(graph, HL_OP_RESHAPE, &joined[1], 1, &flat, &joined[1]));
    CHECK_OK(hl_graph_input(graph, "first", (hl_type){HL_DTYPE_F32, hl_shape_1d(6)}, &joined[0]));
    CHECK_OK(hl_graph_add(graph, HL_OP_CONCAT, joined, 2, &(hl_attrs){0}, &out));
    CHECK(hl_lt_product_make(device, graph, 0, &p, &why));
    CHECK_INT(p.align_a, 8);  /* w, 40 bytes into the store */
    CHECK_INT(p.align_b, 64); /* a batch slot's field */
    CHECK_INT(p.align_d, 8);  /* 24 bytes into what it is joined to */
    hl_graph_destroy(graph);
    for (int64_t offset = 1; offset < 9; offset++) {
        hl_id bias;
        check_case("a bias at %d bytes", (int)(4 * offset));
        CHECK_OK(hl_graph_create(&graph));
        CHECK_OK(hl_graph_store(graph, "param", HL_DTYPE_F32, 1000, &store));
        CHECK_OK(hl_graph_input(graph, "x", (hl_type){HL_DTYPE_F32, hl_shape_2d(6, 10)}, &x));
        CHECK_OK(hl_graph_input(graph, "w", (hl_type){HL_DTYPE_F32, hl_shape_2d(10, 10)}, &w));
        CHECK_OK(hl_graph_leaf(graph, HL_VALUE_PARAM, (hl_type){HL_DTYPE_F32, hl_shape_1d(10)},
                               store, offset, "bias", &bias));
        CHECK_OK(hl_graph_add(graph, HL_OP_MATMUL, (hl_id[]){x, w, bias}, 3, &(hl_attrs){0}, &out));
        CHECK((strstr(find_kernel(device, graph)->name, "cublaslt") != NULL) == (offset % 4 == 0));
        hl_graph_destroy(graph);
    }
    lt_device_close(device);
}

/* ---- failures -------------------------------------------------------------------------------- */

/* Chooses the kernel, prepares, tunes, runs; any status. The k-th allocation fails, 0: none. */
static hl_status try_product(hl_device *device, bool benchmark, int64_t k, bool *out_reached)
{
    node_case c;
    hl_graph *graph = make_graph(HL_DTYPE_F32, false, RELU, 0, NULL);
    graph->benchmark = benchmark;
    node_begin(&c, device, graph);
    hl_alloc_fault(k, false);
    hl_status status = node_run(&c);
    bool reached = hl_alloc_fault(0, false) >= k;
    if (out_reached) *out_reached = reached;
    node_end(&c);
    hl_graph_destroy(graph);
    return status;
}

static void test_failures(int error)
{
    for (int variant = 0; variant < 4; variant++) {
        bool sticky = variant & 1, benchmark = variant >> 1;
        for (int64_t k = 1;; k++) {
            check_case("call %d fails with %d, sticky %d, benchmark %d", (int)k, error, sticky,
                       benchmark);
            hl_device *device = lt_device_open(NULL);
            lt_fail(k, sticky, error);
            hl_status status = try_product(device, benchmark, 0, NULL);
            bool reached = lt_counts().calls >= k;
            if (status != HL_OK) CHECK(strstr(hl_status_message(), "cuBLASLt") != NULL);
            lt_fail(0, false, 0);
            CHECK_OK(try_product(device, benchmark, 0, NULL));
            lt_device_close(device);
            if (!reached) break;
        }
    }
}

static void test_allocations(void)
{
    for (int64_t k = 1;; k++) {
        check_case("allocation %d fails", (int)k);
        hl_device *device = lt_device_open(NULL);
        bool reached;
        hl_status status = try_product(device, true, k, &reached);
        if (status != HL_OK) CHECK_INT(status, HL_ERROR_MEMORY);
        CHECK_OK(try_product(device, true, 0, NULL));
        lt_device_close(device);
        if (!reached) break;
    }
}

/* Every call of the driver's: an error and not another kernel, nothing held, and the next product
 * runs. */
static void test_driver_failures(void)
{
    for (int64_t k = 1;; k++) {
        check_case("call %d of the driver fails", (int)k);
        hl_device *device = lt_device_open(NULL);
        node_case c;
        hl_graph *graph = make_graph(HL_DTYPE_F32, false, RELU, 0, NULL);
        graph->benchmark = true;
        node_begin(&c, device, graph);
        hl_fake_fail(k, false, CUDA_ERROR_UNKNOWN);
        hl_status status = node_run(&c);
        int64_t n_seen = hl_fake_fail(0, false, 0);
        hl_fake_message_clear();
        if (n_seen < k) CHECK_OK(status);
        if (status == HL_OK) CHECK(strcmp(c.kernel->name, "cuda.matmul.cublaslt") == 0);
        node_end(&c);
        hl_graph_destroy(graph);
        CHECK_OK(try_product(device, true, 0, NULL));
        lt_device_close(device);
        if (n_seen < k) break;
    }
}

int main(void)
{
    lt_library_find();
    forget_cache();
    test_ends();
    test_gelus();
    test_refusals();
    test_gelu_refusals();
    test_no_nodes();
    test_autotune_cache();
    test_many_entries();
    test_many_products();
    test_broken();
    test_alignment();
    setenv("HOTLOOP_CACHE_PATH", "", 1); /* a device knows what it has measured itself */
    test_failures(13);
    test_failures(3);
    test_allocations();
    test_driver_failures();
    char command[192];
    snprintf(command, sizeof command, "rm -rf /tmp/hotloop-lt-%d", (int)getpid());
    CHECK(system(command) == 0);
    return CHECK_DONE();
}
