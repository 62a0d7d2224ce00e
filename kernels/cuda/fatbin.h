/* What is in a fatbin: nvcc's container of the same kernels for several GPUs.
 *
 * The build embeds one per source, one after the other; the driver loads each and picks the image
 * that suits its GPU. This reads which images there are, so that a GPU that nothing was built for
 * is a sentence that names both sides, before the driver is asked. The format is not documented;
 * tests hold the reader to what nvcc writes, compressed and not, and it refuses what it does not
 * know rather than guessing. */
#ifndef HL_KERNELS_CUDA_FATBIN_H
#define HL_KERNELS_CUDA_FATBIN_H

#include <stdbool.h>

#include "base/status.h"

typedef struct hl_fatbin_image {
    int arch; /* 90: sm_90 or compute_90 */
    bool is_ptx;
    size_t bytes; /* in the file */
} hl_fatbin_image;

typedef struct hl_fatbin_cursor {
    const unsigned char *next, *end; /* containers not yet read */
    const unsigned char *image, *image_end;
} hl_fatbin_cursor;

/* Containers [data, data + bytes), zeros between them; data is aligned to 8. */
hl_fatbin_cursor hl_fatbin_begin(const void *data, size_t bytes);
/* *out_code NULL: no further container. HL_ERROR_DEVICE: this is no fatbin. */
hl_status hl_fatbin_next(hl_fatbin_cursor *cursor, const void **out_code);
/* Images of the container that hl_fatbin_next gave; false in *out_more after the last. */
hl_status hl_fatbin_next_image(hl_fatbin_cursor *cursor, hl_fatbin_image *out_image,
                               bool *out_more);

/* True when a GPU of this architecture can run an image: its own major version at most its minor
 * one as machine code (an embedded GPU its very own), any older one as PTX. */
bool hl_fatbin_image_runs(const hl_fatbin_image *image, int arch);

typedef enum hl_fatbin_fit {
    HL_FATBIN_NONE,
    HL_FATBIN_PTX, /* once the driver has compiled it: only as new a PTX as it knows */
    HL_FATBIN_CODE
} hl_fatbin_fit;

/* What every container has for the architecture, at the least; out_text, the architectures of the
 * first container: "sm_75, sm_90, compute_90". */
hl_status hl_fatbin_check(const void *data, size_t bytes, int arch, hl_fatbin_fit *out_fit,
                          char *out_text, size_t text_bytes);

#endif
