/* Random bits of a range of elements, for the dropout and uniform micro-ops. */
#ifndef HL_KERNELS_CPU_RANDOM_H
#define HL_KERNELS_CPU_RANDOM_H

#include "base/rng.h"
#include "kernels/cpu/simd/simd.h"

/* Counters made at once, 8 elements each; up to as many elements without meaning may be written
 * behind the last one. */
enum {
    HL_RANDOM_COUNTERS = HL_ISA_AVX512 ? 2 * HL_VL : HL_VL,
    HL_RANDOM_SLACK = 8 * HL_RANDOM_COUNTERS
};

/* Element i of an array of samples of `per_sample` elements belongs to sample first_sample +
 * i / per_sample; out_bits[j] = hl_rng_bits16 of element begin + j, 0 <= j < n. Writes
 * n + HL_RANDOM_SLACK places at most. */
void HL_ISA_NAME(hl_cpu_random_bits)(hl_rng_key key, uint32_t step, uint64_t first_sample,
                                     int64_t per_sample, int64_t begin, int64_t n,
                                     uint16_t *out_bits);

#endif
