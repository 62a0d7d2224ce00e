/* The micro-ops of pointwise programs (ir/program.h) on the device: hl_pw_<OP> for float and
 * double, and for int64_t, where sums and products wrap. One meaning for the interpreter of
 * pointwise.cu and for generated kernels; kernels/ref/pointwise.c has the definitions. */
#ifndef HL_CUDA_MICRO_H
#define HL_CUDA_MICRO_H

#include "kernels/cuda/any.h"

#define UNARY(op, expression)                                                                      \
    template <class V> HL_DEVICE V hl_pw_##op(V x)                                                 \
    {                                                                                              \
        return (V)(expression);                                                                    \
    }
#define BINARY(op, expression)                                                                     \
    template <class V> HL_DEVICE V hl_pw_##op(V a, V b)                                            \
    {                                                                                              \
        return (V)(expression);                                                                    \
    }
#define INT_UNARY(op, expression)                                                                  \
    HL_DEVICE int64_t hl_pw_##op(int64_t x)                                                        \
    {                                                                                              \
        return (int64_t)(expression);                                                              \
    }
#define INT_BINARY(op, expression)                                                                 \
    HL_DEVICE int64_t hl_pw_##op(int64_t a, int64_t b)                                             \
    {                                                                                              \
        return (int64_t)(expression);                                                              \
    }

UNARY(NEG, -x)
UNARY(ABS, fabs(x))
UNARY(SIGN, (x > 0) - (x < 0))
UNARY(EXP, exp(x))
UNARY(EXPM1, expm1(x))
UNARY(LOG, log(x))
UNARY(LOG1P, log1p(x))
UNARY(SQRT, sqrt(x))
UNARY(RSQRT, V(1) / sqrt(x))
UNARY(RECIPROCAL, V(1) / x)
UNARY(SIN, sin(x))
UNARY(COS, cos(x))
UNARY(TANH, tanh(x))
UNARY(SIGMOID, x >= 0 ? V(1) / (V(1) + exp(-x)) : exp(x) / (V(1) + exp(x)))
UNARY(SOFTPLUS, (x > 0 ? x : V(0)) + log1p(exp(-fabs(x))))
UNARY(ERF, erf(x))
UNARY(RELU, x > 0 || x != x ? x : V(0))
UNARY(FLOOR, floor(x))
UNARY(CEIL, ceil(x))
UNARY(ROUND, rint(x))
UNARY(ISFINITE, x - x == 0)
UNARY(NOT, x == 0)
BINARY(ADD, a + b)
BINARY(SUB, a - b)
BINARY(MUL, a *b)
BINARY(DIV, a / b)
BINARY(POW, pow(a, b))
BINARY(MAXIMUM, a != a || a > b ? a : b)
BINARY(MINIMUM, a != a || a < b ? a : b)
BINARY(EQ, a == b)
BINARY(NE, a != b)
BINARY(LT, a < b)
BINARY(LE, a <= b)
BINARY(GT, a > b)
BINARY(GE, a >= b)
BINARY(AND, a != 0 && b != 0)
BINARY(OR, a != 0 || b != 0)

/* The remainder of floored division, exactly: fmod has a's sign, the result b's. */
template <class V> HL_DEVICE V hl_pw_MOD(V a, V b)
{
    V r = fmod(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
template <class V> HL_DEVICE V hl_pw_WHERE(V a, V b, V c)
{
    return a != 0 ? b : c;
}
template <class V> HL_DEVICE V hl_pw_FMA(V a, V b, V c)
{
    return fma(a, b, c);
}
HL_DEVICE float hl_pw_RSQRT(float x)
{
    return hl_rsqrt(x);
}

INT_UNARY(NEG, 0 - (uint64_t)x)
INT_UNARY(ABS, x < 0 ? 0 - (uint64_t)x : (uint64_t)x)
INT_UNARY(RELU, x > 0 ? x : 0)
INT_UNARY(FLOOR, x)
INT_UNARY(CEIL, x)
INT_UNARY(ROUND, x)
INT_UNARY(ISFINITE, x == x)
INT_BINARY(ADD, (uint64_t)a + (uint64_t)b)
INT_BINARY(SUB, (uint64_t)a - (uint64_t)b)
INT_BINARY(MUL, (uint64_t)a *(uint64_t)b)

/* By 0, where there is no remainder, it is 0 as in NumPy. */
HL_DEVICE int64_t hl_pw_MOD(int64_t a, int64_t b)
{
    if (b == 0 || b == -1) return 0;
    int64_t r = a % b;
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
HL_DEVICE int64_t hl_pw_FMA(int64_t a, int64_t b, int64_t c)
{
    return hl_pw_ADD(hl_pw_MUL(a, b), c);
}
/* What has a real value is in no program of integers; it is here for the interpreter's switch. */
INT_UNARY(EXP, 0 * x)
INT_UNARY(EXPM1, 0 * x)
INT_UNARY(LOG, 0 * x)
INT_UNARY(LOG1P, 0 * x)
INT_UNARY(SQRT, 0 * x)
INT_UNARY(RSQRT, 0 * x)
INT_UNARY(RECIPROCAL, 0 * x)
INT_UNARY(SIN, 0 * x)
INT_UNARY(COS, 0 * x)
INT_UNARY(TANH, 0 * x)
INT_UNARY(SIGMOID, 0 * x)
INT_UNARY(SOFTPLUS, 0 * x)
INT_UNARY(ERF, 0 * x)
INT_BINARY(DIV, 0 * (a ^ b))
INT_BINARY(POW, 0 * (a ^ b))

#undef UNARY
#undef BINARY
#undef INT_UNARY
#undef INT_BINARY

/* A value as it comes back from memory of the dtype. */
template <class V> HL_DEVICE V hl_pw_CAST(V x, int32_t dtype)
{
    switch (dtype) {
    case HL_DTYPE_F64: return x;
    case HL_DTYPE_F32: return (V)(float)x;
    case HL_DTYPE_BF16: return (V)hl_to_float(hl_to_bf16((float)x));
    case HL_DTYPE_F16: return (V)hl_to_float(hl_to_f16((float)x));
    case HL_DTYPE_BOOL: return (V)(x != 0);
    case HL_DTYPE_I32: return (V)(int32_t)hl_truncate((double)x);
    case HL_DTYPE_I16: return (V)(int16_t)hl_truncate((double)x);
    case HL_DTYPE_I8: return (V)(int8_t)hl_truncate((double)x);
    case HL_DTYPE_U8: return (V)(uint8_t)hl_truncate((double)x);
    default: return (V)hl_truncate((double)x);
    }
}
HL_DEVICE int64_t hl_pw_CAST(int64_t x, int32_t dtype)
{
    switch (dtype) {
    case HL_DTYPE_BOOL: return x != 0;
    case HL_DTYPE_I32: return (int32_t)x;
    case HL_DTYPE_I16: return (int16_t)x;
    case HL_DTYPE_I8: return (int8_t)x;
    case HL_DTYPE_U8: return (uint8_t)x;
    default: return x;
    }
}

#endif
