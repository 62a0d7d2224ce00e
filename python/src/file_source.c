/* Sources of float32 rows that lie in files, over csrc/data/file_source.h. */
#include "data/file_source.h"

#include "base/alloc.h"
#include "numpy_api.h"
#include "objects.h"

/* What a Source of this kind has made. */
typedef struct plain_files {
    hl_file_source *source;
    hl_py_array offsets, divisors;
} plain_files;

static void destroy_files(void *made)
{
    plain_files *files = made;
    hl_file_source_destroy(files->source);
    hl_py_array_release(&files->offsets);
    hl_py_array_release(&files->divisors);
    hl_free(files);
}

/* What goes wrong is left to the function, whose words are better. */
static hl_status fill(void *context, const hl_batch *batch, void *const *fields)
{
    hl_py_source *self = context;
    const hl_source *rows = hl_file_source_rows(((plain_files *)self->made)->source);
    if (rows->fill(rows->context, batch, fields) == HL_OK) return HL_OK;
    return hl_py_fill_by_function(self, batch, fields);
}

static bool read_column(hl_py_state *state, PyObject *object, const char *what, hl_dtype dtype,
                        int64_t n, hl_py_array *array)
{
    char got[HL_TYPE_TEXT], want[HL_TYPE_TEXT];
    if (!hl_py_array_borrow(state, object, what, HL_DTYPE_COUNT, array)) return false;
    hl_type type = {array->dtype, array->shape}, wanted = {dtype, hl_shape_1d(n)};
    if (hl_type_equal(&type, &wanted)) return true;
    hl_py_fail(state, HL_ERROR_SHAPE, "%s: must be %s, got %s", what, hl_type_format(&wanted, want),
               hl_type_format(&type, got));
    return false;
}

enum { PATHS, OFFSETS, DIVISORS, SHAPE, ALLOW_NONFINITE, FUNCTION, N_PARAMS };

/* Makes the core's source; what it borrows is kept by `self`. */
static bool init_source(hl_py_state *state, hl_py_source *self, PyObject *const *given)
{
    hl_file_source_options options = {0};
    plain_files *files;
    hl_status status = hl_alloc_zero(sizeof *files, (void **)&files);
    if (status != HL_OK) return hl_py_raise(state, status) != NULL;
    self->made = files;
    self->destroy = destroy_files;
    if (!PyBytes_Check(given[PATHS])) {
        PyErr_SetString(PyExc_TypeError, "paths: must be bytes");
        return false;
    }
    if (!PyCallable_Check(given[FUNCTION])) {
        PyErr_SetString(PyExc_TypeError, "function: must be callable");
        return false;
    }
    self->kept = Py_NewRef(given[PATHS]);
    self->function = Py_NewRef(given[FUNCTION]);
    if (!hl_py_array_borrow(state, given[OFFSETS], "offsets", HL_DTYPE_COUNT, &files->offsets))
        return false;
    hl_type offsets = {files->offsets.dtype, files->offsets.shape};
    options.n = files->offsets.n;
    if (offsets.dtype != HL_DTYPE_I64 || offsets.shape.rank != 1) {
        char got[HL_TYPE_TEXT];
        hl_py_fail(state, HL_ERROR_SHAPE, "offsets: must be int64 (n,), got %s",
                   hl_type_format(&offsets, got));
        return false;
    }
    if (!read_column(state, given[DIVISORS], "divisors", HL_DTYPE_F32, options.n,
                     &files->divisors) ||
        !hl_py_shape(state, given[SHAPE], "shape", &options.shape) ||
        !hl_py_bool(given[ALLOW_NONFINITE], "allow_nonfinite", &options.allow_nonfinite))
        return false;
    options.paths = PyBytes_AsString(given[PATHS]);
    options.paths_bytes = (size_t)PyBytes_Size(given[PATHS]);
    options.offsets = files->offsets.data;
    options.divisors = files->divisors.data;
    status = hl_file_source_create(&options, &files->source);
    if (status != HL_OK) return hl_py_raise(state, status) != NULL;
    self->source = *hl_file_source_rows(files->source);
    self->source.fill = fill;
    self->source.context = self;
    return true;
}

HL_PY_FAST(hl_py_file_source)
{
    hl_py_state *state = hl_py_state_of_module(module);
    if (!hl_py_args_count("file_source", n_args, N_PARAMS, N_PARAMS)) return NULL;
    hl_py_source *self = (hl_py_source *)PyType_GenericAlloc(state->source_type, 0);
    if (!self) return NULL;
    if (init_source(state, self, args)) return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}
