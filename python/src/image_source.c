/* Image files for Python: sources of them, one file decoded, what decodes.
 *
 * What TurboJPEG does not decode goes to a reader, a function of Python's: reader(name, data,
 * channels, min_height, min_width) gives uint8 of shape (height, width, channels), upright, and may
 * give it smaller than it is stored as long as both sides are at least so large (0: as stored). Of
 * masks, where channels is 0, it gives the bytes of ids, (height, width, 1 or 2). It runs on loader
 * threads with the GIL, and its array is copied. What it raises is a DataError of that file; a
 * ConfigError (nothing is there that decodes) and a MemoryError stay what they are. */
#include <string.h>

#include "base/alloc.h"
#include "data/image_source.h"
#include "numpy_api.h"
#include "objects.h"

/* ---- the reader ------------------------------------------------------------------------------ */

typedef struct py_reader {
    hl_py_state *state;
    PyObject *function; /* borrowed from who keeps it */
} py_reader;

static PyObject *call_reader(const py_reader *reader, const char *name, const hl_encoded *file,
                             const hl_image_request *request)
{
    PyObject *made = NULL, *text = PyUnicode_DecodeFSDefault(name);
    PyObject *data = PyBytes_FromStringAndSize((const char *)file->data, (Py_ssize_t)file->bytes);
    if (text && data)
        made = PyObject_CallFunction(reader->function, "OOiLL", text, data, (int)request->channels,
                                     (long long)request->min_height, (long long)request->min_width);
    Py_XDECREF(text);
    Py_XDECREF(data);
    return made;
}

/* False with an exception. */
static bool copy_image(const py_reader *reader, PyObject *object, const hl_image_request *request,
                       hl_image *image)
{
    hl_py_array array;
    char got[HL_TYPE_TEXT];
    if (!hl_py_array_read(reader->state, object, "reader", HL_DTYPE_COUNT, &array)) return false;
    hl_type type = {array.dtype, array.shape};
    const int64_t *dim = array.shape.dim;
    bool good = type.dtype == HL_DTYPE_U8 && type.shape.rank == 3;
    const char *last = request->channels == 3 ? "3" : request->channels ? "1" : "1 or 2";
    if (good && request->channels)
        good = dim[2] == request->channels;
    else if (good)
        good = dim[2] == 1 || dim[2] == 2;
    if (!good)
        hl_py_fail(reader->state, HL_ERROR_SHAPE,
                   "reader: must give uint8 (height, width, %s), got %s", last,
                   hl_type_format(&type, got));
    if (good) {
        hl_status status = hl_image_shape(image, dim[0], dim[1], (int32_t)dim[2]);
        good = status == HL_OK || hl_py_raise(reader->state, status) != NULL;
    }
    if (good) memcpy(image->pixels, array.data, hl_type_bytes(&type));
    hl_py_array_release(&array);
    return good;
}

static hl_status keep_reader_exception(hl_py_state *state)
{
    hl_status code = HL_ERROR_DATA;
    if (PyErr_ExceptionMatches(PyExc_MemoryError)) code = HL_ERROR_MEMORY;
    if (hl_py_is_raised(state, HL_ERROR_CONFIG)) code = HL_ERROR_CONFIG;
    return hl_py_keep_exception(state, code);
}

/* The read of hl_image_reader. */
static hl_status read_by_function(void *context, const char *name, const hl_encoded *file,
                                  const hl_image_request *request, hl_image *image)
{
    const py_reader *reader = context;
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *made = call_reader(reader, name, file, request);
    bool good = made && copy_image(reader, made, request, image);
    hl_status status = good ? HL_OK : keep_reader_exception(reader->state);
    Py_XDECREF(made);
    PyGILState_Release(gil);
    return status;
}

/* None: there is none. */
static bool find_reader(hl_py_state *state, PyObject *object, py_reader *reader,
                        hl_image_reader *out)
{
    *reader = (py_reader){state, object};
    *out = (hl_image_reader){NULL, NULL};
    if (!object || object == Py_None) return true;
    if (!PyCallable_Check(object)) {
        PyErr_SetString(PyExc_TypeError, "reader: must be callable or None");
        return false;
    }
    *out = (hl_image_reader){read_by_function, reader};
    return true;
}

/* ---- one file -------------------------------------------------------------------------------- */

/* A path or bytes; both keep `object`. */
typedef struct py_file {
    PyObject *object;
    const char *path; /* NULL: bytes */
    hl_encoded file;
} py_file;

static bool open_file(PyObject *object, py_file *out)
{
    *out = (py_file){NULL};
    if (PyBytes_Check(object)) {
        out->object = Py_NewRef(object);
        out->file.data = (uint8_t *)PyBytes_AsString(object);
        out->file.bytes = (size_t)PyBytes_Size(object);
        return true;
    }
    if (!PyUnicode_FSConverter(object, &out->object)) return false;
    out->path = PyBytes_AsString(out->object);
    return true;
}

static void close_file(py_file *file)
{
    if (file->path) hl_encoded_deinit(&file->file);
    Py_XDECREF(file->object);
}

static hl_status load_header(py_file *file, hl_image_header *out_header)
{
    if (file->path) HL_TRY(hl_encoded_read(file->path, HL_IMAGE_FILE_BYTES_MAX, &file->file));
    return hl_image_header_read(&file->file, out_header);
}

/* With the file's name in front, if it has one. */
static PyObject *raise_for(hl_py_state *state, const py_file *file, hl_status status)
{
    if (file->path) status = hl_status_context(status, "image %s", file->path);
    return hl_py_raise(state, status);
}

HL_PY_FAST(hl_py_image_header)
{
    hl_py_state *state = hl_py_state_of_module(module);
    hl_image_header header;
    hl_status status;
    py_file file;
    if (!hl_py_args_count("image_header", n_args, 1, 1) || !open_file(args[0], &file)) return NULL;
    HL_PY_WITHOUT_GIL(status = load_header(&file, &header));
    PyObject *made = status != HL_OK
                         ? raise_for(state, &file, status)
                         : Py_BuildValue("(sLL)", hl_image_format_name(header.format),
                                         (long long)header.height, (long long)header.width);
    close_file(&file);
    return made;
}

static hl_status decode_file(py_file *file, const hl_image_reader *reader,
                             const hl_image_request *request, hl_image *image)
{
    hl_image_header header;
    hl_jpeg *jpeg;
    HL_TRY(load_header(file, &header));
    HL_TRY(hl_jpeg_create(&jpeg));
    hl_image_decoder decoder = {jpeg, *reader};
    hl_status status = hl_image_decode(&decoder, file->path ? file->path : "", &file->file, &header,
                                       request, image);
    hl_jpeg_destroy(jpeg);
    return status;
}

static PyObject *make_array(const hl_image *image)
{
    hl_shape shape = {3, {image->height, image->width, image->channels}};
    void *data;
    PyObject *array = hl_py_array_new(HL_DTYPE_U8, &shape, &data);
    if (array) memcpy(data, image->pixels, (size_t)(shape.dim[0] * shape.dim[1] * shape.dim[2]));
    return array;
}

static bool read_request(hl_py_state *state, PyObject *const *args, Py_ssize_t n_args,
                         hl_image_request *out)
{
    int64_t channels = 3, height = 0, width = 0;
    if ((n_args > 1 && !hl_py_int(state, args[1], "channels", 1, 3, &channels)) ||
        (n_args > 2 && !hl_py_int(state, args[2], "min_height", 0, INT32_MAX, &height)) ||
        (n_args > 3 && !hl_py_int(state, args[3], "min_width", 0, INT32_MAX, &width)))
        return false;
    *out = (hl_image_request){(int32_t)channels, height, width};
    if (channels != 2) return true;
    hl_py_fail(state, HL_ERROR_CONFIG, "channels: must be 1 or 3, got 2");
    return false;
}

HL_PY_FAST(hl_py_decode_image)
{
    hl_py_state *state = hl_py_state_of_module(module);
    hl_image_request request;
    hl_image_reader reader;
    py_reader context;
    hl_image image = {0};
    hl_status status;
    py_file file;
    if (!hl_py_args_count("decode_image", n_args, 1, 5) ||
        !read_request(state, args, n_args, &request) ||
        !find_reader(state, n_args > 4 ? args[4] : NULL, &context, &reader) ||
        !open_file(args[0], &file))
        return NULL;
    HL_PY_WITHOUT_GIL(status = decode_file(&file, &reader, &request, &image));
    PyObject *made = status == HL_OK ? make_array(&image) : raise_for(state, &file, status);
    hl_image_deinit(&image);
    close_file(&file);
    return made;
}

PyObject *hl_py_image_decoder(PyObject *module, PyObject *unused)
{
    (void)unused;
    hl_py_state *state = hl_py_state_of_module(module);
    hl_jpeg *jpeg;
    hl_status status = hl_jpeg_create(&jpeg);
    if (status != HL_OK) return hl_py_raise(state, status);
    const char *why_not = hl_jpeg_why_not(jpeg);
    PyObject *made = PyDict_New();
    if (!made ||
        !hl_py_dict_put(made, "version", hl_py_from_text(why_not ? NULL : hl_jpeg_version(jpeg))) ||
        !hl_py_dict_put(made, "path", hl_py_from_text(why_not ? NULL : hl_jpeg_path(jpeg))) ||
        !hl_py_dict_put(made, "why_not", hl_py_from_text(why_not)))
        Py_CLEAR(made);
    hl_jpeg_destroy(jpeg);
    return made;
}

/* ---- sources --------------------------------------------------------------------------------- */

/* What a Source of this kind has made. */
typedef struct image_files {
    hl_image_source *source;
    py_reader reader, mask_reader;
    hl_py_array points, partners;
    hl_py_array companions[HL_SOURCE_FIELDS_MAX]; /* released with the GIL, as the others */
    hl_py_array stored, pixels;
} image_files;

static void destroy_files(void *made)
{
    image_files *files = made;
    hl_image_source_destroy(files->source);
    hl_py_array_release(&files->points);
    hl_py_array_release(&files->partners);
    for (int i = 0; i < HL_SOURCE_FIELDS_MAX; i++) hl_py_array_release(&files->companions[i]);
    hl_py_array_release(&files->stored);
    hl_py_array_release(&files->pixels);
    hl_free(files);
}

/* The number of a word among `words`. */
static bool read_word(hl_py_state *state, PyObject *object, const char *what,
                      const char *const *words, int n, const char *rule, int *out)
{
    const char *word = words[0];
    if (object && !hl_py_word(state, object, what, &word)) return false;
    for (*out = 0; *out < n; (*out)++)
        if (strcmp(word, words[*out]) == 0) return true;
    hl_py_fail(state, HL_ERROR_CONFIG, "%s: must be %s, got '%s'", what, rule, word);
    return false;
}

static bool read_companion(hl_py_state *state, PyObject *object, int64_t n, hl_py_array *array,
                           hl_image_companion *out)
{
    char got[HL_TYPE_TEXT];
    if (!hl_py_array_borrow(state, object, "companions", HL_DTYPE_COUNT, array)) return false;
    hl_type type = {array->dtype, array->shape};
    if (type.shape.rank < 1 || type.shape.dim[0] != n) {
        hl_py_fail(state, HL_ERROR_SHAPE,
                   "companions: must have a row for each of %lld files, got "
                   "%s",
                   (long long)n, hl_type_format(&type, got));
        return false;
    }
    type.shape.rank--;
    memmove(type.shape.dim, type.shape.dim + 1, (size_t)type.shape.rank * sizeof *type.shape.dim);
    *out = (hl_image_companion){type, array->data};
    return true;
}

static bool read_companions(hl_py_state *state, PyObject *object, image_files *files,
                            hl_image_source_options *options, hl_image_companion *out)
{
    PyObject *arrays = object ? hl_py_sequence(object, "companions") : PyTuple_New(0);
    if (!arrays) return false;
    Py_ssize_t n = PyTuple_Size(arrays);
    bool good = n < HL_SOURCE_FIELDS_MAX;
    if (!good)
        hl_py_fail(state, HL_ERROR_CONFIG, "companions: must be at most %d, got %zd",
                   HL_SOURCE_FIELDS_MAX - 1, n);
    for (Py_ssize_t i = 0; good && i < n; i++)
        good = read_companion(state, PyTuple_GetItem(arrays, i), options->n, &files->companions[i],
                              &out[i]);
    options->n_companions = (int32_t)n;
    options->companions = out;
    Py_DECREF(arrays);
    return good;
}

/* float32 (n, n_points, 3), and int32 (n_points,). */
static bool read_points(hl_py_state *state, PyObject *points, PyObject *partners,
                        image_files *files, int64_t n, hl_annotations *out)
{
    const int64_t *dim = files->points.shape.dim;
    char got[HL_TYPE_TEXT];
    if (!hl_py_array_borrow(state, points, "points", HL_DTYPE_COUNT, &files->points) ||
        !hl_py_array_borrow(state, partners, "partners", HL_DTYPE_COUNT, &files->partners))
        return false;
    hl_type type = {files->points.dtype, files->points.shape};
    if (type.dtype == HL_DTYPE_F32 && files->partners.dtype == HL_DTYPE_I32 &&
        type.shape.rank == 3 && dim[0] == n && dim[1] <= HL_POINTS_MAX &&
        dim[2] == HL_POINT_NUMBERS && files->partners.n == dim[1]) {
        out->n_points = (int32_t)dim[1];
        out->points = files->points.data;
        out->partners = files->partners.data;
        return true;
    }
    hl_py_fail(state, HL_ERROR_SHAPE,
               "points: must be float32 (%lld, up to %d, %d), with an int32 partner for each, got "
               "%s and %lld partners",
               (long long)n, HL_POINTS_MAX, HL_POINT_NUMBERS, hl_type_format(&type, got),
               (long long)files->partners.n);
    return false;
}

enum { MASKS, MASK_READER, N_CLASSES, IGNORED_ID, POINTS, PARTNERS, N_ANNOTATIONS };

/* A tuple of these; masks and points may be None. It is kept by `self`. */
static bool read_annotations(hl_py_state *state, PyObject *object, image_files *files, int64_t n,
                             hl_annotations *out)
{
    PyObject *part[N_ANNOTATIONS];
    if (!object || object == Py_None) return true;
    if (!PyTuple_Check(object) || PyTuple_Size(object) != N_ANNOTATIONS) {
        PyErr_Format(PyExc_TypeError, "annotations: must be a tuple of %d", N_ANNOTATIONS);
        return false;
    }
    for (int i = 0; i < N_ANNOTATIONS; i++) part[i] = PyTuple_GetItem(object, i);
    if (part[POINTS] != Py_None && !read_points(state, part[POINTS], part[PARTNERS], files, n, out))
        return false;
    if (part[MASKS] == Py_None) return true;
    if (!PyBytes_Check(part[MASKS])) {
        PyErr_SetString(PyExc_TypeError, "masks: must be bytes or None");
        return false;
    }
    out->masks = PyBytes_AsString(part[MASKS]);
    out->masks_bytes = (size_t)PyBytes_Size(part[MASKS]);
    return find_reader(state, part[MASK_READER], &files->mask_reader, &out->reader) &&
           hl_py_int(state, part[N_CLASSES], "n_classes", 1, HL_MASK_CLASSES_MAX,
                     &out->n_classes) &&
           hl_py_int(state, part[IGNORED_ID], "ignored_id", -1, HL_MASK_CLASSES_MAX,
                     &out->ignored_id);
}

/* (table, pixels): int64 (n, 5), rows as hl_stored_image has them, and uint8 (bytes,). */
static bool read_stored(hl_py_state *state, PyObject *object, image_files *files,
                        hl_image_source_options *options)
{
    enum { WORDS = sizeof(hl_stored_image) / sizeof(int64_t) };
    char got[HL_TYPE_TEXT];
    if (!object || object == Py_None) return true;
    if (!PyTuple_Check(object) || PyTuple_Size(object) != 2) {
        PyErr_SetString(PyExc_TypeError, "stored: must be (table, pixels) or None");
        return false;
    }
    hl_py_array *table = &files->stored, *pixels = &files->pixels;
    if (!hl_py_array_borrow(state, PyTuple_GetItem(object, 0), "stored", HL_DTYPE_COUNT, table) ||
        !hl_py_array_borrow(state, PyTuple_GetItem(object, 1), "stored", HL_DTYPE_COUNT, pixels))
        return false;
    hl_type types[2] = {{table->dtype, table->shape}, {pixels->dtype, pixels->shape}};
    const hl_shape *shape = &table->shape;
    if (table->dtype != HL_DTYPE_I64 || shape->rank != 2 || shape->dim[0] != options->n ||
        shape->dim[1] != WORDS) {
        hl_py_fail(state, HL_ERROR_SHAPE, "stored: its table must be int64 (%lld, %d), got %s",
                   (long long)options->n, WORDS, hl_type_format(&types[0], got));
        return false;
    }
    if (pixels->dtype != HL_DTYPE_U8 || pixels->shape.rank != 1) {
        hl_py_fail(state, HL_ERROR_SHAPE, "stored: its pixels must be uint8 (bytes,), got %s",
                   hl_type_format(&types[1], got));
        return false;
    }
    options->stored = table->data;
    options->stored_pixels = pixels->data;
    options->stored_bytes = pixels->shape.dim[0];
    return true;
}

enum {
    PATHS,
    N,
    CHANNELS,
    AUGMENT,
    READER,
    CACHING,
    CACHE_BYTES,
    ON_BAD,
    BAD_MAX,
    COMPANIONS,
    ANNOTATIONS,
    STORED,
    N_PARAMS
};

static bool read_choices(hl_py_state *state, PyObject *const *given,
                         hl_image_source_options *options)
{
    static const char *const cachings[] = {[HL_IMAGE_CACHE_NOTHING] = "nothing",
                                           [HL_IMAGE_CACHE_FILES] = "files",
                                           [HL_IMAGE_CACHE_IMAGES] = "images"};
    static const char *const policies[] = {
        [HL_IMAGE_RAISE] = "raise", [HL_IMAGE_SKIP] = "skip", [HL_IMAGE_REPLACE] = "replace"};
    int64_t channels;
    int caching, policy;
    if (!hl_py_int(state, given[N], "n", 1, INT64_MAX, &options->n) ||
        !hl_py_int(state, given[CHANNELS], "channels", 1, 3, &channels) ||
        !read_word(state, given[CACHING], "caching", cachings, 3, "nothing, files or images",
                   &caching) ||
        !read_word(state, given[ON_BAD], "on_bad", policies, 3, "raise, skip or replace",
                   &policy) ||
        (given[CACHE_BYTES] && !hl_py_int(state, given[CACHE_BYTES], "cache_bytes", 0, INT64_MAX,
                                          &options->cache_bytes)) ||
        (given[BAD_MAX] &&
         !hl_py_int(state, given[BAD_MAX], "bad_max", 0, INT64_MAX, &options->bad_max)))
        return false;
    options->channels = (int32_t)channels;
    options->caching = (hl_image_caching)caching;
    options->policy = (hl_image_policy)policy;
    return true;
}

/* Makes the core's source; what it borrows is kept by `self`. */
static bool init_source(hl_py_state *state, hl_py_source *self, PyObject *const *given)
{
    hl_image_companion companions[HL_SOURCE_FIELDS_MAX];
    hl_image_source_options options = {0};
    hl_augment augment;
    image_files *files;
    hl_status status = hl_alloc_zero(sizeof *files, (void **)&files);
    if (status != HL_OK) return hl_py_raise(state, status) != NULL;
    self->made = files;
    self->destroy = destroy_files;
    if (!PyBytes_Check(given[PATHS])) {
        PyErr_SetString(PyExc_TypeError, "paths: must be bytes");
        return false;
    }
    self->kept = PyTuple_Pack(2, given[PATHS], given[ANNOTATIONS] ? given[ANNOTATIONS] : Py_None);
    if (!self->kept) return false;
    options.paths = PyBytes_AsString(given[PATHS]);
    options.paths_bytes = (size_t)PyBytes_Size(given[PATHS]);
    options.augment = &augment;
    if (!read_choices(state, given, &options) ||
        !hl_py_augment_read(state, given[AUGMENT], &augment) ||
        !find_reader(state, given[READER], &files->reader, &options.reader) ||
        !read_companions(state, given[COMPANIONS], files, &options, companions) ||
        !read_annotations(state, given[ANNOTATIONS], files, options.n, &options.annotations) ||
        !read_stored(state, given[STORED], files, &options))
        return false;
    if (options.reader.read) self->function = Py_NewRef(given[READER]);
    status = hl_image_source_create(&options, &files->source);
    if (status != HL_OK) return hl_py_raise(state, status) != NULL;
    self->source = *hl_image_source_rows(files->source);
    return true;
}

HL_PY_FAST_KEYWORDS(hl_py_image_source)
{
    static const hl_py_signature signature = {
        .function = "image_source",
        .n_positional = 4,
        .n_required = 4,
        .n_params = N_PARAMS,
        .names = {HL_PY_NAME_paths, HL_PY_NAME_n, HL_PY_NAME_channels, HL_PY_NAME_augment,
                  HL_PY_NAME_reader, HL_PY_NAME_caching, HL_PY_NAME_cache_bytes, HL_PY_NAME_on_bad,
                  HL_PY_NAME_bad_max, HL_PY_NAME_companions, HL_PY_NAME_annotations,
                  HL_PY_NAME_stored}};
    hl_py_state *state = hl_py_state_of_module(module);
    PyObject *given[N_PARAMS];
    if (!hl_py_args_parse(state, &signature, args, n_args, keywords, given)) return NULL;
    hl_py_source *self = (hl_py_source *)PyType_GenericAlloc(state->source_type, 0);
    if (!self) return NULL;
    if (init_source(state, self, given)) return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

/* ---- what happened --------------------------------------------------------------------------- */

static PyObject *list_bad_rows(const hl_image_source *source, int64_t n_rows, int64_t n_bad)
{
    hl_shape shape = hl_shape_1d(n_bad);
    void *data;
    PyObject *array = hl_py_array_new(HL_DTYPE_I64, &shape, &data);
    int64_t *out = data, n = 0;
    for (int64_t row = 0; array && row < n_rows && n < n_bad; row++)
        if (hl_image_source_is_bad(source, row)) out[n++] = row;
    return array;
}

HL_PY_FAST(hl_py_image_report)
{
    hl_py_state *state = hl_py_state_of_module(module);
    hl_image_report report;
    if (!hl_py_args_count("image_report", n_args, 1, 1) ||
        !hl_py_check_type(args[0], state->source_type, "source", "Source"))
        return NULL;
    hl_py_source *self = (hl_py_source *)args[0];
    if (self->destroy != destroy_files)
        return hl_py_fail(state, HL_ERROR_CONFIG, "source: must be of images, got another");
    const image_files *files = self->made;
    hl_image_source_report(files->source, &report);
    PyObject *made = PyDict_New();
    if (!made ||
        !hl_py_dict_put(made, "bad_rows",
                        list_bad_rows(files->source, self->source.n_rows, report.n_bad)) ||
        !hl_py_dict_put(made, "first_bad", hl_py_from_text(report.first_bad)) ||
        !hl_py_dict_put(made, "cached_rows", PyLong_FromLongLong(report.cached_rows)) ||
        !hl_py_dict_put(made, "cached_bytes", PyLong_FromLongLong(report.cached_bytes)))
        Py_CLEAR(made);
    return made;
}
