/* Views of a graph: nodes and leaves as dictionaries, dependence. */
#include <stddef.h>

#include "base/alloc.h"
#include "objects.h"

static hl_graph *graph_of(PyObject *self)
{
    return ((hl_py_graph *)self)->graph;
}

static PyObject *list_ids(const hl_id *ids, int32_t n)
{
    PyObject *tuple = PyTuple_New(n);
    for (int32_t i = 0; tuple && i < n; i++) {
        PyObject *id = PyLong_FromLong(ids[i]);
        if (id)
            PyTuple_SetItem(tuple, i, id);
        else
            Py_CLEAR(tuple);
    }
    return tuple;
}

static PyObject *describe_node(const hl_node *node)
{
    PyObject *dict = PyDict_New();
    if (!dict || !hl_py_dict_put(dict, "op", hl_py_from_text(hl_op_get(node->op)->name)) ||
        !hl_py_dict_put(dict, "inputs", list_ids(node->in, node->n_in)) ||
        !hl_py_dict_put(dict, "outputs", hl_py_outputs(node->out, node->n_out)) ||
        !hl_py_dict_put(dict, "attrs", hl_py_attrs_to_dict(node->op, &node->attrs)) ||
        !hl_py_dict_put(dict, "scope", hl_py_from_text(node->scope)) ||
        !hl_py_dict_put(dict, "segment", hl_py_from_text(hl_py_segment_name(node->segment))))
        Py_CLEAR(dict);
    return dict;
}

/* Which of the inputs, datasets or scalars it is; None for other leaves. */
static PyObject *find_index(const hl_value *value)
{
    size_t scalar_bytes = sizeof(((hl_control *)NULL)->scalar[0]);
    switch (value->kind) {
    case HL_VALUE_INPUT:
    case HL_VALUE_DATASET: return PyLong_FromLong(value->store);
    case HL_VALUE_SCALAR:
        return PyLong_FromSize_t(((size_t)value->offset - offsetof(hl_control, scalar)) /
                                 scalar_bytes);
    default: return Py_NewRef(Py_None);
    }
}

static PyObject *describe_leaf(const hl_graph *graph, hl_id id)
{
    const hl_value *value = hl_graph_value(graph, id);
    bool is_view = value->kind == HL_VALUE_PARAM || value->kind == HL_VALUE_STATE ||
                   value->kind == HL_VALUE_SCALAR;
    const char *store = is_view ? graph->stores[value->store].name : NULL;
    PyObject *dict = PyDict_New();
    if (!dict || !hl_py_dict_put(dict, "id", PyLong_FromLong(id)) ||
        !hl_py_dict_put(dict, "kind", hl_py_from_text(hl_py_kind_name(value->kind))) ||
        !hl_py_dict_put(dict, "name", hl_py_from_text(value->name)) ||
        !hl_py_dict_put(dict, "dtype", hl_py_from_text(hl_dtype_name(value->type.dtype))) ||
        !hl_py_dict_put(dict, "shape", hl_py_from_shape(&value->type.shape)) ||
        !hl_py_dict_put(dict, "store", hl_py_from_text(store)) ||
        !hl_py_dict_put(dict, "offset", PyLong_FromLongLong(value->offset)) ||
        !hl_py_dict_put(dict, "index", find_index(value)))
        Py_CLEAR(dict);
    return dict;
}

static PyObject *list_nodes(const hl_graph *graph)
{
    PyObject *list = PyList_New(0);
    for (int64_t i = 0; list && i < graph->n_nodes; i++) {
        PyObject *dict = describe_node(&graph->nodes[i]);
        if (!dict || PyList_Append(list, dict) < 0) Py_CLEAR(list);
        Py_XDECREF(dict);
    }
    return list;
}

static PyObject *list_leaves(const hl_graph *graph)
{
    PyObject *list = PyList_New(0);
    for (int64_t i = 0; list && i < graph->n_values; i++) {
        if (graph->values[i].kind == HL_VALUE_ACT) continue;
        PyObject *dict = describe_leaf(graph, (hl_id)i);
        if (!dict || PyList_Append(list, dict) < 0) Py_CLEAR(list);
        Py_XDECREF(dict);
    }
    return list;
}

/* Without the garbage collector, which making a container may run, and with it a finalizer that
 * changes the graph. Nothing else here runs Python code. */
static PyObject *read_whole(PyObject *self, PyObject *(*read)(const hl_graph *))
{
    int collects = PyGC_Disable();
    PyObject *list = read(graph_of(self));
    if (collects) PyGC_Enable();
    return list;
}

PyObject *hl_py_graph_nodes(PyObject *self, PyObject *unused)
{
    (void)unused;
    return read_whole(self, list_nodes);
}

PyObject *hl_py_graph_leaves(PyObject *self, PyObject *unused)
{
    (void)unused;
    return read_whole(self, list_leaves);
}

/* reached[v]: value depends on v. Operands come first, so one pass backwards finds all. */
static hl_status find_reached(const hl_graph *graph, hl_id value, bool **out_reached)
{
    HL_TRY(hl_alloc_zero((size_t)graph->n_values * sizeof **out_reached, (void **)out_reached));
    bool *reached = *out_reached;
    reached[value] = true;
    for (int64_t i = graph->n_nodes - 1; i >= 0; i--) {
        const hl_node *node = &graph->nodes[i];
        bool is_needed = false;
        for (int32_t j = 0; j < node->n_out; j++) is_needed |= reached[node->out + j];
        for (int32_t j = 0; is_needed && j < node->n_in; j++) reached[node->in[j]] = true;
    }
    return HL_OK;
}

PyObject *hl_py_graph_depends(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    hl_id value, *leaves;
    int32_t n;
    bool *reached;
    if (!hl_py_args_count("Graph.depends", n_args, 2, 2) ||
        !hl_py_value(self, args[0], "value", &value) ||
        !hl_py_values(self, args[1], "leaves", &leaves, &n))
        return NULL;
    hl_status status = find_reached(graph_of(self), value, &reached);
    PyObject *list = status == HL_OK ? PyList_New(n) : hl_py_raise(hl_py_state_of(self), status);
    for (int32_t i = 0; list && i < n; i++)
        PyList_SetItem(list, i, PyBool_FromLong(reached[leaves[i]]));
    hl_free(reached);
    hl_free(leaves);
    return list;
}
