#include "passes/placing.h"

#include <string.h>

#include "base/alloc.h"

/* ---- spans ----------------------------------------------------------------------------------- */

/* The first span that ends at `offset` or behind it. */
static int64_t find_span(const hl_spans *spans, int64_t offset)
{
    int64_t low = 0, high = spans->n;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (spans->list[middle].end < offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static hl_status add_span(hl_spans *spans, hl_span span)
{
    int64_t first = find_span(spans, span.begin), last = first;
    for (; last < spans->n && spans->list[last].begin <= span.end; last++) {
        if (spans->list[last].begin < span.begin) span.begin = spans->list[last].begin;
        if (spans->list[last].end > span.end) span.end = spans->list[last].end;
    }
    if (first == last)
        HL_TRY(hl_alloc_grow((void **)&spans->list, &spans->capacity, spans->n + 1, sizeof span));
    memmove(&spans->list[first + 1], &spans->list[last],
            (size_t)(spans->n - last) * sizeof(hl_span));
    spans->n += first + 1 - last;
    spans->list[first] = span;
    return HL_OK;
}

/* The lowest offset from this one on at which the spans leave room. */
static int64_t skip_spans(const hl_spans *spans, int64_t offset, int64_t bytes)
{
    for (int64_t i = find_span(spans, offset); i < spans->n; i++) {
        if (spans->list[i].begin - offset >= bytes) break;
        if (spans->list[i].end > offset) offset = spans->list[i].end;
    }
    return offset;
}

/* ---- times ----------------------------------------------------------------------------------- */

/* A node and its times [first, last]. */
typedef struct place_node {
    int64_t node;
    hl_life times;
} place_node;

static place_node half_of(place_node n, int64_t upper)
{
    int32_t middle = n.times.first + (n.times.last - n.times.first) / 2;
    hl_life times = n.times;
    if (upper)
        times.first = middle + 1;
    else
        times.last = middle;
    return (place_node){2 * n.node + upper, times};
}

static bool is_apart(hl_life a, hl_life b)
{
    return a.first > b.last || b.first > a.last;
}

static bool covers(hl_life life, hl_life times)
{
    return life.first <= times.first && times.last <= life.last;
}

static hl_status use_span(hl_placing *p, place_node n, hl_life life, hl_span span)
{
    if (is_apart(life, n.times)) return HL_OK;
    HL_TRY(add_span(&p->sometime[n.node], span));
    if (covers(life, n.times)) return add_span(&p->throughout[n.node], span);
    HL_TRY(use_span(p, half_of(n, 0), life, span));
    return use_span(p, half_of(n, 1), life, span);
}

/* Raises *offset above all blocks in its way at or below this node. */
static void skip_used(const hl_placing *p, place_node n, hl_life life, int64_t bytes,
                      int64_t *offset)
{
    if (is_apart(life, n.times)) return;
    if (covers(life, n.times)) {
        *offset = skip_spans(&p->sometime[n.node], *offset, bytes);
        return;
    }
    *offset = skip_spans(&p->throughout[n.node], *offset, bytes);
    skip_used(p, half_of(n, 0), life, bytes, offset);
    skip_used(p, half_of(n, 1), life, bytes, offset);
}

/* ---- entry ----------------------------------------------------------------------------------- */

hl_status hl_placing_init(int32_t n_times, hl_placing *out_placing)
{
    int64_t n_nodes = 2;
    while (n_nodes < 2 * (int64_t)n_times) n_nodes *= 2;
    *out_placing = (hl_placing){.n_nodes = n_nodes, .n_times = n_times};
    HL_TRY(hl_alloc_zero(2 * (size_t)n_nodes * sizeof(hl_spans), (void **)&out_placing->sometime));
    out_placing->throughout = out_placing->sometime + n_nodes;
    return HL_OK;
}

void hl_placing_deinit(hl_placing *placing)
{
    for (int64_t i = 0; placing->sometime && i < 2 * placing->n_nodes; i++)
        hl_free(placing->sometime[i].list);
    hl_free(placing->sometime);
    *placing = (hl_placing){0};
}

hl_status hl_placing_add(hl_placing *placing, int64_t bytes, hl_life life, int64_t *out_offset)
{
    place_node root = {1, {0, placing->n_times - 1}};
    int64_t offset = 0, before = -1;
    *out_offset = HL_NONE;
    while (offset != before) {
        before = offset;
        skip_used(placing, root, life, bytes, &offset);
    }
    if (offset > INT64_MAX - bytes) return HL_OK;
    if (bytes) HL_TRY(use_span(placing, root, life, (hl_span){offset, offset + bytes}));
    *out_offset = offset;
    return HL_OK;
}
