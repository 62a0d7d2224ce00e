/* Arrays: the only door to NumPy. py_numpy.c alone includes its headers; everybody else sees a
 * pointer, a dtype and a shape.
 *
 * NumPy has no bfloat16: such values come and go as uint16 with the same bits. */
#ifndef HL_PYTHON_NUMPY_API_H
#define HL_PYTHON_NUMPY_API_H

#include "state.h"

/* In the module's exec; false with an exception. */
bool hl_py_array_import(void);

/* A scalar of NumPy's bool, or an array of shape () of it. */
bool hl_py_is_numpy_bool(PyObject *object);

typedef struct hl_py_array {
    PyObject *object; /* owned: keeps the memory */
    const void *data; /* row-major, aligned, native byte order */
    hl_dtype dtype;
    hl_shape shape;
    int64_t n;
} hl_py_array;

/* An array of any strides and byte order: its own memory where that is in order, else a copy. Runs
 * no Python code, that of the array's subclass neither.
 * dtype as_bits is what uint16 stands for (HL_DTYPE_BF16), or HL_DTYPE_COUNT: nothing. TypeError
 * for no array, DataError for a dtype that the core does not have, ShapeError beyond 8 dims. */
bool hl_py_array_read(hl_py_state *state, PyObject *object, const char *what, hl_dtype as_bits,
                      hl_py_array *out_array);
/* The array's own memory; DataError when it is not in order. */
bool hl_py_array_borrow(hl_py_state *state, PyObject *object, const char *what, hl_dtype as_bits,
                        hl_py_array *out_array);
/* Does nothing to one that is all zero. */
void hl_py_array_release(hl_py_array *array);

/* A fresh array; *out_data is its memory, uninitialised. */
PyObject *hl_py_array_new(hl_dtype dtype, const hl_shape *shape, void **out_data);

/* Looks for an element: called with contiguous runs of native elements of `kind` ('f', 'i', 'u',
 * 'b' as in NumPy) and size, in row-major order; its answer is an index into the run, or -1. */
typedef int64_t (*hl_py_scan_fn)(void *context, const void *data, char kind, size_t bytes,
                                 int64_t n);
/* Index of what was found as a tuple, None when nothing was. kinds: which arrays are accepted, as
 * `rule` says ("floating"). Releases the GIL. */
PyObject *hl_py_array_scan(hl_py_state *state, PyObject *object, const char *what,
                           const char *kinds, const char *rule, hl_py_scan_fn fn, void *context);

#endif
