/* Philox4x32-10 as in base/rng.h, for kernels: the same bits for the same key and counter. */
#ifndef HL_CUDA_PHILOX_H
#define HL_CUDA_PHILOX_H

#include "kernels/cuda/prim.h"

/* The 8 elements of 16 bits from element 8 * block on, of a sample at a step: word j holds elements
 * 2 j (low half) and 2 j + 1. */
HL_DEVICE hl_word4 hl_philox_block(uint32_t key0, uint32_t key1, uint32_t step, uint64_t sample,
                                   uint64_t block)
{
    uint32_t c0 = step, c1 = (uint32_t)sample, c2 = (uint32_t)block;
    uint32_t c3 = (uint32_t)(sample >> 32) ^ (uint32_t)(block >> 32);
    HL_UNROLL
    for (int round = 0; round < 10; round++) {
        uint32_t n0 = hl_mul_high(0xCD9E8D57u, c2) ^ c1 ^ key0;
        uint32_t n2 = hl_mul_high(0xD2511F53u, c0) ^ c3 ^ key1;
        c1 = 0xCD9E8D57u * c2;
        c3 = 0xD2511F53u * c0;
        c0 = n0;
        c2 = n2;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return hl_word4{c0, c1, c2, c3};
}

/* Element j of 8. */
HL_DEVICE uint32_t hl_philox_bits16(hl_word4 words, int j)
{
    uint32_t word = j < 4 ? (j < 2 ? words.x : words.y) : (j < 6 ? words.z : words.w);
    return word >> (j % 2 * 16) & 0xFFFFu;
}

#endif
