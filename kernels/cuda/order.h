/* Every element has a key, an integer in the order of the elements: a NaN is the greatest, and
 * zeros of both signs are equal. */
#ifndef HL_CUDA_ORDER_H
#define HL_CUDA_ORDER_H

#include "ir/dtype.h"
#include "kernels/cuda/fault.h"

HL_DEVICE uint32_t hl_order_key(float x)
{
    uint32_t bits = hl_float_bits(x + 0.0f); /* -0 becomes 0 */
    return x != x ? 0xFFFFFFFF : bits >> 31 ? ~bits : bits | 1u << 31;
}
HL_DEVICE uint64_t hl_order_key(double x)
{
    union {
        double number;
        uint64_t bits;
    } in = {x + 0.0};
    return x != x ? ~(uint64_t)0 : in.bits >> 63 ? ~in.bits : in.bits | (uint64_t)1 << 63;
}
HL_DEVICE uint64_t hl_order_key(int64_t x)
{
    return (uint64_t)x ^ (uint64_t)1 << 63;
}

/* Of an element of any dtype: below 2^32 but for float64 and int64. */
HL_DEVICE uint64_t hl_order_key_any(const void *p, int32_t dtype, int64_t i)
{
    switch (dtype) {
    case HL_DTYPE_F32: return hl_order_key(((const float *)p)[i]);
    case HL_DTYPE_BF16: return hl_order_key(hl_read((const hl_bf16 *)p, i));
    case HL_DTYPE_F16: return hl_order_key(hl_read((const hl_f16 *)p, i));
    case HL_DTYPE_F64: return hl_order_key(((const double *)p)[i]);
    case HL_DTYPE_I64: return hl_order_key(((const int64_t *)p)[i]);
    default: return (uint32_t)hl_read_int(p, dtype, i) ^ 1u << 31;
    }
}

#endif
