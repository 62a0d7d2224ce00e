/* Geometry: the steps that move pixels, composed into one matrix.
 *
 * A canvas is the image after some steps: its size, and the matrix from its coordinates to the
 * source's. A step replaces it by another canvas and multiplies by the matrix from the new one to
 * the old one. Coordinates are continuous, so flips, whole shifts and scale 1 stay exact. Whether
 * the whole is a box is seen at the end, of the matrix. */
#include <math.h>
#include <string.h>

#include "data/augment.h"

typedef struct canvas {
    int64_t height, width;
    double matrix[9];
    hl_border border;
    double resized_down, resized_across; /* source pixels for one, by resizes alone */
} canvas;

/* ---- matrices -------------------------------------------------------------------------------- */

/* canvas->matrix times m: the new canvas has this size. */
static void canvas_move(canvas *at, const double m[9], int64_t height, int64_t width)
{
    double product[9];
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++)
            product[3 * i + j] = at->matrix[3 * i] * m[j] + at->matrix[3 * i + 1] * m[3 + j] +
                                 at->matrix[3 * i + 2] * m[6 + j];
    memcpy(at->matrix, product, sizeof product);
    at->height = height;
    at->width = width;
}

/* The new canvas shows the old one's box from (left, top) on, scaled. */
static void canvas_cut(canvas *at, double top, double left, double box_height, double box_width,
                       int64_t height, int64_t width)
{
    double m[9] = {
        box_width / (double)width, 0, left, 0, box_height / (double)height, top, 0, 0, 1};
    canvas_move(at, m, height, width);
    at->resized_across *= m[0];
    at->resized_down *= m[4];
}

static double determinant(const double m[9])
{
    return m[0] * (m[4] * m[8] - m[5] * m[7]) + m[1] * (m[5] * m[6] - m[3] * m[8]) +
           m[2] * (m[3] * m[7] - m[4] * m[6]);
}

static bool invert(const double m[9], double out[9])
{
    double cofactors[9] = {
        m[4] * m[8] - m[5] * m[7], m[2] * m[7] - m[1] * m[8], m[1] * m[5] - m[2] * m[4],
        m[5] * m[6] - m[3] * m[8], m[0] * m[8] - m[2] * m[6], m[2] * m[3] - m[0] * m[5],
        m[3] * m[7] - m[4] * m[6], m[1] * m[6] - m[0] * m[7], m[0] * m[4] - m[1] * m[3]};
    double det = determinant(m);
    if (!(fabs(det) > 0) || !isfinite(det)) return false;
    for (int i = 0; i < 9; i++) out[i] = cofactors[i] / det;
    return true;
}

/* ---- sizes ----------------------------------------------------------------------------------- */

/* torchvision's Resize by the shorter side. */
static void resize_shorter(canvas *at, int64_t side)
{
    int64_t height = side, width = side;
    if (at->width <= at->height)
        height = side * at->height / at->width;
    else
        width = side * at->width / at->height;
    canvas_cut(at, 0, 0, (double)at->height, (double)at->width, height, width);
}

/* torchvision's centre crop, which pads what is smaller. */
static int64_t find_centre(int64_t side, int64_t wanted)
{
    return side >= wanted ? (int64_t)rint((double)(side - wanted) / 2) : -((wanted - side) / 2);
}

static void crop_centre(canvas *at, int64_t height, int64_t width)
{
    canvas_cut(at, (double)find_centre(at->height, height), (double)find_centre(at->width, width),
               (double)height, (double)width, height, width);
}

/* Covers the output, or fits into it (is_inside), with its shape as it is, then centres. */
static void fit_shape(canvas *at, int64_t height, int64_t width, bool is_inside)
{
    bool by_height = height * at->width >= width * at->height; /* the larger scale */
    int64_t new_height = height, new_width = width;
    if (by_height != is_inside)
        new_width = is_inside ? (int64_t)rint((double)(at->width * height) / (double)at->height)
                              : at->width * height / at->height;
    else
        new_height = is_inside ? (int64_t)rint((double)(at->height * width) / (double)at->width)
                               : at->height * width / at->width;
    canvas_cut(at, 0, 0, (double)at->height, (double)at->width, new_height > 0 ? new_height : 1,
               new_width > 0 ? new_width : 1);
    crop_centre(at, height, width);
}

static void fit_canvas(const hl_augment *augment, canvas *at)
{
    if (at->height == augment->height && at->width == augment->width) return;
    if (augment->fit == HL_FIT_SQUASH)
        canvas_cut(at, 0, 0, (double)at->height, (double)at->width, augment->height,
                   augment->width);
    else
        fit_shape(at, augment->height, augment->width, augment->fit == HL_FIT_PAD);
}

/* ---- crops ----------------------------------------------------------------------------------- */

static void pad_side(int64_t side, int64_t wanted, int64_t *before, int64_t *after)
{
    int64_t missing = wanted - (side + *before + *after);
    if (missing <= 0) return;
    *before += missing;
    *after += missing;
}

static hl_status crop_randomly(canvas *at, const double number[8], hl_draws *draws)
{
    int64_t height = (int64_t)number[0], width = (int64_t)number[1];
    int64_t left = (int64_t)number[2], top = (int64_t)number[3];
    int64_t right = (int64_t)number[4], bottom = (int64_t)number[5];
    if (number[6] != 0) {
        pad_side(at->height, height, &top, &bottom);
        pad_side(at->width, width, &left, &right);
    }
    int64_t free_down = at->height + top + bottom - height;
    int64_t free_across = at->width + left + right - width;
    if (free_down < 0 || free_across < 0)
        return hl_status_set(HL_ERROR_DATA,
                             "random_crop: the image with its padding must have at least %lld x "
                             "%lld pixels, got %lld x %lld",
                             (long long)height, (long long)width, (long long)(free_down + height),
                             (long long)(free_across + width));
    double y = (double)(hl_draws_below(draws, free_down + 1) - top);
    double x = (double)(hl_draws_below(draws, free_across + 1) - left);
    if (left | top | right | bottom) at->border = (hl_border)number[7];
    canvas_cut(at, y, x, (double)height, (double)width, height, width);
    return HL_OK;
}

/* The part of a share of the area and a ratio; where ten draws give none that fits, the centre. */
static void crop_resized(canvas *at, const double number[6], hl_draws *draws)
{
    double area = (double)at->height * (double)at->width, ratio = 0;
    for (int k = 0; k < 10; k++) {
        double share = area * hl_draws_uniform(draws, number[2], number[3]);
        ratio = exp(hl_draws_uniform(draws, log(number[4]), log(number[5])));
        double width = rint(sqrt(share * ratio)), height = rint(sqrt(share / ratio));
        if (width < 1 || height < 1 || width > (double)at->width || height > (double)at->height)
            continue;
        double top = (double)hl_draws_below(draws, at->height - (int64_t)height + 1);
        double left = (double)hl_draws_below(draws, at->width - (int64_t)width + 1);
        canvas_cut(at, top, left, height, width, (int64_t)number[0], (int64_t)number[1]);
        return;
    }
    double height = (double)at->height, width = (double)at->width;
    if (width < number[4] * height)
        height = fmax(rint(width / number[4]), 1);
    else if (width > number[5] * height)
        width = fmax(rint(height * number[5]), 1);
    double top = floor(((double)at->height - height) / 2);
    double left = floor(((double)at->width - width) / 2);
    canvas_cut(at, top, left, height, width, (int64_t)number[0], (int64_t)number[1]);
}

/* ---- affine and perspective ------------------------------------------------------------------ */

/* About (x, y), clockwise, then translated: torchvision's affine, whose inverse it is. */
static void move_affine(canvas *at, double x, double y, double degrees, double across, double down,
                        double scale, double shear_across, double shear_down)
{
    const double radian = 0.017453292519943295769;
    double angle = degrees * radian, sx = shear_across * radian, sy = shear_down * radian;
    double a = cos(angle - sy) / cos(sy), b = -a * tan(sx) - sin(angle);
    double c = sin(angle - sy) / cos(sy), d = -c * tan(sx) + cos(angle);
    double m[9] = {d / scale, -b / scale, 0, -c / scale, a / scale, 0, 0, 0, 1};
    m[2] = x - m[0] * (x + across) - m[1] * (y + down);
    m[5] = y - m[3] * (x + across) - m[4] * (y + down);
    canvas_move(at, m, at->height, at->width);
}

static void move_randomly(canvas *at, const double number[10], hl_draws *draws)
{
    double degrees = hl_draws_uniform(draws, number[0], number[1]);
    double most_across = number[2] * (double)at->width, most_down = number[3] * (double)at->height;
    double across = rint(hl_draws_uniform(draws, -most_across, most_across));
    double down = rint(hl_draws_uniform(draws, -most_down, most_down));
    double scale = hl_draws_uniform(draws, number[4], number[5]);
    double shear_across = hl_draws_uniform(draws, number[6], number[7]);
    double shear_down = hl_draws_uniform(draws, number[8], number[9]);
    move_affine(at, (double)at->width / 2, (double)at->height / 2, degrees, across, down, scale,
                shear_across, shear_down);
}

/* Solves the 8 equations rows of which are (8 coefficients, right side); false: singular. */
static bool solve_eight(double rows[8][9])
{
    for (int k = 0; k < 8; k++) {
        int best = k;
        for (int i = k + 1; i < 8; i++)
            if (fabs(rows[i][k]) > fabs(rows[best][k])) best = i;
        if (fabs(rows[best][k]) < 1e-12) return false;
        for (int j = k; j < 9; j++) {
            double kept = rows[k][j];
            rows[k][j] = rows[best][j];
            rows[best][j] = kept;
        }
        for (int i = 0; i < 8; i++) {
            double factor = i == k ? 0 : rows[i][k] / rows[k][k];
            for (int j = k; j < 9; j++) rows[i][j] -= factor * rows[k][j];
        }
    }
    for (int k = 0; k < 8; k++) rows[k][8] /= rows[k][k];
    return true;
}

/* Each corner goes inwards; the matrix takes the new corners to the old ones. */
static void move_corners(canvas *at, double distortion, hl_draws *draws)
{
    int64_t across = (int64_t)(distortion * (double)(at->width / 2)) + 1;
    int64_t down = (int64_t)(distortion * (double)(at->height / 2)) + 1;
    double last_x = (double)(at->width - 1), last_y = (double)(at->height - 1);
    const double from[4][2] = {{0, 0}, {last_x, 0}, {last_x, last_y}, {0, last_y}};
    double rows[8][9];
    for (int k = 0; k < 4; k++) {
        double inwards_x = (double)hl_draws_below(draws, across);
        double inwards_y = (double)hl_draws_below(draws, down);
        double x = k == 0 || k == 3 ? inwards_x : last_x - inwards_x;
        double y = k < 2 ? inwards_y : last_y - inwards_y, u = from[k][0], v = from[k][1];
        const double for_x[9] = {x, y, 1, 0, 0, 0, -u * x, -u * y, u};
        const double for_y[9] = {0, 0, 0, x, y, 1, -v * x, -v * y, v};
        memcpy(rows[2 * k], for_x, sizeof for_x);
        memcpy(rows[2 * k + 1], for_y, sizeof for_y);
    }
    if (!solve_eight(rows)) return; /* sides of one pixel have no perspective */
    double m[9] = {[8] = 1};
    for (int k = 0; k < 8; k++) m[k] = rows[k][8];
    canvas_move(at, m, at->height, at->width);
}

int32_t hl_augment_auto_count(const hl_augment_step *step)
{
    if (step->kind == HL_AUGMENT_TRIVIAL) return 1;
    return step->kind == HL_AUGMENT_RAND ? (int32_t)step->number[0] : 0;
}

hl_auto_draw hl_augment_auto_next(const hl_augment_step *step, hl_draws *draws)
{
    if (step->kind == HL_AUGMENT_TRIVIAL) return hl_auto_trivial((int64_t)step->number[0], draws);
    return hl_auto_rand((int64_t)step->number[1], (int64_t)step->number[2], draws);
}

static void move_automatically(canvas *at, const hl_augment_step *step, hl_draws *draws)
{
    const double degree = 57.295779513082320877;
    for (int32_t k = 0; k < hl_augment_auto_count(step); k++) {
        hl_auto_draw drawn = hl_augment_auto_next(step, draws);
        double m = drawn.magnitude, width = (double)at->width, height = (double)at->height;
        bool is_share = step->kind == HL_AUGMENT_RAND;
        if (m == 0) continue;
        if (drawn.op == HL_AUTO_SHEAR_X)
            move_affine(at, 0, 0, 0, 0, 0, 1, atan(m) * degree, 0);
        else if (drawn.op == HL_AUTO_SHEAR_Y)
            move_affine(at, 0, 0, 0, 0, 0, 1, 0, atan(m) * degree);
        else if (drawn.op == HL_AUTO_TRANSLATE_X)
            canvas_cut(at, 0, -trunc(is_share ? m * width : m), height, width, at->height,
                       at->width);
        else if (drawn.op == HL_AUTO_TRANSLATE_Y)
            canvas_cut(at, -trunc(is_share ? m * height : m), 0, height, width, at->height,
                       at->width);
        else if (drawn.op == HL_AUTO_ROTATE)
            move_affine(at, width / 2, height / 2, -m, 0, 0, 1, 0, 0);
    }
}

/* ---- steps ----------------------------------------------------------------------------------- */

static void flip_across(canvas *at)
{
    const double m[9] = {-1, 0, (double)at->width, 0, 1, 0, 0, 0, 1};
    canvas_move(at, m, at->height, at->width);
}

static void flip_down(canvas *at)
{
    const double m[9] = {1, 0, 0, 0, -1, (double)at->height, 0, 0, 1};
    canvas_move(at, m, at->height, at->width);
}

static hl_status move_step(const hl_augment *augment, canvas *at, const hl_augment_step *step,
                           hl_draws *draws, bool is_training)
{
    const double *number = step->number;
    int64_t height = (int64_t)number[0], width = (int64_t)number[1];
    switch (step->kind) {
    case HL_AUGMENT_FIT: fit_canvas(augment, at); break;
    case HL_AUGMENT_RESIZE:
        if (!width)
            resize_shorter(at, height);
        else
            canvas_cut(at, 0, 0, (double)at->height, (double)at->width, height, width);
        break;
    case HL_AUGMENT_CENTER_CROP: crop_centre(at, height, width); break;
    case HL_AUGMENT_CROP:
        if (is_training) return crop_randomly(at, number, draws);
        crop_centre(at, height, width);
        break;
    case HL_AUGMENT_RESIZED_CROP: crop_resized(at, number, draws); break;
    case HL_AUGMENT_FLIP_X: flip_across(at); break;
    case HL_AUGMENT_FLIP_Y: flip_down(at); break;
    case HL_AUGMENT_AFFINE: move_randomly(at, number, draws); break;
    case HL_AUGMENT_PERSPECTIVE: move_corners(at, number[0], draws); break;
    case HL_AUGMENT_TRIVIAL:
    case HL_AUGMENT_RAND: move_automatically(at, step, draws); break;
    default: break; /* colours */
    }
    return HL_OK;
}

/* What happens when samples are not drawn, too. */
static bool is_certain(hl_augment_kind kind)
{
    return kind == HL_AUGMENT_FIT || kind == HL_AUGMENT_RESIZE || kind == HL_AUGMENT_CENTER_CROP ||
           kind == HL_AUGMENT_CROP;
}

static bool gives_size(hl_augment_kind kind)
{
    return is_certain(kind) || kind == HL_AUGMENT_RESIZED_CROP;
}

bool hl_augment_begin(const hl_augment *augment, const hl_augment_key *key, int32_t step,
                      hl_draws *out_draws)
{
    const hl_augment_step *at = augment->steps + step;
    if (!key->is_training) return is_certain(at->kind);
    *out_draws = hl_draws_begin(augment->seed, key, step);
    return hl_draws_uniform(out_draws, 0, 1) < at->probability;
}

static void find_box(const canvas *at, hl_geometry *out)
{
    const double *m = at->matrix;
    out->is_box = m[1] == 0 && m[3] == 0 && m[6] == 0 && m[7] == 0 && m[8] == 1;
    if (!out->is_box) return;
    double x0 = m[2], x1 = m[2] + m[0] * (double)at->width;
    double y0 = m[5], y1 = m[5] + m[4] * (double)at->height;
    out->box = (hl_box){fmin(x0, x1), fmin(y0, y1), fmax(x0, x1), fmax(y0, y1), x1 < x0, y1 < y0};
}

hl_status hl_augment_geometry(const hl_augment *augment, const hl_augment_key *key,
                              int64_t src_height, int64_t src_width, hl_geometry *out)
{
    canvas at = {src_height, src_width, {1, 0, 0, 0, 1, 0, 0, 0, 1}, HL_BORDER_FILL, 1, 1};
    bool is_sized = false;
    for (int32_t i = 0; i < augment->n_steps; i++)
        if (gives_size(augment->steps[i].kind) &&
            (key->is_training || is_certain(augment->steps[i].kind)))
            is_sized = true;
    if (!is_sized) fit_canvas(augment, &at);
    for (int32_t i = 0; i < augment->n_steps; i++) {
        hl_draws draws;
        if (hl_augment_begin(augment, key, i, &draws))
            HL_TRY(move_step(augment, &at, augment->steps + i, &draws, key->is_training));
    }
    fit_canvas(augment, &at);
    *out = (hl_geometry){.src_height = src_height,
                         .src_width = src_width,
                         .height = at.height,
                         .width = at.width,
                         .border = at.border,
                         .resized_down = at.resized_down,
                         .resized_across = at.resized_across};
    memcpy(out->matrix, at.matrix, sizeof at.matrix);
    find_box(&at, out);
    return HL_OK;
}

/* ---- what it means for others ---------------------------------------------------------------- */

/* In place of hypot, which is of glibc 2.35 where it is compiled with that, and rounds differently
 * before it. */
static double length(double a, double b)
{
    return sqrt(a * a + b * b);
}

void hl_geometry_reduction(const hl_geometry *geometry, double *out_down, double *out_across)
{
    const double *m = geometry->matrix;
    double x = (double)geometry->width / 2, y = (double)geometry->height / 2;
    double w = m[6] * x + m[7] * y + m[8];
    double u = (m[0] * x + m[1] * y + m[2]) / w, v = (m[3] * x + m[4] * y + m[5]) / w;
    /* Rows of the derivative: a crop and its scaling before any rotation come out as they are. */
    *out_across = length(m[0] - u * m[6], m[1] - u * m[7]) / fabs(w);
    *out_down = length(m[3] - v * m[6], m[4] - v * m[7]) / fabs(w);
}

void hl_geometry_labels(const hl_geometry *geometry, const hl_labels *src, const void *fill,
                        const hl_labels *dst)
{
    double m[9];
    memcpy(m, geometry->matrix, sizeof m);
    for (int i = 0; i < 3; i++) {
        m[i] *= (double)src->width / (double)geometry->src_width;
        m[3 + i] *= (double)src->height / (double)geometry->src_height;
    }
    hl_labels_warp(src, m, geometry->border, fill, dst);
}

void hl_geometry_points(const hl_geometry *geometry, const float *points, int64_t n, float *out,
                        bool *inside)
{
    double m[9];
    bool is_invertible = invert(geometry->matrix, m);
    for (int64_t i = 0; i < n; i++) {
        double x = (double)points[2 * i] + 0.5, y = (double)points[2 * i + 1] + 0.5;
        /* The inverse of the w that the point had: not above 0 behind a perspective. */
        double w = is_invertible ? m[6] * x + m[7] * y + m[8] : 0;
        double u = w > 0 ? (m[0] * x + m[1] * y + m[2]) / w : NAN;
        double v = w > 0 ? (m[3] * x + m[4] * y + m[5]) / w : NAN;
        inside[i] = u >= 0 && u < (double)geometry->width && v >= 0 && v < (double)geometry->height;
        out[2 * i] = (float)(u - 0.5);
        out[2 * i + 1] = (float)(v - 0.5);
    }
}

bool hl_geometry_is_mirrored(const hl_geometry *geometry)
{
    /* The derivative's determinant is this one by the cube of w, which is above 0 in what shows. */
    return determinant(geometry->matrix) < 0;
}
