/* Image: a picture as bytes in memory, and what every reader of image files needs.
 *
 * Pixels are 8 bits, rows from the top, the channels of a pixel beside each other: what decoders
 * write and what crops, resizes and warps read. Anything else (planes, floats) is made where it is
 * needed. An image keeps its memory when it gets another size, so that a loader thread which
 * decodes thousands of files allocates for the largest of them once.
 *
 * A file's bytes are those of a stranger: every length in it is checked against what is there, and
 * the number of pixels against a limit before memory is asked for. */
#ifndef HL_DATA_IMAGE_H
#define HL_DATA_IMAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/* Pillow's limit for a "decompression bomb": a quarter GiB of RGB. */
#define HL_IMAGE_PIXELS_MAX 89478485
/* Of a file: no camera's is larger, and a name may be that of a disk image. */
#define HL_IMAGE_FILE_BYTES_MAX ((int64_t)1 << 30)

typedef struct hl_image {
    int64_t height, width;
    int32_t channels; /* 1: grey, 3: RGB */
    uint8_t *pixels;  /* (height, width, channels), without gaps */
    size_t capacity;  /* bytes that pixels has */
} hl_image;

/* Gives it this size; what the pixels hold is not said. Size and channels must be at least 1, the
 * pixels HL_IMAGE_PIXELS_MAX at most. After an error it is empty. An image begins as {0}. */
hl_status hl_image_shape(hl_image *image, int64_t height, int64_t width, int32_t channels);
/* Frees the pixels; the image is {0} then. */
void hl_image_deinit(hl_image *image);

#endif
