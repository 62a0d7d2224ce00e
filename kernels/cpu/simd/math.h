/* Elementary functions on vectors of fp32.
 *
 * The idea is the classic one: reduce the argument exactly (Cody and Waite's split constants),
 * then a short polynomial on the reduced range, then put the pieces together so that the large
 * term is added last. The polynomials are near-minimax fits (Lawson's reweighted least squares in
 * double, in the weight of the final relative error), rounded to float.
 *
 * Accuracy, measured against double libm by tests/c/test_simd_math.c on every instruction set: all
 * functions stay within 2 ulp, sigmoid within 2.5, over every finite argument, denormal results
 * included. Limits are C's (Annex F): exp overflows to inf and underflows to 0, log(0) = -inf,
 * log(x < 0) = NaN, pow's special cases hold, a NaN argument gives a NaN.
 *
 * No function reads memory or branches on data, except sin and cos, which reduce arguments of
 * magnitude 8192 and more lane by lane. Bits differ between instruction sets (fused or not), never
 * within one. */
#ifndef HL_KERNELS_CPU_SIMD_MATH_H
#define HL_KERNELS_CPU_SIMD_MATH_H

#include <math.h>

#include "kernels/cpu/simd/simd.h"

/* ---- what expressions of ir/pointwise.def know beside simd.h's functions and the ones below ----
 */

/* 1 or 0 */
HL_SIMD hl_v hl_v_truth(hl_vm mask)
{
    return hl_v_keep(mask, hl_v_set1(1));
}
HL_SIMD hl_vm hl_v_both(hl_vm a, hl_vm b)
{
    return hl_vm_and(a, b);
}
HL_SIMD hl_vm hl_v_either(hl_vm a, hl_vm b)
{
    return hl_vm_or(a, b);
}
HL_SIMD hl_v hl_v_relu(hl_v a)
{
    return hl_v_max(hl_v_zero(), a);
}
HL_SIMD hl_v hl_v_rsqrt(hl_v a)
{
    return 1 / hl_v_sqrt(a);
}
/* The remainder of floored division: it has the sign of b. Subnormal numbers compare as zeros where
 * they count as zeros, which fmodf does not know. */
HL_SIMD hl_v hl_v_mod(hl_v a, hl_v b)
{
    hl_v r;
    for (int i = 0; i < HL_VL; i++) {
        float x = fmodf(a[i] == 0 ? 0 : a[i], b[i] == 0 ? 0 : b[i]);
        r[i] = x != 0 && (x < 0) != (b[i] < 0) ? x + b[i] : x;
    }
    return r;
}

/* ---- functions ---- */

/* c[0] + x c[1] + ... + x^(n-1) c[n-1]; n is a constant at every call, so this unrolls. */
HL_SIMD hl_v hl_v_poly(hl_v x, const float *c, int n)
{
    hl_v sum = hl_v_set1(c[n - 1]);
#pragma GCC unroll 16
    for (int i = n - 2; i >= 0; i--) sum = hl_v_fma(sum, x, hl_v_set1(c[i]));
    return sum;
}

/* 2^n for -126 <= n <= 127 */
HL_SIMD hl_v hl_v_exp2_int(hl_vi n)
{
    return (hl_v)hl_vi_shl(hl_vi_add(n, hl_vi_set1(127)), 23);
}

/* x = n ln2 + r, |r| <= ln2/2, for |x| < 150: r, and n as float and integer. The high part of ln2
 * has 15 bits, so that its product with n is exact without fma too. */
HL_SIMD hl_v hl_v_reduce_ln2(hl_v x, hl_v *out_n, hl_vi *out_n_int)
{
    hl_v n = hl_v_round(x * 0x1.715476p+0f);
    *out_n = n;
    *out_n_int = hl_v_to_int(n);
    hl_v r = hl_v_fnma(n, hl_v_set1(0x1.62e4p-1f), x);
    return hl_v_fnma(n, hl_v_set1(0x1.7f7d1cp-20f), r);
}

/* (e^r - 1 - r) / r^2 on |r| <= ln2/2 */
HL_SIMD hl_v hl_v_exp_tail(hl_v r)
{
    static const float c[] = {0x1.000000p-1f, 0x1.555556p-3f,  0x1.555480p-5f,
                              0x1.11107ep-7f, 0x1.6d974cp-10f, 0x1.a1b5ccp-13f};
    return hl_v_poly(r, c, 6);
}

HL_SIMD hl_v hl_v_exp(hl_v x)
{
    hl_v n, clamped = hl_v_min(hl_v_set1(89), hl_v_max(hl_v_set1(-104), x));
    hl_vi k;
    hl_v r = hl_v_reduce_ln2(clamped, &n, &k);
    hl_v y = hl_v_fma(r * r, hl_v_exp_tail(r), r) + 1;
#if HL_ISA_AVX512
    return _mm512_scalef_ps(y, n);
#else
    /* Two factors, because 2^n itself leaves the normal range at both ends. */
    hl_vi half = hl_vi_sar(k, 1);
    return y * hl_v_exp2_int(half) * hl_v_exp2_int(hl_vi_sub(k, half));
#endif
}

HL_SIMD hl_v hl_v_expm1(hl_v x)
{
    hl_v n, clamped = hl_v_min(hl_v_set1(89), hl_v_max(hl_v_set1(-18), x));
    hl_vi k;
    hl_v r = hl_v_reduce_ln2(clamped, &n, &k);
    hl_v y = hl_v_fma(r * r, hl_v_exp_tail(r), r);
    /* 2^n y + (2^n - 1), at half scale so that n = 128 does not overflow early. */
    hl_v half = hl_v_exp2_int(hl_vi_sub(k, hl_vi_set1(1)));
    hl_v scaled = hl_v_fma(half, y, half - 0.5f) * 2;
    return hl_v_copysign(hl_v_select(hl_v_eq(n, hl_v_zero()), y, scaled), x);
}

/* log(1 + f) + e ln2 for 1 + f in [sqrt(1/2), sqrt(2)) */
HL_SIMD hl_v hl_v_log_reduced(hl_v f, hl_v e)
{
    static const float c[] = {0x1.555546p-2f,  -0x1.ffffecp-3f, 0x1.99a588p-3f,
                              -0x1.55634ep-3f, 0x1.232d78p-3f,  -0x1.fb2cc2p-4f,
                              0x1.e68d42p-4f,  -0x1.e391a2p-4f, 0x1.1b8448p-4f};
    hl_v square = f * f;
    hl_v y = square * f * hl_v_poly(f, c, 9);
    y = hl_v_fma(e, hl_v_set1(0x1.7f7d1cp-20f), y);
    y = hl_v_fnma(hl_v_set1(0.5f), square, y) + f;
    return hl_v_fma(e, hl_v_set1(0x1.62e4p-1f), y);
}

/* x = 2^e m for normal x > 0, m in [sqrt(1/2), sqrt(2)) */
HL_SIMD hl_v hl_v_split_exponent(hl_v x, hl_v *out_e)
{
    hl_vi root = hl_vi_set1(0x3F3504F3), bits = hl_vi_sub((hl_vi)x, root);
    *out_e = hl_vi_to_float(hl_vi_sar(bits, 23));
    return (hl_v)hl_vi_add(bits & 0x7FFFFF, root);
}

/* log's values outside the finite positive numbers, for any y elsewhere */
HL_SIMD hl_v hl_v_log_limits(hl_v x, hl_v y)
{
    hl_v inf = hl_v_set1(__builtin_inff());
    y = hl_v_select(hl_v_eq(x, hl_v_zero()), -inf, y);
    y = hl_v_select(hl_v_lt(x, hl_v_zero()), hl_v_set1(__builtin_nanf("")), y);
    return hl_v_select(hl_v_lt(x, inf), y, x + hl_v_zero());
}

HL_SIMD hl_v hl_v_log(hl_v x)
{
    hl_vm tiny = hl_v_lt(x, hl_v_set1(0x1p-126f));
    hl_v e, m = hl_v_split_exponent(hl_v_select(tiny, x * 0x1p23f, x), &e);
    e = e - hl_v_keep(tiny, hl_v_set1(23));
    return hl_v_select(hl_v_is_nan(x), x, hl_v_log_limits(x, hl_v_log_reduced(m - 1, e)));
}

HL_SIMD hl_v hl_v_log1p(hl_v x)
{
    hl_v u = x + 1, e, m = hl_v_split_exponent(u, &e);
    /* What 1 + x lost, in units of m. */
    hl_v lost = hl_v_select(hl_v_gt(x, hl_v_set1(1)), 1 - (u - x), x - (u - 1));
    hl_vi k = hl_v_to_int(hl_v_max(hl_v_min(e, hl_v_set1(126)), hl_v_set1(-126)));
    hl_v f = (m - 1) + lost * hl_v_exp2_int(hl_vi_sub(hl_vi_zero(), k));
    hl_v y = hl_v_log_limits(u, hl_v_log_reduced(f, e));
    y = hl_v_select(hl_v_eq(x, hl_v_zero()), x, y);
    return hl_v_select(hl_v_is_nan(x), x, y);
}

HL_SIMD hl_v hl_v_tanh(hl_v x)
{
    static const float c[] = {-0x1.555554p-2f, 0x1.111058p-3f,  -0x1.b9eba8p-5f,
                              0x1.636962p-6f,  -0x1.0b43cep-7f, 0x1.163b6cp-9f};
    hl_v size = hl_v_abs(x), square = x * x;
    hl_v small = hl_v_fma(size * square, hl_v_poly(square, c, 6), size);
    hl_v large = 1 - 2 / (hl_v_exp(size + size) + 1);
    return hl_v_copysign(hl_v_select(hl_v_lt(size, hl_v_set1(0.625f)), small, large), x);
}

/* 1 / (1 + e^-x), from e^-|x|, so that nothing overflows and the small side keeps its digits. */
HL_SIMD hl_v hl_v_sigmoid(hl_v x)
{
    hl_v e = hl_v_exp(-hl_v_abs(x));
    hl_v top = hl_v_select(hl_v_lt(x, hl_v_zero()), e, hl_v_set1(1));
    return top / (e + 1);
}

/* x (1 + P(x^2)) near zero; 1 - exp(t Q(t)) beyond, where erfc's logarithm is smooth. */
HL_SIMD hl_v hl_v_erf(hl_v x)
{
    static const float near[] = {0x1.06eba8p-3f, -0x1.812744p-2f,  0x1.ce2e30p-4f, -0x1.b811c2p-6f,
                                 0x1.54e650p-8f, -0x1.ab48dcp-11f, 0x1.603ab6p-14f};
    static const float far[] = {-0x1.20e8ccp+0f, -0x1.457066p-1f, -0x1.af2c3ep-4f,
                                0x1.73904ap-6f,  -0x1.8068cap-9f, 0x1.a7ff60p-15f,
                                0x1.7cca20p-15f, -0x1.4a5deep-18f};
    hl_v size = hl_v_abs(x), square = x * x, t = hl_v_min(hl_v_set1(4), size);
    hl_v small = hl_v_fma(size, hl_v_poly(square, near, 7), size);
    hl_v large = 1 - hl_v_exp(t * hl_v_poly(t, far, 8));
    return hl_v_copysign(hl_v_select(hl_v_lt(size, hl_v_set1(0.921875f)), small, large), x);
}

/* |x| >= 8192: x = n pi/2 + r by the bits of 2/pi that matter for this exponent (Payne and Hanek):
 * mantissa times a window of 96 bits, modulo 4. */
HL_SIMD float hl_f32_reduce_large(float x, int32_t *out_n)
{
    static const uint32_t two_over_pi[] = {0xA2F9836E, 0x4E441529, 0xFC2757D1, 0xF534DDC0,
                                           0xDB629599, 0x3C439041, 0xFE5163AB, 0xDEBBC561};
    uint32_t bits;
    memcpy(&bits, &x, 4);
    int exponent = (int)(bits >> 23 & 0xFF) - 150; /* x = mantissa 2^exponent, exponent >= -10 */
    if (exponent > 104) {
        *out_n = 0;
        return x - x;
    }
    uint64_t mantissa = (bits & 0x7FFFFF) | 0x800000;
    int first = exponent - 2; /* bits before this one, counted from 0, are multiples of 4 */
    uint32_t word[4];
    for (int i = 0; i < 4; i++) {
        int index = (first + 64) / 32 - 2 + i;
        word[i] = index < 0 ? 0 : two_over_pi[index];
    }
    int shift = (first + 64) % 32;
    uint64_t high = ((uint64_t)word[0] << 32 | word[1]) << shift;
    uint64_t low = ((uint64_t)word[2] << 32 | word[3]) << shift;
    if (shift) high |= (uint64_t)word[2] >> (32 - shift);
    /* Window of 96 bits: high and the upper half of low. The unit of high is 2^-62. */
    uint64_t turns = mantissa * high + (mantissa * (low >> 32) >> 32);
    uint64_t n = (turns + (1ull << 61)) >> 62;
    double r = (double)(int64_t)(turns - (n << 62)) * 0x1.921fb54442d18p-62;
    *out_n = (int32_t)(bits >> 31 ? 4 - n : n);
    return (float)(bits >> 31 ? -r : r);
}

/* x = n pi/2 + r: r and n modulo 4. Three parts of 11 bits give exact products; what the third
 * difference loses to rounding goes into the last one, so that r is rounded once. */
HL_SIMD hl_v hl_v_reduce_half_pi(hl_v x, hl_vi *out_n)
{
    hl_vm large = hl_v_ge(hl_v_abs(x), hl_v_set1(8192));
    hl_v bounded = hl_v_select(large, hl_v_zero(), x);
    hl_v n = hl_v_round(bounded * 0x1.45f306p-1f);
    hl_vi k = hl_v_to_int(n);
    hl_v r = hl_v_fnma(n, hl_v_set1(0x1.92p+0f), bounded);
    r = hl_v_fnma(n, hl_v_set1(0x1.fb4p-12f), r);
    hl_v third = hl_v_set1(0x1.444p-24f), before = r;
    r = hl_v_fnma(n, third, before);
    hl_v lost = hl_v_fnma(n, third, before - r);
    r = r + hl_v_fnma(n, hl_v_set1(0x1.68c234p-39f), lost);
    if (__builtin_expect(hl_vm_any(large), 0)) {
        float lanes[HL_VL], reduced[HL_VL];
        int32_t turns[HL_VL];
        hl_v_store(lanes, x), hl_v_store(reduced, r), hl_vi_store(turns, k);
        for (int i = 0; i < HL_VL; i++)
            if (!(__builtin_fabsf(lanes[i]) < 8192))
                reduced[i] = hl_f32_reduce_large(lanes[i], &turns[i]);
        r = hl_v_load(reduced), k = hl_vi_load(turns);
    }
    *out_n = k;
    return r;
}

/* sin(r + n pi/2) */
HL_SIMD hl_v hl_v_sin_reduced(hl_v r, hl_vi n)
{
    static const float sine[] = {-0x1.555556p-3f, 0x1.111108p-7f, -0x1.a00f88p-13f,
                                 0x1.6cd35cp-19f};
    static const float cosine[] = {0x1.555556p-5f, -0x1.6c16b8p-10f, 0x1.a0110ep-16f,
                                   -0x1.242722p-22f};
    hl_v square = r * r;
    hl_v s = hl_v_fma(r * square, hl_v_poly(square, sine, 4), r);
    hl_v c = hl_v_fma(square * square, hl_v_poly(square, cosine, 4), square * -0.5f) + 1;
    hl_v y = hl_v_select(hl_vi_eq(n & 1, hl_vi_zero()), s, c);
    return (hl_v)((hl_vi)y ^ hl_vi_shl(n & 2, 30));
}
HL_SIMD hl_v hl_v_sin(hl_v x)
{
    hl_vi n;
    hl_v r = hl_v_reduce_half_pi(x, &n);
    return hl_v_select(hl_v_eq(x, hl_v_zero()), x, hl_v_sin_reduced(r, n));
}
HL_SIMD hl_v hl_v_cos(hl_v x)
{
    hl_vi n;
    hl_v r = hl_v_reduce_half_pi(x, &n);
    return hl_v_sin_reduced(r, hl_vi_add(n, hl_vi_set1(1)));
}

/* |x|^y for x neither 0, inf nor NaN, and any y, in double: an error of log2 is multiplied by up
 * to 128 in the result. Vectors of doubles twice the register are the compiler's to split. */
HL_SIMD hl_v hl_v_pow_magnitude(hl_v x, hl_v y)
{
    typedef double wide __attribute__((vector_size(HL_VL * 8)));
    typedef int64_t wide_int __attribute__((vector_size(HL_VL * 8)));
    hl_vm tiny = hl_v_lt(x, hl_v_set1(0x1p-126f));
    hl_v e, m = hl_v_split_exponent(hl_v_select(tiny, x * 0x1p23f, x), &e);
    e = e - hl_v_keep(tiny, hl_v_set1(23));

    /* log2(m) = 2/ln2 (s + s^3/3 + ...), s = (m - 1) / (m + 1) <= 0.172 */
    wide f = __builtin_convertvector(m - 1, wide);
    wide s = f / (f + 2), q = s * s;
    wide series = 1.0 / 11 + q * (1.0 / 13 + q * (1.0 / 15));
    series = 1.0 / 5 + q * (1.0 / 7 + q * (1.0 / 9 + q * series));
    series = s + s * q * (1.0 / 3 + q * series);
    wide z = series * 0x1.71547652b82fep+1 + __builtin_convertvector(e, wide);
    z *= __builtin_convertvector(y, wide);

    wide_int over = z > 200.0, under = z < -200.0;
    wide_int clamped = (over & (wide_int)((wide){0} + 200.0)) |
                       (under & (wide_int)((wide){0} - 200.0)) | (~(over | under) & (wide_int)z);
    wide magic = (wide)clamped + 0x1.8p52, n = magic - 0x1.8p52;
    wide r = ((wide)clamped - n) * 0x1.62e42fefa39efp-1;
    wide p = 1.0 / 5040 + r * (1.0 / 40320 + r * (1.0 / 362880));
    p = 1.0 / 24 + r * (1.0 / 120 + r * (1.0 / 720 + r * p));
    p = 1.0 + r * (1.0 + r * (0.5 + r * (1.0 / 6 + r * p)));
    wide_int scale = ((wide_int)magic << 52) + (1023ll << 52);
    return __builtin_convertvector(p * (wide)scale, hl_v);
}

HL_SIMD hl_v hl_v_pow(hl_v x, hl_v y)
{
    hl_v zero = hl_v_zero(), one = hl_v_set1(1), inf = hl_v_set1(__builtin_inff());
    hl_v size = hl_v_abs(x), power = hl_v_pow_magnitude(size, y);
    /* 0 and inf to the power y: by the side that log(|x|) y tends to */
    hl_vm grows = hl_vm_xor(hl_v_gt(size, one), hl_v_lt(y, zero));
    hl_vm limit = hl_vm_or(hl_v_eq(size, zero), hl_v_eq(size, inf));
    limit = hl_vm_or(limit, hl_v_eq(hl_v_abs(y), inf));
    power = hl_v_select(limit, hl_v_keep(grows, inf), power);
    power = hl_v_select(hl_v_eq(size, one), one, power);

    hl_vm whole = hl_v_eq(hl_v_floor(y), y);
    hl_v halved = y * 0.5f;
    hl_vm odd = hl_vm_and(whole, hl_v_ne(hl_v_floor(halved), halved));
    hl_v signed_power = hl_v_select(odd, hl_v_copysign(power, x), power);
    hl_vm undefined = hl_vm_and(hl_v_lt(x, zero), hl_vm_not(whole));
    undefined = hl_vm_and(undefined, hl_v_lt(size, inf));
    signed_power = hl_v_select(undefined, hl_v_set1(__builtin_nanf("")), signed_power);
    hl_vm nan = hl_vm_or(hl_v_is_nan(x), hl_v_is_nan(y));
    signed_power = hl_v_select(nan, x + y, signed_power);
    return hl_v_select(hl_vm_or(hl_v_eq(y, zero), hl_v_eq(x, one)), one, signed_power);
}

#define REAL                     hl_v
#define FUNCTION(name, operands) HL_SIMD hl_v hl_v_##name operands
#define F(name)                  hl_v_##name
#include "ir/pointwise_functions.def"
#undef F

#endif
