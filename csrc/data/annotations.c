/* Annotations of images: ids that are checked, and where they lie in the output. */
#include "data/annotations.h"

#include <string.h>

hl_status hl_annotations_check(const hl_annotations *annotations)
{
    if (annotations->masks &&
        (annotations->n_classes < 1 || annotations->n_classes > HL_MASK_CLASSES_MAX))
        return hl_status_set(HL_ERROR_CONFIG, "masks: must have 1 to %d classes, got %lld",
                             HL_MASK_CLASSES_MAX, (long long)annotations->n_classes);
    if (annotations->masks && !annotations->reader.read)
        return hl_status_set(HL_ERROR_CONFIG, "masks: a reader must be there, got none");
    if (annotations->n_points < 0 || annotations->n_points > HL_POINTS_MAX)
        return hl_status_set(HL_ERROR_CONFIG, "points: must be at most %d, got %d", HL_POINTS_MAX,
                             annotations->n_points);
    for (int32_t i = 0; i < annotations->n_points; i++)
        if (annotations->partners[i] < 0 || annotations->partners[i] >= annotations->n_points)
            return hl_status_set(HL_ERROR_CONFIG, "partners: must be points, from 0 to %d, got %d",
                                 annotations->n_points - 1, annotations->partners[i]);
    return HL_OK;
}

/* ---- masks ----------------------------------------------------------------------------------- */

hl_dtype hl_mask_dtype(int64_t n_classes)
{
    if (n_classes <= INT8_MAX + 1) return HL_DTYPE_I8;
    return n_classes <= INT16_MAX + 1 ? HL_DTYPE_I16 : HL_DTYPE_I32;
}

static int64_t read_id(const hl_image *ids, int64_t i)
{
    uint16_t wide;
    if (ids->channels == 1) return ids->pixels[i];
    memcpy(&wide, ids->pixels + 2 * i, sizeof wide);
    return wide;
}

static void write_class(hl_dtype dtype, void *dst, int64_t i, int32_t class_id)
{
    if (dtype == HL_DTYPE_I8)
        ((int8_t *)dst)[i] = (int8_t)class_id;
    else if (dtype == HL_DTYPE_I16)
        ((int16_t *)dst)[i] = (int16_t)class_id;
    else
        ((int32_t *)dst)[i] = class_id;
}

static hl_status fail_id(const hl_annotations *annotations, const hl_image *ids, int64_t i)
{
    return hl_status_set(HL_ERROR_DATA,
                         "its class ids must be below %lld, got %lld at row %lld, column %lld",
                         (long long)annotations->n_classes, (long long)read_id(ids, i),
                         (long long)(i / ids->width), (long long)(i % ids->width));
}

hl_status hl_mask_decode(const hl_annotations *annotations, const char *path,
                         const hl_encoded *file, hl_image *ids, hl_image *mask)
{
    const hl_image_reader *reader = &annotations->reader;
    hl_image_request request = {0, 0, 0}; /* as wide as its ids are, as large as it is stored */
    hl_dtype dtype = hl_mask_dtype(annotations->n_classes);
    HL_TRY(reader->read(reader->context, path, file, &request, ids));
    if (ids->channels != 1 && ids->channels != 2)
        return hl_status_set(HL_ERROR_DATA, "its reader must give ids of 1 or 2 bytes, got %d",
                             ids->channels);
    HL_TRY(hl_image_shape(mask, ids->height, ids->width, (int32_t)hl_dtype_bytes(dtype)));
    int64_t n = ids->height * ids->width;
    for (int64_t i = 0; i < n; i++) {
        int64_t id = read_id(ids, i);
        bool is_ignored = id == annotations->ignored_id;
        if (!is_ignored && id >= annotations->n_classes) return fail_id(annotations, ids, i);
        write_class(dtype, mask->pixels, i, is_ignored ? HL_CLASS_IGNORED : (int32_t)id);
    }
    return HL_OK;
}

hl_status hl_mask_render(const hl_geometry *geometry, const hl_image *mask, void *dst)
{
    if (mask->height != geometry->src_height || mask->width != geometry->src_width)
        return hl_status_set(
            HL_ERROR_DATA,
            "must have the size of its image, %lld x %lld (height x width), got %lld x %lld",
            (long long)geometry->src_height, (long long)geometry->src_width,
            (long long)mask->height, (long long)mask->width);
    if (!dst) return HL_OK;
    size_t bytes = (size_t)mask->channels;
    int32_t fill = 0; /* one element, of whatever size */
    hl_mask_blank(bytes == 1 ? HL_DTYPE_I8 : bytes == 2 ? HL_DTYPE_I16 : HL_DTYPE_I32, 1, &fill);
    hl_labels src = {mask->pixels, mask->height, mask->width, bytes};
    hl_labels out = {dst, geometry->height, geometry->width, bytes};
    hl_geometry_labels(geometry, &src, &fill, &out);
    return HL_OK;
}

void hl_mask_blank(hl_dtype dtype, int64_t n, void *dst)
{
    for (int64_t i = 0; i < n; i++) write_class(dtype, dst, i, HL_CLASS_IGNORED);
}

/* ---- points ---------------------------------------------------------------------------------- */

void hl_points_render(const hl_annotations *annotations, const hl_geometry *geometry, int64_t row,
                      float *dst)
{
    int64_t n = annotations->n_points;
    const float *points = annotations->points + row * n * HL_POINT_NUMBERS;
    bool is_mirrored = hl_geometry_is_mirrored(geometry);
    for (int64_t i = 0; i < n; i++, dst += HL_POINT_NUMBERS) {
        const float *point =
            points + HL_POINT_NUMBERS * (is_mirrored ? annotations->partners[i] : i);
        bool is_shown = false;
        if (point[2] > 0) hl_geometry_points(geometry, point, 1, dst, &is_shown);
        if (!is_shown) dst[0] = dst[1] = 0;
        dst[2] = is_shown;
    }
}
