/* Status: what every fallible function returns, and the one message that explains it.
 *
 * The code says which exception the user will see; the sentence is written once, where the fact is
 * known, into a record of the calling thread, in the form "<op>: <rule>, got <value>". Callers add
 * context in front. A record holds one error: the last one raised. Rejected: a heap payload per
 * status (must be consumed on every path, leaks otherwise) and plain codes (the reason is lost). */
#ifndef HL_BASE_STATUS_H
#define HL_BASE_STATUS_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

/* code, name of the Python exception */
#define HL_STATUS_CODES(X)                                                                         \
    X(HL_OK, "")                                                                                   \
    X(HL_ERROR_CONFIG, "ConfigError")                                                              \
    X(HL_ERROR_SHAPE, "ShapeError")                                                                \
    X(HL_ERROR_DATA, "DataError")                                                                  \
    X(HL_ERROR_TRACE, "TraceError")                                                                \
    X(HL_ERROR_DEVICE, "DeviceError")                                                              \
    X(HL_ERROR_DEVICE_LOST, "DeviceLostError")                                                     \
    X(HL_ERROR_BUSY, "BusyError")                                                                  \
    X(HL_ERROR_MEMORY, "OutOfMemoryError")                                                         \
    X(HL_ERROR_CHECKPOINT, "CheckpointError")                                                      \
    X(HL_ERROR_NOT_FINITE, "NotFiniteError")                                                       \
    X(HL_ERROR_INTERNAL, "HotloopError")

typedef enum hl_status {
#define X(code, name) code,
    HL_STATUS_CODES(X)
#undef X
        HL_STATUS_COUNT
} hl_status;

/* Sets the calling thread's record and returns `code`. The text is cut at HL_STATUS_MESSAGE_BYTES;
 * the arguments may point into the record. */
hl_status hl_status_set(hl_status code, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Puts "<context>: " in front of the record's text. Returns `code` unchanged, so that it can stand
 * in a return. HL_OK changes nothing. */
hl_status hl_status_context(hl_status code, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The record's text; "" when no error was set. Valid until the thread's next hl_status_* call. */
const char *hl_status_message(void);

/* The exception's name of a code. */
const char *hl_status_name(hl_status code);

/* Copies a record from one thread to another: save on the worker, raise on the caller. */
enum { HL_STATUS_MESSAGE_BYTES = 1024 };
typedef struct hl_status_record {
    hl_status code;
    char message[HL_STATUS_MESSAGE_BYTES];
} hl_status_record;
void hl_status_save(hl_status code, hl_status_record *out_record);
hl_status hl_status_raise(const hl_status_record *record);

/* vsnprintf that cuts between UTF-8 characters, never inside one. */
void hl_text_format(char *out_text, size_t bytes, const char *format, va_list args)
    __attribute__((format(printf, 3, 0)));
/* The same cut for text that is there already. */
void hl_text_copy(char *out_text, size_t bytes, const char *text);

/* Before the first acquisition: leave at once. */
#define HL_TRY(call)                                                                               \
    do {                                                                                           \
        hl_status hl_try_status = (call);                                                          \
        if (hl_try_status != HL_OK) return hl_try_status;                                          \
    } while (0)

/* After it: one label `cleanup`, one variable `status`, one return. */
#define HL_GOTO(call)                                                                              \
    do {                                                                                           \
        status = (call);                                                                           \
        if (status != HL_OK) goto cleanup;                                                         \
    } while (0)

/* Ownership marks on parameters; everything else is borrowed. */
#define HL_GIVE /* the caller receives ownership */
#define HL_TAKE /* the callee takes ownership, on failure too */

#endif
