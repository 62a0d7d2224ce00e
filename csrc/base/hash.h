/* FNV-1a of 64 bits, for names and checksums; not for secrets. */
#ifndef HL_BASE_HASH_H
#define HL_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define HL_HASH_START 0xCBF29CE484222325ull

static inline uint64_t hl_hash_bytes(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ at[i]) * 0x100000001B3ull;
    return hash;
}
/* With its end mark, so that two texts are not one longer text. */
static inline uint64_t hl_hash_text(uint64_t hash, const char *text)
{
    return hl_hash_bytes(hash, text, strlen(text) + 1);
}

#endif
