/* Choices made by measuring, kept: by the device for as long as it is open, and on disk.
 *
 * A choice is a line of text under a key that describes what was chosen for; the GPU and its
 * driver's version are put before it here, a library's version is the caller's to put. The same
 * lines travel with a checkpoint, so that a run that goes on takes what it took before. */
#ifndef HL_KERNELS_CUDA_CHOICES_H
#define HL_KERNELS_CUDA_CHOICES_H

#include "kernels/cuda/cuda.h"

enum { HL_CUDA_CHOICE_BYTES = 256, HL_CUDA_KEY_BYTES = 512 };

/* kind: "matmul", the file's name in the disk cache. False: nothing is known. */
bool hl_cuda_choice_find(hl_device *device, const char *kind, const char *key,
                         char out_line[HL_CUDA_CHOICE_BYTES]);
/* Replaces what is there. Never fails: what cannot be kept is measured again. */
void hl_cuda_choice_keep(hl_device *device, const char *kind, const char *key, const char *line);

/* hl_device_ops' functions: "kind; gpu; driver; key = line" a line each; what is no such line is
 * passed over. */
hl_status hl_cuda_choices_print(hl_device *device, HL_GIVE char **out_text);
hl_status hl_cuda_choices_read(hl_device *device, const char *text);

typedef struct hl_cuda_choice {
    char key[HL_CUDA_KEY_BYTES], line[HL_CUDA_CHOICE_BYTES];
} hl_cuda_choice;

#endif
