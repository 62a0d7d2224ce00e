/* Matrix products on the emulated GPU: every type of operands, bias and result, every way that
 * batches meet, alone and in a replay, by our kernels and by the library, against sums in double of
 * the same rounded operands. */
#include <math.h>

#include "tests/c/dice.h"
#include "tests/cuda/node_case.h"

#define F32  HL_DTYPE_F32
#define BF16 HL_DTYPE_BF16
#define F16  HL_DTYPE_F16
enum { NO_BIAS = -1 };

typedef struct product_case {
    hl_shape a, b;
    int trans_a, trans_b;
} product_case;

static const product_case products[] = {
    {{2, {5, 7}}, {2, {7, 3}}, 0, 0},
    {{2, {65, 40}}, {2, {40, 67}}, 0, 0},
    {{2, {40, 65}}, {2, {40, 67}}, 1, 0},
    {{2, {33, 72}}, {2, {70, 72}}, 0, 1},
    {{2, {24, 9}}, {2, {17, 24}}, 1, 1},
    {{4, {3, 2, 5, 8}}, {2, {8, 6}}, 0, 0},
    {{2, {5, 8}}, {3, {4, 8, 6}}, 0, 0},
    {{4, {3, 1, 5, 8}}, {3, {4, 8, 6}}, 0, 0},
    {{3, {2, 8, 5}}, {2, {8, 6}}, 1, 0},
    {{8, {1, 2, 1, 1, 2, 1, 3, 4}}, {8, {2, 1, 1, 2, 1, 1, 4, 2}}, 0, 0},
    {{2, {4, 0}}, {2, {0, 3}}, 0, 0},
    {{2, {0, 4}}, {2, {4, 3}}, 0, 0},
    {{2, {4, 5}}, {2, {5, 0}}, 0, 0},
    {{2, {770, 5}}, {2, {5, 700}}, 0, 0}, /* more tiles than a small product has */
};

static int n_by_library;

static hl_graph *make_graph(const product_case *p, hl_dtype dtype, int bias, bool float32_out)
{
    hl_graph *graph;
    hl_id in[3], out;
    hl_attrs attrs = {
        .matmul = {.trans_a = p->trans_a, .trans_b = p->trans_b, .float32_out = float32_out}};
    hl_shape last = hl_shape_1d(p->b.dim[p->b.rank - (p->trans_b ? 2 : 1)]);
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(hl_graph_input(graph, "a", (hl_type){dtype, p->a}, &in[0]));
    CHECK_OK(hl_graph_input(graph, "b", (hl_type){dtype, p->b}, &in[1]));
    if (bias != NO_BIAS)
        CHECK_OK(hl_graph_input(graph, "bias", (hl_type){(hl_dtype)bias, last}, &in[2]));
    CHECK_OK(hl_graph_add(graph, HL_OP_MATMUL, in, bias == NO_BIAS ? 2 : 3, &attrs, &out));
    return graph;
}

/* Where matrix z of the result's batch lies in an operand. */
static int64_t find_matrix(const hl_shape *operand, const hl_shape *out, int64_t z)
{
    int64_t at = 0, step = hl_shape_span(operand, operand->rank - 2, operand->rank);
    for (int d = out->rank - 3; d >= 0; d--) {
        int own = d - (out->rank - operand->rank);
        int64_t c = z % out->dim[d];
        z /= out->dim[d];
        if (own < 0) continue;
        if (operand->dim[own] > 1) at += c * step;
        step *= operand->dim[own];
    }
    return at;
}

static double unit_of(hl_dtype dtype)
{
    return dtype == HL_DTYPE_BF16 ? 0x1p-8 : dtype == HL_DTYPE_F16 ? 0x1p-11 : 0x1p-24;
}

static void check_product(const node_case *c, const product_case *p, bool has_bias)
{
    hl_type a = node_type(c, 0), b = node_type(c, 1), out = node_type(c, c->n_args - 1);
    int64_t M = out.shape.dim[out.shape.rank - 2], N = out.shape.dim[out.shape.rank - 1];
    int64_t K = a.shape.dim[a.shape.rank - (p->trans_a ? 2 : 1)];
    for (int64_t i = 0; i < hl_shape_numel(&out.shape); i++) {
        int64_t z = i / (M * N), row = i / N % M, col = i % N;
        int64_t at_a = find_matrix(&a.shape, &out.shape, z);
        int64_t at_b = find_matrix(&b.shape, &out.shape, z);
        double want = has_bias ? element_load(c->host[2], node_type(c, 2).dtype, col) : 0;
        double size = fabs(want);
        for (int64_t k = 0; k < K; k++) {
            int64_t e_a = at_a + (p->trans_a ? k * M + row : row * K + k);
            int64_t e_b = at_b + (p->trans_b ? col * K + k : k * N + col);
            double term =
                element_load(c->host[0], a.dtype, e_a) * element_load(c->host[1], b.dtype, e_b);
            want += term, size += fabs(term);
        }
        double got = element_load(c->host[c->n_args - 1], out.dtype, i);
        double slack = ((double)K + 2) * 0x1p-24 * size + unit_of(out.dtype) * fabs(want);
        if (fabs(got - want) <= slack) continue;
        check_fail(__FILE__, __LINE__, "element %lld: got %g, want %g", (long long)i, got, want);
        return;
    }
}

static void test_product(hl_device *device, const product_case *p, hl_dtype dtype, int bias,
                         bool float32_out)
{
    char a[HL_SHAPE_TEXT], b[HL_SHAPE_TEXT];
    check_case("%s %s @ %s, trans %d%d, bias %d, float32_out %d", hl_dtype_name(dtype),
               hl_shape_format(&p->a, a), hl_shape_format(&p->b, b), p->trans_a, p->trans_b, bias,
               float32_out);
    node_case c;
    hl_graph *graph = make_graph(p, dtype, bias, float32_out);
    node_begin(&c, device, graph);
    for (int i = 0; i < c.n_args - 1; i++) {
        hl_type type = node_type(&c, i);
        for (int64_t e = 0; e < hl_shape_numel(&type.shape); e++)
            element_store(c.host[i], type.dtype, e, dice_draw());
    }
    CHECK_OK(node_run(&c));
    n_by_library += c.kernel && strstr(c.kernel->name, "cublaslt");
    check_product(&c, p, bias != NO_BIAS);
    node_end(&c);
    hl_graph_destroy(graph);
}

static hl_device *open_device(int arch, bool with_library)
{
    setenv("HOTLOOP_CUBLASLT_PATH", with_library ? FAKE_LT : "none", 1);
    return fake_device_open(&(hl_fake_config){.arch = arch});
}

/* None, float32, or 16 bits. */
static int bias_type(int kind, hl_dtype reduced)
{
    return kind == 0 ? NO_BIAS : kind == 1 ? (int)F32 : (int)reduced;
}

static void test_products(bool with_library)
{
    hl_device *device = open_device(90, with_library);
    for (size_t i = 0; i < sizeof products / sizeof *products; i++) {
        for (int bias = 0; bias < 3; bias++) {
            test_product(device, &products[i], F32, bias_type(bias, BF16), 0);
            for (int float32_out = 0; float32_out < 2; float32_out++) {
                test_product(device, &products[i], BF16, bias_type(bias, BF16), float32_out);
                test_product(device, &products[i], F16, bias_type(bias, F16), float32_out);
            }
        }
    }
    CHECK_INT(n_by_library,
              with_library ? 90 : 0); /* those of even batches, and a bias of the result's type */
    n_by_library = 0;
    fake_device_close(device);
    CHECK(strcmp(hl_fake_message(), "") == 0);
}

static void test_refusals(void)
{
    check_case("refusals");
    hl_device *device = open_device(75, false);
    hl_kernel_req req;
    const hl_kernel *kernel;
    hl_graph *reduced = make_graph(&products[0], BF16, NO_BIAS, false);
    CHECK_ERROR(hl_kernel_select(device, reduced, 0, true, &kernel, &req), HL_ERROR_DEVICE,
                "sm_75");
    hl_graph_destroy(reduced);
    hl_graph *half = make_graph(&products[0], F16, NO_BIAS, false);
    CHECK_OK(hl_kernel_select(device, half, 0, true, &kernel, &req));
    CHECK(req.deterministic);
    hl_graph_destroy(half);
    hl_graph *doubles = make_graph(&products[0], HL_DTYPE_F64, NO_BIAS, false);
    CHECK_ERROR(hl_kernel_select(device, doubles, 0, true, &kernel, &req), HL_ERROR_DEVICE,
                "float64");
    hl_graph_destroy(doubles);
    fake_device_close(device);
}

int main(void)
{
    test_products(false);
    test_products(true);
    test_refusals();
    return CHECK_DONE();
}
