/* Elements of an array by number and dtype, as doubles. */
#ifndef TESTS_C_ELEMENT_H
#define TESTS_C_ELEMENT_H

#include "base/half.h"
#include "ir/dtype.h"

static inline void element_store(void *to, hl_dtype dtype, int64_t i, double value)
{
    switch (dtype) {
    case HL_DTYPE_F32: ((float *)to)[i] = (float)value; break;
    case HL_DTYPE_F64: ((double *)to)[i] = value; break;
    case HL_DTYPE_BF16: ((uint16_t *)to)[i] = hl_f32_to_bf16((float)value); break;
    case HL_DTYPE_F16: ((uint16_t *)to)[i] = hl_f32_to_f16((float)value); break;
    case HL_DTYPE_I64: ((int64_t *)to)[i] = (int64_t)value; break;
    case HL_DTYPE_I32: ((int32_t *)to)[i] = (int32_t)value; break;
    case HL_DTYPE_I16: ((int16_t *)to)[i] = (int16_t)value; break;
    case HL_DTYPE_I8: ((int8_t *)to)[i] = (int8_t)value; break;
    case HL_DTYPE_U8: ((uint8_t *)to)[i] = (uint8_t)value; break;
    default: ((uint8_t *)to)[i] = value != 0; break;
    }
}

static inline double element_load(const void *from, hl_dtype dtype, int64_t i)
{
    switch (dtype) {
    case HL_DTYPE_F32: return (double)((const float *)from)[i];
    case HL_DTYPE_F64: return ((const double *)from)[i];
    case HL_DTYPE_BF16: return (double)hl_bf16_to_f32(((const uint16_t *)from)[i]);
    case HL_DTYPE_F16: return (double)hl_f16_to_f32(((const uint16_t *)from)[i]);
    case HL_DTYPE_I64: return (double)((const int64_t *)from)[i];
    case HL_DTYPE_I32: return ((const int32_t *)from)[i];
    case HL_DTYPE_I16: return ((const int16_t *)from)[i];
    case HL_DTYPE_I8: return ((const int8_t *)from)[i];
    default: return ((const uint8_t *)from)[i];
    }
}

#endif
