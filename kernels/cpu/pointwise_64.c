/* The pointwise engine apart from fp32: micro-ops in float64 and int64 (accumulators, counters,
 * labels: small and exact rather than fast), conversions from and to memory, and the sums of a
 * chunk. */
#include <math.h>

#include "base/float_mode.h"
#include "base/half.h"
#include "kernels/cpu/pointwise_chunk.h"
#include "kernels/cpu/random.h"

/* ---- the functions of expressions (ir/pointwise.def), in float64 ---- */

#define REAL_1(name, expression)                                                                   \
    HL_SIMD double real_##name(double x)                                                           \
    {                                                                                              \
        return expression;                                                                         \
    }
#define REAL_2(name, expression)                                                                   \
    HL_SIMD double real_##name(double x, double y)                                                 \
    {                                                                                              \
        return expression;                                                                         \
    }
REAL_1(neg, -x)
REAL_1(abs, fabs(x))
REAL_1(sqrt, sqrt(x))
REAL_1(rsqrt, 1 / sqrt(x))
REAL_1(exp, exp(x))
REAL_1(expm1, expm1(x))
REAL_1(log, log(hl_float_flushed(x)))
REAL_1(log1p, log1p(x))
REAL_1(sin, sin(x))
REAL_1(cos, cos(x))
REAL_1(tanh, tanh(x))
REAL_1(sigmoid, 1 / (1 + exp(-x)))
REAL_1(erf, erf(x))
REAL_1(floor, floor(x))
REAL_1(round, rint(x))
REAL_2(add, x + y)
REAL_2(sub, x - y)
REAL_2(mul, (x * y))
REAL_2(pow, pow(hl_float_flushed(x), hl_float_flushed(y)))

HL_SIMD double real_mod(double x, double y)
{
    double r = fmod(hl_float_flushed(x), hl_float_flushed(y));
    return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}

HL_SIMD double real_cast(double x, hl_dtype dtype)
{
    switch (dtype) {
    case HL_DTYPE_F64: return x;
    case HL_DTYPE_F32: return (float)x;
    case HL_DTYPE_BF16: return hl_bf16_to_f32(hl_f32_to_bf16((float)x));
    case HL_DTYPE_F16: return hl_f16_to_f32(hl_f32_to_f16((float)x));
    case HL_DTYPE_BOOL: return x != 0;
    default: return trunc(x);
    }
}

/* ---- the same in int64: sums and products wrap ---- */

#define WHOLE_1(name, expression)                                                                  \
    HL_SIMD int64_t whole_##name(int64_t x)                                                        \
    {                                                                                              \
        return (int64_t)(expression);                                                              \
    }
#define WHOLE_2(name, expression)                                                                  \
    HL_SIMD int64_t whole_##name(int64_t x, int64_t y)                                             \
    {                                                                                              \
        return (int64_t)(expression);                                                              \
    }
WHOLE_1(neg, 0 - (uint64_t)x)
WHOLE_1(abs, x < 0 ? 0 - (uint64_t)x : (uint64_t)x)
WHOLE_1(floor, x)
WHOLE_1(round, x)
WHOLE_2(add, (uint64_t)x + (uint64_t)y)
WHOLE_2(sub, (uint64_t)x - (uint64_t)y)
WHOLE_2(mul, ((uint64_t)x * (uint64_t)y))

/* By 0, where there is no remainder, it is 0 as in NumPy. */
HL_SIMD int64_t whole_mod(int64_t x, int64_t y)
{
    if (y == 0 || y == -1) return 0;
    int64_t r = x % y;
    return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}

HL_SIMD int64_t whole_cast(int64_t x, hl_dtype dtype)
{
    switch (dtype) {
    case HL_DTYPE_I32: return (int32_t)x;
    case HL_DTYPE_I16: return (int16_t)x;
    case HL_DTYPE_I8: return (int8_t)x;
    case HL_DTYPE_U8: return (uint8_t)x;
    case HL_DTYPE_BOOL: return x != 0;
    default: return x;
    }
}

/* ---- what reads alike for both ---- */

#define MASK(T, kind, name, operator)                                                              \
    HL_SIMD bool kind##_##name(T x, T y)                                                           \
    {                                                                                              \
        return x operator y;                                                                       \
    }
#define COMMON(T, kind)                                                                            \
    MASK(T, kind, eq, ==)                                                                          \
    MASK(T, kind, ne, !=)                                                                          \
    MASK(T, kind, lt, <)                                                                           \
    MASK(T, kind, le, <=)                                                                          \
    MASK(T, kind, gt, >)                                                                           \
    MASK(T, kind, ge, >=)                                                                          \
    MASK(bool, kind, both, &&)                                                                     \
    MASK(bool, kind, either, ||)                                                                   \
    HL_SIMD T kind##_set1(T x)                                                                     \
    {                                                                                              \
        return x;                                                                                  \
    }                                                                                              \
    HL_SIMD T kind##_truth(bool mask)                                                              \
    {                                                                                              \
        return mask;                                                                               \
    }                                                                                              \
    HL_SIMD T kind##_select(bool mask, T x, T y)                                                   \
    {                                                                                              \
        return mask ? x : y;                                                                       \
    }                                                                                              \
    HL_SIMD T kind##_keep(bool mask, T x)                                                          \
    {                                                                                              \
        return mask ? x : 0;                                                                       \
    }                                                                                              \
    HL_SIMD T kind##_max(T x, T y)                                                                 \
    {                                                                                              \
        return x > y ? x : y;                                                                      \
    }                                                                                              \
    HL_SIMD T kind##_min(T x, T y)                                                                 \
    {                                                                                              \
        return x < y ? x : y;                                                                      \
    }                                                                                              \
    HL_SIMD T kind##_relu(T x)                                                                     \
    {                                                                                              \
        return x < 0 ? 0 : x;                                                                      \
    }
COMMON(double, real)
COMMON(int64_t, whole)

#define REAL                     double
#define FUNCTION(name, operands) HL_SIMD double real_##name operands
#define F(name)                  real_##name
#include "ir/pointwise_functions.def"
#undef F

/* ---- micro-ops ---- */

static void run_random_f64(const pw_step *step, double *dst, int64_t n, const pw_random *random)
{
    uint16_t bits[PW_CHUNK + HL_RANDOM_SLACK];
    HL_ISA_NAME(hl_cpu_random_bits)
    (step->key, random->step, random->first_sample, random->per_sample, random->begin, n, bits);
    for (int64_t i = 0; i < n; i++) {
        double kept = bits[i] < step->threshold ? 0 : step->number;
        dst[i] = step->op == HL_PW_DROPOUT_MASK ? kept : (bits[i] + 0.5) / 65536;
    }
}

/* T is the type, step_* 0 for an operand that is one number. */
#define STEP(id, expression)                                                                       \
    case HL_PW_##id:                                                                               \
        for (int64_t i = 0; i < n; i++) {                                                          \
            T a = at_a[i * step_a], b = at_b[i * step_b], c = at_c[i * step_c];                    \
            (void)a, (void)b, (void)c;                                                             \
            dst[i] = (T)(expression);                                                              \
        }                                                                                          \
        break;

#define READ_STEP                                                                                  \
    T *dst = at[step->dst];                                                                        \
    const T *at_a = at[step->a], *at_b = at[step->b], *at_c = at[step->c];                         \
    int64_t step_a = !(step->scalar & 1), step_b = !(step->scalar & 2);                            \
    int64_t step_c = !(step->scalar & 4);                                                          \
    hl_dtype dtype = (hl_dtype)step->dtype

#define FILL_CASES                                                                                 \
    case HL_PW_NUMBER:                                                                             \
        for (int64_t i = 0; i < n; i++) dst[i] = (T)step->number;                                  \
        break;                                                                                     \
    case PW_SPREAD: {                                                                              \
        T value = *at_a;                                                                           \
        for (int64_t i = 0; i < n; i++) dst[i] = value;                                            \
        break;                                                                                     \
    }

#define T       double
#define F(name) real_##name
void HL_ISA_NAME(hl_pw_run_f64)(const pw_step *step, void *const *at, int64_t n,
                                const pw_random *random)
{
    READ_STEP;
    switch (step->op) {
        FILL_CASES
#define HL_PW(id, name, operands, result, flags, vjp, cost, expression, doc) STEP(id, expression)
#define HL_PW_CAST(id, name, attrs, vjp, cost, expression, doc)              STEP(id, expression)
#define HL_PW_DRAW(id, ...)                                                                        \
    case HL_PW_##id: run_random_f64(step, dst, n, random); break;
#include "ir/pointwise.def"
    default: break;
    }
}
#undef T
#undef F

/* No program of integers has a FLOAT op. */
#define WHOLE_ANY(id, expression)    STEP(id, expression)
#define WHOLE_NUMBER(id, expression) STEP(id, expression)
#define WHOLE_FIRST(id, expression)  STEP(id, expression)
#define WHOLE_CHOSEN(id, expression) STEP(id, expression)
#define WHOLE_BOOL(id, expression)   STEP(id, expression)
#define WHOLE_FLOAT(id, expression)

#define T       int64_t
#define F(name) whole_##name
void HL_ISA_NAME(hl_pw_run_i64)(const pw_step *step, void *const *at, int64_t n,
                                const pw_random *random)
{
    READ_STEP;
    (void)random;
    switch (step->op) {
        FILL_CASES
#define HL_PW(id, name, operands, result, flags, vjp, cost, expression, doc)                       \
    WHOLE_##result(id, expression)
#define HL_PW_CAST(id, name, attrs, vjp, cost, expression, doc) STEP(id, expression)
#include "ir/pointwise.def"
    default: break;
    }
}
#undef T
#undef F

/* ---- conversions ---- */

static inline int64_t truncate_f64(double x)
{
    if (!(x > -0x1p63)) return x != x ? 0 : INT64_MIN;
    return x < 0x1p63 ? (int64_t)x : INT64_MAX;
}

#define CONVERT_FROM(type, expression)                                                             \
    {                                                                                              \
        const type *from = src;                                                                    \
        for (int64_t i = 0; i < n; i++) to[i] = (expression);                                      \
        break;                                                                                     \
    }

#define LOAD_CASES                                                                                 \
    case HL_DTYPE_I64: CONVERT_FROM(int64_t, (T)from[i])                                           \
    case HL_DTYPE_I32: CONVERT_FROM(int32_t, (T)from[i])                                           \
    case HL_DTYPE_I16: CONVERT_FROM(int16_t, (T)from[i])                                           \
    case HL_DTYPE_I8: CONVERT_FROM(int8_t, (T)from[i])                                             \
    case HL_DTYPE_U8: CONVERT_FROM(uint8_t, (T)from[i])                                            \
    case HL_DTYPE_BOOL: CONVERT_FROM(uint8_t, (T)(from[i] != 0))

#define T float
static void load_f32(float *to, hl_dtype dtype, const void *src, int64_t n)
{
    switch (dtype) {
        LOAD_CASES
    case HL_DTYPE_F64: CONVERT_FROM(double, (T)from[i])
    case HL_DTYPE_BF16: CONVERT_FROM(uint16_t, hl_bf16_to_f32(from[i]))
    case HL_DTYPE_F16: CONVERT_FROM(uint16_t, hl_from_f16(from[i]))
    default:
        if (to != src) memcpy(to, src, (size_t)n * sizeof *to);
    }
}
#undef T
#define T double
static void load_f64(double *to, hl_dtype dtype, const void *src, int64_t n)
{
    switch (dtype) {
        LOAD_CASES
    case HL_DTYPE_F32: CONVERT_FROM(float, (T)from[i])
    case HL_DTYPE_BF16: CONVERT_FROM(uint16_t, (T)hl_bf16_to_f32(from[i]))
    case HL_DTYPE_F16: CONVERT_FROM(uint16_t, (T)hl_f16_to_f32(from[i]))
    default:
        if (to != src) memcpy(to, src, (size_t)n * sizeof *to);
    }
}
#undef T
#define T int64_t
static void load_i64(int64_t *to, hl_dtype dtype, const void *src, int64_t n)
{
    switch (dtype) {
        LOAD_CASES
    case HL_DTYPE_F32: CONVERT_FROM(float, truncate_f64((double)from[i]))
    case HL_DTYPE_F64: CONVERT_FROM(double, truncate_f64(from[i]))
    default: break;
    }
}
#undef T

void HL_ISA_NAME(hl_pw_load)(hl_pw_kind kind, void *dst, hl_dtype dtype, const void *src, int64_t n)
{
    if (kind == HL_PW_F32) {
        load_f32(dst, dtype, src, n);
    } else if (kind == HL_PW_F64) {
        load_f64(dst, dtype, src, n);
    } else {
        load_i64(dst, dtype, src, n);
    }
}

#define CONVERT_TO(type, expression)                                                               \
    {                                                                                              \
        type *to = dst;                                                                            \
        for (int64_t i = 0; i < n; i++) to[i] = (type)(expression);                                \
        break;                                                                                     \
    }

/* Integer(x) is x as int64. */
#define STORE_INTEGERS(integer)                                                                    \
    case HL_DTYPE_I64: CONVERT_TO(int64_t, integer(from[i]))                                       \
    case HL_DTYPE_I32: CONVERT_TO(int32_t, integer(from[i]))                                       \
    case HL_DTYPE_I16: CONVERT_TO(int16_t, integer(from[i]))                                       \
    case HL_DTYPE_I8: CONVERT_TO(int8_t, integer(from[i]))                                         \
    case HL_DTYPE_U8: CONVERT_TO(uint8_t, integer(from[i]))                                        \
    case HL_DTYPE_BOOL: CONVERT_TO(uint8_t, from[i] != 0)

#define STORE_FLOATS                                                                               \
    case HL_DTYPE_F32: CONVERT_TO(float, from[i])                                                  \
    case HL_DTYPE_F64: CONVERT_TO(double, from[i])                                                 \
    case HL_DTYPE_BF16: CONVERT_TO(uint16_t, hl_f32_to_bf16((float)from[i]))                       \
    case HL_DTYPE_F16: CONVERT_TO(uint16_t, hl_to_f16((float)from[i]))

static void store_f32(hl_dtype dtype, void *dst, const float *from, int64_t n)
{
    switch (dtype) {
        STORE_INTEGERS(truncate_f64)
        STORE_FLOATS
    default: break;
    }
}
static void store_f64(hl_dtype dtype, void *dst, const double *from, int64_t n)
{
    switch (dtype) {
        STORE_INTEGERS(truncate_f64)
        STORE_FLOATS
    default: break;
    }
}
static void store_i64(hl_dtype dtype, void *dst, const int64_t *from, int64_t n)
{
    switch (dtype) {
        STORE_INTEGERS()
        STORE_FLOATS
    default: break;
    }
}

void HL_ISA_NAME(hl_pw_store)(hl_pw_kind kind, hl_dtype dtype, void *dst, const void *src,
                              int64_t n)
{
    if (kind == HL_PW_F32) {
        store_f32(dtype, dst, src, n);
    } else if (kind == HL_PW_F64) {
        store_f64(dtype, dst, src, n);
    } else {
        store_i64(dtype, dst, src, n);
    }
}

/* ---- sums ---- */

/* Four rows are summed side by side, so that an addition need not wait; indices are constants, so
 * that the sums stay in registers. */
HL_SIMD hl_v sum_vectors(const float *src, int64_t n_rows, int64_t n_cols)
{
    hl_v sum[4] = {{0}};
    int64_t r = 0;
    for (; r + 4 <= n_rows; r += 4) {
        for (int u = 0; u < 4; u++) sum[u] += hl_v_load(src + (r + u) * n_cols);
    }
    for (int u = 0; u < 3; u++) {
        if (r + u < n_rows) sum[u] += hl_v_load(src + (r + u) * n_cols);
    }
    return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

/* The last n < HL_VL columns. */
HL_SIMD hl_v sum_vectors_n(const float *src, int64_t n_rows, int64_t n_cols, int64_t n)
{
    hl_v sum[2] = {{0}};
    int64_t r = 0;
    for (; r + 2 <= n_rows; r += 2) {
        for (int u = 0; u < 2; u++) sum[u] += hl_v_load_n(src + (r + u) * n_cols, n);
    }
    if (r < n_rows) sum[0] += hl_v_load_n(src + r * n_cols, n);
    return sum[0] + sum[1];
}

static float sum_row(const float *src, int64_t n)
{
    if (n < HL_VL) {
        float sum = 0;
        for (int64_t i = 0; i < n; i++) sum += src[i];
        return sum;
    }
    hl_v sum[4] = {{0}};
    int64_t i = 0;
    for (; i + 4 * HL_VL <= n; i += 4 * HL_VL) {
        for (int u = 0; u < 4; u++) sum[u] += hl_v_load(src + i + u * HL_VL);
    }
    for (; i + HL_VL <= n; i += HL_VL) sum[0] += hl_v_load(src + i);
    if (i < n) sum[1] += hl_v_load_n(src + i, n - i);
    return hl_v_sum((sum[0] + sum[2]) + (sum[1] + sum[3]));
}

#define SUM_ROWS(T)                                                                                \
    for (int64_t r = 0; r < n_rows; r++) {                                                         \
        for (int64_t c = 0; c < n_cols; c++) ((T *)acc)[c] += ((const T *)src)[r * n_cols + c];    \
    }
#define SUM_COLS(T)                                                                                \
    for (int64_t r = 0; r < n_rows; r++) {                                                         \
        T sum = adds ? ((T *)acc)[r] : 0;                                                          \
        for (int64_t c = 0; c < n_cols; c++) sum += ((const T *)src)[r * n_cols + c];              \
        ((T *)acc)[r] = sum;                                                                       \
    }

void HL_ISA_NAME(hl_pw_sum_rows)(hl_pw_kind kind, void *acc, const void *src, int64_t n_rows,
                                 int64_t n_cols)
{
    if (kind == HL_PW_F64) {
        SUM_ROWS(double)
    } else if (kind == HL_PW_I64) {
        SUM_ROWS(int64_t)
    } else {
        float *to = acc;
        const float *from = src;
        int64_t c = 0;
        for (; c + HL_VL <= n_cols; c += HL_VL) {
            hl_v_store(to + c, hl_v_load(to + c) + sum_vectors(from + c, n_rows, n_cols));
        }
        if (c == n_cols) return;
        int64_t n = n_cols - c;
        hl_v sum = sum_vectors_n(from + c, n_rows, n_cols, n);
        hl_v_store_n(to + c, hl_v_load_n(to + c, n) + sum, n);
    }
}

void HL_ISA_NAME(hl_pw_sum_cols)(hl_pw_kind kind, void *acc, const void *src, int64_t n_rows,
                                 int64_t n_cols, bool adds)
{
    if (kind == HL_PW_F64) {
        SUM_COLS(double)
    } else if (kind == HL_PW_I64) {
        SUM_COLS(int64_t)
    } else {
        for (int64_t r = 0; r < n_rows; r++) {
            float sum = sum_row((const float *)src + r * n_cols, n_cols);
            ((float *)acc)[r] = adds ? ((float *)acc)[r] + sum : sum;
        }
    }
}

void HL_ISA_NAME(hl_pw_sum_all)(hl_pw_kind kind, void *acc, const void *src, int64_t n)
{
    if (kind == HL_PW_I64) {
        for (int64_t i = 0; i < n; i++) *(int64_t *)acc += ((const int64_t *)src)[i];
    } else if (kind == HL_PW_F64) {
        for (int64_t i = 0; i < n; i++) *(double *)acc += ((const double *)src)[i];
    } else {
        *(double *)acc += (double)sum_row(src, n);
    }
}
