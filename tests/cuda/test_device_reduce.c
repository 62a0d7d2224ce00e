/* Reductions, running sums and norms on the emulated GPU against the reference: every dtype, rows
 * and columns in one part and in several. */
#include "tests/cuda/device_case.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

/* What a result of this dtype may be off by, of 1. */
static double roundoff(hl_dtype dtype)
{
    switch (dtype) {
    case HL_DTYPE_F64: return 0x1p-53;
    case HL_DTYPE_F32: return 0x1p-24;
    case HL_DTYPE_F16: return 0x1p-11;
    case HL_DTYPE_BF16: return 0x1p-8;
    default: return 0;
    }
}

/* Of a sum of n: sums are kept in float32, but for float64. */
static double sum_roundoff(hl_dtype dtype, int64_t n)
{
    return roundoff(dtype) + (double)n * (dtype == HL_DTYPE_F64 ? 0x1p-53 : 0x1p-24);
}

typedef struct groups {
    hl_shape shape;
    int n_axes;
    int64_t axes[4];
} groups;

#define SHAPE(rank, ...)                                                                           \
    {                                                                                              \
        rank,                                                                                      \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
static const groups all_groups[] = {
    {SHAPE(0, 0), 0, {0}},
    {SHAPE(1, 1), 1, {0}},
    {SHAPE(2, 7, 3), 1, {1}},
    {SHAPE(2, 33, 10), 1, {1}},
    {SHAPE(2, 9, 33), 1, {1}},
    {SHAPE(2, 3, 1001), 1, {1}},
    {SHAPE(2, 2, 1030), 1, {1}},
    {SHAPE(2, 2, 5003), 1, {1}}, /* in two parts */
    {SHAPE(1, 20001), 1, {0}},
    {SHAPE(2, 100, 3), 1, {0}},
    {SHAPE(2, 2, 2), 1, {0}},
    {SHAPE(2, 1100, 8), 1, {0}}, /* columns in three parts */
    {SHAPE(2, 300, 33), 1, {0}},
    {SHAPE(3, 3, 70, 40), 1, {1}},
    {SHAPE(4, 2, 4, 5, 6), 2, {1, 2}},
    {SHAPE(4, 3, 1, 4, 2), 2, {0, 2}},
    {SHAPE(8, 2, 1, 3, 2, 1, 2, 2, 2), 3, {2, 3, 5}},
    {SHAPE(2, 0, 4), 1, {1}},
    {SHAPE(2, 3, 0), 1, {0}},
    {SHAPE(2, 0, 4), 1, {0}}, /* nothing to reduce: sum and prod alone */
    {SHAPE(2, 3, 0), 1, {1}},
};

static int64_t count_reduced(const groups *g)
{
    int64_t n = 1;
    for (int a = 0; a < g->n_axes; a++) n *= g->shape.dim[g->axes[a]];
    return n;
}

static hl_shape reduce_shape(const groups *g)
{
    hl_shape shape = {0, {0}};
    for (int d = 0, a = 0; d < g->shape.rank; d++)
        if (a < g->n_axes && g->axes[a] == d)
            a++;
        else
            shape.dim[shape.rank++] = g->shape.dim[d];
    return shape;
}

/* A case of the op on groups, its input's type given. */
static op_case make_case(hl_op op, hl_dtype dtype, const groups *g)
{
    op_case c = {.op = op, .n_in = 1, .n_out = 1};
    set_axes(&c, g->axes, g->n_axes);
    c.in[0] = (hl_type){dtype, g->shape};
    c.out[0] = (hl_type){dtype, reduce_shape(g)};
    check_case("%s %s rank %d: %lld, %lld, ... over %d axes from %lld on", hl_op_get(op)->name,
               hl_dtype_name(dtype), g->shape.rank, (long long)g->shape.dim[0],
               (long long)g->shape.dim[1], g->n_axes, (long long)g->axes[0]);
    return c;
}

static void test_fold(hl_op op, hl_dtype dtype, const groups *g)
{
    op_case c = make_case(op, dtype, g);
    bool is_sum = op == HL_OP_SUM || op == HL_OP_PROD, is_float = hl_dtype_is_float(dtype);
    if (!is_sum && count_reduced(g) == 0 && hl_shape_numel(&c.out[0].shape) > 0) return;
    if (is_sum && !is_float) c.out[0].dtype = HL_DTYPE_I64;
    double low = !is_float ? 0 : op == HL_OP_PROD ? 0.9996 : op == HL_OP_SUM ? 0.5 : -99;
    case_fill(&c, 0, low, !is_float ? (dtype == HL_DTYPE_BOOL ? 2 : 120) : low < 0 ? 99 : 1.0003);
    c.tolerance = is_sum ? sum_roundoff(dtype, count_reduced(g)) : 0;
    case_check(&c);
}

static void test_place(hl_op op, hl_dtype dtype, const groups *g, bool has_nan)
{
    if (g->n_axes != 1 || count_reduced(g) == 0) return;
    op_case c = make_case(op, dtype, g);
    c.out[0].dtype = HL_DTYPE_I64;
    case_fill(&c, 0, 0, dtype == HL_DTYPE_BOOL ? 2 : 100); /* ties, of which the first counts */
    for (int64_t e = 5; has_nan && e < hl_shape_numel(&g->shape); e += 977) c.data[0][e] = NAN;
    case_check(&c);
}

/* Kernels take rows. */
static void test_median(hl_dtype dtype, const groups *g, bool has_nan)
{
    if (g->n_axes != 1 || g->axes[0] != g->shape.rank - 1 || count_reduced(g) == 0) return;
    op_case c = make_case(HL_OP_MEDIAN, dtype, g);
    c.n_out = 2;
    c.out[1] = (hl_type){HL_DTYPE_I64, c.out[0].shape};
    double low = dtype == HL_DTYPE_U8 || dtype == HL_DTYPE_BOOL ? 0 : -30;
    case_fill(&c, 0, low, dtype == HL_DTYPE_BOOL ? 2 : 90);
    for (int64_t e = 5; has_nan && e < hl_shape_numel(&g->shape); e += 977) c.data[0][e] = NAN;
    case_check(&c);
}

static void test_cumsum(hl_dtype dtype, const groups *g, int is_reverse)
{
    if (g->n_axes != 1) return;
    op_case c = make_case(HL_OP_CUMSUM, dtype, g);
    c.attrs.scan.reverse = is_reverse;
    c.out[0] = (hl_type){hl_dtype_is_float(dtype) ? dtype : HL_DTYPE_I64, g->shape};
    case_fill(&c, 0, 0, hl_dtype_is_float(dtype) ? 1 : 100);
    c.tolerance = sum_roundoff(dtype, count_reduced(g));
    case_check(&c);
}

/* mean: what the elements lie around. */
static void test_moments(hl_dtype dtype, const groups *g, double mean)
{
    if (count_reduced(g) == 0) return;
    op_case c = make_case(HL_OP_MOMENTS, dtype, g);
    c.n_out = 2;
    c.out[1] = c.out[0];
    case_fill(&c, 0, mean - 2, mean + 2);
    /* Relative, so the mean's is of the variance too, which is about 1. */
    c.tolerance = roundoff(dtype) + 24 * 0x1p-24 * (1 + fabs(mean));
    case_check(&c);
}

static void test_prod_grad(const groups *g)
{
    op_case c = make_case(HL_OP_PROD_GRAD, HL_DTYPE_F32, g);
    hl_shape kept = g->shape;
    for (int a = 0; a < g->n_axes; a++) kept.dim[g->axes[a]] = 1;
    if (count_reduced(g) > 4096) return;
    c.n_in = 3;
    c.in[1] = c.in[2] = (hl_type){HL_DTYPE_F32, kept};
    c.out[0] = c.in[0];
    case_fill(&c, 0, 0.9997, 1.0003), case_fill(&c, 1, 1, 1), case_fill(&c, 2, -1, 1);
    if (hl_shape_numel(&g->shape) > 2) c.data[0][2] = 0;
    c.tolerance = (double)(2 * count_reduced(g) + 8) * 0x1p-24;
    case_check(&c);
}

static void test_reductions(void)
{
    static const hl_op folds[] = {HL_OP_SUM, HL_OP_PROD, HL_OP_MAX, HL_OP_MIN};
    for (int g = 0; g < COUNT(all_groups); g++) {
        for (int d = 0; d < HL_DTYPE_COUNT; d++) {
            hl_dtype dtype = (hl_dtype)d;
            for (int f = 0; f < COUNT(folds); f++) test_fold(folds[f], dtype, &all_groups[g]);
            for (int i = 0; i < 2; i++) {
                test_place(HL_OP_ARGMAX, dtype, &all_groups[g], i && hl_dtype_is_float(dtype));
                test_place(HL_OP_ARGMIN, dtype, &all_groups[g], i && hl_dtype_is_float(dtype));
                test_median(dtype, &all_groups[g], i && hl_dtype_is_float(dtype));
                test_cumsum(dtype, &all_groups[g], i);
            }
        }
        for (int i = 0; i < 2; i++) {
            test_moments(HL_DTYPE_F32, &all_groups[g], i ? 100 : 0);
            test_moments(HL_DTYPE_BF16, &all_groups[g], i);
            test_moments(HL_DTYPE_F16, &all_groups[g], i);
        }
        test_prod_grad(&all_groups[g]);
    }
}

/* ---- norms ---- */

/* dtype: of x; given: of the first output. */
static void test_batch_norm(hl_dtype dtype, hl_dtype given, hl_shape shape)
{
    hl_type channels = {HL_DTYPE_F32, hl_shape_1d(shape.dim[1])};
    op_case c = {.op = HL_OP_BATCH_NORM, .n_in = 3, .n_out = 3, .attrs.batch_norm.eps = 1e-3};
    c.in[0] = c.out[0] = (hl_type){dtype, shape};
    c.attrs.batch_norm.dtype = c.out[0].dtype = given;
    c.in[1] = c.in[2] = c.out[1] = c.out[2] = channels;
    case_fill(&c, 0, -1, 3), case_fill(&c, 1, 0.5, 1.5), case_fill(&c, 2, -1, 1);
    c.tolerance = 8 * roundoff(given) + 256 * 0x1p-24;
    check_case("batch_norm %s to %s rank %d: %lld, %lld, %lld", hl_dtype_name(dtype),
               hl_dtype_name(given), shape.rank, (long long)shape.dim[0], (long long)shape.dim[1],
               (long long)shape.dim[2]);
    case_check(&c);
}

/* With the statistics of other elements, of which the gradients are sums all the same. */
static void test_batch_norm_grad(hl_dtype dy, hl_dtype x, hl_dtype given, hl_shape shape)
{
    hl_type channels = {HL_DTYPE_F32, hl_shape_1d(shape.dim[1])};
    op_case c = {.op = HL_OP_BATCH_NORM_GRAD, .n_in = 5, .n_out = 3, .attrs.batch_norm.eps = 1e-3};
    c.in[0] = c.in[1] = c.out[0] = (hl_type){dy, shape};
    c.in[1].dtype = x;
    c.attrs.batch_norm.dtype = c.out[0].dtype = given;
    c.in[2] = c.in[3] = c.in[4] = c.out[1] = c.out[2] = channels;
    case_fill(&c, 0, -1, 1), case_fill(&c, 1, -1, 3), case_fill(&c, 2, 0.5, 1.5);
    case_fill(&c, 3, 0, 2), case_fill(&c, 4, 0.5, 2);
    double terms = (double)(hl_shape_numel(&shape) / shape.dim[1]);
    c.tolerance = 8 * roundoff(given) + (terms + 256) * 0x1p-24;
    check_case("batch_norm_grad %s, %s to %s rank %d: %lld, %lld, %lld", hl_dtype_name(dy),
               hl_dtype_name(x), hl_dtype_name(given), shape.rank, (long long)shape.dim[0],
               (long long)shape.dim[1], (long long)shape.dim[2]);
    case_check(&c);
}

/* dy: of the gradient's operand. */
static void test_layer_norm(hl_dtype dy, hl_dtype dtype, hl_dtype given, int64_t R, int64_t C,
                            int n_params)
{
    hl_type x = {dtype, hl_shape_2d(R, C)}, row = {HL_DTYPE_F32, hl_shape_1d(R)};
    hl_type col = {HL_DTYPE_F32, hl_shape_1d(C)};
    op_case c = {.op = HL_OP_LAYER_NORM, .n_in = 1 + n_params, .n_out = 3};
    c.attrs = (hl_attrs){.layer_norm = {.n_axes = 1, .eps = 1e-3, .dtype = given}};
    c.in[0] = c.out[0] = x;
    c.out[0].dtype = given;
    c.in[1] = c.in[2] = col;
    c.out[1] = c.out[2] = row;
    case_fill(&c, 0, -1, 3);
    for (int i = 1; i < c.n_in; i++) case_fill(&c, i, 0.5, 1.5);
    /* 1/std of a row that is nearly constant is large, and its digits are those of the row. */
    c.tolerance = 8 * roundoff(given) + 1024 * 0x1p-24;
    check_case("layer_norm %s to %s %lldx%lld, %d parameters", hl_dtype_name(dtype),
               hl_dtype_name(given), (long long)R, (long long)C, n_params);
    case_check(&c);
    if (n_params == 2) return;
    op_case d = {.op = HL_OP_LAYER_NORM_GRAD, .n_in = 4 + n_params, .n_out = 1};
    d.attrs.layer_norm.n_axes = 1;
    d.in[0] = d.in[1] = d.out[0] = x;
    d.in[0].dtype = dy;
    d.attrs.layer_norm.dtype = d.out[0].dtype = given;
    d.in[2] = d.in[3] = row;
    d.in[4] = col;
    for (int i = 0; i < d.n_in; i++) case_fill(&d, i, i == 3 ? 0.5 : -1, 1);
    d.tolerance = c.tolerance;
    check_case("layer_norm_grad %s, %s to %s %lldx%lld, weight %d", hl_dtype_name(dy),
               hl_dtype_name(dtype), hl_dtype_name(given), (long long)R, (long long)C, n_params);
    case_check(&d);
}

static void test_norms(void)
{
    /* dy, x, what is given */
    static const hl_dtype dtypes[][3] = {
        {HL_DTYPE_F32, HL_DTYPE_F32, HL_DTYPE_F32},   {HL_DTYPE_BF16, HL_DTYPE_BF16, HL_DTYPE_BF16},
        {HL_DTYPE_F16, HL_DTYPE_F16, HL_DTYPE_F16},   {HL_DTYPE_F32, HL_DTYPE_F32, HL_DTYPE_BF16},
        {HL_DTYPE_BF16, HL_DTYPE_F32, HL_DTYPE_BF16}, {HL_DTYPE_F32, HL_DTYPE_BF16, HL_DTYPE_BF16},
        {HL_DTYPE_F16, HL_DTYPE_F32, HL_DTYPE_F32},   {HL_DTYPE_F32, HL_DTYPE_F16, HL_DTYPE_F32},
        {HL_DTYPE_F16, HL_DTYPE_F16, HL_DTYPE_F32}};
    static const hl_shape batches[] = {
        SHAPE(2, 1, 1),       SHAPE(2, 64, 10),   SHAPE(2, 5000, 1),  SHAPE(2, 600, 40),
        SHAPE(3, 1, 3, 5000), SHAPE(3, 70, 5, 7), SHAPE(3, 3, 1, 1),  SHAPE(4, 5, 2, 33, 30),
        SHAPE(2, 1024, 70),   SHAPE(2, 1025, 3),  SHAPE(3, 9, 4, 24), SHAPE(4, 3, 8, 14, 14)};
    static const int64_t rows[][2] = {{0, 5},  {1, 1},   {5, 3},    {3, 16},  {7, 33},
                                      {2, 77}, {3, 700}, {2, 1500}, {1, 9000}};
    for (int d = 0; d < COUNT(dtypes); d++) {
        hl_dtype dy = dtypes[d][0], x = dtypes[d][1], given = dtypes[d][2];
        for (int b = 0; b < COUNT(batches); b++) {
            test_batch_norm(x, given, batches[b]);
            test_batch_norm_grad(dy, x, given, batches[b]);
        }
        case_shift = 4; /* no operand lies where 16 bytes begin */
        test_batch_norm(x, given, (hl_shape)SHAPE(3, 9, 4, 24));
        test_batch_norm_grad(dy, x, given, (hl_shape)SHAPE(3, 9, 4, 24));
        case_shift = 0;
        for (int r = 0; r < COUNT(rows); r++)
            for (int n = 0; n < 3; n++) test_layer_norm(dy, x, given, rows[r][0], rows[r][1], n);
    }
}

/* ---- what is refused has another form ---- */

static void test_refusals(void)
{
    static const groups apart = {SHAPE(4, 2, 3, 4, 5), 2, {0, 2}};
    static const groups long_row = {SHAPE(1, 5000), 1, {0}};
    static const groups longest = {SHAPE(2, 2, (int64_t)1 << 32), 1, {1}};
    static const struct {
        hl_op op;
        hl_dtype dtype;
        const groups *g;
        const char *why;
    } refused[] = {
        {HL_OP_SUM, HL_DTYPE_F32, &apart, "needs axes that stand together"},
        {HL_OP_MEDIAN, HL_DTYPE_F32, &longest,
         "needs rows of fewer than 2^32 elements, got 4294967296"},
        {HL_OP_MOMENTS, HL_DTYPE_F32, &apart, "needs axes that stand together"},
        {HL_OP_MOMENTS, HL_DTYPE_F64, &long_row, "needs float32, bfloat16 or float16, got float64"},
        {HL_OP_PROD_GRAD, HL_DTYPE_F64, &long_row, "needs float32, got float64"},
        {HL_OP_PROD_GRAD, HL_DTYPE_F32, &long_row, "needs at most 4096 factors, got 5000"},
    };
    for (int i = 0; i < COUNT(refused); i++) {
        op_case c = make_case(refused[i].op, refused[i].dtype, refused[i].g);
        case_graph g;
        hl_kernel_req req = {0};
        hl_reason why = {{0}};
        c.n_in = refused[i].op == HL_OP_PROD_GRAD ? 3 : 1;
        c.in[1] = c.in[2] = c.in[0];
        case_build(&c, false, &g);
        const hl_kernel *const *list = case_gpu->ops->kernels(case_gpu, c.op);
        CHECK(list && list[0]);
        for (; list && list[0]; list++) /* the last one's reason */
            CHECK_INT(list[0]->query(case_gpu, &g.graph, 0, &req, &why), HL_ERROR_CONFIG);
        CHECK(strcmp(why.text, refused[i].why) == 0);
        CHECK(hl_op_get(c.op)->lower != NULL || refused[i].g == &longest);
    }
}

/* Two 16-bit types at once are lowered to casts; parameters of 16 bits are no norm's. */
static void test_norm_refusals(void)
{
    static const struct {
        hl_dtype dy, x, given;
        const char *why;
    } refused[] = {
        {HL_DTYPE_BF16, HL_DTYPE_F16, HL_DTYPE_F32,
         "needs one 16-bit type, got bfloat16 and float16"},
        {HL_DTYPE_F16, HL_DTYPE_F32, HL_DTYPE_BF16,
         "needs one 16-bit type, got float16 and bfloat16"},
        {HL_DTYPE_F64, HL_DTYPE_F64, HL_DTYPE_F64,
         "needs float32, bfloat16 or float16, got float64"},
    };
    for (int i = 0; i < COUNT(refused); i++)
        for (int by_rows = 0; by_rows < 2; by_rows++) {
            bool is_f64 = refused[i].x == HL_DTYPE_F64;
            hl_type stats = {is_f64 ? HL_DTYPE_F64 : HL_DTYPE_F32, hl_shape_1d(4)};
            op_case c = {.op = by_rows ? HL_OP_LAYER_NORM_GRAD : HL_OP_BATCH_NORM_GRAD, .n_in = 5};
            case_graph g;
            hl_kernel_req req = {0};
            hl_reason why = {{0}};
            hl_attrs_init(hl_op_get(c.op)->schema, &c.attrs);
            *(by_rows ? &c.attrs.layer_norm.dtype : &c.attrs.batch_norm.dtype) = refused[i].given;
            c.n_out = hl_op_get(c.op)->n_out;
            c.in[0] = c.in[1] = c.out[0] = (hl_type){refused[i].dy, hl_shape_2d(4, 4)};
            c.in[1].dtype = refused[i].x, c.out[0].dtype = refused[i].given;
            for (int v = 2; v < 5; v++) c.in[v] = stats;
            for (int j = 1; j < c.n_out; j++) c.out[j] = stats;
            case_build(&c, false, &g);
            const hl_kernel *const *list = case_gpu->ops->kernels(case_gpu, c.op);
            CHECK_INT(list[0]->query(case_gpu, &g.graph, 0, &req, &why), HL_ERROR_CONFIG);
            CHECK(strcmp(why.text, refused[i].why) == 0);
        }
}

/* What a kernel takes with the dims in another order. */
static void test_orders(void)
{
    static const groups column = {SHAPE(3, 5, 7, 2), 1, {0}}, middle = {SHAPE(3, 5, 7, 2), 1, {1}};
    static const groups inner = {SHAPE(5, 2, 3, 4, 5, 2), 2, {1, 3}};
    static const struct {
        hl_op op;
        const groups *g;
        hl_ints order;
    } asked[] = {
        {HL_OP_MEDIAN, &column, {3, {1, 2, 0}}},   {HL_OP_MEDIAN, &middle, {3, {0, 2, 1}}},
        {HL_OP_SUM, &inner, {5, {0, 2, 4, 1, 3}}}, {HL_OP_MAX, &inner, {5, {0, 2, 4, 1, 3}}},
        {HL_OP_PROD, &middle, {0, {0}}},           {HL_OP_MOMENTS, &inner, {5, {0, 2, 4, 1, 3}}},
    };
    for (int i = 0; i < COUNT(asked); i++) {
        op_case c = make_case(asked[i].op, HL_DTYPE_F32, asked[i].g);
        case_graph g;
        const hl_kernel *kernel;
        hl_kernel_req req;
        case_build(&c, false, &g);
        CHECK_OK(hl_kernel_find_in_any_order(case_gpu, &g.graph, 0, true, &kernel, &req));
        CHECK(kernel != NULL);
        CHECK_INT(req.order.n, asked[i].order.n);
        for (int32_t d = 0; d < req.order.n; d++) CHECK_INT(req.order.at[d], asked[i].order.at[d]);
    }
}

int main(void)
{
    case_open();
    test_reductions();
    test_norms();
    test_refusals();
    test_norm_refusals();
    test_orders();
    case_close();
    return CHECK_DONE();
}
