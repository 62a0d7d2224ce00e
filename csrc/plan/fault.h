/* An index out of range, which a kernel noted in the control block. */
#ifndef HL_PLAN_FAULT_H
#define HL_PLAN_FAULT_H

#include "plan/session.h"

/* HL_ERROR_DATA in the words of the op that met one, whichever of the session's plans it is of; the
 * control block has forgotten it then. */
hl_status hl_session_check_fault(hl_session *session);

#endif
