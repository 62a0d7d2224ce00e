/* What tuning finds out about products by cuBLASLt on the emulated GPU, of nodes and in whole
 * plans: algorithms that do not run, that vary, that drop NaN, that are slower than what they save;
 * by which clock they are timed. A plan that finds one out is the plan that would have been made
 * had the heuristics refused it. */
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/log.h"
#include "kernels/cuda/tune.h"
#include "tests/c/fusion_case.h"
#include "tests/c/train.h"
#include "tests/cuda/fake_table.h"
#include "tests/cuda/lt_library.h"
#include "tests/cuda/node_case.h"

enum { M = 8, N = 136, K = 16, RELU = 2, ALL = 0x7F };

static int count_warnings(void)
{
    hl_log_level level;
    char text[512];
    int n = 0;
    while (hl_log_take(&level, text, sizeof text))
        n += level == HL_LOG_WARNING && strstr(text, "own kernels compute it") != NULL;
    return n;
}

/* ---- one product ----------------------------------------------------------------------------- */

static hl_graph *make_graph(hl_dtype dtype, const char *fusion, bool benchmark, bool deterministic)
{
    hl_graph *graph;
    hl_id in[2], out;
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(hl_graph_input(graph, "a", (hl_type){dtype, hl_shape_2d(M, K)}, &in[0]));
    CHECK_OK(hl_graph_input(graph, "b", (hl_type){dtype, hl_shape_2d(K, N)}, &in[1]));
    CHECK_OK(fusion_add(graph, HL_OP_MATMUL, in, 2, &(hl_attrs){0}, fusion, &out));
    graph->benchmark = benchmark;
    graph->deterministic = deterministic;
    return graph;
}

/* Tunes and runs it; the algorithm that ran, or -1 and the reason that it was refused. */
static int tune(hl_device *device, const char *fusion, bool benchmark, bool deterministic,
                const char *reason)
{
    node_case c;
    hl_graph *graph = make_graph(HL_DTYPE_F32, fusion, benchmark, deterministic);
    node_begin(&c, device, graph);
    for (int v = 0; v < 2; v++) {
        hl_type type = node_type(&c, v);
        for (int64_t e = 0; e < hl_shape_numel(&type.shape); e++)
            ((float *)c.host[v])[e] = (float)dice_draw();
    }
    hl_status status = node_run(&c);
    if (status == HL_ERROR_CONFIG)
        CHECK(reason && strstr(hl_status_message(), reason) != NULL);
    else
        CHECK_OK(status);
    bool by_library = c.kernel && strstr(c.kernel->name, "cublaslt");
    node_end(&c);
    hl_graph_destroy(graph);
    return status == HL_OK && by_library ? lt_counts().last_algo : -1;
}

static const char *find_name(hl_device *device, const char *fusion, bool benchmark,
                             bool deterministic)
{
    hl_kernel_req req;
    const hl_kernel *kernel;
    hl_graph *graph = make_graph(HL_DTYPE_F32, fusion, benchmark, deterministic);
    CHECK_OK(hl_kernel_find(device, graph, 0, deterministic, &kernel, &req));
    hl_graph_destroy(graph);
    return kernel ? kernel->name : "none";
}

/* Which algorithm is the fastest by this clock. */
static int choose(hl_fake_lt_config config)
{
    hl_device *device = lt_device_open(&config);
    int chosen = tune(device, "", true, false, NULL);
    lt_device_close(device);
    return chosen;
}

static void test_clock(void)
{
    check_case("by less than the margin");
    CHECK_INT(choose((hl_fake_lt_config){.ms = {1, .98, 0, .99, 0, 0, 1}}), 0);
    CHECK_INT(choose((hl_fake_lt_config){.ms = {1, .98, 0, .96, 0, 0, 1}}), 3);
    CHECK_INT(choose((hl_fake_lt_config){.ms = {1, .98, 0, .96, 0, 0, .9}}), 6);
    CHECK_INT(choose((hl_fake_lt_config){.n_broken = 1, .ms = {1, 1, 0, .98, 0, 0, .98}}), 1);
    check_case("a GPU that grows hot");
    CHECK_INT(choose((hl_fake_lt_config){.ms = {.2, .2, 0, .2, 0, 0, .19}, .drift = .02}), 6);
    CHECK_INT(choose((hl_fake_lt_config){.ms = {.2, .2, 0, .2, 0, 0, .18}, .drift = .02}), 6);
    for (double cold = 0; cold < 8; cold += .25) {
        check_case("a GPU that is cold for %g ms", cold);
        CHECK_INT(choose((hl_fake_lt_config){.ms = {.1, .1, 0, .1, 0, 0, .1}, .cold_ms = cold}), 0);
    }
}

/* An epilogue that is slower than the product without it and a copy as long as what it would save:
 * of 2 matrices of 4352 bytes, by halves, at 1 MiB a millisecond. */
static void test_apart(void)
{
    static const double ms[] = {.25, .25, 0, .25, 0, 0, .25};
    const double apart = .25 + 2 * (M * N * 4 / 2) / 1048576.;
    for (int i = 0; i < 4; i++) {
        double factor = apart / .97 / .25 * (i % 2 ? 1.005 : .995);
        check_case("a product %g times as slow with relu", factor);
        hl_fake_lt_config config = {.slow_epilogue = RELU, .slowness = factor};
        memcpy(config.ms, ms, sizeof ms);
        hl_device *device = lt_device_open(&config);
        if (i < 2)
            CHECK_INT(tune(device, "relu(x)", true, false, "slower"), i % 2 ? -1 : 0);
        else
            CHECK_INT(tune(device, "relu(x)", false, false, NULL), 0);
        bool is_apart = i == 1;
        CHECK(!strstr(find_name(device, "relu(x)", true, false), "cublaslt") == is_apart);
        CHECK(strstr(find_name(device, "relu(x)", false, false), "cublaslt") != NULL);
        CHECK(strstr(find_name(device, "", true, false), "cublaslt") != NULL);
        CHECK_INT(count_warnings(), 0);
        lt_device_close(device);
    }
}

/* An emulated launch takes a millisecond. relu's mask is nothing that the own kernel makes. */
static void test_own_kernel(void)
{
    static const char *const fusions[] = {"", "relu(x)", "relu(x), gt(x, 0)"};
    for (int i = 0; i < 3; i++)
        for (int slow = 0; slow < 2; slow++) {
            check_case("'%s' by the library in %s than a millisecond", fusions[i],
                       slow ? "more" : "less");
            double ms = slow ? 1.05 : 1.02;
            hl_device *device =
                lt_device_open(&(hl_fake_lt_config){.ms = {ms, ms, 0, ms, 0, 0, ms}});
            bool is_own = slow && i < 2;
            CHECK_INT(tune(device, fusions[i], true, false, "own kernel"), is_own ? -1 : 0);
            CHECK(!strstr(find_name(device, fusions[i], true, false), "cublaslt") == is_own);
            CHECK(strstr(find_name(device, fusions[i], false, false), "cublaslt") != NULL);
            CHECK_INT(count_warnings(), 0);
            CHECK_INT(tune(device, fusions[i], true, false, NULL), is_own ? -1 : 0);
            lt_device_close(device);
        }
}

/* Plans that are autotuned know of it by the cache. */
static void test_apart_is_kept(void)
{
    char folder[64];
    snprintf(folder, sizeof folder, "/tmp/hotloop-tune-%d", (int)getpid());
    setenv("HOTLOOP_CACHE_PATH", folder, 1);
    hl_fake_lt_config config = {.slow_epilogue = RELU, .slowness = 3};
    for (int i = 0; i < 2; i++) {
        check_case("apart, device %d", i);
        hl_device *device = lt_device_open(&config);
        CHECK(!strstr(find_name(device, "relu(x)", true, false), "cublaslt") == (i == 1));
        if (i == 0) CHECK_INT(tune(device, "relu(x)", true, false, "slower"), -1);
        CHECK_INT(tune(device, "relu(x)", true, false, NULL), -1);
        if (i == 1) CHECK_INT(lt_counts().products, 0);
        lt_device_close(device);
    }
    char command[96];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    CHECK(system(command) == 0);
    setenv("HOTLOOP_CACHE_PATH", "", 1);
}

static void test_varying(void)
{
    check_case("algorithms that vary");
    hl_device *device = lt_device_open(&(hl_fake_lt_config){.varying = 1});
    CHECK_INT(tune(device, "", false, true, NULL), 6);
    CHECK_INT(tune(device, "relu(x)", false, true, NULL), 6);
    CHECK_INT(tune(device, "", true, true, NULL), 3);
    lt_device_close(device);
    device = lt_device_open(&(hl_fake_lt_config){.varying = ALL});
    CHECK_INT(tune(device, "", false, true, "the same bits twice"), -1);
    CHECK_INT(count_warnings(), 1);
    CHECK(strcmp(find_name(device, "", false, true), "cuda.matmul") == 0);
    CHECK(strcmp(find_name(device, "", false, false), "cuda.matmul.cublaslt") == 0);
    CHECK_INT(tune(device, "", false, true, NULL), -1);
    lt_device_close(device);
    check_case("algorithms that vary, measured");
    device = lt_device_open(&(hl_fake_lt_config){.varying = 8}); /* the fastest of all */
    CHECK_INT(tune(device, "", true, true, NULL), 1);
    lt_device_close(device);
}

static void test_nan(void)
{
    static const char *const fusions[] = {"relu(x)", "relu(x), gt(x, 0)", "gelu(x)", "gelu(x), x"};
    for (int benchmark = 0; benchmark < 2; benchmark++)
        for (int i = 0; i < 4; i++) {
            check_case("%s of NaN, benchmark %d", fusions[i], benchmark);
            hl_device *device = lt_device_open(NULL);
            CHECK(tune(device, fusions[i], benchmark, false, NULL) >= 0);
            lt_device_close(device);
            device = lt_device_open(&(hl_fake_lt_config){.drops_nan = true});
            CHECK_INT(tune(device, fusions[i], benchmark, false, "a number of NaN"), -1);
            for (int j = 0; j < 4; j++) {
                bool is_taken = strstr(find_name(device, fusions[j], false, false), "cublaslt");
                CHECK(is_taken == (i / 2 != j / 2)); /* what relu does, gelu need not do */
            }
            CHECK(strstr(find_name(device, "", false, false), "cublaslt") != NULL);
            CHECK_INT(count_warnings(), 0);
            lt_device_close(device);
        }
}

/* ---- plans ----------------------------------------------------------------------------------- */

enum { N_STEPS = 4, MAX_FLAT = 2048 };
typedef struct outcome {
    float param[MAX_FLAT], loss;
    int64_t arena_bytes, const_bytes, n_instructions;
    int masks, by_library, anchors, warnings;
    bool is_stopped;
} outcome;

/* Two hidden layers with this activation, all parameters at whole 64 bytes. */
static net make_net(int act)
{
    net n = {.n_layers = 3, .rows = 24, .n_terms = 1, .width = {16, 16, 32, 16}};
    n.spec.optimizer = HL_OP_SGD;
    n.spec.attrs = (hl_attrs){.sgd = {.momentum = 0.9}};
    for (int i = 0; i < 3; i++) n.act[i] = act;
    return n;
}

static void count_nodes(const hl_plan *plan, outcome *out)
{
    for (int32_t s = 0; s < plan->schedule.n_tasks; s++) {
        const hl_node *node = &plan->graph->nodes[plan->instrs[s].node];
        out->by_library += strstr(plan->instrs[s].kernel->name, "cublaslt") != NULL;
        out->anchors += node->op == HL_OP_MATMUL && hl_node_is_anchor(node);
        char text[HL_FUSION_TEXT];
        hl_fusion_format(plan->graph, node, text);
        out->masks += strcmp(text, "relu(x), gt(x, 0)") == 0;
    }
}

static void run_steps(trainer *t, int n_steps, outcome *out)
{
    hl_run_end end;
    int64_t ran;
    for (int step = 0; step < n_steps && !out->is_stopped; step++) {
        CHECK_OK(hl_plan_run(t->plan, 1, 0, NULL, &end, &ran));
        if (end == HL_RUN_FEED_END) {
            CHECK_OK(hl_feed_seek(t->feed, (uint64_t)step, 0));
            CHECK_OK(hl_plan_run(t->plan, 1, 0, NULL, &end, &ran));
        }
        out->is_stopped = end == HL_RUN_STOPPED;
    }
}

/* What is predicted now is the plan that ran. */
static void check_prediction(const trainer *t, const net *n, const outcome *out)
{
    hl_graph *graph;
    hl_plan_info info;
    net copy = *n;
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(net_build(graph, &copy));
    CHECK_OK(hl_plan_predict(t->device, graph, &t->plan->options, &info, NULL));
    CHECK_INT(info.arena_bytes, out->arena_bytes);
    CHECK_INT(info.const_bytes, out->const_bytes);
    CHECK_INT(info.n_instructions, out->n_instructions);
}

static void begin(trainer *t, net *n, const hl_fake_lt_config *config)
{
    hl_fake_reset(NULL);
    lt_reset(config);
    trainer_open(t, hl_fake_backend(), 1);
    t->device->overlap_flops = 1; /* so a small weight gradient stays the library's */
    trainer_plan(t, n, 1, true, true);
    t->net = *n;
    trainer_fill(t);
}

static void train(net n, const hl_fake_lt_config *config, outcome *out)
{
    trainer t;
    hl_plan_info info;
    memset(out, 0, sizeof *out);
    count_warnings();
    begin(&t, &n, config);
    run_steps(&t, N_STEPS, out);
    out->warnings = count_warnings();
    CHECK_OK(hl_session_read(t.session, "param", 0, n.n_flat, HL_DTYPE_F32, out->param));
    CHECK_OK(hl_plan_output(t.plan, 0, HL_DTYPE_F32, &out->loss));
    hl_plan_info_read(t.plan, &info);
    out->arena_bytes = info.arena_bytes, out->const_bytes = info.const_bytes;
    out->n_instructions = info.n_instructions;
    count_nodes(t.plan, out);
    check_prediction(&t, &n, out);
    trainer_close(&t);
    CHECK_INT(lt_counts().live, 0);
    CHECK_INT(hl_fake_live_sum(), 0);
    CHECK(strcmp(hl_fake_message(), "") == 0);
}

static outcome want, got;

static bool is_same(void)
{
    return memcmp(want.param, got.param, sizeof got.param) == 0 && want.loss == got.loss &&
           want.arena_bytes == got.arena_bytes && want.by_library == got.by_library &&
           want.anchors == got.anchors && want.n_instructions == got.n_instructions;
}

static double find_gap(void)
{
    double gap = fabs((double)want.loss - (double)got.loss);
    for (int64_t i = 0; i < MAX_FLAT; i++) {
        double apart = fabs((double)want.param[i] - (double)got.param[i]);
        if (!(apart <= gap)) gap = apart;
    }
    return gap;
}

/* relu with a mask and a bias, drelu, gelu with its operand, dgelu, both sums; plain products, of
 * which the heuristics would refuse those that carry something too, while only those fail that
 * stand in the plan. */
static void test_failing(void)
{
    enum { BIAS = 4 };
    static const int rows[][2] = {{134, 0},    {136, 0},    {164, 0},  {192, 0},
                                  {256, 0},    {512, 0},    {1, 0},    {256, 1},
                                  {134, BIAS}, {164, BIAS}, {BIAS, 0}, {BIAS, 1}};
    static const hl_dtype dtypes[] = {HL_DTYPE_F32, HL_DTYPE_BF16};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int variant = 0; variant < 8; variant++) {
            hl_fake_lt_config refused = {.refused = {rows[i][0], rows[i][1]}},
                              failing = {.failing = {rows[i][0], rows[i][1]}};
            check_case("epilogues %d and %d fail, variant %d", rows[i][0], rows[i][1], variant);
            trainer_dtype = dtypes[variant & 1];
            trainer_capture = variant >> 1 & 1;
            net n = make_net(variant >> 2 ? 4 : 1);
            train(n, NULL, &want);
            int by_library = want.by_library, anchors = want.anchors;
            train(n, &refused, &want);
            CHECK_INT(want.warnings, 0);
            bool is_changed = want.by_library != by_library || want.anchors != anchors;
            train(n, &failing, &got);
            CHECK_INT(got.warnings, is_changed);
            bool is_other = rows[i][0] <= BIAS || rows[i][1] > 0;
            CHECK(is_other ? find_gap() < (variant & 1 ? 3e-2 : 2e-5) : is_same());
            if (is_other) CHECK(got.by_library >= want.by_library && got.by_library < by_library);
        }
    trainer_dtype = HL_DTYPE_F32, trainer_capture = false;
    check_case("everything fails");
    net n = make_net(1);
    setenv("HOTLOOP_CUBLASLT_PATH", "none", 1);
    train(n, NULL, &want);
    setenv("HOTLOOP_CUBLASLT_PATH", FAKE_LT, 1);
    train(n, &(hl_fake_lt_config){.n_broken = 7}, &got);
    CHECK_INT(got.by_library, 0);
    CHECK(find_gap() < 2e-5);
}

/* relu that drops NaN stands in no plan, and a weight that is none stops the run; so it does with
 * one that keeps it. */
static void test_nan_in_a_weight(void)
{
    for (int drops = 0; drops < 2; drops++)
        for (int benchmark = 0; benchmark < 2; benchmark++) {
            hl_fake_lt_config config = {.drops_nan = drops};
            trainer t;
            outcome run = {0};
            const float nan = NAN;
            check_case("NaN in a weight, dropped %d, benchmark %d", drops, benchmark);
            trainer_benchmark = benchmark;
            net n = make_net(1);
            begin(&t, &n, &config);
            run_steps(&t, 1, &run);
            CHECK(!run.is_stopped);
            CHECK_OK(hl_session_write(t.session, "param", 5, 1, HL_DTYPE_F32, &nan));
            run_steps(&t, 8, &run); /* the host sees it some steps later */
            CHECK(run.is_stopped);
            count_nodes(t.plan, &run);
            CHECK_INT(run.masks, drops ? 0 : 2);
            trainer_close(&t);
            CHECK_INT(count_warnings(), 0);
        }
    trainer_benchmark = false;
}

/* Products with a mask that take long are made apart, and all else as if they were refused. */
static void test_slow(void)
{
    check_case("a slow epilogue");
    net n = make_net(1);
    trainer_benchmark = true;
    train(n, &(hl_fake_lt_config){.refused = {134}}, &want);
    train(n, &(hl_fake_lt_config){.slow_epilogue = 134, .slowness = 4}, &got);
    CHECK(is_same());
    CHECK_INT(got.masks, 0);
    CHECK_INT(got.warnings, 0);
    trainer_benchmark = false;
    train(n, &(hl_fake_lt_config){.slow_epilogue = 134, .slowness = 4}, &got);
    CHECK_INT(got.masks, 2);
}

/* Zeros as weights and as a batch hide nothing: operands are filled for tuning, not the model's own
 * memory. */
static void test_varying_plan(void)
{
    static const float zeros[MAX_FLAT];
    trainer_deterministic = true;
    for (int varying = 0; varying < 2; varying++) {
        trainer t;
        outcome run = {0};
        char *text;
        hl_fake_lt_config config = {.varying = (unsigned)varying};
        check_case("a plan with an algorithm that varies: %d", varying);
        net n = make_net(1);
        begin(&t, &n, &config);
        CHECK_OK(hl_session_write(t.session, "param", 0, n.n_flat, HL_DTYPE_F32, zeros));
        CHECK_OK(hl_plan_run(t.plan, 0, 0, NULL, &(hl_run_end){0}, &(int64_t){0}));
        CHECK_OK(hl_session_read(t.session, "param", 0, n.n_flat, HL_DTYPE_F32, run.param));
        CHECK(memcmp(run.param, zeros, sizeof zeros) == 0);
        CHECK_OK(hl_plan_print(t.plan, &text));
        CHECK((strstr(text, "{algorithm 1 of 3}") != NULL) == !varying);
        CHECK((strstr(text, "{algorithm 3 of 3}") != NULL) == varying);
        hl_free(text);
        trainer_close(&t);
    }
    check_case("a plan whose algorithms all vary");
    net n = make_net(1);
    setenv("HOTLOOP_CUBLASLT_PATH", "none", 1);
    train(n, NULL, &want);
    setenv("HOTLOOP_CUBLASLT_PATH", FAKE_LT, 1);
    train(n, &(hl_fake_lt_config){.varying = ALL}, &got);
    CHECK_INT(got.by_library, 0);
    CHECK(find_gap() < 2e-5);
    trainer_deterministic = false;
}

/* A plan that owns slots, which its feed's loaders fill by its graph, is made again. */
static void test_loaders(void)
{
    enum { TIMES = 10 };
    static const int64_t rows[64];
    trainer_fed = true, trainer_loaders = 2, trainer_slots = 3;
    net n = make_net(1);
    train(n, &(hl_fake_lt_config){.refused = {134}}, &want);
    for (int i = 0; i < TIMES; i++) {
        trainer t;
        hl_shape shape = hl_shape_1d(n.rows);
        check_case("loaders, time %d", i);
        memset(&got, 0, sizeof got);
        begin(&t, &n, &(hl_fake_lt_config){.failing = {134}});
        CHECK_OK(hl_plan_input(t.plan, 0, HL_DTYPE_I64, &shape, rows)); /* takes the slots */
        CHECK_OK(hl_feed_seek(t.feed, 0, 0));
        run_steps(&t, N_STEPS, &got);
        CHECK_OK(hl_session_read(t.session, "param", 0, n.n_flat, HL_DTYPE_F32, got.param));
        CHECK(memcmp(got.param, want.param, sizeof got.param) == 0);
        trainer_close(&t);
    }
    trainer_fed = false, trainer_loaders = 0, trainer_slots = 2;
}

/* The run may be left after each product and when the plan was made again. */
static void test_asked(void)
{
    trainer t;
    const int stop = 1;
    int n_calls = 0;
    hl_run_end end;
    int64_t ran;
    check_case("asked");
    net n = make_net(1);
    begin(&t, &n, &(hl_fake_lt_config){.failing = {134}});
    do {
        CHECK_OK(hl_plan_run(t.plan, 1, 0, &stop, &end, &ran));
    } while (++n_calls < 100 && ran == 0 && end == HL_RUN_ASKED);
    CHECK_INT(ran, 1);
    CHECK(n_calls > 10);
    trainer_close(&t);
}

/* Each allocation of tuning and of making the plan again fails; the next run does it. */
static void test_allocations(void)
{
    for (int64_t k = 1;; k++) {
        trainer t;
        hl_run_end end;
        int64_t ran;
        check_case("allocation %d fails", (int)k);
        net n = make_net(1);
        trainer_deterministic = true;
        begin(&t, &n, &(hl_fake_lt_config){.failing = {134}});
        hl_alloc_fault(k, false);
        hl_status status = hl_plan_run(t.plan, 1, 0, NULL, &end, &ran);
        bool reached = hl_alloc_fault(0, false) >= k;
        if (status != HL_OK) CHECK_INT(status, HL_ERROR_MEMORY);
        CHECK_OK(hl_plan_run(t.plan, 1, 0, NULL, &end, &ran));
        CHECK_INT(ran, 1);
        trainer_close(&t);
        CHECK_INT(hl_fake_live_sum(), 0);
        CHECK_INT(lt_counts().live, 0);
        if (!reached) break;
    }
    trainer_deterministic = false;
}

/* Each call of the driver's does: an error, never another kernel. */
static void test_driver_failures(void)
{
    net n = make_net(1);
    train(n, &(hl_fake_lt_config){.refused = {134}}, &want);
    for (int64_t k = 1;; k++) {
        trainer t;
        hl_run_end end;
        int64_t ran;
        check_case("call %d of the driver fails", (int)k);
        begin(&t, &n, &(hl_fake_lt_config){.failing = {134}});
        hl_fake_fail(k, false, CUDA_ERROR_UNKNOWN);
        (void)hl_plan_run(t.plan, 1, 0, NULL, &end, &ran);
        int64_t n_seen = hl_fake_fail(0, false, 0);
        hl_fake_message_clear();
        CHECK_OK(hl_plan_run(t.plan, 1, 0, NULL, &end, &ran));
        outcome run = {0};
        count_nodes(t.plan, &run);
        CHECK_INT(run.by_library, want.by_library);
        trainer_close(&t);
        CHECK_INT(hl_fake_live_sum(), 0);
        if (n_seen < k) break;
    }
}

/* ---- another thread -------------------------------------------------------------------------- */

typedef struct finding {
    hl_device *device;
    hl_problem problem;
} finding;

static void find_out(void *context)
{
    const finding *f = context;
    CHECK_INT(hl_problem_refuse(f->device, &f->problem, HL_REFUSAL_FAILS), HL_ERROR_CONFIG);
}

/* While a plan is made, another one of the device finds out that the library fails: the plan is
 * made without it, wherever it stood. */
static void test_found_while_planning(void)
{
    hl_plan_options options = {.n_slots = 1, .k = 1, .fuse = true, .chain = true};
    bool reached = true;
    for (int64_t k = 1; reached; k++) {
        trainer t;
        hl_graph *graph;
        hl_plan *plan;
        finding f = {0};
        check_case("found in call %d of the driver", (int)k);
        net n = make_net(1);
        begin(&t, &n, NULL);
        for (int32_t s = 0; s < t.plan->schedule.n_tasks; s++) {
            const hl_instr *instr = &t.plan->instrs[s];
            char text[HL_FUSION_TEXT];
            hl_fusion_format(t.plan->graph, &t.plan->graph->nodes[instr->node], text);
            if (strcmp(text, "relu(x), gt(x, 0)") == 0)
                f.problem = ((const hl_tuned *)instr->state.impl)->problem;
        }
        f.device = t.device;
        CHECK_OK(hl_graph_create(&graph));
        CHECK_OK(net_build(graph, &n));
        hl_fake_hook(k, find_out, &f);
        CHECK_OK(hl_plan_create(t.session, graph, &options, &plan));
        reached = hl_fake_hook(0, NULL, NULL);
        hl_plan_destroy(plan);
        trainer_close(&t);
    }
}

int main(void)
{
    lt_library_find();
    setenv("HOTLOOP_CACHE_PATH", "", 1);
    setenv("HOTLOOP_CUBLASLT_PATH", FAKE_LT, 1);
    test_clock();
    test_apart();
    test_own_kernel();
    test_apart_is_kept();
    test_varying();
    test_nan();
    test_failing();
    test_nan_in_a_weight();
    test_slow();
    test_varying_plan();
    test_loaders();
    test_asked();
    test_allocations();
    test_driver_failures();
    test_found_while_planning();
    return CHECK_DONE();
}
