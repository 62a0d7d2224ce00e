/* Pooling, resampling and windows side by side on the emulated GPU against the reference: the cases
 * of the CPU, in every floating type, with operands that lie aligned and not; and which kernel is
 * chosen. */
#define WINDOW_CASES 60
#include "tests/c/window_cases.h"
#include "tests/cuda/device_case.h"

/* Kernels take channels that stand last, and ask for that order where they do not. */
static void test_orders(void)
{
    static const hl_op ops[] = {HL_OP_MAX_POOL, HL_OP_MAX_POOL_INDEX};
    static const int64_t dim[] = {2, 3, 6, 7}, result[] = {2, 3, 5, 6}, want[] = {0, 2, 3, 1};
    for (int i = 0; i < 2; i++) {
        op_case c = {.op = ops[i], .n_in = 1, .n_out = 1};
        case_graph g;
        const hl_kernel *kernel;
        hl_kernel_req req;
        c.attrs.pool = (hl_attrs_pool){.kernel = {2, {2, 2}},
                                       .stride = {2, {1, 1}},
                                       .dilation = {2, {1, 1}},
                                       .before = {2, {0, 0}},
                                       .after = {2, {0, 0}}};
        c.in[0] = (hl_type){HL_DTYPE_F32, hl_shape_make(4, dim)};
        c.out[0] = (hl_type){i ? HL_DTYPE_I64 : HL_DTYPE_F32, hl_shape_make(4, result)};
        case_build(&c, false, &g);
        CHECK_OK(hl_kernel_find_in_any_order(case_gpu, &g.graph, 0, true, &kernel, &req));
        CHECK(kernel != NULL);
        CHECK_INT(req.order.n, 4);
        for (int32_t d = 0; d < req.order.n; d++) CHECK_INT(req.order.at[d], want[d]);
    }
}

int main(void)
{
    static const hl_dtype dtypes[] = {HL_DTYPE_F32, HL_DTYPE_BF16, HL_DTYPE_F16};
    case_open();
    for (int i = 0; i < 3; i++) {
        floats = dtypes[i];
        for (case_shift = 0; case_shift <= 8; case_shift += 8) {
            test_pool();
            test_unfold();
        }
        case_shift = 0;
        test_resample();
    }
    test_orders();
    case_close();
    return CHECK_DONE();
}
