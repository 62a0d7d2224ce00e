/* Numbers for random cases: the same for the same seed on every machine. */
#ifndef TESTS_C_DICE_H
#define TESTS_C_DICE_H

#include "base/rng.h"

static uint64_t dice_state = 1;

/* The program's next number, in [-1, 1). */
static inline double dice_draw(void)
{
    dice_state = dice_state * 6364136223846793005ull + 1442695040888963407ull;
    return (double)(int64_t)(dice_state >> 33) * 0x1p-30 - 1;
}

typedef struct dice {
    hl_rng_key key;
    uint32_t n;
} dice;

static inline int roll(dice *d, int sides)
{
    return hl_rng_bits16(d->key, d->n++, 0, 0) % sides;
}

#endif
