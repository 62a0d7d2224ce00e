/* Attributes of ops: between Python's keywords and the op table's slots. */
#include <stdio.h>
#include <string.h>

#include "objects.h"

/* "it has trans_a, trans_b", cut where the message's room ends. */
static void list_attrs(hl_op op, char *text, size_t bytes)
{
    int n;
    const hl_attr_info *attrs = hl_schema_attrs(hl_op_get(op)->schema, &n);
    size_t used = 0;
    *text = '\0';
    for (int i = 0; i < n && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%s", i ? ", " : "", attrs[i].name);
    if (!used) snprintf(text, bytes, "none");
}

/* The value is of the wrong kind for the attribute: that is a setting, so a ConfigError. */
static bool convert_error(hl_py_state *state)
{
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) return false;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    PyObject *words = value ? PyObject_Str(value) : NULL;
    const char *text = words ? PyUnicode_AsUTF8AndSize(words, NULL) : NULL;
    if (text) hl_py_fail(state, HL_ERROR_CONFIG, "%s", text);
    Py_XDECREF(words);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    return false;
}

static bool convert_attr(hl_py_state *state, const hl_attr_info *attr, PyObject *value,
                         const char *what, hl_attrs *attrs)
{
    int64_t number = 0;
    hl_dtype dtype;
    bool good;
    hl_ints *list;
    switch (attr->kind) {
    case HL_ATTR_float: return hl_py_double(value, what, hl_attrs_float(attrs, attr));
    case HL_ATTR_text: return hl_py_text(state, value, what, hl_attrs_text(attrs, attr));
    case HL_ATTR_ints:
        list = hl_attrs_ints(attrs, attr);
        return hl_py_ints(state, value, what, HL_MAX_RANK, list->at, &list->n);
    case HL_ATTR_dtype:
        good = hl_py_dtype(state, value, what, &dtype);
        if (good) number = dtype;
        break;
    case HL_ATTR_flag: good = hl_py_int(state, value, what, 0, 1, &number); break;
    default: good = hl_py_int(state, value, what, INT64_MIN, INT64_MAX, &number);
    }
    if (good) hl_attrs_int_set(attrs, attr, number);
    return good;
}

/* Bit i of *given: attribute i of the schema was given. */
static bool set_attr(hl_py_state *state, hl_op op, PyObject *key, PyObject *value, hl_attrs *attrs,
                     uint64_t *given)
{
    int n;
    const char *name;
    char what[96], known[256];
    if (!hl_py_text(state, key, "attribute", &name)) return false;
    const hl_attr_info *attr = hl_schema_find(hl_op_get(op)->schema, name);
    if (!attr) {
        list_attrs(op, known, sizeof known);
        hl_py_fail(state, HL_ERROR_CONFIG, "%s: must be given attributes that it has (%s), got %s",
                   hl_op_get(op)->name, known, name);
        return false;
    }
    *given |= (uint64_t)1 << (attr - hl_schema_attrs(hl_op_get(op)->schema, &n));
    snprintf(what, sizeof what, "%s: %s", hl_op_get(op)->name, name);
    return convert_attr(state, attr, value, what, attrs) || convert_error(state);
}

static bool check_required(hl_py_state *state, hl_op op, uint64_t given)
{
    int n;
    const hl_attr_info *attrs = hl_schema_attrs(hl_op_get(op)->schema, &n);
    for (int i = 0; i < n; i++) {
        if (!attrs[i].required || given >> i & 1) continue;
        hl_py_fail(state, HL_ERROR_CONFIG, "%s: needs the attribute %s, got none",
                   hl_op_get(op)->name, attrs[i].name);
        return false;
    }
    return true;
}

bool hl_py_attrs_from_call(hl_py_state *state, hl_op op, PyObject *keys, PyObject *const *values,
                           hl_attrs *out)
{
    hl_attrs_init(hl_op_get(op)->schema, out);
    uint64_t given = 0;
    Py_ssize_t n = keys ? PyTuple_Size(keys) : 0;
    for (Py_ssize_t i = 0; i < n; i++)
        if (!set_attr(state, op, PyTuple_GetItem(keys, i), values[i], out, &given)) return false;
    return check_required(state, op, given);
}

bool hl_py_attrs_from_dict(hl_py_state *state, hl_op op, PyObject *dict, hl_attrs *out)
{
    hl_attrs_init(hl_op_get(op)->schema, out);
    uint64_t given = 0;
    Py_ssize_t position = 0;
    PyObject *key, *value;
    while (PyDict_Next(dict, &position, &key, &value))
        if (!set_attr(state, op, key, value, out, &given)) return false;
    return check_required(state, op, given);
}

static PyObject *read_attr(const hl_attrs *attrs, const hl_attr_info *attr)
{
    const hl_ints *list;
    switch (attr->kind) {
    case HL_ATTR_float: return PyFloat_FromDouble(*hl_attrs_float(attrs, attr));
    case HL_ATTR_text: return hl_py_from_text(*hl_attrs_text(attrs, attr));
    case HL_ATTR_ints: list = hl_attrs_ints(attrs, attr); return hl_py_from_ints(list->at, list->n);
    case HL_ATTR_dtype: return hl_py_from_text(hl_dtype_name((hl_dtype)hl_attrs_int(attrs, attr)));
    default: return PyLong_FromLongLong(hl_attrs_int(attrs, attr));
    }
}

PyObject *hl_py_attrs_to_dict(hl_op op, const hl_attrs *attrs)
{
    PyObject *dict = PyDict_New();
    int n;
    const hl_attr_info *list = hl_schema_attrs(hl_op_get(op)->schema, &n);
    for (int i = 0; dict && i < n; i++)
        if (!hl_py_dict_put(dict, list[i].name, read_attr(attrs, &list[i]))) Py_CLEAR(dict);
    return dict;
}

/* ---- the op table ---------------------------------------------------------------------------- */

/* "kind:name" of a required attribute, "kind:name=default" of another, blanks between. */
static PyObject *describe_attrs(hl_schema schema)
{
    static const char *const kinds[] = {"int", "flag", "float", "dtype", "ints", "text"};
    char text[512] = "";
    size_t used = 0;
    int n;
    const hl_attr_info *attrs = hl_schema_attrs(schema, &n);
    for (int i = 0; i < n && used < sizeof text; i++) {
        char value[32] = "";
        const hl_attr_info *attr = &attrs[i];
        if (attr->kind == HL_ATTR_float)
            snprintf(value, sizeof value, "%.9g", attr->default_float);
        else if (attr->kind == HL_ATTR_dtype)
            snprintf(value, sizeof value, "%s", hl_dtype_name((hl_dtype)attr->default_int));
        else if (attr->kind != HL_ATTR_ints)
            snprintf(value, sizeof value, "%lld", (long long)attr->default_int);
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s:%s%s%s", i ? " " : "",
                                 kinds[attr->kind], attr->name, attr->required ? "" : "=",
                                 attr->required ? "" : value);
    }
    return hl_py_from_text(text);
}

static PyObject *describe_op(hl_op op)
{
    const hl_op_info *info = hl_op_get(op);
    PyObject *dict = PyDict_New();
    if (!dict || !hl_py_dict_put(dict, "name", hl_py_from_text(info->name)) ||
        !hl_py_dict_put(dict, "min_in", PyLong_FromLong(info->min_in)) ||
        !hl_py_dict_put(dict, "max_in", PyLong_FromLong(info->max_in)) ||
        !hl_py_dict_put(dict, "n_out", PyLong_FromLong(info->n_out)) ||
        !hl_py_dict_put(dict, "attrs", describe_attrs(info->schema)) ||
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
