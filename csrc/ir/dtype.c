/* Element types: a table made from HL_DTYPES, and promotion. */
#include "ir/dtype.h"

#include <string.h>

static const struct {
    const char *name;
    size_t bytes;
    char kind;
} dtypes[HL_DTYPE_COUNT] = {
#define X(code, name, bytes, kind) [code] = {name, bytes, kind},
    HL_DTYPES(X)
#undef X
};

size_t hl_dtype_bytes(hl_dtype dtype)
{
    return dtypes[dtype].bytes;
}

const char *hl_dtype_name(hl_dtype dtype)
{
    return dtypes[dtype].name;
}

char hl_dtype_kind(hl_dtype dtype)
{
    return dtypes[dtype].kind;
}

hl_dtype hl_dtype_parse(const char *name)
{
    int dtype = 0;
    while (dtype < HL_DTYPE_COUNT && strcmp(dtypes[dtype].name, name) != 0) dtype++;
    return (hl_dtype)dtype;
}

static int rank_kind(char kind)
{
    return kind == 'b' ? 0 : kind == 'f' ? 2 : 1;
}

/* The two are of one kind and differ. */
static hl_dtype promote_float(hl_dtype a, hl_dtype b)
{
    if (dtypes[a].bytes == dtypes[b].bytes) return HL_DTYPE_F32;
    return dtypes[a].bytes > dtypes[b].bytes ? a : b;
}

static hl_dtype promote_integer(hl_dtype a, hl_dtype b)
{
    /* uint8 has no room in int8: the next signed type holds both. */
    if (dtypes[a].bytes == dtypes[b].bytes) return HL_DTYPE_I16;
    return dtypes[a].bytes > dtypes[b].bytes ? a : b;
}

hl_dtype hl_dtype_promote(hl_dtype a, hl_dtype b)
{
    if (a == b) return a;
    int rank_a = rank_kind(dtypes[a].kind), rank_b = rank_kind(dtypes[b].kind);
    if (rank_a != rank_b) return rank_a > rank_b ? a : b;
    return rank_a == 2 ? promote_float(a, b) : promote_integer(a, b);
}
