/* Inside of a session, for csrc/plan and python/src alone.
 *
 * The session owns what its plans need only while they run, as large as the largest of them needs:
 * the arena, the slots and their staging halves, the queue and its captures. */
#ifndef HL_PLAN_SESSION_H
#define HL_PLAN_SESSION_H

#include "ir/convert.h"
#include "plan/bounce.h"
#include "plan/queue.h"

typedef struct hl_session_store_entry {
    char *name;
    hl_dtype dtype;
    int64_t n;
    void *data; /* device memory */
    /* Counts changes of the store: by the host, by errors, by runs of plans that update it. */
    int64_t version;
    /* Of a rounded copy (hl_store.source): the version of its source that it holds, -1 for none,
     * and the one that it holds when the step under way is complete. It is current while its source
     * still has the version that it holds. */
    int64_t holds, will_hold;
} hl_session_store_entry;

struct hl_session {
    hl_device *device;
    hl_stream *compute, *copy; /* of an asynchronous device; NULL elsewhere */
    hl_streams streams;        /* compute, and what runs beside it */
    hl_queue *queue;           /* the same */
    hl_session_store_entry *stores;
    int64_t n_stores, cap_stores;
    bool has_copies;     /* rounded ones */
    hl_control *control; /* the store of that name: device memory; NULL: not made yet */
    hl_plan *plans;      /* those that exist, the latest first */
    int32_t n_plans;     /* that were ever made, which gives their numbers */
    void *arena;
    int64_t arena_bytes;
    int32_t resident;         /* number of the plan whose values lie in the arena; 0: nobody's */
    hl_run_state *unfinished; /* the run whose step was left in the middle; NULL: none, or lost */
    void *slots, *staging;    /* device memory, and the host halves that a feed fills */
    int64_t slot_bytes;
    hl_plan *slots_of; /* the plan whose batches lie there, or NULL */
    hl_bounce *bounce;
    int64_t generation; /* of addresses: plans bind again when it has changed */
    int busy;           /* atomic */
};

/* Makes the caller the only one that runs; HL_ERROR_BUSY when there is another. */
hl_status hl_session_enter(hl_session *session, const char *what);
/* Like it, but waits for the other: for what must not fail. */
void hl_session_await(hl_session *session);
void hl_session_leave(hl_session *session);
hl_session_store_entry *hl_session_find(const hl_session *session, const char *name);
/* A step of the graph begins: are the rounded copies that it has current? When it has ended they
 * are, unless their source was changed in between. is_first: of its plan in a run, or behind a step
 * of another plan. */
bool hl_session_begin_copies(hl_session *session, const hl_graph *graph, bool is_first);
void hl_session_end_copies(hl_session *session, const hl_graph *graph);
/* Changes from outside, in all, of those stores of the graph that its steps leave alone; -1: not
 * counted. */
int64_t hl_session_count_changes(const hl_session *session, const hl_graph *graph);
/* No copy is current: an error came in between. */
void hl_session_drop_copies(hl_session *session);
/* The dtype that a store of the graph's dtype has on the device. */
hl_dtype hl_session_dtype(const hl_device *device, hl_dtype dtype);
/* hl_session_store for a caller who has entered. */
hl_status hl_session_add_store(hl_session *session, const char *name, hl_dtype dtype, int64_t n);
/* Grows the arena and the slots. What grows loses its contents, and no plan may own the slots. */
hl_status hl_session_reserve(hl_session *session, int64_t arena_bytes, int64_t slot_bytes);
/* The control block, or its last snapshot where the host cannot read it; NULL: there is none. */
const hl_control *hl_session_control(const hl_session *session);

#endif
