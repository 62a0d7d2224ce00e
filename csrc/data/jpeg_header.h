/* The header of a JPEG (ITU-T T.81, annex B): how large the image is, and which way up it was taken
 * (EXIF 2.3, tag 0x0112), before anything is decoded or memory asked for.
 *
 * Segments are walked as libjpeg does, so that both see the same frame: bytes before a marker are
 * skipped, the scan's start ends the header. What stands in a segment is read only as far as its
 * length reaches; an EXIF block that makes no sense is as good as none, since the pixels are there
 * all the same. */
#ifndef HL_DATA_JPEG_HEADER_H
#define HL_DATA_JPEG_HEADER_H

#include "data/image.h"

typedef struct hl_jpeg_header {
    int64_t height, width; /* as stored */
    int32_t components;    /* 1: grey, 3: colour, 4: CMYK or YCCK */
    int32_t orientation;   /* 1 to 8; 1: upright, or it does not say */
} hl_jpeg_header;

/* DataError for bytes that do not begin with a whole header of a JPEG with 1, 3 or 4 components of
 * 8 bits in a kind of frame that libjpeg decodes, and for too many pixels. */
hl_status hl_jpeg_header_read(const uint8_t *data, size_t bytes, hl_jpeg_header *out_header);

#endif
