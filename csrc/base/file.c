/* Atomic file writer: the recipe of the header, in order. Any failure before the rename removes the
 * temporary file; the writer keeps the error and returns it again to a caller who goes on
 * writing. */
#include "base/file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/os.h"

enum { N_NAME_TRIES = 16, RANDOM_DIGITS = 16 };

struct hl_file_writer {
    char *path;           /* as the caller gave it, for messages */
    char *temporary_name; /* within the directory */
    const char *name;     /* the target's, within path */
    hl_os_file directory;
    hl_os_file file;
    int64_t total_bytes;
    int64_t written_bytes;
    int64_t process_id;
    bool has_temporary; /* to be removed */
    int error;          /* the first one */
};

static hl_status report_error(hl_file_writer *writer, const char *step, int error)
{
    char text[128];
    hl_os_error_text(error, text, sizeof text);
    if (writer->error == 0) writer->error = error;
    return hl_status_set(HL_ERROR_CHECKPOINT, "save: %s '%s' must succeed, got '%s'", step,
                         writer->path, text);
}

/* ".<name>.tmp.<pid>.<16 hex digits>" of a process that is no more. */
static bool is_orphan(const char *name)
{
    size_t length = strlen(name);
    if (name[0] != '.' || length < RANDOM_DIGITS + 1) return false;
    const char *random = name + length - RANDOM_DIGITS;
    if (strspn(random, "0123456789abcdef") != RANDOM_DIGITS || random[-1] != '.') return false;
    const char *digit = random - 1;
    int64_t process_id = 0, scale = 1;
    while (digit > name && digit[-1] >= '0' && digit[-1] <= '9' && scale < 10000000000) {
        process_id += scale * (*--digit - '0');
        scale *= 10;
    }
    const char mark[] = ".tmp.";
    size_t mark_length = sizeof mark - 1;
    if (scale == 1 || (size_t)(digit - name) < mark_length + 2) return false;
    if (strncmp(digit - mark_length, mark, mark_length) != 0) return false;
    return !hl_os_process_alive(process_id);
}

static bool sweep_name(void *context, const char *name)
{
    const hl_file_writer *writer = context;
    if (is_orphan(name)) hl_os_file_sweep(writer->directory, name);
    return true;
}

static hl_status open_directory(hl_file_writer *writer)
{
    const char *slash = strrchr(writer->path, '/');
    writer->name = slash ? slash + 1 : writer->path;
    if (*writer->name == '\0') {
        return hl_status_set(HL_ERROR_CHECKPOINT, "save: the path must name a file, got '%s'",
                             writer->path);
    }
    char *directory = NULL;
    HL_TRY(hl_strdup(slash ? writer->path : ".", &directory));
    /* "/name" keeps its slash. */
    if (slash) directory[slash == writer->path ? 1 : slash - writer->path] = '\0';
    int error = hl_os_directory_open(directory, &writer->directory);
    hl_free(directory);
    return error ? report_error(writer, "opening the directory of", error) : HL_OK;
}

static hl_status create_temporary(hl_file_writer *writer)
{
    size_t bytes = strlen(writer->name) + 64;
    void *name;
    HL_TRY(hl_alloc(bytes, &name));
    writer->temporary_name = name;
    int error = 0;
    for (int i = 0; i < N_NAME_TRIES; i++) {
        snprintf(name, bytes, ".%s.tmp.%" PRId64 ".%016" PRIx64, writer->name, writer->process_id,
                 hl_os_entropy());
        error = hl_os_file_create(writer->directory, name, &writer->file);
        writer->has_temporary = error == 0;
        if (error == 0) return HL_OK;
        if (error != EEXIST) break;
    }
    return report_error(writer, "creating a temporary file beside", error);
}

hl_status hl_file_writer_begin(const char *path, int64_t total_bytes, hl_file_writer **out_writer)
{
    *out_writer = NULL;
    hl_status status = HL_OK;
    void *zeroed;
    HL_TRY(hl_alloc_zero(sizeof(hl_file_writer), &zeroed));
    hl_file_writer *writer = zeroed;
    writer->directory.descriptor = writer->file.descriptor = -1;
    writer->total_bytes = total_bytes;
    writer->process_id = hl_os_process_id();
    HL_GOTO(hl_strdup(path, &writer->path));
    if (total_bytes < 0) {
        HL_GOTO(hl_status_set(HL_ERROR_CHECKPOINT,
                              "save: the size of '%s' must be at least 0, got %" PRId64, path,
                              total_bytes));
    }
    HL_GOTO(open_directory(writer));
    (void)hl_os_directory_list(writer->directory, sweep_name, writer); /* best effort */
    HL_GOTO(create_temporary(writer));
    int error = hl_os_file_reserve(writer->file, total_bytes);
    if (error) HL_GOTO(report_error(writer, "reserving space for", error));
    *out_writer = writer;
    writer = NULL;
cleanup:
    hl_file_writer_abort(writer);
    return status;
}

hl_status hl_file_writer_write(hl_file_writer *writer, const void *data, size_t bytes)
{
    if (writer->error) return report_error(writer, "writing", writer->error);
    if (bytes > (uint64_t)(writer->total_bytes - writer->written_bytes)) {
        return hl_status_set(HL_ERROR_CHECKPOINT,
                             "save: '%s' must have %" PRId64 " bytes, got %zu more after %" PRId64,
                             writer->path, writer->total_bytes, bytes, writer->written_bytes);
    }
    int error = hl_os_file_write(writer->file, data, bytes);
    if (error) return report_error(writer, "writing", error);
    writer->written_bytes += (int64_t)bytes;
    return HL_OK;
}

hl_status hl_file_writer_commit(hl_file_writer *writer)
{
    hl_status status = HL_OK;
    int error;
    if (writer->error) HL_GOTO(report_error(writer, "writing", writer->error));
    if (writer->written_bytes != writer->total_bytes) {
        HL_GOTO(hl_status_set(HL_ERROR_CHECKPOINT,
                              "save: '%s' must have %" PRId64 " bytes, got %" PRId64, writer->path,
                              writer->total_bytes, writer->written_bytes));
    }
    error = hl_os_file_publish(writer->file);
    if (error) HL_GOTO(report_error(writer, "setting the mode of", error));
    error = hl_os_file_sync(writer->file);
    if (error) HL_GOTO(report_error(writer, "syncing", error));
    error = hl_os_file_close(writer->file);
    writer->file.descriptor = -1;
    if (error) HL_GOTO(report_error(writer, "closing", error));
    error = hl_os_file_rename(writer->directory, writer->temporary_name, writer->name);
    if (error) HL_GOTO(report_error(writer, "renaming the temporary file to", error));
    writer->has_temporary = false;
    error = hl_os_directory_sync(writer->directory);
    if (error) {
        HL_GOTO(report_error(writer,
                             "the file is whole but may not outlive a power cut: "
                             "syncing the directory of",
                             error));
    }
cleanup:
    hl_file_writer_abort(writer);
    return status;
}

void hl_file_writer_abort(hl_file_writer *writer)
{
    if (!writer) return;
    if (writer->file.descriptor >= 0) (void)hl_os_file_close(writer->file);
    if (writer->has_temporary && writer->process_id == hl_os_process_id())
        (void)hl_os_file_remove(writer->directory, writer->temporary_name);
    if (writer->directory.descriptor >= 0) (void)hl_os_file_close(writer->directory);
    hl_free(writer->temporary_name);
    hl_free(writer->path);
    hl_free(writer);
}
