/* Pointwise programs of several nodes in one launch, on the emulated GPU: the bits of the same ones
 * launched apart, interpreted and compiled, in several orders of threads and blocks, captured, at
 * any alignment and in place; nothing beside the operands is written. And which nodes are fused
 * horizontally, what is compiled once, what a failure leaves. */
#include <stdlib.h>

#include "kernels/cuda/parts.h"
#include "tests/c/check.h"
#include "tests/c/program_case.h"
#include "tests/cuda/emu/emu.h"
#include "tests/cuda/fake_nvrtc.h"
#include "tests/cuda/fake_table.h"
#include "tests/cuda/upload.h"

enum { MAX_VALUES = 160, GUARD = 256, WHOLE = 0xFF };

static hl_device *plain, *compiling; /* without NVRTC, with it */

/* Nodes of one graph, in a row. */
static hl_graph *graph;
static hl_id control;

static hl_device *open_device(bool has_nvrtc)
{
    hl_device *device = NULL;
    setenv("HOTLOOP_NVRTC_PATH", has_nvrtc ? FAKE_NVRTC : "none", 1);
    CHECK_OK(hl_fake_backend()->device_open(hl_fake_backend(), 0, NULL, &device));
    return device;
}

/* ---- graphs ---------------------------------------------------------------------------------- */

static hl_id input(hl_dtype dtype, hl_shape shape)
{
    hl_id id;
    CHECK_OK(hl_graph_input(graph, "x", (hl_type){dtype, shape}, &id));
    return id;
}

static void add(hl_op op, const hl_id *in, int n_in, hl_attrs attrs)
{
    hl_id out;
    CHECK_OK(hl_graph_add(graph, op, in, n_in, &attrs, &out));
}

static void cast(hl_dtype from, hl_dtype to, int64_t n)
{
    hl_id x = input(from, hl_shape_1d(n));
    add(HL_OP_CAST, &x, 1, (hl_attrs){.dtype = {.dtype = to}});
}

static void multiply(hl_dtype dtype, int64_t rows, int64_t cols)
{
    hl_id x = input(dtype, hl_shape_2d(rows, cols)), y = input(dtype, hl_shape_1d(cols));
    add(HL_OP_MUL, (hl_id[]){x, y}, 2, (hl_attrs){0});
}

static void add_program(const program_case *p)
{
    hl_id in[CASE_MAX], out;
    for (int v = 0; v < p->c.n_in; v++) {
        if (p->c.is_control[v]) CHECK_OK(hl_graph_control(graph, &control));
        in[v] = p->c.is_control[v] ? control : input(p->c.in[v].dtype, p->c.in[v].shape);
    }
    CHECK_OK(hl_graph_add_program(graph, in, p->c.n_in, &p->program, p->c.out, p->c.n_out, &out));
}

static uint8_t apply(program_case *p, hl_pw_op op, uint8_t a, uint8_t b)
{
    return program_emit(p, (hl_pw_instr){.op = (uint8_t)op, .a = a, .b = b});
}

/* n masks of this name, times x. */
static void draw_times(hl_pw_op op, const char *name, int64_t rows, int64_t cols, int n)
{
    program_case p;
    program_begin(&p, 2, (int64_t[]){rows, cols}, 1);
    uint8_t x = program_load(&p, HL_DTYPE_F32, WHOLE), in = program_add_control(&p);
    for (int i = 0; i < n; i++) {
        hl_pw_instr mask = {.op = (uint8_t)op, .in = in, .number = 0.3};
        mask.key = hl_rng_key_make(42 + (uint64_t)i, name);
        x = apply(&p, HL_PW_MUL, x, program_emit(&p, mask));
    }
    program_put(&p, x, HL_PW_FULL, HL_DTYPE_F32);
    add_program(&p);
}

static void draw(hl_pw_op op, const char *name, int64_t rows, int64_t cols)
{
    draw_times(op, name, rows, cols, 1);
}

/* by * x, and x + by */
static void add_both(int64_t n, double by, hl_dtype dtype)
{
    program_case p;
    program_begin(&p, 1, &n, 1);
    uint8_t x = program_load(&p, HL_DTYPE_F32, WHOLE);
    uint8_t y = program_emit(&p, (hl_pw_instr){.op = HL_PW_NUMBER, .number = by});
    program_put(&p, apply(&p, HL_PW_MUL, x, y), HL_PW_FULL, HL_DTYPE_F32);
    program_put(&p, apply(&p, HL_PW_ADD, x, y), HL_PW_FULL, dtype);
    add_program(&p);
}

static void build_casts(void)
{
    static const int64_t sizes[] = {7, 128, 513, 4096, 30000, 2, 33, 512, 1, 2000};
    for (int i = 0; i < 10; i++) cast(HL_DTYPE_F32, HL_DTYPE_BF16, sizes[i]);
}

/* As many as go, each with another number; the last one's block is the last. */
static void build_numbers(void)
{
    for (int i = 0; i < HL_CUDA_PARTS; i++)
        add_both(100 + 37 * i, 0.25 * i, i % 2 ? HL_DTYPE_F16 : HL_DTYPE_F32);
}

/* Every kind of operand; two that differ in their keys alone. */
static void build_mixed(void)
{
    cast(HL_DTYPE_F32, HL_DTYPE_F16, 700);
    multiply(HL_DTYPE_F32, 37, 20);
    draw(HL_PW_DROPOUT_MASK, "first", 9, 24);
    multiply(HL_DTYPE_BF16, 5, 600);
    add_both(1, 3, HL_DTYPE_BF16);
    draw(HL_PW_DROPOUT_MASK, "second", 30, 24);
    cast(HL_DTYPE_U8, HL_DTYPE_F32, 1111);
    draw_times(HL_PW_UNIFORM, "third", 4, 19, 2);
    hl_id x = input(HL_DTYPE_F32, hl_shape_2d(3, 50));
    add(HL_OP_TANH, &x, 1, (hl_attrs){0});
    cast(HL_DTYPE_F32, HL_DTYPE_BOOL, 65);
}

static void build_doubles(void)
{
    cast(HL_DTYPE_F64, HL_DTYPE_F32, 300);
    multiply(HL_DTYPE_F64, 17, 9);
    cast(HL_DTYPE_F32, HL_DTYPE_F64, 129);
}

static void build_integers(void)
{
    cast(HL_DTYPE_I64, HL_DTYPE_I32, 1);
    multiply(HL_DTYPE_I32, 21, 6);
    cast(HL_DTYPE_U8, HL_DTYPE_I64, 400);
}

/* More tiles than a grid has blocks, three times. */
static void build_large(void)
{
    for (int i = 0; i < 3; i++) cast(HL_DTYPE_F32, HL_DTYPE_BF16, 40001 + 9 * i);
}

static void begin(void (*build)(void))
{
    CHECK_OK(hl_graph_create(&graph));
    control = HL_NONE;
    build();
}

/* ---- running --------------------------------------------------------------------------------- */

typedef struct run_way {
    hl_device *device;
    bool is_horizontal, captured, in_place;
    size_t shift; /* operands lie so many bytes off from where they would lie aligned */
} run_way;

typedef struct values {
    unsigned char *at[MAX_VALUES]; /* device memory of each */
    size_t bytes[MAX_VALUES];
} values;

static size_t count_bytes(hl_id v)
{
    return hl_type_bytes(&hl_graph_value(graph, v)->type);
}

static double pick(hl_id v, int64_t e)
{
    return (double)((v * 131 + e * 29) % 200 - 100) / 8;
}

/* Inputs as they are the first time, everything else NaN. */
static void put_value(const run_way *way, values *all, hl_id v)
{
    const hl_value *value = hl_graph_value(graph, v);
    const hl_device_ops *ops = way->device->ops;
    bool is_control = control != HL_NONE && v == control;
    hl_control block = {.attempted = 7, .micro_row = 30};
    all->bytes[v] = is_control ? sizeof block : count_bytes(v);
    size_t total = all->bytes[v] + 3 * (size_t)GUARD;
    unsigned char *image = malloc(total), *own = image + GUARD + way->shift;
    memset(image, 0xFF, total);
    if (is_control) memcpy(own, &block, sizeof block);
    void *aligned = malloc(all->bytes[v] + 8);
    for (int64_t e = 0;
         !is_control && value->kind == HL_VALUE_INPUT && e < hl_shape_numel(&value->type.shape);
         e++)
        element_store(aligned, value->type.dtype, e, pick(v, e));
    if (!is_control && value->kind == HL_VALUE_INPUT) memcpy(own, aligned, all->bytes[v]);
    CHECK_OK(ops->memory_alloc(way->device, total, (void **)&all->at[v]));
    CHECK_OK(ops->copy(way->device, all->at[v], image, total, HL_COPY_HOST_TO_DEVICE, NULL));
    CHECK_OK(ops->synchronize(way->device, NULL));
    free(aligned);
    free(image);
}

/* Its bytes; what lies around them is as it was. */
static unsigned char *take_value(const run_way *way, const values *all, hl_id v)
{
    const hl_device_ops *ops = way->device->ops;
    size_t first = GUARD + way->shift, total = all->bytes[v] + 3 * (size_t)GUARD;
    unsigned char *image = malloc(total), *bytes = malloc(all->bytes[v] + 1);
    CHECK_OK(ops->copy(way->device, image, all->at[v], total, HL_COPY_DEVICE_TO_HOST, NULL));
    CHECK_OK(ops->synchronize(way->device, NULL));
    for (size_t i = 0; i < total; i++)
        if ((i < first || i >= first + all->bytes[v]) && image[i] != 0xFF) {
            check_fail(__FILE__, __LINE__, "value %d: a byte beside it was written", (int)v);
            break;
        }
    memcpy(bytes, image + first, all->bytes[v]);
    free(image);
    return bytes;
}

static const hl_kernel *select_kernel(hl_device *device, hl_node_id node, hl_kernel_req *out_req)
{
    const hl_kernel *kernel;
    CHECK_OK(hl_kernel_select(device, graph, node, true, &kernel, out_req));
    return kernel;
}

/* Where output j of a node lies: in place over input j where the kernel allows it, if asked. */
static hl_id find_place(const run_way *way, hl_node_id id, int j)
{
    hl_kernel_req req;
    const hl_node *node = &graph->nodes[id];
    select_kernel(way->device, id, &req);
    bool is_in_place = way->in_place && j < node->n_in && hl_kernel_takes_place(&req, j, j);
    return is_in_place ? node->in[j] : node->out + j;
}

/* Nodes first to end - 1 by one launch, or that one node. */
static void launch(const run_way *way, const hl_node_id *ids, int n, void *const *args)
{
    hl_kernel_req ignored;
    const hl_kernel *kernel = select_kernel(way->device, ids[0], &ignored);
    hl_kernel_state state = {.kernel = kernel};
    hl_capture *capture = NULL;
    const hl_device_ops *ops = way->device->ops;
    if (way->is_horizontal)
        CHECK_OK(kernel->prepare_horizontal(way->device, graph, ids, n, &state));
    else
        CHECK_OK(kernel->prepare(way->device, graph, ids[0], &state));
    CHECK_OK(upload_state(way->device, &state));
    hl_launch where = {.node = ids[0]};
    int64_t n_before = hl_fake_calls("cuLaunchKernel");
    if (way->captured) CHECK_OK(ops->capture_begin(way->device, NULL));
    CHECK_OK(kernel->launch(&state, args, &where, NULL));
    CHECK_INT(hl_fake_calls("cuLaunchKernel") - n_before, 1);
    if (way->captured) {
        CHECK_OK(ops->capture_end(way->device, NULL, &capture));
        CHECK_OK(ops->capture_launch(way->device, capture, NULL));
    }
    CHECK_OK(ops->synchronize(way->device, NULL));
    if (capture) ops->capture_destroy(way->device, capture);
    release_state(way->device, &state);
}

/* The bytes of every value that a node made. */
static void run(const run_way *way, unsigned char *out_bytes[MAX_VALUES])
{
    values all;
    void *args[4 * MAX_VALUES] = {NULL};
    int n_args = 0, n_nodes = (int)graph->n_nodes, first_arg[HL_CUDA_PARTS];
    hl_node_id ids[HL_CUDA_PARTS] = {0};
    for (hl_id v = 0; v < graph->n_values; v++) put_value(way, &all, v);
    for (int i = 0; i < n_nodes; i++) {
        const hl_node *node = &graph->nodes[i];
        ids[i] = i, first_arg[i] = n_args;
        for (int j = 0; j < node->n_in; j++)
            args[n_args++] = all.at[node->in[j]] + GUARD + way->shift;
        for (int j = 0; j < node->n_out; j++)
            args[n_args++] = all.at[find_place(way, i, j)] + GUARD + way->shift;
    }
    if (way->is_horizontal) launch(way, ids, n_nodes, args);
    for (int i = 0; i < n_nodes && !way->is_horizontal; i++)
        launch(way, &ids[i], 1, args + first_arg[i]);
    for (int i = 0; i < n_nodes; i++)
        for (int j = 0; j < graph->nodes[i].n_out; j++)
            out_bytes[graph->nodes[i].out + j] = take_value(way, &all, find_place(way, i, j));
    for (hl_id v = 0; v < graph->n_values; v++)
        way->device->ops->memory_free(way->device, all.at[v]);
}

static void compare(const run_way *way, unsigned char *const *want, const char *how)
{
    unsigned char *got[MAX_VALUES] = {NULL};
    run(way, got);
    for (hl_id v = 0; v < graph->n_values; v++) {
        if (got[v] && memcmp(got[v], want[v], count_bytes(v)) != 0)
            check_fail(__FILE__, __LINE__, "value %d: other bits %s", (int)v, how);
        free(got[v]);
    }
}

/* As they are apart; so many of them are compiled for the first time. */
static void check_bits(const char *name, void (*build)(void), int n_compiles)
{
    unsigned char *want[MAX_VALUES] = {NULL};
    begin(build);
    hl_node_id ids[HL_CUDA_PARTS] = {0};
    hl_kernel_req ignored;
    for (int i = 0; i < graph->n_nodes; i++) ids[i] = i;
    check_case("%s", name);
    const hl_kernel *kernel = select_kernel(plain, 0, &ignored);
    for (int n = 1; n <= graph->n_nodes; n++) CHECK(kernel->is_horizontal(plain, graph, ids, n));
    run(&(run_way){.device = plain}, want);
    for (int with = 0; with < 2; with++) {
        run_way way = {.device = with ? compiling : plain, .is_horizontal = true};
        int64_t n_compiled = hl_fake_nvrtc_compiles();
        check_case("%s, %s", name, with ? "compiled" : "interpreted");
        compare(&way, want, "in one launch");
        way.captured = true;
        compare(&way, want, "captured");
        way.captured = false, way.shift = 8;
        compare(&way, want, "less aligned");
        way.shift = 0, way.in_place = true;
        compare(&way, want, "in place");
        way.in_place = false;
        for (uint32_t order = HL_EMU_REVERSE; order < 5; order++) {
            hl_emu_set_order(order);
            compare(&way, want, "in another order");
        }
        hl_emu_set_order(HL_EMU_FORWARD);
        CHECK_INT(hl_fake_nvrtc_compiles() - n_compiled, with ? n_compiles : 0);
    }
    for (int v = 0; v < MAX_VALUES; v++) free(want[v]);
    hl_graph_destroy(graph);
}

/* ---- which are fused horizontally ------------------------------------------------------------ */

/* Are all nodes of the graph one launch? */
static bool is_fused(void (*build)(void))
{
    hl_node_id ids[2 * HL_CUDA_PARTS] = {0};
    hl_kernel_req ignored;
    begin(build);
    for (int i = 0; i < graph->n_nodes; i++) ids[i] = i;
    const hl_kernel *kernel = select_kernel(plain, (hl_node_id)graph->n_nodes - 1, &ignored);
    bool answer = kernel->is_horizontal(plain, graph, ids, (int32_t)graph->n_nodes);
    hl_graph_destroy(graph);
    return answer;
}

static void build_one_large(void)
{
    multiply(HL_DTYPE_F32, 3000, 300);
}
static void build_large_and_small(void)
{
    cast(HL_DTYPE_F32, HL_DTYPE_BF16, 9);
    multiply(HL_DTYPE_F32, 3000, 300);
}
static void build_large_and_another(void)
{
    cast(HL_DTYPE_F32, HL_DTYPE_BF16, 900000);
    cast(HL_DTYPE_F32, HL_DTYPE_F16, 9);
}
static void build_two_numbers(void)
{
    add_both(900000, 1, HL_DTYPE_F32);
    add_both(9, 2, HL_DTYPE_F32);
}
static void build_two_types(void)
{
    add_both(900000, 1, HL_DTYPE_F32);
    add_both(9, 1, HL_DTYPE_BF16);
}
static void build_two_broadcasts(void)
{
    multiply(HL_DTYPE_F32, 3000, 300);
    multiply(HL_DTYPE_F32, 3000, 300);
}
static void build_two_draws(void)
{
    draw(HL_PW_DROPOUT_MASK, "a", 3000, 300);
    draw(HL_PW_DROPOUT_MASK, "b", 3000, 300);
}
static void build_two_kinds(void)
{
    cast(HL_DTYPE_F32, HL_DTYPE_BF16, 9);
    cast(HL_DTYPE_I64, HL_DTYPE_I32, 9);
}
static void build_sum(void)
{
    program_case p;
    program_begin(&p, 1, (int64_t[]){9}, 1);
    program_put(&p, program_load(&p, HL_DTYPE_F32, WHOLE), HL_PW_SUM_ALL, HL_DTYPE_F32);
    add_program(&p);
}
static void build_nothing(void)
{
    cast(HL_DTYPE_F32, HL_DTYPE_BF16, 0);
}
/* Each part draws of its own. */
static void build_draws(void)
{
    static char names[HL_CUDA_PARTS][12];
    for (int i = 0; i < HL_CUDA_PARTS; i++) {
        snprintf(names[i], sizeof *names, "%d", i);
        draw(HL_PW_DROPOUT_MASK, names[i], 2, 3);
    }
}
/* All parts, each of so many numbers. */
static void build_numbered(int n)
{
    for (int i = 0; i < HL_CUDA_PARTS; i++) {
        program_case p;
        program_begin(&p, 1, (int64_t[]){5 + i}, 1);
        uint8_t x = program_load(&p, HL_DTYPE_F32, WHOLE);
        for (int k = 0; k < n; k++) {
            hl_pw_instr number = {.op = HL_PW_NUMBER, .number = 0.5 + k + 0.125 * i};
            x = apply(&p, k % 2 ? HL_PW_SUB : HL_PW_MUL, x, program_emit(&p, number));
        }
        program_put(&p, x, HL_PW_FULL, HL_DTYPE_F32);
        add_program(&p);
    }
}
static void build_most_numbers(void)
{
    build_numbered(HL_CUDA_PARTS_NUMBERS / HL_CUDA_PARTS);
}
static void build_too_many_numbers(void)
{
    build_numbered(HL_CUDA_PARTS_NUMBERS / HL_CUDA_PARTS + 1);
}
/* Each has five operands. */
static void build_operands(int n)
{
    for (int i = 0; i < n; i++) {
        program_case p;
        program_begin(&p, 1, (int64_t[]){5}, 1);
        uint8_t x = program_load(&p, HL_DTYPE_F32, WHOLE);
        for (int k = 1; k < 4; k++)
            x = apply(&p, HL_PW_SUB, x, program_load(&p, HL_DTYPE_F32, WHOLE));
        program_put(&p, x, HL_PW_FULL, HL_DTYPE_F32);
        add_program(&p);
    }
}
static void build_most_operands(void)
{
    build_operands(HL_CUDA_PARTS_OPERANDS / 5);
}
static void build_too_many_operands(void)
{
    build_operands(HL_CUDA_PARTS_OPERANDS / 5 + 1);
}

static void test_which(void)
{
    check_case("which are fused horizontally");
    CHECK(is_fused(build_one_large));
    CHECK(!is_fused(build_large_and_small));
    CHECK(!is_fused(build_large_and_another));
    CHECK(!is_fused(build_two_numbers));
    CHECK(!is_fused(build_two_types));
    CHECK(!is_fused(build_two_broadcasts));
    CHECK(!is_fused(build_two_draws));
    CHECK(!is_fused(build_two_kinds));
    CHECK(!is_fused(build_sum));
    CHECK(!is_fused(build_nothing));
    CHECK(is_fused(build_most_numbers));
    CHECK(!is_fused(build_too_many_numbers));
    CHECK(is_fused(build_most_operands));
    CHECK(!is_fused(build_too_many_operands));
}

/* ---- compiling, failures --------------------------------------------------------------------- */

static hl_status prepare_all(void *context)
{
    hl_device *device = context;
    hl_node_id ids[HL_CUDA_PARTS] = {0};
    hl_kernel_req ignored;
    for (int i = 0; i < graph->n_nodes; i++) ids[i] = i;
    hl_kernel_state state = {.kernel = select_kernel(device, 0, &ignored)};
    HL_TRY(state.kernel->prepare_horizontal(device, graph, ids, (int32_t)graph->n_nodes, &state));
    state.kernel->release(&state);
    return HL_OK;
}

static int64_t count_compiles(void (*build)(void))
{
    int64_t before = hl_fake_nvrtc_compiles();
    begin(build);
    CHECK_OK(prepare_all(compiling));
    hl_graph_destroy(graph);
    return hl_fake_nvrtc_compiles() - before;
}

static void build_other_casts(void)
{
    for (int i = 0; i < 4; i++) cast(HL_DTYPE_F32, HL_DTYPE_BF16, 77 + i);
}
static void build_one_more_kind(void)
{
    build_other_casts();
    cast(HL_DTYPE_BF16, HL_DTYPE_F32, 77);
}

/* Casts are one kernel, however many and large; with another program it is another one. */
static void test_once(void)
{
    check_case("compiled once");
    CHECK_INT(count_compiles(build_other_casts), 1);
    CHECK_INT(count_compiles(build_large), 0);
    CHECK_INT(count_compiles(build_one_more_kind), 1);
    CHECK_INT(count_compiles(build_one_more_kind), 0);
}

/* Every allocation, every call of the driver: nothing is left, and the next one works. */
static void test_failures(void)
{
    begin(build_mixed);
    CHECK(check_walk_faults(CHECK_FAULT_ALLOC, HL_ERROR_MEMORY, 0, prepare_all, plain) > 3);
    CHECK(check_walk_faults(CHECK_FAULT_ALLOC, HL_ERROR_MEMORY, 0, prepare_all, compiling) > 3);
    for (int with = 0; with < 2; with++)
        for (int64_t k = 1, n_seen = k; n_seen >= k; k++) {
            check_case("driver call %lld", (long long)k);
            hl_fake_live before = hl_fake_get_live();
            hl_fake_fail(k, false, CUDA_ERROR_OUT_OF_MEMORY);
            hl_status status = prepare_all(with ? compiling : plain);
            n_seen = hl_fake_fail(0, false, CUDA_SUCCESS);
            CHECK(status == HL_OK || hl_status_message()[0]);
            hl_fake_live after = hl_fake_get_live(); /* what was compiled stays with the device */
            CHECK_INT(after.memory, before.memory);
            CHECK_INT(after.pushed, before.pushed);
            CHECK_OK(prepare_all(with ? compiling : plain));
        }
    hl_graph_destroy(graph);
}

int main(void)
{
    setenv("HOTLOOP_CACHE_PATH", "", 1);
    hl_fake_reset(NULL);
    plain = open_device(false);
    begin(build_casts);
    CHECK_OK(prepare_all(plain)); /* it looks for NVRTC now, when there is none */
    hl_graph_destroy(graph);
    compiling = open_device(true);
    test_once();
    test_which();
    check_bits("mixed", build_mixed, 1);
    check_bits("numbers", build_numbers, 1);
    check_bits("doubles", build_doubles, 1);
    check_bits("integers", build_integers, 1);
    check_bits("casts", build_casts, 1);
    check_bits("large", build_large, 0);
    check_bits("draws", build_draws, 1);
    check_bits("most numbers", build_most_numbers, 1);
    check_bits("operands", build_most_operands, 1);
    test_failures();
    plain->ops->destroy(plain);
    compiling->ops->destroy(compiling);
    CHECK(strcmp(hl_fake_message(), "") == 0);
    CHECK_INT(hl_fake_live_sum(), 0);
    return CHECK_DONE();
}
