/* The autotune cache: a list on the device, and behind it the disk. */
#include "kernels/cuda/autotune_cache.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/cache.h"
#include "kernels/cuda/internal.h"

/* A file may name any number of them. */
enum { MAX_ENTRIES = 4096 };

static void write_key(const hl_cuda_device *device, const char *kind, const char *key,
                      char *out_key)
{
    snprintf(out_key, HL_CUDA_KEY_BYTES, "%s; %s; driver %d; %s", kind, device->base.name,
             device->driver.version, key);
}

static hl_cuda_autotune_entry *find_entry(hl_cuda_device *device, const char *key)
{
    for (int64_t i = 0; i < device->n_autotuned; i++)
        if (strcmp(device->autotuned[i].key, key) == 0) return &device->autotuned[i];
    return NULL;
}

static hl_status set_entry(hl_cuda_device *device, const char *key, const char *line)
{
    hl_cuda_autotune_entry *entry = find_entry(device, key);
    if (!entry) {
        if (device->n_autotuned == MAX_ENTRIES) return HL_OK;
        HL_TRY(hl_alloc_grow((void **)&device->autotuned, &device->cap_autotuned,
                             device->n_autotuned + 1, sizeof *device->autotuned));
        entry = &device->autotuned[device->n_autotuned++];
        hl_text_copy(entry->key, sizeof entry->key, key);
    }
    hl_text_copy(entry->line, sizeof entry->line, line);
    return HL_OK;
}

/* An entry for which there is no memory is measured again. */
static void keep_on_device(hl_cuda_device *device, const char *key, const char *line)
{
    hl_mutex_lock(&device->library_lock);
    (void)set_entry(device, key, line);
    hl_mutex_unlock(&device->library_lock);
}

bool hl_cuda_autotune_find(hl_device *base, const char *kind, const char *key,
                           char out_line[HL_CUDA_AUTOTUNE_BYTES])
{
    hl_cuda_device *device = hl_cuda_of(base);
    char full[HL_CUDA_KEY_BYTES];
    void *kept = NULL;
    size_t bytes;
    write_key(device, kind, key, full);
    out_line[0] = '\0';
    hl_mutex_lock(&device->library_lock);
    const hl_cuda_autotune_entry *entry = find_entry(device, full);
    if (entry) hl_text_copy(out_line, HL_CUDA_AUTOTUNE_BYTES, entry->line);
    hl_mutex_unlock(&device->library_lock);
    if (entry) return true;
    if (!hl_cache_read(kind, full, &kept, &bytes)) return false;
    hl_text_copy(out_line, HL_CUDA_AUTOTUNE_BYTES, kept);
    hl_free(kept);
    keep_on_device(device, full, out_line); /* so that a saved model has it too */
    return true;
}

void hl_cuda_autotune_keep(hl_device *base, const char *kind, const char *key, const char *line)
{
    hl_cuda_device *device = hl_cuda_of(base);
    char full[HL_CUDA_KEY_BYTES];
    write_key(device, kind, key, full);
    keep_on_device(device, full, line);
    hl_cache_write(kind, full, line, strlen(line));
}

hl_status hl_cuda_autotune_print(hl_device *base, char **out_text)
{
    hl_cuda_device *device = hl_cuda_of(base);
    *out_text = NULL;
    hl_mutex_lock(&device->library_lock);
    size_t bytes = 1, at = 0;
    for (int64_t i = 0; i < device->n_autotuned; i++)
        bytes += strlen(device->autotuned[i].key) + strlen(device->autotuned[i].line) + 4;
    hl_status status = hl_alloc_zero(bytes, (void **)out_text);
    for (int64_t i = 0; i < device->n_autotuned && status == HL_OK; i++)
        at += (size_t)snprintf(*out_text + at, bytes - at, "%s = %s\n", device->autotuned[i].key,
                               device->autotuned[i].line);
    hl_mutex_unlock(&device->library_lock);
    return status;
}

static hl_status read_line(hl_cuda_device *device, const char *text, size_t bytes)
{
    char line[HL_CUDA_KEY_BYTES + HL_CUDA_AUTOTUNE_BYTES + 4];
    if (bytes >= sizeof line) return HL_OK;
    memcpy(line, text, bytes);
    line[bytes] = '\0';
    char *middle = strstr(line, " = ");
    if (!middle) return HL_OK;
    *middle = '\0';
    return set_entry(device, line, middle + 3);
}

hl_status hl_cuda_autotune_read(hl_device *base, const char *text)
{
    hl_cuda_device *device = hl_cuda_of(base);
    hl_status status = HL_OK;
    hl_mutex_lock(&device->library_lock);
    while (*text && status == HL_OK) {
        size_t bytes = strcspn(text, "\n");
        status = read_line(device, text, bytes);
        text += bytes + (text[bytes] == '\n');
    }
    hl_mutex_unlock(&device->library_lock);
    return status;
}
