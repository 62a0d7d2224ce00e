/* Philox4x32-10 on many counters at once.
 *
 * A counter sits in one 64-bit lane per word, because the widening multiply reads the low half of
 * such a lane and writes all of it: a round is two multiplies, two shifts and four xors, and the
 * upper halves may hold anything until the end. Rejected: 32-bit lanes, which need both halves of
 * every product put back together in each round. */
#include "kernels/cpu/random.h"

/* Counters in a vector, and vectors in flight: a round is a chain of six cycles. */
enum { N_COUNTERS = HL_RANDOM_COUNTERS, N_WIDE = HL_VL / 2, IN_FLIGHT = N_COUNTERS / N_WIDE };
typedef uint64_t wide __attribute__((vector_size(HL_VECTOR_BYTES)));
typedef uint64_t wide_any __attribute__((vector_size(HL_VECTOR_BYTES), aligned(2), may_alias));

/* Product of the low 32 bits. */
HL_SIMD wide multiply_low(wide a, wide b)
{
#if HL_ISA_AVX512
    return (wide)_mm512_mul_epu32((__m512i)a, (__m512i)b);
#elif HL_ISA_AVX2
    return (wide)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
    return (wide)_mm_mul_epu32((__m128i)a, (__m128i)b);
#else
    return (a & 0xFFFFFFFF) * (b & 0xFFFFFFFF);
#endif
}

/* A in even places, B in odd ones: the low half of the lanes, then the high half. */
HL_SIMD void store_interleaved(uint16_t *out, wide a, wide b)
{
#if HL_VL == 16
    wide low = __builtin_shuffle(a, b, (wide){0, 8, 1, 9, 2, 10, 3, 11});
    wide high = __builtin_shuffle(a, b, (wide){4, 12, 5, 13, 6, 14, 7, 15});
#elif HL_VL == 8
    wide low = __builtin_shuffle(a, b, (wide){0, 4, 1, 5});
    wide high = __builtin_shuffle(a, b, (wide){2, 6, 3, 7});
#else
    wide low = __builtin_shuffle(a, b, (wide){0, 2});
    wide high = __builtin_shuffle(a, b, (wide){1, 3});
#endif
    *(wide_any *)(void *)out = low;
    *(wide_any *)(void *)(out + HL_VECTOR_BYTES / 2) = high;
}

/* The 8 elements of each of the counters, in their order. */
static void generate(hl_rng_key key, uint32_t step, const uint64_t *sample, const uint64_t *block,
                     uint16_t *out)
{
    const wide zero = {0}, m0 = zero + HL_PHILOX_M0, m1 = zero + HL_PHILOX_M1;
    const wide w0 = zero + HL_PHILOX_W0, w1 = zero + HL_PHILOX_W1;
    wide c0[IN_FLIGHT], c1[IN_FLIGHT], c2[IN_FLIGHT], c3[IN_FLIGHT];
#pragma GCC unroll 4
    for (int v = 0; v < IN_FLIGHT; v++) {
        wide s = *(const wide_any *)(const void *)(sample + v * N_WIDE);
        wide b = *(const wide_any *)(const void *)(block + v * N_WIDE);
        c0[v] = zero + step, c1[v] = s, c2[v] = b, c3[v] = (s ^ b) >> 32;
    }
    wide k0 = zero + key.word[0], k1 = zero + key.word[1];
#pragma GCC unroll 10
    for (int round = 0; round < 10; round++) {
#pragma GCC unroll 4
        for (int v = 0; v < IN_FLIGHT; v++) {
            wide p0 = multiply_low(c0[v], m0), p1 = multiply_low(c2[v], m1);
            c0[v] = (p1 >> 32) ^ c1[v] ^ k0;
            c2[v] = (p0 >> 32) ^ c3[v] ^ k1;
            c1[v] = p1, c3[v] = p0;
        }
        k0 += w0, k1 += w1;
    }
#pragma GCC unroll 4
    for (int v = 0; v < IN_FLIGHT; v++) {
        wide low = (c0[v] & 0xFFFFFFFF) | c1[v] << 32, high = (c2[v] & 0xFFFFFFFF) | c3[v] << 32;
        store_interleaved(out + v * 8 * N_WIDE, low, high);
    }
}

/* Counters q, q + 1, ...: n_blocks of them belong to each sample. */
HL_SIMD void fill_counters(uint64_t *sample, uint64_t *block, uint64_t s, uint64_t b,
                           uint64_t n_blocks)
{
    if (b + N_COUNTERS <= n_blocks) {
        for (int i = 0; i < N_COUNTERS; i++) sample[i] = s, block[i] = b + (uint64_t)i;
        return;
    }
    for (int i = 0; i < N_COUNTERS; i++) {
        sample[i] = s, block[i] = b;
        bool is_last = ++b == n_blocks;
        s += is_last;
        b = is_last ? 0 : b;
    }
}

void HL_ISA_NAME(hl_cpu_random_bits)(hl_rng_key key, uint32_t step, uint64_t first_sample,
                                     int64_t per_sample, int64_t begin, int64_t n,
                                     uint16_t *out_bits)
{
    uint64_t sample[N_COUNTERS], block[N_COUNTERS];
    uint64_t n_blocks = ((uint64_t)per_sample + 7) / 8;
    uint64_t s = (uint64_t)(begin / per_sample);
    int64_t element = begin % per_sample;
    int64_t done = 0;
    if (per_sample % 8 == 0 && element % 8 == 0) {
        uint64_t b = (uint64_t)element / 8;
        while (done < n) {
            fill_counters(sample, block, first_sample + s, b, n_blocks);
            generate(key, step, sample, block, out_bits + done);
            b += N_COUNTERS, done += 8 * N_COUNTERS;
            if (b >= n_blocks) s += b / n_blocks, b %= n_blocks;
        }
        return;
    }
    /* A sample ends inside a counter, or the range begins inside one: the used part of each
     * counter is moved to its place, eight at a time, the next one overwriting the rest. */
    while (done < n) {
        uint16_t batch[8 * N_COUNTERS + 8];
        fill_counters(sample, block, first_sample + s, (uint64_t)element / 8, n_blocks);
        generate(key, step, sample, block, batch);
        for (int i = 0; i < N_COUNTERS && done < n; i++) {
            int64_t skip = element % 8;
            int64_t used = per_sample - element < 8 - skip ? per_sample - element : 8 - skip;
            memcpy(out_bits + done, batch + 8 * i + skip, 16);
            done += used, element += used;
            if (element == per_sample) element = 0, s++;
        }
    }
}
