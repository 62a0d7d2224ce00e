/* Feed: batches in order, from the caller's thread or from loader threads.
 *
 * Batch b of an epoch always stands in slot b % n_slots. Loaders claim batch numbers in order and
 * finish them in any; the caller waits for the very next one, so the order of batches does not
 * depend on the threads. Before loaders may fill a slot again the caller must have asked for the
 * following batch: `n_free` counts the batches whose slots were given back, and a loader claims
 * batch b only while b < n_free + n_slots.
 *
 * One mutex guards the counters and one condition signals every change; rows and fields of a slot
 * belong to the loader that claimed it until it is full, then to the caller. Loaders live from the
 * first batch that is asked for to the next seek, so between epochs nothing runs. A process made by
 * fork has no loaders: it notices by the fork count and starts its own at the same position. */
#include "data/feed.h"

#include <string.h>

#include "base/alloc.h"
#include "base/os.h"
#include "base/threads.h"

/* Without loaders, rows are drawn for several small batches at once: the order's fast path works on
 * hundreds of positions. */
enum { AHEAD_ROWS = 2048 };

typedef struct feed_slot {
    int64_t batch; /* that it is filled with, -1: none */
    hl_status_record error;
} feed_slot;

struct hl_feed {
    hl_feed_options options;
    int64_t n_batches;
    uint64_t epoch;
    hl_sampler_order order; /* of the epoch */
    hl_feed_binding to;     /* fields NULL: not bound */
    hl_feed_fill fill;      /* the options' or the binding's; NULL: row numbers alone */
    void *context;
    int64_t *rows;  /* (n_slots, batch) */
    int64_t next;   /* batch that hl_feed_next gives */
    int64_t *ahead; /* rows of batches [ahead_first, ahead_end); NULL: drawn batch by batch */
    int64_t ahead_batches, ahead_first, ahead_end;

    /* Loader threads; all but `threads` guarded by the mutex while they run. */
    hl_mutex *mutex; /* NULL: no threads */
    hl_cond *changed;
    hl_thread **threads;
    int32_t n_started;
    int64_t fork_count; /* of the process they live in */
    feed_slot *slots;
    int64_t claimed; /* next batch a loader takes */
    int64_t n_free;
    int64_t waited_ns; /* by the caller */
    bool is_ending;
};

/* ---- one batch ------------------------------------------------------------------------------- */

static bool has_loaders(const hl_feed *feed)
{
    return feed->options.n_threads && feed->fill;
}

static void draw_rows(hl_feed *feed, int64_t batch, int64_t n_batches, int64_t *rows)
{
    const hl_feed_options *options = &feed->options;
    hl_sampler_order_fill(&options->sampler, &feed->order, options->first + batch * options->batch,
                          n_batches * options->batch, rows);
}

static void take_rows(hl_feed *feed, int64_t batch, int64_t *rows)
{
    int64_t n = feed->options.batch;
    if (!feed->ahead || has_loaders(feed)) {
        draw_rows(feed, batch, 1, rows);
        return;
    }
    if (batch < feed->ahead_first || batch >= feed->ahead_end) {
        int64_t left = feed->n_batches - batch;
        feed->ahead_first = batch;
        feed->ahead_end = batch + (left < feed->ahead_batches ? left : feed->ahead_batches);
        draw_rows(feed, batch, feed->ahead_end - batch, feed->ahead);
    }
    memcpy(rows, feed->ahead + (batch - feed->ahead_first) * n, (size_t)n * sizeof *rows);
}

static hl_status fill_batch(hl_feed *feed, int64_t batch)
{
    const hl_feed_options *options = &feed->options;
    int64_t slot = batch % options->n_slots, n = options->batch;
    int64_t *rows = feed->rows + slot * n;
    void *const *fields = feed->to.fields ? feed->to.fields + slot * feed->to.n_fields : NULL;
    take_rows(feed, batch, rows);
    hl_batch filled = {rows, n, feed->epoch, options->is_training, options->peers};
    if (feed->fill) return feed->fill(feed->context, &filled, fields);
    if (fields) memcpy(fields[0], rows, (size_t)n * sizeof *rows);
    return HL_OK;
}

/* ---- loaders --------------------------------------------------------------------------------- */

static bool can_claim(const hl_feed *feed)
{
    return feed->claimed < feed->n_batches && feed->claimed < feed->n_free + feed->options.n_slots;
}

static void run_loader(void *context)
{
    hl_feed *feed = context;
    hl_mutex_lock(feed->mutex);
    for (;;) {
        while (!feed->is_ending && !can_claim(feed)) hl_cond_wait(feed->changed, feed->mutex);
        if (feed->is_ending) break;
        int64_t batch = feed->claimed++;
        feed_slot *slot = &feed->slots[batch % feed->options.n_slots];
        hl_mutex_unlock(feed->mutex);
        hl_status_record error = {.code = HL_OK};
        hl_status status = fill_batch(feed, batch);
        if (status != HL_OK) hl_status_save(status, &error);
        hl_mutex_lock(feed->mutex);
        slot->error = error;
        slot->batch = batch;
        hl_cond_broadcast(feed->changed);
    }
    hl_mutex_unlock(feed->mutex);
}

static void stop_loaders(hl_feed *feed)
{
    if (!feed->n_started) return;
    hl_mutex_lock(feed->mutex);
    feed->is_ending = true;
    hl_cond_broadcast(feed->changed);
    hl_mutex_unlock(feed->mutex);
    while (feed->n_started) hl_thread_join(feed->threads[--feed->n_started]);
    feed->is_ending = false;
}

/* Starts loaders from feed->next on, as many as the system allows: one is enough. */
static hl_status start_loaders(hl_feed *feed)
{
    feed->claimed = feed->n_free = feed->next;
    feed->fork_count = hl_os_fork_count();
    for (int32_t s = 0; s < feed->options.n_slots; s++) feed->slots[s].batch = -1;
    for (int32_t t = 0; t < feed->options.n_threads; t++) {
        hl_status status = hl_thread_start(run_loader, feed, &feed->threads[t]);
        if (status != HL_OK) return t ? HL_OK : hl_status_context(status, "feed");
        /* Loaders never read it. */
        feed->n_started++;
    }
    return HL_OK;
}

/* Waits for the next batch until timeout_ns passed; negative: as long as it takes. */
static bool wait_loaded(hl_feed *feed, int64_t timeout_ns)
{
    feed_slot *slot = &feed->slots[feed->next % feed->options.n_slots];
    if (slot->batch == feed->next) return true;
    int64_t begin = hl_os_time_ns(), now = begin;
    for (; slot->batch != feed->next; now = hl_os_time_ns()) {
        int64_t left = timeout_ns < 0 ? -1 : begin + timeout_ns - now;
        if (timeout_ns < 0)
            hl_cond_wait(feed->changed, feed->mutex);
        else if (left <= 0 || !hl_cond_wait_for(feed->changed, feed->mutex, left))
            break;
    }
    feed->waited_ns += hl_os_time_ns() - begin;
    return slot->batch == feed->next;
}

/* Loaders for this process, from the next batch on. */
static hl_status ensure_loaders(hl_feed *feed)
{
    if (feed->n_started && feed->fork_count != hl_os_fork_count()) stop_loaders(feed);
    return feed->n_started ? HL_OK : start_loaders(feed);
}

static hl_status take_loaded(hl_feed *feed)
{
    HL_TRY(ensure_loaders(feed));
    feed_slot *slot = &feed->slots[feed->next % feed->options.n_slots];
    hl_mutex_lock(feed->mutex);
    feed->n_free = feed->next;
    hl_cond_broadcast(feed->changed);
    (void)wait_loaded(feed, -1);
    hl_mutex_unlock(feed->mutex);
    return slot->error.code == HL_OK ? HL_OK : hl_status_raise(&slot->error);
}

/* ---- the feed -------------------------------------------------------------------------------- */

static hl_status check_options(const hl_feed_options *options)
{
    int64_t n = hl_sampler_positions(&options->sampler);
    int64_t first = options->first, count = options->count;
    if (options->batch < 1)
        return hl_status_set(HL_ERROR_CONFIG, "feed: a batch must hold at least 1 sample, got %lld",
                             (long long)options->batch);
    if (n < 0 || first < 0 || count < 0 || first > n || count > n - first)
        return hl_status_set(HL_ERROR_CONFIG,
                             "feed: first and count must lie in %lld samples, got %lld and %lld",
                             (long long)n, (long long)first, (long long)count);
    if (options->n_threads < 0 || options->n_threads > HL_FEED_THREADS_MAX)
        return hl_status_set(HL_ERROR_CONFIG, "feed: threads must be in 0..%d, got %d",
                             HL_FEED_THREADS_MAX, options->n_threads);
    if (options->n_slots < 1 || options->n_slots > HL_FEED_SLOTS_MAX)
        return hl_status_set(HL_ERROR_CONFIG, "feed: slots must be in 1..%d, got %d",
                             HL_FEED_SLOTS_MAX, options->n_slots);
    return HL_OK;
}

static hl_status make_loaders(hl_feed *feed)
{
    size_t n_slots = (size_t)feed->options.n_slots, n_threads = (size_t)feed->options.n_threads;
    HL_TRY(hl_alloc_zero(n_threads * sizeof *feed->threads, (void **)&feed->threads));
    HL_TRY(hl_alloc_zero(n_slots * sizeof *feed->slots, (void **)&feed->slots));
    HL_TRY(hl_mutex_create(&feed->mutex));
    return hl_cond_create(&feed->changed);
}

/* Room for the row numbers of every slot; a batch that is never full needs none. */
static hl_status make_rows(hl_feed *feed)
{
    size_t bytes;
    if (!feed->n_batches) return HL_OK;
    if (!hl_mul_size((size_t)feed->options.batch, sizeof *feed->rows, &bytes) ||
        !hl_mul_size(bytes, (size_t)feed->options.n_slots, &bytes))
        return hl_status_set(HL_ERROR_SHAPE, "feed: a batch must fit memory, got %lld samples",
                             (long long)feed->options.batch);
    return hl_alloc(bytes, (void **)&feed->rows);
}

static hl_status make_ahead(hl_feed *feed)
{
    feed->ahead_batches = AHEAD_ROWS / feed->options.batch;
    if (feed->ahead_batches < 2) return HL_OK;
    size_t rows = (size_t)(feed->ahead_batches * feed->options.batch);
    return hl_alloc(rows * sizeof *feed->ahead, (void **)&feed->ahead);
}

hl_status hl_feed_create(const hl_feed_options *options, hl_feed **out_feed)
{
    *out_feed = NULL;
    HL_TRY(check_options(options));
    hl_feed *feed;
    HL_TRY(hl_alloc_zero(sizeof *feed, (void **)&feed));
    hl_status status;
    feed->options = *options;
    feed->fill = options->fill;
    feed->context = options->context;
    feed->n_batches = options->count / options->batch;
    HL_GOTO(make_rows(feed));
    if (feed->options.n_threads > 0) HL_GOTO(make_loaders(feed));
    if (!has_loaders(feed)) HL_GOTO(make_ahead(feed));
    hl_sampler_order_init(&feed->options.sampler, 0, &feed->order);
    *out_feed = feed;
    feed = NULL;
cleanup:
    hl_feed_destroy(feed);
    return status;
}

void hl_feed_destroy(hl_feed *feed)
{
    if (!feed) return;
    stop_loaders(feed);
    hl_cond_destroy(feed->changed);
    hl_mutex_destroy(feed->mutex);
    hl_free(feed->threads);
    hl_free(feed->slots);
    hl_free(feed->ahead);
    hl_free(feed->rows);
    hl_free(feed);
}

const hl_feed_options *hl_feed_settings(const hl_feed *feed)
{
    return &feed->options;
}

int64_t hl_feed_batches(const hl_feed *feed)
{
    return feed->n_batches;
}

int32_t hl_feed_slot(const hl_feed *feed)
{
    return (int32_t)(feed->next % feed->options.n_slots);
}

bool hl_feed_is_over(const hl_feed *feed)
{
    return feed->next == feed->n_batches;
}

hl_status hl_feed_seek(hl_feed *feed, uint64_t epoch, int64_t batch)
{
    if (batch < 0 || batch > feed->n_batches)
        return hl_status_set(HL_ERROR_CONFIG, "feed: batch must be in 0..%lld, got %lld",
                             (long long)feed->n_batches, (long long)batch);
    if (feed->to.enter) HL_TRY(feed->to.enter(feed->to.context));
    stop_loaders(feed);
    if (epoch != feed->epoch) hl_sampler_order_init(&feed->options.sampler, epoch, &feed->order);
    feed->epoch = epoch;
    feed->ahead_first = feed->ahead_end = 0;
    feed->next = batch;
    /* Loaders start when a batch is asked for: another plan may take the slots before, and what was
     * made until then would be made again. */
    if (feed->to.leave) feed->to.leave(feed->to.context);
    return HL_OK;
}

void hl_feed_bind(hl_feed *feed, const hl_feed_binding *binding)
{
    stop_loaders(feed);
    feed->to = binding ? *binding : (hl_feed_binding){0};
    if (feed->to.n_fields < 1) feed->to.fields = NULL;
    if (feed->options.fill) return;
    feed->fill = feed->to.fill;
    feed->context = feed->to.context;
}

/* Fills the next batch in the caller's thread, which waits for that. */
static hl_status fill_now(hl_feed *feed)
{
    int64_t begin = feed->fill ? hl_os_time_ns() : 0;
    hl_status status = fill_batch(feed, feed->next);
    if (feed->fill) feed->waited_ns += hl_os_time_ns() - begin;
    return status;
}

/* A batch that nobody fills, or that the call of hl_feed_next fills, is not waited for. */
static bool is_waited_for(const hl_feed *feed)
{
    return has_loaders(feed) && feed->to.fields && feed->options.n_slots > 1 &&
           !hl_feed_is_over(feed);
}

hl_status hl_feed_wait(hl_feed *feed, int64_t timeout_ns, bool *out_ready)
{
    *out_ready = true;
    if (!is_waited_for(feed)) return HL_OK;
    HL_TRY(ensure_loaders(feed));
    hl_mutex_lock(feed->mutex);
    *out_ready = wait_loaded(feed, timeout_ns);
    hl_mutex_unlock(feed->mutex);
    return HL_OK;
}

int64_t hl_feed_waited_ns(const hl_feed *feed)
{
    return feed->waited_ns;
}

hl_status hl_feed_next(hl_feed *feed, int32_t *out_slot, const int64_t **out_rows, bool *out_end)
{
    *out_slot = 0;
    if (out_rows) *out_rows = NULL;
    *out_end = hl_feed_is_over(feed);
    if (*out_end) return HL_OK;
    if (feed->fill && !feed->to.fields)
        return hl_status_set(HL_ERROR_INTERNAL, "feed: its slots must be bound before it is read");
    HL_TRY(has_loaders(feed) ? take_loaded(feed) : fill_now(feed));
    *out_slot = hl_feed_slot(feed);
    if (out_rows) *out_rows = feed->rows + *out_slot * feed->options.batch;
    feed->next++;
    return HL_OK;
}
