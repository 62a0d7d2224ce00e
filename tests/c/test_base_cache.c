/* The disk cache: what was written is read back under its own key alone; whatever fails or lies
 * there broken, the answer is "none", without a leak. */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cache.h"
#include "tests/c/check.h"

static char folder[192];

static bool reads(const char *key, const char *want)
{
    void *data;
    size_t bytes;
    bool found = hl_cache_read("test", key, &data, &bytes);
    bool good =
        found == (want != NULL) && (!want || (bytes == strlen(want) && strcmp(data, want) == 0));
    CHECK(found || (!data && !bytes));
    hl_free(data);
    return good;
}

static void write_text(const char *key, const char *text)
{
    hl_cache_write("test", key, text, strlen(text));
}

/* The path of the one file; false: there is none or more. */
static bool find_file(char *out_path, size_t bytes)
{
    int n = 0;
    DIR *stream = opendir(folder);
    for (struct dirent *entry; stream && (entry = readdir(stream));) {
        if (entry->d_name[0] == '.') continue;
        snprintf(out_path, bytes, "%s/%s", folder, entry->d_name);
        n++;
    }
    if (stream) closedir(stream);
    return n == 1;
}

static void test_keys(void)
{
    CHECK(reads("one", NULL));
    write_text("one", "first");
    CHECK(reads("one", "first"));
    CHECK(reads("two", NULL));
    CHECK(reads("on", NULL));
    write_text("two", "");
    CHECK(reads("two", ""));
    write_text("one", "a longer second");
    CHECK(reads("one", "a longer second"));
}

/* Each byte in turn is another one, and each length too short. */
static void test_broken(void)
{
    char path[512];
    unsigned char bytes[256];
    CHECK(find_file(path, sizeof path));
    FILE *file = fopen(path, "rb");
    size_t n = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    for (size_t i = 0; i < 2 * n; i++) {
        check_case("broken at %zu of %zu", i, n);
        file = fopen(path, "wb");
        if (i < n) bytes[i] ^= 0x20;
        fwrite(bytes, 1, i < n ? n : i - n, file);
        if (i < n) bytes[i] ^= 0x20;
        fclose(file);
        CHECK(reads("key", NULL));
    }
    check_case("%s", "");
    write_text("key", "whole again");
    CHECK(reads("key", "whole again"));
}

static hl_status write_and_read(void *context)
{
    (void)context;
    write_text("key", "value");
    void *data;
    size_t bytes;
    if (hl_cache_read("test", "key", &data, &bytes)) CHECK(strcmp(data, "value") == 0);
    hl_free(data);
    return HL_OK;
}

static void use_folder(const char *name)
{
    static int n;
    snprintf(folder, sizeof folder, "/tmp/hotloop-cache-%d-%d/%s", (int)getpid(), n++, name);
    setenv("HOTLOOP_CACHE_PATH", folder, 1);
}

static void test_places(void)
{
    use_folder("a/b");
    unsetenv("HOTLOOP_CACHE_PATH");
    setenv("XDG_CACHE_HOME", folder, 1);
    write_text("key", "in a cache home");
    strcat(folder, "/hotloop");
    setenv("HOTLOOP_CACHE_PATH", folder, 1);
    CHECK(reads("key", "in a cache home"));
    setenv("HOTLOOP_CACHE_PATH", "", 1);
    write_text("key", "nowhere");
    CHECK(reads("key", NULL));
    /* A file where a folder should be. */
    char path[512];
    CHECK(find_file(path, sizeof path));
    setenv("HOTLOOP_CACHE_PATH", path, 1);
    write_text("key", "nowhere");
    CHECK(reads("key", NULL));
}

int main(void)
{
    use_folder("keys");
    test_keys();
    use_folder("broken");
    write_text("key", "some text");
    test_broken();
    use_folder("faults");
    CHECK(check_walk_faults(CHECK_FAULT_OS, HL_OK, EIO, write_and_read, NULL) > 10);
    CHECK(check_walk_faults(CHECK_FAULT_ALLOC, HL_OK, 0, write_and_read, NULL) > 1);
    test_places();
    char command[256];
    snprintf(command, sizeof command, "rm -r /tmp/hotloop-cache-%d-*", (int)getpid());
    CHECK(system(command) == 0);
    return CHECK_DONE();
}
