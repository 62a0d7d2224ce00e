/* Images: headers and orientations, files that are hostile, cut or missing, decoding by TurboJPEG
 * at every scale, colour space and number of threads. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/threads.h"
#include "data/decode.h"
#include "tests/c/dice.h"
#include "tests/c/jpeg_files.h"

static char folder[64], path[128];

/* ---- headers --------------------------------------------------------------------------------- */

/* SOI, a frame, the header of a scan, and nothing else. */
static void make_header(uint8_t frame, int bits, int height, int width, int components,
                        jpeg_file *out)
{
    uint8_t bytes[64] = {0xFF, 0xD8, 0xFF, frame, 0, (uint8_t)(8 + 3 * components), (uint8_t)bits};
    bytes[7] = (uint8_t)(height >> 8), bytes[8] = (uint8_t)height;
    bytes[9] = (uint8_t)(width >> 8), bytes[10] = (uint8_t)width;
    bytes[11] = (uint8_t)components;
    size_t n = 12 + 3 * (size_t)components;
    memcpy(bytes + n, "\xFF\xDA\x00\x03?", 5);
    memcpy(out->data, bytes, n + 5);
    out->bytes = n + 5;
}

/* From memory of exactly this length, so that the address sanitizer sees what lies behind it. */
static hl_status read_exact(const uint8_t *data, size_t bytes, hl_jpeg_header *out)
{
    uint8_t *copy = malloc(bytes ? bytes : 1);
    memcpy(copy, data, bytes);
    hl_status status = hl_jpeg_header_read(copy, bytes, out);
    free(copy);
    return status;
}

static void test_header(void)
{
    static jpeg_file file;
    hl_jpeg_header header;
    const int components[] = {1, 3, 4};
    for (int i = 0; i < 3; i++) {
        make_header(0xC0 + (uint8_t)i, 8, 480, 641, components[i], &file);
        CHECK_OK(read_exact(file.data, file.bytes, &header));
        CHECK_INT(header.height, 480);
        CHECK_INT(header.width, 641);
        CHECK_INT(header.components, components[i]);
        CHECK_INT(header.orientation, 1);
        for (size_t n = 0; n < file.bytes; n++)
            CHECK_INT(read_exact(file.data, n, &header), HL_ERROR_DATA);
    }
    make_header(0xC0, 8, 7, 5, 3, &file);
    static const char between[] = "garbage\xFF\x00 and fill \xFF\xFF\xFF\xD0\xFF\xFF\xFE\x00\x04 c";
    insert_bytes(&file, 2, between, sizeof between - 1);
    CHECK_OK(read_exact(file.data, file.bytes, &header));
    CHECK_INT(header.width, 5);
}

static void check_refused(uint8_t frame, int bits, int height, int width, int components,
                          const char *text)
{
    static jpeg_file file;
    hl_jpeg_header header;
    make_header(frame, bits, height, width, components, &file);
    CHECK_ERROR(read_exact(file.data, file.bytes, &header), HL_ERROR_DATA, text);
}

static void test_header_refused(void)
{
    static jpeg_file file;
    hl_jpeg_header header;
    check_refused(0xC3, 8, 9, 9, 3, "must be baseline, extended or progressive, got frame SOF3");
    check_refused(0xC0, 12, 9, 9, 3, "must have 8 bits, got 12");
    check_refused(0xC0, 8, 9, 9, 2, "1, 3 or 4 components, got 2");
    check_refused(0xC0, 8, 0, 9, 3, "must have 1 to 89478485 pixels");
    check_refused(0xC0, 8, 9, 0, 3, "must have 1 to 89478485 pixels");
    check_refused(0xC0, 8, 65535, 1, 3, "sides must be 65500 at most");
    check_refused(0xC0, 8, 65500, 65500, 3, "got 65500 x 65500");
    check_refused(0xC0, 8, 10000, 8948, 3, "bomb), got 10000 x 8948");
    make_header(0xC0, 8, 10000, 8947, 3, &file);
    CHECK_OK(read_exact(file.data, file.bytes, &header));
    make_header(0xC0, 8, 9, 9, 3, &file);
    insert_bytes(&file, 21, "\xFF\xC0\x00\x0B\x08\x00\x09\x00\x09\x01\x00\x00\x00", 13);
    CHECK_ERROR(read_exact(file.data, file.bytes, &header), HL_ERROR_DATA, "1 frame");
    CHECK_ERROR(read_exact((const uint8_t *)"\xFF\xD8\xFF\xDA\x00\x02", 6, &header), HL_ERROR_DATA,
                "must have a frame before its scan");
    CHECK_ERROR(read_exact((const uint8_t *)"\xFF\xD8\xFF\xD9", 4, &header), HL_ERROR_DATA, "EOI");
    CHECK_ERROR(read_exact((const uint8_t *)"\xFF\xD8\xFF\xE0\x00\x01", 6, &header), HL_ERROR_DATA,
                "2 bytes at least, got 1");
    CHECK_ERROR(read_exact((const uint8_t *)"GIF89a", 6, &header), HL_ERROR_DATA, "FF D8");
}

static int32_t orientation_of(const uint8_t *exif, size_t n)
{
    static jpeg_file file;
    hl_jpeg_header header;
    make_header(0xC0, 8, 9, 9, 3, &file);
    insert_bytes(&file, 2, exif, n);
    CHECK_OK(read_exact(file.data, file.bytes, &header));
    return header.orientation;
}

static void test_exif(void)
{
    uint8_t exif[64];
    for (int way = 0; way < 4; way++) {
        for (int orientation = 0; orientation < 12; orientation++) {
            size_t n = make_exif(orientation, way & 1, way & 2, exif);
            bool known = orientation >= 1 && orientation <= 8;
            CHECK_INT(orientation_of(exif, n), known ? orientation : 1);
        }
        /* Any byte of it may be wrong: what it says then is 1 to 8, and nothing is read that is not
         * there (address sanitizer). */
        for (size_t at = 4; at < 48; at++)
            for (int value = 0; value < 256; value++) {
                size_t n = make_exif(6, way & 1, way & 2, exif);
                exif[at] = (uint8_t)value;
                int32_t got = orientation_of(exif, n);
                CHECK(got >= 1 && got <= 8);
            }
        /* Cut, with a segment that is as short. */
        for (size_t n = 4; n < 48; n++) {
            make_exif(6, way & 1, way & 2, exif);
            exif[3] = (uint8_t)(n - 2);
            int32_t got = orientation_of(exif, n);
            CHECK_INT(got, n >= 44 ? 6 : 1);
        }
    }
}

/* ---- orientation ----------------------------------------------------------------------------- */

/* By EXIF's words: where row 0 and column 0 of what is stored are in what is seen. */
static int seen_at(int orientation, int y, int x, int height, int width)
{
    switch (orientation) {
    case 1: return y * width + x;                             /* top, left */
    case 2: return y * width + width - 1 - x;                 /* top, right */
    case 3: return (height - 1 - y) * width + width - 1 - x;  /* bottom, right */
    case 4: return (height - 1 - y) * width + x;              /* bottom, left */
    case 5: return x * height + y;                            /* left, top */
    case 6: return x * height + height - 1 - y;               /* right, top */
    case 7: return (width - 1 - x) * height + height - 1 - y; /* right, bottom */
    default: return (width - 1 - x) * height + y;             /* left, bottom */
    }
}

static void test_orient(void)
{
    enum { HEIGHT = 5, WIDTH = 7 };
    hl_image src = {0}, dst = {0};
    for (int channels = 1; channels <= 3; channels += 2) {
        CHECK_OK(hl_image_shape(&src, HEIGHT, WIDTH, channels));
        for (int i = 0; i < HEIGHT * WIDTH * channels; i++) src.pixels[i] = (uint8_t)i;
        for (int orientation = 1; orientation <= 8; orientation++) {
            check_case("orientation %d, channels %d", orientation, channels);
            CHECK_OK(hl_image_orient(&src, orientation, &dst));
            CHECK_INT(dst.height, orientation >= 5 ? WIDTH : HEIGHT);
            CHECK_INT(dst.width, orientation >= 5 ? HEIGHT : WIDTH);
            for (int y = 0; y < HEIGHT; y++)
                for (int x = 0; x < WIDTH; x++)
                    CHECK(memcmp(dst.pixels + seen_at(orientation, y, x, HEIGHT, WIDTH) * channels,
                                 src.pixels + (y * WIDTH + x) * channels, (size_t)channels) == 0);
        }
    }
    check_case("%s", "");
    hl_image_deinit(&src);
    hl_image_deinit(&dst);
}

/* ---- files ----------------------------------------------------------------------------------- */

static void write_file(const char *name, const void *data, size_t bytes)
{
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    CHECK(file && fwrite(data, 1, bytes, file) == bytes);
    if (file) fclose(file);
}

static void test_read(void)
{
    hl_encoded encoded = {0};
    write_file("text", "words", 5);
    CHECK_OK(hl_encoded_read(path, 5, &encoded));
    CHECK(encoded.bytes == 5 && memcmp(encoded.data, "words", 5) == 0);
    CHECK_ERROR(hl_encoded_read(path, 4, &encoded), HL_ERROR_DATA, "at most 4 bytes, got 5");
    CHECK_INT(encoded.bytes, 0);
    write_file("empty", "", 0);
    CHECK_ERROR(hl_encoded_read(path, 9, &encoded), HL_ERROR_DATA, "got 0 bytes");
    CHECK_ERROR(hl_encoded_read(folder, 9, &encoded), HL_ERROR_DATA, "Is a directory");
    snprintf(path, sizeof path, "%s/none", folder);
    CHECK_ERROR(hl_encoded_read(path, 9, &encoded), HL_ERROR_DATA, "No such file");
    CHECK_ERROR(hl_encoded_read("/dev/null", 9, &encoded), HL_ERROR_DATA, "Invalid argument");
    CHECK_INT(mkfifo(path, 0600), 0);
    CHECK_ERROR(hl_encoded_read(path, 9, &encoded), HL_ERROR_DATA, "Invalid argument");
    hl_encoded_deinit(&encoded);
}

static hl_status read_text(void *unused)
{
    (void)unused;
    hl_encoded encoded = {0};
    hl_status status = hl_encoded_read(path, 100, &encoded);
    hl_encoded_deinit(&encoded);
    return status;
}

static void test_read_faults(void)
{
    write_file("text", "words", 5);
    CHECK(check_walk_faults(CHECK_FAULT_OS, HL_OK, EIO, read_text, NULL) >= 6);
    CHECK_INT(check_walk_faults(CHECK_FAULT_ALLOC, HL_ERROR_MEMORY, 0, read_text, NULL), 2);
    hl_os_fault(1, false, EIO);
    CHECK_ERROR(read_text(NULL), HL_ERROR_DATA, "must be readable, got 'Input/output error'");
    hl_os_fault(0, false, 0);
}

static void check_sniffed(const char *bytes, size_t n, hl_image_format want)
{
    CHECK_INT(hl_image_sniff((const uint8_t *)bytes, n), want);
    for (size_t cut = 0; cut < n; cut++)
        CHECK_INT(hl_image_sniff((const uint8_t *)bytes, cut), HL_IMAGE_OTHER);
}

static void test_sniff(void)
{
    check_sniffed("\xFF\xD8\xFF", 3, HL_IMAGE_JPEG);
    check_sniffed("\x89PNG\r\n\x1A\n", 8, HL_IMAGE_PNG);
    check_sniffed("GIF89a", 6, HL_IMAGE_GIF);
    check_sniffed("BM", 2, HL_IMAGE_BMP);
    check_sniffed("RIFF\x10\0\0\0WEBP", 12, HL_IMAGE_WEBP);
    check_sniffed("II*\0", 4, HL_IMAGE_TIFF);
    check_sniffed("MM\0*", 4, HL_IMAGE_TIFF);
    CHECK(strcmp(hl_image_format_name(HL_IMAGE_WEBP), "WebP") == 0);
}

/* ---- decoding -------------------------------------------------------------------------------- */

static hl_jpeg *jpeg;

static hl_status decode(const jpeg_file *file, hl_image_request request, hl_image *image,
                        bool *out_is_sure)
{
    hl_jpeg_header header;
    *out_is_sure = false;
    HL_TRY(hl_jpeg_header_read(file->data, file->bytes, &header));
    return hl_jpeg_decode(jpeg, file->data, file->bytes, &header, &request, image, out_is_sure);
}

/* The library's own answer, at full size. */
static void decode_plainly(const jpeg_file *file, int height, int width, int format, int channels,
                           hl_image *out)
{
    CHECK_OK(hl_image_shape(out, height, width, channels));
    CHECK_INT(files_turbo.call.tjDecompress2(files_decoder, file->data, file->bytes, out->pixels,
                                             width, 0, height, format, 0),
              0);
}

static void check_equal(const hl_image *got, const hl_image *want)
{
    CHECK_INT(got->height, want->height);
    CHECK_INT(got->width, want->width);
    CHECK_INT(got->channels, want->channels);
    size_t bytes = (size_t)(got->height * got->width * got->channels);
    CHECK(memcmp(got->pixels, want->pixels, bytes) == 0);
}

static void test_decode(void)
{
    static jpeg_file file;
    hl_image got = {0}, want = {0};
    bool is_sure;
    const int samplings[] = {FILE_444, FILE_420};
    for (int i = 0; i < 8; i++) {
        int height = 37 + 13 * i, width = 51 - 5 * i, grey = i & 1;
        check_case("image %d", i);
        make_file(height, width, i == 5 ? 1 : 3, samplings[i / 2 % 2], i & 4 ? FILE_PROGRESSIVE : 0,
                  &file);
        decode_plainly(&file, height, width, grey ? HL_TJ_GREY : HL_TJ_RGB, grey ? 1 : 3, &want);
        CHECK_OK(decode(&file, (hl_image_request){grey ? 1 : 3, 0, 0}, &got, &is_sure));
        CHECK(is_sure);
        check_equal(&got, &want);
    }
    check_case("%s", "");
    hl_image_deinit(&got);
    hl_image_deinit(&want);
}

/* The smallest scale of 1, 1/2, 1/4, 1/8 that has the sides that are asked for, upright. */
static void test_scales(void)
{
    static jpeg_file file;
    hl_image image = {0};
    bool is_sure;
    uint8_t exif[64];
    const int64_t asked[][4] = {{0, 0, 97, 161},    {1, 1, 13, 21},   {13, 21, 13, 21},
                                {14, 21, 25, 41},   {13, 22, 25, 41}, {25, 41, 25, 41},
                                {26, 1, 49, 81},    {1, 81, 49, 81},  {50, 50, 97, 161},
                                {97, 161, 97, 161}, {500, 1, 97, 161}};
    for (int turned = 0; turned < 2; turned++) {
        make_file(97, 161, 3, FILE_420, 0, &file);
        if (turned) insert_bytes(&file, 2, exif, make_exif(6, false, false, exif));
        for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
            const int64_t *a = asked[i];
            check_case("asked %d x %d, turned %d", (int)a[0], (int)a[1], turned);
            hl_image_request request = {3, a[turned], a[1 - turned]};
            CHECK_OK(decode(&file, request, &image, &is_sure));
            CHECK_INT(image.height, a[2 + turned]);
            CHECK_INT(image.width, a[3 - turned]);
        }
    }
    check_case("%s", "");
    hl_image_deinit(&image);
}

static void test_turned(void)
{
    static jpeg_file file;
    hl_image upright = {0}, want = {0}, got = {0};
    bool is_sure;
    uint8_t exif[64];
    for (int orientation = 1; orientation <= 8; orientation++) {
        make_file(40, 24, 3, FILE_420, 0, &file);
        decode_plainly(&file, 40, 24, HL_TJ_RGB, 3, &upright);
        insert_bytes(&file, 2, exif, make_exif(orientation, orientation & 1, false, exif));
        CHECK_OK(decode(&file, (hl_image_request){3, 0, 0}, &got, &is_sure));
        CHECK_OK(hl_image_orient(&upright, orientation, &want));
        check_equal(&got, &want);
    }
    hl_image_deinit(&upright);
    hl_image_deinit(&want);
    hl_image_deinit(&got);
}

static void test_cmyk(void)
{
    static jpeg_file file;
    hl_image raw = {0}, rgb = {0}, grey = {0};
    bool is_sure;
    make_file(30, 20, 4, FILE_444, 0, &file);
    decode_plainly(&file, 30, 20, HL_TJ_CMYK, 4, &raw);
    CHECK_OK(decode(&file, (hl_image_request){3, 0, 0}, &rgb, &is_sure));
    CHECK_OK(decode(&file, (hl_image_request){1, 0, 0}, &grey, &is_sure));
    CHECK_INT(rgb.channels, 3);
    CHECK_INT(grey.channels, 1);
    for (int i = 0; i < 30 * 20; i++) {
        double luma = 0;
        for (int c = 0; c < 3; c++) {
            /* Light is what neither this ink nor black takes away. */
            double want = raw.pixels[4 * i + c] / 255.0 * raw.pixels[4 * i + 3];
            CHECK(abs(rgb.pixels[3 * i + c] - (int)(want + 0.5)) <= 1);
            luma += (const double[]){0.299, 0.587, 0.114}[c] * rgb.pixels[3 * i + c];
        }
        CHECK(abs(grey.pixels[i] - (int)(luma + 0.5)) <= 1);
    }
    hl_image_deinit(&raw);
    hl_image_deinit(&rgb);
    hl_image_deinit(&grey);
}

/* ---- hostile files --------------------------------------------------------------------------- */

enum { HOSTILE_PIXELS = 1 << 20 };

typedef struct tally {
    int n_refused, n_failed, n_decoded, n_unsure, n_agreed;
} tally;

/* Both the header and the library must see the same frame: pixels have the size of ours. */
static void compare_header(const uint8_t *data, size_t bytes, const hl_jpeg_header *header,
                           tally *all)
{
    int width, height, subsampling, colorspace;
    tjhandle handle = files_turbo.call.tjInitDecompress();
    int failed =
        files_call.read_header(handle, data, bytes, &width, &height, &subsampling, &colorspace);
    files_turbo.call.tjDestroy(handle);
    if (failed) return;
    CHECK_INT(header->height, height);
    CHECK_INT(header->width, width);
    all->n_agreed++;
}

static void try_hostile(const uint8_t *data, size_t bytes, tally *all)
{
    uint8_t *copy = malloc(bytes ? bytes : 1);
    hl_image image = {0};
    hl_jpeg_header header;
    bool is_sure;
    memcpy(copy, data, bytes);
    if (hl_jpeg_header_read(copy, bytes, &header) != HL_OK) {
        CHECK(strncmp(hl_status_message(), "JPEG: ", 6) == 0 ||
              strncmp(hl_status_message(), "image: ", 7) == 0);
        all->n_refused++;
    } else if (header.height * header.width <= HOSTILE_PIXELS) {
        hl_image_request request = {1 + 2 * (int)(bytes % 2), (int64_t)(bytes % 5) * 10, 10};
        compare_header(copy, bytes, &header, all);
        hl_status status = hl_jpeg_decode(jpeg, copy, bytes, &header, &request, &image, &is_sure);
        CHECK(status == HL_OK || status == HL_ERROR_DATA);
        all->n_failed += status != HL_OK;
        all->n_unsure += status == HL_OK && !is_sure;
        all->n_decoded += status == HL_OK && is_sure;
    }
    hl_image_deinit(&image);
    free(copy);
}

static size_t find_scan(const jpeg_file *file)
{
    for (size_t i = 0; i + 1 < file->bytes; i++)
        if (file->data[i] == 0xFF && file->data[i + 1] == 0xDA) return i;
    return 0;
}

static void mutate(dice *d, jpeg_file *file, size_t scan)
{
    /* Half of the changes in the header, which is what code of ours reads. */
    size_t range = roll(d, 2) ? scan + 16 : file->bytes;
    size_t at = (size_t)roll(d, 65536) % range;
    switch (roll(d, 5)) {
    case 0: file->data[at] ^= (uint8_t)(1 << roll(d, 8)); break;
    case 1: file->data[at] = (uint8_t)roll(d, 256); break;
    case 2: file->data[at] = 0xFF; break;
    case 3: /* a piece is gone */
        memmove(file->data + at, file->data + at + 1, file->bytes - at - 1);
        file->bytes--;
        break;
    default: /* a piece comes twice */
        insert_bytes(file, at, file->data + (size_t)roll(d, (int)scan), (size_t)roll(d, 8));
    }
}

static void make_victim(int i, jpeg_file *out)
{
    uint8_t exif[64];
    make_file(40 + i, 48,
              i % 4 == 3   ? 4
              : i % 4 == 2 ? 1
                           : 3,
              FILE_420, i & 4 ? FILE_PROGRESSIVE : 0, out);
    if (i & 1) insert_bytes(out, 2, exif, make_exif(1 + i % 8, i & 2, i & 4, exif));
}

static void test_mutated(void)
{
    static jpeg_file whole, file;
    tally all = {0};
    const int n = getenv("HOTLOOP_PROOF") ? 400000 : 8000;
    for (int i = 0; i < n; i++) {
        dice d = {hl_rng_key_make((uint64_t)i, "mutated"), 0};
        check_case("mutated file %d", i);
        make_victim(i % 16, &whole);
        file = whole;
        for (int k = 1 + roll(&d, 4); k > 0; k--) mutate(&d, &file, find_scan(&whole));
        if (roll(&d, 4) == 0) file.bytes -= (size_t)roll(&d, (int)file.bytes);
        try_hostile(file.data, file.bytes, &all);
    }
    check_case("%s", "");
    /* All ways were gone often. */
    CHECK(all.n_refused > n / 20);
    CHECK(all.n_failed > n / 20);
    CHECK(all.n_decoded > n / 20);
    CHECK(all.n_unsure > n / 400);
    CHECK(all.n_agreed > n / 4);
}

/* Every file that ends early is refused, wherever it ends. */
static void test_truncated(void)
{
    static jpeg_file file;
    for (int i = 0; i < 8; i++) {
        tally all = {0};
        make_victim(i, &file);
        check_case("truncated file %d", i);
        for (size_t bytes = 0; bytes < file.bytes; bytes++) try_hostile(file.data, bytes, &all);
        CHECK_INT(all.n_decoded, 0);
        CHECK_INT(all.n_unsure, 0);
        CHECK(all.n_failed > 0 && all.n_refused > 0);
        try_hostile(file.data, file.bytes, &all);
        CHECK_INT(all.n_decoded, 1);
    }
    check_case("%s", "");
}

/* Bytes between segments do no harm, but a cut may hide behind their warning. */
static void test_odd(void)
{
    static jpeg_file file;
    hl_image image = {0}, want = {0};
    bool is_sure;
    make_file(40, 24, 3, FILE_420, 0, &file);
    decode_plainly(&file, 40, 24, HL_TJ_RGB, 3, &want);
    insert_bytes(&file, 20, "odd", 3); /* after the first segment */
    CHECK_OK(decode(&file, (hl_image_request){3, 0, 0}, &image, &is_sure));
    if (is_sure) check_equal(&image, &want); /* 3.x */
    file.bytes -= file.bytes / 4;
    CHECK_OK(decode(&file, (hl_image_request){3, 0, 0}, &image, &is_sure));
    CHECK(!is_sure);
    hl_image_deinit(&image);
    hl_image_deinit(&want);
}

/* A file that lacks a table is broken, also after one that had it. */
static void test_tables(void)
{
    static jpeg_file file;
    hl_image image = {0};
    bool is_sure;
    make_file(40, 24, 3, FILE_420, 0, &file);
    CHECK_OK(decode(&file, (hl_image_request){3, 0, 0}, &image, &is_sure));
    for (size_t i = 0; i + 1 < file.bytes; i++)
        if (file.data[i] == 0xFF && file.data[i + 1] == 0xDB) file.data[i + 1] = 0xEB; /* a note */
    CHECK_ERROR(decode(&file, (hl_image_request){3, 0, 0}, &image, &is_sure), HL_ERROR_DATA,
                "Quantization table");
    hl_image_deinit(&image);
}

/* ---- threads, faults ------------------------------------------------------------------------- */

enum { N_THREADS = 4, N_FILES = 6, N_ROUNDS = 10 };
static jpeg_file shared_files[N_FILES];
static hl_image shared_images[N_FILES];

static void run_decoder(void *context)
{
    hl_image image = {0};
    bool is_sure;
    (void)context;
    for (int i = 0; i < N_FILES * N_ROUNDS; i++) {
        CHECK_OK(decode(&shared_files[i % N_FILES], (hl_image_request){3, 0, 0}, &image, &is_sure));
        check_equal(&image, &shared_images[i % N_FILES]);
    }
    hl_image_deinit(&image);
}

static void test_threads(void)
{
    hl_thread *threads[N_THREADS];
    bool is_sure;
    for (int i = 0; i < N_FILES; i++) {
        make_victim(i, &shared_files[i]);
        CHECK_OK(
            decode(&shared_files[i], (hl_image_request){3, 0, 0}, &shared_images[i], &is_sure));
    }
    for (int t = 0; t < N_THREADS; t++) CHECK_OK(hl_thread_start(run_decoder, NULL, &threads[t]));
    for (int t = 0; t < N_THREADS; t++) hl_thread_join(threads[t]);
    for (int i = 0; i < N_FILES; i++) hl_image_deinit(&shared_images[i]);
}

static hl_status decode_once(void *context)
{
    hl_jpeg *before = jpeg; /* which the tests after this one use */
    hl_image image = {0};
    bool is_sure;
    hl_status status = hl_jpeg_create(&jpeg);
    if (status == HL_OK) status = decode(context, (hl_image_request){3, 0, 0}, &image, &is_sure);
    hl_image_deinit(&image);
    hl_jpeg_destroy(jpeg);
    jpeg = before;
    return status;
}

static void test_decode_faults(void)
{
    static jpeg_file file;
    uint8_t exif[64];
    make_file(40, 24, 4, FILE_444, 0, &file);
    insert_bytes(&file, 2, exif, make_exif(6, false, false, exif));
    /* Decoder, as stored, as RGB, upright; each once and for good. */
    CHECK_INT(check_walk_faults(CHECK_FAULT_ALLOC, HL_ERROR_MEMORY, 0, decode_once, &file), 8);
    /* Without the library there is a decoder that says why it cannot. */
    hl_os_fault(1, true, ENOENT);
    CHECK_ERROR(decode_once(&file), HL_ERROR_CONFIG, "must be installed, got 'No such file");
    hl_os_fault(0, false, 0);
}

/* ---- the choice of a decoder ----------------------------------------------------------------- */

static int n_read;

static hl_status read_other(void *context, const char *name, const hl_encoded *file,
                            const hl_image_request *request, hl_image *image)
{
    (void)file;
    n_read++;
    CHECK(strcmp(name, "some.file") == 0);
    return hl_image_shape(image, 2, 3, context ? 4 : request->channels);
}

static hl_status decode_any(const hl_image_decoder *decoder, const void *data, size_t bytes,
                            hl_image *image)
{
    hl_encoded file = {malloc(bytes), bytes, bytes};
    hl_image_header header;
    hl_image_request request = {3, 0, 0};
    memcpy(file.data, data, bytes);
    hl_status status = hl_image_header_read(&file, &header);
    if (status == HL_OK)
        status = hl_image_decode(decoder, "some.file", &file, &header, &request, image);
    free(file.data);
    return status;
}

static void test_choice(void)
{
    static jpeg_file file;
    hl_image image = {0};
    hl_image_decoder alone = {jpeg, {NULL, NULL}}, both = {jpeg, {read_other, NULL}};
    hl_image_decoder wrong = {jpeg, {read_other, &both}};
    make_file(40, 24, 3, FILE_420, 0, &file);
    n_read = 0;
    CHECK_OK(decode_any(&both, file.data, file.bytes, &image));
    CHECK(n_read == 0 && image.height == 40);
    CHECK_OK(decode_any(&both, "GIF89a", 6, &image));
    CHECK(n_read == 1 && image.height == 2);
    CHECK_ERROR(decode_any(&wrong, "GIF89a", 6, &image), HL_ERROR_DATA, "must give 3 channels");
    CHECK_ERROR(decode_any(&alone, "GIF89a", 6, &image), HL_ERROR_CONFIG, "format GIF");
    CHECK_ERROR(decode_any(&both, file.data, file.bytes / 2, &image), HL_ERROR_DATA, "whole");
    insert_bytes(&file, 20, "odd", 3); /* after the first segment */
    file.bytes -= file.bytes / 4;
    CHECK_OK(decode_any(&both, file.data, file.bytes, &image));
    CHECK_INT(n_read, 3);
    CHECK_ERROR(decode_any(&alone, file.data, file.bytes, &image), HL_ERROR_CONFIG, "format JPEG");
    hl_image_deinit(&image);
}

static void test_turbojpeg(void)
{
    CHECK_OK(hl_jpeg_create(&jpeg));
    if (files_open()) {
        CHECK(hl_jpeg_why_not(jpeg) == NULL);
        CHECK(strstr(hl_jpeg_version(jpeg), ".x") && strstr(hl_jpeg_path(jpeg), "turbojpeg"));
        test_decode();
        test_scales();
        test_turned();
        test_cmyk();
        test_mutated();
        test_truncated();
        test_odd();
        test_tables();
        test_threads();
        test_decode_faults();
        test_choice();
    }
    files_close();
    hl_jpeg_destroy(jpeg);
}

int main(void)
{
    snprintf(folder, sizeof folder, "/tmp/hl_image_XXXXXX");
    CHECK(mkdtemp(folder) != NULL);
    test_header();
    test_header_refused();
    test_exif();
    test_orient();
    test_read();
    test_read_faults();
    test_sniff();
    test_turbojpeg();
    const char *const names[] = {"text", "empty", "none"};
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    rmdir(folder);
    return CHECK_DONE();
}
