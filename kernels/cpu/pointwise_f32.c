/* Micro-ops on a chunk of fp32: one flat vector loop each, and the cheap ones as links of a chain.
 * All are made from the rows of ir/pointwise.def.
 *
 * A row's expression takes one vector to one vector and is inlined into a driver per arity; a
 * call per chunk is the whole cost of interpretation. A scalar operand is held in a register
 * instead of a buffer. Cheap micro-ops cost less than the loads and stores around them: in a chain
 * they pass eight vectors on as arguments of a call in tail position, a jump, so that only a
 * chain's ends touch memory.
 *
 * Rejected: all loops in one function under a switch (the compiler then keeps addresses and even
 * vectors of every loop on the stack, at three times the cost), loops for pairs of micro-ops (many
 * functions, and every other result still goes through memory). */
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

#define VECTOR_1(id, expression)                                                                   \
    HL_SIMD hl_v compute_##id(hl_v a)                                                              \
    {                                                                                              \
        return expression;                                                                         \
    }
#define VECTOR_2(id, expression)                                                                   \
    HL_SIMD hl_v compute_##id(hl_v a, hl_v b)                                                      \
    {                                                                                              \
        return expression;                                                                         \
    }
#define VECTOR_3(id, expression)                                                                   \
    HL_SIMD hl_v compute_##id(hl_v a, hl_v b, hl_v c)                                              \
    {                                                                                              \
        return expression;                                                                         \
    }
#define F(name)                                                       hl_v_##name
#define HL_PW(id, name, n, result, flags, vjp, cost, expression, doc) VECTOR_##n(id, expression)
#include "ir/pointwise.def"
#undef F

HL_SIMD hl_v truncate(hl_v a)
{
    return hl_v_copysign(hl_v_floor(hl_v_abs(a)), a);
}
HL_SIMD hl_v is_true(hl_v a)
{
    return hl_v_truth(hl_v_ne(a, hl_v_zero()));
}
HL_SIMD hl_v copy(hl_v a)
{
    return a;
}

/* ---- steps that are no plain vector loop ---- */

static void run_cast(const pw_step *step, void *const *at, int64_t n, const pw_random *random)
{
    (void)random;
    hl_dtype dtype = (hl_dtype)step->dtype;
    float *dst = at[step->dst];
    const float *a = at[step->a];
    if (dtype == HL_DTYPE_F32 || dtype == HL_DTYPE_F64) {
        run_unary(copy, dst, a, n);
    } else if (dtype == HL_DTYPE_BOOL) {
        run_unary(is_true, dst, a, n);
    } else if (dtype == HL_DTYPE_BF16) {
        for (int64_t i = 0; i < n; i++) dst[i] = hl_bf16_to_f32(hl_f32_to_bf16(a[i]));
    } else if (dtype == HL_DTYPE_F16) {
        for (int64_t i = 0; i < n; i++) dst[i] = hl_from_f16(hl_to_f16(a[i]));
    } else {
        run_unary(truncate, dst, a, n);
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
        if (step->op == HL_PW_DROPOUT_MASK) {
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

#define RUN(id, call)                                                                              \
    static void run_##id(const pw_step *step, void *const *at, int64_t n, const pw_random *random) \
    {                                                                                              \
        (void)random;                                                                              \
        call;                                                                                      \
    }
#define RUN_1(id) RUN(id, run_unary(compute_##id, at[step->dst], at[step->a], n))
#define RUN_2(id)                                                                                  \
    RUN(id, run_binary(compute_##id, at[step->dst], at[step->a], at[step->b], step->scalar, n))
#define RUN_3(id)                                                                                  \
    RUN(id, run_ternary(compute_##id, at[step->dst], at[step->a], at[step->b], at[step->c],        \
                        step->scalar, n))
#define HL_PW(id, name, n, ...) RUN_##n(id)
#include "ir/pointwise.def"

static const pw_run_fn run_of[PW_SPREAD + 1] = {
#define HL_PW(id, ...)      [HL_PW_##id] = run_##id,
#define HL_PW_CAST(id, ...) [HL_PW_##id] = run_cast,
#define HL_PW_DRAW(id, ...) [HL_PW_##id] = run_random,
#include "ir/pointwise.def"
    [HL_PW_NUMBER] = run_number,
    [PW_SPREAD] = run_spread,
};

void HL_ISA_NAME(hl_pw_run_f32)(const pw_step *step, void *const *at, int64_t n,
                                const pw_random *random)
{
    run_of[step->op](step, at, n, random);
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
#define LINK_1(id)                                                                                 \
    static void link_##id(GROUP)                                                                   \
    {                                                                                              \
        const unary_fn fn = compute_##id;                                                          \
        EACH(UNARY)                                                                                \
        NEXT;                                                                                      \
    }

/* The operand in the registers is the first or the second one. */
#define FIRST_OF_LOAD(v, j)  v = fn(v, hl_v_load(y + j * HL_VL));
#define FIRST_OF_ONE(v, j)   v = fn(v, one);
#define SECOND_OF_LOAD(v, j) v = fn(hl_v_load(y + j * HL_VL), v);
#define SECOND_OF_ONE(v, j)  v = fn(one, v);
#define BINARY_LINK(id, place)                                                                     \
    static void link_##id##_##place(GROUP)                                                         \
    {                                                                                              \
        const binary_fn fn = compute_##id;                                                         \
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
#define LINK_2(id) BINARY_LINK(id, FIRST) BINARY_LINK(id, SECOND)

HL_SIMD hl_v load_other(const float *at, int scalar, int64_t i)
{
    return scalar ? hl_v_set1(*at) : hl_v_load(at + i);
}
#define FIRST_OF(v, j)  v = fn(v, OTHER(0, j), OTHER(1, j));
#define SECOND_OF(v, j) v = fn(OTHER(0, j), v, OTHER(1, j));
#define THIRD_OF(v, j)  v = fn(OTHER(0, j), OTHER(1, j), v);
#define OTHER(k, j)     load_other(at[link->other[k]], link->scalar >> k & 1, i + j * HL_VL)
#define TERNARY_LINK(id, place)                                                                    \
    static void link_##id##_##place(GROUP)                                                         \
    {                                                                                              \
        const ternary_fn fn = compute_##id;                                                        \
        EACH(place##_OF)                                                                           \
        NEXT;                                                                                      \
    }
#define LINK_3(id) TERNARY_LINK(id, FIRST) TERNARY_LINK(id, SECOND) TERNARY_LINK(id, THIRD)

#define LINK_CHEAP(id, n) LINK_##n(id)
#define LINK_SERIES(id, n)
#define LINK_LANES(id, n)
#define HL_PW(id, name, n, result, flags, vjp, cost, ...) LINK_##cost(id, n)
#include "ir/pointwise.def"

pw_link_fn HL_ISA_NAME(hl_pw_link_end)(pw_link_end end)
{
    static const pw_link_fn link_of[] = {
        [PW_LINK_LOAD] = link_load, [PW_LINK_STORE] = link_store, [PW_LINK_RETURN] = link_return};
    return link_of[end];
}

#define LINKS_1(id)        link_##id
#define LINKS_2(id)        link_##id##_FIRST, link_##id##_SECOND
#define LINKS_3(id)        link_##id##_FIRST, link_##id##_SECOND, link_##id##_THIRD
#define ENTRY_CHEAP(id, n) [HL_PW_##id] = {LINKS_##n(id)},
#define ENTRY_SERIES(id, n)
#define ENTRY_LANES(id, n)
pw_link_fn HL_ISA_NAME(hl_pw_link_find)(int op, int position)
{
    static const pw_link_fn link_of[HL_PW_COUNT][3] = {
#define HL_PW(id, name, n, result, flags, vjp, cost, ...) ENTRY_##cost(id, n)
#include "ir/pointwise.def"
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
