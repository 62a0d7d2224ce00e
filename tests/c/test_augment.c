/* Augmentation: resizes and warps against sums written out, and no size, box, border or parameter
 * that touches memory which is not its own. */
#include <math.h>

#include "data/augment.h"
#include "tests/c/check.h"
#include "tests/c/dice.h"

static hl_scratch scratch;

static dice start_dice(int32_t seed)
{
    return (dice){hl_rng_key_make((uint64_t)seed, "test_augment"), 0};
}

static double roll_real(dice *d, double low, double high)
{
    return low + (high - low) * (roll(d, 65536) * 0x1p-16);
}

/* ---- images, each in a block of its own size so that the sanitizer sees its ends --------------
 */

static hl_image make_image(dice *d, int64_t height, int64_t width, int32_t channels)
{
    hl_image image = {height, width, channels, NULL, 0};
    image.capacity = (size_t)(height * width * channels);
    image.pixels = malloc(image.capacity);
    for (size_t i = 0; i < image.capacity; i++) image.pixels[i] = (uint8_t)roll(d, 256);
    return image;
}

static int32_t pick_channels(dice *d)
{
    return (int32_t)roll(d, 4) + 1;
}

/* Mostly small, sometimes one pixel, sometimes long. */
static int64_t pick_side(dice *d)
{
    switch (roll(d, 6)) {
    case 0: return 1;
    case 1: return 2;
    case 2: return 1 + roll(d, 700);
    default: return 1 + roll(d, 40);
    }
}

/* ---- the definition of a resize ---------------------------------------------------------------
 */

static double weigh(hl_filter filter, double x)
{
    x = fabs(x);
    if (filter == HL_FILTER_BILINEAR) return x < 1 ? 1 - x : 0;
    if (x < 1) return 1.5 * x * x * x - 2.5 * x * x + 1;
    return x < 2 ? -0.5 * x * x * x + 2.5 * x * x - 4 * x + 2 : 0;
}

static int64_t continue_index(int64_t i, int64_t n, hl_border border)
{
    while (i < 0 || i >= n) {
        if (border == HL_BORDER_EDGE || n == 1)
            i = i < 0 ? 0 : n - 1;
        else if (border == HL_BORDER_REFLECT)
            i = i < 0 ? -i : 2 * n - 2 - i;
        else
            i = i < 0 ? -1 - i : 2 * n - 1 - i;
    }
    return i;
}

/* Indices and weights under an output's centre; 0: fill. */
enum { MOST_TAPS = 4096 };
static int list_taps(double centre, double step, int64_t n, const hl_resampling *how,
                     int64_t *index, double *weight)
{
    double scale = step > 1 ? step : 1, reach = (how->filter == HL_FILTER_BICUBIC ? 2 : 1) * scale;
    double sum = 0;
    int n_taps = 0;
    if (how->border == HL_BORDER_FILL && !(centre >= 0 && centre < (double)n)) return 0;
    for (int64_t i = (int64_t)floor(centre - reach) - 1; i <= (int64_t)ceil(centre + reach); i++) {
        double w = weigh(how->filter, ((double)i + 0.5 - centre) / scale);
        if (w == 0 || n_taps == MOST_TAPS) continue;
        if (how->border == HL_BORDER_FILL && (i < 0 || i >= n)) continue;
        index[n_taps] = continue_index(i, n, how->border);
        weight[n_taps++] = w;
        sum += w;
    }
    for (int k = 0; k < n_taps; k++) weight[k] /= sum;
    return n_taps;
}

static void check_resize(dice *d, int32_t seed)
{
    hl_image src = make_image(d, 1 + roll(d, 30), 1 + roll(d, 30), pick_channels(d));
    int64_t height = 1 + roll(d, 20), width = 1 + roll(d, 20);
    uint8_t *out = malloc((size_t)(height * width * src.channels));
    hl_resampling how = {
        (hl_filter)(1 + roll(d, 2)), (hl_border)roll(d, HL_BORDER_COUNT), {3, 50, 100, 200}};
    double x0 = roll_real(d, -20, 30), y0 = roll_real(d, -20, 30);
    hl_box box = {x0,
                  y0,
                  x0 + roll_real(d, 0.01, 60),
                  y0 + roll_real(d, 0.01, 60),
                  roll(d, 2) == 1,
                  roll(d, 2) == 1};
    if (seed % 3 == 0) { /* a shift, by whole pixels or by halves */
        box.x0 = (double)roll(d, 40) / 2 - 10;
        box.y0 = (double)roll(d, 40) / 2 - 10;
        box.x1 = box.x0 + (double)width;
        box.y1 = box.y0 + (double)height;
    }
    bool is_planar = roll(d, 2) == 1;
    hl_raster to = is_planar ? hl_raster_planes(out, height, width)
                             : hl_raster_interleaved(out, height, width, src.channels);
    check_case("resize %d: %lldx%lldx%d to %lldx%lld, filter %d, border %d", seed,
               (long long)src.height, (long long)src.width, src.channels, (long long)height,
               (long long)width, how.filter, how.border);
    CHECK_OK(hl_image_resize(&src, &box, &how, &scratch, &to));
    static int64_t rows[MOST_TAPS], columns[MOST_TAPS];
    static double down[MOST_TAPS], across[MOST_TAPS];
    double step_y = (box.y1 - box.y0) / (double)height, step_x = (box.x1 - box.x0) / (double)width;
    for (int64_t y = 0; y < height; y++) {
        double at_y = box.y0 + ((double)(box.mirror_y ? height - 1 - y : y) + 0.5) * step_y;
        int n_rows = list_taps(at_y, step_y, src.height, &how, rows, down);
        for (int64_t x = 0; x < width; x++) {
            double at_x = box.x0 + ((double)(box.mirror_x ? width - 1 - x : x) + 0.5) * step_x;
            int n_columns = list_taps(at_x, step_x, src.width, &how, columns, across);
            for (int32_t c = 0; c < src.channels; c++) {
                double sum = n_rows && n_columns ? 0 : how.fill[c];
                for (int i = 0; i < n_rows; i++)
                    for (int j = 0; j < n_columns; j++)
                        sum += down[i] * across[j] *
                               src.pixels[(rows[i] * src.width + columns[j]) * src.channels + c];
                sum = fmin(fmax(sum, 0), 255);
                double got = to.data[y * to.row + x * to.pixel + c * to.channel];
                /* Rounded to a level, of sums of floats. */
                CHECK(fabs(got - sum) <= 0.5 + 1e-3);
            }
        }
    }
    free(out);
    free(src.pixels);
}

static void test_resizes(void)
{
    for (int32_t seed = 0; seed < 1500; seed += check_stride()) {
        dice d = start_dice(seed);
        check_resize(&d, seed);
    }
}

/* Where the numbers of pixels and places are at their ends, only memory is looked at. */
static void test_extreme_boxes(void)
{
    static const double places[] = {-1e9, -16777000, -100.5, -1, -1e-9, 0,        1e-9,
                                    0.5,  1,         3,      4,  1e5,   16777000, 1e12};
    enum { N = sizeof places / sizeof *places };
    dice d = start_dice(1);
    hl_image src = make_image(&d, 3, 4, 3);
    uint8_t *out = malloc(5 * 7 * 3);
    hl_raster to = hl_raster_planes(out, 5, 7);
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++)
            for (int k = 0; k < HL_BORDER_COUNT * HL_FILTER_COUNT; k++) {
                hl_resampling how = {(hl_filter)(k % HL_FILTER_COUNT),
                                     (hl_border)(k / HL_FILTER_COUNT),
                                     {9, 9, 9, 9}};
                /* Thousands of million taps are memory and time that only a border that is
                 * continued needs, and are refused there. */
                double far = how.border == HL_BORDER_FILL ? 1e15 : 2e5;
                if (fabs(places[i]) > far || fabs(places[j]) > far) continue;
                hl_box box = {places[i], places[j], places[i] + places[j] + 2, 5, false, true};
                check_case("box %g %g, filter %d, border %d", places[i], places[j], how.filter,
                           how.border);
                hl_status status = hl_image_resize(&src, &box, &how, &scratch, &to);
                bool is_box = box.x0 < box.x1 && box.y0 < box.y1;
                CHECK(status == (is_box ? HL_OK : HL_ERROR_SHAPE));
            }
    hl_resampling how = {HL_FILTER_BILINEAR, HL_BORDER_EDGE, {0}};
    hl_box empty = {1, 1, 1, 2, false, false}, nan = {0, NAN, 1, 2, false, false};
    hl_box far = {0, 0, 1e9, 2, false, false};
    CHECK_ERROR(hl_image_resize(&src, &empty, &how, &scratch, &to), HL_ERROR_SHAPE,
                "resize: the box");
    CHECK_ERROR(hl_image_resize(&src, &nan, &how, &scratch, &to), HL_ERROR_SHAPE,
                "resize: the box");
    CHECK_ERROR(hl_image_resize(&src, &far, &how, &scratch, &to), HL_ERROR_SHAPE,
                "resize: the box");
    to.width = 0;
    hl_box good = {0, 0, 1, 1, false, false};
    CHECK_ERROR(hl_image_resize(&src, &good, &how, &scratch, &to), HL_ERROR_SHAPE, "at least 1");
    free(out);
    free(src.pixels);
}

/* ---- warps ------------------------------------------------------------------------------------
 */

/* Any nine numbers: NaN, infinities, zeros, huge ones. */
static double pick_entry(dice *d)
{
    static const double odd[] = {0, -0.0, 1, -1, NAN, INFINITY, -INFINITY, 1e300, -1e300, 1e-300};
    return roll(d, 4) ? roll_real(d, -3, 3) : odd[roll(d, 10)];
}

static void test_any_matrix(void)
{
    for (int32_t seed = 0; seed < 2000; seed += check_stride()) {
        dice d = start_dice(seed);
        hl_image src = make_image(&d, 1 + roll(&d, 5), 1 + roll(&d, 5), pick_channels(&d));
        hl_geometry geometry = {
            .src_height = src.height, .src_width = src.width, .height = 6, .width = 5};
        for (int i = 0; i < 9; i++) geometry.matrix[i] = pick_entry(&d);
        hl_resampling how = {(hl_filter)roll(&d, HL_FILTER_COUNT),
                             (hl_border)roll(&d, HL_BORDER_COUNT),
                             {1, 2, 3, 4}};
        geometry.border = how.border;
        uint8_t *out = malloc((size_t)(30 * src.channels));
        hl_raster to = hl_raster_planes(out, 6, 5);
        check_case("warp %d", seed);
        hl_image_warp(&src, geometry.matrix, &how, &to);
        int64_t *labels = malloc(6 * sizeof *labels), *made = malloc(30 * sizeof *made), fill = -1;
        for (int i = 0; i < 6; i++) labels[i] = i;
        hl_labels from = {labels, 2, 3, sizeof *labels}, label_to = {made, 6, 5, sizeof *made};
        hl_geometry_labels(&geometry, &from, &fill, &label_to);
        for (int i = 0; i < 30; i++) CHECK(made[i] >= -1 && made[i] < 6);
        float points[8] = {0, 0, 1e30f, -1e30f, NAN, INFINITY, 2, 3}, moved[8];
        bool inside[4];
        hl_geometry_points(&geometry, points, 4, moved, inside);
        CHECK(!inside[2]);
        free(labels);
        free(made);
        free(out);
        free(src.pixels);
    }
}

/* Where the third coordinate is not above 0 the plane is behind the eye: the fill, whatever the
 * place. */
static void test_behind_a_perspective(void)
{
    uint8_t pixels[4] = {200, 200, 200, 200}, out[6];
    hl_image src = {2, 2, 1, pixels, sizeof pixels};
    const double matrix[9] = {1, 0, -3, 0, 1, -0.5, 1, 0, -3}; /* (1, 0) divided by x - 3 */
    hl_resampling how = {HL_FILTER_NEAREST, HL_BORDER_EDGE, {7}};
    hl_raster to = hl_raster_planes(out, 1, 6);
    hl_image_warp(&src, matrix, &how, &to);
    for (int x = 0; x < 6; x++) CHECK_INT(out[x], x < 3 ? 7 : 200);
    hl_labels from = {pixels, 2, 2, 1}, labels = {out, 1, 6, 1};
    uint8_t fill = 9;
    hl_labels_warp(&from, matrix, HL_BORDER_EDGE, &fill, &labels);
    for (int x = 0; x < 6; x++) CHECK_INT(out[x], x < 3 ? 9 : 200);
}

/* ---- whole augmentations ----------------------------------------------------------------------
 */

/* Numbers at and between the ends of what hl_augment_check lets through, found by it: a step is
 * rolled until it passes. */
static void roll_step(dice *d, hl_augment_step *step)
{
    static const double ends[] = {0,   1,    2,   3,  5,   0.5,   0.01,  1e-6,   1e-3, 100,  1000,
                                  999, -0.5, -85, 85, 255, 16384, 36000, -36000, 10,   1023, 4};
    for (;;) {
        hl_augment probe = {.height = 1, .width = 1, .n_steps = 1};
        *step = (hl_augment_step){.kind = (hl_augment_kind)roll(d, HL_AUGMENT_KIND_COUNT),
                                  .probability = roll(d, 4) ? 1 : roll_real(d, 0, 1)};
        for (int try = 0; try < 300; try++) {
            for (int i = 0; i < HL_AUGMENT_NUMBERS_MAX; i++) {
                int which = roll(d, 3);
                step->number[i] = which == 0   ? ends[roll(d, (int)(sizeof ends / sizeof *ends))]
                                  : which == 1 ? (double)roll(d, 40)
                                               : roll_real(d, 0, 2);
                if (i % 2 && step->number[i] < step->number[i - 1] && roll(d, 2))
                    step->number[i] = step->number[i - 1];
            }
            probe.steps[0] = *step;
            if (hl_augment_check(&probe) == HL_OK) return;
        }
    }
}

static void check_augment(int32_t seed, int64_t *n_done)
{
    dice d = start_dice(seed);
    hl_augment augment = {.height = pick_side(&d) % 64 + 1,
                          .width = pick_side(&d) % 64 + 1,
                          .fit = (hl_fit)roll(&d, HL_FIT_COUNT),
                          .filter = (hl_filter)roll(&d, HL_FILTER_COUNT),
                          .seed = (uint64_t)seed,
                          .n_steps = (int32_t)roll(&d, 7)};
    for (int32_t i = 0; i < augment.n_steps; i++) roll_step(&d, &augment.steps[i]);
    hl_image src = make_image(&d, pick_side(&d), pick_side(&d), pick_channels(&d));
    hl_augment_key key = {(uint64_t)roll(&d, 3), roll(&d, 1000), roll(&d, 8) != 0};
    int64_t full_height = src.height * (1 + roll(&d, 3));
    int64_t full_width = src.width * (1 + roll(&d, 3)) - (src.width > 1);
    check_case("augment %d", seed);
    CHECK_OK(hl_augment_check(&augment));
    hl_geometry geometry;
    hl_status status = hl_augment_geometry(&augment, &key, full_height, full_width, &geometry);
    if (status == HL_OK) {
        size_t bytes = (size_t)(augment.height * augment.width * src.channels);
        uint8_t *dst = malloc(bytes), *again = malloc(bytes);
        CHECK_INT(geometry.height, augment.height);
        CHECK_INT(geometry.width, augment.width);
        status = hl_augment_apply(&augment, &key, &geometry, &src, &scratch, dst);
        if (status == HL_OK) {
            hl_scratch fresh = {0};
            CHECK_OK(hl_augment_apply(&augment, &key, &geometry, &src, &fresh, again));
            CHECK(memcmp(dst, again, bytes) == 0);
            hl_scratch_deinit(&fresh);
            ++*n_done;
        } else { /* a border that is continued further than anyone wants */
            CHECK(status == HL_ERROR_SHAPE && geometry.border != HL_BORDER_FILL);
        }
        free(dst);
        free(again);
    } else {
        CHECK(status == HL_ERROR_DATA && strstr(hl_status_message(), "random_crop: the image"));
    }
    free(src.pixels);
}

static void test_augmentations(void)
{
    int64_t n_done = 0, n = 0;
    for (int32_t seed = 0; seed < 4000; seed += check_stride(), n++) check_augment(seed, &n_done);
    check_case("%lld of %lld", (long long)n_done, (long long)n);
    CHECK(n_done > n / 2);
}

/* ---- memory that there is not -----------------------------------------------------------------
 */

static hl_status apply_afresh(void *context)
{
    const hl_augment *augment = context;
    static uint8_t pixels[40 * 50 * 3], dst[10 * 12 * 3];
    hl_image src = {40, 50, 3, pixels, sizeof pixels};
    hl_augment_key key = {0, 0, true};
    hl_scratch fresh = {0};
    hl_geometry geometry;
    hl_status status = hl_augment_geometry(augment, &key, 40, 50, &geometry);
    if (status == HL_OK) status = hl_augment_apply(augment, &key, &geometry, &src, &fresh, dst);
    hl_scratch_deinit(&fresh);
    return status;
}

static void test_faults(void)
{
    hl_augment augment = {.height = 10, .width = 12, .filter = HL_FILTER_BICUBIC, .n_steps = 4};
    augment.steps[0] = (hl_augment_step){HL_AUGMENT_AFFINE, 1, {30, 30, 0, 0, 1, 1}};
    augment.steps[1] = (hl_augment_step){HL_AUGMENT_BLUR, 1, {5, 5, 1, 1}};
    augment.steps[2] = (hl_augment_step){HL_AUGMENT_RAND, 1, {80, 20, 31}}; /* all of them */
    augment.steps[3] = (hl_augment_step){HL_AUGMENT_NOISE, 1, {0, 0.1}};
    CHECK(check_walk_faults(CHECK_FAULT_ALLOC, HL_ERROR_MEMORY, 0, apply_afresh, &augment) >= 6);
}

/* Each kind of step alone, on images of one pixel, one row, one column. */
static void test_smallest_images(void)
{
    static const int64_t sides[] = {1, 2, 3, 400};
    for (int32_t seed = 0; seed < 1600; seed++) {
        dice d = start_dice(seed);
        hl_augment augment = {.height = sides[seed % 4],
                              .width = sides[seed / 4 % 4],
                              .n_steps = 1,
                              .filter = HL_FILTER_BILINEAR};
        roll_step(&d, &augment.steps[0]);
        hl_image src =
            make_image(&d, sides[seed / 16 % 4], sides[seed / 64 % 4], pick_channels(&d));
        uint8_t *dst = malloc((size_t)(augment.height * augment.width * src.channels));
        hl_augment_key key = {0, seed, true};
        hl_geometry geometry;
        check_case("smallest %d, %s", seed, hl_augment_kind_name(augment.steps[0].kind));
        if (hl_augment_geometry(&augment, &key, src.height, src.width, &geometry) == HL_OK) {
            hl_status status = hl_augment_apply(&augment, &key, &geometry, &src, &scratch, dst);
            CHECK(status == HL_OK || geometry.border != HL_BORDER_FILL);
        } else {
            CHECK_INT(augment.steps[0].kind, HL_AUGMENT_CROP);
        }
        free(dst);
        free(src.pixels);
    }
}

/* ---- checks -----------------------------------------------------------------------------------
 */

static void test_checks(void)
{
    hl_augment augment = {.height = 8, .width = 8};
    check_case("%s", "");
    CHECK_OK(hl_augment_check(&augment));
    augment.height = 0;
    CHECK_ERROR(hl_augment_check(&augment), HL_ERROR_CONFIG, "size: must be from 1 to 16384");
    augment.height = 8;
    augment.n_steps = HL_AUGMENT_STEPS_MAX + 1;
    CHECK_ERROR(hl_augment_check(&augment), HL_ERROR_CONFIG, "32 steps at most, got 33");
    augment.n_steps = 1;
    augment.steps[0] = (hl_augment_step){HL_AUGMENT_KIND_COUNT, 1, {0}};
    CHECK_ERROR(hl_augment_check(&augment), HL_ERROR_CONFIG, "kind must be below");
    augment.steps[0] = (hl_augment_step){HL_AUGMENT_GREY, NAN, {0}};
    CHECK_ERROR(hl_augment_check(&augment), HL_ERROR_CONFIG,
                "random_grayscale: p must be from 0 to 1");
    augment.steps[0] = (hl_augment_step){HL_AUGMENT_BLUR, 1, {4, 3, 1, 1}};
    CHECK_ERROR(hl_augment_check(&augment), HL_ERROR_CONFIG, "kernel_size must be odd and from 1");
    augment.steps[0] = (hl_augment_step){HL_AUGMENT_RESIZE, 1, {2.5, 3}};
    CHECK_ERROR(hl_augment_check(&augment), HL_ERROR_CONFIG, "size must be whole and from 1");
    augment.steps[0] = (hl_augment_step){HL_AUGMENT_RESIZED_CROP, 1, {8, 8, 0.5, 0.2, 1, 1}};
    CHECK_ERROR(hl_augment_check(&augment), HL_ERROR_CONFIG, "scale must be (least, most)");
    augment.steps[0] = (hl_augment_step){HL_AUGMENT_RAND, 1, {2, 31, 31}};
    CHECK_ERROR(hl_augment_check(&augment), HL_ERROR_CONFIG, "below num_magnitude_bins");
    hl_image five = {1, 1, 5, (uint8_t *)"", 0};
    hl_geometry geometry;
    hl_augment_key key = {0, 0, false};
    augment.n_steps = 0;
    CHECK_OK(hl_augment_geometry(&augment, &key, 1, 1, &geometry));
    uint8_t out[320];
    CHECK_ERROR(hl_augment_apply(&augment, &key, &geometry, &five, &scratch, out), HL_ERROR_SHAPE,
                "1 to 4 channels, got 5");
}

/* Every kind has a name of its own, and is found by it. */
static void test_kinds(void)
{
    for (int i = 0; i < HL_AUGMENT_KIND_COUNT; i++) {
        CHECK_INT(hl_augment_kind_find(hl_augment_kind_name((hl_augment_kind)i)), i);
        int32_t n = hl_augment_kind_numbers((hl_augment_kind)i);
        CHECK(n >= 0 && n <= HL_AUGMENT_NUMBERS_MAX);
    }
    CHECK_INT(hl_augment_kind_find("shake"), HL_AUGMENT_KIND_COUNT);
}

/* What a decoder may reduce by: sizes of crops, whatever is turned behind them. */
static void test_reductions(void)
{
    hl_augment augment = {.height = 50, .width = 50, .fit = HL_FIT_SQUASH, .n_steps = 1};
    hl_augment_key key = {0, 0, true};
    hl_geometry geometry;
    double down, across;
    augment.steps[0] = (hl_augment_step){HL_AUGMENT_AFFINE, 1, {30, 30, 0, 0, 1, 1}};
    CHECK_OK(hl_augment_geometry(&augment, &key, 100, 400, &geometry));
    hl_geometry_reduction(&geometry, &down, &across);
    CHECK(fabs(down - 2) < 1e-9 && fabs(across - 8) < 1e-9 && !geometry.is_box);
    augment.steps[0] = (hl_augment_step){HL_AUGMENT_AFFINE, 1, {0, 0, 0, 0, 2, 2}};
    CHECK_OK(hl_augment_geometry(&augment, &key, 100, 400, &geometry));
    hl_geometry_reduction(&geometry, &down, &across);
    CHECK(fabs(down - 1) < 1e-9 && fabs(across - 4) < 1e-9 && geometry.is_box);
}

int main(void)
{
    test_resizes();
    test_extreme_boxes();
    test_any_matrix();
    test_behind_a_perspective();
    test_augmentations();
    test_faults();
    test_smallest_images();
    test_checks();
    test_kinds();
    test_reductions();
    hl_scratch_deinit(&scratch);
    return CHECK_DONE();
}
