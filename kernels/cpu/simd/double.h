/* Vectors of doubles: half as many lanes as hl_v has, by the rules of simd.h. */
#ifndef HL_KERNELS_CPU_SIMD_DOUBLE_H
#define HL_KERNELS_CPU_SIMD_DOUBLE_H

#include "kernels/cpu/simd/simd.h"

#define HL_VDL (HL_VL / 2)

typedef double hl_vd __attribute__((vector_size(HL_VECTOR_BYTES)));
typedef double hl_vd_any __attribute__((vector_size(HL_VECTOR_BYTES), aligned(8), may_alias));
/* As many floats, as they lie in memory. */
typedef float hl_vd_floats __attribute__((vector_size(HL_VECTOR_BYTES / 2), aligned(4), may_alias));

HL_SIMD hl_vd hl_vd_set1(double x)
{
    return x - (hl_vd){0};
}
HL_SIMD hl_vd hl_vd_zero(void)
{
    return (hl_vd){0};
}

/* ---- memory ---- */

HL_SIMD hl_vd hl_vd_load(const double *p)
{
    return *(const hl_vd_any *)p;
}
HL_SIMD void hl_vd_store(double *p, hl_vd a)
{
    *(hl_vd_any *)p = a;
}
HL_SIMD hl_vd hl_vd_load_f32(const float *p)
{
    return __builtin_convertvector(*(const hl_vd_floats *)p, hl_vd);
}
HL_SIMD hl_vd hl_vd_load_bf16(const uint16_t *p)
{
#if HL_ISA_AVX512
    __m256i bits = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    return (hl_vd)_mm512_cvtps_pd(_mm256_castsi256_ps(_mm256_slli_epi32(bits, 16)));
#elif HL_ISA_AVX2
    __m128i bits = _mm_cvtepu16_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
    return (hl_vd)_mm256_cvtps_pd(_mm_castsi128_ps(_mm_slli_epi32(bits, 16)));
#else
    hl_vd a;
    for (int i = 0; i < HL_VDL; i++) a[i] = (double)hl_bf16_to_f32(p[i]);
    return a;
#endif
}
HL_SIMD hl_vd hl_vd_load_f16(const uint16_t *p)
{
#if HL_ISA_AVX512
    __m128i bits = _mm_loadu_si128((const __m128i *)(const void *)p);
    return (hl_vd)_mm512_cvtps_pd(_mm256_cvtph_ps(bits));
#elif HL_ISA_AVX2
    __m128i bits = _mm_loadl_epi64((const __m128i *)(const void *)p);
    return (hl_vd)_mm256_cvtps_pd(_mm_cvtph_ps(bits));
#else
    hl_vd a;
    for (int i = 0; i < HL_VDL; i++) a[i] = (double)hl_f16_to_f32(p[i]);
    return a;
#endif
}

/* ---- arithmetic ---- */

/* a * b + c: see hl_v_fma. */
HL_SIMD hl_vd hl_vd_fma(hl_vd a, hl_vd b, hl_vd c)
{
#if HL_ISA_AVX512
    return (hl_vd)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif HL_ISA_AVX2
    return (hl_vd)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#elif defined(__ARM_NEON) && defined(__aarch64__)
    return (hl_vd)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
#else
    return a * b + c;
#endif
}
/* a < b ? a : b, so b when either is NaN. */
HL_SIMD hl_vd hl_vd_min(hl_vd a, hl_vd b)
{
#if HL_ISA_AVX512
    return (hl_vd)_mm512_min_pd((__m512d)a, (__m512d)b);
#elif HL_ISA_AVX2
    return (hl_vd)_mm256_min_pd((__m256d)a, (__m256d)b);
#elif defined(__SSE2__)
    return (hl_vd)_mm_min_pd((__m128d)a, (__m128d)b);
#else
    for (int i = 0; i < HL_VDL; i++) a[i] = a[i] < b[i] ? a[i] : b[i];
    return a;
#endif
}
/* a > b ? a : b, so b when either is NaN. */
HL_SIMD hl_vd hl_vd_max(hl_vd a, hl_vd b)
{
#if HL_ISA_AVX512
    return (hl_vd)_mm512_max_pd((__m512d)a, (__m512d)b);
#elif HL_ISA_AVX2
    return (hl_vd)_mm256_max_pd((__m256d)a, (__m256d)b);
#elif defined(__SSE2__)
    return (hl_vd)_mm_max_pd((__m128d)a, (__m128d)b);
#else
    for (int i = 0; i < HL_VDL; i++) a[i] = a[i] > b[i] ? a[i] : b[i];
    return a;
#endif
}
/* Is a lane NaN? */
HL_SIMD bool hl_vd_any_nan(hl_vd a)
{
#if HL_ISA_AVX512
    return _mm512_cmp_pd_mask((__m512d)a, (__m512d)a, _CMP_UNORD_Q) != 0;
#elif HL_ISA_AVX2
    __m256d is_nan = _mm256_cmp_pd((__m256d)a, (__m256d)a, _CMP_UNORD_Q);
    return _mm256_movemask_pd(is_nan) != 0;
#else
    bool any = false;
    for (int i = 0; i < HL_VDL; i++) any |= a[i] != a[i];
    return any;
#endif
}

#endif
