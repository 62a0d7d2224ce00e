/* Session: stores by name, one arena, one ring of slots, one runner at a time. */
#include "plan/session.h"

#include <stddef.h>
#include <string.h>

#include "base/alloc.h"
#include "base/os.h"

hl_status hl_session_create(hl_device *device, hl_session **out_session)
{
    hl_session *session;
    hl_status status = HL_OK;
    *out_session = NULL;
    HL_TRY(hl_alloc_zero(sizeof *session, (void **)&session));
    session->device = device;
    if (device->ops->stream_create) {
        HL_GOTO(device->ops->stream_create(device, &session->compute));
        HL_GOTO(device->ops->stream_create(device, &session->copy));
        HL_GOTO(hl_streams_init(device, session->compute, &session->streams));
        HL_GOTO(hl_queue_create(&session->streams, session->copy, &session->queue));
    }
    HL_GOTO(hl_bounce_create(device, session->compute, &session->bounce));
    *out_session = session;
    session = NULL;
cleanup:
    hl_session_destroy(session);
    return status;
}

void hl_session_destroy(hl_session *session)
{
    if (!session) return;
    const hl_device_ops *ops = session->device->ops;
    if (session->compute) (void)ops->synchronize(session->device, session->compute);
    hl_queue_destroy(session->queue);
    hl_streams_deinit(&session->streams);
    hl_bounce_destroy(session->bounce);
    for (int64_t i = 0; i < session->n_stores; i++) {
        ops->memory_free(session->device, session->stores[i].data);
        hl_free(session->stores[i].name);
    }
    ops->memory_free(session->device, session->arena);
    ops->memory_free(session->device, session->slots);
    if (session->staging) ops->host_free(session->device, session->staging);
    if (session->compute) ops->stream_destroy(session->device, session->compute);
    if (session->copy) ops->stream_destroy(session->device, session->copy);
    hl_free(session->stores);
    hl_free(session);
}

static bool try_enter(hl_session *session)
{
    int idle = 0;
    return __atomic_compare_exchange_n(&session->busy, &idle, 1, false, __ATOMIC_ACQUIRE,
                                       __ATOMIC_RELAXED);
}

void hl_session_await(hl_session *session)
{
    while (!try_enter(session)) hl_os_thread_yield();
}

hl_status hl_session_enter(hl_session *session, const char *what)
{
    if (try_enter(session)) return HL_OK;
    return hl_status_set(
        HL_ERROR_BUSY,
        "%s: this model is already running in another thread; wait for it or stop it", what);
}

void hl_session_leave(hl_session *session)
{
    __atomic_store_n(&session->busy, 0, __ATOMIC_RELEASE);
}

hl_session_store_entry *hl_session_find(const hl_session *session, const char *name)
{
    for (int64_t i = 0; i < session->n_stores; i++)
        if (!strcmp(session->stores[i].name, name)) return &session->stores[i];
    return NULL;
}

/* Guards read the control block even where no step is trained: at first it permits commits. */
static hl_status init_control(hl_session *session, void *data)
{
    hl_device *device = session->device;
    hl_control control;
    memset(&control, 0, sizeof control);
    control.window_ok = 1;
    control.loss_scale = 1.0;
    for (int i = 0; i < HL_CONTROL_SCALARS; i++) control.factor[i] = 1.0;
    HL_TRY(device->ops->copy(device, data, &control, sizeof control, HL_COPY_HOST_TO_DEVICE,
                             session->compute));
    return device->ops->synchronize(device, session->compute);
}

hl_dtype hl_session_dtype(const hl_device *device, hl_dtype dtype)
{
    bool is_double = hl_dtype_is_float(dtype) && device->float_type == HL_DTYPE_F64;
    return is_double ? HL_DTYPE_F64 : dtype;
}

hl_status hl_session_add_store(hl_session *session, const char *name, hl_dtype dtype, int64_t n)
{
    hl_session_store_entry *known = hl_session_find(session, name);
    dtype = hl_session_dtype(session->device, dtype);
    if (known && known->dtype == dtype && known->n == n) return HL_OK;
    if (known)
        return hl_status_set(HL_ERROR_SHAPE, "store %s: holds %lld elements of %s, got %lld of %s",
                             name, (long long)known->n, hl_dtype_name(known->dtype), (long long)n,
                             hl_dtype_name(dtype));
    size_t bytes;
    if (n < 0 || !hl_mul_size((size_t)n, hl_dtype_bytes(dtype), &bytes))
        return hl_status_set(HL_ERROR_SHAPE, "store %s: size must fit memory, got %lld elements",
                             name, (long long)n);
    hl_session_store_entry entry = {.dtype = dtype, .n = n, .holds = -1, .will_hold = -1};
    hl_status status = HL_OK;
    HL_GOTO(hl_alloc_grow((void **)&session->stores, &session->cap_stores, session->n_stores + 1,
                          sizeof entry));
    HL_GOTO(hl_strdup(name, &entry.name));
    if (bytes) HL_GOTO(session->device->ops->memory_alloc(session->device, bytes, &entry.data));
    if (bytes)
        HL_GOTO(
            session->device->ops->fill_zero(session->device, entry.data, bytes, session->compute));
    HL_GOTO(session->device->ops->synchronize(session->device, session->compute));
    if (!strcmp(name, "control")) {
        HL_GOTO(init_control(session, entry.data));
        session->control = entry.data;
        if (session->queue) hl_queue_set_control(session->queue, entry.data);
    }
    session->stores[session->n_stores++] = entry;
    session->generation++;
    entry = (hl_session_store_entry){0};
cleanup:
    hl_free(entry.name);
    if (entry.data) session->device->ops->memory_free(session->device, entry.data);
    return status;
}

hl_status hl_session_store(hl_session *session, const char *name, hl_dtype dtype, int64_t n)
{
    HL_TRY(hl_session_enter(session, "store"));
    hl_status status = hl_session_add_store(session, name, dtype, n);
    hl_session_leave(session);
    return status;
}

static hl_status find_range(hl_session *session, const char *name, int64_t first, int64_t n,
                            hl_session_store_entry **out_entry)
{
    *out_entry = hl_session_find(session, name);
    if (!*out_entry) return hl_status_set(HL_ERROR_CONFIG, "session: no store is named %s", name);
    if (first < 0 || n < 0 || first > (*out_entry)->n || n > (*out_entry)->n - first)
        return hl_status_set(HL_ERROR_SHAPE, "store %s: has %lld elements, got %lld from %lld on",
                             name, (long long)(*out_entry)->n, (long long)n, (long long)first);
    return HL_OK;
}

/* All at once between the device and the caller's memory, which may be page-locked. */
static hl_status move(hl_session *session, char *stored, void *user, size_t bytes, bool in)
{
    hl_device *device = session->device;
    if (in)
        HL_TRY(device->ops->copy(device, stored, user, bytes, HL_COPY_HOST_TO_DEVICE,
                                 session->compute));
    else
        HL_TRY(device->ops->copy(device, user, stored, bytes, HL_COPY_DEVICE_TO_HOST,
                                 session->compute));
    return device->ops->synchronize(device, session->compute);
}

/* Copies all at once where nothing is converted, but for a little that is written (plan/bounce.h).
 * When it returns, the caller may use the host memory; later work on the stream sees the copy. */
static hl_status transfer(hl_session *session, hl_session_store_entry *entry, int64_t first,
                          int64_t n, hl_dtype dtype, char *user, bool in)
{
    size_t own = hl_dtype_bytes(entry->dtype), other = hl_dtype_bytes(dtype);
    char *stored = (char *)entry->data + (size_t)first * own;
    bool is_little = in && n <= HL_BOUNCE_ELEMENTS;
    if (n && dtype == entry->dtype && !is_little)
        return move(session, stored, user, (size_t)n * own, in);
    while (n > 0) {
        int64_t count = n < HL_BOUNCE_ELEMENTS ? n : HL_BOUNCE_ELEMENTS;
        size_t bytes = (size_t)count * own;
        void *piece;
        if (in) {
            HL_TRY(hl_bounce_take(session->bounce, &piece));
            hl_convert(entry->dtype, piece, dtype, user, count);
            HL_TRY(hl_bounce_send(session->bounce, stored, bytes));
        } else {
            HL_TRY(hl_bounce_receive(session->bounce, stored, bytes, &piece));
            hl_convert(dtype, user, entry->dtype, piece, count);
        }
        n -= count, stored += bytes, user += (size_t)count * other;
    }
    return HL_OK;
}

static void change_store(hl_session_store_entry *entry)
{
    entry->version++;
    entry->holds = entry->will_hold = -1;
}

static hl_status move_range(hl_session *session, const char *name, int64_t first, int64_t n,
                            hl_dtype dtype, char *user, bool in)
{
    hl_session_store_entry *entry;
    HL_TRY(find_range(session, name, first, n, &entry));
    if (in) change_store(entry);
    return transfer(session, entry, first, n, dtype, user, in);
}

hl_status hl_session_write(hl_session *session, const char *name, int64_t first, int64_t n,
                           hl_dtype dtype, const void *src)
{
    HL_TRY(hl_session_enter(session, "write"));
    hl_status status = move_range(session, name, first, n, dtype, (char *)src, true);
    hl_session_leave(session);
    return status;
}

hl_status hl_session_read(hl_session *session, const char *name, int64_t first, int64_t n,
                          hl_dtype dtype, void *dst)
{
    HL_TRY(hl_session_enter(session, "read"));
    hl_status status = move_range(session, name, first, n, dtype, dst, false);
    hl_session_leave(session);
    return status;
}

hl_status hl_session_copy(hl_session *session, const char *dst, const char *src)
{
    hl_session_store_entry *to, *from;
    HL_TRY(hl_session_enter(session, "copy"));
    hl_device *device = session->device;
    hl_status status = HL_OK;
    HL_GOTO(find_range(session, dst, 0, 0, &to));
    HL_GOTO(find_range(session, src, 0, 0, &from));
    if (to->n != from->n || to->dtype != from->dtype)
        HL_GOTO(hl_status_set(HL_ERROR_SHAPE,
                              "copy: stores must be alike, got %s of %lld and %s of %lld elements",
                              dst, (long long)to->n, src, (long long)from->n));
    size_t bytes = (size_t)to->n * hl_dtype_bytes(to->dtype);
    change_store(to);
    if (bytes)
        HL_GOTO(device->ops->copy(device, to->data, from->data, bytes, HL_COPY_DEVICE_TO_DEVICE,
                                  session->compute));
cleanup:
    hl_session_leave(session);
    return status;
}

static hl_status move_control(hl_session *session, hl_control *control, bool in)
{
    HL_TRY(hl_session_add_store(session, "control", HL_DTYPE_U8, sizeof *control));
    if (in && session->queue) hl_queue_set_control(session->queue, session->control);
    return move_range(session, "control", 0, sizeof *control, HL_DTYPE_U8, (char *)control, in);
}

hl_status hl_session_control_read(hl_session *session, hl_control *out_control)
{
    HL_TRY(hl_session_enter(session, "control"));
    hl_status status = move_control(session, out_control, false);
    hl_session_leave(session);
    return status;
}

hl_status hl_session_control_write(hl_session *session, const hl_control *control)
{
    HL_TRY(hl_session_enter(session, "control"));
    hl_status status = move_control(session, (hl_control *)control, true);
    hl_session_leave(session);
    return status;
}

const hl_control *hl_session_control(const hl_session *session)
{
    return session->queue ? hl_queue_snapshot(session->queue) : session->control;
}

hl_status hl_session_snapshot(hl_session *session, hl_control *out_control)
{
    memset(out_control, 0, sizeof *out_control);
    HL_TRY(hl_session_enter(session, "snapshot"));
    const hl_control *control = hl_session_control(session);
    if (control) memcpy(out_control, control, offsetof(hl_control, ring));
    hl_session_leave(session);
    return HL_OK;
}

/* ---- rounded copies -------------------------------------------------------------------------- */

static hl_session_store_entry *find_store(const hl_session *session, const hl_graph *graph,
                                          int32_t store)
{
    return hl_session_find(session, graph->stores[store].name);
}

static void change_stores(hl_session *session, const hl_graph *graph)
{
    for (int64_t i = 0; i < graph->n_commits; i++) {
        int32_t store = hl_graph_value(graph, graph->commits[i].target)->store;
        if (graph->stores[store].source == HL_NONE) find_store(session, graph, store)->version++;
    }
}

bool hl_session_begin_copies(hl_session *session, const hl_graph *graph, bool is_first)
{
    bool are_current = true;
    if (!session->has_copies) return true;
    for (int64_t i = 0; i < graph->n_stores; i++) {
        if (graph->stores[i].source == HL_NONE) continue;
        const hl_session_store_entry *source = find_store(session, graph, graph->stores[i].source);
        are_current &= find_store(session, graph, (int32_t)i)->holds == source->version;
    }
    if (is_first) change_stores(session, graph);
    for (int64_t i = 0; i < graph->n_stores; i++) {
        if (graph->stores[i].source == HL_NONE) continue;
        const hl_session_store_entry *source = find_store(session, graph, graph->stores[i].source);
        find_store(session, graph, (int32_t)i)->will_hold = source->version;
    }
    return are_current;
}

void hl_session_end_copies(hl_session *session, const hl_graph *graph)
{
    for (int64_t i = 0; i < graph->n_stores; i++) {
        if (graph->stores[i].source == HL_NONE) continue;
        hl_session_store_entry *copy = find_store(session, graph, (int32_t)i);
        copy->holds = copy->will_hold;
    }
}

int64_t hl_session_count_changes(const hl_session *session, const hl_graph *graph)
{
    enum { MOST = 64 };
    uint64_t is_changed = 0;
    int64_t n = 0;
    if (graph->n_stores > MOST) return -1;
    for (int64_t i = 0; i < graph->n_commits; i++)
        is_changed |= UINT64_C(1) << hl_graph_value(graph, graph->commits[i].target)->store;
    for (int64_t i = 0; i < graph->n_stores; i++)
        if (!(is_changed >> i & 1)) n += find_store(session, graph, (int32_t)i)->version;
    return n;
}

void hl_session_drop_copies(hl_session *session)
{
    for (int64_t i = 0; i < session->n_stores; i++) change_store(&session->stores[i]);
}

/* ---- memory of the running plan -------------------------------------------------------------- */

/* Frees the old memory first: both at once could exceed what there is. */
static hl_status reserve_arena(hl_session *session, int64_t bytes)
{
    const hl_device_ops *ops = session->device->ops;
    HL_TRY(ops->synchronize(session->device, session->compute));
    ops->memory_free(session->device, session->arena);
    session->arena = NULL;
    session->arena_bytes = 0;
    session->resident = 0;
    session->unfinished = NULL;
    session->generation++;
    HL_TRY(ops->memory_alloc(session->device, (size_t)bytes, &session->arena));
    session->arena_bytes = bytes;
    return HL_OK;
}

static void free_slots(hl_session *session)
{
    const hl_device_ops *ops = session->device->ops;
    ops->memory_free(session->device, session->slots);
    if (session->staging) ops->host_free(session->device, session->staging);
    session->slots = session->staging = NULL;
    session->slot_bytes = 0;
    session->generation++;
}

static hl_status reserve_slots(hl_session *session, int64_t bytes)
{
    const hl_device_ops *ops = session->device->ops;
    HL_TRY(ops->synchronize(session->device, session->compute));
    if (session->queue) HL_TRY(hl_queue_drain_copies(session->queue));
    free_slots(session);
    HL_TRY(ops->memory_alloc(session->device, (size_t)bytes, &session->slots));
    if (session->queue) {
        HL_TRY(ops->host_alloc(session->device, (size_t)bytes, &session->staging));
        memset(session->staging, 0, (size_t)bytes);
        hl_queue_set_slots(session->queue, session->slots, session->staging);
    }
    session->slot_bytes = bytes;
    return HL_OK;
}

hl_status hl_session_reserve(hl_session *session, int64_t arena_bytes, int64_t slot_bytes)
{
    if (arena_bytes > session->arena_bytes) HL_TRY(reserve_arena(session, arena_bytes));
    if (slot_bytes <= session->slot_bytes) return HL_OK;
    hl_status status = reserve_slots(session, slot_bytes);
    if (session->slot_bytes < slot_bytes) free_slots(session);
    return status;
}
