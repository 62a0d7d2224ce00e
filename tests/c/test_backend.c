/* The backend contract above kernels: registry, choice of a kernel with its reasons, the null
 * device, and every transition of the control block. */
#include <math.h>

#include "backend/backend.h"
#include "base/alloc.h"
#include "base/log.h"
#include "ops/build.h"
#include "passes/schedule.h"
#include "tests/c/check.h"
#include "tests/c/fusion_case.h"

/* ---- registry and choice --------------------------------------------------------------------- */

static void test_registry(void)
{
    static hl_backend many[HL_REGISTRY_MAX + 1];
    static const char *const names[] = {"b0", "b1", "b2", "b3", "b4", "b5", "b6", "b7", "b8"};
    hl_registry registry = {0};
    CHECK(hl_registry_find(&registry, "null") == NULL);
    CHECK_OK(hl_registry_add(&registry, hl_null_backend()));
    CHECK(hl_registry_find(&registry, "null") == hl_null_backend());
    CHECK_ERROR(hl_registry_add(&registry, hl_null_backend()), HL_ERROR_CONFIG, "got null again");
    for (int i = 1; i < HL_REGISTRY_MAX; i++) {
        many[i].name = names[i];
        CHECK_OK(hl_registry_add(&registry, &many[i]));
    }
    many[HL_REGISTRY_MAX].name = names[HL_REGISTRY_MAX];
    CHECK_ERROR(hl_registry_add(&registry, &many[HL_REGISTRY_MAX]), HL_ERROR_CONFIG, "at most 8");
    CHECK(hl_registry_find(&registry, "b7") == &many[7]);
    CHECK_INT(registry.n, HL_REGISTRY_MAX);
}

static hl_status query_refuse(hl_device *device, const hl_graph *graph, hl_node_id node,
                              hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device, (void)graph, (void)node;
    out_req->scratch_bytes = 77;
    return hl_reason_set(out_why_not, "needs K >= %d, got 3", 8);
}

static hl_status query_accept(hl_device *device, const hl_graph *graph, hl_node_id node,
                              hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device, (void)graph, (void)node, (void)out_why_not;
    out_req->rows = 5;
    return HL_OK;
}

static hl_status query_sure(hl_device *device, const hl_graph *graph, hl_node_id node,
                            hl_kernel_req *out_req, hl_reason *out_why_not)
{
    out_req->deterministic = true;
    return query_accept(device, graph, node, out_req, out_why_not);
}

static hl_status query_fail(hl_device *device, const hl_graph *graph, hl_node_id node,
                            hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device, (void)graph, (void)node, (void)out_req, (void)out_why_not;
    return hl_status_set(HL_ERROR_MEMORY, "memory: no room");
}

static const hl_kernel fast = {.op = HL_OP_NEG, .name = "fake.fast", .query = query_refuse};
static const hl_kernel plain = {.op = HL_OP_NEG, .name = "fake.plain", .query = query_accept};
static const hl_kernel sure = {.op = HL_OP_NEG, .name = "fake.sure", .query = query_sure};
static const hl_kernel broken = {.op = HL_OP_NEG, .name = "fake.broken", .query = query_fail};
static const hl_kernel *fake_list[3], *fake_exp[2];

static const hl_kernel *const *list_fake(const hl_device *device, hl_op op)
{
    (void)device;
    return op == HL_OP_NEG ? fake_list : fake_exp[0] ? fake_exp : NULL;
}

/* Of NEG and of EXP. */
static void set_fake_lists(const hl_kernel *neg, const hl_kernel *exp)
{
    fake_list[0] = neg, fake_list[1] = NULL;
    fake_exp[0] = exp, fake_exp[1] = NULL;
}

static void set_fake_list(const hl_kernel *first, const hl_kernel *second)
{
    fake_list[0] = first;
    fake_list[1] = second;
    fake_list[2] = NULL;
}

static void test_select(void)
{
    const hl_device_ops ops = {.kernels = list_fake};
    hl_device device = {.ops = &ops, .name = "fake"};
    hl_node nodes[] = {{.op = HL_OP_NEG}, {.op = HL_OP_EXP}};
    hl_graph graph = {.nodes = nodes, .n_nodes = 2};
    const hl_kernel *kernel;
    hl_kernel_req req;
    hl_log_level level;
    char line[256];
    while (hl_log_take(&level, line, sizeof line)) continue;

    set_fake_list(&fast, &plain);
    CHECK_OK(hl_kernel_select(&device, &graph, 0, false, &kernel, &req));
    CHECK(kernel == &plain);
    CHECK_INT(req.scratch_bytes, 0); /* nothing of the refusing kernel is left */
    CHECK_INT(req.rows, 5);
    CHECK_INT(req.grain, 1);
    CHECK(hl_log_take(&level, line, sizeof line) && level == HL_LOG_DEBUG);
    CHECK(strstr(line, "fake.fast") && strstr(line, "needs K >= 8, got 3"));

    set_fake_list(&fast, NULL);
    CHECK_ERROR(hl_kernel_select(&device, &graph, 0, false, &kernel, &req), HL_ERROR_DEVICE,
                "needs K >= 8, got 3");
    CHECK(kernel == NULL);
    CHECK_OK(hl_kernel_find(&device, &graph, 0, false, &kernel, &req));
    CHECK(kernel == NULL);
    CHECK_INT(req.scratch_bytes, 0);
    CHECK_ERROR(hl_kernel_select(&device, &graph, 1, false, &kernel, &req), HL_ERROR_DEVICE,
                "none for this op");

    /* query_accept says nothing of its bits. */
    set_fake_list(&plain, &sure);
    CHECK_OK(hl_kernel_select(&device, &graph, 0, false, &kernel, &req));
    CHECK(kernel == &plain);
    CHECK_OK(hl_kernel_select(&device, &graph, 0, true, &kernel, &req));
    CHECK(kernel == &sure);
    set_fake_list(&plain, NULL);
    CHECK_ERROR(hl_kernel_select(&device, &graph, 0, true, &kernel, &req), HL_ERROR_DEVICE,
                "neg: the device must have a kernel, got none on fake (fake.plain is not "
                "deterministic, as was asked for)");
    CHECK_OK(hl_kernel_find(&device, &graph, 0, true, &kernel, &req));
    CHECK(kernel == NULL);

    set_fake_list(&broken, &plain);
    CHECK_ERROR(hl_kernel_find(&device, &graph, 0, false, &kernel, &req), HL_ERROR_MEMORY,
                "fake.broken");
    CHECK(kernel == NULL);
}

/* ---- programs ---- */

enum { FORM = 7, FORM_BYTES = 40 };
static uint32_t form_read;

static hl_status query_saves(hl_device *device, const hl_graph *graph, hl_node_id node,
                             hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device, (void)graph, (void)node, (void)out_why_not;
    out_req->saved[0] = (hl_saved){FORM, FORM_BYTES};
    return HL_OK;
}

static hl_status query_reads(hl_device *device, const hl_graph *graph, hl_node_id node,
                             hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device, (void)out_why_not;
    CHECK_INT(hl_graph_form(graph, graph->nodes[node].in[0]), FORM);
    out_req->form_in[0] = form_read;
    return HL_OK;
}

static const char *const relu_alone[] = {"", "relu(x)", NULL};
static const hl_kernel fusing = {
    .op = HL_OP_NEG, .name = "fake.fusing", .fusions = relu_alone, .query = query_sure};
static const hl_kernel saves = {.op = HL_OP_NEG, .name = "fake.saves", .query = query_saves};
static const hl_kernel reads = {.op = HL_OP_EXP, .name = "fake.reads", .query = query_reads};

/* A kernel is asked about programs that it names, and about no others. */
static void test_programs(void)
{
    const hl_device_ops ops = {.kernels = list_fake};
    hl_device device = {.ops = &ops, .name = "fake"};
    hl_type type = {HL_DTYPE_F32, hl_shape_2d(3, 4)};
    static const char *const texts[] = {"", "relu(x)", "relu(x), gt(x, 0)", "tanh(relu(x))"};
    for (int i = 0; i < 4; i++) {
        hl_graph *graph;
        hl_id x, out;
        const hl_kernel *kernel;
        hl_kernel_req req;
        check_case("programs %s", texts[i]);
        CHECK_OK(hl_graph_create(&graph));
        CHECK_OK(hl_graph_input(graph, "x", type, &x));
        CHECK_OK(fusion_add(graph, HL_OP_NEG, &x, 1, NULL, texts[i], &out));
        CHECK_OK(hl_graph_verify(graph));
        set_fake_list(&plain, &fusing);
        CHECK_OK(hl_kernel_find(&device, graph, 0, false, &kernel, &req));
        CHECK(kernel == (i == 0 ? &plain : i == 1 ? &fusing : NULL));
        if (i == 3)
            CHECK_ERROR(hl_kernel_select(&device, graph, 0, false, &kernel, &req), HL_ERROR_DEVICE,
                        "got tanh(relu(x))");
        hl_graph_destroy(graph);
    }
}

/* ---- and fences ---- */

typedef enum fenced {
    NOTHING_FENCED,
    CHAIN_FENCED,      /* what reads an anchor's result */
    ANCHOR_FENCED,     /* an anchor whose operand is made before */
    ACTIVATION_FENCED, /* an activation, and all behind it */
    GRADIENT_FENCED,   /* its gradient, but not the anchor of that one's dy */
    N_FENCED
} fenced;

/* relu behind an anchor and before one, and relu with its gradient; outputs: the three. */
static hl_graph *make_fenced(fenced where)
{
    hl_graph *graph;
    hl_id x[3], y, dy;
    hl_type type = {HL_DTYPE_F32, hl_shape_2d(3, 4)};
    CHECK_OK(hl_graph_create(&graph));
    for (int i = 0; i < 3; i++) CHECK_OK(hl_graph_input(graph, "x", type, &x[i]));
    CHECK_OK(hl_build_unary(graph, HL_OP_NEG, x[0], &y));
    graph->fence = where == CHAIN_FENCED;
    CHECK_OK(hl_build_unary(graph, HL_OP_RELU, y, &y));
    CHECK_OK(hl_graph_output(graph, y));
    graph->fence = 0;
    CHECK_OK(hl_build_unary(graph, HL_OP_RELU, x[1], &y));
    graph->fence = where == ANCHOR_FENCED;
    CHECK_OK(hl_build_unary(graph, HL_OP_NEG, y, &y));
    CHECK_OK(hl_graph_output(graph, y));
    graph->fence = 0;
    CHECK_OK(hl_build_unary(graph, HL_OP_NEG, x[2], &y));
    graph->fence = where == ACTIVATION_FENCED;
    CHECK_OK(hl_build_unary(graph, HL_OP_RELU, y, &y));
    CHECK_OK(hl_build_unary(graph, HL_OP_NEG, x[0], &dy));
    graph->fence = where == ACTIVATION_FENCED || where == GRADIENT_FENCED;
    CHECK_OK(hl_build_binary(graph, HL_OP_RELU_GRAD, dy, y, &dy));
    CHECK_OK(hl_build_binary(graph, HL_OP_ADD, dy, y, &y));
    CHECK_OK(hl_graph_output(graph, y));
    return graph;
}

/* A node takes no program that stands behind another fence. (relu whose gradient can't be fused is
 * one alone.) */
static void test_programs_and_fences(void)
{
    static const char *const texts[] = {
        "", "relu(x)", "a: relu(x)", "relu(x), gt(x, 0)", "where(y, x, 0)", NULL};
    static const hl_kernel anchor = {
        .op = HL_OP_NEG, .name = "fake.anchor", .fusions = texts, .query = query_sure};
    const hl_device_ops ops = {.kernels = list_fake};
    hl_device device = {.ops = &ops, .name = "fake"};
    set_fake_lists(&anchor, NULL);
    for (int where = 0; where < N_FENCED; where++) {
        check_case("fence %d", where);
        hl_graph *graph = make_fenced((fenced)where);
        int n_anchors = 0;
        CHECK_OK(hl_pass_epilogue(graph, &device, false));
        for (int64_t i = 0; i < graph->n_nodes; i++)
            n_anchors += hl_node_is_anchor(&graph->nodes[i]);
        CHECK_INT(n_anchors, where == NOTHING_FENCED ? 4 : where == ACTIVATION_FENCED ? 2 : 3);
        hl_graph_destroy(graph);
    }
}

/* ---- and saved values ---- */

/* The form that a kernel saves a value in goes with the value, through views, and only kernels that
 * say that they read it get it. */
static void test_forms(void)
{
    const hl_device_ops ops = {.kernels = list_fake};
    hl_device device = {.ops = &ops, .name = "fake"};
    hl_type type = {HL_DTYPE_F32, hl_shape_2d(3, 4)};
    hl_graph *graph;
    hl_id x, made, view, out;
    hl_choice *choices;
    hl_attrs flat = {.shape = {{1, {12}}}};
    check_case("forms");
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(hl_graph_input(graph, "x", type, &x));
    CHECK_OK(hl_graph_add(graph, HL_OP_NEG, &x, 1, NULL, &made));
    CHECK_OK(hl_graph_add(graph, HL_OP_RESHAPE, &made, 1, &flat, &view));
    CHECK_OK(hl_graph_add(graph, HL_OP_EXP, &view, 1, NULL, &out));
    CHECK_OK(hl_graph_output(graph, out));
    set_fake_lists(&saves, &plain);
    CHECK_ERROR(hl_pass_select(graph, &device, false, &choices), HL_ERROR_DEVICE,
                "operand 0 in form 0, got form 7");
    set_fake_lists(&saves, &reads);
    form_read = FORM + 1;
    CHECK_ERROR(hl_pass_select(graph, &device, false, &choices), HL_ERROR_DEVICE,
                "operand 0 in form 8, got form 7");
    form_read = FORM;
    CHECK_OK(hl_pass_select(graph, &device, false, &choices));
    CHECK(choices[0].kernel == &saves && !choices[1].kernel && choices[2].kernel == &reads);
    CHECK_INT(graph->values[made].form, FORM);
    CHECK_INT(hl_graph_form(graph, view), FORM);
    CHECK_INT(hl_value_bytes(graph, made), FORM_BYTES);
    CHECK_INT(hl_value_bytes(graph, view), FORM_BYTES);
    CHECK_INT(hl_value_bytes(graph, out), 48);
    hl_free(choices);
    /* What a form was set for is made by no other kernel, */
    set_fake_lists(&plain, &reads);
    CHECK_ERROR(hl_pass_select(graph, &device, false, &choices), HL_ERROR_DEVICE,
                "output 0 must have form 7, got form 0");
    /* and no caller reads it. */
    CHECK_OK(hl_graph_output(graph, made));
    set_fake_lists(&saves, &reads);
    CHECK_ERROR(hl_pass_select(graph, &device, false, &choices), HL_ERROR_INTERNAL, "plain form");
    hl_graph_destroy(graph);
}

/* ---- layouts ---- */

/* Takes a running sum along the first dim alone: wants the axis there, the others in their order.
 */
static hl_status query_first_axis(hl_device *device, const hl_graph *graph, hl_node_id id,
                                  hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device, (void)out_why_not;
    const hl_node *node = &graph->nodes[id];
    int64_t axis = hl_node_axes(node).at[0];
    int32_t rank = hl_graph_shape(graph, node->in[0])->rank;
    out_req->deterministic = true;
    if (axis == 0) return HL_OK;
    out_req->order = (hl_ints){rank, {axis}};
    for (int32_t d = 0, n = 1; d < rank; d++)
        if (d != axis) out_req->order.at[n++] = d;
    return HL_OK;
}

static const hl_kernel by_first = {
    .op = HL_OP_CUMSUM, .name = "fake.by_first", .query = query_first_axis};
static const hl_kernel copies = {.op = HL_OP_PERMUTE, .name = "fake.copies", .query = query_sure};

static const hl_kernel *const *list_layouts(const hl_device *device, hl_op op)
{
    static const hl_kernel *const scans[] = {&by_first, NULL}, *const turns[] = {&copies, NULL};
    (void)device;
    return op == HL_OP_CUMSUM ? scans : op == HL_OP_PERMUTE ? turns : NULL;
}

static int count_nodes(const hl_graph *graph, hl_op op)
{
    int n = 0;
    for (int64_t i = 0; i < graph->n_nodes; i++) n += graph->nodes[i].op == op;
    return n;
}

/* Nodes get the order of dims that their kernel takes; where two in a row take the same one, there
 * is no permutation between them. */
static void test_layouts(void)
{
    const hl_device_ops ops = {.kernels = list_layouts};
    hl_device device = {.ops = &ops, .name = "fake"};
    hl_type type = {HL_DTYPE_F32, {3, {2, 3, 4}}};
    hl_attrs attrs = {.scan = {.axis = 2}};
    hl_graph *graph;
    hl_id x, out;
    const hl_kernel *kernel;
    hl_kernel_req req;
    hl_choice *choices;
    check_case("layouts");
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(hl_graph_input(graph, "x", type, &x));
    CHECK_OK(hl_graph_add(graph, HL_OP_CUMSUM, &x, 1, &attrs, &out));
    CHECK_OK(hl_graph_add(graph, HL_OP_CUMSUM, &out, 1, &attrs, &out));
    CHECK_OK(hl_graph_output(graph, out));
    CHECK_ERROR(hl_kernel_select(&device, graph, 0, false, &kernel, &req), HL_ERROR_DEVICE,
                "needs its dims in the order (2, 0, 1)");
    CHECK_OK(hl_kernel_find(&device, graph, 0, false, &kernel, &req));
    CHECK(kernel == NULL && req.order.n == 0);
    CHECK_OK(hl_kernel_find_in_any_order(&device, graph, 0, false, &kernel, &req));
    CHECK(kernel == &by_first && req.order.n == 3 && req.order.at[0] == 2);
    CHECK_OK(hl_pass_lower(graph, &device, false));
    CHECK_INT(count_nodes(graph, HL_OP_PERMUTE), 4);
    CHECK_OK(hl_pass_layout(graph));
    CHECK_INT(count_nodes(graph, HL_OP_PERMUTE), 2);
    CHECK_INT(count_nodes(graph, HL_OP_CUMSUM), 2);
    CHECK_OK(hl_graph_verify(graph));
    CHECK(hl_shape_equal(hl_graph_shape(graph, graph->outputs[0]), &type.shape));
    CHECK_OK(hl_pass_select(graph, &device, false, &choices));
    hl_free(choices);
    hl_graph_destroy(graph);

    /* A kernel must not want an order that its op does not take. */
    check_case("no such layout");
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(hl_graph_input(graph, "x", type, &x));
    CHECK_OK(hl_graph_add(graph, HL_OP_SOFTMAX, &x, 1, NULL, &out));
    hl_id made;
    CHECK_ERROR(hl_build_in_order(graph, 0, &(hl_ints){3, {2, 0, 1}}, &made), HL_ERROR_INTERNAL,
                "softmax: it must take another order of dims");
    hl_graph_destroy(graph);
}

/* ---- results that nobody reads ---- */

static hl_status query_eager(hl_device *device, const hl_graph *graph, hl_node_id id,
                             hl_kernel_req *out_req, hl_reason *out_why_not)
{
    out_req->wants_read = 1 << 0;
    return query_sure(device, graph, id, out_req, out_why_not);
}

static const hl_kernel norm_eager = {
    .op = HL_OP_BATCH_NORM_GRAD, .name = "fake.eager", .query = query_eager};
static const hl_kernel norm_sure = {
    .op = HL_OP_BATCH_NORM_GRAD, .name = "fake.sure", .query = query_sure};
static const hl_kernel *norm_list[2];

static const hl_kernel *const *list_norm(const hl_device *device, hl_op op)
{
    static const hl_kernel *const any[] = {&sure, NULL};
    (void)device;
    return op == HL_OP_BATCH_NORM_GRAD ? norm_list : any;
}

/* A node stays as it is unless its kernel wants a result read that nobody reads. */
static void test_unread_results(void)
{
    const hl_device_ops ops = {.kernels = list_norm};
    hl_device device = {.ops = &ops, .name = "fake"};
    hl_type type = {HL_DTYPE_F32, {2, {8, 3}}}, row = {HL_DTYPE_F32, {1, {3}}};
    hl_attrs attrs = {.batch_norm = {.eps = 1e-5, .dtype = HL_DTYPE_F32}};
    for (int k = 0; k < 4; k++) {
        bool is_read = k & 1, is_eager = k & 2;
        hl_graph *graph;
        hl_id in[5], out;
        check_case("dx is read: %d, kernel wants it: %d", is_read, is_eager);
        norm_list[0] = is_eager ? &norm_eager : &norm_sure;
        CHECK_OK(hl_graph_create(&graph));
        for (int j = 0; j < 5; j++)
            CHECK_OK(hl_graph_input(graph, (const char *[]){"dy", "x", "w", "m", "v"}[j],
                                    j < 2 ? type : row, &in[j]));
        CHECK_OK(hl_graph_add(graph, HL_OP_BATCH_NORM_GRAD, in, 5, &attrs, &out));
        CHECK_OK(hl_graph_output(graph, out + 1));
        if (is_read) CHECK_OK(hl_graph_output(graph, out));
        CHECK_OK(hl_pass_lower(graph, &device, false));
        CHECK_INT(count_nodes(graph, HL_OP_BATCH_NORM_GRAD), is_read || !is_eager);
        hl_graph_destroy(graph);
    }
}

/* ---- null ------------------------------------------------------------------------------------ */

static hl_status open_null(void *context)
{
    (void)context;
    hl_device *device = NULL;
    const hl_backend *backend = hl_null_backend();
    void *memory = NULL;
    HL_TRY(backend->device_open(backend, 0, &(hl_device_options){0}, &device));
    hl_status status = device->ops->memory_alloc(device, 64, &memory);
    device->ops->memory_free(device, memory);
    device->ops->destroy(device);
    return status;
}

static void test_null(void)
{
    const hl_backend *backend = hl_null_backend();
    hl_device *device;
    CHECK_ERROR(backend->device_open(backend, 1, NULL, &device), HL_ERROR_DEVICE, "got 1");
    CHECK(device == NULL);
    CHECK_INT(check_walk_faults(CHECK_FAULT_ALLOC, HL_ERROR_MEMORY, 0, open_null, NULL), 4);

    CHECK_OK(backend->device_open(backend, 0, NULL, &device));
    hl_node node = {0};
    hl_graph graph = {.nodes = &node, .n_nodes = 1};
    for (int op = 0; op < HL_OP_COUNT; op++) {
        node.op = (hl_op)op;
        const hl_kernel *kernel;
        hl_kernel_req req;
        CHECK_OK(hl_kernel_select(device, &graph, 0, false, &kernel, &req));
        CHECK(kernel && kernel->op == (hl_op)op);
        CHECK_INT(req.rows, 0);
        hl_kernel_state state = {.kernel = kernel};
        CHECK_OK(kernel->prepare(device, &graph, 0, &state));
        CHECK_OK(kernel->launch(&state, NULL, &(hl_launch){0}, NULL));
    }
    CHECK(device->ops->kernels(device, HL_OP_COUNT) == NULL);

    int64_t *memory, seven = 7, back = 0;
    CHECK_OK(device->ops->memory_alloc(device, sizeof *memory, (void **)&memory));
    CHECK_INT(*memory, 0);
    CHECK_OK(device->ops->copy(device, memory, &seven, 8, HL_COPY_HOST_TO_DEVICE, NULL));
    CHECK_OK(device->ops->copy(device, &back, memory, 8, HL_COPY_DEVICE_TO_HOST, NULL));
    CHECK_INT(back, 7);
    CHECK_OK(device->ops->fill_zero(device, memory, 8, NULL));
    CHECK_OK(device->ops->synchronize(device, NULL));
    CHECK_INT(*memory, 0);
    device->ops->memory_free(device, memory);
    device->ops->destroy(device);
}

/* ---- control block --------------------------------------------------------------------------- */

static hl_control make_control(hl_nan_mode mode)
{
    hl_control control = {.nan_mode = mode, .loss_scale = 1};
    for (int s = 0; s < HL_CONTROL_SCALARS; s++) control.factor[s] = 1;
    return control;
}

/* scalar 0 by optimizer step: 0.5, 0.25, 0.125, then it stays; scalar 1: 10, 20, 30 */
static const double tables[] = {0.5, 0.25, 0.125, 10, 20, 30};

static void begin(hl_control *control)
{
    hl_control_begin(control, tables, 2, 3, true);
}

static void step(hl_control *control, double loss, double sumsq)
{
    begin(control);
    hl_control_micro(control, loss, 4);
    hl_control_apply(control, sumsq, 0, 0);
}

static void test_control_step(void)
{
    hl_control c = make_control(HL_NAN_STOP);
    c.factor[1] = 0.5;
    CHECK(hl_control_blocks_micro(&c) && hl_control_blocks_apply(&c)); /* nothing has begun */
    begin(&c);
    CHECK_INT(c.attempted, 1);
    CHECK(c.scalar[0].d == 0.5 && c.scalar[1].d == 5 && c.lr == 0.5);
    CHECK(!hl_control_blocks_micro(&c) && hl_control_blocks_apply(&c));
    hl_control_micro(&c, 2.0, 4);
    hl_control_micro(&c, 3.0, 3);
    CHECK_INT(c.micro_row, 7);
    CHECK_INT(c.n_micro, 2);
    CHECK(c.loss == 3.0);
    hl_control_apply(&c, 25, 0, 0);
    CHECK(c.grad_norm == 5 && c.apply && !hl_control_blocks_apply(&c));
    CHECK_INT(c.applied, 1);
    CHECK_INT(c.n_ring, 1);
    CHECK_INT(c.ring[0].step, 1);
    CHECK_INT(c.ring[0].applied, 1);
    CHECK(c.ring[0].loss == 3 && c.ring[0].grad_norm == 5 && c.ring[0].lr == 0.5);

    begin(&c); /* a new window; the next entry of the table */
    CHECK(c.scalar[0].d == 0.25 && hl_control_blocks_apply(&c));
    CHECK_INT(c.micro_row, 0);
    CHECK_INT(c.n_micro, 0);
    for (int i = 0; i < 5; i++) step(&c, 1, 1);
    CHECK(c.scalar[0].d == 0.125 && c.scalar[1].d == 15); /* the last entry stays */

    hl_control_begin(&c, tables, 2, 3, false);
    CHECK(c.scalar[0].f == 0.125f && c.lr == 0.125);
    hl_control_begin(&c, NULL, 0, 0, false); /* no tables at all */
    CHECK_INT(c.attempted, 9);
}

static void test_control_skip(void)
{
    hl_control c = make_control(HL_NAN_SKIP);
    step(&c, 1, INFINITY);
    CHECK(!c.stopped && !c.apply && c.lr == 0.5);
    CHECK_INT(c.skipped, 1);
    CHECK_INT(c.ring[0].applied, 0);
    begin(&c); /* the schedule stood still */
    CHECK(c.scalar[0].d == 0.5);
    hl_control_micro(&c, NAN, 4); /* a bad micro-batch spoils its whole window, not the next */
    CHECK(hl_control_blocks_micro(&c));
    hl_control_micro(&c, 1, 4);
    CHECK(hl_control_blocks_micro(&c));
    hl_control_apply(&c, 1, 0, 0);
    CHECK_INT(c.skipped, 2);
    CHECK_INT(c.applied, 0);
    step(&c, 1, 4);
    CHECK(c.apply && !hl_control_blocks_micro(&c));
    CHECK_INT(c.applied, 1);
    CHECK_INT(c.attempted, 3);
}

/* Queued steps after a stop change nothing at all. */
static void check_latched(const hl_control *stopped)
{
    hl_control c = *stopped;
    for (int i = 0; i < 3; i++) {
        step(&c, 1, 1);
        CHECK(hl_control_blocks_micro(&c) && hl_control_blocks_apply(&c));
    }
    CHECK_INT(c.attempted, stopped->attempted);
    CHECK_INT(c.applied, stopped->applied);
    CHECK_INT(c.skipped, stopped->skipped);
    CHECK_INT(c.n_ring, stopped->n_ring);
    CHECK_INT(c.stopped_at, stopped->stopped_at);
    CHECK(memcmp(&c.loss, &stopped->loss, sizeof c.loss) == 0);
    CHECK(c.scalar[0].d == stopped->scalar[0].d);
}

static void test_control_stop(void)
{
    hl_control c = make_control(HL_NAN_STOP);
    step(&c, 1, 1);
    begin(&c);
    hl_control_micro(&c, 1, 4);
    hl_control_micro(&c, NAN, 4);
    CHECK(c.stopped && hl_control_blocks_micro(&c));
    CHECK_INT(c.stopped_at, 2);
    hl_control_micro(&c, 5, 4);
    CHECK(isnan(c.loss)); /* the loss that stopped the run is the one that is told */
    hl_control_apply(&c, 1, 0, 0);
    CHECK(!c.apply);
    CHECK_INT(c.applied, 1);
    CHECK_INT(c.skipped, 1);
    CHECK_INT(c.n_ring, 2);
    CHECK(isnan(c.ring[1].loss) && c.ring[1].applied == 0);
    check_latched(&c);

    c = make_control(HL_NAN_STOP); /* by the gradient */
    step(&c, 1, 1);
    step(&c, 1, NAN);
    CHECK(c.stopped && isnan(c.grad_norm));
    CHECK_INT(c.stopped_at, 2);
    CHECK_INT(c.skipped, 1);
    CHECK_INT(c.n_ring, 2);
    check_latched(&c);

    c = make_control(HL_NAN_STOP); /* an overflow under a loss scale only skips */
    c.loss_scale = 1024;
    step(&c, 1, INFINITY);
    CHECK(!c.stopped);
    CHECK_INT(c.skipped, 1);
    step(&c, INFINITY, 1);
    CHECK(c.stopped);

    c = make_control(HL_NAN_SKIP); /* by so many in a row, of which none was applied */
    for (int i = 1; i < HL_NAN_SKIPS_MAX; i++) step(&c, 1, NAN);
    step(&c, 1, 1);
    CHECK(!c.stopped && c.skipped_in_row == 0 && c.applied == 1);
    for (int i = 1; i < HL_NAN_SKIPS_MAX; i++) step(&c, i % 2 ? NAN : 1, NAN);
    CHECK(!c.stopped);
    step(&c, 1, INFINITY);
    CHECK(c.stopped);
    CHECK_INT(c.skipped, 2 * HL_NAN_SKIPS_MAX - 1);
    check_latched(&c);

    c = make_control(HL_NAN_STOP); /* by the host, between two steps, and in the midst of one */
    step(&c, 1, 1);
    c.stopped = 1;
    check_latched(&c);
    c.stopped = 0;
    begin(&c);
    hl_control_micro(&c, 1, 4);
    c.stopped = 1;
    hl_control_apply(&c, 1, 0, 0);
    CHECK(!c.apply);
    CHECK_INT(c.applied, 1);
}

/* Halved by an overflow, doubled after enough optimizer steps, never below 1; a loss or an index of
 * the model's own is not its doing. */
static void test_loss_scale(void)
{
    hl_control c = make_control(HL_NAN_STOP);
    c.loss_scale = HL_LOSS_SCALE_START, c.scaling = 1, c.good_steps = 17;
    step(&c, 1, INFINITY);
    CHECK(c.loss_scale == 32768 && c.good_steps == 0 && c.skipped == 1 && c.applied == 0);
    CHECK(!c.apply && !c.stopped && hl_control_blocks_apply(&c));
    step(&c, 1, NAN);
    CHECK(c.loss_scale == 16384 && c.skipped == 2);
    for (int i = 1; i < HL_LOSS_SCALE_STEPS; i++) step(&c, 1, 1);
    CHECK(c.loss_scale == 16384 && c.good_steps == HL_LOSS_SCALE_STEPS - 1);
    step(&c, 1, 1);
    CHECK(c.loss_scale == 32768 && c.good_steps == 0 && c.applied == HL_LOSS_SCALE_STEPS);
    CHECK_INT(c.attempted, HL_LOSS_SCALE_STEPS + 2);
    begin(&c);
    CHECK(c.scale.d == 32768.0);

    c.nan_mode = HL_NAN_SKIP, c.loss_scale = 4, c.good_steps = 5;
    hl_control_micro(&c, NAN, 1); /* the loss itself: skipped, and the scale stands */
    hl_control_apply(&c, NAN, 0, 0);
    CHECK(c.loss_scale == 4 && c.good_steps == 5 && c.skipped == 3);
    step(&c, 1, INFINITY);
    step(&c, 1, INFINITY);
    CHECK(c.loss_scale == 1 && !c.stopped);
    step(&c, 1, INFINITY);
    CHECK(c.loss_scale == 1 && !c.stopped && c.skipped == 6);
    CHECK_INT(c.skipped_in_row, 4);
    c.nan_mode = HL_NAN_STOP; /* at the floor the gradient is the model's fault */
    step(&c, 1, INFINITY);
    CHECK(c.loss_scale == 1 && c.stopped);

    c = make_control(HL_NAN_SKIP); /* no scale: it never moves */
    step(&c, 1, INFINITY);
    for (int i = 0; i < HL_LOSS_SCALE_STEPS; i++) step(&c, 1, 1);
    CHECK(c.loss_scale == 1 && c.good_steps == 0);
}

static void test_control_ring(void)
{
    hl_control c = make_control(HL_NAN_SKIP);
    for (int i = 0; i < HL_CONTROL_RING + 3; i++) step(&c, i, 1);
    CHECK_INT(c.n_ring, HL_CONTROL_RING + 3);
    CHECK_INT(c.ring[2].step, HL_CONTROL_RING + 3);
    CHECK(c.ring[2].loss == HL_CONTROL_RING + 2);
    CHECK_INT(c.ring[3].step, 4);
}

static void test_launch(void)
{
    hl_control c = make_control(HL_NAN_SKIP);
    hl_launch launch = {.control = &c, .plan = 3, .node = 6, .segment = HL_SEGMENT_APPLY};
    hl_launch_fault(&launch, 3, 99);
    hl_launch_fault(&launch, 4, 98); /* the first is kept */
    CHECK_INT(hl_control_fault_plan(c.error_code), 3);
    CHECK_INT(hl_control_fault_node(c.error_code), 6);
    CHECK_INT(c.error_row, 3);
    CHECK_INT(c.error_value, 99);
    hl_launch_fault(&(hl_launch){0}, 1, 1); /* without a control block: nothing */

    begin(&c);
    CHECK(hl_launch_blocked(&launch, &c)); /* apply waits for CONTROL_APPLY, micro does not */
    launch.segment = HL_SEGMENT_MICRO;
    CHECK(!hl_launch_blocked(&launch, &c));
}

int main(void)
{
    test_registry();
    test_select();
    test_programs();
    test_programs_and_fences();
    test_forms();
    test_layouts();
    test_unread_results();
    test_null();
    test_control_step();
    test_control_skip();
    test_control_stop();
    test_loss_scale();
    test_control_ring();
    test_launch();
    return CHECK_DONE();
}
