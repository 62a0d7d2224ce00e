/* Datasets: the caller's data sets, and the batches that are gathered from them.
 *
 * Where the device can read the caller's memory, kernels gather from it. Where it cannot, a dataset
 * lies in the device's memory, shared by its plans (hl_resident) or as a plan's own copy, and row
 * numbers alone are sent; or the plan is fed: it gathers on the host, on the feed's threads, and
 * batches are sent (passes/feed.c). A run gives the same bits in each of these ways. Rows that do
 * not lie in memory are made by a source on the feed's threads, whatever the device. */
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

/* The dataset that fills an input, where a source makes its rows; else NULL. */
static const hl_sourced *find_source(const hl_plan *plan, int32_t input)
{
    int32_t dataset = plan->fed[input];
    if (dataset == HL_NONE || !find_dataset(plan, dataset)->is_streamed) return NULL;
    return &plan->sources[dataset];
}

/* The next input that a field of the source fills, after `input`; HL_NONE: there is none. */
static int32_t find_sourced(const hl_plan *plan, const hl_source *source, int32_t input)
{
    for (int32_t i = input + 1; i < plan->graph->n_inputs; i++) {
        const hl_sourced *sourced = find_source(plan, i);
        if (sourced && sourced->source == source) return i;
    }
    return HL_NONE;
}

/* Elements of an input, where a device that computes in float64 has another dtype for them than the
 * source; else 0. */
static int64_t count_converted(const hl_plan *plan, int32_t input)
{
    const hl_sourced *sourced = find_source(plan, input);
    const hl_type *to = &hl_graph_value(plan->graph, plan->inputs[input])->type;
    bool is_same = to->dtype == sourced->source->types[sourced->field].dtype;
    return is_same ? 0 : hl_shape_numel(&to->shape);
}

/* Rows that the source made, in the dtype of the device. */
static void convert_sourced(const hl_plan *plan, int32_t input, const void *made, void *dst)
{
    const hl_sourced *sourced = find_source(plan, input);
    const hl_type *to = &hl_graph_value(plan->graph, plan->inputs[input])->type;
    hl_convert(to->dtype, dst, sourced->source->types[sourced->field].dtype, made,
               hl_shape_numel(&to->shape));
}

/* All fields of a source, of which `first` is the first input. */
static hl_status run_source(const hl_plan *plan, const hl_source *source, int32_t first,
                            const hl_batch *batch, void *const *fields)
{
    void *wanted[HL_SOURCE_FIELDS_MAX] = {NULL};
    double *room = NULL; /* fields that are converted, eight bytes an element */
    int64_t n_room = 0;
    for (int32_t i = first; i != HL_NONE; i = find_sourced(plan, source, i))
        n_room += count_converted(plan, i);
    if (n_room) HL_TRY(hl_alloc((size_t)n_room * sizeof *room, (void **)&room));
    double *free_room = room;
    for (int32_t i = first; i != HL_NONE; i = find_sourced(plan, source, i)) {
        int64_t n = count_converted(plan, i);
        wanted[find_source(plan, i)->field] = n ? (void *)free_room : fields[i];
        free_room += n;
    }
    hl_status status = source->fill(source->context, batch, wanted);
    for (int32_t i = first; status == HL_OK && i != HL_NONE; i = find_sourced(plan, source, i))
        if (count_converted(plan, i))
            convert_sourced(plan, i, wanted[find_source(plan, i)->field], fields[i]);
    hl_free(room);
    return status;
}

/* The inputs of the source that fills this one, if it is the first of them: each source is asked
 * once for a batch. */
static hl_status fill_from_source(const hl_plan *plan, int32_t input, const hl_batch *batch,
                                  void *const *fields)
{
    const hl_source *source = find_source(plan, input)->source;
    if (!source)
        return hl_status_set(HL_ERROR_CONFIG, "plan: dataset %d must be set before a run, got none",
                             plan->fed[input]);
    if (find_sourced(plan, source, 0) != input) return HL_OK;
    hl_status status = hl_source_check_rows(source, batch);
    if (status != HL_OK) return hl_status_context(status, "feed: dataset %d", plan->fed[input]);
    return run_source(plan, source, input, batch, fields);
}

/* The hl_feed_fill of plans with inputs that datasets fill. */
static hl_status fill_slot(void *context, const hl_batch *batch, void *const *fields)
{
    const hl_plan *plan = context;
    memcpy(fields[0], batch->rows, (size_t)batch->n * sizeof *batch->rows);
    for (int32_t i = 1; i < plan->graph->n_inputs; i++) {
        if (plan->fed[i] == HL_NONE) continue;
        if (find_source(plan, i))
            HL_TRY(fill_from_source(plan, i, batch, fields));
        else
            HL_TRY(fill_field(plan, i, batch->rows, batch->n, fields[i]));
    }
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

static hl_status check_streamed(const hl_plan *plan, int32_t index, bool is_source)
{
    const hl_value *value = find_dataset(plan, index);
    if (value->is_streamed == is_source) return HL_OK;
    return hl_status_set(HL_ERROR_CONFIG, "plan: dataset %s is %s, got %s",
                         value->name ? value->name : "?",
                         is_source ? "an array" : "streamed and must have a source",
                         is_source ? "a source" : "an array");
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
    HL_TRY(check_streamed(plan, index, false));
    HL_TRY(hl_session_enter(plan->session, "dataset"));
    hl_status status = set_dataset(plan, index, data);
    hl_session_leave(plan->session);
    return status;
}

static hl_status check_source(const hl_plan *plan, int32_t index, const hl_source *source,
                              int32_t field)
{
    HL_TRY(check_dataset(plan, index, source->n_rows));
    HL_TRY(check_streamed(plan, index, true));
    const hl_value *value = find_dataset(plan, index);
    hl_type row = value->type;
    char want_text[HL_TYPE_TEXT], got_text[HL_TYPE_TEXT] = "no such field";
    for (int i = 1; i < row.shape.rank; i++) row.shape.dim[i - 1] = row.shape.dim[i];
    row.shape.rank--;
    bool has_field = field >= 0 && field < source->n_fields && field < HL_SOURCE_FIELDS_MAX;
    if (has_field && hl_type_equal(&row, &source->types[field])) return HL_OK;
    if (has_field) (void)hl_type_format(&source->types[field], got_text);
    return hl_status_set(HL_ERROR_SHAPE, "plan: dataset %s must have rows of %s, got %s",
                         value->name ? value->name : "?", hl_type_format(&row, want_text),
                         got_text);
}

static hl_status set_source(hl_plan *plan, int32_t index, const hl_source *source, int32_t field)
{
    if (plan->session->queue) HL_TRY(hl_queue_drain_copies(plan->session->queue));
    hl_plan_bind_feed(plan); /* ends loaders that use the old one */
    plan->sources[index] = (hl_sourced){source, field};
    return HL_OK;
}

hl_status hl_plan_dataset_source(hl_plan *plan, int32_t index, const hl_source *source,
                                 int32_t field)
{
    HL_TRY(check_source(plan, index, source, field));
    HL_TRY(hl_session_enter(plan->session, "dataset"));
    hl_status status = set_source(plan, index, source, field);
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
