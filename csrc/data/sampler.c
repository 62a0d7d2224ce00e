/* Sampler: position in the epoch to row number.
 *
 * Without weights by a permutation that needs no table. With weights by an alias table: a random
 * number picks one of n columns, all as likely, and a second one says whether the column's own row
 * or its other one is taken. Both come from (seed, epoch, position) alone, so a draw does not know
 * of those before it. The table is made as Vose does ("A linear algorithm for generating random
 * numbers with a given distribution", IEEE TSE 17, 1991): columns with less than their share are
 * filled up by rows with more.
 *
 * Rejected: a table of cumulative weights, half as large, with log n looks into it for each draw.
 */
#include <string.h>

#include "base/alloc.h"
#include "data/feed.h"

typedef struct alias_column {
    uint64_t keep; /* of 2^64: how often the column's own row is taken */
    int64_t other;
} alias_column;

struct hl_alias {
    int64_t n;
    alias_column *columns;
};

/* ---- table ----------------------------------------------------------------------------------- */

static hl_status check_weights(const double *weights, int64_t n, double *out_largest)
{
    double largest = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!(weights[i] >= 0 && weights[i] <= 0x1.fffffffffffffp1023))
            return hl_status_set(HL_ERROR_DATA,
                                 "weights: must be finite and at least 0, got %g at %lld",
                                 weights[i], (long long)i);
        if (weights[i] > largest) largest = weights[i];
    }
    *out_largest = largest;
    if (largest > 0) return HL_OK;
    return hl_status_set(HL_ERROR_DATA, "weights: one must be above 0, got none of %lld",
                         (long long)n);
}

/* Weights as multiples of their mean; divided by the largest first, so that their sum is finite. */
static int64_t scale_weights(const double *weights, int64_t n, double largest, double *out_scaled)
{
    double sum = 0;
    int64_t heaviest = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += out_scaled[i] = weights[i] / largest;
        if (weights[i] == largest) heaviest = i;
    }
    for (int64_t i = 0; i < n; i++) out_scaled[i] *= (double)n / sum;
    return heaviest;
}

static uint64_t to_share(double share)
{
    return share <= 0 ? 0 : share >= 1 ? UINT64_MAX : (uint64_t)(share * 0x1p64);
}

/* Rows with less than the mean lie in the first places of `places`, those with more in the last. */
static void fill_table(hl_alias *alias, double *scaled, int64_t *places, int64_t heaviest)
{
    int64_t n = alias->n, n_small = 0, n_large = 0;
    for (int64_t i = 0; i < n; i++) {
        if (scaled[i] < 1)
            places[n_small++] = i;
        else
            places[n - ++n_large] = i;
    }
    while (n_small && n_large) {
        int64_t small = places[--n_small], large = places[n - n_large];
        alias->columns[small] = (alias_column){to_share(scaled[small]), large};
        scaled[large] = scaled[large] + scaled[small] - 1;
        if (scaled[large] >= 1) continue;
        n_large--;
        places[n_small++] = large;
    }
    /* What is left has a whole column but for rounding; of very many rows that could leave one
     * without weight, which must not be drawn. */
    for (; n_large; n_large--) {
        int64_t row = places[n - n_large];
        alias->columns[row] = (alias_column){UINT64_MAX, row};
    }
    while (n_small) {
        int64_t row = places[--n_small];
        bool has_weight = scaled[row] > 0;
        alias->columns[row] =
            (alias_column){has_weight ? UINT64_MAX : 0, has_weight ? row : heaviest};
    }
}

hl_status hl_alias_create(const double *weights, int64_t n, hl_alias **out_alias)
{
    double largest = 0, *scaled = NULL;
    int64_t *places = NULL;
    hl_alias *alias = NULL;
    hl_status status;
    *out_alias = NULL;
    HL_TRY(check_weights(weights, n, &largest));
    size_t bytes = (size_t)n * sizeof *scaled;
    HL_GOTO(hl_alloc_zero(sizeof *alias, (void **)&alias));
    alias->n = n;
    HL_GOTO(hl_alloc((size_t)n * sizeof *alias->columns, (void **)&alias->columns));
    HL_GOTO(hl_alloc(bytes, (void **)&scaled));
    HL_GOTO(hl_alloc(bytes, (void **)&places));
    fill_table(alias, scaled, places, scale_weights(weights, n, largest, scaled));
    *out_alias = alias;
    alias = NULL;
cleanup:
    hl_free(places);
    hl_free(scaled);
    hl_alias_destroy(alias);
    return status;
}

void hl_alias_destroy(hl_alias *alias)
{
    if (!alias) return;
    hl_free(alias->columns);
    hl_free(alias);
}

/* ---- order ----------------------------------------------------------------------------------- */

/* The upper half of a product of 64 bits each. */
static uint64_t multiply_high(uint64_t a, uint64_t b)
{
    uint64_t a0 = (uint32_t)a, a1 = a >> 32, b0 = (uint32_t)b, b1 = b >> 32;
    uint64_t middle = a1 * b0 + (a0 * b0 >> 32), other = a0 * b1 + (uint32_t)middle;
    return a1 * b1 + (middle >> 32) + (other >> 32);
}

static int64_t draw_row(const hl_alias *alias, const hl_sampler_order *order, uint64_t position)
{
    uint32_t counter[4] = {(uint32_t)position, (uint32_t)(position >> 32), (uint32_t)order->epoch,
                           (uint32_t)(order->epoch >> 32)};
    uint32_t word[4];
    hl_philox(order->key, counter, word);
    uint64_t column = (uint64_t)word[1] << 32 | word[0], share = (uint64_t)word[3] << 32 | word[2];
    int64_t row = (int64_t)multiply_high(column, (uint64_t)alias->n);
    return share < alias->columns[row].keep ? row : alias->columns[row].other;
}

void hl_sampler_order_init(const hl_sampler *sampler, uint64_t epoch, hl_sampler_order *out_order)
{
    memset(out_order, 0, sizeof *out_order);
    out_order->epoch = epoch;
    out_order->key =
        hl_rng_key_make(sampler->seed, sampler->alias ? HL_SAMPLER_DRAWS : HL_SAMPLER_STREAM);
    if (!sampler->alias)
        hl_permutation_init(&out_order->permutation, out_order->key, epoch, (uint64_t)sampler->n);
}

void hl_sampler_order_fill(const hl_sampler *sampler, const hl_sampler_order *order, int64_t first,
                           int64_t count, int64_t *out)
{
    if (sampler->alias)
        for (int64_t i = 0; i < count; i++)
            out[i] = draw_row(sampler->alias, order, (uint64_t)(first + i));
    else if (sampler->shuffle)
        hl_permutation_fill(&order->permutation, (uint64_t)first, count, out);
    else
        for (int64_t i = 0; i < count; i++) out[i] = first + i;
    if (!sampler->rows) return;
    for (int64_t i = 0; i < count; i++) out[i] = sampler->rows[out[i]];
}
