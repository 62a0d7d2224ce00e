/* JPEG decoding: scales, colour spaces, orientation. */
#include "data/jpeg.h"

#include <string.h>

#include "base/alloc.h"
#include "data/turbojpeg.h"

struct hl_jpeg {
    hl_turbojpeg turbo;
};

/* ---- scales ---------------------------------------------------------------------------------- */

static int64_t scale_side(int64_t side, int eighths)
{
    return (side * eighths + 7) / 8;
}

/* The smallest image of those with vector code that still has these sides. */
static int choose_eighths(const hl_jpeg_header *header, int64_t min_height, int64_t min_width)
{
    int eighths = 8;
    if (min_height < 1 || min_width < 1) return eighths;
    while (eighths > 1 && scale_side(header->height, eighths / 2) >= min_height &&
           scale_side(header->width, eighths / 2) >= min_width)
        eighths /= 2;
    return eighths;
}

/* ---- decoding -------------------------------------------------------------------------------- */

/* Does this warning leave open whether pixels are missing or wrong? Most say that they are. Some do
 * no harm themselves, but libjpeg tells the first one alone; 3.x forgets those of the header and
 * then stops at a later one without words. */
static bool is_open(const char *warning)
{
    static const char *const open[] = {"extraneous bytes", "unknown JFIF revision",
                                       "Unknown Adobe color", "Invalid SOS parameters", "No error"};
    for (size_t i = 0; i < sizeof open / sizeof *open; i++)
        if (strstr(warning, open[i])) return true;
    return false;
}

/* Pixels as the file has them, in the format of as many channels. */
static hl_status decode_stored(const hl_turbojpeg *turbo, const uint8_t *data, size_t bytes,
                               hl_image *image, bool *out_is_sure)
{
    static const int formats[] = {[1] = HL_TJ_GREY, [3] = HL_TJ_RGB, [4] = HL_TJ_CMYK};
    const int flags = HL_TJ_STOP_ON_WARNING | HL_TJ_LIMIT_SCANS;
    *out_is_sure = true;
    tjhandle handle = turbo->call.tjInitDecompress();
    if (!handle)
        return hl_status_set(HL_ERROR_MEMORY, "JPEG: TurboJPEG must start a decoder, got '%s'",
                             turbo->call.tjGetErrorStr2(NULL));
    hl_status status = HL_OK;
    if (turbo->call.tjDecompress2(handle, data, bytes, image->pixels, (int)image->width, 0,
                                  (int)image->height, formats[image->channels], flags)) {
        const char *why = turbo->call.tjGetErrorStr2(handle);
        *out_is_sure = !is_open(why);
        if (*out_is_sure)
            status = hl_status_set(HL_ERROR_DATA, "JPEG: must be whole and intact, got '%s'", why);
    }
    turbo->call.tjDestroy(handle);
    return status;
}

/* round(a * b / 255) */
static inline int mul_255(int a, int b)
{
    int product = a * b + 128;
    return (product + (product >> 8)) >> 8;
}

/* Files with four components hold what Adobe writes: 255 is no ink. */
static hl_status convert_cmyk(const hl_image *src, int32_t channels, hl_image *dst)
{
    HL_TRY(hl_image_shape(dst, src->height, src->width, channels));
    const uint8_t *in = src->pixels;
    uint8_t *out = dst->pixels;
    for (int64_t i = src->height * src->width; i > 0; i--, in += 4, out += channels) {
        int rgb[3];
        for (int c = 0; c < 3; c++) rgb[c] = in[3] - mul_255(255 - in[c], in[3]);
        if (channels == 3)
            for (int c = 0; c < 3; c++) out[c] = (uint8_t)rgb[c];
        else /* ITU-R 601 luma, in 1/65536 */
            out[0] = (uint8_t)((rgb[0] * 19595 + rgb[1] * 38470 + rgb[2] * 7471 + 0x8000) >> 16);
    }
    return HL_OK;
}

/* From what the file holds to what was asked for. */
static hl_status convert_stored(const hl_image *stored, const hl_jpeg_header *header,
                                int32_t channels, hl_image *image)
{
    if (header->components != 4) return hl_image_orient(stored, header->orientation, image);
    if (header->orientation == 1) return convert_cmyk(stored, channels, image);
    hl_image converted = {0};
    hl_status status = convert_cmyk(stored, channels, &converted);
    if (status == HL_OK) status = hl_image_orient(&converted, header->orientation, image);
    hl_image_deinit(&converted);
    return status;
}

/* By way of an image as it is stored. */
static hl_status decode_and_convert(const hl_turbojpeg *turbo, const uint8_t *data, size_t bytes,
                                    const hl_jpeg_header *header, int64_t height, int64_t width,
                                    int32_t channels, hl_image *image, bool *out_is_sure)
{
    hl_image stored = {0};
    hl_status status;
    HL_GOTO(hl_image_shape(&stored, height, width, header->components == 4 ? 4 : channels));
    HL_GOTO(decode_stored(turbo, data, bytes, &stored, out_is_sure));
    if (*out_is_sure) status = convert_stored(&stored, header, channels, image);
cleanup:
    hl_image_deinit(&stored);
    return status;
}

hl_status hl_jpeg_decode(const hl_jpeg *jpeg, const uint8_t *data, size_t bytes,
                         const hl_jpeg_header *header, const hl_image_request *request,
                         hl_image *image, bool *out_is_sure)
{
    const hl_turbojpeg *turbo = &jpeg->turbo;
    *out_is_sure = true;
    if (!turbo->is_there)
        return hl_status_set(HL_ERROR_CONFIG, "JPEG: TurboJPEG must be installed, got '%s'",
                             turbo->why_not);
    bool is_swapped = header->orientation >= 5;
    int eighths = choose_eighths(header, is_swapped ? request->min_width : request->min_height,
                                 is_swapped ? request->min_height : request->min_width);
    int64_t height = scale_side(header->height, eighths);
    int64_t width = scale_side(header->width, eighths);
    if (header->components == 4 || header->orientation != 1)
        return decode_and_convert(turbo, data, bytes, header, height, width, request->channels,
                                  image, out_is_sure);
    HL_TRY(hl_image_shape(image, height, width, request->channels));
    return decode_stored(turbo, data, bytes, image, out_is_sure);
}

/* ---- life ------------------------------------------------------------------------------------ */

hl_status hl_jpeg_create(hl_jpeg **out_jpeg)
{
    HL_TRY(hl_alloc_zero(sizeof **out_jpeg, (void **)out_jpeg));
    hl_turbojpeg_open(&(*out_jpeg)->turbo);
    return HL_OK;
}

void hl_jpeg_destroy(hl_jpeg *jpeg)
{
    if (!jpeg) return;
    hl_turbojpeg_close(&jpeg->turbo);
    hl_free(jpeg);
}

const char *hl_jpeg_why_not(const hl_jpeg *jpeg)
{
    return jpeg->turbo.is_there ? NULL : jpeg->turbo.why_not;
}

const char *hl_jpeg_version(const hl_jpeg *jpeg)
{
    return jpeg->turbo.version;
}

const char *hl_jpeg_path(const hl_jpeg *jpeg)
{
    return jpeg->turbo.path;
}
