/* gather_rows: batches for Python, by the kernel that gathers them in training.
 *
 * A kernel is chosen and prepared for a node, so a call needs a graph of one BATCH_GATHER node.
 * The last few are kept by what makes them up (types and sizes); a loop over batches finds its own
 * again. Device and nodes are made at the first call and live as long as the module; one mutex,
 * taken without the GIL, guards them, because the device's pool has one caller at a time. */
#include <string.h>

#include "args.h"
#include "base/alloc.h"
#include "base/float_mode.h"
#include "base/os.h"
#include "numpy_api.h"

enum { N_KEPT = 8 };

/* Work that a thread should at least have, so that waking it pays (base/threads.h: it sleeps). */
static const double block_ns = 20000.0;

typedef struct gather_key {
    hl_dtype src, dst;
    int64_t n_src, n_rows, row; /* src (n_src, row) at index (n_rows) */
    int64_t window;             /* 0: rows */
} gather_key;

typedef struct gather_node {
    gather_key key;
    int64_t used; /* by the clock; 0: empty */
    hl_graph *graph;
    hl_kernel_state state;
    hl_kernel_req req;
    void *scratch, *thread_scratch;
} gather_node;

struct hl_py_gather {
    hl_mutex mutex;
    hl_device *device;
    hl_control control; /* its error word */
    int64_t clock;
    gather_node nodes[N_KEPT];
};

/* ---- nodes ----------------------------------------------------------------------------------- */

static void drop_node(gather_node *node)
{
    if (node->state.kernel && node->state.kernel->release)
        node->state.kernel->release(&node->state);
    else
        hl_free(node->state.impl);
    hl_free(node->scratch);
    hl_free(node->thread_scratch);
    hl_graph_destroy(node->graph);
    memset(node, 0, sizeof *node);
}

static hl_status build_graph(gather_node *node)
{
    const gather_key *key = &node->key;
    hl_type src = {key->src, hl_shape_2d(key->n_src, key->row)};
    hl_type index = {HL_DTYPE_I64, hl_shape_1d(key->n_rows)};
    hl_attrs attrs;
    hl_id in[2], out;
    hl_attrs_init(HL_SCHEMA_batch, &attrs);
    attrs.batch.dtype = key->dst;
    attrs.batch.window = key->window;
    HL_TRY(hl_graph_create(&node->graph));
    HL_TRY(hl_graph_dataset(node->graph, "array", src, &in[0]));
    HL_TRY(hl_graph_input(node->graph, "rows", index, &in[1]));
    return hl_graph_add(node->graph, HL_OP_BATCH_GATHER, in, 2, &attrs, &out);
}

static hl_status make_node(hl_device *device, const gather_key *key, gather_node *node)
{
    const hl_kernel *kernel;
    node->key = *key;
    HL_TRY(build_graph(node));
    HL_TRY(hl_kernel_select(device, node->graph, 0, true, &kernel, &node->req));
    if (kernel->prepare) HL_TRY(kernel->prepare(device, node->graph, 0, &node->state));
    node->state.kernel = kernel;
    HL_TRY(hl_alloc(node->req.scratch_bytes, &node->scratch));
    return hl_alloc(node->req.thread_scratch_bytes * (size_t)device->n_threads,
                    &node->thread_scratch);
}

static bool is_same_key(const gather_key *a, const gather_key *b)
{
    return a->src == b->src && a->dst == b->dst && a->n_src == b->n_src && a->n_rows == b->n_rows &&
           a->row == b->row && a->window == b->window;
}

static hl_status find_node(hl_py_gather *gather, const gather_key *key, gather_node **out_node)
{
    gather_node *node = &gather->nodes[0];
    *out_node = NULL;
    for (int i = 0; i < N_KEPT; i++) {
        gather_node *kept = &gather->nodes[i];
        if (kept->used && is_same_key(&kept->key, key)) {
            node = kept;
            break;
        }
        if (kept->used < node->used) node = kept;
    }
    if (!node->used || !is_same_key(&node->key, key)) {
        drop_node(node);
        hl_status status = make_node(gather->device, key, node);
        if (status != HL_OK) {
            drop_node(node);
            return status;
        }
    }
    node->used = ++gather->clock;
    *out_node = node;
    return HL_OK;
}

/* ---- running one ----------------------------------------------------------------------------- */

typedef struct gather_run {
    hl_py_gather *gather;
    const gather_node *node;
    void *args[3];
    int64_t block_rows;
} gather_run;

static hl_launch make_launch(const gather_run *run, int thread)
{
    size_t stride = run->node->req.thread_scratch_bytes;
    return (hl_launch){.scratch = run->node->scratch,
                       .thread_scratch =
                           (char *)run->node->thread_scratch + (size_t)thread * stride,
                       .thread = thread,
                       .control = &run->gather->control,
                       .segment = HL_SEGMENT_MICRO};
}

static void run_block(void *context, int64_t block, int thread)
{
    const gather_run *run = context;
    hl_launch launch = make_launch(run, thread);
    int64_t begin = block * run->block_rows, end = begin + run->block_rows;
    if (end > run->node->req.rows) end = run->node->req.rows;
    run->node->state.kernel->block(&run->node->state, run->args, begin, end, &launch);
}

static hl_status launch_node(gather_run *run)
{
    hl_device *device = run->gather->device;
    const hl_kernel *kernel = run->node->state.kernel;
    const hl_kernel_req *req = &run->node->req;
    hl_launch launch = make_launch(run, 0);
    if (req->rows == 0) return kernel->launch(&run->node->state, run->args, &launch, NULL);
    int64_t n_blocks = (int64_t)((double)req->rows * req->row_cost / block_ns);
    n_blocks = n_blocks < 1 ? 1 : n_blocks > device->n_threads ? device->n_threads : n_blocks;
    run->block_rows = hl_round_up((req->rows + n_blocks - 1) / n_blocks, req->grain);
    n_blocks = (req->rows + run->block_rows - 1) / run->block_rows;
    if (n_blocks == 1)
        run_block(run, 0, 0);
    else
        device->ops->parallel(device, n_blocks, run_block, run);
    for (launch.phase = 1; launch.phase < req->n_phases; launch.phase++)
        kernel->block(&run->node->state, run->args, 0, req->phase_rows, &launch);
    return HL_OK;
}

static hl_status run_gather(hl_py_gather *gather, const gather_key *key, const void *src,
                            const void *rows, void *dst)
{
    gather_node *node;
    hl_status status;
    hl_mutex_lock(&gather->mutex);
    HL_GOTO(find_node(gather, key, &node));
    gather_run run = {gather, node, {(void *)src, (void *)rows, dst}, 0};
    gather->control.error_code = 0;
    uint64_t mode = hl_float_mode_flush();
    status = launch_node(&run);
    hl_float_mode_set(mode);
    HL_GOTO(status);
    if (gather->control.error_code)
        HL_GOTO(hl_status_set(
            HL_ERROR_DATA, "gather_rows: a row must be in 0..%lld, got %lld at position %lld",
            (long long)(key->n_src - (key->window ? key->window : 1)),
            (long long)gather->control.error_value, (long long)gather->control.error_row));
cleanup:
    hl_mutex_unlock(&gather->mutex);
    return status;
}

/* ---- module ---------------------------------------------------------------------------------- */

static void destroy_gather(hl_py_gather *gather)
{
    for (int i = 0; i < N_KEPT; i++) drop_node(&gather->nodes[i]);
    if (gather->device) gather->device->ops->destroy(gather->device);
    hl_free(gather);
}

void hl_py_gather_destroy(hl_py_gather *gather)
{
    if (gather) HL_PY_WITHOUT_GIL(destroy_gather(gather));
}

/* Of two threads that come at once the second one's is not kept. */
static hl_status open_gather(hl_py_state *state)
{
    hl_device_options options = {0};
    hl_py_gather *gather;
    const hl_backend *backend = hl_registry_find(&state->registry, "cpu");
    if (state->gather) return HL_OK;
    HL_TRY(hl_alloc_zero(sizeof *gather, (void **)&gather));
    hl_status status;
    HL_PY_WITHOUT_GIL(status = backend->device_open(backend, 0, &options, &gather->device));
    if (status != HL_OK || state->gather) {
        hl_py_gather_destroy(gather);
        return status;
    }
    gather->control.window_ok = 1;
    state->gather = gather;
    return HL_OK;
}

static bool check_rows(hl_py_state *state, const hl_py_array *rows)
{
    char got[HL_TYPE_TEXT];
    hl_type type = {rows->dtype, rows->shape};
    if (rows->dtype == HL_DTYPE_I64 && rows->shape.rank == 1) return true;
    hl_py_fail(state, HL_ERROR_SHAPE, "rows: must be int64 of one dim, got %s",
               hl_type_format(&type, got));
    return false;
}

/* The shape of what is gathered from the array's rows, or from windows of them. */
static bool make_shape(hl_py_state *state, const hl_shape *from, int64_t n, int64_t window,
                       hl_shape *out)
{
    *out = (hl_shape){from->rank + (window > 0), {n, window}};
    if (from->rank == 0 || out->rank > HL_MAX_RANK || window > from->dim[0]) {
        char got[HL_SHAPE_TEXT];
        hl_py_fail(state, HL_ERROR_SHAPE,
                   "array: must have rows, a window's at least and of at most %d dims, got shape "
                   "%s for a window of %lld",
                   HL_MAX_RANK, hl_shape_format(from, got), (long long)window);
        return false;
    }
    for (int d = 1; d < from->rank; d++) out->dim[d + (window > 0)] = from->dim[d];
    return true;
}

static PyObject *gather(hl_py_state *state, const hl_py_array *array, const hl_py_array *rows,
                        hl_dtype dtype, int64_t window)
{
    const hl_shape *from = &array->shape;
    hl_shape shape;
    void *dst;
    if (!check_rows(state, rows) || !make_shape(state, from, rows->n, window, &shape)) return NULL;
    gather_key key = {
        array->dtype, dtype, from->dim[0], rows->n, hl_shape_span(from, 1, from->rank), window};
    PyObject *result = hl_py_array_new(dtype, &shape, &dst);
    if (!result || key.n_rows == 0 || key.row == 0) return result;
    hl_status status = open_gather(state);
    if (status == HL_OK) {
        HL_PY_WITHOUT_GIL(status = run_gather(state->gather, &key, array->data, rows->data, dst));
    }
    if (status != HL_OK) {
        hl_py_raise(state, status);
        Py_CLEAR(result);
    }
    return result;
}

HL_PY_FAST(hl_py_gather_rows)
{
    hl_py_state *state = hl_py_state_of_module(module);
    hl_py_array array = {.object = NULL}, rows = {.object = NULL};
    hl_dtype dtype;
    int64_t window = 0;
    PyObject *result = NULL;
    if (!hl_py_args_count("gather_rows", n_args, 3, 4) ||
        !hl_py_dtype(state, args[2], "gather_rows", &dtype) ||
        (n_args > 3 && !hl_py_int(state, args[3], "window", 0, INT64_MAX, &window)))
        return NULL;
    if (hl_py_array_read(state, args[0], "array", HL_DTYPE_COUNT, &array) &&
        hl_py_array_read(state, args[1], "rows", HL_DTYPE_COUNT, &rows))
        result = gather(state, &array, &rows, dtype, window);
    hl_py_array_release(&array);
    hl_py_array_release(&rows);
    return result;
}
