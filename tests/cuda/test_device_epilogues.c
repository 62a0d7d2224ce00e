/* Epilogues of products in whole training steps on the emulated GPU: with them (cuBLASLt), without
 * the library, with each of them refused, and without fusion, parameters and losses agree; what the
 * pass makes of a layer is what it promises. */
#include <stdlib.h>
#include <unistd.h>

#include "tests/c/train.h"
#include "tests/cuda/fake_table.h"
#include "tests/cuda/lt_library.h"

enum { N_NETS = 30, N_STEPS = 5, MAX_FLAT = 4096 };

typedef struct outcome {
    float param[MAX_FLAT], loss;
    int64_t n;                        /* parameters */
    int relus, masks, masked, sums;   /* fused */
    int gelus, both, grads, own_sums; /* the same of gelu */
    int pointwise_gelus;              /* and what is left of it */
    int norms, norm_grads;            /* batch norms that carry programs */
    int rounded_norms;                /* of the former, that give 16 bits */
} outcome;

static bool is_gelu(hl_pw_op op)
{
    return op == HL_PW_GELU || op == HL_PW_GELU_GRAD;
}

static int count_pointwise_gelus(const hl_node *node)
{
    int n = is_gelu(hl_pw_of_op(node->op));
    if (hl_node_is_anchor(node)) return n;
    for (int c = 0; node->program && c < node->program->n_code; c++)
        n += is_gelu((hl_pw_op)node->program->code[c].op);
    return n;
}

static void count_ends(const hl_plan *plan, outcome *out)
{
    for (int64_t i = 0; i < plan->graph->n_nodes; i++) {
        const hl_node *node = &plan->graph->nodes[i];
        char text[HL_FUSION_TEXT];
        hl_fusion_format(plan->graph, node, text);
        bool is_grad = strncmp(text, "gelu_grad", 9) == 0,
             is_masked = strncmp(text, "where", 5) == 0;
        bool is_summed = strstr(text, ", sum_rows") != NULL && text[1] != ':';
        out->relus += strcmp(text, "relu(x)") == 0;
        out->masks += strcmp(text, "relu(x), gt(x, 0)") == 0;
        out->masked += is_masked;
        out->sums += node->op == HL_OP_MATMUL && text[0] && text[1] == ':';
        out->gelus += strcmp(text, "gelu(x)") == 0;
        out->both += strcmp(text, "gelu(x), x") == 0;
        out->grads += is_grad;
        out->own_sums += is_summed;
        out->norms += node->op == HL_OP_BATCH_NORM && text[0];
        out->rounded_norms += node->op == HL_OP_BATCH_NORM && text[0] &&
                              hl_graph_dtype(plan->graph, node->out) != HL_DTYPE_F32;
        out->norm_grads += node->op == HL_OP_BATCH_NORM_GRAD && text[0];
        out->pointwise_gelus += count_pointwise_gelus(&plan->graph->nodes[i]);
    }
}

static void train(const hl_backend *backend, net n, bool fuse, outcome *out)
{
    trainer t;
    hl_run_end end;
    int64_t ran;
    memset(out, 0, sizeof *out);
    trainer_open(&t, backend, 1);
    trainer_plan(&t, &n, 1, fuse, true);
    t.net = n;
    trainer_fill(&t);
    for (int step = 0; step < N_STEPS; step++) {
        CHECK_OK(hl_plan_run(t.plan, 1, 0, NULL, &end, &ran));
        if (ran == 1) continue;
        CHECK_OK(hl_feed_seek(t.feed, step, 0));
        CHECK_OK(hl_plan_run(t.plan, 1, 0, NULL, &end, &ran));
    }
    out->n = n.n_flat;
    CHECK_OK(hl_session_read(t.session, "param", 0, n.n_flat, HL_DTYPE_F32, out->param));
    CHECK_OK(hl_plan_output(t.plan, 0, HL_DTYPE_F32, &out->loss));
    count_ends(t.plan, out);
    trainer_close(&t);
    CHECK(strcmp(hl_fake_message(), "") == 0);
}

static double find_gap(const outcome *a, const outcome *b)
{
    double gap = fabs((double)a->loss - (double)b->loss) / (1 + fabs((double)a->loss));
    for (int64_t i = 0; i < a->n; i++) {
        double apart = fabs((double)a->param[i] - (double)b->param[i]);
        if (!(apart <= gap)) gap = apart;
    }
    return gap;
}

static net roll_net(uint64_t seed)
{
    net n = net_roll(seed, 1);
    n.spec.optimizer = HL_OP_SGD; /* whose steps are as close as their gradients */
    n.spec.attrs = (hl_attrs){.sgd = {.momentum = 0.9}};
    n.batch_norm = false;
    static const int acts[] = {1, 4, 1, 2, 4}; /* relu, gelu, sigmoid */
    for (int i = 0; i < n.n_layers; i++) n.act[i] = acts[(seed + (uint64_t)i) % 5];
    return n;
}

static void use_library(const char *path, int refused)
{
    hl_fake_reset(NULL);
    lt_reset(&(hl_fake_lt_config){.refused = {refused}});
    setenv("HOTLOOP_CUBLASLT_PATH", path, 1);
}

static outcome want, got, again;

/* Bits of these may differ, by rounding. */
static void compare(const net *n, const char *how, double allowed)
{
    train(hl_fake_backend(), *n, true, &got);
    double gap = find_gap(&want, &got);
    if (!(gap <= allowed)) check_fail(__FILE__, __LINE__, "%s: %g apart", how, gap);
}

static void test_net(uint64_t seed, hl_dtype reduced, int *total)
{
    /* bias, relu, relu with a mask, drelu, gelu with its operand, dgelu, sums of a, sums of b */
    static const int refused[] = {4, 6, 134, 136, 164, 192, 256, 512};
    net n = roll_net(seed);
    double allowed = reduced == HL_DTYPE_F32 ? 2e-5 : 3e-2;
    check_case("net %d, %s", (int)seed, hl_dtype_name(reduced));
    trainer_dtype = reduced;
    use_library("none", 0);
    train(hl_fake_backend(), n, false, &want);
    compare(&n, "without the library", allowed);
    CHECK_INT(got.masks + got.masked + got.sums + got.gelus + got.both + got.grads, 0);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        use_library(FAKE_LT, refused[i]);
        compare(&n, "with a refusal", allowed);
        if (refused[i] == 134 || refused[i] == 136) CHECK_INT(got.masks + got.masked, 0);
        if (refused[i] == 164) CHECK_INT(got.both, 0); /* dgelu reads x where it lies */
        if (refused[i] == 192) CHECK_INT(got.both + got.grads, 0);
    }
    use_library(FAKE_LT, 0);
    compare(&n, "by the library", allowed);
    CHECK(got.masks <= got.masked && got.both == got.grads);
    *total += got.relus + got.masks + got.masked + got.sums + got.grads;
    trainer_capture = true;
    train(hl_fake_backend(), n, true, &again);
    trainer_capture = false;
    CHECK(memcmp(again.param, got.param, sizeof got.param) == 0);
}

/* Two hidden layers with relu: all of it but the last layer's bias gradient, which goes with the
 * loss. */
static void test_layers(void)
{
    net n = roll_net(0);
    check_case("layers");
    n.n_layers = 3, n.dropout = false, n.rows = 24, n.n_terms = 1;
    for (int i = 0; i < 3; i++) n.act[i] = 1, n.width[i] = 16;
    n.width[3] = 5;
    for (int reduced = 0; reduced < 2; reduced++) {
        trainer_dtype = reduced ? HL_DTYPE_BF16 : HL_DTYPE_F32;
        use_library(FAKE_LT, 0);
        train(hl_fake_backend(), n, true, &got);
        CHECK_INT(got.relus, 0);
        CHECK_INT(got.masks, 2);
        CHECK_INT(got.masked, 2);
        CHECK_INT(got.sums, 2);
        use_library("none", 0);
        train(hl_fake_backend(), n, true, &got);
        CHECK_INT(got.relus, 2);
        CHECK_INT(got.masks + got.masked + got.sums, 0);
    }
}

/* The same with gelu. Sums that have no place beside a product of weights' gradients stand with the
 * product that makes their matrix, unless its result is 16 bits. */
static void test_gelu_layers(void)
{
    net n = roll_net(0);
    n.n_layers = 3, n.dropout = false, n.rows = 24, n.n_terms = 1;
    for (int i = 0; i < 3; i++) n.act[i] = 4, n.width[i] = 16;
    n.width[3] = 5;
    for (int reduced = 0; reduced < 3; reduced++) {
        check_case("layers of gelu, reduced %d", reduced);
        trainer_dtype = reduced == 0 ? HL_DTYPE_F32 : reduced == 1 ? HL_DTYPE_BF16 : HL_DTYPE_F16;
        use_library("none", 0);
        train(hl_fake_backend(), n, true, &want);
        CHECK_INT(want.pointwise_gelus, 4);
        CHECK_INT(want.both + want.grads + want.gelus + want.sums + want.own_sums, 0);
        use_library(FAKE_LT, 0);
        compare(&n, "by the library", reduced ? 3e-2 : 2e-5);
        CHECK_INT(got.pointwise_gelus, 0);
        CHECK_INT(got.both, 2);
        CHECK_INT(got.grads, 2);
        CHECK_INT(got.sums, 2);
        CHECK_INT(got.own_sums, 0);
        use_library(FAKE_LT, 0);
        lt_reset(&(hl_fake_lt_config){.refused = {256, 512}});
        compare(&n, "without sums beside", reduced ? 3e-2 : 2e-5);
        CHECK_INT(got.grads, 2);
        CHECK_INT(got.sums, 0);
        CHECK_INT(got.own_sums, reduced ? 0 : 2);
    }
    trainer_dtype = HL_DTYPE_F32;
}

/* ---- batch norm, relu and dropout ---- */

enum { NORM_INS = 4, MAX_NORM_OUTS = 7, MAX_NORM_ELEMENTS = 6000 };

/* Of a norm's graph: as a layer has it, another factor before dropout's mask, the mask as the first
 * factor, gradients as the only outputs. */
typedef enum norm_form {
    AS_A_LAYER,
    OTHER_FACTOR,
    MASK_FIRST,
    GRADIENTS_ALONE,
    NORM_FORMS
} norm_form;

/* The value times the mask; 16 bits are rounded behind the product. */
static hl_id add_masked(hl_graph *graph, hl_id value, hl_id mask, bool mask_first)
{
    hl_dtype dtype = hl_graph_dtype(graph, value);
    hl_id as_float, out;
    CHECK_OK(hl_build_cast(graph, value, HL_DTYPE_F32, &as_float));
    hl_id factors[2] = {mask_first ? mask : as_float, mask_first ? as_float : mask};
    CHECK_OK(hl_graph_add(graph, HL_OP_MUL, factors, 2, NULL, &out));
    CHECK_OK(hl_build_cast(graph, out, dtype, &out));
    return out;
}

/* x, weight, bias, dy -> y, mean, var, dx, dweight, dbias, with relu and dropout in between. dtype:
 * of y and dx; read: of x and dy. Dropout scales by 2, which loses nothing in 16 bits. */
static hl_graph *make_norm(const hl_shape *shape, hl_dtype read, hl_dtype dtype, bool has_relu,
                           bool has_dropout, norm_form form)
{
    hl_graph *graph;
    hl_id in[NORM_INS], control, mask, norm, y, d, relu, out, other = HL_NONE;
    hl_type full = {read, *shape}, channels = {HL_DTYPE_F32, hl_shape_1d(shape->dim[1])};
    CHECK_OK(hl_graph_create(&graph));
    for (int i = 0; i < NORM_INS; i++)
        CHECK_OK(hl_graph_input(graph, "in", i == 1 || i == 2 ? channels : full, &in[i]));
    hl_attrs norm_attrs = {.batch_norm = {.eps = 1e-3, .dtype = dtype}}, attrs;
    CHECK_OK(hl_graph_add(graph, HL_OP_BATCH_NORM, in, 3, &norm_attrs, &norm));
    y = relu = norm, d = in[3];
    if (has_relu) CHECK_OK(hl_graph_add(graph, HL_OP_RELU, &norm, 1, NULL, &relu));
    y = relu;
    if (form == OTHER_FACTOR) other = add_masked(graph, relu, in[0], false);
    if (has_dropout) {
        hl_attrs_init(HL_SCHEMA_dropout_mask, &attrs);
        attrs.dropout_mask.shape = hl_ints_of(shape);
        attrs.dropout_mask.p = 0.5, attrs.dropout_mask.stream = "drop";
        attrs.dropout_mask.dtype = HL_DTYPE_F32;
        CHECK_OK(hl_graph_control(graph, &control));
        CHECK_OK(hl_graph_add(graph, HL_OP_DROPOUT_MASK, &control, 1, &attrs, &mask));
        y = add_masked(graph, relu, mask, form == MASK_FIRST);
        d = add_masked(graph, d, mask, form == MASK_FIRST);
    }
    if (has_relu) CHECK_OK(hl_graph_add(graph, HL_OP_RELU_GRAD, (hl_id[]){d, relu}, 2, NULL, &d));
    CHECK_OK(hl_graph_add(graph, HL_OP_BATCH_NORM_GRAD,
                          (hl_id[]){d, in[0], in[1], norm + 1, norm + 2}, 5, &norm_attrs, &out));
    if (form != GRADIENTS_ALONE) CHECK_OK(hl_graph_output(graph, y));
    for (int i = 1; i < 3; i++) CHECK_OK(hl_graph_output(graph, norm + i));
    for (int i = 0; i < 3; i++) CHECK_OK(hl_graph_output(graph, out + i));
    if (form == OTHER_FACTOR) CHECK_OK(hl_graph_output(graph, other));
    return graph;
}

/* The outputs one after another; how many nodes carry programs. */
static int run_norm(hl_graph *graph, bool fuse, float *out, int64_t *out_n)
{
    hl_device *device;
    hl_session *session;
    hl_plan *plan;
    hl_run_end end;
    int64_t ran;
    int n_fused = 0;
    static float data[MAX_NORM_ELEMENTS];
    hl_shape shapes[MAX_NORM_OUTS];
    int32_t n_outputs = (int32_t)graph->n_outputs;
    dice_state = 5;
    for (int i = 0; i < n_outputs; i++) shapes[i] = *hl_graph_shape(graph, graph->outputs[i]);
    CHECK_OK(
        hl_fake_backend()->device_open(hl_fake_backend(), 0, &(hl_device_options){0}, &device));
    CHECK_OK(hl_session_create(device, &session));
    hl_plan_options options = {.n_slots = 1, .k = 1, .fuse = fuse, .chain = true};
    CHECK_OK(hl_plan_create(session, graph, &options, &plan));
    for (int32_t i = 0; i < NORM_INS; i++) {
        const hl_type *type = &plan->graph->values[plan->inputs[i]].type;
        for (int64_t e = 0; e < hl_shape_numel(&type->shape); e++) data[e] = (float)dice_draw();
        CHECK_OK(hl_plan_input(plan, i, HL_DTYPE_F32, &type->shape, data));
    }
    CHECK_OK(hl_plan_run(plan, 1, 0, NULL, &end, &ran));
    *out_n = 0;
    for (int32_t i = 0; i < n_outputs; i++) {
        CHECK_OK(hl_plan_output(plan, i, HL_DTYPE_F32, out + *out_n));
        *out_n += hl_shape_numel(&shapes[i]);
    }
    for (int64_t i = 0; i < plan->graph->n_nodes; i++)
        n_fused += hl_node_is_anchor(&plan->graph->nodes[i]);
    hl_plan_destroy(plan);
    hl_session_destroy(session);
    device->ops->destroy(device);
    CHECK(strcmp(hl_fake_message(), "") == 0);
    return n_fused;
}

/* One launch each way has the bits of several: in columns that a block holds, in more rows, and in
 * planes; with results in float32 and in 16 bits. */
static void test_norms(void)
{
    static const hl_shape shapes[] = {{2, {24, 13}}, {2, {24, 40}},  {2, {1, 8}},
                                      {2, {70, 33}}, {2, {1030, 5}}, {3, {5, 6, 7}}};
    static float apart[4 * MAX_NORM_ELEMENTS], fused[4 * MAX_NORM_ELEMENTS];
    hl_graph *graph;
    int64_t n;
    use_library("none", 0);
    static const hl_dtype dtypes[] = {HL_DTYPE_F32, HL_DTYPE_BF16, HL_DTYPE_F16};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int kind = 0; kind < 15; kind++) {
            hl_dtype dtype = dtypes[kind / 3 % 3], read = dtypes[kind < 9 ? 0 : kind / 3 - 2];
            bool has_relu = kind % 3 < 2, has_dropout = kind % 3 > 0;
            if (kind >= 9) dtype = read;
            check_case("batch norm of shape %d, %s to %s, relu %d, dropout %d", (int)s,
                       hl_dtype_name(read), hl_dtype_name(dtype), has_relu, has_dropout);
            graph = make_norm(&shapes[s], read, dtype, has_relu, has_dropout, AS_A_LAYER);
            CHECK_INT(run_norm(graph, false, apart, &n), 0);
            graph = make_norm(&shapes[s], read, dtype, has_relu, has_dropout, AS_A_LAYER);
            CHECK_INT(run_norm(graph, true, fused, &n), has_relu ? 2 : 1);
            for (int64_t i = 0; i < n; i++) CHECK(apart[i] == fused[i]); /* 0 has two signs */
        }
    for (int form = 0; form < NORM_FORMS; form++)
        for (int d = 0; d < 2; d++) {
            check_case("form %d of batch norm, %s", form, hl_dtype_name(dtypes[d]));
            graph = make_norm(&shapes[0], HL_DTYPE_F32, dtypes[d], true, true, (norm_form)form);
            run_norm(graph, false, apart, &n);
            graph = make_norm(&shapes[0], HL_DTYPE_F32, dtypes[d], true, true, (norm_form)form);
            int n_fused = run_norm(graph, true, fused, &n);
            CHECK(form != MASK_FIRST || n_fused == 2);
            for (int64_t i = 0; i < n; i++) CHECK(apart[i] == fused[i]);
        }
}

/* The same in whole trainings. */
static void test_norm_layers(void)
{
    for (int kind = 0; kind < 2; kind++) {
        net n = roll_net(0);
        check_case("layers of batch norm, dropout %d", kind);
        n.batch_norm = true, n.dropout = kind, n.n_terms = 1, n.rows = 24, n.n_layers = 3;
        for (int i = 0; i < 3; i++) n.act[i] = 1, n.width[i] = 13;
        n.width[3] = 5;
        use_library("none", 0);
        train(hl_fake_backend(), n, false, &want);
        CHECK_INT(want.norms + want.norm_grads, 0);
        train(hl_fake_backend(), n, true, &got);
        CHECK_INT(got.norms, 1);
        CHECK_INT(got.norm_grads, 1);
        CHECK(memcmp(want.param, got.param, sizeof got.param) == 0);
        CHECK(want.loss == got.loss);
        /* In 16 bits dropout's factor is rounded with the rest of it, not once more. */
        trainer_dtype = HL_DTYPE_BF16;
        train(hl_fake_backend(), n, false, &want);
        train(hl_fake_backend(), n, true, &got);
        CHECK_INT(got.norms, 1);
        CHECK_INT(got.rounded_norms, 1);
        CHECK_INT(got.norm_grads, 1);
        CHECK(find_gap(&want, &got) <= (n.dropout ? 3e-2 : 0));
        trainer_dtype = HL_DTYPE_F32;
    }
}

/* Bytes per element of an activation (rows, width) that nodes read and write, each operand and
 * result once and a product what it gives: forward from the first product to the second one, and
 * backward, where a weight gradient sums its operand for the bias. */
static void count_norm_bytes(const hl_graph *graph, int64_t rows, int64_t width,
                             double *out_forward, double *out_backward)
{
    int n_products = 0;
    *out_forward = *out_backward = 0;
    for (int64_t i = 0; i < graph->n_nodes; i++) {
        const hl_node *node = &graph->nodes[i];
        bool is_product = hl_op_is_product(node->op);
        n_products += is_product;
        if (n_products == 0) continue;
        for (int32_t v = 0; v < node->n_in + node->n_out; v++) {
            hl_id id = v < node->n_in ? node->in[v] : node->out + v - node->n_in;
            const hl_type *type = &graph->values[id].type;
            bool is_read_by_product = is_product && v < node->n_in;
            if (hl_shape_numel(&type->shape) != rows * width || is_read_by_product) continue;
            *(n_products == 1 ? out_forward : out_backward) += (double)hl_dtype_bytes(type->dtype);
        }
    }
}

/* Linear, batch norm, relu under mixed precision: 16 bits from the product to the next one, and
 * back. */
static void test_norm_bytes(void)
{
    static const hl_dtype dtypes[] = {HL_DTYPE_F32, HL_DTYPE_BF16, HL_DTYPE_F16};
    trainer t;
    net n = roll_net(0);
    double forward, backward;
    n.batch_norm = true, n.n_terms = 1, n.n_layers = 2, n.denominator[0] = BY_ROWS;
    n.act[0] = 1, n.rows = 24, n.width[0] = 7, n.width[1] = 13, n.width[2] = 5;
    use_library("none", 0);
    for (int kind = 0; kind < 6; kind++) {
        trainer_dtype = dtypes[kind % 3];
        n.dropout = kind >= 3;
        check_case("bytes of linear, batch norm, relu in %s, dropout %d",
                   hl_dtype_name(trainer_dtype), n.dropout);
        trainer_open(&t, hl_fake_backend(), 1);
        trainer_plan(&t, &n, 1, true, true);
        count_norm_bytes(t.plan->graph, n.rows, n.width[1], &forward, &backward);
        CHECK(forward == (kind % 3 ? 6 : 12));
        CHECK_INT((int)backward, kind % 3 ? 10 : 20);
        trainer_close(&t);
    }
    trainer_dtype = HL_DTYPE_F32;
}

/* The stop flag is polled after each product that is autotuned; the next call goes on there. */
static void test_asked(void)
{
    trainer t;
    net n = roll_net(0);
    const int stop = 1;
    int n_calls = 0;
    hl_run_end end;
    int64_t ran;
    check_case("asked");
    use_library(FAKE_LT, 0);
    trainer_open(&t, hl_fake_backend(), 1);
    trainer_plan(&t, &n, 1, true, true);
    t.net = n;
    trainer_fill(&t);
    do {
        CHECK_OK(hl_plan_run(t.plan, 1, 0, &stop, &end, &ran));
    } while (++n_calls < 100 && ran == 0 && end == HL_RUN_ASKED);
    CHECK_INT(ran, 1);
    CHECK(n_calls > n.n_layers);
    trainer_close(&t);
}

/* Each allocation of a plan's making fails in turn. */
static void test_allocations(void)
{
    trainer t;
    net n = roll_net(0);
    hl_plan_options options = {.n_slots = 2, .k = 1, .fuse = true, .chain = true};
    use_library(FAKE_LT, 0);
    trainer_open(&t, hl_fake_backend(), 1);
    for (int64_t k = 1;; k++) {
        hl_graph *graph;
        check_case("allocation %d of a plan fails", (int)k);
        CHECK_OK(hl_graph_create(&graph));
        CHECK_OK(net_build(graph, &n));
        hl_alloc_fault(k, false);
        hl_status status = hl_plan_create(t.session, graph, &options, &t.plan);
        bool reached = hl_alloc_fault(0, false) >= k;
        if (reached && status != HL_OK) CHECK_INT(status, HL_ERROR_MEMORY);
        if (!reached) CHECK_OK(status);
        hl_plan_destroy(t.plan);
        if (!reached) break;
    }
    hl_session_destroy(t.session);
    t.device->ops->destroy(t.device);
    CHECK_INT(hl_fake_live_sum(), 0);
    CHECK_INT(lt_counts().live, 0);
}

static void plan_once(hl_session *session, net *n)
{
    hl_graph *graph;
    hl_plan *plan;
    hl_plan_options options = {.n_slots = 2, .k = 1, .fuse = true, .chain = true};
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(net_build(graph, n));
    CHECK_OK(hl_plan_create(session, graph, &options, &plan));
    hl_plan_destroy(plan);
}

/* The heuristics are asked once about a product, whichever passes, plans and sessions of the device
 * want to know, and whether they know an algorithm or not; another device asks again. */
static void test_searches(int refused)
{
    net n = roll_net(0);
    int64_t first = 0;
    n.n_layers = 3, n.rows = 24;
    for (int i = 0; i < 3; i++) n.act[i] = i == 1 ? 4 : 1, n.width[i] = 16;
    use_library(FAKE_LT, refused);
    for (int device = 0; device < 2; device++) {
        trainer t;
        hl_session *other;
        trainer_open(&t, hl_fake_backend(), 1);
        CHECK_OK(hl_session_create(t.device, &other));
        for (int plan = 0; plan < 3; plan++) {
            check_case("searches: epilogue %d refused, device %d, plan %d", refused, device, plan);
            plan_once(plan == 2 ? other : t.session, &n);
            CHECK(lt_counts().problems > n.n_layers);
            CHECK_INT(lt_counts().searches, lt_counts().problems * (1 + device));
            if (plan + device == 0) first = lt_counts().searches;
            CHECK_INT(lt_counts().searches, first * (1 + device));
        }
        hl_session_destroy(other);
        hl_session_destroy(t.session);
        t.device->ops->destroy(t.device);
    }
}

int main(void)
{
    lt_library_find();
    setenv("HOTLOOP_CACHE_PATH", "", 1);
    int total = 0;
    for (uint64_t seed = 0; seed < N_NETS; seed++) {
        test_net(seed, HL_DTYPE_F32, &total);
        if (seed % 3 == 0) test_net(seed, HL_DTYPE_BF16, &total);
    }
    check_case("%s", "");
    CHECK(total > N_NETS);
    test_layers();
    test_gelu_layers();
    test_norms();
    test_norm_layers();
    test_norm_bytes();
    test_asked();
    test_searches(0);
    test_searches(134); /* relu with a mask and a bias */
    test_allocations();
    CHECK_INT(lt_counts().live, 0);
    return CHECK_DONE();
}
