/* Pointwise programs on the emulated GPU: interpreted and compiled the same bits, in every form of
 * operand, alignment and sum, against the reference; and what happens around compiling: what is
 * compiled once, kept on disk, broken there, and what a failure anywhere leaves. */
#include <dirent.h>
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "kernels/cuda/nvrtc.h"
#include "tests/c/program_case.h"
#include "tests/cuda/device_case.h"
#include "tests/cuda/emu/emu.h"
#include "tests/cuda/fake_nvrtc.h"

static char folder[] = "/tmp/hl-pointwise-XXXXXX";
static hl_device *plain, *compiling; /* without NVRTC, with it */

static void show_nvrtc(bool is_shown)
{
    setenv("HOTLOOP_NVRTC_PATH", is_shown ? FAKE_NVRTC : "none", 1);
}

static hl_device *open_device(bool has_nvrtc)
{
    hl_device *device = NULL;
    show_nvrtc(has_nvrtc);
    CHECK_OK(hl_fake_backend()->device_open(hl_fake_backend(), 0, NULL, &device));
    return device;
}

static void close_device(hl_device *device)
{
    if (device) device->ops->destroy(device);
}

/* ---- programs -------------------------------------------------------------------------------- */

static uint8_t load(program_case *p, hl_dtype dtype, unsigned mask)
{
    int in = p->c.n_in;
    uint8_t reg = program_load(p, dtype, mask);
    case_fill(&p->c, in, dtype == HL_DTYPE_U8 || dtype == HL_DTYPE_BOOL ? 0 : -2, 2);
    return reg;
}

static uint8_t apply(program_case *p, hl_pw_op op, uint8_t a, uint8_t b, uint8_t c)
{
    return program_emit(p, (hl_pw_instr){.op = (uint8_t)op, .a = a, .b = b, .c = c});
}

static uint8_t number(program_case *p, double value)
{
    return program_emit(p, (hl_pw_instr){.op = HL_PW_NUMBER, .number = value});
}

/* Terms are at most 4, and sums of them count their roundings. */
static void put(program_case *p, uint8_t reg, hl_pw_sums sums, hl_dtype dtype)
{
    program_put(p, reg, sums, dtype);
    double n = (double)hl_shape_numel(&p->program.shape) + 16;
    if (sums != HL_PW_FULL) p->c.tolerance = fmax(p->c.tolerance, n * 0x1p-22);
    if (dtype == HL_DTYPE_BF16) p->c.tolerance = fmax(p->c.tolerance, 0x1p-7);
    if (dtype == HL_DTYPE_F16) p->c.tolerance = fmax(p->c.tolerance, 0x1p-10);
}

/* All of a program draw by one control block. */
static uint8_t draw(program_case *p, hl_pw_op op, const char *stream)
{
    int in = 0;
    while (in < p->c.n_in && !p->c.is_control[in]) in++;
    if (in == p->c.n_in) in = program_add_control(p);
    return program_emit(p, (hl_pw_instr){.op = (uint8_t)op,
                                         .number = 0.3,
                                         .in = (uint8_t)in,
                                         .key = hl_rng_key_make(42, stream)});
}

/* The case's bits on a device: plain, captured, in place. */
static bool run_on(hl_device *device, program_case *p, unsigned char **out_bytes)
{
    case_gpu = device;
    return case_run_gpu(&p->c, out_bytes);
}

/* Interpreted and compiled, aligned and not, in two orders of threads: the same bits; and what the
 * reference has. Ends the case. */
static void check_program(program_case *p)
{
    unsigned char *first[CASE_MAX] = {NULL};
    hl_kernel_req ignored;
    int64_t n_compiled = hl_fake_nvrtc_compiles();
    bool runs = run_on(plain, p, first);
    CHECK_INT(hl_fake_nvrtc_compiles(), n_compiled);
    for (int kind = 0; runs && kind < 3; kind++) {
        unsigned char *again[CASE_MAX] = {NULL};
        case_shift = kind == 1 ? 8 : 0;
        hl_emu_set_order(kind == 2 ? HL_EMU_REVERSE : HL_EMU_FORWARD);
        run_on(compiling, p, again);
        for (int j = 0; j < p->c.n_out; j++) {
            if (memcmp(first[j], again[j], case_bytes(&p->c.out[j])) != 0)
                check_fail(__FILE__, __LINE__, "output %d: other bits compiled, run %d", j, kind);
            free(again[j]);
        }
    }
    case_shift = 0;
    hl_emu_set_order(HL_EMU_FORWARD);
    CHECK(hl_fake_nvrtc_compiles() - n_compiled <= 1);
    if (runs && case_run_once(&p->c, case_ref, 1, CASE_APART, NULL, &ignored)) case_compare(&p->c);
    for (int j = 0; j < CASE_MAX; j++) free(first[j]);
    case_forget(&p->c);
}

/* ---- operands and sums ----------------------------------------------------------------------- */

enum { WHOLE = 0xFF };

/* Every form of operand beside the others: whole, one element, along the last dim, along the first,
 * in the middle. */
static void check_forms(int64_t a, int64_t b, int64_t c, hl_dtype dtype)
{
    program_case p;
    const int64_t dim[] = {a, b, c};
    check_case("forms %lldx%lldx%lld of %s", (long long)a, (long long)b, (long long)c,
               hl_dtype_name(dtype));
    program_begin(&p, 3, dim, 3);
    uint8_t sum = load(&p, dtype, WHOLE);
    const unsigned masks[] = {0, 4, 1, 2, 6, 3, 5};
    for (size_t m = 0; m < sizeof masks / sizeof *masks; m++) {
        uint8_t x = load(&p, dtype, masks[m]);
        sum = apply(&p, m % 2 ? HL_PW_ADD : HL_PW_SUB, sum, x, 0);
    }
    p.c.tolerance = 1e-5 * 16;
    put(&p, sum, HL_PW_FULL, dtype);
    check_program(&p);
}

static void test_forms(void)
{
    check_forms(3, 5, 8, HL_DTYPE_F32);
    check_forms(3, 6, 7, HL_DTYPE_F32);
    check_forms(5, 4, 16, HL_DTYPE_BF16);
    check_forms(9, 2, 12, HL_DTYPE_F64);
    check_forms(2, 3, 4, HL_DTYPE_I64);
    check_forms(2, 3, 16, HL_DTYPE_U8);
    check_forms(1, 1, 1, HL_DTYPE_F32);
    check_forms(40, 30, 10, HL_DTYPE_F32);
}

/* Sets of outputs: a bit for each of hl_pw_sums. */
enum {
    FULL = 1 << HL_PW_FULL,
    ROWS = 1 << HL_PW_SUM_ROWS,
    COLS = 1 << HL_PW_SUM_COLS,
    ALL = 1 << HL_PW_SUM_ALL,
    MIDDLE = 1 << HL_PW_SUM_MIDDLE,
    ENDS = 1 << (HL_PW_SUM_OUTER | HL_PW_SUM_INNER),
    INSIDE = 1 << (HL_PW_SUM_MIDDLE | HL_PW_SUM_INNER)
};

/* These kinds of sums, of a product of two operands. */
static void check_sums(int64_t rows, int64_t cols, hl_dtype dtype, unsigned kinds)
{
    program_case p;
    const int64_t dim[] = {rows, cols};
    check_case("sums %x of %lldx%lld of %s", kinds, (long long)rows, (long long)cols,
               hl_dtype_name(dtype));
    program_begin(&p, 2, dim, 1);
    uint8_t x = load(&p, dtype, WHOLE), y = load(&p, dtype, 2);
    uint8_t product = apply(&p, HL_PW_MUL, x, y, 0);
    for (int sums = HL_PW_FULL; sums <= HL_PW_SUM_ALL; sums++)
        if (kinds >> sums & 1) put(&p, product, (hl_pw_sums)sums, dtype);
    check_program(&p);
}

static void test_sums(void)
{
    static const int64_t sizes[][2] = {{1, 1},    {3, 5},    {64, 32},   {70, 128},  {7, 130},
                                       {200, 10}, {1, 3000}, {3000, 1},  {9000, 6},  {2, 40000},
                                       {33, 260}, {0, 4},    {40000, 1}, {600, 1000}};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        check_sums(sizes[s][0], sizes[s][1], HL_DTYPE_F32, FULL | ROWS | COLS | ALL);
    static const unsigned kinds[] = {ROWS, COLS, ALL};
    for (int k = 0; k < 3; k++) {
        check_sums(150, 72, HL_DTYPE_F32, kinds[k]);
        check_sums(37, 48, HL_DTYPE_I32, kinds[k] | FULL);
        check_sums(45, 20, HL_DTYPE_F64, kinds[k]);
        check_sums(29, 64, HL_DTYPE_BF16, kinds[k] | FULL);
    }
    check_sums(200000, 1, HL_DTYPE_F32, ALL);
    check_sums(4, 0, HL_DTYPE_F32, ROWS | COLS | ALL);
}

/* Sums over the rows of what is small are one launch, whatever its shape; else they are merged by
 * another. */
static void test_sum_launches(void)
{
    static const struct {
        int64_t rows, cols;
        int launches;
    } sizes[] = {{512, 128, 1}, {512, 30, 1},  {2048, 7, 1}, {40, 3000, 1},
                 {2049, 7, 2},  {512, 260, 2}, {1, 9, 1},    {16, 70000, 1}};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        program_case p;
        const int64_t dim[] = {sizes[s].rows, sizes[s].cols};
        check_case("launches for sums of %lldx%lld", (long long)dim[0], (long long)dim[1]);
        program_begin(&p, 2, dim, 1);
        uint8_t x = load(&p, HL_DTYPE_F32, WHOLE);
        put(&p, apply(&p, HL_PW_MUL, x, x, 0), HL_PW_SUM_ROWS, HL_DTYPE_F32);
        put(&p, x, HL_PW_SUM_ROWS, HL_DTYPE_F32);
        unsigned char *bytes[CASE_MAX] = {NULL};
        int64_t before = hl_fake_calls("cuLaunchKernel");
        run_on(plain, &p, bytes);
        /* Alone, and while captured; each of the two sums is merged. */
        CHECK_INT(hl_fake_calls("cuLaunchKernel") - before, 2 * (2 * sizes[s].launches - 1));
        for (int j = 0; j < p.c.n_out; j++) free(bytes[j]);
        case_forget(&p.c);
        check_sums(dim[0], dim[1], HL_DTYPE_F32, ROWS | FULL);
    }
}

/* Sums over groups of (O,M,I): what is summed along each of the dims, where a warp has one row or
 * several of them, a block one o or several, and where partials are merged in one stage or two. */
static void check_groups(const int64_t *dim, hl_dtype dtype, unsigned kinds)
{
    program_case p;
    check_case("sums %x of %lldx%lldx%lld of %s", kinds, (long long)dim[0], (long long)dim[1],
               (long long)dim[2], hl_dtype_name(dtype));
    program_begin(&p, 3, dim, 2);
    p.program.split[0] = 1;
    uint8_t x = load(&p, dtype, WHOLE);
    for (unsigned mask = 1; mask < 8; mask *= 2)
        x = apply(&p, HL_PW_ADD, x, load(&p, dtype, mask), 0);
    for (int sums = HL_PW_FULL; sums <= HL_PW_SUM_ALL; sums++)
        if (kinds >> sums & 1) put(&p, x, (hl_pw_sums)sums, dtype);
    p.c.tolerance *= 4;
    check_program(&p);
}

static void test_groups(void)
{
    static const int64_t sizes[][3] = {{3, 5, 8},   {40, 3, 7},   {9, 40, 33}, {4, 700, 5},
                                       {3, 4, 900}, {300, 64, 2}, {5, 2, 132}, {2, 3000, 36},
                                       {0, 3, 4},   {3, 4, 0}};
    static const unsigned kinds[] = {ENDS,
                                     MIDDLE,
                                     INSIDE,
                                     FULL | ENDS | ROWS | COLS | ALL,
                                     FULL | MIDDLE | ENDS | INSIDE,
                                     MIDDLE | ROWS | COLS | ALL};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
            check_groups(sizes[s], HL_DTYPE_F32, kinds[k]);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        check_groups(sizes[2], HL_DTYPE_F64, kinds[k]);
        check_groups(sizes[2], HL_DTYPE_I32, kinds[k]);
        check_groups(sizes[6], HL_DTYPE_BF16, kinds[k]);
    }
}

/* Single nodes of what a program has a word for, whose outputs have other types. */
static void check_node(hl_op op, hl_dtype in, int n_in, hl_dtype out, int64_t attr)
{
    program_case p;
    memset(&p, 0, sizeof p);
    p.c.op = op, p.c.n_in = n_in, p.c.n_out = 1;
    if (op == HL_OP_CAST) p.c.attrs.dtype.dtype = (hl_dtype)attr;
    for (int i = 0; i < n_in; i++) {
        p.c.in[i] = (hl_type){in, hl_shape_2d(i ? 1 : 9, 33)};
        case_fill(&p.c, i, hl_dtype_kind(in) == 'u' ? 0 : -3, 3);
    }
    p.c.out[0] = (hl_type){out, hl_shape_2d(9, 33)};
    p.c.tolerance = out == HL_DTYPE_BF16 ? 0x1p-7 : out == HL_DTYPE_F16 ? 0x1p-10 : 1e-6;
    check_case("%s from %s to %s", hl_op_get(op)->name, hl_dtype_name(in), hl_dtype_name(out));
    unsigned char *bytes[2][CASE_MAX] = {{NULL}};
    hl_kernel_req ignored;
    if (run_on(plain, &p, bytes[0]) && run_on(compiling, &p, bytes[1]) &&
        case_run_once(&p.c, case_ref, 1, CASE_APART, NULL, &ignored)) {
        CHECK(memcmp(bytes[0][0], bytes[1][0], case_bytes(&p.c.out[0])) == 0);
        case_compare(&p.c);
    }
    free(bytes[0][0]), free(bytes[1][0]);
    case_forget(&p.c);
}

static void test_types(void)
{
    static const hl_dtype all[] = {HL_DTYPE_F32, HL_DTYPE_F64, HL_DTYPE_BF16, HL_DTYPE_F16,
                                   HL_DTYPE_I64, HL_DTYPE_I32, HL_DTYPE_I16,  HL_DTYPE_I8,
                                   HL_DTYPE_U8,  HL_DTYPE_BOOL};
    enum { N = sizeof all / sizeof *all };
    for (size_t i = 0; i < N; i++) {
        for (size_t j = 0; j < N; j++)
            if (i == j || i * j % 5 == 1) check_node(HL_OP_CAST, all[i], 1, all[j], all[j]);
        check_node(HL_OP_GT, all[i], 2, HL_DTYPE_BOOL, 0);
        check_node(HL_OP_MAXIMUM, all[i], 2, all[i], 0);
    }
    check_node(HL_OP_TANH, HL_DTYPE_BF16, 1, HL_DTYPE_BF16, 0);
    check_node(HL_OP_MOD, HL_DTYPE_I32, 2, HL_DTYPE_I32, 0);
    check_node(HL_OP_DIV, HL_DTYPE_I64, 2, HL_DTYPE_F32, 0);
    check_node(HL_OP_ISFINITE, HL_DTYPE_F16, 1, HL_DTYPE_BOOL, 0);
}

/* ---- random steps, special numbers ----------------------------------------------------------- */

static void check_draws(int64_t samples, int64_t size, const char *stream)
{
    program_case p;
    const int64_t dim[] = {samples, size};
    check_case("draws of %lldx%lld", (long long)samples, (long long)size);
    program_begin(&p, 2, dim, 1);
    uint8_t x = load(&p, HL_DTYPE_F32, WHOLE);
    uint8_t mask = draw(&p, HL_PW_DROPOUT_MASK, stream);
    uint8_t noise = draw(&p, HL_PW_UNIFORM, "noise");
    put(&p, apply(&p, HL_PW_MUL, x, mask, 0), HL_PW_FULL, HL_DTYPE_F32);
    put(&p, noise, HL_PW_FULL, HL_DTYPE_F32);
    put(&p, apply(&p, HL_PW_MUL, x, noise, 0), HL_PW_SUM_ROWS, HL_DTYPE_F32);
    p.c.tolerance = 1e-5;
    check_program(&p);
}

static void test_draws(void)
{
    check_draws(5, 24, "a");
    check_draws(40, 19, "a");
    check_draws(3, 4, "a");
}

static void test_numbers(void)
{
    static const double numbers[] = {0.1, -0.0, INFINITY, -INFINITY, NAN, 0x1p-140, 1e300};
    program_case p;
    const int64_t dim[] = {11};
    check_case("numbers");
    program_begin(&p, 1, dim, 1);
    uint8_t x = load(&p, HL_DTYPE_F32, WHOLE), zero = number(&p, 0);
    uint8_t is_positive = apply(&p, HL_PW_GT, x, zero, 0);
    for (size_t i = 0; i + 1 < sizeof numbers / sizeof *numbers; i++)
        put(&p, apply(&p, HL_PW_WHERE, is_positive, number(&p, numbers[i]), x), HL_PW_FULL,
            HL_DTYPE_F32);
    put(&p, apply(&p, HL_PW_MINIMUM, x, number(&p, numbers[6]), 0), HL_PW_FULL, HL_DTYPE_F32);
    check_program(&p);
}

/* What registers hold is by one rule for all devices. */
static void test_kinds(void)
{
    const int64_t dim[] = {40};
    for (int rank = 0; rank < 2; rank++) {
        program_case p;
        check_case("beside a number, rank %d", rank);
        program_compare_beside_number(&p, rank, dim);
        check_program(&p);
        check_case("integers divided, rank %d", rank);
        program_divide_integers(&p, rank, dim);
        check_program(&p);
    }
}

/* ---- compiling ------------------------------------------------------------------------------- */

/* x * y + y over rows, summed over them. */
static void make_product(program_case *p, int64_t rows, int64_t cols, double by)
{
    const int64_t dim[] = {rows, cols};
    program_begin(p, 2, dim, 1);
    uint8_t x = load(p, HL_DTYPE_F32, WHOLE), y = load(p, HL_DTYPE_F32, 2);
    uint8_t z = apply(p, HL_PW_MUL, apply(p, HL_PW_MUL, x, y, 0), number(p, by), 0);
    put(p, apply(p, HL_PW_ADD, z, y, 0), HL_PW_FULL, HL_DTYPE_F32);
    put(p, z, HL_PW_SUM_ROWS, HL_DTYPE_F32);
}

/* Prepares the case's node on a device, and releases it. */
static hl_status prepare_case(hl_device *device, program_case *p)
{
    case_graph g;
    hl_kernel_state state = {.impl = NULL};
    hl_kernel_req req;
    case_build(&p->c, false, &g);
    HL_TRY(hl_kernel_select(device, &g.graph, 0, false, &state.kernel, &req));
    HL_TRY(state.kernel->prepare(device, &g.graph, 0, &state));
    state.kernel->release(&state);
    return HL_OK;
}

/* How often that compiled. */
static int64_t count_compiles(hl_device *device, program_case *p)
{
    int64_t before = hl_fake_nvrtc_compiles();
    CHECK_OK(prepare_case(device, p));
    return hl_fake_nvrtc_compiles() - before;
}

/* The log's last line that has these words; "": none. */
static const char *find_line(const char *words)
{
    static char line[512], found[512];
    hl_log_level level;
    found[0] = '\0';
    while (hl_log_take(&level, line, sizeof line))
        if (strstr(line, words)) strcpy(found, line);
    return found;
}

/* A program over (dim), split behind the first: x whole, less y with the dims of the mask, times a
 * number; or to its power, summed up too, or with a mask. */
typedef enum once_kind { TIMES, POWER, SUMMED, DRAWN } once_kind;
typedef struct once_case {
    int64_t dim[3];
    unsigned mask;
    double number;
    once_kind kind;
    int compiles;
} once_case;

static int64_t count_once(const once_case *o)
{
    program_case p;
    program_begin(&p, 3, o->dim, 1);
    uint8_t x = load(&p, HL_DTYPE_F32, WHOLE), y = load(&p, HL_DTYPE_F32, o->mask);
    x = apply(&p, HL_PW_SUB, x, y, 0);
    x = apply(&p, o->kind == POWER ? HL_PW_POW : HL_PW_MUL, x, number(&p, o->number), 0);
    if (o->kind == DRAWN) x = apply(&p, HL_PW_MUL, x, draw(&p, HL_PW_DROPOUT_MASK, "mask"), 0);
    put(&p, x, HL_PW_FULL, HL_DTYPE_F32);
    if (o->kind == SUMMED) put(&p, x, HL_PW_SUM_ROWS, HL_DTYPE_F32);
    int64_t n = count_compiles(compiling, &p);
    case_forget(&p.c);
    return n;
}

/* Programs of one structure are compiled once, whatever their extents, numbers and keys; another
 * structure is another kernel. */
static void test_structures(void)
{
    static const once_case rows[] = {
        {{6, 5, 8}, 4, 0.5, TIMES, 1},
        {{6, 5, 8}, 4, 0.25, TIMES, 0}, /* another number */
        {{60, 5, 8}, 4, 0.5, TIMES, 0}, /* another batch */
        {{7, 3, 12}, 4, 3, TIMES, 0},   /* another layer */
        {{6, 5, 10}, 4, 0.5, TIMES, 1}, /* rows that are no whole vectors */
        {{9, 7, 6}, 4, 0.5, TIMES, 0},
        {{6, 5, 8}, 2, 0.5, TIMES, 1}, /* other dims of it */
        {{9, 2, 4}, 2, 0.5, TIMES, 0},
        {{6, 5, 8}, 5, 0.5, TIMES, 1}, /* by three dims and two strides */
        {{3, 9, 16}, 5, 0.5, TIMES, 0},
        {{1, 9, 16}, 5, 0.5, TIMES, 0}, /* a batch of one: as the first ones */
        {{6, 5, 8}, 4, 2, POWER, 1},
        {{9, 6, 4}, 4, 2, POWER, 0},
        {{6, 5, 8}, 4, 3, POWER, 1}, /* another exponent */
        {{6, 5, 8}, 4, 0.5, SUMMED, 1},
        {{70, 9, 4}, 4, 0.75, SUMMED, 0},
        {{6, 5, 8}, 4, 0.5, DRAWN, 1},
        {{9, 7, 4}, 4, 0.5, DRAWN, 0},
        {{9, 3, 5}, 4, 0.5, DRAWN, 1}, /* samples that are no whole vectors */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_case("structure %d", (int)i);
        CHECK_INT(count_once(&rows[i]), rows[i].compiles);
    }
}

/* More elements than 31 bits count: 64-bit indices, in a source of their own that compiles. */
static void test_long(void)
{
    hl_graph *graph;
    hl_id in[2], out;
    hl_kernel_req req;
    hl_kernel_state state = {.impl = NULL};
    check_case("more than 2^31 elements");
    for (int64_t rows = 70000; rows < 72000; rows += 1000) {
        int64_t before = hl_fake_nvrtc_compiles();
        CHECK_OK(hl_graph_create(&graph));
        CHECK_OK(
            hl_graph_input(graph, "x", (hl_type){HL_DTYPE_F32, hl_shape_2d(rows, 40000)}, &in[0]));
        CHECK_OK(hl_graph_input(graph, "y", (hl_type){HL_DTYPE_F32, hl_shape_1d(40000)}, &in[1]));
        CHECK_OK(hl_graph_add(graph, HL_OP_MUL, in, 2, NULL, &out));
        CHECK_OK(hl_kernel_select(compiling, graph, 0, false, &state.kernel, &req));
        find_line("");
        CHECK_OK(state.kernel->prepare(compiling, graph, 0, &state));
        CHECK(!find_line("interpreted")[0]);
        CHECK_INT(hl_fake_nvrtc_compiles() - before, rows == 70000);
        state.kernel->release(&state);
        hl_graph_destroy(graph);
    }
}

/* Where the same program is asked for again, it is the device's already. */
static void test_once(void)
{
    program_case p;
    check_case("compiled once");
    make_product(&p, 12, 40, 0.75);
    CHECK_INT(count_compiles(compiling, &p), 1);
    int64_t n_loads = hl_fake_calls("cuLibraryLoadData");
    CHECK_INT(count_compiles(compiling, &p), 0);
    CHECK_INT(count_compiles(plain, &p), 0);
    CHECK_INT(hl_fake_calls("cuLibraryLoadData"), n_loads);
    case_forget(&p.c);
    int64_t before = hl_fake_nvrtc_compiles();
    check_draws(5, 24, "another layer");
    check_draws(11, 40, "another size");
    CHECK_INT(hl_fake_nvrtc_compiles(), before);
}

static int count_files(char *out_last, size_t bytes)
{
    int n = 0;
    DIR *stream = opendir(folder);
    for (struct dirent *entry; stream && (entry = readdir(stream));) {
        if (entry->d_name[0] == '.') continue;
        if (out_last) snprintf(out_last, bytes, "%s/%s", folder, entry->d_name);
        n++;
    }
    if (stream) closedir(stream);
    return n;
}

static void empty_folder(void)
{
    char path[512];
    while (count_files(path, sizeof path) > 0) unlink(path);
}

/* Opens a device with NVRTC, prepares the case there, and says how often that compiled. */
static int64_t compile_anew(program_case *p)
{
    hl_device *device = open_device(true);
    int64_t n = count_compiles(device, p);
    close_device(device);
    return n;
}

static void test_disk(void)
{
    program_case p;
    char path[512];
    check_case("on disk");
    empty_folder();
    make_product(&p, 6, 24, 1.25);
    CHECK_INT(compile_anew(&p), 1);
    CHECK_INT(count_files(path, sizeof path), 1);
    CHECK_INT(compile_anew(&p), 0);
    struct stat info;
    CHECK_INT(stat(path, &info), 0);
    CHECK_INT(truncate(path, info.st_size - 1), 0); /* cut off */
    CHECK_INT(compile_anew(&p), 1);
    CHECK_INT(compile_anew(&p), 0);
    FILE *file = fopen(path, "r+b"); /* one byte of the code is another one */
    fseek(file, -100, SEEK_END);
    int byte = fgetc(file);
    fseek(file, -100, SEEK_END);
    fputc(byte ^ 1, file);
    fclose(file);
    CHECK_INT(compile_anew(&p), 1);
    CHECK_INT(compile_anew(&p), 0);
    hl_fake_nvrtc_pretend(1020, 0); /* another compiler */
    CHECK_INT(compile_anew(&p), 1);
    CHECK_INT(count_files(NULL, 0), 2);
    hl_fake_nvrtc_pretend(0, 0);
    setenv("HOTLOOP_CACHE_PATH", "/proc/nowhere", 1); /* cannot be written */
    CHECK_INT(compile_anew(&p), 1);
    setenv("HOTLOOP_CACHE_PATH", folder, 1);
    case_forget(&p.c);
}

static void test_versions(void)
{
    program_case p;
    check_case("versions");
    make_product(&p, 6, 28, 1.25);
    empty_folder();
    hl_fake_nvrtc_pretend(0, 80); /* older than the GPU */
    CHECK_INT(compile_anew(&p), 1);
    CHECK(strcmp(hl_fake_nvrtc_arch(), "compute_80") == 0);
    empty_folder();
    hl_fake_nvrtc_pretend(0, 0);
    CHECK_INT(compile_anew(&p), 1);
    CHECK(strcmp(hl_fake_nvrtc_arch(), "sm_90") == 0);
    empty_folder();
    hl_fake_nvrtc_pretend(0, 120);
    find_line("");
    CHECK_INT(compile_anew(&p), 0);
    CHECK(strstr(find_line("interpreted"), "must compile for sm_90") != NULL);
    hl_fake_nvrtc_pretend(14000, 0);
    CHECK_INT(compile_anew(&p), 0);
    CHECK(strstr(find_line("interpreted"), "NVRTC: must be of CUDA 13 at most") != NULL);
    hl_fake_nvrtc_pretend(0, 0);
    case_forget(&p.c);
}

/* ---- failures -------------------------------------------------------------------------------- */

/* A new device, one kernel. */
static hl_status open_and_prepare(void *context)
{
    hl_device *device = NULL;
    HL_TRY(hl_fake_backend()->device_open(hl_fake_backend(), 0, NULL, &device));
    hl_status status = prepare_case(device, context);
    close_device(device);
    return status;
}

/* Each call of NVRTC fails: the interpreter takes over, and nothing is left. */
static void test_nvrtc_failures(void)
{
    program_case p;
    make_product(&p, 6, 20, 1.5);
    for (int sticky = 0; sticky < 2; sticky++) {
        for (int64_t k = 1, n_seen = k; n_seen >= k; k++) {
            check_case("NVRTC call %lld, sticky %d", (long long)k, sticky);
            empty_folder();
            find_line("");
            show_nvrtc(true);
            int live = hl_fake_live_sum();
            hl_fake_nvrtc_fail(k, sticky, 11);
            CHECK_OK(open_and_prepare(&p));
            n_seen = hl_fake_nvrtc_fail(0, false, 0);
            CHECK_INT(hl_fake_nvrtc_live(), 0);
            CHECK_INT(hl_fake_live_sum(), live);
            /* Giving back and the log's own calls may fail unnoticed. */
            CHECK(count_files(NULL, 0) == 1 || find_line("interpreted")[0]);
        }
    }
    case_forget(&p.c);
}

/* A source that does not compile says why. */
static void test_bad_source(void)
{
    hl_cuda_nvrtc nvrtc;
    hl_cuda_image image;
    check_case("bad source");
    show_nvrtc(true);
    CHECK_OK(hl_cuda_nvrtc_open(NULL, &nvrtc));
    CHECK_ERROR(hl_cuda_nvrtc_compile(&nvrtc, "int main( {", 90, &image), HL_ERROR_DEVICE,
                "expected");
    CHECK(image.bytes == NULL);
    CHECK_ERROR(hl_cuda_nvrtc_compile(&nvrtc, "#include \"ir/graph.h\"\n", 90, &image),
                HL_ERROR_DEVICE, "ir/graph.h");
    hl_cuda_nvrtc_close(&nvrtc);
    CHECK_INT(hl_fake_nvrtc_live(), 0);
}

/* Each call of the driver, each allocation, each call of the system. */
static void test_other_failures(void)
{
    program_case p;
    make_product(&p, 6, 20, 1.5);
    empty_folder();
    show_nvrtc(true);
    CHECK(check_walk_faults(CHECK_FAULT_OS, HL_OK, EIO, open_and_prepare, &p) > 5);
    CHECK(check_walk_faults(CHECK_FAULT_ALLOC, HL_OK, 0, open_and_prepare, &p) > 5);
    for (int64_t k = 1, n_seen = k; n_seen >= k; k++) {
        check_case("driver call %lld", (long long)k);
        int live = hl_fake_live_sum();
        hl_fake_fail(k, false, CUDA_ERROR_INVALID_IMAGE);
        open_and_prepare(&p);
        n_seen = hl_fake_fail(0, false, CUDA_SUCCESS);
        CHECK_INT(hl_fake_live_sum(), live);
    }
    check_case("code that does not load");
    hl_fake_fail_call("cuLibraryGetKernel", CUDA_ERROR_NOT_FOUND);
    hl_device *device = NULL;
    hl_fake_fail_call(NULL, CUDA_SUCCESS);
    device = open_device(true);
    hl_fake_fail_call("cuLibraryLoadData", CUDA_ERROR_NO_BINARY_FOR_GPU);
    find_line("");
    CHECK_OK(prepare_case(device, &p));
    CHECK(find_line("interpreted")[0]);
    hl_fake_fail_call(NULL, CUDA_SUCCESS);
    close_device(device);
    case_forget(&p.c);
}

/* A device looks for NVRTC when the first program asks for it: now. */
static void find_nvrtc(hl_device *device, bool compiles)
{
    program_case p;
    make_product(&p, 2, 2, 1);
    CHECK_INT(count_compiles(device, &p), compiles);
    case_forget(&p.c);
}

int main(void)
{
    if (!mkdtemp(folder)) return 1;
    setenv("HOTLOOP_CACHE_PATH", folder, 1);
    hl_fake_reset(NULL);
    plain = open_device(false);
    find_nvrtc(plain, false);
    compiling = open_device(true);
    find_nvrtc(compiling, true);
    CHECK_OK(hl_ref_backend()->device_open(hl_ref_backend(), 0, NULL, &case_ref));
    test_forms();
    test_sums();
    test_sum_launches();
    test_groups();
    test_types();
    test_draws();
    test_numbers();
    test_kinds();
    test_structures();
    test_long();
    test_once();
    test_disk();
    test_versions();
    test_nvrtc_failures();
    test_bad_source();
    test_other_failures();
    CHECK_INT(hl_fake_nvrtc_live(), 0);
    CHECK(strcmp(hl_fake_message(), "") == 0);
    close_device(plain), close_device(compiling);
    case_ref->ops->destroy(case_ref);
    CHECK_INT(hl_fake_live_sum(), 0);
    empty_folder();
    rmdir(folder);
    return CHECK_DONE();
}
