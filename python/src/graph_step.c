/* Graph: the passes that Python asks for by name, backward and training_step.
 *
 * A pass that fails on its way may leave nodes behind, so each works on a copy that takes the
 * graph's place when all went well: a call that fails leaves the graph as it was. */
#include <string.h>

#include "base/alloc.h"
#include "objects.h"
#include "passes/passes.h"

static hl_graph *graph_of(PyObject *self)
{
    return ((hl_py_graph *)self)->graph;
}

static void replace_graph(PyObject *self, HL_TAKE hl_graph *graph)
{
    hl_graph_destroy(graph_of(self));
    ((hl_py_graph *)self)->graph = graph;
}

/* ---- backward -------------------------------------------------------------------------------- */

static PyObject *list_grads(const hl_id *grads, int32_t n)
{
    PyObject *tuple = PyTuple_New(n);
    for (int32_t i = 0; tuple && i < n; i++) {
        PyObject *id = grads[i] == HL_NONE ? Py_NewRef(Py_None) : PyLong_FromLong(grads[i]);
        if (id)
            PyTuple_SetItem(tuple, i, id);
        else
            Py_CLEAR(tuple);
    }
    return tuple;
}

PyObject *hl_py_graph_backward(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    hl_py_state *state = hl_py_state_of(self);
    hl_id loss, *wrt = NULL, *grads = NULL;
    int32_t n;
    hl_graph *graph = NULL;
    PyObject *result = NULL;
    hl_status status = HL_OK;
    if (!hl_py_args_count("Graph.backward", n_args, 2, 2) ||
        !hl_py_value(self, args[0], "loss", &loss) || !hl_py_values(self, args[1], "wrt", &wrt, &n))
        return NULL;
    HL_GOTO(hl_alloc((size_t)(n + 1) * sizeof *grads, (void **)&grads));
    HL_GOTO(hl_graph_clone(graph_of(self), &graph));
    HL_GOTO(hl_pass_autodiff(graph, loss, HL_NONE, wrt, n, grads));
    result = list_grads(grads, n);
    if (result) {
        replace_graph(self, graph);
        graph = NULL;
    }
cleanup:
    if (status != HL_OK) hl_py_raise(state, status);
    hl_graph_destroy(graph);
    hl_free(grads);
    hl_free(wrt);
    return result;
}

/* ---- the specification of a training step ---------------------------------------------------- */

typedef struct step_args {
    hl_step_spec spec;
    hl_step_term *terms;
    hl_id *params;
    double *segments;
    int64_t n_elements; /* of the store, to the end of the last parameter */
} step_args;

static void free_args(step_args *a)
{
    hl_free(a->terms);
    hl_free(a->params);
    hl_free(a->segments);
}

static bool check_status(PyObject *self, hl_status status)
{
    if (status != HL_OK) hl_py_raise(hl_py_state_of(self), status);
    return status == HL_OK;
}

static bool check_scalar(PyObject *self, hl_id id, const char *what)
{
    const hl_type *type = &hl_graph_value(graph_of(self), id)->type;
    char got[HL_TYPE_TEXT];
    if (type->shape.rank == 0 && hl_dtype_is_float(type->dtype)) return true;
    hl_py_fail(hl_py_state_of(self), HL_ERROR_TRACE, "%s: must be a floating scalar, got %s", what,
               hl_type_format(type, got));
    return false;
}

static bool read_term(PyObject *self, PyObject *object, hl_step_term *out)
{
    hl_py_state *state = hl_py_state_of(self);
    PyObject *items = hl_py_sequence(object, "term");
    if (!items) return false;
    bool good = PyTuple_Size(items) == 3;
    if (!good)
        hl_py_fail(state, HL_ERROR_CONFIG,
                   "term: must be (sum, denominator or None, weight), got %lld entries",
                   (long long)PyTuple_Size(items));
    good = good && hl_py_value(self, PyTuple_GetItem(items, 0), "loss", &out->sum) &&
           check_scalar(self, out->sum, "loss") &&
           hl_py_finite(state, PyTuple_GetItem(items, 2), "weight of a loss", &out->weight);
    out->denominator = HL_NONE;
    if (good && PyTuple_GetItem(items, 1) != Py_None)
        good = hl_py_value(self, PyTuple_GetItem(items, 1), "denominator", &out->denominator) &&
               check_scalar(self, out->denominator, "denominator");
    Py_DECREF(items);
    return good;
}

static bool read_terms(PyObject *self, PyObject *object, step_args *a)
{
    PyObject *items = hl_py_sequence(object, "terms");
    if (!items) return false;
    Py_ssize_t n = PyTuple_Size(items);
    bool good = n > 0;
    if (!good)
        hl_py_fail(hl_py_state_of(self), HL_ERROR_CONFIG,
                   "training step: must have at least one loss, got none");
    good = good && check_status(self, hl_alloc((size_t)n * sizeof *a->terms, (void **)&a->terms));
    for (Py_ssize_t i = 0; good && i < n; i++)
        good = read_term(self, PyTuple_GetItem(items, i), &a->terms[i]);
    Py_DECREF(items);
    a->spec.terms = a->terms;
    a->spec.n_terms = n;
    return good;
}

static bool read_params(PyObject *self, PyObject *object, step_args *a)
{
    int32_t n;
    if (!hl_py_values(self, object, "params", &a->params, &n)) return false;
    a->spec.params = a->params;
    a->spec.n_params = n;
    for (int32_t p = 0; p < n; p++) {
        const hl_value *value = hl_graph_value(graph_of(self), a->params[p]);
        if (value->kind != HL_VALUE_PARAM) {
            hl_py_fail(hl_py_state_of(self), HL_ERROR_CONFIG,
                       "params: must be parameters of the graph, got value %d, a %s", a->params[p],
                       hl_py_kind_name(value->kind));
            return false;
        }
        int64_t end = value->offset + hl_shape_numel(&value->type.shape);
        if (end > a->n_elements) a->n_elements = end;
    }
    return true;
}

/* ---- its dictionary -------------------------------------------------------------------------- */

static bool read_optimizer(PyObject *self, PyObject *dict, step_args *a)
{
    hl_py_state *state = hl_py_state_of(self);
    PyObject *name_object = PyDict_GetItemString(dict, "optimizer");
    PyObject *attrs = PyDict_GetItemString(dict, "attrs");
    const char *name;
    if (!hl_py_text(state, name_object, "optimizer", &name)) return false;
    hl_op op = a->spec.optimizer = hl_op_parse(name);
    if (op != HL_OP_SGD && op != HL_OP_ADAM && op != HL_OP_RMSPROP && op != HL_OP_LION) {
        hl_py_fail(state, HL_ERROR_CONFIG,
                   "optimizer: must be sgd, adam, rmsprop or lion, got '%s'", name);
        return false;
    }
    if (!PyDict_Check(attrs)) {
        PyErr_SetString(PyExc_TypeError, "attrs: must be a dict of the optimizer's attributes");
        return false;
    }
    return hl_py_attrs_from_dict(state, op, attrs, &a->spec.attrs);
}

static bool check_segment(PyObject *self, const step_args *a, int64_t i)
{
    const double *segment = a->segments + 4 * i;
    double begin = segment[0], end = segment[1];
    double after = i ? segment[-3] : 0.0;
    if (begin >= after && end >= begin && end <= (double)a->n_elements &&
        begin == (double)(int64_t)begin && end == (double)(int64_t)end)
        return true;
    hl_py_fail(hl_py_state_of(self), HL_ERROR_CONFIG,
               "segment %lld: must be whole elements after the one before and within %lld, got %g "
               "to %g",
               (long long)i, (long long)a->n_elements, begin, end);
    return false;
}

static bool read_segment(PyObject *self, PyObject *object, step_args *a, int64_t i)
{
    PyObject *items = hl_py_sequence(object, "segment");
    if (!items) return false;
    bool good = PyTuple_Size(items) == 4;
    if (!good)
        hl_py_fail(hl_py_state_of(self), HL_ERROR_CONFIG,
                   "segment: must be (begin, end, lr_scale, weight_decay), got %lld entries",
                   (long long)PyTuple_Size(items));
    for (int c = 0; good && c < 4; c++)
        good = hl_py_finite(hl_py_state_of(self), PyTuple_GetItem(items, c), "segment",
                            &a->segments[4 * i + c]);
    Py_DECREF(items);
    return good && check_segment(self, a, i);
}

static bool read_segments(PyObject *self, PyObject *dict, step_args *a)
{
    PyObject *items = hl_py_sequence(PyDict_GetItemString(dict, "segments"), "segments");
    if (!items) return false;
    Py_ssize_t n = PyTuple_Size(items);
    bool good = check_status(
        self, hl_alloc((size_t)(n + 1) * 4 * sizeof *a->segments, (void **)&a->segments));
    for (Py_ssize_t i = 0; good && i < n; i++)
        good = read_segment(self, PyTuple_GetItem(items, i), a, i);
    Py_DECREF(items);
    a->spec.segments = a->segments;
    a->spec.n_segments = n;
    return good;
}

static bool read_table(PyObject *self, PyObject *dict, step_args *a)
{
    hl_shape shape;
    PyObject *object = PyDict_GetItemString(dict, "table");
    if (!hl_py_shape(hl_py_state_of(self), object, "table", &shape)) return false;
    if (shape.rank != 2 || shape.dim[0] < 1 || shape.dim[0] > HL_CONTROL_SCALARS ||
        shape.dim[1] < 1) {
        char got[HL_SHAPE_TEXT];
        hl_py_fail(hl_py_state_of(self), HL_ERROR_CONFIG,
                   "table: must be (scalars, steps) with 1 to %d scalars, got %s",
                   HL_CONTROL_SCALARS, hl_shape_format(&shape, got));
        return false;
    }
    a->spec.n_table_rows = shape.dim[0];
    a->spec.n_table_cols = shape.dim[1];
    return true;
}

/* A number above 0, or None for 0. */
static bool read_limit(PyObject *self, PyObject *dict, const char *key, double most, double *out)
{
    PyObject *object = PyDict_GetItemString(dict, key);
    *out = 0.0;
    if (object == Py_None) return true;
    if (!hl_py_finite(hl_py_state_of(self), object, key, out)) return false;
    if (*out >= 0.0 && *out <= most) return true;
    hl_py_fail(hl_py_state_of(self), HL_ERROR_CONFIG, "%s: must be in 0..%g or None, got %g", key,
               most, *out);
    return false;
}

/* Every key, and no other. */
static bool check_keys(PyObject *self, PyObject *dict)
{
    static const char *const keys[] = {"rows",       "optimizer", "attrs",      "segments",
                                       "accumulate", "clip_norm", "clip_value", "ema",
                                       "ema_ramp",   "table",     "scales_loss"};
    Py_ssize_t n = sizeof keys / sizeof *keys;
    for (Py_ssize_t i = 0; i < n; i++) {
        if (PyDict_GetItemString(dict, keys[i])) continue;
        hl_py_fail(hl_py_state_of(self), HL_ERROR_CONFIG, "spec: needs the key %s, got none",
                   keys[i]);
        return false;
    }
    if (PyDict_Size(dict) == n) return true;
    hl_py_fail(hl_py_state_of(self), HL_ERROR_CONFIG, "spec: must have %d keys, got %lld of them",
               (int)n, (long long)PyDict_Size(dict));
    return false;
}

static bool read_spec(PyObject *self, PyObject *dict, step_args *a)
{
    hl_py_state *state = hl_py_state_of(self);
    hl_step_spec *spec = &a->spec;
    const double no_limit = 1e300;
    return check_keys(self, dict) &&
           hl_py_int(state, PyDict_GetItemString(dict, "rows"), "rows", 1, INT32_MAX,
                     &spec->rows) &&
           read_optimizer(self, dict, a) && read_segments(self, dict, a) &&
           hl_py_bool(PyDict_GetItemString(dict, "accumulate"), "accumulate", &spec->accumulate) &&
           hl_py_bool(PyDict_GetItemString(dict, "scales_loss"), "scales_loss",
                      &spec->scales_loss) &&
           read_limit(self, dict, "clip_norm", no_limit, &spec->clip_norm) &&
           read_limit(self, dict, "clip_value", no_limit, &spec->clip_value) &&
           read_limit(self, dict, "ema", 1.0, &spec->ema) &&
           hl_py_bool(PyDict_GetItemString(dict, "ema_ramp"), "ema_ramp", &spec->ema_ramp) &&
           read_table(self, dict, a);
}

/* ---- training_step --------------------------------------------------------------------------- */

static PyObject *describe_step(hl_id loss, const bool *has_grad, int64_t n)
{
    PyObject *dict = PyDict_New(), *without = PyList_New(0);
    for (int64_t p = 0; without && p < n; p++) {
        if (has_grad[p]) continue;
        PyObject *index = PyLong_FromLongLong(p);
        if (!index || PyList_Append(without, index) < 0) Py_CLEAR(without);
        Py_XDECREF(index);
    }
    if (!dict || !hl_py_dict_put(dict, "loss", PyLong_FromLong(loss)) ||
        !hl_py_dict_put(dict, "no_grad", Py_XNewRef(without)))
        Py_CLEAR(dict);
    Py_XDECREF(without);
    return dict;
}

static PyObject *run_pass(PyObject *self, const step_args *a)
{
    hl_graph *graph = NULL;
    bool *has_grad = NULL;
    hl_id loss;
    PyObject *result = NULL;
    hl_status status = HL_OK;
    HL_GOTO(hl_alloc_zero((size_t)a->spec.n_params + 1, (void **)&has_grad));
    HL_GOTO(hl_graph_clone(graph_of(self), &graph));
    HL_GOTO(hl_pass_training_step(graph, &a->spec, &loss, has_grad));
    result = describe_step(loss, has_grad, a->spec.n_params);
    if (result) {
        replace_graph(self, graph);
        graph = NULL;
    }
cleanup:
    if (status != HL_OK) hl_py_raise(hl_py_state_of(self), status);
    hl_graph_destroy(graph);
    hl_free(has_grad);
    return result;
}

PyObject *hl_py_graph_training_step(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    step_args a;
    memset(&a, 0, sizeof a);
    if (!hl_py_args_count("Graph.training_step", n_args, 3, 3)) return NULL;
    if (!PyDict_Check(args[2])) {
        PyErr_SetString(PyExc_TypeError, "spec: must be a dict");
        return NULL;
    }
    /* A copy that no other code can reach, so that what is found in it stays alive. */
    PyObject *spec = PyDict_Copy(args[2]), *result = NULL;
    if (spec && read_terms(self, args[0], &a) && read_params(self, args[1], &a) &&
        read_spec(self, spec, &a))
        result = run_pass(self, &a);
    Py_XDECREF(spec);
    free_args(&a);
    return result;
}
