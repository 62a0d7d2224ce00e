/* Augmentation: what happens to an image, and to its masks and keypoints, between decoding and the
 * batch.
 *
 * An hl_augment is a list of steps with their probabilities and ranges. What they draw is a
 * function of seed, epoch and row, so any number of threads makes the same images, and a position
 * can be resumed. It is done in two parts:
 *
 * - All geometric steps, in their order, become one map from the output to the source
 *   (hl_augment_geometry), so the image is resampled once, from the full source, and a decoder
 * knows beforehand which part is wanted at which size. Where a step looks beyond the crop of an
 * earlier one it therefore finds the source's own pixels, and the border only beyond the source.
 * - Then colours, blur, noise and erasing act on the output, in their order (hl_augment_apply).
 *
 * So a geometric step acts as if it stood in front of the colours. Ranges, orders of random choices
 * and spaces are torchvision's (transforms.v2, on Pillow's images).
 *
 * Without is_training only what is not random happens: sizes and centre crops; a random crop takes
 * the centre. Rejected: resampling in each step, which blurs and takes time for each; generators
 * with a state, which make a sample depend on those before it. */
#ifndef HL_DATA_AUGMENT_H
#define HL_DATA_AUGMENT_H

#include "data/auto.h"
#include "data/resample.h"

/* kind, name, how many numbers it has. The numbers, where (a, b) is a range that is drawn from:
 *   FIT             the output's size, as hl_fit says
 *   RESIZE          height, width; width 0: the shorter side becomes `height`
 *   CENTER_CROP     height, width
 *   CROP            height, width, padding left, top, right, bottom, whether to pad what is
 * smaller, hl_border RESIZED_CROP    height, width, share of the area (a, b), width / height (a, b)
 *   AFFINE          degrees clockwise (a, b), translation across and down at most (shares of the
 *                   image), scale (a, b), shear in degrees across (a, b) and down (a, b)
 *   PERSPECTIVE     distortion
 *   JITTER          factors of brightness, contrast, saturation (a, b); turn of the hue (a, b)
 *   BLUR            size across and down, sigma (a, b)
 *   NOISE           mean and sigma, white being 1
 *   ERASE           share of the area (a, b), height / width (a, b), whether to fill with random
 *                   levels, levels of up to four channels
 *   TRIVIAL         number of magnitudes
 *   RAND            number of operations, magnitude, number of magnitudes */
#define HL_AUGMENT_KINDS(X)                                                                        \
    X(FIT, "fit", 0)                                                                               \
    X(RESIZE, "resize", 2)                                                                         \
    X(CENTER_CROP, "center_crop", 2)                                                               \
    X(CROP, "random_crop", 8)                                                                      \
    X(RESIZED_CROP, "random_resized_crop", 6)                                                      \
    X(FLIP_X, "random_horizontal_flip", 0)                                                         \
    X(FLIP_Y, "random_vertical_flip", 0)                                                           \
    X(AFFINE, "random_affine", 10)                                                                 \
    X(PERSPECTIVE, "random_perspective", 1)                                                        \
    X(JITTER, "color_jitter", 8)                                                                   \
    X(GREY, "random_grayscale", 0)                                                                 \
    X(BLUR, "gaussian_blur", 4)                                                                    \
    X(NOISE, "gaussian_noise", 2)                                                                  \
    X(ERASE, "random_erasing", 9)                                                                  \
    X(TRIVIAL, "trivial_augment_wide", 1)                                                          \
    X(RAND, "rand_augment", 3)

typedef enum hl_augment_kind {
#define X(kind, name, n_numbers) HL_AUGMENT_##kind,
    HL_AUGMENT_KINDS(X)
#undef X
        HL_AUGMENT_KIND_COUNT
} hl_augment_kind;
const char *hl_augment_kind_name(hl_augment_kind kind);
int32_t hl_augment_kind_numbers(hl_augment_kind kind);
/* HL_AUGMENT_KIND_COUNT: none has this name. */
hl_augment_kind hl_augment_kind_find(const char *name);

enum { HL_AUGMENT_STEPS_MAX = 32, HL_AUGMENT_NUMBERS_MAX = 10 };
/* Of an output's side, a crop's, a padding. */
#define HL_AUGMENT_SIZE_MAX 16384

typedef struct hl_augment_step {
    hl_augment_kind kind;
    double probability; /* of what has none of its own: 1 */
    double number[HL_AUGMENT_NUMBERS_MAX];
} hl_augment_step;

/* How an image gets the output's size where no step gives it one (before all steps then), or where
 * the last one that does gives another (behind them). */
typedef enum hl_fit {
    HL_FIT_SQUASH, /* both sides for themselves */
    HL_FIT_CROP,   /* the output is covered, and the centre cut out */
    HL_FIT_PAD,    /* the image is in the middle, and the fill around it */
    HL_FIT_COUNT
} hl_fit;

typedef struct hl_augment {
    int64_t height, width;
    hl_fit fit;
    hl_filter filter;
    uint8_t fill[HL_IMAGE_CHANNELS_MAX];
    uint64_t seed;
    int32_t n_steps;
    hl_augment_step steps[HL_AUGMENT_STEPS_MAX];
} hl_augment;

/* ConfigError with the step's name: sizes, ranges and probabilities that no image can have. The
 * other functions want an augmentation that passed. */
hl_status hl_augment_check(const hl_augment *augment);

/* Where the output lies in the source. */
typedef struct hl_geometry {
    int64_t src_height, src_width;
    int64_t height, width;
    double matrix[9]; /* from the output's continuous coordinates to the source's, by rows */
    hl_border border; /* of pixels beyond the source; masks have it too */
    double resized_down, resized_across; /* by how much sizes, crops and fits reduce: a warp is
                                            smoothed by so much, as they are in boxes */
    bool is_box; /* no rotation, shear nor perspective: then box says the same */
    hl_box box;
} hl_geometry;

/* For a source of this size. DataError when a random crop is larger than the padded image. */
hl_status hl_augment_geometry(const hl_augment *augment, const hl_augment_key *key,
                              int64_t src_height, int64_t src_width, hl_geometry *out);
/* How many pixels of the source one of the output's spans, down and across, at its centre: a
 * decoder may reduce by so much, if it is above 1. */
void hl_geometry_reduction(const hl_geometry *geometry, double *out_down, double *out_across);

/* Renders an image into dst, uint8 (channels, height, width). src may have been decoded at another
 * size than the geometry's source: it is the same picture. scratch is the calling thread's. */
hl_status hl_augment_apply(const hl_augment *augment, const hl_augment_key *key,
                           const hl_geometry *geometry, const hl_image *src, hl_scratch *scratch,
                           uint8_t *dst);

/* The same for labels, by the nearest one, at whatever size they are: fill is the label of what
 * lies beyond the source. dst has geometry's height and width. */
void hl_geometry_labels(const hl_geometry *geometry, const hl_labels *src, const void *fill,
                        const hl_labels *dst);
/* n points (x, y) of the source in pixels, the centre of its first pixel being (0, 0), to the
 * output's; inside[i] is false for what it does not show. Where no place of the output shows a
 * point's plane (behind a perspective) the coordinates are NaN. */
void hl_geometry_points(const hl_geometry *geometry, const float *points, int64_t n, float *out,
                        bool *inside);
/* Whether left and right are exchanged: one flip mirrors, two of them turn. */
bool hl_geometry_is_mirrored(const hl_geometry *geometry);

/* Whether a step happens: the first draw of its stream, which is ready for the next ones. For
 * geometry.c and augment.c. */
bool hl_augment_begin(const hl_augment *augment, const hl_augment_key *key, int32_t step,
                      hl_draws *out_draws);

/* For them too: how many operations a TRIVIAL or RAND step does, one after the other (0: it is of
 * another kind), and the next one. */
int32_t hl_augment_auto_count(const hl_augment_step *step);
hl_auto_draw hl_augment_auto_next(const hl_augment_step *step, hl_draws *draws);

#endif
