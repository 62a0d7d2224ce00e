/* Softmax, losses, norms and reductions on the CPU against the reference, for rows shorter than a
 * vector, around its width and far beyond, with extremes that overflow a naive formula. */
#include "tests/c/cpu_case.h"

static const int64_t widths[] = {1, 2, 3, 7, 10, 15, 16, 17, 31, 33, 64, 100, 300, 1000};
enum { N_WIDTHS = sizeof widths / sizeof widths[0] };

static hl_type float_type(hl_shape shape)
{
    return (hl_type){HL_DTYPE_F32, shape};
}

static void test_softmax(void)
{
    static const hl_op ops[] = {HL_OP_SOFTMAX, HL_OP_LOG_SOFTMAX, HL_OP_SOFTMAX_GRAD,
                                HL_OP_LOG_SOFTMAX_GRAD};
    for (int o = 0; o < 4; o++) {
        for (int w = 0; w < N_WIDTHS; w++) {
            for (int spread = 0; spread < 3; spread++) {
                op_case c = {.op = ops[o], .n_in = o < 2 ? 1 : 2, .n_out = 1};
                int64_t dim[3] = {3, 15, widths[w]};
                double size[] = {1, 30, 500};
                for (int i = 0; i < c.n_in; i++) {
                    c.in[i] = float_type(hl_shape_make(3, dim));
                    double range = o < 2 ? size[spread] : 1;
                    case_fill(&c, i, -range - (o == 3 && i == 1 ? 5 : 0), range);
                }
                c.out[0] = c.in[0];
                /* The gradients sum `width` products of numbers up to 1. */
                c.tolerance = 5e-6 + (o >= 2 ? 6e-8 * (double)widths[w] : 0);
                check_case("softmax op %d width %lld spread %d", ops[o], (long long)widths[w],
                           spread);
                case_check(&c);
            }
        }
    }
}

static void check_loss(int64_t N, int64_t C, int form, double smoothing, bool is_grad)
{
    static const hl_dtype targets[] = {HL_DTYPE_I64, HL_DTYPE_I32, HL_DTYPE_U8, HL_DTYPE_I16};
    int first = is_grad, has_weight = form & 1;
    op_case c = {.op = is_grad ? HL_OP_CROSS_ENTROPY_GRAD : HL_OP_CROSS_ENTROPY};
    c.n_in = first + 2 + has_weight, c.n_out = is_grad ? 1 : 2;
    c.attrs.cross_entropy = (hl_attrs_cross_entropy){smoothing, form & 2 ? 0 : -100};
    if (is_grad) {
        c.in[0] = float_type(hl_shape_1d(form & 8 ? 1 : N)); /* 8: one for all rows */
        case_fill(&c, 0, -1, 1);
    }
    c.in[first] = float_type(hl_shape_2d(N, C));
    case_fill(&c, first, -20, 20);
    c.in[first + 1] = (hl_type){targets[form % 4], hl_shape_1d(N)};
    case_fill(&c, first + 1, 0, (double)hl_cpu_min(C, 255));
    if (form & 4 && N > 3) c.data[first + 1][3] = 120, c.data[first + 1][N - 1] = 126;
    c.in[first + 2] = float_type(hl_shape_1d(C));
    if (has_weight) case_fill(&c, first + 2, 0, 2);
    c.out[0] = c.out[1] = is_grad ? c.in[1] : float_type(hl_shape_1d(N));
    c.tolerance = 2e-5;
    check_case("loss N %lld C %lld form %d smoothing %g grad %d", (long long)N, (long long)C, form,
               smoothing, is_grad);
    bool faults = (form & 4) && N > 3 && C <= 120;
    case_check(&c);
    CHECK_INT(c.control_after[0].error_code != 0, faults);
    CHECK_INT(c.control_after[0].error_code, c.control_after[1].error_code);
}

static void test_loss(void)
{
    for (int w = 0; w < N_WIDTHS; w++) {
        for (int form = 0; form < 16; form++) {
            for (int s = 0; s < 4; s++) {
                check_loss(form % 3 == 0 ? 1 : 53, widths[w], form, s & 1 ? 0.1 : 0, s >> 1);
            }
        }
    }
}

static void test_layer_norm(void)
{
    for (int w = 0; w < N_WIDTHS; w++) {
        for (int n_in = 1; n_in <= 3; n_in++) {
            op_case c = {.op = HL_OP_LAYER_NORM, .n_in = n_in, .n_out = 3};
            c.attrs.layer_norm = (hl_attrs_layer_norm){.n_axes = 1, .eps = 1e-5};
            int64_t dim[3] = {5, 9, widths[w]};
            c.in[0] = c.out[0] = float_type(hl_shape_make(3, dim));
            c.in[1] = c.in[2] = float_type(hl_shape_1d(widths[w]));
            c.out[1] = c.out[2] = float_type(hl_shape_make(2, dim));
            for (int i = 0; i < n_in; i++) case_fill(&c, i, 2, 5);
            /* Where a row is one or two numbers, 1/std is as ill-conditioned as they are close. */
            c.tolerance = widths[w] < 4 ? 2e-3 : 3e-5;
            check_case("layer_norm width %lld inputs %d", (long long)widths[w], n_in);
            case_check(&c);
        }
        for (int n_in = 4; n_in <= 5; n_in++) {
            op_case c = {.op = HL_OP_LAYER_NORM_GRAD, .n_in = n_in, .n_out = 1};
            c.attrs.layer_norm.n_axes = 2;
            int64_t dim[3] = {31, widths[w], 2};
            c.in[0] = c.in[1] = c.out[0] = float_type(hl_shape_make(3, dim));
            c.in[2] = c.in[3] = float_type(hl_shape_1d(31));
            c.in[4] = float_type(hl_shape_make(2, dim + 1));
            for (int i = 0; i < n_in; i++) case_fill(&c, i, i == 3 ? 0.5 : -1, 1);
            c.tolerance = 1e-5;
            check_case("layer_norm_grad width %lld inputs %d", (long long)widths[w], n_in);
            case_check(&c);
        }
    }
}

/* Result of reducing axes [first, last) of dim[rank]. */
static hl_shape drop_dims(int rank, const int64_t *dim, int first, int last)
{
    hl_shape shape = {0, {0}};
    for (int d = 0; d < rank; d++) {
        if (d < first || d >= last) shape.dim[shape.rank++] = dim[d];
    }
    return shape;
}

static const int64_t blocks[][3] = {{1, 1, 1},   {5, 7, 3},    {40, 3, 20},  {1, 100, 300},
                                    {2, 600, 1}, {300, 2, 1},  {1, 3000, 9}, {1, 64, 600},
                                    {3, 1, 40},  {1, 1000, 1}, {4, 257, 33}};
enum { N_BLOCKS = sizeof blocks / sizeof blocks[0] };

static void test_reduce(void)
{
    static const hl_op ops[] = {HL_OP_MAX,    HL_OP_MIN,    HL_OP_PROD,
                                HL_OP_ARGMAX, HL_OP_ARGMIN, HL_OP_CUMSUM};
    static const hl_dtype dtypes[] = {HL_DTYPE_F32, HL_DTYPE_I64, HL_DTYPE_BF16, HL_DTYPE_U8};
    for (int o = 0; o < 6; o++) {
        for (int b = 0; b < N_BLOCKS; b++) {
            for (int form = 0; form < 8; form++) {
                hl_dtype dtype = dtypes[form % 4];
                op_case c = {.op = ops[o], .n_in = 1, .n_out = 1};
                set_axes(&c, (int64_t[]){1}, 1);
                if (o == 5) c.attrs.scan.reverse = form / 4;
                c.in[0] = (hl_type){dtype, hl_shape_make(3, blocks[b])};
                bool is_small = o == 2;
                case_fill(&c, 0,
                          dtype == HL_DTYPE_U8 ? 0
                          : is_small           ? 0.9
                                               : -50,
                          is_small ? dtype == HL_DTYPE_F32 || dtype == HL_DTYPE_BF16 ? 1.05 : 3
                                   : 50);
                if (form >= 4 && dtype == HL_DTYPE_F32) {
                    c.data[0][hl_shape_numel(&c.in[0].shape) / 2] = NAN;
                }
                bool is_place = o == 3 || o == 4;
                c.out[0].dtype = is_place ? HL_DTYPE_I64 : dtype;
                if (dtype == HL_DTYPE_U8 && (o == 2 || o == 5)) c.out[0].dtype = HL_DTYPE_I64;
                c.out[0].shape = o == 5 ? c.in[0].shape : drop_dims(3, blocks[b], 1, 2);
                c.tolerance = dtype == HL_DTYPE_BF16 ? 0.01 : o == 2 ? 1e-4 : 1e-6;
                if (o == 2 && dtype == HL_DTYPE_I64) c.allows_any = true;
                check_case("reduce op %d block %d form %d", ops[o], b, form);
                case_check(&c);
            }
        }
    }
}

/* Rows of every width: far apart, with ties, with extremes and zeros of both signs, with NaN. */
static void test_median(void)
{
    static const hl_dtype dtypes[] = {HL_DTYPE_F32,  HL_DTYPE_BF16, HL_DTYPE_F16, HL_DTYPE_F64,
                                      HL_DTYPE_I64,  HL_DTYPE_I32,  HL_DTYPE_I8,  HL_DTYPE_U8,
                                      HL_DTYPE_BOOL, HL_DTYPE_I16};
    static const double extremes[] = {INFINITY, -INFINITY, 0, -0.0, 3e38, 1e-40};
    for (int w = 0; w < N_WIDTHS * 10 * 4; w++) {
        int64_t width = widths[w / 40];
        int form = w % 4;
        hl_dtype dtype = dtypes[w / 4 % 10];
        op_case c = {.op = HL_OP_MEDIAN, .n_in = 1, .n_out = 2, .attrs.arg_reduce.axis = 1};
        bool is_unsigned = dtype == HL_DTYPE_U8 || dtype == HL_DTYPE_BOOL;
        double memory;
        c.in[0] = (hl_type){dtype, hl_shape_2d(19, width)};
        c.out[0] = (hl_type){dtype, hl_shape_1d(19)};
        c.out[1] = (hl_type){HL_DTYPE_I64, hl_shape_1d(19)};
        case_fill(&c, 0, is_unsigned ? 0 : form == 1 ? -2 : -99, form == 1 ? 2 : 99);
        for (int64_t e = 0; e < 19 * width && hl_dtype_is_float(dtype); e++) {
            if (form == 1) c.data[0][e] = floor(c.data[0][e]);
            if (form > 1 && e % 3 == 1) c.data[0][e] = extremes[e / 3 % 6];
            if (form == 3 && e % 53 == 7) c.data[0][e] = e % 2 ? NAN : -NAN;
            element_store(&memory, dtype, 0, c.data[0][e]);
            c.data[0][e] = element_load(&memory, dtype, 0);
        }
        check_case("median of %lld %s, form %d", (long long)width, hl_dtype_name(dtype), form);
        case_check(&c);
    }
}

static void test_moments(void)
{
    for (int b = 0; b < N_BLOCKS; b++) {
        for (int side = 0; side < 3; side++) {
            int first = side == 1 ? 1 : 0, last = side == 0 ? 2 : 3;
            op_case c = {.op = HL_OP_MOMENTS, .n_in = 1, .n_out = 2};
            c.in[0] = float_type(hl_shape_make(3, blocks[b]));
            case_fill(&c, 0, 99, 101);
            hl_ints *axes = &c.attrs.axes.axes;
            for (int d = first; d < last; d++) axes->at[axes->n++] = d;
            c.out[0] = c.out[1] = float_type(drop_dims(3, blocks[b], first, last));
            /* The variance of numbers near 100 to 1e-4: no cancellation of squares. */
            c.tolerance = 1e-4;
            check_case("moments block %d side %d", b, side);
            case_check(&c);
        }
    }
}

int main(void)
{
    case_open();
    test_softmax();
    test_loss();
    test_layer_norm();
    test_reduce();
    test_median();
    test_moments();
    case_close();
    return CHECK_DONE();
}
