/* Images in memory, files read whole, formats by their first bytes. */
#include "data/image.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/os.h"

/* ---- images ---------------------------------------------------------------------------------- */

hl_status hl_image_check_size(int64_t height, int64_t width)
{
    if (height >= 1 && width >= 1 && height <= HL_IMAGE_PIXELS_MAX / width) return HL_OK;
    return hl_status_set(HL_ERROR_DATA,
                         "image: must have 1 to %d pixels (more may be a decompression bomb), got "
                         "%lld x %lld",
                         HL_IMAGE_PIXELS_MAX, (long long)height, (long long)width);
}

/* Room for so many bytes, without what was there. */
static hl_status make_room(uint8_t **data, size_t *capacity, size_t bytes)
{
    if (*capacity >= bytes) return HL_OK;
    hl_free(*data);
    *data = NULL;
    *capacity = 0;
    HL_TRY(hl_alloc(bytes, (void **)data));
    *capacity = bytes;
    return HL_OK;
}

hl_status hl_image_shape(hl_image *image, int64_t height, int64_t width, int32_t channels)
{
    image->height = image->width = 0;
    image->channels = 0;
    HL_TRY(hl_image_check_size(height, width));
    size_t bytes = (size_t)height * (size_t)width * (size_t)channels;
    HL_TRY(make_room(&image->pixels, &image->capacity, bytes));
    image->height = height;
    image->width = width;
    image->channels = channels;
    return HL_OK;
}

void hl_image_deinit(hl_image *image)
{
    hl_free(image->pixels);
    *image = (hl_image){0};
}

/* dst(y, x) = src[start + y * down + x * right] */
typedef struct way_through {
    int64_t start, down, right;
} way_through;

static way_through find_way(const hl_image *src, int32_t orientation)
{
    int64_t row = src->width * src->channels, pixel = src->channels;
    /* By orientation - 1: are rows and columns exchanged, do rows and columns run backwards? */
    static const bool swapped[8] = {0, 0, 0, 0, 1, 1, 1, 1};
    static const bool from_bottom[8] = {0, 0, 1, 1, 0, 1, 1, 0};
    static const bool from_right[8] = {0, 1, 1, 0, 0, 0, 1, 1};
    int i = orientation - 1;
    way_through way = {0, row, pixel};
    if (from_bottom[i]) way.start += (src->height - 1) * row, way.down = -row;
    if (from_right[i]) way.start += (src->width - 1) * pixel, way.right = -pixel;
    return swapped[i] ? (way_through){way.start, way.right, way.down} : way;
}

hl_status hl_image_orient(const hl_image *src, int32_t orientation, hl_image *dst)
{
    bool swapped = orientation >= 5;
    int64_t height = swapped ? src->width : src->height;
    int64_t width = swapped ? src->height : src->width;
    HL_TRY(hl_image_shape(dst, height, width, src->channels));
    way_through way = find_way(src, orientation);
    uint8_t *out = dst->pixels;
    for (int64_t y = 0; y < height; y++) {
        const uint8_t *in = src->pixels + way.start + y * way.down;
        for (int64_t x = 0; x < width; x++, in += way.right)
            for (int32_t c = 0; c < src->channels; c++) *out++ = in[c];
    }
    return HL_OK;
}

/* ---- files ----------------------------------------------------------------------------------- */

static hl_status fail_read(int error)
{
    char why[128];
    hl_os_error_text(error, why, sizeof why);
    hl_status code = error == ENOMEM ? HL_ERROR_MEMORY : HL_ERROR_DATA;
    return hl_status_set(code, "file: must be readable, got '%s'", why);
}

static hl_status read_open(hl_os_file file, int64_t bytes, int64_t max_bytes, hl_encoded *encoded)
{
    if (bytes < 1) return hl_status_set(HL_ERROR_DATA, "file: must hold an image, got 0 bytes");
    if (bytes > max_bytes)
        return hl_status_set(HL_ERROR_DATA, "file: must have at most %lld bytes, got %lld",
                             (long long)max_bytes, (long long)bytes);
    HL_TRY(make_room(&encoded->data, &encoded->capacity, (size_t)bytes));
    int error = hl_os_file_read(file, encoded->data, (size_t)bytes);
    if (error) return fail_read(error);
    encoded->bytes = (size_t)bytes;
    return HL_OK;
}

hl_status hl_encoded_read(const char *path, int64_t max_bytes, hl_encoded *encoded)
{
    hl_os_file file;
    int64_t bytes;
    encoded->bytes = 0;
    int error = hl_os_file_open(hl_os_directory_current(), path, &file, &bytes);
    if (error) return fail_read(error);
    hl_status status = read_open(file, bytes, max_bytes, encoded);
    /* What was read is whole, whatever closing says. */
    (void)hl_os_file_close(file);
    return status;
}

void hl_encoded_deinit(hl_encoded *encoded)
{
    hl_free(encoded->data);
    *encoded = (hl_encoded){0};
}

/* ---- formats --------------------------------------------------------------------------------- */

typedef struct signature {
    hl_image_format format;
    size_t at, n; /* where it stands, and how long it is */
    const char *bytes;
} signature;

static const signature signatures[] = {
    {HL_IMAGE_JPEG, 0, 3, "\xFF\xD8\xFF"},
    {HL_IMAGE_PNG, 0, 8, "\x89PNG\r\n\x1A\n"},
    {HL_IMAGE_GIF, 0, 6, "GIF87a"},
    {HL_IMAGE_GIF, 0, 6, "GIF89a"},
    {HL_IMAGE_BMP, 0, 2, "BM"},
    {HL_IMAGE_WEBP, 8, 4, "WEBP"},
    {HL_IMAGE_TIFF, 0, 4, "II*\0"},
    {HL_IMAGE_TIFF, 0, 4, "MM\0*"},
};

hl_image_format hl_image_sniff(const uint8_t *data, size_t bytes)
{
    for (size_t i = 0; i < sizeof signatures / sizeof *signatures; i++) {
        const signature *s = &signatures[i];
        if (bytes >= s->at + s->n && memcmp(data + s->at, s->bytes, s->n) == 0) return s->format;
    }
    return HL_IMAGE_OTHER;
}

const char *hl_image_format_name(hl_image_format format)
{
    static const char *const names[HL_IMAGE_FORMATS] = {
        [HL_IMAGE_OTHER] = "other", [HL_IMAGE_JPEG] = "JPEG", [HL_IMAGE_PNG] = "PNG",
        [HL_IMAGE_GIF] = "GIF",     [HL_IMAGE_BMP] = "BMP",   [HL_IMAGE_WEBP] = "WebP",
        [HL_IMAGE_TIFF] = "TIFF",
    };
    return names[format];
}
