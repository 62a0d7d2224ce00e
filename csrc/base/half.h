/* 16-bit floats: bfloat16 and IEEE binary16 to and from float, round to nearest even, NaN kept a
 * NaN (made quiet; sign and upper payload bits kept). */
#ifndef HL_BASE_HALF_H
#define HL_BASE_HALF_H

#include <stdint.h>
#include <string.h>

static inline float hl_bf16_to_f32(uint16_t bits)
{
    uint32_t word = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &word, 4);
    return value;
}

static inline uint16_t hl_f32_to_bf16(float value)
{
    uint32_t word;
    memcpy(&word, &value, 4);
    if ((word & 0x7FFFFFFF) > 0x7F800000) return (uint16_t)(word >> 16 | 0x40);
    return (uint16_t)((word + 0x7FFF + (word >> 16 & 1)) >> 16);
}

float hl_f16_to_f32(uint16_t bits);
uint16_t hl_f32_to_f16(float value);

#endif
