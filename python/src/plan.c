/* Plan: a graph bound to a session. The loop over steps is the core's; the GIL is released around
 * it and around making the plan. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "numpy_api.h"
#include "objects.h"

enum { SLOTS_MAX = 64 };

static hl_py_plan *plan_of(PyObject *self)
{
    return (hl_py_plan *)self;
}

/* ---- life ------------------------------------------------------------------------------------ */

/* Copies the types of inputs, datasets and outputs, before the passes change the graph. */
static hl_status copy_types(hl_py_plan *self, const hl_graph *graph)
{
    self->n_inputs = graph->n_inputs;
    self->n_datasets = graph->n_datasets;
    self->n_outputs = (int32_t)graph->n_outputs;
    size_t n = (size_t)self->n_inputs + (size_t)self->n_datasets + (size_t)self->n_outputs;
    HL_TRY(hl_alloc((n + 1) * sizeof *self->types, (void **)&self->types));
    for (int64_t v = 0; v < graph->n_values; v++) {
        const hl_value *value = &graph->values[v];
        if (value->kind == HL_VALUE_INPUT) self->types[value->store] = value->type;
        if (value->kind == HL_VALUE_DATASET)
            self->types[self->n_inputs + value->store] = value->type;
    }
    for (int32_t i = 0; i < self->n_outputs; i++)
        self->types[self->n_inputs + self->n_datasets + i] =
            hl_graph_value(graph, graph->outputs[i])->type;
    return HL_OK;
}

static PyObject *make_nones(int32_t n)
{
    PyObject *list = PyList_New(n);
    for (int32_t i = 0; list && i < n; i++) PyList_SetItem(list, i, Py_NewRef(Py_None));
    if (list) PyObject_GC_UnTrack(list);
    return list;
}

static bool create_plan(hl_py_plan *self, hl_graph *source, const hl_plan_options *options)
{
    hl_py_state *state = hl_py_state_of((PyObject *)self);
    hl_graph *graph;
    if (!hl_py_session_enter(self->session, "plan")) return false;
    hl_status status = hl_graph_clone(source, &graph);
    if (status == HL_OK) status = copy_types(self, graph);
    if (status == HL_OK) {
        HL_PY_WITHOUT_GIL(status =
                              hl_plan_create(self->session->session, graph, options, &self->plan));
    } else {
        hl_graph_destroy(graph);
    }
    if (status != HL_OK) hl_py_raise(state, status);
    self->session->n_plans += status == HL_OK;
    hl_py_session_leave(self->session);
    return status == HL_OK;
}

/* TF32 is no type of values: float32 operands that a product rounds. */
static bool read_compute_dtype(hl_py_state *state, PyObject *object, hl_plan_options *out)
{
    out->tf32 = PyUnicode_Check(object) && PyUnicode_CompareWithASCIIString(object, "tf32") == 0;
    return out->tf32 || hl_py_dtype(state, object, "compute_dtype", &out->compute_dtype);
}

/* Behind the first two parameters of what takes options. */
#define OPTION_NAMES                                                                               \
    HL_PY_NAME_n_slots, HL_PY_NAME_k, HL_PY_NAME_fuse, HL_PY_NAME_chain, HL_PY_NAME_compute_dtype, \
        HL_PY_NAME_capture, HL_PY_NAME_fed, HL_PY_NAME_deterministic, HL_PY_NAME_benchmark,        \
        HL_PY_NAME_overlap, HL_PY_NAME_recompute
enum { N_OPTIONS = 13 };

static bool read_options(hl_py_state *state, PyObject *const *given, hl_plan_options *out)
{
    int64_t n_slots = 1, k = 1;
    *out = (hl_plan_options){.fuse = true, .chain = true, .capture = true, .overlap = true};
    if ((given[2] && !hl_py_int(state, given[2], "n_slots", 1, SLOTS_MAX, &n_slots)) ||
        (given[3] && !hl_py_int(state, given[3], "k", 1, INT32_MAX, &k)) ||
        (given[4] && !hl_py_bool(given[4], "fuse", &out->fuse)) ||
        (given[5] && !hl_py_bool(given[5], "chain", &out->chain)) ||
        (given[6] && !read_compute_dtype(state, given[6], out)) ||
        (given[7] && !hl_py_bool(given[7], "capture", &out->capture)) ||
        (given[8] && !hl_py_bool(given[8], "fed", &out->fed)) ||
        (given[9] && !hl_py_bool(given[9], "deterministic", &out->deterministic)) ||
        (given[10] && !hl_py_bool(given[10], "benchmark", &out->benchmark)) ||
        (given[11] && !hl_py_bool(given[11], "overlap", &out->overlap)) ||
        (given[12] && !hl_py_double(given[12], "recompute", &out->recompute)))
        return false;
    if (!(out->recompute >= 0 && out->recompute <= 1)) {
        hl_py_fail(state, HL_ERROR_CONFIG, "recompute: must be a share, 0 to 1, got %g",
                   out->recompute);
        return false;
    }
    out->n_slots = (int32_t)n_slots;
    out->k = (int32_t)k;
    return true;
}

static PyObject *make_plan(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static const hl_py_signature signature = {
        .function = "Plan",
        .names = {HL_PY_NAME_session, HL_PY_NAME_graph, OPTION_NAMES},
        .n_positional = 2,
        .n_required = 2,
        .n_params = N_OPTIONS};
    hl_py_state *state = PyType_GetModuleState(type);
    PyObject *given[N_OPTIONS];
    hl_plan_options options;
    if (!hl_py_args_parse_new(state, &signature, args, kwargs, given) ||
        !hl_py_check_type(given[0], state->session_type, "session", "Session") ||
        !hl_py_check_type(given[1], state->graph_type, "graph", "Graph") ||
        !read_options(state, given, &options))
        return NULL;
    hl_py_plan *self = (hl_py_plan *)PyType_GenericAlloc(type, 0);
    if (!self) return NULL;
    self->session = (hl_py_session *)Py_NewRef(given[0]);
    self->k = options.k;
    hl_graph *graph = ((hl_py_graph *)given[1])->graph;
    hl_status status = hl_alloc_zero(sizeof *self->discarded, (void **)&self->discarded);
    if (status != HL_OK)
        hl_py_raise(state, status);
    else if (create_plan(self, graph, &options))
        self->datasets = make_nones(self->n_datasets);
    if (self->datasets) return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

static int traverse_plan(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(plan_of(self)->session);
    Py_VISIT(plan_of(self)->feed);
    PyObject *datasets = plan_of(self)->datasets;
    for (int32_t i = 0; datasets && i < plan_of(self)->n_datasets; i++)
        Py_VISIT(PyList_GetItem(datasets, i));
    return hl_py_traverse_type(self, visit, arg);
}

static int clear_plan(PyObject *self)
{
    hl_py_plan *plan = plan_of(self);
    hl_py_discarded *discarded = plan->discarded;
    if (discarded) {
        *discarded = (hl_py_discarded){.plan = plan->plan, .feed = plan->feed};
        discarded->datasets = plan->datasets;
        if (plan->feed) plan->feed->plan = NULL;
        plan->plan = NULL, plan->feed = NULL, plan->datasets = NULL, plan->discarded = NULL;
        hl_py_session_discard(plan->session, discarded);
    }
    Py_CLEAR(plan->session);
    return 0;
}

static void free_plan(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    clear_plan(self);
    hl_free(plan_of(self)->types);
    hl_py_free(self);
}

bool hl_py_plan_check_open(PyObject *plan, const char *what)
{
    if (plan_of(plan)->plan) return true;
    hl_py_fail(hl_py_state_of(plan), HL_ERROR_INTERNAL,
               "%s: the plan must be open, got a closed one", what);
    return false;
}

/* Takes the session for one call; false with an exception. */
static bool enter(PyObject *self, const char *what)
{
    return hl_py_plan_check_open(self, what) && hl_py_session_enter(plan_of(self)->session, what);
}

static void leave(PyObject *self)
{
    hl_py_session_leave(plan_of(self)->session);
}

static PyObject *leave_with(PyObject *self, hl_status status)
{
    return hl_py_session_leave_with(plan_of(self)->session, status);
}

/* ---- data ------------------------------------------------------------------------------------ */

static bool read_index(PyObject *self, PyObject *object, const char *what, int32_t n, int32_t *out)
{
    int64_t index;
    hl_py_state *state = hl_py_state_of(self);
    if (!hl_py_int(state, object, what, INT64_MIN, INT64_MAX, &index)) return false;
    *out = (int32_t)index;
    if (index >= 0 && index < n) return true;
    hl_py_fail(state, HL_ERROR_CONFIG, "%s: the plan has %d of them, got number %lld", what, n,
               (long long)index);
    return false;
}

static bool check_dataset(PyObject *self, int32_t index, const hl_type *got)
{
    const hl_type *want = &plan_of(self)->types[plan_of(self)->n_inputs + index];
    char want_text[HL_TYPE_TEXT], got_text[HL_TYPE_TEXT];
    if (hl_type_equal(want, got)) return true;
    hl_py_fail(hl_py_state_of(self), HL_ERROR_SHAPE, "dataset %d: must be %s, got %s", index,
               hl_type_format(want, want_text), hl_type_format(got, got_text));
    return false;
}

/* Keeps the object in the place of the one before, which is the caller's to drop: last, as it may
 * run the array's own code. */
static PyObject *keep_dataset(PyObject *self, int32_t index, PyObject *object)
{
    PyObject *before = Py_XNewRef(PyList_GetItem(plan_of(self)->datasets, index));
    PyList_SetItem(plan_of(self)->datasets, index, Py_NewRef(object));
    return before;
}

static PyObject *set_resident(PyObject *self, int32_t index, PyObject *object)
{
    const hl_py_resident *resident = (const hl_py_resident *)object;
    if (!check_dataset(self, index, &resident->type) || !enter(self, "dataset")) return NULL;
    hl_status status;
    HL_PY_WITHOUT_GIL(status =
                          hl_plan_dataset_resident(plan_of(self)->plan, index, resident->resident,
                                                   resident->type.shape.dim[0]));
    PyObject *before = status == HL_OK ? keep_dataset(self, index, object) : NULL;
    PyObject *result = leave_with(self, status);
    Py_XDECREF(before);
    return result;
}

static PyObject *set_source(PyObject *self, int32_t index, PyObject *object, int64_t field)
{
    const hl_source *source = &((hl_py_source *)object)->source;
    if (!enter(self, "dataset")) return NULL;
    hl_status status;
    HL_PY_WITHOUT_GIL(
        status = hl_plan_dataset_source(plan_of(self)->plan, index, source, (int32_t)field));
    PyObject *before = status == HL_OK ? keep_dataset(self, index, object) : NULL;
    PyObject *result = leave_with(self, status);
    Py_XDECREF(before);
    return result;
}

static PyObject *set_dataset(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    hl_py_state *state = hl_py_state_of(self);
    int32_t index;
    int64_t field = 0;
    hl_py_array array;
    if (!hl_py_args_count("Plan.dataset", n_args, 2, 3) ||
        !read_index(self, args[0], "dataset", plan_of(self)->n_datasets, &index) ||
        (n_args > 2 && !hl_py_int(state, args[2], "field", 0, INT32_MAX, &field)))
        return NULL;
    if (Py_TYPE(args[1]) == state->source_type) return set_source(self, index, args[1], field);
    if (Py_TYPE(args[1]) == state->resident_type) return set_resident(self, index, args[1]);
    hl_dtype as_bits = plan_of(self)->types[plan_of(self)->n_inputs + index].dtype;
    as_bits = as_bits == HL_DTYPE_BF16 ? as_bits : HL_DTYPE_COUNT;
    if (!hl_py_array_borrow(state, args[1], "dataset", as_bits, &array)) return NULL;
    hl_type got = {array.dtype, array.shape};
    PyObject *before = NULL, *result = NULL;
    if (check_dataset(self, index, &got) && enter(self, "dataset")) {
        hl_status status;
        HL_PY_WITHOUT_GIL(
            status = hl_plan_dataset(plan_of(self)->plan, index, array.data, array.shape.dim[0]));
        if (status == HL_OK) before = keep_dataset(self, index, array.object);
        result = leave_with(self, status);
    }
    hl_py_array_release(&array);
    Py_XDECREF(before);
    return result;
}

/* A feed writes row numbers into input 0. */
static bool check_feed(PyObject *self, const hl_py_feed *feed)
{
    const hl_py_plan *plan = plan_of(self);
    hl_py_state *state = hl_py_state_of(self);
    hl_type want = {HL_DTYPE_I64, hl_shape_1d(feed->batch)};
    char want_text[HL_TYPE_TEXT], got_text[HL_TYPE_TEXT];
    if (feed->session && feed->plan != plan) {
        hl_py_fail(state, HL_ERROR_BUSY,
                   "feed: must belong to one plan, got one that another plan has");
        return false;
    }
    if (plan->n_inputs > 0 && hl_type_equal(&plan->types[0], &want)) return true;
    hl_py_fail(state, HL_ERROR_SHAPE, "feed: input 0 must take its row numbers, %s, got %s",
               hl_type_format(&want, want_text),
               plan->n_inputs ? hl_type_format(&plan->types[0], got_text)
                              : "a plan without inputs");
    return false;
}

/* before: the feed that it had, or NULL. */
static hl_status change_feed(hl_plan *plan, hl_py_feed *before, hl_py_feed *feed)
{
    hl_status status = hl_plan_feed(plan, NULL);
    if (before) hl_feed_bind(before->feed, NULL);
    if (feed && status == HL_OK) status = hl_plan_feed(plan, feed->feed);
    return status;
}

static PyObject *set_feed(PyObject *self, PyObject *object)
{
    hl_py_plan *plan = plan_of(self);
    hl_py_state *state = hl_py_state_of(self);
    hl_py_feed *feed = object == Py_None ? NULL : (hl_py_feed *)object;
    if ((feed && !hl_py_check_type(object, state->feed_type, "feed", "Feed")) ||
        (feed && !check_feed(self, feed)) || !enter(self, "feed"))
        return NULL;
    /* Both are this plan's meanwhile, so that no other thread takes them. */
    hl_py_feed *before = plan->feed;
    if (feed) feed->plan = plan, feed->session = plan->session;
    hl_status status;
    HL_PY_WITHOUT_GIL(status = change_feed(plan->plan, before, feed));
    plan->feed = status == HL_OK ? (hl_py_feed *)Py_XNewRef((PyObject *)feed) : NULL;
    if (before && before != plan->feed) before->plan = NULL, before->session = NULL;
    if (feed && feed != plan->feed) feed->plan = NULL, feed->session = NULL;
    PyObject *result = leave_with(self, status);
    Py_XDECREF((PyObject *)before);
    return result;
}

/* Floats become floats, integers and bools whatever the leaf is; a float for an index is a slip. */
static bool check_input_kind(PyObject *self, int32_t index, hl_dtype got)
{
    hl_dtype want = plan_of(self)->types[index].dtype;
    if (hl_dtype_is_float(want) || !hl_dtype_is_float(got)) return true;
    hl_py_fail(hl_py_state_of(self), HL_ERROR_DATA, "input %d: must be integers for %s, got %s",
               index, hl_dtype_name(want), hl_dtype_name(got));
    return false;
}

static PyObject *set_input(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    hl_py_state *state = hl_py_state_of(self);
    int32_t index;
    hl_py_array array;
    if (!hl_py_args_count("Plan.input", n_args, 2, 2) ||
        !read_index(self, args[0], "input", plan_of(self)->n_inputs, &index))
        return NULL;
    hl_dtype as_bits = plan_of(self)->types[index].dtype;
    as_bits = as_bits == HL_DTYPE_BF16 ? as_bits : HL_DTYPE_COUNT;
    if (!hl_py_array_read(state, args[1], "input", as_bits, &array)) return NULL;
    PyObject *result = NULL;
    if (check_input_kind(self, index, array.dtype) && enter(self, "input")) {
        hl_status status;
        HL_PY_WITHOUT_GIL(status = hl_plan_input(plan_of(self)->plan, index, array.dtype,
                                                 &array.shape, array.data));
        result = leave_with(self, status);
    }
    hl_py_array_release(&array);
    return result;
}

/* The dtype that the value is computed in, where NumPy has it. */
static hl_dtype default_dtype(PyObject *self, hl_dtype dtype)
{
    const hl_device *device = plan_of(self)->session->device->device;
    if (!hl_dtype_is_float(dtype)) return dtype;
    if (device->float_type == HL_DTYPE_F64) return HL_DTYPE_F64;
    return dtype == HL_DTYPE_BF16 ? HL_DTYPE_F32 : dtype;
}

static PyObject *get_output(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    hl_py_state *state = hl_py_state_of(self);
    int32_t index;
    void *data;
    if (!hl_py_args_count("Plan.output", n_args, 1, 2) ||
        !read_index(self, args[0], "output", plan_of(self)->n_outputs, &index) ||
        !enter(self, "output"))
        return NULL;
    const hl_type *type =
        &plan_of(self)->types[plan_of(self)->n_inputs + plan_of(self)->n_datasets + index];
    hl_dtype dtype = default_dtype(self, type->dtype);
    PyObject *array = NULL;
    if (n_args < 2 || args[1] == Py_None || hl_py_dtype(state, args[1], "output", &dtype))
        array = hl_py_array_new(dtype, &type->shape, &data);
    hl_status status = HL_OK;
    if (array) {
        HL_PY_WITHOUT_GIL(status = hl_plan_output(plan_of(self)->plan, index, dtype, data));
    }
    if (status != HL_OK) {
        hl_py_raise(state, status);
        Py_CLEAR(array);
    }
    leave(self);
    return array;
}

/* ---- run ------------------------------------------------------------------------------------- */

static PyObject *run_plan(PyObject *self, int64_t n_steps, double seconds)
{
    hl_py_plan *plan = plan_of(self);
    hl_status status = HL_OK;
    hl_run_end end = HL_RUN_ASKED;
    int64_t n_run = 0;
    if (!enter(self, "run")) return NULL;
    if (!plan->stop) {
        HL_PY_WITHOUT_GIL(status = hl_plan_run(plan->plan, n_steps, hl_py_deadline(seconds),
                                               &plan->stop, &end, &n_run));
    }
    if (end == HL_RUN_ASKED) plan->stop = 0;
    if (status != HL_OK) hl_py_raise(hl_py_state_of(self), status);
    leave(self);
    if (status != HL_OK || PyErr_CheckSignals() < 0) return NULL;
    return Py_BuildValue("(sL)", hl_py_end_name(end), (long long)n_run);
}

static PyObject *run(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    hl_py_state *state = hl_py_state_of(self);
    int64_t n_steps = 1;
    double seconds = 0.05;
    if (!hl_py_args_count("Plan.run", n_args, 0, 2) ||
        (n_args > 0 && !hl_py_int(state, args[0], "n_steps", 0, INT64_MAX, &n_steps)) ||
        (n_args > 1 && !hl_py_double(args[1], "seconds", &seconds)))
        return NULL;
    if (isnan(seconds))
        return hl_py_fail(state, HL_ERROR_CONFIG, "seconds: must be a number, got nan");
    return run_plan(self, n_steps, seconds);
}

static PyObject *stop(PyObject *self, PyObject *unused)
{
    (void)unused;
    plan_of(self)->stop = 1;
    return Py_NewRef(Py_None);
}

static PyObject *abandon(PyObject *self, PyObject *unused)
{
    (void)unused;
    if (!enter(self, "abandon")) return NULL;
    hl_status status;
    HL_PY_WITHOUT_GIL(status = hl_plan_abandon(plan_of(self)->plan));
    return leave_with(self, status);
}

static PyObject *get_unfinished(PyObject *self, void *unused)
{
    (void)unused;
    if (!enter(self, "unfinished")) return NULL;
    bool is_unfinished = hl_plan_is_unfinished(plan_of(self)->plan);
    leave(self);
    return PyBool_FromLong(is_unfinished);
}

static PyObject *get_k(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromLong(plan_of(self)->k);
}

static int set_k(PyObject *self, PyObject *object, void *unused)
{
    (void)unused;
    int64_t k;
    if (!object) {
        PyErr_SetString(PyExc_AttributeError, "k: cannot be deleted");
        return -1;
    }
    if (!hl_py_int(hl_py_state_of(self), object, "k", 1, INT32_MAX, &k) || !enter(self, "k"))
        return -1;
    hl_status status = hl_plan_set_k(plan_of(self)->plan, (int32_t)k);
    if (status == HL_OK) plan_of(self)->k = (int32_t)k;
    PyObject *result = leave_with(self, status);
    Py_XDECREF(result);
    return result ? 0 : -1;
}

/* ---- looking --------------------------------------------------------------------------------- */

static PyObject *describe_info(const hl_plan_info *info)
{
    return Py_BuildValue(
        "{sLsLsLsLsLsLsLsLsLsLsLsLsLsLsLsdsdsdsdsd}", "arena_bytes", (long long)info->arena_bytes,
        "slot_bytes", (long long)info->slot_bytes, "staging_bytes", (long long)info->staging_bytes,
        "const_bytes", (long long)info->const_bytes, "store_bytes", (long long)info->store_bytes,
        "n_nodes", (long long)info->n_nodes, "n_instructions", (long long)info->n_instructions,
        "n_chains", (long long)info->n_chains, "n_regions", (long long)info->n_regions, "n_kernels",
        (long long)info->n_kernels, "n_path_kernels", (long long)info->n_path_kernels,
        "n_to_autotune", (long long)info->n_to_autotune, "n_saved", (long long)info->n_saved,
        "n_recomputed", (long long)info->n_recomputed, "n_recompute_choices",
        (long long)info->n_recompute_choices, "flops", info->flops, "large_flops",
        info->large_flops, "path_flops", info->path_flops, "recomputed_flops",
        info->recomputed_flops, "step_flops", info->step_flops);
}

static PyObject *get_info(PyObject *self, PyObject *unused)
{
    (void)unused;
    hl_plan_info info;
    if (!enter(self, "info")) return NULL;
    hl_plan_info_read(plan_of(self)->plan, &info);
    leave(self);
    return describe_info(&info);
}

static PyObject *predict(hl_py_state *state, hl_device *device, const hl_graph *source,
                         const hl_plan_options *options)
{
    hl_graph *graph;
    hl_plan_info info;
    char *text = NULL;
    hl_status status = hl_graph_clone(source, &graph);
    if (status == HL_OK) {
        HL_PY_WITHOUT_GIL(status = hl_plan_predict(device, graph, options, &info, &text));
    } else {
        hl_graph_destroy(graph);
    }
    if (status != HL_OK) return hl_py_raise(state, status);
    PyObject *dict = describe_info(&info);
    if (dict && !hl_py_dict_put(dict, "text", hl_py_from_text(text))) Py_CLEAR(dict);
    hl_free(text);
    return dict;
}

PyObject *hl_py_predict(PyObject *module, PyObject *const *args, Py_ssize_t n_args,
                        PyObject *keywords)
{
    static const hl_py_signature signature = {
        .function = "predict",
        .names = {HL_PY_NAME_device, HL_PY_NAME_graph, OPTION_NAMES},
        .n_positional = 2,
        .n_required = 2,
        .n_params = N_OPTIONS};
    hl_py_state *state = hl_py_state_of_module(module);
    PyObject *given[N_OPTIONS];
    hl_plan_options options;
    if (!hl_py_args_parse(state, &signature, args, n_args, keywords, given) ||
        !hl_py_check_type(given[0], state->device_type, "device", "Device") ||
        !hl_py_check_type(given[1], state->graph_type, "graph", "Graph") ||
        !read_options(state, given, &options))
        return NULL;
    return predict(state, ((hl_py_device *)given[0])->device, ((hl_py_graph *)given[1])->graph,
                   &options);
}

static PyObject *describe_launch(const hl_launch_time *launch)
{
    static const char *const segments[] = {"begin", "micro", "apply"};
    const char *precision = launch->dtype == HL_DTYPE_COUNT ? NULL
                            : launch->tf32                  ? "tf32"
                                                            : hl_dtype_name(launch->dtype);
    return Py_BuildValue("{szszszszszsisLszsdsdsd}", "op", launch->op, "kernel", launch->kernel,
                         "algorithm", launch->algorithm, "scope", launch->scope, "segment",
                         segments[launch->segment], "n_nodes", (int)launch->n_nodes, "n_runs",
                         (long long)launch->n_runs, "precision", precision, "seconds",
                         launch->ns * 1e-9, "flops", launch->flops, "bytes", launch->bytes);
}

static PyObject *describe_profile(const hl_profile *profile)
{
    PyObject *list = PyList_New(profile->n_launches);
    for (int32_t i = 0; list && i < profile->n_launches; i++) {
        PyObject *launch = describe_launch(&profile->launches[i]);
        if (!launch) Py_CLEAR(list);
        if (launch) PyList_SetItem(list, i, launch);
    }
    return list ? Py_BuildValue("(dN)", profile->step_ns * 1e-9, list) : NULL;
}

static PyObject *profile(PyObject *self, PyObject *unused)
{
    (void)unused;
    hl_profile times;
    hl_status status;
    if (!enter(self, "profile")) return NULL;
    HL_PY_WITHOUT_GIL(status = hl_plan_profile(plan_of(self)->plan, &times));
    PyObject *made =
        status == HL_OK ? describe_profile(&times) : hl_py_raise(hl_py_state_of(self), status);
    hl_profile_deinit(&times);
    leave(self);
    return made;
}

static PyObject *close_plan(PyObject *self, PyObject *unused)
{
    (void)unused;
    if (!plan_of(self)->plan) return Py_NewRef(Py_None);
    hl_py_session *session = (hl_py_session *)Py_NewRef((PyObject *)plan_of(self)->session);
    bool good = hl_py_session_enter(session, "close");
    if (good) {
        clear_plan(self);
        hl_py_session_leave(session);
    }
    Py_DECREF(session);
    return good ? Py_NewRef(Py_None) : NULL;
}

static PyObject *print(PyObject *self)
{
    char *text;
    if (!enter(self, "str")) return NULL;
    hl_status status = hl_plan_print(plan_of(self)->plan, &text);
    if (status != HL_OK) hl_py_raise(hl_py_state_of(self), status);
    leave(self);
    if (status != HL_OK) return NULL;
    PyObject *words = hl_py_from_text(text);
    hl_free(text);
    return words;
}

static PyMethodDef methods[] = {
    {"dataset", HL_PY_METH_FAST(set_dataset),
     "dataset($self, index, array, field=0, /)\n--\n\nResident data of a dataset, or the Source of "
     "a streamed one and the field that it is there; kept, not copied."},
    {"feed", set_feed, METH_O,
     "feed($self, feed, /)\n--\n\nWhere batches come from; None: from input()."},
    {"input", HL_PY_METH_FAST(set_input),
     "input($self, index, array, /)\n--\n\nCopies an array into an input of slot 0."},
    {"output", HL_PY_METH_FAST(get_output),
     "output($self, index, dtype=None, /)\n--\n\nA copy of an output; None: in the dtype it is "
     "computed in."},
    {"run", HL_PY_METH_FAST(run),
     "run($self, n_steps=1, seconds=0.05, /)\n--\n\n(\"done\" | \"deadline\" | \"asked\" | "
     "\"stopped\" | \"feed_end\", steps run). Releases the GIL."},
    {"stop", stop, METH_NOARGS,
     "stop($self, /)\n--\n\nMakes a run in another thread return \"asked\" at its next barrier."},
    {"abandon", abandon, METH_NOARGS,
     "abandon($self, /)\n--\n\nForgets a step that was left in the middle."},
    {"info", get_info, METH_NOARGS, "info($self, /)\n--\n\nBytes, counts and flops."},
    {"profile", profile, METH_NOARGS,
     "profile($self, /)\n--\n\n(seconds of a step, its launches as dicts), on the batch of the "
     "last "
     "run; values stay as they are. Releases the GIL."},
    {"close", close_plan, METH_NOARGS,
     "close($self, /)\n--\n\nGives its memory back, datasets and feed included."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef members[] = {
    {"unfinished", get_unfinished, NULL,
     "Whether a step was left in the middle (by a deadline or a stop).", NULL},
    {"k", get_k, set_k, "Micro-batches per step.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc,
     "Plan(session, graph, *, n_slots=1, k=1, fuse=True, chain=True, "
     "compute_dtype='float32', capture=True, fed=False, deterministic=False, "
     "benchmark=False, overlap=True, recompute=0.0)\n--\n\n"
     "A graph bound to a session. compute_dtype: the type of matrix products, 'bfloat16' or "
     "'float16' for mixed precision, or 'tf32'. capture: asynchronous devices replay what they "
     "launch. fed: datasets stay on the host. deterministic: only kernels that give the "
     "same bits every run. benchmark: kernels may be autotuned. overlap: on a GPU "
     "weight gradients may run beside the rest of the backward pass. Raises BusyError when "
     "another thread runs the session. The "
     "graph is copied."},
    {Py_tp_new, make_plan},
    {Py_tp_dealloc, free_plan},
    {Py_tp_traverse, traverse_plan},
    {Py_tp_clear, clear_plan},
    {Py_tp_str, print},
    {Py_tp_methods, methods},
    {Py_tp_getset, members},
    {0, NULL},
};

PyType_Spec hl_py_plan_spec = {
    .name = "hotloop._core.Plan",
    .basicsize = sizeof(hl_py_plan),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};
