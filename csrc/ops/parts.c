#include "ops/parts.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "ops/build.h"

/* ---- in memory ------------------------------------------------------------------------------- */

/* Are the dims before the axis 1, so that a run along it is a run of elements? */
static bool is_leading(const hl_shape *shape, int64_t axis)
{
    return hl_shape_span(shape, 0, (int)axis) == 1;
}

bool hl_part_read(const hl_graph *graph, const hl_node *node, int32_t j, int64_t *out_first)
{
    int64_t axis, start, step = 1;
    *out_first = 0;
    if (node->op == HL_OP_SLICE) {
        axis = hl_slice_attrs(node)->axis;
        start = hl_slice_attrs(node)->start;
        step = hl_slice_attrs(node)->step;
    } else if (node->op == HL_OP_SPLIT) {
        axis = hl_split_attrs(node)->axis;
        start = j * hl_split_attrs(node)->size;
    } else {
        return false;
    }
    const hl_shape *x = hl_graph_shape(graph, node->in[0]);
    *out_first = start * hl_shape_span(x, (int)axis + 1, x->rank);
    return step == 1 && is_leading(x, axis);
}

/* ---- in a sum -------------------------------------------------------------------------------- */

bool hl_part_find(const hl_graph *graph, hl_id grad, hl_part *out_part)
{
    hl_node_id maker = hl_graph_producer(graph, grad);
    if (maker == HL_NONE || graph->nodes[maker].op != HL_OP_SLICE_GRAD) return false;
    const hl_node *node = &graph->nodes[maker];
    const hl_attrs_slice_grad *slice = hl_slice_grad_attrs(node);
    *out_part =
        (hl_part){node->in[0], grad, (int)slice->axis, slice->start, slice->step, slice->size};
    return true;
}

static int64_t count_steps(const hl_graph *graph, const hl_part *part)
{
    return hl_graph_shape(graph, part->value)->dim[part->axis];
}

static int compare_starts(const void *a, const void *b)
{
    const hl_part *x = a, *y = b;
    return (x->start > y->start) - (x->start < y->start);
}

/* Puts the parts in the order of their elements. Do they lie side by side along one axis, with gaps
 * that are less than half of it? */
static bool sort_parts(const hl_graph *graph, hl_part *parts, int64_t n)
{
    int64_t n_covered = 0, end = 0;
    qsort(parts, (size_t)n, sizeof *parts, compare_starts);
    for (int64_t i = 0; i < n; i++) {
        int64_t n_steps = count_steps(graph, &parts[i]);
        bool is_beside = parts[i].step == 1 && parts[i].start >= end;
        if (parts[i].axis != parts[0].axis || !is_beside) return false;
        end = parts[i].start + n_steps;
        n_covered += n_steps;
    }
    return n_covered > parts[0].size - n_covered;
}

/* Zeros in the part's shape but for the axis, in the list of what is joined; none are nothing. */
static hl_status add_gap(hl_graph *graph, const hl_part *part, int64_t n_steps, hl_id *list,
                         int32_t *n_list)
{
    hl_type type = hl_graph_value(graph, part->value)->type;
    type.shape.dim[part->axis] = n_steps;
    return n_steps ? hl_build_full(graph, &type, 0, &list[(*n_list)++]) : HL_OK;
}

static hl_status join_parts(hl_graph *graph, const hl_part *parts, int64_t n, hl_id *list,
                            hl_id *out_id)
{
    int32_t n_list = 0;
    int64_t end = 0;
    for (int64_t i = 0; i < n; i++) {
        HL_TRY(add_gap(graph, &parts[i], parts[i].start - end, list, &n_list));
        list[n_list++] = parts[i].value;
        end = parts[i].start + count_steps(graph, &parts[i]);
    }
    HL_TRY(add_gap(graph, &parts[0], parts[0].size - end, list, &n_list));
    hl_attrs axis = {.axis = {parts[0].axis}};
    return hl_graph_add(graph, HL_OP_CONCAT, list, n_list, &axis, out_id);
}

static hl_status add_part(hl_graph *graph, const hl_part *part, hl_id *sum)
{
    hl_id in[2] = {*sum, part->value};
    if (*sum == HL_NONE) *sum = part->share;
    if (*sum != in[0]) return HL_OK;
    if (*sum == HL_NONE) {
        hl_attrs attrs = {.slice_grad = {part->axis, part->start, part->step, part->size}};
        return hl_graph_add(graph, HL_OP_SLICE_GRAD, &in[1], 1, &attrs, sum);
    }
    hl_attrs attrs = {.slice_add = {part->axis, part->start, part->step}};
    return hl_graph_add(graph, HL_OP_SLICE_ADD, in, 2, &attrs, sum);
}

hl_status hl_build_add_parts(hl_graph *graph, const hl_part *parts, int64_t n, hl_id *sum)
{
    void *memory = NULL;
    hl_status status = HL_OK;
    if (n > 1) {
        HL_TRY(hl_alloc((size_t)n * (sizeof(hl_part) + 3 * sizeof(hl_id)), &memory));
        hl_part *sorted = memory;
        hl_id joined, *list = (hl_id *)(sorted + n);
        memcpy(sorted, parts, (size_t)n * sizeof *sorted);
        if (sort_parts(graph, sorted, n)) {
            HL_GOTO(join_parts(graph, sorted, n, list, &joined));
            HL_GOTO(hl_build_accumulate(graph, joined, sum));
            goto cleanup;
        }
    }
    for (int64_t i = 0; i < n; i++) HL_GOTO(add_part(graph, &parts[i], sum));
cleanup:
    hl_free(memory);
    return status;
}
