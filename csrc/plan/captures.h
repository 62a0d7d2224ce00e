/* Captures: what the plans of a session have launched, kept for replay.
 *
 * A capture holds memory of the driver, so captures of many plans must not add up. The plan that
 * launches keeps all of its captures. Captures of other plans stay while all of them hold no more
 * than HL_CAPTURES_LAUNCHES launches; the one that was replayed longest ago goes first. */
#ifndef HL_PLAN_CAPTURES_H
#define HL_PLAN_CAPTURES_H

#include "backend/backend.h"

enum { HL_CAPTURES_LAUNCHES = 1 << 14 };

typedef struct hl_captures hl_captures;
typedef struct hl_captured hl_captured;

hl_status hl_captures_create(hl_device *device, HL_GIVE hl_captures **out_captures);
/* NULL is allowed. */
void hl_captures_destroy(HL_TAKE hl_captures *captures);
/* Takes the capture, on failure too. *home is set now, and to NULL when the capture is dropped. */
hl_status hl_captures_add(hl_captures *captures, const void *owner, HL_TAKE hl_capture *capture,
                          int64_t n_launches, hl_captured **home);
hl_status hl_captures_launch(hl_captures *captures, hl_captured *captured, hl_stream *stream);
/* Drops all captures of this owner. */
void hl_captures_drop(hl_captures *captures, const void *owner);

#endif
