/* How this thread computes with floating-point numbers: whether subnormal ones count as zero.
 *
 * Below 2^-126 a float32 has fewer digits, and many processors take a hundred times as long for an
 * operation on one. Training gets there by itself: where a gradient is 0 from some step on (a relu
 * that lets nothing through, an embedding's row that no batch has), Adam's first moment shrinks to
 * 0.9 of itself in each step, is subnormal after 800, and rounding keeps it there for good. So
 * kernels of the CPU run with subnormal operands and results as zeros. It is the thread's mode, and
 * the caller's code must not see it: who sets it puts back the mode of before.
 *
 * Conversions to and from float16 keep its subnormals in any mode, in hardware too. Where a
 * processor is neither x86 nor ARM nothing is set. */
#ifndef HL_BASE_FLOAT_MODE_H
#define HL_BASE_FLOAT_MODE_H

#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <xmmintrin.h>
/* MXCSR: results (FTZ) and operands (DAZ). */
enum { HL_FLOAT_MODE_FLUSHES = 1 << 15 | 1 << 6 };
static inline uint64_t hl_float_mode_get(void)
{
    return _mm_getcsr();
}
static inline void hl_float_mode_set(uint64_t mode)
{
    _mm_setcsr((unsigned)mode);
}
#elif defined(__aarch64__)
/* FPCR.FZ: both. */
enum { HL_FLOAT_MODE_FLUSHES = 1 << 24 };
static inline uint64_t hl_float_mode_get(void)
{
    uint64_t mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
}
static inline void hl_float_mode_set(uint64_t mode)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(mode));
}
#else
enum { HL_FLOAT_MODE_FLUSHES = 0 };
static inline uint64_t hl_float_mode_get(void)
{
    return 0;
}
static inline void hl_float_mode_set(uint64_t mode)
{
    (void)mode;
}
#endif

/* Subnormal numbers count as zero from now on. Gives the mode of before, for hl_float_mode_set. */
static inline uint64_t hl_float_mode_flush(void)
{
    uint64_t before = hl_float_mode_get();
    hl_float_mode_set(before | HL_FLOAT_MODE_FLUSHES);
    return before;
}

/* A number as arithmetic in that mode takes it. For libm: its log, pow and fmod look at a number's
 * bits and scale a subnormal one by a product, which that mode makes zero. */
static inline double hl_float_flushed(double x)
{
    const uint64_t sign = 1ULL << 63, exponent = 0x7ffULL << 52;
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (!(bits & exponent)) bits &= sign;
    memcpy(&x, &bits, sizeof bits);
    return x;
}

#endif
