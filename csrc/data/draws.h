/* Draws: the random numbers of one step of one sample's augmentation.
 *
 * Every step has a stream of its own, by its number, so what one step draws never depends on how
 * much another one took, and each can be drawn again: geometry and colours are drawn apart, from
 * the same streams. */
#ifndef HL_DATA_DRAWS_H
#define HL_DATA_DRAWS_H

#include <stdbool.h>

#include "base/rng.h"

/* Which sample is augmented. */
typedef struct hl_augment_key {
    uint64_t epoch;
    int64_t row;
    bool is_training;
} hl_augment_key;

enum { HL_DRAWS_STEP_BITS = 5, HL_DRAWS_BLOCK_BITS = 27 }; /* blocks of four words */

typedef struct hl_draws {
    hl_rng_key key;
    uint32_t counter[4];
    uint32_t words[4];
    int n_left;
} hl_draws;

/* 0 <= step < 2^HL_DRAWS_STEP_BITS. */
static inline hl_draws hl_draws_begin(uint64_t seed, const hl_augment_key *key, int32_t step)
{
    uint64_t row = (uint64_t)key->row;
    return (hl_draws){
        .key = hl_rng_key_make(seed, "augment"),
        .counter = {(uint32_t)key->epoch, (uint32_t)row, (uint32_t)step << HL_DRAWS_BLOCK_BITS,
                    (uint32_t)(row >> 32) ^ (uint32_t)(key->epoch >> 32) * 0x9E3779B9u}};
}

/* Four words at once. */
static inline void hl_draws_block(hl_draws *draws, uint32_t out[4])
{
    hl_philox(draws->key, draws->counter, out);
    draws->counter[2]++;
}

static inline uint32_t hl_draws_word(hl_draws *draws)
{
    if (!draws->n_left) {
        hl_draws_block(draws, draws->words);
        draws->n_left = 4;
    }
    return draws->words[4 - draws->n_left--];
}

/* In [low, high); low where both are the same. */
static inline double hl_draws_uniform(hl_draws *draws, double low, double high)
{
    return low + (high - low) * ((hl_draws_word(draws) >> 8) * 0x1p-24);
}

/* In [0, n), n >= 1. */
static inline int64_t hl_draws_below(hl_draws *draws, int64_t n)
{
    uint64_t word = hl_draws_word(draws);
    if (n >> 31 == 0) return (int64_t)(word * (uint64_t)n >> 32);
    word = word << 32 | hl_draws_word(draws);
    return (int64_t)((unsigned __int128)word * (uint64_t)n >> 64);
}

#endif
