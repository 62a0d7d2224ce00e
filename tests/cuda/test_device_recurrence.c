/* Recurrences on the emulated GPU against the reference: the cases of the CPU, in every pair of
 * types, with operands that lie aligned and not, on a GPU of four multiprocessors and on one whose
 * tiles of rows are larger; weights that do not fit into shared memory; lengths that are none;
 * which nodes the kernels take. */
#include "tests/c/recurrence_cases.h"

#include "tests/cuda/device_case.h"

static const hl_dtype pairs[][2] = {
    {HL_DTYPE_F32, HL_DTYPE_F32},   {HL_DTYPE_BF16, HL_DTYPE_F32}, {HL_DTYPE_F16, HL_DTYPE_F32},
    {HL_DTYPE_BF16, HL_DTYPE_BF16}, {HL_DTYPE_F16, HL_DTYPE_F16},
};
enum { N_PAIRS = sizeof pairs / sizeof *pairs };
static const kind lstm = {HL_CELL_LSTM, false, false}, gru = {HL_CELL_GRU, true, false},
                  relu = {HL_CELL_RELU, false, false};

static hl_status find(op_case *c, hl_kernel_req *out_req)
{
    case_graph g;
    const hl_kernel *kernel = NULL;
    case_build(c, false, &g);
    return hl_kernel_select(case_gpu, &g.graph, 0, true, &kernel, out_req);
}

/* Every size and kind, of which a walk takes one in `stride`. */
static void test_all(int stride)
{
    for (int i = 0; i < N_SIZES * N_KINDS * 2; i++) {
        const kind *k = &all_kinds[i / 2 % N_KINDS];
        if (i % stride == 0 && !k->has_projection)
            test_recurrence(&all_sizes[i / 2 / N_KINDS], k, i % 2);
    }
}

/* Its scratch is a packed weight, whose rows and columns are filled up to whole groups and steps.
 */
static void test_weights_in_cache(void)
{
    static const sizes wide = {9, 2, 129, 0}, tall = {3, 2, 300, 0};
    hl_kernel_req req = {0};
    weights = floats = HL_DTYPE_F32;
    op_case forward = make_forward(&wide, &lstm, false), grad = make_gradient(&wide, &lstm, false);
    check_case("scratch");
    CHECK_OK(find(&forward, &req));
    CHECK_INT(req.scratch_bytes, 4 * 160 * 132 * 4);
    CHECK_OK(find(&grad, &req));
    CHECK_INT(req.scratch_bytes, 4 * 160 * 132 * 4);
    case_forget(&forward), case_forget(&grad);
    for (int i = 0; i < N_PAIRS; i++) {
        weights = pairs[i][0], floats = pairs[i][1];
        for (int reverse = 0; reverse < 2; reverse++) {
            test_recurrence(&wide, &lstm, reverse);
            test_recurrence(&wide, &gru, reverse);
            test_recurrence(&tall, &relu, reverse);
        }
    }
}

static void refuse(const sizes *n, const kind *k, const char *why)
{
    hl_kernel_req req = {0};
    op_case c = make_forward(n, k, false);
    check_case("%s", why);
    CHECK_ERROR(find(&c, &req), HL_ERROR_DEVICE, why);
    case_forget(&c);
}

static void test_refusals(void)
{
    static const sizes small = {2, 3, 4, 2}, empty = {2, 0, 4, 0}, large = {64, 3, 1024, 0};
    static const kind projected = {HL_CELL_LSTM, false, true};
    weights = floats = HL_DTYPE_F32;
    refuse(&small, &projected, "takes states without a projection, got one of 2");
    refuse(&empty, &lstm, "needs operands that are not empty");
    refuse(&large, &lstm, "reads its weight at every step, some");
    weights = floats = HL_DTYPE_F64;
    refuse(&small, &lstm, "takes float32, bfloat16 and float16, got float64 and float64");
}

/* The error word names the row and what it has. */
static void test_lengths(void)
{
    static const sizes n = {3, 4, 5, 0};
    static const int lengths[][3] = {{4, 5, 2}, {4, -1, 4}, {4, 2, 3}};
    weights = floats = HL_DTYPE_F32;
    for (int i = 0; i < 6; i++) {
        op_case c = i % 2 ? make_gradient(&n, &lstm, false) : make_forward(&n, &lstm, false);
        int at = i % 2 ? HL_RECURRENCE_GRAD_LENGTHS : HL_RECURRENCE_LENGTHS;
        unsigned char *bytes[CASE_MAX] = {NULL};
        c.attrs.recurrence.is_sorted = i / 2 == 2;
        for (int row = 0; row < 3; row++) c.data[at][row] = lengths[i / 2][row];
        check_case("lengths %d", i);
        CHECK(case_run_gpu(&c, bytes));
        CHECK(c.control_after[0].error_code != 0);
        CHECK_INT(c.control_after[0].error_row, i / 2 == 2 ? 2 : 1);
        CHECK_INT(c.control_after[0].error_value, i / 2 == 2 ? 3 : lengths[i / 2][1]);
        for (int j = 0; j < CASE_MAX; j++) free(bytes[j]);
        case_forget(&c);
    }
}

int main(void)
{
    static const hl_fake_config one = {.n_multiprocessors = 1};
    static const hl_fake_config old = {.arch = 75};
    case_open();
    test_refusals();
    test_lengths();
    for (int i = 0; i < N_PAIRS; i++) {
        weights = pairs[i][0], floats = pairs[i][1];
        test_all(1);
        case_shift = 8;
        test_all(5);
        case_shift = 0;
    }
    test_weights_in_cache();
    fake_device_close(case_gpu);
    case_gpu = fake_device_open(&one);
    for (int i = 0; i < N_PAIRS; i++) {
        weights = pairs[i][0], floats = pairs[i][1];
        test_all(3);
    }
    fake_device_close(case_gpu);
    case_gpu = fake_device_open(&old);
    weights = floats = HL_DTYPE_BF16;
    refuse(&all_sizes[1], &lstm, "bfloat16 needs sm_80, got sm_75");
    weights = floats = HL_DTYPE_F16;
    test_all(3);
    case_close();
    return CHECK_DONE();
}
