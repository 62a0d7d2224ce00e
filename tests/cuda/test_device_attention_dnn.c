/* Attention by the fake cuDNN on the emulated GPU: values against the reference, which nodes it
 * takes, and that own kernels are one of the algorithms: where they are faster, and where the
 * library runs nothing. */
#include <unistd.h>

#include "tests/c/attention_cases.h"
#include "tests/cuda/device_case.h"
#include "tests/cuda/dnn_library.h"

static const sizes some[] = {
    {2, 4, 2, 9, 9, 8, 8}, {3, 2, 1, 33, 20, 16, 16}, {1, 2, 2, 20, 40, 24, 32}};
enum { N_SOME = sizeof some / sizeof *some };

static void open_library(const hl_fake_dnn_config *config)
{
    static int n;
    char folder[128];
    snprintf(folder, sizeof folder, "/tmp/hotloop-attention-%d/%d", (int)getpid(), n++);
    setenv("HOTLOOP_CACHE_PATH", folder, 1);
    case_gpu = dnn_device_open(config);
}

static void test_values(void)
{
    open_library(NULL);
    for (int i = 0; i < N_SOME; i++)
        for (int kind = 0; kind < 4; kind++) {
            bool is_causal = kind & 1;
            floats = results = kind & 2 ? HL_DTYPE_BF16 : HL_DTYPE_F16;
            check_case("%s, sizes %d, causal %d", hl_dtype_name(floats), i, is_causal);
            int64_t before = dnn_counts().runs;
            test_attention(&some[i], MASK_NONE, is_causal, false);
            CHECK(dnn_counts().runs > before);
            before = dnn_counts().runs;
            test_attention_grad(&some[i], MASK_NONE, is_causal, false);
            CHECK(dnn_counts().runs > before);
        }
    dnn_device_close(case_gpu);
}

/* Own kernels run where every engine refuses to. */
static void test_nothing_runs(void)
{
    open_library(&(hl_fake_dnn_config){.runs_nothing = true});
    floats = results = HL_DTYPE_BF16;
    check_case("nothing of cuDNN's runs");
    test_attention(&some[0], MASK_NONE, true, false);
    test_attention_grad(&some[0], MASK_NONE, true, false);
    CHECK_INT(dnn_counts().runs, 0);
    dnn_device_close(case_gpu);
}

/* The kernel of the last node, or why there is none from cuDNN. */
static const hl_kernel *find_kernel(const op_case *c, bool deterministic)
{
    case_graph g;
    const hl_kernel *kernel = NULL;
    hl_kernel_req req = {0};
    case_build(c, false, &g);
    g.graph.deterministic = deterministic;
    CHECK_OK(hl_kernel_select(case_gpu, &g.graph, (hl_node_id)g.graph.n_nodes - 1, deterministic,
                              &kernel, &req));
    return kernel;
}

static op_case make_case(bool is_grad, hl_dtype dtype, int64_t width)
{
    const sizes n = {1, 2, 2, 16, 16, width, width};
    op_case c = {.op = is_grad ? HL_OP_ATTENTION_GRAD : HL_OP_ATTENTION,
                 .n_in = is_grad ? 6 : 3,
                 .n_out = is_grad ? 3 : 2};
    floats = results = dtype;
    add_operands(&c, &n, is_grad);
    c.out[0] = c.in[0] = c.in[is_grad];
    c.attrs.attention.scale = 1;
    if (is_grad) {
        c.in[4] = c.in[0], c.in[5] = make_log_sums(&n);
        for (int j = 0; j < 3; j++) c.out[j] = c.in[1 + j];
    } else
        c.out[1] = make_log_sums(&n);
    return c;
}

static bool is_by_library(const op_case *c, bool deterministic)
{
    return strstr(find_kernel(c, deterministic)->name, ".cudnn") != NULL;
}

static void test_which(void)
{
    open_library(NULL);
    check_case("which are cuDNN's");
    op_case forward = make_case(false, HL_DTYPE_BF16, 16),
            grad = make_case(true, HL_DTYPE_BF16, 16);
    CHECK(is_by_library(&forward, false) && is_by_library(&forward, true));
    CHECK(is_by_library(&grad, false) && !is_by_library(&grad, true));
    op_case f32 = make_case(false, F32, 16), odd = make_case(false, HL_DTYPE_BF16, 12);
    CHECK(!is_by_library(&f32, false) && !is_by_library(&odd, false));
    op_case dropping = make_case(false, HL_DTYPE_BF16, 16), masked = dropping;
    dropping.attrs.attention.p = 0.5, dropping.attrs.attention.stream = "a";
    dropping.in[dropping.n_in] = (hl_type){HL_DTYPE_U8, hl_shape_1d(sizeof(hl_control))};
    dropping.is_control[dropping.n_in++] = true;
    masked.attrs.attention.has_mask = true;
    masked.in[masked.n_in++] = make_type(HL_DTYPE_BOOL, 1, 1, 16, 16);
    CHECK(!is_by_library(&dropping, false) && !is_by_library(&masked, false));
    dnn_device_close(case_gpu);
}

/* Times the library's plans beside own kernels; how often the library runs where it is known which
 * is faster. */
static int64_t count_runs(bool is_grad)
{
    int64_t runs[2];
    for (int i = 0; i < 2; i++) {
        op_case c = make_case(is_grad, HL_DTYPE_BF16, 16);
        case_graph g;
        node_case node;
        case_build(&c, false, &g);
        g.graph.benchmark = true;
        node_begin(&node, case_gpu, &g.graph);
        node.deterministic = false;
        CHECK_OK(node_run(&node));
        node_end(&node);
        runs[i] = dnn_counts().runs;
    }
    return runs[1] - runs[0];
}

static void test_measured(void)
{
    hl_fake_dnn_config slow = {.ms = {0}}, fast = {.ms = {0}};
    for (int i = 0; i < HL_FAKE_DNN_ENGINES; i++) slow.ms[i] = 50, fast.ms[i] = 1e-6;
    for (int is_grad = 0; is_grad < 2; is_grad++) {
        check_case("measured, gradient %d", is_grad);
        open_library(&slow);
        CHECK_INT(count_runs(is_grad), 0);
        dnn_device_close(case_gpu);
        open_library(&fast);
        CHECK(count_runs(is_grad) > 0);
        dnn_device_close(case_gpu);
    }
}

int main(void)
{
    dnn_library_find();
    case_open();
    fake_device_close(case_gpu);
    test_values();
    test_nothing_runs();
    test_which();
    test_measured();
    case_ref->ops->destroy(case_ref);
    return CHECK_DONE();
}
