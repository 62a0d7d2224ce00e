#include "plan/captures.h"

#include "base/alloc.h"

struct hl_captured {
    hl_capture *capture;
    const void *owner;
    hl_captured **home;
    int64_t n_launches;
    int64_t last_use;
};

struct hl_captures {
    hl_device *device;
    hl_captured **list;
    int64_t n, capacity;
    int64_t n_launches; /* of all */
    int64_t n_uses;
};

hl_status hl_captures_create(hl_device *device, hl_captures **out_captures)
{
    *out_captures = NULL;
    HL_TRY(hl_alloc_zero(sizeof **out_captures, (void **)out_captures));
    (*out_captures)->device = device;
    return HL_OK;
}

static void drop(hl_captures *captures, int64_t i)
{
    hl_captured *captured = captures->list[i];
    captures->list[i] = captures->list[--captures->n];
    captures->n_launches -= captured->n_launches;
    *captured->home = NULL;
    captures->device->ops->capture_destroy(captures->device, captured->capture);
    hl_free(captured);
}

void hl_captures_destroy(hl_captures *captures)
{
    if (!captures) return;
    while (captures->n) drop(captures, captures->n - 1);
    hl_free(captures->list);
    hl_free(captures);
}

/* The capture of another owner that was replayed longest ago; -1: there is none. */
static int64_t find_oldest(const hl_captures *captures, const void *owner)
{
    int64_t oldest = -1;
    for (int64_t i = 0; i < captures->n; i++) {
        const hl_captured *captured = captures->list[i];
        bool is_older = oldest < 0 || captured->last_use < captures->list[oldest]->last_use;
        if (captured->owner != owner && is_older) oldest = i;
    }
    return oldest;
}

static void make_room(hl_captures *captures, const void *owner, int64_t n_launches)
{
    while (captures->n_launches + n_launches > HL_CAPTURES_LAUNCHES) {
        int64_t oldest = find_oldest(captures, owner);
        if (oldest < 0) return;
        drop(captures, oldest);
    }
}

hl_status hl_captures_add(hl_captures *captures, const void *owner, hl_capture *capture,
                          int64_t n_launches, hl_captured **home)
{
    hl_captured *captured = NULL;
    hl_status status;
    HL_GOTO(hl_alloc_grow((void **)&captures->list, &captures->capacity, captures->n + 1,
                          sizeof(hl_captured *)));
    HL_GOTO(hl_alloc(sizeof *captured, (void **)&captured));
    make_room(captures, owner, n_launches);
    *captured = (hl_captured){capture, owner, home, n_launches, ++captures->n_uses};
    captures->list[captures->n++] = captured;
    captures->n_launches += n_launches;
    *home = captured;
    capture = NULL;
cleanup:
    if (capture) captures->device->ops->capture_destroy(captures->device, capture);
    return status;
}

hl_status hl_captures_launch(hl_captures *captures, hl_captured *captured, hl_stream *stream)
{
    captured->last_use = ++captures->n_uses;
    return captures->device->ops->capture_launch(captures->device, captured->capture, stream);
}

void hl_captures_drop(hl_captures *captures, const void *owner)
{
    for (int64_t i = captures->n; i-- > 0;)
        if (captures->list[i]->owner == owner) drop(captures, i);
}
