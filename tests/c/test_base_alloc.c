/* Allocation, its counters and fault hook, and the arena on top. */
#include <stdlib.h>

#include "base/arena.h"
#include "base/threads.h"
#include "tests/c/check.h"

static void test_blocks(void)
{
    hl_alloc_stats before, during, after;
    hl_alloc_stats_read(&before);
    hl_alloc_peak_reset();
    for (size_t bytes = 1; bytes < 5000; bytes += bytes < 300 ? 1 : 97) {
        void *p, *q;
        CHECK_OK(hl_alloc(bytes, &p));
        CHECK_OK(hl_alloc_zero(bytes, &q));
        CHECK((uintptr_t)p % HL_ALIGN == 0 && (uintptr_t)q % HL_ALIGN == 0);
        for (size_t i = 0; i < bytes; i++) CHECK(((char *)q)[i] == 0);
        memset(p, 1, bytes);
        memset(q, 1, bytes);
        hl_alloc_stats_read(&during);
        CHECK_INT(during.current_bytes - before.current_bytes, 2 * bytes);
        CHECK_INT(during.n_live - before.n_live, 2);
        hl_free(p);
        hl_free(q);
    }
    hl_alloc_stats_read(&after);
    CHECK_INT(after.current_bytes, before.current_bytes);
    CHECK_INT(after.peak_bytes - before.current_bytes, 2 * 4956);
    CHECK(after.n_total > before.n_total);
    hl_alloc_peak_reset();
    hl_alloc_stats_read(&after);
    CHECK_INT(after.peak_bytes, after.current_bytes);
}

static void test_edges(void)
{
    void *p = &p;
    CHECK_OK(hl_alloc(0, &p));
    CHECK(!p);
    hl_free(NULL);
    p = &p;
    CHECK_ERROR(hl_alloc(SIZE_MAX, &p), HL_ERROR_MEMORY, "18446744073709551615 bytes");
    CHECK(!p);
    CHECK_ERROR(hl_alloc(SIZE_MAX / 4, &p), HL_ERROR_MEMORY, "request for");
    CHECK_ERROR(hl_alloc_zero(SIZE_MAX - 63, &p), HL_ERROR_MEMORY, "request for");
    char *text;
    CHECK_OK(hl_strdup(NULL, &text));
    CHECK(!text);
    CHECK_OK(hl_strdup("abc", &text));
    CHECK(!strcmp(text, "abc"));
    hl_free(text);

    size_t size = 5;
    int64_t dim = 5;
    CHECK(!hl_mul_size(SIZE_MAX, 2, &size) && !hl_add_size(SIZE_MAX, 1, &size) && size == 5);
    CHECK(!hl_mul_dim(INT64_MAX, 2, &dim) && !hl_mul_dim(INT64_MIN, -1, &dim) && dim == 5);
    CHECK(hl_mul_size(3, 4, &size) && size == 12 && hl_mul_dim(-3, 4, &dim) && dim == -12);
    CHECK_INT(hl_round_up(65, 64), 128);
    CHECK_INT(hl_round_up(0, 64), 0);
}

static hl_status grow_array(void *context)
{
    (void)context;
    hl_status status = HL_OK;
    void *array = NULL;
    int64_t capacity = 0;
    for (int64_t n = 1; n <= 1000; n++) {
        status = hl_alloc_grow(&array, &capacity, n, sizeof(int64_t));
        if (status != HL_OK) break;
        CHECK(capacity >= n);
        ((int64_t *)array)[n - 1] = n;
        for (int64_t i = 0; i < n; i += 37) CHECK(((int64_t *)array)[i] == i + 1);
    }
    hl_free(array);
    return status;
}

static void test_grow(void)
{
    CHECK(check_walk_faults(CHECK_FAULT_ALLOC, HL_ERROR_MEMORY, 0, grow_array, NULL) >= 8);
    void *array = NULL;
    int64_t capacity = 0;
    CHECK_ERROR(hl_alloc_grow(&array, &capacity, INT64_MAX, 16), HL_ERROR_SHAPE, "64 bits");
    CHECK(!array && capacity == 0);
#ifdef __SANITIZE_ADDRESS__
    for (int64_t n = 1; n <= 100; n++) {
        const void *before = array;
        CHECK_OK(hl_alloc_grow(&array, &capacity, n, 8));
        CHECK(array != before && capacity == n);
    }
    hl_free(array);
#endif
}

/* k = 1 is the next; once leaves the one after alone, sticky does not. */
static void test_hook(void)
{
    void *p;
    hl_alloc_fault(2, false);
    CHECK_OK(hl_alloc(8, &p));
    hl_free(p);
    CHECK_ERROR(hl_alloc(8, &p), HL_ERROR_MEMORY, "8 bytes");
    CHECK_OK(hl_alloc(8, &p));
    hl_free(p);
    CHECK_INT(hl_alloc_fault(1, true), 3);
    for (int i = 0; i < 3; i++) CHECK_INT(hl_alloc(8, &p), HL_ERROR_MEMORY);
    CHECK_INT(hl_alloc_fault(0, false), 3);
    CHECK_OK(hl_alloc(8, &p));
    hl_free(p);
}

static hl_status fill_arena(void *context)
{
    (void)context;
    hl_status status = HL_OK;
    hl_arena arena;
    hl_arena_init(&arena);
    enum { N = 3000 };
    static unsigned char *objects[N];
    static size_t sizes[N];
    unsigned seed = 1;
    for (int i = 0; i < N && status == HL_OK; i++) {
        seed = seed * 1103515245 + 12345;
        sizes[i] = 1 + (seed >> 16) % (i % 100 == 0 ? 20000 : 90);
        void *object;
        HL_GOTO(hl_arena_alloc(&arena, sizes[i], &object));
        objects[i] = object;
        CHECK((uintptr_t)object % 16 == 0);
        for (size_t j = 0; j < sizes[i]; j++) CHECK(objects[i][j] == 0);
        memset(objects[i], i & 0xFF, sizes[i]);
    }
    for (int i = 0; i < N; i++) {
        for (size_t j = 0; j < sizes[i]; j++) CHECK(objects[i][j] == (i & 0xFF));
    }
    const char *text;
    HL_GOTO(hl_arena_strdup(&arena, "name", &text));
    CHECK(!strcmp(text, "name"));
cleanup:
    hl_arena_deinit(&arena);
    CHECK(!arena.head);
    return status;
}

static void test_arena(void)
{
    CHECK(check_walk_faults(CHECK_FAULT_ALLOC, HL_ERROR_MEMORY, 0, fill_arena, NULL) >= 4);
    hl_arena arena;
    hl_arena_init(&arena);
    void *p;
    CHECK_OK(hl_arena_alloc(&arena, 0, &p));
    CHECK(!p);
    CHECK_INT(hl_arena_alloc(&arena, SIZE_MAX, &p), HL_ERROR_MEMORY);
    CHECK_INT(hl_arena_alloc(&arena, SIZE_MAX - 40, &p), HL_ERROR_MEMORY);
    CHECK(!p);
    hl_arena_deinit(&arena);
}

static void churn(void *context)
{
    (void)context;
    for (int i = 0; i < 20000; i++) {
        void *p;
        CHECK_OK(hl_alloc((size_t)(i % 1000 + 1), &p));
        hl_free(p);
    }
}

static void test_threads(void)
{
    hl_alloc_stats before, after;
    hl_alloc_stats_read(&before);
    hl_thread *threads[4];
    for (int i = 0; i < 4; i++) CHECK_OK(hl_thread_start(churn, NULL, &threads[i]));
    for (int i = 0; i < 4; i++) hl_thread_join(threads[i]);
    hl_alloc_stats_read(&after);
    CHECK_INT(after.current_bytes, before.current_bytes);
    CHECK_INT(after.n_total - before.n_total, 4 * 20000 + 4);
}

int main(void)
{
    test_blocks();
    test_edges();
    test_grow();
    test_hook();
    test_arena();
    test_threads();
    return CHECK_DONE();
}
