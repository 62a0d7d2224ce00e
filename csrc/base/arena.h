/* Arena: many small objects with one lifetime (a graph's nodes, names, attributes). Blocks of
 * growing size; freed as a whole. Addresses never move. Not thread-safe: one owner. */
#ifndef HL_BASE_ARENA_H
#define HL_BASE_ARENA_H

#include "base/status.h"

typedef struct hl_arena_block hl_arena_block;
typedef struct hl_arena {
    hl_arena_block *head;
} hl_arena;

void hl_arena_init(hl_arena *arena);
void hl_arena_deinit(hl_arena *arena);
/* 16-byte aligned, zero-filled; NULL for 0 bytes. */
hl_status hl_arena_alloc(hl_arena *arena, size_t bytes, void **out_ptr);
hl_status hl_arena_copy(hl_arena *arena, const void *data, size_t bytes, const void **out_copy);
/* A NULL text gives NULL. */
hl_status hl_arena_strdup(hl_arena *arena, const char *text, const char **out_text);

#endif
