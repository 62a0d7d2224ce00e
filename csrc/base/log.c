/* Log ring. Fixed storage, so that a line about lack of memory needs none. */
#include "base/log.h"

#include <stdarg.h>

#include "base/os.h"
#include "base/status.h"

enum { N_LINES = 256, LINE_BYTES = 512 };

typedef struct log_line {
    hl_log_level level;
    char text[LINE_BYTES];
} log_line;

static hl_mutex ring_mutex;
static log_line ring[N_LINES];
/* Lines ever taken or dropped, and ever written: n_written - n_gone <= N_LINES. */
static uint64_t n_gone, n_written;

void hl_log(hl_log_level level, const char *format, ...)
{
    char text[LINE_BYTES];
    va_list args;
    va_start(args, format);
    hl_text_format(text, sizeof text, format, args);
    va_end(args);

    hl_mutex_lock(&ring_mutex);
    if (n_written - n_gone == N_LINES) n_gone++;
    log_line *line = &ring[n_written % N_LINES];
    line->level = level;
    hl_text_copy(line->text, sizeof line->text, text);
    n_written++;
    hl_mutex_unlock(&ring_mutex);
}

bool hl_log_take(hl_log_level *out_level, char *out_text, size_t bytes)
{
    *out_level = HL_LOG_DEBUG;
    if (bytes > 0) out_text[0] = '\0';
    hl_mutex_lock(&ring_mutex);
    bool found = n_gone != n_written;
    if (found) {
        const log_line *line = &ring[n_gone % N_LINES];
        *out_level = line->level;
        hl_text_copy(out_text, bytes, line->text);
        n_gone++;
    }
    hl_mutex_unlock(&ring_mutex);
    return found;
}
