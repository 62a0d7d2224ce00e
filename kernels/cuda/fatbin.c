/* Reader of fatbins. Little endian, all offsets in bytes:
 *
 *   container  0 u32 magic   4 u16 version (1)   6 u16 header bytes   8 u64 bytes of the images
 *   image      0 u16 kind (1 PTX, 2 machine code)   4 u32 header bytes   8 u64 payload bytes
 *              28 u32 architecture   40 u64 flags (bit 13 LZ4, bit 15 zstd: compressed)
 *
 * Found by comparing nvcc 12 and 13's output with cuobjdump's listing of it. */
#include "kernels/cuda/fatbin.h"

#include <stdio.h>
#include <string.h>

enum { CONTAINER_HEADER = 16, IMAGE_HEADER = 48 };
static const uint32_t magic = 0xBA55ED50;

static uint64_t read_int(const unsigned char *at, int bytes)
{
    uint64_t value = 0;
    for (int i = bytes - 1; i >= 0; i--) value = value << 8 | at[i];
    return value;
}

static hl_status refuse(const char *rule, uint64_t got)
{
    return hl_status_set(HL_ERROR_DEVICE, "fatbin: %s, got %#llx", rule, (unsigned long long)got);
}

hl_fatbin_cursor hl_fatbin_begin(const void *data, size_t bytes)
{
    const unsigned char *first = data;
    return (hl_fatbin_cursor){.next = first, .end = first + bytes};
}

hl_status hl_fatbin_next(hl_fatbin_cursor *cursor, const void **out_code)
{
    *out_code = NULL;
    while (cursor->next < cursor->end && !*cursor->next) cursor->next++;
    size_t left = (size_t)(cursor->end - cursor->next);
    if (!left) return HL_OK;
    if (left < CONTAINER_HEADER) return refuse("must hold a whole header", left);
    const unsigned char *at = cursor->next;
    if (read_int(at, 4) != magic)
        return refuse("must begin with its magic number", read_int(at, 4));
    if (read_int(at + 4, 2) != 1) return refuse("must be of version 1", read_int(at + 4, 2));
    uint64_t header = read_int(at + 6, 2), bytes = read_int(at + 8, 8);
    if (header < CONTAINER_HEADER || header > left || bytes > left - header)
        return refuse("must end within the file", bytes);
    cursor->image = at + header;
    cursor->image_end = cursor->next = cursor->image + bytes;
    *out_code = at;
    return HL_OK;
}

hl_status hl_fatbin_next_image(hl_fatbin_cursor *cursor, hl_fatbin_image *out_image, bool *out_more)
{
    *out_image = (hl_fatbin_image){0};
    *out_more = false;
    size_t left = (size_t)(cursor->image_end - cursor->image);
    if (!left) return HL_OK;
    if (left < IMAGE_HEADER) return refuse("an image must have a whole header", left);
    const unsigned char *at = cursor->image;
    uint64_t kind = read_int(at, 2), header = read_int(at + 4, 4), bytes = read_int(at + 8, 8);
    if (kind != 1 && kind != 2) return refuse("an image must be PTX or machine code", kind);
    if (header < IMAGE_HEADER || header > left || bytes > left - header)
        return refuse("an image must end within its container", bytes);
    out_image->arch = (int)read_int(at + 28, 4);
    out_image->is_ptx = kind == 1;
    out_image->bytes = (size_t)bytes;
    cursor->image += header + bytes;
    *out_more = true;
    return HL_OK;
}

/* Jetson and its like: their machine code is their own. */
static bool is_embedded(int arch)
{
    return arch == 87 || arch == 101 || arch == 110;
}

bool hl_fatbin_image_runs(const hl_fatbin_image *image, int arch)
{
    if (image->arch > arch) return false;
    if (image->is_ptx || image->arch == arch) return true;
    return image->arch / 10 == arch / 10 && !is_embedded(arch) && !is_embedded(image->arch);
}

/* The images of one container. */
static hl_status check_container(hl_fatbin_cursor *cursor, int arch, hl_fatbin_fit *out_fit,
                                 char *out_text, size_t text_bytes)
{
    *out_fit = HL_FATBIN_NONE;
    size_t used = 0;
    for (;;) {
        hl_fatbin_image image;
        bool more;
        HL_TRY(hl_fatbin_next_image(cursor, &image, &more));
        if (!more) return HL_OK;
        hl_fatbin_fit fit = image.is_ptx ? HL_FATBIN_PTX : HL_FATBIN_CODE;
        if (hl_fatbin_image_runs(&image, arch) && fit > *out_fit) *out_fit = fit;
        if (used >= text_bytes) continue;
        int n = snprintf(out_text + used, text_bytes - used, "%s%s_%d", used ? ", " : "",
                         image.is_ptx ? "compute" : "sm", image.arch);
        used += (size_t)n;
    }
}

hl_status hl_fatbin_check(const void *data, size_t bytes, int arch, hl_fatbin_fit *out_fit,
                          char *out_text, size_t text_bytes)
{
    hl_fatbin_cursor cursor = hl_fatbin_begin(data, bytes);
    *out_fit = HL_FATBIN_NONE;
    if (text_bytes) *out_text = '\0';
    for (bool first = true;; first = false) {
        const void *code;
        hl_fatbin_fit fit;
        HL_TRY(hl_fatbin_next(&cursor, &code));
        if (!code) return HL_OK;
        HL_TRY(check_container(&cursor, arch, &fit, out_text, first ? text_bytes : 0));
        if (first || fit < *out_fit) *out_fit = fit;
    }
}
