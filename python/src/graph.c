/* Graph: the builder of hl_graph. Every id is checked here, so that the core may trust its own. */
#include <string.h>

#include "base/alloc.h"
#include "numpy_api.h"
#include "objects.h"

static hl_graph *graph_of(PyObject *self)
{
    return ((hl_py_graph *)self)->graph;
}

/* The id by its address: it is written by the call that gives the status. */
static PyObject *id_or_raise(PyObject *self, hl_status status, const hl_id *id)
{
    if (status != HL_OK) return hl_py_raise(hl_py_state_of(self), status);
    return PyLong_FromLong(*id);
}

const char *hl_py_kind_name(hl_value_kind kind)
{
    static const char *const names[] = {
        [HL_VALUE_PARAM] = "param",     [HL_VALUE_STATE] = "state",   [HL_VALUE_INPUT] = "input",
        [HL_VALUE_DATASET] = "dataset", [HL_VALUE_SCALAR] = "scalar", [HL_VALUE_CONST] = "const",
        [HL_VALUE_ACT] = "act",
    };
    return names[kind];
}

const char *hl_py_segment_name(hl_segment segment)
{
    static const char *const names[HL_SEGMENT_COUNT] = {"begin", "micro", "apply"};
    return names[segment];
}

bool hl_py_value(PyObject *graph, PyObject *object, const char *what, hl_id *out)
{
    hl_py_state *state = hl_py_state_of(graph);
    int64_t id;
    *out = HL_NONE;
    if (!hl_py_int(state, object, what, INT64_MIN, INT64_MAX, &id)) return false;
    int64_t n_values = graph_of(graph)->n_values;
    if (id < 0 || id >= n_values) {
        hl_py_fail(state, HL_ERROR_CONFIG, "%s: must be one of the graph's %lld values, got %lld",
                   what, (long long)n_values, (long long)id);
        return false;
    }
    *out = (hl_id)id;
    return true;
}

bool hl_py_values(PyObject *graph, PyObject *object, const char *what, hl_id **out, int32_t *out_n)
{
    hl_py_state *state = hl_py_state_of(graph);
    *out = NULL;
    *out_n = 0;
    PyObject *items = hl_py_sequence(object, what);
    if (!items) return false;
    Py_ssize_t n = PyTuple_Size(items);
    bool good = n < INT32_MAX / 2;
    if (!good) hl_py_fail(state, HL_ERROR_CONFIG, "%s: too many, got %lld", what, (long long)n);
    hl_status status = good ? hl_alloc((size_t)(n + 1) * sizeof(hl_id), (void **)out) : HL_OK;
    if (status != HL_OK) good = hl_py_raise(state, status) != NULL;
    for (Py_ssize_t i = 0; good && i < n; i++)
        good = hl_py_value(graph, PyTuple_GetItem(items, i), what, &(*out)[i]);
    Py_DECREF(items);
    if (good) {
        *out_n = (int32_t)n;
    } else {
        hl_free(*out);
        *out = NULL;
    }
    return good;
}

/* ---- life ------------------------------------------------------------------------------------ */

static PyObject *wrap_graph(PyTypeObject *type, HL_TAKE hl_graph *graph)
{
    hl_py_graph *self = (hl_py_graph *)PyType_GenericAlloc(type, 0);
    if (!self) {
        hl_graph_destroy(graph);
        return NULL;
    }
    self->graph = graph;
    return (PyObject *)self;
}

static PyObject *make_graph(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static const hl_py_signature signature = {.function = "Graph"};
    hl_py_state *state = PyType_GetModuleState(type);
    hl_graph *graph;
    PyObject *none[1];
    if (!hl_py_args_parse_new(state, &signature, args, kwargs, none)) return NULL;
    hl_status status = hl_graph_create(&graph);
    if (status != HL_OK) return hl_py_raise(state, status);
    return wrap_graph(type, graph);
}

static void free_graph(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    hl_graph_destroy(graph_of(self));
    hl_py_free(self);
}

static PyObject *clone_graph(PyObject *self, PyObject *unused)
{
    (void)unused;
    hl_graph *copy;
    hl_status status = hl_graph_clone(graph_of(self), &copy);
    if (status != HL_OK) return hl_py_raise(hl_py_state_of(self), status);
    return wrap_graph(Py_TYPE(self), copy);
}

/* ---- stores and leaves ----------------------------------------------------------------------- */

/* Name, dtype and shape: what every leaf begins with. */
static bool read_leaf(PyObject *self, PyObject *const *args, const char **out_name,
                      hl_type *out_type)
{
    hl_py_state *state = hl_py_state_of(self);
    return hl_py_word(state, args[0], "name", out_name) &&
           hl_py_dtype(state, args[1], *out_name, &out_type->dtype) &&
           hl_py_shape(state, args[2], *out_name, &out_type->shape);
}

/* Its bytes are counters and indices of the core, so nobody else may write them. */
static bool check_store_name(hl_py_state *state, const char *name)
{
    if (strcmp(name, "control") != 0) return true;
    hl_py_fail(state, HL_ERROR_CONFIG, "store: the name 'control' is taken by the core, got it");
    return false;
}

static PyObject *add_store(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    hl_py_state *state = hl_py_state_of(self);
    const char *name;
    hl_dtype dtype;
    int64_t n;
    int32_t index;
    if (!hl_py_args_count("Graph.store", n_args, 3, 3) ||
        !hl_py_word(state, args[0], "name", &name) || !check_store_name(state, name) ||
        !hl_py_dtype(state, args[1], name, &dtype) ||
        !hl_py_int(state, args[2], name, 0, INT64_MAX, &n))
        return NULL;
    return hl_py_none_or_raise(state, hl_graph_store(graph_of(self), name, dtype, n, &index));
}

static PyObject *add_input(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    const char *name;
    hl_type type;
    hl_id id;
    if (!hl_py_args_count("Graph.input", n_args, 3, 3) || !read_leaf(self, args, &name, &type))
        return NULL;
    return id_or_raise(self, hl_graph_input(graph_of(self), name, type, &id), &id);
}

static PyObject *add_dataset(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    const char *name;
    hl_type type;
    hl_id id;
    bool is_streamed = false;
    if (!hl_py_args_count("Graph.dataset", n_args, 3, 4) || !read_leaf(self, args, &name, &type) ||
        (n_args > 3 && !hl_py_bool(args[3], "is_streamed", &is_streamed)))
        return NULL;
    if (type.shape.rank == 0)
        return hl_py_fail(hl_py_state_of(self), HL_ERROR_SHAPE,
                          "dataset %s: must have a first dim, its rows, got shape ()", name);
    hl_status status = is_streamed ? hl_graph_streamed_dataset(graph_of(self), name, type, &id)
                                   : hl_graph_dataset(graph_of(self), name, type, &id);
    return id_or_raise(self, status, &id);
}

static PyObject *add_view(PyObject *self, PyObject *const *args, Py_ssize_t n_args,
                          hl_value_kind kind, const char *function)
{
    hl_py_state *state = hl_py_state_of(self);
    const char *name, *store_name;
    hl_type type;
    int64_t offset;
    hl_id id;
    if (!hl_py_args_count(function, n_args, 5, 5) || !read_leaf(self, args, &name, &type) ||
        !hl_py_word(state, args[3], "store", &store_name) || !check_store_name(state, store_name) ||
        !hl_py_int(state, args[4], "offset", 0, INT64_MAX, &offset))
        return NULL;
    hl_graph *graph = graph_of(self);
    int32_t store = hl_graph_store_find(graph, store_name);
    if (store == HL_NONE)
        return hl_py_fail(state, HL_ERROR_CONFIG, "%s: its store must be made before, got '%s'",
                          name, store_name);
    const hl_store *owner = &graph->stores[store];
    if (owner->dtype != type.dtype || offset > owner->n ||
        hl_shape_numel(&type.shape) > owner->n - offset)
        return hl_py_fail(state, HL_ERROR_SHAPE,
                          "%s: must lie in store %s, %s of %lld elements, got %s from %lld to %lld",
                          name, store_name, hl_dtype_name(owner->dtype), (long long)owner->n,
                          hl_dtype_name(type.dtype), (long long)offset,
                          (long long)(offset + hl_shape_numel(&type.shape)));
    return id_or_raise(self, hl_graph_leaf(graph, kind, type, store, offset, name, &id), &id);
}

static PyObject *add_param(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    return add_view(self, args, n_args, HL_VALUE_PARAM, "Graph.param");
}

static PyObject *add_state(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    return add_view(self, args, n_args, HL_VALUE_STATE, "Graph.state");
}

static PyObject *add_scalar(PyObject *self, PyObject *name_object)
{
    const char *name;
    hl_id id;
    if (!hl_py_word(hl_py_state_of(self), name_object, "scalar", &name)) return NULL;
    return id_or_raise(self, hl_graph_scalar(graph_of(self), name, &id), &id);
}

static PyObject *list_scalar_names(PyObject *self, PyObject *unused)
{
    (void)unused;
    PyObject *list = PyList_New(0);
    const hl_graph *graph = graph_of(self);
    /* They were numbered as they were added. */
    for (int64_t v = 0; list && v < graph->n_values; v++) {
        if (graph->values[v].kind != HL_VALUE_SCALAR) continue;
        PyObject *name = hl_py_from_text(graph->values[v].name);
        if (!name || PyList_Append(list, name) < 0) Py_CLEAR(list);
        Py_XDECREF(name);
    }
    return list;
}

static PyObject *add_control(PyObject *self, PyObject *unused)
{
    (void)unused;
    hl_id id;
    return id_or_raise(self, hl_graph_control(graph_of(self), &id), &id);
}

/* A float64 array of another floating type is rounded; the doubles stay for float64 devices. */
static hl_status make_const(hl_graph *graph, const hl_py_array *array, hl_dtype dtype, hl_id *out)
{
    hl_type type = {dtype, array->shape};
    *out = HL_NONE;
    if (dtype == array->dtype) return hl_graph_const(graph, type, array->data, out);
    if (array->dtype == HL_DTYPE_F64) return hl_graph_const_round(graph, type, array->data, out);
    return hl_status_set(HL_ERROR_DATA, "constant: must be float64 to be made %s, got %s",
                         hl_dtype_name(dtype), hl_dtype_name(array->dtype));
}

static PyObject *add_const(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    hl_py_array array;
    hl_id id;
    if (!hl_py_args_count("Graph.const", n_args, 1, 2) ||
        !hl_py_array_read(hl_py_state_of(self), args[0], "constant", HL_DTYPE_COUNT, &array))
        return NULL;
    hl_dtype dtype = array.dtype;
    bool good = n_args < 2 || args[1] == Py_None ||
                hl_py_dtype(hl_py_state_of(self), args[1], "constant", &dtype);
    hl_status status = good ? make_const(graph_of(self), &array, dtype, &id) : HL_OK;
    hl_py_array_release(&array);
    return good ? id_or_raise(self, status, &id) : NULL;
}

static PyObject *add_number(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    hl_dtype dtype;
    double number;
    hl_id id;
    if (!hl_py_args_count("Graph.number", n_args, 2, 2) ||
        !hl_py_dtype(hl_py_state_of(self), args[0], "number", &dtype) ||
        !hl_py_double(args[1], "number", &number))
        return NULL;
    return id_or_raise(self, hl_graph_number(graph_of(self), dtype, number, &id), &id);
}

/* ---- nodes ----------------------------------------------------------------------------------- */

static PyObject *list_op_names(void)
{
    PyObject *list = PyList_New(0);
    for (int op = 0; list && op < HL_OP_COUNT; op++) {
        if (hl_op_get((hl_op)op)->flags & HL_OP_INTERNAL) continue;
        PyObject *name = hl_py_from_text(hl_op_get((hl_op)op)->name);
        if (!name || PyList_Append(list, name) < 0) Py_CLEAR(list);
        Py_XDECREF(name);
    }
    return list;
}

static bool read_op(hl_py_state *state, PyObject *object, hl_op *out)
{
    const char *name;
    *out = HL_OP_COUNT;
    if (!hl_py_text(state, object, "op", &name)) return false;
    *out = hl_op_parse(name);
    if (*out == HL_OP_COUNT) {
        char meant[96] = "";
        PyObject *names = list_op_names();
        if (names) hl_py_suggest(name, names, meant, sizeof meant);
        Py_XDECREF(names);
        PyErr_Clear();
        hl_py_fail(state, HL_ERROR_CONFIG, "op: must be in the op table, got '%s'%s", name, meant);
        return false;
    }
    if (!(hl_op_get(*out)->flags & HL_OP_INTERNAL)) return true;
    hl_py_fail(state, HL_ERROR_CONFIG,
               "op: '%s' is made by the core's passes alone, got it from "
               "Python",
               name);
    return false;
}

PyObject *hl_py_outputs(hl_id first, int32_t n_out)
{
    PyObject *tuple = PyTuple_New(n_out);
    for (int32_t i = 0; tuple && i < n_out; i++) {
        PyObject *id = PyLong_FromLong(first + i);
        if (id)
            PyTuple_SetItem(tuple, i, id);
        else
            Py_CLEAR(tuple);
    }
    return tuple;
}

static PyObject *add_node(PyObject *self, PyObject *const *args, Py_ssize_t n_args,
                          PyObject *keywords)
{
    hl_py_state *state = hl_py_state_of(self);
    hl_op op;
    hl_attrs attrs;
    hl_id *in, out;
    int32_t n_in;
    if (!hl_py_args_count("Graph.add", n_args, 2, 2) || !read_op(state, args[0], &op) ||
        !hl_py_attrs_from_call(state, op, keywords, args + n_args, &attrs) ||
        !hl_py_values(self, args[1], hl_op_get(op)->name, &in, &n_in))
        return NULL;
    hl_graph *graph = graph_of(self);
    int64_t n_values = graph->n_values;
    hl_status status = hl_graph_add(graph, op, in, n_in, &attrs, &out);
    hl_free(in);
    if (status != HL_OK) return hl_py_raise(state, status);
    /* None was added where the op changes nothing: its operand stands for its one result. */
    return hl_py_outputs(out, out < n_values ? 1 : (int32_t)(graph->n_values - n_values));
}

static PyObject *commit_value(PyObject *self, PyObject *const *args, Py_ssize_t n_args,
                              const char *function, hl_status (*commit)(hl_graph *, hl_id, hl_id))
{
    hl_py_state *state = hl_py_state_of(self);
    hl_id target, value;
    if (!hl_py_args_count(function, n_args, 2, 2) ||
        !hl_py_value(self, args[0], "target", &target) ||
        !hl_py_value(self, args[1], "value", &value))
        return NULL;
    hl_graph *graph = graph_of(self);
    if (target == graph->control)
        return hl_py_fail(state, HL_ERROR_CONFIG,
                          "%s: the control block is written by the core alone, got it as target",
                          function);
    return hl_py_none_or_raise(state, commit(graph, target, value));
}

static PyObject *commit(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    return commit_value(self, args, n_args, "Graph.commit", hl_graph_commit);
}

static PyObject *accumulate(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    return commit_value(self, args, n_args, "Graph.accumulate", hl_graph_accumulate);
}

static PyObject *mark_output(PyObject *self, PyObject *value)
{
    hl_id id;
    if (!hl_py_value(self, value, "output", &id)) return NULL;
    hl_graph *graph = graph_of(self);
    hl_status status = hl_graph_output(graph, id);
    if (status != HL_OK) return hl_py_raise(hl_py_state_of(self), status);
    return PyLong_FromLongLong(graph->n_outputs - 1);
}

static PyObject *list_outputs(PyObject *self, PyObject *unused)
{
    (void)unused;
    PyObject *list = PyList_New(0);
    const hl_graph *graph = graph_of(self);
    for (int64_t i = 0; list && i < graph->n_outputs; i++) {
        PyObject *id = PyLong_FromLong(graph->outputs[i]);
        if (!id || PyList_Append(list, id) < 0) Py_CLEAR(list);
        Py_XDECREF(id);
    }
    return list;
}

static PyObject *set_scope(PyObject *self, PyObject *object)
{
    hl_py_state *state = hl_py_state_of(self);
    const char *scope = NULL;
    if (object != Py_None && !hl_py_text(state, object, "scope", &scope)) return NULL;
    return hl_py_none_or_raise(state, hl_graph_scope(graph_of(self), scope));
}

static PyObject *raise_fence(PyObject *self, PyObject *unused)
{
    (void)unused;
    graph_of(self)->fence++;
    return Py_NewRef(Py_None);
}

static PyObject *begin_checkpoint(PyObject *self, PyObject *unused)
{
    (void)unused;
    return hl_py_none_or_raise(hl_py_state_of(self), hl_graph_checkpoint_begin(graph_of(self)));
}

static PyObject *end_checkpoint(PyObject *self, PyObject *unused)
{
    (void)unused;
    hl_graph_checkpoint_end(graph_of(self));
    return Py_NewRef(Py_None);
}

static PyObject *set_segment(PyObject *self, PyObject *object)
{
    hl_py_state *state = hl_py_state_of(self);
    const char *name;
    if (!hl_py_text(state, object, "segment", &name)) return NULL;
    for (int s = 0; s < HL_SEGMENT_COUNT; s++) {
        if (strcmp(name, hl_py_segment_name((hl_segment)s)) != 0) continue;
        graph_of(self)->segment = (hl_segment)s;
        return Py_NewRef(Py_None);
    }
    return hl_py_fail(state, HL_ERROR_CONFIG, "segment: must be begin, micro or apply, got '%s'",
                      name);
}

/* ---- looking --------------------------------------------------------------------------------- */

/* Good until the next call that may run Python code; the making of a container is one, as it may
 * run the garbage collector, that of a str or a number is not. */
static const hl_value *read_value(PyObject *self, PyObject *object)
{
    hl_id id;
    if (!hl_py_value(self, object, "value", &id)) return NULL;
    return hl_graph_value(graph_of(self), id);
}

static PyObject *get_shape(PyObject *self, PyObject *object)
{
    const hl_value *value = read_value(self, object);
    if (!value) return NULL;
    hl_shape shape = value->type.shape;
    return hl_py_from_shape(&shape);
}

static PyObject *get_dtype(PyObject *self, PyObject *object)
{
    const hl_value *value = read_value(self, object);
    return value ? hl_py_from_text(hl_dtype_name(value->type.dtype)) : NULL;
}

static PyObject *get_kind(PyObject *self, PyObject *object)
{
    const hl_value *value = read_value(self, object);
    return value ? hl_py_from_text(hl_py_kind_name(value->kind)) : NULL;
}

static PyObject *get_name(PyObject *self, PyObject *object)
{
    const hl_value *value = read_value(self, object);
    return value ? hl_py_from_text(value->name) : NULL;
}

static PyObject *get_const_value(PyObject *self, PyObject *object)
{
    void *data;
    const hl_value *value = read_value(self, object);
    if (!value) return NULL;
    if (value->kind != HL_VALUE_CONST) return Py_NewRef(Py_None);
    PyObject *array = hl_py_array_new(value->type.dtype, &value->type.shape, &data);
    size_t bytes = (size_t)hl_shape_numel(&value->type.shape) * hl_dtype_bytes(value->type.dtype);
    if (array && bytes) memcpy(data, value->data, bytes);
    return array;
}

static PyObject *verify(PyObject *self, PyObject *unused)
{
    (void)unused;
    return hl_py_none_or_raise(hl_py_state_of(self), hl_graph_verify(graph_of(self)));
}

static PyObject *print(PyObject *self)
{
    char *text;
    hl_status status = hl_graph_print(graph_of(self), &text);
    if (status != HL_OK) return hl_py_raise(hl_py_state_of(self), status);
    PyObject *words = hl_py_from_text(text);
    hl_free(text);
    return words;
}

static PyMethodDef methods[] = {
    {"store", HL_PY_METH_FAST(add_store),
     "store($self, name, dtype, n, /)\n--\n\nDeclares persistent memory of n elements."},
    {"input", HL_PY_METH_FAST(add_input),
     "input($self, name, dtype, shape, /)\n--\n\nAdds a batch slot's field."},
    {"dataset", HL_PY_METH_FAST(add_dataset),
     "dataset($self, name, dtype, shape, is_streamed=False, /)\n--\n\nAdds resident data, from "
     "which rows are gathered; is_streamed: they are made by a Source, batch by batch."},
    {"param", HL_PY_METH_FAST(add_param),
     "param($self, name, dtype, shape, store, offset, /)\n--\n\nAdds a parameter: elements of a "
     "store from offset on."},
    {"state", HL_PY_METH_FAST(add_state),
     "state($self, name, dtype, shape, store, offset, /)\n--\n\nAdds state: elements of a store "
     "from offset on."},
    {"scalar", add_scalar, METH_O,
     "scalar($self, name, /)\n--\n\nA run-time number; the same name gives the same value."},
    {"scalar_names", list_scalar_names, METH_NOARGS,
     "scalar_names($self, /)\n--\n\nNames of the run-time numbers, in order."},
    {"control", add_control, METH_NOARGS, "control($self, /)\n--\n\nThe control block's leaf."},
    {"const", HL_PY_METH_FAST(add_const),
     "const($self, array, dtype=None, /)\n--\n\nAdds a copy of an array; of float64, rounded to a "
     "floating dtype."},
    {"number", HL_PY_METH_FAST(add_number),
     "number($self, dtype, value, /)\n--\n\nAdds a constant of shape ()."},
    {"add", HL_PY_METH_KEYWORDS(add_node),
     "add($self, op, inputs, /, **attrs)\n--\n\nAdds a node; returns its outputs."},
    {"commit", HL_PY_METH_FAST(commit),
     "commit($self, target, value, /)\n--\n\ntarget <- value, after all readers of target."},
    {"accumulate", HL_PY_METH_FAST(accumulate),
     "accumulate($self, target, value, /)\n--\n\nA commit that adds to the target, in the "
     "target's dtype: target <- target + value."},
    {"output", mark_output, METH_O,
     "output($self, value, /)\n--\n\nMarks a value to be read after a run; returns its output "
     "number."},
    {"outputs", list_outputs, METH_NOARGS,
     "outputs($self, /)\n--\n\nThe values marked as outputs, in order."},
    {"scope", set_scope, METH_O,
     "scope($self, name, /)\n--\n\nModule path of nodes added from now on."},
    {"fence", raise_fence, METH_NOARGS,
     "fence($self, /)\n--\n\nNodes added from now on never run side by side with those before, "
     "and are no part of their kernels."},
    {"checkpoint_begin", begin_checkpoint, METH_NOARGS,
     "checkpoint_begin($self, /)\n--\n\nWhat is added from now on is computed again in the "
     "backward pass, not kept for it."},
    {"checkpoint_end", end_checkpoint, METH_NOARGS,
     "checkpoint_end($self, /)\n--\n\nGoes back to the checkpoint that the last one was begun "
     "in, or to none."},
    {"segment", set_segment, METH_O,
     "segment($self, name, /)\n--\n\nOf nodes added from now on: \"begin\", \"micro\" or "
     "\"apply\"."},
    {"shape", get_shape, METH_O, "shape($self, value, /)\n--\n\nShape of a value."},
    {"dtype", get_dtype, METH_O, "dtype($self, value, /)\n--\n\nName of a value's dtype."},
    {"kind", get_kind, METH_O,
     "kind($self, value, /)\n--\n\nparam, state, input, dataset, scalar, const or act."},
    {"name", get_name, METH_O, "name($self, value, /)\n--\n\nA value's name, or None."},
    {"const_value", get_const_value, METH_O,
     "const_value($self, value, /)\n--\n\nA copy of a const leaf's array; None for other values."},
    {"nodes", hl_py_graph_nodes, METH_NOARGS,
     "nodes($self, /)\n--\n\nop, inputs, outputs, attrs, scope, segment of every node in order."},
    {"leaves", hl_py_graph_leaves, METH_NOARGS,
     "leaves($self, /)\n--\n\nid, kind, name, dtype, shape, store, offset, index of every leaf."},
    {"depends", HL_PY_METH_FAST(hl_py_graph_depends),
     "depends($self, value, leaves, /)\n--\n\nFor each leaf, whether the value depends on it."},
    {"backward", HL_PY_METH_FAST(hl_py_graph_backward),
     "backward($self, loss, wrt, /)\n--\n\nAdds the gradients of a rank-0 value; None where it "
     "does not depend on one."},
    {"training_step", HL_PY_METH_FAST(hl_py_graph_training_step),
     "training_step($self, terms, params, spec, /)\n--\n\nMakes the training step out of a forward "
     "graph."},
    {"clone", clone_graph, METH_NOARGS, "clone($self, /)\n--\n\nA deep copy with the same ids."},
    {"verify", verify, METH_NOARGS,
     "verify($self, /)\n--\n\nRaises HotloopError when the graph is not well-formed."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Graph()\n--\n\nSSA graph; values are ints. Every method raises ShapeError, "
                "TraceError or ConfigError with a sentence."},
    {Py_tp_new, make_graph},
    {Py_tp_dealloc, free_graph},
    {Py_tp_traverse, hl_py_traverse_type},
    {Py_tp_str, print},
    {Py_tp_methods, methods},
    {0, NULL},
};

PyType_Spec hl_py_graph_spec = {
    .name = "hotloop._core.Graph",
    .basicsize = sizeof(hl_py_graph),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};
