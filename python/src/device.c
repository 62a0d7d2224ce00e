/* Device: what plans run on; and what a backend finds on this machine. */
#include "base/alloc.h"
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

static bool read_roots(hl_py_state *state, PyObject *object, const char **out_roots)
{
    *out_roots = NULL;
    return !object || object == Py_None || hl_py_text(state, object, "library_roots", out_roots);
}

static PyObject *make_device(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static const hl_py_signature signature = {.function = "Device",
                                              .n_positional = 4,
                                              .n_required = 1,
                                              .n_params = 6,
                                              .names = {HL_PY_NAME_backend, HL_PY_NAME_index,
                                                        HL_PY_NAME_n_threads, HL_PY_NAME_isa,
                                                        HL_PY_NAME_library_roots, HL_PY_NAME_gpu}};
    hl_py_state *state = PyType_GetModuleState(type);
    PyObject *given[6];
    int64_t index = 0, n_threads = 0;
    hl_device_options options = {0};
    if (!hl_py_args_parse_new(state, &signature, args, kwargs, given)) return NULL;
    const hl_backend *backend = find_backend(state, given[0]);
    if (!backend || (given[1] && !hl_py_int(state, given[1], "index", 0, INT32_MAX, &index)) ||
        (given[2] && !hl_py_int(state, given[2], "n_threads", 0, 1024, &n_threads)) ||
        (given[3] && given[3] != Py_None && !hl_py_text(state, given[3], "isa", &options.isa)) ||
        !read_roots(state, given[4], &options.library_roots) ||
        (given[5] && given[5] != Py_None && !hl_py_text(state, given[5], "gpu", &options.gpu)))
        return NULL;
    options.n_threads = (int)n_threads;
    hl_py_device *self = (hl_py_device *)PyType_GenericAlloc(type, 0);
    if (!self) return NULL;
    hl_status status;
    HL_PY_WITHOUT_GIL(status = backend->device_open(backend, (int)index, &options, &self->device));
    if (status == HL_OK) return (PyObject *)self;
    hl_py_raise(state, status);
    Py_DECREF(self);
    return NULL;
}

static void free_device(PyObject *self)
{
    hl_device *device = ((hl_py_device *)self)->device;
    PyObject_GC_UnTrack(self);
    if (device) {
        HL_PY_WITHOUT_GIL(device->ops->destroy(device));
    }
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

static PyObject *get_reduced_dtype(PyObject *self, void *unused)
{
    (void)unused;
    return hl_py_from_text(hl_dtype_name(device_of(self)->reduced_dtype));
}

static PyObject *get_reduced_side(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromLongLong(device_of(self)->reduced_side);
}

static PyObject *get_is_described(PyObject *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(device_of(self)->is_described);
}

static PyObject *get_unasked(PyObject *self, void *unused)
{
    (void)unused;
    const hl_unasked *unasked = device_of(self)->unasked;
    Py_ssize_t n = 0;
    while (n < HL_UNASKED_MAX && unasked[n].kernel) n++;
    PyObject *tuple = PyTuple_New(n);
    for (Py_ssize_t i = 0; tuple && i < n; i++) {
        PyObject *item = Py_BuildValue("(ssn)", unasked[i].kernel, unasked[i].library,
                                       (Py_ssize_t)unasked[i].bytes);
        if (!item || PyTuple_SetItem(tuple, i, item) < 0) Py_CLEAR(tuple);
    }
    return tuple;
}

/* Names of the ops that it has a kernel for, or those that it runs as other ops for lack of one. */
static PyObject *list_ops(hl_device *device, bool lowered)
{
    PyObject *list = PyList_New(0);
    for (int op = 0; list && op < HL_OP_COUNT; op++) {
        const hl_kernel *const *kernels = device->ops->kernels(device, (hl_op)op);
        bool has_kernel = kernels && *kernels;
        if (lowered ? has_kernel || !hl_op_get((hl_op)op)->lower : !has_kernel) continue;
        PyObject *name = hl_py_from_text(hl_op_get((hl_op)op)->name);
        if (!name || PyList_Append(list, name) < 0) Py_CLEAR(list);
        Py_XDECREF(name);
    }
    PyObject *tuple = list ? PyList_AsTuple(list) : NULL;
    Py_XDECREF(list);
    return tuple;
}

static PyObject *get_ops(PyObject *self, void *unused)
{
    (void)unused;
    return list_ops(((hl_py_device *)self)->device, false);
}

static PyObject *get_lowered_ops(PyObject *self, void *unused)
{
    (void)unused;
    return list_ops(((hl_py_device *)self)->device, true);
}

/* None where device memory is the host's. */
static PyObject *get_memory(PyObject *self, PyObject *unused)
{
    (void)unused;
    hl_device *device = ((hl_py_device *)self)->device;
    hl_memory_stats stats;
    if (!device->ops->memory_read) return Py_NewRef(Py_None);
    hl_status status;
    HL_PY_WITHOUT_GIL(status = device->ops->memory_read(device, &stats));
    if (status != HL_OK) return hl_py_raise(hl_py_state_of(self), status);
    return Py_BuildValue("{sLsLsLsL}", "current_bytes", (long long)stats.current_bytes,
                         "peak_bytes", (long long)stats.peak_bytes, "free_bytes",
                         (long long)stats.free_bytes, "total_bytes", (long long)stats.total_bytes);
}

static PyObject *reset_memory_peak(PyObject *self, PyObject *unused)
{
    (void)unused;
    hl_device *device = ((hl_py_device *)self)->device;
    if (device->ops->memory_peak_reset) {
        HL_PY_WITHOUT_GIL(device->ops->memory_peak_reset(device));
    }
    return Py_NewRef(Py_None);
}

static PyObject *get_autotune_cache(PyObject *self, PyObject *unused)
{
    (void)unused;
    hl_device *device = ((hl_py_device *)self)->device;
    char *text = NULL;
    if (!device->ops->autotune_print) return PyUnicode_FromString("");
    hl_status status;
    HL_PY_WITHOUT_GIL(status = device->ops->autotune_print(device, &text));
    if (status != HL_OK) return hl_py_raise(hl_py_state_of(self), status);
    PyObject *object = hl_py_from_text(text);
    hl_free(text);
    return object;
}

static PyObject *take_autotune_cache(PyObject *self, PyObject *object)
{
    hl_device *device = ((hl_py_device *)self)->device;
    const char *text;
    hl_status status = HL_OK;
    if (!hl_py_text(hl_py_state_of(self), object, "autotune_read", &text)) return NULL;
    if (device->ops->autotune_read) {
        HL_PY_WITHOUT_GIL(status = device->ops->autotune_read(device, text));
    }
    return hl_py_none_or_raise(hl_py_state_of(self), status);
}

static PyObject *describe(PyObject *self)
{
    const hl_device *device = device_of(self);
    return PyUnicode_FromFormat("Device('%s', '%s')", device->backend->name, device->name);
}

static PyMethodDef methods[] = {
    {"autotune_cache", get_autotune_cache, METH_NOARGS,
     "autotune_cache($self, /)\n--\n\nThe autotune cache of its kernels, as lines of text."},
    {"autotune_read", take_autotune_cache, METH_O,
     "autotune_read($self, text, /)\n--\n\nAdds such lines to the cache: what they name is not "
     "measured "
     "again."},
    {"memory", get_memory, METH_NOARGS,
     "memory($self, /)\n--\n\ncurrent_bytes and peak_bytes that hotloop holds there, free_bytes "
     "and "
     "total_bytes; None where it is the host's memory."},
    {"memory_peak_reset", reset_memory_peak, METH_NOARGS,
     "memory_peak_reset($self, /)\n--\n\npeak_bytes starts again from current_bytes."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef members[] = {
    {"name", get_name, NULL, "In words: processor, threads, instruction set.", NULL},
    {"backend", get_backend, NULL, "Name of its backend.", NULL},
    {"n_threads", get_n_threads, NULL, "Threads that one plan uses.", NULL},
    {"float_dtype", get_float_dtype, NULL, "What floating values are computed in.", NULL},
    {"reduced_dtype", get_reduced_dtype, NULL,
     "The 16-bit type that it multiplies fast, or 'float32': none.", NULL},
    {"reduced_side", get_reduced_side, NULL,
     "Rows, columns and terms from which on a product gains clearly from that type.", NULL},
    {"is_described", get_is_described, NULL,
     "Whether there is no such device here: plans are predicted for it, and nothing runs there.",
     NULL},
    {"unasked", get_unasked, NULL,
     "Of a described device: libraries that choose on the device, each with the kernels in whose "
     "place it may stand and the bytes of workspace that it may take.",
     NULL},
    {"ops", get_ops, NULL, "Names of the ops that it has a kernel for.", NULL},
    {"lowered_ops", get_lowered_ops, NULL,
     "Names of the ops that it runs as other ops, for lack of a kernel.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Device(backend, index=0, n_threads=0, isa=None, *, library_roots=None, "
                "gpu=None)\n--\n\n"
                "A device that plans run on."},
    {Py_tp_new, make_device},
    {Py_tp_dealloc, free_device},
    {Py_tp_traverse, hl_py_traverse_type},
    {Py_tp_repr, describe},
    {Py_tp_methods, methods},
    {Py_tp_getset, members},
    {0, NULL},
};

PyType_Spec hl_py_device_spec = {
    .name = "hotloop._core.Device",
    .basicsize = sizeof(hl_py_device),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};

/* ---- survey ---------------------------------------------------------------------------------- */

/* None for "". */
static PyObject *from_words(const char *text)
{
    return hl_py_from_text(*text ? text : NULL);
}

static PyObject *describe_device(const hl_device_info *info)
{
    PyObject *dict = PyDict_New();
    if (!dict || !hl_py_dict_put(dict, "name", hl_py_from_text(info->name)) ||
        !hl_py_dict_put(dict, "architecture", hl_py_from_text(info->architecture)) ||
        !hl_py_dict_put(dict, "free_bytes", PyLong_FromLongLong(info->free_bytes)) ||
        !hl_py_dict_put(dict, "total_bytes", PyLong_FromLongLong(info->total_bytes)) ||
        !hl_py_dict_put(dict, "why_not", from_words(info->why_not)))
        Py_CLEAR(dict);
    return dict;
}

static PyObject *describe_library(const hl_library_info *info)
{
    PyObject *dict = PyDict_New();
    if (!dict || !hl_py_dict_put(dict, "name", hl_py_from_text(info->name)) ||
        !hl_py_dict_put(dict, "path", from_words(info->path)) ||
        !hl_py_dict_put(dict, "version", from_words(info->version)) ||
        !hl_py_dict_put(dict, "why_not", from_words(info->why_not)))
        Py_CLEAR(dict);
    return dict;
}

static PyObject *describe_survey(const hl_survey *survey)
{
    PyObject *devices = PyList_New(0), *libraries = PyList_New(0), *dict = PyDict_New();
    bool good = devices && libraries && dict;
    for (int i = 0; good && i < survey->n_devices; i++) {
        PyObject *item = describe_device(&survey->devices[i]);
        good = item && PyList_Append(devices, item) == 0;
        Py_XDECREF(item);
    }
    for (int i = 0; good && i < survey->n_libraries; i++) {
        PyObject *item = describe_library(&survey->libraries[i]);
        good = item && PyList_Append(libraries, item) == 0;
        Py_XDECREF(item);
    }
    good = good && hl_py_dict_put(dict, "devices", Py_NewRef(devices)) &&
           hl_py_dict_put(dict, "libraries", Py_NewRef(libraries)) &&
           hl_py_dict_put(dict, "why_none", from_words(survey->why_none)) &&
           hl_py_dict_put(dict, "absent", PyBool_FromLong(survey->is_absent));
    if (!good) Py_CLEAR(dict);
    Py_XDECREF(devices);
    Py_XDECREF(libraries);
    return dict;
}

HL_PY_FAST_KEYWORDS(hl_py_survey)
{
    static const hl_py_signature signature = {
        .function = "survey",
        .n_positional = 2,
        .n_required = 1,
        .n_params = 3,
        .names = {HL_PY_NAME_backend, HL_PY_NAME_library_roots, HL_PY_NAME_probe}};
    hl_py_state *state = hl_py_state_of_module(module);
    PyObject *given[3];
    hl_device_options options = {0};
    bool probe = true;
    if (!hl_py_args_parse(state, &signature, args, n_args, keywords, given)) return NULL;
    const hl_backend *backend = find_backend(state, given[0]);
    if (!backend || !read_roots(state, given[1], &options.library_roots) ||
        (given[2] && !hl_py_bool(given[2], "probe", &probe)))
        return NULL;
    if (!backend->survey)
        return hl_py_fail(state, HL_ERROR_DEVICE, "survey: needs a backend of GPUs, got %s",
                          backend->name);
    hl_survey *survey;
    hl_status status = hl_alloc(sizeof *survey, (void **)&survey);
    if (status != HL_OK) return hl_py_raise(state, status);
    HL_PY_WITHOUT_GIL(backend->survey(backend, &options, probe, survey));
    PyObject *dict = describe_survey(survey);
    hl_free(survey);
    return dict;
}
