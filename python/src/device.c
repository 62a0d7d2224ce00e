/* Device: what plans run on. */
#include "objects.h"

static PyObject *list_backends(const hl_registry *registry)
{
    PyObject *list = PyList_New(0);
    for (int i = 0; list && i < registry->n; i++) {
        PyObject *name = hl_py_from_text(registry->backend[i]->name);
        if (!name || PyList_Append(list, name) < 0) Py_CLEAR(list);
        Py_XDECREF(name);
    }
    return list;
}

static const hl_backend *find_backend(hl_py_state *state, PyObject *object)
{
    const char *name;
    if (!hl_py_text(state, object, "backend", &name)) return NULL;
    const hl_backend *found = hl_registry_find(&state->registry, name);
    if (found) return found;
    PyObject *names = list_backends(&state->registry);
    PyObject *comma = PyUnicode_FromString(", ");
    PyObject *joined = names && comma ? PyUnicode_Join(comma, names) : NULL;
    const char *known = joined ? PyUnicode_AsUTF8AndSize(joined, NULL) : NULL;
    if (known)
        hl_py_fail(state, HL_ERROR_DEVICE, "backend: must be one of %s in this build, got '%s'",
                   known, name);
    Py_XDECREF(joined);
    Py_XDECREF(comma);
    Py_XDECREF(names);
    return NULL;
}

static PyObject *make_device(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static const hl_py_signature signature = {
        .function = "Device",
        .n_positional = 4,
        .n_required = 1,
        .n_params = 4,
        .names = {HL_PY_NAME_backend, HL_PY_NAME_index, HL_PY_NAME_n_threads, HL_PY_NAME_isa}};
    hl_py_state *state = PyType_GetModuleState(type);
    PyObject *given[4];
    int64_t index = 0, n_threads = 0;
    hl_device_options options = {0};
    if (!hl_py_args_parse_new(state, &signature, args, kwargs, given)) return NULL;
    const hl_backend *backend = find_backend(state, given[0]);
    if (!backend || (given[1] && !hl_py_int(state, given[1], "index", 0, INT32_MAX, &index)) ||
        (given[2] && !hl_py_int(state, given[2], "n_threads", 0, 1024, &n_threads)) ||
        (given[3] && given[3] != Py_None && !hl_py_text(state, given[3], "isa", &options.isa)))
        return NULL;
    options.n_threads = (int)n_threads;
    hl_py_device *self = (hl_py_device *)PyType_GenericAlloc(type, 0);
    if (!self) return NULL;
    hl_status status;
    Py_BEGIN_ALLOW_THREADS status =
        backend->device_open(backend, (int)index, &options, &self->device);
    Py_END_ALLOW_THREADS if (status == HL_OK) return (PyObject *)self;
    hl_py_raise(state, status);
    Py_DECREF(self);
    return NULL;
}

static void free_device(PyObject *self)
{
    hl_device *device = ((hl_py_device *)self)->device;
    PyObject_GC_UnTrack(self);
    if (device) device->ops->destroy(device);
    hl_py_free(self);
}

static const hl_device *device_of(PyObject *self)
{
    return ((hl_py_device *)self)->device;
}

static PyObject *get_name(PyObject *self, void *unused)
{
    (void)unused;
    return hl_py_from_text(device_of(self)->name);
}

static PyObject *get_backend(PyObject *self, void *unused)
{
    (void)unused;
    return hl_py_from_text(device_of(self)->backend->name);
}

static PyObject *get_n_threads(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromLong(device_of(self)->n_threads);
}

static PyObject *get_float_dtype(PyObject *self, void *unused)
{
    (void)unused;
    return hl_py_from_text(hl_dtype_name(device_of(self)->float_type));
}

static PyGetSetDef members[] = {
    {"name", get_name, NULL, "In words: processor, threads, instruction set.", NULL},
    {"backend", get_backend, NULL, "Name of its backend.", NULL},
    {"n_threads", get_n_threads, NULL, "Threads that one plan uses.", NULL},
    {"float_dtype", get_float_dtype, NULL, "What floating values are computed in.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Device(backend, index=0, n_threads=0, isa=None)\n--\n\n"
                "A device that plans run on."},
    {Py_tp_new, make_device},
    {Py_tp_dealloc, free_device},
    {Py_tp_traverse, hl_py_traverse_type},
    {Py_tp_getset, members},
    {0, NULL},
};

PyType_Spec hl_py_device_spec = {
    .name = "hotloop._core.Device",
    .basicsize = sizeof(hl_py_device),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};
