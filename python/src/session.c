/* Session: stores and the control block. Every call takes the flag of the core's session first. */
#include "plan/session.h"

#include <stddef.h>
#include <string.h>

#include "base/alloc.h"
#include "numpy_api.h"
#include "objects.h"

static hl_py_session *session_of(PyObject *self)
{
    return (hl_py_session *)self;
}

static bool try_enter(hl_py_session *session)
{
    int idle = 0;
    return __atomic_compare_exchange_n(&session->busy, &idle, 1, false, __ATOMIC_ACQUIRE,
                                       __ATOMIC_RELAXED);
}

bool hl_py_session_enter(hl_py_session *session, const char *what)
{
    if (!session->session) {
        hl_py_fail(hl_py_state_of((PyObject *)session), HL_ERROR_CONFIG,
                   "%s: the session must be open, got a closed one", what);
        return false;
    }
    if (try_enter(session)) return true;
    hl_py_fail(hl_py_state_of((PyObject *)session), HL_ERROR_BUSY,
               "%s: this model is already running in another thread; wait for it or stop it", what);
    return false;
}

/* The core's objects before those that they use. */
static void destroy_in_core(const hl_py_discarded *discarded)
{
    hl_runner_destroy(discarded->runner);
    hl_plan_destroy(discarded->plan);
    if (discarded->feed) hl_feed_bind(discarded->feed->feed, NULL);
}

static void destroy_discarded(hl_py_session *session, hl_py_discarded *discarded)
{
    if (discarded->plan || discarded->runner) session->n_plans--;
    HL_PY_WITHOUT_GIL(destroy_in_core(discarded));
    if (discarded->feed) {
        discarded->feed->session = NULL;
        Py_DECREF((PyObject *)discarded->feed);
    }
    Py_XDECREF(discarded->datasets);
    hl_free(discarded);
}

void hl_py_session_leave(hl_py_session *session)
{
    while (session->discarded) {
        hl_py_discarded *first = session->discarded;
        session->discarded = first->next;
        destroy_discarded(session, first);
    }
    __atomic_store_n(&session->busy, 0, __ATOMIC_RELEASE);
}

PyObject *hl_py_session_leave_with(hl_py_session *session, hl_status status)
{
    PyObject *result = hl_py_none_or_raise(hl_py_state_of((PyObject *)session), status);
    hl_py_session_leave(session);
    return result;
}

void hl_py_session_discard(hl_py_session *session, hl_py_discarded *discarded)
{
    discarded->next = session->discarded;
    session->discarded = discarded;
    if (try_enter(session)) hl_py_session_leave(session);
}

/* ---- life ------------------------------------------------------------------------------------ */

static PyObject *make_session(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static const hl_py_signature signature = {.function = "Session",
                                              .n_only = 1,
                                              .n_positional = 1,
                                              .n_required = 1,
                                              .n_params = 1,
                                              .names = {HL_PY_NAME_device}};
    hl_py_state *state = PyType_GetModuleState(type);
    PyObject *device;
    if (!hl_py_args_parse_new(state, &signature, args, kwargs, &device) ||
        !hl_py_check_type(device, state->device_type, "Session", "Device"))
        return NULL;
    hl_py_session *self = (hl_py_session *)PyType_GenericAlloc(type, 0);
    if (!self) return NULL;
    self->device = (hl_py_device *)Py_NewRef(device);
    hl_status status;
    HL_PY_WITHOUT_GIL(status = hl_session_create(self->device->device, &self->session));
    if (status == HL_OK) return (PyObject *)self;
    hl_py_raise(state, status);
    Py_DECREF(self);
    return NULL;
}

static PyObject *close_session(PyObject *self, PyObject *unused)
{
    (void)unused;
    hl_py_session *session = session_of(self);
    if (!session->session) return Py_NewRef(Py_None);
    if (session->n_plans)
        return hl_py_fail(hl_py_state_of(self), HL_ERROR_BUSY,
                          "close: the session's plans must be closed first, got %d open",
                          session->n_plans);
    if (!hl_py_session_enter(session, "close")) return NULL;
    hl_session *core = session->session;
    session->session = NULL;
    hl_py_session_leave(session);
    HL_PY_WITHOUT_GIL(hl_session_destroy(core));
    return Py_NewRef(Py_None);
}

static int traverse_session(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(session_of(self)->device);
    return hl_py_traverse_type(self, visit, arg);
}

static void free_session(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    HL_PY_WITHOUT_GIL(hl_session_destroy(session_of(self)->session));
    Py_XDECREF((PyObject *)session_of(self)->device);
    hl_py_free(self);
}

/* ---- stores ---------------------------------------------------------------------------------- */

/* The control block is written field by field (control_set): the core trusts its numbers. */
static bool read_store_name(hl_py_state *state, PyObject *object, bool writes, const char **out)
{
    if (!hl_py_word(state, object, "store", out)) return false;
    if (!writes || strcmp(*out, "control") != 0) return true;
    hl_py_fail(state, HL_ERROR_CONFIG,
               "store: 'control' is written by control_set alone, got it as a target");
    return false;
}

static PyObject *make_store(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    hl_py_state *state = hl_py_state_of(self);
    const char *name;
    hl_dtype dtype;
    int64_t n;
    if (!hl_py_args_count("Session.store", n_args, 3, 3) ||
        !read_store_name(state, args[0], true, &name) ||
        !hl_py_dtype(state, args[1], name, &dtype) ||
        !hl_py_int(state, args[2], name, 0, INT64_MAX, &n) ||
        !hl_py_session_enter(session_of(self), "store"))
        return NULL;
    hl_status status;
    HL_PY_WITHOUT_GIL(status = hl_session_store(session_of(self)->session, name, dtype, n));
    return hl_py_session_leave_with(session_of(self), status);
}

static PyObject *describe_store(const hl_session_store_entry *store)
{
    return Py_BuildValue("(sL)", hl_dtype_name(store->dtype), (long long)store->n);
}

static PyObject *list_stores(PyObject *self, PyObject *unused)
{
    (void)unused;
    if (!hl_py_session_enter(session_of(self), "stores")) return NULL;
    const hl_session *session = session_of(self)->session;
    PyObject *dict = PyDict_New();
    for (int64_t i = 0; dict && i < session->n_stores; i++)
        if (!hl_py_dict_put(dict, session->stores[i].name, describe_store(&session->stores[i])))
            Py_CLEAR(dict);
    hl_py_session_leave(session_of(self));
    return dict;
}

static PyObject *write_store(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    hl_py_state *state = hl_py_state_of(self);
    const char *name;
    hl_py_array array;
    int64_t first = 0;
    if (!hl_py_args_count("Session.write", n_args, 2, 3) ||
        !read_store_name(state, args[0], true, &name) ||
        (n_args > 2 && !hl_py_int(state, args[2], "first", 0, INT64_MAX, &first)))
        return NULL;
    if (!hl_py_array_read(state, args[1], name, HL_DTYPE_BF16, &array)) return NULL;
    PyObject *result = NULL;
    if (hl_py_session_enter(session_of(self), "write")) {
        hl_session *session = session_of(self)->session;
        hl_status status;
        HL_PY_WITHOUT_GIL(
            status = hl_session_write(session, name, first, array.n, array.dtype, array.data));
        result = hl_py_session_leave_with(session_of(self), status);
    }
    hl_py_array_release(&array);
    return result;
}

/* n -1: to the end. False: no such store or range. */
static bool find_count(PyObject *self, const char *name, int64_t first, int64_t *n)
{
    const hl_session_store_entry *store = hl_session_find(session_of(self)->session, name);
    if (!store) {
        hl_py_fail(hl_py_state_of(self), HL_ERROR_CONFIG, "session: no store is named %s", name);
        return false;
    }
    if (*n < 0) *n = first <= store->n ? store->n - first : 0;
    if (first <= store->n && *n <= store->n - first) return true;
    hl_py_fail(hl_py_state_of(self), HL_ERROR_SHAPE,
               "store %s: has %lld elements, got a request for %lld from %lld on", name,
               (long long)store->n, (long long)*n, (long long)first);
    return false;
}

static PyObject *read_range(PyObject *self, const char *name, hl_dtype dtype, int64_t first,
                            int64_t n)
{
    void *data;
    hl_session *session = session_of(self)->session;
    hl_status status = HL_OK;
    if (!find_count(self, name, first, &n)) return NULL;
    hl_shape shape = hl_shape_1d(n);
    PyObject *array = hl_py_array_new(dtype, &shape, &data);
    if (!array) return NULL;
    HL_PY_WITHOUT_GIL(status = hl_session_read(session, name, first, n, dtype, data));
    if (status == HL_OK) return array;
    Py_DECREF(array);
    return hl_py_raise(hl_py_state_of(self), status);
}

static PyObject *read_store(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    hl_py_state *state = hl_py_state_of(self);
    const char *name;
    hl_dtype dtype;
    int64_t first = 0, n = -1;
    if (!hl_py_args_count("Session.read", n_args, 2, 4) ||
        !read_store_name(state, args[0], false, &name) ||
        !hl_py_dtype(state, args[1], name, &dtype) ||
        (n_args > 2 && !hl_py_int(state, args[2], "first", 0, INT64_MAX, &first)) ||
        (n_args > 3 && !hl_py_int(state, args[3], "n", -1, INT64_MAX, &n)) ||
        !hl_py_session_enter(session_of(self), "read"))
        return NULL;
    PyObject *array = read_range(self, name, dtype, first, n);
    hl_py_session_leave(session_of(self));
    return array;
}

static PyObject *copy_store(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    hl_py_state *state = hl_py_state_of(self);
    const char *dst, *src;
    hl_status status;
    if (!hl_py_args_count("Session.copy", n_args, 2, 2) ||
        !read_store_name(state, args[0], true, &dst) ||
        !read_store_name(state, args[1], false, &src) ||
        !hl_py_session_enter(session_of(self), "copy"))
        return NULL;
    HL_PY_WITHOUT_GIL(status = hl_session_copy(session_of(self)->session, dst, src));
    return hl_py_session_leave_with(session_of(self), status);
}

/* ---- the control block ----------------------------------------------------------------------- */

/* field, kind ('l' int64, 'i' int32, 'd' double), least value or -1: not to be set */
#define CONTROL_FIELDS(X)                                                                          \
    X(attempted, 'l', 0)                                                                           \
    X(applied, 'l', 0)                                                                             \
    X(skipped, 'l', 0)                                                                             \
    X(skipped_in_row, 'l', 0)                                                                      \
    X(micro_row, 'l', -1)                                                                          \
    X(n_micro, 'l', -1)                                                                            \
    X(apply, 'i', -1)                                                                              \
    X(window_ok, 'i', -1)                                                                          \
    X(stopped, 'i', 0)                                                                             \
    X(stopped_at, 'l', 0)                                                                          \
    X(loss, 'd', 0)                                                                                \
    X(grad_norm, 'd', 0)                                                                           \
    X(lr, 'd', 0)                                                                                  \
    X(clip, 'd', 0)                                                                                \
    X(loss_scale, 'd', 0)                                                                          \
    X(good_steps, 'l', 0)                                                                          \
    X(scaling, 'l', 0)                                                                             \
    X(table_first, 'l', 0)                                                                         \
    X(n_ring, 'l', -1)

typedef struct control_field {
    const char *name;
    size_t offset;
    char kind;
    int least;
} control_field;

static const control_field control_fields[] = {
#define X(name, kind, least) {#name, offsetof(hl_control, name), kind, least},
    CONTROL_FIELDS(X)
#undef X
};
enum { N_CONTROL_FIELDS = sizeof control_fields / sizeof *control_fields };

static const char *const nan_modes[] = {[HL_NAN_STOP] = "stop", [HL_NAN_SKIP] = "skip"};

static PyObject *get_field(const hl_control *control, const control_field *field)
{
    const char *at = (const char *)control + field->offset;
    switch (field->kind) {
    case 'l': return PyLong_FromLongLong(*(const int64_t *)at);
    case 'i': return PyLong_FromLong(*(const int32_t *)at);
    default: return PyFloat_FromDouble(*(const double *)at);
    }
}

static PyObject *list_numbers(const hl_control *control, bool scalars, bool is_f64)
{
    PyObject *list = PyList_New(HL_CONTROL_SCALARS);
    for (int i = 0; list && i < HL_CONTROL_SCALARS; i++) {
        double scalar = is_f64 ? control->scalar[i].d : (double)control->scalar[i].f;
        PyObject *number = PyFloat_FromDouble(scalars ? scalar : control->factor[i]);
        if (number)
            PyList_SetItem(list, i, number);
        else
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *describe_control(const hl_control *control, bool is_f64)
{
    PyObject *dict = PyDict_New();
    for (int i = 0; dict && i < N_CONTROL_FIELDS; i++)
        if (!hl_py_dict_put(dict, control_fields[i].name, get_field(control, &control_fields[i])))
            Py_CLEAR(dict);
    const char *nan_mode = nan_modes[control->nan_mode == HL_NAN_SKIP];
    if (dict && (!hl_py_dict_put(dict, "nan_mode", hl_py_from_text(nan_mode)) ||
                 !hl_py_dict_put(dict, "factor", list_numbers(control, false, is_f64)) ||
                 !hl_py_dict_put(dict, "scalars", list_numbers(control, true, is_f64))))
        Py_CLEAR(dict);
    return dict;
}

static bool read_control(PyObject *self, const char *what, hl_control *out)
{
    if (!hl_py_session_enter(session_of(self), what)) return false;
    hl_status status;
    HL_PY_WITHOUT_GIL(status = hl_session_control_read(session_of(self)->session, out));
    if (status != HL_OK) hl_py_raise(hl_py_state_of(self), status);
    hl_py_session_leave(session_of(self));
    return status == HL_OK;
}

static PyObject *get_control(PyObject *self, PyObject *unused)
{
    (void)unused;
    hl_control control;
    if (!read_control(self, "control", &control)) return NULL;
    bool is_f64 = session_of(self)->device->device->float_type == HL_DTYPE_F64;
    return describe_control(&control, is_f64);
}

static PyObject *get_snapshot(PyObject *self, PyObject *unused)
{
    (void)unused;
    hl_control control;
    if (!hl_py_session_enter(session_of(self), "snapshot")) return NULL;
    hl_status status = hl_session_snapshot(session_of(self)->session, &control);
    bool is_f64 = session_of(self)->device->device->float_type == HL_DTYPE_F64;
    PyObject *dict = status == HL_OK ? describe_control(&control, is_f64)
                                     : hl_py_raise(hl_py_state_of(self), status);
    hl_py_session_leave(session_of(self));
    return dict;
}

static bool set_factor(hl_py_state *state, PyObject *object, hl_control *control)
{
    PyObject *items = hl_py_sequence(object, "factor");
    if (!items) return false;
    Py_ssize_t n = PyTuple_Size(items);
    bool good = n <= HL_CONTROL_SCALARS;
    if (!good)
        hl_py_fail(state, HL_ERROR_CONFIG, "factor: must have at most %d entries, got %lld",
                   HL_CONTROL_SCALARS, (long long)n);
    for (Py_ssize_t i = 0; good && i < n; i++)
        good = hl_py_finite(state, PyTuple_GetItem(items, i), "factor", &control->factor[i]);
    Py_DECREF(items);
    return good;
}

static bool set_nan_mode(hl_py_state *state, PyObject *object, hl_control *control)
{
    const char *mode;
    if (!hl_py_text(state, object, "nan_mode", &mode)) return false;
    for (int i = 0; i < 2; i++)
        if (!strcmp(mode, nan_modes[i])) {
            control->nan_mode = i;
            return true;
        }
    hl_py_fail(state, HL_ERROR_CONFIG, "nan_mode: must be stop or skip, got '%s'", mode);
    return false;
}

static bool set_field(hl_py_state *state, PyObject *key, PyObject *value, hl_control *control)
{
    const char *name;
    int64_t number;
    if (!hl_py_text(state, key, "field", &name)) return false;
    if (!strcmp(name, "factor")) return set_factor(state, value, control);
    if (!strcmp(name, "nan_mode")) return set_nan_mode(state, value, control);
    for (int i = 0; i < N_CONTROL_FIELDS; i++) {
        const control_field *field = &control_fields[i];
        char *at = (char *)control + field->offset;
        if (strcmp(name, field->name) != 0 || field->least < 0) continue;
        if (field->kind == 'd') return hl_py_double(value, name, (double *)at);
        int64_t most = field->kind == 'l' ? INT64_MAX - 1 : 1;
        if (!hl_py_int(state, value, name, field->least, most, &number)) return false;
        if (field->kind == 'l')
            *(int64_t *)at = number;
        else
            *(int32_t *)at = (int32_t)number;
        return true;
    }
    hl_py_fail(state, HL_ERROR_CONFIG, "control_set: must name a field that may be set, got '%s'",
               name);
    return false;
}

/* The fields are read into a copy first: all of them are set, or none. Nobody else has the session
 * from the reading of the block to its writing: a step that runs between would be undone. */
static PyObject *set_control(PyObject *self, PyObject *const *args, Py_ssize_t n_args,
                             PyObject *keywords)
{
    hl_py_state *state = hl_py_state_of(self);
    hl_control control;
    if (!hl_py_args_count("Session.control_set", n_args, 0, 0) ||
        !hl_py_session_enter(session_of(self), "control_set"))
        return NULL;
    hl_session *session = session_of(self)->session;
    hl_status status;
    HL_PY_WITHOUT_GIL(status = hl_session_control_read(session, &control));
    bool good = status == HL_OK;
    Py_ssize_t n = keywords ? PyTuple_Size(keywords) : 0;
    for (Py_ssize_t i = 0; good && i < n; i++)
        good = set_field(state, PyTuple_GetItem(keywords, i), args[i], &control);
    if (good) {
        HL_PY_WITHOUT_GIL(status = hl_session_control_write(session, &control));
    }
    if (good || status != HL_OK) return hl_py_session_leave_with(session_of(self), status);
    hl_py_session_leave(session_of(self));
    return NULL;
}

static PyObject *describe_log(const hl_control_log *entry)
{
    return Py_BuildValue("(LdddN)", (long long)entry->step, entry->loss, entry->grad_norm,
                         entry->lr, PyBool_FromLong(entry->applied != 0));
}

static PyObject *get_control_log(PyObject *self, PyObject *since_object)
{
    hl_control control;
    int64_t since;
    if (!hl_py_int(hl_py_state_of(self), since_object, "since", 0, INT64_MAX, &since) ||
        !read_control(self, "control_log", &control))
        return NULL;
    int64_t oldest = control.n_ring - HL_CONTROL_RING;
    PyObject *list = PyList_New(0);
    for (int64_t i = since > oldest ? since : oldest; list && i < control.n_ring; i++) {
        PyObject *entry = describe_log(&control.ring[i % HL_CONTROL_RING]);
        if (!entry || PyList_Append(list, entry) < 0) Py_CLEAR(list);
        Py_XDECREF(entry);
    }
    return list;
}

static PyMethodDef methods[] = {
    {"store", HL_PY_METH_FAST(make_store),
     "store($self, name, dtype, n, /)\n--\n\nMakes a store of n zeros, unless it is there."},
    {"stores", list_stores, METH_NOARGS,
     "stores($self, /)\n--\n\nEvery store by name: (dtype, elements)."},
    {"write", HL_PY_METH_FAST(write_store),
     "write($self, name, array, first=0, /)\n--\n\nFlattens and converts an array into elements "
     "first, first + 1, ... of a store."},
    {"read", HL_PY_METH_FAST(read_store),
     "read($self, name, dtype, first=0, n=-1, /)\n--\n\nA copy of n elements of a store (-1: to "
     "its end) from first on, converted."},
    {"copy", HL_PY_METH_FAST(copy_store),
     "copy($self, dst, src, /)\n--\n\ndst <- src, stores of one dtype and size."},
    {"control", get_control, METH_NOARGS, "control($self, /)\n--\n\nThe control block now."},
    {"snapshot", get_snapshot, METH_NOARGS,
     "snapshot($self, /)\n--\n\nThe control block as last polled, without waiting."},
    {"control_set", HL_PY_METH_KEYWORDS(set_control),
     "control_set($self, **fields)\n--\n\nSets fields of the control block."},
    {"control_log", get_control_log, METH_O,
     "control_log($self, since, /)\n--\n\n(step, loss, grad_norm, lr, applied) of the ring's "
     "entries from number `since` on."},
    {"close", close_session, METH_NOARGS,
     "close($self, /)\n--\n\nGives its memory back; its plans must be closed."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Session(device, /)\n--\n\n"
                "A model's memory on a device: persistent stores and the arena its plans share."},
    {Py_tp_new, make_session},
    {Py_tp_dealloc, free_session},
    {Py_tp_traverse, traverse_session},
    {Py_tp_methods, methods},
    {0, NULL},
};

PyType_Spec hl_py_session_spec = {
    .name = "hotloop._core.Session",
    .basicsize = sizeof(hl_py_session),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};
