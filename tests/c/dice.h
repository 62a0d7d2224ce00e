/* Numbers for random cases: the same for the same seed on every machine. */
#ifndef TESTS_C_DICE_H
#define TESTS_C_DICE_H

#include "base/rng.h"

typedef struct dice {
    hl_rng_key key;
    uint32_t n;
} dice;

static inline int roll(dice *d, int sides)
{
    return hl_rng_bits16(d->key, d->n++, 0, 0) % sides;
}

#endif
