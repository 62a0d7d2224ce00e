/* Resampling of 8-bit images: a box of the source at another size, and a warp by a matrix.
 *
 * Coordinates are continuous: the source covers [0, width] x [0, height], and the centre of its
 * first pixel is (0.5, 0.5). A resize is separable and its filter grows with the reduction, so that
 * nothing aliases: the definition of Pillow's Image.resize(size, filter, box), whose results it
 * equals within one level (Pillow rounds between its two passes, this does not). What
 * lies around the box counts at the box's edges, as in Pillow.
 *
 * A box or a warp may reach beyond the source. An output pixel whose centre lies outside is the
 * border: the fill, or the image continued. One whose centre lies inside never mixes with the fill.
 *
 * Each output is a sum in a fixed order, element by element: the same bits on every processor. */
#ifndef HL_DATA_RESAMPLE_H
#define HL_DATA_RESAMPLE_H

#include "data/image.h"

typedef enum hl_filter {
    HL_FILTER_NEAREST,
    HL_FILTER_BILINEAR, /* a triangle */
    HL_FILTER_BICUBIC,  /* Keys' with a = -0.5 */
    HL_FILTER_COUNT
} hl_filter;

/* What lies beyond the source, for the row a b c d. */
typedef enum hl_border {
    HL_BORDER_FILL,      /* 0 0 | a b c d | 0 0 */
    HL_BORDER_EDGE,      /* a a | a b c d | d d */
    HL_BORDER_REFLECT,   /* c b | a b c d | c b */
    HL_BORDER_SYMMETRIC, /* b a | a b c d | d c */
    HL_BORDER_COUNT
} hl_border;
/* The index of [0, n) that stands at index i; with HL_BORDER_FILL i must lie there itself. */
int64_t hl_border_index(int64_t i, int64_t n, hl_border border);

enum { HL_IMAGE_CHANNELS_MAX = 4 };

typedef struct hl_resampling {
    hl_filter filter;
    hl_border border;
    uint8_t fill[HL_IMAGE_CHANNELS_MAX];
} hl_resampling;

/* Of the source, in its continuous coordinates; x0 < x1 and y0 < y1. */
typedef struct hl_box {
    double x0, y0, x1, y1;
    bool mirror_x, mirror_y; /* the output is the box from right to left, from bottom to top */
} hl_box;

/* Where pixels go, by distances in bytes: planes, or a pixel's channels beside each other. */
typedef struct hl_raster {
    uint8_t *data;
    int64_t height, width;
    int64_t row, pixel, channel;
} hl_raster;
hl_raster hl_raster_planes(uint8_t *data, int64_t height, int64_t width);
hl_raster hl_raster_interleaved(uint8_t *data, int64_t height, int64_t width, int32_t channels);

/* Memory that a thread keeps between images; begins as {0}. */
typedef enum hl_scratch_part {
    HL_SCRATCH_TABLES,  /* of a resize */
    HL_SCRATCH_REDUCED, /* pixels that a warp reads */
    HL_SCRATCH_COLOUR,  /* what a colour step keeps beside its planes */
    HL_SCRATCH_PARTS
} hl_scratch_part;
typedef struct hl_scratch {
    void *memory[HL_SCRATCH_PARTS];
    size_t bytes[HL_SCRATCH_PARTS];
} hl_scratch;
/* At least so many bytes of this part; what was there is lost. */
hl_status hl_scratch_reserve(hl_scratch *scratch, hl_scratch_part part, size_t bytes);
void hl_scratch_deinit(hl_scratch *scratch);

/* ShapeError for an output without pixels, for a box that is empty, not finite or, where the
 * border is no fill, reaches more than HL_RESAMPLE_REACH beyond the source. */
#define HL_RESAMPLE_REACH ((double)(1 << 24))
hl_status hl_image_resize(const hl_image *src, const hl_box *box, const hl_resampling *how,
                          hl_scratch *scratch, const hl_raster *dst);

/* The output pixel with its centre at (x, y) is the source at matrix * (x, y, 1), by rows; where
 * the third coordinate is not above 0, the border. By HL_FILTER_NEAREST or between four pixels:
 * bicubic is for resizes. Reductions alias: resize before. */
void hl_image_warp(const hl_image *src, const double matrix[9], const hl_resampling *how,
                   const hl_raster *dst);

/* The same by the nearest pixel for elements of 1, 2, 4 or 8 bytes, (height, width) without gaps:
 * labels. fill: one element. */
typedef struct hl_labels {
    void *data;
    int64_t height, width;
    size_t element_bytes;
} hl_labels;
void hl_labels_warp(const hl_labels *src, const double matrix[9], hl_border border,
                    const void *fill, const hl_labels *dst);

#endif
