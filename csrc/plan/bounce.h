/* The bounce buffer: host memory of our own between the caller's and a store.
 *
 * What is converted goes through it piece by piece, so that the peak stays small, and so does a
 * little that is written, because copying it costs less than waiting until the caller's memory was
 * read. On an asynchronous device it is page-locked, so that a copy from it is queued and the host
 * goes on: a driver may wait for the stream before it reads pageable memory. The pieces are a ring,
 * each written again when an event says that its last copy is done; so as many writes as there are
 * pieces are under way before one waits.
 *
 * Rejected: pageable memory where the system has no page-locked memory left. A session's slots and
 * mirrors are page-locked as well, so that it could not be made either; the error says what was
 * asked for. */
#ifndef HL_PLAN_BOUNCE_H
#define HL_PLAN_BOUNCE_H

#include "backend/backend.h"

/* Of a piece, in any dtype; pieces of an asynchronous device. */
enum { HL_BOUNCE_ELEMENTS = 1 << 12, HL_BOUNCE_PIECES = 4 };

typedef struct hl_bounce hl_bounce;

/* Copies are queued on this stream; NULL for a synchronous device. */
hl_status hl_bounce_create(hl_device *device, hl_stream *stream, HL_GIVE hl_bounce **out_bounce);
/* NULL is allowed. */
void hl_bounce_destroy(HL_TAKE hl_bounce *bounce);
/* A piece for the caller to write: nothing is copied from it any more. */
hl_status hl_bounce_take(hl_bounce *bounce, void **out_piece);
/* Queues a copy of the piece that was taken last to the device. */
hl_status hl_bounce_send(hl_bounce *bounce, void *dst, size_t bytes);
/* Copies from the device to a piece and waits until it is there. */
hl_status hl_bounce_receive(hl_bounce *bounce, const void *src, size_t bytes, void **out_piece);

#endif
