/* Graph: the passes that Python asks for by name, backward and training_step.
 *
 * A pass that fails on its way may leave nodes behind, so each works on a copy that takes the
 * graph's place when all went well: a call that fails leaves the graph as it was. Between copy and
 * replacement nothing may run Python code, which could change the graph meanwhile: what is handed
 * back is made before, as making a container may run the garbage collector. */
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

static bool fill_grads(PyObject *tuple, const hl_id *grads, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        PyObject *id = grads[i] == HL_NONE ? Py_NewRef(Py_None) : PyLong_FromLong(grads[i]);
        if (!id) return false;
        PyTuple_SetItem(tuple, i, id);
    }
    return true;
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
    PyObject *tuple = PyTuple_New(n);
    if (!tuple) goto cleanup;
    HL_GOTO(hl_alloc((size_t)(n + 1) * sizeof *grads, (void **)&grads));
    HL_GOTO(hl_graph_clone(graph_of(self), &graph));
    HL_GOTO(hl_pass_autodiff(graph, loss, HL_NONE, wrt, n, grads));
    if (!fill_grads(tuple, grads, n)) goto cleanup;
    replace_graph(self, graph);
    graph = NULL;
    result = Py_NewRef(tuple);
cleanup:
    if (status != HL_OK) hl_py_raise(state, status);
    Py_XDECREF(tuple);
    hl_graph_destroy(graph);
    hl_free(grads);
    hl_free(wrt);
    return result;
}

/* ---- the specification of a training step ---------------------------------------------------- */

enum { SEGMENT_FIELDS = 5 };

#define SPEC_KEYS(X)                                                                               \
    X(rows)                                                                                        \
    X(optimizer)                                                                                   \
    X(attrs)                                                                                       \
    X(segments)                                                                                    \
    X(accumulate)                                                                                  \
    X(clip_norm)                                                                                   \
    X(clip_value)                                                                                  \
    X(ema)                                                                                         \
    X(ema_ramp)                                                                                    \
    X(table)                                                                                       \
    X(scales_loss)

enum {
#define X(key) KEY_##key,
    SPEC_KEYS(X)
#undef X
        N_KEYS
};

static const char *const spec_keys[N_KEYS] = {
#define X(key) #key,
    SPEC_KEYS(X)
#undef X
};

typedef struct step_args {
    hl_step_spec spec;
    hl_step_term *terms;
    hl_id *params;
    double *segments;
    int64_t n_elements; /* of the store, to the end of the last parameter */
    PyObject *attrs;    /* the optimizer's, a copy that no other code can reach */
    PyObject *given[N_KEYS];
} step_args;

static void free_args(step_args *a)
{
    hl_free(a->terms);
    hl_free(a->params);
    hl_free(a->segments);
    Py_XDECREF(a->attrs);
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

static bool read_optimizer(PyObject *self, step_args *a)
{
    hl_py_state *state = hl_py_state_of(self);
    const char *name;
    if (!hl_py_text(state, a->given[KEY_optimizer], "optimizer", &name)) return false;
    hl_op op = a->spec.optimizer = hl_op_parse(name);
    if (op != HL_OP_SGD && op != HL_OP_ADAM && op != HL_OP_RMSPROP && op != HL_OP_LION) {
        hl_py_fail(state, HL_ERROR_CONFIG,
                   "optimizer: must be sgd, adam, rmsprop or lion, got '%s'", name);
        return false;
    }
    if (!PyDict_Check(a->given[KEY_attrs])) {
        PyErr_SetString(PyExc_TypeError, "attrs: must be a dict of the optimizer's attributes");
        return false;
    }
    a->attrs = PyDict_Copy(a->given[KEY_attrs]);
    return a->attrs && hl_py_attrs_from_dict(state, op, a->attrs, &a->spec.attrs);
}

static bool check_segment(PyObject *self, const step_args *a, int64_t i)
{
    const double *segment = a->segments + SEGMENT_FIELDS * i;
    double begin = segment[0], end = segment[1], began = segment[4];
    double after = i ? segment[1 - SEGMENT_FIELDS] : 0.0;
    if (!(began >= 0 && began < 0x1p53 && began == (double)(int64_t)began)) {
        hl_py_fail(hl_py_state_of(self), HL_ERROR_CONFIG,
                   "segment %lld: must have begun at a whole number of steps, got %g", (long long)i,
                   began);
        return false;
    }
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
    bool good = PyTuple_Size(items) == SEGMENT_FIELDS;
    if (!good)
        hl_py_fail(hl_py_state_of(self), HL_ERROR_CONFIG,
                   "segment: must be (begin, end, lr_scale, weight_decay, began), got %lld entries",
                   (long long)PyTuple_Size(items));
    for (int c = 0; good && c < SEGMENT_FIELDS; c++)
        good = hl_py_finite(hl_py_state_of(self), PyTuple_GetItem(items, c), "segment",
                            &a->segments[SEGMENT_FIELDS * i + c]);
    Py_DECREF(items);
    return good && check_segment(self, a, i);
}

static bool read_segments(PyObject *self, step_args *a)
{
    PyObject *items = hl_py_sequence(a->given[KEY_segments], "segments");
    if (!items) return false;
    Py_ssize_t n = PyTuple_Size(items);
    bool good = check_status(self, hl_alloc((size_t)(n + 1) * SEGMENT_FIELDS * sizeof *a->segments,
                                            (void **)&a->segments));
    for (Py_ssize_t i = 0; good && i < n; i++)
        good = read_segment(self, PyTuple_GetItem(items, i), a, i);
    Py_DECREF(items);
    a->spec.segments = a->segments;
    a->spec.n_segments = n;
    return good;
}

static bool read_table(PyObject *self, step_args *a)
{
    hl_shape shape;
    if (!hl_py_shape(hl_py_state_of(self), a->given[KEY_table], "table", &shape)) return false;
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
static bool read_limit(PyObject *self, const step_args *a, int key, double most, double *out)
{
    *out = 0.0;
    if (a->given[key] == Py_None) return true;
    if (!hl_py_finite(hl_py_state_of(self), a->given[key], spec_keys[key], out)) return false;
    if (*out >= 0.0 && *out <= most) return true;
    hl_py_fail(hl_py_state_of(self), HL_ERROR_CONFIG, "%s: must be in 0..%g or None, got %g",
               spec_keys[key], most, *out);
    return false;
}

/* Every key, and no other. Keys are compared as text: a lookup would run a key's own __eq__, which
 * may say one thing now and another later. */
static bool find_keys(PyObject *self, PyObject *dict, PyObject **out)
{
    hl_py_state *state = hl_py_state_of(self);
    Py_ssize_t position = 0;
    PyObject *key, *value;
    const char *name;
    while (PyDict_Next(dict, &position, &key, &value)) {
        if (!hl_py_text(state, key, "spec", &name)) return false;
        int k = 0;
        while (k < N_KEYS && strcmp(name, spec_keys[k]) != 0) k++;
        if (k == N_KEYS) {
            hl_py_fail(state, HL_ERROR_CONFIG, "spec: must have its %d keys alone, got %s", N_KEYS,
                       name);
            return false;
        }
        out[k] = value;
    }
    for (int k = 0; k < N_KEYS; k++) {
        if (out[k]) continue;
        hl_py_fail(state, HL_ERROR_CONFIG, "spec: needs the key %s, got none", spec_keys[k]);
        return false;
    }
    return true;
}

static bool read_spec(PyObject *self, PyObject *dict, step_args *a)
{
    hl_py_state *state = hl_py_state_of(self);
    hl_step_spec *spec = &a->spec;
    PyObject *const *given = a->given;
    const double no_limit = 1e300;
    return find_keys(self, dict, a->given) &&
           hl_py_int(state, given[KEY_rows], "rows", 1, INT32_MAX, &spec->rows) &&
           read_optimizer(self, a) && read_segments(self, a) &&
           hl_py_bool(given[KEY_accumulate], "accumulate", &spec->accumulate) &&
           hl_py_bool(given[KEY_scales_loss], "scales_loss", &spec->scales_loss) &&
           read_limit(self, a, KEY_clip_norm, no_limit, &spec->clip_norm) &&
           read_limit(self, a, KEY_clip_value, no_limit, &spec->clip_value) &&
           read_limit(self, a, KEY_ema, 1.0, &spec->ema) &&
           hl_py_bool(given[KEY_ema_ramp], "ema_ramp", &spec->ema_ramp) && read_table(self, a);
}

/* ---- training_step --------------------------------------------------------------------------- */

static bool fill_step(PyObject *dict, PyObject *no_grad, hl_id loss, const bool *has_grad,
                      int64_t n)
{
    for (int64_t p = 0; p < n; p++) {
        if (has_grad[p]) continue;
        PyObject *index = PyLong_FromLongLong(p);
        bool good = index && PyList_Append(no_grad, index) == 0;
        Py_XDECREF(index);
        if (!good) return false;
    }
    return hl_py_dict_put(dict, "loss", PyLong_FromLong(loss)) &&
           hl_py_dict_put(dict, "no_grad", Py_NewRef(no_grad));
}

static PyObject *run_pass(PyObject *self, const step_args *a)
{
    hl_graph *graph = NULL;
    bool *has_grad = NULL;
    hl_id loss;
    PyObject *dict = PyDict_New(), *no_grad = PyList_New(0), *result = NULL;
    hl_status status = HL_OK;
    if (!dict || !no_grad) goto cleanup;
    HL_GOTO(hl_alloc_zero((size_t)a->spec.n_params + 1, (void **)&has_grad));
    HL_GOTO(hl_graph_clone(graph_of(self), &graph));
    HL_GOTO(hl_pass_training_step(graph, &a->spec, &loss, has_grad));
    if (!fill_step(dict, no_grad, loss, has_grad, a->spec.n_params)) goto cleanup;
    replace_graph(self, graph);
    graph = NULL;
    result = Py_NewRef(dict);
cleanup:
    if (status != HL_OK) hl_py_raise(hl_py_state_of(self), status);
    Py_XDECREF(dict);
    Py_XDECREF(no_grad);
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
