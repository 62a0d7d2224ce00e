/* Convolutions and both gradients on the emulated GPU against the reference: drawn windows,
 * strides, dilations, paddings and groups in one to three dims, float32 and 16 bits, results of
 * either; what the kernels refuse. */
#include "ir/window.h"
#include "tests/cuda/device_case.h"

enum { N_CASES = 60 };

static int64_t between(int64_t low, int64_t high)
{
    return low + (int64_t)((dice_draw() + 1) / 2 * (double)(high - low + 1));
}

typedef struct conv_drawn {
    hl_attrs_conv attrs;
    hl_type x, weight, y;
} conv_drawn;

/* Channels last. */
static conv_drawn draw(int seed)
{
    conv_drawn c = {.attrs = {.channels_last = true}};
    int n = 1 + seed % 3;
    int64_t groups = seed % 5 == 0 ? between(2, 3) : 1;
    int64_t in = seed % 4 == 0 ? 8 : between(1, 5), out = seed % 7 == 0 ? 67 : between(1, 9);
    c.attrs.groups = groups;
    c.x.shape = c.y.shape = (hl_shape){.rank = n + 2};
    c.x.shape.dim[0] = c.y.shape.dim[0] = between(1, 2);
    c.weight.shape = (hl_shape){n + 2, {groups * out, in}};
    c.attrs.stride.n = c.attrs.dilation.n = c.attrs.before.n = c.attrs.after.n = n;
    for (int d = 0; d < n; d++) {
        int64_t kernel = between(1, 3), stride = between(1, 3), dilation = between(1, 3);
        int64_t before = between(0, 2), after = between(0, 2), reach = dilation * (kernel - 1) + 1;
        int64_t size = between(reach > before + after ? reach - before - after : 1, reach + 4);
        c.attrs.stride.at[d] = stride, c.attrs.dilation.at[d] = dilation;
        c.attrs.before.at[d] = before, c.attrs.after.at[d] = after;
        c.x.shape.dim[1 + d] = size;
        c.weight.shape.dim[2 + d] = kernel;
        c.y.shape.dim[1 + d] = (size + before + after - reach) / stride + 1;
    }
    c.x.shape.dim[n + 1] = groups * in, c.y.shape.dim[n + 1] = groups * out;
    return c;
}

/* dtype: of the operands; the result is float32 or the same. */
static op_case make_case(hl_op op, const conv_drawn *drawn, hl_dtype dtype, bool has_bias,
                         bool float32_out)
{
    const hl_type *in[] = {&drawn->x, &drawn->weight}, *out = &drawn->y;
    if (op == HL_OP_CONV_TRANSPOSE) in[0] = &drawn->y, out = &drawn->x;
    if (op == HL_OP_CONV_WEIGHT_GRAD) in[0] = &drawn->y, in[1] = &drawn->x, out = &drawn->weight;
    op_case c = {.op = op, .n_in = 2, .n_out = 1, .attrs.conv = drawn->attrs};
    for (int i = 0; i < 2; i++) c.in[i] = (hl_type){dtype, in[i]->shape};
    c.out[0] = (hl_type){float32_out ? HL_DTYPE_F32 : dtype, out->shape};
    if (has_bias && op != HL_OP_CONV_WEIGHT_GRAD)
        c.in[c.n_in++] = (hl_type){float32_out ? HL_DTYPE_F32 : dtype,
                                   hl_shape_1d(out->shape.dim[out->shape.rank - 1])};
    for (int i = 0; i < c.n_in; i++) case_fill(&c, i, -1, 1);
    return c;
}

/* Roundoff of the result and of the sums, whose terms are below 1. */
static double find_tolerance(const op_case *c)
{
    double unit = c->out[0].dtype == HL_DTYPE_BF16  ? 0x1p-8
                  : c->out[0].dtype == HL_DTYPE_F16 ? 0x1p-10
                                                    : 0;
    double terms = (double)hl_shape_numel(&c->in[1].shape);
    if (c->op == HL_OP_CONV_WEIGHT_GRAD) terms = (double)hl_shape_numel(&c->in[0].shape);
    return unit + (terms + 2) * 0x1p-23;
}

static const hl_op ops[] = {HL_OP_CONV, HL_OP_CONV_TRANSPOSE, HL_OP_CONV_WEIGHT_GRAD};

static void test_values(void)
{
    static const hl_dtype dtypes[] = {HL_DTYPE_F32, HL_DTYPE_BF16, HL_DTYPE_F16};
    for (int seed = 0; seed < N_CASES; seed += check_stride()) {
        dice_state = (uint64_t)seed + 1;
        conv_drawn drawn = draw(seed);
        case_shift = seed % 6 == 5 ? 2 * sizeof(float) : 0; /* operands that are not aligned */
        for (int i = 0; i < 3; i++) {
            hl_dtype dtype = dtypes[(seed + i) % 3];
            op_case c = make_case(ops[i], &drawn, dtype, seed % 2, seed % 3 == 0);
            c.tolerance = find_tolerance(&c);
            check_case("%s %d in %s", hl_op_get(ops[i])->name, seed, hl_dtype_name(dtype));
            case_check(&c);
        }
    }
    case_shift = 0;
}

/* Pixels that are several shares. */
static void test_shares(void)
{
    conv_drawn drawn = {.attrs = {.channels_last = true, .groups = 1}};
    drawn.attrs.stride = drawn.attrs.dilation = hl_ints_make((int64_t[]){1}, 1);
    drawn.attrs.before = drawn.attrs.after = hl_ints_make((int64_t[]){1}, 1);
    drawn.x.shape = (hl_shape){3, {3, 1501, 4}}, drawn.y.shape = (hl_shape){3, {3, 1501, 5}};
    drawn.weight.shape = (hl_shape){3, {5, 4, 3}};
    op_case c = make_case(HL_OP_CONV_WEIGHT_GRAD, &drawn, HL_DTYPE_F32, false, true);
    c.tolerance = 4503 * 0x1p-23;
    check_case("shares");
    case_check(&c);
}

static void check_refused(const op_case *c, const char *why_not)
{
    case_graph g;
    hl_kernel_req req = {0};
    hl_reason reason = {""};
    const hl_kernel *const *kernel = case_gpu->ops->kernels(case_gpu, c->op);
    while (kernel[1]) kernel++; /* the plain one */
    case_build(c, false, &g);
    CHECK_INT((*kernel)->query(case_gpu, &g.graph, 0, &req, &reason),
              *why_not ? HL_ERROR_CONFIG : HL_OK);
    CHECK(strstr(reason.text, why_not) != NULL);
}

static void test_refusals(void)
{
    conv_drawn drawn = {.attrs = {.channels_last = true, .groups = 1}};
    drawn.attrs.stride = drawn.attrs.dilation = hl_ints_make((int64_t[]){1, 1}, 2);
    drawn.attrs.before = drawn.attrs.after = hl_ints_make((int64_t[]){0, 0}, 2);
    drawn.x.shape = (hl_shape){4, {2, 5, 6, 4}}, drawn.y.shape = (hl_shape){4, {2, 5, 6, 3}};
    drawn.weight.shape = (hl_shape){4, {3, 4, 1, 1}};
    for (int i = 0; i < 3; i++) {
        check_case("refusals of %s", hl_op_get(ops[i])->name);
        op_case c = make_case(ops[i], &drawn, HL_DTYPE_F32, false, true);
        check_refused(&c, "it is a product as it stands");
        c.attrs.conv.before.at[1] = 1; /* of the same size, but moved */
        check_refused(&c, "");
        c.attrs.conv.before.at[1] = 0;
        c.attrs.conv.groups = 2;
        check_refused(&c, "");
        c.attrs.conv.groups = 1;
        c.in[1].dtype = HL_DTYPE_BF16;
        check_refused(&c, "float32");
        c.in[1].dtype = HL_DTYPE_F32;
        c.attrs.conv.stride.at[0] = c.attrs.conv.stride.at[1] = 9;
        check_refused(&c, ops[i] == HL_OP_CONV_TRANSPOSE ? "strides of at most 64 together" : "");
        c.attrs.conv.stride.at[1] = 1;
        check_refused(&c, "");
        c.attrs.conv.before.at[0] = (int64_t)1 << 40;
        check_refused(&c, "needs fewer than 2^31 pixels");
        case_forget(&c);
    }
}

int main(void)
{
    setenv("HOTLOOP_CUDNN_PATH", "none", 1);
    case_open();
    test_values();
    test_shares();
    test_refusals();
    case_close();
    return CHECK_DONE();
}
