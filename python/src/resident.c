/* Resident: an array in a device's memory, for the datasets of any plans there. */
#include "numpy_api.h"
#include "objects.h"

static hl_py_resident *resident_of(PyObject *self)
{
    return (hl_py_resident *)self;
}

static bool create_resident(hl_py_resident *self, const hl_py_array *array)
{
    hl_device *device = self->device->device;
    hl_status status;
    self->type = (hl_type){array->dtype, array->shape};
    HL_PY_WITHOUT_GIL(status = hl_resident_create(device, array->data, hl_type_bytes(&self->type),
                                                  &self->resident));
    if (status == HL_OK) return true;
    hl_py_raise(hl_py_state_of((PyObject *)self), status);
    return false;
}

static PyObject *make_resident(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static const hl_py_signature signature = {.function = "Resident",
                                              .n_only = 2,
                                              .n_positional = 2,
                                              .n_required = 2,
                                              .n_params = 2,
                                              .names = {HL_PY_NAME_device, HL_PY_NAME_array}};
    hl_py_state *state = PyType_GetModuleState(type);
    PyObject *given[2];
    hl_py_array array;
    if (!hl_py_args_parse_new(state, &signature, args, kwargs, given) ||
        !hl_py_check_type(given[0], state->device_type, "Resident", "Device") ||
        !hl_py_array_read(state, given[1], "Resident", HL_DTYPE_COUNT, &array))
        return NULL;
    hl_py_resident *self = (hl_py_resident *)PyType_GenericAlloc(type, 0);
    if (self) self->device = (hl_py_device *)Py_NewRef(given[0]);
    if (self && !create_resident(self, &array)) Py_CLEAR(self);
    hl_py_array_release(&array);
    return (PyObject *)self;
}

static int traverse_resident(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(resident_of(self)->device);
    return hl_py_traverse_type(self, visit, arg);
}

static void free_resident(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    HL_PY_WITHOUT_GIL(hl_resident_destroy(resident_of(self)->resident));
    Py_XDECREF((PyObject *)resident_of(self)->device);
    hl_py_free(self);
}

static PyType_Slot slots[] = {
    {Py_tp_doc, "Resident(device, array, /)\n--\n\nA copy of an array in a device's memory."},
    {Py_tp_new, make_resident},
    {Py_tp_dealloc, free_resident},
    {Py_tp_traverse, traverse_resident},
    {0, NULL},
};

PyType_Spec hl_py_resident_spec = {
    .name = "hotloop._core.Resident",
    .basicsize = sizeof(hl_py_resident),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};
