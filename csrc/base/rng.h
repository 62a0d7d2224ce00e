/* Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
 *
 * A random number is a pure function of key and counter, so it is the same on every device, at any
 * number of threads, workers and micro-batches, and nothing is saved for the backward pass or for a
 * resume. The key is made from (seed, stream name); the counter is (attempted step, sample in the
 * window, element / 8). One counter gives 128 bits = 8 elements of 16 bits. */
#ifndef HL_BASE_RNG_H
#define HL_BASE_RNG_H

#include <stdint.h>

typedef struct hl_rng_key {
    uint32_t word[2];
} hl_rng_key;

/* FNV-1a of the name, mixed with the seed by splitmix64. */
hl_rng_key hl_rng_key_make(uint64_t seed, const char *stream);

#define HL_PHILOX_M0 0xD2511F53u
#define HL_PHILOX_M1 0xCD9E8D57u
#define HL_PHILOX_W0 0x9E3779B9u
#define HL_PHILOX_W1 0xBB67AE85u

static inline void hl_philox(hl_rng_key key, const uint32_t counter[4], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key.word[0], k1 = key.word[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)HL_PHILOX_M0 * c0, p1 = (uint64_t)HL_PHILOX_M1 * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += HL_PHILOX_W0;
        k1 += HL_PHILOX_W1;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

/* Element e of sample s at step t: 16 uniform bits. Word e%8/2 of the block, low half first. */
static inline uint16_t hl_rng_bits16(hl_rng_key key, uint32_t step, uint64_t sample,
                                     uint64_t element)
{
    uint32_t counter[4] = {step, (uint32_t)sample, (uint32_t)(element >> 3),
                           (uint32_t)(sample >> 32) ^ (uint32_t)(element >> 35)};
    uint32_t out[4];
    hl_philox(key, counter, out);
    return (uint16_t)(out[(element & 7) >> 1] >> ((element & 1) * 16));
}

/* Streams of whole arrays (initial values): value i is made of word i%4 of counter
 * (0, i>>34, i>>2, 1). A uniform has 24 bits and lies in [low, high); the normal is Box-Muller in
 * fp64 on word pairs. */
void hl_rng_fill_uniform(hl_rng_key key, double low, double high, double *out, int64_t n);
void hl_rng_fill_normal(hl_rng_key key, double mean, double std, double *out, int64_t n);
/* Normal restricted to [low, high], by inversion (as torch's trunc_normal_). */
void hl_rng_fill_trunc_normal(hl_rng_key key, double mean, double std, double low, double high,
                              double *out, int64_t n);

/* A bijection of [0, n): the epoch's order, computed for any position without a table.
 *
 * An alternating Feistel network on high * 2^low_bits + low, high in [0, n_high): each round adds a
 * keyed hash of one side to the other, modulo that side's size. n_high * 2^low_bits is less than
 * n + 2^low_bits, so that cycle walking (an image >= n is mapped again) is rare: about 1/sqrt(n).
 * Up to n = 2^31 both sides fit 16 bits and so does the hash, which is vector code on every CPU.
 * Up to n = 64 the sides are too short to mix (a test counts orders): there a shuffled table.
 * Rejected: a Feistel network on a power of two (up to four walks an index), a table for every n
 * (8 n bytes and a shuffle per epoch). */
enum { HL_PERMUTATION_ROUNDS = 8, HL_PERMUTATION_TABLE = 64 };
typedef struct hl_permutation {
    uint64_t n;
    uint32_t low_bits; /* 1 to 32 */
    uint32_t n_high;
    uint32_t keys[HL_PERMUTATION_ROUNDS];
    uint8_t table[HL_PERMUTATION_TABLE]; /* n <= HL_PERMUTATION_TABLE: the images */
} hl_permutation;
/* n <= INT64_MAX. */
void hl_permutation_init(hl_permutation *permutation, hl_rng_key key, uint64_t epoch, uint64_t n);
/* position < n. */
uint64_t hl_permutation_at(const hl_permutation *permutation, uint64_t position);
/* out[i] = at(first + i), first + count <= n; the fast way. */
void hl_permutation_fill(const hl_permutation *permutation, uint64_t first, int64_t count,
                         int64_t *out);

#endif
