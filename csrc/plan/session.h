/* Inside of a session, for csrc/plan alone. */
#ifndef HL_PLAN_SESSION_H
#define HL_PLAN_SESSION_H

#include "ir/convert.h"
#include "plan/plan.h"

typedef struct hl_session_store_entry {
    char *name;
    hl_dtype dtype;
    int64_t n;
    void *data; /* device memory */
} hl_session_store_entry;

struct hl_session {
    hl_device *device;
    hl_stream *compute, *copy; /* of an asynchronous device; NULL elsewhere */
    hl_session_store_entry *stores;
    int64_t n_stores, cap_stores;
    void *arena;
    int64_t arena_bytes;
    hl_plan *plans;     /* those that exist, the latest first */
    int32_t n_plans;    /* ever made: their numbers */
    int32_t resident;   /* number of the plan whose values lie in the arena; 0: nobody's */
    void *piece;        /* host memory of transfers, kept so that a run's peak is known before it */
    int64_t generation; /* of addresses: plans bind again when it moved on */
    int64_t n_control_writes; /* by the host: what was heard of the control block is old */
    int busy;                 /* atomic */
};

/* The one that runs: HL_ERROR_BUSY when there is another. */
hl_status hl_session_enter(hl_session *session, const char *what);
void hl_session_leave(hl_session *session);
hl_session_store_entry *hl_session_find(hl_session *session, const char *name);
/* hl_session_store for who has entered. */
hl_status hl_session_add_store(hl_session *session, const char *name, hl_dtype dtype, int64_t n);
/* Grows the arena; contents are lost. */
hl_status hl_session_reserve(hl_session *session, int64_t arena_bytes);

#endif
