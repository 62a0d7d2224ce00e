/* Kernels of the statistics of channels: the same bits in every order of threads and in any grid,
 * against sums in float64, for every floating type. */
#include <type_traits>

#include "kernels/cuda/stat.h"
#include "tests/cuda/kernel_test.h"

static double number(double x)
{
    return x;
}
template <class T> static void put(T *p, double x)
{
    hl_write(p, 0, (float)x);
}
static void put(double *p, double x)
{
    *p = x;
}
template <class T> static const char *variant()
{
    return std::is_same<T, double>::value ? "f64" : suffix<T>();
}

/* As stat.c cuts it, but for the parts. */
static hl_cuda_stat_cut make_cut(int64_t R, int64_t C, int64_t part, bool products)
{
    hl_cuda_stat_cut cut = {R, C, part, (R + part - 1) / part, 0, 0, products};
    if (cut.n_parts == 0) cut.n_parts = 1;
    int64_t most = HL_CUDA_STAT_TILE * HL_CUDA_STAT_SIDE, n = C ? C : 1;
    cut.n_strips = (int32_t)((n + most - 1) / most);
    int64_t each = (n + cut.n_strips - 1) / cut.n_strips;
    cut.m = (int32_t)((each + HL_CUDA_STAT_TILE - 1) / HL_CUDA_STAT_TILE);
    return cut;
}

struct results {
    buffer<double> count, lowest, highest, sums, products;
    results(int64_t C, bool all)
        : count(1), lowest(C), highest(C), sums(C), products(all ? C * C : C)
    {
    }
};

/* What one product or sum is made of may be off by so much of the sum of its magnitudes. */
static void check_sum(const char *what, int64_t i, double got, double want, double magnitude)
{
    if (!is_close(got, want, 1e-13 * magnitude))
        FAIL("%s[%lld] is %.17g, want %.17g", what, (long long)i, got, want);
}

template <class T>
static void check_results(const results &got, const buffer<T> &x, const buffer<double> &shift,
                          const buffer<uint8_t> *mask, int64_t R, int64_t C, bool all)
{
    double count = 0;
    for (int64_t r = 0; r < R; r++) count += !mask || (*mask)[r];
    n_checks += 4;
    check("rows that count", got.count[0] == count);
    for (int64_t c = 0; c < C; c++) {
        double low = INFINITY, high = -INFINITY, sum = 0, size = 0;
        for (int64_t r = 0; r < R; r++) {
            double e = number(x[r * C + c]);
            if (mask && !(*mask)[r]) continue;
            low = isnan(low) || low < e ? low : e;
            high = isnan(high) || high > e ? high : e;
            sum += e - shift[c], size += fabs(e - shift[c]);
        }
        check_sum("lowest", c, got.lowest[c], low, 0);
        check_sum("highest", c, got.highest[c], high, 0);
        check_sum("sums", c, got.sums[c], sum, size);
        for (int64_t d = all ? 0 : c; d < (all ? C : c + 1); d++) {
            double product = 0, magnitude = 0;
            for (int64_t r = 0; r < R; r++) {
                if (mask && !(*mask)[r]) continue;
                double one = (number(x[r * C + c]) - shift[c]) * (number(x[r * C + d]) - shift[d]);
                product += one, magnitude += fabs(one);
            }
            int64_t at = all ? c * C + d : c;
            check_sum("products", at, got.products[at], product, magnitude);
            if (all && memcmp(&got.products[at], &got.products[d * C + c], sizeof(double)) &&
                !isnan(product))
                FAIL("products (%lld,%lld) and its mirror image differ", (long long)c,
                     (long long)d);
        }
    }
}

/* is_wild: NaN and infinities, also in rows that do not count. */
template <class T>
static void test_statistics(int64_t R, int64_t C, int64_t part, bool products, bool is_masked,
                            bool is_wild, unsigned threads)
{
    start_case("%s (%lld,%lld), parts of %lld, products %d, masked %d, wild %d, %u threads",
               variant<T>(), (long long)R, (long long)C, (long long)part, products, is_masked,
               is_wild, threads);
    hl_cuda_stat_cut cut = make_cut(R, C, part, products);
    buffer<T> x(R * C);
    buffer<double> shift(C), partials(cut.n_parts * hl_cuda_stat_partial(&cut));
    buffer<uint8_t> mask(R);
    for (int64_t i = 0; i < R * C; i++) put(&x[i], 2 + random_number());
    for (int64_t c = 0; c < C; c++) shift[c] = 2 + random_number() / 3;
    for (int64_t r = 0; r < R; r++) mask[r] = random_below(3) > 0;
    if (is_wild) {
        if (R * C > 0) put(&x[R * C / 2], NAN), put(&x[R * C / 3], INFINITY);
        for (int64_t i = 0; i < R * C && is_masked; i++)
            if (!mask[i / C]) put(&x[i], i % 2 ? NAN : INFINITY);
    }
    results got(C, products), again(C, products);
    const uint8_t *keep = is_masked ? mask.get() : nullptr;
    for (unsigned blocks = 1; blocks <= 3; blocks += 2) {
        results &out = blocks == 1 ? got : again;
        run_orders({&partials}, [&] {
            LAUNCH(channel_parts, variant<T>(), blocks, threads,
                   {x.get(), shift.get(), keep, partials.get()}, cut);
        });
        run_orders({&out.count, &out.lowest, &out.highest, &out.sums, &out.products}, [&] {
            LAUNCH_ONLY(channel_fold, blocks, HL_CUDA_STAT_THREADS,
                        {partials.get(), out.count.get(), out.lowest.get(), out.highest.get(),
                         out.sums.get(), out.products.get()},
                        cut);
        });
    }
    check_same("count", again.count, got.count);
    check_same("lowest", again.lowest, got.lowest);
    check_same("highest", again.highest, got.highest);
    check_same("sums", again.sums, got.sums);
    check_same("products", again.products, got.products);
    check_results(got, x, shift, is_masked ? &mask : nullptr, R, C, products);
}

template <class T> static void test_type()
{
    static const int64_t channels[] = {1, 3, 4, 5, 8, 9, 17, 31, 50, 63, 64};
    for (int64_t C : channels) {
        bool is_odd = C & 1;
        test_statistics<T>(70, C, 30, true, is_odd, !is_odd, 256);
        test_statistics<T>(45, C, 45, false, !is_odd, is_odd, 256);
    }
    /* Groups of threads that fill a block exactly and not; panels of many rows and of few. */
    test_statistics<T>(40, 50, 40, true, true, true, 192);
    test_statistics<T>(600, 2, 300, true, true, true, 256);
    test_statistics<T>(9, 60, 4, true, false, false, 128);
    /* Several strips. */
    test_statistics<T>(37, 65, 20, true, true, true, 256);
    test_statistics<T>(33, 100, 33, true, false, false, 256);
    test_statistics<T>(20, 130, 9, true, true, false, 256);
    test_statistics<T>(20, 130, 9, false, true, true, 256);
    for (int products = 0; products < 2; products++) {
        test_statistics<T>(0, 5, 256, products, true, false, 256);
        test_statistics<T>(5, 0, 256, products, false, false, 256);
        test_statistics<T>(0, 0, 256, products, false, false, 256);
    }
}

int main()
{
    test_type<float>();
    test_type<double>();
    test_type<hl_bf16>();
    test_type<hl_f16>();
    return finish_tests("test_kernels_stat");
}
