/* Random numbers: keys and fills of whole arrays. */
#include "base/rng.h"

#include <math.h>

static uint64_t mix_splitmix64(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

hl_rng_key hl_rng_key_make(uint64_t seed, const char *stream)
{
    uint64_t hash = 0xCBF29CE484222325u;
    for (const char *c = stream; *c; c++) hash = (hash ^ (unsigned char)*c) * 0x100000001B3u;
    uint64_t key = mix_splitmix64(mix_splitmix64(seed) ^ hash);
    return (hl_rng_key){{(uint32_t)key, (uint32_t)(key >> 32)}};
}

static void fill_block(hl_rng_key key, int64_t i, uint32_t words[4])
{
    uint64_t block = (uint64_t)i >> 2;
    uint32_t counter[4] = {0, (uint32_t)(block >> 32), (uint32_t)block, 1};
    hl_philox(key, counter, words);
}

/* 24 bits, in [0, 1). */
static double make_uniform(uint32_t word)
{
    return (word >> 8) * 0x1p-24;
}

void hl_rng_fill_uniform(hl_rng_key key, double low, double high, double *out, int64_t n)
{
    for (int64_t i = 0; i < n; i += 4) {
        uint32_t words[4];
        fill_block(key, i, words);
        for (int64_t j = 0; j < 4 && i + j < n; j++)
            out[i + j] = low + (high - low) * make_uniform(words[j]);
    }
}

void hl_rng_fill_normal(hl_rng_key key, double mean, double std, double *out, int64_t n)
{
    const double two_pi = 6.283185307179586476925;
    for (int64_t i = 0; i < n; i += 4) {
        uint32_t words[4];
        fill_block(key, i, words);
        for (int64_t j = 0; j < 4 && i + j < n; j += 2) {
            /* 1 - u is in (0, 1]: the logarithm is finite. */
            double radius = std * sqrt(-2 * log(1 - make_uniform(words[j])));
            double angle = two_pi * make_uniform(words[j + 1]);
            out[i + j] = mean + radius * cos(angle);
            if (i + j + 1 < n) out[i + j + 1] = mean + radius * sin(angle);
        }
    }
}

static double eval_ratio(const double num[8], const double den[8], double x)
{
    double p = num[7], q = den[7];
    for (int k = 6; k >= 0; k--) p = p * x + num[k], q = q * x + den[k];
    return p / q;
}

/* The normal quantile of p in (0, 1), relative error about 1e-16: Wichura, "Algorithm AS 241",
 * Applied Statistics 37 (1988), PPND16. */
static double invert_normal_cdf(double p)
{
    static const double centre_num[8] = {3.3871328727963666080e0, 1.3314166789178437745e2,
                                         1.9715909503065514427e3, 1.3731693765509461125e4,
                                         4.5921953931549871457e4, 6.7265770927008700853e4,
                                         3.3430575583588128105e4, 2.5090809287301226727e3};
    static const double centre_den[8] = {1.0,
                                         4.2313330701600911252e1,
                                         6.8718700749205790830e2,
                                         5.3941960214247511077e3,
                                         2.1213794301586595867e4,
                                         3.9307895800092710610e4,
                                         2.8729085735721942674e4,
                                         5.2264952788528545610e3};
    static const double middle_num[8] = {1.42343711074968357734e0,  4.63033784615654529590e0,
                                         5.76949722146069140550e0,  3.64784832476320460504e0,
                                         1.27045825245236838258e0,  2.41780725177450611770e-1,
                                         2.27238449892691845833e-2, 7.74545014278341407640e-4};
    static const double middle_den[8] = {1.0,
                                         2.05319162663775882187e0,
                                         1.67638483018380384940e0,
                                         6.89767334985100004550e-1,
                                         1.48103976427480074590e-1,
                                         1.51986665636164571966e-2,
                                         5.47593808499534494600e-4,
                                         1.05075007164441684324e-9};
    static const double tail_num[8] = {6.65790464350110377720e0,  5.46378491116411436990e0,
                                       1.78482653991729133580e0,  2.96560571828504891230e-1,
                                       2.65321895265761230930e-2, 1.24266094738807843860e-3,
                                       2.71155556874348757815e-5, 2.01033439929228813265e-7};
    static const double tail_den[8] = {1.0,
                                       5.99832206555887937690e-1,
                                       1.36929880922735805310e-1,
                                       1.48753612908506148525e-2,
                                       7.86869131145613259100e-4,
                                       1.84631831751005468180e-5,
                                       1.42151175831644588870e-7,
                                       2.04426310338993978564e-15};
    double q = p - 0.5;
    if (fabs(q) <= 0.425) return q * eval_ratio(centre_num, centre_den, 0.180625 - q * q);
    double r = sqrt(-log(q < 0 ? p : 1 - p));
    double x = r <= 5 ? eval_ratio(middle_num, middle_den, r - 1.6)
                      : eval_ratio(tail_num, tail_den, r - 5);
    return q < 0 ? -x : x;
}

static double eval_normal_cdf(double x)
{
    return 0.5 * erfc(-x * 0.70710678118654752440);
}

void hl_rng_fill_trunc_normal(hl_rng_key key, double mean, double std, double low, double high,
                              double *out, int64_t n)
{
    /* An interval in the upper tail is mirrored: there the cdf has no digits left, here it has. */
    double a = (low - mean) / std, b = (high - mean) / std, sign = 1;
    if (a > 0) {
        double mirrored = -a;
        a = -b, b = mirrored, sign = -1;
    }
    double cdf_a = eval_normal_cdf(a), cdf_b = eval_normal_cdf(b);
    for (int64_t i = 0; i < n; i += 4) {
        uint32_t words[4];
        fill_block(key, i, words);
        for (int64_t j = 0; j < 4 && i + j < n; j++) {
            /* The middle of the step: never 0 or 1, where the quantile is infinite. */
            double p = cdf_a + (cdf_b - cdf_a) * (make_uniform(words[j]) + 0x1p-25);
            double x = p > 0 ? invert_normal_cdf(p) : b;
            double value = mean + std * sign * fmin(fmax(x, a), b);
            out[i + j] = fmin(fmax(value, low), high);
        }
    }
}
