/* Philox against the known answers of Random123, the fills against their distributions and
 * against their own definition element by element. */
#include <math.h>
#include <stdlib.h>

#include "base/rng.h"
#include "tests/c/check.h"

/* Random123's kat_vectors, philox4x32 with 10 rounds. */
static void test_known_answers(void)
{
    static const struct {
        uint32_t counter[4], key[2], want[4];
    } cases[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        hl_rng_key key = {{cases[i].key[0], cases[i].key[1]}};
        uint32_t out[4];
        hl_philox(key, cases[i].counter, out);
        check_case("vector %zu", i);
        for (int j = 0; j < 4; j++) CHECK_INT(out[j], cases[i].want[j]);
    }
    check_case("%s", "");
}

static void test_bits16(void)
{
    hl_rng_key key = hl_rng_key_make(7, "dropout");
    uint32_t counter[4] = {3, 5, 2, 0}, out[4];
    hl_philox(key, counter, out);
    for (uint64_t e = 0; e < 8; e++)
        CHECK_INT(hl_rng_bits16(key, 3, 5, 16 + e), out[e / 2] >> e % 2 * 16 & 0xFFFF);
    CHECK(hl_rng_bits16(key, 3, 5, 0) != hl_rng_bits16(key, 3, 5, (uint64_t)1 << 35));
    CHECK(hl_rng_bits16(key, 3, 5, 0) != hl_rng_bits16(key, 3, 5 + ((uint64_t)1 << 32), 0));
}

static void test_keys(void)
{
    const char *const names[] = {"", "a", "b", "ab", "ba", "fc.weight", "fc.bias"};
    hl_rng_key keys[64];
    int n = 0;
    for (uint64_t seed = 0; seed < 8; seed++) {
        for (int i = 0; i < 7; i++) keys[n++] = hl_rng_key_make(seed, names[i]);
    }
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < i; j++) CHECK(memcmp(&keys[i], &keys[j], sizeof keys[i]) != 0);
    }
    hl_rng_key again = hl_rng_key_make(0, "");
    CHECK(!memcmp(&again, &keys[0], sizeof again));
}

typedef struct moments {
    double mean, variance, skewness, kurtosis, least, greatest, neighbours;
} moments;

static moments measure(const double *x, int64_t n)
{
    moments m = {.least = INFINITY, .greatest = -INFINITY};
    for (int64_t i = 0; i < n; i++) m.mean += x[i] / (double)n;
    for (int64_t i = 0; i < n; i++) {
        double d = x[i] - m.mean;
        m.variance += d * d / (double)n;
        m.skewness += d * d * d / (double)n;
        m.kurtosis += d * d * d * d / (double)n;
        if (i > 0) m.neighbours += d * (x[i - 1] - m.mean) / (double)n;
        m.least = fmin(m.least, x[i]);
        m.greatest = fmax(m.greatest, x[i]);
    }
    m.skewness /= pow(m.variance, 1.5);
    m.kurtosis /= m.variance * m.variance;
    m.neighbours /= m.variance;
    return m;
}

enum { N_SAMPLES = 1 << 20 };

/* Chi-square of 64 cells that should be equally likely under cdf; five sigma is 63 + 5 * 11.2. */
static double measure_cells(const double *x, int64_t n, double (*cdf)(double, const double *),
                            const double *args)
{
    int64_t counts[64] = {0};
    for (int64_t i = 0; i < n; i++) {
        int cell = (int)(cdf(x[i], args) * 64);
        counts[cell < 0 ? 0 : cell > 63 ? 63 : cell]++;
    }
    double chi = 0, want = (double)n / 64;
    for (int i = 0; i < 64; i++) chi += pow((double)counts[i] - want, 2) / want;
    return chi;
}

static double cdf_uniform(double x, const double *args)
{
    return (x - args[0]) / (args[1] - args[0]);
}

static double cdf_plain(double x)
{
    return 0.5 * erfc(-x / sqrt(2));
}

/* args: mean, std, low, high; mirrored where the upper tail has more digits. */
static double cdf_truncated(double x, const double *args)
{
    double a = (args[2] - args[0]) / args[1], b = (args[3] - args[0]) / args[1];
    double z = (x - args[0]) / args[1];
    if (a > 0) return (cdf_plain(-a) - cdf_plain(-z)) / (cdf_plain(-a) - cdf_plain(-b));
    return (cdf_plain(z) - cdf_plain(a)) / (cdf_plain(b) - cdf_plain(a));
}

static void test_uniform(double *x)
{
    hl_rng_key key = hl_rng_key_make(1, "uniform");
    hl_rng_fill_uniform(key, -2, 3, x, N_SAMPLES);
    moments m = measure(x, N_SAMPLES);
    CHECK(m.least >= -2 && m.least < -1.9999 && m.greatest < 3 && m.greatest > 2.9999);
    CHECK(fabs(m.mean - 0.5) < 5 * 1.4434 / 1024 && fabs(m.variance - 25.0 / 12) < 0.01);
    CHECK(fabs(m.neighbours) < 5.0 / 1024);
    CHECK(measure_cells(x, N_SAMPLES, cdf_uniform, (double[]){-2, 3}) < 63 + 5 * 11.2);
    /* Word i%4 of counter (0, 0, i/4, 1). */
    for (uint32_t i = 0; i < 100; i++) {
        uint32_t words[4];
        hl_philox(key, (uint32_t[]){0, 0, i / 4, 1}, words);
        CHECK(x[i] == -2 + 5 * ((words[i % 4] >> 8) * 0x1p-24));
    }
}

static void test_normal(double *x)
{
    hl_rng_fill_normal(hl_rng_key_make(1, "normal"), 10, 2, x, N_SAMPLES);
    moments m = measure(x, N_SAMPLES);
    CHECK(fabs(m.mean - 10) < 5 * 2.0 / 1024 && fabs(m.variance / 4 - 1) < 5 * 1.4142 / 1024);
    CHECK(fabs(m.skewness) < 5 * 2.4495 / 1024 && fabs(m.kurtosis - 3) < 5 * 4.899 / 1024);
    CHECK(fabs(m.neighbours) < 5.0 / 1024);
    double args[] = {10, 2, -1e9, 1e9};
    CHECK(measure_cells(x, N_SAMPLES, cdf_truncated, args) < 63 + 5 * 11.2);
}

static void test_truncated(double *x)
{
    static const double cases[][4] = {
        {0, 1, -2, 2},  {0, 0.02, -0.04, 0.04}, {1, 2, -9, 0},     {0, 1, 3, 9},
        {0, 1, -9, -3}, {5, 1, 5, 5.001},       {0, 1, -1e6, 1e6}, {0, 1, 8, 9},
    };
    enum { N = 1 << 18 };
    double *u = x + N;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const double *c = cases[i];
        hl_rng_key key = hl_rng_key_make(i, "trunc");
        hl_rng_fill_trunc_normal(key, c[0], c[1], c[2], c[3], x, N);
        moments m = measure(x, N);
        check_case("mean %g std %g in [%g, %g]", c[0], c[1], c[2], c[3]);
        CHECK(m.least >= c[2] && m.greatest <= c[3] && m.variance > 0);
        CHECK(measure_cells(x, N, cdf_truncated, c) < 63 + 5 * 11.2);
        /* The inverse of its own probability, each one; mirrored in the upper tail. */
        hl_rng_fill_uniform(key, 0, 1, u, N);
        for (int j = 0; j < N; j++) {
            double p = u[j] + 0x1p-25, back = cdf_truncated(x[j], c);
            CHECK(fabs((c[2] > c[0] ? 1 - back : back) - p) < 1e-11);
        }
    }
    check_case("%s", "");
    /* So far out that no double holds the probability: still inside. */
    hl_rng_fill_trunc_normal(hl_rng_key_make(1, ""), 0, 1, 60, 70, x, 1000);
    hl_rng_fill_trunc_normal(hl_rng_key_make(1, ""), 0, 1, -70, -60, x + 1000, 1000);
    for (int i = 0; i < 1000; i++) CHECK(x[i] >= 60 && x[i] <= 70 && x[i + 1000] <= -60);
}

/* A value depends on its index alone, not on how many are asked for; nothing is written beyond. */
static void test_lengths(double *x)
{
    hl_rng_key key = hl_rng_key_make(3, "lengths");
    double whole[3][16], part[17];
    hl_rng_fill_uniform(key, 0, 1, whole[0], 16);
    hl_rng_fill_normal(key, 0, 1, whole[1], 16);
    hl_rng_fill_trunc_normal(key, 0, 1, -1, 1, whole[2], 16);
    for (int kind = 0; kind < 3; kind++) {
        for (int64_t n = 0; n <= 16; n++) {
            for (int i = 0; i < 17; i++) part[i] = -99;
            if (kind == 0) hl_rng_fill_uniform(key, 0, 1, part, n);
            if (kind == 1) hl_rng_fill_normal(key, 0, 1, part, n);
            if (kind == 2) hl_rng_fill_trunc_normal(key, 0, 1, -1, 1, part, n);
            check_case("kind %d, n %d", kind, (int)n);
            CHECK(!memcmp(part, whole[kind], (size_t)n * sizeof *part) && part[n] == -99);
        }
    }
    check_case("%s", "");
    hl_rng_fill_uniform(hl_rng_key_make(3, "other"), 0, 1, x, 16);
    CHECK(memcmp(x, whole[0], sizeof whole[0]) != 0);
}

int main(void)
{
    double *x = malloc(N_SAMPLES * sizeof *x);
    test_known_answers();
    test_bits16();
    test_keys();
    test_uniform(x);
    test_normal(x);
    test_truncated(x);
    test_lengths(x);
    free(x);
    return CHECK_DONE();
}
