#include "plan/queue.h"

#include <stddef.h>
#include <string.h>

#include "base/alloc.h"
#include "plan/internal.h"

/* Steps that may be under way before the caller listens. */
enum { N_MIRRORS = 4 };
static const size_t HEAD_BYTES = offsetof(hl_control, ring);

struct hl_queue {
    hl_plan *plan;
    hl_device *device;
    hl_stream *compute, *copy; /* the session's */
    void *staging;
    void **fields;
    int64_t slot_bytes;         /* of one slot */
    hl_event **copied, **freed; /* by slot */
    int32_t held;               /* slot whose staging half the feed has not got back; -1: none */
    hl_control *mirrors;        /* staging memory */
    hl_event *told[N_MIRRORS];
    int64_t n_told, n_heard; /* steps whose mirror was queued; that the caller looked at */
    hl_control heard;
    int64_t n_writes;   /* of the control block by the host, when `heard` was read */
    int32_t first, end; /* segments of the plan's slot that are to be launched; end 0: none */
    bool captures;
    hl_capture **capture; /* by slot, first segment and last */
    int64_t generation;   /* of the addresses in them */
};

/* Runs of segments, by their first and last. */
enum { N_RUNS = HL_SEGMENT_COUNT * HL_SEGMENT_COUNT };

/* ---- making ---------------------------------------------------------------------------------- */

static hl_status make_events(hl_queue *queue, int64_t n, hl_event ***out_events)
{
    HL_TRY(hl_alloc_zero((size_t)n * sizeof(hl_event *), (void **)out_events));
    for (int64_t i = 0; i < n; i++)
        HL_TRY(queue->device->ops->event_create(queue->device, &(*out_events)[i]));
    return HL_OK;
}

static hl_status make_staging(hl_queue *queue)
{
    const hl_plan *plan = queue->plan;
    size_t n_fields = (size_t)plan->n_slots * (size_t)plan->graph->n_inputs;
    queue->slot_bytes = plan->slot_bytes / plan->n_slots;
    HL_TRY(hl_alloc_zero((n_fields + 1) * sizeof(void *), (void **)&queue->fields));
    if (!plan->slot_bytes) return HL_OK;
    HL_TRY(
        queue->device->ops->host_alloc(queue->device, (size_t)plan->slot_bytes, &queue->staging));
    memset(queue->staging, 0, (size_t)plan->slot_bytes);
    for (size_t f = 0; f < n_fields; f++)
        queue->fields[f] = (char *)queue->staging + ((char *)plan->fields[f] - (char *)plan->slots);
    return HL_OK;
}

hl_status hl_queue_create(hl_plan *plan, bool capture, hl_queue **out_queue)
{
    hl_queue *queue;
    hl_status status;
    *out_queue = NULL;
    HL_TRY(hl_alloc_zero(sizeof *queue, (void **)&queue));
    queue->plan = plan;
    queue->device = plan->session->device;
    queue->compute = plan->session->compute;
    queue->copy = plan->session->copy;
    queue->held = -1;
    queue->n_writes = -1;
    queue->captures = capture && queue->device->ops->capture_begin;
    const hl_device_ops *ops = queue->device->ops;
    HL_GOTO(make_staging(queue));
    HL_GOTO(make_events(queue, plan->n_slots, &queue->copied));
    HL_GOTO(make_events(queue, plan->n_slots, &queue->freed));
    HL_GOTO(
        ops->host_alloc(queue->device, N_MIRRORS * sizeof(hl_control), (void **)&queue->mirrors));
    for (int i = 0; i < N_MIRRORS; i++) HL_GOTO(ops->event_create(queue->device, &queue->told[i]));
    HL_GOTO(hl_alloc_zero((size_t)plan->n_slots * N_RUNS * sizeof(hl_capture *),
                          (void **)&queue->capture));
    *out_queue = queue;
    queue = NULL;
cleanup:
    hl_queue_destroy(queue);
    return status;
}

static void drop_captures(hl_queue *queue)
{
    for (int64_t i = 0; queue->capture && i < queue->plan->n_slots * N_RUNS; i++) {
        if (queue->capture[i])
            queue->device->ops->capture_destroy(queue->device, queue->capture[i]);
        queue->capture[i] = NULL;
    }
}

static void destroy_events(hl_queue *queue, hl_event **events, int64_t n)
{
    for (int64_t i = 0; events && i < n; i++)
        if (events[i]) queue->device->ops->event_destroy(queue->device, events[i]);
}

void hl_queue_destroy(hl_queue *queue)
{
    if (!queue) return;
    hl_device *device = queue->device;
    /* A device that is lost has nothing under way either. */
    (void)device->ops->synchronize(device, queue->copy);
    (void)device->ops->synchronize(device, queue->compute);
    drop_captures(queue);
    destroy_events(queue, queue->copied, queue->plan->n_slots);
    destroy_events(queue, queue->freed, queue->plan->n_slots);
    destroy_events(queue, queue->told, N_MIRRORS);
    if (queue->mirrors) device->ops->host_free(device, queue->mirrors);
    if (queue->staging) device->ops->host_free(device, queue->staging);
    hl_free(queue->copied);
    hl_free(queue->freed);
    hl_free(queue->capture);
    hl_free(queue->fields);
    hl_free(queue);
}

void *const *hl_queue_fields(const hl_queue *queue)
{
    return queue->fields;
}

/* ---- segments -------------------------------------------------------------------------------- */

static hl_status launch_run(hl_queue *queue)
{
    hl_plan *plan = queue->plan;
    const int32_t *segment_first = plan->schedule.segment_first;
    void **args = plan->args + plan->slot * plan->n_args;
    for (int32_t r = segment_first[queue->first]; r < segment_first[queue->end]; r++)
        HL_TRY(hl_plan_launch_region(plan, &plan->schedule.regions[r], args, queue->compute));
    return HL_OK;
}

/* An error inside a capture still has to end it. */
static hl_status capture_run(hl_queue *queue, hl_capture **out_capture)
{
    const hl_device_ops *ops = queue->device->ops;
    hl_status_record error = {.code = HL_OK};
    HL_TRY(ops->capture_begin(queue->device, queue->compute));
    hl_status status = launch_run(queue);
    if (status != HL_OK) hl_status_save(status, &error);
    status = ops->capture_end(queue->device, queue->compute, out_capture);
    return error.code == HL_OK ? status : hl_status_raise(&error);
}

static hl_status replay_run(hl_queue *queue)
{
    const hl_device_ops *ops = queue->device->ops;
    if (queue->generation != queue->plan->generation) drop_captures(queue);
    queue->generation = queue->plan->generation;
    hl_capture **capture = &queue->capture[queue->plan->slot * N_RUNS +
                                           queue->first * HL_SEGMENT_COUNT + queue->end - 1];
    if (!*capture) HL_TRY(capture_run(queue, capture));
    return ops->capture_launch(queue->device, *capture, queue->compute);
}

/* Launches what was put off: before the slot changes hands, and at the step's end. */
static hl_status launch_segments(hl_queue *queue)
{
    hl_plan *plan = queue->plan;
    const int32_t *segment_first = plan->schedule.segment_first;
    hl_status status = HL_OK;
    if (segment_first[queue->first] != segment_first[queue->end]) {
        /* A window that another plan opened leaves launches out: not what was captured. */
        bool eager = !queue->captures || (plan->join && queue->first == HL_SEGMENT_BEGIN);
        status = eager ? launch_run(queue) : replay_run(queue);
        if (status == HL_OK)
            status = queue->device->ops->event_record(queue->device, queue->freed[plan->slot],
                                                      queue->compute);
    }
    queue->first = queue->end = 0;
    return status;
}

void hl_queue_add_segment(hl_queue *queue)
{
    if (!queue->end) queue->first = (int32_t)queue->plan->segment;
    queue->end = (int32_t)queue->plan->segment + 1;
}

/* ---- batches --------------------------------------------------------------------------------- */

hl_status hl_queue_take_batch(hl_queue *queue, bool *out_end)
{
    const hl_device_ops *ops = queue->device->ops;
    hl_plan *plan = queue->plan;
    *out_end = false;
    HL_TRY(launch_segments(queue));
    if (!plan->feed) return HL_OK;
    if (queue->held >= 0) HL_TRY(ops->event_synchronize(queue->device, queue->copied[queue->held]));
    queue->held = -1;
    HL_TRY(hl_feed_next(plan->feed, &plan->slot, NULL, out_end));
    if (*out_end || !plan->slot_bytes) return HL_OK;
    int64_t offset = plan->slot * queue->slot_bytes;
    HL_TRY(ops->event_wait(queue->device, queue->freed[plan->slot], queue->copy));
    HL_TRY(ops->copy(queue->device, (char *)plan->slots + offset, (char *)queue->staging + offset,
                     (size_t)queue->slot_bytes, HL_COPY_HOST_TO_DEVICE, queue->copy));
    HL_TRY(ops->event_record(queue->device, queue->copied[plan->slot], queue->copy));
    queue->held = plan->slot;
    return ops->event_wait(queue->device, queue->copied[plan->slot], queue->compute);
}

/* ---- the control block ----------------------------------------------------------------------- */

static hl_status hear(hl_queue *queue)
{
    int64_t i = queue->n_heard % N_MIRRORS;
    HL_TRY(queue->device->ops->event_synchronize(queue->device, queue->told[i]));
    memcpy(&queue->heard, &queue->mirrors[i], HEAD_BYTES);
    queue->n_heard++;
    return HL_OK;
}

static hl_status tell(hl_queue *queue)
{
    const hl_device_ops *ops = queue->device->ops;
    int64_t i = queue->n_told % N_MIRRORS;
    HL_TRY(ops->copy(queue->device, &queue->mirrors[i], queue->plan->control, HEAD_BYTES,
                     HL_COPY_DEVICE_TO_HOST, queue->compute));
    HL_TRY(ops->event_record(queue->device, queue->told[i], queue->compute));
    queue->n_told++;
    return HL_OK;
}

hl_status hl_queue_end_step(hl_queue *queue)
{
    HL_TRY(launch_segments(queue));
    HL_TRY(tell(queue));
    return queue->n_told - queue->n_heard < N_MIRRORS ? HL_OK : hear(queue);
}

const hl_control *hl_queue_heard(const hl_queue *queue)
{
    return &queue->heard;
}

hl_status hl_queue_settle(hl_queue *queue)
{
    while (queue->n_heard < queue->n_told) HL_TRY(hear(queue));
    return queue->device->ops->synchronize(queue->device, queue->compute);
}

hl_status hl_queue_refresh(hl_queue *queue)
{
    if (queue->n_writes == queue->plan->session->n_control_writes) return HL_OK;
    HL_TRY(hl_queue_settle(queue));
    HL_TRY(tell(queue));
    HL_TRY(hear(queue));
    queue->n_writes = queue->plan->session->n_control_writes;
    return HL_OK;
}

/* One number of the control block, with nothing under way. */
static hl_status write_field(hl_queue *queue, size_t offset, const void *value, size_t bytes)
{
    const hl_device_ops *ops = queue->device->ops;
    HL_TRY(hl_queue_settle(queue));
    memcpy((char *)&queue->heard + offset, value, bytes);
    HL_TRY(ops->copy(queue->device, (char *)queue->plan->control + offset, value, bytes,
                     HL_COPY_HOST_TO_DEVICE, queue->compute));
    return ops->synchronize(queue->device, queue->compute);
}

hl_status hl_queue_clear_fault(hl_queue *queue)
{
    int64_t none = 0;
    return write_field(queue, offsetof(hl_control, error_code), &none, sizeof none);
}

hl_status hl_queue_close_window(hl_queue *queue)
{
    int32_t ok = 1;
    return write_field(queue, offsetof(hl_control, window_ok), &ok, sizeof ok);
}
