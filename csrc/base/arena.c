/* Arena: a list of zeroed blocks, the newest in front; only the newest is filled. An object that
 * does not fit starts a block of its own size or the next growth step, whichever is larger. */
#include "base/arena.h"

#include <string.h>

#include "base/alloc.h"

enum { OBJECT_ALIGN = 16, FIRST_BYTES = 4096, LARGEST_STEP_BYTES = 1 << 20 };

struct hl_arena_block {
    _Alignas(OBJECT_ALIGN) hl_arena_block *next;
    size_t bytes; /* of payload */
    size_t used;
};

void hl_arena_init(hl_arena *arena)
{
    arena->head = NULL;
}

void hl_arena_deinit(hl_arena *arena)
{
    while (arena->head) {
        hl_arena_block *next = arena->head->next;
        hl_free(arena->head);
        arena->head = next;
    }
}

static hl_status add_block(hl_arena *arena, size_t min_bytes)
{
    size_t bytes = arena->head ? arena->head->bytes * 2 : FIRST_BYTES;
    if (bytes > LARGEST_STEP_BYTES) bytes = LARGEST_STEP_BYTES;
    if (bytes < min_bytes) bytes = min_bytes;
    size_t total;
    if (!hl_add_size(bytes, sizeof(hl_arena_block), &total)) total = SIZE_MAX;
    void *block;
    HL_TRY(hl_alloc_zero(total, &block));
    hl_arena_block *head = block;
    *head = (hl_arena_block){.next = arena->head, .bytes = bytes};
    arena->head = head;
    return HL_OK;
}

hl_status hl_arena_alloc(hl_arena *arena, size_t bytes, void **out_ptr)
{
    *out_ptr = NULL;
    if (bytes == 0) return HL_OK;
    size_t rounded;
    if (!hl_add_size(bytes, OBJECT_ALIGN - 1, &rounded)) rounded = SIZE_MAX;
    rounded &= ~(size_t)(OBJECT_ALIGN - 1);
    if (!arena->head || arena->head->bytes - arena->head->used < rounded)
        HL_TRY(add_block(arena, rounded));
    *out_ptr = (char *)(arena->head + 1) + arena->head->used;
    arena->head->used += rounded;
    return HL_OK;
}

hl_status hl_arena_copy(hl_arena *arena, const void *data, size_t bytes, const void **out_copy)
{
    void *copy;
    HL_TRY(hl_arena_alloc(arena, bytes, &copy));
    if (bytes > 0) memcpy(copy, data, bytes);
    *out_copy = copy;
    return HL_OK;
}

hl_status hl_arena_strdup(hl_arena *arena, const char *text, const char **out_text)
{
    *out_text = NULL;
    if (!text) return HL_OK;
    size_t bytes = strlen(text) + 1;
    void *copy;
    HL_TRY(hl_arena_alloc(arena, bytes, &copy));
    *out_text = memcpy(copy, text, bytes);
    return HL_OK;
}
