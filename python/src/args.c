/* Arguments: parsing by a table, converters with messages. */
#include "args.h"

#include <math.h>
#include <string.h>

#include "ir/dtype.h"
#include "ir/shape.h"
#include "numpy_api.h"

/* ---- parameters ------------------------------------------------------------------------------ */

static const char *text_of(PyObject *object)
{
    const char *text = PyUnicode_AsUTF8AndSize(object, NULL);
    if (!text) PyErr_Clear();
    return text ? text : "?";
}

static int find_param(hl_py_state *state, const hl_py_signature *signature, PyObject *key)
{
    for (int i = signature->n_only; i < signature->n_params; i++)
        if (state->names[signature->names[i]] == key) return i;
    for (int i = signature->n_only; i < signature->n_params; i++)
        if (PyUnicode_Compare(state->names[signature->names[i]], key) == 0) return i;
    return -1;
}

static bool take_positional(const hl_py_signature *signature, PyObject *const *args,
                            Py_ssize_t n_args, PyObject **out)
{
    for (int i = 0; i < signature->n_params; i++) out[i] = NULL;
    if (n_args > signature->n_positional) {
        PyErr_Format(PyExc_TypeError, "%s: takes at most %d positional arguments, got %zd",
                     signature->function, signature->n_positional, n_args);
        return false;
    }
    for (Py_ssize_t i = 0; i < n_args; i++) out[i] = args[i];
    return true;
}

static bool take_keyword(hl_py_state *state, const hl_py_signature *signature, PyObject *key,
                         PyObject *value, PyObject **out)
{
    int i = PyUnicode_Check(key) ? find_param(state, signature, key) : -1;
    if (i < 0 || out[i]) {
        PyErr_Format(PyExc_TypeError, "%s: %s argument '%s'", signature->function,
                     i < 0 ? "has no" : "got twice the", text_of(key));
        return false;
    }
    out[i] = value;
    return true;
}

static bool check_required(hl_py_state *state, const hl_py_signature *signature, PyObject **out)
{
    for (int i = 0; i < signature->n_required; i++) {
        if (out[i]) continue;
        PyErr_Format(PyExc_TypeError, "%s: needs the argument '%s'", signature->function,
                     text_of(state->names[signature->names[i]]));
        return false;
    }
    return true;
}

bool hl_py_args_parse(hl_py_state *state, const hl_py_signature *signature, PyObject *const *args,
                      Py_ssize_t n_args, PyObject *keywords, PyObject **out)
{
    if (!take_positional(signature, args, n_args, out)) return false;
    Py_ssize_t n_keywords = keywords ? PyTuple_Size(keywords) : 0;
    for (Py_ssize_t i = 0; i < n_keywords; i++)
        if (!take_keyword(state, signature, PyTuple_GetItem(keywords, i), args[n_args + i], out))
            return false;
    return check_required(state, signature, out);
}

bool hl_py_args_parse_new(hl_py_state *state, const hl_py_signature *signature, PyObject *args,
                          PyObject *kwargs, PyObject **out)
{
    PyObject *positional[HL_PY_MAX_PARAMS] = {NULL}, *key, *value;
    Py_ssize_t n_args = PyTuple_Size(args), position = 0;
    for (Py_ssize_t i = 0; i < n_args && i < HL_PY_MAX_PARAMS; i++)
        positional[i] = PyTuple_GetItem(args, i);
    if (!take_positional(signature, positional, n_args, out)) return false;
    while (kwargs && PyDict_Next(kwargs, &position, &key, &value))
        if (!take_keyword(state, signature, key, value, out)) return false;
    return check_required(state, signature, out);
}

bool hl_py_args_count(const char *function, Py_ssize_t n_args, int n_min, int n_max)
{
    if (n_args >= n_min && n_args <= n_max) return true;
    if (n_min == n_max)
        PyErr_Format(PyExc_TypeError, "%s: takes %d arguments, got %zd", function, n_min, n_args);
    else
        PyErr_Format(PyExc_TypeError, "%s: takes %d to %d arguments, got %zd", function, n_min,
                     n_max, n_args);
    return false;
}

/* ---- converters ------------------------------------------------------------------------------ */

static bool fail_type(const char *what, const char *rule, PyObject *got)
{
    PyObject *name = PyType_GetName(Py_TYPE(got));
    if (name) PyErr_Format(PyExc_TypeError, "%s: must be %s, got %U", what, rule, name);
    Py_XDECREF(name);
    return false;
}

/* repr cut to fit a message: an int of a million digits is no sentence. */
static void describe_int(PyObject *number, char *out_text, size_t bytes)
{
    PyObject *repr = PyObject_Repr(number);
    const char *text = repr ? PyUnicode_AsUTF8AndSize(repr, NULL) : NULL;
    if (text && strlen(text) < bytes)
        hl_text_copy(out_text, bytes, text);
    else
        hl_text_copy(out_text, bytes, "a number beyond 64 bits");
    Py_XDECREF(repr);
    PyErr_Clear();
}

/* NumPy's bools have no __index__, Python's do. */
static PyObject *take_index(PyObject *object, const char *what)
{
    bool truth;
    if (hl_py_is_numpy_bool(object))
        return hl_py_bool(object, what, &truth) ? PyLong_FromLong(truth) : NULL;
    PyObject *number = PyNumber_Index(object);
    if (!number && PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyErr_Clear();
        fail_type(what, "an int", object);
    }
    return number;
}

bool hl_py_int(hl_py_state *state, PyObject *object, const char *what, int64_t low, int64_t high,
               int64_t *out)
{
    PyObject *number = take_index(object, what);
    if (!number) return false;
    int overflow;
    long long value = PyLong_AsLongLongAndOverflow(number, &overflow);
    bool bad = overflow || value < low || value > high;
    if (bad) {
        char got[48];
        describe_int(number, got, sizeof got);
        if (low == INT64_MIN && high == INT64_MAX)
            hl_py_fail(state, HL_ERROR_CONFIG, "%s: must fit in 64 bits, got %s", what, got);
        else if (high == INT64_MAX)
            hl_py_fail(state, HL_ERROR_CONFIG, "%s: must be at least %lld, got %s", what,
                       (long long)low, got);
        else
            hl_py_fail(state, HL_ERROR_CONFIG, "%s: must be in %lld..%lld, got %s", what,
                       (long long)low, (long long)high, got);
    }
    Py_DECREF(number);
    *out = bad ? 0 : value;
    return !bad;
}

bool hl_py_seed(hl_py_state *state, PyObject *object, const char *what, uint64_t *out)
{
    PyObject *number = take_index(object, what);
    if (!number) return false;
    int overflow;
    *out = (uint64_t)PyLong_AsLongLongAndOverflow(number, &overflow);
    if (overflow) *out = PyLong_AsUnsignedLongLong(number);
    Py_DECREF(number);
    if (!overflow || !PyErr_Occurred()) return true;
    PyErr_Clear();
    hl_py_fail(state, HL_ERROR_CONFIG, "%s: must fit in 64 bits, got a larger number", what);
    return false;
}

bool hl_py_double(PyObject *object, const char *what, double *out)
{
    *out = PyFloat_AsDouble(object);
    if (*out != -1.0 || !PyErr_Occurred()) return true;
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) return false;
    PyErr_Clear();
    return fail_type(what, "a number", object);
}

bool hl_py_finite(hl_py_state *state, PyObject *object, const char *what, double *out)
{
    if (!hl_py_double(object, what, out)) return false;
    if (isfinite(*out)) return true;
    hl_py_fail(state, HL_ERROR_CONFIG, "%s: must be finite, got %g", what, *out);
    return false;
}

bool hl_py_bool(PyObject *object, const char *what, bool *out)
{
    *out = object == Py_True;
    if (PyBool_Check(object)) return true;
    if (hl_py_is_numpy_bool(object)) {
        int truth = PyObject_IsTrue(object);
        *out = truth > 0;
        return truth >= 0;
    }
    PyErr_Format(PyExc_TypeError, "%s: must be a bool, got %.80R", what, object);
    return false;
}

bool hl_py_text(hl_py_state *state, PyObject *object, const char *what, const char **out)
{
    Py_ssize_t length;
    *out = NULL;
    if (!PyUnicode_Check(object)) return fail_type(what, "a str", object);
    const char *text = PyUnicode_AsUTF8AndSize(object, &length);
    if (!text) return false;
    if (strlen(text) != (size_t)length) {
        hl_py_fail(state, HL_ERROR_CONFIG, "%s: must not hold a NUL character, got one after '%s'",
                   what, text);
        return false;
    }
    *out = text;
    return true;
}

bool hl_py_word(hl_py_state *state, PyObject *object, const char *what, const char **out)
{
    if (!hl_py_text(state, object, what, out)) return false;
    if (**out) return true;
    hl_py_fail(state, HL_ERROR_CONFIG, "%s: must not be empty, got ''", what);
    return false;
}

bool hl_py_dtype(hl_py_state *state, PyObject *object, const char *what, hl_dtype *out)
{
    const char *text;
    *out = HL_DTYPE_COUNT;
    if (!hl_py_text(state, object, what, &text)) return false;
    *out = hl_dtype_parse(text);
    if (*out != HL_DTYPE_COUNT) return true;
#define X(code, name, bytes, kind) " " name
    hl_py_fail(state, HL_ERROR_CONFIG, "%s: must be one of" HL_DTYPES(X) ", got '%s'", what, text);
#undef X
    return false;
}

PyObject *hl_py_sequence(PyObject *object, const char *what)
{
    bool is_text = PyUnicode_Check(object) || PyBytes_Check(object) || PyByteArray_Check(object);
    if (is_text || !PySequence_Check(object) || PyDict_Check(object)) {
        fail_type(what, "a sequence", object);
        return NULL;
    }
    return PySequence_Tuple(object);
}

bool hl_py_ints(hl_py_state *state, PyObject *object, const char *what, int64_t most, int64_t *out,
                int32_t *out_n)
{
    *out_n = 0;
    PyObject *items = hl_py_sequence(object, what);
    if (!items) return false;
    Py_ssize_t n = PyTuple_Size(items);
    bool good = n <= most;
    if (!good)
        hl_py_fail(state, HL_ERROR_SHAPE, "%s: must have at most %lld entries, got %lld", what,
                   (long long)most, (long long)n);
    for (Py_ssize_t i = 0; good && i < n; i++)
        good = hl_py_int(state, PyTuple_GetItem(items, i), what, INT64_MIN, INT64_MAX, &out[i]);
    Py_DECREF(items);
    if (good) *out_n = (int32_t)n;
    return good;
}

bool hl_py_shape(hl_py_state *state, PyObject *object, const char *what, hl_shape *out)
{
    *out = hl_shape_scalar();
    if (!hl_py_ints(state, object, what, HL_MAX_RANK, out->dim, &out->rank)) return false;
    hl_status status = hl_shape_check(out, what);
    if (status != HL_OK) hl_py_raise(state, status);
    return status == HL_OK;
}

/* ---- to Python ------------------------------------------------------------------------------- */

PyObject *hl_py_from_ints(const int64_t *ints, int64_t n)
{
    PyObject *tuple = PyTuple_New((Py_ssize_t)n);
    for (Py_ssize_t i = 0; tuple && i < n; i++) {
        PyObject *number = PyLong_FromLongLong(ints[i]);
        if (!number)
            Py_CLEAR(tuple);
        else
            PyTuple_SetItem(tuple, i, number);
    }
    return tuple;
}

PyObject *hl_py_from_shape(const hl_shape *shape)
{
    return hl_py_from_ints(shape->dim, shape->rank);
}

PyObject *hl_py_from_text(const char *text)
{
    if (!text) return Py_NewRef(Py_None);
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
}

bool hl_py_dict_put(PyObject *dict, const char *key, PyObject *value)
{
    if (!value) return false;
    int failed = PyDict_SetItemString(dict, key, value);
    Py_DECREF(value);
    return failed == 0;
}
