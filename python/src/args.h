/* Arguments: what Python gives, checked and turned into what the core takes.
 *
 * Every converter names the argument in its message and returns false with an exception set. A
 * wrong Python type is a TypeError, a value out of bounds a ConfigError or ShapeError. */
#ifndef HL_PYTHON_ARGS_H
#define HL_PYTHON_ARGS_H

#include "errors.h"
#include "state.h"

enum { HL_PY_MAX_PARAMS = 13 };

/* Parameters in order: the first n_only by position alone, those from n_positional on by keyword
 * alone, the first n_required must be given. */
typedef struct hl_py_signature {
    const char *function;
    int n_only, n_positional, n_required, n_params;
    hl_py_name names[HL_PY_MAX_PARAMS];
} hl_py_signature;

/* out[i] is borrowed, NULL where an optional argument was left out. */
bool hl_py_args_parse(hl_py_state *state, const hl_py_signature *signature, PyObject *const *args,
                      Py_ssize_t n_args, PyObject *keywords, PyObject **out);
/* The same from what tp_new gets. */
bool hl_py_args_parse_new(hl_py_state *state, const hl_py_signature *signature, PyObject *args,
                          PyObject *kwargs, PyObject **out);
/* For METH_FASTCALL functions, whose parameters are all positional. */
bool hl_py_args_count(const char *function, Py_ssize_t n_args, int n_min, int n_max);

/* Anything with __index__, and NumPy's bools; ConfigError outside [low, high]. */
bool hl_py_int(hl_py_state *state, PyObject *object, const char *what, int64_t low, int64_t high,
               int64_t *out);
/* An integer of 64 bits, signed or not. */
bool hl_py_seed(hl_py_state *state, PyObject *object, const char *what, uint64_t *out);
bool hl_py_double(PyObject *object, const char *what, double *out);
bool hl_py_finite(hl_py_state *state, PyObject *object, const char *what, double *out);
/* Python's bools, and NumPy's: a scalar or an array of shape (). */
bool hl_py_bool(PyObject *object, const char *what, bool *out);
/* UTF-8 that lives as long as the object; ConfigError when it holds a NUL. */
bool hl_py_text(hl_py_state *state, PyObject *object, const char *what, const char **out);
/* Like it, and not empty. */
bool hl_py_word(hl_py_state *state, PyObject *object, const char *what, const char **out);
bool hl_py_dtype(hl_py_state *state, PyObject *object, const char *what, hl_dtype *out);
bool hl_py_shape(hl_py_state *state, PyObject *object, const char *what, hl_shape *out);
/* A sequence (not a str) as a new tuple; NULL: TypeError. */
PyObject *hl_py_sequence(PyObject *object, const char *what);
/* A sequence of integers, at most `most` of them. */
bool hl_py_ints(hl_py_state *state, PyObject *object, const char *what, int64_t most, int64_t *out,
                int32_t *out_n);

/* ---- from the core to Python: new references, NULL with an exception ------------------------- */

PyObject *hl_py_from_shape(const hl_shape *shape);
PyObject *hl_py_from_ints(const int64_t *ints, int64_t n);
/* None for NULL. */
PyObject *hl_py_from_text(const char *text);
/* dict[key] = value; takes the value, which may be NULL (then it fails). */
bool hl_py_dict_put(PyObject *dict, const char *key, HL_TAKE PyObject *value);

#endif
