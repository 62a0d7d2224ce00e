/* Augmentation: checks, rendering by a geometry, and the steps that change colours. */
#include "data/augment.h"

#include <math.h>
#include <string.h>

#include "data/colour.h"

/* ---- kinds ----------------------------------------------------------------------------------- */

static const struct kind_row {
    const char *name;
    int32_t n_numbers;
} kinds[HL_AUGMENT_KIND_COUNT] = {
#define X(kind, name, n_numbers) {name, n_numbers},
    HL_AUGMENT_KINDS(X)
#undef X
};

const char *hl_augment_kind_name(hl_augment_kind kind)
{
    return kinds[kind].name;
}

int32_t hl_augment_kind_numbers(hl_augment_kind kind)
{
    return kinds[kind].n_numbers;
}

hl_augment_kind hl_augment_kind_find(const char *name)
{
    int kind = 0;
    while (kind < HL_AUGMENT_KIND_COUNT && strcmp(kinds[kind].name, name) != 0) kind++;
    return (hl_augment_kind)kind;
}

/* ---- checks ---------------------------------------------------------------------------------- */

/* A rule of one number of a step: bounds, whether it must be whole, and odd; or of a range of two:
 * then the second must not be below the first. */
typedef struct number_rule {
    int8_t kind;
    int8_t at, n; /* the numbers from `at` on */
    bool is_range, is_whole, is_odd;
    double low, high;
    const char *what;
} number_rule;

#define SIZE_MAX_ HL_AUGMENT_SIZE_MAX
static const number_rule rules[] = {
    {HL_AUGMENT_RESIZE, 0, 1, false, true, false, 1, SIZE_MAX_, "size"},
    {HL_AUGMENT_RESIZE, 1, 1, false, true, false, 0, SIZE_MAX_, "size"},
    {HL_AUGMENT_CENTER_CROP, 0, 2, false, true, false, 1, SIZE_MAX_, "size"},
    {HL_AUGMENT_CROP, 0, 2, false, true, false, 1, SIZE_MAX_, "size"},
    {HL_AUGMENT_CROP, 2, 4, false, true, false, 0, SIZE_MAX_, "padding"},
    {HL_AUGMENT_CROP, 6, 1, false, true, false, 0, 1, "pad_if_needed"},
    {HL_AUGMENT_CROP, 7, 1, false, true, false, 0, HL_BORDER_COUNT - 1, "padding_mode"},
    {HL_AUGMENT_RESIZED_CROP, 0, 2, false, true, false, 1, SIZE_MAX_, "size"},
    {HL_AUGMENT_RESIZED_CROP, 2, 2, true, false, false, 1e-6, 1, "scale"},
    {HL_AUGMENT_RESIZED_CROP, 4, 2, true, false, false, 1e-3, 1e3, "ratio"},
    {HL_AUGMENT_AFFINE, 0, 2, true, false, false, -36000, 36000, "degrees"},
    {HL_AUGMENT_AFFINE, 2, 2, false, false, false, 0, 1, "translate"},
    {HL_AUGMENT_AFFINE, 4, 2, true, false, false, 1e-2, 1e2, "scale"},
    {HL_AUGMENT_AFFINE, 6, 2, true, false, false, -85, 85, "shear"},
    {HL_AUGMENT_AFFINE, 8, 2, true, false, false, -85, 85, "shear"},
    {HL_AUGMENT_PERSPECTIVE, 0, 1, false, false, false, 0, 1, "distortion_scale"},
    {HL_AUGMENT_JITTER, 0, 2, true, false, false, 0, 1e3, "brightness"},
    {HL_AUGMENT_JITTER, 2, 2, true, false, false, 0, 1e3, "contrast"},
    {HL_AUGMENT_JITTER, 4, 2, true, false, false, 0, 1e3, "saturation"},
    {HL_AUGMENT_JITTER, 6, 2, true, false, false, -0.5, 0.5, "hue"},
    {HL_AUGMENT_BLUR, 0, 2, false, true, true, 1, 1023, "kernel_size"},
    {HL_AUGMENT_BLUR, 2, 2, true, false, false, 1e-3, 1e3, "sigma"},
    {HL_AUGMENT_NOISE, 0, 1, false, false, false, -1, 1, "mean"},
    {HL_AUGMENT_NOISE, 1, 1, false, false, false, 0, 10, "sigma"},
    {HL_AUGMENT_ERASE, 0, 2, true, false, false, 0, 1, "scale"},
    {HL_AUGMENT_ERASE, 2, 2, true, false, false, 1e-3, 1e3, "ratio"},
    {HL_AUGMENT_ERASE, 4, 1, false, true, false, 0, 1, "value"},
    {HL_AUGMENT_ERASE, 5, 4, false, true, false, 0, 255, "value"},
    {HL_AUGMENT_TRIVIAL, 0, 1, false, true, false, 2, 1000, "num_magnitude_bins"},
    {HL_AUGMENT_RAND, 0, 1, false, true, false, 0, 100, "num_ops"},
    {HL_AUGMENT_RAND, 1, 1, false, true, false, 0, 999, "magnitude"},
    {HL_AUGMENT_RAND, 2, 1, false, true, false, 2, 1000, "num_magnitude_bins"},
};
#undef SIZE_MAX_

static hl_status check_numbers(const hl_augment_step *step, const number_rule *rule)
{
    const char *name = kinds[step->kind].name;
    const double *number = step->number + rule->at;
    for (int k = 0; k < rule->n; k++) {
        double x = number[k];
        if (!(x >= rule->low && x <= rule->high) || (rule->is_whole && x != floor(x)) ||
            (rule->is_odd && fmod(x, 2) != 1))
            return hl_status_set(HL_ERROR_CONFIG, "%s: %s must be %sfrom %g to %g, got %g", name,
                                 rule->what,
                                 rule->is_odd     ? "odd and "
                                 : rule->is_whole ? "whole and "
                                                  : "",
                                 rule->low, rule->high, x);
    }
    if (rule->is_range && number[0] > number[1])
        return hl_status_set(HL_ERROR_CONFIG, "%s: %s must be (least, most), got (%g, %g)", name,
                             rule->what, number[0], number[1]);
    return HL_OK;
}

static hl_status check_step(const hl_augment_step *step)
{
    if ((int)step->kind < 0 || step->kind >= HL_AUGMENT_KIND_COUNT)
        return hl_status_set(HL_ERROR_CONFIG, "augment: kind must be below %d, got %d",
                             HL_AUGMENT_KIND_COUNT, (int)step->kind);
    const char *name = kinds[step->kind].name;
    if (!(step->probability >= 0 && step->probability <= 1))
        return hl_status_set(HL_ERROR_CONFIG, "%s: p must be from 0 to 1, got %g", name,
                             step->probability);
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].kind == (int8_t)step->kind) HL_TRY(check_numbers(step, rules + i));
    if (step->kind == HL_AUGMENT_RAND && step->number[1] >= step->number[2])
        return hl_status_set(HL_ERROR_CONFIG,
                             "%s: magnitude must be below num_magnitude_bins, got %g and %g", name,
                             step->number[1], step->number[2]);
    return HL_OK;
}

hl_status hl_augment_check(const hl_augment *augment)
{
    if (augment->height < 1 || augment->width < 1 || augment->height > HL_AUGMENT_SIZE_MAX ||
        augment->width > HL_AUGMENT_SIZE_MAX)
        return hl_status_set(HL_ERROR_CONFIG, "size: must be from 1 to %d, got %lld x %lld",
                             HL_AUGMENT_SIZE_MAX, (long long)augment->height,
                             (long long)augment->width);
    if ((int)augment->fit < 0 || augment->fit >= HL_FIT_COUNT)
        return hl_status_set(HL_ERROR_CONFIG, "fit: must be below %d, got %d", HL_FIT_COUNT,
                             (int)augment->fit);
    if ((int)augment->filter < 0 || augment->filter >= HL_FILTER_COUNT)
        return hl_status_set(HL_ERROR_CONFIG, "filter: must be below %d, got %d", HL_FILTER_COUNT,
                             (int)augment->filter);
    if (augment->n_steps < 0 || augment->n_steps > HL_AUGMENT_STEPS_MAX)
        return hl_status_set(HL_ERROR_CONFIG, "augment: must have %d steps at most, got %d",
                             HL_AUGMENT_STEPS_MAX, augment->n_steps);
    for (int32_t i = 0; i < augment->n_steps; i++) HL_TRY(check_step(augment->steps + i));
    return HL_OK;
}

/* ---- rendering ------------------------------------------------------------------------------- */

/* The geometry in the coordinates of an image of another size. */
static hl_geometry scale_geometry(const hl_geometry *geometry, const hl_image *src)
{
    hl_geometry out = *geometry;
    double down = (double)src->height / (double)geometry->src_height;
    double across = (double)src->width / (double)geometry->src_width;
    for (int i = 0; i < 3; i++) {
        out.matrix[i] *= across;
        out.matrix[3 + i] *= down;
    }
    out.box.x0 *= across;
    out.box.x1 *= across;
    out.box.y0 *= down;
    out.box.y1 *= down;
    out.resized_down *= down;
    out.resized_across *= across;
    out.src_height = src->height;
    out.src_width = src->width;
    return out;
}

/* The whole pixels of the source that a warp reads, with `margin` more on each side; all of it
 * where it is continued, since that may be read anywhere. Empty: none of them. */
static hl_box find_window(const hl_geometry *g, double margin_down, double margin_across)
{
    const double *m = g->matrix;
    double height = (double)g->src_height, width = (double)g->src_width;
    hl_box all = {0, 0, width, height, false, false};
    hl_box box = {INFINITY, INFINITY, -INFINITY, -INFINITY, false, false};
    if (g->border != HL_BORDER_FILL) return all;
    for (int k = 0; k < 4; k++) {
        double x = k & 1 ? (double)g->width : 0, y = k & 2 ? (double)g->height : 0;
        double w = m[6] * x + m[7] * y + m[8];
        double u = (m[0] * x + m[1] * y + m[2]) / w, v = (m[3] * x + m[4] * y + m[5]) / w;
        if (!(w > 0) || !isfinite(u) || !isfinite(v)) return all;
        box.x0 = fmin(box.x0, u);
        box.x1 = fmax(box.x1, u);
        box.y0 = fmin(box.y0, v);
        box.y1 = fmax(box.y1, v);
    }
    box.x0 = fmax(floor(box.x0 - margin_across), 0);
    box.y0 = fmax(floor(box.y0 - margin_down), 0);
    box.x1 = fmin(ceil(box.x1 + margin_across), width);
    box.y1 = fmin(ceil(box.y1 + margin_down), height);
    return box;
}

/* A warp behind a resize that reduces reads an image that was reduced before: the resize's filter
 * keeps it from aliasing. Less where the warp enlarges again. A warp alone is not smoothed, as in
 * Pillow and torchvision. */
static hl_status warp_reduced(const hl_geometry *g, const hl_image *src, const hl_resampling *how,
                              hl_scratch *scratch, const hl_raster *dst)
{
    double down, across, m[9];
    hl_geometry_reduction(g, &down, &across);
    down = fmin(down, g->resized_down);
    across = fmin(across, g->resized_across);
    down = down > 1 ? down : 1;
    across = across > 1 ? across : 1;
    hl_box window = find_window(g, 2 * down, 2 * across);
    if (!(window.x0 < window.x1 && window.y0 < window.y1) || (down == 1 && across == 1)) {
        hl_image_warp(src, g->matrix, how, dst);
        return HL_OK;
    }
    double height = window.y1 - window.y0, width = window.x1 - window.x0;
    hl_image reduced = {(int64_t)fmax(rint(height / down), 1),
                        (int64_t)fmax(rint(width / across), 1), src->channels, NULL, 0};
    size_t bytes = (size_t)(reduced.height * reduced.width) * (size_t)reduced.channels;
    HL_TRY(hl_scratch_reserve(scratch, HL_SCRATCH_REDUCED, bytes));
    reduced.pixels = scratch->memory[HL_SCRATCH_REDUCED];
    hl_raster to =
        hl_raster_interleaved(reduced.pixels, reduced.height, reduced.width, reduced.channels);
    HL_TRY(hl_image_resize(src, &window, how, scratch, &to));
    /* To the window's coordinates, then to those of its reduction. */
    for (int i = 0; i < 3; i++) {
        double w = g->matrix[6 + i];
        m[i] = (g->matrix[i] - window.x0 * w) * ((double)reduced.width / width);
        m[3 + i] = (g->matrix[3 + i] - window.y0 * w) * ((double)reduced.height / height);
        m[6 + i] = w;
    }
    hl_image_warp(&reduced, m, how, dst);
    return HL_OK;
}

static hl_status render(const hl_augment *augment, const hl_geometry *geometry, const hl_image *src,
                        hl_scratch *scratch, uint8_t *dst)
{
    hl_raster to = hl_raster_planes(dst, geometry->height, geometry->width);
    hl_resampling how = {augment->filter, geometry->border, {0}};
    memcpy(how.fill, augment->fill, sizeof how.fill);
    hl_geometry scaled = scale_geometry(geometry, src);
    if (scaled.is_box) return hl_image_resize(src, &scaled.box, &how, scratch, &to);
    return warp_reduced(&scaled, src, &how, scratch, &to);
}

/* ---- colours --------------------------------------------------------------------------------- */

static bool is_neutral(const double range[2], double neutral)
{
    return range[0] == neutral && range[1] == neutral;
}

/* In an order that is drawn, each by a factor that is. */
static void jitter(const hl_planes *planes, const double number[8], hl_draws *draws)
{
    int order[4] = {0, 1, 2, 3};
    double factor[4];
    for (int i = 3; i > 0; i--) {
        int64_t j = hl_draws_below(draws, i + 1);
        int kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
    for (int i = 0; i < 4; i++)
        factor[i] = hl_draws_uniform(draws, number[2 * i], number[2 * i + 1]);
    for (int i = 0; i < 4; i++) {
        int what = order[i];
        if (is_neutral(number + 2 * what, what == 3 ? 0 : 1)) continue;
        if (what == 0)
            hl_colour_brightness(planes, factor[0]);
        else if (what == 1)
            hl_colour_contrast(planes, factor[1]);
        else if (what == 2)
            hl_colour_saturation(planes, factor[2]);
        else
            hl_colour_hue(planes, factor[3]);
    }
}

/* A rectangle that fits, of ten draws. */
static void erase(const hl_planes *planes, const double number[9], hl_draws *draws)
{
    double area = (double)(planes->height * planes->width);
    uint8_t levels[HL_IMAGE_CHANNELS_MAX];
    for (int c = 0; c < HL_IMAGE_CHANNELS_MAX; c++) levels[c] = (uint8_t)number[5 + c];
    for (int k = 0; k < 10; k++) {
        double share = area * hl_draws_uniform(draws, number[0], number[1]);
        double ratio = exp(hl_draws_uniform(draws, log(number[2]), log(number[3])));
        int64_t height = (int64_t)rint(sqrt(share * ratio));
        int64_t width = (int64_t)rint(sqrt(share / ratio));
        if (height >= planes->height || width >= planes->width) continue;
        int64_t top = hl_draws_below(draws, planes->height - height + 1);
        int64_t left = hl_draws_below(draws, planes->width - width + 1);
        hl_colour_erase(planes, top, left, height, width, number[4] != 0 ? NULL : levels, draws);
        return;
    }
}

static hl_status apply_automatically(const hl_planes *planes, const hl_augment_step *step,
                                     hl_draws *draws, hl_scratch *scratch)
{
    for (int32_t k = 0; k < hl_augment_auto_count(step); k++) {
        hl_auto_draw drawn = hl_augment_auto_next(step, draws);
        double m = drawn.magnitude;
        switch (drawn.op) {
        case HL_AUTO_BRIGHTNESS: hl_colour_brightness(planes, 1 + m); break;
        case HL_AUTO_COLOR: hl_colour_saturation(planes, 1 + m); break;
        case HL_AUTO_CONTRAST: hl_colour_contrast(planes, 1 + m); break;
        case HL_AUTO_SHARPNESS: HL_TRY(hl_colour_sharpness(planes, 1 + m, scratch)); break;
        case HL_AUTO_POSTERIZE: hl_colour_posterize(planes, (int)m); break;
        case HL_AUTO_SOLARIZE: hl_colour_solarize(planes, 255 * m); break;
        case HL_AUTO_AUTOCONTRAST: hl_colour_autocontrast(planes); break;
        case HL_AUTO_EQUALIZE: hl_colour_equalize(planes); break;
        default: break; /* geometry */
        }
    }
    return HL_OK;
}

static hl_status apply_step(const hl_planes *planes, const hl_augment_step *step, hl_draws *draws,
                            hl_scratch *scratch)
{
    const double *number = step->number;
    switch (step->kind) {
    case HL_AUGMENT_JITTER: jitter(planes, number, draws); break;
    case HL_AUGMENT_GREY: hl_colour_grey(planes); break;
    case HL_AUGMENT_BLUR:
        return hl_colour_blur(planes, (int64_t)number[0], (int64_t)number[1],
                              hl_draws_uniform(draws, number[2], number[3]), scratch);
    case HL_AUGMENT_NOISE: hl_colour_noise(planes, 255 * number[0], 255 * number[1], draws); break;
    case HL_AUGMENT_ERASE: erase(planes, number, draws); break;
    case HL_AUGMENT_TRIVIAL:
    case HL_AUGMENT_RAND: return apply_automatically(planes, step, draws, scratch);
    default: break; /* geometry */
    }
    return HL_OK;
}

hl_status hl_augment_apply(const hl_augment *augment, const hl_augment_key *key,
                           const hl_geometry *geometry, const hl_image *src, hl_scratch *scratch,
                           uint8_t *dst)
{
    hl_planes planes = {dst, geometry->height, geometry->width, src->channels};
    if (src->channels < 1 || src->channels > HL_IMAGE_CHANNELS_MAX)
        return hl_status_set(HL_ERROR_SHAPE, "augment: must have 1 to %d channels, got %d",
                             HL_IMAGE_CHANNELS_MAX, src->channels);
    HL_TRY(render(augment, geometry, src, scratch, dst));
    if (!key->is_training) return HL_OK;
    for (int32_t i = 0; i < augment->n_steps; i++) {
        hl_draws draws;
        if (hl_augment_begin(augment, key, i, &draws))
            HL_TRY(apply_step(&planes, augment->steps + i, &draws, scratch));
    }
    return HL_OK;
}
