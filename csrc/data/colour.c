/* Colours, as colour.h says.
 *
 * What maps a level to a level, whatever the pixel, is a table of 256. The others go over the
 * planes side by side, in loops that become vector code. Factors are those of Pillow's blend: from
 * the degenerate image through the image and beyond, cut to levels, never rounded. */
#include "data/colour.h"

#include <math.h>
#include <string.h>

static int64_t plane_size(const hl_planes *planes)
{
    return planes->height * planes->width;
}

/* Channels that are not an alpha. */
static int32_t n_colours(const hl_planes *planes)
{
    return planes->channels < 3 ? 1 : 3;
}

/* ---- level to level -------------------------------------------------------------------------- */

static void apply_table(const hl_planes *planes, int32_t channel, const uint8_t table[256])
{
    int64_t n = plane_size(planes);
    uint8_t *level = planes->data + channel * n;
    for (int64_t i = 0; i < n; i++) level[i] = table[level[i]];
}

static void apply_to_colours(const hl_planes *planes, const uint8_t table[256])
{
    for (int32_t c = 0; c < n_colours(planes); c++) apply_table(planes, c, table);
}

static inline uint8_t cut_level(float x)
{
    x = x > 0 ? x : 0;
    x = x < 255 ? x : 255;
    return (uint8_t)(int32_t)x;
}

/* A level between, or beyond, the degenerate image's and the image's own. */
static inline uint8_t blend(int32_t degenerate, int32_t level, float factor)
{
    return cut_level((float)degenerate + factor * (float)(level - degenerate));
}

static void blend_with_level(const hl_planes *planes, int32_t degenerate, double factor)
{
    uint8_t table[256];
    for (int32_t i = 0; i < 256; i++) table[i] = blend(degenerate, i, (float)factor);
    apply_to_colours(planes, table);
}

/* ITU-R 601-2 luma, in Pillow's fixed point. */
static inline int32_t luma(int32_t red, int32_t green, int32_t blue)
{
    return (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16;
}

static int32_t mean_grey(const hl_planes *planes)
{
    int64_t n = plane_size(planes), sum = 0;
    const uint8_t *red = planes->data, *green = red + n, *blue = green + n;
    if (n_colours(planes) == 1)
        for (int64_t i = 0; i < n; i++) sum += red[i];
    else
        for (int64_t i = 0; i < n; i++) sum += luma(red[i], green[i], blue[i]);
    return (int32_t)((double)sum / (double)n + 0.5);
}

void hl_colour_brightness(const hl_planes *planes, double factor)
{
    blend_with_level(planes, 0, factor);
}

void hl_colour_contrast(const hl_planes *planes, double factor)
{
    blend_with_level(planes, mean_grey(planes), factor);
}

void hl_colour_posterize(const hl_planes *planes, int bits)
{
    uint8_t table[256];
    for (int i = 0; i < 256; i++) table[i] = (uint8_t)(i & ~((1 << (8 - bits)) - 1));
    apply_to_colours(planes, table);
}

void hl_colour_solarize(const hl_planes *planes, double threshold)
{
    uint8_t table[256];
    for (int i = 0; i < 256; i++) table[i] = (uint8_t)(i < threshold ? i : 255 - i);
    apply_to_colours(planes, table);
}

/* ---- histograms ------------------------------------------------------------------------------ */

static void count_levels(const hl_planes *planes, int32_t channel, int64_t counts[256])
{
    int64_t n = plane_size(planes);
    const uint8_t *level = planes->data + channel * n;
    memset(counts, 0, 256 * sizeof *counts);
    for (int64_t i = 0; i < n; i++) counts[level[i]]++;
}

void hl_colour_autocontrast(const hl_planes *planes)
{
    for (int32_t c = 0; c < n_colours(planes); c++) {
        int64_t counts[256];
        uint8_t table[256];
        int low = 0, high = 255;
        count_levels(planes, c, counts);
        while (!counts[low]) low++;
        while (!counts[high]) high--;
        if (high <= low) continue;
        double scale = 255.0 / (high - low), offset = -low * scale;
        for (int i = 0; i < 256; i++) {
            double level = i * scale + offset;
            table[i] = (uint8_t)(level < 0 ? 0 : level > 255 ? 255 : level);
        }
        apply_table(planes, c, table);
    }
}

void hl_colour_equalize(const hl_planes *planes)
{
    for (int32_t c = 0; c < n_colours(planes); c++) {
        int64_t counts[256];
        uint8_t table[256];
        int high = 255;
        count_levels(planes, c, counts);
        while (!counts[high]) high--;
        /* All pixels but those of the highest level, shared among 255 steps. */
        int64_t step = (plane_size(planes) - counts[high]) / 255, sum = step / 2;
        if (!step) continue;
        for (int i = 0; i < 256; i++) {
            table[i] = (uint8_t)(sum / step < 255 ? sum / step : 255);
            sum += counts[i];
        }
        apply_table(planes, c, table);
    }
}

/* ---- across channels ------------------------------------------------------------------------- */

void hl_colour_saturation(const hl_planes *planes, double factor)
{
    if (n_colours(planes) == 1) return;
    int64_t n = plane_size(planes);
    uint8_t *restrict red = planes->data, *restrict green = red + n, *restrict blue = green + n;
    float f = (float)factor;
    for (int64_t i = 0; i < n; i++) {
        int32_t grey = luma(red[i], green[i], blue[i]);
        red[i] = blend(grey, red[i], f);
        green[i] = blend(grey, green[i], f);
        blue[i] = blend(grey, blue[i], f);
    }
}

void hl_colour_grey(const hl_planes *planes)
{
    if (n_colours(planes) == 1) return;
    int64_t n = plane_size(planes);
    uint8_t *restrict red = planes->data, *restrict green = red + n, *restrict blue = green + n;
    for (int64_t i = 0; i < n; i++)
        red[i] = green[i] = blue[i] = (uint8_t)luma(red[i], green[i], blue[i]);
}

/* Hue and saturation in 0 to 255, as Pillow's mode HSV has them: in its precision too, since both
 * are cut to levels. False: a grey. */
static bool find_hue(int32_t r, int32_t g, int32_t b, int32_t high, int32_t low, int32_t *out_hue,
                     int32_t *out_saturation)
{
    if (high == low) return false;
    float range = (float)(high - low), hue;
    float from_r = (float)(high - r) / range, from_g = (float)(high - g) / range;
    float from_b = (float)(high - b) / range, saturation = range / (float)high;
    if (r == high)
        hue = from_b - from_g;
    else if (g == high)
        hue = (float)(2.0 + (double)from_r - (double)from_b);
    else
        hue = (float)(4.0 + (double)from_g - (double)from_r);
    double turn = (double)hue / 6.0 + 1.0;
    hue = (float)(turn >= 1.0 ? turn - 1.0 : turn);
    *out_hue = (int32_t)((double)hue * 255.0);
    *out_saturation = (int32_t)((double)saturation * 255.0);
    return true;
}

static inline uint8_t round_share(int32_t level, double share)
{
    return (uint8_t)(int32_t)((double)level * share + 0.5);
}

static void turn_pixel(uint8_t *red, uint8_t *green, uint8_t *blue, uint8_t shift)
{
    int32_t r = *red, g = *green, b = *blue, hue, saturation;
    int32_t high = r > g ? r : g, low = r < g ? r : g;
    high = high > b ? high : b;
    low = low < b ? low : b;
    if (!find_hue(r, g, b, high, low, &hue, &saturation)) return;
    double place = ((hue + shift) & 255) * 6.0 / 255.0, s = (float)(saturation / 255.0);
    int32_t sector = (int32_t)place;
    double part = (float)(place - sector);
    uint8_t v = (uint8_t)high, p = round_share(high, 1 - s), q = round_share(high, 1 - s * part);
    uint8_t t = round_share(high, 1 - s * (1 - part));
    const uint8_t colour[6][3] = {{v, t, p}, {q, v, p}, {p, v, t}, {p, q, v}, {t, p, v}, {v, p, q}};
    const uint8_t *chosen = colour[sector % 6];
    *red = chosen[0], *green = chosen[1], *blue = chosen[2];
}

void hl_colour_hue(const hl_planes *planes, double turn)
{
    if (n_colours(planes) == 1) return;
    int64_t n = plane_size(planes);
    uint8_t *red = planes->data, *green = red + n, *blue = green + n;
    uint8_t shift = (uint8_t)(int32_t)(turn * 255);
    for (int64_t i = 0; i < n; i++) turn_pixel(red + i, green + i, blue + i, shift);
}

/* ---- neighbours ------------------------------------------------------------------------------ */

/* The blend of a row with its blur by 1 1 1 / 1 5 1 / 1 1 1; all three rows as they were. */
static void sharpen_row(const uint8_t *restrict above, const uint8_t *restrict row,
                        const uint8_t *restrict below, int64_t width, float factor,
                        uint8_t *restrict out)
{
    for (int64_t x = 1; x < width - 1; x++) {
        int32_t sum = above[x - 1] + above[x] + above[x + 1] + row[x - 1] + 5 * row[x] +
                      row[x + 1] + below[x - 1] + below[x] + below[x + 1];
        out[x] = blend((2 * sum + 13) / 26, row[x], factor);
    }
}

hl_status hl_colour_sharpness(const hl_planes *planes, double factor, hl_scratch *scratch)
{
    int64_t height = planes->height, width = planes->width, n = plane_size(planes);
    if (height < 3 || width < 3) return HL_OK; /* nothing but edges, which stay */
    HL_TRY(hl_scratch_reserve(scratch, HL_SCRATCH_COLOUR, (size_t)n));
    uint8_t *before = scratch->memory[HL_SCRATCH_COLOUR];
    for (int32_t c = 0; c < n_colours(planes); c++) {
        uint8_t *plane = planes->data + c * n;
        memcpy(before, plane, (size_t)n);
        for (int64_t y = 1; y < height - 1; y++) {
            const uint8_t *row = before + y * width;
            sharpen_row(row - width, row, row + width, width, (float)factor, plane + y * width);
        }
    }
    return HL_OK;
}

/* Half a bell: weight of distance 0, 1, ... size / 2; the sum over both sides is 1. */
static void make_bell(int64_t size, double sigma, float *weights)
{
    double sum = 0;
    for (int64_t k = 0; k <= size / 2; k++) {
        double x = (double)k / sigma;
        weights[k] = (float)exp(-0.5 * x * x);
        sum += (k ? 2 : 1) * exp(-0.5 * x * x);
    }
    for (int64_t k = 0; k <= size / 2; k++) weights[k] *= (float)(1 / sum);
}

static int64_t reflect(int64_t i, int64_t n)
{
    return hl_border_index(i, n, HL_BORDER_REFLECT);
}

/* A row with `reach` pixels beyond both ends, then its blur. */
static void blur_row(const uint8_t *row, int64_t width, int64_t reach, const float *weights,
                     float *wide, float *restrict out)
{
    for (int64_t x = -reach; x < width + reach; x++)
        wide[x + reach] = row[x >= 0 && x < width ? x : reflect(x, width)];
    for (int64_t x = 0; x < width; x++) out[x] = weights[0] * wide[x + reach];
    for (int64_t k = 1; k <= reach; k++) {
        const float *restrict left = wide + reach - k, *restrict right = wide + reach + k;
        if (weights[k] == 0) continue;
        for (int64_t x = 0; x < width; x++) out[x] += weights[k] * (left[x] + right[x]);
    }
}

static void blur_column(const float *rows, int64_t height, int64_t width, int64_t y, int64_t reach,
                        const float *weights, float *restrict sum, uint8_t *restrict out)
{
    const float *restrict row = rows + y * width;
    for (int64_t x = 0; x < width; x++) sum[x] = 0.5f + weights[0] * row[x];
    for (int64_t k = 1; k <= reach; k++) {
        const float *restrict above = rows + reflect(y - k, height) * width;
        const float *restrict below = rows + reflect(y + k, height) * width;
        if (weights[k] == 0) continue;
        for (int64_t x = 0; x < width; x++) sum[x] += weights[k] * (above[x] + below[x]);
    }
    for (int64_t x = 0; x < width; x++) out[x] = cut_level(sum[x]);
}

hl_status hl_colour_blur(const hl_planes *planes, int64_t across, int64_t down, double sigma,
                         hl_scratch *scratch)
{
    int64_t height = planes->height, width = planes->width, n = plane_size(planes);
    int64_t half_across = across / 2, half_down = down / 2;
    int64_t n_wide = width + 2 * half_across;
    size_t n_floats = (size_t)(n + n_wide + width + half_across + half_down + 2);
    HL_TRY(hl_scratch_reserve(scratch, HL_SCRATCH_COLOUR, n_floats * sizeof(float)));
    float *rows = scratch->memory[HL_SCRATCH_COLOUR], *wide = rows + n, *sum = wide + n_wide;
    float *weights_across = sum + width, *weights_down = weights_across + half_across + 1;
    make_bell(across, sigma, weights_across);
    make_bell(down, sigma, weights_down);
    for (int32_t c = 0; c < planes->channels; c++) {
        uint8_t *plane = planes->data + c * n;
        for (int64_t y = 0; y < height; y++)
            blur_row(plane + y * width, width, half_across, weights_across, wide, rows + y * width);
        for (int64_t y = 0; y < height; y++)
            blur_column(rows, height, width, y, half_down, weights_down, sum, plane + y * width);
    }
    return HL_OK;
}

/* ---- random levels --------------------------------------------------------------------------- */

/* Two normal numbers of one word, by Box and Muller; 16 bits each, so none is beyond 4.9. */
static void draw_normals(uint32_t word, float *a, float *b)
{
    float radius = sqrtf(-2 * logf((float)((word & 0xFFFF) + 0.5f) * 0x1p-16f));
    float angle = (float)(word >> 16) * (6.2831853f * 0x1p-16f);
    *a = radius * cosf(angle);
    *b = radius * sinf(angle);
}

void hl_colour_noise(const hl_planes *planes, double mean, double sigma, hl_draws *draws)
{
    int64_t n = plane_size(planes) * n_colours(planes);
    float normals[8], m = (float)mean, s = (float)sigma;
    for (int64_t i = 0; i < n; i += 8) {
        uint32_t words[4];
        hl_draws_block(draws, words);
        for (int k = 0; k < 4; k++) draw_normals(words[k], &normals[2 * k], &normals[2 * k + 1]);
        for (int64_t k = 0; k < 8 && i + k < n; k++)
            planes->data[i + k] = cut_level(planes->data[i + k] + truncf(m + s * normals[k]));
    }
}

void hl_colour_erase(const hl_planes *planes, int64_t top, int64_t left, int64_t height,
                     int64_t width, const uint8_t *levels, hl_draws *draws)
{
    for (int32_t c = 0; c < planes->channels; c++) {
        for (int64_t y = 0; y < height; y++) {
            uint8_t *row = planes->data + c * plane_size(planes) + (top + y) * planes->width + left;
            if (levels)
                memset(row, levels[c], (size_t)width);
            else
                for (int64_t x = 0; x < width; x++) row[x] = (uint8_t)(hl_draws_word(draws) >> 24);
        }
    }
}
