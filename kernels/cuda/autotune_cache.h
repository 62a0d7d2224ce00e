/* The autotune cache: the device keeps it while it is open, and it lies on disk.
 *
 * An entry is a line of text under a key that describes the problem that was tuned. This file adds
 * the GPU and its driver's version to the key; the caller adds a library's version. The same lines
 * are saved with a model, so that a later run takes the same algorithms. */
#ifndef HL_KERNELS_CUDA_AUTOTUNE_CACHE_H
#define HL_KERNELS_CUDA_AUTOTUNE_CACHE_H

#include "kernels/cuda/cuda.h"

enum { HL_CUDA_AUTOTUNE_BYTES = 256, HL_CUDA_KEY_BYTES = 768 };

/* kind: "matmul", the file's name in the disk cache. False: there is no entry. */
bool hl_cuda_autotune_find(hl_device *device, const char *kind, const char *key,
                           char out_line[HL_CUDA_AUTOTUNE_BYTES]);
/* Replaces an entry. Never fails: an entry that cannot be kept is measured again. */
void hl_cuda_autotune_keep(hl_device *device, const char *kind, const char *key, const char *line);

/* hl_device_ops' functions: each line is "kind; gpu; driver; key = line", and other lines are
 * ignored. */
hl_status hl_cuda_autotune_print(hl_device *device, HL_GIVE char **out_text);
hl_status hl_cuda_autotune_read(hl_device *device, const char *text);

typedef struct hl_cuda_autotune_entry {
    char key[HL_CUDA_KEY_BYTES], line[HL_CUDA_AUTOTUNE_BYTES];
} hl_cuda_autotune_entry;

#endif
