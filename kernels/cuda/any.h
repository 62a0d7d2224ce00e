/* Elements of a dtype known at launch only: for kernels whose time does not depend on it. */
#ifndef HL_CUDA_ANY_H
#define HL_CUDA_ANY_H

#include "ir/dtype.h"
#include "kernels/cuda/fault.h"

HL_DEVICE bool hl_is_float(int32_t dtype)
{
    return dtype == HL_DTYPE_F32 || dtype == HL_DTYPE_F64 || dtype == HL_DTYPE_BF16 ||
           dtype == HL_DTYPE_F16;
}

/* Toward zero; what fits no int64 becomes the nearest one, NaN 0. */
HL_DEVICE int64_t hl_truncate(double value)
{
    if (value != value) return 0;
    if (value >= 0x1p63) return INT64_MAX;
    if (value <= -0x1p63) return INT64_MIN;
    return (int64_t)value;
}

HL_DEVICE double hl_read_any(const void *p, int32_t dtype, int64_t i)
{
    switch (dtype) {
    case HL_DTYPE_F32: return ((const float *)p)[i];
    case HL_DTYPE_F64: return ((const double *)p)[i];
    case HL_DTYPE_BF16: return hl_read((const hl_bf16 *)p, i);
    case HL_DTYPE_F16: return hl_read((const hl_f16 *)p, i);
    default: return (double)hl_read_int(p, dtype, i);
    }
}

/* Integers wrap; a bool is what is not 0. */
HL_DEVICE void hl_write_int(void *p, int32_t dtype, int64_t i, int64_t value)
{
    switch (dtype) {
    case HL_DTYPE_I64: ((int64_t *)p)[i] = value; break;
    case HL_DTYPE_I32: ((int32_t *)p)[i] = (int32_t)value; break;
    case HL_DTYPE_I16: ((int16_t *)p)[i] = (int16_t)value; break;
    case HL_DTYPE_I8: ((int8_t *)p)[i] = (int8_t)value; break;
    case HL_DTYPE_BOOL: ((uint8_t *)p)[i] = value != 0; break;
    default: ((uint8_t *)p)[i] = (uint8_t)value; break;
    }
}

HL_DEVICE void hl_write_any(void *p, int32_t dtype, int64_t i, double value)
{
    switch (dtype) {
    case HL_DTYPE_F32: ((float *)p)[i] = (float)value; break;
    case HL_DTYPE_F64: ((double *)p)[i] = value; break;
    case HL_DTYPE_BF16: hl_write((hl_bf16 *)p, i, (float)value); break;
    case HL_DTYPE_F16: hl_write((hl_f16 *)p, i, (float)value); break;
    case HL_DTYPE_BOOL: ((uint8_t *)p)[i] = value != 0; break;
    default: hl_write_int(p, dtype, i, hl_truncate(value)); break;
    }
}

/* Of float32, bfloat16 or float16. */
HL_DEVICE float hl_read_float(const void *p, int32_t dtype, int64_t i)
{
    switch (dtype) {
    case HL_DTYPE_BF16: return hl_read((const hl_bf16 *)p, i);
    case HL_DTYPE_F16: return hl_read((const hl_f16 *)p, i);
    default: return ((const float *)p)[i];
    }
}

/* A float to a floating dtype, without double arithmetic where it is not wanted. */
HL_DEVICE void hl_write_float(void *p, int32_t dtype, int64_t i, float value)
{
    switch (dtype) {
    case HL_DTYPE_BF16: hl_write((hl_bf16 *)p, i, value); break;
    case HL_DTYPE_F16: hl_write((hl_f16 *)p, i, value); break;
    case HL_DTYPE_F64: ((double *)p)[i] = value; break;
    default: ((float *)p)[i] = value; break;
    }
}

#endif
