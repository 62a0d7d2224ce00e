/* Attention on the emulated GPU against the reference: the cases of the CPU, in every floating
 * type, with operands that lie aligned and not; which nodes the kernels take; and that what they
 * plan has no room for the scores. */
#include "tests/c/attention_cases.h"
#include "tests/cuda/device_case.h"

static hl_status find(const op_case *c, hl_kernel_req *out_req)
{
    case_graph g;
    const hl_kernel *kernel = NULL;
    case_build(c, false, &g);
    hl_status status = hl_kernel_select(case_gpu, &g.graph, (hl_node_id)g.graph.n_nodes - 1, true,
                                        &kernel, out_req);
    return status;
}

/* Scratch is a number for each query. */
static void test_scratch(void)
{
    static const sizes n = {2, 4, 2, 512, 1024, 64, 64};
    op_case c = {.op = HL_OP_ATTENTION, .n_in = 3, .n_out = 2};
    hl_kernel_req req = {0};
    check_case("scratch");
    add_operands(&c, &n, 0);
    c.out[0] = c.in[0], c.out[1] = make_log_sums(&n);
    CHECK_OK(find(&c, &req));
    CHECK_INT(req.scratch_bytes, 0);
    op_case grad = {.op = HL_OP_ATTENTION_GRAD, .n_in = 6, .n_out = 3};
    grad.in[0] = grad.in[4] = c.out[0], grad.in[5] = c.out[1];
    add_operands(&grad, &n, 1);
    for (int j = 0; j < 3; j++) grad.out[j] = grad.in[1 + j];
    CHECK_OK(find(&grad, &req));
    CHECK_INT(req.scratch_bytes, n.B * n.H * n.L * 4);
}

static void test_refusals(void)
{
    static const sizes wide = {1, 1, 1, 4, 4, 257, 8}, empty = {1, 1, 1, 0, 4, 8, 8};
    const sizes *both[] = {&wide, &empty};
    static const char *const why[] = {"takes heads of at most 256, got 257 and 8",
                                      "needs operands that are not empty"};
    for (int i = 0; i < 2; i++) {
        op_case c = {.op = HL_OP_ATTENTION, .n_in = 3, .n_out = 2};
        hl_kernel_req req = {0};
        check_case("refusal %d", i);
        add_operands(&c, both[i], 0);
        c.out[0] = make_type(F32, 1, 1, both[i]->L, 8);
        c.out[1] = make_log_sums(both[i]);
        CHECK_ERROR(find(&c, &req), HL_ERROR_DEVICE, why[i]);
    }
}

int main(void)
{
    static const hl_dtype dtypes[] = {HL_DTYPE_F32, HL_DTYPE_BF16, HL_DTYPE_F16};
    case_open();
    test_scratch();
    test_refusals();
    for (int i = 0; i < 3; i++) {
        floats = dtypes[i];
        test_all_attention(3);
        case_shift = 8;
        test_all_attention(7);
        case_shift = 0;
    }
    case_close();
    return CHECK_DONE();
}
