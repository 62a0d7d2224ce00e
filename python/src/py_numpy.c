/* Arrays by NumPy's C API (2.0 and later, stable ABI). */
#include "numpy_api.h"

#include <numpy/arrayobject.h>
#include <string.h>

#include "args.h"
#include "errors.h"

bool hl_py_array_import(void)
{
    return PyArray_ImportNumPyAPI() == 0;
}

/* ---- dtypes ---------------------------------------------------------------------------------- */

/* By kind and size: int64 has two type numbers. */
static hl_dtype find_dtype(PyArray_Descr *descr, hl_dtype as_bits)
{
    int64_t bytes = PyDataType_ELSIZE(descr);
    char kind = descr->kind;
    if (kind == 'u' && bytes == 2) return as_bits;
    for (int dtype = 0; dtype < HL_DTYPE_COUNT; dtype++)
        if (dtype != HL_DTYPE_BF16 && hl_dtype_kind((hl_dtype)dtype) == kind &&
            (int64_t)hl_dtype_bytes((hl_dtype)dtype) == bytes)
            return (hl_dtype)dtype;
    return HL_DTYPE_COUNT;
}

static int find_type_number(hl_dtype dtype)
{
    static const int numbers[HL_DTYPE_COUNT] = {
        [HL_DTYPE_F32] = NPY_FLOAT32, [HL_DTYPE_F64] = NPY_FLOAT64, [HL_DTYPE_BF16] = NPY_UINT16,
        [HL_DTYPE_F16] = NPY_FLOAT16, [HL_DTYPE_I64] = NPY_INT64,   [HL_DTYPE_I32] = NPY_INT32,
        [HL_DTYPE_I16] = NPY_INT16,   [HL_DTYPE_I8] = NPY_INT8,     [HL_DTYPE_U8] = NPY_UINT8,
        [HL_DTYPE_BOOL] = NPY_BOOL,
    };
    return numbers[dtype];
}

bool hl_py_is_numpy_bool(PyObject *object)
{
    if (!PyArray_Check(object)) return PyArray_IsScalar(object, Bool);
    PyArrayObject *array = (PyArrayObject *)object;
    return PyArray_NDIM(array) == 0 && PyArray_DESCR(array)->kind == 'b';
}

static PyArrayObject *check_array(PyObject *object, const char *what)
{
    if (PyArray_Check(object)) return (PyArrayObject *)object;
    PyObject *name = PyType_GetName(Py_TYPE(object));
    if (name) PyErr_Format(PyExc_TypeError, "%s: must be a NumPy array, got %U", what, name);
    Py_XDECREF(name);
    return NULL;
}

/* "complex128", for messages. */
static void format_descr(PyArray_Descr *descr, char *text, size_t bytes)
{
    PyObject *words = PyObject_Str((PyObject *)descr);
    const char *utf8 = words ? PyUnicode_AsUTF8AndSize(words, NULL) : NULL;
    hl_text_copy(text, bytes, utf8 ? utf8 : "?");
    Py_XDECREF(words);
    PyErr_Clear();
}

static bool fail_dtype(hl_py_state *state, PyArrayObject *array, const char *what, const char *rule)
{
    char got[64];
    format_descr(PyArray_DESCR(array), got, sizeof got);
    hl_py_fail(state, HL_ERROR_DATA, "%s: dtype must be %s, got %s", what, rule, got);
    return false;
}

/* ---- in -------------------------------------------------------------------------------------- */

/* Fills all but object and data. */
static bool read_type(hl_py_state *state, PyArrayObject *array, const char *what, hl_dtype as_bits,
                      hl_py_array *out_array)
{
    out_array->dtype = find_dtype(PyArray_DESCR(array), as_bits);
    if (out_array->dtype == HL_DTYPE_COUNT)
        return fail_dtype(state, array, what,
                          "a float of 16 to 64 bits, a signed integer, uint8 or bool");
    int rank = PyArray_NDIM(array);
    if (rank > HL_MAX_RANK) {
        hl_py_fail(state, HL_ERROR_SHAPE, "%s: must have at most %d dims, got %d", what,
                   HL_MAX_RANK, rank);
        return false;
    }
    out_array->shape.rank = rank;
    out_array->n = PyArray_SIZE(array);
    for (int d = 0; d < rank; d++) out_array->shape.dim[d] = PyArray_DIM(array, d);
    return true;
}

static bool take_memory(PyObject *object, hl_py_array *out_array)
{
    out_array->object = object;
    out_array->data = PyArray_DATA((PyArrayObject *)object);
    return true;
}

bool hl_py_array_read(hl_py_state *state, PyObject *object, const char *what, hl_dtype as_bits,
                      hl_py_array *out_array)
{
    memset(out_array, 0, sizeof *out_array);
    PyArrayObject *array = check_array(object, what);
    if (!array || !read_type(state, array, what, as_bits, out_array)) return false;
    PyObject *ready = PyArray_FROM_OF(object, NPY_ARRAY_ENSUREARRAY | NPY_ARRAY_C_CONTIGUOUS |
                                                  NPY_ARRAY_ALIGNED | NPY_ARRAY_NOTSWAPPED);
    return ready && take_memory(ready, out_array);
}

bool hl_py_array_borrow(hl_py_state *state, PyObject *object, const char *what, hl_dtype as_bits,
                        hl_py_array *out_array)
{
    memset(out_array, 0, sizeof *out_array);
    PyArrayObject *array = check_array(object, what);
    if (!array || !read_type(state, array, what, as_bits, out_array)) return false;
    if (!PyArray_ISCARRAY_RO(array)) {
        hl_py_fail(state, HL_ERROR_DATA,
                   "%s: must be C-contiguous, aligned and in native byte order, got an array that "
                   "is not; np.ascontiguousarray(array, dtype=array.dtype.newbyteorder('=')) makes "
                   "one",
                   what);
        return false;
    }
    return take_memory(Py_NewRef(object), out_array);
}

void hl_py_array_release(hl_py_array *array)
{
    Py_CLEAR(array->object);
    array->data = NULL;
}

/* ---- out ------------------------------------------------------------------------------------- */

PyObject *hl_py_array_new(hl_dtype dtype, const hl_shape *shape, void **out_data)
{
    npy_intp dims[HL_MAX_RANK];
    *out_data = NULL;
    for (int d = 0; d < shape->rank; d++) dims[d] = (npy_intp)shape->dim[d];
    PyObject *array = PyArray_SimpleNew(shape->rank, dims, find_type_number(dtype));
    if (array) *out_data = PyArray_DATA((PyArrayObject *)array);
    return array;
}

/* ---- scans ----------------------------------------------------------------------------------- */

static PyObject *unravel(PyArrayObject *array, int64_t index)
{
    int rank = PyArray_NDIM(array);
    int64_t place[NPY_MAXDIMS];
    if (index < 0) return Py_NewRef(Py_None);
    for (int d = rank - 1; d >= 0; d--) {
        place[d] = index % PyArray_DIM(array, d);
        index /= PyArray_DIM(array, d);
    }
    return hl_py_from_ints(place, rank);
}

static int64_t scan_runs(NpyIter *iter, NpyIter_IterNextFunc *next, hl_py_scan_fn fn, void *context,
                         char kind, size_t bytes)
{
    char **data = NpyIter_GetDataPtrArray(iter);
    npy_intp *count = NpyIter_GetInnerLoopSizePtr(iter);
    int64_t done = 0;
    do {
        int64_t found = fn(context, *data, kind, bytes, *count);
        if (found >= 0) return done + found;
        done += *count;
    } while (next(iter));
    return -1;
}

/* Any strides and byte order: NumPy's iterator hands out contiguous native runs. */
static bool scan_strided(PyArrayObject *array, hl_py_scan_fn fn, void *context, int64_t *out_index)
{
    npy_uint32 flags =
        NPY_ITER_EXTERNAL_LOOP | NPY_ITER_BUFFERED | NPY_ITER_GROWINNER | NPY_ITER_ZEROSIZE_OK;
    npy_uint32 op_flags = NPY_ITER_READONLY | NPY_ITER_CONTIG | NPY_ITER_ALIGNED | NPY_ITER_NBO;
    *out_index = -1;
    NpyIter *iter =
        NpyIter_MultiNew(1, &array, flags, NPY_CORDER, NPY_EQUIV_CASTING, &op_flags, NULL);
    if (!iter) return false;
    NpyIter_IterNextFunc *next = NpyIter_GetIterNext(iter, NULL);
    char kind = PyArray_DESCR(array)->kind;
    size_t bytes = (size_t)PyDataType_ELSIZE(PyArray_DESCR(array));
    if (next && NpyIter_GetIterSize(iter) > 0)
        HL_PY_WITHOUT_GIL(*out_index = scan_runs(iter, next, fn, context, kind, bytes));
    bool good = next && !PyErr_Occurred();
    return NpyIter_Deallocate(iter) == NPY_SUCCEED && good;
}

PyObject *hl_py_array_scan(hl_py_state *state, PyObject *object, const char *what,
                           const char *kinds, const char *rule, hl_py_scan_fn fn, void *context)
{
    PyArrayObject *array = check_array(object, what);
    if (!array) return NULL;
    char kind = PyArray_DESCR(array)->kind;
    int64_t bytes = PyDataType_ELSIZE(PyArray_DESCR(array)), index = -1;
    if (!strchr(kinds, kind) || bytes > 8) {
        fail_dtype(state, array, what, rule);
        return NULL;
    }
    if (PyArray_ISCARRAY_RO(array)) {
        Py_INCREF(object);
        HL_PY_WITHOUT_GIL(
            index = fn(context, PyArray_DATA(array), kind, (size_t)bytes, PyArray_SIZE(array)));
        Py_DECREF(object);
    } else if (!scan_strided(array, fn, context, &index)) {
        return NULL;
    }
    return unravel(array, index);
}
