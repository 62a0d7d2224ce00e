/* Feed: the order of samples, over csrc/data/feed.h. */
#include <string.h>

#include "base/alloc.h"
#include "objects.h"

static hl_py_feed *feed_of(PyObject *self)
{
    return (hl_py_feed *)self;
}

/* ---- life ------------------------------------------------------------------------------------ */

/* A copy of the row numbers: the user's array may change. */
static bool copy_rows(hl_py_feed *self, PyObject *object, int64_t n)
{
    hl_py_state *state = hl_py_state_of((PyObject *)self);
    hl_py_array array;
    if (!hl_py_array_read(state, object, "rows", HL_DTYPE_COUNT, &array)) return false;
    const int64_t *rows = array.data;
    bool good = array.dtype == HL_DTYPE_I64 && array.shape.rank == 1 && array.n == n;
    char got[HL_TYPE_TEXT];
    hl_type type = {array.dtype, array.shape};
    if (!good)
        hl_py_fail(state, HL_ERROR_SHAPE, "rows: must be int64 of shape (%lld,), got %s",
                   (long long)n, hl_type_format(&type, got));
    for (int64_t i = 0; good && i < n; i++) {
        if (rows[i] >= 0) continue;
        hl_py_fail(state, HL_ERROR_DATA, "rows: must not be negative, got %lld at %lld",
                   (long long)rows[i], (long long)i);
        good = false;
    }
    hl_status status = HL_OK;
    if (good) status = hl_alloc((size_t)n * sizeof *self->rows, (void **)&self->rows);
    if (status != HL_OK) good = hl_py_raise(state, status) != NULL;
    if (good && n) memcpy(self->rows, rows, (size_t)n * sizeof *rows);
    hl_py_array_release(&array);
    return good;
}

/* The table of weights; the sampler has read n. */
static bool read_weights(hl_py_feed *self, PyObject *object, int64_t n)
{
    hl_py_state *state = hl_py_state_of((PyObject *)self);
    hl_py_array array;
    hl_type type;
    char got[HL_TYPE_TEXT];
    if (!hl_py_array_read(state, object, "weights", HL_DTYPE_COUNT, &array)) return false;
    type = (hl_type){array.dtype, array.shape};
    bool good = array.dtype == HL_DTYPE_F64 && array.shape.rank == 1 && array.n == n;
    if (!good)
        hl_py_fail(state, HL_ERROR_SHAPE, "weights: must be float64 of shape (%lld,), got %s",
                   (long long)n, hl_type_format(&type, got));
    hl_status status = HL_OK;
    if (good) {
        HL_PY_WITHOUT_GIL(status = hl_alias_create(array.data, n, &self->alias));
        if (status != HL_OK) good = hl_py_raise(state, status) != NULL;
    }
    hl_py_array_release(&array);
    return good;
}

static bool has_weights(PyObject *const *given)
{
    return given[10] && given[10] != Py_None;
}

/* Everything but rows and weights. */
static bool read_options(hl_py_state *state, PyObject *const *given, hl_feed_options *out)
{
    int64_t n_threads = 0, n_slots = 1, n_positions;
    memset(out, 0, sizeof *out);
    out->count = -1;
    if (!hl_py_int(state, given[0], "n", 0, INT64_MAX, &out->sampler.n)) return false;
    out->sampler.n_draws = -1;
    if (given[11] && !hl_py_int(state, given[11], "n_draws", -1, INT64_MAX, &out->sampler.n_draws))
        return false;
    if (out->sampler.n_draws < 0) out->sampler.n_draws = out->sampler.n;
    n_positions = has_weights(given) ? out->sampler.n_draws : out->sampler.n;
    if (!hl_py_int(state, given[1], "batch", 1, INT64_MAX, &out->batch) ||
        (given[3] && !hl_py_bool(given[3], "shuffle", &out->sampler.shuffle)) ||
        (given[4] && !hl_py_seed(state, given[4], "seed", &out->sampler.seed)) ||
        (given[5] && !hl_py_int(state, given[5], "first", 0, n_positions, &out->first)) ||
        (given[6] &&
         !hl_py_int(state, given[6], "count", -1, n_positions - out->first, &out->count)) ||
        (given[7] &&
         !hl_py_int(state, given[7], "n_threads", 0, HL_FEED_THREADS_MAX, &n_threads)) ||
        (given[9] && !hl_py_bool(given[9], "is_training", &out->is_training)) ||
        (given[8] && !hl_py_int(state, given[8], "n_slots", 1, HL_FEED_SLOTS_MAX, &n_slots)))
        return false;
    out->n_threads = (int32_t)n_threads;
    out->n_slots = (int32_t)n_slots;
    if (out->count < 0) out->count = n_positions - out->first;
    return true;
}

static PyObject *make_feed(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static const hl_py_signature signature = {
        .function = "Feed",
        .n_positional = 2,
        .n_required = 2,
        .n_params = 13,
        .names = {HL_PY_NAME_n, HL_PY_NAME_batch, HL_PY_NAME_rows, HL_PY_NAME_shuffle,
                  HL_PY_NAME_seed, HL_PY_NAME_first, HL_PY_NAME_count, HL_PY_NAME_n_threads,
                  HL_PY_NAME_n_slots, HL_PY_NAME_is_training, HL_PY_NAME_weights,
                  HL_PY_NAME_n_draws, HL_PY_NAME_peers}};
    hl_py_state *state = PyType_GetModuleState(type);
    PyObject *given[13];
    hl_feed_options options;
    if (!hl_py_args_parse_new(state, &signature, args, kwargs, given) ||
        !read_options(state, given, &options))
        return NULL;
    hl_py_feed *self = (hl_py_feed *)PyType_GenericAlloc(type, 0);
    if (!self) return NULL;
    self->batch = options.batch;
    bool good = !given[2] || given[2] == Py_None || copy_rows(self, given[2], options.sampler.n);
    good = good && (!has_weights(given) || read_weights(self, given[10], options.sampler.n));
    good = good && hl_py_peers_borrow(state, given[12], &self->peers, &options.peers);
    options.sampler.rows = self->rows;
    options.sampler.alias = self->alias;
    hl_status status = good ? hl_feed_create(&options, &self->feed) : HL_OK;
    if (status != HL_OK) good = hl_py_raise(state, status) != NULL;
    if (good) return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

static void free_feed(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    HL_PY_WITHOUT_GIL(hl_feed_destroy(feed_of(self)->feed));
    hl_py_array_release(&feed_of(self)->peers);
    hl_free(feed_of(self)->rows);
    hl_alias_destroy(feed_of(self)->alias);
    hl_py_free(self);
}

/* ---- methods --------------------------------------------------------------------------------- */

/* A plan that is running reads its feed. */
static PyObject *seek(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    hl_py_state *state = hl_py_state_of(self);
    int64_t batch = 0;
    uint64_t epoch;
    if (!hl_py_args_count("Feed.seek", n_args, 1, 2) ||
        !hl_py_seed(state, args[0], "epoch", &epoch) ||
        (n_args > 1 && !hl_py_int(state, args[1], "batch", 0, INT64_MAX, &batch)))
        return NULL;
    hl_py_session *session = feed_of(self)->session;
    if (!session) /* which has no loaders to wait for */
        return hl_py_none_or_raise(state, hl_feed_seek(feed_of(self)->feed, epoch, batch));
    if (!hl_py_session_enter(session, "seek")) return NULL;
    Py_INCREF((PyObject *)session);
    hl_status status;
    HL_PY_WITHOUT_GIL(status = hl_feed_seek(feed_of(self)->feed, epoch, batch));
    PyObject *result = hl_py_session_leave_with(session, status);
    Py_DECREF((PyObject *)session);
    return result;
}

static PyObject *next_rows(PyObject *self, PyObject *unused)
{
    (void)unused;
    hl_py_state *state = hl_py_state_of(self);
    const int64_t *rows;
    int32_t slot;
    bool is_end;
    void *data;
    if (feed_of(self)->session)
        return hl_py_fail(state, HL_ERROR_CONFIG,
                          "next_rows: the feed's batches go to the plan that it was given to; make "
                          "another feed with the same arguments to look at them, got this one");
    /* The array first: a batch must not be lost for want of memory. */
    hl_shape shape = hl_shape_1d(feed_of(self)->batch);
    if (!hl_feed_batches(feed_of(self)->feed)) return Py_NewRef(Py_None);
    PyObject *array = hl_py_array_new(HL_DTYPE_I64, &shape, &data);
    if (!array) return NULL;
    hl_status status = hl_feed_next(feed_of(self)->feed, &slot, &rows, &is_end);
    if (status == HL_OK && !is_end) {
        memcpy(data, rows, (size_t)feed_of(self)->batch * sizeof *rows);
        return array;
    }
    PyObject *result = hl_py_none_or_raise(state, status);
    Py_DECREF(array);
    return result;
}

static PyMethodDef methods[] = {
    {"seek", HL_PY_METH_FAST(seek),
     "seek($self, epoch, batch=0, /)\n--\n\nGoes to a batch of an epoch."},
    {"next_rows", next_rows, METH_NOARGS,
     "next_rows($self, /)\n--\n\nRow numbers of the next batch, or None at the end of the epoch."},
    {NULL, NULL, 0, NULL},
};

static PyObject *get_n_slots(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromLong(hl_feed_settings(feed_of(self)->feed)->n_slots);
}

static PyObject *get_waited(PyObject *self, void *unused)
{
    (void)unused;
    return PyFloat_FromDouble(1e-9 * (double)hl_feed_waited_ns(feed_of(self)->feed));
}

static PyGetSetDef members[] = {
    {"waited", get_waited, NULL,
     "Seconds for which batches that were to be filled were waited for.", NULL},
    {"n_slots", get_n_slots, NULL, "Batches under way.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Feed(n, batch, *, rows=None, shuffle=False, seed=0, first=0, count=-1, "
                "n_threads=0, n_slots=1, is_training=False, weights=None, n_draws=-1, "
                "peers=None)\n--\n\n"
                "Order of samples, in whole batches: a shorter rest of count is another feed's. "
                "n_threads: of a plan that is fed. With weights, float64 (n,), an epoch has "
                "n_draws samples (-1: n), drawn with replacement. peers: the rows of the split, "
                "ascending, for the Source that fills batches; None: all; used in place."},
    {Py_tp_new, make_feed},
    {Py_tp_dealloc, free_feed},
    {Py_tp_traverse, hl_py_traverse_type},
    {Py_tp_methods, methods},
    {Py_tp_getset, members},
    {0, NULL},
};

PyType_Spec hl_py_feed_spec = {
    .name = "hotloop._core.Feed",
    .basicsize = sizeof(hl_py_feed),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};
