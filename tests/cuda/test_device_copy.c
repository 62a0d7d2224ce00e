/* Copies and indexed access on the emulated GPU against the reference: the cases of the CPU, with
 * operands that lie aligned and not, and what is the GPU's own: every dtype, rank 0 and 8, sorts of
 * several digits and tiles, which kernel is chosen, how many launches a list has. */
#include "tests/c/copy_cases.h"
#include "tests/cuda/device_case.h"

static bool allows_dtype(hl_op op, hl_dtype dtype)
{
    return op != HL_OP_PAD_GRAD || dtype == HL_DTYPE_F32;
}

/* ---- dtypes and ranks ---- */

/* A number in every dtype that can hold it. */
static void test_pad_value(void)
{
    static const double numbers[] = {2.5, -3, 1e30, 0};
    for (int dtype = 0; dtype < HL_DTYPE_COUNT; dtype++) {
        for (int v = 0; v < 4; v++) {
            op_case c = {.op = HL_OP_PAD, .n_in = 1, .n_out = 1};
            if (numbers[v] == 1e30 && dtype == HL_DTYPE_F16) continue; /* both are infinite */
            c.in[0] = (hl_type){(hl_dtype)dtype, hl_shape_2d(3, 5)};
            c.out[0] = (hl_type){(hl_dtype)dtype, hl_shape_2d(6, 7)};
            c.attrs = (hl_attrs){.pad = {{2, {1, 2}}, {2, {2, 0}}, numbers[v]}};
            c.tolerance = 0x1p-8; /* of 1e30 in bfloat16 */
            fill_whole(&c, 0, 100);
            check_case("pad dtype %d with %g", dtype, numbers[v]);
            case_check(&c);
        }
    }
}

/* With few indices and with so many that runs of equal ones are cut. */
static void test_add_dtypes(int64_t n)
{
    for (int dtype = 0; dtype < HL_DTYPE_COUNT; dtype++) {
        for (int op = 0; op < 2; op++) {
            op_case c = {.op = op ? HL_OP_INDEX_ADD : HL_OP_SCATTER_ADD, .n_in = 1, .n_out = 1};
            c.in[0] = (hl_type){(hl_dtype)dtype, hl_shape_2d(6, 4)};
            c.out[0] = c.in[0];
            fill_whole(&c, 0, 3);
            add_index(&c, op ? hl_shape_1d(n) : hl_shape_2d(n, 4), 6, 0);
            c.in[c.n_in] = (hl_type){(hl_dtype)dtype, hl_shape_2d(n, 4)};
            fill_whole(&c, c.n_in++, 3);
            check_case("add of dtype %d, op %d, %d indices", dtype, op, (int)n);
            case_check(&c);
        }
    }
}

static void test_ranks(void)
{
    static const hl_op ops[] = {HL_OP_PERMUTE, HL_OP_FLIP, HL_OP_PAD, HL_OP_EXPAND, HL_OP_RESHAPE};
    for (int o = 0; o < 5; o++) {
        op_case c = start_case(ops[o], 0, NULL, o);
        check_case("rank 0, %s", hl_op_get(ops[o])->name);
        case_check(&c);
    }
    int64_t dim[8] = {2, 3, 2, 2, 3, 2, 2, 3};
    for (int turn = 1; turn < 8; turn++) {
        op_case c = start_case(HL_OP_PERMUTE, 8, dim, turn);
        c.attrs.permute.dims.n = 8;
        for (int d = 0; d < 8; d++) {
            c.attrs.permute.dims.at[d] = d * 3 % 8 ^ turn; /* a permutation: 3 is odd */
            c.out[0].shape.dim[d] = dim[c.attrs.permute.dims.at[d]];
        }
        check_case("permute of rank 8, %d", turn);
        case_check(&c);
    }
    op_case c = start_case(HL_OP_EXPAND, 8, (int64_t[]){2, 1, 2, 1, 3, 1, 2, 1}, 0);
    c.out[0].shape = hl_shape_make(8, dim);
    check_case("expand of rank 8");
    case_check(&c);
}

/* ---- sizes ---- */

/* Keys of three digits, several tiles of pairs; some targets are met often, and in turn. */
static void test_large_sort(void)
{
    for (int op = 0; op < 2; op++) {
        enum { N = 3000, A = 70000, I = 3 };
        static const int high[] = {65536, 256, 0}; /* equal but for one digit */
        op_case c = {.op = op ? HL_OP_INDEX_ADD : HL_OP_SCATTER_ADD, .n_in = 1, .n_out = 1};
        c.in[0] = (hl_type){HL_DTYPE_F32, op ? hl_shape_2d(A, I) : hl_shape_1d(A)};
        c.out[0] = c.in[0];
        fill_whole(&c, 0, 3);
        add_index(&c, hl_shape_1d(N), A, 0);
        for (int i = 0; i < N; i += 2) c.data[1][i] = (double)(high[i / 2 % 3] + i % 14);
        c.in[2] = (hl_type){HL_DTYPE_F32, op ? hl_shape_2d(N, I) : hl_shape_1d(N)};
        fill_whole(&c, 2, 9);
        c.n_in = 3;
        check_case("sort of %d keys below %d, op %d", N, A, op);
        case_check(&c);
    }
}

/* Every second index, or each, is the same one (padding). No number is added behind more than a
 * segment's and one for each segment, so the error is of as many roundings; one after another, all
 * of them equal, is several times as far off. */
static void test_repeats(hl_dtype dtype, int every)
{
    for (int op = 0; op < 2; op++) {
        enum { N = 20000, SEGMENT = 256, A = 70, I = 2 };
        int64_t columns = op ? I : 1;
        op_case c = {.op = op ? HL_OP_INDEX_ADD : HL_OP_SCATTER_ADD, .n_in = 3, .n_out = 1};
        c.in[0] = (hl_type){dtype, hl_shape_2d(A, columns)};
        c.out[0] = c.in[0];
        c.in[1] = (hl_type){HL_DTYPE_I32, op ? hl_shape_1d(N) : hl_shape_2d(N, 1)};
        c.in[2] = (hl_type){dtype, hl_shape_2d(N, columns)};
        case_fill(&c, 0, 0, 0), case_fill(&c, 1, 0, 0), case_fill(&c, 2, 0, 0);
        for (int64_t i = 0; i < N * columns; i++) c.data[2][i] = (double)0.1f;
        for (int64_t i = 0; i < N; i++) c.data[1][i] = i % every ? (double)(i % A) : A - 1;
        c.tolerance = (SEGMENT + N / SEGMENT + 2) * 0x1p-24 + (dtype == HL_DTYPE_BF16 ? 0x1p-8 : 0);
        check_case("every index of %d is the same, dtype %d, op %d", every, (int)dtype, op);
        case_check(&c);
    }
}

static void test_empty(void)
{
    static const hl_op ops[] = {HL_OP_INDEX_ADD,   HL_OP_INDEX_COPY,   HL_OP_SCATTER,
                                HL_OP_SCATTER_ADD, HL_OP_INDEX_SELECT, HL_OP_GATHER};
    for (int o = 0; o < 6; o++) {
        for (int form = 0; form < 2; form++) { /* no index; one, of no rows: a fault */
            bool reads = o >= 4;
            op_case c = {.op = ops[o], .n_in = 1, .n_out = 1};
            c.in[0] = (hl_type){HL_DTYPE_F32, hl_shape_1d(form ? 0 : 5)};
            fill_whole(&c, 0, 9);
            add_index(&c, hl_shape_1d(form), 5, 0);
            c.in[2] = (hl_type){HL_DTYPE_F32, hl_shape_1d(form)};
            c.out[0] = reads ? c.in[2] : c.in[0];
            if (!reads) fill_whole(&c, c.n_in++, 9);
            check_case("%s without %s", hl_op_get(ops[o])->name, form ? "rows" : "indices");
            case_check(&c);
            CHECK_INT(c.control_after[0].error_code, form);
        }
    }
}

/* ---- which kernel, how many launches ---- */

static const char *name_add(hl_dtype dtype, int64_t n_targets, int64_t n, bool deterministic)
{
    hl_value value[4] = {{.type = {dtype, hl_shape_2d(n_targets, 8)}},
                         {.type = {HL_DTYPE_I64, hl_shape_1d(n)}},
                         {.type = {dtype, hl_shape_2d(n, 8)}}};
    hl_id in[3] = {0, 1, 2};
    hl_node node = {.op = HL_OP_INDEX_ADD, .n_in = 3, .n_out = 1, .in = in, .out = 3};
    hl_graph graph = {.values = value, .n_values = 4, .nodes = &node, .n_nodes = 1};
    const hl_kernel *kernel = NULL;
    hl_kernel_req req;
    hl_status status = hl_kernel_select(case_gpu, &graph, 0, deterministic, &kernel, &req);
    return status == HL_OK ? kernel->name : hl_status_message();
}

static void test_choice(void)
{
    check_case("choice");
    CHECK(!strcmp(name_add(HL_DTYPE_F32, 100, 100, false), "cuda.index_add.atomic"));
    CHECK(!strcmp(name_add(HL_DTYPE_F32, 100, 101, false), "cuda.index_add.sort"));
    CHECK(!strcmp(name_add(HL_DTYPE_BF16, 100, 10, false), "cuda.index_add.sort"));
    CHECK(!strcmp(name_add(HL_DTYPE_F32, 100, 10, true), "cuda.index_add.sort"));
    CHECK(strstr(name_add(HL_DTYPE_F32, INT64_C(1) << 31, 10, true), "fewer than 2^31") != NULL);
}

/* A run of whole words is one launch, aligned or not. */
static void test_launches(void)
{
    for (case_shift = 0; case_shift <= 8; case_shift += 8) {
        int64_t before = hl_fake_calls("cuLaunchKernel");
        op_case c = start_case(HL_OP_SLICE, 2, (int64_t[]){8, 64}, 0);
        c.attrs = (hl_attrs){.slice = {.axis = 0, .start = 2, .stop = INT64_MAX, .step = 1}};
        c.out[0].shape.dim[0] = 6;
        check_case("launches, shifted by %d", (int)case_shift);
        case_check(&c);
        /* Alone, and while captured. */
        CHECK_INT(hl_fake_calls("cuLaunchKernel") - before, 2);
    }
    case_shift = 0;
}

/* Adding n rows is a launch for the keys, two a digit of theirs (with several tiles, another one,
 * for the scan), one that adds, and where runs may be cut one that merges. */
static int64_t count_adding(int64_t n)
{
    int64_t before = hl_fake_calls("cuLaunchKernel");
    op_case c = start_case(HL_OP_INDEX_ADD, 2, (int64_t[]){30, 2}, 0);
    add_index(&c, hl_shape_1d(n), 30, 0);
    c.in[c.n_in] = (hl_type){c.in[0].dtype, hl_shape_2d(n, 2)};
    fill_whole(&c, c.n_in++, 3);
    check_case("launches of adding %d rows", (int)n);
    case_check(&c);
    return (hl_fake_calls("cuLaunchKernel") - before) / 3; /* alone, captured, in place */
}

static void test_launches_of_adding(void)
{
    CHECK_INT(count_adding(64), 4);
    CHECK_INT(count_adding(65), 5);
    CHECK_INT(count_adding(1024), 5);
    CHECK_INT(count_adding(1025), 6);
}

/* Every op of the two files, by every dtype; one whose value is an operand's is that operand, by
 * the lowering pass, and has no kernel. */
static void test_accepts(void)
{
    for (int op = HL_OP_RESHAPE; op <= HL_OP_BATCH_GATHER; op++) {
        for (int dtype = 0; dtype < HL_DTYPE_COUNT; dtype++) {
            hl_value value[4] = {{.type = {(hl_dtype)dtype, hl_shape_2d(3, 4)}},
                                 {.type = {HL_DTYPE_I32, hl_shape_1d(3)}},
                                 {.type = {(hl_dtype)dtype, hl_shape_2d(3, 4)}},
                                 {.type = {(hl_dtype)dtype, hl_shape_2d(3, 4)}}};
            hl_id in[3] = {0, 1, 2};
            hl_node node = {.op = (hl_op)op, .in = in, .out = 3, .n_out = 1};
            node.n_in = hl_op_get(node.op)->min_in;
            hl_graph graph = {.values = value, .n_values = 4, .nodes = &node, .n_nodes = 1};
            const hl_kernel *kernel;
            hl_kernel_req req;
            check_case("%s of dtype %d", hl_op_get(node.op)->name, dtype);
            CHECK_OK(hl_kernel_find(case_gpu, &graph, 0, true, &kernel, &req));
            bool is_lowered = op == HL_OP_SURROGATE;
            CHECK_INT(kernel != NULL, !is_lowered && allows_dtype(node.op, (hl_dtype)dtype));
        }
    }
}

int main(void)
{
    case_open();
    for (case_shift = 0; case_shift <= 8; case_shift += 8) test_copies();
    case_shift = 0;
    test_indexed();
    test_pad_value();
    test_ranks();
    test_empty();
    test_choice();
    test_launches();
    test_accepts();
    for (int d = 0; d < 2; d++) {
        case_deterministic = d;
        test_add_dtypes(9);
        test_large_sort();
    }
    test_add_dtypes(200);
    test_launches_of_adding();
    for (int every = 1; every <= 2; every++) {
        test_repeats(HL_DTYPE_F32, every);
        test_repeats(HL_DTYPE_BF16, every);
    }
    case_shift = 8;
    test_indexed();
    case_close();
    return CHECK_DONE();
}
