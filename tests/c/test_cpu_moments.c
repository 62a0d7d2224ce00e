/* Moments of columns (kernels/cpu/moments.h) against fp64: columns about a vector's width, blocks
 * of which the last is shorter, no row and one, means that are large beside the deviations. And its
 * promises: the same bits however blocks and columns are dealt, nothing read from partials before
 * it was written, nothing written behind them or behind the results. Compiled once per instruction
 * set. */
#include "kernels/cpu/moments.h"
#include "tests/c/check.h"
#include "tests/c/dice.h"

static double max_of(double a, double b)
{
    return a > b ? a : b;
}

/* ---- memory ---- */

/* The address sanitizer itself sees what reaches behind the last number. */
#if defined(__SANITIZE_ADDRESS__)
enum { TAIL = 0 };
#else
enum { TAIL = 64 };
#endif

/* n numbers, all NaN, with bytes behind them that tell whether somebody wrote there. */
static float *make_floats(int64_t n)
{
    size_t bytes = (size_t)n * sizeof(float);
    float *at = malloc(bytes + TAIL);
    memset(at, 0xFF, bytes + TAIL);
    return at;
}

static void free_floats(float *at, int64_t n)
{
    bool is_whole = true;
    for (int i = 0; i < TAIL; i++)
        is_whole = is_whole && ((unsigned char *)at)[(size_t)n * sizeof(float) + (size_t)i] == 0xFF;
    CHECK(is_whole);
    free(at);
}

/* ---- how the work is dealt ---- */

typedef struct deal {
    int64_t n_threads, n_rows; /* rows taken at a time: a multiple of HL_MOMENTS_ROWS */
    bool backwards;            /* the last thread comes first */
} deal;

static void take_blocks(const hl_moments *m, const float *x, float *partials, int64_t first,
                        int64_t last, int64_t n_rows)
{
    int64_t end = hl_cpu_min(last * m->grain, m->N);
    for (int64_t row = first * m->grain; row < end;) {
        int64_t before = row % m->grain, n = hl_cpu_min(n_rows, m->grain - before);
        n = hl_cpu_min(n, end - row);
        hl_moments_take(x + row * m->I, m->I, before, n, hl_moments_partial(m, partials, row));
        row += n;
    }
}

/* results: means (I), then variances (I). */
static void run(const hl_moments *m, const float *x, const deal *d, float *results)
{
    int64_t n_partials = (int64_t)(hl_moments_bytes(m) / sizeof(float)), n = m->n_partials;
    float *partials = make_floats(n_partials);
    for (int phase = 0; phase < 2; phase++)
        for (int64_t i = 0; i < d->n_threads; i++) {
            int64_t t = d->backwards ? d->n_threads - 1 - i : i;
            int64_t first = t * n / d->n_threads, last = (t + 1) * n / d->n_threads;
            if (phase)
                hl_moments_share(m, partials, first, last, results, results + m->I);
            else
                take_blocks(m, x, partials, first, last, d->n_rows);
        }
    free_floats(partials, n_partials);
}

static void check_deals(const hl_moments *m, const float *x, const float *want)
{
    static const deal deals[] = {{2, INT64_MAX, true},
                                 {3, HL_MOMENTS_ROWS, false},
                                 {7, 3 * HL_MOMENTS_ROWS, true},
                                 {HL_CPU_PARTIALS, INT64_MAX, false},
                                 {100, HL_MOMENTS_ROWS, true}};
    for (size_t i = 0; i < sizeof deals / sizeof *deals; i++) {
        float *got = make_floats(2 * m->I);
        run(m, x, &deals[i], got);
        if (memcmp(got, want, (size_t)(2 * m->I) * sizeof(float)) != 0)
            check_fail(__FILE__, __LINE__, "other bits, deal %d", (int)i);
        free_floats(got, 2 * m->I);
    }
}

/* ---- against fp64 ---- */

/* A mean takes `k` roundings of at most the largest element: a chunk's sum, its factor, and four
 * for each time that two means become one. Distances from a mean that is off by e are off by e,
 * too, and their squares by 2 d e + e^2. */
static void compare_column(const hl_moments *m, const float *x, int64_t c, double mean, double var)
{
    double sum = 0, squares = 0, largest = 0;
    for (int64_t r = 0; r < m->N; r++) {
        sum += (double)x[r * m->I + c];
        largest = max_of(largest, fabs((double)x[r * m->I + c]));
    }
    double want = sum / (double)m->N;
    for (int64_t r = 0; r < m->N; r++) {
        double d = (double)x[r * m->I + c] - want;
        squares += d * d;
    }
    double want_var = squares / (double)m->N;
    int64_t n_joins = hl_cpu_ceil_div(m->grain, HL_MOMENTS_ROWS) + 6;
    double k = (double)(HL_MOMENTS_ROWS / 2 + 3 + 4 * n_joins), e = k * 0x1p-24 * largest;
    CHECK(fabs(mean - want) <= e + 0x1p-126);
    CHECK(fabs(var - want_var) <=
          k * 0x1p-23 * want_var + 2 * sqrt(want_var) * e + e * e + 0x1p-126);
}

static void check_table(int64_t N, int64_t I, int64_t unit, double mean, double spread)
{
    check_case("%lld rows, %lld columns, unit %lld, %g + %g", (long long)N, (long long)I,
               (long long)unit, mean, spread);
    hl_moments m = hl_moments_make(N, I, unit);
    CHECK(m.n_partials >= 1 && m.n_partials <= HL_CPU_PARTIALS);
    CHECK(m.grain % unit == 0);
    CHECK(m.n_partials * m.grain >= N && (m.n_partials - 1) * m.grain <= hl_cpu_max(N - 1, 0));
    float *x = make_floats(N * I), *results = make_floats(2 * I);
    for (int64_t i = 0; i < N * I; i++)
        x[i] = (float)(mean * (i % I % 2 ? -1 : 1) + spread * dice_draw());
    run(&m, x, &(deal){1, INT64_MAX, false}, results);
    for (int64_t c = 0; c < I; c++) {
        if (N == 0) CHECK(isnan(results[c]) && isnan(results[I + c]));
        if (N == 1) CHECK(results[c] == x[c] && results[I + c] == 0);
        if (N > 1) compare_column(&m, x, c, (double)results[c], (double)results[I + c]);
    }
    check_deals(&m, x, results);
    free_floats(x, N * I);
    free_floats(results, 2 * I);
}

static void test_tables(void)
{
    static const int64_t rows[] = {0, 1, 2, 31, 32, 33, 64, 65, 127, 129, 1000, 2049, 4097, 5000};
    static const int64_t columns[] = {1, HL_VL - 1, HL_VL, HL_VL + 1, 2 * HL_VL, 3 * HL_VL + 2};
    static const int64_t units[] = {1, 5, 32, 100};
    static const double means[] = {0, 4096, 1e20}, spreads[] = {2, 1, 1e17};
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++)
        for (size_t i = 0; i < sizeof columns / sizeof *columns; i++)
            for (size_t u = 0; u < sizeof units / sizeof *units; u++)
                for (int k = 0; k < 3; k++)
                    if (columns[i] > 0)
                        check_table(rows[n], columns[i], units[u], means[k], spreads[k]);
}

/* ---- where the answer is exact ---- */

/* Blocks of a power of two rows with integers, each chunk 2^18 and one more or less by turns: means
 * are exact, and so are the squares, of which 2^36 would leave nothing. */
static void test_cancellation(void)
{
    for (int64_t n_chunks = 1; n_chunks <= 64; n_chunks *= 2) {
        check_case("%lld chunks", (long long)n_chunks);
        int64_t N = n_chunks * HL_MOMENTS_ROWS, I = HL_VL + 3;
        hl_moments m = hl_moments_make(N, I, HL_MOMENTS_ROWS);
        float *x = make_floats(N * I), *results = make_floats(2 * I);
        for (int64_t i = 0; i < N * I; i++)
            x[i] = (float)((1 << 18) + (i / I % 2 ? 1 : -1) + 2 * (i / I / HL_MOMENTS_ROWS % 2));
        run(&m, x, &(deal){1, INT64_MAX, false}, results);
        for (int64_t c = 0; c < I; c++) {
            bool has_two = n_chunks > 1; /* means 2 apart: each row's chunk is off by 1 */
            CHECK(results[c] == (float)((1 << 18) + has_two));
            CHECK(results[I + c] == (float)(1 + has_two));
        }
        check_deals(&m, x, results);
        free_floats(x, N * I);
        free_floats(results, 2 * I);
    }
}

/* Every row counts once, in whichever block: one number that is not 0. */
static void test_each_row_counts_once(void)
{
    enum { N = 37 * HL_MOMENTS_ROWS, I = 3 };
    hl_moments m = hl_moments_make(N, I, HL_MOMENTS_ROWS);
    float *x = make_floats(N * I);
    for (int64_t row = 0; row < N; row += 5) {
        check_case("row %lld", (long long)row);
        float *results = make_floats(2 * I);
        memset(x, 0, N * I * sizeof(float));
        x[row * I + 1] = 1;
        run(&m, x, &(deal){1, INT64_MAX, false}, results);
        double mean = 1.0 / N, var = mean - mean * mean;
        CHECK(results[0] == 0 && results[2] == 0 && results[I] == 0 && results[I + 2] == 0);
        CHECK(fabs((double)results[1] - mean) <= 40 * 0x1p-24 * mean);
        CHECK(fabs((double)results[I + 1] - var) <= 40 * 0x1p-24 * var);
        free_floats(results, 2 * I);
    }
    free_floats(x, N * I);
}

/* A NaN or an infinity is in its own column's moments alone. */
static void test_what_is_not_finite(void)
{
    enum { N = 100, I = HL_VL + 2 };
    static const float odd[] = {NAN, INFINITY, -INFINITY};
    hl_moments m = hl_moments_make(N, I, 1);
    for (int i = 0; i < 3; i++) {
        check_case("%g", (double)odd[i]);
        float *x = make_floats(N * I), *results = make_floats(2 * I);
        for (int64_t j = 0; j < N * I; j++) x[j] = (float)dice_draw();
        x[70 * I + HL_VL] = odd[i];
        run(&m, x, &(deal){1, INT64_MAX, false}, results);
        for (int64_t c = 0; c < I; c++) {
            CHECK(isfinite(results[c]) == (c != HL_VL));
            CHECK(isnan(results[I + c]) == (c == HL_VL));
        }
        free_floats(x, N * I);
        free_floats(results, 2 * I);
    }
}

int main(void)
{
    test_tables();
    test_cancellation();
    test_each_row_counts_once();
    test_what_is_not_finite();
    return CHECK_DONE();
}
