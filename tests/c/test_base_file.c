/* The atomic writer: old or new and nothing else, after a kill at any instant, a full disk, or any
 * system call that fails; no litter. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "tests/c/check.h"

static char folder[128], target[192];

static hl_status save(const char *path, const void *data, size_t bytes, size_t chunk)
{
    hl_file_writer *writer;
    HL_TRY(hl_file_writer_begin(path, (int64_t)bytes, &writer));
    for (size_t at = 0; at < bytes; at += chunk) {
        size_t n = bytes - at < chunk ? bytes - at : chunk;
        hl_status status = hl_file_writer_write(writer, (const char *)data + at, n);
        if (status != HL_OK) {
            hl_file_writer_abort(writer);
            return status;
        }
    }
    return hl_file_writer_commit(writer);
}

/* Bytes read; -1 when there is no such file. */
static int64_t load(const char *path, void *data, size_t bytes)
{
    int fd = open(path, O_RDONLY);
    if (fd < 0) return -1;
    int64_t n = read(fd, data, bytes);
    close(fd);
    return n;
}

static bool holds(const char *text)
{
    char data[64] = {0};
    return load(target, data, sizeof data - 1) == (int64_t)strlen(text) && !strcmp(data, text);
}

/* Files in the folder but the target; with remove, they go. */
static int count_litter(bool remove)
{
    int n = 0;
    DIR *stream = opendir(folder);
    for (struct dirent *entry; (entry = readdir(stream));) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        if (!strcmp(entry->d_name, "target")) continue;
        n++;
        if (remove) unlinkat(dirfd(stream), entry->d_name, 0);
    }
    closedir(stream);
    return n;
}

static int count_descriptors(void)
{
    int n = 0;
    DIR *stream = opendir("/proc/self/fd");
    while (stream && readdir(stream)) n++;
    if (stream) closedir(stream);
    return n;
}

static void test_save(void)
{
    CHECK_OK(save(target, "first", 5, 2));
    CHECK(holds("first"));
    CHECK_OK(save(target, "second one", 10, 100));
    CHECK(holds("second one"));
    CHECK_OK(save(target, "", 0, 1));
    CHECK(holds(""));

    struct stat info;
    mode_t mask = umask(027);
    CHECK_OK(save(target, "mode", 4, 4));
    umask(mask);
    CHECK(stat(target, &info) == 0);
    CHECK_INT(info.st_mode & 0777, 0640);

    char here[256];
    CHECK(getcwd(here, sizeof here) && chdir(folder) == 0);
    CHECK_OK(save("target", "relative", 8, 8));
    CHECK(chdir(here) == 0);
    CHECK(holds("relative"));
    CHECK_INT(count_litter(false), 0);
}

static void test_contract(void)
{
    hl_file_writer *writer;
    CHECK_OK(save(target, "old", 3, 3));
    CHECK_OK(hl_file_writer_begin(target, 4, &writer));
    CHECK_OK(hl_file_writer_write(writer, "abc", 3));
    CHECK_INT(count_litter(false), 1);
    CHECK_ERROR(hl_file_writer_commit(writer), HL_ERROR_CHECKPOINT, "must have 4 bytes, got 3");
    CHECK_OK(hl_file_writer_begin(target, 4, &writer));
    CHECK_ERROR(hl_file_writer_write(writer, "abcde", 5), HL_ERROR_CHECKPOINT, "got 5 more");
    CHECK_ERROR(hl_file_writer_commit(writer), HL_ERROR_CHECKPOINT, "must have 4 bytes, got 0");
    CHECK_OK(hl_file_writer_begin(target, 4, &writer));
    hl_file_writer_abort(writer);
    hl_file_writer_abort(NULL);
    CHECK(holds("old"));
    CHECK_INT(count_litter(false), 0);

    char path[256];
    CHECK_ERROR(hl_file_writer_begin(target, -1, &writer), HL_ERROR_CHECKPOINT, "got -1");
    CHECK(!writer);
    CHECK_ERROR(hl_file_writer_begin("", 4, &writer), HL_ERROR_CHECKPOINT, "name a file");
    snprintf(path, sizeof path, "%s/", folder);
    CHECK_ERROR(hl_file_writer_begin(path, 4, &writer), HL_ERROR_CHECKPOINT, "name a file");
    snprintf(path, sizeof path, "%s/none/target", folder);
    CHECK_ERROR(hl_file_writer_begin(path, 4, &writer), HL_ERROR_CHECKPOINT, "No such file");
    snprintf(path, sizeof path, "%s/target/below", folder);
    CHECK_ERROR(hl_file_writer_begin(path, 4, &writer), HL_ERROR_CHECKPOINT, "Not a directory");
    CHECK_INT(save(folder, "over a directory", 16, 16), HL_ERROR_CHECKPOINT);
}

/* Space that is not there shows at begin; a limit that comes later, at write. Neither touches the
 * target. */
static void test_no_space(void)
{
    CHECK_OK(save(target, "old", 3, 3));
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit before, small;
    getrlimit(RLIMIT_FSIZE, &before);
    small = before;
    small.rlim_cur = 1 << 16;
    hl_file_writer *writer;
    setrlimit(RLIMIT_FSIZE, &small);
    CHECK_ERROR(hl_file_writer_begin(target, 1 << 20, &writer), HL_ERROR_CHECKPOINT,
                "reserving space for");
    setrlimit(RLIMIT_FSIZE, &before);
    CHECK(!writer && holds("old"));
    CHECK_INT(count_litter(false), 0);

    static char data[1 << 20];
    CHECK_OK(hl_file_writer_begin(target, sizeof data, &writer));
    setrlimit(RLIMIT_FSIZE, &small);
    CHECK_ERROR(hl_file_writer_write(writer, data, sizeof data), HL_ERROR_CHECKPOINT, "too large");
    setrlimit(RLIMIT_FSIZE, &before);
    CHECK_ERROR(hl_file_writer_write(writer, data, 1), HL_ERROR_CHECKPOINT, "too large");
    CHECK_ERROR(hl_file_writer_commit(writer), HL_ERROR_CHECKPOINT, "too large");
    signal(SIGXFSZ, SIG_DFL);
    CHECK(holds("old"));
    CHECK_INT(count_litter(false), 0);
}

/* One step back to the old file, then every allocation and every system call in turn. */
static void test_faults(void)
{
    static const int errors[] = {ENOSPC, EIO, EDQUOT};
    int n_sites = 0, n_litter = 0;
    for (int kind = 0; kind < 2; kind++) {
        for (size_t e = 0; e < (kind ? 3 : 1); e++) {
            for (int sticky = 0; sticky < 2; sticky++) {
                for (int64_t k = 1;; k++) {
                    CHECK_OK(save(target, "older", 5, 5));
                    check_case("kind %d, error %d, call %d, sticky %d", kind, errors[e], (int)k,
                               sticky);
                    hl_alloc_stats before, after;
                    hl_alloc_stats_read(&before);
                    check_set_fault((check_fault)kind, k, sticky, errors[e]);
                    int n_before = count_descriptors();
                    hl_status status = save(target, "newer", 5, 2);
                    int64_t n_seen = check_set_fault((check_fault)kind, 0, false, 0);
                    hl_alloc_stats_read(&after);
                    CHECK_INT(after.n_live, before.n_live);
                    CHECK_INT(count_descriptors(), n_before);
                    bool is_new = holds("newer");
                    CHECK(is_new || holds("older"));
                    if (status == HL_OK)
                        CHECK(is_new);
                    else
                        CHECK(!is_new || strstr(hl_status_message(), "power cut"));
                    int litter = count_litter(true);
                    CHECK(litter == 0 || (kind == CHECK_FAULT_OS && sticky && litter == 1));
                    n_litter += litter;
                    if (n_seen < k) break;
                    n_sites++;
                    if (kind == CHECK_FAULT_ALLOC) CHECK_INT(status, HL_ERROR_MEMORY);
                }
            }
        }
    }
    check_case("%s", "");
    CHECK(n_sites >= 2 * 4 + 6 * 11);
    CHECK(n_litter > 0);
}

/* ---- the order of the calls that a power cut tests ------------------------------------------- */

/* The program's own fsync, write and renameat stand before the C library's: a journal of what the
 * writer asks the system for, of the file (f) and of its directory (d). */
static char journal[64];
static size_t n_journal;
static bool is_noting;

static void note_call(char call, int fd)
{
    struct stat info;
    if (!is_noting || fstat(fd, &info) != 0 || n_journal + 3 > sizeof journal) return;
    journal[n_journal++] = call;
    journal[n_journal++] = S_ISDIR(info.st_mode) ? 'd' : 'f';
    journal[n_journal] = '\0';
}

int fsync(int fd)
{
    note_call('s', fd);
    return (int)syscall(SYS_fsync, fd);
}

ssize_t write(int fd, const void *data, size_t bytes)
{
    note_call('w', fd);
    return syscall(SYS_write, fd, data, bytes);
}

int renameat(int from_fd, const char *from, int to_fd, const char *to)
{
    note_call('r', to_fd);
    return (int)syscall(SYS_renameat2, from_fd, from, to_fd, to, 0);
}

/* The data is on the disk before the name is, and the name before the writer says so. */
static void test_order(void)
{
    n_journal = 0;
    is_noting = true;
    CHECK_OK(save(target, "synced", 6, 3));
    is_noting = false;
    CHECK(strcmp(journal, "wfwfsfrdsd") == 0);
    CHECK(holds("synced"));
}

/* Each step of a save fails once, with its own words. */
static void test_steps(void)
{
    static const char *const steps[] = {"opening the directory of",
                                        NULL, /* the sweep: best effort */
                                        "creating a temporary file beside",
                                        "reserving space for",
                                        "writing",
                                        "setting the mode of",
                                        "syncing",
                                        "closing",
                                        "renaming the temporary file to",
                                        "syncing the directory of"};
    int n_steps = (int)(sizeof steps / sizeof steps[0]);
    for (int i = 0; i < n_steps; i++) {
        char words[64];
        check_case("step %d", i);
        CHECK_OK(save(target, "old", 3, 3));
        hl_os_fault(i + 1, false, EIO);
        hl_status status = save(target, "new", 3, 3);
        hl_os_fault(0, false, 0);
        CHECK_INT(status, steps[i] ? HL_ERROR_CHECKPOINT : HL_OK);
        if (!steps[i]) continue;
        snprintf(words, sizeof words, "%s '", steps[i]);
        CHECK(strstr(hl_status_message(), words) != NULL);
        CHECK(holds(i == n_steps - 1 ? "new" : "old"));
    }
    check_case("%s", "");
    count_litter(true);
}

static void make_file(const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "%.127s/%.95s", folder, name);
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    CHECK(fd >= 0);
    close(fd);
}

static bool exists(const char *name)
{
    char path[256];
    struct stat info;
    snprintf(path, sizeof path, "%.127s/%.95s", folder, name);
    return lstat(path, &info) == 0;
}

/* A process number that nobody has: that of a child that was waited for. */
static int find_dead_process(void)
{
    pid_t child = fork();
    if (child == 0) _exit(0);
    waitpid(child, NULL, 0);
    return child;
}

static void test_sweep(void)
{
    int dead = find_dead_process();
    char swept[4][96], kept[10][96];
    snprintf(swept[0], 96, ".target.tmp.%d.0123456789abcdef", dead);
    snprintf(swept[1], 96, ".other.tmp.%d.0123456789abcdef", dead);
    snprintf(swept[2], 96, ".a.b.tmp.%d.ffffffffffffffff", dead);
    snprintf(swept[3], 96, ".t.tmp.0.0123456789abcdef");
    snprintf(kept[0], 96, ".target.tmp.%d.0123456789abcdef", (int)getpid());
    snprintf(kept[1], 96, ".target.tmp.1.0123456789abcdef");
    snprintf(kept[2], 96, ".target.tmp.%d.0123456789abcde", dead);
    snprintf(kept[3], 96, ".target.tmp.%d.0123456789ABCDEF", dead);
    snprintf(kept[4], 96, "target.tmp.%d.0123456789abcdef", dead);
    snprintf(kept[5], 96, ".target.tmp.%dx.0123456789abcdef", dead);
    snprintf(kept[6], 96, ".target.tmp..0123456789abcdef");
    snprintf(kept[7], 96, ".target.tmq.%d.0123456789abcdef", dead);
    snprintf(kept[8], 96, ".tmp.%d.0123456789abcdef", dead);
    snprintf(kept[9], 96, ".0123456789abcdef");
    for (int i = 0; i < 4; i++) make_file(swept[i]);
    for (int i = 0; i < 10; i++) make_file(kept[i]);
    /* A link under such a name, and what it points to, stay; so does a file that is locked, as by
     * a process of another container. */
    char link[96], link_path[256], locked[96];
    snprintf(link, sizeof link, ".link.tmp.%d.0123456789abcdef", dead);
    snprintf(link_path, sizeof link_path, "%s/%s", folder, link);
    CHECK(symlink(target, link_path) == 0);
    hl_os_file directory, file;
    snprintf(locked, sizeof locked, ".locked.tmp.%d.0123456789abcdef", dead);
    CHECK_INT(hl_os_directory_open(folder, &directory), 0);
    CHECK_INT(hl_os_file_create(directory, locked, &file), 0);

    CHECK_OK(save(target, "swept", 5, 5));
    for (int i = 0; i < 4; i++) {
        check_case("%s", swept[i]);
        CHECK(!exists(swept[i]));
    }
    for (int i = 0; i < 10; i++) {
        check_case("%s", kept[i]);
        CHECK(exists(kept[i]));
    }
    check_case("%s", "");
    CHECK(exists(link) && holds("swept") && exists(locked));
    hl_os_file_close(file);
    CHECK_OK(save(target, "again", 5, 5));
    CHECK(!exists(locked));

    /* A link under the temporary name is never written through. */
    CHECK_INT(hl_os_file_create(directory, link, &file), EEXIST);
    CHECK(file.descriptor == -1 && holds("again"));
    hl_os_file_close(directory);
    count_litter(true);
}

enum { KILL_BYTES = 1 << 18 };

static void save_for_ever(int report)
{
    static unsigned char data[KILL_BYTES];
    for (unsigned version = 1;; version = version % 250 + 1) {
        memset(data, (int)version, sizeof data);
        if (save(target, data, sizeof data, 50000) != HL_OK) _exit(1);
        unsigned char done = (unsigned char)version;
        if (write(report, &done, 1) != 1) _exit(2);
    }
}

/* kill -9 at a random instant: a whole file, of the last version reported as saved or the one
 * after, and the next save sweeps what the dead one left. */
static void test_kill(void)
{
    const char *proof = getenv("HOTLOOP_PROOF");
    int n_kills = proof && *proof ? 1000 : 100, n_litter = 0;
    static unsigned char data[KILL_BYTES + 1];
    unsigned seed = 12345;
    for (int i = 0; i < n_kills; i++) {
        unlink(target);
        int ends[2];
        CHECK(pipe(ends) == 0);
        pid_t child = fork();
        if (child == 0) save_for_ever(ends[1]);
        close(ends[1]);
        unsigned char last = 0, reported[256];
        bool is_started = read(ends[0], &last, 1) == 1; /* the first save is through */
        seed = seed * 1103515245 + 12345;
        usleep((seed >> 16) % 8000);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        for (ssize_t n; (n = read(ends[0], reported, sizeof reported)) > 0;) last = reported[n - 1];
        close(ends[0]);
        check_case("kill %d", i);
        CHECK(is_started);
        CHECK_INT(load(target, data, sizeof data), KILL_BYTES);
        CHECK(data[0] == last || data[0] == last % 250 + 1);
        CHECK(!memcmp(data, data + 1, KILL_BYTES - 1));
        n_litter += count_litter(false);
        CHECK_OK(save(target, "whole", 5, 5));
        CHECK_INT(count_litter(false), 0);
    }
    check_case("%s", "");
    CHECK(n_litter > 0); /* else the kills fell nowhere */
}

/* A fork in mid-save: the child's abort leaves the parent's file alone. */
static void test_fork(void)
{
    hl_file_writer *writer;
    CHECK_OK(hl_file_writer_begin(target, 6, &writer));
    CHECK_OK(hl_file_writer_write(writer, "for", 3));
    pid_t child = fork();
    if (child == 0) {
        hl_file_writer_abort(writer);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    CHECK_OK(hl_file_writer_write(writer, "ked", 3));
    CHECK_OK(hl_file_writer_commit(writer));
    CHECK(holds("forked"));
}

int main(void)
{
    const char *root = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%.90s/hotloop-file-XXXXXX", root && *root ? root : "/tmp");
    if (!mkdtemp(folder)) {
        CHECK(!"a folder for temporary files");
        return CHECK_DONE();
    }
    snprintf(target, sizeof target, "%s/target", folder);
    test_save();
    test_contract();
    test_no_space();
    test_faults();
    test_order();
    test_steps();
    test_sweep();
    test_fork();
    test_kill();
    count_litter(true);
    unlink(target);
    rmdir(folder);
    return CHECK_DONE();
}
