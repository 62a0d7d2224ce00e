#include "ir/convert.h"

#include <string.h>

#include "base/half.h"

static double read_float(hl_dtype dtype, const void *src, int64_t i)
{
    switch (dtype) {
    case HL_DTYPE_F32: return ((const float *)src)[i];
    case HL_DTYPE_F64: return ((const double *)src)[i];
    case HL_DTYPE_BF16: return hl_bf16_to_f32(((const uint16_t *)src)[i]);
    case HL_DTYPE_F16: return hl_f16_to_f32(((const uint16_t *)src)[i]);
    default: return 0.0;
    }
}

static int64_t read_integer(hl_dtype dtype, const void *src, int64_t i)
{
    switch (dtype) {
    case HL_DTYPE_I64: return ((const int64_t *)src)[i];
    case HL_DTYPE_I32: return ((const int32_t *)src)[i];
    case HL_DTYPE_I16: return ((const int16_t *)src)[i];
    case HL_DTYPE_I8: return ((const int8_t *)src)[i];
    case HL_DTYPE_U8: return ((const uint8_t *)src)[i];
    case HL_DTYPE_BOOL: return ((const uint8_t *)src)[i] != 0;
    default: return 0;
    }
}

static void write_float(hl_dtype dtype, void *dst, int64_t i, double value)
{
    switch (dtype) {
    case HL_DTYPE_F32: ((float *)dst)[i] = (float)value; break;
    case HL_DTYPE_F64: ((double *)dst)[i] = value; break;
    case HL_DTYPE_BF16: ((uint16_t *)dst)[i] = hl_f32_to_bf16((float)value); break;
    case HL_DTYPE_F16: ((uint16_t *)dst)[i] = hl_f32_to_f16((float)value); break;
    default: break;
    }
}

static void write_integer(hl_dtype dtype, void *dst, int64_t i, int64_t value)
{
    switch (dtype) {
    case HL_DTYPE_I64: ((int64_t *)dst)[i] = value; break;
    case HL_DTYPE_I32: ((int32_t *)dst)[i] = (int32_t)value; break;
    case HL_DTYPE_I16: ((int16_t *)dst)[i] = (int16_t)value; break;
    case HL_DTYPE_I8: ((int8_t *)dst)[i] = (int8_t)value; break;
    case HL_DTYPE_U8: ((uint8_t *)dst)[i] = (uint8_t)value; break;
    case HL_DTYPE_BOOL: ((uint8_t *)dst)[i] = value != 0; break;
    default: break;
    }
}

/* A float outside int64 or NaN has no integer: it saturates, NaN gives 0 (a plain C cast would be
 * undefined). */
static int64_t truncate_float(double value)
{
    if (value != value) return 0;
    if (value >= 9223372036854775808.0) return INT64_MAX;
    if (value < -9223372036854775808.0) return INT64_MIN;
    return (int64_t)value;
}

void hl_convert(hl_dtype dst_dtype, void *dst, hl_dtype src_dtype, const void *src, int64_t n)
{
    bool from_float = hl_dtype_is_float(src_dtype), to_float = hl_dtype_is_float(dst_dtype);
    if (dst_dtype == src_dtype) {
        if (n) memcpy(dst, src, (size_t)n * hl_dtype_bytes(dst_dtype));
        return;
    }
    /* What NumPy makes of a list, and what networks take. */
    if (src_dtype == HL_DTYPE_F64 && dst_dtype == HL_DTYPE_F32) {
        for (int64_t i = 0; i < n; i++) ((float *)dst)[i] = (float)((const double *)src)[i];
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        if (to_float)
            write_float(dst_dtype, dst, i,
                        from_float ? read_float(src_dtype, src, i)
                                   : (double)read_integer(src_dtype, src, i));
        else if (from_float && dst_dtype == HL_DTYPE_BOOL)
            write_integer(dst_dtype, dst, i, read_float(src_dtype, src, i) != 0.0);
        else
            write_integer(dst_dtype, dst, i,
                          from_float ? truncate_float(read_float(src_dtype, src, i))
                                     : read_integer(src_dtype, src, i));
    }
}
