/* Source: rows that are made when a batch needs them, over csrc/data/source.h.
 *
 * Who makes them differs, the type does not: the core (image_source.c), or a function of Python's.
 * That runs on the threads of a feed, several at once as far as the GIL lets them, and gives
 * arrays, which are copied into the batch: no memory of a batch is ever in the hands of Python.
 * What it raises becomes a DataError of the run, with the exception as its cause. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "objects.h"

static hl_py_source *source_of(PyObject *self)
{
    return (hl_py_source *)self;
}

/* ---- rows made by Python --------------------------------------------------------------------- */

static PyObject *make_rows(const hl_batch *batch)
{
    hl_shape shape = hl_shape_1d(batch->n);
    void *data;
    PyObject *array = hl_py_array_new(HL_DTYPE_I64, &shape, &data);
    if (array) memcpy(data, batch->rows, (size_t)batch->n * sizeof *batch->rows);
    return array;
}

static PyObject *call_function(const hl_py_source *self, const hl_batch *batch)
{
    PyObject *rows = make_rows(batch), *made = NULL;
    if (rows)
        made = PyObject_CallFunction(self->function, "OKOO", rows, (unsigned long long)batch->epoch,
                                     batch->is_training ? Py_True : Py_False,
                                     batch->peers.owner ? (PyObject *)batch->peers.owner : Py_None);
    Py_XDECREF(rows);
    PyObject *tuple = made ? hl_py_sequence(made, "source") : NULL;
    Py_XDECREF(made);
    return tuple;
}

/* Copies what was made of one field into the batch. */
static bool copy_field(hl_py_source *self, PyObject *object, int32_t field, int64_t n, void *dst)
{
    hl_py_state *state = hl_py_state_of((PyObject *)self);
    hl_type want = self->source.types[field];
    hl_dtype as_bits = want.dtype == HL_DTYPE_BF16 ? want.dtype : HL_DTYPE_COUNT;
    char want_text[HL_TYPE_TEXT], got_text[HL_TYPE_TEXT];
    hl_py_array array;
    for (int i = want.shape.rank++; i > 0; i--) want.shape.dim[i] = want.shape.dim[i - 1];
    want.shape.dim[0] = n;
    if (!hl_py_array_read(state, object, "source", as_bits, &array)) return false;
    hl_type got = {array.dtype, array.shape};
    bool good = hl_type_equal(&got, &want);
    if (good)
        memcpy(dst, array.data, hl_type_bytes(&got));
    else
        hl_py_fail(state, HL_ERROR_SHAPE, "source: field %d must be made as %s, got %s", field,
                   hl_type_format(&want, want_text), hl_type_format(&got, got_text));
    hl_py_array_release(&array);
    return good;
}

static bool copy_fields(hl_py_source *self, PyObject *made, int64_t n, void *const *fields)
{
    if (PyTuple_Size(made) != self->source.n_fields) {
        hl_py_fail(hl_py_state_of((PyObject *)self), HL_ERROR_SHAPE,
                   "source: must make %d fields, got %zd", self->source.n_fields,
                   PyTuple_Size(made));
        return false;
    }
    for (int32_t i = 0; i < self->source.n_fields; i++)
        if (fields[i] && !copy_field(self, PyTuple_GetItem(made, i), i, n, fields[i])) return false;
    return true;
}

hl_status hl_py_keep_exception(hl_py_state *state, hl_status code)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (value && traceback) PyException_SetTraceback(value, traceback);
    PyObject *words = value ? PyObject_Str(value) : NULL;
    const char *text = words ? PyUnicode_AsUTF8AndSize(words, NULL) : NULL;
    hl_status status = hl_status_set(code, "%s", text ? text : "source: failed");
    PyErr_Clear();
    PyObject *before = state->raised;
    state->raised = Py_XNewRef(value);
    Py_XDECREF(before);
    Py_XDECREF(words);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
    return status;
}

hl_status hl_py_fill_by_function(void *context, const hl_batch *batch, void *const *fields)
{
    hl_py_source *self = context;
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *made = call_function(self, batch);
    bool good = made && copy_fields(self, made, batch->n, fields);
    hl_status status =
        good ? HL_OK : hl_py_keep_exception(hl_py_state_of((PyObject *)self), HL_ERROR_DATA);
    Py_XDECREF(made);
    PyGILState_Release(gil);
    return status;
}

/* ---- life ------------------------------------------------------------------------------------ */

/* A (dtype, shape) of a row. */
static bool read_type(hl_py_state *state, PyObject *object, hl_type *out)
{
    PyObject *pair = hl_py_sequence(object, "types");
    bool good = pair && PyTuple_Size(pair) == 2;
    if (pair && !good)
        hl_py_fail(state, HL_ERROR_CONFIG, "types: must be pairs of dtype and shape, got %zd parts",
                   PyTuple_Size(pair));
    good = good && hl_py_dtype(state, PyTuple_GetItem(pair, 0), "types", &out->dtype) &&
           hl_py_shape(state, PyTuple_GetItem(pair, 1), "types", &out->shape);
    if (good && out->shape.rank == HL_MAX_RANK) {
        hl_py_fail(state, HL_ERROR_SHAPE, "types: a row must have %d dims at most, got %d",
                   HL_MAX_RANK - 1, HL_MAX_RANK);
        good = false;
    }
    Py_XDECREF(pair);
    return good;
}

static bool read_types(hl_py_source *self, PyObject *object)
{
    hl_py_state *state = hl_py_state_of((PyObject *)self);
    PyObject *types = hl_py_sequence(object, "types");
    if (!types) return false;
    Py_ssize_t n = PyTuple_Size(types);
    bool good = n >= 1 && n <= HL_SOURCE_FIELDS_MAX;
    if (!good)
        hl_py_fail(state, HL_ERROR_CONFIG, "types: must be 1 to %d, got %zd", HL_SOURCE_FIELDS_MAX,
                   n);
    hl_status status =
        good ? hl_alloc((size_t)n * sizeof *self->types, (void **)&self->types) : HL_OK;
    if (status != HL_OK) good = hl_py_raise(state, status) != NULL;
    for (Py_ssize_t i = 0; good && i < n; i++)
        good = read_type(state, PyTuple_GetItem(types, i), &self->types[i]);
    self->source.types = self->types;
    self->source.n_fields = (int32_t)n;
    Py_DECREF(types);
    return good;
}

static PyObject *make_source(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static const hl_py_signature signature = {
        .function = "Source",
        .n_only = 3,
        .n_positional = 3,
        .n_required = 3,
        .n_params = 3,
        .names = {HL_PY_NAME_n, HL_PY_NAME_types, HL_PY_NAME_function}};
    hl_py_state *state = PyType_GetModuleState(type);
    PyObject *given[3];
    int64_t n;
    if (!hl_py_args_parse_new(state, &signature, args, kwargs, given) ||
        !hl_py_int(state, given[0], "n", 1, INT64_MAX, &n))
        return NULL;
    if (!PyCallable_Check(given[2])) {
        PyErr_SetString(PyExc_TypeError, "function: must be callable");
        return NULL;
    }
    hl_py_source *self = (hl_py_source *)PyType_GenericAlloc(type, 0);
    if (!self) return NULL;
    self->source.n_rows = n;
    self->source.fill = hl_py_fill_by_function;
    self->source.context = self;
    self->function = Py_NewRef(given[2]);
    if (read_types(self, given[1])) return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

static int traverse_source(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(source_of(self)->function);
    Py_VISIT(source_of(self)->kept);
    return hl_py_traverse_type(self, visit, arg);
}

static void free_source(PyObject *self)
{
    hl_py_source *source = source_of(self);
    PyObject_GC_UnTrack(self);
    if (source->destroy) source->destroy(source->made);
    Py_XDECREF(source->function);
    Py_XDECREF(source->kept);
    hl_free(source->types);
    hl_py_free(self);
}

/* ---- reading --------------------------------------------------------------------------------- */

bool hl_py_peers_borrow(hl_py_state *state, PyObject *object, hl_py_array *out_array,
                        hl_peers *out_peers)
{
    char got[HL_TYPE_TEXT];
    *out_array = (hl_py_array){0};
    *out_peers = (hl_peers){0};
    if (!object || object == Py_None) return true;
    if (!hl_py_array_borrow(state, object, "peers", HL_DTYPE_COUNT, out_array)) return false;
    const int64_t *rows = out_array->data;
    hl_type type = {out_array->dtype, out_array->shape};
    bool good = type.dtype == HL_DTYPE_I64 && type.shape.rank == 1 && out_array->n > 0;
    if (!good)
        hl_py_fail(state, HL_ERROR_SHAPE, "peers: must be int64 of shape (n,), n above 0, got %s",
                   hl_type_format(&type, got));
    for (int64_t i = 1; good && i < out_array->n; i++) {
        if (rows[i - 1] < rows[i]) continue;
        hl_py_fail(state, HL_ERROR_DATA, "peers: rows must ascend, got %lld behind %lld",
                   (long long)rows[i], (long long)rows[i - 1]);
        good = false;
    }
    *out_peers = (hl_peers){rows, out_array->n, out_array->object};
    return good;
}

/* Arrays for n rows of each field, and their memory. */
static PyObject *make_fields(const hl_py_source *self, int64_t n, void **out_data)
{
    PyObject *made = PyTuple_New(self->source.n_fields);
    for (int32_t i = 0; made && i < self->source.n_fields; i++) {
        hl_shape shape = self->source.types[i].shape;
        for (int d = shape.rank++; d > 0; d--) shape.dim[d] = shape.dim[d - 1];
        shape.dim[0] = n;
        PyObject *array = hl_py_array_new(self->source.types[i].dtype, &shape, &out_data[i]);
        if (!array)
            Py_CLEAR(made);
        else
            PyTuple_SetItem(made, i, array);
    }
    return made;
}

static bool check_rows(const hl_py_source *self, const hl_py_array *rows, const hl_batch *batch)
{
    hl_py_state *state = hl_py_state_of((PyObject *)self);
    char got[HL_TYPE_TEXT];
    hl_type type = {rows->dtype, rows->shape};
    if (rows->dtype != HL_DTYPE_I64 || rows->shape.rank != 1) {
        hl_py_fail(state, HL_ERROR_SHAPE, "rows: must be int64 of shape (n,), got %s",
                   hl_type_format(&type, got));
        return false;
    }
    hl_status status = hl_source_check_rows(&self->source, batch);
    return status == HL_OK || hl_py_raise(state, status) != NULL;
}

static PyObject *read_rows(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    hl_py_state *state = hl_py_state_of(self);
    void *data[HL_SOURCE_FIELDS_MAX];
    hl_py_array rows = {0}, peers = {0};
    hl_batch batch = {0};
    if (!hl_py_args_count("Source.read", n_args, 1, 4) ||
        (n_args > 1 && !hl_py_seed(state, args[1], "epoch", &batch.epoch)) ||
        (n_args > 2 && !hl_py_bool(args[2], "is_training", &batch.is_training)) ||
        !hl_py_array_read(state, args[0], "rows", HL_DTYPE_COUNT, &rows))
        return NULL;
    const hl_source *source = &source_of(self)->source;
    PyObject *made = NULL;
    batch.rows = rows.data;
    batch.n = rows.n;
    if (hl_py_peers_borrow(state, n_args > 3 ? args[3] : NULL, &peers, &batch.peers) &&
        check_rows(source_of(self), &rows, &batch))
        made = make_fields(source_of(self), rows.n, data);
    if (made) {
        hl_status status;
        HL_PY_WITHOUT_GIL(status = source->fill(source->context, &batch, data));
        if (status != HL_OK) {
            Py_CLEAR(made);
            hl_py_raise(state, status);
        }
    }
    hl_py_array_release(&peers);
    hl_py_array_release(&rows);
    return made;
}

static PyMethodDef methods[] = {
    {"read", HL_PY_METH_FAST(read_rows),
     "read($self, rows, epoch=0, is_training=False, peers=None, /)\n--\n\nThe fields of these "
     "rows, "
     "as a batch of the split whose rows are peers, ascending, has them; None: all rows."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc,
     "Source(n, types, function, /)\n--\n\n"
     "n rows that function(rows, epoch, is_training, peers) makes: an array for each of "
     "the types, (dtype, shape) of a row. It runs on a feed's threads. peers: the rows of "
     "the batch's split, None: all."},
    {Py_tp_new, make_source},
    {Py_tp_dealloc, free_source},
    {Py_tp_traverse, traverse_source},
    {Py_tp_methods, methods},
    {0, NULL},
};

PyType_Spec hl_py_source_spec = {
    .name = "hotloop._core.Source",
    .basicsize = sizeof(hl_py_source),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};
