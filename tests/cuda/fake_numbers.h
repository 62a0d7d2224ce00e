/* Numbers as fakes of libraries read, round and write them. */
#ifndef HL_TESTS_CUDA_FAKE_NUMBERS_H
#define HL_TESTS_CUDA_FAKE_NUMBERS_H

#include <string.h>

#include "base/half.h"

/* An operand as TF32 has it: 10 bits of the mantissa. */
static inline float round_to_tf32(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    bits = (bits + 0xFFF + (bits >> 13 & 1)) & ~0x1FFFu;
    memcpy(&value, &bits, 4);
    return value;
}

#endif
