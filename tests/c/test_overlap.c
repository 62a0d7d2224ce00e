/* Two streams: weight gradients run beside the rest of the backward pass. What they read, write and
 * use as scratch is nobody else's before the main stream waits, training has the bits of one
 * stream, and where memory lacks there is one stream. */
#include "tests/c/async_device.h"
#include "tests/c/train.h"

enum { N_NETS = 60, MAX_PARAMS = 4096, MAX_PARTS = 96 };

static trainer t;

/* ---- who touches what ------------------------------------------------------------------------ */

/* Bytes of the arena or of a store; of a leaf that no task writes, none. */
typedef struct part {
    int32_t store; /* HL_NONE: the arena */
    int64_t begin, end;
    bool is_written;
} part;

static void add_part(const hl_plan *plan, hl_id id, bool is_written, part *parts, int *n)
{
    const hl_place *place = &plan->memory.places[id];
    const hl_value *root = hl_graph_value(plan->graph, place->root);
    int64_t begin = place->root == id ? 0 : place->offset;
    part p = {.store = HL_NONE, .is_written = is_written};
    if (root->kind == HL_VALUE_ACT)
        begin += plan->memory.places[place->root].offset;
    else if (root->kind == HL_VALUE_PARAM || root->kind == HL_VALUE_STATE)
        p.store = root->store, begin += root->offset * (int64_t)hl_dtype_bytes(root->type.dtype);
    else
        return;
    p.begin = begin, p.end = begin + (int64_t)hl_value_bytes(plan->graph, id);
    CHECK(*n < MAX_PARTS);
    parts[(*n)++] = p;
}

static int list_parts(const hl_plan *plan, int32_t task, part *parts)
{
    const hl_node *node = &plan->graph->nodes[plan->schedule.tasks[task].node];
    int64_t scratch = plan->memory.scratch[task];
    int n = 0;
    for (int32_t j = 0; j < node->n_in; j++) add_part(plan, node->in[j], false, parts, &n);
    for (int32_t j = 0; j < node->n_out; j++) add_part(plan, node->out + j, true, parts, &n);
    if (scratch != HL_NONE)
        parts[n++] = (part){HL_NONE, scratch,
                            scratch + (int64_t)plan->schedule.tasks[task].req.scratch_bytes, true};
    return n;
}

static bool is_apart(const hl_plan *plan, int32_t a, int32_t b)
{
    part of_a[MAX_PARTS], of_b[MAX_PARTS];
    int n_a = list_parts(plan, a, of_a), n_b = list_parts(plan, b, of_b);
    for (int i = 0; i < n_a; i++)
        for (int j = 0; j < n_b; j++)
            if ((of_a[i].is_written || of_b[j].is_written) && of_a[i].store == of_b[j].store &&
                of_a[i].begin < of_b[j].end && of_b[j].begin < of_a[i].end)
                return false;
    return true;
}

/* Checks every task beside others against those that may run at the same time, on either stream;
 * returns how many there are. */
static int check_apart(const hl_plan *plan)
{
    const hl_schedule *schedule = &plan->schedule;
    int32_t joins[HL_SIDE_AHEAD];
    int n = 0;
    for (int32_t s = 0; s < schedule->n_tasks; s++) {
        const hl_task *task = &schedule->tasks[s];
        int32_t region = schedule->chains[task->chain].region;
        if (task->side == HL_NONE) continue;
        CHECK_INT(task->side, n++);
        CHECK(task->join > region && task->join <= schedule->segment_first[HL_SEGMENT_APPLY]);
        CHECK(schedule->regions[task->join].awaits >= task->side);
        if (task->side >= HL_SIDE_AHEAD) CHECK(joins[task->side % HL_SIDE_AHEAD] <= region);
        joins[task->side % HL_SIDE_AHEAD] = task->join;
        bool has_product = false;
        for (int32_t o = s + 1; o < schedule->n_tasks; o++) {
            const hl_task *other = &schedule->tasks[o];
            if (schedule->chains[other->chain].region >= task->join) break;
            if (!plan->instrs[o].elided) CHECK(is_apart(plan, s, o));
            has_product |=
                other->side == HL_NONE && hl_op_is_product(plan->graph->nodes[other->node].op);
        }
        CHECK(has_product);
    }
    return n;
}

static void open_net(const hl_backend *backend, uint64_t seed, int k)
{
    memset(&t, 0, sizeof t);
    t.net = net_roll(seed, k);
    trainer_open(&t, backend, 1);
    trainer_plan(&t, &t.net, k, true, true);
}

static void test_nobody_else_is_there(void)
{
    int n = 0, n_ahead = 0;
    for (uint64_t seed = 0; seed < N_NETS; seed++) {
        check_case("net %d", (int)seed);
        open_net(async_backend(), seed, 1 + (int)seed % 2);
        int n_side = check_apart(t.plan);
        n += n_side;
        n_ahead += n_side > HL_SIDE_AHEAD;
        trainer_close(&t);
    }
    check_case("%s", "");
    CHECK(n > N_NETS / 2);
    CHECK(n_ahead > 0);
}

/* ---- numbers --------------------------------------------------------------------------------- */

static void train(double *out)
{
    hl_run_end end;
    int64_t steps;
    trainer_fill(&t);
    CHECK_OK(hl_plan_run(t.plan, 1000, 0, NULL, &end, &steps));
    CHECK_INT(end, HL_RUN_FEED_END);
    memset(out, 0, MAX_PARAMS * sizeof *out);
    CHECK_OK(hl_session_read(t.session, "param", 0, t.net.n_flat, HL_DTYPE_F64, out));
}

static int count_side(const hl_plan *plan)
{
    int n = 0;
    for (int32_t s = 0; s < plan->schedule.n_tasks; s++)
        n += plan->schedule.tasks[s].side != HL_NONE;
    return n;
}

/* Whatever stream is late, captured or not. */
static void test_same_bits(void)
{
    static double want[MAX_PARAMS], got[MAX_PARAMS];
    for (uint64_t seed = 0; seed < N_NETS; seed += (uint64_t)check_stride()) {
        trainer_overlap = trainer_capture = false;
        async_eager = 0;
        open_net(async_backend(), seed, 1 + (int)seed % 2);
        CHECK_INT(count_side(t.plan), 0);
        train(want);
        trainer_close(&t);
        trainer_overlap = true;
        for (int way = 0; way < 16; way++) {
            check_case("net %d, way %d", (int)seed, way);
            trainer_capture = way / 8;
            async_eager = way % 8;
            open_net(async_backend(), seed, 1 + (int)seed % 2);
            train(got);
            trainer_close(&t);
            CHECK_INT(memcmp(want, got, sizeof want), 0);
        }
    }
    trainer_capture = false;
    async_eager = 0;
}

/* A net of three layers: what the second weight gradient takes is not on the path. */
static void test_path(void)
{
    hl_plan_info alone, beside;
    uint64_t seed = 0;
    while (net_roll(seed, 1).n_layers != 3) seed++;
    for (int overlap = 0; overlap < 2; overlap++) {
        trainer_overlap = overlap;
        open_net(async_backend(), seed, 1);
        hl_plan_info_read(t.plan, overlap ? &beside : &alone);
        if (overlap) CHECK(count_side(t.plan) > 0);
        if (overlap) CHECK_INT(beside.n_path_kernels, beside.n_kernels - count_side(t.plan));
        trainer_close(&t);
    }
    CHECK_INT(alone.n_kernels, beside.n_kernels);
    CHECK_INT(alone.n_path_kernels, alone.n_kernels);
    CHECK(alone.path_flops == alone.flops);
    CHECK(beside.path_flops < beside.flops);
    CHECK(beside.path_flops >= beside.flops / 2);
}

/* What is too small for a device stays where it was. */
static void test_small_products_stay(void)
{
    async_overlap_flops = 1e9;
    for (uint64_t seed = 0; seed < N_NETS; seed++) {
        check_case("small, net %d", (int)seed);
        open_net(async_backend(), seed, 1);
        CHECK_INT(count_side(t.plan), 0);
        trainer_close(&t);
    }
    async_overlap_flops = 1;
}

/* ---- graphs that no training step makes ------------------------------------------------------ */

enum { N = 6, N_STEPS = 4 };
static const hl_type matrix = {HL_DTYPE_F32, {2, {N, N}}};

static hl_id add_state(hl_graph *graph, const char *name)
{
    int32_t store;
    hl_id id;
    CHECK_OK(hl_graph_store(graph, name, HL_DTYPE_F32, N * N, &store));
    CHECK_OK(hl_graph_leaf(graph, HL_VALUE_STATE, matrix, store, 0, name, &id));
    return id;
}

static hl_id multiply(hl_graph *graph, hl_id a, hl_id b)
{
    hl_id out;
    hl_attrs attrs = {.matmul = {.trans_a = true}};
    CHECK_OK(hl_graph_add(graph, HL_OP_MATMUL, (hl_id[]){a, b}, 2, &attrs, &out));
    return out;
}

/* What runs beside is read by an update of the last segment alone. */
static void build_read_later(hl_graph *graph)
{
    hl_id x, product, control, out, state = add_state(graph, "s");
    CHECK_OK(hl_graph_control(graph, &control));
    CHECK_OK(hl_graph_input(graph, "x", matrix, &x));
    CHECK_OK(hl_build_unary(graph, HL_OP_EXP, x, &x));
    product = multiply(graph, x, x);
    CHECK_OK(hl_graph_output(graph, multiply(graph, x, multiply(graph, x, x))));
    graph->segment = HL_SEGMENT_APPLY;
    CHECK_OK(hl_graph_add(graph, HL_OP_ASSIGN, (hl_id[]){state, product, control}, 3, NULL, &out));
    CHECK_OK(hl_graph_commit(graph, state, out));
    graph->segment = HL_SEGMENT_MICRO;
}

/* What runs beside reads a state, which an update then overwrites. */
static void build_overwritten(hl_graph *graph)
{
    hl_id x, first = add_state(graph, "s"), second = add_state(graph, "t");
    hl_id product = multiply(graph, first, first);
    CHECK_OK(hl_graph_input(graph, "x", matrix, &x));
    CHECK_OK(hl_build_unary(graph, HL_OP_EXP, multiply(graph, x, multiply(graph, x, x)), &x));
    CHECK_OK(hl_graph_commit(graph, first, x));
    CHECK_OK(hl_graph_commit(graph, second, product));
}

/* What runs beside reads a value that the last task before its join could be made over. */
static void build_in_place(hl_graph *graph)
{
    hl_id in, x, y, state = add_state(graph, "s");
    CHECK_OK(hl_graph_input(graph, "x", matrix, &in));
    CHECK_OK(hl_build_unary(graph, HL_OP_EXP, in, &x));
    hl_id product = multiply(graph, x, x);
    CHECK_OK(hl_graph_output(graph, multiply(graph, in, multiply(graph, in, in))));
    CHECK_OK(hl_build_unary(graph, HL_OP_TANH, x, &y));
    CHECK_OK(hl_graph_output(graph, y));
    CHECK_OK(hl_graph_commit(graph, state, product));
}

static void run_graph(void (*build)(hl_graph *graph), bool overlap, bool capture, int k,
                      const char *name, double *out)
{
    hl_plan_options options = {.n_slots = 1, .k = k, .chain = true, .capture = capture};
    hl_device *device;
    hl_session *session;
    hl_graph *graph;
    hl_plan *plan;
    hl_run_end end;
    int64_t steps;
    float in[N * N];
    options.overlap = overlap;
    CHECK_OK(async_backend()->device_open(async_backend(), 0, NULL, &device));
    CHECK_OK(hl_session_create(device, &session));
    CHECK_OK(hl_graph_create(&graph));
    build(graph);
    CHECK_OK(hl_plan_create(session, graph, &options, &plan));
    CHECK_INT(count_side(plan), overlap);
    for (int step = 0; step < N_STEPS; step++) {
        for (int i = 0; i < N * N; i++) in[i] = (float)((i * 7 + step * 5) % 23) / 23 - 0.4f;
        CHECK_OK(hl_plan_input(plan, 0, HL_DTYPE_F32, &matrix.shape, in));
        CHECK_OK(hl_plan_run(plan, 1, 0, NULL, &end, &steps));
        CHECK_OK(hl_session_read(session, name, 0, N * N, HL_DTYPE_F64, out + step * N * N));
    }
    hl_plan_destroy(plan);
    hl_session_destroy(session);
    device->ops->destroy(device);
}

static void check_graph(const char *what, void (*build)(hl_graph *graph), const char *name)
{
    static double want[N_STEPS * N * N], got[N_STEPS * N * N];
    for (int k = 1; k <= 2; k++) {
        async_eager = 0;
        run_graph(build, false, false, k, name, want);
        for (int way = 0; way < 16; way++) {
            check_case("%s, k %d, way %d", what, k, way);
            async_eager = way % 8;
            run_graph(build, true, way / 8, k, name, got);
            CHECK_INT(memcmp(want, got, sizeof want), 0);
        }
    }
    check_case("%s", "");
    async_eager = 0;
}

static void test_other_graphs(void)
{
    check_graph("read by a later segment", build_read_later, "s");
    check_graph("overwritten", build_overwritten, "t");
    check_graph("in place", build_in_place, "s");
}

/* ---- memory that lacks ----------------------------------------------------------------------- */

static hl_device_ops limited;
static const hl_device_ops *real;
static int64_t refused_bytes; /* of the larger arena, once: a store may be as large */

static hl_status alloc_limited(hl_device *device, size_t bytes, void **out_ptr)
{
    *out_ptr = NULL;
    if ((int64_t)bytes == refused_bytes) {
        refused_bytes = -1;
        return hl_status_set(HL_ERROR_MEMORY, "limited: got %zu bytes", bytes);
    }
    return real->memory_alloc(device, bytes, out_ptr);
}

static hl_plan_info predict(uint64_t seed, bool overlap)
{
    hl_plan_options options = {.n_slots = 2, .k = 1, .fuse = true, .chain = true};
    hl_plan_info info;
    hl_device *device;
    hl_graph *graph;
    net n = net_roll(seed, 1);
    options.overlap = overlap;
    CHECK_OK(async_backend()->device_open(async_backend(), 0, NULL, &device));
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(net_build(graph, &n));
    CHECK_OK(hl_plan_predict(device, graph, &options, &info, NULL));
    device->ops->destroy(device);
    return info;
}

/* Where the arena would be too large with two streams, the plan has one. */
static void test_memory_that_lacks(void)
{
    int n = 0;
    for (uint64_t seed = 0; seed < N_NETS; seed++) {
        hl_plan_info beside = predict(seed, true), alone = predict(seed, false), got;
        check_case("memory, net %d", (int)seed);
        if (beside.arena_bytes <= alone.arena_bytes) continue;
        memset(&t, 0, sizeof t);
        t.net = net_roll(seed, 1);
        trainer_open(&t, async_backend(), 1);
        real = t.device->ops, limited = *real;
        limited.memory_alloc = alloc_limited;
        refused_bytes = beside.arena_bytes;
        t.device->ops = &limited;
        trainer_plan(&t, &t.net, 1, true, true);
        t.device->ops = real;
        hl_plan_info_read(t.plan, &got);
        CHECK_INT(refused_bytes, -1);
        CHECK_INT(got.arena_bytes, alone.arena_bytes);
        CHECK_INT(count_side(t.plan), 0);
        trainer_close(&t);
        n++;
    }
    check_case("%s", "");
    CHECK(n > 0);
}

int main(void)
{
    test_nobody_else_is_there();
    test_same_bits();
    test_other_graphs();
    test_path();
    test_small_products_stay();
    test_memory_that_lacks();
    return CHECK_DONE();
}
