#include "plan/queue.h"

#include <stddef.h>
#include <string.h>

#include "base/alloc.h"
#include "plan/captures.h"

enum {
    N_MIRRORS = 4, /* bursts that may be under way before the caller polls */
    MAX_BURST = 32,
    BURST_LAUNCHES = 1024, /* that a captured burst may hold */
    LOOKS = 64             /* queries of an event before the caller sleeps: some 20 us on a GPU */
};
static const double BURST_NS = 20e6; /* Ctrl-C waits for N_MIRRORS of them */
static const size_t HEAD_BYTES = offsetof(hl_control, ring);

/* Segments [first, end) on one batch; end 0: none. */
typedef struct segment_run {
    int32_t first, end;
    bool continues; /* BEGIN, of a window that is open */
    bool refreshes; /* BEGIN, with rounded copies that are not current */
} segment_run;
enum { N_RUNS = 2 * HL_SEGMENT_COUNT * HL_SEGMENT_COUNT };

typedef struct slot_state {
    hl_event *copied, *freed;
    int32_t sent_with, freed_with; /* slots whose events say when; -1: nothing is under way */
} slot_state;

struct hl_queue {
    hl_device *device;
    const hl_streams *streams; /* the session's, as are: */
    hl_stream *compute, *copy;
    hl_plan *plan; /* that the deferred steps belong to; NULL: none */
    char *slot_memory, *staging;
    slot_state *slots;
    int64_t n_slots, capacity;
    hl_event *turned;
    int32_t held;        /* slot whose staging half the feed waits for; -1: none */
    hl_control *control; /* device memory */
    hl_control *mirrors; /* staging memory */
    hl_event *published[N_MIRRORS];
    int64_t n_published, n_polled;
    hl_control snapshot;
    bool is_old;     /* the host has written the control block since the snapshot */
    segment_run run; /* of the plan's slot, still growing */
    /* Deferred: batches in neighbouring slots that were not sent, and steps on such slots. */
    int32_t first_batch, n_batches;
    int32_t first_step, n_steps;
    segment_run step; /* what each of them runs */
    hl_captures *captures;
    hl_finite *finite; /* runs what is launched, and looks at it; NULL: nobody looks */
};

/* ---- making ---------------------------------------------------------------------------------- */

/* An upper bound of the time of a step, by what a T4 does in a ns: operations of float32 products
 * at half of its peak, and bytes of memory, which a step reads several times. */
static double estimate_step_ns(const hl_plan_info *info)
{
    enum { OPERATIONS = 4000, BYTES = 300, PASSES = 4 };
    return info->flops / OPERATIONS +
           (double)(info->arena_bytes + info->store_bytes) * PASSES / BYTES;
}

int32_t hl_queue_choose_burst(const hl_plan_info *info, int32_t n_slots)
{
    int64_t most = BURST_LAUNCHES / (info->n_instructions + 1);
    double by_time = BURST_NS / (estimate_step_ns(info) + 1);
    if (most > MAX_BURST) most = MAX_BURST;
    if (most > n_slots / 2) most = n_slots / 2;
    if ((double)most > by_time) most = (int64_t)by_time;
    while (most & (most - 1)) most &= most - 1;
    return most > 1 ? (int32_t)most : 1;
}

int64_t hl_queue_count_captures(const hl_plan *plan)
{
    return (int64_t)plan->n_slots * 2 * N_RUNS;
}

hl_status hl_queue_create(const hl_streams *streams, hl_stream *copy, hl_queue **out_queue)
{
    hl_device *device = streams->device;
    const hl_device_ops *ops = device->ops;
    hl_queue *queue;
    hl_status status;
    *out_queue = NULL;
    HL_TRY(hl_alloc_zero(sizeof *queue, (void **)&queue));
    queue->device = device;
    queue->streams = streams;
    queue->compute = streams->main;
    queue->copy = copy;
    queue->held = -1;
    HL_GOTO(ops->host_alloc(device, N_MIRRORS * sizeof(hl_control), (void **)&queue->mirrors));
    for (int i = 0; i < N_MIRRORS; i++)
        HL_GOTO(ops->event_create(device, false, &queue->published[i]));
    HL_GOTO(ops->event_create(device, false, &queue->turned));
    HL_GOTO(hl_captures_create(device, &queue->captures));
    *out_queue = queue;
    queue = NULL;
cleanup:
    hl_queue_destroy(queue);
    return status;
}

static void destroy_event(const hl_queue *queue, hl_event *event)
{
    if (event) queue->device->ops->event_destroy(queue->device, event);
}

void hl_queue_destroy(hl_queue *queue)
{
    if (!queue) return;
    hl_device *device = queue->device;
    /* A device that is lost has nothing under way either. */
    (void)device->ops->synchronize(device, queue->copy);
    (void)hl_streams_synchronize(queue->streams);
    hl_captures_destroy(queue->captures);
    for (int64_t s = 0; s < queue->n_slots; s++) {
        destroy_event(queue, queue->slots[s].copied);
        destroy_event(queue, queue->slots[s].freed);
    }
    for (int i = 0; i < N_MIRRORS; i++) destroy_event(queue, queue->published[i]);
    destroy_event(queue, queue->turned);
    if (queue->mirrors) device->ops->host_free(device, queue->mirrors);
    hl_free(queue->slots);
    hl_free(queue);
}

hl_status hl_queue_reserve(hl_queue *queue, int32_t n_slots)
{
    const hl_device_ops *ops = queue->device->ops;
    HL_TRY(hl_alloc_grow((void **)&queue->slots, &queue->capacity, n_slots, sizeof *queue->slots));
    for (; queue->n_slots < n_slots; queue->n_slots++) {
        slot_state slot = {.sent_with = -1, .freed_with = -1};
        HL_TRY(ops->event_create(queue->device, false, &slot.copied));
        hl_status status = ops->event_create(queue->device, false, &slot.freed);
        if (status != HL_OK) ops->event_destroy(queue->device, slot.copied);
        HL_TRY(status);
        queue->slots[queue->n_slots] = slot;
    }
    return HL_OK;
}

void hl_queue_set_slots(hl_queue *queue, void *slots, void *staging)
{
    queue->slot_memory = slots;
    queue->staging = staging;
}

void hl_queue_set_control(hl_queue *queue, hl_control *control)
{
    queue->control = control;
    queue->is_old = true;
}

void hl_queue_set_finite(hl_queue *queue, hl_finite *finite)
{
    queue->finite = finite;
}

void hl_queue_drop_captures(hl_queue *queue, hl_plan *plan)
{
    hl_captures_drop(queue->captures, plan);
}

void hl_queue_leave(hl_queue *queue, hl_plan *plan)
{
    (void)queue->device->ops->synchronize(queue->device, queue->copy);
    (void)hl_streams_synchronize(queue->streams);
    hl_captures_drop(queue->captures, plan);
    if (queue->plan != plan) return;
    queue->run = (segment_run){0};
    queue->n_batches = queue->n_steps = 0;
    queue->plan = NULL;
}

/* ---- polling the device ---------------------------------------------------------------------- */

/* A thread that sleeps wakes up later than a short step takes, so the host polls first where the
 * device may run out of work. Bursts are long, and several are under way. */
static hl_status wait_for(hl_queue *queue, hl_event *event)
{
    const hl_device_ops *ops = queue->device->ops;
    bool is_urgent = !queue->plan || queue->plan->burst == 1, done = false;
    for (int i = 0; is_urgent && i < LOOKS && !done; i++)
        HL_TRY(ops->event_query(queue->device, event, &done));
    return done ? HL_OK : ops->event_synchronize(queue->device, event);
}

static hl_status poll(hl_queue *queue)
{
    int64_t i = queue->n_polled % N_MIRRORS;
    HL_TRY(wait_for(queue, queue->published[i]));
    memcpy(&queue->snapshot, &queue->mirrors[i], HEAD_BYTES);
    queue->n_polled++;
    return HL_OK;
}

static hl_status publish(hl_queue *queue)
{
    const hl_device_ops *ops = queue->device->ops;
    int64_t i = queue->n_published % N_MIRRORS;
    HL_TRY(ops->copy(queue->device, &queue->mirrors[i], queue->control, HEAD_BYTES,
                     HL_COPY_DEVICE_TO_HOST, queue->compute));
    HL_TRY(ops->event_record(queue->device, queue->published[i], queue->compute));
    queue->n_published++;
    return HL_OK;
}

/* ---- launching ------------------------------------------------------------------------------- */

static hl_status launch_step(hl_queue *queue, int32_t slot)
{
    hl_plan *plan = queue->plan;
    const int32_t *segment_first = plan->schedule.segment_first;
    void **args = plan->args + slot * plan->n_args;
    plan->continues = queue->step.continues;
    plan->refreshes = queue->step.refreshes;
    if (queue->finite)
        return hl_finite_run(queue->finite, plan, queue->step.first, queue->step.end, args,
                             queue->compute);
    return hl_plan_queue_regions(plan, segment_first[queue->step.first],
                                 segment_first[queue->step.end], args, queue->streams);
}

/* After an error the capture still has to be ended; what was captured until then is dropped. */
static hl_status capture_steps(hl_queue *queue, int32_t first, int32_t n, hl_capture **out_capture)
{
    const hl_device_ops *ops = queue->device->ops;
    hl_status_record error = {.code = HL_OK};
    HL_TRY(ops->capture_begin(queue->device, queue->compute));
    hl_status status = HL_OK;
    for (int32_t i = 0; i < n && status == HL_OK; i++) status = launch_step(queue, first + i);
    if (status != HL_OK) hl_status_save(status, &error);
    status = ops->capture_end(queue->device, queue->compute, out_capture);
    if (error.code == HL_OK) return status;
    if (*out_capture) ops->capture_destroy(queue->device, *out_capture);
    *out_capture = NULL;
    return hl_status_raise(&error);
}

static hl_captured **find_capture(const hl_queue *queue, int32_t slot, bool is_burst)
{
    const segment_run *step = &queue->step;
    int32_t run = (step->first * HL_SEGMENT_COUNT + step->end - 1) * 2 + step->continues;
    return &queue->plan->captured[(slot * 2 + is_burst) * N_RUNS + run];
}

static hl_status replay_steps(hl_queue *queue, int32_t first, int32_t n)
{
    hl_captured **captured = find_capture(queue, first, n > 1);
    hl_capture *capture;
    if (!*captured) {
        HL_TRY(capture_steps(queue, first, n, &capture));
        HL_TRY(hl_captures_add(queue->captures, queue->plan, capture,
                               (int64_t)n * queue->plan->schedule.n_tasks, captured));
    }
    return hl_captures_launch(queue->captures, *captured, queue->compute);
}

/* A loader gets a slot back with the next batch, so a batch that it fills is sent at once. */
static bool has_loaders(const hl_plan *plan)
{
    return plan->feed && hl_feed_settings(plan->feed)->n_threads > 0;
}

/* Launches a whole burst as one capture, and fewer steps one by one. A step that makes rounded
 * copies anew comes once in a run: it is not captured. */
static hl_status launch_steps(hl_queue *queue)
{
    int32_t first = queue->first_step, n = queue->n_steps;
    bool captures = queue->plan->captures && !queue->step.refreshes && !queue->finite;
    if (captures && n == queue->plan->burst) return replay_steps(queue, first, n);
    for (int32_t i = 0; i < n; i++)
        HL_TRY(captures ? replay_steps(queue, first + i, 1) : launch_step(queue, first + i));
    return HL_OK;
}

/* Sends the deferred batches in one copy, once the steps that used their slots are done. */
static hl_status send_batches(hl_queue *queue)
{
    const hl_device_ops *ops = queue->device->ops;
    int32_t first = queue->first_batch, n = queue->n_batches, freed = -1;
    int64_t offset = first * queue->plan->slot_bytes;
    for (int32_t s = first; s < first + n; s++) {
        slot_state *slot = &queue->slots[s];
        if (slot->freed_with >= 0 && slot->freed_with != freed) {
            freed = slot->freed_with;
            HL_TRY(ops->event_wait(queue->device, queue->slots[freed].freed, queue->copy));
        }
        slot->sent_with = first + n - 1;
        slot->freed_with = -1;
    }
    hl_event *copied = queue->slots[first + n - 1].copied;
    HL_TRY(ops->copy(queue->device, queue->slot_memory + offset, queue->staging + offset,
                     (size_t)(n * queue->plan->slot_bytes), HL_COPY_HOST_TO_DEVICE, queue->copy));
    HL_TRY(ops->event_record(queue->device, copied, queue->copy));
    return ops->event_wait(queue->device, copied, queue->compute);
}

static hl_status launch_deferred(hl_queue *queue)
{
    if (queue->n_batches) HL_TRY(send_batches(queue));
    if (!queue->n_steps) return HL_OK;
    const int32_t *segment_first = queue->plan->schedule.segment_first;
    int32_t last = queue->first_step + queue->n_steps - 1;
    if (segment_first[queue->step.first] != segment_first[queue->step.end]) {
        HL_TRY(launch_steps(queue));
        HL_TRY(queue->device->ops->event_record(queue->device, queue->slots[last].freed,
                                                queue->compute));
        for (int32_t s = queue->first_step; s <= last; s++) queue->slots[s].freed_with = last;
    }
    HL_TRY(publish(queue));
    return queue->n_published - queue->n_polled < N_MIRRORS ? HL_OK : poll(queue);
}

hl_status hl_queue_flush(hl_queue *queue)
{
    hl_status status = launch_deferred(queue);
    queue->n_batches = queue->n_steps = 0;
    return status;
}

static bool is_equal(const segment_run *a, const segment_run *b)
{
    return a->first == b->first && a->end == b->end && a->continues == b->continues &&
           a->refreshes == b->refreshes;
}

/* The run on the plan's slot is complete: it joins the deferred ones, or they are launched
 * first. */
static hl_status defer_run(hl_queue *queue)
{
    segment_run run = queue->run;
    const hl_plan *plan = queue->plan;
    queue->run = (segment_run){0};
    bool joins = queue->n_steps && plan->slot == queue->first_step + queue->n_steps &&
                 is_equal(&run, &queue->step);
    if (!joins) {
        HL_TRY(hl_queue_flush(queue));
        queue->first_step = plan->slot;
        queue->step = run;
    }
    queue->n_steps++;
    bool is_full = queue->n_steps == plan->burst || has_loaders(plan);
    return is_full ? hl_queue_flush(queue) : HL_OK;
}

void hl_queue_add_segment(hl_queue *queue, hl_segment segment)
{
    if (!queue->run.end) {
        queue->run.first = (int32_t)segment;
        queue->run.continues = segment == HL_SEGMENT_BEGIN && queue->plan->continues;
        queue->run.refreshes = segment == HL_SEGMENT_BEGIN && queue->plan->refreshes;
    }
    queue->run.end = (int32_t)segment + 1;
}

hl_status hl_queue_end_step(hl_queue *queue)
{
    return defer_run(queue);
}

hl_status hl_queue_end_run(hl_queue *queue)
{
    if (!queue->run.end) return HL_OK;
    HL_TRY(defer_run(queue));
    return hl_queue_flush(queue);
}

hl_status hl_queue_enter(hl_queue *queue, hl_plan *plan)
{
    if (queue->plan == plan) return HL_OK;
    HL_TRY(hl_queue_end_run(queue));
    HL_TRY(hl_queue_flush(queue));
    queue->plan = plan;
    return HL_OK;
}

/* ---- batches --------------------------------------------------------------------------------- */

/* The staging half of a slot may be written again once it was copied. */
static hl_status reclaim_slot(hl_queue *queue, int64_t slot)
{
    int32_t with = slot < 0 ? -1 : queue->slots[slot].sent_with;
    if (with < 0) return HL_OK;
    HL_TRY(wait_for(queue, queue->slots[with].copied));
    for (int64_t s = 0; s < queue->n_slots; s++)
        if (queue->slots[s].sent_with == with) queue->slots[s].sent_with = -1;
    return HL_OK;
}

hl_status hl_queue_drain_copies(hl_queue *queue)
{
    HL_TRY(hl_queue_flush(queue));
    for (int64_t s = 0; s < queue->n_slots; s++) HL_TRY(reclaim_slot(queue, s));
    queue->held = -1;
    return HL_OK;
}

hl_status hl_queue_turn_slots(hl_queue *queue)
{
    const hl_device_ops *ops = queue->device->ops;
    HL_TRY(hl_queue_drain_copies(queue));
    HL_TRY(ops->event_record(queue->device, queue->turned, queue->compute));
    HL_TRY(ops->event_wait(queue->device, queue->turned, queue->copy));
    for (int64_t s = 0; s < queue->n_slots; s++) queue->slots[s].freed_with = -1;
    return HL_OK;
}

hl_status hl_queue_take_batch(hl_queue *queue, bool *out_end)
{
    hl_plan *plan = queue->plan;
    *out_end = false;
    HL_TRY(hl_queue_end_run(queue));
    if (!plan->feed) return HL_OK;
    /* Loaders write into the slot that the next call returns to them; without loaders the next call
     * writes into the slot that it returns. */
    HL_TRY(reclaim_slot(queue, has_loaders(plan) ? queue->held : hl_feed_slot(plan->feed)));
    queue->held = -1;
    HL_TRY(hl_feed_next(plan->feed, &plan->slot, NULL, out_end));
    if (*out_end || !plan->slot_bytes) return HL_OK;
    if (queue->n_batches && plan->slot != queue->first_batch + queue->n_batches)
        HL_TRY(hl_queue_flush(queue));
    if (!queue->n_batches) queue->first_batch = plan->slot;
    queue->n_batches++;
    queue->held = plan->slot;
    return HL_OK;
}

/* ---- the control block ----------------------------------------------------------------------- */

const hl_control *hl_queue_snapshot(const hl_queue *queue)
{
    return &queue->snapshot;
}

hl_status hl_queue_drain(hl_queue *queue)
{
    HL_TRY(hl_queue_flush(queue));
    while (queue->n_polled < queue->n_published) HL_TRY(poll(queue));
    return queue->device->ops->synchronize(queue->device, queue->compute);
}

hl_status hl_queue_refresh(hl_queue *queue)
{
    if (!queue->is_old) return HL_OK;
    HL_TRY(hl_queue_drain(queue));
    HL_TRY(publish(queue));
    HL_TRY(poll(queue));
    queue->is_old = false;
    return HL_OK;
}

/* Writes one number of the control block, with nothing under way. */
static hl_status write_field(hl_queue *queue, size_t offset, const void *value, size_t bytes)
{
    const hl_device_ops *ops = queue->device->ops;
    HL_TRY(hl_queue_drain(queue));
    memcpy((char *)&queue->snapshot + offset, value, bytes);
    HL_TRY(ops->copy(queue->device, (char *)queue->control + offset, value, bytes,
                     HL_COPY_HOST_TO_DEVICE, queue->compute));
    return ops->synchronize(queue->device, queue->compute);
}

hl_status hl_queue_clear_fault(hl_queue *queue)
{
    int64_t none = 0;
    return write_field(queue, offsetof(hl_control, error_code), &none, sizeof none);
}

hl_status hl_queue_give_up(hl_queue *queue, bool in_window)
{
    int32_t ok = 1;
    queue->run = (segment_run){0};
    if (!in_window) return hl_queue_flush(queue);
    return write_field(queue, offsetof(hl_control, window_ok), &ok, sizeof ok);
}
