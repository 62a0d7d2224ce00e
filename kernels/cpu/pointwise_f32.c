/* Micro-ops on a chunk of fp32: one flat vector loop each, and the cheap ones as links of a chain.
 *
 * The functions below take one vector to one vector and are inlined into a driver per arity; a
 * call per chunk is the whole cost of interpretation. A scalar operand is held in a register
 * instead of a buffer. Cheap micro-ops cost less than the loads and stores around them: in a chain
 * they pass eight vectors on as arguments of a call in tail position, a jump, so that only a
 * chain's ends touch memory.
 *
 * Rejected: all loops in one function under a switch (the compiler then keeps addresses and even
 * vectors of every loop on the stack, at three times the cost), loops for pairs of micro-ops (many
 * functions, and every other result still goes through memory). */
#include <math.h>

#include "base/half.h"
#include "kernels/cpu/pointwise_chunk.h"
#include "kernels/cpu/random.h"
#include "kernels/cpu/simd/math.h"

typedef hl_v (*unary_fn)(hl_v);
typedef hl_v (*binary_fn)(hl_v, hl_v);
typedef hl_v (*ternary_fn)(hl_v, hl_v, hl_v);

HL_SIMD void run_unary(unary_fn fn, float *dst, const float *a, int64_t n)
{
    int64_t i = 0;
    for (; i + HL_VL <= n; i += HL_VL) hl_v_store(dst + i, fn(hl_v_load(a + i)));
    if (i < n) hl_v_store_n(dst + i, fn(hl_v_load_n(a + i, n - i)), n - i);
}

HL_SIMD void run_binary(binary_fn fn, float *dst, const float *a, const float *b, int scalar,
                        int64_t n)
{
    int64_t i = 0;
    hl_v x = hl_v_set1(n > 0 ? *a : 0), y = hl_v_set1(n > 0 ? *b : 0);
    if (scalar == 2) {
        for (; i + HL_VL <= n; i += HL_VL) hl_v_store(dst + i, fn(hl_v_load(a + i), y));
    } else if (scalar == 1) {
        for (; i + HL_VL <= n; i += HL_VL) hl_v_store(dst + i, fn(x, hl_v_load(b + i)));
    } else if (scalar == 0) {
        for (; i + HL_VL <= n; i += HL_VL) {
            hl_v_store(dst + i, fn(hl_v_load(a + i), hl_v_load(b + i)));
        }
    }
    for (; i < n; i += HL_VL) {
        int64_t left = n - i < HL_VL ? n - i : HL_VL;
        if (!(scalar & 1)) x = hl_v_load_n(a + i, left);
        if (!(scalar & 2)) y = hl_v_load_n(b + i, left);
        hl_v_store_n(dst + i, fn(x, y), left);
    }
}

HL_SIMD void run_ternary(ternary_fn fn, float *dst, const float *a, const float *b, const float *c,
                         int scalar, int64_t n)
{
    int64_t i = 0;
    if (n == 0) return;
    hl_v x = hl_v_set1(*a), y = hl_v_set1(*b), z = hl_v_set1(*c);
    for (; i + HL_VL <= n; i += HL_VL) {
        if (!(scalar & 1)) x = hl_v_load(a + i);
        if (!(scalar & 2)) y = hl_v_load(b + i);
        if (!(scalar & 4)) z = hl_v_load(c + i);
        hl_v_store(dst + i, fn(x, y, z));
    }
    if (i == n) return;
    if (!(scalar & 1)) x = hl_v_load_n(a + i, n - i);
    if (!(scalar & 2)) y = hl_v_load_n(b + i, n - i);
    if (!(scalar & 4)) z = hl_v_load_n(c + i, n - i);
    hl_v_store_n(dst + i, fn(x, y, z), n - i);
}

/* ---- one vector ---- */

HL_SIMD hl_v truth(hl_vm mask)
{
    return hl_v_keep(mask, hl_v_set1(1));
}
HL_SIMD hl_v pw_sign(hl_v a)
{
    return truth(hl_v_gt(a, hl_v_zero())) - truth(hl_v_lt(a, hl_v_zero()));
}
HL_SIMD hl_v pw_rsqrt(hl_v a)
{
    return 1 / hl_v_sqrt(a);
}
HL_SIMD hl_v pw_reciprocal(hl_v a)
{
    return 1 / a;
}
HL_SIMD hl_v pw_softplus(hl_v a)
{
    hl_v tail = hl_v_log1p(hl_v_exp(-hl_v_abs(a)));
    return hl_v_max(hl_v_zero(), a) + tail;
}
HL_SIMD hl_v pw_relu(hl_v a)
{
    return hl_v_max(hl_v_zero(), a);
}
HL_SIMD hl_v pw_ceil(hl_v a)
{
    return -hl_v_floor(-a);
}
HL_SIMD hl_v pw_isfinite(hl_v a)
{
    return truth(hl_v_lt(hl_v_abs(a), hl_v_set1(INFINITY)));
}
HL_SIMD hl_v pw_not(hl_v a)
{
    return truth(hl_v_eq(a, hl_v_zero()));
}
HL_SIMD hl_v pw_truncate(hl_v a)
{
    return hl_v_copysign(hl_v_floor(hl_v_abs(a)), a);
}
HL_SIMD hl_v pw_is_true(hl_v a)
{
    return truth(hl_v_ne(a, hl_v_zero()));
}
HL_SIMD hl_v pw_copy(hl_v a)
{
    return a;
}
HL_SIMD hl_v pw_mod(hl_v a, hl_v b)
{
    hl_v r;
    for (int i = 0; i < HL_VL; i++) {
        float x = fmodf(a[i], b[i]);
        r[i] = x != 0 && (x < 0) != (b[i] < 0) ? x + b[i] : x;
    }
    return r;
}
HL_SIMD hl_v pw_maximum(hl_v a, hl_v b)
{
    return hl_v_select(hl_v_is_nan(a), a, hl_v_max(a, b));
}
HL_SIMD hl_v pw_minimum(hl_v a, hl_v b)
{
    return hl_v_select(hl_v_is_nan(a), a, hl_v_min(a, b));
}
#define COMPARE(name)                                                                              \
    HL_SIMD hl_v pw_##name(hl_v a, hl_v b)                                                         \
    {                                                                                              \
        return truth(hl_v_##name(a, b));                                                           \
    }
COMPARE(eq)
COMPARE(ne)
COMPARE(lt)
COMPARE(le)
COMPARE(gt)
COMPARE(ge)
#undef COMPARE
HL_SIMD hl_v pw_and(hl_v a, hl_v b)
{
    return truth(hl_vm_and(hl_v_ne(a, hl_v_zero()), hl_v_ne(b, hl_v_zero())));
}
HL_SIMD hl_v pw_or(hl_v a, hl_v b)
{
    return truth(hl_vm_or(hl_v_ne(a, hl_v_zero()), hl_v_ne(b, hl_v_zero())));
}
HL_SIMD hl_v pw_where(hl_v a, hl_v b, hl_v c)
{
    return hl_v_select(hl_v_ne(a, hl_v_zero()), b, c);
}

/* ---- steps that are no plain vector loop ---- */

static void run_cast(const pw_step *step, void *const *at, int64_t n, const pw_random *random)
{
    (void)random;
    hl_dtype dtype = (hl_dtype)step->dtype;
    float *dst = at[step->dst];
    const float *a = at[step->a];
    if (dtype == HL_DTYPE_F32 || dtype == HL_DTYPE_F64) {
        run_unary(pw_copy, dst, a, n);
    } else if (dtype == HL_DTYPE_BOOL) {
        run_unary(pw_is_true, dst, a, n);
    } else if (dtype == HL_DTYPE_BF16) {
        for (int64_t i = 0; i < n; i++) dst[i] = hl_bf16_to_f32(hl_f32_to_bf16(a[i]));
    } else if (dtype == HL_DTYPE_F16) {
        for (int64_t i = 0; i < n; i++) dst[i] = hl_from_f16(hl_to_f16(a[i]));
    } else {
        run_unary(pw_truncate, dst, a, n);
    }
}

static void run_random(const pw_step *step, void *const *at, int64_t n, const pw_random *random)
{
    uint16_t bits[PW_CHUNK + HL_RANDOM_SLACK];
    float *dst = at[step->dst];
    HL_ISA_NAME(hl_cpu_random_bits)
    (step->key, random->step, random->first_sample, random->per_sample, random->begin, n, bits);
    hl_vi limit = hl_vi_set1((int32_t)step->threshold - 1);
    hl_v scale = hl_v_set1((float)step->number);
    for (int64_t i = 0; i < n; i += HL_VL) {
        hl_vi word = __builtin_convertvector(*(const hl_vh_any *)(bits + i), hl_vi);
        hl_v value;
        if (step->op == HL_PW_DROPOUT) {
            value = hl_v_keep(hl_vi_gt(word, limit), scale);
        } else {
            value = (hl_vi_to_float(word) + 0.5f) * 0x1p-16f;
        }
        if (i + HL_VL <= n) {
            hl_v_store(dst + i, value);
        } else {
            hl_v_store_n(dst + i, value, n - i);
        }
    }
}

static void fill(float *dst, float value, int64_t n)
{
    for (int64_t i = 0; i < n; i++) dst[i] = value;
}
static void run_number(const pw_step *step, void *const *at, int64_t n, const pw_random *random)
{
    (void)random;
    fill(at[step->dst], (float)step->number, n);
}
static void run_spread(const pw_step *step, void *const *at, int64_t n, const pw_random *random)
{
    (void)random;
    fill(at[step->dst], *(const float *)at[step->a], n);
}

/* ---- dispatch ---- */

/* clang-format off */
#define UNARY_STEPS(X)                                                                             \
    X(NEG, hl_v_neg) X(ABS, hl_v_abs) X(SIGN, pw_sign) X(EXP, hl_v_exp) X(EXPM1, hl_v_expm1)       \
    X(LOG, hl_v_log) X(LOG1P, hl_v_log1p) X(SQRT, hl_v_sqrt) X(RSQRT, pw_rsqrt)                    \
    X(RECIPROCAL, pw_reciprocal) X(SIN, hl_v_sin) X(COS, hl_v_cos) X(TANH, hl_v_tanh)              \
    X(SIGMOID, hl_v_sigmoid) X(SOFTPLUS, pw_softplus) X(ERF, hl_v_erf) X(RELU, pw_relu)            \
    X(FLOOR, hl_v_floor) X(CEIL, pw_ceil) X(ROUND, hl_v_round) X(ISFINITE, pw_isfinite)            \
    X(NOT, pw_not)
#define BINARY_STEPS(X)                                                                            \
    X(ADD, hl_v_add) X(SUB, hl_v_sub) X(MUL, hl_v_mul) X(DIV, hl_v_div) X(POW, hl_v_pow)           \
    X(MOD, pw_mod) X(MAXIMUM, pw_maximum) X(MINIMUM, pw_minimum) X(EQ, pw_eq) X(NE, pw_ne)         \
    X(LT, pw_lt) X(LE, pw_le) X(GT, pw_gt) X(GE, pw_ge) X(AND, pw_and) X(OR, pw_or)
#define TERNARY_STEPS(X) X(WHERE, pw_where) X(FMA, hl_v_fma)
/* clang-format on */

#define UNARY(OP, fn)                                                                              \
    static void run_##OP(const pw_step *step, void *const *at, int64_t n, const pw_random *random) \
    {                                                                                              \
        (void)random;                                                                              \
        run_unary(fn, at[step->dst], at[step->a], n);                                              \
    }
#define BINARY(OP, fn)                                                                             \
    static void run_##OP(const pw_step *step, void *const *at, int64_t n, const pw_random *random) \
    {                                                                                              \
        (void)random;                                                                              \
        run_binary(fn, at[step->dst], at[step->a], at[step->b], step->scalar, n);                  \
    }
#define TERNARY(OP, fn)                                                                            \
    static void run_##OP(const pw_step *step, void *const *at, int64_t n, const pw_random *random) \
    {                                                                                              \
        (void)random;                                                                              \
        run_ternary(fn, at[step->dst], at[step->a], at[step->b], at[step->c], step->scalar, n);    \
    }
UNARY_STEPS(UNARY)
BINARY_STEPS(BINARY)
TERNARY_STEPS(TERNARY)
#undef UNARY
#undef BINARY
#undef TERNARY

#define ENTRY(OP, fn) [HL_PW_##OP] = run_##OP,
static const pw_run_fn RUN[PW_SPREAD + 1] = {
    UNARY_STEPS(ENTRY) BINARY_STEPS(ENTRY) TERNARY_STEPS(ENTRY)[HL_PW_CAST] = run_cast,
    [HL_PW_DROPOUT] = run_random,
    [HL_PW_UNIFORM] = run_random,
    [HL_PW_NUMBER] = run_number,
    [PW_SPREAD] = run_spread,
};

void HL_ISA_NAME(hl_pw_run_f32)(const pw_step *step, void *const *at, int64_t n,
                                const pw_random *random)
{
    RUN[step->op](step, at, n, random);
}

/* ---- chains ---- */

#define GROUP                                                                                      \
    hl_v v0, hl_v v1, hl_v v2, hl_v v3, hl_v v4, hl_v v5, hl_v v6, hl_v v7, const pw_link *link,   \
        void *const *at, int64_t i
#define EACH(X) X(v0, 0) X(v1, 1) X(v2, 2) X(v3, 3) X(v4, 4) X(v5, 5) X(v6, 6) X(v7, 7)
#define NEXT    link[1].fn(v0, v1, v2, v3, v4, v5, v6, v7, link + 1, at, i)

static void link_load(GROUP)
{
    const float *src = (const float *)at[link->other[0]] + i;
#define LOAD(v, j) v = hl_v_load(src + j * HL_VL);
    EACH(LOAD)
#undef LOAD
    NEXT;
}
static void link_store(GROUP)
{
    float *dst = (float *)at[link->other[0]] + i;
#define STORE(v, j) hl_v_store(dst + j * HL_VL, v);
    EACH(STORE)
#undef STORE
    NEXT;
}
static void link_return(GROUP)
{
    (void)v0, (void)v1, (void)v2, (void)v3, (void)v4, (void)v5, (void)v6, (void)v7;
    (void)link, (void)at, (void)i;
}

#define UNARY(v, j) v = fn(v);
#define UNARY_LINK(OP, op_fn)                                                                      \
    static void link_##OP(GROUP)                                                                   \
    {                                                                                              \
        const unary_fn fn = op_fn;                                                                 \
        EACH(UNARY)                                                                                \
        NEXT;                                                                                      \
    }
UNARY_LINK(NEG, hl_v_neg)
UNARY_LINK(ABS, hl_v_abs)
UNARY_LINK(RELU, pw_relu)
UNARY_LINK(SQRT, hl_v_sqrt)

/* The operand in the registers is the first or the second one. */
#define FIRST_OF_LOAD(v, j)  v = fn(v, hl_v_load(y + j * HL_VL));
#define FIRST_OF_ONE(v, j)   v = fn(v, one);
#define SECOND_OF_LOAD(v, j) v = fn(hl_v_load(y + j * HL_VL), v);
#define SECOND_OF_ONE(v, j)  v = fn(one, v);
#define BINARY_LINK(OP, op_fn, place)                                                              \
    static void link_##OP##_##place(GROUP)                                                         \
    {                                                                                              \
        const binary_fn fn = op_fn;                                                                \
        const float *y = at[link->other[0]];                                                       \
        if (link->scalar) {                                                                        \
            hl_v one = hl_v_set1(*y);                                                              \
            EACH(place##_OF_ONE)                                                                   \
        } else {                                                                                   \
            y += i;                                                                                \
            EACH(place##_OF_LOAD)                                                                  \
        }                                                                                          \
        NEXT;                                                                                      \
    }
/* clang-format off */
#define BINARY_LINKS(X)                                                                            \
    X(ADD, hl_v_add) X(SUB, hl_v_sub) X(MUL, hl_v_mul) X(DIV, hl_v_div) X(MAXIMUM, pw_maximum)     \
    X(MINIMUM, pw_minimum) X(LT, pw_lt) X(LE, pw_le) X(GT, pw_gt) X(GE, pw_ge)
/* clang-format on */
#define BOTH_PLACES(OP, fn) BINARY_LINK(OP, fn, FIRST) BINARY_LINK(OP, fn, SECOND)
BINARY_LINKS(BOTH_PLACES)

HL_SIMD hl_v load_other(const float *at, int scalar, int64_t i)
{
    return scalar ? hl_v_set1(*at) : hl_v_load(at + i);
}
#define FIRST_OF(v, j)  v = pw_where(v, OTHER(0, j), OTHER(1, j));
#define SECOND_OF(v, j) v = pw_where(OTHER(0, j), v, OTHER(1, j));
#define THIRD_OF(v, j)  v = pw_where(OTHER(0, j), OTHER(1, j), v);
#define OTHER(k, j)     load_other(at[link->other[k]], link->scalar >> k & 1, i + j * HL_VL)
#define WHERE_LINK(place)                                                                          \
    static void link_WHERE_##place(GROUP)                                                          \
    {                                                                                              \
        EACH(place##_OF)                                                                           \
        NEXT;                                                                                      \
    }
WHERE_LINK(FIRST)
WHERE_LINK(SECOND)
WHERE_LINK(THIRD)

pw_link_fn HL_ISA_NAME(hl_pw_link_end)(pw_link_end end)
{
    static const pw_link_fn link_of[] = {
        [PW_LINK_LOAD] = link_load, [PW_LINK_STORE] = link_store, [PW_LINK_RETURN] = link_return};
    return link_of[end];
}

#define UNARY_ENTRY(OP)      [HL_PW_##OP] = {link_##OP},
#define BINARY_ENTRY(OP, fn) [HL_PW_##OP] = {link_##OP##_FIRST, link_##OP##_SECOND},
pw_link_fn HL_ISA_NAME(hl_pw_link_find)(int op, int position)
{
    static const pw_link_fn link_of[HL_PW_COUNT][3] = {
        BINARY_LINKS(BINARY_ENTRY) UNARY_ENTRY(NEG) UNARY_ENTRY(ABS) UNARY_ENTRY(RELU) UNARY_ENTRY(
            SQRT)[HL_PW_WHERE] = {link_WHERE_FIRST, link_WHERE_SECOND, link_WHERE_THIRD},
    };
    return op < HL_PW_COUNT ? link_of[op][position] : NULL;
}

int64_t HL_ISA_NAME(hl_pw_run_chain)(const pw_link *link, void *const *at, int64_t n)
{
    hl_v v = hl_v_zero();
    int64_t i = 0;
    for (; i + PW_GROUP * HL_VL <= n; i += PW_GROUP * HL_VL)
        link->fn(v, v, v, v, v, v, v, v, link, at, i);
    return i;
}
