/* Runner: an epoch over several plans of a session, over hl_runner. */
#include <math.h>

#include "base/alloc.h"
#include "base/os.h"
#include "objects.h"

static hl_py_runner *runner_of(PyObject *self)
{
    return (hl_py_runner *)self;
}

/* 0: none, for an infinite time. */
int64_t hl_py_deadline(double seconds)
{
    int64_t now = hl_os_time_ns();
    if (seconds <= 0) return now;
    if (seconds >= 1e9) return 0;
    return now + (int64_t)(seconds * 1e9);
}

const char *hl_py_end_name(hl_run_end end)
{
    static const char *const names[] = {
        [HL_RUN_DONE] = "done",       [HL_RUN_DEADLINE] = "deadline", [HL_RUN_ASKED] = "asked",
        [HL_RUN_STOPPED] = "stopped", [HL_RUN_FEED_END] = "feed_end",
    };
    return names[end];
}

/* ---- life ------------------------------------------------------------------------------------ */

/* An entry (plan, n): its plan is kept, n may run Python code. */
static bool read_entry(hl_py_runner *self, PyObject *entry, hl_batches *out)
{
    hl_py_state *state = hl_py_state_of((PyObject *)self);
    PyObject *pair = hl_py_sequence(entry, "order");
    if (!pair) return false;
    bool good = PyTuple_Size(pair) == 2;
    if (!good) hl_py_fail(state, HL_ERROR_CONFIG, "order: entries must be (plan, n)");
    PyObject *plan = good ? PyTuple_GetItem(pair, 0) : NULL;
    good = good && hl_py_check_type(plan, state->plan_type, "order", "Plan") &&
           hl_py_int(state, PyTuple_GetItem(pair, 1), "n", 0, INT64_MAX, &out->n) &&
           PyList_Append(self->plans, plan) == 0;
    Py_DECREF(pair);
    return good;
}

/* The plans, when no Python code runs any more that could close one. */
static bool find_plans(hl_py_runner *self, hl_batches *order, Py_ssize_t n)
{
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *plan = PyList_GetItem(self->plans, i);
        if (!hl_py_plan_check_open(plan, "order")) return false;
        order[i].plan = ((hl_py_plan *)plan)->plan;
        if (i == 0)
            self->session = (hl_py_session *)Py_NewRef((PyObject *)((hl_py_plan *)plan)->session);
    }
    return true;
}

static bool create_runner(hl_py_runner *self, PyObject *entries, int32_t k)
{
    hl_py_state *state = hl_py_state_of((PyObject *)self);
    Py_ssize_t n = PyTuple_Size(entries);
    hl_batches *order;
    hl_status status = hl_alloc((size_t)(n + 1) * sizeof *order, (void **)&order);
    if (status != HL_OK) return hl_py_raise(state, status) != NULL;
    bool good = true;
    for (Py_ssize_t i = 0; good && i < n; i++)
        good = read_entry(self, PyTuple_GetItem(entries, i), &order[i]);
    good = good && find_plans(self, order, n);
    if (good) status = hl_runner_create(order, n, k, &self->runner);
    hl_free(order);
    if (good && status != HL_OK) hl_py_raise(state, status);
    if (self->runner) self->session->n_plans++;
    return self->runner != NULL;
}

static PyObject *make_runner(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static const hl_py_signature signature = {.function = "Runner",
                                              .n_positional = 2,
                                              .n_required = 1,
                                              .n_params = 2,
                                              .names = {HL_PY_NAME_order, HL_PY_NAME_k}};
    hl_py_state *state = PyType_GetModuleState(type);
    PyObject *given[2];
    int64_t k = 1;
    if (!hl_py_args_parse_new(state, &signature, args, kwargs, given) ||
        (given[1] && !hl_py_int(state, given[1], "k", 1, INT32_MAX, &k)))
        return NULL;
    PyObject *entries = hl_py_sequence(given[0], "order");
    if (!entries) return NULL;
    hl_py_runner *self = (hl_py_runner *)PyType_GenericAlloc(type, 0);
    if (self) self->plans = PyList_New(0);
    hl_status status =
        self ? hl_alloc_zero(sizeof *self->discarded, (void **)&self->discarded) : HL_OK;
    if (status != HL_OK) hl_py_raise(state, status);
    bool good = self && self->plans && status == HL_OK;
    if (self && !(good && create_runner(self, entries, (int32_t)k))) Py_CLEAR(self);
    Py_DECREF(entries);
    return (PyObject *)self;
}

static int traverse_runner(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(runner_of(self)->plans);
    Py_VISIT(runner_of(self)->session);
    return hl_py_traverse_type(self, visit, arg);
}

static int clear_runner(PyObject *self)
{
    hl_py_runner *runner = runner_of(self);
    if (runner->session && runner->discarded) {
        *runner->discarded = (hl_py_discarded){.runner = runner->runner};
        hl_py_session_discard(runner->session, runner->discarded);
        runner->runner = NULL, runner->discarded = NULL;
    }
    Py_CLEAR(runner->plans);
    Py_CLEAR(runner->session);
    return 0;
}

static void free_runner(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    clear_runner(self);
    hl_free(runner_of(self)->discarded);
    hl_py_free(self);
}

/* Takes the session for one call, with every plan open; false with an exception. */
static bool enter(PyObject *self, const char *what)
{
    hl_py_runner *runner = runner_of(self);
    if (!runner->runner) {
        hl_py_fail(hl_py_state_of(self), HL_ERROR_INTERNAL,
                   "%s: the runner must be open, got a closed one", what);
        return false;
    }
    for (Py_ssize_t i = 0; i < PyList_Size(runner->plans); i++)
        if (!hl_py_plan_check_open(PyList_GetItem(runner->plans, i), what)) return false;
    return hl_py_session_enter(runner->session, what);
}

static void leave(PyObject *self)
{
    hl_py_session_leave(runner_of(self)->session);
}

static PyObject *leave_with(PyObject *self, hl_status status)
{
    return hl_py_session_leave_with(runner_of(self)->session, status);
}

/* ---- runs ------------------------------------------------------------------------------------ */

static PyObject *run_steps(PyObject *self, int64_t n_steps, double seconds)
{
    hl_py_runner *runner = runner_of(self);
    hl_status status = HL_OK;
    hl_run_end end = HL_RUN_ASKED;
    int64_t n_run = 0, n_batches = 0;
    if (!enter(self, "run")) return NULL;
    if (!runner->stop) {
        HL_PY_WITHOUT_GIL(status = hl_runner_run(runner->runner, n_steps, hl_py_deadline(seconds),
                                                 &runner->stop, &end, &n_run, &n_batches));
    }
    if (end == HL_RUN_ASKED) runner->stop = 0;
    if (status != HL_OK) hl_py_raise(hl_py_state_of(self), status);
    leave(self);
    if (status != HL_OK || PyErr_CheckSignals() < 0) return NULL;
    return Py_BuildValue("(sLL)", hl_py_end_name(end), (long long)n_run, (long long)n_batches);
}

static PyObject *run(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    hl_py_state *state = hl_py_state_of(self);
    int64_t n_steps = 1;
    double seconds = 0.05;
    if (!hl_py_args_count("Runner.run", n_args, 0, 2) ||
        (n_args > 0 && !hl_py_int(state, args[0], "n_steps", 0, INT64_MAX, &n_steps)) ||
        (n_args > 1 && !hl_py_double(args[1], "seconds", &seconds)))
        return NULL;
    if (isnan(seconds))
        return hl_py_fail(state, HL_ERROR_CONFIG, "seconds: must be a number, got nan");
    return run_steps(self, n_steps, seconds);
}

/* ---- what is not finite ---------------------------------------------------------------------- */

static PyObject *describe_value(const hl_not_finite_value *value)
{
    static const char *const kinds[] = {
        [HL_VALUE_PARAM] = "parameter", [HL_VALUE_STATE] = "state",   [HL_VALUE_INPUT] = "input",
        [HL_VALUE_DATASET] = "dataset", [HL_VALUE_SCALAR] = "scalar", [HL_VALUE_CONST] = "constant",
        [HL_VALUE_ACT] = "result"};
    return Py_BuildValue(
        "{szszszszszsOsNszsNsLsLsLsL}", "kind", value->is_batch ? "batch" : kinds[value->kind],
        "op", value->op, "scope", value->scope, "name", value->name, "gradient_of",
        value->gradient_of, "is_update", value->segment == HL_SEGMENT_APPLY ? Py_True : Py_False,
        "reads_infinity", PyBool_FromLong(value->reads_infinity), "dtype",
        hl_dtype_name(value->type.dtype), "shape", hl_py_from_shape(&value->type.shape), "n_nan",
        (long long)value->n_nan, "n_infinite", (long long)value->n_infinite, "first",
        (long long)value->first, "row", (long long)value->row);
}

static PyObject *describe_found(const hl_not_finite *found)
{
    static const char *const what[] = {[HL_NOT_FINITE_NOTHING] = "nothing",
                                       [HL_NOT_FINITE_LOSS] = "loss",
                                       [HL_NOT_FINITE_GRADIENT] = "gradient",
                                       [HL_NOT_FINITE_NORM] = "norm",
                                       [HL_NOT_FINITE_VALUE] = "value"};
    if (!found->what) return Py_NewRef(Py_None);
    PyObject *nan = found->is_made_nan ? describe_value(&found->nan) : Py_NewRef(Py_None);
    PyObject *first = nan ? describe_value(&found->first) : NULL;
    if (!first) {
        Py_XDECREF(nan);
        return NULL;
    }
    return Py_BuildValue("{szsisisNsN}", "what", what[found->what], "param", (int)found->param,
                         "micro", (int)found->micro, "first", first, "nan", nan);
}

static PyObject *check(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    hl_py_state *state = hl_py_state_of(self);
    int64_t step;
    bool everything = false;
    hl_not_finite found;
    hl_status status;
    if (!hl_py_args_count("Runner.check", n_args, 1, 2) ||
        !hl_py_int(state, args[0], "step", 1, INT64_MAX, &step) ||
        (n_args > 1 && !hl_py_bool(args[1], "everything", &everything)) || !enter(self, "check"))
        return NULL;
    HL_PY_WITHOUT_GIL(status = hl_runner_check(runner_of(self)->runner, step, everything, &found));
    PyObject *made = status == HL_OK ? describe_found(&found) : hl_py_raise(state, status);
    leave(self);
    return made;
}

/* An entry (i, n): n batches of the plan of entry i of the order that the runner was made with. */
static bool read_turn(PyObject *self, PyObject *entry, int64_t *out_i, int64_t *out_n)
{
    hl_py_state *state = hl_py_state_of(self);
    PyObject *pair = hl_py_sequence(entry, "order");
    if (!pair) return false;
    bool good = PyTuple_Size(pair) == 2;
    if (!good) hl_py_fail(state, HL_ERROR_CONFIG, "order: entries must be (i, n)");
    good = good &&
           hl_py_int(state, PyTuple_GetItem(pair, 0), "order", 0,
                     (int64_t)PyList_Size(runner_of(self)->plans) - 1, out_i) &&
           hl_py_int(state, PyTuple_GetItem(pair, 1), "n", 0, INT64_MAX, out_n);
    Py_DECREF(pair);
    return good;
}

/* (i, n) of all entries, one after another; to be freed. NULL: an exception. */
static int64_t *read_turns(PyObject *self, PyObject *order, int64_t *out_n)
{
    PyObject *entries = hl_py_sequence(order, "order");
    int64_t *turns = NULL;
    if (!entries) return NULL;
    *out_n = (int64_t)PyTuple_Size(entries);
    hl_status status = hl_alloc((size_t)(2 * *out_n + 1) * sizeof *turns, (void **)&turns);
    bool good = status == HL_OK;
    if (!good) hl_py_raise(hl_py_state_of(self), status);
    for (int64_t i = 0; good && i < *out_n; i++)
        good = read_turn(self, PyTuple_GetItem(entries, (Py_ssize_t)i), &turns[2 * i],
                         &turns[2 * i + 1]);
    Py_DECREF(entries);
    if (good) return turns;
    hl_free(turns);
    return NULL;
}

/* Of a runner that was entered. */
static hl_status reorder(PyObject *self, const int64_t *turns, int64_t n)
{
    hl_py_runner *runner = runner_of(self);
    hl_batches *order;
    HL_TRY(hl_alloc((size_t)(n + 1) * sizeof *order, (void **)&order));
    for (int64_t i = 0; i < n; i++) {
        PyObject *plan = PyList_GetItem(runner->plans, (Py_ssize_t)turns[2 * i]);
        order[i] = (hl_batches){((hl_py_plan *)plan)->plan, turns[2 * i + 1]};
    }
    hl_status status = hl_runner_reorder(runner->runner, order, n);
    hl_free(order);
    return status;
}

static PyObject *seek(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    hl_py_state *state = hl_py_state_of(self);
    int64_t batch = 0, n_turns = 0, *turns = NULL;
    uint64_t epoch;
    if (!hl_py_args_count("Runner.seek", n_args, 1, 3) ||
        !hl_py_seed(state, args[0], "epoch", &epoch) ||
        (n_args > 1 && !hl_py_int(state, args[1], "batch", 0, INT64_MAX, &batch)))
        return NULL;
    if (n_args > 2 && args[2] != Py_None && !(turns = read_turns(self, args[2], &n_turns)))
        return NULL;
    if (!enter(self, "seek")) {
        hl_free(turns);
        return NULL;
    }
    hl_status status = turns ? reorder(self, turns, n_turns) : HL_OK;
    if (status == HL_OK) {
        HL_PY_WITHOUT_GIL(status = hl_runner_seek(runner_of(self)->runner, epoch, batch));
    }
    hl_free(turns);
    return leave_with(self, status);
}

static PyObject *stop(PyObject *self, PyObject *unused)
{
    (void)unused;
    runner_of(self)->stop = 1;
    return Py_NewRef(Py_None);
}

static PyObject *abandon(PyObject *self, PyObject *unused)
{
    (void)unused;
    if (!enter(self, "abandon")) return NULL;
    hl_status status;
    HL_PY_WITHOUT_GIL(status = hl_runner_abandon(runner_of(self)->runner));
    return leave_with(self, status);
}

static PyObject *close_runner(PyObject *self, PyObject *unused)
{
    (void)unused;
    if (!runner_of(self)->runner) return Py_NewRef(Py_None);
    hl_py_session *session = (hl_py_session *)Py_NewRef((PyObject *)runner_of(self)->session);
    bool good = hl_py_session_enter(session, "close");
    if (good) {
        clear_runner(self);
        hl_py_session_leave(session);
    }
    Py_DECREF(session);
    return good ? Py_NewRef(Py_None) : NULL;
}

static PyObject *get_unfinished(PyObject *self, void *unused)
{
    (void)unused;
    if (!enter(self, "unfinished")) return NULL;
    bool is_unfinished = hl_runner_is_unfinished(runner_of(self)->runner);
    leave(self);
    return PyBool_FromLong(is_unfinished);
}

static PyMethodDef methods[] = {
    {"run", HL_PY_METH_FAST(run),
     "run($self, n_steps=1, seconds=0.05, /)\n--\n\n(\"done\" | \"deadline\" | \"asked\" | "
     "\"stopped\" | \"feed_end\", steps run, their batches). Releases the GIL."},
    {"seek", HL_PY_METH_FAST(seek),
     "seek($self, epoch, batch=0, order=None, /)\n--\n\nGoes to a batch of an epoch, with all "
     "feeds. order: of this epoch and those after it, (i, n) in turn: n batches of the plan of "
     "entry i."},
    {"check", HL_PY_METH_FAST(check),
     "check($self, step, everything=False, /)\n--\n\nRuns the next step as attempted step "
     "`step`, puts all stores back, and says what of it is not finite; None: nothing. Releases the "
     "GIL."},
    {"stop", stop, METH_NOARGS,
     "stop($self, /)\n--\n\nMakes a run in another thread return \"asked\" at its next barrier."},
    {"abandon", abandon, METH_NOARGS,
     "abandon($self, /)\n--\n\nForgets a step that was left in the middle."},
    {"close", close_runner, METH_NOARGS, "close($self, /)\n--\n\nLets its plans go."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef members[] = {
    {"unfinished", get_unfinished, NULL,
     "Whether a step was left in the middle (by a deadline or a stop).", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Runner(order, k=1)\n--\n\n"
                "A run over plans of one session: order is a sequence of (plan, n), n of the "
                "plan's batches; k of them, of whichever plans, are a step."},
    {Py_tp_new, make_runner},
    {Py_tp_dealloc, free_runner},
    {Py_tp_traverse, traverse_runner},
    {Py_tp_clear, clear_runner},
    {Py_tp_methods, methods},
    {Py_tp_getset, members},
    {0, NULL},
};

PyType_Spec hl_py_runner_spec = {
    .name = "hotloop._core.Runner",
    .basicsize = sizeof(hl_py_runner),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};
