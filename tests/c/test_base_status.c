/* Status records and the log ring. */
#include "base/log.h"
#include "base/threads.h"
#include "tests/c/check.h"

static void test_record(void)
{
    CHECK_INT(hl_status_set(HL_ERROR_SHAPE, "op: rows must agree, got %d", 7), HL_ERROR_SHAPE);
    CHECK(!strcmp(hl_status_message(), "op: rows must agree, got 7"));
    CHECK_INT(hl_status_context(HL_ERROR_SHAPE, "layer %s", "fc"), HL_ERROR_SHAPE);
    CHECK(!strcmp(hl_status_message(), "layer fc: op: rows must agree, got 7"));
    CHECK_INT(hl_status_context(HL_OK, "nothing"), HL_OK);
    hl_status_set(HL_ERROR_DATA, "again: %s", hl_status_message());
    CHECK(!strcmp(hl_status_message(), "again: layer fc: op: rows must agree, got 7"));
    CHECK(!strcmp(hl_status_name(HL_ERROR_DATA), "DataError"));
    CHECK(!strcmp(hl_status_name(HL_ERROR_INTERNAL), "HotloopError"));
    CHECK(!strcmp(hl_status_name((hl_status)999), "HotloopError"));
}

/* Cut at any length, a text stays whole characters: "a" then e-acute, euro, clef in turn. */
static void test_cut(void)
{
    const char *text = "a\xC3\xA9\xE2\x82\xAC\xF0\x9D\x84\x9E";
    const size_t whole[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10};
    for (size_t bytes = 1; bytes <= 11; bytes++) {
        char out[16];
        memset(out, 'x', sizeof out);
        hl_text_copy(out, bytes, text);
        check_case("bytes %zu", bytes);
        CHECK_INT(strlen(out), whole[bytes - 1]);
        CHECK(!memcmp(out, text, strlen(out)) && out[bytes] == 'x');
    }
    check_case("%s", "");
    char long_text[HL_STATUS_MESSAGE_BYTES + 100];
    memset(long_text, 'y', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = '\0';
    hl_status_set(HL_ERROR_DATA, "%s", long_text);
    CHECK_INT(strlen(hl_status_message()), HL_STATUS_MESSAGE_BYTES - 1);
    hl_status_context(HL_ERROR_DATA, "%s", long_text);
    CHECK_INT(strlen(hl_status_message()), HL_STATUS_MESSAGE_BYTES - 1);
}

static void fail_and_save(void *context)
{
    CHECK(!strcmp(hl_status_message(), "")); /* each thread has its own */
    hl_status_save(hl_status_set(HL_ERROR_BUSY, "worker: got stuck"), context);
}

static void test_threads_apart(void)
{
    hl_status_set(HL_ERROR_CONFIG, "mine");
    hl_status_record record;
    hl_thread *thread;
    CHECK_OK(hl_thread_start(fail_and_save, &record, &thread));
    hl_thread_join(thread);
    CHECK(!strcmp(hl_status_message(), "mine"));
    CHECK_ERROR(hl_status_raise(&record), HL_ERROR_BUSY, "worker: got stuck");
    hl_status_save(HL_OK, &record);
    CHECK(record.message[0] == '\0');
    CHECK_INT(hl_status_raise(&record), HL_OK);
}

static bool take_line(int *out_number)
{
    hl_log_level level;
    char text[64];
    bool found = hl_log_take(&level, text, sizeof text);
    *out_number = -1;
    if (found) {
        CHECK_INT(level, HL_LOG_INFO);
        CHECK(sscanf(text, "line %d", out_number) == 1);
    }
    return found;
}

static void test_log(void)
{
    int number, n_lines = 0, last = -1;
    CHECK(!take_line(&number));
    hl_log(HL_LOG_INFO, "line %d", 5);
    CHECK(take_line(&number) && number == 5);
    CHECK(!take_line(&number));
    for (int i = 0; i < 10000; i++) hl_log(HL_LOG_INFO, "line %d", i);
    while (take_line(&number)) {
        CHECK(last < 0 || number == last + 1);
        last = number;
        n_lines++;
    }
    CHECK_INT(last, 9999);
    CHECK(n_lines >= 64 && n_lines < 10000);
    hl_log(HL_LOG_INFO, "line 123456789 with more than fits");
    char text[8];
    hl_log_level level;
    CHECK(hl_log_take(&level, text, sizeof text) && !strcmp(text, "line 12"));
}

static void log_lines(void *context)
{
    (void)context;
    for (int i = 0; i < 2000; i++) hl_log(HL_LOG_INFO, "line %d", i);
}

static void test_log_threads(void)
{
    hl_thread *threads[4];
    int number;
    for (int i = 0; i < 4; i++) CHECK_OK(hl_thread_start(log_lines, NULL, &threads[i]));
    for (int i = 0; i < 2000; i++) take_line(&number);
    for (int i = 0; i < 4; i++) hl_thread_join(threads[i]);
    while (take_line(&number)) continue;
}

int main(void)
{
    test_record();
    test_cut();
    test_threads_apart();
    test_log();
    test_log_threads();
    return CHECK_DONE();
}
