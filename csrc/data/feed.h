/* Feed: the order of samples and the ring of batch slots.
 *
 * A sampler says which rows make batch b of epoch e, as a pure function (Feistel permutation of
 * base/rng.h, or a draw with replacement), so that any position can be resumed and every worker
 * count gives the same batches. A feed fills one slot per micro-batch: either row numbers alone
 * (resident arrays are gathered inside the plan by BATCH_GATHER) or whole batches through a `fill`
 * callback, its creator's or its plan's, on loader threads, which block and never spin; slots are
 * handed over in order. */
#ifndef HL_DATA_FEED_H
#define HL_DATA_FEED_H

#include <stdbool.h>

#include "base/rng.h"
#include "data/source.h"

/* Names of the random streams that order an epoch and that draw with replacement. */
#define HL_SAMPLER_STREAM "shuffle"
#define HL_SAMPLER_DRAWS  "draws"

/* What draws rows with replacement, each as likely as its weight says: a table of two numbers a
 * row, from which a draw takes one look (Walker, "An efficient method for generating discrete
 * random variables with general distributions", ACM TOMS 3, 1977). */
typedef struct hl_alias hl_alias;
/* Weights are finite, at least 0 and not all 0; they are not kept. */
hl_status hl_alias_create(const double *weights, int64_t n, HL_GIVE hl_alias **out_alias);
/* NULL is allowed. */
void hl_alias_destroy(HL_TAKE hl_alias *alias);

typedef struct hl_sampler {
    int64_t n;           /* rows to draw from */
    const int64_t *rows; /* row numbers, borrowed; NULL: 0..n-1 */
    bool shuffle;
    uint64_t seed;
    const hl_alias *alias; /* of n rows, borrowed: rows are drawn with replacement, whatever shuffle
                              says; NULL: each is there once */
    int64_t n_draws;       /* with alias: positions of an epoch */
} hl_sampler;

/* Positions of an epoch's order. */
static inline int64_t hl_sampler_positions(const hl_sampler *sampler)
{
    return sampler->alias ? sampler->n_draws : sampler->n;
}

typedef struct hl_sampler_order {
    hl_permutation permutation; /* without an alias table */
    hl_rng_key key;             /* with one */
    uint64_t epoch;
} hl_sampler_order;

/* The order of an epoch's rows. */
void hl_sampler_order_init(const hl_sampler *sampler, uint64_t epoch, hl_sampler_order *out_order);
/* out[i] = row at position first + i of the order; first + count <= positions. */
void hl_sampler_order_fill(const hl_sampler *sampler, const hl_sampler_order *order, int64_t first,
                           int64_t count, int64_t *out);

enum { HL_FEED_THREADS_MAX = 256, HL_FEED_SLOTS_MAX = 1024 };

typedef struct hl_feed hl_feed;
/* Writes a batch into the slot's fields. Runs on several threads at once, for different slots.
 * After an error the feed gives that error for this batch until it is sought again. */
typedef hl_status (*hl_feed_fill)(void *context, const hl_batch *batch, void *const *fields);
typedef struct hl_feed_options {
    hl_sampler sampler;   /* copied; its rows and alias borrowed */
    hl_peers peers;       /* of the split that the rows are of: told to whoever fills batches */
    int64_t batch;        /* samples in a micro-batch */
    int64_t first, count; /* positions of the epoch's order that this feed serves, in whole batches:
                             what is left of count is not served (the tail has a feed of its own) */
    bool is_training;     /* what batches are for: told to whoever fills them */
    int32_t n_threads;    /* loader threads for fill; 0: fill runs in hl_feed_next */
    int32_t n_slots;
    hl_feed_fill fill; /* NULL: that of the binding */
    void *context;
} hl_feed_options;

/* Stands at batch 0 of epoch 0. */
hl_status hl_feed_create(const hl_feed_options *options, HL_GIVE hl_feed **out_feed);
/* Waits for a fill that runs. NULL is allowed. */
void hl_feed_destroy(HL_TAKE hl_feed *feed);
/* The options that it was created with. */
const hl_feed_options *hl_feed_settings(const hl_feed *feed);
/* Batches of an epoch. */
int64_t hl_feed_batches(const hl_feed *feed);
/* The slot of the next batch. */
int32_t hl_feed_slot(const hl_feed *feed);
/* Has the epoch given its last batch? */
bool hl_feed_is_over(const hl_feed *feed);
/* Starts an epoch at a batch number; joins loader threads, which the next batch that is asked for
 * starts again. Fails where the binding's `enter` does, and has changed nothing then. */
hl_status hl_feed_seek(hl_feed *feed, uint64_t epoch, int64_t batch);

/* A taker of batches, such as a plan. */
typedef struct hl_feed_binding {
    void *const *fields; /* of slot s: fields[s * n_fields ...]; borrowed */
    int32_t n_fields;
    hl_feed_fill fill; /* for a feed that has none of its own; NULL: field 0 gets the row numbers,
                          and no loader threads run */
    /* (optional, both) Around a seek, after which any slot may be filled again: enter keeps other
     * threads out and returns when no batch that the feed gave lies in a slot unread. */
    hl_status (*enter)(void *context);
    void (*leave)(void *context);
    void *context; /* of all three */
} hl_feed_binding;
/* Copies the binding; loader threads end, and batches that were filled ahead are filled again. NULL
 * takes the slots away. */
void hl_feed_bind(hl_feed *feed, const hl_feed_binding *binding);
/* Starts loader threads where there are some, and waits so long for the next batch, so that a
 * caller can look at other things meanwhile: *out_ready says that hl_feed_next does not wait for
 * them. A feed with one slot is ready always, and is waited for there. */
hl_status hl_feed_wait(hl_feed *feed, int64_t timeout_ns, bool *out_ready);
/* How long both have waited for batches to be filled since the feed was made. */
int64_t hl_feed_waited_ns(const hl_feed *feed);
/* Next batch: *out_slot is filled and owned by the caller until the next call; *out_end when the
 * epoch has none left. out_rows (may be NULL) receives a pointer to its row numbers, valid as long
 * as the slot. */
hl_status hl_feed_next(hl_feed *feed, int32_t *out_slot, const int64_t **out_rows, bool *out_end);

#endif
