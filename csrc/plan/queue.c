#include "plan/queue.h"

#include <stddef.h>
#include <string.h>

#include "base/alloc.h"
#include "plan/internal.h"

enum {
    N_MIRRORS = 4, /* bursts that may be under way before the caller listens */
    MOST_BURST = 32,
    BURST_LAUNCHES = 1024, /* that a captured burst may hold */
    LOOKS = 64             /* at an event before the caller sleeps: some 20 us on a GPU */
};
static const double BURST_NS = 20e6; /* who presses Ctrl-C waits for N_MIRRORS of them */
static const size_t HEAD_BYTES = offsetof(hl_control, ring);

/* Segments [first, end) on one batch; end 0: none. */
typedef struct segment_run {
    int32_t first, end;
} segment_run;
enum { N_RUNS = HL_SEGMENT_COUNT * HL_SEGMENT_COUNT };

typedef struct slot_state {
    int32_t sent_with, freed_with; /* slots by whose events it is known; -1: nothing is under way */
} slot_state;

struct hl_queue {
    hl_plan *plan;
    hl_device *device;
    hl_stream *compute, *copy; /* the session's */
    void *staging;
    void **fields;
    int64_t slot_bytes;         /* of one slot */
    hl_event **copied, **freed; /* by slot */
    slot_state *slots;
    int32_t held;        /* slot whose staging half the feed has not got back; -1: none */
    hl_control *mirrors; /* staging memory */
    hl_event *told[N_MIRRORS];
    int64_t n_told, n_heard; /* steps whose mirror was queued; that the caller looked at */
    hl_control heard;
    int64_t n_writes; /* of the control block by the host, when `heard` was read */
    segment_run run;  /* of the plan's slot, still growing */
    /* What is put off: batches in neighbouring slots that were not sent, and steps on such. */
    int32_t first_batch, n_batches;
    int32_t first_step, n_steps;
    segment_run step; /* what each of them runs */
    int32_t burst;    /* so many steps are launched at once */
    bool captures;
    hl_capture **capture; /* by slot, one step or a burst, first segment and last */
    int64_t generation;   /* of the addresses in them */
};

/* ---- making ---------------------------------------------------------------------------------- */

static hl_status make_events(hl_queue *queue, int64_t n, hl_event ***out_events)
{
    HL_TRY(hl_alloc_zero((size_t)n * sizeof(hl_event *), (void **)out_events));
    for (int64_t i = 0; i < n; i++)
        HL_TRY(queue->device->ops->event_create(queue->device, false, &(*out_events)[i]));
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

static hl_status make_slots(hl_queue *queue)
{
    int32_t n = queue->plan->n_slots;
    HL_TRY(hl_alloc((size_t)n * sizeof *queue->slots, (void **)&queue->slots));
    for (int32_t i = 0; i < n; i++) queue->slots[i] = (slot_state){-1, -1};
    return HL_OK;
}

/* How long a step takes at most, by what a T4 does in a ns: operations of float32 products at half
 * of its peak, bytes of memory, which a step goes over some times. */
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
    if (most > MOST_BURST) most = MOST_BURST;
    if (most > n_slots / 2) most = n_slots / 2;
    if ((double)most > by_time) most = (int64_t)by_time;
    while (most & (most - 1)) most &= most - 1;
    return most > 1 ? (int32_t)most : 1;
}

/* Its stores are not in the session yet. */
static int32_t find_burst(const hl_queue *queue)
{
    const hl_plan *plan = queue->plan;
    hl_plan_info info = {.n_instructions = plan->schedule.n_steps,
                         .arena_bytes = plan->memory.arena_bytes};
    if (!queue->captures || !plan->slot_bytes) return 1;
    hl_plan_count_flops(plan->graph, &info);
    for (int64_t i = 0; i < plan->graph->n_stores; i++)
        info.store_bytes +=
            plan->graph->stores[i].n * (int64_t)hl_dtype_bytes(plan->graph->stores[i].dtype);
    return hl_queue_choose_burst(&info, plan->n_slots);
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
    queue->burst = find_burst(queue);
    const hl_device_ops *ops = queue->device->ops;
    HL_GOTO(make_staging(queue));
    HL_GOTO(make_slots(queue));
    HL_GOTO(make_events(queue, plan->n_slots, &queue->copied));
    HL_GOTO(make_events(queue, plan->n_slots, &queue->freed));
    HL_GOTO(
        ops->host_alloc(queue->device, N_MIRRORS * sizeof(hl_control), (void **)&queue->mirrors));
    for (int i = 0; i < N_MIRRORS; i++)
        HL_GOTO(ops->event_create(queue->device, false, &queue->told[i]));
    HL_GOTO(hl_alloc_zero((size_t)plan->n_slots * 2 * N_RUNS * sizeof(hl_capture *),
                          (void **)&queue->capture));
    *out_queue = queue;
    queue = NULL;
cleanup:
    hl_queue_destroy(queue);
    return status;
}

static void drop_captures(hl_queue *queue)
{
    for (int64_t i = 0; queue->capture && i < queue->plan->n_slots * 2 * N_RUNS; i++) {
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
    hl_free(queue->slots);
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

/* ---- hearing of the device --------------------------------------------------------------------
 */

/* Who sleeps wakes up later than a short step takes: looks come first where the device may run dry
 * meanwhile. Bursts are long, and more of them are under way. */
static hl_status wait_for(hl_queue *queue, hl_event *event, bool is_urgent)
{
    const hl_device_ops *ops = queue->device->ops;
    bool done = false;
    for (int i = 0; is_urgent && i < LOOKS && !done; i++)
        HL_TRY(ops->event_query(queue->device, event, &done));
    return done ? HL_OK : ops->event_synchronize(queue->device, event);
}

static hl_status hear(hl_queue *queue, bool is_urgent)
{
    int64_t i = queue->n_heard % N_MIRRORS;
    HL_TRY(wait_for(queue, queue->told[i], is_urgent));
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

/* ---- launching ------------------------------------------------------------------------------- */

static hl_status launch_step(hl_queue *queue, int32_t slot)
{
    hl_plan *plan = queue->plan;
    const int32_t *segment_first = plan->schedule.segment_first;
    void **args = plan->args + slot * plan->n_args;
    for (int32_t r = segment_first[queue->step.first]; r < segment_first[queue->step.end]; r++)
        HL_TRY(hl_plan_run_region(plan, &plan->schedule.regions[r], args, queue->compute));
    return HL_OK;
}

/* An error inside a capture still has to end it, and what was captured until then is nothing. */
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

static hl_status replay_steps(hl_queue *queue, int32_t first, int32_t n)
{
    const hl_device_ops *ops = queue->device->ops;
    if (queue->generation != queue->plan->generation) drop_captures(queue);
    queue->generation = queue->plan->generation;
    int32_t run = queue->step.first * HL_SEGMENT_COUNT + queue->step.end - 1;
    hl_capture **capture = &queue->capture[(first * 2 + (n > 1)) * N_RUNS + run];
    if (!*capture) HL_TRY(capture_steps(queue, first, n, capture));
    return ops->capture_launch(queue->device, *capture, queue->compute);
}

/* A loader gets a slot back with the next batch, so what it fills is sent at once. */
static bool has_loaders(const hl_queue *queue)
{
    return queue->plan->feed && hl_feed_settings(queue->plan->feed)->n_threads > 0;
}

/* A burst as one; fewer steps, which end a run of the plan, one by one. */
static hl_status launch_steps(hl_queue *queue)
{
    int32_t first = queue->first_step, n = queue->n_steps;
    /* A window that another plan opened leaves launches out: not what was captured. */
    bool eager = !queue->captures || (queue->plan->join && queue->step.first == HL_SEGMENT_BEGIN);
    if (!eager && n == queue->burst) return replay_steps(queue, first, n);
    for (int32_t i = 0; i < n; i++)
        HL_TRY(eager ? launch_step(queue, first + i) : replay_steps(queue, first + i, 1));
    return HL_OK;
}

/* The batches that were put off, in one copy, once the steps that used their slots are through. */
static hl_status send_batches(hl_queue *queue)
{
    const hl_device_ops *ops = queue->device->ops;
    hl_plan *plan = queue->plan;
    int32_t first = queue->first_batch, n = queue->n_batches, freed = -1;
    int64_t offset = first * queue->slot_bytes;
    for (int32_t s = first; s < first + n; s++) {
        if (queue->slots[s].freed_with >= 0 && queue->slots[s].freed_with != freed) {
            freed = queue->slots[s].freed_with;
            HL_TRY(ops->event_wait(queue->device, queue->freed[freed], queue->copy));
        }
        queue->slots[s] = (slot_state){first + n - 1, -1};
    }
    HL_TRY(ops->copy(queue->device, (char *)plan->slots + offset, (char *)queue->staging + offset,
                     (size_t)(n * queue->slot_bytes), HL_COPY_HOST_TO_DEVICE, queue->copy));
    HL_TRY(ops->event_record(queue->device, queue->copied[first + n - 1], queue->copy));
    return ops->event_wait(queue->device, queue->copied[first + n - 1], queue->compute);
}

static hl_status work_off(hl_queue *queue)
{
    const int32_t *segment_first = queue->plan->schedule.segment_first;
    int32_t last = queue->first_step + queue->n_steps - 1;
    if (queue->n_batches) HL_TRY(send_batches(queue));
    if (!queue->n_steps) return HL_OK;
    if (segment_first[queue->step.first] != segment_first[queue->step.end]) {
        HL_TRY(launch_steps(queue));
        HL_TRY(queue->device->ops->event_record(queue->device, queue->freed[last], queue->compute));
        for (int32_t s = queue->first_step; s <= last; s++) queue->slots[s].freed_with = last;
    }
    HL_TRY(tell(queue));
    return queue->n_told - queue->n_heard < N_MIRRORS ? HL_OK : hear(queue, queue->burst == 1);
}

hl_status hl_queue_flush(hl_queue *queue)
{
    hl_status status = work_off(queue);
    queue->n_batches = queue->n_steps = 0;
    return status;
}

/* The run on the plan's slot is complete: it joins those before, or they go first. */
static hl_status put_off(hl_queue *queue)
{
    segment_run run = queue->run;
    int32_t slot = queue->plan->slot;
    queue->run = (segment_run){0, 0};
    bool joins = queue->n_steps && slot == queue->first_step + queue->n_steps &&
                 run.first == queue->step.first && run.end == queue->step.end;
    if (!joins) {
        HL_TRY(hl_queue_flush(queue));
        queue->first_step = slot;
        queue->step = run;
    }
    queue->n_steps++;
    bool is_full = queue->n_steps == queue->burst || has_loaders(queue);
    return is_full ? hl_queue_flush(queue) : HL_OK;
}

void hl_queue_add_segment(hl_queue *queue)
{
    if (!queue->run.end) queue->run.first = (int32_t)queue->plan->segment;
    queue->run.end = (int32_t)queue->plan->segment + 1;
}

hl_status hl_queue_end_step(hl_queue *queue)
{
    return put_off(queue);
}

/* ---- batches --------------------------------------------------------------------------------- */

/* The staging half of a slot may be written again once it was copied. */
static hl_status reclaim_slot(hl_queue *queue, int32_t slot)
{
    int32_t with = slot < 0 ? -1 : queue->slots[slot].sent_with;
    if (with < 0) return HL_OK;
    HL_TRY(wait_for(queue, queue->copied[with], queue->burst == 1));
    for (int32_t s = 0; s < queue->plan->n_slots; s++)
        if (queue->slots[s].sent_with == with) queue->slots[s].sent_with = -1;
    return HL_OK;
}

hl_status hl_queue_drain_copies(hl_queue *queue)
{
    HL_TRY(hl_queue_flush(queue));
    for (int32_t s = 0; s < queue->plan->n_slots; s++) HL_TRY(reclaim_slot(queue, s));
    queue->held = -1;
    return HL_OK;
}

hl_status hl_queue_take_batch(hl_queue *queue, bool *out_end)
{
    hl_plan *plan = queue->plan;
    *out_end = false;
    if (queue->run.end) { /* in the middle of a window */
        HL_TRY(put_off(queue));
        HL_TRY(hl_queue_flush(queue));
    }
    if (!plan->feed) return HL_OK;
    /* Loaders write into the slot that the next call gives back, else into the one it hands out. */
    HL_TRY(reclaim_slot(queue, has_loaders(queue) ? queue->held : hl_feed_slot(plan->feed)));
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

const hl_control *hl_queue_heard(const hl_queue *queue)
{
    return &queue->heard;
}

hl_status hl_queue_settle(hl_queue *queue)
{
    HL_TRY(hl_queue_flush(queue));
    while (queue->n_heard < queue->n_told) HL_TRY(hear(queue, true));
    return queue->device->ops->synchronize(queue->device, queue->compute);
}

hl_status hl_queue_refresh(hl_queue *queue)
{
    if (queue->n_writes == queue->plan->session->n_control_writes) return HL_OK;
    HL_TRY(hl_queue_settle(queue));
    HL_TRY(tell(queue));
    HL_TRY(hear(queue, true));
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

hl_status hl_queue_give_up(hl_queue *queue, bool in_window)
{
    int32_t ok = 1;
    queue->run = (segment_run){0, 0};
    if (!in_window) return hl_queue_flush(queue);
    return write_field(queue, offsetof(hl_control, window_ok), &ok, sizeof ok);
}
