/* Decoding: from a file's bytes to an image, by whichever decoder can.
 *
 * JPEG goes to TurboJPEG where it is there; everything else, and the rare JPEG that TurboJPEG is
 * not sure of, to a reader that the caller brings (Python gives one by Pillow): hotloop has no
 * decoders of its own. Which decoder it is depends on the bytes alone, never on threads, so the
 * pixels do not either. */
#ifndef HL_DATA_DECODE_H
#define HL_DATA_DECODE_H

#include "data/jpeg.h"

typedef struct hl_image_header {
    hl_image_format format;
    int64_t height, width; /* upright; 0: known only once it is decoded */
    hl_jpeg_header jpeg;   /* of a JPEG */
} hl_image_header;

/* DataError for a JPEG whose header is broken; other formats are their reader's to judge. */
hl_status hl_image_header_read(const hl_encoded *file, hl_image_header *out_header);

/* Makes images, upright, with the channels that are asked for, of what TurboJPEG does not decode;
 * on several threads at once. `name` is for messages. NULL: there is none. */
typedef struct hl_image_reader {
    hl_status (*read)(void *context, const char *name, const hl_encoded *file,
                      const hl_image_request *request, hl_image *image);
    void *context;
} hl_image_reader;

typedef struct hl_image_decoder {
    const hl_jpeg *jpeg; /* borrowed */
    hl_image_reader reader;
} hl_image_decoder;

/* `header` is that of the file. DataError for what cannot be decoded, ConfigError where nobody is
 * there who could. */
hl_status hl_image_decode(const hl_image_decoder *decoder, const char *name, const hl_encoded *file,
                          const hl_image_header *header, const hl_image_request *request,
                          hl_image *image);

#endif
