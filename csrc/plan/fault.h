/* An operand that is no good (an index out of range, a matrix without a factor), which a kernel
 * noted in the control block. */
#ifndef HL_PLAN_FAULT_H
#define HL_PLAN_FAULT_H

#include "plan/session.h"

/* HL_ERROR_DATA, naming the op of any plan of the session that met one, and what it met; clears it
 * in the control block. */
hl_status hl_session_check_fault(hl_session *session);

#endif
