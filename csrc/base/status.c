/* Status record of the calling thread. The text is built beside the record and copied in, so that a
 * message may quote the one it replaces. */
#include "base/status.h"

#include <stdio.h>
#include <string.h>

static _Thread_local hl_status_record thread_record;

/* Where the last whole character of text[0, length) ends. */
static size_t trim_character(const char *text, size_t length)
{
    size_t start = length;
    while (start > 0 && length - start < 4) {
        unsigned char byte = (unsigned char)text[--start];
        if ((byte & 0xC0) == 0x80) continue;
        size_t need = byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
        return length - start < need ? start : length;
    }
    return length;
}

void hl_text_format(char *out_text, size_t bytes, const char *format, va_list args)
{
    if (bytes == 0) return;
    out_text[0] = '\0';
    int length = vsnprintf(out_text, bytes, format, args);
    if (length < 0 || (size_t)length < bytes) return;
    out_text[trim_character(out_text, bytes - 1)] = '\0';
}

void hl_text_copy(char *out_text, size_t bytes, const char *text)
{
    if (bytes == 0) return;
    size_t length = strlen(text);
    if (length >= bytes) length = trim_character(text, bytes - 1);
    memmove(out_text, text, length);
    out_text[length] = '\0';
}

hl_status hl_status_set(hl_status code, const char *format, ...)
{
    char text[HL_STATUS_MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    hl_text_format(text, sizeof text, format, args);
    va_end(args);
    thread_record.code = code;
    hl_text_copy(thread_record.message, sizeof thread_record.message, text);
    return code;
}

hl_status hl_status_context(hl_status code, const char *format, ...)
{
    if (code == HL_OK) return code;
    char text[HL_STATUS_MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    hl_text_format(text, sizeof text, format, args);
    va_end(args);
    size_t length = strlen(text);
    hl_text_copy(text + length, sizeof text - length, ": ");
    length += strlen(text + length);
    hl_text_copy(text + length, sizeof text - length, thread_record.message);
    hl_text_copy(thread_record.message, sizeof thread_record.message, text);
    return code;
}

const char *hl_status_message(void)
{
    return thread_record.message;
}

const char *hl_status_name(hl_status code)
{
    static const char *const names[] = {
#define X(code, name) [code] = name,
        HL_STATUS_CODES(X)
#undef X
    };
    return (unsigned)code < HL_STATUS_COUNT ? names[code] : names[HL_ERROR_INTERNAL];
}

void hl_status_save(hl_status code, hl_status_record *out_record)
{
    out_record->code = code;
    hl_text_copy(out_record->message, sizeof out_record->message,
                 code == HL_OK ? "" : thread_record.message);
}

hl_status hl_status_raise(const hl_status_record *record)
{
    if (record->code == HL_OK) return HL_OK;
    thread_record.code = record->code;
    hl_text_copy(thread_record.message, sizeof thread_record.message, record->message);
    return record->code;
}
