/* The exposed types, and which of them keep references to others.
 *
 * A plan keeps its session, its feed and the arrays of its datasets, a runner its plans and their
 * session; a session keeps its device, and so does a resident array. A feed knows the plan it is
 * bound to, without keeping it. So whatever order Python drops them in, the core's rule holds:
 * plans go before sessions, sessions before devices; datasets and sources stay until the plan is
 * closed. Plans and sessions can be closed, which gives
 * their memory back while something (a traceback) still holds them; a session only after its plans
 * and runners. Only a plan can be part of a reference cycle (through an array's attributes), and a
 * runner by its plans, so only these have a tp_clear: cleared, they are closed for good and say so.
 * Session, device and source have none on purpose: the collector clears in any order, and a plan
 * that is cleared still needs both.
 *
 * The GIL is released around everything that may wait for a device or for another thread, the
 * destruction of the core's objects included. So a session has a flag of its own: whoever uses the
 * core's session takes it first, a second one gets BusyError. Graphs and feeds without a plan are
 * only used with the GIL held. What a tp_dealloc destroys without the GIL nobody else can reach: no
 * type has weak references, and the object is out of the collector's lists.
 *
 * A status becomes an exception before anything that may run Python code or set another status:
 * before a session is left, an array released, a reference dropped. */
#ifndef HL_PYTHON_OBJECTS_H
#define HL_PYTHON_OBJECTS_H

#include "args.h"
#include "data/augment.h"
#include "data/feed.h"
#include "errors.h"
#include "numpy_api.h"
#include "plan/plan.h"
#include "state.h"

typedef struct hl_py_plan hl_py_plan;

typedef struct hl_py_graph {
    PyObject_HEAD hl_graph *graph;
} hl_py_graph;

typedef struct hl_py_device {
    PyObject_HEAD hl_device *device;
} hl_py_device;

typedef struct hl_py_resident {
    PyObject_HEAD hl_resident *resident;
    hl_py_device *device;
    hl_type type;
} hl_py_resident;

typedef struct hl_py_source {
    PyObject_HEAD hl_source source;
    PyObject *function; /* makes rows, or reads files that the core cannot; or NULL */
    PyObject *kept;     /* what the core's object borrows from; or NULL */
    hl_type *types;     /* of a source whose rows Python makes */
    void *made;         /* by the core, with what ends it; or NULL */
    void (*destroy)(void *made);
} hl_py_source;

/* The rows of a split, int64 (n,), from an array that the caller keeps with out_array until nobody
 * fills a batch any more; NULL and None: all rows. */
bool hl_py_peers_borrow(hl_py_state *state, PyObject *object, hl_py_array *out_array,
                        hl_peers *out_peers);
/* The fill of an hl_source whose context is an hl_py_source: its function makes the rows. */
hl_status hl_py_fill_by_function(void *context, const hl_batch *batch, void *const *fields);

typedef struct hl_py_session {
    PyObject_HEAD hl_session *session; /* NULL: closed */
    hl_py_device *device;
    int busy; /* atomic */
    int n_plans;
    struct hl_py_discarded *discarded;
} hl_py_session;

typedef struct hl_py_feed {
    PyObject_HEAD hl_feed *feed;
    int64_t *rows;     /* row numbers of the sampler, or NULL */
    hl_py_array peers; /* rows of the split that it tells to a source; all zero: none */
    hl_alias *alias;   /* of the sampler, or NULL */
    int64_t batch;
    /* What it is bound to, not kept: NULL, or a plan and its session, or a session alone that has
     * yet to destroy the plan. */
    hl_py_plan *plan;
    hl_py_session *session;
} hl_py_feed;

struct hl_py_plan {
    PyObject_HEAD hl_plan *plan; /* NULL: closed */
    hl_py_session *session;
    hl_py_feed *feed; /* or NULL */
    /* List by number: array, Resident, (Source, field) or None. No other object has it, and the
     * collector does not know it: it would empty the list before the plan is closed. */
    PyObject *datasets;
    struct hl_py_discarded *discarded;
    hl_type *types; /* of inputs, datasets, outputs, as the graph had them */
    int32_t n_inputs, n_datasets, n_outputs;
    int32_t k;
    volatile int stop; /* set by stop(), cleared by the run that sees it */
};

typedef struct hl_py_runner {
    PyObject_HEAD hl_runner *runner; /* NULL: closed */
    hl_py_session *session;
    PyObject *plans; /* list: of the order */
    struct hl_py_discarded *discarded;
    volatile int stop;
} hl_py_runner;

/* What a plan or a runner leaves to its session, which may be running in another thread then; made
 * with the plan, so that a deallocation needs no memory. */
typedef struct hl_py_discarded {
    struct hl_py_discarded *next;
    hl_plan *plan;
    hl_runner *runner;
    hl_py_feed *feed;
    PyObject *datasets;
} hl_py_discarded;

/* False with an exception when the plan was closed. */
bool hl_py_plan_check_open(PyObject *plan, const char *what);
/* When a call that may take so many seconds returns; 0: whenever. */
int64_t hl_py_deadline(double seconds);
const char *hl_py_end_name(hl_run_end end);

/* BusyError and false while another thread uses the session; ConfigError when it is closed. `what`
 * names the call. */
bool hl_py_session_enter(hl_py_session *session, const char *what);
/* Destroys what was discarded meanwhile, without the GIL. An exception that is set stays. */
void hl_py_session_leave(hl_py_session *session);
/* The same, with None or the exception of what was done there. */
PyObject *hl_py_session_leave_with(hl_py_session *session, hl_status status);
/* Destroys it, now or when the call that uses the session leaves. */
void hl_py_session_discard(hl_py_session *session, HL_TAKE hl_py_discarded *discarded);

/* An object of our own type, checked. */
static inline bool hl_py_check_type(PyObject *object, PyTypeObject *type, const char *what,
                                    const char *rule)
{
    if (Py_TYPE(object) == type) return true;
    PyObject *name = PyType_GetName(Py_TYPE(object));
    if (name) PyErr_Format(PyExc_TypeError, "%s: must be a %s, got %U", what, rule, name);
    Py_XDECREF(name);
    return false;
}

/* tp_traverse of types that hold nothing the collector could follow but their type. */
int hl_py_traverse_type(PyObject *self, visitproc visit, void *arg);
/* The end of every tp_dealloc. */
void hl_py_free(PyObject *self);

/* ---- graph ----------------------------------------------------------------------------------- */

/* The id of one of a Graph's values; ConfigError otherwise. A number's __index__ may run Python
 * code that changes the graph, so the hl_graph is looked up here, each time, and by callers
 * afterwards: ids stay valid, as a graph only grows. */
bool hl_py_value(PyObject *graph, PyObject *object, const char *what, hl_id *out);
/* A sequence of them, from hl_alloc. */
bool hl_py_values(PyObject *graph, PyObject *object, const char *what, HL_GIVE hl_id **out,
                  int32_t *out_n);
/* Attributes of an op by name, from the values of a call (keys: tuple or NULL) or from a dict that
 * no other code can reach: converting a value may run Python code. Texts are borrowed from the
 * values. */
bool hl_py_attrs_from_call(hl_py_state *state, hl_op op, PyObject *keys, PyObject *const *values,
                           hl_attrs *out);
bool hl_py_attrs_from_dict(hl_py_state *state, hl_op op, PyObject *dict, hl_attrs *out);
PyObject *hl_py_attrs_to_dict(hl_op op, const hl_attrs *attrs);

/* The ids of a node's outputs. */
PyObject *hl_py_outputs(hl_id first, int32_t n_out);
PyObject *hl_py_graph_nodes(PyObject *self, PyObject *unused);
PyObject *hl_py_graph_leaves(PyObject *self, PyObject *unused);
PyObject *hl_py_graph_backward(PyObject *self, PyObject *const *args, Py_ssize_t n_args);
PyObject *hl_py_graph_training_step(PyObject *self, PyObject *const *args, Py_ssize_t n_args);
PyObject *hl_py_graph_depends(PyObject *self, PyObject *const *args, Py_ssize_t n_args);
const char *hl_py_kind_name(hl_value_kind kind);
const char *hl_py_segment_name(hl_segment segment);

/* ---- sources --------------------------------------------------------------------------------- */

/* The exception that is set as a status of this code: its words, and it itself for who raises
 * that. */
hl_status hl_py_keep_exception(hl_py_state *state, hl_status code);

/* ---- images ---------------------------------------------------------------------------------- */

/* An augmentation as hotloop/data/augment.py packs it, checked. */
bool hl_py_augment_read(hl_py_state *state, PyObject *object, hl_augment *out);

#endif
