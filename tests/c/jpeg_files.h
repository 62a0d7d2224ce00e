/* JPEG files made in memory, by the library that decodes them: tests need no files of their own. */
#ifndef TESTS_C_JPEG_FILES_H
#define TESTS_C_JPEG_FILES_H

#include "base/os.h"
#include "data/image.h"
#include "data/turbojpeg.h"
#include "tests/c/check.h"

enum {
    FILE_BYTES_MAX = 1 << 16,
    FILE_PROGRESSIVE = 16384,
    FILE_444 = 0,
    FILE_420 = 2,
    FILE_GREY = 3
};

/* The functions of TurboJPEG that only tests use. */
static struct {
    tjhandle (*start)(void);
    int (*compress)(tjhandle handle, const unsigned char *pixels, int width, int pitch, int height,
                    int format, unsigned char **data, unsigned long *bytes, int subsampling,
                    int quality, int flags);
    int (*read_header)(tjhandle handle, const unsigned char *data, unsigned long bytes, int *width,
                       int *height, int *subsampling, int *colorspace);
    void (*release)(unsigned char *data);
} files_call;
static hl_turbojpeg files_turbo;
static tjhandle files_decoder;

static void find_function(void *out, const char *name)
{
    void *symbol = hl_os_library_symbol(files_turbo.library, name);
    CHECK(symbol != NULL);
    memcpy(out, &symbol, sizeof symbol);
}

/* False, with a line that says so: this machine has no TurboJPEG. */
static bool files_open(void)
{
    hl_turbojpeg_open(&files_turbo);
    if (!files_turbo.is_there) {
        CHECK_SKIP(files_turbo.why_not);
        return false;
    }
    find_function(&files_call.start, "tjInitCompress");
    find_function(&files_call.compress, "tjCompress2");
    find_function(&files_call.read_header, "tjDecompressHeader3");
    find_function(&files_call.release, "tjFree");
    files_decoder = files_turbo.call.tjInitDecompress();
    return true;
}

static void files_close(void)
{
    if (!files_turbo.is_there) return;
    files_turbo.call.tjDestroy(files_decoder);
    hl_turbojpeg_close(&files_turbo);
}

/* Smooth with an edge, so that it has all kinds of coefficients. */
static void draw_pixels(uint8_t *pixels, int height, int width, int channels)
{
    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++)
            for (int c = 0; c < channels; c++)
                *pixels++ = (uint8_t)((x * (5 + c) + y * (3 - c) + (x + 2 * y > width) * 90) & 255);
}

typedef struct jpeg_file {
    uint8_t data[FILE_BYTES_MAX];
    size_t bytes;
} jpeg_file;

/* channels 1, 3 or 4 (CMYK). */
static void make_file(int height, int width, int channels, int subsampling, int flags,
                      jpeg_file *out)
{
    static const int formats[] = {[1] = HL_TJ_GREY, [3] = HL_TJ_RGB, [4] = HL_TJ_CMYK};
    uint8_t *pixels = malloc((size_t)(height * width * channels));
    unsigned char *data = NULL;
    unsigned long bytes = 0;
    draw_pixels(pixels, height, width, channels);
    /* One for each file: in 2.1 the tables of a progressive file get into the next one. */
    tjhandle encoder = files_call.start();
    int failed = files_call.compress(encoder, pixels, width, 0, height, formats[channels], &data,
                                     &bytes, channels == 1 ? FILE_GREY : subsampling, 85, flags);
    CHECK_INT(failed, 0);
    CHECK(bytes <= sizeof out->data);
    memcpy(out->data, data, bytes);
    out->bytes = bytes;
    files_turbo.call.tjDestroy(encoder);
    files_call.release(data);
    free(pixels);
}

/* Puts bytes into a file. */
static void insert_bytes(jpeg_file *file, size_t at, const void *bytes, size_t n)
{
    CHECK(file->bytes + n <= sizeof file->data);
    uint8_t copy[64]; /* they may be the file's own */
    CHECK(n <= sizeof copy);
    memcpy(copy, bytes, n);
    memmove(file->data + at + n, file->data + at, file->bytes - at);
    memcpy(file->data + at, copy, n);
    file->bytes += n;
}

/* An EXIF block with the orientation as its second entry; returns its length. */
static size_t make_exif(int orientation, bool big, bool is_long, uint8_t out[64])
{
    static const uint8_t little_block[] = "\xFF\xE1\x00\x2E"
                                          "Exif\0\0II*\0\x08\0\0\0\x02\0"
                                          "\x0F\x01\x02\0\x04\0\0\0abc\0"
                                          "\x12\x01\x03\0\x01\0\0\0\0\0\0\0\0\0\0\0";
    static const uint8_t big_block[] = "\xFF\xE1\x00\x2E"
                                       "Exif\0\0MM\0*\0\0\0\x08\0\x02"
                                       "\x01\x0F\0\x02\0\0\0\x04"
                                       "abc\0"
                                       "\x01\x12\0\x03\0\0\0\x01\0\0\0\0\0\0\0\0";
    size_t n = 48;
    CHECK_INT(sizeof little_block, n + 1);
    memcpy(out, big ? big_block : little_block, n);
    if (is_long) out[big ? 35 : 34] = 4;
    out[big ? (is_long ? 43 : 41) : 40] = (uint8_t)orientation;
    return n;
}

#endif
