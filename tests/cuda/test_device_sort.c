/* Sorting and searching on the emulated GPU against the reference: rows of one tile and of more,
 * few of many, all of many by digits, rows that share a block; how many launches they take. */
#include "tests/c/sort_cases.h"
#include "tests/cuda/device_case.h"

/* Sorted along the axis of (d0, d1, d2). */
static void check_axis(int64_t d0, int64_t d1, int64_t d2, int axis)
{
    int64_t dim[3] = {d0, d1, d2};
    hl_value value[3] = {{.type = {HL_DTYPE_F32, hl_shape_make(3, dim)}}};
    value[1].type = value[2].type = value[0].type;
    value[2].type.dtype = HL_DTYPE_I64;
    hl_id in[1] = {0};
    hl_node node = {.op = HL_OP_SORT, .n_in = 1, .n_out = 2, .in = in, .out = 1};
    node.attrs.sort = (hl_attrs_sort){.axis = axis, .k = dim[axis]};
    hl_graph graph = {.values = value, .n_values = 3, .nodes = &node, .n_nodes = 1};
    const hl_kernel *kernel = NULL;
    hl_kernel_req req;
    check_case("order of dims, axis %d", axis);
    CHECK_OK(hl_kernel_find_in_any_order(case_gpu, &graph, 0, true, &kernel, &req));
    CHECK(kernel != NULL);
    CHECK_INT(req.order.n, axis == 2 ? 0 : 3);
    if (req.order.n) CHECK_INT(req.order.at[2], axis);
}

static int64_t count_launches(hl_dtype dtype, int64_t R, int64_t N, int64_t k)
{
    int64_t before = hl_fake_calls("cuLaunchKernel");
    check_sort(dtype, R, N, k, false, MIXED);
    return (hl_fake_calls("cuLaunchKernel") - before) / 2; /* alone, and captured */
}

/* A launch for a tile; of more tiles one for each time that they become fewer. By digits: the words
 * of the keys, three a digit, the rows and theirs, the results. */
static void test_launches(void)
{
    CHECK_INT(count_launches(HL_DTYPE_F32, 3, 2048, 2048), 1);
    CHECK_INT(count_launches(HL_DTYPE_F32, 3, 2049, 10), 2);
    CHECK_INT(count_launches(HL_DTYPE_F64, 1, 5000, 1024), 3);
    CHECK_INT(count_launches(HL_DTYPE_F32, 1, 3000, 3000), 1 + 4 * 3 + 1);
    CHECK_INT(count_launches(HL_DTYPE_BF16, 1, 3000, 3000), 1 + 2 * 3 + 1);
    CHECK_INT(count_launches(HL_DTYPE_I32, 2, 3000, 1100), 1 + 4 * 3 + 1 + 3 + 1);
    CHECK_INT(count_launches(HL_DTYPE_I64, 2, 3000, 3000), 1 + 12 + 1 + 12 + 1 + 3 + 1);
}

static void test_limits(void)
{
    hl_value value[3] = {{.type = {HL_DTYPE_F32, hl_shape_2d(1 << 20, 1 << 12)}}};
    hl_id in[1] = {0};
    hl_node node = {.op = HL_OP_SORT, .n_in = 1, .n_out = 2, .in = in, .out = 1};
    hl_graph graph = {.values = value, .n_values = 3, .nodes = &node, .n_nodes = 1};
    for (int is_few = 0; is_few < 2; is_few++) {
        const hl_kernel *kernel = NULL;
        hl_kernel_req req;
        node.attrs.sort = (hl_attrs_sort){.axis = 1, .k = is_few ? 1024 : 1025};
        check_case("2^32 elements, few %d", is_few);
        CHECK_OK(hl_kernel_find(case_gpu, &graph, 0, true, &kernel, &req));
        CHECK_INT(kernel != NULL, is_few);
    }
}

int main(void)
{
    static const int64_t widths[] = {1, 2, 17, 64, 65, 700};
    case_open();
    test_sort_widths(widths, 2, 3);
    for (int w = 2; w < (int)(sizeof widths / sizeof widths[0]); w++) {
        for (int dtype = 0; dtype < HL_DTYPE_COUNT; dtype++) {
            int64_t n = widths[w], k = (dtype + w) % 2 ? n : n / 5;
            enum sort_fill fill = (enum sort_fill)((dtype + w) % SORT_FILLS);
            check_sort((hl_dtype)dtype, 5, n, k, dtype % 2, fill);
        }
    }
    for (int dtype = 0; dtype < HL_DTYPE_COUNT; dtype++) {
        enum sort_fill fill = (enum sort_fill)(dtype % SORT_FILLS);
        check_sort((hl_dtype)dtype, 2, 2100, 9, dtype % 2, fill);
        check_sort((hl_dtype)dtype, 2, 2100, 2100, dtype % 2, fill);
    }
    check_sort(HL_DTYPE_BF16, 2, 2300, 1500, true, WITH_NAN);
    check_sort(HL_DTYPE_F16, 2, 2300, 1500, false, WITH_NAN);
    test_nothing_to_sort();
    test_search();
    for (int axis = 0; axis < 3; axis++) check_axis(3, 4, 5, axis);
    test_launches();
    test_limits();
    case_close();
    return CHECK_DONE();
}
