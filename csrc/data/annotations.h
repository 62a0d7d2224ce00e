/* Annotations of images: masks (a class at each pixel) and points, put through the geometry of the
 * image that they belong to.
 *
 * A mask is a file whose stored numbers are class ids. Its reader gives them as an hl_image without
 * colours: `channels` is the bytes of an id then, 1 or 2, in the machine's order. They are checked
 * once, where the file is decoded and over all of it, so that a wrong id is found whichever part an
 * epoch looks at, and stored in the dtype of the batch: what is cached and resampled is class ids,
 * the ignored one among them. Rejected: to check what a batch shows, which finds the same file good
 * in one epoch and bad in the next.
 *
 * Points are in pixels of the image as it is stored upright, the centre of its first pixel being
 * (0, 0). Where the geometry mirrors the image, a point shows what its partner was: the left eye of
 * a face in a mirror is the right one. */
#ifndef HL_DATA_ANNOTATIONS_H
#define HL_DATA_ANNOTATIONS_H

#include "data/augment.h"
#include "data/decode.h"
#include "ir/dtype.h"

enum {
    HL_CLASS_IGNORED = -100,     /* counts in no loss and no metric */
    HL_MASK_CLASSES_MAX = 65536, /* what 16 bits tell apart */
    HL_POINTS_MAX = 4096,
    HL_POINT_NUMBERS = 3, /* x, y, and above 0 where it is labelled */
};

typedef struct hl_annotations {
    const char *masks; /* paths, as those of the images; borrowed; NULL: there are no masks */
    size_t masks_bytes;
    hl_image_reader reader;  /* of masks */
    int64_t n_classes;       /* ids are below it */
    int64_t ignored_id;      /* in the files, becomes HL_CLASS_IGNORED; -1: none does */
    int32_t n_points;        /* 0: there are no points */
    const float *points;     /* (n, n_points, HL_POINT_NUMBERS), borrowed */
    const int32_t *partners; /* (n_points,), borrowed: itself for a point that has none */
} hl_annotations;

/* ConfigError for what makes no sense. */
hl_status hl_annotations_check(const hl_annotations *annotations);
/* The smallest that holds the class ids and HL_CLASS_IGNORED. */
hl_dtype hl_mask_dtype(int64_t n_classes);

/* mask becomes class ids of hl_mask_dtype, its `channels` the bytes of one; ids is memory for what
 * the reader gives. DataError for a file that is no mask, or has an id that is no class. `path` is
 * for the reader. */
hl_status hl_mask_decode(const hl_annotations *annotations, const char *path,
                         const hl_encoded *file, hl_image *ids, hl_image *mask);
/* Into dst, (height, width) of the geometry; NULL: whether it fits. DataError unless it has the
 * size of the image. */
hl_status hl_mask_render(const hl_geometry *geometry, const hl_image *mask, void *dst);
/* n_points times x, y, 1 in pixels of the output; 0, 0, 0 for what is not labelled or not shown. */
void hl_points_render(const hl_annotations *annotations, const hl_geometry *geometry, int64_t row,
                      float *dst);
/* n ids that count nothing. */
void hl_mask_blank(hl_dtype dtype, int64_t n, void *dst);

#endif
