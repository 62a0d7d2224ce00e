/* Sliding windows and resampling against fp64: windows side by side and back, largest elements,
 * their places and gradients, weighted sums along an axis. Numbers are whole, so that sums are
 * exact in every type. */
#include "kernels/cuda/resample.h"
#include "kernels/cuda/window.h"
#include "tests/cuda/kernel_test.h"

enum { DIMS = HL_CUDA_WINDOW_DIMS, N_RANDOM = 40, MOST = 2500 };

/* ---- geometries ---- */

static int64_t count(const int64_t (&dims)[DIMS])
{
    return dims[0] * dims[1] * dims[2];
}

/* Counts the windows; false where one dim has none. */
static bool complete(hl_cuda_window &w, const int64_t (&after)[DIMS])
{
    for (int d = 0; d < DIMS; d++) {
        int64_t span = w.dilation[d] * (w.kernel[d] - 1) + 1;
        int64_t padded = w.in[d] + w.before[d] + after[d];
        if (span > padded) return false;
        w.out[d] = (padded - span) / w.stride[d] + 1;
    }
    w.n_in = count(w.in), w.n_out = count(w.out), w.n_taps = count(w.kernel);
    return true;
}

static hl_cuda_window draw_window()
{
    static const int64_t channels[] = {1, 2, 3, 4, 5, 8, 16, 17};
    for (;;) {
        hl_cuda_window w;
        int64_t after[DIMS] = {};
        memset(&w, 0, sizeof w);
        w.N = random_below(9) ? 1 + random_below(3) : 0;
        w.C = channels[random_below(8)];
        w.is_short = (int32_t)random_below(2);
        int64_t n = 1 + random_below(DIMS);
        for (int d = 0; d < DIMS; d++) {
            bool has = d < n;
            w.in[d] = has ? 1 + random_below(n == 1 ? 20 : 8) : 1;
            w.kernel[d] = has ? 1 + random_below(4) : 1;
            w.stride[d] = has ? 1 + random_below(4) : 1;
            w.dilation[d] = has && random_below(2) ? 1 + random_below(3) : 1;
            w.before[d] = has && random_below(2) ? random_below(5) : 0;
            after[d] = has && random_below(2) ? random_below(5) : 0;
        }
        if (!complete(w, after)) continue;
        if (w.N * w.n_out * w.n_taps * w.C <= MOST && w.N * w.n_in * w.C <= MOST) return w;
    }
}

static std::string print(const hl_cuda_window &w)
{
    char text[80];
    snprintf(text, sizeof text, "N %d C %d short %d;", (int)w.N, (int)w.C, (int)w.is_short);
    std::string all = text;
    for (int d = 0; d < DIMS; d++) {
        snprintf(text, sizeof text, " %d kernel %d/%d*%d pad %d;", (int)w.in[d], (int)w.kernel[d],
                 (int)w.stride[d], (int)w.dilation[d], (int)w.before[d]);
        all += text;
    }
    return all;
}

/* The element of a channel that tap `tap` of output `out` reads; -1: padding. */
static int64_t find_read(const hl_cuda_window &w, int64_t out, int64_t tap)
{
    int64_t place = 0, scale = 1;
    for (int d = DIMS; d-- > 0; out /= w.out[d], tap /= w.kernel[d]) {
        int64_t at = out % w.out[d] * w.stride[d] - w.before[d] + tap % w.kernel[d] * w.dilation[d];
        if (at < 0 || at >= w.in[d]) return -1;
        place += at * scale, scale *= w.in[d];
    }
    return place;
}

/* Index of element `place` of channel c of image n. */
static int64_t at(const hl_cuda_window &w, int64_t n, int64_t place, int64_t span, int64_t c)
{
    return (n * span + place) * w.C + c;
}

template <class F> static void for_each(const hl_cuda_window &w, F visit)
{
    for (int64_t n = 0; n < w.N; n++)
        for (int64_t o = 0; o < w.n_out; o++)
            for (int64_t c = 0; c < w.C; c++) visit(n, o, c);
}

template <class T> static void fill_whole(const buffer<T> &b, int64_t most)
{
    for (int64_t i = 0; i < b.n; i++) hl_write(b.get(), i, (float)(random_below(2 * most) - most));
}

/* ---- side by side, and back ---- */

template <class W> static void test_unfold(const hl_cuda_window &w)
{
    start_case("unfold of %zu bytes, %s", sizeof(W), print(w).c_str());
    buffer<W> x(w.N * w.n_in * w.C), windows(w.N * w.n_out * w.n_taps * w.C);
    for (size_t i = 0; i < x.n_bytes; i++) x.p[i] = (unsigned char)random_bits();
    run_orders({&windows}, [&] {
        LAUNCH(window_unfold, std::to_string(sizeof(W)), 2, 64, {x.p, windows.p}, w);
    });
    const W zero = {};
    bool is_right = true;
    for_each(w, [&](int64_t n, int64_t o, int64_t c) {
        for (int64_t tap = 0; tap < w.n_taps; tap++) {
            int64_t from = find_read(w, o, tap);
            const W *want = from < 0 ? &zero : &x[at(w, n, from, w.n_in, c)];
            const W *got = &windows[((n * w.n_out + o) * w.n_taps + tap) * w.C + c];
            is_right = is_right && !memcmp(got, want, sizeof(W));
        }
    });
    check("every element", is_right);
}

template <class T> static void test_fold(const hl_cuda_window &w)
{
    start_case("fold of %s, %s", suffix<T>(), print(w).c_str());
    buffer<T> windows(w.N * w.n_out * w.n_taps * w.C), x(w.N * w.n_in * w.C);
    fill_whole(windows, 3); /* sums stay below 256, which bfloat16 has */
    run_orders({&x}, [&] { LAUNCH(window_fold, suffix<T>(), 3, 32, {windows.p, x.p}, w); });
    std::vector<double> want((size_t)x.n);
    for_each(w, [&](int64_t n, int64_t o, int64_t c) {
        for (int64_t tap = 0; tap < w.n_taps; tap++) {
            int64_t to = find_read(w, o, tap), i = ((n * w.n_out + o) * w.n_taps + tap) * w.C + c;
            if (to >= 0) want[(size_t)at(w, n, to, w.n_in, c)] += number(windows[i]);
        }
    });
    check_close("sum", x, [&](int64_t i) { return want[(size_t)i]; }, [](int64_t) { return 0.0; });
}

/* ---- the largest ---- */

static bool every_window_has_an_element(const hl_cuda_window &w)
{
    for (int64_t o = 0; o < w.n_out; o++) {
        bool has = false;
        for (int64_t tap = 0; tap < w.n_taps; tap++) has = has || find_read(w, o, tap) >= 0;
        if (!has) return false;
    }
    return true;
}

/* Where the largest of a window is: of equal numbers the first, and a NaN is larger than all. */
template <class T>
static int64_t find_largest(const hl_cuda_window &w, const buffer<T> &x, int64_t n, int64_t o,
                            int64_t c)
{
    int64_t best = -1;
    for (int64_t tap = 0; tap < w.n_taps; tap++) {
        int64_t from = find_read(w, o, tap);
        if (from < 0) continue;
        double value = number(x[at(w, n, from, w.n_in, c)]);
        double largest = best < 0 ? -INFINITY : number(x[at(w, n, best, w.n_in, c)]);
        if (best < 0 || value > largest || (isnan(value) && !isnan(largest))) best = from;
    }
    return best;
}

template <class T> static void test_pool(const hl_cuda_window &w, bool has_special)
{
    static const float special[] = {NAN, -INFINITY, INFINITY, -0.0f, 0.0f};
    start_case("pooling of %s, special %d, %s", suffix<T>(), has_special, print(w).c_str());
    buffer<T> x(w.N * w.n_in * w.C), y(w.N * w.n_out * w.C), dy(y.n), dx(x.n);
    buffer<int64_t> index(y.n);
    fill_whole(x, 3), fill_whole(dy, 2); /* many are equal */
    for (int64_t i = 0; has_special && i < x.n; i++)
        if (random_below(3) == 0) hl_write(x.get(), i, special[i % 5]);
    run_orders({&y, &index, &dx}, [&] {
        LAUNCH(max_pool, suffix<T>(), 2, 64, {x.p, y.p}, w);
        LAUNCH(max_pool_index, suffix<T>(), 3, 32, {x.p, index.get()}, w);
        LAUNCH(max_pool_grad, suffix<T>(), 2, 32, {dy.p, x.p, dx.p}, w);
    });
    std::vector<double> want((size_t)x.n);
    bool is_place = true, is_value = true;
    for_each(w, [&](int64_t n, int64_t o, int64_t c) {
        int64_t best = find_largest(w, x, n, o, c), i = at(w, n, o, w.n_out, c);
        is_place = is_place && index[i] == best;
        is_value = is_value && !memcmp(&y[i], &x[at(w, n, best, w.n_in, c)], sizeof(T));
        want[(size_t)at(w, n, best, w.n_in, c)] += number(dy[i]);
    });
    check("places", is_place);
    check("values", is_value);
    check_close(
        "gradient", dx, [&](int64_t i) { return want[(size_t)i]; }, [](int64_t) { return 0.0; });
}

/* ---- resampling ---- */

/* x (O,n,I) to (O,m,I) by `taps` weights each; some starts lead out of x, wholly as well. */
template <class T>
static void test_resample(int64_t O, int64_t n, int64_t I, int64_t m, int64_t taps)
{
    start_case("resampling of %s (%lld,%lld,%lld) to %lld by %lld", suffix<T>(), (long long)O,
               (long long)n, (long long)I, (long long)m, (long long)taps);
    buffer<T> x(O * n * I), y(O * m * I);
    buffer<int64_t> start(m);
    buffer<float> weight(m * taps);
    fill_whole(x, 4), fill_whole(weight, 3);
    for (int64_t j = 0; j < m; j++) start[j] = random_below(n + 2 * taps) - taps;
    start[0] = INT64_MAX, start[m - 1] = INT64_MIN;
    run_orders({&y}, [&] {
        LAUNCH(resample, suffix<T>(), 2, 32, {x.p, start.get(), weight.get(), y.p}, O, n, m, I,
               taps);
    });
    check_close(
        "sum", y,
        [&](int64_t i) {
            int64_t inside = i % I, j = i / I % m, o = i / I / m;
            double sum = 0;
            for (int64_t t = 0; t < taps && start[j] < n && start[j] > -taps; t++) {
                int64_t from = start[j] + t;
                if (from < 0 || from >= n) continue;
                sum += (double)weight[j * taps + t] * number(x[(o * n + from) * I + inside]);
            }
            return sum;
        },
        [](int64_t) { return 0.0; });
}

template <class T> static void test_numbers()
{
    for (int i = 0; i < N_RANDOM; i++) test_fold<T>(draw_window());
    for (int i = 0; i < N_RANDOM;) {
        hl_cuda_window w = draw_window();
        if (every_window_has_an_element(w)) test_pool<T>(w, i++ % 2);
    }
    for (int64_t I : {1, 2, 17})
        for (int64_t taps = 1; taps < 5; taps++) {
            test_resample<T>(3, 7, I, 5, taps);
            test_resample<T>(1, 1, I, 4, taps);
            test_resample<T>(2, 3, I, 11, taps);
        }
}

template <class W> static void test_words()
{
    for (int i = 0; i < N_RANDOM; i++) test_unfold<W>(draw_window());
}

int main()
{
    test_words<uint8_t>(), test_words<uint16_t>(), test_words<uint32_t>();
    test_words<uint64_t>(), test_words<hl_word4>();
    test_numbers<float>(), test_numbers<hl_bf16>(), test_numbers<hl_f16>();
    return finish_tests("test_kernels_window");
}
