/* State of the module hotloop._core: everything that lives as long as the module does.
 *
 * There is no static Python object: types, interned keywords and the exceptions of hotloop.errors
 * stand here, so that the module can be unloaded and made again. No type can be subclassed, hence a
 * method finds the state through its object's own type. */
#ifndef HL_PYTHON_STATE_H
#define HL_PYTHON_STATE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "backend/backend.h"
#include "base/status.h"

/* Keywords of functions, interned once. */
#define HL_PY_NAMES(X)                                                                             \
    X(annotations)                                                                                 \
    X(array)                                                                                       \
    X(augment)                                                                                     \
    X(backend)                                                                                     \
    X(bad_max)                                                                                     \
    X(batch)                                                                                       \
    X(cache_bytes)                                                                                 \
    X(caching)                                                                                     \
    X(capture)                                                                                     \
    X(chain)                                                                                       \
    X(channels)                                                                                    \
    X(companions)                                                                                  \
    X(compute_dtype)                                                                               \
    X(count)                                                                                       \
    X(benchmark)                                                                                   \
    X(deterministic)                                                                               \
    X(device)                                                                                      \
    X(epoch)                                                                                       \
    X(fed)                                                                                         \
    X(first)                                                                                       \
    X(function)                                                                                    \
    X(fuse)                                                                                        \
    X(gpu)                                                                                         \
    X(graph)                                                                                       \
    X(high)                                                                                        \
    X(index)                                                                                       \
    X(is_training)                                                                                 \
    X(isa)                                                                                         \
    X(k)                                                                                           \
    X(library_roots)                                                                               \
    X(low)                                                                                         \
    X(mean)                                                                                        \
    X(n)                                                                                           \
    X(n_draws)                                                                                     \
    X(n_slots)                                                                                     \
    X(n_threads)                                                                                   \
    X(on_bad)                                                                                      \
    X(order)                                                                                       \
    X(overlap)                                                                                     \
    X(paths)                                                                                       \
    X(peers)                                                                                       \
    X(probe)                                                                                       \
    X(reader)                                                                                      \
    X(recompute)                                                                                   \
    X(rows)                                                                                        \
    X(seed)                                                                                        \
    X(session)                                                                                     \
    X(shuffle)                                                                                     \
    X(std)                                                                                         \
    X(stored)                                                                                      \
    X(stream)                                                                                      \
    X(types)                                                                                       \
    X(weights)

typedef enum hl_py_name {
#define X(name) HL_PY_NAME_##name,
    HL_PY_NAMES(X)
#undef X
        HL_PY_NAME_COUNT
} hl_py_name;

typedef struct hl_py_gather hl_py_gather; /* gather.c */

typedef struct hl_py_state {
    PyObject *names[HL_PY_NAME_COUNT];
    PyObject *errors[HL_STATUS_COUNT]; /* by code; NULL until first raised */
    PyTypeObject *graph_type, *device_type, *session_type, *feed_type, *plan_type, *resident_type,
        *runner_type, *source_type;
    hl_registry registry;
    PyObject *raised;     /* by a source last: the cause of the error with its words; or NULL */
    hl_py_gather *gather; /* NULL until first used */
} hl_py_state;

static inline hl_py_state *hl_py_state_of(PyObject *self)
{
    return PyType_GetModuleState(Py_TYPE(self));
}
static inline hl_py_state *hl_py_state_of_module(PyObject *module)
{
    return PyModule_GetState(module);
}

extern PyType_Spec hl_py_graph_spec, hl_py_device_spec, hl_py_session_spec, hl_py_feed_spec,
    hl_py_plan_spec, hl_py_resident_spec, hl_py_runner_spec, hl_py_source_spec;

/* Functions of the module that stand in files of their own: METH_FASTCALL, and with keywords. */
#define HL_PY_FAST(name) PyObject *name(PyObject *module, PyObject *const *args, Py_ssize_t n_args)
#define HL_PY_FAST_KEYWORDS(name)                                                                  \
    PyObject *name(PyObject *module, PyObject *const *args, Py_ssize_t n_args, PyObject *keywords)
HL_PY_FAST_KEYWORDS(hl_py_random_uniform);
HL_PY_FAST_KEYWORDS(hl_py_random_normal);
HL_PY_FAST_KEYWORDS(hl_py_random_trunc_normal);
HL_PY_FAST_KEYWORDS(hl_py_permutation);
HL_PY_FAST(hl_py_check_finite);
HL_PY_FAST(hl_py_check_range);
HL_PY_FAST(hl_py_gather_rows);
HL_PY_FAST(hl_py_write_file);
HL_PY_FAST(hl_py_decode_image);
HL_PY_FAST(hl_py_image_header);
HL_PY_FAST(hl_py_image_report);
HL_PY_FAST(hl_py_augment);
HL_PY_FAST(hl_py_file_source);
HL_PY_FAST_KEYWORDS(hl_py_predict);
HL_PY_FAST_KEYWORDS(hl_py_survey);
HL_PY_FAST_KEYWORDS(hl_py_image_source);
PyObject *hl_py_op_table(PyObject *module, PyObject *unused);
PyObject *hl_py_image_decoder(PyObject *module, PyObject *unused);
void hl_py_gather_destroy(hl_py_gather *gather);

/* A statement that may wait for a device or for another thread: other Python threads run meanwhile,
 * so it uses no Python object. An exception that is set stays. */
#define HL_PY_WITHOUT_GIL(statement)                                                               \
    do {                                                                                           \
        PyThreadState *hl_thread = PyEval_SaveThread();                                            \
        statement;                                                                                 \
        PyEval_RestoreThread(hl_thread);                                                           \
    } while (0)

/* The two middle fields of a PyMethodDef. */
#define HL_PY_METH_FAST(fn)     ((PyCFunction)(void (*)(void))(fn)), METH_FASTCALL
#define HL_PY_METH_KEYWORDS(fn) ((PyCFunction)(void (*)(void))(fn)), METH_FASTCALL | METH_KEYWORDS

#endif
