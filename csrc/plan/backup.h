/* A copy of all stores of a session, the control block among them, in host memory: for runs of
 * which nothing is to stay. */
#ifndef HL_PLAN_BACKUP_H
#define HL_PLAN_BACKUP_H

#include "plan/session.h"

typedef struct hl_backup {
    hl_session *session;
    char *data; /* of all stores, one behind another */
} hl_backup;

/* For a caller who has entered the session, with nothing under way. */
hl_status hl_backup_init(hl_session *session, hl_backup *out_backup);
/* Puts back all that it can. Returns `status`, or where that is HL_OK the first error. */
hl_status hl_backup_restore(const hl_backup *backup, hl_status status);
void hl_backup_deinit(hl_backup *backup);

#endif
