/* JPEG decoding by TurboJPEG: grey or RGB, at full size or an eighth's multiple of it, upright.
 *
 * The scale is chosen inside of the inverse DCT, so an image that is to be small costs a fraction
 * of one that is decoded whole and then shrunk. Only the scales for which libjpeg-turbo has vector
 * code are taken (1/1, 1/2, 1/4, 1/8): the others take longer than the whole image does.
 *
 * A warning of TurboJPEG stops a file. Where it says that data is missing or contradicts itself,
 * that is an error. Where it says that the file is merely odd (bytes between segments, an unknown
 * revision), the decoder is not sure, since a truncation could hide behind it: then another decoder
 * has to say.
 *
 * Any number of threads decode at once: each file has a decoder of its own, which costs 0.15 us.
 * Rejected: decoders that are kept. They remember the tables of earlier files and complete with
 * them a broken one that lacks its own, so its pixels would depend on which thread it came to, and
 * after some broken headers they refuse every file that comes later.
 */
#ifndef HL_DATA_JPEG_H
#define HL_DATA_JPEG_H

#include "data/jpeg_header.h"

typedef struct hl_jpeg hl_jpeg;

/* Made even where the library is missing: hl_jpeg_why_not says so. */
hl_status hl_jpeg_create(HL_GIVE hl_jpeg **out_jpeg);
/* NULL is allowed. */
void hl_jpeg_destroy(HL_TAKE hl_jpeg *jpeg);
/* NULL: it can decode. */
const char *hl_jpeg_why_not(const hl_jpeg *jpeg);
const char *hl_jpeg_version(const hl_jpeg *jpeg); /* "2.x" */
const char *hl_jpeg_path(const hl_jpeg *jpeg);    /* of the library; "": inside of this build */

/* What the image is for. */
typedef struct hl_image_request {
    int32_t channels; /* 1: grey (the luma of the file), 3: RGB */
    /* The upright image may be smaller than it is stored, as long as it has these at least; 0: as
     * stored. */
    int64_t min_height, min_width;
} hl_image_request;

/* `header` is that of these bytes. DataError for what cannot be decoded; *out_is_sure false: the
 * file is odd, nothing was decoded, another decoder has to say. */
hl_status hl_jpeg_decode(const hl_jpeg *jpeg, const uint8_t *data, size_t bytes,
                         const hl_jpeg_header *header, const hl_image_request *request,
                         hl_image *image, bool *out_is_sure);

#endif
