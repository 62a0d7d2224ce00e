/* Headers of JPEG files: segments, the frame, EXIF's orientation. */
#include "data/jpeg_header.h"

#include <string.h>

/* Markers, the byte after 0xFF. */
enum {
    MARKER_TEM = 0x01,
    MARKER_SOF0 = 0xC0, /* baseline, and SOF1 and SOF2: extended, progressive */
    MARKER_SOF2 = 0xC2,
    MARKER_DHT = 0xC4,
    MARKER_JPG = 0xC8,
    MARKER_SOF9 = 0xC9, /* and SOF10: arithmetic coding */
    MARKER_SOF10 = 0xCA,
    MARKER_DAC = 0xCC,
    MARKER_SOF15 = 0xCF,
    MARKER_RST0 = 0xD0,
    MARKER_RST7 = 0xD7,
    MARKER_SOI = 0xD8,
    MARKER_EOI = 0xD9,
    MARKER_SOS = 0xDA,
    MARKER_APP1 = 0xE1
};
enum { SIDE_MAX = 65500 /* libjpeg's JPEG_MAX_DIMENSION */ };

/* What is left of some bytes. */
typedef struct reader {
    const uint8_t *at, *end;
} reader;

static size_t left_of(const reader *r)
{
    return (size_t)(r->end - r->at);
}

static uint32_t read_be16(const uint8_t *at)
{
    return (uint32_t)at[0] << 8 | at[1];
}

/* ---- EXIF ------------------------------------------------------------------------------------ */

/* A TIFF file of either byte order. */
typedef struct tiff {
    const uint8_t *data;
    size_t bytes;
    bool big;
} tiff;

static uint32_t read_tiff16(const tiff *t, size_t at)
{
    const uint8_t *p = t->data + at;
    return t->big ? read_be16(p) : (uint32_t)p[1] << 8 | p[0];
}

static uint32_t read_tiff32(const tiff *t, size_t at)
{
    uint32_t first = read_tiff16(t, at), second = read_tiff16(t, at + 2);
    return t->big ? first << 16 | second : second << 16 | first;
}

enum { TIFF_HEADER = 8, TIFF_ENTRY = 12, TAG_ORIENTATION = 0x0112, TYPE_SHORT = 3, TYPE_LONG = 4 };

/* The orientation of the entries from `at` on; 0: none says it. */
static int32_t find_orientation(const tiff *t, size_t at, uint32_t n_entries)
{
    for (uint32_t i = 0; i < n_entries && t->bytes - at >= TIFF_ENTRY; i++, at += TIFF_ENTRY) {
        if (read_tiff16(t, at) != TAG_ORIENTATION) continue;
        uint32_t type = read_tiff16(t, at + 2), n = read_tiff32(t, at + 4), value = 0;
        if (type == TYPE_SHORT) value = read_tiff16(t, at + 8);
        if (type == TYPE_LONG) value = read_tiff32(t, at + 8);
        return n == 1 && value >= 1 && value <= 8 ? (int32_t)value : 0;
    }
    return 0;
}

/* Of a segment's content; 0: it does not say. */
static int32_t read_exif(const uint8_t *data, size_t bytes)
{
    static const uint8_t begin[6] = "Exif\0";
    if (bytes < sizeof begin + TIFF_HEADER || memcmp(data, begin, sizeof begin) != 0) return 0;
    tiff t = {data + sizeof begin, bytes - sizeof begin, data[sizeof begin] == 'M'};
    const char *order = t.big ? "MM" : "II";
    if (memcmp(t.data, order, 2) != 0 || read_tiff16(&t, 2) != 42) return 0;
    size_t at = read_tiff32(&t, 4);
    if (at > t.bytes || t.bytes - at < 2) return 0;
    return find_orientation(&t, at + 2, read_tiff16(&t, at));
}

/* ---- segments -------------------------------------------------------------------------------- */

static hl_status fail_end(void)
{
    return hl_status_set(HL_ERROR_DATA, "JPEG: its header must be whole, got the end of the file "
                                        "in it");
}

/* The next marker; what stands before it is skipped, and so are fill bytes. */
static hl_status read_marker(reader *r, uint8_t *out_marker)
{
    *out_marker = 0;
    do {
        const uint8_t *found = memchr(r->at, 0xFF, left_of(r));
        if (!found) return fail_end();
        for (r->at = found; r->at < r->end && *r->at == 0xFF; r->at++) continue;
        if (r->at == r->end) return fail_end();
        *out_marker = *r->at++;
    } while (*out_marker == 0); /* an 0xFF of the data */
    return HL_OK;
}

/* The content of the segment that begins here. */
static hl_status read_segment(reader *r, reader *out_content)
{
    *out_content = (reader){r->at, r->at};
    if (left_of(r) < 2) return fail_end();
    size_t length = read_be16(r->at);
    if (length < 2)
        return hl_status_set(HL_ERROR_DATA, "JPEG: a segment must have 2 bytes at least, got %zu",
                             length);
    if (left_of(r) < length) return fail_end();
    *out_content = (reader){r->at + 2, r->at + length};
    r->at += length;
    return HL_OK;
}

static bool is_frame(uint8_t marker)
{
    return marker >= MARKER_SOF0 && marker <= MARKER_SOF15 && marker != MARKER_DHT &&
           marker != MARKER_DAC && marker != MARKER_JPG;
}

static bool is_decodable(uint8_t marker)
{
    return marker <= MARKER_SOF2 || marker == MARKER_SOF9 || marker == MARKER_SOF10;
}

static hl_status read_frame(uint8_t marker, const reader *content, hl_jpeg_header *header)
{
    const uint8_t *at = content->at;
    if (!is_decodable(marker))
        return hl_status_set(HL_ERROR_DATA,
                             "JPEG: must be baseline, extended or progressive, got frame SOF%d",
                             marker - MARKER_SOF0);
    if (header->components)
        return hl_status_set(HL_ERROR_DATA, "JPEG: must have 1 frame, got a second one");
    if (left_of(content) < 6 || left_of(content) != 6 + (size_t)3 * at[5])
        return hl_status_set(HL_ERROR_DATA,
                             "JPEG: a frame must have 3 bytes per component, got a segment of %zu",
                             left_of(content));
    if (at[0] != 8)
        return hl_status_set(HL_ERROR_DATA, "JPEG: samples must have 8 bits, got %d", at[0]);
    if (at[5] != 1 && at[5] != 3 && at[5] != 4)
        return hl_status_set(HL_ERROR_DATA, "JPEG: must have 1, 3 or 4 components, got %d", at[5]);
    header->height = read_be16(at + 1);
    header->width = read_be16(at + 3);
    header->components = at[5];
    if (header->height > SIDE_MAX || header->width > SIDE_MAX)
        return hl_status_set(HL_ERROR_DATA, "JPEG: sides must be %d at most, got %lld x %lld",
                             SIDE_MAX, (long long)header->height, (long long)header->width);
    return hl_image_check_size(header->height, header->width);
}

static bool stands_alone(uint8_t marker)
{
    return marker == MARKER_TEM || (marker >= MARKER_RST0 && marker <= MARKER_RST7);
}

static hl_status read_part(uint8_t marker, reader *r, hl_jpeg_header *header)
{
    reader content;
    if (stands_alone(marker)) return HL_OK;
    if (marker == MARKER_SOI || marker == MARKER_EOI)
        return hl_status_set(HL_ERROR_DATA, "JPEG: its header must end with a scan, got marker %s",
                             marker == MARKER_SOI ? "SOI" : "EOI");
    HL_TRY(read_segment(r, &content));
    if (is_frame(marker)) return read_frame(marker, &content, header);
    if (marker == MARKER_APP1 && !header->orientation)
        header->orientation = read_exif(content.at, left_of(&content));
    return HL_OK;
}

hl_status hl_jpeg_header_read(const uint8_t *data, size_t bytes, hl_jpeg_header *out_header)
{
    reader r = {data, data + bytes}, scan;
    uint8_t marker;
    *out_header = (hl_jpeg_header){0};
    if (bytes < 2 || data[0] != 0xFF || data[1] != MARKER_SOI)
        return hl_status_set(HL_ERROR_DATA, "JPEG: must begin with FF D8, got something else");
    r.at += 2;
    for (;;) {
        HL_TRY(read_marker(&r, &marker));
        if (marker == MARKER_SOS) break;
        HL_TRY(read_part(marker, &r, out_header));
    }
    HL_TRY(read_segment(&r, &scan)); /* its header, of which 3.x forgets that it was cut */
    if (!out_header->components)
        return hl_status_set(HL_ERROR_DATA, "JPEG: must have a frame before its scan, got none");
    if (!out_header->orientation) out_header->orientation = 1;
    return HL_OK;
}
