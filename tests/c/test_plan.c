/* Plans: invariants of schedule and memory on random graphs, and whole training steps on all
 * backends. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "passes/schedule.h"
#include "tests/c/bench.h"
#include "tests/c/grow.h"
#include "tests/c/train.h"

/* ---- invariants
 * ---------------------------------------------------------------------------------- */

typedef struct span {
    int64_t begin, end;
    int32_t first, last;
    hl_id root;
} span;

static int32_t region_of(const hl_plan *plan, int32_t task)
{
    return plan->schedule.chains[plan->schedule.tasks[task].chain].region;
}

static int64_t offset_of(const hl_plan *plan, hl_id id)
{
    hl_id root = plan->memory.places[id].root;
    return plan->memory.places[root].offset + (root == id ? 0 : plan->memory.places[id].offset);
}

/* Bytes and regions of every value that lies in the arena, recomputed from the schedule alone. */
static int collect_spans(const hl_plan *plan, span *spans)
{
    const hl_graph *graph = plan->graph;
    int n = 0;
    for (int64_t v = 0; v < graph->n_values; v++) {
        hl_id root = plan->memory.places[v].root;
        if (graph->values[v].kind != HL_VALUE_ACT || graph->values[root].kind != HL_VALUE_ACT)
            continue;
        span s = {.first = HL_NONE, .last = HL_NONE, .root = root};
        for (int32_t i = 0; i < plan->schedule.n_tasks; i++) {
            const hl_node *node = &graph->nodes[plan->schedule.tasks[i].node];
            bool touches = v >= node->out && v < node->out + node->n_out;
            for (int32_t j = 0; j < node->n_in; j++) touches |= node->in[j] == v;
            if (!touches) continue;
            if (s.first == HL_NONE) s.first = region_of(plan, i);
            s.last = region_of(plan, i);
        }
        for (int64_t i = 0; i < graph->n_outputs; i++)
            if (graph->outputs[i] == v) s.last = plan->schedule.n_regions - 1;
        if (s.first == HL_NONE) continue;
        s.begin = offset_of(plan, (hl_id)v);
        s.end = s.begin + (int64_t)hl_value_bytes(graph, (hl_id)v);
        spans[n++] = s;
    }
    return n;
}

static void check_memory(const hl_plan *plan)
{
    static span spans[16 * MAX_VALUES];
    int n = collect_spans(plan, spans);
    for (int i = 0; i < n; i++) {
        CHECK(spans[i].begin >= 0 && spans[i].end <= plan->memory.arena_bytes);
        if (plan->memory.places[spans[i].root].root == spans[i].root)
            CHECK(plan->memory.places[spans[i].root].offset %
                      (int64_t)plan->session->device->alignment ==
                  0);
        for (int j = 0; j < i; j++) {
            bool alive = spans[i].first <= spans[j].last && spans[j].first <= spans[i].last;
            bool apart = spans[i].end <= spans[j].begin || spans[j].end <= spans[i].begin;
            CHECK(!alive || apart || spans[i].root == spans[j].root);
        }
    }
}

static bool is_made_after(const hl_plan *plan, hl_id id, int32_t task)
{
    hl_id viewed = hl_graph_viewed(plan->graph, id);
    return plan->schedule.task_of_node[plan->graph->values[viewed].node] >= task;
}

/* Nobody loses what a step overwrites: in its region, only earlier steps of its own chain may have
 * read that, and the same rows if blocks of them are shared out. */
static void check_overwritten(const hl_plan *plan, int32_t writer, int32_t reader)
{
    const hl_graph *graph = plan->graph;
    const hl_task *w = &plan->schedule.tasks[writer], *r = &plan->schedule.tasks[reader];
    const hl_node *to = &graph->nodes[w->node], *from = &graph->nodes[r->node];
    for (int32_t j = 0; j < to->n_out; j++)
        for (int32_t k = 0; k < from->n_in; k++) {
            hl_id out = to->out + j, in = from->in[k], root = plan->memory.places[in].root;
            if (graph->values[root].kind != HL_VALUE_ACT || is_made_after(plan, in, writer))
                continue;
            int64_t a = offset_of(plan, out), b = offset_of(plan, in);
            if (a + (int64_t)hl_value_bytes(graph, out) <= b ||
                b + (int64_t)hl_value_bytes(graph, in) <= a)
                continue;
            bool same = a == b && hl_value_bytes(graph, out) == hl_value_bytes(graph, in);
            CHECK(reader < writer && r->chain == w->chain);
            CHECK(!r->req.rows || (same && hl_kernel_reads_rows(&r->req, k)));
        }
}

static void check_in_place(const hl_plan *plan)
{
    for (int32_t w = 0; w < plan->schedule.n_tasks; w++) {
        const hl_node *node = &plan->graph->nodes[plan->schedule.tasks[w].node];
        hl_id root = node->n_out ? plan->memory.places[node->out].root : HL_NONE;
        /* Operands that lie inside a concat are what it would write there. */
        if (root == HL_NONE || node->op == HL_OP_CONCAT || plan->memory.elided[w]) continue;
        if (plan->graph->values[root].kind != HL_VALUE_ACT) continue;
        for (int32_t r = 0; r < plan->schedule.n_tasks; r++)
            if (r != w && region_of(plan, r) == region_of(plan, w)) check_overwritten(plan, w, r);
    }
}

/* Operands are made before: in an earlier region, or earlier in the same chain and row by row. */
static void check_schedule(const hl_plan *plan)
{
    const hl_graph *graph = plan->graph;
    for (int32_t s = 0; s < plan->schedule.n_tasks; s++) {
        const hl_task *task = &plan->schedule.tasks[s];
        const hl_node *node = &graph->nodes[task->node];
        for (int32_t j = 0; j < node->n_in; j++) {
            hl_id id = node->in[j];
            while (graph->values[id].kind == HL_VALUE_ACT &&
                   hl_op_get(graph->nodes[graph->values[id].node].op)->flags & HL_OP_VIEW)
                id = graph->nodes[graph->values[id].node].in[0];
            if (graph->values[id].kind != HL_VALUE_ACT) continue;
            int32_t maker = plan->schedule.task_of_node[graph->values[id].node];
            CHECK(maker < s);
            if (region_of(plan, maker) < region_of(plan, s)) continue;
            CHECK_INT(plan->schedule.tasks[maker].chain, task->chain);
            CHECK(task->req.row_in >> j & 1);
            CHECK(plan->schedule.tasks[maker].req.row_out >> graph->values[id].output & 1);
        }
    }
}

/* Blocks are cut where there is something to do, and regions add them up. */
static void check_blocks(const hl_plan *plan)
{
    for (int32_t r = 0; r < plan->schedule.n_regions; r++) {
        const hl_region *region = &plan->schedule.regions[r];
        int64_t n_blocks = 0;
        for (int32_t c = region->first_chain; c < region->first_chain + region->n_chains; c++) {
            const hl_chain *chain = &plan->schedule.chains[c];
            bool works = false;
            for (int32_t s = chain->first_task; s < chain->first_task + chain->n_tasks; s++)
                works |= chain->rows && !plan->memory.elided[s];
            CHECK(works == (chain->n_blocks > 0));
            for (int64_t b = 0; b < chain->n_blocks; b++)
                CHECK(hl_chain_row(chain, b) < hl_chain_row(chain, b + 1));
            CHECK(!works || (hl_chain_row(chain, 0) == 0 &&
                             hl_chain_row(chain, chain->n_blocks) == chain->rows));
            n_blocks += chain->n_blocks;
        }
        CHECK_INT(region->n_blocks, n_blocks);
        CHECK(n_blocks || region->serial);
    }
}

static void run_once(hl_plan *plan, float *out, int64_t n)
{
    float x[ROWS * COLS];
    hl_shape shape = hl_shape_2d(ROWS, COLS);
    hl_run_end end;
    int64_t steps;
    for (int i = 0; i < ROWS * COLS; i++) x[i] = (float)(i % 7) / 7 - 0.4f;
    CHECK_OK(hl_plan_input(plan, 0, HL_DTYPE_F32, &shape, x));
    CHECK_OK(hl_plan_run(plan, 2, 0, NULL, &end, &steps));
    CHECK_INT(steps, 2);
    CHECK_OK(hl_plan_output(plan, 0, HL_DTYPE_F32, out));
    for (int64_t i = 0; i < n; i++) CHECK(isfinite(out[i]));
}

static hl_plan *make_plan(hl_session *session, hl_graph *graph, bool fuse, bool chain)
{
    hl_plan *plan;
    hl_plan_options options = {.n_slots = 1, .k = 1, .fuse = fuse, .chain = chain};
    CHECK_OK(hl_plan_create(session, graph, &options, &plan));
    return plan;
}

static hl_session *open_session(const hl_backend *backend, int n_threads, hl_device **out_device)
{
    hl_session *session;
    hl_device_options options = {.n_threads = n_threads};
    CHECK_OK(backend->device_open(backend, 0, &options, out_device));
    CHECK_OK(hl_session_create(*out_device, &session));
    float w[COLS * COLS];
    CHECK_OK(hl_session_store(session, "param", HL_DTYPE_F32, COLS * COLS));
    for (int i = 0; i < COLS * COLS; i++) w[i] = (float)(i % 5) / 5 - 0.4f;
    CHECK_OK(hl_session_write(session, "param", 0, COLS * COLS, HL_DTYPE_F32, w));
    return session;
}

static void close_session(hl_plan *plan, hl_session *session, hl_device *device)
{
    hl_plan_destroy(plan);
    hl_session_destroy(session);
    device->ops->destroy(device);
}

static void test_invariants_on_random_graphs(void)
{
    const hl_backend *backends[] = {hl_null_backend(), hl_cpu_backend()};
    for (int b = 0; b < 2; b++)
        for (uint64_t seed = 0; seed < 500; seed++) {
            hl_device *device;
            hl_session *session = open_session(backends[b], 2, &device);
            check_case("backend %d, seed %d", b, (int)seed);
            hl_plan *plan = make_plan(session, make_graph(seed, 4 + (int)(seed % 40)), true, true);
            check_schedule(plan);
            check_memory(plan);
            check_in_place(plan);
            check_blocks(plan);
            close_session(plan, session, device);
        }
}

/* A value that dies in a region and may be overwritten there, but for another chain that reads it
 * at the same time, or a step of the same chain that reads all of it for each row. */
static void test_in_place_beside_readers(void)
{
    for (int variant = 0; variant < 2; variant++) {
        check_case("variant %d", variant);
        hl_id x, stack, square, out[2];
        hl_graph *graph;
        hl_device *device;
        hl_shape shape = variant ? hl_shape_2d(8, ROWS) : (hl_shape){3, {8, ROWS, COLS}};
        hl_type matrix = {HL_DTYPE_F32, hl_shape_2d(ROWS, ROWS)};
        hl_session *session = open_session(hl_cpu_backend(), 2, &device);
        CHECK_OK(hl_graph_create(&graph));
        CHECK_OK(hl_graph_input(graph, "stack", (hl_type){HL_DTYPE_F32, shape}, &stack));
        CHECK_OK(hl_graph_input(graph, "square", matrix, &square));
        CHECK_OK(hl_build_sum(graph, stack, (int64_t[]){0}, 1, false, &x));
        if (variant) {
            CHECK_OK(hl_build_binary(graph, HL_OP_MUL, square, x, &out[0]));
            CHECK_OK(hl_build_sum(graph, out[0], (int64_t[]){1}, 1, false, &out[0]));
            CHECK_OK(hl_build_binary(graph, HL_OP_MUL, x, out[0], &out[1]));
        } else {
            CHECK_OK(hl_graph_add(graph, HL_OP_SOFTMAX, &x, 1, NULL, &out[0]));
            CHECK_OK(hl_graph_add(graph, HL_OP_TANH, &x, 1, NULL, &out[1]));
        }
        for (int i = 0; i < 2; i++) CHECK_OK(hl_graph_output(graph, out[i]));
        hl_plan *plan = make_plan(session, graph, true, true);
        check_schedule(plan);
        check_memory(plan);
        check_in_place(plan);
        close_session(plan, session, device);
    }
}

/* Each result of a node may take over an operand: the first reads both, the second what is left. */
static void test_every_output_may_be_in_place(void)
{
    hl_device *device;
    hl_graph *graph;
    hl_id in[2], out[2];
    hl_type type = {HL_DTYPE_F32, hl_shape_2d(ROWS, COLS)};
    hl_session *session = open_session(hl_cpu_backend(), 2, &device);
    check_case("two results in place");
    CHECK_OK(hl_graph_create(&graph));
    for (int i = 0; i < 2; i++) {
        CHECK_OK(hl_graph_input(graph, "x", type, &in[i]));
        CHECK_OK(hl_build_unary(graph, HL_OP_SOFTMAX, in[i], &in[i]));
    }
    CHECK_OK(hl_build_binary(graph, HL_OP_ADD, in[0], in[1], &out[0]));
    CHECK_OK(hl_build_unary(graph, HL_OP_NEG, in[1], &out[1]));
    for (int i = 0; i < 2; i++) {
        CHECK_OK(hl_build_unary(graph, HL_OP_SOFTMAX, out[i], &out[i]));
        CHECK_OK(hl_graph_output(graph, out[i]));
    }
    hl_plan *plan = make_plan(session, graph, true, true);
    int n_fused = 0;
    for (int64_t n = 0; n < plan->graph->n_nodes; n++) {
        const hl_node *node = &plan->graph->nodes[n];
        if (node->op != HL_OP_POINTWISE_FUSED) continue;
        n_fused++;
        CHECK_INT(node->n_out, 2);
        for (int32_t j = 0; j < 2; j++) {
            hl_id root = plan->memory.places[node->out + j].root;
            CHECK(root == plan->memory.places[node->in[0]].root ||
                  root == plan->memory.places[node->in[1]].root);
        }
    }
    CHECK_INT(n_fused, 1);
    check_memory(plan);
    check_in_place(plan);
    close_session(plan, session, device);
}

/* ---- parts ----------------------------------------------------------------------------------- */

typedef struct part_case {
    hl_device *device;
    hl_session *session;
    hl_graph *graph;
    hl_id x, part;
} part_case;

enum { PART_ROWS = 4 };

/* x (PART_ROWS, cols) and rows from `start` on of it. */
static part_case begin_part(hl_value_kind kind, int64_t cols, int64_t start)
{
    part_case c;
    hl_type type = {HL_DTYPE_F32, hl_shape_2d(PART_ROWS, cols)};
    int32_t store;
    c.session = open_session(hl_cpu_backend(), 2, &c.device);
    CHECK_OK(hl_graph_create(&c.graph));
    if (kind == HL_VALUE_PARAM || kind == HL_VALUE_STATE) {
        CHECK_OK(hl_graph_store(c.graph, "whole", HL_DTYPE_F32, PART_ROWS * cols, &store));
        CHECK_OK(hl_graph_leaf(c.graph, kind, type, store, 0, "x", &c.x));
    } else {
        CHECK_OK(hl_graph_input(c.graph, "x", type, &c.x));
    }
    if (kind == HL_VALUE_ACT) CHECK_OK(hl_build_unary(c.graph, HL_OP_SOFTMAX, c.x, &c.x));
    CHECK_OK(hl_build_slice(c.graph, c.x, 0, start, PART_ROWS, &c.part));
    return c;
}

static void end_part(part_case *c, bool is_shared)
{
    hl_plan *plan = make_plan(c->session, c->graph, true, true);
    check_memory(plan);
    check_in_place(plan);
    int32_t task = plan->schedule.task_of_node[c->graph->values[c->part].node];
    CHECK_INT(plan->memory.elided[task], is_shared);
    CHECK((plan->memory.places[c->part].root == c->part) == !is_shared);
    close_session(plan, c->session, c->device);
}

static void read_part(part_case *c)
{
    hl_id out;
    CHECK_OK(hl_build_unary(c->graph, HL_OP_SOFTMAX, c->part, &out));
    CHECK_OK(hl_graph_output(c->graph, out));
}

/* Rows of a value lie where it lies, if they begin where an operand may. */
static void test_parts_lie_in_their_whole(void)
{
    static const hl_value_kind kinds[] = {HL_VALUE_ACT, HL_VALUE_INPUT, HL_VALUE_PARAM,
                                          HL_VALUE_STATE};
    for (int k = 0; k < 4; k++)
        for (int64_t cols = 8; cols <= 16; cols += 8) {
            check_case("kind %d, rows of %d", kinds[k], (int)cols);
            part_case c = begin_part(kinds[k], cols, 1);
            read_part(&c);
            end_part(&c, cols == 16);
        }
}

/* What a caller reads after the run is no part of a leaf, which may have changed by then; of a made
 * value it may be. */
static void test_parts_that_are_outputs(void)
{
    static const hl_value_kind kinds[] = {HL_VALUE_ACT, HL_VALUE_INPUT, HL_VALUE_STATE};
    for (int k = 0; k < 3; k++) {
        check_case("kind %d", kinds[k]);
        part_case c = begin_part(kinds[k], 16, 2);
        CHECK_OK(hl_graph_output(c.graph, c.part));
        end_part(&c, k == 0);
    }
}

/* A part of a state is read in its place before the update alone; a part of an input until the
 * micro-batches are over. */
static void test_parts_of_what_changes(void)
{
    for (int after = 0; after < 2; after++) {
        check_case("state, after %d", after);
        part_case c = begin_part(HL_VALUE_STATE, 16, 2);
        hl_id sum, next;
        CHECK_OK(hl_build_sum(c.graph, after ? c.x : c.part, NULL, 0, false, &sum));
        CHECK_OK(hl_build_binary(c.graph, HL_OP_MUL, c.x, sum, &next));
        CHECK_OK(hl_graph_commit(c.graph, c.x, next));
        if (after) c.graph->segment = HL_SEGMENT_APPLY;
        if (after) read_part(&c);
        end_part(&c, !after);
        check_case("input, after %d", after);
        c = begin_part(HL_VALUE_INPUT, 16, 2);
        c.graph->segment = after ? HL_SEGMENT_APPLY : HL_SEGMENT_MICRO;
        read_part(&c);
        end_part(&c, !after);
    }
}

/* A value of which a caller reads a part is not overwritten, be it in the last region. */
static void test_nothing_overwrites_an_output(void)
{
    check_case("%s", "");
    part_case c = begin_part(HL_VALUE_ACT, 16, 2);
    hl_id sum, out;
    CHECK_OK(hl_graph_output(c.graph, c.part));
    CHECK_OK(hl_build_sum(c.graph, c.part, NULL, 0, false, &sum));
    CHECK_OK(hl_build_binary(c.graph, HL_OP_MUL, c.x, sum, &out));
    CHECK_OK(hl_graph_output(c.graph, out));
    hl_plan *plan = make_plan(c.session, c.graph, false, true);
    CHECK_INT(plan->memory.places[c.part].root, c.x);
    CHECK_INT(plan->memory.places[out].root, out);
    check_memory(plan);
    close_session(plan, c.session, c.device);
}

/* Rows of a part are other rows of the whole: who works on them, in blocks, may not have the whole
 * overwritten in the same blocks. */
static void test_parts_in_blocks(void)
{
    check_case("%s", "");
    hl_id in, x, part, sum, read, out;
    hl_graph *graph;
    hl_device *device;
    hl_session *session = open_session(hl_cpu_backend(), 2, &device);
    hl_type type = {HL_DTYPE_F32, {3, {64, 6, 16}}};
    hl_shape halves = {3, {64, 3, 16}};
    hl_attrs at = {.slice_add = {.axis = 1, .start = 0, .step = 1}};
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(hl_graph_input(graph, "x", type, &in));
    CHECK_OK(hl_build_unary(graph, HL_OP_SOFTMAX, in, &x));
    CHECK_OK(hl_build_slice(graph, x, 0, 32, 64, &part));
    CHECK_OK(hl_build_sum(graph, part, NULL, 0, false, &sum));
    CHECK_OK(hl_build_reshape(graph, part, &halves, &read));
    CHECK_OK(hl_build_binary(graph, HL_OP_MUL, read, sum, &read));
    CHECK_OK(hl_graph_add(graph, HL_OP_SLICE_ADD, (hl_id[]){x, read}, 2, &at, &out));
    CHECK_OK(hl_graph_output(graph, out));
    hl_plan *plan = make_plan(session, graph, false, true);
    const hl_schedule *schedule = &plan->schedule;
    int32_t reader = schedule->task_of_node[graph->values[read].node];
    int32_t writer = schedule->task_of_node[graph->values[out].node];
    CHECK_INT(schedule->tasks[reader].chain, schedule->tasks[writer].chain);
    CHECK_INT(plan->memory.places[part].root, x);
    CHECK_INT(plan->memory.places[out].root, out);
    check_memory(plan);
    check_in_place(plan);
    close_session(plan, session, device);
}

/* A large value is not kept for a small part of it, but for most of it. */
static void test_parts_are_worth_their_whole(void)
{
    for (int start = 1; start < PART_ROWS; start += 2) {
        check_case("from row %d on", start);
        part_case c = begin_part(HL_VALUE_ACT, 16, start);
        hl_id sum, late = c.x;
        hl_shape full = hl_shape_2d(PART_ROWS, 16);
        for (int i = 0; i < 6; i++) {
            CHECK_OK(hl_build_sum(c.graph, late, (int64_t[]){0}, 1, false, &sum));
            CHECK_OK(hl_build_expand(c.graph, sum, &full, &late));
            CHECK_OK(hl_build_unary(c.graph, HL_OP_SOFTMAX, late, &late));
        }
        CHECK_OK(hl_build_sum(c.graph, late, NULL, 0, false, &sum));
        CHECK_OK(hl_build_binary(c.graph, HL_OP_MUL, c.part, sum, &late));
        CHECK_OK(hl_graph_output(c.graph, late));
        end_part(&c, start == 1);
    }
}

/* What a kernel overwrites is made inside the concat that its result is a part of, and the memory
 * is taken from then on: regions before the result may not use it for something else. Not where the
 * other part is so large that this would cost more than it saves. */
static void test_an_operand_is_made_inside_a_concat(void)
{
    enum { N = 8 };
    for (int is_large = 0; is_large < 2; is_large++) {
        check_case("an operand of a part, large %d", is_large);
        hl_id stack, early, late, parts[2], whole;
        hl_graph *graph;
        hl_device *device;
        hl_attrs axis = {.axis = {0}};
        hl_session *session = open_session(hl_cpu_backend(), 2, &device);
        hl_type type = {HL_DTYPE_F32, {3, {N, ROWS, COLS}}};
        hl_shape full = hl_shape_2d(ROWS, COLS), large = hl_shape_2d(N * ROWS, COLS);
        CHECK_OK(hl_graph_create(&graph));
        CHECK_OK(hl_graph_input(graph, "stack", type, &stack));
        CHECK_OK(hl_build_sum(graph, stack, (int64_t[]){0}, 1, false, &early));
        CHECK_OK(hl_build_slice(graph, early, 0, 0, 1, &late));
        for (int i = 0; i < 3; i++) {
            CHECK_OK(hl_build_expand(graph, late, &full, &late));
            CHECK_OK(hl_build_unary(graph, HL_OP_SOFTMAX, late, &late));
            CHECK_OK(hl_build_sum(graph, late, (int64_t[]){0}, 1, true, &late));
        }
        CHECK_OK(hl_build_binary(graph, HL_OP_ADD, early, late, &parts[0]));
        parts[1] = late;
        if (is_large) {
            CHECK_OK(hl_build_expand(graph, late, &large, &parts[1]));
            CHECK_OK(hl_build_unary(graph, HL_OP_SOFTMAX, parts[1], &parts[1]));
        }
        CHECK_OK(hl_graph_add(graph, HL_OP_CONCAT, parts, 2, &axis, &whole));
        CHECK_OK(hl_graph_output(graph, whole));
        hl_plan *plan = make_plan(session, graph, false, true);
        CHECK((plan->memory.places[early].root == whole) == !is_large);
        CHECK(is_large || offset_of(plan, early) == offset_of(plan, parts[0]));
        check_memory(plan);
        check_in_place(plan);
        close_session(plan, session, device);
    }
}

/* A concat whose operands were made in its place is no work, however large it is. */
static void test_an_elided_concat_costs_nothing(void)
{
    check_case("a large concat");
    hl_id x, parts[2], out;
    hl_graph *graph;
    hl_device *device;
    hl_attrs axis = {.axis = {0}};
    hl_session *session = open_session(hl_cpu_backend(), 2, &device);
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(hl_graph_input(graph, "x", (hl_type){HL_DTYPE_F32, hl_shape_1d(1 << 20)}, &x));
    for (int i = 0; i < 2; i++) {
        CHECK_OK(hl_graph_add(graph, i ? HL_OP_TANH : HL_OP_EXP, &x, 1, NULL, &parts[i]));
        CHECK_OK(hl_graph_add(graph, HL_OP_SOFTMAX, &parts[i], 1, NULL, &parts[i]));
    }
    CHECK_OK(hl_graph_add(graph, HL_OP_CONCAT, parts, 2, &axis, &out));
    CHECK_OK(hl_graph_output(graph, out));
    hl_plan *plan = make_plan(session, graph, true, true);
    CHECK(plan->memory.elided[plan->schedule.n_tasks - 1]);
    check_blocks(plan);
    close_session(plan, session, device);
}

/* The value of a random graph is the same fused or not, chained or not, at any number of threads.
 */
static void test_same_value_however_planned(void)
{
    for (uint64_t seed = 0; seed < 60; seed++) {
        check_case("seed %d", (int)seed);
        float want[ROWS * COLS], got[ROWS * COLS], plain[ROWS * COLS];
        hl_device *device;
        hl_session *session = open_session(hl_ref_backend(), 1, &device);
        hl_plan *plan = make_plan(session, make_graph(seed, 20), false, false);
        run_once(plan, want, ROWS * COLS);
        close_session(plan, session, device);
        for (int variant = 0; variant < 4; variant++) {
            session = open_session(hl_cpu_backend(), variant < 2 ? 1 : 7, &device);
            plan = make_plan(session, make_graph(seed, 20), true, variant % 2);
            run_once(plan, got, ROWS * COLS);
            close_session(plan, session, device);
            if (!variant) memcpy(plain, got, sizeof plain);
            CHECK(!memcmp(plain, got, sizeof got));
            for (int i = 0; i < ROWS * COLS; i++)
                CHECK(fabsf(want[i] - got[i]) <= 1e-3f * (1 + fabsf(want[i])));
        }
    }
}

/* ---- training steps -------------------------------------------------------------------------- */

enum { MAX_NUMBERS = 8192 };

/* Losses of a few steps over two epochs, then parameters, average and statistics. */
static int64_t train_net(uint64_t seed, const hl_backend *backend, int n_threads, bool fuse,
                         bool chain, double *out)
{
    static trainer t;
    int64_t n = 0, steps, deadline = chain && n_threads == 7; /* always over: region by region */
    int k = (int[]){1, 2, 4}[seed % 3];
    memset(&t, 0, sizeof t);
    t.net = net_roll(seed, k);
    trainer_open(&t, backend, n_threads);
    trainer_plan(&t, &t.net, k, fuse, chain);
    trainer_fill(&t);
    for (int step = 0; step < 6; step++) {
        hl_run_end end = HL_RUN_DEADLINE;
        if (step % 3 == 0) CHECK_OK(hl_feed_seek(t.feed, (uint64_t)step, 0));
        for (int calls = 0; calls < 10000 && end == HL_RUN_DEADLINE; calls++)
            CHECK_OK(hl_plan_run(t.plan, 1, deadline, NULL, &end, &steps));
        if (end != HL_RUN_DONE) continue;
        CHECK_OK(hl_plan_output(t.plan, 0, HL_DTYPE_F64, out + n++));
    }
    CHECK(n > 0);
    const int64_t size[3] = {t.net.n_flat, t.net.spec.ema ? t.net.n_flat : 0,
                             t.net.batch_norm ? t.net.width[1] : 0};
    static const char *const stores[3] = {"param", "ema", "buffer"};
    for (int i = 0; i < 3; n += size[i++])
        if (size[i])
            CHECK_OK(hl_session_read(t.session, stores[i], 0, size[i], HL_DTYPE_F64, out + n));
    trainer_close(&t);
    return n;
}

/* Segments, accumulation, commits: the reference's losses and weights by tolerance, and the same
 * bits at any number of threads, in chains or not, in one piece or from deadline to deadline. */
static void test_training_however_planned(void)
{
    static double want[MAX_NUMBERS], plain[MAX_NUMBERS], got[MAX_NUMBERS];
    for (uint64_t seed = 0; seed < 200; seed++) {
        int64_t n = train_net(seed, hl_ref_backend(), 1, false, false, want);
        for (int variant = 0; variant < 6; variant++) {
            bool fuse = variant >= 3, first = variant % 3 == 0;
            double *numbers = first ? plain : got;
            int n_threads = (int[]){1, 2, 7}[variant % 3];
            check_case("seed %d, fuse %d, threads %d", (int)seed, fuse, n_threads);
            CHECK_INT(train_net(seed, hl_cpu_backend(), n_threads, fuse, !first, numbers), n);
            CHECK(first || !memcmp(plain, got, (size_t)n * sizeof *got));
            double worst = 0;
            for (int64_t i = 0; i < n; i++)
                worst = fmax(worst, fabs(numbers[i] - want[i]) / (1 + fabs(want[i])));
            CHECK(worst <= 1e-3);
            for (int64_t i = 0; i < n; i++) CHECK(isfinite(numbers[i]));
        }
    }
}

static hl_status create_step(void *device)
{
    hl_graph *graph = NULL, *given;
    hl_session *session = NULL;
    hl_plan *plan = NULL;
    hl_plan_options options = {.compute_dtype = HL_DTYPE_BF16,
                               .n_slots = 2,
                               .k = 2,
                               .fuse = true,
                               .chain = true,
                               .benchmark = true};
    net n = net_roll(4, 2);
    n.batch_norm = n.dropout = true;
    hl_status status;
    HL_GOTO(hl_session_create(device, &session));
    HL_GOTO(hl_graph_create(&graph));
    HL_GOTO(net_build(graph, &n));
    given = graph;
    graph = NULL;
    HL_GOTO(hl_plan_create(session, given, &options, &plan));
cleanup:
    hl_graph_destroy(graph);
    hl_plan_destroy(plan);
    hl_session_destroy(session);
    return status;
}

static void test_every_allocation_of_a_plan_may_fail(void)
{
    hl_device *device;
    CHECK_OK(hl_cpu_backend()->device_open(hl_cpu_backend(), 0, NULL, &device));
    CHECK(check_walk_faults(CHECK_FAULT_ALLOC, HL_ERROR_MEMORY, 0, create_step, device) > 100);
    device->ops->destroy(device);
}

/* ---- graphs that once went wrong ------------------------------------------------------------- */

static hl_status plan_bench(bench *b, int32_t n_slots, bool fuse)
{
    hl_plan_options options = {.n_slots = n_slots, .k = 1, .fuse = fuse, .chain = true};
    return hl_plan_create(b->session, b->graph, &options, &b->plan);
}

static void run_bench(bench *b)
{
    hl_run_end end;
    int64_t steps;
    CHECK_OK(hl_plan_run(b->plan, 1, 0, NULL, &end, &steps));
}

/* A number of 16 bits is read as such when it is fused. */
static void test_half_numbers_are_fused(void)
{
    static const hl_dtype dtypes[] = {HL_DTYPE_BF16, HL_DTYPE_F16};
    float in[32], out[32];
    hl_shape shape = hl_shape_2d(4, 8);
    for (int i = 0; i < 32; i++) in[i] = (float)i;
    for (int variant = 0; variant < 4; variant++) {
        bench b = open_bench(hl_cpu_backend(), 2);
        hl_id x, three;
        CHECK_OK(hl_graph_input(b.graph, "x", (hl_type){HL_DTYPE_F32, shape}, &x));
        CHECK_OK(hl_build_cast(b.graph, x, dtypes[variant / 2], &x));
        CHECK_OK(hl_graph_number(b.graph, dtypes[variant / 2], 3, &three));
        CHECK_OK(hl_build_binary(b.graph, HL_OP_MUL, x, three, &x));
        CHECK_OK(hl_build_cast(b.graph, x, HL_DTYPE_F32, &x));
        CHECK_OK(hl_graph_output(b.graph, x));
        CHECK_OK(plan_bench(&b, 1, variant % 2));
        CHECK_OK(hl_plan_input(b.plan, 0, HL_DTYPE_F32, &shape, in));
        run_bench(&b);
        CHECK_OK(hl_plan_output(b.plan, 0, HL_DTYPE_F32, out));
        for (int i = 0; i < 32; i++) CHECK(out[i] == 3 * in[i]);
        close_bench(&b);
    }
}

/* Operands beyond the 64 bits of a mask: the 100 parts of a row are there before they are joined.
 */
static void test_many_operands(void)
{
    enum { N = 100, R = 64 };
    static float in[R * 2], out[R * 2 * N];
    hl_shape shape = hl_shape_2d(R, 2);
    hl_id x, part[N], all;
    hl_attrs axis = {.axis = {1}};
    bench b = open_bench(hl_cpu_backend(), 2);
    CHECK_OK(hl_graph_input(b.graph, "x", (hl_type){HL_DTYPE_F32, shape}, &x));
    for (int i = 0; i < N; i++) {
        CHECK_OK(hl_build_binary_number(b.graph, HL_OP_ADD, x, i, &part[i]));
        CHECK_OK(hl_build_unary(b.graph, HL_OP_SOFTMAX, part[i], &part[i]));
    }
    CHECK_OK(hl_graph_add(b.graph, HL_OP_CONCAT, part, N, &axis, &all));
    CHECK_OK(hl_graph_output(b.graph, all));
    CHECK_OK(plan_bench(&b, 1, true));
    CHECK_OK(hl_plan_input(b.plan, 0, HL_DTYPE_F32, &shape, in));
    memset(b.session->arena, 0xff, (size_t)b.session->arena_bytes);
    run_bench(&b);
    CHECK_OK(hl_plan_output(b.plan, 0, HL_DTYPE_F32, out));
    for (int i = 0; i < R * 2 * N; i++) CHECK(out[i] == 0.5f);
    close_bench(&b);
}

static hl_id add_state(bench *b, hl_dtype dtype, int64_t n, int64_t offset, hl_shape shape)
{
    int32_t store;
    hl_id leaf;
    CHECK_OK(hl_graph_store(b->graph, "s", dtype, n, &store));
    CHECK_OK(hl_graph_leaf(b->graph, HL_VALUE_STATE, (hl_type){dtype, shape}, store, offset, "s",
                           &leaf));
    return leaf;
}

/* Commits take effect after all reads, so two states may change places; a number among them. */
static void test_states_change_places(void)
{
    static const hl_dtype dtypes[] = {HL_DTYPE_F32, HL_DTYPE_U8, HL_DTYPE_I64};
    for (int variant = 0; variant < 6; variant++) {
        double got[8], want[8] = {4, 5, 6, 7, 0, 1, 2, 3}, first[8] = {0, 1, 2, 3, 4, 5, 6, 7};
        hl_dtype dtype = dtypes[variant / 2];
        int64_t n = variant % 2 ? 1 : 4;
        hl_shape shape = variant % 2 ? hl_shape_scalar() : hl_shape_1d(4);
        bench b = open_bench(hl_cpu_backend(), 2);
        hl_id x = add_state(&b, dtype, 2 * n, 0, shape), y = add_state(&b, dtype, 2 * n, n, shape);
        if (n == 1) want[0] = 1, want[1] = 0;
        CHECK_OK(hl_graph_commit(b.graph, x, y));
        CHECK_OK(hl_graph_commit(b.graph, y, x));
        CHECK_OK(plan_bench(&b, 1, true));
        CHECK_OK(hl_session_write(b.session, "s", 0, 2 * n, HL_DTYPE_F64, first));
        run_bench(&b);
        CHECK_OK(hl_session_read(b.session, "s", 0, 2 * n, HL_DTYPE_F64, got));
        CHECK(!memcmp(got, want, (size_t)(2 * n) * sizeof *got));
        close_bench(&b);
    }
}

/* A parameter that a micro-batch itself changes is no constant of the loop: w <- 2 w + 1. */
static void test_parameters_that_change_in_the_loop(void)
{
    for (int fuse = 0; fuse < 2; fuse++) {
        float w[4], x[4] = {1, 0, 0, 1};
        hl_shape square = hl_shape_2d(2, 2);
        hl_run_end end;
        int64_t steps;
        int32_t store;
        hl_id in, leaf, y;
        bench b = open_bench(hl_cpu_backend(), 2);
        CHECK_OK(hl_graph_store(b.graph, "param", HL_DTYPE_F32, 4, &store));
        CHECK_OK(hl_graph_leaf(b.graph, HL_VALUE_PARAM, (hl_type){HL_DTYPE_F32, square}, store, 0,
                               "w", &leaf));
        CHECK_OK(hl_graph_input(b.graph, "x", (hl_type){HL_DTYPE_F32, square}, &in));
        CHECK_OK(hl_build_matmul(b.graph, in, leaf, false, false, &y));
        CHECK_OK(hl_build_binary_number(b.graph, HL_OP_ADD, y, 1, &y));
        CHECK_OK(hl_build_binary(b.graph, HL_OP_ADD, leaf, y, &y));
        CHECK_OK(hl_graph_commit(b.graph, leaf, y));
        CHECK_OK(plan_bench(&b, 1, fuse));
        CHECK_OK(hl_plan_input(b.plan, 0, HL_DTYPE_F32, &square, x));
        CHECK_OK(hl_plan_run(b.plan, 3, 0, NULL, &end, &steps));
        CHECK_OK(hl_session_read(b.session, "param", 0, 4, HL_DTYPE_F32, w));
        for (int i = 0; i < 4; i++) CHECK(w[i] == 7); /* 0, 1, 3, 7 */
        close_bench(&b);
    }
}

/* Updates in a row, of one memory: who reads a value of it does so before the next update, however
 * late it stands in the graph; and t takes the first update's value while the second reads t. */
static void test_updates_in_a_row(void)
{
    const hl_backend *backends[] = {hl_ref_backend(), hl_cpu_backend()};
    for (int variant = 0; variant < 4; variant++) {
        check_case("variant %d", variant);
        double first[8] = {1, 2, 3, 4, 10, 20, 30, 40}, state[8], out[4][4], v[4] = {5, 6, 7, 8};
        hl_shape shape = hl_shape_1d(4);
        hl_id in, control, once, twice, again[4];
        bench b = open_bench(backends[variant / 2], 2);
        hl_id s = add_state(&b, HL_DTYPE_F32, 8, 0, shape);
        hl_id t = add_state(&b, HL_DTYPE_F32, 8, 4, shape);
        CHECK_OK(hl_graph_control(b.graph, &control));
        CHECK_OK(hl_graph_input(b.graph, "v", (hl_type){HL_DTYPE_F32, shape}, &in));
        CHECK_OK(hl_graph_add(b.graph, HL_OP_ASSIGN, (hl_id[]){s, in, control}, 3, NULL, &once));
        CHECK_OK(
            hl_graph_add(b.graph, HL_OP_ACCUMULATE, (hl_id[]){once, t, control}, 3, NULL, &twice));
        CHECK_OK(hl_graph_commit(b.graph, s, twice));
        CHECK_OK(hl_graph_commit(b.graph, t, once));
        CHECK_OK(hl_build_binary_number(b.graph, HL_OP_MUL, s, 2, &again[0]));
        CHECK_OK(hl_build_binary_number(b.graph, HL_OP_MUL, once, 3, &again[1]));
        CHECK_OK(hl_build_binary_number(b.graph, HL_OP_ADD, twice, 1, &again[2]));
        CHECK_OK(hl_build_binary(b.graph, HL_OP_ADD, again[0], again[2], &again[3]));
        for (int i = 0; i < 4; i++) CHECK_OK(hl_graph_output(b.graph, again[i]));
        CHECK_OK(plan_bench(&b, 1, variant % 2));
        CHECK_OK(hl_session_write(b.session, "s", 0, 8, HL_DTYPE_F64, first));
        CHECK_OK(hl_plan_input(b.plan, 0, HL_DTYPE_F64, &shape, v));
        run_bench(&b);
        CHECK_OK(hl_session_read(b.session, "s", 0, 8, HL_DTYPE_F64, state));
        for (int i = 0; i < 4; i++) CHECK_OK(hl_plan_output(b.plan, i, HL_DTYPE_F64, out[i]));
        for (int i = 0; i < 4; i++) {
            CHECK(state[i] == v[i] + first[4 + i]);
            CHECK(state[4 + i] == v[i]);
            CHECK(out[0][i] == 2 * first[i]);
            CHECK(out[1][i] == 3 * v[i]);
            CHECK(out[2][i] == v[i] + first[4 + i] + 1);
            CHECK(out[3][i] == out[0][i] + out[2][i]);
        }
        close_bench(&b);
    }
}

/* Updates that wait for readers far behind them hold nothing else up. */
static void test_many_waiting_updates(void)
{
    enum { N = 400 };
    hl_id leaf[N], x, control, update, out;
    hl_shape one = hl_shape_1d(1);
    float in = 5, sum = 0;
    bench b = open_bench(hl_cpu_backend(), 2);
    CHECK_OK(hl_graph_control(b.graph, &control));
    CHECK_OK(hl_graph_input(b.graph, "x", (hl_type){HL_DTYPE_F32, one}, &x));
    for (int i = 0; i < N; i++) {
        leaf[i] = add_state(&b, HL_DTYPE_F32, N, i, one);
        CHECK_OK(
            hl_graph_add(b.graph, HL_OP_ASSIGN, (hl_id[]){leaf[i], x, control}, 3, NULL, &update));
        CHECK_OK(hl_graph_commit(b.graph, leaf[i], update));
    }
    out = leaf[0];
    for (int i = 1; i < N; i++) CHECK_OK(hl_build_binary(b.graph, HL_OP_ADD, out, leaf[i], &out));
    CHECK_OK(hl_graph_output(b.graph, out));
    CHECK_OK(plan_bench(&b, 1, false));
    CHECK_OK(hl_plan_input(b.plan, 0, HL_DTYPE_F32, &one, &in));
    run_bench(&b);
    run_bench(&b);
    CHECK_OK(hl_plan_output(b.plan, 0, HL_DTYPE_F32, &sum));
    CHECK(sum == 5 * N);
    close_bench(&b);
}

int main(void)
{
    test_invariants_on_random_graphs();
    test_in_place_beside_readers();
    test_every_output_may_be_in_place();
    test_an_elided_concat_costs_nothing();
    test_an_operand_is_made_inside_a_concat();
    test_parts_lie_in_their_whole();
    test_parts_that_are_outputs();
    test_parts_of_what_changes();
    test_nothing_overwrites_an_output();
    test_parts_in_blocks();
    test_parts_are_worth_their_whole();
    test_same_value_however_planned();
    test_training_however_planned();
    test_every_allocation_of_a_plan_may_fail();
    test_half_numbers_are_fused();
    test_many_operands();
    test_states_change_places();
    test_parameters_that_change_in_the_loop();
    test_updates_in_a_row();
    test_many_waiting_updates();
    return CHECK_DONE();
}
