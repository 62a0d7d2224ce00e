/* The disk cache; cache.h has the idea. */
#include "base/cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/os.h"

enum { PATH_BYTES = 4096, NAME_BYTES = 96, MAX_BYTES = 256 << 20 };

/* In the byte order of the machine: a cache stays on it. */
typedef struct cache_head {
    char magic[8];
    uint64_t key_bytes, data_bytes, sum; /* of key and data */
} cache_head;
static const char MAGIC[8] = "hlcache1";

static bool find_folder(char *out_path)
{
    const char *own = getenv("HOTLOOP_CACHE_PATH"), *caches = getenv("XDG_CACHE_HOME"),
               *home = getenv("HOME");
    int n = 0;
    if (own)
        n = snprintf(out_path, PATH_BYTES, "%s", own);
    else if (caches && caches[0] == '/') /* what is not absolute is to be ignored, says its rule */
        n = snprintf(out_path, PATH_BYTES, "%s/hotloop", caches);
    else if (home && *home)
        n = snprintf(out_path, PATH_BYTES, "%s/.cache/hotloop", home);
    return n > 0 && n < PATH_BYTES;
}

static void name_file(const char *kind, const char *key, char *out_name)
{
    snprintf(out_name, NAME_BYTES, "%.64s-%016llx", kind,
             (unsigned long long)hl_hash_bytes(HL_HASH_START, key, strlen(key)));
}

static cache_head make_head(const char *key, const void *data, size_t bytes)
{
    cache_head head = {.key_bytes = strlen(key), .data_bytes = bytes};
    memcpy(head.magic, MAGIC, sizeof MAGIC);
    head.sum = hl_hash_bytes(hl_hash_bytes(HL_HASH_START, key, strlen(key)), data, bytes);
    return head;
}

/* The file's bytes after its head, when it has this key's. */
static bool read_body(hl_os_file file, int64_t bytes, const char *key, char **out_body,
                      cache_head *out_head)
{
    *out_body = NULL;
    if (bytes < (int64_t)sizeof *out_head || bytes > MAX_BYTES ||
        hl_os_file_read(file, out_head, sizeof *out_head) != 0)
        return false;
    size_t rest = (size_t)bytes - sizeof *out_head;
    if (memcmp(out_head->magic, MAGIC, sizeof MAGIC) != 0 || out_head->key_bytes != strlen(key) ||
        out_head->key_bytes > rest || out_head->data_bytes != rest - out_head->key_bytes)
        return false;
    if (hl_alloc(rest + 1, (void **)out_body) != HL_OK) return false;
    return hl_os_file_read(file, *out_body, rest) == 0;
}

static bool read_file(hl_os_file file, int64_t bytes, const char *key, void **out_data,
                      size_t *out_bytes)
{
    cache_head head, want;
    char *body;
    bool is_good = read_body(file, bytes, key, &body, &head);
    if (is_good) {
        const char *data = body + head.key_bytes;
        want = make_head(key, data, (size_t)head.data_bytes);
        is_good = head.sum == want.sum && memcmp(body, key, (size_t)head.key_bytes) == 0;
        memmove(body, data, (size_t)head.data_bytes);
        body[head.data_bytes] = '\0';
    }
    if (!is_good) {
        hl_free(body);
        return false;
    }
    *out_data = body;
    *out_bytes = (size_t)head.data_bytes;
    return true;
}

bool hl_cache_read(const char *kind, const char *key, void **out_data, size_t *out_bytes)
{
    char path[PATH_BYTES], name[NAME_BYTES];
    hl_os_file folder, file;
    int64_t bytes;
    bool is_found = false;
    *out_data = NULL;
    *out_bytes = 0;
    if (!find_folder(path) || hl_os_directory_open(path, &folder) != 0) return false;
    name_file(kind, key, name);
    if (hl_os_file_open(folder, name, &file, &bytes) == 0) {
        is_found = read_file(file, bytes, key, out_data, out_bytes);
        hl_os_file_close(file);
    }
    hl_os_file_close(folder);
    return is_found;
}

static hl_status write_file(const char *path, const char *key, const void *data, size_t bytes)
{
    cache_head head = make_head(key, data, bytes);
    hl_file_writer *writer = NULL;
    hl_status status;
    HL_TRY(hl_file_writer_begin(path, (int64_t)(sizeof head + strlen(key) + bytes), &writer));
    HL_GOTO(hl_file_writer_write(writer, &head, sizeof head));
    HL_GOTO(hl_file_writer_write(writer, key, strlen(key)));
    HL_GOTO(hl_file_writer_write(writer, data, bytes));
    hl_file_writer *whole = writer;
    writer = NULL;
    HL_GOTO(hl_file_writer_commit(whole));
cleanup:
    hl_file_writer_abort(writer);
    return status;
}

void hl_cache_write(const char *kind, const char *key, const void *data, size_t bytes)
{
    char path[PATH_BYTES + NAME_BYTES], name[NAME_BYTES];
    if (!find_folder(path) || hl_os_directory_create(path) != 0) return;
    name_file(kind, key, name);
    size_t n = strlen(path);
    snprintf(path + n, sizeof path - n, "/%s", name);
    if (write_file(path, key, data, bytes) != HL_OK)
        hl_log(HL_LOG_DEBUG, "not kept: %s", hl_status_message());
}
