/* SIMD: one source, several instruction sets.
 *
 * Every kernels/cpu source is compiled three times, with -DHL_ISA=portable (no -m flags),
 * -DHL_ISA=avx2 (-mavx2 -mfma -mf16c) and -DHL_ISA=avx512 (-mavx512f -mavx512bw -mavx512dq
 * -mavx512vl -mprefer-vector-width=512), always with -ffp-contract=off and never with -ffast-math.
 * HL_ISA_NAME(f) is f_portable, f_avx2 or f_avx512, so that the three live in one library and are
 * chosen at run time.
 *
 * The idea: vectors are GCC vector extensions of the set's width, so + - * / and most integer work
 * are the language's own operators, the same text for every set; intrinsics stand only where the
 * language has no word (fma, masks, rounding, gathers). What is named here means the same on every
 * set except where its comment says otherwise; only the number of lanes differs.
 *
 * The invariant: strict IEEE. A multiply and an add are fused exactly where hl_v_fma is written,
 * and the order of additions in hl_v_sum is a fixed tree, so a kernel gives the same bits in every
 * run of one set. Rejected: one function body per set (three sources drift apart) and a C++
 * wrapper class (the core is C).
 *
 * Every `_n` function touches only the first n lanes of memory, 0 <= n <= HL_VL. */
#ifndef HL_KERNELS_CPU_SIMD_H
#define HL_KERNELS_CPU_SIMD_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/half.h"

#ifndef HL_ISA
#error "compile with -DHL_ISA=portable, avx2 or avx512"
#endif

#define HL_JOIN2(a, b) a##b
#define HL_JOIN(a, b)  HL_JOIN2(a, b)
#define HL_ISA_NAME(f) HL_JOIN(f##_, HL_ISA)

#define HL_ISA_IS_portable  0
#define HL_ISA_IS_avx2      2
#define HL_ISA_IS_avx512    3
#define HL_ISA_IS_CODE(isa) HL_JOIN(HL_ISA_IS_, isa)
#define HL_ISA_AVX512       (HL_ISA_IS_CODE(HL_ISA) == 3)
#define HL_ISA_AVX2         (HL_ISA_IS_CODE(HL_ISA) == 2)

#if HL_ISA_AVX512
#ifndef __AVX512DQ__
#error "HL_ISA=avx512 needs -mavx512f -mavx512bw -mavx512dq -mavx512vl"
#endif
#include <immintrin.h>
#define HL_VL 16
#elif HL_ISA_AVX2
#if !defined(__AVX2__) || !defined(__FMA__)
#error "HL_ISA=avx2 needs -mavx2 -mfma -mf16c"
#endif
#include <immintrin.h>
#define HL_VL 8
#else
#define HL_VL 4
#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__ARM_NEON) && defined(__aarch64__)
#include <arm_neon.h>
#endif
#endif

#define HL_SIMD         static inline __attribute__((always_inline, unused))
#define HL_VECTOR_BYTES (HL_VL * 4)

typedef float hl_v __attribute__((vector_size(HL_VECTOR_BYTES)));
typedef int32_t hl_vi __attribute__((vector_size(HL_VECTOR_BYTES)));
typedef uint32_t hl_vu __attribute__((vector_size(HL_VECTOR_BYTES)));
typedef float hl_v_any __attribute__((vector_size(HL_VECTOR_BYTES), aligned(4), may_alias));
typedef int32_t hl_vi_any __attribute__((vector_size(HL_VECTOR_BYTES), aligned(4), may_alias));
typedef uint16_t hl_vh __attribute__((vector_size(HL_VECTOR_BYTES / 2)));
typedef uint16_t hl_vh_any __attribute__((vector_size(HL_VECTOR_BYTES / 2), aligned(2), may_alias));

/* One truth value per lane: a mask register on AVX-512, all-ones or all-zeros lanes elsewhere. */
#if HL_ISA_AVX512
typedef __mmask16 hl_vm;
#else
typedef hl_vi hl_vm;
#endif

/* ---- constants, casts ---- */

HL_SIMD hl_v hl_v_set1(float x)
{
    return x - (hl_v){0};
}
HL_SIMD hl_v hl_v_zero(void)
{
    return (hl_v){0};
}
HL_SIMD hl_vi hl_vi_set1(int32_t x)
{
    return x - (hl_vi){0};
}
HL_SIMD hl_vi hl_vi_zero(void)
{
    return (hl_vi){0};
}
/* 0, 1, 2, ... */
HL_SIMD hl_vi hl_vi_iota(void)
{
#if HL_VL == 16
    return (hl_vi){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#elif HL_VL == 8
    return (hl_vi){0, 1, 2, 3, 4, 5, 6, 7};
#else
    return (hl_vi){0, 1, 2, 3};
#endif
}

/* ---- masks ---- */

HL_SIMD hl_vm hl_vm_and(hl_vm a, hl_vm b)
{
    return a & b;
}
HL_SIMD hl_vm hl_vm_or(hl_vm a, hl_vm b)
{
    return a | b;
}
HL_SIMD hl_vm hl_vm_xor(hl_vm a, hl_vm b)
{
    return a ^ b;
}
HL_SIMD hl_vm hl_vm_not(hl_vm a)
{
    return (hl_vm)~a;
}
/* The first n lanes true; any n >= HL_VL gives all, n <= 0 none. */
HL_SIMD hl_vm hl_vm_first(int64_t n)
{
#if HL_ISA_AVX512
    return n >= HL_VL ? 0xFFFF : n <= 0 ? 0 : (hl_vm)((1u << n) - 1);
#else
    return hl_vi_iota() < hl_vi_set1(n > HL_VL ? HL_VL : (int32_t)n);
#endif
}
HL_SIMD bool hl_vm_any(hl_vm a)
{
#if HL_ISA_AVX512
    return a != 0;
#elif HL_ISA_AVX2
    return _mm256_movemask_ps((__m256)a) != 0;
#else
    uint64_t half[2];
    memcpy(half, &a, sizeof half);
    return (half[0] | half[1]) != 0;
#endif
}

/* mask ? yes : no */
HL_SIMD hl_v hl_v_select(hl_vm mask, hl_v yes, hl_v no)
{
#if HL_ISA_AVX512
    return _mm512_mask_blend_ps(mask, no, yes);
#elif HL_ISA_AVX2
    return _mm256_blendv_ps(no, yes, (__m256)mask);
#else
    return (hl_v)((mask & (hl_vi)yes) | (~mask & (hl_vi)no));
#endif
}
HL_SIMD hl_vi hl_vi_select(hl_vm mask, hl_vi yes, hl_vi no)
{
    return (hl_vi)hl_v_select(mask, (hl_v)yes, (hl_v)no);
}
/* mask ? a : 0 */
HL_SIMD hl_v hl_v_keep(hl_vm mask, hl_v a)
{
#if HL_ISA_AVX512
    return _mm512_maskz_mov_ps(mask, a);
#else
    return (hl_v)(mask & (hl_vi)a);
#endif
}

/* Comparisons are C's: false with a NaN, except ne, which is true. */
#if HL_ISA_AVX512
#define HL_SIMD_COMPARE(name, operator, code)                                                      \
    HL_SIMD hl_vm hl_v_##name(hl_v a, hl_v b)                                                      \
    {                                                                                              \
        return _mm512_cmp_ps_mask(a, b, code);                                                     \
    }
#define HL_SIMD_COMPARE_INT(name, operator, intrinsic)                                             \
    HL_SIMD hl_vm hl_vi_##name(hl_vi a, hl_vi b)                                                   \
    {                                                                                              \
        return intrinsic((__m512i)a, (__m512i)b);                                                  \
    }
#else
#define HL_SIMD_COMPARE(name, operator, code)                                                      \
    HL_SIMD hl_vm hl_v_##name(hl_v a, hl_v b)                                                      \
    {                                                                                              \
        return (hl_vm)(a operator b);                                                              \
    }
#define HL_SIMD_COMPARE_INT(name, operator, intrinsic)                                             \
    HL_SIMD hl_vm hl_vi_##name(hl_vi a, hl_vi b)                                                   \
    {                                                                                              \
        return (hl_vm)(a operator b);                                                              \
    }
#endif
HL_SIMD_COMPARE(lt, <, _CMP_LT_OQ)
HL_SIMD_COMPARE(le, <=, _CMP_LE_OQ)
HL_SIMD_COMPARE(gt, >, _CMP_GT_OQ)
HL_SIMD_COMPARE(ge, >=, _CMP_GE_OQ)
HL_SIMD_COMPARE(eq, ==, _CMP_EQ_OQ)
HL_SIMD_COMPARE(ne, !=, _CMP_NEQ_UQ)
HL_SIMD_COMPARE_INT(lt, <, _mm512_cmplt_epi32_mask)
HL_SIMD_COMPARE_INT(gt, >, _mm512_cmpgt_epi32_mask)
HL_SIMD_COMPARE_INT(eq, ==, _mm512_cmpeq_epi32_mask)
#undef HL_SIMD_COMPARE
#undef HL_SIMD_COMPARE_INT
HL_SIMD hl_vm hl_v_is_nan(hl_v a)
{
    return hl_v_ne(a, a);
}

/* ---- memory: any address that is a multiple of the element's size ---- */

HL_SIMD hl_v hl_v_load(const float *p)
{
    return *(const hl_v_any *)p;
}
HL_SIMD void hl_v_store(float *p, hl_v a)
{
    *(hl_v_any *)p = a;
}
HL_SIMD hl_vi hl_vi_load(const int32_t *p)
{
    return *(const hl_vi_any *)p;
}
HL_SIMD void hl_vi_store(int32_t *p, hl_vi a)
{
    *(hl_vi_any *)p = a;
}
/* The other lanes are zero. */
HL_SIMD hl_v hl_v_load_n(const float *p, int64_t n)
{
#if HL_ISA_AVX512
    return _mm512_maskz_loadu_ps((hl_vm)((1u << n) - 1), p);
#elif HL_ISA_AVX2
    return _mm256_maskload_ps(p, (__m256i)hl_vm_first(n));
#else
    hl_v a = {0};
    for (int64_t i = 0; i < n; i++) a[i] = p[i];
    return a;
#endif
}
HL_SIMD void hl_v_store_n(float *p, hl_v a, int64_t n)
{
#if HL_ISA_AVX512
    _mm512_mask_storeu_ps(p, (hl_vm)((1u << n) - 1), a);
#elif HL_ISA_AVX2
    /* By halves: AMD's masked store to memory takes dozens of cycles. */
    __m128 part = _mm256_castps256_ps128(a);
    if (n >= 4) {
        _mm_storeu_ps(p, part);
        if (n == 8) {
            _mm_storeu_ps(p + 4, _mm256_extractf128_ps(a, 1));
            return;
        }
        p += 4, part = _mm256_extractf128_ps(a, 1);
    }
    if (n & 2) {
        _mm_storel_pi((__m64 *)(void *)p, part);
        p += 2, part = _mm_movehl_ps(part, part);
    }
    if (n & 1) _mm_store_ss(p, part);
#else
    for (int64_t i = 0; i < n; i++) p[i] = a[i];
#endif
}
/* a[i] = base[index[i]] */
HL_SIMD hl_v hl_v_gather(const float *base, hl_vi index)
{
#if HL_ISA_AVX512
    return _mm512_i32gather_ps((__m512i)index, base, 4);
#elif HL_ISA_AVX2
    return _mm256_i32gather_ps(base, (__m256i)index, 4);
#else
    hl_v a;
    for (int i = 0; i < HL_VL; i++) a[i] = base[index[i]];
    return a;
#endif
}

/* ---- float arithmetic ---- */

HL_SIMD hl_v hl_v_add(hl_v a, hl_v b)
{
    return a + b;
}
HL_SIMD hl_v hl_v_sub(hl_v a, hl_v b)
{
    return a - b;
}
HL_SIMD hl_v hl_v_mul(hl_v a, hl_v b)
{
    return a * b;
}
/* a * b + c. One rounding where the set has the instruction (AVX2, AVX-512, aarch64); portable
 * x86-64 has none and rounds twice, because a software fma costs a hundred times as much. */
HL_SIMD hl_v hl_v_fma(hl_v a, hl_v b, hl_v c)
{
#if HL_ISA_AVX512
    return _mm512_fmadd_ps(a, b, c);
#elif HL_ISA_AVX2
    return _mm256_fmadd_ps(a, b, c);
#elif defined(__ARM_NEON) && defined(__aarch64__)
    return (hl_v)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}
/* c - a * b */
HL_SIMD hl_v hl_v_fnma(hl_v a, hl_v b, hl_v c)
{
#if HL_ISA_AVX512
    return _mm512_fnmadd_ps(a, b, c);
#elif HL_ISA_AVX2
    return _mm256_fnmadd_ps(a, b, c);
#else
    return hl_v_fma(-a, b, c);
#endif
}
/* a < b ? a : b, so b when either is NaN: put the value that may be NaN second to pass it on. */
HL_SIMD hl_v hl_v_min(hl_v a, hl_v b)
{
#if HL_ISA_AVX512
    return _mm512_min_ps(a, b);
#elif HL_ISA_AVX2
    return _mm256_min_ps(a, b);
#elif defined(__SSE2__)
    return _mm_min_ps(a, b);
#else
    return hl_v_select(a < b, a, b);
#endif
}
/* a > b ? a : b, so b when either is NaN. */
HL_SIMD hl_v hl_v_max(hl_v a, hl_v b)
{
#if HL_ISA_AVX512
    return _mm512_max_ps(a, b);
#elif HL_ISA_AVX2
    return _mm256_max_ps(a, b);
#elif defined(__SSE2__)
    return _mm_max_ps(a, b);
#else
    return hl_v_select(a > b, a, b);
#endif
}
HL_SIMD hl_v hl_v_neg(hl_v a)
{
    return -a;
}
HL_SIMD hl_v hl_v_abs(hl_v a)
{
    return (hl_v)((hl_vi)a & 0x7FFFFFFF);
}
/* The magnitude of a with the sign of b. */
HL_SIMD hl_v hl_v_copysign(hl_v a, hl_v b)
{
    return (hl_v)(((hl_vi)a & 0x7FFFFFFF) | ((hl_vi)b & (int32_t)0x80000000));
}
HL_SIMD hl_v hl_v_sqrt(hl_v a)
{
#if HL_ISA_AVX512
    return _mm512_sqrt_ps(a);
#elif HL_ISA_AVX2
    return _mm256_sqrt_ps(a);
#elif defined(__SSE2__)
    return _mm_sqrt_ps(a);
#elif defined(__ARM_NEON) && defined(__aarch64__)
    return (hl_v)vsqrtq_f32((float32x4_t)a);
#else
    for (int i = 0; i < HL_VL; i++) a[i] = __builtin_sqrtf(a[i]);
    return a;
#endif
}
/* To the nearest integer, halves to even. */
HL_SIMD hl_v hl_v_round(hl_v a)
{
#if HL_ISA_AVX512
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif HL_ISA_AVX2
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    hl_v magic = hl_v_copysign(hl_v_set1(0x1p23f), a);
    hl_v rounded = hl_v_copysign((a + magic) - magic, a);
    return hl_v_select(hl_v_lt(hl_v_abs(a), hl_v_set1(0x1p23f)), rounded, a);
#endif
}
/* Towards minus infinity. */
HL_SIMD hl_v hl_v_floor(hl_v a)
{
#if HL_ISA_AVX512
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
#elif HL_ISA_AVX2
    return _mm256_floor_ps(a);
#else
    hl_v rounded = hl_v_round(a);
    return hl_v_copysign(rounded - hl_v_keep(rounded > a, hl_v_set1(1)), a);
#endif
}
HL_SIMD hl_v hl_vi_to_float(hl_vi a)
{
    return __builtin_convertvector(a, hl_v);
}
/* To the nearest integer, halves to even. |a| < 2^31, else the result is unspecified. */
HL_SIMD hl_vi hl_v_to_int(hl_v a)
{
#if HL_ISA_AVX512
    return (hl_vi)_mm512_cvtps_epi32(a);
#elif HL_ISA_AVX2
    return (hl_vi)_mm256_cvtps_epi32(a);
#elif defined(__SSE2__)
    return (hl_vi)_mm_cvtps_epi32(a);
#else
    return __builtin_convertvector(hl_v_round(a), hl_vi);
#endif
}

/* One lane, in all lanes; 0 <= lane < HL_VL. */
HL_SIMD hl_v hl_v_spread(hl_v a, int lane)
{
#if HL_ISA_AVX512
    return _mm512_permutexvar_ps(_mm512_set1_epi32(lane), a);
#elif HL_ISA_AVX2
    return _mm256_permutevar8x32_ps(a, _mm256_set1_epi32(lane));
#else
    return hl_v_set1(a[lane]);
#endif
}

/* Sum of the lanes, halves added onto halves: ((0+2)+(1+3)) for four. */
HL_SIMD float hl_v_sum(hl_v a)
{
#if HL_ISA_AVX512
    __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
#elif HL_ISA_AVX2
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
#else
    hl_v c = a;
#endif
    return (c[0] + c[2]) + (c[1] + c[3]);
}
/* The largest lane; a NaN may be missed or returned. */
HL_SIMD float hl_v_max_lane(hl_v a)
{
#if HL_ISA_AVX512
    __m256 b = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
#elif HL_ISA_AVX2
    __m128 c = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
#else
    hl_v c = a;
#endif
    float low = c[0] > c[2] ? c[0] : c[2], high = c[1] > c[3] ? c[1] : c[3];
    return low > high ? low : high;
}

/* a0 b0 a1 b1 ... of the lower halves, then of the upper ones. */
HL_SIMD void hl_v_interleave(hl_v a, hl_v b, hl_v *out_low, hl_v *out_high)
{
#if HL_VL == 16
    *out_low =
        __builtin_shuffle(a, b, (hl_vi){0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23});
    *out_high = __builtin_shuffle(
        a, b, (hl_vi){8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31});
#elif HL_VL == 8
    *out_low = __builtin_shuffle(a, b, (hl_vi){0, 8, 1, 9, 2, 10, 3, 11});
    *out_high = __builtin_shuffle(a, b, (hl_vi){4, 12, 5, 13, 6, 14, 7, 15});
#else
    *out_low = __builtin_shuffle(a, b, (hl_vi){0, 4, 1, 5});
    *out_high = __builtin_shuffle(a, b, (hl_vi){2, 6, 3, 7});
#endif
}

/* Interleaves `count` rows, a power of two: first all their first lanes, then their second ones,
 * and so on. Each of log2(count) rounds interleaves the rows of the first half with those of the
 * second. */
HL_SIMD void hl_v_weave(hl_v *rows, const int count)
{
    hl_v next[HL_VL];
#pragma GCC unroll 4
    for (int round = 1; round < count; round *= 2) {
#pragma GCC unroll 8
        for (int i = 0; i < count / 2; i++)
            hl_v_interleave(rows[i], rows[i + count / 2], &next[2 * i], &next[2 * i + 1]);
#pragma GCC unroll 16
        for (int i = 0; i < count; i++) rows[i] = next[i];
    }
}

/* The square of HL_VL x HL_VL lanes, transposed in place. */
HL_SIMD void hl_v_transpose(hl_v rows[HL_VL])
{
    hl_v_weave(rows, HL_VL);
}

/* ---- int32 arithmetic, wrapping ---- */

HL_SIMD hl_vi hl_vi_add(hl_vi a, hl_vi b)
{
    return (hl_vi)((hl_vu)a + (hl_vu)b);
}
HL_SIMD hl_vi hl_vi_sub(hl_vi a, hl_vi b)
{
    return (hl_vi)((hl_vu)a - (hl_vu)b);
}
HL_SIMD hl_vi hl_vi_mul(hl_vi a, hl_vi b)
{
    return (hl_vi)((hl_vu)a * (hl_vu)b);
}
/* 0 <= bits <= 31; shr fills with zeros, sar with the sign. */
HL_SIMD hl_vi hl_vi_shl(hl_vi a, int bits)
{
    return (hl_vi)((hl_vu)a << bits);
}
HL_SIMD hl_vi hl_vi_shr(hl_vi a, int bits)
{
    return (hl_vi)((hl_vu)a >> bits);
}
HL_SIMD hl_vi hl_vi_sar(hl_vi a, int bits)
{
    return a >> bits;
}

/* ---- bfloat16 in memory ---- */

/* To nearest even; a NaN stays a NaN. */
HL_SIMD void hl_v_store_bf16(uint16_t *p, hl_v a)
{
    hl_vi bits = (hl_vi)a;
    hl_vi rounded = hl_vi_add(bits, (hl_vi_shr(bits, 16) & 1) + 0x7FFF);
    hl_vi high = hl_vi_shr(hl_vi_select(hl_v_is_nan(a), bits | 0x400000, rounded), 16);
#if HL_ISA_AVX512
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtepi32_epi16((__m512i)high));
#else
    *(hl_vh_any *)p = __builtin_convertvector(high, hl_vh);
#endif
}
HL_SIMD void hl_v_store_bf16_n(uint16_t *p, hl_v a, int64_t n)
{
    uint16_t lanes[HL_VL];
    hl_v_store_bf16(lanes, a);
    memcpy(p, lanes, (size_t)n * 2);
}
HL_SIMD hl_v hl_v_load_bf16(const uint16_t *p)
{
#if HL_ISA_AVX512
    __m512i bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return (hl_v)_mm512_slli_epi32(bits, 16);
#elif HL_ISA_AVX2
    __m256i bits = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return (hl_v)_mm256_slli_epi32(bits, 16);
#else
    hl_vi bits;
    for (int i = 0; i < HL_VL; i++) bits[i] = (int32_t)((uint32_t)p[i] << 16);
    return (hl_v)bits;
#endif
}
/* The other lanes are zero. */
HL_SIMD hl_v hl_v_load_bf16_n(const uint16_t *p, int64_t n)
{
    uint16_t lanes[HL_VL] = {0};
    for (int64_t i = 0; i < n; i++) lanes[i] = p[i];
    return hl_v_load_bf16(lanes);
}

/* ---- float16 in memory ---- */

/* As hl_f16_to_f32 and hl_f32_to_f16, bit for bit: the instruction rounds to nearest even by its
 * operand, keeps subnormals whatever the modes are, and quiets a NaN. */
HL_SIMD float hl_from_f16(uint16_t bits)
{
#if HL_ISA_AVX2 || HL_ISA_AVX512
    return _cvtsh_ss(bits);
#else
    return hl_f16_to_f32(bits);
#endif
}
HL_SIMD uint16_t hl_to_f16(float value)
{
#if HL_ISA_AVX2 || HL_ISA_AVX512
    return _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT);
#else
    return hl_f32_to_f16(value);
#endif
}

#endif
