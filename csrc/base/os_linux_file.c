/* Linux: files. Names are relative to an open directory, so that a renamed or exchanged directory
 * cannot split one save over two places. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os.h"

int hl_os_directory_open(const char *path, hl_os_file *out_directory)
{
    out_directory->descriptor = -1;
    int error = hl_os_fault_take();
    if (error) return error;
    out_directory->descriptor = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return out_directory->descriptor < 0 ? errno : 0;
}

hl_os_file hl_os_directory_current(void)
{
    return (hl_os_file){AT_FDCWD};
}

int hl_os_directory_create(const char *path)
{
    char part[4096];
    int error = hl_os_fault_take();
    size_t n = strlen(path);
    if (error) return error;
    if (n >= sizeof part) return ENAMETOOLONG;
    memcpy(part, path, n + 1);
    for (size_t i = 1; i <= n; i++) {
        if (part[i] != '/' && part[i] != '\0') continue;
        part[i] = '\0';
        error = mkdir(part, 0700) == 0 || errno == EEXIST ? 0 : errno; /* the last one counts */
        part[i] = path[i];
    }
    return error;
}

int hl_os_directory_sync(hl_os_file directory)
{
    int error = hl_os_fault_take();
    while (!error && fsync(directory.descriptor) != 0)
        if (errno != EINTR) error = errno;
    /* Some file systems have no sync of a directory: there is nothing to wait for. */
    return error == EINVAL || error == ENOTSUP ? 0 : error;
}

int hl_os_directory_list(hl_os_file directory, bool (*fn)(void *context, const char *name),
                         void *context)
{
    int error = hl_os_fault_take();
    if (error) return error;
    int fd = openat(directory.descriptor, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return errno;
    DIR *stream = fdopendir(fd);
    if (!stream) {
        error = errno;
        close(fd);
        return error;
    }
    struct dirent *entry;
    while ((entry = readdir(stream)) && fn(context, entry->d_name)) continue;
    closedir(stream);
    return 0;
}

int hl_os_file_create(hl_os_file directory, const char *name, hl_os_file *out_file)
{
    out_file->descriptor = -1;
    int error = hl_os_fault_take();
    if (error) return error;
    int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    int fd = openat(directory.descriptor, name, flags, 0600);
    if (fd < 0) return errno;
    /* A file system without locks gives a file that nobody sweeps: safe. A sweeper of another
     * process namespace may have come between creation and lock: then the name is gone. */
    struct stat info;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &info) == 0 && info.st_nlink == 0) {
        close(fd);
        return EEXIST;
    }
    out_file->descriptor = fd;
    return 0;
}

int hl_os_file_open(hl_os_file directory, const char *name, hl_os_file *out_file,
                    int64_t *out_bytes)
{
    out_file->descriptor = -1;
    *out_bytes = 0;
    int error = hl_os_fault_take();
    if (error) return error;
    int fd = openat(directory.descriptor, name, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return errno;
    struct stat info;
    error = fstat(fd, &info) != 0 ? errno : 0;
    if (!error && !S_ISREG(info.st_mode)) error = S_ISDIR(info.st_mode) ? EISDIR : EINVAL;
    if (error) {
        close(fd);
        return error;
    }
    out_file->descriptor = fd;
    *out_bytes = info.st_size;
    return 0;
}

/* at < 0: from where the file stands. */
static int read_all(int fd, int64_t at, void *data, size_t bytes)
{
    int error = hl_os_fault_take();
    if (error) return error;
    char *rest = data;
    while (bytes > 0) {
        ssize_t n = at < 0 ? read(fd, rest, bytes) : pread(fd, rest, bytes, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n < 0 ? errno : EIO;
        rest += n;
        at += at < 0 ? 0 : n;
        bytes -= (size_t)n;
    }
    return 0;
}

int hl_os_file_read(hl_os_file file, void *data, size_t bytes)
{
    return read_all(file.descriptor, -1, data, bytes);
}

int hl_os_file_read_at(hl_os_file file, int64_t at, void *data, size_t bytes)
{
    return read_all(file.descriptor, at, data, bytes);
}

void hl_os_file_expect(hl_os_file file, int64_t at, int64_t bytes)
{
    (void)posix_fadvise(file.descriptor, (off_t)at, (off_t)bytes, POSIX_FADV_WILLNEED);
}

void hl_os_file_sweep(hl_os_file directory, const char *name)
{
    if (hl_os_fault_take()) return;
    int flags = O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    int fd = openat(directory.descriptor, name, flags);
    if (fd < 0) return;
    struct stat info;
    if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && flock(fd, LOCK_EX | LOCK_NB) == 0)
        unlinkat(directory.descriptor, name, 0);
    close(fd);
}

int hl_os_file_reserve(hl_os_file file, int64_t bytes)
{
    int error = hl_os_fault_take();
    if (error || bytes <= 0) return error;
    do error = posix_fallocate(file.descriptor, 0, bytes);
    while (error == EINTR);
    /* Not offered here: the writes themselves will tell. */
    return error == EOPNOTSUPP || error == EINVAL ? 0 : error;
}

int hl_os_file_write(hl_os_file file, const void *data, size_t bytes)
{
    int error = hl_os_fault_take();
    if (error) return error;
    const char *rest = data;
    while (bytes > 0) {
        ssize_t n = write(file.descriptor, rest, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n < 0 ? errno : EIO;
        rest += n;
        bytes -= (size_t)n;
    }
    return 0;
}

/* From /proc, because umask() can only be read by setting it, for every thread at once. */
static int read_umask(void)
{
    int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    char text[1024];
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    text[length > 0 ? length : 0] = '\0';
    const char *line = strstr(text, "\nUmask:");
    unsigned mask;
    return line && sscanf(line + 7, "%o", &mask) == 1 ? (int)(mask & 0777) : -1;
}

int hl_os_file_publish(hl_os_file file)
{
    int error = hl_os_fault_take();
    if (error) return error;
    int mask = read_umask();
    if (mask < 0) return 0;
    return fchmod(file.descriptor, 0666 & ~(mode_t)mask) != 0 ? errno : 0;
}

int hl_os_file_sync(hl_os_file file)
{
    int error = hl_os_fault_take();
    if (error) return error;
    while (fsync(file.descriptor) != 0) {
        if (errno != EINTR) return errno;
    }
    return 0;
}

int hl_os_file_close(hl_os_file file)
{
    int error = hl_os_fault_take();
    /* Linux frees the descriptor even if close says EINTR. */
    if (close(file.descriptor) != 0 && errno != EINTR && !error) error = errno;
    return error;
}

int hl_os_file_rename(hl_os_file directory, const char *from, const char *to)
{
    int error = hl_os_fault_take();
    if (error) return error;
    return renameat(directory.descriptor, from, directory.descriptor, to) != 0 ? errno : 0;
}

int hl_os_file_remove(hl_os_file directory, const char *name)
{
    int error = hl_os_fault_take();
    if (error) return error;
    return unlinkat(directory.descriptor, name, 0) != 0 ? errno : 0;
}
