/* Convolutions, pooling, resampling and windows side by side on the CPU against the reference
 * (window_cases.h). Geometries that drawn ones do not reach stand here by name. */
#include "kernels/cpu/taps.h"
#include "tests/c/cpu_case.h"
#include "tests/c/window_cases.h"

/* ---- convolutions ---------------------------------------------------------------------------- */

static hl_dtype operands = HL_DTYPE_F32; /* of x, y's gradient and the weight */

static hl_attrs conv_attrs(const shape *s, const int64_t *size)
{
    return (hl_attrs){.conv = {.stride = hl_ints_make(s->stride, s->n),
                               .dilation = hl_ints_make(s->dilation, s->n),
                               .before = hl_ints_make(s->before, s->n),
                               .after = hl_ints_make(s->after, s->n),
                               .groups = s->groups,
                               .size = size ? hl_ints_make(size, s->n) : (hl_ints){0},
                               .channels_last = true,
                               .float32_out = operands != HL_DTYPE_F32}};
}

static void run_case(op_case *c, const shape *s)
{
    for (int i = 0; i < c->n_in; i++) fill_whole(c, i, 3);
    check_case("%s of %s, %s", hl_op_get(c->op)->name, hl_dtype_name(operands), print_shape(s));
    case_check(c);
}

static void check_conv(const shape *s, bool has_bias)
{
    hl_type x = channels_last(s, s->in, s->C, operands);
    hl_type y = channels_last(s, s->out, s->O, operands);
    hl_type weight = {operands, {.rank = s->n + 2, .dim = {s->O, s->C / s->groups}}};
    for (int d = 0; d < s->n; d++) weight.shape.dim[2 + d] = s->kernel[d];
    int n_in = 2 + has_bias;
    op_case forward = {.op = HL_OP_CONV, .n_in = n_in, .n_out = 1, .attrs = conv_attrs(s, NULL)};
    op_case transpose = {
        .op = HL_OP_CONV_TRANSPOSE, .n_in = n_in, .n_out = 1, .attrs = conv_attrs(s, s->in)};
    op_case gradient = {
        .op = HL_OP_CONV_WEIGHT_GRAD, .n_in = 2, .n_out = 1, .attrs = conv_attrs(s, s->kernel)};
    forward.in[0] = x, forward.in[1] = weight, forward.out[0] = y;
    transpose.in[0] = y, transpose.in[1] = weight, transpose.out[0] = x;
    gradient.in[0] = y, gradient.in[1] = x, gradient.out[0] = weight;
    forward.in[2] = (hl_type){HL_DTYPE_F32, hl_shape_1d(s->O)};
    transpose.in[2] = (hl_type){HL_DTYPE_F32, hl_shape_1d(s->C)};
    op_case *all[] = {&forward, &transpose, &gradient};
    for (int i = 0; i < 3; i++) {
        all[i]->out[0].dtype = HL_DTYPE_F32;
        run_case(all[i], s);
    }
}

static const shape named[] = {
    /* 64 classes of taps, the most; more of them; strides and dilations with a common divisor */
    {2, 2, 5, 7, 1, {19, 17}, {3, 5}, {8, 8}, {1, 1}, {1, 2}, {2, 2}, {0}},
    {2, 1, 3, 4, 1, {23, 29}, {3, 2}, {9, 9}, {1, 1}, {2, 0}, {2, 1}, {0}},
    {3, 1, 2, 3, 1, {9, 7, 8}, {3, 2, 3}, {5, 3, 4}, {1, 2, 3}, {2, 1, 3}, {1, 1, 3}, {0}},
    {2, 1, 17, 3, 1, {13, 15}, {4, 3}, {4, 6}, {2, 4}, {3, 4}, {3, 4}, {0}},
    {2, 1, 18, 18, 18, {13, 15}, {4, 3}, {4, 6}, {2, 4}, {3, 4}, {3, 4}, {0}},
    /* shares of pixels whose sums are added up, the last one short */
    {2, 3, 3, 8, 1, {41, 40}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, {0}},
    {1, 3, 20, 9, 1, {1500}, {2}, {1}, {1}, {0}, {1}, {0}},
    {2, 3, 16, 4, 1, {37, 41}, {1, 1}, {1, 1}, {1, 1}, {0, 0}, {0, 0}, {0}},
    {2, 5, 17, 17, 17, {65, 9}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, {0}},
    {2, 3, 6, 6, 2, {40, 41}, {2, 2}, {1, 1}, {1, 1}, {1, 0}, {1, 1}, {0}},
    /* more channels of the result than a task has, and than a panel */
    {1, 2, 3, 300, 1, {9}, {3}, {1}, {1}, {1}, {1}, {0}},
    {1, 2, 300, 3, 1, {9}, {3}, {2}, {1}, {1}, {1}, {0}},
    /* a weight's gradient of more columns than a tile has */
    {2, 2, 64, 80, 1, {9, 8}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, {0}},
    /* a kernel of so many taps that a block has few pixels; one that only padding fits */
    {1, 1, 2, 3, 1, {400}, {300}, {1}, {1}, {20}, {20}, {0}},
    {2, 1, 4, 4, 4, {1, 1}, {40, 3}, {1, 1}, {1, 1}, {20, 1}, {20, 1}, {0}},
    {2, 2, 33, 33, 33, {9, 40}, {3, 11}, {1, 1}, {1, 1}, {1, 5}, {1, 5}, {0}},
    {2, 1, 20, 20, 20, {12, 33}, {5, 5}, {1, 2}, {1, 1}, {2, 2}, {2, 2}, {0}},
    {2, 1, 64, 64, 64, {8, 30}, {7, 7}, {1, 1}, {1, 1}, {3, 3}, {3, 3}, {0}},
    /* lines of few channels, that results above have read; planes; a dilation within the stride */
    {2, 2, 3, 40, 1, {37, 45}, {7, 7}, {2, 2}, {1, 1}, {3, 3}, {3, 3}, {0}},
    {3, 1, 3, 33, 1, {5, 9, 10}, {2, 3, 3}, {1, 2, 1}, {1, 1, 1}, {1, 1, 1}, {0, 1, 1}, {0}},
    {2, 1, 1, 8, 1, {20, 21}, {3, 4}, {2, 1}, {2, 1}, {2, 1}, {2, 3}, {0}},
    {2, 1, 7, 5, 1, {9, 33}, {4, 3}, {3, 2}, {2, 1}, {3, 1}, {2, 1}, {0}},
    /* longer than a block of rows is; products of lines beyond what the cache has */
    {1, 2, 3, 5, 1, {1500}, {5}, {2}, {1}, {3}, {2}, {0}},
    {1, 1, 1, 3, 1, {9000}, {3}, {1}, {1}, {1}, {1}, {0}},
    /* a kernel of one element whose pixels are as many as the input's, and others */
    {1, 2, 5, 3, 1, {2}, {1}, {2}, {1}, {0}, {1}, {0}},
    /* what no window reads */
    {2, 2, 9, 6, 1, {11, 10}, {2, 1}, {4, 3}, {1, 1}, {0, 0}, {0, 0}, {0}},
};

static void test_conv(void)
{
    dice d = {.key = hl_rng_key_make(7, "windows")};
    for (int i = 0; i < N_RANDOM; i++) {
        shape s = draw_shape(&d);
        check_conv(&s, roll(&d, 2));
    }
    for (size_t i = 0; i < sizeof named / sizeof named[0]; i++) {
        shape s = named[i];
        CHECK(count_windows(&s));
        check_conv(&s, i % 2);
    }
}

/* Every tap of every pixel is in one class, once, and reads what the geometry says. */
static void test_taps(void)
{
    dice d = {.key = hl_rng_key_make(11, "taps")};
    for (int i = 0; i < N_RANDOM; i++) {
        shape s = i < 5 ? named[i] : draw_shape(&d);
        count_windows(&s);
        hl_conv conv = {.N = s.N, .C = s.C, .O = s.O, .groups = s.groups, .window.n = s.n};
        for (int k = 0; k < DIMS; k++) {
            bool has = k < s.n;
            conv.window.in[k] = has ? s.in[k] : 1, conv.window.out[k] = has ? s.out[k] : 1;
            conv.window.kernel[k] = has ? s.kernel[k] : 1;
            conv.window.stride[k] = has ? s.stride[k] : 1;
            conv.window.dilation[k] = has ? s.dilation[k] : 1;
            conv.window.before[k] = has ? s.before[k] : 0;
        }
        check_case("taps, %s", print_shape(&s));
        hl_taps taps = hl_taps_make(&conv, true);
        int64_t n_pixels = s.N * span_of(&s, s.in), n_taps = span_of(&s, s.kernel);
        CHECK_INT(taps.n_rows, n_pixels);
        CHECK_INT(taps.n_taps, n_taps);
        bool *seen = calloc((size_t)(n_pixels + n_taps + 1), sizeof(bool));
        for (int64_t row = 0; row < taps.n_rows; row++) {
            const hl_taps_class *class = hl_taps_find(&taps, row);
            int64_t place = hl_taps_result(&taps, class, row - class->first_row);
            CHECK(place >= 0 && place < n_pixels && !seen[place]);
            if (place >= 0 && place < n_pixels) seen[place] = true;
        }
        for (int k = 0; k < taps.n_classes; k++)
            for (int64_t t = 0; t < taps.classes[k].n_taps; t++) {
                int64_t place = hl_taps_place(&taps, &taps.classes[k], t);
                CHECK(place >= 0 && place < n_taps && !seen[n_pixels + place]);
                if (place >= 0 && place < n_taps) seen[n_pixels + place] = true;
            }
        free(seen);
    }
}

/* In a set of instructions that has them. */
static void test_bf16(const char *isa, bool has_isa)
{
    hl_device_options options = {.n_threads = 1, .isa = isa};
    if (strcmp(HL_CPU_TEXT(HL_ISA), "avx512") != 0) return;
    if (!has_isa) {
        CHECK_SKIP("the processor has no products of bfloat16 of this kind");
        return;
    }
    case_cpu->ops->destroy(case_cpu);
    CHECK_OK(hl_cpu_backend()->device_open(hl_cpu_backend(), 0, &options, &case_cpu));
    operands = HL_DTYPE_BF16;
    test_conv();
}

/* Kernels of each channel by itself take bfloat16 in every instruction set. */
static void test_depthwise_bf16(void)
{
    dice d = {.key = hl_rng_key_make(9, "depthwise")};
    operands = HL_DTYPE_BF16;
    for (int i = 0; i < N_RANDOM;) {
        shape s = draw_shape(&d);
        if (s.groups == 1 || s.groups != s.C || s.groups != s.O) continue;
        check_conv(&s, roll(&d, 2));
        i++;
    }
    operands = HL_DTYPE_F32;
}

int main(void)
{
    hl_os_cpu machine;
    hl_os_cpu_read(&machine);
    case_open();
    test_taps();
    test_conv();
    test_depthwise_bf16();
    test_pool();
    test_unfold();
    test_resample();
    test_bf16("avx512bf16", machine.avx512_bf16);
    test_bf16("amx", machine.amx);
    case_close();
    return CHECK_DONE();
}
