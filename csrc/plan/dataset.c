/* Datasets: the caller's data sets, and the batches that are gathered from them.
 *
 * Where the device can read the caller's memory, kernels gather from it. Where it cannot, a dataset
 * lies in the device's memory, shared by its plans (hl_resident) or as a plan's own copy, and row
 * numbers alone are sent; or the plan is fed: it gathers on the host, on the feed's threads, and
 * batches are sent (passes/feed.c). A run gives the same bits in each of these ways. */
#include <string.h>

#include "base/alloc.h"
#include "plan/dataset.h"

/* ---- resident arrays ------------------------------------------------------------------------- */

struct hl_resident {
    hl_device *device;
    void *data;
    size_t bytes;
};

hl_status hl_resident_create(hl_device *device, const void *data, size_t bytes,
                             hl_resident **out_resident)
{
    hl_resident *resident;
    hl_status status = HL_OK;
    *out_resident = NULL;
    HL_TRY(hl_alloc_zero(sizeof *resident, (void **)&resident));
    resident->device = device;
    resident->bytes = bytes;
    if (bytes) {
        HL_GOTO(device->ops->memory_alloc(device, bytes, &resident->data));
        HL_GOTO(
            device->ops->copy(device, resident->data, data, bytes, HL_COPY_HOST_TO_DEVICE, NULL));
        HL_GOTO(device->ops->synchronize(device, NULL));
    }
    *out_resident = resident;
    resident = NULL;
cleanup:
    hl_resident_destroy(resident);
    return status;
}

void hl_resident_destroy(hl_resident *resident)
{
    if (!resident) return;
    if (resident->data) resident->device->ops->memory_free(resident->device, resident->data);
    hl_free(resident);
}

/* ---- batches of a plan that is fed ----------------------------------------------------------- */

/* The leaf of a dataset. */
static const hl_value *find_dataset(const hl_plan *plan, int32_t index)
{
    const hl_value *value = plan->graph->values;
    while (value->kind != HL_VALUE_DATASET || value->store != index) value++;
    return value;
}

/* Rows are far apart in memory, so each is prefetched. */
enum { ROWS_AHEAD = 8 };

/* A batch of a dataset's rows, in the input's dtype. */
static hl_status fill_field(const hl_plan *plan, int32_t input, const int64_t *rows, int64_t n,
                            char *dst)
{
    const hl_type *to = &hl_graph_value(plan->graph, plan->inputs[input])->type;
    const hl_value *dataset = find_dataset(plan, plan->fed[input]);
    const hl_shape *shape = &dataset->type.shape;
    int64_t n_row = hl_shape_span(&to->shape, 1, to->shape.rank);
    int64_t step = hl_shape_span(shape, 1, shape->rank); /* windows are several rows long */
    int64_t n_rows = shape->dim[0] - (step ? n_row / step - 1 : 0);
    int64_t src_bytes = step * (int64_t)hl_dtype_bytes(dataset->type.dtype);
    int64_t dst_bytes = n_row * (int64_t)hl_dtype_bytes(to->dtype);
    const char *src = plan->datasets[plan->fed[input]];
    if (!src && hl_shape_numel(shape))
        return hl_status_set(HL_ERROR_CONFIG, "plan: dataset %d must be set before a run, got none",
                             plan->fed[input]);
    for (int64_t i = 0; i < n; i++) {
        if (rows[i] < 0 || rows[i] >= n_rows)
            return hl_status_set(HL_ERROR_DATA,
                                 "feed: a row of dataset %s must be at least 0 and below %lld, got "
                                 "%lld at position %lld",
                                 dataset->name ? dataset->name : "?", (long long)n_rows,
                                 (long long)rows[i], (long long)i);
        if (i + ROWS_AHEAD < n)
            __builtin_prefetch((const void *)((uintptr_t)src + (uintptr_t)rows[i + ROWS_AHEAD] *
                                                                   (uintptr_t)src_bytes));
        hl_convert(to->dtype, dst + i * dst_bytes, dataset->type.dtype, src + rows[i] * src_bytes,
                   n_row);
    }
    return HL_OK;
}

/* The hl_feed_fill of plans that are fed. */
static hl_status fill_slot(void *context, const int64_t *rows, int64_t n, void *const *fields)
{
    const hl_plan *plan = context;
    memcpy(fields[0], rows, (size_t)n * sizeof *rows);
    for (int32_t i = 1; i < plan->graph->n_inputs; i++)
        if (plan->fed[i] != HL_NONE) HL_TRY(fill_field(plan, i, rows, n, fields[i]));
    return HL_OK;
}

/* The enter of hl_feed_binding: makes sure that slots may be filled in any order. */
static hl_status enter_seek(void *context)
{
    hl_session *session = ((hl_plan *)context)->session;
    HL_TRY(hl_session_enter(session, "seek"));
    hl_status status = session->queue ? hl_queue_drain_copies(session->queue) : HL_OK;
    if (status != HL_OK) hl_session_leave(session);
    return status;
}

static void leave_seek(void *context)
{
    hl_session_leave(((hl_plan *)context)->session);
}

void hl_plan_unbind_feed(hl_plan *plan)
{
    if (plan->feed) hl_feed_bind(plan->feed, NULL);
}

/* Of a plan that owns no slots the feed keeps only its position. */
void hl_plan_bind_feed(hl_plan *plan)
{
    void *const *fields = plan->session->queue ? plan->staged : plan->fields;
    hl_feed_binding binding = {.fields = plan->session->slots_of == plan ? fields : NULL,
                               .n_fields = plan->graph->n_inputs,
                               .fill = plan->fed ? fill_slot : NULL,
                               .enter = enter_seek,
                               .leave = leave_seek,
                               .context = plan};
    if (plan->feed) hl_feed_bind(plan->feed, &binding);
}

/* ---- slots ----------------------------------------------------------------------------------- */

void hl_plan_release_slots(hl_session *session)
{
    hl_plan *owner = session->slots_of;
    if (!owner) return;
    session->slots_of = NULL;
    if (session->unfinished && session->unfinished->plan == owner) session->unfinished = NULL;
    for (int32_t i = 0; i < owner->graph->n_inputs; i++)
        if (owner->given[i] == HL_GIVEN) owner->given[i] = HL_GIVEN_LOST;
    hl_plan_bind_feed(owner);
}

bool hl_plan_is_fed(const hl_plan *plan, int32_t input)
{
    if (!plan->feed) return false;
    return input == 0 || (plan->fed && plan->fed[input] != HL_NONE) ||
           hl_feed_settings(plan->feed)->fill;
}

/* Inputs that a feed does not fill begin as zeros. */
static hl_status clear_slots(hl_plan *plan)
{
    hl_session *session = plan->session;
    bool is_filled = true;
    for (int32_t i = 0; i < plan->graph->n_inputs; i++) is_filled &= hl_plan_is_fed(plan, i);
    if (is_filled || !plan->slot_bytes) return HL_OK;
    return plan->device->ops->fill_zero(
        plan->device, session->slots, (size_t)(plan->slot_bytes * plan->n_slots), session->compute);
}

hl_status hl_plan_take_slots(hl_plan *plan)
{
    hl_session *session = plan->session;
    if (session->slots_of == plan) return HL_OK;
    hl_plan_release_slots(session);
    if (session->queue) HL_TRY(hl_queue_drain_copies(session->queue));
    HL_TRY(clear_slots(plan));
    if (session->queue) HL_TRY(hl_queue_turn_slots(session->queue));
    session->slots_of = plan;
    hl_plan_bind_feed(plan);
    return HL_OK;
}

/* ---- datasets -------------------------------------------------------------------------------- */

/* Does a kernel read it? No kernel reads a dataset that is fed. */
static bool is_read(const hl_plan *plan, int32_t index)
{
    hl_id id = (hl_id)(find_dataset(plan, index) - plan->graph->values);
    for (int64_t i = 0; i < plan->graph->n_nodes; i++)
        for (int32_t j = 0; j < plan->graph->nodes[i].n_in; j++)
            if (plan->graph->nodes[i].in[j] == id) return true;
    return false;
}

static void free_dataset(hl_plan *plan, int32_t index)
{
    hl_device *device = plan->device;
    if (!plan->dataset_copies || !plan->dataset_copies[index]) return;
    device->ops->memory_free(device, plan->dataset_copies[index]);
    plan->dataset_copies[index] = NULL;
}

void hl_plan_free_datasets(hl_plan *plan)
{
    for (int32_t i = 0; plan->dataset_copies && i < plan->graph->n_datasets; i++)
        free_dataset(plan, i);
}

/* Copies a dataset to an asynchronous device that reads it. */
static hl_status copy_dataset(hl_plan *plan, int32_t index, const void *data)
{
    hl_session *session = plan->session;
    hl_device *device = session->device;
    void **copy = &plan->dataset_copies[index];
    size_t bytes = hl_type_bytes(&find_dataset(plan, index)->type);
    if (!bytes || !data) return HL_OK;
    if (!*copy) HL_TRY(device->ops->memory_alloc(device, bytes, copy));
    plan->dataset_at[index] = *copy;
    HL_TRY(device->ops->copy(device, *copy, data, bytes, HL_COPY_HOST_TO_DEVICE, session->compute));
    return device->ops->synchronize(device, session->compute);
}

static hl_status check_dataset(const hl_plan *plan, int32_t index, int64_t rows)
{
    if (index < 0 || index >= plan->graph->n_datasets)
        return hl_status_set(HL_ERROR_CONFIG, "plan: has %d datasets, got number %d",
                             plan->graph->n_datasets, index);
    const hl_value *value = find_dataset(plan, index);
    if (value->type.shape.dim[0] == rows) return HL_OK;
    return hl_status_set(HL_ERROR_SHAPE, "plan: dataset %s was planned with %lld rows, got %lld",
                         value->name ? value->name : "?", (long long)value->type.shape.dim[0],
                         (long long)rows);
}

static hl_status set_dataset(hl_plan *plan, int32_t index, const void *data)
{
    if (plan->session->queue) HL_TRY(hl_queue_drain(plan->session->queue));
    /* This ends loaders that read the old dataset. */
    if (plan->fed) hl_plan_bind_feed(plan);
    plan->datasets[index] = data;
    plan->dataset_at[index] = plan->session->queue ? NULL : (void *)data;
    plan->generation = -1;
    bool copies = plan->session->queue && is_read(plan, index);
    return copies ? copy_dataset(plan, index, data) : HL_OK;
}

hl_status hl_plan_dataset(hl_plan *plan, int32_t index, const void *data, int64_t rows)
{
    HL_TRY(check_dataset(plan, index, rows));
    HL_TRY(hl_session_enter(plan->session, "dataset"));
    hl_status status = set_dataset(plan, index, data);
    hl_session_leave(plan->session);
    return status;
}

static hl_status set_resident(hl_plan *plan, int32_t index, const hl_resident *resident)
{
    if (plan->session->queue) HL_TRY(hl_queue_drain(plan->session->queue));
    free_dataset(plan, index);
    plan->datasets[index] = NULL;
    plan->dataset_at[index] = resident->data;
    plan->generation = -1;
    return HL_OK;
}

hl_status hl_plan_dataset_resident(hl_plan *plan, int32_t index, const hl_resident *resident,
                                   int64_t rows)
{
    HL_TRY(check_dataset(plan, index, rows));
    const hl_value *value = find_dataset(plan, index);
    if (plan->fed || resident->device != plan->device ||
        resident->bytes != hl_type_bytes(&value->type))
        return hl_status_set(HL_ERROR_CONFIG,
                             "plan: dataset %s must be resident on the plan's device, and the plan "
                             "not fed, got %zu bytes for %zu",
                             value->name ? value->name : "?", resident->bytes,
                             hl_type_bytes(&value->type));
    HL_TRY(hl_session_enter(plan->session, "dataset"));
    hl_status status = set_resident(plan, index, resident);
    hl_session_leave(plan->session);
    return status;
}

/* ---- the feed -------------------------------------------------------------------------------- */

/* The feed writes into slots by its own numbers, and row numbers into input 0 as they are. */
static hl_status check_feed(const hl_plan *plan, const hl_feed *feed)
{
    char want_text[HL_TYPE_TEXT], got_text[HL_TYPE_TEXT];
    const hl_feed_options *options = hl_feed_settings(feed);
    if (options->n_slots > plan->n_slots)
        return hl_status_set(HL_ERROR_CONFIG,
                             "feed: must have as many slots as its plan, %d, at most, got %d",
                             plan->n_slots, options->n_slots);
    if (options->fill) return HL_OK;
    hl_type want = {HL_DTYPE_I64, hl_shape_1d(options->batch)};
    const hl_type *got =
        plan->graph->n_inputs ? &hl_graph_value(plan->graph, plan->inputs[0])->type : NULL;
    if (got && hl_type_equal(got, &want)) return HL_OK;
    return hl_status_set(HL_ERROR_SHAPE, "feed: input 0 must take its row numbers, %s, got %s",
                         hl_type_format(&want, want_text),
                         got ? hl_type_format(got, got_text) : "a plan without inputs");
}

static hl_status set_feed(hl_plan *plan, hl_feed *feed)
{
    if (plan->session->queue) HL_TRY(hl_queue_drain_copies(plan->session->queue));
    hl_plan_unbind_feed(plan);
    plan->feed = feed;
    hl_plan_bind_feed(plan);
    return HL_OK;
}

hl_status hl_plan_feed(hl_plan *plan, hl_feed *feed)
{
    if (feed) HL_TRY(check_feed(plan, feed));
    HL_TRY(hl_session_enter(plan->session, "feed"));
    hl_status status = set_feed(plan, feed);
    hl_session_leave(plan->session);
    return status;
}
