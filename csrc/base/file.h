/* Atomic file writer: a file is either its old self or the whole new one, after a crash at any
 * instant.
 *
 * A temporary file beside the target (".<name>.tmp.<pid>.<16 hex digits>", O_EXCL, O_NOFOLLOW, 0600
 * then the umask's mode), its space reserved first, so that a full disk shows before anything is
 * replaced; short writes and EINTR are looped; fsync is checked and, once failed, the file is
 * thrown away (Linux may have dropped the dirty pages); rename over the target; fsync of the
 * directory. Begin sweeps the directory of such temporary files whose process is dead: its number
 * is unused and the lock it held is free (so a file of another container or host stays). */
#ifndef HL_BASE_FILE_H
#define HL_BASE_FILE_H

#include "base/status.h"

typedef struct hl_file_writer hl_file_writer;

/* HL_ERROR_CHECKPOINT with path and the system's words on any failure. */
hl_status hl_file_writer_begin(const char *path, int64_t total_bytes,
                               HL_GIVE hl_file_writer **out_writer);
/* After a failure only abort (or a commit, which then fails) is left. */
hl_status hl_file_writer_write(hl_file_writer *writer, const void *data, size_t bytes);
/* Exactly total_bytes must have been written. Ends the writer, on failure too: then the target is
 * untouched, unless it was the directory's sync that failed: then the new file is in place and
 * whole, and the message says that it may not outlive a power cut. */
hl_status hl_file_writer_commit(HL_TAKE hl_file_writer *writer);
/* NULL is allowed. In a forked child it only closes: the file belongs to the parent. */
void hl_file_writer_abort(HL_TAKE hl_file_writer *writer);

#endif
