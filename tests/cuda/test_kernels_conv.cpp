/* Products of windows that are not in memory against fp64 of the same rounded operands: rows,
 * steps and taps in either direction, groups, results whose rows lie apart, shares of pixels. And
 * weight gradients as cuDNN leaves them, brought into the weight's order and float32: exact. And
 * mean and variance of channels from the sums that cuDNN leaves. */
#include "ir/dtype.h"
#include "kernels/cuda/conv_dnn.h"
#include "kernels/cuda/matmul.h"
#include "tests/cuda/kernel_test.h"

struct conv_case {
    int64_t n, groups, in, out; /* images; channels of a group */
    int64_t source[3], pixels[3], taps[3], step[3], first[3], apart[3];
    int64_t scale; /* of the results' places along the last dim: rows that lie apart */
    bool has_bias;
};
static const conv_case cases[] = {
    /* 3 x 3 with padding; channels that are whole 16 bytes, and not */
    {2, 1, 8, 70, {6, 7, 1}, {6, 7, 1}, {3, 3, 1}, {1, 1, 1}, {-1, -1, 0}, {1, 1, 1}, 1, true},
    {2, 1, 5, 9, {5, 4, 1}, {5, 4, 1}, {3, 3, 1}, {1, 1, 1}, {-1, -1, 0}, {1, 1, 1}, 1, false},
    /* strides and dilation, in three dims */
    {1, 1, 3, 4, {7, 9, 5}, {3, 3, 2}, {3, 2, 2}, {2, 3, 3}, {-2, 0, -1}, {2, 1, 2}, 1, true},
    /* groups: some wide, some of one channel */
    {2, 3, 16, 33, {5, 5, 1}, {5, 5, 1}, {2, 3, 1}, {1, 1, 1}, {0, -1, 0}, {1, 1, 1}, 1, true},
    {1, 35, 1, 1, {8, 9, 1}, {8, 9, 1}, {3, 3, 1}, {1, 1, 1}, {-1, -1, 0}, {1, 1, 1}, 1, true},
    /* groups that together are whole 16 bytes */
    {2, 2, 4, 9, {5, 4, 1}, {5, 4, 1}, {3, 3, 1}, {1, 1, 1}, {-1, -1, 0}, {1, 1, 1}, 1, true},
    /* backwards, as a gradient reads, every other place of the result; a run of more than a tile */
    {3, 1, 24, 8, {5, 6, 1}, {5, 6, 1}, {2, 2, 1}, {1, 1, 1}, {1, 0, 0}, {-1, -1, -1}, 2, true},
    /* no tap: the bias alone */
    {1, 1, 8, 8, {4, 4, 1}, {4, 4, 1}, {0, 2, 1}, {1, 1, 1}, {0, 0, 0}, {1, 1, 1}, 2, true},
    /* one line, taps beyond both ends */
    {2, 1, 8, 8, {3, 1, 1}, {9, 1, 1}, {5, 1, 1}, {1, 1, 1}, {-5, 0, 0}, {1, 1, 1}, 1, false},
};

static int64_t span(const int64_t *dims)
{
    return dims[0] * dims[1] * dims[2];
}
static void make_divisor(int64_t d, uint64_t *words)
{
    words[0] = words[2] = 0, words[1] = (uint64_t)d;
    if (d > 1) hl_cuda_divisor_make(d, 31, words);
}
static hl_cuda_windows make_windows(const conv_case &k)
{
    hl_cuda_windows w = {};
    w.channels = k.groups * k.in, w.image = span(k.source) * w.channels;
    w.n_pixels = k.n * span(k.pixels), w.n_run = span(k.taps) * k.in;
    make_divisor(k.in, w.channel);
    for (int d = 0; d < 3; d++) {
        make_divisor(k.pixels[d], w.pixel[d]), make_divisor(k.taps[d], w.tap[d]);
        w.in[d] = (int32_t)k.source[d], w.step[d] = (int32_t)k.step[d];
        w.first[d] = (int32_t)k.first[d], w.apart[d] = (int32_t)k.apart[d];
    }
    return w;
}
/* Element (row, col) of a group's matrix; -1: it is 0. */
static int64_t find_element(const conv_case &k, int64_t group, int64_t row, int64_t col)
{
    int64_t channel = col % k.in, tap = col / k.in, pixel = row, place = 0, at[3];
    for (int d = 2; d >= 0; d--) {
        at[d] = pixel % k.pixels[d] * k.step[d] + k.first[d] + tap % k.taps[d] * k.apart[d];
        pixel /= k.pixels[d], tap /= k.taps[d];
        if (at[d] < 0 || at[d] >= k.source[d]) return -1;
    }
    for (int d = 0; d < 3; d++) place = place * k.source[d] + at[d];
    return (pixel * span(k.source) + place) * k.groups * k.in + group * k.in + channel;
}

template <class T> static unsigned threads()
{
    return sizeof(T) == 4 ? HL_CUDA_MATMUL_F32_THREADS : HL_CUDA_MATMUL_REDUCED_THREADS;
}

/* By tiles, or a thread an element (is_grouped), whose weights are of all groups side by side. */
template <class T> static void test_forward(const conv_case &k, int which, bool is_grouped)
{
    start_case("conv %s %d%s", suffix<T>(), which, is_grouped ? ", grouped" : "");
    hl_cuda_windows w = make_windows(k);
    int64_t results = k.groups * k.out, first = k.scale - 1, M = w.n_pixels;
    buffer<T> x(k.n * w.image), weight(k.groups * w.n_run * k.out);
    buffer<float> bias(results), c((M * k.scale) * results);
    buffer<hl_bf16> reduced(c.n);
    fill_random(x), fill_random(weight), fill_random(bias);
    hl_cuda_layout rows = {};
    rows.n = rows.dim[0] = M, rows.rank = 1, rows.stride[0] = results * k.scale;
    hl_cuda_matrix_product of = {};
    of.M = M, of.N = k.out, of.K = w.n_run;
    of.bias_dtype = of.c_dtype = HL_DTYPE_F32;
    hl_cuda_matrix_product rounded = of;
    rounded.c_dtype = HL_DTYPE_BF16;
    const void *add = k.has_bias ? bias.get() : nullptr;
    unsigned blocks = (unsigned)(1 + M % 4);
    auto place = [&](int64_t group, int64_t p, int64_t col) {
        return (is_grouped ? p * k.groups + group : group * w.n_run + p) * k.out + col;
    };
    run_orders({&c, &reduced}, [&] {
        if (is_grouped) {
            LAUNCH(conv_grouped, suffix<T>(), blocks, 64, {x.get(), weight.get(), add, c.p}, of, w,
                   k.groups, k.in, first * results, rows);
            LAUNCH(conv_grouped, suffix<T>(), blocks, 64, {x.get(), weight.get(), add, reduced.p},
                   rounded, w, k.groups, k.in, first * results, rows);
            return;
        }
        LAUNCH(conv, suffix<T>(), blocks, threads<T>(), {x.get(), weight.get(), add, c.p}, of, w,
               k.groups, k.in, first * results, rows);
        LAUNCH(conv, suffix<T>(), blocks, threads<T>(), {x.get(), weight.get(), add, reduced.p},
               rounded, w, k.groups, k.in, first * results, rows);
    });
    buffer<float> taken(M * results);
    buffer<hl_bf16> taken_reduced(taken.n);
    for (int64_t i = 0; i < taken.n; i++) {
        int64_t at = (i / results * k.scale + first) * results + i % results;
        taken[i] = c[at], taken_reduced[i] = reduced[at];
    }
    auto sum = [&](int64_t i, bool is_size) {
        int64_t row = i / results, group = i % results / k.out, col = i % k.out;
        double total = k.has_bias ? bias[group * k.out + col] : 0;
        if (is_size) total = fabs(total);
        for (int64_t p = 0; p < w.n_run; p++) {
            int64_t at = find_element(k, group, row, p);
            double v = at < 0 ? 0 : number(x[at]) * number(weight[place(group, p, col)]);
            total += is_size ? fabs(v) : v;
        }
        return total;
    };
    auto want = [&](int64_t i) { return sum(i, false); };
    auto bound = [&](int64_t i) { return (double)(w.n_run + 2) * 0x1p-24 * sum(i, true); };
    check_close("c", taken, want, bound);
    check_close("c in bf16", taken_reduced, want, bound);
    bool is_untouched = true;
    for (int64_t i = 0; i < c.n && k.scale > 1; i++)
        if (i / results % k.scale != first) is_untouched = is_untouched && isnan(c[i]);
    check("places of other classes are left alone", is_untouched);
}

template <class T>
static void test_weight_grad(const conv_case &k, int which, int64_t shares, bool is_grouped)
{
    start_case("conv_weight_grad %s %d, %lld shares", suffix<T>(), which, (long long)shares);
    hl_cuda_windows w = make_windows(k);
    int64_t O = k.groups * k.out, n = O * w.n_run, M = w.n_pixels;
    buffer<T> x(k.n * w.image), y(M * O);
    buffer<float> parts(shares * n), merged(n);
    buffer<hl_f16> rounded(n);
    fill_random(x), fill_random(y);
    hl_cuda_matrix_product of = {};
    of.M = k.out, of.N = w.n_run, of.K = (M + shares - 1) / shares, of.a_k = O;
    of.c_dtype = HL_DTYPE_F32;
    hl_cuda_layout weight = {}; /* (O, in, taps) */
    weight.n = n, weight.rank = 3;
    weight.dim[0] = O, weight.dim[1] = k.in, weight.dim[2] = span(k.taps);
    weight.stride[0] = w.n_run, weight.stride[1] = 1, weight.stride[2] = k.in;
    if (is_grouped) weight.stride[0] = 1, weight.stride[1] = O, weight.stride[2] = k.in * O;
    unsigned blocks = (unsigned)(1 + M % 4);
    run_orders({&parts, &merged, &rounded}, [&] {
        if (is_grouped)
            LAUNCH(conv_grouped_weight_grad, suffix<T>(), blocks, 64,
                   {y.get(), x.get(), parts.get()}, of, w, k.groups, k.in, shares);
        else
            LAUNCH(conv_weight_grad, suffix<T>(), blocks, threads<T>(),
                   {y.get(), x.get(), parts.get()}, of, w, k.groups, k.in, shares);
        LAUNCH_ONLY(conv_merge, 2, 64, {parts.get(), merged.p}, weight, n, shares, HL_DTYPE_F32);
        LAUNCH_ONLY(conv_merge, 2, 64, {parts.get(), rounded.p}, weight, n, shares, HL_DTYPE_F16);
    });
    auto sum = [&](int64_t i, bool is_size) {
        int64_t o = i / w.n_run, channel = i % w.n_run / span(k.taps), tap = i % span(k.taps);
        double total = 0;
        for (int64_t row = 0; row < M; row++) {
            int64_t at = find_element(k, o / k.out, row, tap * k.in + channel);
            double v = at < 0 ? 0 : number(x[at]) * number(y[row * O + o]);
            total += is_size ? fabs(v) : v;
        }
        return total;
    };
    auto want = [&](int64_t i) { return sum(i, false); };
    auto bound = [&](int64_t i) { return (double)(M + 2) * 0x1p-24 * sum(i, true); };
    check_close("w", merged, want, bound);
    check_close("w in f16", rounded, want, bound);
}

/* (O,M,N) to (O,N,M). From 65536 elements on, all numbers that T has are among them. */
template <class T> static void test_widen(int64_t O, int64_t M, int64_t N)
{
    start_case("conv_widen %s (%lld,%lld,%lld)", suffix<T>(), (long long)O, (long long)M,
               (long long)N);
    buffer<T> src(O * M * N);
    buffer<float> dst(src.n);
    for (int64_t i = 0; i < src.n; i++) {
        uint16_t bits = (uint16_t)(i * 40503); /* an odd factor: a permutation of all 16 bits */
        memcpy(&src[i], &bits, sizeof bits);
    }
    run_orders({&dst},
               [&] { LAUNCH(conv_widen, suffix<T>(), 3, 64, {src.get(), dst.get()}, O, M, N); });
    bool is_right = true;
    for (int64_t i = 0; i < src.n; i++) {
        double want = number(src[i]), got = dst[i / (M * N) * M * N + i % N * M + i / N % M];
        is_right =
            is_right && (isnan(want) ? isnan(got) : got == want && signbit(got) == signbit(want));
    }
    check("every element", is_right);
}

template <class T> static void test_widened()
{
    test_widen<T>(1, 1, 1), test_widen<T>(64, 9, 1), test_widen<T>(64, 1, 9);
    test_widen<T>(3, 5, 7), test_widen<T>(2, 256, 128), test_widen<T>(5, 49, 3);
    test_widen<T>(0, 9, 4), test_widen<T>(4, 9, 0);
}

/* Channels whose means are so many standard deviations from 0; the first of them is constant. Sums
 * are as good as float32 has them, and worse where they only say that a channel must be read. */
template <class T> static void test_moments(int64_t R, int64_t C, double mean, int by_block)
{
    start_case("conv_moments %s (%lld,%lld), mean %g, by_block %d", suffix<T>(), (long long)R,
               (long long)C, mean, by_block);
    buffer<T> x(R * C);
    buffer<float> sums(C), squares(C), got_mean(C), got_var(C);
    std::vector<double> middle(C), var(C);
    fill_random(x, 1, mean);
    for (int64_t r = 0; r < R; r++) hl_write(x.get(), r * C, (float)mean);
    for (int64_t c = 0; c < C; c++) {
        double sum = 0, square = 0;
        for (int64_t r = 0; r < R; r++) {
            double v = number(x[r * C + c]);
            sum += v, square += v * v;
        }
        sums[c] = (float)(mean >= 40 ? sum * (1 + 1e-5) : sum), squares[c] = (float)square;
        middle[c] = sum / (double)R;
        for (int64_t r = 0; r < R; r++) {
            double v = number(x[r * C + c]) - middle[c];
            var[c] += v * v / (double)R;
        }
    }
    run_orders({&got_mean, &got_var}, [&] {
        LAUNCH(conv_moments, suffix<T>(), 3, 64,
               {x.get(), sums.get(), squares.get(), got_mean.get(), got_var.get()}, R, C, by_block);
    });
    check_close(
        "mean", got_mean, [&](int64_t c) { return middle[c]; },
        [&](int64_t c) { return 1e-6 * (fabs(middle[c]) + sqrt(var[c])); });
    check_close(
        "var", got_var, [&](int64_t c) { return var[c]; },
        [&](int64_t c) { return 1e-5 * var[c] + 1e-12 * mean * mean; });
}

template <class T> static void test_channels()
{
    for (int by_block : {0, 1, 2, 4, 8, 16})
        for (double mean : {0.0, 1.5, 5.0, 300.0}) test_moments<T>(77, 5, mean, by_block);
    test_moments<T>(1, 3, 2, 2), test_moments<T>(2, 70, 1, 2), test_moments<T>(5000, 2, 40, 1);
}

template <class T> static void test_all()
{
    int which = 0;
    for (const conv_case &k : cases) {
        for (bool is_grouped : {false, true}) {
            test_forward<T>(k, which, is_grouped);
            for (int64_t shares : {1, 3})
                if (span(k.taps) > 0) test_weight_grad<T>(k, which, shares, is_grouped);
        }
        which++;
    }
}

int main()
{
    test_all<float>();
    if (has_bf16_mma()) test_all<hl_bf16>();
    test_all<hl_f16>();
    test_widened<hl_bf16>(), test_widened<hl_f16>();
    test_channels<float>(), test_channels<hl_bf16>(), test_channels<hl_f16>();
    return finish_tests("test_kernels_conv");
}
