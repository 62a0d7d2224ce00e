/* binary16 by integer arithmetic on the fields, with one floating addition or subtraction where
 * the result or the source is subnormal: the adder then does the rounding (in the default mode). */
#include "base/half.h"

static float from_bits(uint32_t word)
{
    float value;
    memcpy(&value, &word, 4);
    return value;
}

static uint32_t to_bits(float value)
{
    uint32_t word;
    memcpy(&word, &value, 4);
    return word;
}

float hl_f16_to_f32(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16;
    uint32_t rest = (uint32_t)(bits & 0x7FFF) << 13; /* exponent still biased by 15 */
    if (rest >= 0x0F800000) {
        uint32_t quiet = rest > 0x0F800000 ? 0x00400000 : 0;
        return from_bits(sign | 0x7F800000 | (rest & 0x007FFFFF) | quiet);
    }
    if (rest >= 0x00800000) return from_bits(sign | (rest + ((127 - 15) << 23)));
    /* 2^-14 * (1 + m / 2^10) - 2^-14 = m * 2^-24, exactly. */
    uint32_t scale = (127 - 14) << 23;
    return from_bits(sign | to_bits(from_bits(scale | rest) - from_bits(scale)));
}

uint16_t hl_f32_to_f16(float value)
{
    uint32_t word = to_bits(value);
    uint32_t sign = word >> 16 & 0x8000;
    uint32_t rest = word & 0x7FFFFFFF;
    if (rest > 0x7F800000) return (uint16_t)(sign | 0x7E00 | (rest >> 13 & 0x3FF));
    if (rest >= 0x47800000) return (uint16_t)(sign | 0x7C00); /* 2^16 and above, infinity */
    if (rest < 0x38800000) {
        /* Below 2^-14: the last place of x + 1/2 is 2^-24, the step of the subnormals. */
        uint32_t sum = to_bits(from_bits(rest) + 0.5f);
        return (uint16_t)(sign | (sum - 0x3F000000));
    }
    uint32_t odd = rest >> 13 & 1;
    rest += ((uint32_t)(15 - 127) << 23) + 0xFFF + odd;
    return (uint16_t)(sign | rest >> 13);
}
