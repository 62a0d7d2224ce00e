/* Image: a picture as bytes in memory, and what every reader of image files needs.
 *
 * Pixels are 8 bits, rows from the top, the channels of a pixel beside each other: what decoders
 * write and what crops, resizes and warps read. Anything else (planes, floats) is made where it is
 * needed. Images and files keep their memory when they get another size, so that a loader thread
 * which decodes thousands of them allocates for the largest once.
 *
 * A file's bytes are those of a stranger: every length in it is checked against what is there, and
 * the number of pixels against a limit before memory is asked for. Messages say what was wrong with
 * the bytes; who knows the file's name puts it in front. */
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
    int32_t channels; /* 1: grey, 3: RGB; 4 inside of a decoder */
    uint8_t *pixels;  /* (height, width, channels), without gaps */
    size_t capacity;  /* bytes that pixels has */
} hl_image;

/* DataError unless both are at least 1 and the pixels HL_IMAGE_PIXELS_MAX at most. */
hl_status hl_image_check_size(int64_t height, int64_t width);
/* Gives it this size, which is checked; what the pixels hold is not said. After an error it is
 * empty. An image begins as {0}. */
hl_status hl_image_shape(hl_image *image, int64_t height, int64_t width, int32_t channels);
/* Frees the pixels; the image is {0} then. */
void hl_image_deinit(hl_image *image);
/* Turns an image upright that was stored in one of EXIF's orientations, 1 to 8. From 5 on, height
 * and width change places. */
hl_status hl_image_orient(const hl_image *src, int32_t orientation, hl_image *dst);

/* The bytes of a file, whole. Begins as {0}. */
typedef struct hl_encoded {
    uint8_t *data;
    size_t bytes, capacity;
} hl_encoded;

/* DataError with the system's words where it cannot be read, is no regular file, is empty or longer
 * than max_bytes. */
hl_status hl_encoded_read(const char *path, int64_t max_bytes, hl_encoded *encoded);
void hl_encoded_deinit(hl_encoded *encoded);

/* What the first bytes say: names of files are not asked. */
typedef enum hl_image_format {
    HL_IMAGE_OTHER,
    HL_IMAGE_JPEG,
    HL_IMAGE_PNG,
    HL_IMAGE_GIF,
    HL_IMAGE_BMP,
    HL_IMAGE_WEBP,
    HL_IMAGE_TIFF,
    HL_IMAGE_FORMATS
} hl_image_format;
hl_image_format hl_image_sniff(const uint8_t *data, size_t bytes);
/* "JPEG"; "other" */
const char *hl_image_format_name(hl_image_format format);

#endif
