#include "plan/bounce.h"

#include "base/alloc.h"

enum { PIECE_BYTES = HL_BOUNCE_ELEMENTS * 8 }; /* of the longest dtype */

struct hl_bounce {
    hl_device *device;
    hl_stream *stream;
    char *memory;
    int n_pieces, piece; /* the one that was taken last */
    hl_event *copied[HL_BOUNCE_PIECES];
};

static hl_status alloc_locked(hl_bounce *bounce)
{
    const hl_device_ops *ops = bounce->device->ops;
    bounce->n_pieces = HL_BOUNCE_PIECES;
    HL_TRY(ops->host_alloc(bounce->device, (size_t)bounce->n_pieces * PIECE_BYTES,
                           (void **)&bounce->memory));
    for (int i = 0; i < bounce->n_pieces; i++)
        HL_TRY(ops->event_create(bounce->device, false, &bounce->copied[i]));
    return HL_OK;
}

hl_status hl_bounce_create(hl_device *device, hl_stream *stream, hl_bounce **out_bounce)
{
    hl_bounce *bounce;
    *out_bounce = NULL;
    HL_TRY(hl_alloc_zero(sizeof *bounce, (void **)&bounce));
    hl_status status;
    *bounce = (hl_bounce){.device = device, .stream = stream, .n_pieces = 1};
    HL_GOTO(stream ? alloc_locked(bounce) : hl_alloc(PIECE_BYTES, (void **)&bounce->memory));
    *out_bounce = bounce;
    bounce = NULL;
cleanup:
    hl_bounce_destroy(bounce);
    return status;
}

void hl_bounce_destroy(hl_bounce *bounce)
{
    if (!bounce) return;
    hl_device *device = bounce->device;
    for (int i = 0; i < HL_BOUNCE_PIECES; i++)
        if (bounce->copied[i]) device->ops->event_destroy(device, bounce->copied[i]);
    if (!bounce->stream)
        hl_free(bounce->memory);
    else if (bounce->memory)
        device->ops->host_free(device, bounce->memory);
    hl_free(bounce);
}

static void *find_piece(const hl_bounce *bounce)
{
    return bounce->memory + (size_t)bounce->piece * PIECE_BYTES;
}

hl_status hl_bounce_take(hl_bounce *bounce, void **out_piece)
{
    hl_device *device = bounce->device;
    int next = (bounce->piece + 1) % bounce->n_pieces;
    *out_piece = NULL;
    if (bounce->stream) HL_TRY(device->ops->event_synchronize(device, bounce->copied[next]));
    bounce->piece = next;
    *out_piece = find_piece(bounce);
    return HL_OK;
}

hl_status hl_bounce_send(hl_bounce *bounce, void *dst, size_t bytes)
{
    hl_device *device = bounce->device;
    HL_TRY(device->ops->copy(device, dst, find_piece(bounce), bytes, HL_COPY_HOST_TO_DEVICE,
                             bounce->stream));
    if (!bounce->stream) return HL_OK;
    return device->ops->event_record(device, bounce->copied[bounce->piece], bounce->stream);
}

hl_status hl_bounce_receive(hl_bounce *bounce, const void *src, size_t bytes, void **out_piece)
{
    hl_device *device = bounce->device;
    HL_TRY(hl_bounce_take(bounce, out_piece));
    HL_TRY(
        device->ops->copy(device, *out_piece, src, bytes, HL_COPY_DEVICE_TO_HOST, bounce->stream));
    return device->ops->synchronize(device, bounce->stream);
}
