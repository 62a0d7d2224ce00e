/* The elementary functions of simd/math.h against double libm: the largest error in ulp over more
 * than a million points each, and the special cases. Compiled once per instruction set. The second
 * half checks the primitives of simd.h lane by lane against plain C. */
#include <math.h>
#include <stdlib.h>

#include "kernels/cpu/simd/math.h"
#include "tests/c/check.h"

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

static double measure_worst(vector_fn vector, scalar_fn scalar, double low, double high,
                            double *out_at)
{
    enum { POINTS = 1 << 20 };
    double worst = 0;
    for (int64_t i = 0; i < POINTS; i += HL_VL) {
        float x[HL_VL], y[HL_VL];
        for (int j = 0; j < HL_VL; j++)
            x[j] = (float)(low + (high - low) * (double)(i + j) / (POINTS - 1));
        hl_v_store(y, vector(hl_v_load(x)));
        for (int j = 0; j < HL_VL; j++) {
            double ulp = measure_ulp(y[j], scalar(x[j]));
            if (ulp > worst) worst = ulp, *out_at = x[j];
        }
    }
    return worst;
}

/* Every 2039th float there is (2039 is prime): two million bit patterns of both signs. */
static double measure_worst_bits(vector_fn vector, scalar_fn scalar, double *out_at)
{
    double worst = 0;
    for (uint64_t bits = 0; bits < 1ull << 32; bits += 2039ull * HL_VL) {
        float x[HL_VL], y[HL_VL];
        for (int j = 0; j < HL_VL; j++) x[j] = float_of_bits((uint32_t)(bits + (uint64_t)j * 2039));
        hl_v_store(y, vector(hl_v_load(x)));
        for (int j = 0; j < HL_VL; j++) {
            double ulp = measure_ulp(y[j], scalar(x[j]));
            if (ulp > worst) worst = ulp, *out_at = x[j];
        }
    }
    return worst;
}

static const struct {
    const char *name;
    vector_fn vector;
    scalar_fn scalar;
    double low, high, limit;
} FUNCTIONS[] = {
    {"exp", wrap_exp, exp, -105, 90, 2},
    {"expm1", wrap_expm1, expm1, -20, 90, 2},
    {"expm1 near 0", wrap_expm1, expm1, -1, 1, 2},
    {"log", wrap_log, log, 1e-3, 10, 2},
    {"log near 1", wrap_log, log, 0.9, 1.1, 2},
    {"log1p", wrap_log1p, log1p, -1, 4, 2},
    {"log1p near 0", wrap_log1p, log1p, -0.01, 0.01, 2},
    {"tanh", wrap_tanh, tanh, -10, 10, 2},
    {"sigmoid", wrap_sigmoid, compute_sigmoid, -110, 40, 2.5},
    {"sigmoid near 0", wrap_sigmoid, compute_sigmoid, -8, 8, 2.5},
    {"erf", wrap_erf, erf, -4.5, 4.5, 2},
    {"sin", wrap_sin, sin, -10, 10, 2},
    {"sin of hundreds", wrap_sin, sin, -9000, 9000, 2},
    {"cos", wrap_cos, cos, -10, 10, 2},
    {"cos of hundreds", wrap_cos, cos, -9000, 9000, 2},
};

static void test_accuracy(void)
{
    for (size_t i = 0; i < sizeof FUNCTIONS / sizeof *FUNCTIONS; i++) {
        double at = 0, at_bits = 0;
        double range = measure_worst(FUNCTIONS[i].vector, FUNCTIONS[i].scalar, FUNCTIONS[i].low,
                                     FUNCTIONS[i].high, &at);
        double bits = measure_worst_bits(FUNCTIONS[i].vector, FUNCTIONS[i].scalar, &at_bits);
        printf("%-16s %.3f ulp at %a, all floats %.3f at %a\n", FUNCTIONS[i].name, range, at, bits,
               at_bits);
        CHECK(range <= FUNCTIONS[i].limit);
        CHECK(bits <= FUNCTIONS[i].limit);
    }
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
    for (size_t i = 0; i < sizeof FUNCTIONS / sizeof *FUNCTIONS; i++)
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
    for (int64_t i = 0; i < 1 << 21; i += HL_VL) {
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
    printf("%-16s %.3f ulp at (%a, %a)\n", "pow", worst, at_x, at_y);
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
        CHECK(hl_vm_any(first) == (n > 0) && hl_vm_all(first) == (n == HL_VL));
    }
    hl_v gathered = hl_v_gather(source, hl_vi_shl(hl_vi_iota(), 1));
    for (int i = 0; i < HL_VL; i++) CHECK(gathered[i] == source[2 * i]);
    CHECK(hl_v_sum(hl_v_load(source)) == HL_VL * (HL_VL + 1) / 2);
    CHECK(hl_v_max_lane(hl_v_load(source)) == HL_VL && hl_v_min_lane(hl_v_load(source)) == 1);
}

static void test_integers(void)
{
    uint64_t state = 7;
    for (int round = 0; round < 10000; round++) {
        hl_vi a, b, high, low;
        for (int i = 0; i < HL_VL; i++) {
            state = state * 6364136223846793005ull + 1442695040888963407ull;
            a[i] = (int32_t)(state >> 32);
            state = state * 6364136223846793005ull + 1442695040888963407ull;
            b[i] = (int32_t)(state >> 32);
        }
        hl_vi_mul_wide(a, b, &high, &low);
        hl_vi product = hl_vi_mul(a, b);
        for (int i = 0; i < HL_VL; i++) {
            uint64_t want = (uint64_t)(uint32_t)a[i] * (uint32_t)b[i];
            CHECK((uint32_t)high[i] == want >> 32 && (uint32_t)low[i] == (uint32_t)want);
            CHECK(product[i] == low[i]);
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
    CHECK(!hl_vm_any(hl_v_lt(nan, one)) && hl_vm_all(hl_v_ne(nan, nan)));
}

static void test_bf16(void)
{
    for (uint32_t high = 0; high < 0x10000; high += HL_VL) {
        uint16_t bits[HL_VL], back[HL_VL];
        float near[HL_VL];
        for (int i = 0; i < HL_VL; i++) bits[i] = (uint16_t)(high + (uint32_t)i);
        hl_v x = hl_v_load_bf16(bits);
        for (int i = 0; i < HL_VL; i++) {
            float want = float_of_bits((uint32_t)bits[i] << 16);
            CHECK(x[i] == want || (isnan(x[i]) && isnan(want)));
            /* exactly half way up: goes to the even neighbour */
            near[i] = float_of_bits((uint32_t)bits[i] << 16 | 0x8000);
        }
        hl_v_store_bf16(back, x);
        for (int i = 0; i < HL_VL; i++)
            CHECK(back[i] == bits[i] || (isnan(x[i]) && (back[i] & 0x7FFF) > 0x7F80));
        hl_v_store_bf16(back, hl_v_load(near));
        for (int i = 0; i < HL_VL; i++)
            CHECK(isnan(near[i]) ? (back[i] & 0x7FFF) > 0x7F80
                                 : back[i] == (uint16_t)(bits[i] + (bits[i] & 1)));
    }
}

/* The instructions agree with base/half.h in every bit: all of float16, and floats 4,099 apart. */
static void test_float16(void)
{
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        float got = hl_from_f16((uint16_t)bits), want = hl_f16_to_f32((uint16_t)bits);
        check_case("float16 %04x", (unsigned)bits);
        CHECK(memcmp(&got, &want, sizeof got) == 0);
    }
    for (uint64_t word = 0; word <= UINT32_MAX; word += 4099) {
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
    return CHECK_DONE();
}
