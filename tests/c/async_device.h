/* An asynchronous device for tests: the reference kernels behind streams that do nothing until
 * somebody waits for them.
 *
 * Its memory cannot be read by the host: addresses are moved by 2^47, beyond what a process may
 * have, so a direct access faults. Copies read staging memory when their turn comes and other host
 * memory at the call, which counts as a wait. Work on a stream runs as late as it may, or as soon,
 * and a stream waits only for the events it was told to, so an order that nothing enforces shows as
 * other bits. A capture takes in the streams that wait for its events, refuses to end before the
 * first stream waits for all they do, and replays them as late and as soon as may be, in turn.
 * Memory that was given back is full of NaN for a while, and who writes there is found.
 * Calls that no capture may contain fail in one. */
#ifndef TESTS_C_ASYNC_DEVICE_H
#define TESTS_C_ASYNC_DEVICE_H

#include <stdlib.h>

#include "backend/host.h"
#include "base/fault.h"
#include "kernels/ref/ref.h"
#include "tests/c/check.h"

/* Every call that may fail asks it first. */
static hl_fault async_fault;
#define ASYNC_CALL()                                                                               \
    do {                                                                                           \
        if (hl_fault_take(&async_fault))                                                           \
            return hl_status_set(HL_ERROR_DEVICE, "async: was asked to fail");                     \
    } while (0)

/* Bit i: the i-th stream that the device has works as soon as it may. */
static int async_eager;
/* Weight gradients of so many operations go to a second stream; 0: none. */
static double async_overlap_flops = 1;

/* Kernels that ran, and how far each moved the device's clock. */
static int64_t async_n_launches;
static double async_launch_ns = 1e6;
/* Sees the operands of each, before it runs. */
static void (*async_watch)(hl_op op, void *const *args);

static const uintptr_t ASYNC_SHIFT = (uintptr_t)1 << 47;
enum { ASYNC_ARGS = 96, ASYNC_STAGING = 64, ASYNC_STREAMS = 13, ASYNC_GONE = 32 };
enum { ASYNC_LANES = 2, ASYNC_SCRATCH = 192 };

typedef enum async_kind {
    ASYNC_LAUNCH,
    ASYNC_COPY,
    ASYNC_ZERO,
    ASYNC_RECORD,
    ASYNC_WAIT,
    ASYNC_JOIN /* within a capture: waits for the first `turn` ops of lane `lane` */
} async_kind;
typedef struct async_op {
    async_kind kind;
    const hl_kernel *kernel;
    hl_kernel_state state;
    hl_launch launch;
    void *args[ASYNC_ARGS];
    void *dst;
    const void *src;
    void *snapshot; /* of pageable memory */
    size_t bytes;
    struct hl_event *event;
    int64_t turn; /* of the event: which record */
    int lane;
} async_op;
/* What a stream did in a capture. */
typedef struct async_lane {
    async_op *ops;
    int64_t n, capacity;
    int64_t done; /* while it is joined or replayed */
} async_lane;

struct hl_stream {
    async_op *ops;
    int64_t n, done, capacity;
    hl_capture *capture; /* being made, */
    int lane;            /* with this part of it */
    bool is_eager;
};
struct hl_event {
    hl_stream *stream; /* of its last record */
    int64_t n_queued, n_done;
    bool is_timed;
    int64_t launches; /* async_n_launches at its last record */
    /* Of a last record within a capture: behind so many ops of a lane. */
    hl_capture *capture;
    int64_t capture_number, at;
    int lane;
};
struct hl_capture {
    async_lane lanes[ASYNC_LANES]; /* of the stream that began, then of those that joined it */
    int n_lanes;
};

/* Device memory that was given back, as the host sees it. */
typedef struct async_block {
    char *at;
    size_t bytes;
} async_block;

typedef struct async_device {
    hl_device base;
    hl_device *inner;
    hl_kernel kernels[HL_OP_COUNT];
    const hl_kernel *list[HL_OP_COUNT][2];
    char *staging[ASYNC_STAGING];
    size_t staging_bytes[ASYNC_STAGING];
    async_block gone[ASYNC_GONE]; /* the latest of them */
    int64_t n_gone;
    int64_t n_syncs, n_live, n_replays;
    hl_stream *streams[ASYNC_STREAMS]; /* the last one stays NULL */
    hl_stream own;                     /* what NULL stands for */
    hl_capture *capturing;             /* NULL: none is being made */
    int64_t n_captures;                /* that were begun */
} async_device;

static inline async_device *async_of(hl_device *device)
{
    return (async_device *)device;
}
static inline bool async_is_hidden(const void *at)
{
    return (uintptr_t)at >= ASYNC_SHIFT;
}
static inline void *async_hide(void *at)
{
    return at ? (void *)((uintptr_t)at + ASYNC_SHIFT) : NULL;
}
static inline void *async_show(const void *at)
{
    return (void *)(async_is_hidden(at) ? (uintptr_t)at - ASYNC_SHIFT : (uintptr_t)at);
}

/* ---- streams --------------------------------------------------------------------------------- */

static void async_push(async_op **ops, int64_t *n, int64_t *capacity, const async_op *op)
{
    if (*n == *capacity) {
        *capacity = *capacity ? 2 * *capacity : 64;
        *ops = realloc(*ops, (size_t)*capacity * sizeof **ops);
    }
    (*ops)[(*n)++] = *op;
}

static void async_step(hl_stream *stream);
static hl_status async_add(hl_stream *stream, const async_op *op)
{
    async_lane *lane = stream->capture ? &stream->capture->lanes[stream->lane] : NULL;
    if (lane)
        async_push(&lane->ops, &lane->n, &lane->capacity, op);
    else
        async_push(&stream->ops, &stream->n, &stream->capacity, op);
    while (stream->is_eager && stream->done < stream->n) async_step(stream);
    return HL_OK;
}

static void async_reach(hl_event *event, int64_t turn)
{
    while (event->n_done < turn) async_step(event->stream);
}

static void async_step(hl_stream *stream)
{
    async_op op = stream->ops[stream->done++];
    switch (op.kind) {
    case ASYNC_LAUNCH:
        if (async_watch) async_watch(op.kernel->op, op.args);
        if (op.launch.scratch) memset(op.launch.scratch, 0xFF, ASYNC_SCRATCH);
        CHECK_OK(op.kernel->launch(&op.state, op.args, &op.launch, NULL));
        async_n_launches++;
        break;
    case ASYNC_COPY:
        memmove(async_show(op.dst), op.snapshot ? op.snapshot : async_show(op.src), op.bytes);
        free(op.snapshot);
        break;
    case ASYNC_ZERO: memset(async_show(op.dst), 0, op.bytes); break;
    case ASYNC_RECORD:
        op.event->n_done = op.turn;
        op.event->launches = async_n_launches;
        break;
    case ASYNC_WAIT: async_reach(op.event, op.turn); break;
    case ASYNC_JOIN: CHECK(!"only in a capture"); break;
    }
}

static hl_status async_stream_create(hl_device *device, hl_stream **out_stream)
{
    ASYNC_CALL();
    async_device *d = async_of(device);
    int i = 0;
    while (d->streams[i]) i++;
    CHECK(i < ASYNC_STREAMS - 1);
    d->n_live++;
    *out_stream = calloc(1, sizeof **out_stream);
    (*out_stream)->is_eager = async_eager >> i & 1;
    d->streams[i] = *out_stream;
    return HL_OK;
}
static hl_stream *async_stream(hl_device *device, hl_stream *stream)
{
    return stream ? stream : &async_of(device)->own;
}
static void async_drain(async_device *d)
{
    while (d->own.done < d->own.n) async_step(&d->own);
    for (int i = 0; i < ASYNC_STREAMS; i++)
        while (d->streams[i] && d->streams[i]->done < d->streams[i]->n) async_step(d->streams[i]);
}
static void async_stream_destroy(hl_device *device, hl_stream *stream)
{
    async_device *d = async_of(device);
    async_drain(d);
    for (int i = 0; i < ASYNC_STREAMS; i++)
        if (d->streams[i] == stream) d->streams[i] = NULL;
    async_of(device)->n_live--;
    free(stream->ops);
    free(stream);
}
static hl_status async_synchronize(hl_device *device, hl_stream *stream)
{
    ASYNC_CALL();
    CHECK(!async_of(device)->capturing);
    async_of(device)->n_syncs++;
    stream = async_stream(device, stream);
    while (stream->done < stream->n) async_step(stream);
    return HL_OK;
}
static hl_status async_event_create(hl_device *device, bool is_timed, hl_event **out_event)
{
    ASYNC_CALL();
    async_of(device)->n_live++;
    *out_event = calloc(1, sizeof **out_event);
    (*out_event)->is_timed = is_timed;
    return HL_OK;
}
static void async_event_destroy(hl_device *device, hl_event *event)
{
    async_drain(async_of(device));
    async_of(device)->n_live--;
    free(event);
}
static hl_status async_event_record(hl_device *device, hl_event *event, hl_stream *stream)
{
    ASYNC_CALL();
    event->capture = stream->capture;
    if (stream->capture) {
        event->capture_number = async_of(device)->n_captures;
        event->lane = stream->lane;
        event->at = stream->capture->lanes[stream->lane].n;
        return HL_OK;
    }
    /* An event is recorded anew on one stream, or when its last record is over. */
    CHECK(event->stream == stream || event->n_done == event->n_queued);
    event->stream = stream;
    return async_add(stream,
                     &(async_op){.kind = ASYNC_RECORD, .event = event, .turn = ++event->n_queued});
}
static hl_status async_event_wait(hl_device *device, hl_event *event, hl_stream *stream)
{
    ASYNC_CALL();
    async_device *d = async_of(device);
    async_op op = {.kind = ASYNC_WAIT, .event = event, .turn = event->n_queued};
    /* A captured event is for its own capture, and that waits for no other. */
    CHECK(event->capture || !stream->capture);
    if (!event->capture) return async_add(stream, &op);
    CHECK(event->capture == d->capturing && event->capture_number == d->n_captures);
    if (!stream->capture) {
        CHECK(d->capturing->n_lanes < ASYNC_LANES);
        stream->capture = d->capturing;
        stream->lane = d->capturing->n_lanes++;
    }
    op.kind = ASYNC_JOIN, op.turn = event->at, op.lane = event->lane;
    return async_add(stream, &op);
}
static hl_status async_event_synchronize(hl_device *device, hl_event *event)
{
    ASYNC_CALL();
    CHECK(!async_of(device)->capturing);
    async_reach(event, event->n_queued);
    return HL_OK;
}
static hl_status async_event_query(hl_device *device, hl_event *event, bool *out_done)
{
    *out_done = false;
    ASYNC_CALL();
    CHECK(!async_of(device)->capturing);
    *out_done = event->n_done == event->n_queued;
    if (!*out_done) async_step(event->stream); /* who looks again finds it further on */
    return HL_OK;
}

static hl_status async_event_elapsed(hl_device *device, hl_event *from, hl_event *to,
                                     double *out_ns)
{
    (void)device;
    *out_ns = 0;
    ASYNC_CALL();
    CHECK(from->is_timed && to->is_timed && from->n_queued && to->n_queued);
    CHECK(from->n_done == from->n_queued && to->n_done == to->n_queued);
    *out_ns = async_launch_ns * (double)(to->launches - from->launches);
    return HL_OK;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Its size stands before a block. */
static hl_status async_memory_alloc(hl_device *device, size_t bytes, void **out_ptr)
{
    ASYNC_CALL();
    void *memory;
    *out_ptr = NULL;
    CHECK(!async_of(device)->capturing);
    if (!bytes) return HL_OK;
    HL_TRY(hl_alloc(bytes + HL_ALIGN, &memory));
    *(size_t *)memory = bytes;
    *out_ptr = async_hide((char *)memory + HL_ALIGN);
    memset(async_show(*out_ptr), 0xFF, bytes); /* NaN */
    async_of(device)->n_live++;
    return HL_OK;
}
static void async_let_go(async_block *block)
{
    size_t n = 0;
    if (!block->at) return;
    while (n < block->bytes && block->at[n] == (char)0xFF) n++;
    CHECK(n == block->bytes); /* else somebody wrote there */
    hl_free(block->at - HL_ALIGN);
    block->at = NULL;
}
static void async_memory_free(hl_device *device, void *ptr)
{
    async_device *d = async_of(device);
    async_drain(d);
    if (!ptr) return;
    d->n_live--;
    async_block *gone = &d->gone[d->n_gone++ % ASYNC_GONE];
    async_let_go(gone);
    gone->at = async_show(ptr);
    gone->bytes = *(size_t *)(void *)(gone->at - HL_ALIGN);
    memset(gone->at, 0xFF, gone->bytes);
    if (CHECK_UNDER_SANITIZER) async_let_go(gone); /* it finds reads, too */
}
static hl_status async_host_alloc(hl_device *device, size_t bytes, void **out_ptr)
{
    ASYNC_CALL();
    async_device *d = async_of(device);
    *out_ptr = NULL;
    HL_TRY(hl_alloc(bytes, out_ptr));
    d->n_live++;
    int i = 0;
    while (d->staging[i]) i++;
    d->staging[i] = *out_ptr, d->staging_bytes[i] = bytes;
    return HL_OK;
}
static void async_host_free(hl_device *device, void *ptr)
{
    async_device *d = async_of(device);
    async_drain(d);
    d->n_live--;
    for (int i = 0; i < ASYNC_STAGING; i++)
        if (d->staging[i] == ptr) d->staging[i] = NULL;
    hl_free(ptr);
}
static bool async_is_staging(const async_device *d, const void *at)
{
    for (int i = 0; i < ASYNC_STAGING; i++)
        if (d->staging[i] && (const char *)at >= d->staging[i] &&
            (const char *)at < d->staging[i] + d->staging_bytes[i])
            return true;
    return false;
}
static hl_status async_copy(hl_device *device, void *dst, const void *src, size_t bytes,
                            hl_copy kind, hl_stream *stream)
{
    ASYNC_CALL();
    async_device *d = async_of(device);
    async_op op = {.kind = ASYNC_COPY, .dst = dst, .src = src, .bytes = bytes};
    stream = async_stream(device, stream);
    CHECK(async_is_hidden(dst) == (kind != HL_COPY_DEVICE_TO_HOST));
    CHECK(async_is_hidden(src) == (kind != HL_COPY_HOST_TO_DEVICE));
    bool from_pageable = kind == HL_COPY_HOST_TO_DEVICE && !async_is_staging(d, src);
    bool to_pageable = kind == HL_COPY_DEVICE_TO_HOST && !async_is_staging(d, dst);
    if (from_pageable) op.snapshot = memcpy(malloc(bytes), src, bytes);
    if (from_pageable || to_pageable) d->n_syncs++;
    HL_TRY(async_add(stream, &op));
    if (to_pageable)
        while (stream->done < stream->n) async_step(stream);
    return HL_OK;
}
static hl_status async_fill_zero(hl_device *device, void *dst, size_t bytes, hl_stream *stream)
{
    ASYNC_CALL();
    stream = async_stream(device, stream);
    return async_add(stream, &(async_op){.kind = ASYNC_ZERO, .dst = dst, .bytes = bytes});
}

/* ---- kernels and captures -------------------------------------------------------------------- */

static hl_device *async_inner; /* the reference device; one test, one device */

/* The reference kernel's state, and how many operands a launch has. */
typedef struct async_state {
    hl_kernel_state inner;
    int32_t n_args;
} async_state;

/* Every kernel has scratch, which planning has to keep apart, and functions of one value work in
 * place. */
static hl_status async_query(hl_device *device, const hl_graph *graph, hl_node_id node,
                             hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    const hl_node *n = &graph->nodes[node];
    const hl_kernel *inner = async_inner->ops->kernels(async_inner, n->op)[0];
    HL_TRY(inner->query(async_inner, graph, node, out_req, out_why_not));
    out_req->scratch_bytes += ASYNC_SCRATCH;
    if (n->n_in == 1 && hl_op_get(n->op)->flags & HL_OP_POINTWISE) out_req->in_place[0] |= 1;
    return HL_OK;
}

static hl_status async_prepare(hl_device *device, const hl_graph *graph, hl_node_id node,
                               hl_kernel_state *out_state)
{
    const hl_node *n = &graph->nodes[node];
    const hl_kernel *inner = async_inner->ops->kernels(async_inner, n->op)[0];
    async_state *state = calloc(1, sizeof *state);
    (void)device;
    out_state->impl = state;
    state->n_args = n->n_in + n->n_out;
    state->inner.kernel = inner;
    return inner->prepare ? inner->prepare(async_inner, graph, node, &state->inner) : HL_OK;
}
static void async_release(hl_kernel_state *state)
{
    async_state *own = state->impl;
    if (own->inner.kernel->release)
        own->inner.kernel->release(&own->inner);
    else
        hl_free(own->inner.impl);
    free(own);
}

static hl_status async_launch(const hl_kernel_state *state, void *const *args,
                              const hl_launch *launch, hl_stream *stream)
{
    ASYNC_CALL();
    const async_state *own = state->impl;
    CHECK(own->n_args <= ASYNC_ARGS);
    async_op op = {.kind = ASYNC_LAUNCH, .kernel = own->inner.kernel, .state = own->inner};
    op.launch = *launch;
    op.launch.control = async_show(launch->control);
    op.launch.scratch = async_show(launch->scratch);
    for (int32_t i = 0; i < own->n_args; i++) {
        CHECK(!args[i] || async_is_hidden(args[i]));
        op.args[i] = async_show(args[i]);
    }
    return async_add(stream, &op);
}
static hl_status async_capture_begin(hl_device *device, hl_stream *stream)
{
    ASYNC_CALL();
    async_device *d = async_of(device);
    d->capturing = calloc(1, sizeof *d->capturing);
    d->capturing->n_lanes = 1;
    d->n_captures++;
    stream->capture = d->capturing;
    stream->lane = 0;
    return HL_OK;
}
static void async_capture_free(hl_capture *capture)
{
    for (int i = 0; i < capture->n_lanes; i++) free(capture->lanes[i].ops);
    free(capture);
}

/* Goes on with a lane up to so many ops, and with what these wait for first; stream: queues them
 * there, or NULL. */
static hl_status async_walk(hl_capture *capture, int lane, int64_t end, hl_stream *stream)
{
    async_lane *l = &capture->lanes[lane];
    while (l->done < end) {
        const async_op *op = &l->ops[l->done++];
        if (op->kind == ASYNC_JOIN)
            HL_TRY(async_walk(capture, op->lane, op->turn, stream));
        else if (stream)
            HL_TRY(async_add(stream, op));
    }
    return HL_OK;
}
static void async_walk_begin(hl_capture *capture)
{
    for (int i = 0; i < ASYNC_LANES; i++) capture->lanes[i].done = 0;
}
static bool async_is_joined(hl_capture *capture)
{
    bool is_joined = true;
    async_walk_begin(capture);
    CHECK_OK(async_walk(capture, 0, capture->lanes[0].n, NULL));
    for (int i = 0; i < capture->n_lanes; i++)
        is_joined = is_joined && capture->lanes[i].done == capture->lanes[i].n;
    return is_joined;
}

static hl_status async_capture_end(hl_device *device, hl_stream *stream, hl_capture **out_capture)
{
    async_device *d = async_of(device);
    hl_capture *capture = stream->capture;
    *out_capture = NULL;
    CHECK(capture && capture == d->capturing && stream->lane == 0);
    d->capturing = NULL;
    for (int i = 0; i < ASYNC_STREAMS; i++)
        if (d->streams[i]) d->streams[i]->capture = NULL;
    stream->capture = NULL;
    bool fails = hl_fault_take(&async_fault);
    if (fails || !async_is_joined(capture)) {
        async_capture_free(capture);
        return hl_status_set(HL_ERROR_DEVICE, fails ? "async: was asked to fail"
                                                    : "async: a captured stream never joins");
    }
    d->n_live++;
    *out_capture = capture;
    return HL_OK;
}

/* As soon as may be: each lane goes on until it waits. */
static hl_status async_walk_soon(hl_capture *capture, hl_stream *stream)
{
    for (int64_t i = 0; i < capture->lanes[0].n; i++) {
        HL_TRY(async_walk(capture, 0, i + 1, stream));
        for (int lane = 1; lane < capture->n_lanes; lane++) {
            async_lane *l = &capture->lanes[lane];
            while (l->done < l->n) {
                const async_op *op = &l->ops[l->done];
                bool waits = op->kind == ASYNC_JOIN && capture->lanes[op->lane].done < op->turn;
                if (waits) break;
                HL_TRY(async_walk(capture, lane, l->done + 1, stream));
            }
        }
    }
    return HL_OK;
}
static hl_status async_capture_launch(hl_device *device, hl_capture *capture, hl_stream *stream)
{
    ASYNC_CALL();
    async_walk_begin(capture);
    return async_of(device)->n_replays++ % 2 ? async_walk_soon(capture, stream)
                                             : async_walk(capture, 0, capture->lanes[0].n, stream);
}
static void async_capture_destroy(hl_device *device, hl_capture *capture)
{
    async_of(device)->n_live--;
    async_capture_free(capture);
}

/* ---- the device ------------------------------------------------------------------------------ */

static const hl_kernel *const *async_list(const hl_device *device, hl_op op)
{
    return (unsigned)op < HL_OP_COUNT ? ((const async_device *)device)->list[op] : NULL;
}
static void async_destroy(hl_device *device)
{
    async_device *d = async_of(device);
    CHECK_INT(d->n_live, 0);
    for (int i = 0; i < ASYNC_GONE; i++) async_let_go(&d->gone[i]);
    d->inner->ops->destroy(d->inner);
    free(d->own.ops);
    free(d);
}

static const hl_device_ops async_ops = {.destroy = async_destroy,
                                        .memory_alloc = async_memory_alloc,
                                        .memory_free = async_memory_free,
                                        .copy = async_copy,
                                        .fill_zero = async_fill_zero,
                                        .synchronize = async_synchronize,
                                        .kernels = async_list,
                                        .host_alloc = async_host_alloc,
                                        .host_free = async_host_free,
                                        .stream_create = async_stream_create,
                                        .stream_destroy = async_stream_destroy,
                                        .event_create = async_event_create,
                                        .event_destroy = async_event_destroy,
                                        .event_record = async_event_record,
                                        .event_wait = async_event_wait,
                                        .event_synchronize = async_event_synchronize,
                                        .event_query = async_event_query,
                                        .event_elapsed = async_event_elapsed,
                                        .capture_begin = async_capture_begin,
                                        .capture_end = async_capture_end,
                                        .capture_launch = async_capture_launch,
                                        .capture_destroy = async_capture_destroy};

static hl_status async_open(const hl_backend *backend, int index, const hl_device_options *options,
                            hl_device **out_device)
{
    async_device *d = calloc(1, sizeof *d);
    HL_TRY(hl_ref_backend()->device_open(hl_ref_backend(), index, options, &d->inner));
    async_inner = d->inner;
    d->base = *d->inner;
    d->base.ops = &async_ops;
    d->base.backend = backend;
    d->base.overlap_flops = async_overlap_flops;
    for (int op = 0; op < HL_OP_COUNT; op++) {
        const hl_kernel *const *list = d->inner->ops->kernels(d->inner, (hl_op)op);
        if (!list || !list[0]) continue;
        d->kernels[op] = *list[0];
        d->kernels[op].query = async_query;
        d->kernels[op].prepare = async_prepare;
        d->kernels[op].launch = async_launch;
        d->kernels[op].release = async_release;
        d->list[op][0] = &d->kernels[op];
    }
    *out_device = &d->base;
    return HL_OK;
}

static inline const hl_backend *async_backend(void)
{
    static const hl_backend backend = {.name = "async", .device_open = async_open};
    return &backend;
}

#endif
