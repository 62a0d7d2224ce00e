/* Augmentation of one image: how a description comes from Python (hotloop/data/augment.py packs
 * it), and a function that runs it, for tests and for looking at what it does. */
#include <string.h>

#include "data/augment.h"
#include "numpy_api.h"
#include "objects.h"

/* ---- descriptions ---------------------------------------------------------------------------- */

/* Exactly n objects of a sequence, as a new tuple. */
static PyObject *take_items(hl_py_state *state, PyObject *object, const char *what, Py_ssize_t n)
{
    PyObject *items = hl_py_sequence(object, what);
    if (!items || PyTuple_Size(items) == n) return items;
    hl_py_fail(state, HL_ERROR_CONFIG, "%s: must have %zd entries, got %zd", what, n,
               PyTuple_Size(items));
    Py_DECREF(items);
    return NULL;
}

static bool read_numbers(hl_py_state *state, PyObject *object, hl_augment_step *out)
{
    const char *name = hl_augment_kind_name(out->kind);
    Py_ssize_t n = hl_augment_kind_numbers(out->kind);
    PyObject *numbers = take_items(state, object, name, n);
    bool good = numbers != NULL;
    for (Py_ssize_t i = 0; good && i < n; i++)
        good = hl_py_finite(state, PyTuple_GetItem(numbers, i), name, &out->number[i]);
    Py_XDECREF(numbers);
    return good;
}

/* (name of the kind, probability, numbers). */
static bool read_step(hl_py_state *state, PyObject *object, hl_augment_step *out)
{
    const char *name;
    PyObject *parts = take_items(state, object, "steps", 3);
    bool good = parts && hl_py_word(state, PyTuple_GetItem(parts, 0), "steps", &name);
    if (good) {
        out->kind = hl_augment_kind_find(name);
        good = out->kind != HL_AUGMENT_KIND_COUNT;
        if (!good) hl_py_fail(state, HL_ERROR_CONFIG, "steps: there is no kind %s", name);
    }
    good = good &&
           hl_py_finite(state, PyTuple_GetItem(parts, 1), hl_augment_kind_name(out->kind),
                        &out->probability) &&
           read_numbers(state, PyTuple_GetItem(parts, 2), out);
    Py_XDECREF(parts);
    return good;
}

static bool read_steps(hl_py_state *state, PyObject *object, hl_augment *out)
{
    PyObject *steps = hl_py_sequence(object, "steps");
    if (!steps) return false;
    Py_ssize_t n = PyTuple_Size(steps);
    bool good = n <= HL_AUGMENT_STEPS_MAX;
    if (!good)
        hl_py_fail(state, HL_ERROR_CONFIG, "augment: must have %d steps at most, got %zd",
                   HL_AUGMENT_STEPS_MAX, n);
    for (Py_ssize_t i = 0; good && i < n; i++)
        good = read_step(state, PyTuple_GetItem(steps, i), &out->steps[i]);
    out->n_steps = (int32_t)n;
    Py_DECREF(steps);
    return good;
}

static bool read_fill(hl_py_state *state, PyObject *object, uint8_t out[HL_IMAGE_CHANNELS_MAX])
{
    int64_t fill[HL_IMAGE_CHANNELS_MAX];
    int32_t n;
    if (!hl_py_ints(state, object, "fill", HL_IMAGE_CHANNELS_MAX, fill, &n)) return false;
    for (int32_t i = 0; i < HL_IMAGE_CHANNELS_MAX; i++) {
        int64_t level = n ? fill[i < n ? i : n - 1] : 0;
        if (level < 0 || level > 255) {
            hl_py_fail(state, HL_ERROR_CONFIG, "fill: must be from 0 to 255, got %lld",
                       (long long)level);
            return false;
        }
        out[i] = (uint8_t)level;
    }
    return true;
}

bool hl_py_augment_read(hl_py_state *state, PyObject *object, hl_augment *out)
{
    int64_t fit, filter;
    memset(out, 0, sizeof *out);
    PyObject *parts = take_items(state, object, "augment", 7);
    bool good =
        parts &&
        hl_py_int(state, PyTuple_GetItem(parts, 0), "height", 1, HL_AUGMENT_SIZE_MAX,
                  &out->height) &&
        hl_py_int(state, PyTuple_GetItem(parts, 1), "width", 1, HL_AUGMENT_SIZE_MAX, &out->width) &&
        hl_py_int(state, PyTuple_GetItem(parts, 2), "fit", 0, HL_FIT_COUNT - 1, &fit) &&
        hl_py_int(state, PyTuple_GetItem(parts, 3), "interpolation", 0, HL_FILTER_COUNT - 1,
                  &filter) &&
        read_fill(state, PyTuple_GetItem(parts, 4), out->fill) &&
        hl_py_seed(state, PyTuple_GetItem(parts, 5), "seed", &out->seed) &&
        read_steps(state, PyTuple_GetItem(parts, 6), out);
    Py_XDECREF(parts);
    if (!good) return false;
    out->fit = (hl_fit)fit;
    out->filter = (hl_filter)filter;
    hl_status status = hl_augment_check(out);
    return status == HL_OK || hl_py_raise(state, status) != NULL;
}

/* (epoch, row, is_training). */
static bool read_key(hl_py_state *state, PyObject *object, hl_augment_key *out)
{
    PyObject *parts = take_items(state, object, "key", 3);
    bool good = parts && hl_py_seed(state, PyTuple_GetItem(parts, 0), "epoch", &out->epoch) &&
                hl_py_int(state, PyTuple_GetItem(parts, 1), "row", 0, INT64_MAX, &out->row) &&
                hl_py_bool(PyTuple_GetItem(parts, 2), "is_training", &out->is_training);
    Py_XDECREF(parts);
    return good;
}

/* ---- one image ------------------------------------------------------------------------------- */

/* What is given and made; all of it may be missing but the image. */
typedef struct sample {
    hl_py_array image, labels, points;
    hl_geometry geometry;
    PyObject *out_image, *out_labels, *out_points, *out_inside;
} sample;

static bool check_array(hl_py_state *state, const hl_py_array *array, bool is_good,
                        const char *rule)
{
    char got[HL_TYPE_TEXT];
    hl_type type = {array->dtype, array->shape};
    if (is_good) return true;
    hl_py_fail(state, HL_ERROR_SHAPE, "%s, got %s", rule, hl_type_format(&type, got));
    return false;
}

static bool read_image(hl_py_state *state, PyObject *object, sample *s)
{
    if (!hl_py_array_read(state, object, "image", HL_DTYPE_COUNT, &s->image)) return false;
    const int64_t *dim = s->image.shape.dim;
    return check_array(state, &s->image,
                       s->image.dtype == HL_DTYPE_U8 && s->image.shape.rank == 3 && dim[0] > 0 &&
                           dim[1] > 0 && dim[2] > 0 && dim[2] <= HL_IMAGE_CHANNELS_MAX &&
                           dim[0] <= HL_IMAGE_PIXELS_MAX / dim[1],
                       "image: must be uint8 of shape (height, width, 1 to 4)");
}

static bool read_labels(hl_py_state *state, PyObject *object, sample *s)
{
    if (object == Py_None) return true;
    if (!hl_py_array_read(state, object, "labels", HL_DTYPE_COUNT, &s->labels)) return false;
    return check_array(state, &s->labels,
                       strchr("iu", hl_dtype_kind(s->labels.dtype)) && s->labels.shape.rank == 2 &&
                           s->labels.n > 0,
                       "labels: must be integers of shape (height, width)");
}

static bool read_points(hl_py_state *state, PyObject *object, sample *s)
{
    if (object == Py_None) return true;
    if (!hl_py_array_read(state, object, "points", HL_DTYPE_COUNT, &s->points)) return false;
    return check_array(state, &s->points,
                       s->points.dtype == HL_DTYPE_F32 && s->points.shape.rank == 2 &&
                           s->points.shape.dim[1] == 2,
                       "points: must be float32 of shape (n, 2)");
}

static PyObject *make_image(hl_py_state *state, const hl_augment *augment,
                            const hl_augment_key *key, const sample *s)
{
    const int64_t *dim = s->image.shape.dim;
    hl_image src = {dim[0], dim[1], (int32_t)dim[2], (uint8_t *)s->image.data, 0};
    hl_shape shape = {.rank = 3, .dim = {dim[2], s->geometry.height, s->geometry.width}};
    hl_scratch scratch = {0};
    hl_status status;
    void *data;
    PyObject *made = hl_py_array_new(HL_DTYPE_U8, &shape, &data);
    if (!made) return NULL;
    HL_PY_WITHOUT_GIL(status = hl_augment_apply(augment, key, &s->geometry, &src, &scratch, data));
    hl_scratch_deinit(&scratch);
    if (status == HL_OK) return made;
    hl_py_raise(state, status);
    Py_DECREF(made);
    return NULL;
}

static PyObject *make_labels(const sample *s)
{
    static const uint8_t zero[8];
    if (!s->labels.object) return Py_NewRef(Py_None);
    hl_shape shape = {.rank = 2, .dim = {s->geometry.height, s->geometry.width}};
    size_t bytes = hl_dtype_bytes(s->labels.dtype);
    void *data;
    PyObject *made = hl_py_array_new(s->labels.dtype, &shape, &data);
    if (!made) return NULL;
    const int64_t *dim = s->labels.shape.dim;
    hl_labels src = {(void *)s->labels.data, dim[0], dim[1], bytes};
    hl_labels dst = {data, s->geometry.height, s->geometry.width, bytes};
    hl_geometry_labels(&s->geometry, &src, zero, &dst);
    return made;
}

/* Both arrays or None twice; false with an exception. */
static bool make_points(sample *s)
{
    if (!s->points.object) {
        s->out_points = Py_NewRef(Py_None);
        s->out_inside = Py_NewRef(Py_None);
        return true;
    }
    hl_shape shape = hl_shape_1d(s->points.shape.dim[0]);
    void *points, *inside;
    s->out_points = hl_py_array_new(HL_DTYPE_F32, &s->points.shape, &points);
    s->out_inside = s->out_points ? hl_py_array_new(HL_DTYPE_BOOL, &shape, &inside) : NULL;
    if (!s->out_inside) return false;
    hl_geometry_points(&s->geometry, s->points.data, shape.dim[0], points, inside);
    return true;
}

static PyObject *make_matrix(const hl_geometry *geometry)
{
    hl_shape shape = {.rank = 2, .dim = {3, 3}};
    void *data;
    PyObject *made = hl_py_array_new(HL_DTYPE_F64, &shape, &data);
    if (made) memcpy(data, geometry->matrix, sizeof geometry->matrix);
    return made;
}

static PyObject *make_sample(hl_py_state *state, const hl_augment *augment,
                             const hl_augment_key *key, sample *s)
{
    PyObject *matrix = NULL, *made = NULL;
    s->out_image = make_image(state, augment, key, s);
    s->out_labels = s->out_image ? make_labels(s) : NULL;
    if (s->out_labels && make_points(s) && (matrix = make_matrix(&s->geometry)))
        made = PyTuple_Pack(5, s->out_image, s->out_labels, s->out_points, s->out_inside, matrix);
    Py_XDECREF(s->out_image);
    Py_XDECREF(s->out_labels);
    Py_XDECREF(s->out_points);
    Py_XDECREF(s->out_inside);
    Py_XDECREF(matrix);
    return made;
}

/* The size of the source that the image stands for: its own for None. */
static bool read_source(hl_py_state *state, PyObject *object, const sample *s, int64_t out[2])
{
    int32_t n;
    memcpy(out, s->image.shape.dim, 2 * sizeof *out);
    if (object == Py_None) return true;
    if (!hl_py_ints(state, object, "source", 2, out, &n)) return false;
    if (n == 2 && out[0] > 0 && out[1] > 0 && out[0] <= HL_IMAGE_PIXELS_MAX / out[1]) return true;
    hl_py_fail(state, HL_ERROR_CONFIG, "source: must be the height and width of an image");
    return false;
}

HL_PY_FAST(hl_py_augment)
{
    hl_py_state *state = hl_py_state_of_module(module);
    hl_augment augment;
    hl_augment_key key;
    int64_t source[2];
    sample s;
    memset(&s, 0, sizeof s);
    if (!hl_py_args_count("augment", n_args, 3, 6) ||
        !hl_py_augment_read(state, args[1], &augment) || !read_key(state, args[2], &key))
        return NULL;
    PyObject *made = NULL;
    if (read_image(state, args[0], &s) && read_labels(state, n_args > 3 ? args[3] : Py_None, &s) &&
        read_points(state, n_args > 4 ? args[4] : Py_None, &s) &&
        read_source(state, n_args > 5 ? args[5] : Py_None, &s, source)) {
        hl_status status = hl_augment_geometry(&augment, &key, source[0], source[1], &s.geometry);
        made =
            status == HL_OK ? make_sample(state, &augment, &key, &s) : hl_py_raise(state, status);
    }
    hl_py_array_release(&s.image);
    hl_py_array_release(&s.labels);
    hl_py_array_release(&s.points);
    return made;
}
