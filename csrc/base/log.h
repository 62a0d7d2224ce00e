/* Log: sentences that are no errors (a kernel rejected, a default chosen). Kept in a bounded ring
 * that the caller of the core drains; the core never prints. Thread-safe; the oldest line is
 * dropped first. */
#ifndef HL_BASE_LOG_H
#define HL_BASE_LOG_H

#include <stdbool.h>
#include <stddef.h>

typedef enum hl_log_level { HL_LOG_DEBUG, HL_LOG_INFO, HL_LOG_WARNING } hl_log_level;

void hl_log(hl_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Takes the oldest line, cut to bytes with its end mark; false when there is none. */
bool hl_log_take(hl_log_level *out_level, char *out_text, size_t bytes);

#endif
