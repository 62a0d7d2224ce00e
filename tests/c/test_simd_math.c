/* The elementary functions of simd/math.h against double libm: the largest error in ulp over
 * millions of points each, and the special cases. Compiled once per instruction set. The second
 * half checks the primitives of simd.h lane by lane against plain C. The output says what was
 * compared, and how far off the worst was. */
#include <math.h>
#include <stdlib.h>

#include "kernels/cpu/simd/math.h"
#include "tests/c/check.h"

/* The strides are primes, so that all patterns of the low bits come. */
enum { RANGE_POINTS = 1 << 20, FLOAT_STRIDE = 2039, POW_PAIRS = 1 << 21, F16_STRIDE = 4099 };
#define TEXT_(token) #token
#define TEXT(token)  TEXT_(token)
#define SET_NAME     TEXT(HL_ISA)

typedef hl_v (*vector_fn)(hl_v);
typedef double (*scalar_fn)(double);

#define WRAP(name)                                                                                 \
    static hl_v wrap_##name(hl_v x)                                                                \
    {                                                                                              \
        return hl_v_##name(x);                                                                     \
    }
WRAP(exp)
WRAP(expm1)
WRAP(log)
WRAP(log1p)
WRAP(tanh)
WRAP(sigmoid)
WRAP(erf)
WRAP(sin)
WRAP(cos)
#undef WRAP

static double compute_sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static float float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* |got - want| in units of the last place of want as a float; infinities and NaNs must agree. */
static double measure_ulp(float got, double want)
{
    float rounded = (float)want;
    if (isnan(want) || isnan(got)) return isnan(want) && isnan(got) ? 0 : INFINITY;
    if (isinf(rounded) || isinf(got)) {
        if (got == rounded) return 0;
        /* One step over the largest float is an error of one ulp, not of infinity. */
        return fabs(want) > 0x1.fffffcp127 && fabsf(got) >= 0x1.fffffcp127f ? 1 : INFINITY;
    }
    int exponent;
    frexp(fabs(want) > 0x1p-126 ? want : 0x1p-126, &exponent);
    return fabs((double)got - want) / ldexp(1, exponent - 24);
}

typedef struct accuracy {
    double worst, at; /* in ulp; of which x */
    int64_t n;        /* points that were compared */
} accuracy;

static void compare_points(const float *x, vector_fn vector, scalar_fn scalar, accuracy *a)
{
    float y[HL_VL];
    hl_v_store(y, vector(hl_v_load(x)));
    for (int j = 0; j < HL_VL; j++) {
        double ulp = measure_ulp(y[j], scalar(x[j]));
        if (ulp > a->worst) a->worst = ulp, a->at = x[j];
    }
    a->n += HL_VL;
}

static accuracy measure_range(vector_fn vector, scalar_fn scalar, double low, double high)
{
    accuracy a = {0};
    float x[HL_VL];
    for (int64_t i = 0; i < RANGE_POINTS; i += HL_VL) {
        for (int j = 0; j < HL_VL; j++)
            x[j] = (float)(low + (high - low) * (double)(i + j) / (RANGE_POINTS - 1));
        compare_points(x, vector, scalar, &a);
    }
    return a;
}

/* Bit patterns of both signs, from 0 to the last NaN. */
static accuracy measure_floats(vector_fn vector, scalar_fn scalar)
{
    accuracy a = {0};
    float x[HL_VL];
    for (uint64_t bits = 0; bits < 1ull << 32; bits += (uint64_t)FLOAT_STRIDE * HL_VL) {
        for (int j = 0; j < HL_VL; j++)
            x[j] = float_of_bits((uint32_t)(bits + (uint64_t)j * FLOAT_STRIDE));
        compare_points(x, vector, scalar, &a);
    }
    return a;
}

static const struct {
    const char *name;
    vector_fn vector;
    scalar_fn scalar;
    double limit;
    double ranges[2][2]; /* the second is where digits could be lost, if anywhere */
} FUNCTIONS[] = {
    {"exp", wrap_exp, exp, 2, {{-105, 90}}},
    {"expm1", wrap_expm1, expm1, 2, {{-20, 90}, {-1, 1}}},
    {"log", wrap_log, log, 2, {{1e-3, 10}, {0.9, 1.1}}},
    {"log1p", wrap_log1p, log1p, 2, {{-1, 4}, {-0.01, 0.01}}},
    {"tanh", wrap_tanh, tanh, 2, {{-10, 10}}},
    {"sigmoid", wrap_sigmoid, compute_sigmoid, 2.5, {{-110, 40}, {-8, 8}}},
    {"erf", wrap_erf, erf, 2, {{-4.5, 4.5}}},
    {"sin", wrap_sin, sin, 2, {{-10, 10}, {-9000, 9000}}},
    {"cos", wrap_cos, cos, 2, {{-10, 10}, {-9000, 9000}}},
};
enum { N_FUNCTIONS = sizeof FUNCTIONS / sizeof *FUNCTIONS };

static void test_accuracy(void)
{
    printf("%s, %d lanes: the largest error in ulp, of %d points a range; of every %dth float\n",
           SET_NAME, HL_VL, RANGE_POINTS, FLOAT_STRIDE);
    for (int i = 0; i < N_FUNCTIONS; i++) {
        vector_fn vector = FUNCTIONS[i].vector;
        scalar_fn scalar = FUNCTIONS[i].scalar;
        printf("  %-8s <= %g:", FUNCTIONS[i].name, FUNCTIONS[i].limit);
        for (int r = 0; r < 2; r++) {
            const double *range = FUNCTIONS[i].ranges[r];
            if (range[0] == range[1]) continue;
            accuracy a = measure_range(vector, scalar, range[0], range[1]);
            printf(" %.2f in [%g, %g] at %.9g;", a.worst, range[0], range[1], a.at);
            check_case("%s in [%g, %g]", FUNCTIONS[i].name, range[0], range[1]);
            CHECK(a.worst <= FUNCTIONS[i].limit && a.n == RANGE_POINTS);
        }
        accuracy a = measure_floats(vector, scalar);
        printf(" %.2f of %lld floats at %.9g\n", a.worst, (long long)a.n, a.at);
        check_case("%s of every %dth float", FUNCTIONS[i].name, FLOAT_STRIDE);
        CHECK(a.worst <= FUNCTIONS[i].limit && a.n > UINT32_MAX / FLOAT_STRIDE);
    }
    check_case("%s", "");
}

static const float EDGES[] = {
    0,         -0.0f, 1,           -1,       2,         -2,     0.5f,   -0.5f,
    3,         -3,    1e-45f,      -1e-45f,  0x1p-126f, 1e38f,  -1e38f, INFINITY,
    -INFINITY, NAN,   0x1.fffp22f, 16777215, -16777215, 88.72f, -87.4f, 0x1.fffffep-1f};
enum { N_EDGES = sizeof EDGES / sizeof *EDGES };

static void check_special(const char *name, float x, float got, double want)
{
    double ulp = measure_ulp(got, want);
    bool sign = isnan(want) || !signbit(got) == !signbit((float)want);
    if (ulp > 3 || !sign) printf("%s(%a): got %a, want %a\n", name, x, got, want);
    CHECK(ulp <= 3 && sign);
}

static void test_edges(void)
{
    for (int i = 0; i < N_FUNCTIONS; i++)
        for (int k = 0; k < N_EDGES; k++) {
            float y[HL_VL];
            hl_v_store(y, FUNCTIONS[i].vector(hl_v_set1(EDGES[k])));
            for (int j = 0; j < HL_VL; j++)
                check_special(FUNCTIONS[i].name, EDGES[k], y[j], FUNCTIONS[i].scalar(EDGES[k]));
        }
}

static void test_pow(void)
{
    double worst = 0, at_x = 0, at_y = 0;
    uint64_t state = 1;
    for (int64_t i = 0; i < POW_PAIRS; i += HL_VL) {
        float x[HL_VL], y[HL_VL], z[HL_VL];
        for (int j = 0; j < HL_VL; j++) {
            state = state * 6364136223846793005ull + 1442695040888963407ull;
            x[j] = float_of_bits((uint32_t)(state >> 33)); /* any positive float */
            state = state * 6364136223846793005ull + 1442695040888963407ull;
            y[j] = (float)((double)(state >> 11) * 0x1p-53 * 8 - 4);
            if (i & 64) x[j] = 0.5f + (float)(state >> 40) * 0x1p-24f, y[j] *= 30;
            if (i & 128) y[j] = rintf(y[j]), x[j] = -x[j];
        }
        hl_v_store(z, hl_v_pow(hl_v_load(x), hl_v_load(y)));
        for (int j = 0; j < HL_VL; j++) {
            double ulp = measure_ulp(z[j], pow(x[j], y[j]));
            if (ulp > worst) worst = ulp, at_x = x[j], at_y = y[j];
        }
    }
    printf("  %-8s <= 2: %.2f of %d pairs at (%.9g, %.9g)\n", "pow", worst, POW_PAIRS, at_x, at_y);
    CHECK(worst <= 2);
    for (int i = 0; i < N_EDGES; i++)
        for (int j = 0; j < N_EDGES; j++) {
            float z[HL_VL];
            hl_v_store(z, hl_v_pow(hl_v_set1(EDGES[i]), hl_v_set1(EDGES[j])));
            check_special("pow", EDGES[i], z[0], pow(EDGES[i], EDGES[j]));
        }
}

static void test_memory(void)
{
    float source[3 * HL_VL], target[3 * HL_VL];
    for (int i = 0; i < 3 * HL_VL; i++) source[i] = (float)(i + 1);
    for (int n = 0; n <= HL_VL; n++) {
        for (int i = 0; i < 3 * HL_VL; i++) target[i] = -1;
        hl_v a = hl_v_load_n(source + 1, n);
        for (int i = 0; i < HL_VL; i++) CHECK(a[i] == (i < n ? source[i + 1] : 0));
        hl_v_store_n(target + 3, hl_v_load(source), n);
        for (int i = 0; i < 3 * HL_VL; i++)
            CHECK(target[i] == (i >= 3 && i < 3 + n ? source[i - 3] : -1));
        hl_vm first = hl_vm_first(n);
        a = hl_v_select(first, hl_v_set1(1), hl_v_set1(2));
        for (int i = 0; i < HL_VL; i++) CHECK(a[i] == (i < n ? 1 : 2));
        CHECK(hl_vm_any(first) == (n > 0) && hl_vm_any(hl_vm_not(first)) == (n < HL_VL));
    }
    hl_v gathered = hl_v_gather(source, hl_vi_shl(hl_vi_iota(), 1));
    for (int i = 0; i < HL_VL; i++) CHECK(gathered[i] == source[2 * i]);
    CHECK(hl_v_sum(hl_v_load(source)) == HL_VL * (HL_VL + 1) / 2);
    CHECK(hl_v_max_lane(hl_v_load(source)) == HL_VL);
}

static void test_integers(void)
{
    uint64_t state = 7;
    for (int round = 0; round < 10000; round++) {
        hl_vi a, b;
        for (int i = 0; i < HL_VL; i++) {
            state = state * 6364136223846793005ull + 1442695040888963407ull;
            a[i] = (int32_t)(state >> 32);
            state = state * 6364136223846793005ull + 1442695040888963407ull;
            b[i] = (int32_t)(state >> 32);
        }
        hl_vi product = hl_vi_mul(a, b);
        for (int i = 0; i < HL_VL; i++) {
            uint32_t want = (uint32_t)a[i] * (uint32_t)b[i];
            CHECK((uint32_t)product[i] == want);
        }
    }
}

static void test_rounding(void)
{
    static const float values[] = {0.5f,  -0.5f, 1.5f,   2.5f, -2.5f, 0.49999997f, 8388607.5f,
                                   -0.0f, 1e30f, -1e30f, 3.7f, -3.2f, 8388609.0f,  -1e-40f};
    for (size_t k = 0; k < sizeof values / sizeof *values; k++) {
        hl_v x = hl_v_set1(values[k]), nearest = hl_v_round(x), below = hl_v_floor(x);
        CHECK(nearest[0] == rintf(values[k]) && !signbit(nearest[0]) == !signbit(values[k]));
        CHECK(below[0] == floorf(values[k]));
        if (fabsf(values[k]) < 1e9f) CHECK(hl_v_to_int(x)[0] == (int32_t)rintf(values[k]));
    }
    hl_v nan = hl_v_set1(NAN), one = hl_v_set1(1);
    CHECK(hl_v_min(nan, one)[0] == 1 && isnan(hl_v_min(one, nan)[0]));
    CHECK(hl_v_max(nan, one)[0] == 1 && isnan(hl_v_max(one, nan)[0]));
    CHECK(!hl_vm_any(hl_v_lt(nan, one)) && !hl_vm_any(hl_vm_not(hl_v_ne(nan, nan))));
}

static void test_bf16(void)
{
    for (uint32_t high = 0; high < 0x10000; high += HL_VL) {
        uint16_t bits[HL_VL], back[HL_VL];
        float exact[HL_VL], near[HL_VL];
        for (int i = 0; i < HL_VL; i++) {
            bits[i] = (uint16_t)(high + (uint32_t)i);
            exact[i] = float_of_bits((uint32_t)bits[i] << 16);
            /* exactly half way up: goes to the even neighbour */
            near[i] = float_of_bits((uint32_t)bits[i] << 16 | 0x8000);
        }
        hl_v_store_bf16(back, hl_v_load(exact));
        for (int i = 0; i < HL_VL; i++)
            CHECK(back[i] == bits[i] || (isnan(exact[i]) && (back[i] & 0x7FFF) > 0x7F80));
        hl_v_store_bf16(back, hl_v_load(near));
        for (int i = 0; i < HL_VL; i++)
            CHECK(isnan(near[i]) ? (back[i] & 0x7FFF) > 0x7F80
                                 : back[i] == (uint16_t)(bits[i] + (bits[i] & 1)));
    }
}

/* The instructions agree with base/half.h in every bit: all of float16, and floats. */
static void test_float16(void)
{
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        float got = hl_from_f16((uint16_t)bits), want = hl_f16_to_f32((uint16_t)bits);
        check_case("float16 %04x", (unsigned)bits);
        CHECK(memcmp(&got, &want, sizeof got) == 0);
    }
    for (uint64_t word = 0; word <= UINT32_MAX; word += F16_STRIDE) {
        uint32_t bits = (uint32_t)word;
        float value;
        memcpy(&value, &bits, sizeof value);
        check_case("float %08x", (unsigned)bits);
        CHECK_INT(hl_to_f16(value), hl_f32_to_f16(value));
    }
    check_case("%s", "");
}

int main(void)
{
    test_float16();
    test_memory();
    test_integers();
    test_rounding();
    test_bf16();
    test_accuracy();
    test_edges();
    test_pow();
    printf("  %d edges of each, %d x %d of pow; bits: all of float16 and bfloat16, every %dth "
           "float to "
           "float16\n",
           N_EDGES, N_EDGES, N_EDGES, F16_STRIDE);
    return CHECK_DONE();
}
