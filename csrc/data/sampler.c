/* Sampler: position in the epoch to row number, without a table. */
#include <string.h>

#include "data/feed.h"

void hl_sampler_order_init(const hl_sampler *sampler, uint64_t epoch, hl_permutation *out_order)
{
    hl_rng_key key = hl_rng_key_make(sampler->seed, HL_SAMPLER_STREAM);
    hl_permutation_init(out_order, key, epoch, (uint64_t)sampler->n);
}

void hl_sampler_order_fill(const hl_sampler *sampler, const hl_permutation *order, int64_t first,
                           int64_t count, int64_t *out)
{
    if (sampler->shuffle)
        hl_permutation_fill(order, (uint64_t)first, count, out);
    else
        for (int64_t i = 0; i < count; i++) out[i] = first + i;
    if (!sampler->rows) return;
    for (int64_t i = 0; i < count; i++) out[i] = sampler->rows[out[i]];
}
