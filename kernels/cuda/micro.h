/* The micro-ops of pointwise programs (ir/program.h) on the device: hl_pw_<ID>, made from the rows
 * of ir/pointwise.def, for float and double, and for int64_t, where sums and products wrap. One
 * meaning for the interpreter of pointwise.cu and for generated kernels. */
#ifndef HL_CUDA_MICRO_H
#define HL_CUDA_MICRO_H

#include "kernels/cuda/any.h"

/* The functions of the rows' expressions. */
#define UNARY(T, name, expression)                                                                 \
    static HL_MEMBER T name(T x)                                                                   \
    {                                                                                              \
        return (T)(expression);                                                                    \
    }
#define BINARY(T, name, expression)                                                                \
    static HL_MEMBER T name(T x, T y)                                                              \
    {                                                                                              \
        return (T)(expression);                                                                    \
    }
#define MASK(T, name, expression)                                                                  \
    static HL_MEMBER bool name(T x, T y)                                                           \
    {                                                                                              \
        return expression;                                                                         \
    }
/* What reads alike for every type. */
template <class V> struct hl_pw_logic {
    MASK(V, eq, x == y)
    MASK(V, ne, x != y)
    MASK(V, lt, x < y)
    MASK(V, le, x <= y)
    MASK(V, gt, x > y)
    MASK(V, ge, x >= y)
    MASK(bool, both, (x && y))
    MASK(bool, either, x || y)
    BINARY(V, max, x > y ? x : y)
    BINARY(V, min, x < y ? x : y)
    UNARY(V, set1, x)
    UNARY(V, relu, x > 0 || x != x ? x : V(0))
    static HL_MEMBER V truth(bool mask)
    {
        return (V)mask;
    }
    static HL_MEMBER V select(bool mask, V x, V y)
    {
        return mask ? x : y;
    }
    static HL_MEMBER V keep(bool mask, V x)
    {
        return mask ? x : V(0);
    }
};

/* float and double */
template <class V> struct hl_pw_math : hl_pw_logic<V> {
    static constexpr bool IS_REAL = true;
    UNARY(V, neg, -x)
    UNARY(V, abs, ::fabs(x))
    UNARY(V, exp, ::exp(x))
    UNARY(V, expm1, ::expm1(x))
    UNARY(V, log, ::log(x))
    UNARY(V, log1p, ::log1p(x))
    UNARY(V, sqrt, ::sqrt(x))
    UNARY(V, sin, ::sin(x))
    UNARY(V, cos, ::cos(x))
    UNARY(V, tanh, ::tanh(x))
    UNARY(V, sigmoid, x >= 0 ? V(1) / (V(1) + ::exp(-x)) : ::exp(x) / (V(1) + ::exp(x)))
    UNARY(V, erf, ::erf(x))
    UNARY(V, floor, ::floor(x))
    UNARY(V, round, ::rint(x))
    UNARY(float, rsqrt, hl_rsqrt(x))
    UNARY(double, rsqrt, 1 / ::sqrt(x))
    BINARY(V, add, x + y)
    BINARY(V, sub, x - y)
    BINARY(V, mul, (x * y))
    BINARY(V, pow, ::pow(x, y))
#define REAL                     V
#define FUNCTION(name, operands) static HL_MEMBER V name operands
#define F(name)                  hl_pw_math<V>::name
#include "ir/pointwise_functions.def"
#undef F
    /* The remainder of floored division, exactly: fmod has x's sign, the result y's. */
    static HL_MEMBER V mod(V x, V y)
    {
        V r = ::fmod(x, y);
        return r != 0 && (r < 0) != (y < 0) ? r + y : r;
    }
    /* A value as it comes back from memory of the dtype. */
    static HL_MEMBER V cast(V x, int32_t dtype)
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
};
template <> struct hl_pw_math<int64_t> : hl_pw_logic<int64_t> {
    static constexpr bool IS_REAL = false;
    UNARY(int64_t, neg, 0 - (uint64_t)x)
    UNARY(int64_t, abs, x < 0 ? 0 - (uint64_t)x : (uint64_t)x)
    UNARY(int64_t, floor, x)
    UNARY(int64_t, round, x)
    BINARY(int64_t, add, (uint64_t)x + (uint64_t)y)
    BINARY(int64_t, sub, (uint64_t)x - (uint64_t)y)
    BINARY(int64_t, mul, ((uint64_t)x * (uint64_t)y))
    /* By 0, where there is no remainder, it is 0 as in NumPy. */
    static HL_MEMBER int64_t mod(int64_t x, int64_t y)
    {
        if (y == 0 || y == -1) return 0;
        int64_t r = x % y;
        return r != 0 && (r < 0) != (y < 0) ? r + y : r;
    }
    static HL_MEMBER int64_t cast(int64_t x, int32_t dtype)
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
};
#undef UNARY
#undef BINARY
#undef MASK

#define MICRO_1 V a
#define MICRO_2 V a, V b
#define MICRO_3 V a, V b, V c
#define F(name) hl_pw_math<V>::name
#define HL_PW(id, name, n, result, flags, vjp, cost, expression, doc)                              \
    template <class V> HL_DEVICE V hl_pw_##id(MICRO_##n)                                           \
    {                                                                                              \
        return expression;                                                                         \
    }
#define HL_PW_CAST(id, name, attrs, vjp, cost, expression, doc)                                    \
    template <class V> HL_DEVICE V hl_pw_##id(V a, int32_t dtype)                                  \
    {                                                                                              \
        return expression;                                                                         \
    }
#include "ir/pointwise.def"
#undef F
#undef MICRO_1
#undef MICRO_2
#undef MICRO_3

#endif
