/* Attributes of ops: between Python's keywords and the op table's slots. */
#include <stdio.h>
#include <string.h>

#include "objects.h"

/* "it has trans_a, trans_b", cut where the message's room ends. */
static void list_attrs(hl_op op, char *text, size_t bytes)
{
    hl_op_attr attr;
    size_t used = 0;
    *text = '\0';
    for (int i = 0; hl_op_attr_at(op, i, &attr) && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%s", i ? ", " : "", attr.name);
    if (!used) snprintf(text, bytes, "none");
}

/* The value is of the wrong kind for the attribute: that is a setting, so a ConfigError. */
static bool convert_error(hl_py_state *state)
{
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) return false;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *words = value ? PyObject_Str(value) : NULL;
    const char *text = words ? PyUnicode_AsUTF8AndSize(words, NULL) : NULL;
    if (text) hl_py_fail(state, HL_ERROR_CONFIG, "%s", text);
    Py_XDECREF(words);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    return false;
}

static bool set_attr(hl_py_state *state, hl_op op, PyObject *key, PyObject *value, hl_attrs *attrs)
{
    const char *name;
    char kind, what[96], known[256];
    int slot;
    hl_dtype dtype;
    bool good = false;
    if (!hl_py_text(state, key, "attribute", &name)) return false;
    if (!hl_op_attr_slot(op, name, &kind, &slot)) {
        list_attrs(op, known, sizeof known);
        hl_py_fail(state, HL_ERROR_CONFIG, "%s: must be given attributes that it has (%s), got %s",
                   hl_op_get(op)->name, known, name);
        return false;
    }
    snprintf(what, sizeof what, "%s: %s", hl_op_get(op)->name, name);
    switch (kind) {
    case 'i': good = hl_py_int(state, value, what, INT64_MIN, INT64_MAX, &attrs->i[slot]); break;
    case 'f': good = hl_py_double(value, what, &attrs->f[slot]); break;
    case 't':
        good = hl_py_dtype(state, value, what, &dtype);
        if (good) attrs->i[slot] = dtype;
        break;
    case 'd':
        good = hl_py_ints(state, value, what, HL_ATTR_DIMS, attrs->dims, &attrs->n_dims);
        break;
    default: good = hl_py_text(state, value, what, &attrs->name);
    }
    return good || convert_error(state);
}

/* keys: tuple or list of what was given, or NULL. */
static bool check_required(hl_py_state *state, hl_op op, PyObject *keys)
{
    hl_op_attr attr;
    for (int i = 0; hl_op_attr_at(op, i, &attr); i++) {
        if (!attr.required) continue;
        PyObject *name = PyUnicode_FromString(attr.name);
        int found = !name ? -1 : keys ? PySequence_Contains(keys, name) : 0;
        Py_XDECREF(name);
        if (found > 0) continue;
        if (!found)
            hl_py_fail(state, HL_ERROR_CONFIG, "%s: needs the attribute %s, got none",
                       hl_op_get(op)->name, attr.name);
        return false;
    }
    return true;
}

bool hl_py_attrs_from_call(hl_py_state *state, hl_op op, PyObject *keys, PyObject *const *values,
                           hl_attrs *out)
{
    hl_op_attr_defaults(op, out);
    Py_ssize_t n = keys ? PyTuple_Size(keys) : 0;
    for (Py_ssize_t i = 0; i < n; i++)
        if (!set_attr(state, op, PyTuple_GetItem(keys, i), values[i], out)) return false;
    return check_required(state, op, keys);
}

bool hl_py_attrs_from_dict(hl_py_state *state, hl_op op, PyObject *dict, hl_attrs *out)
{
    PyObject *keys = PyDict_Keys(dict);
    hl_op_attr_defaults(op, out);
    bool good = keys != NULL;
    for (Py_ssize_t i = 0; good && i < PyList_Size(keys); i++) {
        PyObject *key = PyList_GetItem(keys, i), *value = PyDict_GetItemWithError(dict, key);
        Py_XINCREF(value); /* a converter may run Python code that changes the dict */
        good = value && set_attr(state, op, key, value, out);
        Py_XDECREF(value);
    }
    good = good && check_required(state, op, keys);
    Py_XDECREF(keys);
    return good;
}

static PyObject *read_attr(const hl_op_attr *attr, const hl_attrs *attrs)
{
    switch (attr->kind) {
    case 'i': return PyLong_FromLongLong(attrs->i[attr->slot]);
    case 'f': return PyFloat_FromDouble(attrs->f[attr->slot]);
    case 't': return hl_py_from_text(hl_dtype_name((hl_dtype)attrs->i[attr->slot]));
    case 'd': return hl_py_from_ints(attrs->dims, attrs->n_dims);
    default: return hl_py_from_text(attrs->name);
    }
}

PyObject *hl_py_attrs_to_dict(hl_op op, const hl_attrs *attrs)
{
    PyObject *dict = PyDict_New();
    hl_op_attr attr;
    for (int i = 0; dict && hl_op_attr_at(op, i, &attr); i++)
        if (!hl_py_dict_put(dict, attr.name, read_attr(&attr, attrs))) Py_CLEAR(dict);
    return dict;
}

/* ---- the op table ---------------------------------------------------------------------------- */

static PyObject *describe_op(hl_op op)
{
    const hl_op_info *info = hl_op_get(op);
    PyObject *dict = PyDict_New();
    if (!dict || !hl_py_dict_put(dict, "name", hl_py_from_text(info->name)) ||
        !hl_py_dict_put(dict, "min_in", PyLong_FromLong(info->min_in)) ||
        !hl_py_dict_put(dict, "max_in", PyLong_FromLong(info->max_in)) ||
        !hl_py_dict_put(dict, "n_out", PyLong_FromLong(info->n_out)) ||
        !hl_py_dict_put(dict, "attrs", hl_py_from_text(info->attrs)) ||
        !hl_py_dict_put(dict, "doc", hl_py_from_text(info->doc)) ||
        !hl_py_dict_put(dict, "differentiable", PyBool_FromLong(info->vjp != NULL)) ||
        !hl_py_dict_put(dict, "pointwise", PyBool_FromLong(info->flags & HL_OP_POINTWISE)))
        Py_CLEAR(dict);
    return dict;
}

PyObject *hl_py_op_table(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    PyObject *list = PyList_New(0);
    for (int op = 0; list && op < HL_OP_COUNT; op++) {
        if (hl_op_get((hl_op)op)->flags & HL_OP_INTERNAL) continue;
        PyObject *dict = describe_op((hl_op)op);
        if (!dict || PyList_Append(list, dict) < 0) Py_CLEAR(list);
        Py_XDECREF(dict);
    }
    return list;
}
