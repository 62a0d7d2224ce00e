/* Reductions, statistics and running sums against fp64, in one part and in several. */
#include "base/rng.h"
#include "ir/dtype.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/reduce.h"
#include "tests/cuda/kernel_test.h"

/* O, N, I, elements a part, threads, by_block, blocks. */
struct reduce_case {
    int64_t O, N, I, part;
    unsigned threads;
    int by_block;
    unsigned blocks;
};
static const reduce_case row_cases[] = {
    {1, 1, 1, 1, 32, 0, 1},       {5, 7, 1, 7, 64, 0, 2},    {3, 1000, 1, 1000, 128, 1, 2},
    {1, 5003, 1, 512, 256, 1, 4}, {33, 65, 1, 32, 96, 0, 3}, {2, 0, 1, 4, 32, 0, 1},
    {1, 4096, 1, 1024, 32, 0, 2}, {13, 2, 1, 2, 32, 2, 1},   {9, 5, 1, 5, 64, 8, 2},
    {7, 29, 1, 16, 64, 16, 1},    {3, 3, 1, 3, 32, 4, 1},
};
static const reduce_case col_cases[] = {
    {1, 1, 2, 1, 256, 0, 1},      {1, 100, 10, 100, 256, 0, 2}, {2, 37, 33, 8, 256, 0, 3},
    {1, 1000, 65, 64, 256, 0, 5}, {3, 0, 4, 1, 256, 0, 1},      {2, 3, 0, 3, 256, 0, 1},
    {1, 700, 8, 512, 256, 0, 3},
};

static int64_t count_parts(const reduce_case &k)
{
    return k.N > 0 ? (k.N + k.part - 1) / k.part : 1;
}

static hl_cuda_groups make_groups(int64_t O, int64_t N, int64_t I, int64_t part)
{
    return {O, N, I, part, N > 0 ? (N + part - 1) / part : 1};
}

template <class T> static int32_t dtype_of()
{
    return std::is_same<T, float>::value     ? HL_DTYPE_F32
           : std::is_same<T, hl_bf16>::value ? HL_DTYPE_BF16
                                             : HL_DTYPE_F16;
}

struct fold {
    const char *name;
    double first;
    double (*join)(double, double);
};
static double join_max(double a, double b)
{
    return isnan(a) || a > b ? a : b;
}
static double join_min(double a, double b)
{
    return isnan(a) || a < b ? a : b;
}
static const fold folds[] = {
    {"sum", 0, [](double a, double b) { return a + b; }},
    {"prod", 1, [](double a, double b) { return a * b; }},
    {"max", -INFINITY, join_max},
    {"min", INFINITY, join_min},
};

/* Another grid each time: the bits must not depend on it. */
static unsigned other_grid()
{
    static unsigned n;
    return n++ % 2;
}

/* The partials, then the result in T's own type. */
template <class T>
static void launch_fold(const fold &f, const reduce_case &k, const buffer<T> &x,
                        const buffer<float> &room, const buffer<T> &out)
{
    int64_t parts = count_parts(k);
    std::string name = std::string(f.name) + "_";
    void *to = parts > 1 ? room.p : out.p;
    int32_t dtype = parts > 1 ? (int32_t)HL_DTYPE_F32 : dtype_of<T>();
    LAUNCH(fold, name + suffix<T>(), k.blocks + other_grid(), k.threads, {x.get(), to},
           make_groups(k.O, k.N, k.I, k.part), 0, dtype, k.by_block);
    if (parts > 1)
        LAUNCH(fold, name + "f32", k.blocks, k.threads, {room.get(), out.p},
               make_groups(k.O, parts, k.I, parts), 0, dtype_of<T>(), k.by_block);
}

template <class T> static void test_fold(const fold &f, const reduce_case &k, bool has_nan)
{
    start_case("%s %s (%lld,%lld,%lld) in parts of %lld, %u threads, NaN %d", f.name, suffix<T>(),
               (long long)k.O, (long long)k.N, (long long)k.I, (long long)k.part, k.threads,
               has_nan);
    buffer<T> x(k.O * k.N * k.I), out(k.O * k.I);
    buffer<float> room(k.O * count_parts(k) * k.I);
    bool is_prod = !strcmp(f.name, "prod");
    fill_random(x);
    int64_t k_step = k.I;
    if (is_prod) /* both signs, and no product near the ends of the range */
        for (int64_t i = 0; i < x.n; i++) {
            int64_t at = i / k_step % 5;
            hl_write(x.get(), i,
                     (i % 3 ? 1.0f : -1.0f) * (at == 0   ? 1.5f
                                               : at == 2 ? 0.6660156f
                                                         : 1));
        }
    if (has_nan && x.n > 3) hl_write(x.get(), 3, NAN);
    run_orders({&out, &room}, [&] { launch_fold(f, k, x, room, out); });
    std::vector<double> want(k.O * k.I, f.first), size(k.O * k.I);
    for (int64_t i = 0; i < x.n; i++) {
        double v = number(x[i]);
        size_t g = (size_t)(i / (k.N * k.I) * k.I + i % k.I);
        want[g] = f.join(want[g], v);
        size[g] += fabs(v);
    }
    double gamma = (double)k.N * 0x1p-24;
    bool is_exact = !strcmp(f.name, "max") || !strcmp(f.name, "min");
    check_close(
        "result", out, [&](int64_t i) { return want[(size_t)i]; },
        [&](int64_t i) {
            return is_exact  ? 0
                   : is_prod ? 2 * gamma * fabs(want[(size_t)i])
                             : gamma * size[(size_t)i];
        });
}

static void test_int()
{
    enum { O = 3, N = 77, I = 5 };
    start_case("reductions of integers");
    buffer<int64_t> x(O * N * I), out(O * I), at(O * I), run(O * N * I);
    buffer<int8_t> small(O * N * I);
    for (int64_t i = 0; i < x.n; i++) {
        x[i] = (int64_t)random_bits();
        small[i] = (int8_t)random_bits();
    }
    for (int o = 0; o < 4; o++) {
        const char *names[] = {"sum", "prod", "max", "min"};
        run_orders({&out}, [&] {
            LAUNCH(fold, std::string(names[o]) + "_int", 1 + other_grid(), 256, {x.p, out.p},
                   make_groups(O, N, I, N), HL_DTYPE_I64, HL_DTYPE_I64, 0);
        });
        for (int64_t g = 0; g < O * I; g++) {
            uint64_t sum = 0, prod = 1;
            int64_t most = INT64_MIN, least = INT64_MAX;
            for (int64_t k = 0; k < N; k++) {
                int64_t v = x[(g / I * N + k) * I + g % I];
                sum += (uint64_t)v, prod *= (uint64_t)v;
                most = v > most ? v : most, least = v < least ? v : least;
            }
            int64_t want[] = {(int64_t)sum, (int64_t)prod, most, least};
            check(names[o], out[g] == want[o]);
        }
    }
    run_orders({&at}, [&] {
        LAUNCH(arg, "min_int", 2, 256, {small.p, nullptr, at.get()}, make_groups(O, N, I, N), N,
               HL_DTYPE_I8, 0);
    });
    for (int64_t g = 0; g < O * I; g++) {
        int64_t best = 0;
        for (int64_t k = 1; k < N; k++)
            if (small[(g / I * N + k) * I + g % I] < small[(g / I * N + best) * I + g % I])
                best = k;
        check("argmin", at[g] == best);
    }
    run_orders({&run}, [&] {
        LAUNCH(cumsum, "int", 2, 64, {small.p, nullptr, run.p}, make_groups(O, N, I, N),
               HL_DTYPE_I8, HL_DTYPE_I64, 0);
    });
    for (int64_t i = 0; i < run.n; i++)
        check("cumsum", run[i] == small[i] + (i / I % N > 0 ? run[i - I] : 0));
}

template <class T>
static void test_arg(int64_t O, int64_t N, int64_t I, int sign, int64_t part, int by_block)
{
    start_case("arg %s (%lld,%lld,%lld) sign %d in parts of %lld", suffix<T>(), (long long)O,
               (long long)N, (long long)I, sign, (long long)part);
    int64_t parts = (N + part - 1) / part;
    buffer<T> x(O * N * I);
    buffer<int64_t> found(O * parts * I), out(O * I);
    for (int64_t i = 0; i < x.n; i++) hl_write(x.get(), i, (float)random_below(20)); /* ties */
    if (x.n > 9) hl_write(x.get(), 9, NAN), hl_write(x.get(), x.n - 1, NAN);
    unsigned threads = I > 1 ? 256 : 64;
    std::string name = std::string(sign > 0 ? "max_" : "min_") + suffix<T>();
    run_orders({&found, &out}, [&] {
        LAUNCH(arg, name, 1 + other_grid(), threads, {x.get(), nullptr, found.get()},
               make_groups(O, N, I, part), N, 0, by_block);
        LAUNCH(arg, name, 2, threads, {x.get(), found.get(), out.get()},
               make_groups(O, parts, I, parts), N, 0, by_block);
    });
    for (int64_t g = 0; g < O * I; g++) {
        auto at = [&](int64_t k) { return number(x[(g / I * N + k) * I + g % I]); };
        int64_t best = 0;
        for (int64_t k = 1; k < N; k++) {
            bool beats = isnan(at(k)) || isnan(at(best)) ? !isnan(at(best))
                         : sign > 0                      ? at(k) > at(best)
                                                         : at(k) < at(best);
            if (beats) best = k;
        }
        check("the first of the largest", out[g] == best);
    }
}

/* What rows of medians are filled with. */
enum median_fill { MIXED, TIED, EQUAL, WITH_NAN, ZEROS, FILLS };
static const char *const fill_names[] = {"mixed", "tied", "equal", "with NaN", "zeros"};

static double draw_element(median_fill fill, int64_t i)
{
    static const double extremes[] = {INFINITY, -INFINITY, 0, -0.0, 1e-30, -65504};
    switch (fill) {
    case TIED: return (double)random_below(3);
    case EQUAL: return -2.5;
    case ZEROS: return random_below(3) ? (i % 2 ? -0.0 : 0.0) : random_number();
    default: return random_below(8) ? 4 * random_number() : extremes[random_below(6)];
    }
}

/* The first of the elements that has fewer than half of them below it, and not above it. */
static int64_t find_median(int64_t n, const double *x)
{
    for (int64_t k = 0; k < n; k++)
        if (isnan(x[k])) return k;
    for (int64_t k = 0; k < n; k++) {
        int64_t below = 0, upto = 0;
        for (int64_t i = 0; i < n; i++) below += x[i] < x[k], upto += x[i] <= x[k];
        if (below <= (n - 1) / 2 && (n - 1) / 2 < upto) return k;
    }
    return -1;
}

template <class T>
static void test_median(int64_t R, int64_t N, unsigned threads, int by_block, median_fill fill)
{
    start_case("median %s (%lld,%lld) by %d, %s", suffix<T>(), (long long)R, (long long)N, by_block,
               fill_names[fill]);
    buffer<T> x(R * N), values(R);
    buffer<int64_t> places(R);
    for (int64_t i = 0; i < x.n; i++) hl_write(x.get(), i, (float)draw_element(fill, i));
    for (int64_t r = 0; r < R && fill == WITH_NAN; r++)
        for (int n = 0; n < 1 + r % 3; n++)
            hl_write(x.get(), r * N + random_below(N), r % 2 ? NAN : -NAN);
    run_orders({&values, &places}, [&] {
        LAUNCH(median, suffix<T>(), 1 + other_grid(), threads, {x.get(), values.p, places.get()}, R,
               N, 0, by_block);
    });
    for (int64_t r = 0; r < R; r++) {
        std::vector<double> row;
        for (int64_t k = 0; k < N; k++) row.push_back(number(x[r * N + k]));
        int64_t place = find_median(N, row.data());
        check("the first of the median's", places[r] == place);
        check("the median", !memcmp(&values[r], &x[r * N + place], sizeof(T)));
    }
}

/* Of numbers that float64 does not hold apart. */
static void test_int_median(int64_t R, int64_t N, unsigned threads, int by_block)
{
    start_case("median int (%lld,%lld) by %d", (long long)R, (long long)N, by_block);
    buffer<int64_t> x(R * N), values(R), places(R), small_places(R);
    buffer<int8_t> small(R * N), small_values(R);
    for (int64_t i = 0; i < x.n; i++) {
        int64_t high = (int64_t)((uint64_t)random_below(3) << 62);
        x[i] = random_below(9) ? high + random_below(2 * N) : i % 2 ? INT64_MAX : INT64_MIN;
        small[i] = (int8_t)random_bits();
    }
    run_orders({&values, &places, &small_values, &small_places}, [&] {
        LAUNCH(median, "int", 1 + other_grid(), threads, {x.p, values.p, places.get()}, R, N,
               HL_DTYPE_I64, by_block);
        LAUNCH(median, "int", 1 + other_grid(), threads,
               {small.p, small_values.p, small_places.get()}, R, N, HL_DTYPE_I8, by_block);
    });
    for (int64_t r = 0; r < R; r++) {
        int64_t below[2] = {0, 0}, upto[2] = {0, 0}, half = (N - 1) / 2;
        bool is_first = true;
        for (int64_t i = r * N; i < (r + 1) * N; i++) {
            below[0] += x[i] < values[r], upto[0] += x[i] <= values[r];
            below[1] += small[i] < small_values[r], upto[1] += small[i] <= small_values[r];
            is_first &= i >= r * N + places[r] || x[i] != values[r];
            is_first &= i >= r * N + small_places[r] || small[i] != small_values[r];
        }
        check("half below", below[0] <= half && half < upto[0]);
        check("half below, of int8", below[1] <= half && half < upto[1]);
        check("the first", is_first && x[r * N + places[r]] == values[r] &&
                               small[r * N + small_places[r]] == small_values[r]);
    }
}

template <class T> static void test_cumsum(int64_t O, int64_t N, int64_t I, int is_reverse)
{
    start_case("cumsum %s (%lld,%lld,%lld) reverse %d", suffix<T>(), (long long)O, (long long)N,
               (long long)I, is_reverse);
    buffer<T> x(O * N * I), out(O * N * I);
    fill_random(x);
    int64_t part = 40, parts = (N + part - 1) / part;
    buffer<float> sums(O * parts * I), before(O * parts * I);
    run_orders({&out, &sums, &before}, [&] {
        LAUNCH(fold, std::string("sum_") + suffix<T>(), 2, 256, {x.get(), sums.p},
               make_groups(O, N, I, part), 0, HL_DTYPE_F32, 0);
        LAUNCH(cumsum, "f32", 1, 64, {sums.get(), nullptr, before.p},
               make_groups(O, parts, I, parts), 0, HL_DTYPE_F32, is_reverse);
        LAUNCH(cumsum, suffix<T>(), 2 + other_grid(), 64, {x.get(), before.get(), out.p},
               make_groups(O, N, I, part), 0, dtype_of<T>(), is_reverse);
    });
    std::vector<double> want(x.n), size(x.n);
    for (int64_t g = 0; g < O * I; g++) {
        double sum = 0, all = 0;
        for (int64_t step = 0; step < N; step++) {
            int64_t k = is_reverse ? N - 1 - step : step, i = (g / I * N + k) * I + g % I;
            sum += number(x[i]), all += fabs(number(x[i]));
            want[(size_t)i] = sum, size[(size_t)i] = all;
        }
    }
    check_close(
        "sums", out, [&](int64_t i) { return want[(size_t)i]; },
        [&](int64_t i) { return (double)N * 0x1p-24 * size[(size_t)i]; });
}

static void test_prod_grad(int64_t O, int64_t N, int64_t I)
{
    start_case("prod_grad (%lld,%lld,%lld)", (long long)O, (long long)N, (long long)I);
    buffer<float> x(O * N * I), dprod(O * I), dx(O * N * I);
    fill_random(x, 0.5, 1), fill_random(dprod);
    if (x.n > 2) x[2] = 0;
    run_orders({&dx},
               [&] { LAUNCH_ONLY(prod_grad, 2, 96, {x.get(), dprod.get(), dx.get()}, O, N, I); });
    std::vector<double> want(x.n);
    for (int64_t i = 0; i < x.n; i++) {
        int64_t g = i / (N * I) * I + i % I;
        want[(size_t)i] = dprod[g];
        for (int64_t k = 0; k < N; k++) {
            int64_t j = (g / I * N + k) * I + g % I;
            if (j != i) want[(size_t)i] *= x[j];
        }
    }
    check_close(
        "dx", dx, [&](int64_t i) { return want[(size_t)i]; },
        [&](int64_t i) { return (double)(2 * N + 4) * 0x1p-24 * fabs(want[(size_t)i]); });
}

/* (A,C,S), over A and S; A = 1 with C rows goes by rows, S = 1 by columns, the rest by planes. */
template <class T>
static void test_moments(int64_t A, int64_t C, int64_t S, int64_t part, int by_block, double shift)
{
    start_case("moments %s (%lld,%lld,%lld) in parts of %lld, mean %g", suffix<T>(), (long long)A,
               (long long)C, (long long)S, (long long)part, shift);
    int64_t n = A * C * S, K = A * S, parts = (K + part - 1) / part;
    buffer<T> x(n), apart(n + 1);
    buffer<float> mean(C), var(C), part_mean(parts * C), squares(parts * C), weight(C), bias(C);
    buffer<hl_cuda_channel> channels(C);
    fill_random(x, 1, shift), fill_random(weight), fill_random(bias);
    for (int64_t i = 0; i < n; i++) apart[i + 1] = x[i];
    std::string name = std::string(suffix<T>());
    bool by_planes = A > 1 && S > 1;
    auto run_moments = [&](const T *from) {
        bool is_cut = parts > 1, by_column = S == 1 && C > 1;
        int32_t f32 = HL_DTYPE_F32;
        void *to_mean = is_cut ? part_mean.p : mean.p, *to_var = is_cut ? squares.p : var.p;
        hl_cuda_channel_at channel = {weight.get(), bias.get(), channels.get()}, none = {};
        hl_cuda_groups groups = make_groups(by_column ? 1 : C, K, by_column ? C : 1, part);
        unsigned threads = by_column ? 256 : 64;
        if (!by_planes)
            LAUNCH(moments, name, 1 + other_grid(), threads,
                   {from, to_mean, to_var, is_cut ? none : channel}, groups, 0, 1e-5f, f32,
                   by_block);
        else
            LAUNCH(plane_moments, name, 1 + other_grid(), 64,
                   {from, to_mean, to_var, is_cut ? none : channel}, groups, S, 1e-5f, f32,
                   by_block);
        if (is_cut)
            LAUNCH_ONLY(moments_merge, 1 + other_grid(), threads,
                        {part_mean.get(), squares.get(), mean.p, var.p, channel}, groups, 1e-5f,
                        f32, by_block);
    };
    run_orders({&mean, &var, &part_mean, &squares, &channels}, [&] { run_moments(x.get()); });
    if (by_planes) { /* which thread takes what does not depend on where x lies */
        widened<float> first_mean(mean), first_var(var);
        run_moments(apart.get() + 1);
        check_same("mean of planes at any address", mean, first_mean);
        check_same("variance of planes at any address", var, first_var);
    }
    std::vector<double> m(C), v(C);
    for (int64_t i = 0; i < n; i++) m[i / S % C] += number(x[i]) / (double)K;
    for (int64_t i = 0; i < n; i++) {
        double d = number(x[i]) - m[i / S % C];
        v[i / S % C] += d * d / (double)K;
    }
    double gamma = (double)(K + 4) * 0x1p-24, e = 16 * 0x1p-24 * (1 + fabs(shift));
    check_close(
        "mean", mean, [&](int64_t c) { return m[c]; },
        [&](int64_t) { return gamma * (1 + fabs(shift)); });
    check_close(
        "variance", var, [&](int64_t c) { return v[c]; },
        [&](int64_t c) { return gamma * v[c] + 2 * sqrt(v[c]) * e + e * e; });
    buffer<float> y(n), m_own(C), v_own(C), other(n);
    auto check_y = [&](const char *what, auto &by_mean, auto &by_var) {
        check_close(
            what, y,
            [&](int64_t i) {
                int64_t c = i / S % C;
                double rstd = 1 / sqrt(number(by_var[c]) + 1e-5f);
                return (number(x[i]) - number(by_mean[c])) * rstd * number(weight[c]) +
                       number(bias[c]);
            },
            [&](int64_t i) {
                double scale = 1 / sqrt(number(by_var[i / S % C]) + 1e-5f);
                return 8 * 0x1p-24 * (2 + scale * (2 + fabs(shift)));
            });
    };
    buffer<hl_control> control(1);
    control[0].attempted = 5, control[0].micro_row = 1000;
    hl_cuda_norm_epilogue none = {}, epilogue = {};
    widened<T> wide_x(x);
    hl_cuda_norm_windows windows = hl_cuda_norm_windows_make(A, C, S);
    auto run_of = [&](const void *from, const std::string &variant, void *out,
                      const hl_cuda_norm_epilogue &with) {
        LAUNCH(batch_norm, variant, 2, 64, {from, channels.get(), out, control.get()}, windows,
               with);
    };
    auto run_with = [&](const std::string &to, void *out, const hl_cuda_norm_epilogue &with) {
        run_of(x.p, name + "_" + to, out, with);
    };
    auto run = [&](const std::string &to, void *out) { run_with(to, out, none); };
    /* relu, then dropout, of what comes out without. */
    auto check_epilogue = [&](auto run_one) {
        buffer<float> plain(n), got(n);
        hl_rng_key key = {{3, 9}};
        epilogue = {1, 1, {3, 9}, 26214, 1.5f};
        run_one("f32", plain.p, none);
        run_orders({&got}, [&] { run_one("f32", got.p, epilogue); });
        for (int64_t r = 0; r < A; r++)
            for (int64_t i = 0; i < C * S; i++) {
                uint16_t bits = hl_rng_bits16(key, 5, 1000 + (uint64_t)r, (uint64_t)i);
                float want = plain[r * C * S + i] > 0 ? plain[r * C * S + i] : 0;
                want *= bits < epilogue.threshold ? 0 : epilogue.scale;
                if (got[r * C * S + i] != want) FAIL("epilogue of element %lld", (long long)i);
            }
        n_checks++;
        check_rounds<T>("y with an epilogue", got,
                        [&](const std::string &to, void *out) { run_one(to, out, epilogue); });
    };
    run_orders({&y}, [&] { run("f32", y.p); });
    check_y("y", mean, var);
    check_rounds<T>("y", y, run);
    check_epilogue(run_with);
    run_of(wide_x.p, "f32_f32", other.p, none);
    check_same("y of x widened", other, y);
    run_of(apart.get() + 1, name + "_f32", other.p, none);
    check_same("y of x at any address", other, y);
    if (S > 1 || A > 1024) return;
    auto run_columns_with = [&](const std::string &to, void *out,
                                const hl_cuda_norm_epilogue &with) {
        LAUNCH(batch_norm_columns, name + "_" + to, 1 + other_grid(), HL_CUDA_NORM_THREADS,
               {x.get(), weight.get(), bias.get(), out, m_own.get(), v_own.get(), control.get()}, A,
               C, 1e-5f, with);
    };
    auto run_columns = [&](const std::string &to, void *out) { run_columns_with(to, out, none); };
    check_epilogue(run_columns_with);
    run_orders({&y, &m_own, &v_own}, [&] { run_columns("f32", y.p); });
    check_close(
        "mean of columns", m_own, [&](int64_t c) { return m[c]; },
        [&](int64_t) { return gamma * (1 + fabs(shift)); });
    check_close(
        "variance of columns", v_own, [&](int64_t c) { return v[c]; },
        [&](int64_t c) { return gamma * v[c] + 2 * sqrt(v[c]) * e + e * e; });
    check_y("y of columns", m_own, v_own);
    check_rounds<T>("y of columns", y, run_columns);
}

/* By sums in parts, their merge and dx; where S is 1 in one launch too. */
template <class T>
static void test_batch_norm_grad(int64_t A, int64_t C, int64_t S, int64_t part, int by_block,
                                 double shift)
{
    start_case("batch_norm_grad %s (%lld,%lld,%lld) in parts of %lld, mean %g", suffix<T>(),
               (long long)A, (long long)C, (long long)S, (long long)part, shift);
    int64_t n = A * C * S, K = A * S, parts = (K + part - 1) / part;
    int64_t O = S == 1 ? 1 : C, I = S == 1 ? C : 1;
    buffer<T> dy(n), x(n);
    buffer<float> weight(C), mean(C), var(C), dx(n), dweight(C), dbias(C), other(n);
    buffer<float> part_g(parts * C), part_gc(parts * C);
    buffer<hl_cuda_channel> channels(C);
    fill_random(x, 1, shift), fill_random(weight), fill_random(mean, 0.5, shift);
    fill_random(var, 0.4, 1);
    const float eps = 1e-3f;
    std::string name = std::string(suffix<T>());
    std::vector<double> sum_g(C), sum_gz(C), size_g(C), size_gz(C);
    auto rstd_of = [&](int64_t c) { return 1 / sqrt(number(var[c]) + eps); };
    auto z_of = [&](int64_t i) {
        int64_t c = i / S % C;
        return (number(x[i]) - number(mean[c])) * rstd_of(c);
    };
    /* x - mean rounds by (|x| + |mean|) eps, and z is as far off as that times 1/std. */
    double u = 0x1p-24, gamma = (double)(K + 16) * u, off = 4 * u * (2 + fabs(shift));
    auto check_sums = [&] {
        check_close(
            "dbias", dbias, [&](int64_t c) { return sum_g[c]; },
            [&](int64_t c) { return gamma * size_g[c]; });
        check_close(
            "dweight", dweight, [&](int64_t c) { return sum_gz[c]; },
            [&](int64_t c) { return gamma * size_gz[c] + off * size_g[c]; });
    };
    /* from_stored: of the sums as they are stored. */
    auto check_dx = [&](bool from_stored) {
        check_close(
            "dx", dx,
            [&](int64_t i) {
                int64_t c = i / S % C;
                double g = from_stored ? number(dbias[c]) : sum_g[c];
                double gz = from_stored ? number(dweight[c]) : sum_gz[c];
                return number(weight[c]) * rstd_of(c) *
                       (number(dy[i]) - g / (double)K - z_of(i) * gz / (double)K);
            },
            [&](int64_t i) {
                int64_t c = i / S % C;
                double z = fabs(z_of(i)), g = size_g[c] / (double)K, gz = size_gz[c] / (double)K;
                double scale = fabs(number(weight[c])) * rstd_of(c);
                double sums = gamma * (g + z * gz) + off * (gz + z * g);
                return scale * (16 * u * (1 + g + z * gz) + sums);
            });
    };
    /* Half of dy counts, and that twice: as if it were so in dy itself. */
    buffer<T> whole_dy(n);
    buffer<float> result(n);
    buffer<hl_bf16> result_bf16(n);
    buffer<hl_f16> result_f16(n);
    fill_random(whole_dy), fill_random(result);
    for (int64_t i = 0; i < n; i++) {
        hl_write(dy.get(), i, result[i] > 0 ? 2 * (float)number(whole_dy[i]) : 0.0f);
        hl_write(result_bf16.get(), i, result[i]), hl_write(result_f16.get(), i, result[i]);
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t c = i / S % C;
        double g = number(dy[i]), z = z_of(i);
        sum_g[c] += g, sum_gz[c] += g * z, size_g[c] += fabs(g), size_gz[c] += fabs(g * z);
    }
    widened<T> wide_dy(dy), wide_x(x);
    struct operands {
        const memory *dy, *x;
        std::string variant; /* of the two */
    };
    const operands own = {&dy, &x, name + "_" + name + "_"},
                   mixed[] = {{&wide_dy, &x, "f32_" + name + "_"},
                              {&dy, &wide_x, name + "_f32_"},
                              {&wide_dy, &wide_x, "f32_f32_"}},
                   passing = {&whole_dy, &x, name + "_" + name + "_"};
    hl_cuda_norm_windows windows = hl_cuda_norm_windows_make(A, C, S);
    /* The result is as narrow as dx. */
    auto find_result = [&](const operands &of, const std::string &to) -> const void * {
        if (of.dy != &whole_dy) return nullptr;
        return to == "f32" ? result.p : to == "f16" ? result_f16.p : result_bf16.p;
    };
    auto run_sums = [&](const operands &of, const std::string &to) {
        bool is_cut = parts > 1;
        unsigned threads = S == 1 ? 256 : 64;
        float *to_g = is_cut ? part_g.get() : dbias.get();
        float *to_gc = is_cut ? part_gc.get() : dweight.get();
        hl_cuda_channel_at channel = {weight.get(), nullptr, channels.get()}, none = {};
        LAUNCH(batch_norm_sums, of.variant + to, 1 + other_grid(), threads,
               {of.dy->p, of.x->p, mean.get(), var.get(), find_result(of, to), to_g, to_gc,
                is_cut ? none : channel},
               make_groups(O, K, I, part), S, eps, of.dy == &whole_dy ? 2.0f : 1.0f, by_block);
        if (is_cut)
            LAUNCH_ONLY(batch_norm_sums_merge, 1 + other_grid(), threads,
                        {part_g.get(), part_gc.get(), mean.get(), var.get(), dbias.get(),
                         dweight.get(), channel},
                        make_groups(O, parts, I, parts), K, eps, by_block);
    };
    auto run_cut = [&](const operands &of, const std::string &to, void *out) {
        run_sums(of, to);
        LAUNCH(batch_norm_dx, of.variant + to, 2, 64,
               {of.dy->p, of.x->p, channels.get(), find_result(of, to), out}, windows,
               of.dy == &whole_dy ? 2.0f : 1.0f);
    };
    auto run_columns = [&](const operands &of, const std::string &to, void *out) {
        LAUNCH(batch_norm_grad_columns, of.variant + to, 1 + other_grid(), HL_CUDA_NORM_THREADS,
               {of.dy->p, of.x->p, weight.get(), mean.get(), var.get(), find_result(of, to), out,
                dweight.get(), dbias.get()},
               A, C, eps, of.dy == &whole_dy ? 2.0f : 1.0f);
    };
    /* Operands in any types give the same bits, which are rounded for results in 16 bits. */
    auto check_types = [&](auto run_one) {
        widened<float> want_dweight(dweight), want_dbias(dbias);
        auto check_operands = [&](const operands &of) {
            run_one(of, "f32", other.p);
            check_same("dx", other, dx);
            check_same("dweight", dweight, want_dweight);
            check_same("dbias", dbias, want_dbias);
            check_rounds<T>("dx", dx,
                            [&](const std::string &to, void *out) { run_one(of, to, out); });
        };
        check_operands(own);
        for (const operands &of : mixed) check_operands(of);
        check_operands(passing);
    };
    run_orders({&dx, &dweight, &dbias, &part_g, &part_gc, &channels},
               [&] { run_cut(own, "f32", dx.p); });
    check_sums(), check_dx(true);
    check_types(run_cut);
    if (S > 1) return;
    run_orders({&dx, &dweight, &dbias}, [&] { run_columns(own, "f32", dx.p); });
    check_sums(), check_dx(false);
    check_types(run_columns);
}

template <class T> static void test_type()
{
    for (const fold &f : folds)
        for (int has_nan = 0; has_nan < 2; has_nan++) {
            for (const reduce_case &k : row_cases) test_fold<T>(f, k, has_nan);
            for (const reduce_case &k : col_cases) test_fold<T>(f, k, has_nan);
        }
    test_arg<T>(5, 1, 1, 1, 1, 0), test_arg<T>(4, 100, 1, 1, 30, 1);
    test_arg<T>(3, 50, 7, -1, 50, 0), test_arg<T>(1, 90, 40, 1, 16, 0),
        test_arg<T>(9, 6, 1, -1, 6, 8);
    for (int fill = 0; fill < FILLS; fill++) {
        test_median<T>(5, 1, 32, 2, (median_fill)fill),
            test_median<T>(9, 2, 64, 2, (median_fill)fill);
        test_median<T>(7, 5, 64, 8, (median_fill)fill);
        test_median<T>(9, 16, 32, 16, (median_fill)fill);
        test_median<T>(5, 33, 64, 0, (median_fill)fill);
        test_median<T>(2, 1100, 64, 0, (median_fill)fill); /* more than a warp keeps */
        test_median<T>(3, 700, 256, 1, (median_fill)fill);
    }
    test_median<T>(1, 9000, 256, 1, MIXED); /* more than a block keeps */
    test_cumsum<T>(3, 1, 1, 0), test_cumsum<T>(2, 100, 3, 1), test_cumsum<T>(4, 33, 1, 0);
    test_cumsum<T>(2, 90, 35, 0), test_cumsum<T>(1, 130, 1, 1);
    test_moments<T>(1, 5, 100, 100, 0, 0), test_moments<T>(1, 3, 1000, 1000, 1, 50);
    test_moments<T>(100, 40, 1, 32, 0, 0), test_moments<T>(999, 3, 1, 128, 0, 50);
    test_moments<T>(7, 5, 9, 63, 0, 0), test_moments<T>(11, 3, 13, 40, 1, 50);
    test_moments<T>(2, 1, 1, 1, 0, 1), test_moments<T>(1024, 65, 1, 32, 0, 3);
    test_moments<T>(9, 3, 16, 48, 0, 0), test_moments<T>(5, 8, 12, 60, 1, 3);
    test_moments<T>(3, 4, 400, 40, 1, 0), test_moments<T>(50, 2, 24, 1200, 1, 0);
    test_batch_norm_grad<T>(100, 40, 1, 32, 0, 0), test_batch_norm_grad<T>(999, 3, 1, 128, 0, 50);
    test_batch_norm_grad<T>(7, 5, 9, 63, 0, 0), test_batch_norm_grad<T>(11, 3, 13, 40, 1, 50);
    test_batch_norm_grad<T>(1, 1, 1, 1, 0, 1), test_batch_norm_grad<T>(512, 65, 1, 512, 0, 3);
    test_batch_norm_grad<T>(1, 3, 70, 70, 4, 0), test_batch_norm_grad<T>(33, 33, 1, 8, 0, 0);
    test_batch_norm_grad<T>(9, 3, 16, 48, 0, 0), test_batch_norm_grad<T>(5, 8, 12, 60, 1, 3);
    test_batch_norm_grad<T>(3, 4, 400, 40, 1, 0), test_batch_norm_grad<T>(50, 2, 24, 1200, 1, 0);
}

int main()
{
    test_type<float>();
    test_type<hl_bf16>();
    test_type<hl_f16>();
    test_int();
    test_int_median(5, 1, 32, 2), test_int_median(9, 6, 64, 8), test_int_median(4, 64, 64, 0);
    test_int_median(3, 601, 256, 1);
    test_prod_grad(1, 1, 1), test_prod_grad(3, 70, 1), test_prod_grad(2, 33, 5);
    return finish_tests("test_kernels_reduce");
}
