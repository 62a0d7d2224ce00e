/* Feed and sampler: the order of batches is a pure function of seed, epoch and position, whatever
 * fills the slots; errors and ends come where they belong. */
#include "data/feed.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/threads.h"
#include "check.h"

enum { MAX_SLOTS = 8, MAX_BATCH = 64 };

/* ---- sampler --------------------------------------------------------------------------------- */

/* out[i] = row at position first + i of the epoch's order. */
static void draw_rows(const hl_sampler *sampler, uint64_t epoch, int64_t first, int64_t count,
                      int64_t *out)
{
    hl_sampler_order order;
    hl_sampler_order_init(sampler, epoch, &order);
    hl_sampler_order_fill(sampler, &order, first, count, out);
}

static void test_sampler_order(void)
{
    int64_t rows[1000], all[1000], part[1000];
    for (int64_t i = 0; i < 1000; i++) rows[i] = 5000 - i;
    const int64_t sizes[] = {1, 7, 64, 65, 1000};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        hl_sampler sampler = {.n = sizes[s], .rows = rows, .shuffle = true, .seed = 9};
        check_case("n %lld", (long long)sampler.n);
        bool seen[1000] = {false};
        draw_rows(&sampler, 3, 0, sampler.n, all);
        for (int64_t i = 0; i < sampler.n; i++) {
            int64_t position = 5000 - all[i];
            CHECK(position >= 0 && position < sampler.n && !seen[position]);
            seen[position] = true;
        }
        for (int64_t first = 0; first < sampler.n; first += 13) {
            int64_t count = sampler.n - first < 29 ? sampler.n - first : 29;
            draw_rows(&sampler, 3, first, count, part);
            CHECK(memcmp(part, all + first, (size_t)count * sizeof *part) == 0);
        }
    }
    check_case("%s", "");
}

static void test_sampler_seed_and_epoch(void)
{
    int64_t a[500], b[500];
    hl_sampler sampler = {.n = 500, .shuffle = true, .seed = 1};
    draw_rows(&sampler, 0, 0, 500, a);
    draw_rows(&sampler, 1, 0, 500, b);
    CHECK(memcmp(a, b, sizeof a) != 0);
    sampler.seed = 2;
    draw_rows(&sampler, 0, 0, 500, b);
    CHECK(memcmp(a, b, sizeof a) != 0);
    sampler.shuffle = false;
    draw_rows(&sampler, 7, 100, 3, b);
    CHECK(b[0] == 100 && b[1] == 101 && b[2] == 102);
}

/* ---- draws with replacement ------------------------------------------------------------------ */

/* How often each of n rows is drawn in the first `count` positions of some epochs. */
static void count_draws(const hl_sampler *sampler, int64_t n_epochs, int64_t count, int64_t *counts)
{
    int64_t *rows = malloc((size_t)count * sizeof *rows);
    memset(counts, 0, (size_t)sampler->n * sizeof *counts);
    for (int64_t epoch = 0; epoch < n_epochs; epoch++) {
        draw_rows(sampler, (uint64_t)epoch, 0, count, rows);
        for (int64_t i = 0; i < count; i++) counts[rows[i]]++;
    }
    free(rows);
}

/* Pearson's statistic beside the value that 1 of 10^4 exceeds (Wilson and Hilferty, "The
 * distribution of chi-square", PNAS 17, 1931). */
static void check_chi_square(const double *weights, int64_t n, int64_t n_epochs, int64_t count)
{
    hl_alias *alias;
    int64_t *counts = malloc((size_t)n * sizeof *counts);
    double sum = 0, statistic = 0;
    int64_t freedom = -1;
    CHECK_OK(hl_alias_create(weights, n, &alias));
    hl_sampler sampler = {.n = n, .seed = 11, .alias = alias, .n_draws = count};
    count_draws(&sampler, n_epochs, count, counts);
    for (int64_t i = 0; i < n; i++) sum += weights[i];
    for (int64_t i = 0; i < n; i++) {
        double expected = (double)(n_epochs * count) * (weights[i] / sum);
        if (weights[i] == 0) CHECK_INT(counts[i], 0);
        if (weights[i] == 0) continue;
        CHECK(expected > 20); /* else the statistic has another distribution */
        statistic += ((double)counts[i] - expected) * ((double)counts[i] - expected) / expected;
        freedom++;
    }
    double spread = 2.0 / (9.0 * (double)freedom), root = 1 - spread + 3.719 * sqrt(spread);
    CHECK(freedom < 1 || statistic < (double)freedom * root * root * root);
    hl_alias_destroy(alias);
    free(counts);
}

static void test_draws_by_weight(void)
{
    double weights[1000];
    const int64_t sizes[] = {1, 2, 3, 64, 1000};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        int64_t n = sizes[s];
        check_case("n %lld", (long long)n);
        for (int64_t i = 0; i < n; i++) weights[i] = 1;
        check_chi_square(weights, n, 3, 50000);
        for (int64_t i = 0; i < n; i++) weights[i] = (double)(i % 7);
        weights[0] = 3;
        check_chi_square(weights, n, 3, 100000);
        for (int64_t i = 0; i < n; i++) weights[i] = (i == n - 1) ? 1e300 : 1e300 * 1e-3;
        check_chi_square(weights, n, 3, 100000);
    }
    check_case("%s", "");
}

static void test_rows_without_weight_are_never_drawn(void)
{
    static double weights[4096];
    static int64_t counts[4096];
    hl_alias *alias;
    for (int64_t i = 0; i < 4096; i++) weights[i] = i == 77 || i == 4000 ? 1e-310 : 0;
    CHECK_OK(hl_alias_create(weights, 4096, &alias));
    hl_sampler sampler = {.n = 4096, .seed = 3, .alias = alias, .n_draws = 100000};
    count_draws(&sampler, 2, 100000, counts);
    for (int64_t i = 0; i < 4096; i++) CHECK((counts[i] > 0) == (weights[i] > 0));
    hl_alias_destroy(alias);
}

static void test_draws_are_of_seed_epoch_and_position(void)
{
    double weights[50];
    int64_t rows[50], all[400], part[400];
    hl_alias *alias;
    for (int64_t i = 0; i < 50; i++) weights[i] = 1 + (double)i, rows[i] = 900 - i;
    CHECK_OK(hl_alias_create(weights, 50, &alias));
    hl_sampler sampler = {.n = 50, .rows = rows, .seed = 1, .alias = alias, .n_draws = 400};
    draw_rows(&sampler, 2, 0, 400, all);
    for (int64_t first = 0; first < 400; first += 7) {
        int64_t count = 400 - first < 31 ? 400 - first : 31;
        draw_rows(&sampler, 2, first, count, part);
        CHECK(memcmp(part, all + first, (size_t)count * sizeof *part) == 0);
    }
    for (int64_t i = 0; i < 400; i++) CHECK(all[i] > 850 && all[i] <= 900);
    draw_rows(&sampler, 3, 0, 400, part);
    CHECK(memcmp(part, all, sizeof all) != 0);
    sampler.seed = 2;
    draw_rows(&sampler, 2, 0, 400, part);
    CHECK(memcmp(part, all, sizeof all) != 0);
    hl_alias_destroy(alias);
}

static void check_weights_refused(double first, double second, const char *text)
{
    double weights[2] = {first, second};
    hl_alias *alias;
    CHECK_ERROR(hl_alias_create(weights, 2, &alias), HL_ERROR_DATA, text);
    CHECK(alias == NULL);
}

static void test_refuses_weights(void)
{
    check_weights_refused(1, -1, "at least 0, got -1 at 1");
    check_weights_refused(NAN, 1, "at least 0, got nan at 0");
    check_weights_refused(1, INFINITY, "finite and at least 0, got inf at 1");
    check_weights_refused(0, 0, "one must be above 0, got none of 2");
    hl_alias_destroy(NULL);
}

static hl_status use_alias(void *context)
{
    const double weights[3] = {1, 2, 3};
    hl_alias *alias;
    (void)context;
    HL_TRY(hl_alias_create(weights, 3, &alias));
    hl_alias_destroy(alias);
    return HL_OK;
}

/* ---- feeds ----------------------------------------------------------------------------------- */

static void bind(hl_feed *feed, void *const *fields, hl_feed_fill fill, void *context)
{
    hl_feed_binding binding = {.fields = fields, .n_fields = 2, .fill = fill, .context = context};
    hl_feed_bind(feed, &binding);
}

/* Field 0: row numbers, field 1: their squares. */
typedef struct filler {
    int64_t fields[MAX_SLOTS][2][MAX_BATCH];
    void *addresses[MAX_SLOTS * 2];
    _Atomic int64_t n_filled;
    _Atomic int64_t bad_row; /* a batch with it fails; -1: none */
    bool is_slow;
} filler;

static void init_filler(filler *f)
{
    memset(f, 0, sizeof *f);
    f->bad_row = -1;
    for (int s = 0; s < MAX_SLOTS; s++)
        for (int i = 0; i < 2; i++) f->addresses[2 * s + i] = f->fields[s][i];
}

static const int64_t split[] = {3, 4, 7};

static hl_status fill(void *context, const hl_batch *batch, void *const *fields)
{
    filler *f = context;
    CHECK(batch->peers.rows == split && batch->peers.n == 3 && batch->peers.owner == &split);
    const int64_t *rows = batch->rows, n = batch->n;
    int64_t *row = fields[0], *square = fields[1];
    /* Batches take different times, so that threads finish out of order. */
    if (f->is_slow)
        for (int64_t i = 0; i < rows[0] % 5 * 200; i++) hl_os_thread_yield();
    for (int64_t i = 0; i < n; i++) {
        row[i] = rows[i];
        square[i] = rows[i] * rows[i];
        if (rows[i] == f->bad_row)
            return hl_status_set(HL_ERROR_DATA, "row %lld is bad", (long long)rows[i]);
    }
    f->n_filled++;
    return HL_OK;
}

static hl_feed_options make_options(filler *f, int32_t n_threads, int32_t n_slots)
{
    return (hl_feed_options){.sampler = {.n = 200, .shuffle = true, .seed = 5},
                             .peers = {split, 3, (void *)&split},
                             .batch = 16,
                             .first = 8,
                             .count = 190,
                             .n_threads = n_threads,
                             .n_slots = n_slots,
                             .fill = f ? fill : NULL,
                             .context = f};
}

/* Everything an epoch gives, checked against the sampler. */
static void check_epoch(hl_feed *feed, filler *f, const hl_feed_options *options, uint64_t epoch,
                        int64_t batch)
{
    int64_t want[MAX_BATCH];
    int64_t n_batches = options->count / options->batch;
    for (;; batch++) {
        const int64_t *rows;
        int32_t slot;
        bool is_end;
        CHECK_OK(hl_feed_next(feed, &slot, &rows, &is_end));
        CHECK_INT(is_end, batch == n_batches);
        if (is_end || batch >= n_batches) return;
        draw_rows(&options->sampler, epoch, options->first + batch * options->batch, options->batch,
                  want);
        CHECK(slot >= 0 && slot < options->n_slots);
        CHECK(memcmp(rows, want, (size_t)options->batch * sizeof *want) == 0);
        if (!f) continue;
        CHECK(memcmp(f->fields[slot][0], want, (size_t)options->batch * sizeof *want) == 0);
        for (int64_t i = 0; options->fill && i < options->batch; i++)
            CHECK_INT(f->fields[slot][1][i], want[i] * want[i]);
    }
}

/* More positions than rows, at any number of threads, from any batch. */
static void test_draws_any_threads(void)
{
    double weights[20];
    hl_alias *alias;
    for (int64_t i = 0; i < 20; i++) weights[i] = (double)(i % 4);
    CHECK_OK(hl_alias_create(weights, 20, &alias));
    for (int32_t n_threads = 0; n_threads < 4; n_threads++) {
        filler f;
        hl_feed *feed;
        init_filler(&f);
        hl_feed_options options = make_options(&f, n_threads, 3);
        options.sampler.n = 20;
        options.sampler.alias = alias;
        options.sampler.n_draws = 200;
        check_case("%d threads", n_threads);
        CHECK_OK(hl_feed_create(&options, &feed));
        CHECK_INT(hl_feed_batches(feed), 11);
        bind(feed, f.addresses, NULL, NULL);
        check_epoch(feed, &f, &options, 0, 0);
        CHECK_OK(hl_feed_seek(feed, 6, 4));
        check_epoch(feed, &f, &options, 6, 4);
        hl_feed_destroy(feed);
    }
    hl_alias_destroy(alias);
    check_case("%s", "");
}

static void test_order_any_threads(void)
{
    static const int32_t threads[] = {0, 1, 2, 7}, slots[] = {1, 2, 3, 8};
    for (int t = 0; t < 4; t++) {
        for (int s = 0; s < 4; s++) {
            filler f;
            hl_feed *feed;
            init_filler(&f);
            f.is_slow = threads[t] > 1;
            /* The filler is the creator's, or comes with the slots. */
            bool is_own = s % 2;
            hl_feed_options options = make_options(is_own ? &f : NULL, threads[t], slots[s]);
            check_case("%d threads, %d slots", threads[t], slots[s]);
            CHECK_OK(hl_feed_create(&options, &feed));
            CHECK_INT(hl_feed_batches(feed), 11);
            bind(feed, f.addresses, is_own ? NULL : fill, is_own ? NULL : &f);
            check_epoch(feed, &f, &options, 0, 0);
            CHECK_INT(f.n_filled, 11);
            CHECK_OK(hl_feed_seek(feed, 6, 4));
            check_epoch(feed, &f, &options, 6, 4);
            CHECK_OK(hl_feed_seek(feed, 6, 11));
            check_epoch(feed, &f, &options, 6, 11);
            CHECK_OK(hl_feed_seek(feed, 1, 0));
            hl_feed_destroy(feed);
        }
    }
    check_case("%s", "");
}

/* A batch in the caller's hands stays as it is while loaders go on. */
static void test_slot_is_the_callers(void)
{
    filler f;
    hl_feed *feed;
    int32_t slot;
    bool is_end;
    init_filler(&f);
    hl_feed_options options = make_options(&f, 3, 3);
    CHECK_OK(hl_feed_create(&options, &feed));
    bind(feed, f.addresses, NULL, NULL);
    for (int b = 0; b < 11; b++) {
        int64_t held[MAX_BATCH];
        CHECK_OK(hl_feed_next(feed, &slot, NULL, &is_end));
        memcpy(held, f.fields[slot][0], sizeof held);
        for (int i = 0; i < 2000; i++) hl_os_thread_yield();
        CHECK(memcmp(held, f.fields[slot][0], sizeof held) == 0);
        CHECK(f.n_filled <= b + 3);
    }
    hl_feed_destroy(feed);
}

static void test_rows_only(void)
{
    filler f;
    hl_feed *feed;
    init_filler(&f);
    hl_feed_options options = make_options(NULL, 4, 2);
    CHECK_OK(hl_feed_create(&options, &feed));
    check_epoch(feed, NULL, &options, 0, 0); /* not bound: rows alone */
    bind(feed, f.addresses, NULL, NULL);
    CHECK_OK(hl_feed_seek(feed, 2, 0));
    check_epoch(feed, &f, &options, 2, 0);
    hl_feed_bind(feed, NULL);
    CHECK_OK(hl_feed_seek(feed, 3, 0));
    check_epoch(feed, NULL, &options, 3, 0);
    hl_feed_destroy(feed);
}

static void test_errors_of_fill(void)
{
    for (int32_t n_threads = 0; n_threads < 4; n_threads++) {
        filler f;
        hl_feed *feed;
        int64_t rows[MAX_BATCH];
        int32_t slot;
        bool is_end;
        init_filler(&f);
        hl_feed_options options = make_options(&f, n_threads, 4);
        check_case("%d threads", n_threads);
        draw_rows(&options.sampler, 0, options.first + 3 * 16, 16, rows);
        f.bad_row = rows[5];
        CHECK_OK(hl_feed_create(&options, &feed));
        bind(feed, f.addresses, NULL, NULL);
        for (int b = 0; b < 3; b++) CHECK_OK(hl_feed_next(feed, &slot, NULL, &is_end));
        /* The batch's error, again and again, in the words of the thread that met it. */
        for (int i = 0; i < 3; i++)
            CHECK_ERROR(hl_feed_next(feed, &slot, NULL, &is_end), HL_ERROR_DATA, "is bad");
        f.bad_row = -1;
        CHECK_OK(hl_feed_seek(feed, 0, 3));
        check_epoch(feed, &f, &options, 0, 3);
        hl_feed_destroy(feed);
    }
    check_case("%s", "");
}

static void check_refused(hl_feed_options options, const char *text)
{
    hl_feed *feed;
    CHECK_ERROR(hl_feed_create(&options, &feed), HL_ERROR_CONFIG, text);
    CHECK(feed == NULL);
}

static void test_refuses(void)
{
    filler f;
    hl_feed *feed;
    int32_t slot;
    bool is_end;
    init_filler(&f);
    hl_feed_options good = make_options(&f, 0, 1), options;
    options = good, options.batch = 0, check_refused(options, "batch");
    options = good, options.first = -1, check_refused(options, "first");
    options = good, options.count = 193, check_refused(options, "count");
    options = good, options.first = INT64_MAX, check_refused(options, "first");
    options = good, options.n_threads = -1, check_refused(options, "threads");
    options = good, options.n_slots = 0, check_refused(options, "slots");
    CHECK_OK(hl_feed_create(&good, &feed));
    CHECK_ERROR(hl_feed_next(feed, &slot, NULL, &is_end), HL_ERROR_INTERNAL, "bound");
    CHECK_ERROR(hl_feed_seek(feed, 0, 12), HL_ERROR_CONFIG, "0..11");
    CHECK_ERROR(hl_feed_seek(feed, 0, -1), HL_ERROR_CONFIG, "0..11");
    hl_feed_destroy(feed);
    hl_feed_destroy(NULL);
    /* A batch larger than what there is: no batch, and no room for one. */
    options = good, options.batch = INT64_MAX;
    CHECK_OK(hl_feed_create(&options, &feed));
    CHECK_OK(hl_feed_next(feed, &slot, NULL, &is_end));
    CHECK(is_end);
    hl_feed_destroy(feed);
}

/* A child of fork has no loaders and must make its own. */
static void test_fork(void)
{
    if (CHECK_UNDER_TSAN) {
        CHECK_SKIP("the thread sanitizer does not allow threads after a fork");
        return;
    }
    filler f;
    hl_feed *feed;
    int32_t slot;
    bool is_end;
    init_filler(&f);
    hl_feed_options options = make_options(&f, 3, 4);
    CHECK_OK(hl_feed_create(&options, &feed));
    bind(feed, f.addresses, NULL, NULL);
    CHECK_OK(hl_feed_next(feed, &slot, NULL, &is_end));
    pid_t child = fork();
    if (child == 0) {
        check_epoch(feed, &f, &options, 0, 1);
        hl_feed_destroy(feed);
        _exit(check_failures != 0);
    }
    int code;
    CHECK(waitpid(child, &code, 0) == child);
    CHECK_INT(code, 0);
    check_epoch(feed, &f, &options, 0, 1);
    hl_feed_destroy(feed);
}

static hl_status use_feed(void *context)
{
    filler f;
    hl_feed *feed;
    int32_t slot;
    bool is_end = false;
    (void)context;
    init_filler(&f);
    hl_feed_options options = make_options(&f, 3, 2);
    HL_TRY(hl_feed_create(&options, &feed));
    hl_status status;
    bind(feed, f.addresses, NULL, NULL);
    while (!is_end) HL_GOTO(hl_feed_next(feed, &slot, NULL, &is_end));
    HL_GOTO(hl_feed_seek(feed, 1, 0));
    HL_GOTO(hl_feed_next(feed, &slot, NULL, &is_end));
cleanup:
    hl_feed_destroy(feed);
    return status;
}

/* Fewer loaders than asked for are enough: only the first one's failure is an error. */
static void test_faults(void)
{
    CHECK(check_walk_faults(CHECK_FAULT_ALLOC, HL_OK, 0, use_feed, NULL) > 5);
    CHECK(check_walk_faults(CHECK_FAULT_OS, HL_OK, 11, use_feed, NULL) > 0);
    CHECK_INT(check_walk_faults(CHECK_FAULT_ALLOC, HL_OK, 0, use_alias, NULL),
              8); /* once, and from then on */
}

int main(void)
{
    test_sampler_order();
    test_sampler_seed_and_epoch();
    test_draws_by_weight();
    test_rows_without_weight_are_never_drawn();
    test_draws_are_of_seed_epoch_and_position();
    test_refuses_weights();
    test_order_any_threads();
    test_draws_any_threads();
    test_slot_is_the_callers();
    test_rows_only();
    test_errors_of_fill();
    test_refuses();
    test_fork();
    test_faults();
    return CHECK_DONE();
}
