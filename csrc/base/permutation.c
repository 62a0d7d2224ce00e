/* The epoch's permutation: a shuffled table for small n, else one Feistel network at two widths, 16
 * bits a side while n allows it. The hashes are no ciphers; eight rounds of them are as even as a
 * shuffle by every count in the test, six are not. */
#include <assert.h>
#include <stdbool.h>
#include <string.h>

#include "base/rng.h"

enum { CHUNK = 256, NARROW_BITS = 31 };

/* Fisher and Yates. */
static void shuffle_table(hl_permutation *p, hl_rng_key key, uint64_t epoch)
{
    for (uint32_t i = 0; i < p->n; i++) {
        uint32_t counter[4] = {(uint32_t)epoch, (uint32_t)(epoch >> 32), i, 3}, words[4];
        hl_philox(key, counter, words);
        uint32_t j = (uint32_t)((uint64_t)words[0] * (i + 1) >> 32);
        p->table[i] = p->table[j];
        p->table[j] = (uint8_t)i;
    }
}

void hl_permutation_init(hl_permutation *permutation, hl_rng_key key, uint64_t epoch, uint64_t n)
{
    uint32_t bits = 2;
    while (bits < 63 && (uint64_t)1 << bits < n) bits++;
    memset(permutation, 0, sizeof *permutation);
    permutation->n = n;
    permutation->low_bits = (bits + 1) / 2;
    permutation->n_high = (uint32_t)(n == 0 ? 1 : ((n - 1) >> permutation->low_bits) + 1);
    for (uint32_t block = 0; block < HL_PERMUTATION_ROUNDS / 4; block++) {
        uint32_t counter[4] = {(uint32_t)epoch, (uint32_t)(epoch >> 32), block, 2};
        hl_philox(key, counter, permutation->keys + 4 * block);
    }
    if (n <= HL_PERMUTATION_TABLE) shuffle_table(permutation, key, epoch);
}

static bool is_narrow(const hl_permutation *p)
{
    return p->n <= (uint64_t)1 << NARROW_BITS;
}

static inline uint16_t hash_narrow(uint16_t side, uint32_t key)
{
    uint16_t x = (uint16_t)((side ^ (key & 0xFFFF)) * 0x9E3Bu);
    x = (uint16_t)((x ^ x >> 7) + (key >> 16));
    x = (uint16_t)(x * 0x6A4Du);
    return (uint16_t)(x ^ x >> 8);
}

/* murmur3's finaliser; the upper bits are the good ones. */
static inline uint32_t hash_wide(uint32_t side, uint32_t key)
{
    uint32_t x = side ^ key;
    x = (x ^ x >> 16) * 0x85EBCA6Bu;
    x = (x ^ x >> 13) * 0xC2B2AE35u;
    return x ^ x >> 16;
}

/* (high + hash * n_high / 2^16) mod n_high. As n_high <= 2^15, bit 15 of the excess is its sign. */
static inline uint16_t add_narrow(uint16_t high, uint16_t hash, uint16_t n_high)
{
    uint16_t step = (uint16_t)((uint32_t)hash * n_high >> 16);
    uint16_t excess = (uint16_t)(high + step - n_high);
    uint16_t is_negative = (uint16_t)(excess >> 15);
    return (uint16_t)(excess + (uint16_t)(n_high * is_negative));
}

static uint64_t permute_narrow(const hl_permutation *p, uint64_t index)
{
    uint16_t high = (uint16_t)(index >> p->low_bits);
    uint16_t low = (uint16_t)(index & (((uint32_t)1 << p->low_bits) - 1));
    for (int round = 0; round < HL_PERMUTATION_ROUNDS; round += 2) {
        high = add_narrow(high, hash_narrow(low, p->keys[round]), (uint16_t)p->n_high);
        low ^= (uint16_t)(hash_narrow(high, p->keys[round + 1]) >> (16 - p->low_bits));
    }
    return (uint64_t)high << p->low_bits | low;
}

static uint64_t permute_wide(const hl_permutation *p, uint64_t index)
{
    uint32_t high = (uint32_t)(index >> p->low_bits);
    uint32_t low = (uint32_t)(index & (((uint64_t)1 << p->low_bits) - 1));
    for (int round = 0; round < HL_PERMUTATION_ROUNDS; round += 2) {
        high += (uint32_t)((uint64_t)hash_wide(low, p->keys[round]) * p->n_high >> 32);
        high = high >= p->n_high ? high - p->n_high : high;
        low ^= hash_wide(high, p->keys[round + 1]) >> (32 - p->low_bits);
    }
    return (uint64_t)high << p->low_bits | low;
}

/* The same as CHUNK calls of permute_narrow, round by round over arrays: eight lanes a register on
 * any x86-64 (n_high stands in an array, as only so gcc 12 sees a 16-bit multiplication and not a
 * 32-bit one: 2.1 against 3.3 ns an index). Returns the largest image. */
static int32_t permute_chunk(const hl_permutation *p, uint32_t first, int64_t *out)
{
    uint16_t high[CHUNK], low[CHUNK], n_high[CHUNK];
    uint32_t mask = ((uint32_t)1 << p->low_bits) - 1;
    for (uint32_t i = 0; i < CHUNK; i++) {
        n_high[i] = (uint16_t)p->n_high;
        high[i] = (uint16_t)((first + i) >> p->low_bits);
        low[i] = (uint16_t)((first + i) & mask);
    }
    for (int round = 0; round < HL_PERMUTATION_ROUNDS; round += 2) {
        uint32_t high_key = p->keys[round], low_key = p->keys[round + 1];
        uint32_t shift = 16 - p->low_bits;
        for (int i = 0; i < CHUNK; i++)
            high[i] = add_narrow(high[i], hash_narrow(low[i], high_key), n_high[i]);
        for (int i = 0; i < CHUNK; i++)
            low[i] ^= (uint16_t)(hash_narrow(high[i], low_key) >> shift);
    }
    int32_t largest = 0;
    for (int i = 0; i < CHUNK; i++) {
        int32_t image = (int32_t)((uint32_t)high[i] << p->low_bits | low[i]);
        largest = image > largest ? image : largest;
        out[i] = image;
    }
    return largest;
}

/* Goes on with each image that is not below n. */
static void walk_chunk(const hl_permutation *p, int64_t *out)
{
    for (int i = 0; i < CHUNK; i++) {
        while ((uint64_t)out[i] >= p->n) out[i] = (int64_t)permute_narrow(p, (uint64_t)out[i]);
    }
}

uint64_t hl_permutation_at(const hl_permutation *permutation, uint64_t position)
{
    assert(position < permutation->n);
    if (permutation->n <= HL_PERMUTATION_TABLE) return permutation->table[position];
    uint64_t image = position;
    do
        image = is_narrow(permutation) ? permute_narrow(permutation, image)
                                       : permute_wide(permutation, image);
    while (image >= permutation->n);
    return image;
}

void hl_permutation_fill(const hl_permutation *permutation, uint64_t first, int64_t count,
                         int64_t *out)
{
    assert(count <= 0 || first + (uint64_t)count <= permutation->n);
    const hl_permutation p = *permutation; /* out might alias it */
    int64_t i = 0;
    for (; is_narrow(&p) && count - i >= CHUNK; i += CHUNK) {
        int32_t largest = permute_chunk(&p, (uint32_t)(first + (uint64_t)i), out + i);
        if ((uint64_t)largest >= p.n) walk_chunk(&p, out + i);
    }
    for (; i < count; i++) out[i] = (int64_t)hl_permutation_at(&p, first + (uint64_t)i);
}
